"""K loops of unequal lengths: a ring continues from tile to tile, for any number of steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, Trace, cdiv, ds
from tests.kernels.covering import pairwise
from tests.kernels.kernels_for_tests import F32, SMALL, by_trip_count, operands


def tiles_with(counts: list[int]) -> np.ndarray:
    """Return a host table of 2 x 3 tiles, the i-th with counts[i] steps."""
    return np.array([(i // 3, i % 3, steps) for i, steps in enumerate(counts)], np.int32)


@pytest.mark.variants(8)
@pairwise(
    counts=(
        [5, 0, 3, 1, 4, 2],
        [0, 0, 0, 0, 0, 0],
        [0, 5, 0, 0, 5, 0],
        [5, 4, 3, 2, 1, 0],
        [1, 1, 1, 1, 1, 1],
        [0, 1, 2, 3, 4, 5],
    ),
    ring=((1, 0), (2, 0), (3, 1), (4, 2)),
    seed=(None, *range(6)),
)
def test_a_ring_goes_on_over_tiles_of_unequal_trip_counts(counts, ring, seed):
    slots, delay = ring
    a, b = operands(256, 192, 5 * 64)
    table, cfg = tiles_with(counts), replace(SMALL, slots=slots, delay=delay)
    exact = np.zeros((256, 192))
    for m, n, steps in table:
        down, right = slice(128 * m, 128 * m + 128), slice(64 * n, 64 * n + 64)
        exact[down, right] = (
            a[down, : 64 * steps].astype(float) @ b[right, : 64 * steps].astype(float).T
        )
    c, trace = np.full((256, 192), np.nan, F32), Trace()
    by_trip_count(ctas=2).simulate(a, b, table, c, cfg=cfg, seed=seed, trace=trace)
    np.testing.assert_array_equal(c, exact)
    for cta in (0, 1):
        filled = [
            e.details["step"] for e in trace.of("note", (cta, 0, 0)) if e.details["event"] == "fill"
        ]
        assert filled == list(range(sum(counts[cta::2])))


@numpipe.kernel(grid=numpipe.persistent(1), wg_axis="wg")
def late_inner(a: Any, b: Any, c: Any) -> None:
    """Run no step at all in tiles of odd m."""
    for m, n in numpipe.tiles(cdiv(c.shape[0], 128), cdiv(c.shape[1], 40)):
        acc = numpipe.zeros((128, 40), np.float32)
        outer = numpipe.pipeline(
            grid=(m % 2,),
            max_concurrent_steps=2,
            in_specs=(BlockSpec((128, 256), lambda i: (m, i)),),
        )
        for (i,), (a_tile,) in outer(a):
            inner = numpipe.pipeline(
                grid=(2,),
                max_concurrent_steps=2,
                in_specs=(BlockSpec((40, 128), lambda half: (n, 2 * i + half)),),
            )
            for (half,), (b_tile,) in inner(b):
                acc = numpipe.wgmma(acc, a_tile.at[:, ds(half * 128, 128)], b_tile.T)
        c[ds(m * 128, 128), ds(n * 40, 40)] = acc.astype(c.dtype)


def test_the_first_store_may_run_before_the_first_step_of_an_inner_ring() -> None:
    """The simulator encounters rings as they run; staging chosen earlier must leave room for later
    ones."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (rows, 300)).astype(np.float16) for rows in (200, 40))
    exact = a[:, :256].astype(np.float64) @ b[:, :256].astype(np.float64).T
    exact[:128] = 0
    for seed in (None, *range(9)):
        c = np.full((200, 40), np.nan, np.float16)
        late_inner.simulate(a, b, c, seed=seed)
        np.testing.assert_array_equal(c, exact)
