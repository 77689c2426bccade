"""Register tiles that do not fit: types, shapes, layouts, indices, masks.

====================================  ==========================================================================================
what is wrong                         kernels that show it, here and in ``misuse_tiles`` (t), ``misuse_pipelines`` (p)
====================================  ==========================================================================================
a shape that no tile has              a_vector_of_12, a_block_of_32_rows, a_row_of_512; t: zeros
types that do not meet                tiles_of_two_types, an_operand_of_another_type, an_accumulator_of_integers; t: a_product
a layout                              a_sum_of_rows_and_columns, a_column_beside_a_tile, the coalesced ones; two for one variable:
                                      a_vector_that_is_a_row_and_a_column and what follows it
M, N or K that wgmma has not          t: a_product_of_32_rows, a_product_over_24, and N = 512
static offsets off the atom           t: a_view_between_two_groups_of_rows, a_view_between_two_panels
registers: needed, and available      more_than_a_lane_has, more_than_a_lane_of_seven_warpgroups_has; p:
                                      an_accumulator_beyond_the_registers
shared memory: needed, and available  p: slots_beyond_shared_memory, staging_beyond_shared_memory
an operand redefined in flight        an_operand_in_flight
a mask or vote that steers loads      a_mask_that_steers, a_mask_that_says_which_block, a_block_where_a_tile_says,
                                      a_vote_that_steers_loads, a_vote_that_a_loop_asks, a_number_that_a_vote_decides
====================================  ==========================================================================================
"""
# ruff: noqa: F841 (kernels that are wrong on purpose)

from __future__ import annotations

import numpy as np
from refusals import A, B, C, Cases

import numpipe
from numpipe import BlockSpec, SerializedWgmma, SimulationError, SpecError, ds
from numpipe.inert import REASON

refused = Cases()
BIAS = np.ones(64, np.float32)
WIDE = np.ones((64, 64))


@refused("'+' of tiles of float32 and int32: convert one of them, e.g. x.astype(np.float32)", kind=SpecError)
def tiles_of_two_types(a, b, c):
    x = numpipe.zeros((64, 64), np.float32) + numpipe.iota((64, 64))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("'*' of an int32 tile and a float: use .astype(np.float32) first", kind=SpecError)
def an_int32_tile_and_a_fraction(a, b, c):
    x = numpipe.iota(64) * 0.5
    #   ^^^^^^^^^^^^^^^^^^^^^^


@refused("'/' takes tiles of float32, got int32: use .astype(np.float32) first", kind=SpecError)
def a_quotient_of_integers(a, b, c):
    x = numpipe.iota(64) / 2
    #   ^^^^^^^^^^^^^^^^^^^^


@refused("'+' takes tiles of float32 or int32, got a mask: use .astype(np.float32) first", kind=SpecError)
def arithmetic_on_a_mask(a, b, c):
    x = (numpipe.iota(64) < 3) + 1
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("np.exp(…) takes register tiles and numbers, got int32: convert it with float(x)", kind=SpecError)
def a_function_of_an_integer(a, b, c):
    x = np.exp(a.shape[0])
    #   ^^^^^^^^^^^^^^^^^^


@refused("'np.exp' takes tiles of float32, got int32: use .astype(np.float32) first", kind=SpecError)
def a_function_of_an_integer_tile(a, b, c):
    x = np.exp(numpipe.iota(64))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^


@refused("np.maximum takes 2 arguments in a kernel, (a, b), got np.maximum(numpipe.iota(64))")
def a_function_of_too_little(a, b, c):
    x = np.maximum(numpipe.iota(64))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="np.where(mask, x, y) takes a mask, as x < y gives it, and two tiles or numbers, got (tile, int, int)",
         compiled="np.where(mask, x, y) takes a mask, as x < y gives it, and two tiles or numbers, got (tile (64,) int32 "
                  "(either layout), int32, int32)", kind=SpecError)
def a_choice_by_numbers(a, b, c):
    x = np.where(numpipe.iota(64), 1, 2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("np.where of tiles of float32 and int32: convert one of them", kind=SpecError)
def a_choice_between_two_types(a, b, c):
    x = np.where(numpipe.iota(64) < 3, numpipe.full(64, 1.0, np.float32), numpipe.iota(64))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(f"a mask, of whose elements np.any(mask) or np.all(mask) make one bool, {REASON}")
def a_mask_that_steers(a, b, c):
    if numpipe.iota(64) < a.shape[0]:
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)


