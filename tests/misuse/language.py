"""Source that cannot be a kernel, wrong calls, and operations that its values do not have."""
# ruff: noqa: F401, F821, F841, RUF059, UP (kernels that are wrong on purpose)

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import numpipe
from numpipe import BlockSpec, SimulationError, SpecError, ds
from tests.kernels.refusals import Cases

ROWS = 64


def plain(x: Any) -> Any:
    return x


refused = Cases()


# ---- statements and expressions without a meaning on the GPU -----------------------------------------------------------
@refused("'try' catches nothing on the GPU, which has no exceptions: test for the condition with 'if'",
         mend={"try:": "if a.shape[0] > 0:", "except ValueError:": "else:"})
def with_try(a, b, c):
    try:
  # ^^^^
        x = 1
    except ValueError:
        x = 2


@refused("'with' needs objects that enter and leave, which the GPU has not: call what it stands for")
def with_with(a, b, c):
    with open("x"):
  # ^^^^^^^^^^^^^^^
        pass


@refused("'return' leaves the region without ending it: put it behind the 'with'",
         mend={"        if a.shape[0] > 64:\n            return": "        x = 1\n    if a.shape[0] > 64:\n        return"})
def with_a_region_that_is_left(a, b, c):
    with numpipe.region("left"):
        if a.shape[0] > 64:
            return
          # ^^^^^^


@refused("'break' leaves the region without ending it: put it behind the 'with'")
def with_a_region_that_a_loop_leaves(a, b, c):
    for k in range(4):
        with numpipe.region("left"):
            for i in range(4):
                break
            if k > 2:
                break
              # ^^^^^


@refused("region: name must be a compile-time string, got a.shape[0]", mend={"a.shape[0]": '"rows"'})
def with_a_region_of_a_number(a, b, c):
    with numpipe.region(a.shape[0]):
        #               ^^^^^^^^^^
        pass


@refused("a region stands alone: with numpipe.region(\"name\"):", mend={', numpipe.region("b")': ""})
def with_two_regions_at_once(a, b, c):
    with numpipe.region("a"), numpipe.region("b"):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass


@refused("'raise' does nothing on the GPU, which has no exceptions: check arguments before the call, or under an 'if' on "
         "compile-time constants", mend={"a.shape[0] > 64": "ROWS > 64"})
def with_raise(a, b, c):
    if a.shape[0] > 64:
        raise ValueError("too many rows")
      # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("'assert ROWS % 48 == 0' failed: rows come in blocks of 48")
def with_a_failing_assert(a, b, c):
    assert ROWS % 48 == 0, "rows come in blocks of 48"
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("'yield' makes a generator, and the GPU has none: loop with 'for'")
def with_yield(a, b, c):
    yield 1
  # ^^^^^^^


@refused("'for' in parentheses makes a generator, and the GPU has none: loop with 'for'")
def with_a_generator(a, b, c):
    x = sum(i for i in range(3))
    #      ^^^^^^^^^^^^^^^^^^^^^


@refused("a list has no fixed length on the GPU: use a tuple", mend={"[1, 2]": "(1, 2)"})
def with_a_list(a, b, c):
    x = [1, 2]
    #   ^^^^^^


@refused("a comprehension has no fixed length on the GPU: use a tuple")
def with_a_comprehension(a, b, c):
    x = [i for i in range(3)]
    #   ^^^^^^^^^^^^^^^^^^^^^


@refused("a dictionary has no fixed length on the GPU: use a tuple", mend={"{1: 2}": "(1, 2)"})
def with_a_dictionary(a, b, c):
    x = {1: 2}
    #   ^^^^^^


@refused("a set has no fixed length on the GPU: use a tuple", mend={"{1, 2}": "(1, 2)"})
def with_a_set(a, b, c):
    x = {1, 2}
    #   ^^^^^^


@refused("'*' needs a length known only at run time: write the elements out", mend={"x, *y": "x, y, z"})
def with_star_unpacking(a, b, c):
    x, *y = (1, 2, 3)
    #  ^^


