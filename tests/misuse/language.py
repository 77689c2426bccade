"""Source that cannot be a kernel, wrong calls, and operations that values do not support."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numpipe import SimulationError, SpecError
from tests.kernels.refusals import Cases

ROWS = 64


def plain(x: Any) -> Any:
    return x


STEP = "; a step's indices and its tiles are tuples, one of each too: for (k,), (tile,) in pipe(a)"
OUTSIDE = (
    "; fix: pass an array from outside the kernel as an argument, and a function of attention as "
    "score=(f, array)"
)
TABLE = np.ones((64, 64), np.float16)
refused = Cases(ROWS=ROWS, functools=functools, plain=plain, TABLE=TABLE)

# arrays from outside the kernel
refused(
    "a_product_with_an_array_from_outside",
    """
    c[ds(0, 64), ds(0, 64)] = a[ds(0, 64), ds(0, 64)] * TABLE
    #                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated="TypeError: operand 'tile' does not support ufuncs (__array_ufunc__=None)" + OUTSIDE,
    compiled="`a[ds(0, 64), ds(0, 64)] * TABLE` cannot be compiled: '*' is not defined for tile "
    "(64, 64) float16 and readonly array(float16, 2d, C)" + OUTSIDE,
    fix={"TABLE": "b[ds(0, 64), ds(0, 64)]"},
)
refused(
    "a_part_of_an_array_from_outside",
    """
    c[ds(0, 64), ds(0, 64)] = TABLE[ds(0, 64), ds(0, 64)]
    #                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated="IndexError: only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) "
    "and integer or boolean arrays are valid indices" + OUTSIDE,
    compiled="`TABLE[ds(0, 64), ds(0, 64)]` cannot be compiled: Unsupported array index type "
    "ds(64) in (ds(64), ds(64))" + OUTSIDE,
    fix={"TABLE": "b"},
)

# statements and expressions without a meaning on the GPU
refused(
    "with_try",
    """
    try:
  # ^^^^
        x = 1
    except ValueError:
        x = 2
""",
    "'try' catches nothing on the GPU, which has no exceptions: test for the condition with 'if'",
    fix={"try:": "if a.shape[0] > 0:", "except ValueError:": "else:"},
)
refused(
    "with_with",
    """
    with open("x"):
  # ^^^^^^^^^^^^^^^
        pass
""",
    "'with' needs context managers, which do not exist on the GPU; fix: write the calls themselves",
)
refused(
    "with_a_region_that_is_left",
    """
    with numpipe.region("left"):
        if a.shape[0] > 64:
            return
    #       ^^^^^^
""",
    "'return' leaves the region without ending it; fix: move it after the 'with'",
    fix={
        "        if a.shape[0] > 64:\n            return": (
            "        x = 1\n    if a.shape[0] > 64:\n        return"
        ),
    },
)
refused(
    "with_a_region_that_a_loop_leaves",
    """
    for k in range(4):
        with numpipe.region("left"):
            for i in range(4):
                break
            if k > 2:
                break
    #           ^^^^^
""",
    "'break' leaves the region without ending it; fix: move it after the 'with'",
)
refused(
    "with_a_region_of_a_number",
    """
    with numpipe.region(a.shape[0]):
    #                   ^^^^^^^^^^
        pass
""",
    "region: name must be a compile-time string, got a.shape[0]",
    fix={"a.shape[0]": '"rows"'},
)
refused(
    "with_two_regions_at_once",
    """
    with numpipe.region("a"), numpipe.region("b"):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    "a region must be the only item of its 'with'; fix: with numpipe.region(\"name\"):",
    fix={', numpipe.region("b")': ""},
)
refused(
    "with_raise",
    """
    if a.shape[0] > 64:
        raise ValueError("too many rows")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'raise' does nothing on the GPU, which has no exceptions: check arguments before the "
    "call, or under an 'if' on compile-time constants",
    fix={"a.shape[0] > 64": "ROWS > 64"},
)
refused(
    "with_a_failing_assert",
    """
    assert ROWS % 48 == 0, "rows come in blocks of 48"
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'assert ROWS % 48 == 0' failed: rows come in blocks of 48",
)
refused(
    "with_yield",
    """
    yield 1
  # ^^^^^^^
""",
    "'yield' makes a generator, and the GPU has none: loop with 'for'",
)
refused(
    "with_a_generator",
    """
    x = sum(i for i in range(3))
    #      ^^^^^^^^^^^^^^^^^^^^^
""",
    "'for' in parentheses makes a generator, and the GPU has none: loop with 'for'",
)
refused(
    "with_a_list",
    """
    x = [1, 2]
    #   ^^^^^^
""",
    "a list has no fixed length on the GPU: use a tuple",
    fix={"[1, 2]": "(1, 2)"},
)
refused(
    "with_a_comprehension",
    """
    x = [i for i in range(3)]
    #   ^^^^^^^^^^^^^^^^^^^^^
""",
    "a comprehension has no fixed length on the GPU: use a tuple",
)
refused(
    "with_a_dictionary",
    """
    x = {1: 2}
    #   ^^^^^^
""",
    "a dictionary has no fixed length on the GPU: use a tuple",
    fix={"{1: 2}": "(1, 2)"},
)
refused(
    "with_a_set",
    """
    x = {1, 2}
    #   ^^^^^^
""",
    "a set has no fixed length on the GPU: use a tuple",
    fix={"{1, 2}": "(1, 2)"},
)
refused(
    "with_star_unpacking",
    """
    x, *y = (1, 2, 3)
     # ^^
""",
    "'*' needs a length known only at run time: write the elements out",
    fix={"x, *y": "x, y, z"},
)
refused(
    "with_an_f_string",
    """
    x = f"{a.shape[0]}"
    #   ^^^^^^^^^^^^^^^
""",
    "an f-string is made at run time, and the GPU has no strings: use a constant",
    fix={'f"{a.shape[0]}"': '"rows"'},
)
refused(
    "with_a_walrus",
    """
    if (n := a.shape[0]) > 3:
    #   ^^^^^^^^^^^^^^^
        x = n
""",
    "':=' cannot be compiled: assign on a line of its own",
    fix={"    if (n := a.shape[0]) > 3:": "    n = a.shape[0]\n    if n > 3:"},
)
refused(
    "with_import",
    """
    import math
  # ^^^^^^^^^^^
""",
    "'import' belongs to the top of the module: a kernel uses the names it finds there",
    fix={"import math": "x = np.pi"},
)
refused(
    "with_a_class",
    """
    class Point:
  # ^^^^^^^^^^^^
        pass
""",
    "'class' cannot be compiled: define it outside the kernel",
)
refused(
    "with_del",
    """
    x = 1
    del x
  # ^^^^^
""",
    "'del' cannot be compiled: a name simply goes out of use",
    fix={"    del x\n": ""},
)
refused(
    "with_global",
    """
    global ROWS
  # ^^^^^^^^^^^
""",
    "'global' cannot be compiled: captures are by value; return the value instead",
)
refused(
    "with_a_result",
    """
    return 3
  # ^^^^^^^^
""",
    "a kernel must not return a value; fix: store results through its output references",
    fix={"return 3": "c[ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), 3, np.float32)"},
)
refused(
    "with_match",
    """
    match a.shape[0]:
  # ^^^^^^^^^^^^^^^^^
        case 1:
            pass
""",
    "'match' cannot be compiled: use 'if'",
    fix={
        "match a.shape[0]:": "if a.shape[0] == 1:",
        "        case 1:\n            pass": "        pass",
    },
)

