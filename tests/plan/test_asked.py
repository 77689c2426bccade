"""Warpgroups and registers, which the kernel or its emitted pipeline may set; setting both
differently is an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, BlockSpec, CompileError, NumpipeError, SpecError, ds
from tests.kernels.refusals import EXECUTIONS

A = np.ones((128, 64), np.float16)
WGS = 1


@dataclass(frozen=True)
class Config:
    wgs: int = 2
    axis: str = "wg"
    registers: int = 40
    emits: bool = True


def output(a: Any) -> ArrayType:
    return ArrayType((128, 64), np.float32)


def kernel(**options: Any) -> Any:
    """Return a kernel whose pipeline requests what the Static says."""

    @numpipe.kernel(out_type=output, **options)
    def asks(a, c, *, cfg: numpipe.Static = Config()):
        axis = cfg.axis
        rows = 128 // numpipe.axis_size(axis)
        wg = numpipe.axis_index(axis)

        def body(indices, x, y, acc):
            return numpipe.wgmma(acc, x.at[ds(wg * rows, rows), :], y.T)

        def compute(pipeline):
            c[ds(wg * rows, rows), ds(0, 64)] = pipeline(numpipe.zeros((rows, 64), np.float32))

        specs = (BlockSpec((128, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k)))
        if cfg.emits:
            numpipe.emit_pipeline_warp_specialized(
                body,
                grid=(1,),
                in_specs=specs,
                compute_context=compute,
                num_compute_wgs=cfg.wgs,
                wg_axis=axis,
                memory_registers=cfg.registers + 0,
            )(a, a)
        else:
            numpipe.emit_pipeline_warp_specialized(
                body, grid=(1,), in_specs=specs, compute_context=compute
            )(a, a)

    return asks


def split(made: Any, *args: Any, **statics: Any) -> tuple[int, str, int]:
    """Return the values that the kernel is compiled with, after simulating it."""
    assert (made.simulate(*args, **statics) == 64).all()
    unit = made.compiled(*args, **statics).unit
    return unit.compute_wgs, unit.wg_axis, unit.memory_registers


def said(kind: type[NumpipeError], execution: str, made: Any, *args: Any, **named: Any) -> str:
    with pytest.raises(kind) as caught:
        EXECUTIONS[execution](made, *args, **named)
    return str(caught.value)


both = pytest.mark.parametrize("execution", EXECUTIONS)


# ---- who sets it
@pytest.mark.variants(1)
@pytest.mark.parametrize("cfg", [Config(), Config(1), Config(2, "group", 56)])
def test_what_only_the_pipeline_says_holds(cfg: Config) -> None:
    assert split(kernel(), A, cfg=cfg) == (cfg.wgs, cfg.axis, cfg.registers)


@pytest.mark.thorough
def test_options_set_only_by_the_kernel_hold() -> None:
    made = kernel(wg_axis="group", memory_registers=48)
    assert split(made, A, cfg=Config(axis="group", emits=False)) == (1, "group", 48)


@pytest.mark.thorough
def test_the_default_is_one_compute_warpgroup_of_axis_wg_and_40_registers() -> None:
    assert split(kernel(), A, cfg=Config(emits=False)) == (1, "wg", 40)


@pytest.mark.parametrize(
    ("warpgroups", "compute", "most"), [(1, 256, 256), (2, 232, 232), (3, 152, 160), (4, 104, 112)]
)
def test_the_memory_role_keeps_40_registers_and_32_leave_three_or_four_warpgroups_more(
    warpgroups: int, compute: int, most: int
) -> None:
    for options, expected in (({}, (40, compute)), ({"memory_registers": 32}, (32, most))):
        made = kernel(num_compute_wgs=warpgroups, **options)
        unit = made.variant((A,), {"cfg": Config(emits=False)}).unit()
        assert (unit.memory_registers, unit.compute_registers) == expected


@pytest.mark.thorough
def test_both_may_set_the_same_options_or_each_some() -> None:
    assert split(kernel(wg_axis="wg", memory_registers=48), A, cfg=Config(1, "wg", 48)) == (
        1,
        "wg",
        48,
    )


@pytest.mark.thorough
def test_one_kernel_has_another_split_for_each_static() -> None:
    made = kernel()
    assert [split(made, A, cfg=Config(n))[0] for n in (2, 1, 2)] == [2, 1, 2]


def test_the_loop_form_has_the_kernels() -> None:
    @numpipe.kernel(out_type=output)
    def loops(a, c):
        acc = numpipe.zeros((128, 64), np.float32)
        for (k,), (x, y) in numpipe.pipeline(
            grid=(1,),
            in_specs=(
                BlockSpec((128, 64), lambda k: (0, k)),
                BlockSpec((64, 64), lambda k: (0, k)),
            ),
        )(a, a):
            acc = numpipe.wgmma(acc, x, y.T)
        c[ds(0, 128), ds(0, 64)] = acc

    assert split(loops, A) == (1, "wg", 40)


# ---- where it is set
@numpipe.function
def step(indices, x):
    pass


@numpipe.function
def loads(a, wgs):
    numpipe.emit_pipeline_warp_specialized(
        step,
        grid=(1,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        num_compute_wgs=wgs,
        memory_registers=48,
    )(a)


LOADERS = (loads,)


def in_a_function(a):
    loads(a, 3)


def in_a_function_by_keyword(a, *, n: numpipe.Static = 3):
    loads(wgs=n, a=a)


def in_a_function_of_a_tuple(a):
    LOADERS[0](a, 3)


def in_a_nested_function(a):
    wgs = WGS * 3

    def inner():
        loads(a, wgs)

    inner()


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "function",
    [in_a_function, in_a_function_by_keyword, in_a_function_of_a_tuple, in_a_nested_function],
    ids=lambda f: f.__name__,
)
def test_a_pipeline_sets_the_number_of_warpgroups_wherever_it_is_written(function: Any) -> None:
    made = numpipe.kernel(function)
    unit = made.compiled(A).unit
    assert (unit.compute_wgs, unit.memory_registers) == (3, 48)
    made.simulate(A)


# ---- mismatches
@both
@pytest.mark.parametrize(
    "options, cfg, name, asked, own",
    [
        ({"num_compute_wgs": 1}, Config(2), "num_compute_wgs", "2", "1"),
        ({"wg_axis": "group"}, Config(), "wg_axis", "'wg'", "'group'"),
        ({"memory_registers": 56}, Config(registers=48), "memory_registers", "48", "56"),
    ],
)
def test_a_pipeline_and_its_kernel_that_say_different_things(
    execution: str, options: dict[str, Any], cfg: Config, name: str, asked: str, own: str
) -> None:
    told = said(SpecError, execution, kernel(**options), A, cfg=cfg).splitlines()
    assert told[0].endswith(
        f"kernel asks: emit_pipeline_warp_specialized has {name}={asked}, but @numpipe.kernel has "
        f"{own}: a CTA has only one split into roles; fix: set {name} in only one of them"
    )
    assert told[0].startswith(__file__) and set(told[2].strip()) == {"^"}


@both
def test_two_pipelines_with_different_options(execution: str) -> None:
    @numpipe.kernel
    def twice(a):
        loads(a, 2)
        loads(a, 1)

    told = said(SpecError, execution, twice, A)
    assert (
        "kernel twice: emit_pipeline_warp_specialized has num_compute_wgs=1, but the call at line "
        in told
    )
    assert (
        "has 2: a CTA has only one split into roles; fix: give both the same value, or make two "
        "kernels" in told
    )


@pytest.mark.thorough
@both
def test_what_a_pruned_branch_says_does_not_count(execution: str) -> None:
    @numpipe.kernel
    def one_of_two(a, *, many: numpipe.Static = True):
        if many:
            loads(a, 2)
        else:
            loads(a, 1)

    EXECUTIONS[execution](one_of_two, A)
    assert [one_of_two.compiled(A, many=many).unit.compute_wgs for many in (True, False)] == [2, 1]


@both
def test_it_must_be_a_constant(execution: str) -> None:
    @numpipe.kernel
    def asks_at_run_time(a):
        numpipe.emit_pipeline_warp_specialized(
            step,
            grid=(1,),
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
            num_compute_wgs=a.shape[0],
        )(a)

    told = said(CompileError, execution, asks_at_run_time, A)
    assert (
        "kernel asks_at_run_time: num_compute_wgs=a.shape[0] must be a constant, because warps "
        "and registers are assigned" in told
    )


@both
@pytest.mark.parametrize(
    "cfg, part",
    [
        (Config(0), "num_compute_wgs must be 1…7"),
        (Config(2.0), "num_compute_wgs must be an int, got 2.0"),  # type: ignore[arg-type]
        (Config(registers=30), "memory_registers must be a multiple of 8 in 24…256, got 30"),
        (
            Config(axis="m"),
            "wg_axis='m' is also the name of a grid axis, ('m',); fix: give wg_axis another name",
        ),
    ],
)
def test_what_a_pipeline_says_is_checked(execution: str, cfg: Config, part: str) -> None:
    told = said(SpecError, execution, kernel(grid=(1,), grid_names="m"), A, cfg=cfg)
    assert "kernel asks: " in told and part in told


@pytest.mark.variants(1)
@both
def test_the_default_axis_must_not_be_one_of_the_grid(execution: str) -> None:
    """Unless a pipeline gives it another name, which is known only then."""
    made = kernel(grid=(1,), grid_names="wg")
    assert (
        "wg_axis='wg' is also the name of a grid axis, ('wg',); fix: give wg_axis another name"
        in said(SpecError, execution, made, A, cfg=Config(emits=False))
    )
    EXECUTIONS[execution](made, A, cfg=Config(axis="group"))