@refused("full: a vector has 8 x i elements, at most 256, to lie along the columns of a tile, or 64 x j along its rows, got 12",
         kind=SpecError)
def a_vector_of_12(a, b, c):
    x = numpipe.full(12, 1.0, np.float32)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("iota: axis must be a compile-time int from -2 to 1 for shape (64, 64), got 2", kind=SpecError)
def an_axis_too_far(a, b, c):
    x = numpipe.iota((64, 64), 2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("'*' of a float16 tile and float32, which it would round: use .astype(np.float32) on the tile, or full(tile.shape, "
         "number, tile.dtype)", kind=SpecError)
def a_float16_tile_and_a_float32(a, b, c):
    x = b[ds(0, 64), ds(0, 64)] * c[0, 0]
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("'fma' takes tiles of float32, got float16: use .astype(np.float32) first", kind=SpecError)
def an_fma_of_float16(a, b, c):
    x = b[ds(0, 64), ds(0, 64)]
    x = numpipe.fma(x, x, x)
    #   ^^^^^^^^^^^^^^^^^^^^


@refused("tiles of shapes (64, 64) and (40,) do not combine", kind=SpecError)
def a_vector_of_another_size(a, b, c):
    x = numpipe.zeros((64, 64), np.float32) + numpipe.full(40, 1.0, np.float32)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("v[:, None] needs a vector along rows (column layout), this one of 40 elements lies along columns (row layout): "
         "there, vectors have 64 x j elements", kind=SpecError)
def a_row_that_is_turned(a, b, c):
    x = numpipe.full(40, 1.0, np.float32)[:, None]
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("tile[…]: a register tile has no parts: v[:, None] and v[None, :] give a vector a dimension; take parts of a tile in "
         "shared memory, or of an array", kind=SpecError)
def a_part_of_a_register_tile(a, b, c):
    x = numpipe.zeros((64, 64), np.float32)[0, 0]
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("tile[:, None]: a dimension is added to a vector, got a tile (64, 64)", kind=SpecError)
def a_dimension_for_a_tile(a, b, c):
    x = numpipe.zeros((64, 64), np.float32)[:, None]
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("full: a tile (1, n) has 8 x i columns, at most 256, a tile (m, 1) 64 x j rows, got (1, 512)", kind=SpecError)
def a_row_of_512(a, b, c):
    x = numpipe.full((1, 512), 1.0, np.float32)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="full: a shape is a tuple of ints, got (64.0, 64)",
         compiled="full: shape must be a compile-time constant, not a run-time (float64, 64): pass a literal, a constant of the "
                  "module or a Static field", kind=SpecError)
def a_shape_of_fractions(a, b, c):
    x = numpipe.full((64.0, 64), 1.0, np.float32)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("full(shape, value, dtype): the value must be a number", kind=SpecError)
def a_tile_of_texts(a, b, c):
    x = numpipe.full((64, 64), "a", np.float32)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("astype: a tile's dtype is float32, float16, bfloat16 or int32, got int8: convert an array before the call",
         kind=SpecError)
def a_tile_of_int8(a, b, c):
    x = numpipe.zeros((64, 64), np.float32).astype(np.int8)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("'&' of a mask and an int literal: a mask combines with masks and bools", kind=SpecError)
def a_mask_and_an_integer(a, b, c):
    x = (numpipe.iota(64) < 3) & 1
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("'c[…] = tile': the tile is a mask: store mask.astype(np.int32), or what it chooses, np.where(mask, x, y)", kind=SpecError)
def a_mask_that_is_stored(a, b, c):
    c[ds(0, 64), ds(0, 64)] = numpipe.iota((64, 64)) < 3
  # ^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="np.maximum(…) takes register tiles and numbers, got shared-memory tile and tile",
         compiled="np.maximum(…) takes register tiles and numbers, got shared-memory tile (64, 64) float16 and tile (64, 64) "
                  "float32", kind=SpecError)
