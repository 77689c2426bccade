"""Stores by a warp next to the loading one, on the GPU: results, also over many launches and at
sizes that fill the GPU, and the events of a profile."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from tests.kernels import output_kernels
from tests.kernels.store_role_kernels import added_up, by_store_role, gemm, operands, product, sums
from tests.language.pipeline.test_store_role import REFUSED
from tests.traces.legal import check_legal

REPEATS = 10
SHAPES = ((1536, 1280, 256), (768, 2048, 64))
"""Rows that are a multiple of 64 x 1, 2 and 3 warpgroups, and of clusters."""


def stored(kernel: Any, *args: Any, **statics: Any) -> Any:
    return by_store_role(kernel)(*args, target="gpu", **statics)


@pytest.mark.parametrize("name", [name for name in output_kernels.CHECKS if name not in REFUSED])
def test_outputs_of_pipelines(name: str) -> None:
    for _ in range(3):
        output_kernels.CHECKS[name](stored)


@pytest.mark.parametrize("outs", [1, 2, 3, 4])
def test_many_blocks_through_few_slots(outs: int) -> None:
    for shape in ((2048, 2056), (64, 8), (1000, 72)):
        for dtype in (np.dtype(np.float16), np.dtype(np.float32)):
            output_kernels.check_copy(
                stored,
                output_kernels.copy(),
                dtype,
                shape,
                cfg=output_kernels.Config(outs=outs, slots=2),
            )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"wgs": 1},
        {"wgs": 3},
        {"store_slots": 1},
        {"store_slots": 2},
        {"store_slots": 3},
        {"store_slots": 8},
        {"persistent": True},
        {"persistent": True, "store_slots": 1},
        {"cluster": 2, "persistent": True},
        {"cluster": 2},
        {"schedule": "pingpong", "persistent": True},
        {"schedule": "pingpong", "persistent": True, "store_slots": 1},
        {"persistent": True, "debug": True},
        {"persistent": True, "jitter": 5},
        {"cluster": 2, "persistent": True, "jitter": 7},
    ],
    ids=str,
)
def test_products_with_float32_outputs(options: dict[str, Any]) -> None:
    for shape in SHAPES:
        a, b, c = operands(*shape)
        for _ in range(REPEATS):
            c[...] = np.nan
            gemm(True, **options)(a, b, c, target="gpu")
            np.testing.assert_array_equal(c, product(a, b))


@pytest.mark.parametrize("slots", [0, 1, 2])
def test_reductions_of_all_ctas_add_up(slots: int) -> None:
    """Sums of small integers are exact in any order."""
    x = np.random.default_rng(0).integers(-3, 4, (128 * 264, 64 * 16)).astype(np.float16)
    for _ in range(REPEATS):
        dq = np.zeros((128 * 16, 64), np.float32)
        sums(True, slots)(x, dq, target="gpu")
        np.testing.assert_array_equal(dq, added_up(x))


def test_a_profile_has_rows_of_the_store_role(tmp_path: Path) -> None:
    kernel = by_store_role(gemm(False, persistent=True))
    params = kernel.options.compiler_params.replace(profile_space=2000, profile_dir=str(tmp_path))
    recording = numpipe.Kernel(
        kernel.function, dataclasses.replace(kernel.options, compiler_params=params)
    )
    a, b, c = operands(*SHAPES[0])
    recording(a, b, c, target="gpu")
    np.testing.assert_array_equal(c, product(a, b))
    trace = numpipe.last_profile()
    assert trace is not None and trace.lost == 0
    check_legal(trace)
    writes = [e for e in trace.events if e.kind == "write" and e.role == "storing"]
    assert {e.warpgroup for e in writes} == {3, 4}
    assert "wg3 storing" in trace.timeline()
