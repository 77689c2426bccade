"""Work that is inferred from some steps, tiles and CTAs is that of all of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, CompilerParams, ds
from numpipe.sim.inferred import Work, inferred


def summed(count: int, of: Callable[[int], int]) -> tuple[int, int]:
    """Return the sum of a function of 0 … count - 1, and how many values it took."""
    total, counted = Work(), 0
    for position in inferred(total, count, most=count):
        total["steps", 0] += of(position)
        counted += 1
    return total["steps", 0], counted


@pytest.mark.parametrize(
    "of",
    [
        lambda n: 5,
        lambda n: 5 + 3 * n,
        lambda n: 8 if n < 99 else 7,
        lambda n: 9 if n == 0 else 5,
        lambda n: 1 if n == 999 else 5,
    ],
    ids=["equal", "a slope", "a step", "the first differs", "the last differs"],
)
def test_few_positions_determine_all(of: Callable[[int], int]) -> None:
    total, counted = summed(1000, of)
    assert total == sum(map(of, range(1000))) and counted < 40


@numpipe.kernel(
    grid=lambda x, y: (x.shape[0] // 8, x.shape[1] // 1024),
    warp_specialized=False,
    compiler_params=CompilerParams(approx_math=True),
)
def doubled(x, y):
    block = ds(numpipe.program_id(0) * 8, 8), ds(numpipe.program_id(1) * 1024, 1024)
    y[block] = x[block] * 2.0


def test_equal_ctas_are_counted_once() -> None:
    x = ArrayType((8192, 8192), np.float32)
    told = numpipe.explain(doubled, x, x, compiled=False)
    assert told.counted_ctas < 40 < np.prod(told.grid) == 8192 and not told.sampled
    assert told.loaded == {"x": 4 * 8192**2} and told.stored == {"y": 4 * 8192**2}


@numpipe.kernel(grid=lambda a, c: (a.shape[0] // 64,), warp_specialized=False, num_compute_wgs=1)
def triangle(a, c):
    """Add up the blocks of a row up to the diagonal, as under a causal mask."""
    m = numpipe.program_id(0)
    acc = numpipe.zeros((64, 64), np.float32)
    block = numpipe.BlockSpec((64, 64), lambda k: (m, k))
    for _, (tile,) in numpipe.pipeline(grid=(m + 1,), in_specs=(block,))(a):
        acc += tile[...].astype(np.float32)
    c[ds(m * 64, 64), ds(0, 64)] = acc


def test_ctas_with_more_and_more_steps_are_inferred_exactly() -> None:
    blocks = 2000
    told = numpipe.explain(
        triangle,
        ArrayType((64 * blocks, 64 * blocks), np.float16),
        ArrayType((64 * blocks, 64), np.float32),
        compiled=False,
    )
    assert told.steps == pytest.approx(blocks * (blocks + 1) / 2, rel=0.01)
    assert told.counted_ctas < 40


def test_tiles_that_a_counter_deals_are_inferred_by_dimension() -> None:
    """A causal mask: of 2048 tiles, a tile of block i has i + 1 steps and a last product."""
    q = ArrayType((4, 16, 4096, 128), np.float16)
    [told] = numpipe.explain(numpipe.ops.attention, q, q, q, causal=True, compiled=False).kernels
    products = 64 * sum(block + 1 for block in range(32))
    assert told.flop == pytest.approx(products * 2 * 2 * 128**3, rel=0.01)
    assert told.tiles == pytest.approx(2048, rel=0.01)
    assert told.counted_steps < 500 < told.steps / 100
    assert f"counted in {told.counted_ctas} CTAs and {told.counted_steps} steps" in str(told)


def test_rings_that_each_warpgroup_fills_are_counted() -> None:
    """Without a memory role, a step fills the slot of a later one, so the last steps fill none."""
    total = Work()
    for step in inferred(total, 17):
        total["load", "k"] += 0 if step == 16 else 3
    assert total["load", "k"] == 16 * 3
