"""Pipelines in both forms that wait for their operands and release them explicitly, on the GPU:
exact sums in many runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import numpipe
from tests.kernels.barrier_plans import MANUAL, RINGS, Plan, check, expected, inputs, load, source
from tests.language.pipeline import test_barriers_in_trees as in_trees
from tests.language.pipeline.test_barriers_in_loops import (  # noqa: F401
    test_in_every_construct_that_contains_a_pipeline,
)

PROCESSES = 4
REPEATS = 20


@pytest.mark.parametrize("carry", [True, False], ids=["carry", "no carry"])
@pytest.mark.parametrize("slots, delay", RINGS)
@pytest.mark.parametrize("manual", MANUAL, ids=str)
def test_every_ring(manual: tuple[bool, bool], slots: int, delay: int, carry: bool) -> None:
    """Chain tiles on one ring, with numbers of steps below and above the slots and the delay."""
    plan = Plan(
        *manual,
        slots,
        delay,
        wgs=1 + slots % 2,
        carry=carry,
        operands=2 + slots // 2 % 2,
        backwards=bool(delay),
    )
    for steps in range(7):
        for tiles in (1, 3):
            check(plan, tiles, steps, target="gpu")
    for other in (
        replace(plan, skip=True),
        replace(plan, loop=True),
        replace(plan, skip=True, loop=True),
    ):
        check(other, 3, 5, target="gpu")


@pytest.mark.parametrize("loop", [False, True], ids=["body", "loop"])
@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("manual", MANUAL, ids=str)
def test_long_chains_again_and_again(manual: tuple[bool, bool], delay: int, loop: bool) -> None:
    plan = Plan(*manual, slots=3, delay=delay, wgs=2, operands=3, loop=loop)
    kernel, arrays = load(source(plan)), inputs(plan, 32, 41)
    exact = expected(plan, arrays)
    for _ in range(REPEATS):
        arrays[-1][...] = np.nan
        kernel(*arrays, target="gpu")
        np.testing.assert_array_equal(arrays[-1], exact)


@pytest.mark.parametrize(
    "kernel",
    [in_trees.in_a_loop, in_trees.in_a_body, in_trees.unused],
    ids=lambda kernel: kernel.name,
)
def test_barriers_in_trees(kernel: numpipe.Kernel) -> None:
    a, w, scales = in_trees.operands(37)
    wanted = in_trees.expected(a, w, 0 * scales if kernel is in_trees.unused else scales)
    for _ in range(REPEATS):
        y = np.zeros((64, 64), np.float32)
        kernel(a, w, scales, y, target="gpu")
        np.testing.assert_array_equal(y, wanted)
