"""Single-stream pipelines: a warpgroup loads, waits, computes and releases by itself."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, BlockSpec, PipelineRace, SpecError, ds
from numpipe.language.pipeline import steps
from tests.kernels import single_kernels as kernels
from tests.language.pipeline.test_injected import Bug

HALF, FLOAT = ArrayType((8, 8), np.float16), ArrayType((8, 8), np.float32)
SLOTS = [(1, 0), (2, 1), (3, 0), (4, 2)]


# ---- results
@pytest.mark.variants(3)
@pytest.mark.parametrize("slots, delay", SLOTS)
@pytest.mark.parametrize("form, roles", [("body", True), ("body", False), ("loop", False)])
def test_every_number_of_steps_slots_and_delays(
    form: str, roles: bool, slots: int, delay: int
) -> None:
    kernel = kernels.gemm(form, roles, slots, delay, 2)
    kernels.check_gemm(kernel, lambda kernel, a, b: kernel(a, b, target="sim"))


@pytest.mark.variants(3)
@pytest.mark.parametrize("warpgroups", [1, 3])
@pytest.mark.parametrize("form, roles", [("body", True), ("body", False), ("loop", False)])
def test_in_every_schedule(form: str, roles: bool, warpgroups: int) -> None:
    kernel = kernels.gemm(form, roles, 2, 1, warpgroups)
    for seed in range(4):
        kernels.check_gemm(
            kernel,
            lambda kernel, a, b, seed=seed: kernel.simulate(a, b, seed=seed),
            depths=(64, 200),
        )


@pytest.mark.parametrize("roles", [True, False])
def test_warpgroups_may_take_different_numbers_of_steps(roles: bool) -> None:
    kernels.check_unequal(kernels.unequal(roles), target="sim")


def test_nested_in_a_loop_that_the_memory_role_loads() -> None:
    kernels.check_in_a_role_loop(target="sim")


def test_around_a_loop_that_the_memory_role_loads_and_in_helpers() -> None:
    kernels.check_around_a_role_loop(target="sim")


def test_loops_in_loops_without_a_memory_role() -> None:
    kernels.check_in_a_single_loop(target="sim")


# ---- compiled code
@pytest.mark.variants(1, thorough=1)
@pytest.mark.parametrize(
    "form, roles, delay", [("body", True, 1), ("body", False, 0), ("loop", False, 1)]
)
def test_the_machine_code_is_clean_and_products_stay_in_flight(
    form: str, roles: bool, delay: int
) -> None:
    built = kernels.gemm(form, roles, 3, delay, 2).compiled(HALF, HALF)
    assert built.image.resources.clean
    from numpipe.compile.check import gate

    assert gate.findings(built) == ()
    waits = re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\d)", built.sass)
    assert str(delay) in waits  # no wait allows more in flight than the delay
    assert max(map(int, waits)) == delay


@pytest.mark.variants(0, thorough=2)
@pytest.mark.parametrize(
    "kernel",
    [kernels.around_a_role_loop, kernels.in_a_single_loop, kernels.unequal(True)],
    ids=lambda k: k.name,
)
def test_nested_pipelines_compile_clean(kernel: Any) -> None:
    args = (HALF, HALF, FLOAT) + (3,) * (kernel.name == "unequal")
    assert kernel.inspect("gate", *args) == ()


@pytest.mark.thorough
def test_where_no_shared_ring_is_the_gate_wants_the_loads_in_the_compute_role(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dataclasses import replace

    from numpipe.compile.check import gate

    built = kernels.gemm("body", True, 2, 0, 2).compiled(HALF, HALF)
    rings = {name: replace(plan, private=0) for name, plan in built.unit.rings.items()}
    monkeypatch.setattr(built.unit, "rings", rings)
    told = gate.findings(built)
    assert any("not the compute role's business" in line for line in told)
    assert any("no UTMALDG in the memory role" in line for line in told)


# ---- rings
def test_each_warpgroup_has_slots_and_barriers_of_its_own() -> None:
    built = kernels.gemm("body", False, 3, 0, 3).compiled(HALF, HALF)
    [plan] = built.unit.rings.values()
    assert plan.memory.total == 3 * 3 * plan.stage_stride
    barriers = list(built.unit.barriers(plan))
    assert len({address for address, _, _ in barriers}) == len(barriers) == 3 * 3 * 2
    assert {(count, name.partition("[")[0]) for _, count, name in barriers} == {
        (1, "ready"),
        (4, "consumed"),
    }
    assert built.image.smem_bytes >= plan.memory.end and plan.header.total == 8 * len(barriers)


def test_rings_that_do_not_fit_say_how_many_warpgroups_have_one() -> None:
    kernel = kernels.gemm("body", False, 5, 0, 3)
    said = "3 warpgroups x 5 slots x 8192 B, pipeline at single_kernels.py:"
    with pytest.raises(SpecError, match=f"  122880 B  in_specs\\[0\\] for 'a': {said}"):
        kernel.compiled(HALF, HALF)
    with pytest.raises(SpecError, match=f"  122880 B  in_specs\\[1\\] for 'b': {said}"):
        kernel(*kernels.operands(64, 64), target="sim")


# ---- injected bugs
ADVANCE = steps.advance
WAITS = 'only_if(loop, "drains", await_products)'
BUGS = {
    "release before drain": Bug(
        where=ADVANCE,
        old=WAITS,
        new="pass",
        error=PipelineRace,
        message="(?s)while wgmma .* did not signal that their wgmma had finished",
    ),
    "a slot too far ahead": Bug(
        steps.fill_used, "+ ring.slots", "+ ring.slots + 1", numpipe.SimulationError, "."
    ),
    "no fill": Bug(
        steps.refill,
        "one_lane(over, loop.rings, fill_used, k)",
        "pass",
        numpipe.PipelineDeadlock,
        "warpgroup 0",
    ),
    "no release": Bug(
        where=ADVANCE,
        old='over(loop.rings, only_if, "releases", release_due, k)',
        new="pass",
        error=numpipe.PipelineDeadlock,
        message="warpgroup 0",
    ),
    "no wait": Bug(
        steps.begin_step,
        'over(loop.rings, only_if, "awaits", await_begun, k)',
        "pass",
        PipelineRace,
        ".",
    ),
}


@pytest.mark.variants(10)
@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_in_the_loop_is_found_in_every_schedule(
    name: str, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, (a, b) = kernels.gemm("body", False, 2, 0, 2), kernels.operands(128, 320)
    BUGS[name].inject(monkeypatch)
    with pytest.raises(BUGS[name].error, match=BUGS[name].message):
        kernel.simulate(a, b, seed=seed)


def test_all_products_of_a_step_are_counted_when_its_slot_is_released() -> None:
    @numpipe.kernel(warp_specialized=False)
    def two(a, c):
        first = numpipe.zeros((64, 64), np.float32)
        second = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(4,),
            max_concurrent_steps=2,
            delay_release=1,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        )
        for (_,), (x,) in pipe(a):
            first = numpipe.wgmma(first, x, x.T)
            second = numpipe.wgmma(second, x, x.T)
        c[ds(0, 64), ds(0, 64)] = first - second

    a, c = np.ones((64, 256), np.float16), np.ones((64, 64), np.float32)
    for seed in range(4):
        two.simulate(a, c, seed=seed)
    assert (c == 0).all()


# ---- the memory role
def test_the_memory_role_has_no_final_carry() -> None:
    @numpipe.kernel
    def steered(a, c):
        def body(indices, x, steps):
            return steps + 1

        steps = numpipe.emit_pipeline(
            body, grid=(3,), init_carry=0, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )(a)
        for _ in range(steps):
            c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    text = "the carry of a single-stream pipeline steers control flow"
    with pytest.raises(numpipe.CompileError, match=text):
        steered(np.zeros((64, 192), np.float16), np.zeros((64, 64), np.float32), target="sim")
    with pytest.raises(numpipe.CompileError, match=text):
        steered.compiled(HALF, FLOAT)


def test_what_the_memory_role_runs_needs_a_grid_that_it_knows() -> None:
    @numpipe.kernel(num_compute_wgs=2)
    def inert_grid(a, b, c):
        def body(indices, x):
            pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
            for (_,), (_,) in pipe(b):
                pass

        numpipe.emit_pipeline(
            body,
            grid=(numpipe.axis_index("wg"),),
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        )(a)
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    with pytest.raises(
        numpipe.CompileError, match="the warpgroup axis steers control flow, a grid"
    ):
        inert_grid(
            np.zeros((64, 192), np.float16),
            np.zeros((64, 192), np.float16),
            np.zeros((64, 64), np.float32),
            target="sim",
        )
    with pytest.raises(
        numpipe.CompileError, match="the warpgroup axis steers control flow, a grid"
    ):
        inert_grid.compiled(HALF, HALF, FLOAT)


@pytest.mark.thorough
def test_the_memory_role_passes_by_a_pipeline_whose_body_holds_single_stream_pipelines_only() -> (
    None
):
    @numpipe.kernel(num_compute_wgs=2)
    def inner_alone(a, b, c):
        def body(indices, x):
            def inner(indices, y):
                pass

            numpipe.emit_pipeline(
                inner, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
            )(b)

        numpipe.emit_pipeline(
            body,
            grid=(numpipe.axis_index("wg"),),
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        )(a)
        c[ds(numpipe.axis_index("wg") * 64, 64), ds(0, 64)] = (
            numpipe.zeros((64, 64), np.float32) + 1
        )

    c = np.zeros((128, 64), np.float32)
    inner_alone.simulate(np.zeros((64, 192), np.float16), np.zeros((64, 192), np.float16), c)
    assert (c == 1).all()
    inner_alone.compiled(HALF, HALF, FLOAT)
