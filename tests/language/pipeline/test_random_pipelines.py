"""Whole pipelines, made up by Hypothesis as source text, run on the simulated SM and compared with NumPy.

A `Plan` says what a kernel looks like; `source` writes it as a user would; `expected` computes the same in float64. The
numbers are small integers, so that every sum is exact and results can be compared bit by bit. NUMPIPE_RANDOM_PIPELINES=n
tries n plans, other ones each time (100 fixed ones otherwise).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from numpipe import Trace, cdiv
from numpipe.arch.hopper import HOPPER
from numpipe.compile.build import toolchain
from numpipe.compile.check import gate
from tests.kernels.covering import examples, pairwise
from tests.kernels.kernels_for_tests import BF16, F16, F32, SMALL, by_trip_count, operands
from tests.kernels.source_modules import module_of

SOAK = int(os.environ.get("NUMPIPE_RANDOM_PIPELINES", "0"))


@dataclass(frozen=True)
class Loop:
    """One pipeline: K in blocks of `tk`, walked by a grid of `rank` dimensions (2 steps in each but the first)."""

    tk: int = 64
    slots: int = 2
    delay: int = 0
    rank: int = 1

    @property
    def inner(self) -> int:
        """Steps of the dimensions behind the first."""
        return 2 ** (self.rank - 1)

    @property
    def indices(self) -> list[str]:
        return ["i", "j", "k"][:self.rank]

    @property
    def step(self) -> str:
        """The linear step, from the grid's indices."""
        return {1: "i", 2: "2 * i + j", 3: "4 * i + 2 * j + k"}[self.rank]


@dataclass(frozen=True)
class Plan:
    """A kernel ``c = f(sum of products)``; tile (m, n) of c is `wgs` * `rows` x `tn`."""

    shape: tuple[int, int, int] = (64, 64, 64)
    """M, N, K"""
    wgs: int = 1
    rows: int = 64
    tn: int = 64
    operands: int = 2
    """1: a @ a.T, blocks on the diagonal; 2: a @ b.T; 3: a @ b.T + a @ d.T"""
    orders: tuple[str, str] = ("row", "row")
    """which dimension of a, and of b and d, is contiguous: the last ("row") or the first ("col")"""
    dtype: np.dtype = F16
    out_dtype: np.dtype = F16
    out_order: str = "row"
    loop: Loop = Loop()
    second: Loop | None = None
    """one more pipeline a tile, over the same arrays, backwards"""
    nested: Loop | None = None
    """the ring of b inside that of a, which then loads blocks of 2 `tk`"""
    trips: tuple[int, int, int] | None = None
    """(p, q, r): tile (m, n) takes (p m + q n) % r steps of the first loop instead of all"""
    delay_in: str = "pipeline"
    """where `loop.delay` is written: "pipeline", "spec" or "kernel" """
    tiles: str = "row"
    """"row", "grouped" or "table" """
    ctas: int = 1
    store_slots: int = 0
    epilogue: tuple[str, ...] = ()

    @property
    def tm(self) -> int:
        return self.wgs * self.rows

    @property
    def arrays(self) -> list[str]:
        return ["a", "b", "d"][:self.operands]

    @property
    def smem_bytes(self) -> int:
        """What a CTA needs, rounded up generously."""
        others = (self.operands - 1) * self.tn
        if self.nested is not None:
            rings = 4 * self.loop.tk * self.tm * self.loop.slots + 2 * self.loop.tk * others * self.nested.slots
        else:
            rings = sum(2 * loop.tk * (self.tm + others) * loop.slots for loop in (self.loop, self.second) if loop is not None)
        return rings + 16384 + self.wgs * max(1, self.store_slots) * 8192