def a_maximum_of_a_tile_in_shared_memory(a, b, c):
    for (k,), (y,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(b):
        x = np.maximum(y, numpipe.zeros((64, 64), np.float32))
        #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


# ---- blocks of arrays -----------------------------------------------------------------------------------------------
@refused("b[…]: ':' has no compile-time size here; use ds(start, size)", kind=SpecError)
def a_whole_dimension_of_an_array(a, b, c):
    x = b[ds(0, 64), :]
    #   ^^^^^^^^^^^^^^^


@refused("b[…]: a tile's shape is (64 x j, 8 x i) with at most 256 columns (wgmma m64nN), got (32, 64)", kind=SpecError)
def a_block_of_32_rows(a, b, c):
    x = b[ds(0, 32), ds(0, 64)]
    #   ^^^^^^^^^^^^^^^^^^^^^^^


@refused("b[…]: a tile's dtype is float32, float16, bfloat16 or int32, got float64: convert an array before the call",
         kind=SpecError, args=(A, WIDE, C))
def a_block_of_float64(a, b, c):
    x = b[ds(0, 64), ds(0, 64)]
    #   ^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="array 'b' has 1 dimension: b[…] is a block of one or two of them, ds(start, size), with an integer along the "
                   "others, got (ds(0, 64), ds(0, 64))",
         compiled="array 'b' has 1 dimension: b[…] is a block of one or two of them, ds(start, size), with an integer along the "
                  "others, got (ds(64), ds(64))", kind=SpecError, args=(A, BIAS, C))
def a_block_of_a_vector(a, b, c):
    x = b[ds(0, 64), ds(0, 64)]
    #   ^^^^^^^^^^^^^^^^^^^^^^^


@refused("'+' of tiles of float32 and float16: convert one of them, e.g. x.astype(np.float32)", kind=SpecError)
def arithmetic_on_a_block_of_float16(a, b, c):
    x = numpipe.zeros((64, 64), np.float32) + b[ds(0, 64), ds(0, 64)]
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(f"a register tile {REASON}")
def a_block_where_a_tile_says(a, b, c):
    x = b[ds(numpipe.iota(64), 64), ds(0, 64)]
    #     ^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="ds(start, size): start must be an integer, got array: int(x) truncates a float, // divides integers",
         compiled="ds(start, size): start must be an integer, got array 'b': int(x) truncates a float, // divides integers",
         kind=SpecError)
def a_block_where_an_array_says(a, b, c):
    x = b[ds(b, 64), ds(0, 64)]
    #     ^^^^^^^^^


# ---- products with A from registers ---------------------------------------------------------------------------------
@refused("wgmma: a is a float32 register tile in the accumulator's layout, and the A operand of registers is that packed to 16 "
         "bits: write a.astype(b.dtype), which moves nothing between lanes", kind=SpecError)
def an_accumulator_as_an_operand(a, b, c):
    for (k,), (y,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(b):
        p = numpipe.wgmma(None, numpipe.zeros((64, 64), np.float32), y)
        #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("wgmma: a (64,) lies along rows (column layout), the A operand is a tile (M, K) in the accumulator's layout, packed: "
         "combine it with a tile first", kind=SpecError)