# names
refused(
    "an_undefined_name",
    """
    x = nowhere + 1
    #   ^^^^^^^
""",
    "name 'nowhere' is not defined",
)
refused(
    "an_unknown_function_of_a_module",
    """
    x = np.nothing(3)
    #   ^^^^^^^^^^
""",
    "'np' (module) has no attribute 'nothing'",
)
refused(
    "a_parameter_re_bound",
    """
    a = 3
  # ^
""",
    "'a' is a parameter of the kernel and cannot be reassigned; fix: use another name",
    fix={"a = 3": "n = 3"},
)
refused(
    "a_constant_that_fails",
    """
    x = ROWS // 0
    #   ^^^^^^^^^
""",
    "ROWS // 0: ZeroDivisionError: integer division or modulo by zero",
)
refused(
    "a_name_born_in_a_loop",
    """
    for (k,), (tile,) in pipe(a):
        x = k
    #   ^
    y = x
""",
    "'x' is first assigned in the pipeline loop at line {line-1} and used after it: if the "
    "loop has no steps, it has no value; fix: assign it before the loop",
    fix={"    for (k,)": "    x = 0\n    for (k,)"},
)
refused(
    "a_tile_read_behind_its_loop",
    """
    for (k,), (tile,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
        pass
    c[:64, :64] = tile[...].astype(np.float32)
    #             ^^^^
""",
    "'tile' belongs to a step of the pipeline loop at line {line-2} but is used after the "
    "loop, where its slot is filled again; fix: use it, or load it with tile[...], in "
    "the loop",
    fix={"        pass\n    c[": "        c["},
)