@refused("an f-string is made at run time, and the GPU has no strings: use a constant", mend={'f"{a.shape[0]}"': '"rows"'})
def with_an_f_string(a, b, c):
    x = f"{a.shape[0]}"
    #   ^^^^^^^^^^^^^^^


@refused("':=' cannot be compiled: assign on a line of its own",
         mend={"    if (n := a.shape[0]) > 3:": "    n = a.shape[0]\n    if n > 3:"})
def with_a_walrus(a, b, c):
    if (n := a.shape[0]) > 3:
    #   ^^^^^^^^^^^^^^^
        x = n


@refused("'import' belongs to the top of the module: a kernel uses the names it finds there", mend={"import math": "x = np.pi"})
def with_import(a, b, c):
    import math
  # ^^^^^^^^^^^


@refused("'class' cannot be compiled: define it outside the kernel")
def with_a_class(a, b, c):
    class Point:
  # ^^^^^^^^^^^^
        pass


@refused("'del' cannot be compiled: a name simply goes out of use", mend={"    del x\n": ""})
def with_del(a, b, c):
    x = 1
    del x
  # ^^^^^


@refused("'global' cannot be compiled: captures are by value; return the value instead")
def with_global(a, b, c):
    global ROWS
  # ^^^^^^^^^^^


@refused("a kernel returns nothing: store results through its output references",
         mend={"return 3": "c[ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), 3, np.float32)"})
def with_a_result(a, b, c):
    return 3
  # ^^^^^^^^


@refused("'match' cannot be compiled: use 'if'",
         mend={"match a.shape[0]:": "if a.shape[0] == 1:", "        case 1:\n            pass": "        pass"})
def with_match(a, b, c):
    match a.shape[0]:
  # ^^^^^^^^^^^^^^^^^
        case 1:
            pass


# ---- names ---------------------------------------------------------------------------------------------------------------
@refused("name 'nowhere' is not defined")
def an_undefined_name(a, b, c):
    x = nowhere + 1
    #   ^^^^^^^


@refused("'np' (module) has no attribute 'nothing'")
def an_unknown_function_of_a_module(a, b, c):
    x = np.nothing(3)
    #   ^^^^^^^^^^


@refused("'a' is a parameter of the kernel and cannot be re-bound: use another name", mend={"a = 3": "n = 3"})
def a_parameter_re_bound(a, b, c):
    a = 3
  # ^


@refused("ROWS // 0: ZeroDivisionError: integer division or modulo by zero")
def a_constant_that_fails(a, b, c):
    x = ROWS // 0
    #   ^^^^^^^^^


@refused("'x' is born in the pipeline loop of line {line-1} and used after it: with no steps it would have no value; bind it "
         "before the loop", mend={"    for (k,)": "    x = 0\n    for (k,)"})