def a_vector_as_an_operand(a, b, c):
    for (k,), (y,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(b):
        p = numpipe.wgmma(None, numpipe.zeros((64, 64), np.float32).sum(axis=1).astype(np.float16), y)
        #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("wgmma: a and b must both be float16 or both bfloat16, got bfloat16 and float16", kind=SpecError)
def an_operand_of_another_type(a, b, c):
    for (k,), (y,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(b):
        p = numpipe.wgmma(None, numpipe.zeros((64, 64), np.float32).astype("bfloat16"), y)
        #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("wgmma: the accumulator must be float32, got int32", kind=SpecError)
def an_accumulator_of_integers(a, b, c):
    for (k,), (y,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(b):
        acc = numpipe.wgmma(numpipe.iota((64, 64)), y, y.T)
        #     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(compiled="'np.exp': the accumulator is in flight: wgmma may still be writing it; write acc = numpipe.wgmma_wait(acc, 0) "
                  "first (a pipeline loop's end does so for what it carries)")
def a_function_of_an_accumulator_in_flight(a, b, c):
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(b):
        s = np.exp(numpipe.wgmma(None, x, x.T))
        #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(compiled="'c[…] = tile': the accumulator is in flight: wgmma may still be writing it; write acc = numpipe.wgmma_wait(acc, "
                  "0) first (a pipeline loop's end does so for what it carries)")
def a_store_of_an_accumulator_in_flight(a, b, c):
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        acc = numpipe.wgmma(None, x, x.T)
        c[ds(0, 64), ds(0, 64)] = acc
      # ^^^^^^^^^^^^^^^^^^^^^^^


@refused(compiled="wgmma(acc, a, b), a: the accumulator is in flight: wgmma may still be writing it; write acc = numpipe.wgmma_wait"
                  "(acc, 0) first (a pipeline loop's end does so for what it carries)")
def an_accumulator_in_flight_as_an_operand(a, b, c):
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        acc = numpipe.wgmma(None, x, x.T)
        acc = numpipe.wgmma(None, acc, x)
        #     ^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(compiled="'p' gets its next value in the registers that a product in flight reads: ptxas would serialise wgmma, "
                  "operand-redefined (C7513): each product would be waited for before the next one begins, at about half of the "
                  "speed; write acc = numpipe.wgmma_wait(acc) before; what the operand is made of may be computed while the "
                  "product runs; CompilerParams(allow_serialized_wgmma=True) takes the kernel as it is\n"
                  "in flight since {path}:{line-2}", kind=SerializedWgmma)
def an_operand_in_flight(a, b, c):
    acc, p = numpipe.zeros((64, 64), np.float32), numpipe.full((64, 64), 0.0, np.float32).astype(a.dtype)
    for (k,), (x,) in numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        s = numpipe.wgmma(None, x, x.T)
        acc = numpipe.wgmma(acc, p, x)
        s = numpipe.wgmma_wait(s)
        p = np.exp(s).astype(a.dtype)
        #   ^^^^^^^^^^^^^^^^^^^^^^^^^
        acc = numpipe.wgmma_wait(acc)
    c[ds(0, 64), ds(0, 64)] = acc


@refused(compiled="register budget: products in flight hold 256 registers a lane, 224 are there (256 of a compute lane, less 32 "
                  "that ptxas keeps): it would serialise wgmma, register-pressure (C7512); use tiles of fewer columns, tiles of 64 "
                  "rows, a smaller memory_registers than 40 or a wait before the next product is issued\n"
                  " 192  wide: accumulator, float32 (128, 192), line {line-4}\n"
                  "  64  s: accumulator, float32 (64, 128), line {line}", kind=SpecError)
def more_than_a_lane_has(a, b, c):
    wide = numpipe.zeros((128, 192), np.float32)
    for (k,), (x, y) in numpipe.pipeline(grid=(1,), in_specs=(
            BlockSpec((128, 64), lambda k: (0, k)), BlockSpec((192, 64), lambda k: (0, k))))(a, a):
        wide = numpipe.wgmma(wide, x, y.T)
        s = numpipe.wgmma(None, x.at[ds(0, 64), :], x.T)
        #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        s = numpipe.wgmma_wait(s)
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)


@refused(compiled="register budget: products in flight hold 128 registers a lane, 32 are there (64 of a compute lane, less 32 that "
                  "ptxas keeps): it would serialise wgmma, register-pressure (C7512); use tiles of fewer columns, fewer compute "
                  "warpgroups than num_compute_wgs=7, a smaller memory_registers than 40 or a wait before the next product is "
                  "issued\n 128  acc: accumulator, float32 (64, 256), line {line}", kind=SpecError, num_compute_wgs=7)
def more_than_a_lane_of_seven_warpgroups_has(a, b, c):
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((256, 64), lambda k: (0, k)),))(a):
        acc = numpipe.wgmma(None, x.at[ds(0, 64), :], x.T)
        #     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


