"""Clusters on the GPU: shared blocks give the same bits as unshared ones in every run, nothing
hangs, and nothing is left behind.

Compiling takes most of the time, so each configuration is compiled for bfloat16 only, and one of
them for another type.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import CompilerParams, launch
from numpipe.kernels.planned_calls import Plan
from tests.kernels.cluster_kernels import (
    Config,
    loaded_together,
    multiplied_together,
    operands,
    product,
    reference,
    summed_by_all,
    sums_of_clusters,
)
from tests.language.grid.test_clusters import (  # noqa: F401
    test_bodies_wait_for_and_release_shared_operands,
    test_both_operands_are_shared_in_clusters_of_two_dimensions,
    test_cluster_barriers_let_the_ctas_of_a_cluster_meet,
)
from tests.language.memory.test_cluster_copies import sums
from tests.language.memory.test_cluster_refs import (  # noqa: F401
    test_all_ctas_load_what_each_has_stored,
    test_parts_and_vectors_of_another_cta_are_loaded,
)
from tests.language.memory.test_remote import (  # noqa: F401
    test_a_leader_hears_from_all_ctas_of_its_cluster,
    test_sums_of_rows_are_vectors_that_ctas_send_each_other,
    test_tiles_go_round_a_cluster,
)

PROCESSES = 4
REPEATS = 20
BF16 = np.dtype(ml_dtypes.bfloat16)
CONFIGS = {
    "cooperative along m": Config(along_m=2, tn=256),
    "cooperative along n": Config(along_n=2, tn=256),
    "ping-pong along m": Config(along_m=2, tn=192, slots=4, schedule="pingpong"),
    "ping-pong along n": Config(along_n=2, tm=64, tn=256, slots=5, schedule="pingpong"),
    "four along m": Config(along_m=4, slots=4),
    "eight along n": Config(along_n=8, slots=2),
}
SHAPES = (
    (128, 256, 64),
    (1, 8, 8),
    (1000, 776, 200),
    (257, 4096, 136),
    (3000, 3000, 704),
    (384, 264, 1024),
    (17, 2000, 1000),
    (256, 256, 0),
)


def alone(cfg: Config) -> numpipe.Kernel:
    """Return the same product by CTAs that load for themselves."""
    return product(dataclasses.replace(cfg, along_m=1, along_n=1))


def same(found: np.ndarray, wanted: np.ndarray, what: str = "") -> None:
    """Assert that arrays are equal.

    Bits are compared first: NumPy's own assertion is many times slower.
    """
    if found.tobytes() != wanted.tobytes():
        np.testing.assert_array_equal(found, wanted, err_msg=what)


@functools.cache
def exact(*shape: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return small integers, and their product."""
    a, b = operands(*shape, BF16)
    return a, b, reference(a, b).astype(BF16)


@functools.cache
def large() -> list[launch.DeviceArray]:
    """Return normally distributed numbers, with an odd number of tiles in both directions.

    A slot that is filled too early or read too late shows.
    """
    numbers = (
        np.random.default_rng(0)
        .standard_normal((128 * 31 + 256 * 17, 2048), np.float32)
        .astype(BF16)
    )
    return [
        launch.DeviceArray.from_host(part) for part in (numbers[: 128 * 31], numbers[128 * 31 :])
    ]


@pytest.mark.parametrize("name", CONFIGS)
def test_products_are_exact_at_every_edge(name: str) -> None:
    for shape in SHAPES:  # one tile, tiles beyond the array, odd numbers of tiles, no steps
        a, b, wanted = exact(*shape)
        same(product(CONFIGS[name])(a, b, target="gpu"), wanted, str(shape))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_large_product_has_the_bits_of_unshared_blocks_every_time(name: str) -> None:
    """Launch back to back, with CTAs that compute four tiles each."""
    outputs = [product(CONFIGS[name])(*large()) for _ in range(REPEATS)]
    wanted = np.asarray(alone(CONFIGS[name])(*large())).view(np.uint16)
    for out in outputs:
        same(np.asarray(out).view(np.uint16), wanted)


def test_calls_on_arrays_of_the_gpu_follow_each_other_at_once() -> None:
    """Launch many times in a row: a CTA of the next kernel starts where one of the last has just
    exited."""
    a, b = operands(512, 512, 256)
    x, y = launch.DeviceArray.from_host(a), launch.DeviceArray.from_host(b)
    kernel = product(CONFIGS["cooperative along m"])
    outputs = [kernel(x, y) for _ in range(200)]
    for out in outputs[::20]:
        np.testing.assert_array_equal(np.asarray(out), reference(a, b).astype(a.dtype))


def test_copies_by_hand_are_shared() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (64 * 64, 2048)).astype(np.float16)
    wanted = sums(x)
    for _ in range(REPEATS):
        y = np.zeros((2 * len(x), 64), np.float32)
        loaded_together(x, y, target="gpu")
        np.testing.assert_array_equal(y, wanted)


def test_copies_by_hand_are_shared_in_clusters_of_two_dimensions() -> None:
    a, b = operands(1024, 1024, 1024)
    wanted, b = reference(a, b) + np.tile(a[:64, :64].astype(np.float32), (16, 16)), b.T.copy()
    for _ in range(REPEATS):
        c = np.zeros((1024, 1024), np.float32)
        multiplied_together(a, b, c, target="gpu")
        same(c, wanted)


def test_tiles_sent_by_all_ctas_of_a_cluster_are_summed() -> None:
    x = np.random.default_rng(0).standard_normal((128 * 400, 32)).astype(np.float32)
    first = None
    for _ in range(REPEATS):
        y = np.zeros_like(x)
        summed_by_all(x, y, target="gpu")
        np.testing.assert_allclose(y, sums_of_clusters(x, 4, 128), rtol=1e-5, atol=1e-5)
        first = y if first is None else first
        np.testing.assert_array_equal(y, first)  # summed in one order, whichever CTA comes first


def with_params(kernel: numpipe.Kernel, **params: Any) -> numpipe.Kernel:
    return numpipe.Kernel(
        kernel.function,
        dataclasses.replace(kernel.options, compiler_params=CompilerParams(**params)),
    )


@pytest.mark.parametrize("jitter", [1, 2, 3])
@pytest.mark.parametrize("name", ["cooperative along m", "ping-pong along n"])
def test_late_warpgroups_change_nothing(name: str, jitter: int) -> None:
    a, b, wanted = exact(1000, 776, 520)
    made = with_params(
        product(dataclasses.replace(CONFIGS[name], tn=128)), debug=True, jitter=jitter
    )
    for _ in range(3):
        same(made(a, b, target="gpu"), wanted)


def test_a_persistent_grid_is_what_the_driver_says_fits() -> None:
    a, b, _ = exact(2048, 2048, 64)
    device = launch.gpu_state().device
    assert device is not None
    for name, cfg in CONFIGS.items():
        kernel, size = product(cfg), cfg.along_m * cfg.along_n
        kernel(a, b, target="gpu")
        grids = {plan.grid for plan in kernel._table.values() if isinstance(plan, Plan)}
        assert len(grids) == 1, f"{name}: {grids}"
        ctas, *others = grids.pop()
        assert others == [1, 1] and ctas % size == 0 and 0 < ctas <= device.sm_count, (
            f"{name}: {ctas} CTAs"
        )