def a_name_born_in_a_loop(a, b, c):
    for (k,), (tile,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        x = k
      # ^
    y = x


@refused("'tile' belongs to a step of the pipeline loop of line {line-2} and is used after it, where its slot is filled again: "
         "take what is needed of it in the loop", mend={"        pass\n    c[": "        c["})
def a_tile_read_behind_its_loop(a, b, c):
    for (k,), (tile,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        pass
    c[:64, :64] = tile[...].astype(np.float32)
    #             ^^^^


# ---- leaving a pipeline loop --------------------------------------------------------------------------------------------
@refused("'break' leaves the pipeline loop of line {line-2}: the memory role would still load the remaining steps; run all "
         "steps, or make the grid smaller",
         mend={"grid=(2,)": "grid=(1,)", "        if k == 1:\n            break": "        pass"})
def break_in_a_pipeline(a, b, c):
    for (k,), (tile,) in numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        if k == 1:
            break
          # ^^^^^


@refused("'return' leaves the pipeline loop of line {line-2}: the memory role would still load the remaining steps; run all "
         "steps, or make the grid smaller")
def return_in_a_pipeline(a, b, c):
    for (k,), (tile,) in numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        for i in range(3):
            return
          # ^^^^^^


@refused("a pipeline loop has no 'else'")
def else_on_a_pipeline(a, b, c):
    for (k,), (tile,) in numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        pass
    else:
        x = 1
      # ^^^^^


# ---- nested functions ----------------------------------------------------------------------------------------------------
@refused("'n' is re-bound after 'rows' of line {line-3} captured it: captures are by value in a kernel; use another name",
         mend={"n = 3": "m = 3"})
def a_capture_re_bound(a, b, c):
    n = a.shape[0]

    def rows():
        return n

    n = 3
  # ^
    x = rows()


@refused("nested function 'down' calls itself: recursion cannot be compiled")
def recursion(a, b, c):
    def down(n):
  # ^^^^^^^^^^^^
        return down(n - 1)

    x = down(3)


@refused("'nonlocal' cannot be compiled: captures are by value; return the value instead",
         mend={"nonlocal n": "pass", "n = n + 1": "return n + 1", "\n    count()": "\n    m = count()"})
def with_nonlocal(a, b, c):
    n = 0

    def count():
        nonlocal n
      # ^^^^^^^^^^
        n = n + 1

    count()


@refused("nested function 'f': decorators are not supported in a kernel")
def a_decorated_nested_function(a, b, c):
    @functools.cache
   # ^^^^^^^^^^^^^^^
    def f():
        return 1

    x = f()


@refused("nested function 'f': its parameters have no defaults: it captures by value what it uses of the kernel, or use "
         "@numpipe.function")
def a_default_of_a_nested_function(a, b, c):
    def f(x=1):
  # ^^^^^^^^^^^
        return x

    x = f()


@refused("a lambda: its parameters have no defaults: it captures by value what it uses of the kernel, or use @numpipe.function")
def a_default_of_a_lambda(a, b, c):
    f = lambda x, y=3: x + y
    #   ^^^^^^^^^^^^^^^^^^^^


# ---- calls -----------------------------------------------------------------------------------------------------------
@refused("ds(start, size): size must be a compile-time constant, not a run-time int32: pass a literal, a constant of the "
         "module or a Static field", kind=SpecError, mend={"a.shape[0]": "64"})
def a_slice_of_run_time_size(a, b, c):
    x = ds(0, a.shape[0])
    #   ^^^^^^^^^^^^^^^^^


@refused("a slice of a tile or array has compile-time bounds and no step; for a run-time start write ds(start, size)",
         mend={"c[0:n": "c[ds(n - 128, 64)"})
def a_slice_with_run_time_bounds(a, b, c):
    n = a.shape[0]
    c[0:n, 0:64] = numpipe.zeros((64, 64), np.float32)
    # ^^^


@refused("ds(start, size, stop=None): it has no argument 'sizes'", mend={"sizes=": "size="})
def a_wrong_keyword(a, b, c):
    x = ds(0, sizes=64)
    #   ^^^^^^^^^^^^^^^


@refused("ds(start, size, stop=None): argument 'size' missing", mend={"ds(0)": "ds(0, 64)"})
def a_missing_argument(a, b, c):
    x = ds(0)
    #   ^^^^^


@refused("ds(start, size, stop=None): 4 positional arguments given, it takes 3", mend={"ds(0, 64, 1, 2)": "ds(0, 64)"})
def too_many_arguments(a, b, c):
    x = ds(0, 64, 1, 2)
    #   ^^^^^^^^^^^^^^^


@refused("pipeline(*, grid, in_specs=(), out_specs=(), max_concurrent_steps=None, delay_release=None, "
         "steps_of=None, manual_ready_barriers=False, manual_consumed_barriers=False): it has no argument 'slots'",
         mend={"slots=2": "max_concurrent_steps=2"})
def a_wrong_option_of_a_pipeline(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), slots=2, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("ds: no * or ** in a kernel's calls: write the arguments out", mend={"ds(*(0, 64))": "ds(0, 64)"})
def arguments_with_a_star(a, b, c):
    x = ds(*(0, 64))
    #   ^^^^^^^^^^^^


@refused("unknown axis 'z': the grid's axes are named 'x', and the warpgroup axis is 'wg'", grid_names=("x",), mend={'"z"': '"wg"'})
def an_unknown_axis(a, b, c):
    x = numpipe.axis_index("z")
    #   ^^^^^^^^^^^^^^^^^^^^^^^


@refused("unknown axis 'z': the grid's axes are not named (grid_names=), and the warpgroup axis is 'wg'",
         mended_options={"grid": (1,), "grid_names": ("z",)})
def an_unknown_axis_in_an_index_map(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(
        BlockSpec((64, 64), lambda k: (numpipe.axis_size("z"), k)),))
        #                              ^^^^^^^^^^^^^^^^^^^^^^


@refused("'plain' is a plain Python function: a kernel calls functions that are nested in it or decorated with "
         "@numpipe.function; put @numpipe.function above 'def plain'")
def a_plain_function(a, b, c):
    x = plain(3)
    #   ^^^^^^^^


@refused("'a_plain_function' is a kernel: a kernel is called from the host, not from a kernel")
def a_kernel_in_a_kernel(a, b, c):
    a_plain_function(a, b, c)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^


# ---- values --------------------------------------------------------------------------------------------------------------
@refused(simulated="AttributeError: 'array' object has no attribute 'nothing'",
         compiled="`a.nothing` cannot be compiled: array 'a' has no attribute 'nothing'", num_compute_wgs=1)
def an_unknown_attribute(a, b, c):
    x = a.nothing
    #   ^^^^^^^^^


@refused(simulated="TypeError: unsupported operand type(s) for +: 'tile' and 'str'",
         compiled="`numpipe.zeros((64, 64), np.float32) + \"a\"` cannot be compiled: '+' is not defined for tile (64, 64) "
                  "float32 and a", num_compute_wgs=1)
def a_tile_plus_a_string(a, b, c):
    x = numpipe.zeros((64, 64), np.float32) + "a"
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("f(x, y): argument 'y' missing", mend={"f(3)": "f(3, 4)"})
def a_wrong_call_of_a_nested_function(a, b, c):
    def f(x, y):
        return x

    z = f(3)
    #   ^^^^


@refused(compiled="`pipe(a)` cannot be compiled: 'pipe' is not of one type here (pipeline and pipeline): bind it in one place, "
                  "or to one type in each")
def a_pipeline_chosen_at_run_time(a, b, c):
    if a.shape[0] > 3:
        pipe = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    else:
        pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for (k,), (tile,) in pipe(a):
    #                    ^^^^^^^
        pass


@refused(simulated="268435456 * 268435456 = 72057594037927936 overflows int32, which wraps silently on the GPU",
         kind=SimulationError)
def an_integer_that_overflows(a, b, c):
    x = a.shape[0]
    for i in range(5):
        x = x * x
        #   ^^^^^


@refused(simulated="ZeroDivisionError: cdiv(128, 0): the divisor must be positive", kind=SimulationError)
def a_division_by_a_run_time_zero(a, b, c):
    x = numpipe.cdiv(a.shape[0], a.shape[0] - 128)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="ValueError: not enough values to unpack (expected 3, got 2)",
         compiled="`m, n, k` cannot be compiled: wrong tuple length: expected 3, got 2")
def more_dimensions_than_there_are(a, b, c):
    m, n, k = a.shape
  # ^^^^^^^


@refused(simulated="ValueError: too many values to unpack (expected 2)",
         compiled="`x, y` cannot be compiled: wrong tuple length: expected 2, got 3")
def a_tuple_too_long(a, b, c):
    x, y = 1, 2, a.shape[0]
  # ^^^^


@refused("a.shape[5]: 'a' has 2 dimensions", mend={"5": "1"})
def a_dimension_that_is_not_there(a, b, c):
    x = a.shape[5]
    #   ^^^^^^^^^^


@refused(simulated="TypeError: 'int32' object is not callable",
         compiled="`n(3)` cannot be compiled: int32 is not a function")
def a_number_called(a, b, c):
    n = a.shape[0]
    x = n(3)
    #   ^^^^


@refused(simulated="IndexError: invalid index to scalar variable",
         compiled="`n[3]` cannot be compiled: '[]' is not defined for int32 and 3")
def a_number_indexed(a, b, c):
    n = a.shape[0]
    x = n[3]
    #   ^^^^


@refused(compiled="`a.name` cannot be compiled: 'name' of array 'a' cannot be set")
def an_attribute_set(a, b, c):
    a.name = 3
  # ^^^^^^


@refused(simulated="TypeError: unsupported operand type(s) for +: 'int' and 'array'",
         compiled="`n += a` cannot be compiled: '+' is not defined for int32 and array 'a'")
def an_array_added_in_place(a, b, c):
    n = a.shape[0]
    n += a
  # ^^^^^^


@refused("f(x, y): it has no argument 'z'", mend={"z=4": "y=4"})
def a_wrong_keyword_of_a_nested_function(a, b, c):
    def f(x, y):
        return x

    f(3, z=4)
  # ^^^^^^^^^


@refused(simulated="AttributeError: 'int32' object has no attribute 'width'",
         compiled="`n.width` cannot be compiled: int32 has no attribute 'width'")
def an_attribute_of_a_number(a, b, c):
    n = a.shape[0]
    while n.width > 0:
    #     ^^^^^^^
        n = n - 1


@refused("ds(start, size): size must be a compile-time constant, not a run-time int32: pass a literal, a constant of the "
         "module or a Static field", kind=SpecError, mend={"a.shape[0]": "64"})
def a_mistake_two_functions_down(a, b, c):
    def rows(n):
        return ds(n, a.shape[0])
        #      ^^^^^^^^^^^^^^^^^

    def more(n):
        return rows(n + 1)  # called

    x = more(3)  # called


@refused("ds(start, size): size must be a compile-time constant, not a run-time int32: pass a literal, a constant of the "
         "module or a Static field", kind=SpecError)
def a_mistake_in_an_index_map(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(
        BlockSpec((64, 64), lambda k: (ds(k, a.shape[0]), k)),))
        #                              ^^^^^^^^^^^^^^^^^
    for (k,), (x,) in pipe(a):  # called
        pass


@refused(simulated="AttributeError: 'array' object has no attribute 'nothing'",
         compiled="`a.nothing` cannot be compiled: array 'a' has no attribute 'nothing'")
def letters_of_other_alphabets(a, b, c):
    π, größe = 3, ("é", a.nothing)
    #                   ^^^^^^^^^


@refused(compiled="`previous` cannot be compiled: 'previous' may have no value here yet: give it one before the loop",
         mend={"    for i in range(3)": "    previous = numpipe.zeros((64, 64), np.float32)\n    for i in range(2)"})
def a_value_of_the_step_before(a, b, c):
    for i in range(3):
        if i > 0:
            c[ds(0, 64), ds(0, 64)] = previous
            #                         ^^^^^^^^
        previous = numpipe.zeros((64, 64), np.float32)


STEP = "; a step's indices and its tiles are tuples, one of each too: for (k,), (tile,) in pipe(a)"


@refused(simulated="TypeError: tuple indices must be integers or slices, not ellipsis" + STEP,
         compiled="`x[...]` cannot be compiled: '[]' is not defined for (shared-memory tile (64, 64) float16,) and ..." + STEP,
         mend={"for k, x in": "for (k,), (x,) in", "grid=(2,)": "grid=(1,)"})
def a_tile_that_is_still_in_its_tuple(a, b, c):
    for k, x in numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        c[ds(0, 64), ds(0, 64)] = x[...].astype(np.float32)
        #                         ^^^^^^


@refused(compiled="`k == 0` cannot be compiled: '==' is not defined for (int32,) and 0" + STEP,
         mend={"for k, (x,)": "for (k,), (x,)"})
def an_index_that_is_still_in_its_tuple(a, b, c):
    for k, (x,) in numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        if k == 0:
        #  ^^^^^^
            c[ds(0, 64), ds(0, 64)] = x[...].astype(np.float32)
