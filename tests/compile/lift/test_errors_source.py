"""Errors at the boundary to Python and Numba: whose error is raised, which parts of theirs it
keeps, and what cannot be made into a kernel.

tests/misuse has the table of code that a kernel may not contain.
"""
# ruff: noqa: F841 (kernels that are wrong on purpose)

from __future__ import annotations

import ast
import functools
import math
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, CompileError, SpecError, ds
from numpipe.diagnostics.frames import brief
from tests.kernels.refusals import EXECUTIONS, A, B, C, marked, needs_columns
from tests.misuse.debugging import two_lines
from tests.misuse.language import a_pipeline_chosen_at_run_time, an_unknown_attribute


@pytest.fixture(autouse=True)
def _each_execution_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


# ---- leaving a pipeline loop ---------------------------------------------------------------------


@numpipe.kernel
def break_of_an_inner_loop(a, c):
    n = 0
    for (k,), (tile,) in numpipe.pipeline(
        grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
    )(a):
        for i in range(3):
            if i == 1:
                break
            n = n + 1
        continue


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_break_of_an_inner_loop_and_continue_are_fine(execution: str) -> None:
    EXECUTIONS[execution](break_of_an_inner_loop, A, C)


# ---- the boundary --------------------------------------------------------------------------------
def test_a_simulated_call_also_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling finds mistakes that the simulator cannot, unless the environment turns it off."""
    a_pipeline_chosen_at_run_time.simulate(A, B, C)
    monkeypatch.delenv("NUMPIPE_COMPILE_CHECK")
    with pytest.raises(CompileError, match="'pipe' has two types here"):
        a_pipeline_chosen_at_run_time.simulate(A, B, C)


def test_numbas_own_text_is_kept_out_of_the_traceback() -> None:
    with pytest.raises(CompileError) as caught:
        an_unknown_attribute.compiled(A, B, C)
    assert caught.value.__suppress_context__ and "one_lane" in str(caught.value.__context__)


def test_an_error_in_the_simulator_keeps_pythons_traceback() -> None:
    with pytest.raises(CompileError) as caught:
        an_unknown_attribute.simulate(A, B, C)
    assert isinstance(caught.value.__cause__, AttributeError)


@needs_columns
def test_an_error_of_typing_and_one_of_the_simulator_are_stamped_alike() -> None:
    @numpipe.kernel
    def twice_as_wide(a, c):
        c[ds(0, 64), ds(0, 128)] = numpipe.zeros((64, 64), np.float32)  # <-

    told = []
    for execution in EXECUTIONS.values():
        with pytest.raises(SpecError) as caught:
            execution(twice_as_wide, A, C)
        told.append(str(caught.value))
    first = (
        f"{marked(twice_as_wide)}: kernel twice_as_wide: 'c[…] = tile': the index selects "
        "(64, 128), but the tile is (64, 64)"
    )
    assert (
        told[0]
        == told[1]
        == "\n".join(
            [
                first,
                "    c[ds(0, 64), ds(0, 128)] = numpipe.zeros((64, 64), np.float32)  # <-",
                "    ^^^^^^^^^^^^^^^^^^^^^^^^",
            ]
        )
    )


# ---- where the source comes from -----------------------------------------------------------------
def test_a_lambda_is_no_kernel() -> None:
    with pytest.raises(SpecError, match=r"test_errors_source.py:\d+: a kernel must be a `def`"):
        numpipe.kernel(lambda a, c: None)


@pytest.mark.parametrize(
    "thing, what",
    [(3, "3, a int"), (math.sin, "builtin_function"), (functools.partial(print), "a partial")],
)
def test_only_functions_are_kernels(thing: Any, what: str) -> None:
    with pytest.raises(
        SpecError, match="@numpipe.kernel decorates a Python function, got .*"
    ) as caught:
        numpipe.kernel(thing)
    assert what in str(caught.value)


def test_a_decorator_below_the_kernels_is_refused() -> None:
    """It would be ignored: kernels are made from their source."""

    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args)

        return wrapper

    @numpipe.kernel
    @logged
    def wrapped(a, c):
        x = 1

    with pytest.raises(
        CompileError, match="kernel wrapped: a decorator below @numpipe.kernel .* next to the 'def'"
    ):
        wrapped.simulate(A, C)


# ---- tracebacks ----------------------------------------------------------------------------------
@numpipe.kernel
def a_dictionary_below_a_call(a, b, c):
    def inner(x):
        return {1: x}

    inner(1)


@numpipe.kernel
def a_block_of_8_bytes_in_a_function(a, b, c):
    def inner():
        for (k,), (x,) in numpipe.pipeline(
            grid=(1,), in_specs=(BlockSpec((64, 4), lambda k: (0, k)),)
        )(a):
            pass

    inner()


def shown(error: BaseException) -> list[str]:
    """Return the functions whose frames a traceback shows."""
    return [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]


CALLS: dict[str, Callable[..., Any]] = EXECUTIONS | {
    "called": lambda kernel, *args: kernel(*args, target="sim"),
    "inspected": lambda kernel, *args: kernel.inspect("ptx", *args),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "kernel, lines",
    [
        (a_dictionary_below_a_call, []),
        (a_block_of_8_bytes_in_a_function, ["a_block_of_8_bytes_in_a_function", "inner"]),
    ],
)
def test_a_traceback_is_the_users_call_and_lines(kernel: Any, lines: list[str], call: str) -> None:
    with pytest.raises(numpipe.NumpipeError) as caught:
        CALLS[call](kernel, A, B, C)
    ran, entry = call in ("simulated", "called"), "__call__" if call == "called" else "entry"
    test = "test_a_traceback_is_the_users_call_and_lines"
    assert shown(caught.value)[:3] == [test, "<lambda>", entry]
    assert [name.partition("__")[0] for name in shown(caught.value)[3:]] == (lines if ran else [])


def test_a_traceback_is_whole_where_the_environment_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NUMPIPE_TRACEBACK", "full")
    with pytest.raises(CompileError) as caught:
        a_dictionary_below_a_call.simulate(A, B, C)
    assert {"lifted", "lift"} <= set(shown(caught.value))


def test_of_the_causing_error_the_users_line_and_lines_below_it_are_shown() -> None:
    @brief
    def reads_source() -> None:
        try:
            ast.parse("(")
        except SyntaxError as error:
            raise CompileError("no source") from error

    with pytest.raises(CompileError) as caught:
        reads_source()
    assert shown(caught.value)[1:] == ["entry", "reads_source"]
    assert caught.value.__cause__ is not None and shown(caught.value.__cause__) == [
        "reads_source",
        "parse",
    ]


def test_an_error_repeated_with_its_position_is_not_shown_twice() -> None:
    with pytest.raises(CompileError) as caught:
        two_lines.compiled(A, B, C)
    assert isinstance(caught.value.__context__, SpecError) and caught.value.__suppress_context__
