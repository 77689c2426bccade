"""debug_print, device_assert and assert misused, and assertions that fail."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import BlockSpec, SimulationError, SpecError
from tests.kernels.refusals import A, B, C, Cases

refused = Cases()


@refused('debug_print: the format is a compile-time string, got a.shape[0]: values go into its fields, debug_print("k={}", k)',
         mend={"a.shape[0]": '"k={}", a.shape[0]'})
def a_format_of_a_run_time_value(a, b, c):
    numpipe.debug_print(a.shape[0])
    #                   ^^^^^^^^^^


@refused("debug_print: the format has 2 fields, but 1 values are given", mend={", 3)": ", 3, 4)"})
def a_value_missing(a, b, c):
    numpipe.debug_print("{} {}", 3)
    #                   ^^^^^^^


@refused("debug_print: the format has 0 fields, but 1 values are given", mend={'"done"': '"done {}"'})
def a_value_too_many(a, b, c):
    numpipe.debug_print("done", 3)
    #                   ^^^^^^


@refused("debug_print: field 1 {k}: fields are filled in order, without names and numbers: write {}", mend={"{k}": "{}"})
def a_field_with_a_name(a, b, c):
    numpipe.debug_print("{k}", 3)
    #                   ^^^^^


@refused("debug_print: field 2 {!r} is not printed alike on the GPU and simulated: a field is {} or {:[<>][+ "
         "][0][width][.precision][d x X f e E g G]}", mend={"{!r}": "{}"})
def a_conversion(a, b, c):
    numpipe.debug_print("{} {!r}", 3, 4)
    #                   ^^^^^^^^^


@refused("debug_print: field 1 {:^5} is not printed alike on the GPU and simulated: a field is {} or {:[<>][+ "
         "][0][width][.precision][d x X f e E g G]}", mend={"{:^5}": "{:<5}"})
def a_centred_field(a, b, c):
    numpipe.debug_print("{:^5}", 3)
    #                   ^^^^^^^


@refused("debug_print: field 1 {:.3}: a precision needs f, e or g: {:.3f}", mend={"{:.3}": "{:.3f}"})
def a_precision_without_a_type(a, b, c):
    numpipe.debug_print("{:.3}", 0.5)
    #                   ^^^^^^^


@refused("debug_print: '{' is no format: Single '{' encountered in format string (a brace is written {{ or }})",
         mend={'"{"': '"{{"'})
def a_brace_that_nothing_closes(a, b, c):
    numpipe.debug_print("{")
    #                   ^^^


@refused("debug_print: 'a\\nb' has a control character: a call prints one line, which ends by itself", mend={"a\\nb": "a b"})
def two_lines(a, b, c):
    numpipe.debug_print("a\nb")
    #                   ^^^^^^


@refused("debug_print: field 1 {:d} prints an int, got a float: use {}, {:f}, {:e} or {:g}",
         kind=SpecError, args=(A, B, C, np.float32(1)), mend={"{:d}": "{:f}"})
def a_float_as_an_int(a, b, c, s):
    numpipe.debug_print("{:d}", s)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("debug_print: value 1 is a register tile, and only bool, integer and float scalars are printed: to look at tiles and "
         "arrays, simulate the kernel and stop in it with breakpoint(), where tile.value and array.array are NumPy arrays",
         kind=SpecError)
def a_tile(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    numpipe.debug_print("{}", acc)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="debug_print: value 2 is an array, and only bool, integer and float scalars are printed: to look at tiles "
                   "and arrays, simulate the kernel and stop in it with breakpoint(), where tile.value and array.array are "
                   "NumPy arrays",
         compiled="debug_print: value 2 is array 'a', and only bool, integer and float scalars are printed: to look at tiles "
                  "and arrays, simulate the kernel and stop in it with breakpoint(), where tile.value and array.array are "
                  "NumPy arrays", kind=SpecError)
def an_array(a, b, c):
    numpipe.debug_print("{} {}", 1, a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("debug_print: 29 values in a line: printf on the GPU takes at most 28 beside the line's prefix")
def too_many_values(a, b, c):
    numpipe.debug_print("{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
    #                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
                        13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29)


# ---- device_assert and assert ----------------------------------------------------------------------------------------------
@refused(simulated="'numpipe.device_assert(k < 1, 'one step')' failed in compute warpgroup 0 of CTA (0, 0, 0): one step",
         kind=SimulationError)
def a_device_assert_that_fails(a, b, c):
    for (k,), (tile,) in numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        numpipe.device_assert(k < 1, "one step")
      # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="'assert a.shape[0] == 3' failed in the memory role of CTA (0, 0, 0): rows", kind=SimulationError)
def an_assert_that_fails(a, b, c):
    assert a.shape[0] == 3, "rows"
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("the message of an assertion on run-time values is a constant string, got f'{a.shape[0]} rows': print values with "
         "numpipe.debug_print", mend={'f"{a.shape[0]} rows"': '"rows"', "== 3": "> 3"})
def an_assert_with_an_f_string(a, b, c):
    assert a.shape[0] == 3, f"{a.shape[0]} rows"
    #                       ^^^^^^^^^^^^^^^^^^^^


@refused("an assertion tests a bool, integer or float scalar, got a register tile", kind=SpecError)
def an_assert_on_a_tile(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    assert acc
  # ^^^^^^^^^^
