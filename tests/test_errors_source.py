"""Source that cannot be a kernel: refused at the user's line in both executions, in a few words; never Numba's own text."""
# ruff: noqa: F401, F821, F841, UP (kernels that are wrong on purpose)

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
from refusals import EXECUTIONS, A, B, C, Case, Cases, marked

import numpipe
from numpipe import BlockSpec, CompileError, SimulationError, SpecError, ds

refused = Cases()


@pytest.fixture(autouse=True)
def _each_execution_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


# ---- statements and expressions without a meaning on the GPU -----------------------------------------------------------
@refused("'try' catches nothing on the GPU", "'if'")
def with_try(a, b, c):
    try:  # <-
        x = 1
    except ValueError:
        x = 2


@refused("'with' needs objects that enter and leave")
def with_with(a, b, c):
    with open("x"):  # <-
        pass


@refused("'raise' does nothing on the GPU", "check arguments before the call")
def with_raise(a, b, c):
    if a.shape[0] > 64:
        raise ValueError("too many rows")  # <-


@refused("'assert ROWS % 48 == 0' failed: rows come in blocks of 48")
def with_a_failing_assert(a, b, c):
    assert ROWS % 48 == 0, "rows come in blocks of 48"  # <-


@refused("'yield' makes a generator", "loop with 'for'")
def with_yield(a, b, c):
    yield 1  # <-


@refused("makes a generator")
def with_a_generator(a, b, c):
    x = sum(i for i in range(3))  # <-


@refused("a list has no fixed length on the GPU: use a tuple")
def with_a_list(a, b, c):
    x = [1, 2]  # <-


@refused("a comprehension has no fixed length on the GPU: use a tuple")
def with_a_comprehension(a, b, c):
    x = [i for i in range(3)]  # <-


@refused("a dictionary has no fixed length on the GPU: use a tuple")
def with_a_dictionary(a, b, c):
    x = {1: 2}  # <-


@refused("a set has no fixed length on the GPU: use a tuple")
def with_a_set(a, b, c):
    x = {1, 2}  # <-


@refused("'*' needs a length known only at run time")
def with_star_unpacking(a, b, c):
    x, *y = (1, 2, 3)  # <-


@refused("an f-string is made at run time")
def with_an_f_string(a, b, c):
    x = f"{a.shape[0]}"  # <-


@refused("':=' cannot be compiled: assign on a line of its own")
def with_a_walrus(a, b, c):
    if (n := a.shape[0]) > 3:  # <-
        x = n


@refused("'import' belongs to the top of the module")
def with_import(a, b, c):
    import math  # <-


@refused("'class' cannot be compiled: define it outside the kernel")
def with_a_class(a, b, c):
    class Point:  # <-
        pass


@refused("'del' cannot be compiled")
def with_del(a, b, c):
    x = 1
    del x  # <-


@refused("'global' cannot be compiled")
def with_global(a, b, c):
    global ROWS  # <-


@refused("a kernel returns nothing: store results through its output references")
def with_a_result(a, b, c):
    return 3  # <-


# ---- names -----------------------------------------------------------------------------------------------------------
ROWS = 64


@refused("name 'nowhere' is not defined")
def an_undefined_name(a, b, c):
    x = nowhere + 1  # <-


@refused("'np' (module) has no attribute 'nothing'")
def an_unknown_function_of_a_module(a, b, c):
    x = np.nothing(3)  # <-


@refused("'a' is a parameter of the kernel and cannot be re-bound: use another name")
def a_parameter_re_bound(a, b, c):
    a = 3  # <-


@refused("ROWS // 0: ZeroDivisionError")
def a_constant_that_fails(a, b, c):
    x = ROWS // 0  # <-


