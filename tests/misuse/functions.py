"""Misused functions, scans and largest elements of register tiles: types, axes, counts and
functions that do not exist."""

from __future__ import annotations

import numpy as np

from numpipe import SimulationError, SpecError
from numpipe.arch.dtypes import BFLOAT16
from tests.kernels.refusals import A, B, C, Cases

refused = Cases()
refused(
    "a_sine_of_integers",
    """
    x = np.sin(numpipe.iota(64))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'np.sin' takes tiles of float32, got int32; fix: use .astype(np.float32) first",
    kind=SpecError,
    fix={"iota(64)": "iota(64).astype(np.float32)"},
)
refused(
    "a_cosine_of_an_integer",
    """
    x = np.cos(a.shape[0])
    #   ^^^^^^^^^^^^^^^^^^
""",
    "np.cos(…) takes register tiles and numbers, got int32; fix: convert it with float(x)",
    kind=SpecError,
    fix={"a.shape[0]": "float(a.shape[0])"},
)
refused(
    "a_mask_that_is_rounded",
    """
    x = np.round(numpipe.iota(64) < 3)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'np.round' takes tiles of float32 or int32, got a mask; fix: use .astype(np.float32) first",
    kind=SpecError,
    fix={"numpipe.iota(64) < 3": "(numpipe.iota(64) < 3).astype(np.float32)"},
)
refused(
    "a_rounding_to_digits",
    """
    x = np.round(numpipe.iota(64), 2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "np.round takes 1 argument in a kernel, (x), got np.round(numpipe.iota(64), 2)",
    fix={", 2)": ")"},
)
refused(
    "a_quotient_of_a_mask",
    """
    x = (numpipe.iota(64) < 3) // 2
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'//' takes tiles of float32 or int32, got a mask; fix: use .astype(np.float32) first",
    kind=SpecError,
    fix={"< 3)": "< 3).astype(np.int32)"},
)
refused(
    "a_remainder_of_integers_and_a_fraction",
    """
    x = numpipe.iota(64) % 2.5
    #   ^^^^^^^^^^^^^^^^^^^^^^
""",
    "'%' of an int32 tile and a float; fix: convert the tile, .astype(np.float32)",
    kind=SpecError,
    fix={"iota(64)": "iota(64).astype(np.float32)"},
)
refused(
    "a_quotient_by_zero",
    """
    x = 7 // (numpipe.iota(64) - 5)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated="integer division by zero in an integer tile // or %: the result is undefined on "
    "the GPU",
    kind=SimulationError,
    fix={"iota(64) - 5": "iota(64) + 1"},
)
refused(
    "a_maximum_of_two_types",
    """
    x = max(numpipe.zeros((64, 64), np.float32), numpipe.iota(64))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'np.maximum' of tiles of float32 and int32: operands must have one type; fix: convert one of "
    "them, such as x.astype(np.float32)",
    kind=SpecError,
    fix={"iota(64))": "iota(64).astype(np.float32))"},
)
refused(
    "a_scan_of_float16",
    """
    x = numpipe.scan(lambda p, q: p + q, b[ds(0, 64), ds(0, 64)], axis=1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "scan takes tiles of float32 or int32, got float16 (64, 64); fix: use .astype(np.float32) "
    "first",
    kind=SpecError,
    fix={"b[ds(0, 64), ds(0, 64)]": "b[ds(0, 64), ds(0, 64)].astype(np.float32)"},
)
refused(
    "a_scan_along_a_third_axis",
    """
    x = numpipe.scan(lambda p, q: p + q, numpipe.zeros((64, 64), np.float32), axis=2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "scan: axis must be a compile-time int from -2 to 1 for shape (64, 64), got 2",
    kind=SpecError,
    fix={"axis=2": "axis=0"},
)
refused(
    "a_scan_of_tiles_that_differ",
    """
    tiles = numpipe.zeros((64, 64), np.float32), numpipe.zeros((64, 8), np.float32)
    x, y = numpipe.scan(lambda p, q: q, tiles, axis=1)
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "scan: tiles that are scanned together must have one shape and one layout, got float32 (64, "
    "64) and float32 (64, 8)",
    kind=SpecError,
    fix={"(64, 8)": "(64, 64)"},
)
refused(
    "a_scan_of_comparisons",
    """
    x = numpipe.scan(lambda p, q: p < q, numpipe.zeros((64, 64), np.float32), axis=1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "scan: function(a, b) must return the same types as a and b, float32 (64,) (column layout), "
    "computed elementwise, got bool (64,) (column layout)",
    compiled=(
        "scan: function(a, b) must return the same types as a and b, float32 (8,) (row layout), "
        "computed elementwise, got bool (8,) (row layout)"
    ),
    kind=SpecError,
    fix={"p < q": "np.where(p < q, p, q)"},
)
refused(
    "a_scan_of_a_number",
    """
    x = numpipe.scan(lambda p, q: p + q, numpipe.zeros((64, 64), np.float32).sum(), axis=1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "scan(function, tile, axis): tile must be a register tile, or a tuple of them, got a "
    "reduction of a register tile",
    kind=SpecError,
    fix={".sum()": ""},
)
refused(
    "running_maxima_of_float16",
    """
    x = np.maximum.accumulate(b[ds(0, 64), ds(0, 64)])
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "np.maximum.accumulate takes tiles of float32 or int32, got float16 (64, 64); fix: use "
    ".astype(np.float32) first",
    kind=SpecError,
    fix={"ds(0, 64)])": "ds(0, 64)].astype(np.float32))"},
)
refused(
    "running_minima_of_another_type",
    """
    x = np.minimum.accumulate(numpipe.iota(64), 0, "int32")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "np.minimum.accumulate(tile, axis=0) in a kernel, got "
    "np.minimum.accumulate(numpipe.iota(64), 0, 'int32')",
    fix={', 0, "int32"': ""},
)
refused(
    "more_than_the_32_largest",
    """
    values, columns = numpipe.top_k(numpipe.zeros((64, 64), np.float32), 33)
    #                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "top_k of a tile (64, 64): k must be an int of 1…32, got 33",
    kind=SpecError,
    fix={"33": "32"},
)
refused(
    "more_than_there_are_columns",
    """
    values, columns = numpipe.top_k(numpipe.zeros((64, 8), np.float32), 9)
    #                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "top_k of a tile (64, 8): k must be an int of 1…8, got 9",
    kind=SpecError,
    fix={", 9)": ", 8)"},
)
refused(
    "the_largest_of_a_vector",
    """
    values, columns = numpipe.top_k(numpipe.iota(64), 2)
    #                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "top_k expects a tile (M, N) of float32, float16, bfloat16 or int32, got int32 (64,) (either "
    "layout)",
    kind=SpecError,
    fix={"iota(64)": "iota((64, 64), 1)"},
)
refused(
    "a_bfloat16_tile_stored_to_float16",
    """
    c[ds(0, 64), ds(0, 64)] = b[ds(0, 64), ds(0, 64)]
  # ^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'c[…] = tile': the array is float16, but the tile is bfloat16; fix: store "
    "tile.astype(c.dtype)",
    kind=SpecError,
    args=(A, B.astype(BFLOAT16), C.astype(np.float16)),
    fix={"= b[ds(0, 64), ds(0, 64)]": "= b[ds(0, 64), ds(0, 64)].astype(c.dtype)"},
)
refused(
    "floats_stored_to_integers_in_shared_memory",
    """
    tile = numpipe.scratch(numpipe.SMEM((64, 64), np.int32))
    tile[...] = numpipe.zeros((64, 64), np.float32)
  # ^^^^^^^^^
""",
    "tile[…] = value: the tile is int32, but the value is float32; fix: store "
    "value.astype(tile.dtype)",
    kind=SpecError,
    warp_specialized=False,
    fix={"np.float32)": "np.int32)"},
)
