"""Register tiles that do not fit: types, shapes, layouts, indices, masks.

====================================  ==============================================================
mistake                               kernels that show it, here and in ``tiles`` (t), ``pipelines``
                                      (p), ``layouts`` (l), ``reductions`` (r)
====================================  ==============================================================
a shape that no tile has              a_vector_of_12, a_block_of_32_rows, a_row_of_512; t: zeros
types that do not match               tiles_of_two_types, an_operand_of_another_type,
                                      an_accumulator_of_integers; t: a_product
a layout                              l: a_sum_of_rows_and_columns, a_column_beside_a_tile, the
                                      coalesced ones; two for one variable:
                                      a_vector_that_is_a_row_and_a_column and what follows it
M, N or K that wgmma lacks            t: a_product_of_32_rows, a_product_over_24, and N = 512
static offsets off the atom           t: a_view_between_two_groups_of_rows,
                                      a_view_between_two_panels
registers: needed, and available      more_than_a_lane_has,
                                      more_than_a_lane_of_seven_warpgroups_has; p:
                                      an_accumulator_beyond_the_registers
shared memory: needed, and available  p: slots_beyond_shared_memory, staging_beyond_shared_memory
an operand redefined in flight        an_operand_in_flight, an_operand_of_each_step
a mask or vote that steers loads      a_mask_that_steers, a_block_where_a_tile_says; r:
                                      a_mask_that_says_which_block, a_vote_that_steers_loads,
                                      a_vote_that_a_loop_asks, a_number_that_a_vote_decides
====================================  ==============================================================
"""

from __future__ import annotations

import numpy as np

from numpipe import SerializedWgmma, SpecError
from numpipe.arch.dtypes import TILES, listed
from numpipe.arch.products import WGMMA
from numpipe.core.inert import REASON
from tests.kernels.refusals import A, B, C, Cases

