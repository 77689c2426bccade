"""Kernels with in_specs, out_specs and dimension_semantics, whose functions get tiles."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams, SpecError
from numpipe.compile.lift.function_nodes import node_of
from tests.kernels import tiled_kernels as kernels

HALF = ArrayType((8, 8), np.float16)


@pytest.fixture(autouse=True)
def simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


# ---- results
@pytest.mark.variants(4)
@pytest.mark.parametrize(
    "semantics", kernels.SEMANTICS, ids=lambda words: "".join(word[0] for word in words)
)
@pytest.mark.parametrize("roles, warpgroups", [(True, 2), (True, 1), (False, 1)])
def test_a_product_by_any_division_into_ctas_and_steps(
    roles: bool, warpgroups: int, semantics: tuple[str, ...]
) -> None:
    kernels.check_product(kernels.product(roles, semantics, warpgroups), target="sim")


@pytest.mark.thorough
def test_a_grid_of_constants_gives_no_more_slots_than_steps() -> None:
    kernel = kernels.product(True, kernels.SEMANTICS[0], 1, slots=4, static=(1, 1, 2))
    kernels.check_product(kernel, [(64, 64, 128)], target="sim")
    slots = {plan.slots for plan in kernel.compiled(HALF, HALF).unit.rings.values()}
    assert max(slots) == 2


@pytest.mark.thorough
def test_one_compile_serves_every_number_of_steps() -> None:
    kernel = kernels.product(True, kernels.SEMANTICS[0], 1)
    assert kernel.compiled(HALF, HALF) is kernel.compiled(ArrayType((64, 640), np.float16), HALF)


def test_all_dimensions_are_ctas_without_semantics_and_maps_may_be_functions() -> None:
    kernels.check_scaled(target="sim")


def test_overlapping_and_squeezed_blocks_and_indices_of_sequential_dimensions() -> None:
    kernels.check_sums(target="sim")


def test_a_parameter_may_be_named_as_the_kernel_is() -> None:
    @numpipe.kernel(grid=(2,), in_specs=A, out_specs=A)
    def copied(a, copied):
        copied[...] = a[...]

    a, c = np.ones((128, 64), np.float16), np.zeros((128, 64), np.float16)
    copied.simulate(a, c)
    np.testing.assert_array_equal(a, c)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kernel", "arrays"),
    [(kernels.sums, (HALF,)), (kernels.product(True, kernels.SEMANTICS[0], 2), (HALF, HALF))],
    ids=["sums", "product"],
)
def test_the_machine_code_is_clean(kernel: Any, arrays: tuple[Any, ...]) -> None:
    assert kernel.inspect("gate", *arrays) == ()


def test_slots_follow_the_kernels_options() -> None:
    [*plans] = (
        kernels.product(True, kernels.SEMANTICS[0], 1, slots=3)
        .compiled(HALF, HALF)
        .unit.rings.values()
    )
    assert {plan.slots for plan in plans} == {3}


def test_errors_are_at_the_users_line() -> None:
    @numpipe.kernel(
        grid=(1,),
        in_specs=BlockSpec((64, 64), lambda i: (i, 0)),
        out_specs=BlockSpec((64, 64), lambda i: (i, 0)),
    )
    def wrong(a, c):
        c[...] = nowhere  # noqa: F821

    with pytest.raises(
        numpipe.CompileError,
        match=r"(?s)test_kernel_specs.py:\d+: kernel wrong: name 'nowhere' is not defined\n"
        r" *c\[\.\.\.\] = nowhere",
    ):
        wrong(np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16), target="sim")


# ---- lambdas
def test_lambdas_on_one_line_are_distinguished() -> None:
    n = 3
    first, second, third = lambda i: (i, n), lambda i: (n, i), lambda j: (j, n)
    found = [node_of(function) for function in (first, second, third)]
    assert [node.col_offset for node in found] == sorted({node.col_offset for node in found})


def test_lambdas_that_differ_in_what_they_capture_are_the_same_source() -> None:
    made = [lambda i, n=n: (i, n) for n in range(2)]
    assert node_of(made[0]) is node_of(made[1]) is not None


def test_a_lambda_without_source_is_refused() -> None:
    namespace: dict[str, Any] = {}
    exec("made = lambda i: (i, 0)", namespace)
    assert node_of(namespace["made"]) is None
    block = BlockSpec((64, 64), namespace["made"])

    @numpipe.kernel(grid=(1,), in_specs=block, out_specs=block)
    def copied(a, c):
        c[...] = a[...]

    with pytest.raises(
        SpecError,
        match="the source of the lambda on line 1 of <string> is not available; fix: write a 'def'",
    ):
        copied(np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16), target="sim")


# ---- what is rejected
A = BlockSpec((64, 64), lambda i: (i, 0))
ONE = {"grid": (1,), "in_specs": A, "out_specs": A}


def semantics(*words: str) -> dict[str, Any]:
    return {"compiler_params": CompilerParams(dimension_semantics=words)}


@pytest.mark.parametrize(
    "options, text",
    [
        (
            {"grid": (1,), **semantics("sequential")},
            "dimension_semantics=('sequential',) select the dimensions that are steps of the "
            "kernel's own pipeline, which needs in_specs= or out_specs= on the kernel",
        ),
        (
            {**ONE, "out_specs": None},
            "it has 2 parameters (a, c), but 1 in_specs and 0 out_specs: it must have one "
            "parameter for each",
        ),
        (
            {**ONE, "in_specs": (64, 64)},
            "in_specs must be a BlockSpec or a tuple of them, one for each parameter, got (int, "
            "int)",
        ),
        (
            {**ONE, "in_specs": ((A, A),)},
            "in_specs must be a BlockSpec or a tuple of them, one for each parameter, got (tuple)",
        ),
        (
            {**ONE, "out_specs": [A]},
            "out_specs must be a BlockSpec or a tuple of them, one for each parameter, got "
            "[BlockSpec]",
        ),
        (
            {**ONE, "out_specs": 64},
            "out_specs must be a BlockSpec or a tuple of them, one for each parameter, got 64",
        ),
        (
            {**ONE, "grid": numpipe.persistent()},
            "numpipe.persistent() is a grid for kernels that loop over tiles",
        ),
        (
            {**ONE, **semantics("parallel", "sequential")},
            "dimension_semantics ('parallel', 'sequential') has 2 dimensions, but the grid has 1",
        ),
        (
            {**ONE, "grid": (1, 1), **semantics("sequential", "parallel")},
            "the sequential dimensions must be last",
        ),
        ({**ONE, "grid": (-1,)}, "grid must be a tuple of ints >= 0, got (-1,)"),
        (
            {
                **ONE,
                "grid": lambda a: (1,),
                "in_specs": BlockSpec((64, 64)),
                "out_specs": BlockSpec((64, 64)),
            },
            "no index map shows its number of dimensions: give dimension_semantics",
        ),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError) as caught:

        @numpipe.kernel(**options)
        def refused(a, c):
            c[...] = a[...]

    assert text in str(caught.value)


@numpipe.function
def step():
    return numpipe.program_id(1)


@pytest.mark.variants(1)
@pytest.mark.parametrize("run", ["simulate", "compiled"])
def test_the_step_is_unknown_to_functions(run: str) -> None:
    """Functions are compiled once for all kernels; CTAs have no such index and read it as 0."""
    both = BlockSpec((64, 64), lambda i, k: (i, k))

    @numpipe.kernel(
        grid=(1, 2), in_specs=both, out_specs=both, **semantics("parallel", "sequential")
    )
    def asks(a, c):
        c[...] = a[...] + step()

    line = step.function.__code__.co_firstlineno + 2
    with pytest.raises(
        SpecError,
        match=rf"test_kernel_specs.py:{line}: kernel asks: program_id\(1\): dimension 1 is "
        r"sequential, so only the kernel function itself can read it; fix: write "
        r"program_id\(1\) there, with a literal number, and pass its value to functions\n "
        r"+return numpipe.program_id\(1\)",
    ):
        getattr(asks, run)(np.zeros((64, 128), np.float32), np.zeros((64, 128), np.float32))


@pytest.mark.parametrize(
    "block, array, text",
    [
        (
            BlockSpec((64, 64), lambda i: (i, 0), delay_release=1),
            np.zeros((64, 64), np.float16),
            "out_specs[0]: delay_release=1 is only for inputs",
        ),
        (
            BlockSpec((64, 64), lambda i: i),
            np.zeros((64, 64), np.float16),
            "out_specs[0] for 'c': index_map must return a tuple of 2 integer block indices, got",
        ),
        (
            BlockSpec((64, 64), lambda i: (i, 0)),
            np.zeros((64, 64), np.float16, order="F"),
            "out_specs[0] for 'c': the array is column-major",
        ),
        (
            BlockSpec((None, 64, 64), lambda i: (i, 0, 0)),
            np.zeros((64, 64), np.float16),
            "out_specs[0] for 'c': block_shape (None, 64, 64) has 3 dimensions, the array has 2",
        ),
    ],
    ids=["delay", "one index", "column-major", "rank"],
)
def test_invalid_blocks_of_outputs_are_reported_at_the_definition(
    block: BlockSpec, array: np.ndarray, text: str
) -> None:
    @numpipe.kernel(grid=(1,), in_specs=A, out_specs=block)
    def refused(a, c):
        c[...] = a[...]

    for run in (refused.simulate, refused.compiled):
        with pytest.raises(SpecError) as caught:
            run(np.zeros((64, 64), np.float16), array)
        first, shown, *_ = str(caught.value).split("\n")
        assert text in first and ": kernel refused, pipeline at test_kernel_specs.py:" in first
        assert shown.strip() == "def refused(a, c):"


@pytest.mark.parametrize(
    "index_map, text",
    [
        (
            lambda i, j: (i, j),
            "in_specs[0]: index_map takes 2 indices, but the kernel's grid has 1 dimensions: it "
            "takes one index of each",
        ),
        (
            lambda i=0: (i, 0),
            "in_specs[0]: index_map takes 1 indices, some with defaults, but the kernel's grid "
            "has 1",
        ),
        (
            functools.partial(max, 1),
            "in_specs[0]: index_map must be a lambda or a function, whose source is compiled with "
            "the kernel, got",
        ),
    ],
    ids=["two", "default", "partial"],
)
def test_index_maps_that_do_not_fit(index_map: Any, text: str) -> None:
    @numpipe.kernel(grid=(1,), in_specs=BlockSpec((64, 64), index_map), out_specs=A)
    def refused(a, c):
        c[...] = a[...]

    with pytest.raises(SpecError) as caught:
        refused.compiled(HALF, HALF)
    assert text in str(caught.value)


def test_a_grid_of_another_rank_is_refused_at_the_call() -> None:
    @numpipe.kernel(grid=lambda a: (1, 1), in_specs=A, out_specs=A)
    def refused(a, c):
        c[...] = a[...]

    with pytest.raises(
        SpecError,
        match=r"the grid \(1, 1\) has 2 dimensions, but the index maps of its specs take 1 indices",
    ):
        refused(np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16), target="sim")