# ---- what is generated ------------------------------------------------------------------------------------------
EPILOGUES = ["acc * 2.0", "acc + 1.0", "3.0 - acc", "-acc", "acc + acc", "acc / 2.0", "acc - bias", "acc * 2.0 - acc"]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans of every kind, small ones first."""
    wgs = draw(st.integers(1, 3))
    count = draw(st.sampled_from([2, 1, 3]))
    rows = draw(st.sampled_from([64] if wgs == 3 or count == 1 else [64, 128]))
    tn = wgs * rows if count == 1 else draw(st.sampled_from([64, 8, 40, 96, 128, 192]))
    dtype = draw(st.sampled_from([F16, BF16]))
    nested = count > 1 and draw(st.booleans())

    def loop(widths: list[int]) -> Loop:
        slots = draw(st.integers(1, 4))
        return Loop(draw(st.sampled_from(widths)), slots, draw(st.integers(0, min(2, slots - 1))), draw(st.integers(1, 3)))

    m, n, k = (draw(st.integers(1, limit)) for limit in (5 * wgs * rows // 2, 5 * tn // 2, 300))
    plan = Plan(
        (m, tn if count == 1 else n, k), wgs, rows, tn, count,
        (draw(st.sampled_from(["row", "col"])), draw(st.sampled_from(["row", "col"]))), dtype,
        draw(st.sampled_from([dtype, F32])), draw(st.sampled_from(["row", "row", "col"])),
        loop([64, 128] if nested else [64, 16, 32, 128]),
        loop([64, 16, 32]) if not nested and draw(st.booleans()) else None,
        replace(loop([64]), rank=1) if nested else None,
        draw(st.none() | st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(2, 5))),
        draw(st.sampled_from(["pipeline", "spec", "kernel"])), draw(st.sampled_from(["row", "grouped", "table"])),
        draw(st.integers(1, 3)), draw(st.integers(0, 3)), tuple(draw(st.lists(st.sampled_from(EPILOGUES), max_size=2))))
    while plan.smem_bytes > HOPPER.smem_bytes:
        plan = fewer_slots(plan)
    return plan


def fewer_slots(plan: Plan) -> Plan:
    def fewer(loop: Loop | None) -> Loop | None:
        return loop and replace(loop, slots=max(1, loop.slots - 1), delay=min(loop.delay, max(0, loop.slots - 2)))

    smaller = replace(plan, loop=fewer(plan.loop), second=fewer(plan.second), nested=fewer(plan.nested))
    return smaller if smaller != plan else replace(plan, loop=replace(plan.loop, tk=64), second=None)


# ---- as text ----------------------------------------------------------------------------------------------------
def source(plan: Plan) -> str:
    """The kernel's file."""
    delay = plan.loop.delay if plan.delay_in == "kernel" else 0
    order = {"row": '"row"', "grouped": '"grouped", group=2', "table": "table"}[plan.tiles]
    counts = "table.shape[0]" if plan.tiles == "table" else f"cdiv(c.shape[0], {plan.tm}), cdiv(c.shape[1], {plan.tn})"
    parameters = [*plan.arrays, *["table"] * (plan.tiles == "table"), "c", "bias"]
    lines = [
        "import numpy as np", "", "import numpipe", "from numpipe import BlockSpec, CompilerParams, cdiv, ds", "", "",
        f'@numpipe.kernel(grid=numpipe.persistent({plan.ctas}), num_compute_wgs={plan.wgs}, wg_axis="wg",',
        f"                compiler_params=CompilerParams(delay_release={delay}, store_slots={plan.store_slots}))",
        f"def kernel({', '.join(parameters)}):",
        '    wg = numpipe.axis_index("wg")',
        f"    for m, n in numpipe.tiles({counts}, order={order}):",
        f"        acc = numpipe.zeros(({plan.rows}, {plan.tn}), np.float32)",
        *indented(nested_text(plan) if plan.nested is not None else loop_text(plan, plan.loop), 8),
        *indented(loop_text(plan, plan.second, backwards=True) if plan.second is not None else [], 8),
        *[f"        acc = {expression}" for expression in plan.epilogue],
        f"        c[ds(m * {plan.tm} + wg * {plan.rows}, {plan.rows}), ds(n * {plan.tn}, {plan.tn})] = acc.astype(c.dtype)", ""]
    return "\n".join(lines)


