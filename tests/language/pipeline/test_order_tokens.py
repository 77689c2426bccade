"""`numpipe.turn`: warpgroups one after another, in any schedule; code that could wait forever is
rejected or reported."""

from __future__ import annotations

import ast
import functools
import os
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, PipelineDeadlock, SimulationError
from numpipe.arch.targets import HOPPER
from numpipe.compile.check.gate import Sass
from numpipe.compile.lift.turn_placement import sure_turns
from numpipe.compile.lift.wait_counts import pending
from numpipe.language.pipeline import steps, warpgroup_order
from numpipe.plan.unit import Unit
from tests.kernels.barrier_loop_kernels import cases
from tests.kernels.order_token_kernels import kernels

SEEDS = (None, 0, 1)


def check(name: str, seed: int | None) -> None:
    case = kernels()[name]
    case.check(lambda *args, **options: case.kernel.simulate(*args, seed=seed, **options))


@pytest.mark.variants(4)
@pytest.mark.parametrize("name", kernels())
def test_one_after_another_in_any_schedule(name: str, runs: Any) -> None:
    case = kernels()[name]
    for run in runs:
        case.check(functools.partial(run, case.kernel))


@pytest.mark.soak
@pytest.mark.parametrize("name", kernels())
def test_one_after_another_in_many_schedules(name: str) -> None:
    for seed in range(40):
        check(name, seed)


