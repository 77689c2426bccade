"""Sums over earlier CTAs: exact within a group and across groups."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe.language.grid.chained_sums import GROUP, launch_number, sum_of_earlier, workspace
from numpipe.plan.context import program_id


@numpipe.kernel(
    grid=lambda x: (x.shape[0],),
    workspace=lambda x: workspace(x.shape[0]),
    warp_specialized=False,
)
def earlier(x, counts, y, work):  # type: ignore[no-untyped-def]
    i = program_id(0)
    launch = launch_number(work)
    y[i] = sum_of_earlier(work, launch, x[i], counts[i])


def test_sums_begin_where_a_chain_begins_and_cross_groups() -> None:
    size = 3 * GROUP + 4
    x = np.random.default_rng(0).integers(-9, 9, size).astype(np.float32)
    # chains of 5 tiles, and of all the others
    counts, y = np.r_[:5, : size - 5].astype(np.int32), np.zeros(size, np.float32)
    earlier(x, counts, y, target="sim")
    assert (y == [x[i - count : i].sum() for i, count in enumerate(counts)]).all()
    assert numpipe.verify(earlier, x[:4], counts[:4], y[:4], schedules=3).ok