def indented(lines: list[str], by: int) -> list[str]:
    return [" " * by + line for line in lines]


def steps_text(plan: Plan, block: int, backwards: bool) -> str:
    if plan.trips is not None and not backwards:
        return "({} * m + {} * n) % {}".format(*plan.trips)
    return f"cdiv(a.shape[1], {block})"


def grid_text(loop: Loop, name: str) -> str:
    if loop.rank == 1:
        return f"({name}_steps,)"
    return f"(cdiv({name}_steps, {loop.inner}), {', '.join('2' for _ in loop.indices[1:])})"


def delay_text(plan: Plan, loop: Loop) -> tuple[str, str]:
    """(for the pipeline, for its first BlockSpec)"""
    if loop is not plan.loop or plan.delay_in == "pipeline":
        return f", delay_release={loop.delay}", ""
    return "", f", delay_release={loop.delay}" if plan.delay_in == "spec" else ""


def loop_text(plan: Plan, loop: Loop, backwards: bool = False) -> list[str]:
    """A pipeline over all operands."""
    of_pipeline, of_spec = delay_text(plan, loop)
    step = f"again_steps - 1 - ({loop.step})" if backwards else loop.step
    indices = ", ".join(loop.indices)
    specs = [f"BlockSpec(({plan.tn if i else plan.tm}, {loop.tk}), lambda {indices}: ({'n' if i else 'm'}, {step})"
             f"{'' if i else of_spec})" for i in range(plan.operands)]
    tiles = [f"{name}_tile" for name in plan.arrays]
    left = f"a_tile.at[ds(wg * {plan.rows}, {plan.rows}), :]"
    rounded = f"{loop.inner} * cdiv({steps_text(plan, loop.tk, backwards)}, {loop.inner})" if loop.rank > 1 else (
        steps_text(plan, loop.tk, backwards))
    name = "again" if backwards else "pipe"
    return [f"{name}_steps = {rounded}",
            f"{name} = numpipe.pipeline(grid={grid_text(loop, name)}, max_concurrent_steps={loop.slots}{of_pipeline}, in_specs=(",
            *indented([f"{spec}," for spec in specs[:-1]] + [f"{specs[-1]},))"], 4),
            f"for ({indices},), ({', '.join(tiles)},) in {name}({', '.join(plan.arrays)}):",
            *[f"    acc = numpipe.wgmma(acc, {left}, {tile}.T)" for tile in tiles[1:] or tiles]]


def nested_text(plan: Plan) -> list[str]:
    """a in blocks of 2 tk, and inside each the other operands in blocks of tk."""
    outer, inner = plan.loop, plan.nested
    assert inner is not None
    of_pipeline, of_spec = delay_text(plan, outer)
    indices = ", ".join(outer.indices)
    left = f"a_tile.at[ds(wg * {plan.rows}, {plan.rows}), ds(half * {outer.tk}, {outer.tk})]"
    tiles = ", ".join(f"{name}_tile" for name in plan.arrays[1:])
    specs = [f"BlockSpec(({plan.tn}, {outer.tk}), lambda half: (n, 2 * ({outer.step}) + half))" for _ in plan.arrays[1:]]
    return [f"outer_steps = {steps_text(plan, 2 * outer.tk, False)}",
            f"outer = numpipe.pipeline(grid={grid_text(outer, 'outer')}, max_concurrent_steps={outer.slots}{of_pipeline},",
            "                         in_specs=("
            f"BlockSpec(({plan.tm}, {2 * outer.tk}), lambda {indices}: (m, {outer.step}){of_spec}),))",
            f"for ({indices},), (a_tile,) in outer(a):",
            f"    inner = numpipe.pipeline(grid=(2,), max_concurrent_steps={inner.slots}, delay_release={inner.delay},",
            "                             in_specs=(" + (",\n" + " " * 47).join(specs) + ",))",
            f"    for (half,), ({tiles},) in inner({', '.join(plan.arrays[1:])}):",
            *[f"        acc = numpipe.wgmma(acc, {left}, {name}_tile.T)" for name in plan.arrays[1:]]]