# leaving a pipeline loop
refused(
    "break_in_a_pipeline",
    """
    for (k,), (tile,) in pipe(a):
        if k == 1:
            break
    #       ^^^^^
""",
    "'break' leaves the pipeline loop at line {line-2}: the memory role would still load the "
    "remaining steps; fix: run all steps, or make the grid smaller",
    fix={"grid=(2,)": "grid=(1,)", "        if k == 1:\n            break": "        pass"},
)
refused(
    "return_in_a_pipeline",
    """
    for (k,), (tile,) in pipe(a):
        for i in range(3):
            return
    #       ^^^^^^
""",
    "'return' leaves the pipeline loop at line {line-2}: the memory role would still load the "
    "remaining steps; fix: run all steps, or make the grid smaller",
)
refused(
    "else_on_a_pipeline",
    """
    for (k,), (tile,) in pipe(a):
        pass
    else:
        x = 1
    #   ^^^^^
""",
    "a pipeline loop has no 'else'",
)

# nested functions
refused(
    "a_capture_re_bound",
    """
    n = a.shape[0]

    def rows():
        return n

    n = 3
  # ^
    x = rows()
""",
    "'n' is reassigned after 'rows' at line {line-3} captured it, but captures are by value in "
    "a kernel; fix: use another name",
    fix={"n = 3": "m = 3"},
)
refused(
    "recursion",
    """
    def down(n):
  # ^^^^^^^^^^^^
        return down(n - 1)

    x = down(3)
""",
    "nested function 'down' calls itself: recursion cannot be compiled",
)
refused(
    "with_nonlocal",
    """
    n = 0

    def count():
        nonlocal n
    #   ^^^^^^^^^^
        n = n + 1

    count()
""",
    "'nonlocal' cannot be compiled: captures are by value; return the value instead",
    fix={"nonlocal n": "pass", "n = n + 1": "return n + 1", "\n    count()": "\n    m = count()"},
)
refused(
    "a_decorated_nested_function",
    """
def a_decorated_nested_function(a, b, c):
    @functools.cache
   # ^^^^^^^^^^^^^^^
    def f():
        return 1

    x = f()
""",
    "nested function 'f': decorators are not supported in a kernel; fix: remove the decorator",
)
refused(
    "a_default_of_a_nested_function",
    """
    def f(x=1):
  # ^^^^^^^^^^^
        return x

    x = f()
""",
    "nested function 'f': default arguments are not supported; fix: use the kernel's names "
    "directly, which are captured by value, or use @numpipe.function",
)
refused(
    "a_default_of_a_lambda",
    """
    f = lambda x, y=3: x + y
    #   ^^^^^^^^^^^^^^^^^^^^
""",
    "a lambda: default arguments are not supported; fix: use the kernel's names directly, which "
    "are captured by value, or use @numpipe.function",
)