@pytest.mark.parametrize(
    "operation, name",
    [
        ("enter_turn", "two"),
        ("leave_turn", "two"),
        ("begin_tokens", "two"),
        ("end_tokens", "two"),
        ("skip_turn", "fewer steps"),
    ],
)
def test_every_part_of_it_is_missed(
    operation: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one of the operations a kernel has a race or a deadlock, or leaves an arrival, in
    every schedule."""
    for module in (warpgroup_order, steps):
        if hasattr(module, operation):
            monkeypatch.setattr(getattr(module, operation), "function", lambda np_, *_: None)
    for seed in SEEDS:
        with pytest.raises(SimulationError):
            check(name, seed)


@pytest.mark.parametrize(
    "warpgroups, memory, tokens",
    [(1, True, 12), (2, True, 5), (3, True, 3), (6, True, 1), (7, True, 0), (8, False, 0)],
)
def test_barriers_of_tokens_have_no_other_use(warpgroups: int, memory: bool, tokens: int) -> None:
    unit = Unit("k", (), (), "wg", warpgroups, 24 if memory else 0, warp_specialized=memory)
    assert unit.token_room == tokens
    taken = {unit.token_barrier(n) + w for n in range(tokens) for w in range(warpgroups)}
    assert len(taken) == tokens * warpgroups and taken <= set(range(1 + unit.warpgroups, 15))


# ---- checks of the source
@pytest.mark.parametrize(
    "source, found",
    [
        ("f()\nenter_turn(c, 1)\ng()\nleave_turn(c, 1)\nenter_turn(c, 0)", (1, 0)),
        ("f()", ()),
        ("if f():\n    enter_turn(c, 1)", None),
        ("for i in r:\n    enter_turn(c, 1)", None),
        ("enter_turn(c, 1)\nif f():\n    continue\ng()", (1,)),
        ("if f():\n    continue\nenter_turn(c, 1)", None),
    ],
)
def test_turns_that_every_step_takes(source: str, found: tuple[int, ...] | None) -> None:
    loop = ast.parse(
        "for k in steps:\n" + "\n".join(f"    {line}" for line in source.split("\n"))
    ).body[0]
    assert isinstance(loop, ast.For)
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "enter_turn":
            node.operation = warpgroup_order.enter_turn  # type: ignore[attr-defined]  # as the pass writes it
    assert sure_turns(loop.body) == found


def test_a_wait_counts_what_was_issued_in_a_turn() -> None:
    source = (
        "def f():\n    with turn():\n        s = wgmma()\n        o = wgmma()\n    u = wgmma()\n"
        "    s = wait(s)"
    )
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)

    def calls(node: ast.AST, name: str) -> bool:
        return (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
        )

    wait = next(node for node in ast.walk(function) if calls(node, "wait"))
    assert pending(function, [wait], lambda node: calls(node, "wgmma")) == {wait: 2}


def test_a_deadlock_names_the_token_and_the_line() -> None:
    @numpipe.kernel(num_compute_wgs=2, warp_specialized=False)
    def uneven(y):
        wg = numpipe.axis_index("wg")
        for _ in range(2 + wg):
            with numpipe.turn("products"):
                pass

    with pytest.raises(PipelineDeadlock) as caught:
        uneven.simulate(np.zeros((64, 64), np.float32))
    told = str(caught.value)
    assert "(the turn 'products' of compute warpgroup 1)" in told and "equally often" in told
    assert f"{__file__}:{uneven.function.__code__.co_firstlineno + 4}" in told


def test_a_deadlock_at_the_kernels_end_has_the_line_of_the_turn_before() -> None:
    """The kernel's end takes the turn back, which is not in a line of the user's code."""

    @numpipe.kernel(num_compute_wgs=2, warp_specialized=False)
    def lonely(y):
        wg = numpipe.axis_index("wg")
        if wg == 0:
            with numpipe.turn("products"):
                pass

    with pytest.raises(PipelineDeadlock) as caught:
        lonely.simulate(np.zeros((64, 64), np.float32))
    told, line = str(caught.value), lonely.function.__code__.co_firstlineno + 4
    assert (
        told.startswith(f"{__file__}:{line}: CTA (0, 0, 0)")
        and f"(at {os.path.basename(__file__)}:{line} in lonely)" in told
    )
    assert "no line" not in told and "beginning or end" not in told


def test_outside_of_a_kernel_a_fence_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="schedule_fence only works inside a kernel"):
        numpipe.schedule_fence()


def test_outside_of_a_kernel_a_turn_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="turn only works inside a kernel"):
        numpipe.turn("x")


def test_functions_that_take_turns_with_steps_of_are_refused() -> None:
    @numpipe.kernel(num_compute_wgs=2)
    def body_form(a):
        def body(indices, tile):
            with numpipe.turn("x"):
                pass

        numpipe.emit_pipeline_warp_specialized(
            body,
            grid=(2,),
            steps_of=lambda wg: 1,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        )(a)

    with pytest.raises(
        numpipe.SpecError, match="steps_of, but the steps may execute different blocks"
    ):
        body_form.simulate(np.zeros((64, 128), np.float16))


# ---- compiled
def above_the_last_wait(code: Sass) -> int:
    """Return how many of a step's 32 maxima ptxas has left above the wait for the second product.

    In the source they precede that wait. ptxas moves the wait up, and the maxima down.
    """
    loop = code.innermost(code.find("HGMMA")[0])
    last = max(
        n for n, instruction in enumerate(loop) if instruction.opcode.startswith("WARPGROUP.DEPBAR")
    )
    assert sum(instruction.opcode.startswith("FMNMX") for instruction in loop) == 32
    return sum(instruction.opcode.startswith("FMNMX") for instruction in loop[:last])


@pytest.mark.thorough
def test_a_fence_after_a_tile_holds_only_the_wait() -> None:
    """The wait for the second product stays after the store that is never executed, and there is no
    branch for it."""
    case = cases()["in parts"]
    code = Sass(case.kernel.inspect("sass", *case.inputs, np.empty((256, 64), np.float32)), HOPPER)
    [store] = [store for store in code.find("STS$") if code.innermost(store)]
    loop = code.innermost(store)
    assert store.predicate and max(
        n for n, i in enumerate(loop) if i.opcode.startswith("WARPGROUP.DEPBAR")
    ) > loop.index(store)
    assert sum(i.opcode.startswith("HGMMA") for i in loop) == 8
    assert sum(i.opcode == "BRA" for i in loop) == 3  # two waits for tiles, and the loop's own


@pytest.mark.soak
def test_without_a_fence_a_wait_moves_up() -> None:
    """The same products without `numpipe.schedule_fence`, which would prevent it."""
    case = cases()["rotated"]
    assert (
        above_the_last_wait(
            Sass(case.kernel.inspect("sass", *case.inputs, np.empty((128, 64), np.float32)), HOPPER)
        )
        < 32
    )


@pytest.mark.thorough
def test_costs_two_instructions_a_turn_and_a_fence_holds() -> None:
    case, out = kernels()["fewer steps"], np.empty((128, 64), np.float32)
    assert case.kernel.inspect("gate", *case.inputs, out, **dict(case.options)) == ()
    code = Sass(case.kernel.inspect("sass", *case.inputs, out, **dict(case.options)), HOPPER)
    # in the main loop, in the one over skipped steps, and at the kernel's start
    assert len(code.find("BAR.ARV")) == 3
    # in these loops, and at the kernel's end
    assert sum(i.text.endswith("0x100") for i in code.find("BAR.SYNC")) == 3
    assert above_the_last_wait(code) == 32  # see below
