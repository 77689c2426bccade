"""Kernels steered by integer arrays on the GPU: results equal NumPy's exactly in many runs, and a
large product is right."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gemm
from numpipe import launch
from tests.kernels import prefetched_kernels
from tests.kernels.steered_kernels import KERNELS, arrays, check, wanted

PROCESSES = 4
RINGS = (1, 0), (2, 1), (3, 1), (4, 0)
"""(slots, delay_release)"""
SEEDS = 100


def benchmark() -> ModuleType:
    file = Path(gemm.__file__).parent / "benchmarks" / "steered.py"
    spec = importlib.util.spec_from_file_location("benchmark_steered", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("name", KERNELS)
def test_any_tables_and_counts_give_what_numpy_does(name: str, dtype: Any) -> None:
    for seed in range(SEEDS):
        slots, delay = RINGS[seed % len(RINGS)]
        check(
            name,
            lambda kernel, *given, **statics: kernel(*given, **statics, target="gpu"),
            seed,
            dtype,
            slots,
            delay,
            zeros=seed % 10 == 9,
        )


@pytest.mark.parametrize("name", KERNELS)
def test_the_same_call_with_other_numbers_takes_other_ways(name: str) -> None:
    """Shapes and types are the same, so the launch is repeated; no values are remembered."""
    for seed in range(20):
        given = arrays(np.random.default_rng(seed), np.int32)
        there = [launch.DeviceArray.from_host(array) for array in given]
        KERNELS[name](*there, slots=3, delay=1)
        np.testing.assert_array_equal(there[3].copy_to_host(), wanted(name, *given))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("name", prefetched_kernels.KERNELS)
def test_tables_in_shared_memory_steer_as_the_arrays_do(name: str, dtype: Any) -> None:
    for seed in range(SEEDS):
        given = arrays(np.random.default_rng(seed), dtype, zeros=seed % 10 == 9)
        prefetched_kernels.KERNELS[name](*given, size=(1, 7, 16, 1024)[seed % 4], target="gpu")
        np.testing.assert_array_equal(given[3], wanted(name, *given[:3], np.zeros_like(given[3])))


@pytest.mark.parametrize("table", prefetched_kernels.TABLES.values(), ids=prefetched_kernels.TABLES)
def test_any_array_is_read_through_its_copy_as_it_is(table: np.ndarray) -> None:
    y = np.full(table.shape, -1, table.dtype)
    prefetched_kernels.numbers(table, y, target="gpu")
    np.testing.assert_array_equal(y, table)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (1000, 776, 520)])
def test_a_product_whose_order_blocks_and_steps_come_from_arrays_is_right(
    shape: gemm.Shape, dtype: Any
) -> None:
    steered, cfg = benchmark(), gemm.Config()
    a, b = (
        np.random.default_rng(n).integers(-2, 3, (rows, shape[2])).astype(np.float16)
        for n, rows in enumerate(shape[:2])
    )
    x, y = map(launch.DeviceArray.from_host, (a, b))
    sample = np.random.default_rng(2).integers(0, shape[0], 64)
    exact = (a[sample].astype(np.float32) @ b.T.astype(np.float32)).astype(np.float16)
    for name, array in steered.steering(shape, cfg, dtype).items():
        rng = np.random.default_rng(3)
        if name != "steps from counts":
            rng.shuffle(array)  # any order of tiles and of blocks
        out = launch.DeviceArray(shape[:2], np.float16)
        steered.KERNELS[name](x, y, launch.DeviceArray.from_host(array), out=out, cfg=cfg)
        np.testing.assert_array_equal(out.copy_to_host()[sample], exact, err_msg=name)