# calls
refused(
    "a_slice_of_run_time_size",
    """
    x = ds(0, a.shape[0])
    #   ^^^^^^^^^^^^^^^^^
""",
    "ds(start, size): size must be a compile-time constant, not a run-time int32: pass a "
    "literal, a constant of the module or a Static field",
    kind=SpecError,
    fix={"a.shape[0]": "64"},
)
refused(
    "a_slice_with_run_time_bounds",
    """
    n = a.shape[0]
    c[0:n, 0:64] = numpipe.zeros((64, 64), np.float32)
    # ^^^
""",
    "a slice of a tile or array must have compile-time bounds and no step; fix: for a run-time "
    "start, write ds(start, size)",
    fix={"c[0:n": "c[ds(n - 128, 64)"},
)
refused(
    "a_wrong_keyword",
    """
    x = ds(0, sizes=64)
    #   ^^^^^^^^^^^^^^^
""",
    "ds(start, size, stop=None, most=None, least=0): it has no argument 'sizes'",
    fix={"sizes=": "size="},
)
refused(
    "a_missing_argument",
    """
    x = ds(0)
    #   ^^^^^
""",
    "ds(start, size, stop=None, most=None, least=0): argument 'size' missing",
    fix={"ds(0)": "ds(0, 64)"},
)
refused(
    "too_many_arguments",
    """
    x = ds(0, 64, 1, 2, 3, 4)
    #   ^^^^^^^^^^^^^^^^^^^^^
""",
    "ds(start, size, stop=None, most=None, least=0): 6 positional arguments given, it takes 5",
    fix={"ds(0, 64, 1, 2, 3, 4)": "ds(0, 64)"},
)
refused(
    "a_wrong_option_of_a_pipeline",
    """
    pipe = numpipe.pipeline(grid=(1,), slots=2, in_specs=(spec,))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "pipeline(*, grid, in_specs=(), out_specs=(), max_concurrent_steps=None, "
    "delay_release=None, steps_of=None, manual_produced_barriers=False, "
    "manual_consumed_barriers=False): it has no argument 'slots'",
    fix={"slots=2": "max_concurrent_steps=2"},
)
refused(
    "arguments_with_a_star",
    """
    x = ds(*(0, 64))
    #   ^^^^^^^^^^^^
""",
    "ds: * and ** are not supported in a kernel's calls; fix: write the arguments out",
    fix={"ds(*(0, 64))": "ds(0, 64)"},
)
refused(
    "an_unknown_axis",
    """
    x = numpipe.axis_index("z")
    #   ^^^^^^^^^^^^^^^^^^^^^^^
""",
    "unknown axis 'z': the grid's axes are named 'x', and the warpgroup axis is 'wg'",
    grid_names=("x",),
    fix={'"z"': '"wg"'},
)
refused(
    "an_unknown_axis_in_an_index_map",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(
        BlockSpec((64, 64), lambda k: (numpipe.axis_size("z"), k)),))
    #                                  ^^^^^^^^^^^^^^^^^^^^^^
""",
    "unknown axis 'z': the grid's axes are not named (grid_names=), and the warpgroup axis is 'wg'",
    fixed_options={"grid": (1,), "grid_names": ("z",)},
)
refused(
    "a_plain_function",
    """
    x = plain(3)
    #   ^^^^^^^^
""",
    "'plain' is a plain Python function: a kernel calls functions that are nested in it or "
    "decorated with @numpipe.function; put @numpipe.function above 'def plain'",
)
refused(
    "a_kernel_in_a_kernel",
    """
    a_plain_function(a, b, c)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'a_plain_function' is a kernel, which can be called from the host but not from a kernel",
)

# values
an_unknown_attribute = refused(
    "an_unknown_attribute",
    """
    x = a.nothing
    #   ^^^^^^^^^
""",
    simulated="AttributeError: 'array' object has no attribute 'nothing'",
    compiled="`a.nothing` cannot be compiled: array 'a' has no attribute 'nothing'",
)
refused(
    "a_tile_plus_a_string",
    """
    x = numpipe.zeros((64, 64), np.float32) + "a"
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated="TypeError: unsupported operand type(s) for +: 'tile' and 'str'",
    compiled=(
        "`numpipe.zeros((64, 64), np.float32) + \"a\"` cannot be compiled: '+' is not defined "
        "for tile (64, 64) float32 and a"
    ),
)
refused(
    "a_wrong_call_of_a_nested_function",
    """
    def f(x, y):
        return x

    z = f(3)
    #   ^^^^
""",
    "f(x, y): argument 'y' missing",
    fix={"f(3)": "f(3, 4)"},
)
a_pipeline_chosen_at_run_time = refused(
    "a_pipeline_chosen_at_run_time",
    """
    if a.shape[0] > 3:
  # ^^^^^^^^^^^^^^^^^
        pipe = numpipe.pipeline(grid=(2,), in_specs=(spec,))
    else:
        pipe = numpipe.pipeline(grid=(1,), in_specs=(spec,))
    for (k,), (tile,) in pipe(a):
        pass
""",
    compiled=(
        "`if a.shape[0] > 3` cannot be compiled: 'pipe' has two types here (pipeline and "
        "pipeline); fix: assign it in one place, or the same type everywhere"
    ),
)
refused(
    "an_integer_that_overflows",
    """
    x = a.shape[0]
    for i in range(5):
        x = x * x
    #       ^^^^^
""",
    simulated=(
        "268435456 * 268435456 = 72057594037927936 overflows int32, which wraps silently on the GPU"
    ),
    kind=SimulationError,
)
refused(
    "a_division_by_a_run_time_zero",
    """
    x = numpipe.cdiv(a.shape[0], a.shape[0] - 128)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated="ZeroDivisionError: cdiv(128, 0): the divisor must be positive",
    kind=SimulationError,
)
refused(
    "more_dimensions_than_there_are",
    """
    m, n, k = a.shape
  # ^^^^^^^
""",
    simulated="ValueError: not enough values to unpack (expected 3, got 2)",
    compiled="`m, n, k` cannot be compiled: wrong tuple length: expected 3, got 2",
)
refused(
    "a_tuple_too_long",
    """
    x, y = 1, 2, a.shape[0]
  # ^^^^
""",
    simulated="ValueError: too many values to unpack (expected 2)",
    compiled="`x, y` cannot be compiled: wrong tuple length: expected 2, got 3",
)
refused(
    "a_dimension_that_is_not_there",
    """
    x = a.shape[5]
    #   ^^^^^^^^^^
""",
    "a.shape[5]: 'a' has 2 dimensions",
    fix={"5": "1"},
)
refused(
    "a_number_called",
    """
    n = a.shape[0]
    x = n(3)
    #   ^^^^
""",
    simulated="TypeError: 'int32' object is not callable",
    compiled="`n(3)` cannot be compiled: int32 is not a function",
)
refused(
    "a_number_indexed",
    """
    n = a.shape[0]
    x = n[3]
    #   ^^^^
""",
    "'n' is a number, and only arrays and tiles can be indexed; fix: pass an array as n, or "
    "use n without an index",
    fix={"n[3]": "n"},
)
refused(
    "an_attribute_set",
    """
    a.name = 3
  # ^^^^^^
""",
    compiled="`a.name` cannot be compiled: 'name' of array 'a' cannot be set",
)
refused(
    "an_array_added_in_place",
    """
    n = a.shape[0]
    n += a
  # ^^^^^^
""",
    simulated="TypeError: unsupported operand type(s) for +: 'int' and 'array'",
    compiled="`n += a` cannot be compiled: '+' is not defined for int32 and array 'a'",
)
refused(
    "a_wrong_keyword_of_a_nested_function",
    """
    def f(x, y):
        return x

    f(3, z=4)
  # ^^^^^^^^^
""",
    "f(x, y): it has no argument 'z'",
    fix={"z=4": "y=4"},
)
refused(
    "an_attribute_of_a_number",
    """
    n = a.shape[0]
    while n.width > 0:
    #     ^^^^^^^
        n = n - 1
""",
    simulated="AttributeError: 'int32' object has no attribute 'width'",
    compiled="`n.width` cannot be compiled: int32 has no attribute 'width'",
)
refused(
    "a_mistake_two_functions_down",
    """
    def rows(n):
        return ds(n, a.shape[0])
    #          ^^^^^^^^^^^^^^^^^

    def more(n):
        return rows(n + 1)  # called

    x = more(3)  # called
""",
    "ds(start, size): size must be a compile-time constant, not a run-time int32: pass a "
    "literal, a constant of the module or a Static field",
    kind=SpecError,
    fix={"a.shape[0]": "64"},
)
refused(
    "a_mistake_in_an_index_map",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(
        BlockSpec((64, 64), lambda k: (ds(k, a.shape[0]), k)),))
    #                                  ^^^^^^^^^^^^^^^^^
    for (k,), (x,) in pipe(a):  # called
        pass
""",
    "ds(start, size): size must be a compile-time constant, not a run-time int32: pass a "
    "literal, a constant of the module or a Static field",
    kind=SpecError,
)
refused(
    "letters_of_other_alphabets",
    """
    π, größe = 3, ("é", a.nothing)
    #                   ^^^^^^^^^
""",
    simulated="AttributeError: 'array' object has no attribute 'nothing'",
    compiled="`a.nothing` cannot be compiled: array 'a' has no attribute 'nothing'",
)
refused(
    "a_value_of_the_step_before",
    """
    for i in range(3):
        if i > 0:
            c[ds(0, 64), ds(0, 64)] = previous
    #                                 ^^^^^^^^
        previous = numpipe.zeros((64, 64), np.float32)
""",
    compiled=(
        "`previous` cannot be compiled: 'previous' may have no value here yet; fix: assign it "
        "before the loop"
    ),
    fix={
        "    for i in range(3)": (
            "    previous = numpipe.zeros((64, 64), np.float32)\n    for i in range(2)"
        ),
    },
)
refused(
    "a_tile_that_is_still_in_its_tuple",
    """
    for k, x in pipe(a):
        c[ds(0, 64), ds(0, 64)] = x[...].astype(np.float32)
    #                             ^^^^^^
""",
    simulated="TypeError: tuple indices must be integers or slices, not ellipsis" + STEP,
    compiled="`x[...]` cannot be compiled: '[]' is not defined for (shared-memory tile (64, 64) "
    "float16,) and ..." + STEP,
    fix={"for k, x in": "for (k,), (x,) in", "grid=(2,)": "grid=(1,)"},
)
refused(
    "an_index_that_is_still_in_its_tuple",
    """
    for k, (x,) in pipe(a):
        if k == 0:
    #      ^^^^^^
            c[ds(0, 64), ds(0, 64)] = x[...].astype(np.float32)
""",
    compiled="`k == 0` cannot be compiled: '==' is not defined for (int32,) and 0" + STEP,
    fix={"for k, (x,)": "for (k,), (x,)"},
)