# ---- reductions -----------------------------------------------------------------------------------------------------
@refused("sum: a float16 tile would be rounded at each step: use .astype(np.float32) first", kind=SpecError)
def a_sum_of_float16(a, b, c):
    m = b[ds(0, 64), ds(0, 64)].sum(axis=1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("sum: axis must be None or an int from -2 to 1 for shape (64, 64), got 2", kind=SpecError)
def a_sum_along_a_third_axis(a, b, c):
    m = numpipe.zeros((64, 64), np.float32).sum(axis=2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("any takes a mask, as x < y gives it, got float32", kind=SpecError)
def a_vote_on_floats(a, b, c):
    m = np.any(numpipe.zeros((64, 64), np.float32))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("sum of a mask: count with mask.astype(np.int32).sum(), or ask np.any(mask)", kind=SpecError)
def a_sum_of_a_mask(a, b, c):
    m = (numpipe.iota(64) < 3).sum()
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="sum(…) of register tiles: got shared-memory tile",
         compiled="sum(…) of register tiles: got shared-memory tile (64, 64) float16", kind=SpecError)
def a_sum_of_a_tile_in_shared_memory(a, b, c):
    for (k,), (y,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(b):
        x = np.sum(y, axis=1)
        #   ^^^^^^^^^^^^^^^^^


@refused("sum: of a tile (64,) there is a number, without axis= and keepdims=", kind=SpecError)
def a_number_with_dimensions(a, b, c):
    x = numpipe.full(64, 1.0, np.float32).sum(keepdims=True)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("any along an axis: mask.astype(np.int32).max(axis=1) is 1 where any is true", kind=SpecError)
def a_vote_along_an_axis(a, b, c):
    x = np.any(numpipe.iota((64, 64)) < 3, axis=1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("partial_sum(tile) takes a float32 or int32 tile (M, N), got float32 (64,) (either layout)", kind=SpecError)
def partial_sums_of_a_vector(a, b, c):
    x = numpipe.partial_sum(numpipe.full(64, 1.0, np.float32))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("np.sum(tile, axis=None, keepdims=False) in a kernel, got np.sum(numpipe.iota(64), dtype='float32')")
def a_sum_with_another_option(a, b, c):
    m = np.sum(numpipe.iota(64), dtype="float32")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated=f"a reduction of a register tile {REASON}",
         compiled=f", pipeline at {{file}}:{{line}}: grid: a reduction of a register tile {REASON}")
def a_sum_that_is_a_grid(a, b, c):
    for (k,), (y,) in numpipe.pipeline(grid=(numpipe.iota(64).sum(),), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(b):
        #             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)


@refused("'np.any(numpipe.iota(64) < 3)' steers loads: what a tile holds decides whether something is loaded or copied, and the "
         "memory role has no such value; take the pipeline, or the copy, out of the 'if'")
def a_vote_that_steers_loads(a, b, c):
    if np.any(numpipe.iota(64) < 3):
     # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        for (k,), (y,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(b):
            c[ds(0, 64), ds(0, 64)] = y[...].astype(np.float32)


@refused(f"a reduction of a register tile {REASON}")
def a_vote_that_a_loop_asks(a, b, c):
    while np.any(numpipe.iota(64) < a.shape[0]):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        for (k,), (y,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(b):
            c[ds(0, 64), ds(0, 64)] = y[...].astype(np.float32)


MASK = "a mask, of whose elements np.any(mask) or np.all(mask) make one bool,"


@refused(simulated=f"{MASK} {REASON}", compiled=f", pipeline at {{file}}:{{line}}: in_specs[0] for 'b': index_map: {MASK} {REASON}")
def a_mask_that_says_which_block(a, b, c):
    mask = numpipe.iota(64) < 3
    for (k,), (y,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (mask, k)),))(b):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        c[ds(0, 64), ds(0, 64)] = y[...].astype(np.float32)


@refused(simulated=f"a number that a vote decides {REASON}",
         compiled=f", pipeline at {{file}}:{{line}}: grid: a number that a vote decides {REASON}")
def a_number_that_a_vote_decides(a, b, c):
    steps = 1
    if np.any(numpipe.iota(64) < 3):
        steps = 2
    for (k,), (y,) in numpipe.pipeline(grid=(steps,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(b):
        #             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)


@refused("wgmma.wait_group: n=8; the number of groups that may stay in flight is 0 … 7", kind=SpecError)
def a_wait_with_too_many_groups(a, b, c):
    for (k,), (y,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(b):
        s = numpipe.wgmma_wait(numpipe.wgmma(None, y, y.T), 8)
        #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


# ---- vectors to arrays, atomics, gathered blocks ------------------------------------------------------------------------
SUMS = np.zeros(64, np.float32)


@refused("'c[…] = tile': the index selects (64,), the tile is (64, 1)", kind=SpecError, args=(A, B, SUMS))
def a_column_stored_as_a_vector(a, b, c):
    c[ds(0, 64)] = numpipe.zeros((64, 64), np.float32).sum(axis=1, keepdims=True)
  # ^^^^^^^^^^^^


@refused("atomic_add: c.at[…]: the array is float32, the tile int32: store tile.astype(c.dtype)", kind=SpecError, args=(A, B, SUMS))
def an_atomic_of_another_type(a, b, c):
    numpipe.atomic_add(c.at[ds(0, 64)], numpipe.iota(64))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("atomic_max: float32 has no such reduction in global memory: it takes int32", kind=SpecError)
def a_maximum_of_floats(a, b, c):
    numpipe.atomic_max(c.at[ds(0, 64), ds(0, 64)], numpipe.zeros((64, 64), np.float32))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("atomic_min: float16 has no such reduction in global memory: it takes int32; a tile (M, N) to an array that TMA can "
         "store, whose rows are multiples of 16 B, has float16 and bfloat16 too", kind=SpecError,
         args=(A, B, SUMS.astype(np.float16)))
def a_minimum_of_a_float16_vector(a, b, c):
    numpipe.atomic_min(c.at[ds(0, 64)], numpipe.full(64, 0.0, np.float32).astype(np.float16))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="atomic_add(dst, tile): dst must be a view of an array, array.at[ds(i, 64), ds(j, 64)], got tile",
         compiled="atomic_add(dst, tile): dst must be a view of an array, array.at[ds(i, 64), ds(j, 64)], got "
                  "tile (64, 64) float32", kind=SpecError)
def an_atomic_without_a_view(a, b, c):
    numpipe.atomic_add(c[ds(0, 64), ds(0, 64)], numpipe.zeros((64, 64), np.float32))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="atomic_add: c.at[…]: negative start -64: the GPU writes what lies inside", kind=SimulationError,
         args=(A, B, SUMS))
def an_atomic_before_the_first_element(a, b, c):
    numpipe.atomic_add(c.at[ds(c.shape[0] - 128, 64)], numpipe.full(64, 1.0, np.float32))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("b[…]: one part of the index may be a vector of int32, the others are ds(start, size) and integers, got float32 (64,) "
         "(either layout)", kind=SpecError)
def a_gather_at_fractions(a, b, c):
    x = b[numpipe.full(64, 1.0, np.float32), ds(0, 64)]
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("b[…]: the indices of a tile's rows lie along them (column layout), these of 64 elements lie otherwise (row layout): "
         "write numpipe.layout_cast(v, \"column\")", kind=SpecError)
def a_gather_of_rows_along_columns(a, b, c):
    x = b[numpipe.iota((64, 64)).max(axis=0), ds(0, 64)]
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


# ---- layout casts --------------------------------------------------------------------------------------------------------
@refused("layout_cast: the layout of a tile (M, N) is one of 'accumulator', 'coalesced', got 'row'", kind=SpecError)
def a_cast_of_a_tile(a, b, c):
    x = numpipe.layout_cast(numpipe.zeros((64, 64), np.float32), "row")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("layout_cast: the layout of a vector is one of 'row', 'column', got 'columns'", kind=SpecError)
def a_cast_to_no_layout(a, b, c):
    x = numpipe.layout_cast(numpipe.iota(64), "columns")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("'+' of tiles (64, 64) in coalesced 4 layout and (64, 64) in accumulator layout: no lane has the elements of both; write "
         "numpipe.layout_cast(x, \"accumulator\") of what is coalesced", kind=SpecError)
def a_coalesced_tile_and_an_accumulator(a, b, c):
    x = numpipe.load_tile(c.at[ds(0, 64), ds(0, 64)]) + numpipe.zeros((64, 64), np.float32)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("sum takes a tile in the accumulator's layout, this one (64, 64) is in coalesced 4 layout: write "
         "numpipe.layout_cast(tile, \"accumulator\")", kind=SpecError)
def a_sum_of_a_coalesced_tile(a, b, c):
    x = numpipe.load_tile(c.at[ds(0, 64), ds(0, 64)]).sum(axis=1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("tile[…] = value takes a tile in the accumulator's layout, this one (64, 64) is in coalesced 4 layout: write "
         "numpipe.layout_cast(tile, \"accumulator\")", kind=SpecError)
def a_coalesced_tile_to_shared_memory(a, b, c):
    tile = numpipe.scratch(numpipe.SMEM((64, 64), np.float32))
    tile[...] = numpipe.load_tile(c.at[ds(0, 64), ds(0, 64)])
  # ^^^^^^^^^


@refused("wgmma takes a tile in the accumulator's layout, this one (64, 64) is in coalesced 8 layout: write "
         "numpipe.layout_cast(tile, \"accumulator\")", kind=SpecError)
def a_product_of_a_coalesced_tile(a, b, c):
    for (k,), (y,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(b):
        p = numpipe.wgmma(None, numpipe.load_tile(a.at[ds(0, 64), ds(0, 64)]), y)
        #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("load_tile: a coalesced tile (M, N) has rows of 32, 64 or 128 x i bytes, got float32 (64, 40), rows of 160 bytes",
         kind=SpecError)
def a_coalesced_tile_of_odd_rows(a, b, c):
    x = numpipe.load_tile(c.at[ds(0, 64), ds(0, 40)])
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("load_tile: layout must be \"accumulator\" or \"coalesced\", got 'rows'", kind=SpecError)
def a_block_in_no_layout(a, b, c):
    x = numpipe.load_tile(c.at[ds(0, 64), ds(0, 64)], "rows")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("layout_cast: a lane of this float32 tile in coalesced 8 layout has 32 bytes side by side, and 16 are moved: cast before "
         "astype", kind=SpecError)
def a_cast_behind_astype(a, b, c):
    x = numpipe.layout_cast(numpipe.load_tile(a.at[ds(0, 64), ds(0, 64)]).astype(np.float32), "accumulator")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("layout_cast: a vector of 40 elements does not lie in column layout: along columns there are 8 x i elements, at most 256, "
         "along rows 64 x j", kind=SpecError)
def a_cast_of_a_short_vector(a, b, c):
    x = numpipe.layout_cast(numpipe.iota(40), "column")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("'+' of two vectors of 64 elements, one along columns (row layout), one along rows (column layout): no lane has both; "
         "cast one: numpipe.layout_cast(v, \"row\")", kind=SpecError)
def a_sum_of_rows_and_columns(a, b, c):
    x = numpipe.zeros((64, 64), np.float32)
    y = x.sum(axis=0) + x.sum(axis=1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("v[:, None] needs a vector along rows (column layout), this one of 64 elements lies along columns (row layout): write "
         "numpipe.layout_cast(v, \"column\")[:, None]", kind=SpecError)
def a_row_as_a_column(a, b, c):
    x = numpipe.zeros((64, 64), np.float32).sum(axis=0)[:, None]
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("'-': a vector (64,) is broadcast along the columns of a tile, as in NumPy, but this one lies along rows (column layout): "
         "write v[:, None], or numpipe.layout_cast(v, \"row\")", kind=SpecError)
def a_column_beside_a_tile(a, b, c):
    x = numpipe.zeros((64, 64), np.float32)
    y = x - x.max(axis=1)
    #   ^^^^^^^^^^^^^^^^^


@refused(simulated="layout_cast(tile, layout): tile must be a register tile, got int",
         compiled="layout_cast(tile, layout): tile must be a register tile, got int32", kind=SpecError)
def a_cast_of_a_number(a, b, c):
    x = numpipe.layout_cast(3, "row")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("layout_cast: tiles (M, N) of numbers are cast, got bool (64, 64): cast what they are made of", kind=SpecError)
def a_cast_of_a_mask(a, b, c):
    x = numpipe.layout_cast(numpipe.iota((64, 64)) < 3, "coalesced")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


# ---- a variable that has two layouts: types are checked when a kernel is compiled ----------------------------------------
@refused(compiled="`m = x.max(axis=1)` cannot be compiled: 'm' has two layouts here, tile (64,) float32 (row layout) and tile "
                  "(64,) float32 (column layout): cast one: numpipe.layout_cast(m, \"column\")")
def a_vector_that_is_a_row_and_a_column(a, b, c):
    x = numpipe.zeros((64, 64), np.float32)
    m = x.max(axis=0)
    if a.shape[0] > 3:
        m = x.max(axis=1)
      # ^^^^^^^^^^^^^^^^^
    c[ds(0, 64), ds(0, 64)] = x - m


@refused(compiled="`m = np.maximum(m, x.max(axis=1))` cannot be compiled: 'm' has two layouts here, tile (64,) float32 (either "
                  "layout) and tile (64,) float32 (column layout): cast one: numpipe.layout_cast(m, \"column\")")
def a_vector_that_a_loop_carries(a, b, c):
    x = numpipe.zeros((64, 64), np.float32)
    m = numpipe.full(64, 0.0, np.float32)
    for i in range(a.shape[0]):
        m = np.maximum(m, x.max(axis=1))
      # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    m = m + 1.0
    c[ds(0, 64), ds(0, 64)] = x - m[:, None]


@refused(compiled="`x = numpipe.zeros((64, 64), np.float32)` cannot be compiled: 'x' has two layouts here, tile (64, 64) float32 "
                  "(coalesced 4 layout) and tile (64, 64) float32 (accumulator layout): cast one: numpipe.layout_cast(x, "
                  "\"accumulator\")")
def a_tile_that_is_coalesced_sometimes(a, b, c):
    x = numpipe.load_tile(c.at[ds(0, 64), ds(0, 64)])
    if a.shape[0] > 3:
        x = numpipe.zeros((64, 64), np.float32)
      # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    c[ds(0, 64), ds(0, 64)] = x


@refused(compiled="`return x.max(axis=1)` cannot be compiled: it returns two layouts, tile (64,) float32 (row layout) and tile "
                  "(64,) float32 (column layout): cast one: numpipe.layout_cast(x, \"column\")")
def a_function_of_two_layouts(a, b, c):
    def largest(x, n):
        if n > 3:
            return x.max(axis=0)
        return x.max(axis=1)
      # ^^^^^^^^^^^^^^^^^^^^

    m = largest(numpipe.zeros((64, 64), np.float32), a.shape[0])  # called


@refused(compiled="`m` cannot be compiled: a choice needs one layout, got tile (64,) float32 (row layout) and tile (64,) float32 "
                  "(column layout): cast one: numpipe.layout_cast(x, \"column\")")
def a_choice_of_two_layouts(a, b, c):
    x = numpipe.zeros((64, 64), np.float32)
    m = x.max(axis=0) if a.shape[0] > 3 else x.max(axis=1)
  # ^


@refused(", pipeline at {file}:{line+3}: body 'body' was given the carry tile (64,) float32 (either layout) and returned tile "
         "(64,) float32 (column layout): a carry keeps its layout too: cast one: numpipe.layout_cast(x, \"column\")")
def a_carry_that_changes_its_layout(a, b, c):
    def body(indices, x, m):
        return np.maximum(m, x[...].astype(np.float32).max(axis=1))

    def compute(pipeline):
        m = pipeline(numpipe.full(64, 0.0, np.float32))
        #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

    numpipe.emit_pipeline_warp_specialized(body, grid=(1,), compute_context=compute,  # called
                                           in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(b)


# ---- fences behind tiles
@refused("schedule_fence(after): a register tile, whose computation comes first, is expected, got float32", kind=SpecError)
def a_fence_behind_a_number(a, b, c):
    numpipe.schedule_fence(after=np.float32(1.0))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(compiled="schedule_fence(after): the accumulator is in flight: wgmma may still be writing it; write acc = "
                  "numpipe.wgmma_wait(acc, 0) first (a pipeline loop's end does so for what it carries)")
def a_fence_behind_a_product_in_flight(a, b, c):
    for _, (x, y) in numpipe.pipeline(grid=(1,), in_specs=(
            BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))))(a, b):
        s = numpipe.wgmma(None, x, y.T)
        numpipe.schedule_fence(after=s)
      # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
