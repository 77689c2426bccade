"""Automatic barriers: a warpgroup's accesses to a tile that the kernel writes are ordered, unless
the kernel turns this off."""

from __future__ import annotations

import re

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, PipelineRace, ds
from tests.kernels.ordered_kernels import BARE, SAFE, operand, result

SEEDS = (None, 0, 1, 2)


@pytest.mark.variants(8)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SAFE)
def test_warps_read_what_other_warps_have_written(name: str, seed: int | None) -> None:
    x = operand()
    y = np.zeros_like(x)
    SAFE[name].simulate(x, y, seed=seed)
    np.testing.assert_array_equal(y, result(name, x))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "name, message",
    [
        ("turned", r"read \(tile\[…\]\).*write \(tile\[…\] = value\)"),
        ("sent", "TMA store"),
        ("squared", "wgmma"),
        ("turned_twice", r"read \(tile\[…\]\).*write \(tile\[…\] = value\)"),
    ],
)
def test_without_the_barriers_the_simulator_reports_the_race(
    name: str, message: str, seed: int | None
) -> None:
    x = operand()
    with pytest.raises(PipelineRace) as caught:
        BARE[name].simulate(x, np.zeros_like(x), seed=seed)
    assert re.search(message, str(caught.value), re.DOTALL), str(caught.value)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_warp_that_reads_only_its_own_rows_needs_none(seed: int | None) -> None:
    x = operand()
    y = np.zeros_like(x)
    BARE["in_place"].simulate(x, y, seed=seed)
    np.testing.assert_array_equal(y, result("in_place", x))


def counts(ptx: str) -> tuple[int, int]:
    """Count the barriers of one warpgroup, and proxy fences."""
    return len(re.findall(r"bar\.sync +%\w+, 128;", ptx)), ptx.count("fence.proxy.async")


@pytest.mark.variants(0, thorough=3)
@pytest.mark.parametrize(
    "name, barriers, fences",
    [
        ("turned", 2, 0),
        ("sent", 2, 1),
        ("squared", 2, 1),
        ("in_place", 2, 0),
        ("turned_twice", 3, 0),
    ],
)
def test_the_machine_code_loses_just_these_barriers_and_fences(
    name: str, barriers: int, fences: int
) -> None:
    x = operand()
    safe, bare = (
        counts(kernel[name].inspect("ptx", x, np.zeros_like(x))) for kernel in (SAFE, BARE)
    )
    assert (safe[0] - bare[0], safe[1] - bare[1]) == (barriers, fences)


@pytest.mark.thorough
def test_tiles_that_are_only_read_have_none() -> None:
    @numpipe.kernel
    def twice(x, y):
        for (_,), (tile,) in numpipe.pipeline(
            grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )(x):
            acc = numpipe.wgmma_wait(
                numpipe.wgmma(numpipe.zeros((64, 64), np.float32), tile, tile), 0
            )
            y[ds(0, 64), ds(0, 64)] = acc + tile.T[...].astype(np.float32)

    args = operand((64, 64)), np.zeros((64, 64), np.float32)
    bare = numpipe.kernel(compiler_params=BARE["turned"].options.compiler_params)(twice.function)
    assert counts(twice.inspect("ptx", *args)) == counts(bare.inspect("ptx", *args))
