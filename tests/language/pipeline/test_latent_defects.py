"""Defects that were found by reading the pipelines this one is modelled on: one section each, none of them is here.

They are those of Pallas' Mosaic GPU pipelines as of August 2026: what went wrong there stands in the docstrings.
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
from numpipe import GMEM, BlockSpec, PipelineState, SpecError, ds
from tests.kernels.refusals import EXECUTIONS

emit = numpipe.emit_pipeline_warp_specialized
SEEDS = (None, *range(5))
BUILDERS = ["loop", "body", "single", "single loop"]
both = pytest.mark.parametrize("execution", EXECUTIONS)


def halves(rows: int, columns: int = 64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-2, 3, (rows, columns)).astype(np.float16)


def wide(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64)


def kernel(function: Any, builder: str = "loop") -> Any:
    return numpipe.kernel(function, num_compute_wgs=1, warp_specialized=builder != "single loop")


# ---- 1 -----------------------------------------------------------------------------------------------------------------------
def delays(builder: str) -> Any:
    """Slots enough for the first operand's delay, and too few for the second's."""
    def loop(a, b):
        for _, _ in numpipe.pipeline(grid=(a.shape[0],), max_concurrent_steps=2, in_specs=(
                BlockSpec((64, 64), lambda k: (k, 0), delay_release=0),
                BlockSpec((64, 64), lambda k: (k, 0), delay_release=3)))(a, b):
            pass

    def body(a, b):
        emit(lambda k, x, y: None, grid=(a.shape[0],), max_concurrent_steps=2, in_specs=(
            BlockSpec((64, 64), lambda k: (k, 0), delay_release=0), BlockSpec((64, 64), lambda k: (k, 0), delay_release=3)))(a, b)

    def single(a, b):
        numpipe.emit_pipeline(lambda k, x, y: None, grid=(a.shape[0],), max_concurrent_steps=2, in_specs=(
            BlockSpec((64, 64), lambda k: (k, 0), delay_release=0), BlockSpec((64, 64), lambda k: (k, 0), delay_release=3)))(a, b)

    return kernel({"body": body, "single": single}.get(builder, loop), builder)


@both
@pytest.mark.parametrize("builder", BUILDERS)
def test_1_slots_are_compared_with_the_delay_of_each_operand(builder: str, execution: str) -> None:
    """Not with the smallest delay alone, which let delays of 0 and 3 pass with 2 slots."""
    with pytest.raises(SpecError, match=r"delay_release=3 needs more than 3 slots, got max_concurrent_steps=2"):
        EXECUTIONS[execution](delays(builder), halves(64), halves(64))


# ---- 2 -----------------------------------------------------------------------------------------------------------------------
def mixed_delays(builder: str) -> Any:
    """Operands with a delay of their own, in a tuple, and without one behind it."""
    def loop(a, b, d, c):
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(grid=(a.shape[1] // 64,), max_concurrent_steps=4, delay_release=1, in_specs=(
            (BlockSpec((64, 64), lambda k: (0, k), delay_release=2),), BlockSpec((64, 64), lambda k: (0, k)),
            BlockSpec((64, 64), lambda k: (0, k), delay_release=0)))
        for _, ((x,), y, z) in pipe((a,), b, d):
            acc = numpipe.wgmma(numpipe.wgmma(acc, x, y.T), x, z.T)
        c[ds(0, 64), ds(0, 64)] = acc

    def body(a, b, d, c):
        def step(indices, xs, y, z, acc):
            x, = xs
            return numpipe.wgmma(numpipe.wgmma(acc, x, y.T), x, z.T)

        def compute(pipeline):
            c[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        emit(step, grid=(a.shape[1] // 64,), max_concurrent_steps=4, delay_release=1, compute_context=compute, in_specs=(
            (BlockSpec((64, 64), lambda k: (0, k), delay_release=2),), BlockSpec((64, 64), lambda k: (0, k)),
            BlockSpec((64, 64), lambda k: (0, k), delay_release=0)))((a,), b, d)

    return kernel(body if builder == "body" else loop, builder)


@pytest.mark.thorough
@pytest.mark.parametrize("builder", ["loop", "body", "single loop"])
def test_2_an_operand_keeps_its_delay_in_a_tuple_and_before_one_that_says_none(builder: str) -> None:
    """There a plain BlockSpec behind a delayed one set the delay of all to 0, and those in nested tuples were not looked at: slots
    were released while products read them.
    """
    made = mixed_delays(builder)
    a, b, d, c = halves(64, 384), halves(64, 384, 1), halves(64, 384, 2), np.zeros((64, 64), np.float32)
    for seed in SEEDS:
        made.simulate(a, b, d, c, seed=seed)
        np.testing.assert_array_equal(c, wide(a) @ (wide(b) + wide(d)).T)
    assert [(ring.slots, ring.delay) for ring in made.compiled(a, b, d, c).unit.rings.values()] == [(4, 2), (4, 1), (4, 0)]


# ---- 3 -----------------------------------------------------------------------------------------------------------------------
def with_global_memory(builder: str) -> Any:
    """A block of a is loaded; b is handed to the body as it is."""
    def loop(a, b, c):
        for (k,), (x, _) in numpipe.pipeline(grid=(a.shape[0] // 64,), in_specs=(
                BlockSpec((64, 64), lambda k: (k, 0)), BlockSpec(memory_space=GMEM)))(a, b):
            c[ds(k * 64, 64), ds(0, 64)] = x[...]

    def body(a, b, c):
        def step(indices, x, y):
            k, = indices
            if y.shape[1] > k * 64:
                c[ds(k * 64, 64), ds(0, 64)] = x[...]

        emit(step, grid=(a.shape[0] // 64,), in_specs=(BlockSpec((64, 64), lambda k: (k, 0)), BlockSpec(memory_space=GMEM)))(a, b)

    def single(a, b, c):
        def step(indices, x, y):
            k, = indices
            if y.shape[1] > k * 64:
                c[ds(k * 64, 64), ds(0, 64)] = x[...]

        numpipe.emit_pipeline(step, grid=(a.shape[0] // 64,), in_specs=(
            BlockSpec((64, 64), lambda k: (k, 0)), BlockSpec(memory_space=GMEM)))(a, b)

    return kernel({"body": body, "single": single}.get(builder, loop), builder)


@pytest.mark.variants(1)
@pytest.mark.parametrize("builder", BUILDERS)
def test_3_no_barrier_waits_for_an_operand_in_global_memory(builder: str) -> None:
    """There its slot was allocated and its arrival counted, but nobody copied: the kernel hung."""
    made = with_global_memory(builder)
    a, b = halves(192), halves(8, 192)
    for seed in SEEDS:
        c = np.zeros((192, 64), np.float16)
        made.simulate(a, b, c, seed=seed)
        np.testing.assert_array_equal(c, a)
    ring, = made.compiled(a, b, c).unit.rings.values()
    assert (ring.labels, ring.expected(0), ring.stage_stride) == (("in_specs[0]",), 64 * 64 * 2, 64 * 64 * 2)


# ---- 4, 5: outputs -----------------------------------------------------------------------------------------------------------
def sums(builder: str) -> Any:
    """Rows of o hold the sum over k of the blocks (i, k) of a; the invariant total counts all steps."""
    def add(i, k, x, o, total):
        o[...] = (x[...] if k == 0 else o[...] + x[...])
        one = numpipe.zeros((64, 64), np.float32) + 1.0
        total[...] = one if i + k == 0 else total[...] + one

    def loop(a, o, total, n, m):
        pipe = numpipe.pipeline(grid=(n, m), in_specs=(BlockSpec((64, 64), lambda i, k: (i, k)),), out_specs=(
            BlockSpec((64, 64), lambda i, k: (i, 0)), BlockSpec((64, 64))))
        for (i, k), (x, rows, whole) in pipe(a, o, total):
            helper(i, k, x, rows, whole)

    def body(a, o, total, n, m):
        def step(indices, x, rows, whole):
            i, k = indices
            helper(i, k, x, rows, whole)

        emit(step, grid=(n, m), in_specs=(BlockSpec((64, 64), lambda i, k: (i, k)),), out_specs=(
            BlockSpec((64, 64), lambda i, k: (i, 0)), BlockSpec((64, 64))))(a, o, total)

    def single(a, o, total, n, m):
        def step(indices, x, rows, whole):
            i, k = indices
            helper(i, k, x, rows, whole)

        numpipe.emit_pipeline(step, grid=(n, m), in_specs=(BlockSpec((64, 64), lambda i, k: (i, k)),), out_specs=(
            BlockSpec((64, 64), lambda i, k: (i, 0)), BlockSpec((64, 64))))(a, o, total)

    helper = numpipe.function(add)
    return kernel({"body": body, "single": single}.get(builder, loop), builder)


def run_sums(builder: str, n: int, m: int, seed: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    made, a = sums(builder), np.float32(halves(128, 192))
    o, total = np.full((128, 64), -7, np.float32), np.full((64, 64), -7, np.float32)
    made.simulate(a, o, total, n, m, seed=seed)
    return a, o, total


@pytest.mark.variants(12)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("builder", BUILDERS)
def test_4_a_block_that_is_revisited_is_stored_after_its_last_visit(builder: str, seed: int | None) -> None:
    """There an output that depends on some of the dimensions was stored at its first visit, and what came later was lost."""
    a, o, total = run_sums(builder, 2, 3, seed)
    np.testing.assert_array_equal(o, a[:, :64] + a[:, 64:128] + a[:, 128:])
    assert (total == 6).all()


@pytest.mark.variants(6)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n, m", [(0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("builder", BUILDERS)
def test_5_an_invariant_output_of_no_steps_is_not_stored(builder: str, n: int, m: int, seed: int | None) -> None:
    """There the epilogue stored slot -1 of a pipeline without steps, which nobody had written."""
    _, o, total = run_sums(builder, n, m, seed)
    assert (o == -7).all() and (total == -7).all()


# ---- 6 -----------------------------------------------------------------------------------------------------------------------
COMPILE = """
import sys
import numpy as np
from numpipe import ArrayType
from tests.language.pipeline import test_latent_defects as here
half, single = ArrayType((8, 8), np.float16), ArrayType((8, 8), np.float32)
sys.stdout.write(here.mixed_delays("body").inspect("ptx", half, half, half, single))
"""


@pytest.mark.thorough
def test_6_code_does_not_depend_on_the_order_of_sets() -> None:
    """There the order of a frozenset of axes was that of the code, another one in each process."""
    found = []
    for seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[3])}
        done = subprocess.run([sys.executable, "-c", COMPILE], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert found[0].count(".entry") == 1 and found[0] == found[1]


# ---- 7 -----------------------------------------------------------------------------------------------------------------------
@pytest.mark.variants(1)
@pytest.mark.parametrize("state", [*PipelineState, None], ids=str)
def test_7_a_chain_may_be_one_pipeline(state: PipelineState | None) -> None:
    """There START never drained and STOP never filled: a chain of one could not be said, nor one of a run-time length."""
    @numpipe.kernel(num_compute_wgs=1)
    def chain(a, c, links, *, state: numpipe.Static = None):
        def body(indices, x, acc):
            return numpipe.wgmma(acc, x, x.T)

        for link in range(links):
            def compute(pipeline):
                c[ds(link * 64, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

            one = emit(body, grid=(a.shape[1] // 64,), max_concurrent_steps=3, delay_release=1, pipeline_state=state,
                       compute_context=compute, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
            numpipe.run_scoped(lambda shared: one(a, allocations=shared), one.get_allocations(a), collective_axes="wg")

    for links in (1, 2, 5):
        for steps in (1, 2, 3, 7):  # fewer than slots, as many, more, and no multiple of them
            a, c = halves(64, 64 * steps), np.zeros((64 * links, 64), np.float32)
            for seed in SEEDS[:3]:
                chain.simulate(a, c, links, state=state, seed=seed)
                np.testing.assert_array_equal(c, np.concatenate([wide(a) @ wide(a).T] * links))


# ---- 8 -----------------------------------------------------------------------------------------------------------------------
@pytest.mark.thorough
@both
def test_8_warpgroups_of_the_pipeline_and_of_the_kernel_must_agree(execution: str) -> None:
    """There nobody compared them: arrivals were counted for warpgroups that the kernel does not have."""
    def two(a):
        emit(lambda k, x: None, grid=(1,), num_compute_wgs=2, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a)

    with pytest.raises(SpecError, match=r"says num_compute_wgs=2, but @numpipe.kernel says 3: a CTA has one split into roles"):
        EXECUTIONS[execution](numpipe.kernel(two, num_compute_wgs=3), halves(64))
    unit = numpipe.kernel(two).compiled(halves(64)).unit
    assert {count for plan in unit.rings.values() for _, count, name in unit.barriers(plan) if name.startswith("consumed")} == {8}