# ---- what it computes -------------------------------------------------------------------------------------------
BIAS = 2.0


def inputs(plan: Plan, seed: int) -> list[np.ndarray]:
    """The kernel's arguments, outputs poisoned."""
    rng = np.random.default_rng(seed)
    m, n, k = plan.shape

    def ordered(array: np.ndarray, order: str) -> np.ndarray:
        return array if order == "row" else np.asfortranarray(array)

    arrays = [ordered(rng.integers(-2, 3, (n if i else m, k)).astype(plan.dtype), plan.orders[i > 0])
              for i in range(plan.operands)]
    if plan.tiles == "table":
        grid = (int(cdiv(m, plan.tm)), int(cdiv(n, plan.tn)))
        arrays.append(rng.permutation(np.argwhere(np.ones(grid))).astype(np.int32).reshape(-1, 2))
    arrays.append(ordered(np.full((m, n), np.nan, plan.out_dtype), plan.out_order))
    return arrays


def expected(plan: Plan, arrays: list[np.ndarray]) -> np.ndarray:
    """The same in float64, tile by tile."""
    rows, columns, _ = plan.shape
    left, others = arrays[0].astype(np.float64), [x.astype(np.float64) for x in arrays[:plan.operands]][1:]
    c = np.full((rows, columns), np.nan)
    block = 2 * plan.loop.tk if plan.nested is not None else plan.loop.tk
    for m in range(-(-rows // plan.tm)):
        for n in range(-(-columns // plan.tn)):
            down, right = slice(m * plan.tm, (m + 1) * plan.tm), slice(n * plan.tn, (n + 1) * plan.tn)
            depths = [left.shape[1]]
            if plan.trips is not None:
                p, q, r = plan.trips
                depths = [math.ceil((p * m + q * n) % r / plan.loop.inner) * plan.loop.inner * block]
            if plan.second is not None:
                depths.append(left.shape[1])
            tile = np.zeros((plan.tm, plan.tn))  # as the kernel sees it: zeros outside the arrays
            for depth in depths:
                for block_of in [x[right] for x in others] or [left[down]]:
                    product = left[down, :depth] @ block_of[:, :depth].T
                    tile[:product.shape[0], :product.shape[1]] += product
            area = c[down, right]
            area[...] = finish(plan, tile)[:area.shape[0], :area.shape[1]]
    return c.astype(np.float32).astype(plan.out_dtype)


def finish(plan: Plan, acc: np.ndarray) -> np.ndarray:
    for expression in plan.epilogue:
        acc = eval(expression, {"acc": acc, "bias": BIAS})
    return acc


def load(plan: Plan) -> ModuleType:
    return module_of(source(plan), "random")


def check(plan: Plan, seed: int | None) -> None:
    kernel = load(plan).kernel
    arrays = inputs(plan, 0 if seed is None else seed)
    kernel.simulate(*arrays, BIAS, seed=seed)
    wrong = np.argwhere(arrays[-1] != expected(plan, arrays))
    assert not len(wrong), f"{len(wrong)} elements are wrong, the first at {wrong[0]}"


@pytest.fixture(autouse=True)
def simulated_only(monkeypatch):
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@given(plan=plans(), seed=st.integers(0, 2**16))
@settings(max_examples=SOAK or examples(30), derandomize=not SOAK, deadline=None, database=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_pipeline_computes_what_numpy_does_in_any_schedule(plan, seed):
    note(source(plan))
    check(plan, None)
    check(plan, seed)


CHOSEN = {
    "nested, steered, delayed": Plan(
        (200, 150, 300), wgs=2, tn=96, operands=3, loop=Loop(tk=64, slots=2, delay=1, rank=2), nested=Loop(slots=3, delay=1),
        trips=(1, 2, 3), delay_in="spec", tiles="grouped", ctas=2, epilogue=("acc - bias",)),
    "two pipelines, M- and N-major, bfloat16": Plan(
        (130, 70, 111), wgs=1, rows=128, tn=40, orders=("col", "col"), dtype=BF16, out_dtype=F32, loop=Loop(tk=32, slots=3, rank=3),
        second=Loop(tk=16, slots=2, delay=1), tiles="table", store_slots=2, epilogue=("acc * 2.0 - acc", "3.0 - acc")),
    "three warpgroups, one operand, output by columns": Plan(
        (300, 192, 90), wgs=3, tn=192, operands=1, out_order="col", loop=Loop(tk=64, slots=3, delay=2), delay_in="kernel", ctas=3),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_plans_compute_what_numpy_does(name):
    for seed in (None, 1, 2):
        check(CHOSEN[name], seed)


@pytest.mark.thorough
@pytest.mark.skipif(toolchain() is not None, reason=f"no compiler: {toolchain()}")
@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_plans_pass_the_build_gate(name):
    plan = CHOSEN[name]
    assert gate.findings(load(plan).kernel.compiled(*inputs(plan, 0), BIAS)) == ()


@pytest.mark.parametrize("wrong", [
    {"shape": (200, 150, 250)}, {"epilogue": ()}, {"trips": (1, 2, 4)}, {"operands": 2}, {"loop": Loop(tk=64, rank=1)},
])
def test_a_kernel_that_computes_something_else_is_told_apart(wrong):
    """The reference of one plan against the kernel of a slightly different one."""
    plan = CHOSEN["nested, steered, delayed"]
    other = replace(plan, **wrong)
    arrays = inputs(plan, 3)
    given_ = [x for x in arrays if plan.operands == other.operands or x is not arrays[2]]
    if other.shape != plan.shape:
        given_ = [x[:, :other.shape[2]] for x in given_[:-1]] + given_[-1:]
    load(other).kernel.simulate(*given_, BIAS)
    assert not np.array_equal(arrays[-1], expected(plan, arrays))


# ---- K loops that steer -----------------------------------------------------------------------------------------
def tiles_with(counts: list[int]) -> np.ndarray:
    """A host table of 2 x 3 tiles, the i-th with counts[i] steps."""
    return np.array([(i // 3, i % 3, steps) for i, steps in enumerate(counts)], np.int32)


@pytest.mark.variants(16)
@pairwise(counts=([5, 0, 3, 1, 4, 2], [0, 0, 0, 0, 0, 0], [0, 5, 0, 0, 5, 0], [5, 4, 3, 2, 1, 0], [1, 1, 1, 1, 1, 1],
                  [0, 1, 2, 3, 4, 5]), ring=((1, 0), (2, 0), (3, 1), (4, 2)), seed=(None, *range(6)))
def test_a_ring_goes_on_over_tiles_of_unequal_trip_counts(counts, ring, seed):
    slots, delay = ring
    a, b = operands(256, 192, 5 * 64)
    table, cfg = tiles_with(counts), replace(SMALL, slots=slots, delay=delay)
    exact = np.zeros((256, 192))
    for m, n, steps in table:
        down, right = slice(128 * m, 128 * m + 128), slice(64 * n, 64 * n + 64)
        exact[down, right] = a[down, :64 * steps].astype(float) @ b[right, :64 * steps].astype(float).T
    c, trace = np.full((256, 192), np.nan, F32), Trace()
    by_trip_count(ctas=2).simulate(a, b, table, c, cfg=cfg, seed=seed, trace=trace)
    np.testing.assert_array_equal(c, exact)
    for cta in (0, 1):
        filled = [e.details["step"] for e in trace.of("note", (cta, 0, 0)) if e.details["event"] == "fill"]
        assert filled == list(range(sum(counts[cta::2])))


def test_the_first_store_may_run_before_the_first_step_of_an_inner_ring():
    """The simulator meets rings as they run; the staging it has chosen by then must leave room for those it meets later."""
    plan = Plan((200, 40, 300), rows=128, tn=40, loop=Loop(tk=128), nested=Loop(), trips=(1, 0, 2))
    for seed in range(10):
        check(plan, seed)