BIAS = np.ones(64, np.float32)
WIDE = np.ones((64, 64))
PARTS = (
    "tile[…]: an index of a register tile has a slice for each dimension, x[:, 0:32], "
    "x[64:128, :], v[ds(8, 16)]; or it adds a dimension to a vector, v[:, None], v[None, :]. "
    "Single elements can be read from arrays and, in per-lane code, from tiles in shared "
    "memory"
)
MASK = "'c[…] = tile': the tile is a mask; fix: store {}, or np.where(mask, x, y)"
LOADED = "; tile[...] loads a shared-memory tile to registers"
refused = Cases()
refused(
    "tiles_of_two_types",
    """
    x = numpipe.zeros((64, 64), np.float32) + numpipe.iota((64, 64))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'+' of tiles of float32 and int32: operands must have one type; fix: convert one of them, "
    "such as x.astype(np.float32)",
    kind=SpecError,
    fix={"iota((64, 64))": "iota((64, 64)).astype(np.float32)"},
)
refused(
    "an_int32_tile_and_a_fraction",
    """
    x = numpipe.iota(64) * 0.5
    #   ^^^^^^^^^^^^^^^^^^^^^^
""",
    "'*' of an int32 tile and a float; fix: convert the tile, .astype(np.float32)",
    kind=SpecError,
    fix={"iota(64)": "iota(64).astype(np.float32)"},
)
refused(
    "a_quotient_of_integers",
    """
    x = numpipe.iota(64) / 2
    #   ^^^^^^^^^^^^^^^^^^^^
""",
    "'/' takes tiles of float32, got int32; fix: use .astype(np.float32) first",
    kind=SpecError,
    fix={"iota(64)": "iota(64).astype(np.float32)"},
)
refused(
    "arithmetic_on_a_mask",
    """
    x = (numpipe.iota(64) < 3) + 1
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'+' takes tiles of float32 or int32, got a mask; fix: use .astype(np.float32) first",
    kind=SpecError,
    fix={"< 3)": "< 3).astype(np.float32)"},
)
refused(
    "a_function_of_an_integer",
    """
    x = np.exp(a.shape[0])
    #   ^^^^^^^^^^^^^^^^^^
""",
    "np.exp(…) takes register tiles and numbers, got int32; fix: convert it with float(x)",
    kind=SpecError,
    fix={"a.shape[0]": "float(a.shape[0])"},
)
refused(
    "a_function_of_an_integer_tile",
    """
    x = np.exp(numpipe.iota(64))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'np.exp' takes tiles of float32, got int32; fix: use .astype(np.float32) first",
    kind=SpecError,
    fix={"iota(64)": "iota(64).astype(np.float32)"},
)
refused(
    "a_function_of_too_little",
    """
    x = np.maximum(numpipe.iota(64))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "np.maximum takes 2 arguments in a kernel, (a, b), got np.maximum(numpipe.iota(64))",
    fix={"iota(64))": "iota(64), 0)"},
)
refused(
    "a_choice_by_numbers",
    """
    x = np.where(numpipe.iota(64), 1, 2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "np.where(mask, x, y) takes a mask, such as x < y, and two tiles or numbers, got (tile, "
        "int, int)"
    ),
    compiled=(
        "np.where(mask, x, y) takes a mask, such as x < y, and two tiles or numbers, got (tile "
        "(64,) int32 (either layout), int32, int32)"
    ),
    kind=SpecError,
    fix={"iota(64), ": "iota(64) < 3, "},
)
refused(
    "a_choice_between_two_types",
    """
    x = np.where(numpipe.iota(64) < 3, numpipe.full(64, 1.0, np.float32), numpipe.iota(64))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "np.where of tiles of float32 and int32: x and y must have one type; fix: convert one of "
    "them, such as x.astype(np.float32)",
    kind=SpecError,
    fix={"iota(64))": "iota(64).astype(np.float32))"},
)
refused(
    "a_mask_that_steers",
    """
    if numpipe.iota(64) < a.shape[0]:
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
""",
    f"a mask, of whose elements np.any(mask) or np.all(mask) make one bool, {REASON}",
    fix={"numpipe.iota(64) < a.shape[0]": "np.any(numpipe.iota(64) < a.shape[0])"},
)
refused(
    "an_axis_too_far",
    """
    x = numpipe.iota((64, 64), 2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "iota: axis must be a compile-time int from -2 to 1 for shape (64, 64), got 2",
    kind=SpecError,
    fix={"64), 2)": "64), 1)"},
)
refused(
    "a_float16_tile_and_a_float32",
    """
    x = b[ds(0, 64), ds(0, 64)] * c[0, 0]
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'*' of a float16 tile and float32, which would be rounded; fix: use .astype(np.float32) on "
    "the tile, or full(tile.shape, number, tile.dtype)",
    kind=SpecError,
    fix={"64)] *": "64)].astype(np.float32) *"},
)
refused(
    "an_fma_of_float16",
    """
    x = b[ds(0, 64), ds(0, 64)]
    x = numpipe.fma(x, x, x)
    #   ^^^^^^^^^^^^^^^^^^^^
""",
    "'fma' takes tiles of float32, got float16; fix: use .astype(np.float32) first",
    kind=SpecError,
    fix={"64)]": "64)].astype(np.float32)"},
)
refused(
    "a_vector_of_another_size",
    """
    x = numpipe.zeros((64, 64), np.float32) + numpipe.full(40, 1.0, np.float32)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "tiles of shapes (64, 64) and (40,) cannot be broadcast together",
    kind=SpecError,
)
refused(
    "a_slice_of_a_vector",
    """
    x = numpipe.full(64, 1.0, np.float32)[8:16]
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    PARTS,
    kind=SpecError,
    fix={"[8:16]": "[ds(8, 8)]"},
)
refused(
    "a_part_past_a_tile",
    """
    x = numpipe.zeros((64, 64), np.float32)[:, 64:128]
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "tile[…]: elements 64 … 127 of its columns are not in a tile (64, 64); fix: select elements "
    "in 0 … 63",
    kind=SpecError,
    fix={"64:128": "32:64"},
)
refused(
    "a_part_between_lanes",
    """
    x = numpipe.zeros((64, 64), np.float32)[:, 4:20]
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "tile[…]: elements 4 … 19 of its columns: the start and the size of a part of a tile float32 "
    "(64, 64) must be multiples of 8, because lanes keep their elements; fix: write 0:24, or load "
    "a part of a tile in shared memory",
    kind=SpecError,
    fix={"4:20": "0:24"},
)
refused(
    "a_part_at_a_run_time_start",
    """
    x = numpipe.zeros((64, 64), np.float32)[:, ds(a.shape[0], 8)]
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "tile[…]: a part of its columns starts at a run-time value, but instructions name registers "
    "at compile time; fix: use a constant, or store the tile to shared memory and load a part of "
    "that",
    kind=SpecError,
    fix={"ds(a.shape[0], 8)": "ds(8, 8)"},
)
refused(
    "a_slice_to_the_end_of_an_array",
    """
    x = a[0:64, 64:]
    #   ^^^^^^^^^^^^
""",
    "'64:': a slice of an array, or of a tile in shared memory, must have two compile-time bounds "
    "that are not negative; fix: write 0:64, or ds(start, size) for a run-time start",
    kind=SpecError,
    fix={"64:]": "64:128]"},
)
refused(
    "a_shape_of_other_lanes",
    """
    x = numpipe.zeros((64, 64), np.float32).reshape(32, -1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "reshape of a tile (64, 64) to (32, 128): other lanes would have its elements; only (n,), (1, "
    "n) and (n, 1) can be reshaped to each other; fix: go through shared memory, tile[...] = x, "
    "and load a part of it",
    kind=SpecError,
)
refused(
    "a_shape_of_other_size",
    """
    x = numpipe.full(64, 1.0, np.float32).reshape(3, -1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "reshape: a tile (64,) has 64 elements, which do not fit (3, -1)",
    kind=SpecError,
    fix={"(3, -1)": "(1, -1)"},
)
refused(
    "a_part_of_a_row_as_a_column",
    """
    x = numpipe.full((1, 64), 1.0, np.float32).reshape(64, 1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "reshape of a tile (1, 64) to (64, 1): a row and a column are in different lanes; fix: "
    'numpipe.layout_cast(x.reshape(-1), "column").reshape(64, 1)',
    kind=SpecError,
    fix={
        ".reshape(64, 1)": "",
        "numpipe.full((1, 64), 1.0, np.float32)": (
            'numpipe.layout_cast(numpipe.full((1, 64), 1.0, np.float32).reshape(-1), "column")'
            ".reshape(64, 1)"
        ),
    },
)
refused(
    "a_part_of_a_register_tile",
    """
    x = numpipe.zeros((64, 64), np.float32)[0, 0]
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    PARTS,
    kind=SpecError,
)
refused(
    "a_dimension_for_a_tile",
    """
    x = numpipe.zeros((64, 64), np.float32)[:, None]
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "tile[:, None]: a dimension can be added only to a vector, got a tile (64, 64)",
    kind=SpecError,
)
refused(
    "a_shape_of_fractions",
    """
    x = numpipe.full((64.0, 64), 1.0, np.float32)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated="full: a shape must be a tuple of ints up to 32768, got (64.0, 64)",
    compiled=(
        "full: shape must be a compile-time constant, not a run-time (float64, 64): pass a "
        "literal, a constant of the module or a Static field"
    ),
    kind=SpecError,
    fix={"64.0": "64"},
)
refused(
    "a_tile_of_texts",
    """
    x = numpipe.full((64, 64), "a", np.float32)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "full(shape, value, dtype): value must be a number",
    kind=SpecError,
    fix={'"a"': "1.0"},
)
refused(
    "a_tile_of_int16",
    """
    x = numpipe.zeros((64, 64), np.float32).astype(np.int16)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    f"astype: a tile's dtype must be {listed(TILES, 'or')}, got int16: convert an array before "
    "the call",
    kind=SpecError,
)
refused(
    "a_mask_and_an_integer",
    """
    x = (numpipe.iota(64) < 3) & 1
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'&' of a mask and an int literal: the other operand of a mask must be a mask or a bool",
    kind=SpecError,
    fix={"& 1": "& True"},
)
refused(
    "a_mask_that_is_stored",
    """
    c[ds(0, 64), ds(0, 64)] = numpipe.iota((64, 64)) < 3
  # ^^^^^^^^^^^^^^^^^^^^^^^
""",
    MASK.format("np.where(mask, 1.0, 0.0)"),
    kind=SpecError,
    fix={"numpipe.iota((64, 64)) < 3": "np.where(numpipe.iota((64, 64)) < 3, 1.0, 0.0)"},
)
refused(
    "a_mask_stored_to_integers",
    """
    x = numpipe.iota((64, 64))
    c[ds(0, 64), ds(0, 64)] = x < 3
  # ^^^^^^^^^^^^^^^^^^^^^^^
""",
    MASK.format("mask.astype(np.int32)"),
    kind=SpecError,
    args=(A, B, C.astype(np.int32)),
    fix={"x < 3": "(x < 3).astype(np.int32)"},
)
refused(
    "a_mask_stored_to_halves",
    """
    x = numpipe.iota((64, 64))
    c[ds(0, 64), ds(0, 64)] = x < 3
  # ^^^^^^^^^^^^^^^^^^^^^^^
""",
    MASK.format("np.where(mask, 1.0, 0.0).astype(c.dtype)"),
    kind=SpecError,
    args=(A, B, C.astype(np.float16)),
    fix={"x < 3": "np.where(x < 3, 1.0, 0.0).astype(c.dtype)"},
)
refused(
    "a_maximum_of_a_tile_in_shared_memory",
    """
    for (k,), (y,) in pipe(b):
        x = np.maximum(y, numpipe.zeros((64, 64), np.float32))
    #       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated="np.maximum(…) takes register tiles and numbers, got shared-memory tile and tile"
    + LOADED,
    compiled="np.maximum(…) takes register tiles and numbers, got shared-memory tile (64, 64) "
    "float16 and tile (64, 64) "
    "float32" + LOADED,
    kind=SpecError,
    fix={"(y, ": "(y[...].astype(np.float32), "},
)

# blocks of arrays
refused(
    "a_whole_dimension_of_an_array",
    """
    x = b[ds(0, 64), :]
    #   ^^^^^^^^^^^^^^^
""",
    "b[…]: ':' has no compile-time size here; fix: write ds(start, size)",
    kind=SpecError,
    fix={":]": "ds(0, 64)]"},
)
refused(
    "a_block_of_float64",
    """
    x = b[ds(0, 64), ds(0, 64)]
    #   ^^^^^^^^^^^^^^^^^^^^^^^
""",
    f"b[…]: a tile's dtype must be {listed(TILES, 'or')}, got float64: convert an array before "
    "the call",
    kind=SpecError,
    args=(A, WIDE, C),
)
refused(
    "a_block_of_a_vector",
    """
    x = b[ds(0, 64), ds(0, 64)]
    #   ^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "array 'b' has 1 dimension: expected b[…] with ds(start, size) along one or two of them "
        "and an integer along each of the others, got (ds(0, 64), ds(0, 64))"
    ),
    compiled=(
        "array 'b' has 1 dimension: expected b[…] with ds(start, size) along one or two of them "
        "and an integer along each of the others, got (ds(64), ds(64))"
    ),
    kind=SpecError,
    args=(A, BIAS, C),
)
refused(
    "arithmetic_on_a_block_of_float16",
    """
    x = numpipe.zeros((64, 64), np.float32) + b[ds(0, 64), ds(0, 64)]
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'+' of tiles of float32 and float16: operands must have one type; fix: convert one of them, "
    "such as x.astype(np.float32)",
    kind=SpecError,
    fix={"64)]": "64)].astype(np.float32)"},
)
refused(
    "a_block_where_a_tile_says",
    """
    x = b[ds(numpipe.iota(64), 64), ds(0, 64)]
    #     ^^^^^^^^^^^^^^^^^^^^^^^^
""",
    f"a register tile {REASON}",
)
refused(
    "a_block_where_an_array_says",
    """
    x = b[ds(b, 64), ds(0, 64)]
    #     ^^^^^^^^^
""",
    simulated=(
        "ds(start, size): start must be an integer, got array; fix: int(x) truncates a float, // "
        "divides integers"
    ),
    compiled=(
        "ds(start, size): start must be an integer, got array 'b'; fix: int(x) truncates a float, "
        "// divides integers"
    ),
    kind=SpecError,
    fix={"ds(b,": "ds(0,"},
)

# products with A from registers
refused(
    "an_accumulator_as_an_operand",
    """
    for (k,), (y,) in pipe(b):
        p = numpipe.wgmma(None, numpipe.zeros((64, 64), np.float32), y)
    #       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma: a is a float32 register tile, but an A operand in registers must have 16 bits; fix: "
    "write a.astype(b.dtype), with b of float16 or bfloat16",
    kind=SpecError,
    fix={"np.float32), y": "np.float32).astype(y.dtype), y"},
)
refused(
    "a_vector_as_an_operand",
    """
    for (k,), (y,) in pipe(b):
        sums = numpipe.zeros((64, 64), np.float32).sum(axis=1)
        p = numpipe.wgmma(None, sums.astype(np.float16), y)
    #       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma: a (64,) lies along rows (column layout), but the A operand must be a 16-bit tile (M, "
    "K) in accumulator layout; fix: broadcast it to a tile first",
    kind=SpecError,
    fix={".sum(axis=1)": ""},
)
refused(
    "an_operand_of_another_type",
    """
    for (k,), (y,) in pipe(b):
        p = numpipe.wgmma(None, numpipe.zeros((64, 64), np.float32).astype("bfloat16"), y)
    #       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    f"wgmma: a and b must be of one kind, {'; '.join(WGMMA.kinds)}; got bfloat16 and float16",
    kind=SpecError,
    fix={'"bfloat16"': "y.dtype"},
)
refused(
    "an_accumulator_of_integers",
    """
    for (k,), (y,) in pipe(b):
        acc = numpipe.wgmma(numpipe.iota((64, 64)), y, y.T)
    #         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma: the accumulator must be float32, got int32",
    kind=SpecError,
    fix={"iota((64, 64))": "iota((64, 64)).astype(np.float32)"},
)
refused(
    "a_function_of_an_accumulator_in_flight",
    """
    for (k,), (x,) in pipe(b):
        s = np.exp(numpipe.wgmma(None, x, x.T))
    #       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    compiled=(
        "'np.exp': the accumulator is in flight, because a wgmma may still be writing it; fix: "
        "write acc = numpipe.wgmma_wait(acc, 0) first, or wgmma_wait(acc), which leaves newer "
        "products in flight"
    ),
    fix={"numpipe.wgmma(None, x, x.T)": "numpipe.wgmma_wait(numpipe.wgmma(None, x, x.T), 0)"},
)
refused(
    "a_store_of_an_accumulator_in_flight",
    """
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
        acc = numpipe.wgmma(None, x, x.T)
        c[ds(0, 64), ds(0, 64)] = acc
    #   ^^^^^^^^^^^^^^^^^^^^^^^
""",
    compiled=(
        "'c[…] = tile': the accumulator is in flight, because a wgmma may still be writing it; "
        "fix: write acc = numpipe.wgmma_wait(acc, 0) first, or wgmma_wait(acc), which leaves "
        "newer products in flight"
    ),
    fix={"numpipe.wgmma(None, x, x.T)": "numpipe.wgmma_wait(numpipe.wgmma(None, x, x.T), 0)"},
)
refused(
    "an_accumulator_in_flight_as_an_operand",
    """
    for (k,), (x,) in pipe(a):
        acc = numpipe.wgmma(None, x, x.T)
        acc = numpipe.wgmma(None, acc, x)
    #         ^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    compiled=(
        "wgmma(acc, a, b), a: the accumulator is in flight, because a wgmma may still be writing "
        "it; fix: write acc = numpipe.wgmma_wait(acc, 0) first, or wgmma_wait(acc), which leaves "
        "newer products in flight"
    ),
)
refused(
    "an_operand_in_flight",
    """
    acc = numpipe.zeros((64, 64), np.float32)
    p = numpipe.full((64, 64), 0.0, np.float32).astype(a.dtype)
    for (k,), (x,) in pipe(a):
        s = numpipe.wgmma(None, x, x.T)
        acc = numpipe.wgmma(acc, p, x)
        s = numpipe.wgmma_wait(s)
        p = np.exp(s).astype(a.dtype)
    #       ^^^^^^^^^^^^^^^^^^^^^^^^^
        acc = numpipe.wgmma_wait(acc)
    c[ds(0, 64), ds(0, 64)] = acc
""",
    compiled=(
        "'p' gets its next value in the registers that a product in flight reads: ptxas would "
        "serialize wgmma, operand-redefined (C7513): each product would be waited for before the "
        "next one begins, at about half of the speed; fix: write acc = numpipe.wgmma_wait(acc) "
        "before; the values that the operand is made from may be computed while the product "
        "runs; CompilerParams(allow_serialized_wgmma=True) takes the kernel as it is\nin flight "
        "since {path}:{line-2}"
    ),
    kind=SerializedWgmma,
)
refused(
    "an_operand_of_each_step",
    """
    pipe = numpipe.pipeline(grid=(2,), max_concurrent_steps=2, delay_release=1, in_specs=(spec,))
    for (k,), (x,) in pipe(a):
        acc = numpipe.wgmma(acc, x[ds(0, 64), :], x)
    #                            ^^^^^^^^^^^^^^^
    c[ds(0, 64), ds(0, 64)] = acc
""",
    compiled=(
        "wgmma(acc, a, b), a: a step writes the next value of this operand to the registers that "
        "a product of an earlier step may still read; fix: write acc = numpipe.wgmma_wait(acc, "
        "0) after the wgmma, use delay_release=0, or leave a in shared memory, a_tile.at[…]\nin "
        "flight since {path}:{line}"
    ),
    kind=SpecError,
    fix={"delay_release=1": "delay_release=0"},
)
refused(
    "more_than_a_lane_has",
    """
    wide = numpipe.zeros((128, 192), np.float32)
    for (k,), (x, y) in numpipe.pipeline(grid=(1,), in_specs=(
            BlockSpec((128, 64), lambda k: (0, k)), BlockSpec((192, 64), lambda k: (0, k))))(a, a):
        wide = numpipe.wgmma(wide, x, y.T)
        s = numpipe.wgmma(None, x.at[ds(0, 64), :], x.T)
    #       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        s = numpipe.wgmma_wait(s)
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
""",
    compiled=(
        "register budget: products in flight hold 256 registers per lane, but only 224 are "
        "available (256 of a compute lane, less 32 that ptxas keeps): it would serialize wgmma, "
        "register-pressure (C7512); fix: use tiles of fewer columns, tiles of 64 rows, a smaller "
        "memory_registers than 40 or a wait before the next product is issued\n 192  wide: "
        "accumulator, float32 (128, 192), line {line-4}\n  64  s: accumulator, float32 (64, "
        "128), line {line}, read at {path}:{line+2}: `s = numpipe.wgmma_wait(s)`"
    ),
    kind=SpecError,
)
refused(
    "more_than_a_lane_of_seven_warpgroups_has",
    """
    spec = BlockSpec((256, 64), lambda k: (0, k))
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
        acc = numpipe.wgmma(None, x.at[ds(0, 64), :], x.T)
    #         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    compiled=(
        "register budget: products in flight hold 128 registers per lane, but only 32 are "
        "available (64 of a compute lane, less 32 that ptxas keeps): it would serialize wgmma, "
        "register-pressure (C7512); fix: use tiles of fewer columns, fewer compute warpgroups "
        "than num_compute_wgs=7, a smaller memory_registers than 40 or a wait before the next "
        "product is issued\n 128  acc: accumulator, float32 (64, 256), line {line}"
    ),
    kind=SpecError,
    num_compute_wgs=7,
)

# ---- fences after tiles
refused(
    "a_fence_behind_a_number",
    """
    numpipe.schedule_fence(after=np.float32(1.0))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "schedule_fence(after): after must be a register tile, got float32",
    kind=SpecError,
)
refused(
    "a_fence_behind_a_product_in_flight",
    """
    for _, (x, y) in numpipe.pipeline(grid=(1,), in_specs=(
            spec, spec))(a, b):
        s = numpipe.wgmma(None, x, y.T)
        numpipe.schedule_fence(after=s)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    compiled=(
        "schedule_fence(after): the accumulator is in flight, because a wgmma may still be "
        "writing it; fix: write acc = numpipe.wgmma_wait(acc, 0) first, or wgmma_wait(acc), which "
        "leaves newer products in flight"
    ),
)
