"""Totals of rounds: every CTA reads those of all CTAs, of which the last round may lack some."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe.core.arith import cdiv
from numpipe.language.grid.round_totals import (
    CTAS,
    end_launch,
    launch_number,
    publish,
    totals,
    workspace,
)
from numpipe.language.tiles.elementwise import iota
from numpipe.plan.context import num_programs, program_id


@numpipe.kernel(
    grid=numpipe.persistent(),
    workspace=lambda x: workspace(x.shape[0]),
    warp_specialized=False,
    cooperative=True,
)
def earlier(x, y, work):  # type: ignore[no-untyped-def]
    """Store the sum of all elements before each."""
    own, programs, launch, before = program_id(0), num_programs(0), launch_number(work), 0.0
    for k in range(cdiv(x.shape[0] - own, programs)):
        publish(work, k, x[k * programs + own], launch)
        known = min(programs, x.shape[0] - k * programs)
        found = totals(work, k, known, launch)
        y[k * programs + own] = before + np.where(iota(CTAS) < own, found, 0.0).sum()
        before = before + found.sum()
        if (k == 0) & (own == 0):
            end_launch(work, launch)


def test_each_cta_reads_the_totals_of_all() -> None:
    x = np.random.default_rng(0).integers(-9, 9, 7).astype(np.float32)
    y = np.zeros_like(x)
    earlier(x, y, target="sim")
    assert (y == np.cumsum(x) - x).all()
    assert numpipe.verify(earlier, x, y, schedules=3).ok
