"""Turns of CTAs: additions are in order, and a wait or an arrival that is missing is reported."""

# mypy: disable-error-code="call-arg, comparison-overlap"

from __future__ import annotations

import numpy as np
import pytest

import numpipe
from numpipe import Barrier, PipelineDeadlock, PipelineRace, ds
from numpipe.language.grid.cta_turns import await_turn, pass_turn
from numpipe.language.tiles.register_order import to_register_order

X = np.ones((192, 64), np.float32)


@numpipe.kernel(grid=3, compiler_params=numpipe.CompilerParams(store_role=True))
def summed(x, turns, y, *, left_out: numpipe.Static):  # type: ignore[no-untyped-def]
    """Add blocks of 64 rows of x. CTA 1 leaves out its wait or its arrival."""
    allowed, added = numpipe.scratch((Barrier(), Barrier()))
    n = numpipe.program_id(0)
    if n != 1 or left_out != "wait":
        await_turn(turns.at[0], n, allowed)
    tile = to_register_order(x[ds(n * 64, 64), ds(0, 64)])
    numpipe.atomic_add(y.at[ds(0, 128), ds(0, 32)], tile)
    if n != 1 or left_out != "arrival":
        pass_turn(turns.at[0], n, added)


def run(left_out: str, seed: int | None) -> np.ndarray:
    y = np.zeros((128, 32), np.float32)
    summed.simulate(X, np.zeros(1, np.int32), y, left_out=left_out, seed=seed)
    return y


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_ctas_add_in_turn_and_what_is_left_out_is_reported(seed: int | None) -> None:
    assert (run("", seed) == 3).all()
    with pytest.raises(PipelineRace, match=r"CTA \(1, 0, 0\): reduction 'add in turn' \(y\)"):
        run("wait", seed)
    with pytest.raises(PipelineDeadlock, match=r"turn 2 of turns\[0\]"):
        run("arrival", seed)
