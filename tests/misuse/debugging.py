"""Misused debug_print, device_assert and assert, and assertions that fail."""

from __future__ import annotations

import numpy as np

from numpipe import SimulationError, SpecError
from tests.kernels.refusals import A, B, C, Cases

refused = Cases()
refused(
    "a_format_of_a_run_time_value",
    """
    numpipe.debug_print(a.shape[0])
    #                   ^^^^^^^^^^
""",
    "debug_print: the format must be a compile-time string, got a.shape[0]; fix: pass values for "
    'its fields, debug_print("k={}", k)',
    fix={"a.shape[0]": '"k={}", a.shape[0]'},
)
refused(
    "a_value_missing",
    """
    numpipe.debug_print("{} {}", 3)
    #                   ^^^^^^^
""",
    "debug_print: the format has 2 fields, but 1 values are given",
    fix={", 3)": ", 3, 4)"},
)
refused(
    "a_value_too_many",
    """
    numpipe.debug_print("done", 3)
    #                   ^^^^^^
""",
    "debug_print: the format has 0 fields, but 1 values are given",
    fix={'"done"': '"done {}"'},
)
refused(
    "a_field_with_a_name",
    """
    numpipe.debug_print("{k}", 3)
    #                   ^^^^^
""",
    "debug_print: field 1 {k}: fields are filled in order, without names and numbers: write {}",
    fix={"{k}": "{}"},
)
refused(
    "a_conversion",
    """
    numpipe.debug_print("{} {!r}", 3, 4)
    #                   ^^^^^^^^^
""",
    "debug_print: field 2 {!r} would be printed differently on the GPU and simulated: a field is "
    "{} or {:[<>][+ ][0][width][.precision][d x X f e E g G]}",
    fix={"{!r}": "{}"},
)
refused(
    "a_centred_field",
    """
    numpipe.debug_print("{:^5}", 3)
    #                   ^^^^^^^
""",
    "debug_print: field 1 {:^5} would be printed differently on the GPU and simulated: a field "
    "is {} or {:[<>][+ ][0][width][.precision][d x X f e E g G]}",
    fix={"{:^5}": "{:<5}"},
)
refused(
    "a_precision_without_a_type",
    """
    numpipe.debug_print("{:.3}", 0.5)
    #                   ^^^^^^^
""",
    "debug_print: field 1 {:.3}: a precision requires f, e or g: {:.3f}",
    fix={"{:.3}": "{:.3f}"},
)
refused(
    "a_brace_that_nothing_closes",
    """
    numpipe.debug_print("{")
    #                   ^^^
""",
    "debug_print: "
    "'{' is not a valid format: Single '{' encountered in format string "
    "(write a brace as {{ or }})",
    fix={'"{"': '"{{"'},
)
two_lines = refused(
    "two_lines",
    r"""
    numpipe.debug_print("a\nb")
    #                   ^^^^^^
""",
    "debug_print: 'a\\nb' has a control character: each call prints one line, and the newline is "
    "added automatically",
    fix={"a\\nb": "a b"},
)
refused(
    "a_float_as_an_int",
    """
def a_float_as_an_int(a, b, c, s):
    numpipe.debug_print("{:d}", s)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "debug_print: field 1 {:d} prints an int, got a float: use {}, {:f}, {:e} or {:g}",
    kind=SpecError,
    args=(A, B, C, np.float32(1)),
    fix={"{:d}": "{:f}"},
)
refused(
    "a_tile",
    """
    numpipe.debug_print("{}", acc)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "debug_print: value 1 is a register tile, and only bool, integer and float scalars are "
    "printed: to look at tiles and arrays, simulate the kernel and stop in it with "
    "breakpoint(), where tile.value and array.array are NumPy arrays",
    kind=SpecError,
)
refused(
    "an_array",
    """
    numpipe.debug_print("{} {}", 1, a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "debug_print: value 2 is an array, and only bool, integer and float scalars are printed: "
        "to look at tiles and arrays, simulate the kernel and stop in it with breakpoint(), "
        "where tile.value and array.array are NumPy arrays"
    ),
    compiled=(
        "debug_print: value 2 is array 'a', and only bool, integer and float scalars are "
        "printed: to look at tiles and arrays, simulate the kernel and stop in it with "
        "breakpoint(), where tile.value and array.array are NumPy arrays"
    ),
    kind=SpecError,
)
refused(
    "too_many_values",
    """
    numpipe.debug_print("{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}",
    #                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
                        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
                        16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29)
""",
    "debug_print: 29 values in one line: printf on the GPU takes at most 28 in addition to the "
    "line's prefix",
)

# device_assert and assert
refused(
    "a_device_assert_that_fails",
    """
    for (k,), (tile,) in pipe(a):
        numpipe.device_assert(k < 1, "one step")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "'numpipe.device_assert(k < 1, 'one step')' failed in compute warpgroup 0 of CTA (0, 0, "
        "0): one step"
    ),
    kind=SimulationError,
)
refused(
    "an_assert_that_fails",
    """
    assert a.shape[0] == 3, "rows"
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated="'assert a.shape[0] == 3' failed in the memory role of CTA (0, 0, 0): rows",
    kind=SimulationError,
)
refused(
    "an_assert_with_an_f_string",
    """
    assert a.shape[0] == 3, f"{a.shape[0]} rows"
    #                       ^^^^^^^^^^^^^^^^^^^^
""",
    "the message of an assertion on run-time values must be a constant string, got "
    "f'{a.shape[0]} rows'; fix: print values with numpipe.debug_print",
    fix={'f"{a.shape[0]} rows"': '"rows"', "== 3": "> 3"},
)
refused(
    "an_assert_on_a_tile",
    """
    assert acc
  # ^^^^^^^^^^
""",
    "an assertion tests a bool, integer or float scalar, got a register tile",
    kind=SpecError,
)
