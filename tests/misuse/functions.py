"""Functions, scans and the largest of rows of register tiles: types, axes, counts and functions that they do not have."""
# ruff: noqa: F841, RUF059 (kernels that are wrong on purpose)

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SimulationError, SpecError, ds
from numpipe.arch.dtypes import BFLOAT16
from tests.kernels.refusals import A, B, C, Cases

refused = Cases()


@refused("'np.sin' takes tiles of float32, got int32: use .astype(np.float32) first", kind=SpecError,
         mend={"iota(64)": "iota(64).astype(np.float32)"})
def a_sine_of_integers(a, b, c):
    x = np.sin(numpipe.iota(64))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^


@refused("np.cos(…) takes register tiles and numbers, got int32: convert it with float(x)", kind=SpecError,
         mend={"a.shape[0]": "float(a.shape[0])"})
def a_cosine_of_an_integer(a, b, c):
    x = np.cos(a.shape[0])
    #   ^^^^^^^^^^^^^^^^^^


@refused("'np.round' takes tiles of float32 or int32, got a mask: use .astype(np.float32) first", kind=SpecError,
         mend={"numpipe.iota(64) < 3": "(numpipe.iota(64) < 3).astype(np.float32)"})
def a_mask_that_is_rounded(a, b, c):
    x = np.round(numpipe.iota(64) < 3)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("np.round takes 1 argument in a kernel, (x), got np.round(numpipe.iota(64), 2)", mend={", 2)": ")"})
def a_rounding_to_digits(a, b, c):
    x = np.round(numpipe.iota(64), 2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("'//' takes tiles of float32 or int32, got a mask: use .astype(np.float32) first", kind=SpecError,
         mend={"< 3)": "< 3).astype(np.int32)"})
def a_quotient_of_a_mask(a, b, c):
    x = (numpipe.iota(64) < 3) // 2
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("'%' of an int32 tile and a float: use .astype(np.float32) first", kind=SpecError,
         mend={"iota(64)": "iota(64).astype(np.float32)"})
def a_remainder_of_integers_and_a_fraction(a, b, c):
    x = numpipe.iota(64) % 2.5
    #   ^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="an integer tile // or % 0: integer division by zero is undefined on the GPU", kind=SimulationError,
         mend={"iota(64) - 5": "iota(64) + 1"})
def a_quotient_by_zero(a, b, c):
    x = 7 // (numpipe.iota(64) - 5)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("'np.maximum' of tiles of float32 and int32: convert one of them, e.g. x.astype(np.float32)", kind=SpecError,
         mend={"iota(64))": "iota(64).astype(np.float32))"})
def a_maximum_of_two_types(a, b, c):
    x = max(numpipe.zeros((64, 64), np.float32), numpipe.iota(64))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("scan takes tiles of float32 or int32, got float16 (64, 64): use .astype(np.float32) first", kind=SpecError,
         mend={"b[ds(0, 64), ds(0, 64)]": "b[ds(0, 64), ds(0, 64)].astype(np.float32)"})
def a_scan_of_float16(a, b, c):
    x = numpipe.scan(lambda p, q: p + q, b[ds(0, 64), ds(0, 64)], axis=1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("scan: axis must be a compile-time int from -2 to 1 for shape (64, 64), got 2", kind=SpecError, mend={"axis=2": "axis=0"})
def a_scan_along_a_third_axis(a, b, c):
    x = numpipe.scan(lambda p, q: p + q, numpipe.zeros((64, 64), np.float32), axis=2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("scan: tiles that are scanned together have one shape and one layout, got float32 (64, 64) and float32 (64, 8)",
         kind=SpecError, mend={"(64, 8)": "(64, 64)"})
def a_scan_of_tiles_that_differ(a, b, c):
    tiles = numpipe.zeros((64, 64), np.float32), numpipe.zeros((64, 8), np.float32)
    x, y = numpipe.scan(lambda p, q: q, tiles, axis=1)
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("scan: function(a, b) returns what a and b are, float32 (64,) (column layout), element by element, got bool (64,) "
         "(column layout)", compiled="scan: function(a, b) returns what a and b are, float32 (8,) (row layout), element by "
         "element, got bool (8,) (row layout)", kind=SpecError, mend={"p < q": "np.where(p < q, p, q)"})
def a_scan_of_comparisons(a, b, c):
    x = numpipe.scan(lambda p, q: p < q, numpipe.zeros((64, 64), np.float32), axis=1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("scan(function, tile, axis): tile is a register tile, or a tuple of them, got a reduction of a register tile",
         kind=SpecError, mend={".sum()": ""})
def a_scan_of_a_number(a, b, c):
    x = numpipe.scan(lambda p, q: p + q, numpipe.zeros((64, 64), np.float32).sum(), axis=1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("np.maximum.accumulate takes tiles of float32 or int32, got float16 (64, 64): use .astype(np.float32) first",
         kind=SpecError, mend={"ds(0, 64)])": "ds(0, 64)].astype(np.float32))"})
def running_maxima_of_float16(a, b, c):
    x = np.maximum.accumulate(b[ds(0, 64), ds(0, 64)])
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("np.minimum.accumulate(tile, axis=0) in a kernel, got np.minimum.accumulate(numpipe.iota(64), 0, 'int32')",
         mend={', 0, "int32"': ""})
def running_minima_of_another_type(a, b, c):
    x = np.minimum.accumulate(numpipe.iota(64), 0, "int32")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("top_k: k=33: of the 64 columns of a tile (64, 64), 1 to 32 are found", kind=SpecError, mend={"33": "32"})
def more_than_the_32_largest(a, b, c):
    values, columns = numpipe.top_k(numpipe.zeros((64, 64), np.float32), 33)
    #                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("top_k: k=9: of the 8 columns of a tile (64, 8), 1 to 8 are found", kind=SpecError, mend={", 9)": ", 8)"})
def more_than_there_are_columns(a, b, c):
    values, columns = numpipe.top_k(numpipe.zeros((64, 8), np.float32), 9)
    #                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("top_k takes tiles (M, N) of float32, float16, bfloat16 or int32, got int32 (64,) (either layout)", kind=SpecError,
         mend={"iota(64)": "iota((64, 64), 1)"})
def the_largest_of_a_vector(a, b, c):
    values, columns = numpipe.top_k(numpipe.iota(64), 2)
    #                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("'c[…] = tile': the array is float16, the tile bfloat16: store tile.astype(c.dtype)", kind=SpecError,
         args=(A, B.astype(BFLOAT16), C.astype(np.float16)),
         mend={"= b[ds(0, 64), ds(0, 64)]": "= b[ds(0, 64), ds(0, 64)].astype(c.dtype)"})
def a_bfloat16_tile_stored_to_float16(a, b, c):
    c[ds(0, 64), ds(0, 64)] = b[ds(0, 64), ds(0, 64)]
  # ^^^^^^^^^^^^^^^^^^^^^^^


@refused("tile[…] = value: the tile is int32, the value float32: store value.astype(tile.dtype)", kind=SpecError,
         warp_specialized=False, mend={"np.float32)": "np.int32)"})
def floats_stored_to_integers_in_shared_memory(a, b, c):
    tile = numpipe.scratch(numpipe.SMEM((64, 64), np.int32))
    tile[...] = numpipe.zeros((64, 64), np.float32)
  # ^^^^^^^^^
