"""Defects found by reading the pipelines that this one is modeled on: one section for each; none of
them exists here.

They are from Pallas' Mosaic GPU pipelines as of August 2026; the docstrings describe them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, PipelineState, SpecError, ds
from tests.kernels.refusals import EXECUTIONS

emit = numpipe.emit_pipeline_warp_specialized
SEEDS = (None, *range(5))


def halves(rows: int, columns: int = 64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-2, 3, (rows, columns)).astype(np.float16)


def wide(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64)


def kernel(function: Any, builder: str = "loop") -> Any:
    return numpipe.kernel(function, warp_specialized=builder != "single loop")


# ---- 1 -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_1_slots_are_compared_with_the_delay_of_each_operand(execution: str) -> None:
    """Pallas compared only the smallest delay, so delays of 0 and 3 passed with 2 slots."""

    def few_slots(a, b):
        emit(
            lambda k, x, y: None,
            grid=(a.shape[0],),
            max_concurrent_steps=2,
            in_specs=(
                BlockSpec((64, 64), lambda k: (k, 0), delay_release=0),
                BlockSpec((64, 64), lambda k: (k, 0), delay_release=3),
            ),
        )(a, b)

    says = "delay_release=3 needs more than 3 slots, got max_concurrent_steps=2"
    with pytest.raises(SpecError, match=says):
        EXECUTIONS[execution](kernel(few_slots), halves(64), halves(64))


# ---- 2 -------------------------------------------------------------------------------------------
def mixed_delays(builder: str) -> Any:
    """Return a pipeline of operands with their own delay, in a tuple, followed by one without."""

    def loop(a, b, d, c):
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(a.shape[1] // 64,),
            max_concurrent_steps=4,
            delay_release=1,
            in_specs=(
                (BlockSpec((64, 64), lambda k: (0, k), delay_release=2),),
                BlockSpec((64, 64), lambda k: (0, k)),
                BlockSpec((64, 64), lambda k: (0, k), delay_release=0),
            ),
        )
        for _, ((x,), y, z) in pipe((a,), b, d):
            acc = numpipe.wgmma(numpipe.wgmma(acc, x, y.T), x, z.T)
        c[ds(0, 64), ds(0, 64)] = acc

    def body(a, b, d, c):
        def step(indices, xs, y, z, acc):
            (x,) = xs
            return numpipe.wgmma(numpipe.wgmma(acc, x, y.T), x, z.T)

        def compute(pipeline):
            c[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        emit(
            step,
            grid=(a.shape[1] // 64,),
            max_concurrent_steps=4,
            delay_release=1,
            compute_context=compute,
            in_specs=(
                (BlockSpec((64, 64), lambda k: (0, k), delay_release=2),),
                BlockSpec((64, 64), lambda k: (0, k)),
                BlockSpec((64, 64), lambda k: (0, k), delay_release=0),
            ),
        )((a,), b, d)

    return kernel(body if builder == "body" else loop, builder)


@pytest.mark.variants(0, thorough=2)
@pytest.mark.parametrize("builder", ["loop", "body", "single loop"])
def test_2_an_operand_keeps_its_delay_in_a_tuple_and_before_one_that_says_none(
    builder: str,
) -> None:
    """In Pallas a plain BlockSpec after a delayed one set the delay of all to 0.

    Specs in nested tuples were not checked, and slots were released while products read them.
    """
    made = mixed_delays(builder)
    a = halves(64, 384)
    b = halves(64, 384, 1)
    d = halves(64, 384, 2)
    c = np.zeros((64, 64), np.float32)
    for seed in SEEDS:
        made.simulate(a, b, d, c, seed=seed)
        np.testing.assert_array_equal(c, wide(a) @ (wide(b) + wide(d)).T)
    assert [(ring.slots, ring.delay) for ring in made.compiled(a, b, d, c).unit.rings.values()] == [
        (4, 2),
        (4, 1),
        (4, 0),
    ]


# ---- 3 -------------------------------------------------------------------------------------------
COMPILE = """
import sys
import numpy as np
from numpipe import ArrayType
from tests.language.pipeline import test_latent_defects as here
half, single = ArrayType((8, 8), np.float16), ArrayType((8, 8), np.float32)
sys.stdout.write(here.mixed_delays("body").inspect("ptx", half, half, half, single))
"""


@pytest.mark.thorough
def test_3_code_does_not_depend_on_the_order_of_sets() -> None:
    """In Pallas the order of a frozenset of axes determined the code, which differed between
    processes."""
    found = []
    for seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[3])}
        done = subprocess.run(
            [sys.executable, "-c", COMPILE], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert found[0].count(".entry") == 1 and found[0] == found[1]


# ---- 4 -------------------------------------------------------------------------------------------
@pytest.mark.variants(1)
@pytest.mark.parametrize("state", [*PipelineState, None], ids=str)
def test_4_a_chain_may_be_one_pipeline(state: PipelineState | None) -> None:
    """In Pallas START never drained and STOP never filled.

    A chain of one, or of a run-time length, could not be expressed.
    """

    @numpipe.kernel
    def chain(a, c, links, *, state: numpipe.Static = None):
        def body(indices, x, acc):
            return numpipe.wgmma(acc, x, x.T)

        for link in range(links):

            def compute(pipeline):
                c[ds(link * 64, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

            one = emit(
                body,
                grid=(a.shape[1] // 64,),
                max_concurrent_steps=3,
                delay_release=1,
                pipeline_state=state,
                compute_context=compute,
                in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
            )
            numpipe.run_scoped(
                lambda shared: one(a, allocations=shared),
                one.get_allocations(a),
                collective_axes="wg",
            )

    for links in (1, 2, 5):
        for steps in (1, 2, 3, 7):  # fewer than slots, as many, more, and not a multiple of them
            a, c = halves(64, 64 * steps), np.zeros((64 * links, 64), np.float32)
            for seed in SEEDS[:3]:
                chain.simulate(a, c, links, state=state, seed=seed)
                np.testing.assert_array_equal(c, np.concatenate([wide(a) @ wide(a).T] * links))
