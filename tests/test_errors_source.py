"""The boundary to Python and Numba: whose error is raised, what it keeps of theirs, and what no kernel can be made from.

What a kernel may not hold is in the table of test_misuse.py.
"""
# ruff: noqa: F841 (kernels that are wrong on purpose)

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
from misuse_language import a_pipeline_chosen_at_run_time, an_unknown_attribute
from refusals import EXECUTIONS, A, B, C, marked, needs_columns

import numpipe
from numpipe import BlockSpec, CompileError, SpecError, ds


@pytest.fixture(autouse=True)
def _each_execution_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


# ---- leaving a pipeline loop --------------------------------------------------------------------------------------------


@numpipe.kernel(num_compute_wgs=1)
def break_of_an_inner_loop(a, c):
    n = 0
    for (k,), (tile,) in numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        for i in range(3):
            if i == 1:
                break
            n = n + 1
        continue


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_break_of_an_inner_loop_and_continue_are_fine(execution: str) -> None:
    EXECUTIONS[execution](break_of_an_inner_loop, A, C)


# ---- the boundary -------------------------------------------------------------------------------------------------------
def test_a_simulated_call_also_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the simulator cannot tell is found all the same, unless the environment says not to look."""
    a_pipeline_chosen_at_run_time.simulate(A, B, C)
    monkeypatch.delenv("NUMPIPE_COMPILE_CHECK")
    with pytest.raises(CompileError, match="'pipe' is not of one type here"):
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
    @numpipe.kernel(num_compute_wgs=1)
    def twice_as_wide(a, c):
        c[ds(0, 64), ds(0, 128)] = numpipe.zeros((64, 64), np.float32)  # <-

    told = []
    for execution in EXECUTIONS.values():
        with pytest.raises(SpecError) as caught:
            execution(twice_as_wide, A, C)
        told.append(str(caught.value))
    first = f"{marked(twice_as_wide)}: kernel twice_as_wide: 'c[…] = tile': the index selects (64, 128), the tile is (64, 64)"
    assert told[0] == told[1] == "\n".join([
        first, "    c[ds(0, 64), ds(0, 128)] = numpipe.zeros((64, 64), np.float32)  # <-", "    ^^^^^^^^^^^^^^^^^^^^^^^^"])


# ---- where the source comes from ----------------------------------------------------------------------------------------
def test_a_lambda_is_no_kernel() -> None:
    with pytest.raises(SpecError, match=r"test_errors_source.py:\d+: a kernel must be a `def`"):
        numpipe.kernel(lambda a, c: None)


@pytest.mark.parametrize("thing, what", [(3, "3, a int"), (math.sin, "builtin_function"), (functools.partial(print), "a partial")])
def test_only_functions_are_kernels(thing: Any, what: str) -> None:
    with pytest.raises(SpecError, match="@numpipe.kernel decorates a Python function, got .*") as caught:
        numpipe.kernel(thing)
    assert what in str(caught.value)


def test_a_decorator_below_the_kernels_is_refused() -> None:
    """It would silently be left out: kernels are made from their source."""
    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args)

        return wrapper

    @numpipe.kernel
    @logged
    def wrapped(a, c):
        x = 1

    with pytest.raises(CompileError, match="kernel wrapped: a decorator below @numpipe.kernel .* next to the 'def'"):
        wrapped.simulate(A, C)