@refused("'x' is born in the pipeline loop of line", "bind it before the loop")
def a_name_born_in_a_loop(a, b, c):
    for (k,), (tile,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        x = k  # <-
    y = x


# ---- leaving a pipeline loop --------------------------------------------------------------------------------------------
@refused("'break' leaves the pipeline loop of line", "run all steps, or make the grid smaller")
def break_in_a_pipeline(a, b, c):
    for (k,), (tile,) in numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        if k == 1:
            break  # <-


@refused("'return' leaves the pipeline loop of line", "the memory role would still load")
def return_in_a_pipeline(a, b, c):
    for (k,), (tile,) in numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        for i in range(3):
            return  # <-


@refused("a pipeline loop has no 'else'")
def else_on_a_pipeline(a, b, c):
    for (k,), (tile,) in numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        pass
    else:
        x = 1  # <-


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


# ---- nested functions ----------------------------------------------------------------------------------------------------
@refused("'n' is re-bound after 'rows' of line", "captures are by value", "use another name")
def a_capture_re_bound(a, b, c):
    n = a.shape[0]

    def rows():
        return n

    n = 3  # <-
    x = rows()


@refused("nested function 'down' calls itself: recursion cannot be compiled")
def recursion(a, b, c):
    def down(n):  # <-
        return down(n - 1)

    x = down(3)


@refused("'nonlocal' cannot be compiled: captures are by value; return the value instead")
def with_nonlocal(a, b, c):
    n = 0

    def count():
        nonlocal n  # <-
        n = n + 1

    count()


@refused("nested function 'f': decorators are not supported in a kernel")
def a_decorated_nested_function(a, b, c):
    @functools.cache  # <-
    def f():
        return 1

    x = f()


@refused("nested function 'f': plain positional parameters only")
def a_default_of_a_nested_function(a, b, c):
    def f(x=1):  # <-
        return x

    x = f()


@refused("plain positional parameters only")
def a_default_of_a_lambda(a, b, c):
    f = lambda x, y=3: x + y  # <-


# ---- what only one execution can say --------------------------------------------------------------------------------------
@numpipe.kernel(num_compute_wgs=1)
def an_unknown_attribute(a, b, c):
    x = a.nothing  # <-


refused.also(an_unknown_attribute, "AttributeError: 'GmemRef' object has no attribute 'nothing'", executions=("simulated",))
refused.also(an_unknown_attribute, "cannot be compiled: Unknown attribute 'nothing' of type array 'a'", executions=("compiled",))


@numpipe.kernel(num_compute_wgs=1)
def a_tile_plus_a_string(a, b, c):
    x = numpipe.zeros((64, 64), np.float32) + "a"  # <-


refused.also(a_tile_plus_a_string, "could not convert string to float: 'a'", executions=("simulated",))
refused.also(a_tile_plus_a_string, "add(tile((64, 64), float32), a): not for arguments of these types", executions=("compiled",))


@numpipe.kernel(num_compute_wgs=1)
def a_wrong_call_of_a_nested_function(a, b, c):
    def f(x, y):
        return x

    z = f(3)  # <-


refused.also(a_wrong_call_of_a_nested_function, "missing 1 required positional argument: 'y'", executions=("simulated",))
refused.also(a_wrong_call_of_a_nested_function, "missing a required argument: 'y'", executions=("compiled",))


@refused("cannot be compiled: Cannot unify pipeline and pipeline", executions=("compiled",))
def a_pipeline_chosen_at_run_time(a, b, c):
    if a.shape[0] > 3:
        pipe = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    else:
        pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for (k,), (tile,) in pipe(a):  # <-
        pass


@refused("int32", "wrap silently on the GPU", kind=SimulationError, executions=("simulated",))
def an_integer_that_overflows(a, b, c):
    x = a.shape[0]
    for i in range(5):
        x = x * x  # <-


@refused("ZeroDivisionError", kind=SimulationError, executions=("simulated",))
def a_division_by_a_run_time_zero(a, b, c):
    x = numpipe.cdiv(a.shape[0], a.shape[0] - 128)  # <-


@refused.tests
def test_it_is_refused_at_its_line(case: Case, execution: str) -> None:
    case.check(execution)


# ---- the boundary -------------------------------------------------------------------------------------------------------
def test_a_simulated_call_also_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the simulator cannot tell is found all the same, unless the environment says not to look."""
    a_pipeline_chosen_at_run_time.simulate(A, B, C)
    monkeypatch.delenv("NUMPIPE_COMPILE_CHECK")
    with pytest.raises(CompileError, match="Cannot unify pipeline and pipeline"):
        a_pipeline_chosen_at_run_time.simulate(A, B, C)


def test_numbas_own_text_is_kept_out_of_the_traceback() -> None:
    with pytest.raises(CompileError) as caught:
        an_unknown_attribute.compiled(A, B, C)
    assert caught.value.__suppress_context__ and "one_lane" in str(caught.value.__context__)


def test_an_error_in_the_simulator_keeps_pythons_traceback() -> None:
    with pytest.raises(CompileError) as caught:
        an_unknown_attribute.simulate(A, B, C)
    assert isinstance(caught.value.__cause__, AttributeError)


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
def test_a_function_without_source_is_refused() -> None:
    namespace: dict[str, Any] = {"np": np}
    exec("def ghost(a, c):\n    x = 1\n", namespace)
    kernel = numpipe.kernel(namespace["ghost"])
    for execution in EXECUTIONS.values():
        with pytest.raises(CompileError, match=r"kernel ghost: its source is not available .*define it in a file or a notebook"):
            execution(kernel, A, C)


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
