"""Turns of CTAs: additions are in order, and a wait or an arrival that is missing is reported."""

# mypy: disable-error-code="call-arg, comparison-overlap"

from __future__ import annotations

import numpy as np
import pytest

import numpipe
from numpipe import Barrier, PipelineDeadlock, PipelineRace, ds
from numpipe.language.grid.cta_turns import await_turn, end_turn, pass_turn
from numpipe.language.tiles.register_order import to_register_order

X = np.ones((192, 64), np.float32)


@numpipe.kernel(grid=3, compiler_params=numpipe.CompilerParams(store_role=True))
def summed(x, turns, y, *, left_out: numpipe.Static, late: numpipe.Static):  # type: ignore[no-untyped-def]
    """Add blocks of 64 rows of x, twice. CTA 1 leaves out a wait, the end of a turn, or passing it
    on. If `late`, a turn is passed on when the next one has come."""
    allowed, added = numpipe.scratch((Barrier(), Barrier()))
    n = numpipe.program_id(0)
    tile = to_register_order(x[ds(n * 64, 64), ds(0, 64)])
    for i in numpipe.static_range(2):
        if n != 1 or left_out != "wait":
            await_turn(turns.at[i], n, allowed)
        if late and i == 1:
            pass_turn(turns.at[0], n)
        numpipe.atomic_add(y.at[ds(i * 128, 128), ds(0, 32)], tile)
        if n != 1 or left_out != "end":
            end_turn(added)
        if (not late or i == 1) and (n != 1 or left_out != "pass"):
            pass_turn(turns.at[i], n)


def run(left_out: str, late: bool, seed: int | None) -> np.ndarray:
    y = np.zeros((256, 32), np.float32)
    summed.simulate(X, np.zeros(2, np.int32), y, left_out=left_out, late=late, seed=seed)
    return y


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_ctas_add_in_turn_and_what_is_left_out_is_reported(seed: int | None, late: bool) -> None:
    assert (run("", late, seed) == 3).all()
    with pytest.raises(PipelineRace, match=r"CTA \(1, 0, 0\): reduction 'add in turn' \(y\)"):
        run("wait", late, seed)
    with pytest.raises(PipelineRace, match="nothing orders this after the end of phase 0"):
        run("end", late, seed)
    with pytest.raises(PipelineDeadlock, match=r"turn 2 of turns\["):
        run("pass", late, seed)
