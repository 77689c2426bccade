"""Products, tiles, views and stores that do not fit: shapes, types, and missing values."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from numpipe import SpecError
from numpipe.arch.dtypes import TILES, listed
from numpipe.arch.products import WGMMA
from tests.kernels.refusals import A, B, C, Cases

BF16, E4M3 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)
LOADED = "; tile[...] loads a shared-memory tile to registers"
# tiles and operands of 8 bits and tf32
NARROW = A.astype(E4M3), B.astype(E4M3), C
refused = Cases()

# shapes and types of products and stores
a_product = refused(
    "a_product",
    """
    for (k,), (x, y) in pairs(a, b):
        acc = numpipe.wgmma(acc, x, y.T)
    #         ^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    f"wgmma: a and b must be of one kind, {'; '.join(WGMMA.kinds)}; got float32 and float16",
    kind=SpecError,
    args=(A.astype("f4"), B, C),
)
refused.also(
    a_product,
    f"wgmma: a and b must be of one kind, {'; '.join(WGMMA.kinds)}; got float16 and float8_e4m3fn",
    kind=SpecError,
    args=(A, B.astype(E4M3), C),
)
refused.also(
    a_product,
    f"wgmma: a and b must be of one kind, {'; '.join(WGMMA.kinds)}; got int16 and int16",
    kind=SpecError,
    args=(A.astype(np.int16), B.astype(np.int16), C),
)
refused.also(
    a_product,
    "wgmma: the accumulator must be int32, got float32",
    kind=SpecError,
    args=(A.astype(np.int8), B.astype(np.uint8), C),
)
refused.also(
    a_product,
    f"wgmma: a and b must be of one kind, {'; '.join(WGMMA.kinds)}; got float16 and bfloat16",
    kind=SpecError,
    args=(A, B.astype(BF16), C),
)
refused(
    "a_product_without_the_transpose",
    """
    spec = BlockSpec((64, 32), lambda k: (0, k))
    pipe = numpipe.pipeline(grid=(2,), in_specs=(spec, spec))
    for (k,), (x, y) in pipe(a, b):
        acc = numpipe.wgmma(acc, x, y)
    #         ^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma: a (64, 32) has K = 32, but b (64, 32) has K = 64; fix: b is (K, N), so write b_tile.T "
    "for a tile loaded as (N, K)",
    kind=SpecError,
    fix={"acc, x, y)": "acc, x, y.T)"},
)
refused(
    "an_accumulator_of_another_shape",
    """
    acc = numpipe.zeros((64, 128), np.float32)
    for (k,), (x, y) in pairs(a, b):
        acc = numpipe.wgmma(acc, x, y.T)
    #         ^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma: the accumulator is (64, 128), but a (64, 64) x b (64, 64) is (64, 64)",
    kind=SpecError,
    fix={"(64, 128)": "(64, 64)"},
)
refused(
    "a_product_that_nothing_receives",
    """
    for (k,), (x, y) in pairs(a, b):
        numpipe.wgmma(acc, x, y.T)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma returns the accumulator and changes nothing in place; fix: acc = numpipe.wgmma(acc, "
    "x, y.T)",
    fix={"        numpipe.wgmma(acc": "        acc = numpipe.wgmma(acc"},
)
refused(
    "a_wait_that_nothing_receives",
    """
    numpipe.wgmma_wait(acc, 0)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma_wait returns the accumulator and changes nothing in place; fix: acc = "
    "numpipe.wgmma_wait(acc, 0)",
    fix={"    numpipe.wgmma_wait": "    acc = numpipe.wgmma_wait"},
)
refused(
    "a_product_of_numbers",
    """
    acc = numpipe.wgmma(numpipe.zeros((64, 64), np.float32), 1, 2)
    #     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "wgmma(acc, a, b): acc must be a register tile or None, a a shared-memory tile of a "
        "pipeline or a register tile, b a shared-memory tile, got (tile, int, int)"
    ),
    compiled=(
        "wgmma(acc, a, b): acc must be a register tile or None, a a shared-memory tile of a "
        "pipeline or a register tile, b a shared-memory tile, got (tile (64, 64) float32, int32, "
        "int32)"
    ),
    kind=SpecError,
)
refused(
    "zeros_of_float16",
    """
    acc = numpipe.zeros((64, 64), np.float16)
    #     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "zeros: accumulators are float32 or int32, got float16; fix: create one of these, and convert "
    "it with .astype",
    kind=SpecError,
    fix={"np.float16)": "np.float32).astype(np.float16)"},
)
refused(
    "a_wait_that_leaves_too_many",
    """
    acc = numpipe.wgmma_wait(numpipe.zeros((64, 64), np.float32), 8)
    #     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma.wait_group: n must be in 0 … 7, the number of groups that may stay in flight, got 8",
    kind=SpecError,
    fix={", 8)": ", 0)"},
)
refused(
    "zeros_of_a_run_time_shape",
    """
    acc = numpipe.zeros((a.shape[0], 64), np.float32)
    #     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "zeros: shape must be a compile-time constant, not a run-time int32: pass a literal, a "
        "constant of the module or a Static field"
    ),
    compiled=(
        "zeros: shape must be a compile-time constant, not a run-time (int32, 64): pass a "
        "literal, a constant of the module or a Static field"
    ),
    kind=SpecError,
    fix={"a.shape[0]": "64"},
)
refused(
    "a_store_of_another_type",
    """
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
  # ^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'c[…] = tile': the array is int32, but the tile is float32; fix: store tile.astype(c.dtype)",
    kind=SpecError,
    args=(A, B, C.astype(np.int32)),
    fix={"np.float32)": "np.float32).astype(c.dtype)"},
)
refused(
    "a_store_of_another_shape",
    """
    c[ds(0, 128), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
  # ^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'c[…] = tile': the index selects (128, 64), but the tile is (64, 64)",
    kind=SpecError,
    fix={"ds(0, 128)": "ds(0, 64)"},
)
refused(
    "a_store_of_a_number",
    """
    c[ds(0, 64), ds(0, 64)] = 1.0
  # ^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "'c[…] = value': the value must be a register tile, got float: numpipe.full((64, 64), "
        "value, c.dtype) is one; fix for a sum that began with a "
        "number, as 0 + tile: begin with numpipe.zeros((64, 64), np.float32)"
    ),
    compiled=(
        "'c[…] = value': the value must be a register tile, got float64: numpipe.full((64, 64), "
        "value, c.dtype) is one; fix for a sum that began with a "
        "number, as 0 + tile: begin with numpipe.zeros((64, 64), np.float32)"
    ),
    kind=SpecError,
    fix={"= 1.0": "= numpipe.full((64, 64), 1.0, c.dtype)"},
)
refused(
    "a_fraction_in_integers",
    """
def a_fraction_in_integers(a, b, n):
    tile = a[ds(0, 64), ds(0, 64)]
    n[0] = tile.sum()
  # ^^^^
""",
    "'n[…] = value': 'n' is int32, but the value is float32; fix: convert it, int(x), or convert "
    "the tile before it is reduced, tile.astype(np.int32)",
    kind=SpecError,
    args=(A.astype("f4"), B, np.zeros(2, np.int32)),
    fix={"= tile.sum()": "= tile.astype(np.int32).sum()"},
)
refused(
    "a_number_in_bools",
    """
    c[0] = a.shape[0]
  # ^^^^
""",
    "'c[…] = value': 'c' is bool, but the value is int32; fix: write x != 0",
    kind=SpecError,
    args=(A, B, np.zeros(2, bool)),
    fix={"= a.shape[0]": "= a.shape[0] != 0"},
)
refused(
    "a_number_in_float8",
    """
    c[0] = np.float32(a.shape[0])
  # ^^^^
""",
    "'c[…] = value': 'c' is float8_e4m3fn, which numbers in kernels cannot be; fix: store a tile, "
    "numpipe.full(…).astype(c.dtype)",
    kind=SpecError,
    args=(A, B, np.zeros(64, ml_dtypes.float8_e4m3fn)),
    fix={
        "c[0] = np.float32(a.shape[0])": (
            "c[ds(0, 64)] = numpipe.full(64, np.float32(a.shape[0]), np.float32).astype(c.dtype)"
        ),
    },
)
refused(
    "a_number_added_to_doubles",
    """
    numpipe.atomic_add(c.at[0], 1.0)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "atomic_add: expected int32, uint32, float32, float16, bfloat16 for this reduction in global "
    "memory, got float64",
    kind=SpecError,
    args=(A, B, np.zeros(2)),
)
refused(
    "zeros_of_numpy",
    """
    c[ds(0, 64), ds(0, 64)] = np.zeros((64, 64), np.float32)
    #                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'np.zeros' makes an array on the host: in a kernel numpipe.zeros(shape, np.float32) "
    "makes a register tile",
    fix={"np.zeros(": "numpipe.zeros("},
)
refused(
    "a_full_array_of_numpy",
    """
    c[ds(0, 64), ds(0, 64)] = np.full((64, 64), 1.0, np.float32)
    #                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'np.full' makes an array on the host: in a kernel numpipe.full(shape, value, "
    "np.float32) makes a register tile",
    fix={"np.full(": "numpipe.full("},
)
refused(
    "ones_of_numpy",
    """
    c[ds(0, 64), ds(0, 64)] = np.ones((64, 64), np.float32)
    #                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'np.ones' makes an array on the host: in a kernel numpipe.full(shape, 1.0, np.float32) "
    "makes a register tile",
    fix={"np.ones((64, 64),": "numpipe.full((64, 64), 1.0,"},
)
refused(
    "a_range_of_numpy",
    """
    x = np.arange(64)
    #   ^^^^^^^^^^^^^
""",
    "'np.arange' makes an array on the host: in a kernel numpipe.iota(n) makes a register tile",
    fix={"np.arange(": "numpipe.iota("},
)
refused(
    "a_store_of_an_element",
    """
    c[0, 0] = numpipe.zeros((64, 64), np.float32)
  # ^^^^^^^
""",
    "'c[…] = tile': the index selects (), but the tile is (64, 64)",
    kind=SpecError,
    fix={"c[0, 0]": "c[ds(0, 64), ds(0, 64)]"},
)
refused(
    "an_element_of_a_tile",
    """
    for (k,), (x,) in pipe(a):
        y = x[0, 0]
    #       ^^^^^^^
""",
    "tile[i, j], an element of a tile, is per-lane code, which is supported only in the body of a "
    "body-form pipeline, in a kernel with "
    "CompilerParams(lowering_semantics=LoweringSemantics.Lane); here a tile is indexed by two of "
    "ds(start, size) and ':', or by ...",
    kind=SpecError,
)
refused(
    "a_store_to_a_tile",
    """
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
        x[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
    #   ^^^^^^^^^^^^^^^^^^^^^^^
""",
    "a tile of a pipeline is read-only: TMA refills its slot; fix: store to an array",
    kind=SpecError,
    fix={"        x[ds": "        c[ds"},
)
refused(
    "a_view_that_splits_the_swizzle",
    """
    for (k,), (x,) in pipe(a):
        y = x.at[:, ds(0, 12)]
    #       ^^^^^^^^^^^^^^^^^^
""",
    "tile.at[…]: ds(start, 12) along axis 1 of a tile (64, 64) must have a size that is at "
    "most 64, in steps of 64 (the shared-memory layout has 128-byte rows)",
    kind=SpecError,
    fix={"ds(0, 12)": "ds(0, 64)"},
)
refused(
    "a_view_between_two_groups_of_rows",
    """
    for (k,), (x,) in pipe(a):
        y = x.at[ds(4, 56), :]
    #       ^^^^^^^^^^^^^^^^^^
""",
    "tile.at[…]: ds(4, 56) along axis 0 of a tile (64, 64): the start must be a multiple of 8",
    kind=SpecError,
    fix={"ds(4, 56)": "ds(8, 56)"},
)
refused(
    "a_view_between_two_panels",
    """
    spec = BlockSpec((64, 128), lambda k: (0, k))
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
        y = x.at[:, ds(16 * 2, 64)]
    #       ^^^^^^^^^^^^^^^^^^^^^^^
""",
    "tile.at[…]: ds(32, 64) along axis 1 of a tile (64, 128): the start must be a multiple of 64",
    kind=SpecError,
    fix={"16 * 2": "16 * 4"},
)
refused(
    "a_view_beyond_the_end",
    """
    for (k,), (x,) in pipe(a):
        y = x.at[ds(8, 64), :]
    #       ^^^^^^^^^^^^^^^^^^
""",
    compiled=(
        "tile.at[…]: elements 8 … 71 along axis 0 are not in a tile (64, 64) in shared memory; "
        "fix: select elements in 0 … 63"
    ),
    kind=SpecError,
    fix={"ds(8, 64)": "ds(0, 64)"},
)
refused(
    "a_part_larger_than_its_tile",
    """
    for (k,), (x,) in pipe(a):
        y = x[ds(k, 72), :]
    #       ^^^^^^^^^^^^^^^
""",
    compiled=(
        "tile[…]: elements 0 … 71 along axis 0 are not in a tile (64, 64) in shared memory; fix: "
        "select elements in 0 … 63"
    ),
    kind=SpecError,
    fix={"ds(k, 72)": "ds(k, 56)"},
)
refused(
    "a_product_of_32_rows",
    """
    for (k,), (x, y) in numpipe.pipeline(grid=(1,), in_specs=(
            BlockSpec((32, 64), lambda k: (0, k)), spec))(a, a):
        acc = numpipe.wgmma(None, x, y.T)
    #         ^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma: a (32, 64) x b (64, 64): M must be a multiple of 64, K a multiple of 16, and N a "
    "multiple of 8 up to 256",
    kind=SpecError,
    fix={"(32, 64)": "(64, 64)"},
)
refused(
    "a_product_over_24",
    """
    for (k,), (x, y) in numpipe.pipeline(grid=(1,), in_specs=(
            BlockSpec((64, 24), lambda k: (0, k)), BlockSpec((64, 24), lambda k: (0, k))))(a, a):
        acc = numpipe.wgmma(None, x, y.T)
    #         ^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma: a (64, 24) x b (24, 64): M must be a multiple of 64, K a multiple of 16, and N a "
    "multiple of 8 up to 256",
    kind=SpecError,
    fix={"(64, 24)": "(64, 32)"},
)
refused(
    "a_product_of_512_columns",
    """
    x = numpipe.scratch(numpipe.SMEM((64, 16), np.float16))
    y = numpipe.scratch(numpipe.SMEM((512, 16), np.float16))
    acc = numpipe.wgmma(None, x, y.T)
    #     ^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma: a (64, 16) x b (16, 512): M must be a multiple of 64, K a multiple of 16, and N a "
    "multiple of 8 up to 256",
    kind=SpecError,
)
refused(
    "a_function_of_a_tile",
    """
    e = np.arcsin(numpipe.zeros((64, 64), np.float32))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'np.arcsin' takes constants only in a kernel; of tiles and numbers there are np.abs, "
    "ceil, clip, cos, exp, exp2, floor, isfinite, isinf, isnan, log, log2, maximum, minimum, "
    "round, sign, sin, sqrt, square, tan, tanh, trunc, where, numpipe.fma, mulhi, rsqrt, sigmoid: "
    "compute it before the call and pass the result",
)
refused(
    "a_register_tile_of_integers",
    """
    for (k,), (x,) in pipe(a):
        y = x[...]
    #       ^^^^^^
""",
    f"tile[…]: a tile's dtype must be {listed(TILES, 'or')}, got int16: convert an array before "
    "the call",
    kind=SpecError,
    args=(A.astype("i2"), B, C),
)
refused(
    "a_view_that_is_assigned_to",
    """
    for (k,), (x,) in pipe(a):
        x.at[ds(0, 64), :] = numpipe.zeros((64, 64), np.float32)
    #   ^^^^^^^^^^^^^^^^^^
""",
    "tile.at[…] is a view and cannot be assigned to; fix: write tile[…] = value",
    kind=SpecError,
)
refused(
    "a_view_of_one_dimension",
    """
    for (k,), (x,) in pipe(a):
        y = x.at[ds(0, 64)]
    #       ^^^^^^^^^^^^^^^
""",
    simulated=(
        "a tile (64, 64) is indexed by two of ds(start, size) and ':', or by ..., got ds(0, 64)"
    ),
    compiled=(
        "a tile (64, 64) is indexed by two of ds(start, size) and ':', or by ..., got ds(64)"
    ),
    kind=SpecError,
    fix={"ds(0, 64)]": "ds(0, 64), :]"},
)

# arithmetic, conversions, attributes
refused(
    "an_array_in_arithmetic",
    """
    x = a + 1
    #   ^^^^^
""",
    simulated="TypeError: unsupported operand type(s) for +: 'array' and 'int'",
    compiled="`a + 1` cannot be compiled: '+' is not defined for array 'a' and 1",
)
refused(
    "tiles_of_two_shapes",
    """
    x = numpipe.zeros((64, 64), np.float32) + numpipe.zeros((64, 128), np.float32)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "tiles of shapes (64, 64) and (64, 128) cannot be broadcast together",
    kind=SpecError,
    fix={"(64, 128)": "(64, 64)"},
)
refused(
    "bits_of_float16",
    """
    half = numpipe.zeros((64, 64), np.float32).astype(np.float16)
    x = half & 1
    #   ^^^^^^^^
""",
    "'&' takes tiles of int32 or masks, got float16",
    kind=SpecError,
    fix={"np.float16": "np.int32"},
)
refused(
    "a_sum_with_a_tile_in_shared_memory",
    """
    acc = numpipe.zeros((64, 64), np.float32)
    for (k,), (x,) in numpipe.pipeline(grid=(2,), in_specs=(rows,))(a):
        acc += x
    #   ^^^^^^^^
""",
    simulated=f"TypeError: unsupported operand type(s) for +: 'tile' and 'shared-memory "
    f"tile'{LOADED}",
    compiled="`acc += x` cannot be compiled: '+' is not defined for tile (64, 64) float32 and "
    "shared-memory tile (64, 64) "
    "float32" + LOADED,
    args=(A.astype("f4"), B, C),
    fix={"+= x": "+= x[...]"},
)
refused(
    "a_comparison_of_a_tile_in_shared_memory",
    """
    for (k,), (x,) in numpipe.pipeline(grid=(2,), in_specs=(rows,))(a):
        y = x > 0.5
    #       ^^^^^^^
""",
    simulated=f"TypeError: '>' not supported between instances of 'shared-memory tile' and "
    f"'float'{LOADED}",
    compiled="`x > 0.5` cannot be compiled: '>' is not defined for shared-memory tile (64, 64) "
    "float32 and float64" + LOADED,
    args=(A.astype("f4"), B, C),
    fix={"x > 0.5": "x[...] > 0.5"},
)
refused(
    "a_tile_or_a_number",
    """
    x = 1
    if a.shape[0] > 3:
        x = numpipe.zeros((64, 64), np.float32)
    c[ds(0, 64), ds(0, 64)] = x
  # ^^^^^^^^^^^^^^^^^^^^^^^
""",
    compiled=(
        "'c[…] = value': the value must be a register tile, got int32: numpipe.full((64, 64), "
        "value, c.dtype) is one; fix for a sum that began with a "
        "number, as 0 + tile: begin with numpipe.zeros((64, 64), np.float32)"
    ),
    kind=SpecError,
    fix={"x = 1": "x = numpipe.full((64, 64), 1.0, np.float32)"},
)
refused(
    "a_type_with_a_slip_of_the_pen",
    """
    x = numpipe.zeros((64, 64), np.float32).astype("flaot16")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated="TypeError: data type 'flaot16' not understood",
    compiled=(
        '`numpipe.zeros((64, 64), np.float32).astype("flaot16")` cannot be compiled: TypeError: '
        "data type 'flaot16' not understood"
    ),
    fix={"flaot16": "float16"},
)
refused(
    "an_attribute_on_a_line_of_its_own",
    """
    x = (numpipe.zeros((64, 64), np.float32)
         .astype(np.float16)
         .nothing)
    #     ^^^^^^^
""",
    simulated="AttributeError: 'tile' object has no attribute 'nothing'",
    compiled="`nothing` cannot be compiled: tile (64, 64) float16 has no attribute 'nothing'",
)
refused(
    "a_store_over_two_lines",
    """
    c[ds(0, 64),
  # ^^^^^^^^^^^^
      ds(0, 32)] = numpipe.zeros((64, 64), np.float32)
""",
    "'c[…] = tile': the index selects (64, 32), but the tile is (64, 64)",
    kind=SpecError,
    fix={"ds(0, 32)": "ds(0, 64)"},
)

# ---- strips of a tile
refused(
    "strips_that_do_not_divide_a_tile",
    """
    def same(x, first):
        return x
    c[ds(0, 64), ds(0, 64)] = numpipe.map_columns(same, numpipe.zeros((64, 64), np.float32), 24)
    #                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "map_columns: width=24: expected a multiple of 8 that divides the 64 columns of a tile (64, "
    "64)",
    kind=SpecError,
    fix={"24)": "32)"},
)
refused(
    "a_strip_of_another_shape",
    """
    def wide(x, first):
        return numpipe.zeros((64, 64), np.float32)
    c[ds(0, 64), ds(0, 64)] = numpipe.map_columns(wide, numpipe.zeros((64, 64), np.float32), 16)
    #                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "map_columns: function(strip, first) must return a tile of the strip's shape (64, 16), of any "
    "dtype, got float32 (64, 64)",
    kind=SpecError,
    fix={"return numpipe.zeros((64, 64)": "return numpipe.zeros((64, 16)"},
)
refused(
    "strips_of_a_vector",
    """
    def same(x, first):
        return x
    vector = numpipe.full((64,), 0.0, np.float32)
    acc = numpipe.zeros((64, 64), np.float32) + numpipe.map_columns(same, vector, 16)
    #                                           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    c[ds(0, 64), ds(0, 64)] = acc
""",
    "map_columns: only a two-dimensional tile has strips of columns, got float32 (64,) (either "
    "layout)",
    kind=SpecError,
)
refused(
    "a_product_whose_b_is_not_k_major",
    """
    for (k,), (x, y) in numpipe.pipeline(grid=(1,), in_specs=(
            spec, spec))(a, b):
        acc = numpipe.wgmma(None, x, y)
    #         ^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma: b (64, 64) of float8_e4m3fn must be K-major (contiguous along K), the only order that "
    "wgmma supports for this type; fix: pass np.ascontiguousarray(b.T), of shape (N, K), and "
    "multiply by b_tile.T",
    kind=SpecError,
    args=NARROW,
    fix={"x, y)\n": "x, y.T)\n"},
)
refused(
    "a_product_whose_a_is_not_k_major",
    """
    for (k,), (x, y) in numpipe.pipeline(grid=(1,), in_specs=(
            spec, spec))(a, b):
        acc = numpipe.wgmma(None, x.T, y.T)
    #         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma: a (64, 64) of float32 must be K-major (contiguous along K), the only order that wgmma "
    "supports for this type; fix: pass np.ascontiguousarray(a), of shape (M, K), and multiply by "
    "a_tile",
    kind=SpecError,
    args=(A.astype("f4"), B.astype("f4"), C),
    fix={"x.T": "x"},
)
refused(
    "a_product_of_integers_with_40_columns",
    """
    x, y = numpipe.scratch((numpipe.SMEM((64, 64), np.int8), numpipe.SMEM((40, 64), np.uint8)))
    acc = numpipe.wgmma(None, x, y.T)
    #     ^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma: a (64, 64) x b (64, 40): M must be a multiple of 64, K a multiple of 32, and N a "
    "multiple of 16, or 8 or 24, up to 256",
    kind=SpecError,
)
refused(
    "a_product_of_tf32_over_20",
    """
    x, y = numpipe.scratch((numpipe.SMEM((64, 20), np.float32), numpipe.SMEM((64, 20), np.float32)))
    acc = numpipe.wgmma(None, x, y.T)
    #     ^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma: a (64, 20) x b (20, 64): M must be a multiple of 64, K a multiple of 8, and N a "
    "multiple of 8 up to 256",
    kind=SpecError,
)
refused(
    "a_product_of_bytes_in_registers",
    """
    for (k,), (x, y) in numpipe.pipeline(grid=(1,), in_specs=(
            spec, spec))(a, b):
        acc = numpipe.wgmma(None, x[...], y.T)
    #         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma: a is a float8_e4m3fn register tile, but an A operand in registers must have 16 bits; "
    "fix: write a.astype(b.dtype), with b of float16 or bfloat16",
    kind=SpecError,
    args=NARROW,
)
refused(
    "a_sum_of_bytes",
    """
    x = a[ds(0, 64), ds(0, 64)] + 1.0
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'+' takes tiles of float32 or int32, got float8_e4m3fn; fix: use .astype(np.float32) first",
    kind=SpecError,
    args=NARROW,
    fix={"ds(0, 64)] +": "ds(0, 64)].astype(np.float32) +"},
)
refused(
    "a_choice_of_bytes",
    """
    x = numpipe.iota((64, 64)).astype(ml_dtypes.float8_e5m2)
    y = np.where(numpipe.iota((64, 64)) < 3, x, x)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "np.where of float8_e5m2 tiles, which can only be converted, loaded and stored; fix: select "
    "before astype",
    kind=SpecError,
    fix={".astype(ml_dtypes.float8_e5m2)": "", "x, x)": "x, x).astype(ml_dtypes.float8_e5m2)"},
)
refused(
    "a_tile_full_of_bytes",
    """
    x = numpipe.full((64, 64), 1, ml_dtypes.float8_e5m2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "full: a tile of float8_e5m2 cannot be created directly; fix: create one of float32 or int32, "
    "and convert it with astype",
    kind=SpecError,
    fix={"1, ml_dtypes.float8_e5m2)": "1, np.int32).astype(ml_dtypes.float8_e5m2)"},
)
refused(
    "a_number_of_a_byte",
    """
    x = a[0, 0]
    #   ^^^^^^^
""",
    "a[…]: an element of type float8_e4m3fn cannot be loaded as a number; fix: load a tile, and "
    "convert it with astype",
    kind=SpecError,
    args=NARROW,
    fix={"a[0, 0]": "a[ds(0, 64), ds(0, 64)].astype(np.float32)"},
)
refused(
    "bits_of_another_size",
    """
    x = numpipe.bitcast(numpipe.full((64, 64), 1.0, np.float32), np.int8)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "bitcast of a float32 tile to int8: expected a type of 32 bits, int32, uint32 or float32; "
    "fix: use astype to convert",
    kind=SpecError,
    fix={
        "numpipe.bitcast(numpipe.full((64, 64), 1.0, np.float32), np.int8)": (
            "numpipe.full((64, 64), 1.0, np.float32).astype(np.int8)"
        ),
    },
)
refused(
    "bits_of_a_mask",
    """
    x = numpipe.bitcast(numpipe.iota(64) < 3, np.int32)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "bitcast of a mask to int32: a mask has no bits of its own; fix: use .astype(np.int32)",
    kind=SpecError,
    fix={
        "numpipe.bitcast(numpipe.iota(64) < 3, np.int32)": "(numpipe.iota(64) < 3).astype(np.int32)"
    },
)
refused(
    "bits_of_a_number",
    """
    x = numpipe.bitcast(1.0, np.int32)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "bitcast: tile must be a register tile, got float",
    kind=SpecError,
    compiled="bitcast: tile must be a register tile, got float64",
)
refused(
    "an_unsigned_tile_and_a_fraction",
    """
    x = numpipe.full((64, 64), 1, np.uint32) + 0.5
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'+' of a uint32 tile and a float; fix: convert the tile, .astype(np.float32)",
    kind=SpecError,
    fix={"np.uint32) +": "np.uint32).astype(np.float32) +"},
)
refused(
    "a_sum_of_small_integers",
    """
    x = numpipe.full((64, 64), 1, np.int8).sum()
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "sum expects a float32, int32 or uint32 tile, got int8; fix: use .astype(np.int32) first",
    kind=SpecError,
    fix={".sum()": ".astype(np.int32).sum()"},
)

# ---- atomics on shared memory
refused(
    "a_shared_atomic_of_halves",
    """
    bins = numpipe.scratch(numpipe.SMEM((64,), np.float16))
    bins[...] = numpipe.full(64, 0.0, np.float32).astype(np.float16)
    numpipe.atomic_add(bins.at[numpipe.iota(64)], 1.0)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "atomic_add: expected int32, uint32, float32 for this reduction in shared memory, got float16",
    kind=SpecError,
    fix={"np.float16)": "np.float32)"},
)
refused(
    "indices_into_a_shared_matrix",
    """
    bins = numpipe.scratch(numpipe.SMEM((64, 64), np.int32))
    numpipe.atomic_add(bins.at[numpipe.iota(64)], 1)
    #                  ^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "tile.at[indices]: an int32 register tile can index only a one-dimensional shared tile, "
    "SMEM((n,), …), got int32 (64,) (either layout) for a tile (64, 64)",
    kind=SpecError,
)
refused(
    "a_shared_atomic_of_another_type",
    """
    bins = numpipe.scratch(numpipe.SMEM((64,), np.int32))
    bins[...] = numpipe.full(64, 0, np.int32)
    numpipe.atomic_max(bins, numpipe.full(64, 1.0, np.float32))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "atomic_max: the tile is int32 (64,), but the value is float32 (64,): both must have the same "
    "type and shape",
    kind=SpecError,
    fix={"1.0, np.float32": "1, np.int32"},
)
refused(
    "a_number_for_a_whole_shared_tile",
    """
    bins = numpipe.scratch(numpipe.SMEM((64,), np.int32))
    bins[...] = numpipe.full(64, 0, np.int32)
    numpipe.atomic_add(bins, 1)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated="atomic_add(tile, value): the second argument must be a register tile, got int",
    compiled="atomic_add(tile, value): the second argument must be a register tile, got int32",
    kind=SpecError,
    fix={"bins, 1": "bins, numpipe.full(64, 1, np.int32)"},
)

# ---- limits
refused(
    "a_limit_of_a_view",
    """
    numpipe.atomic_add(c.at[ds(0, 64, stop=32), ds(0, 64)], numpipe.zeros((64, 64), np.float32))
    #                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "c.at[…]: stop= of ds(…) is supported only in loads from arrays, array[…], and stores to "
    "them, array[…] = tile; fix: leave out stop=",
    kind=SpecError,
    fix={", stop=32": ""},
)
refused(
    "a_limit_of_a_shared_tile",
    """
    for (k,), (x,) in pipe(a):
        y = x[ds(0, 64, stop=32), :]
    #       ^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "a tile in shared memory: stop= of ds(…) is supported only in loads from arrays, array[…], "
    "and stores to them, array[…] = tile; fix: leave out stop=",
    kind=SpecError,
    fix={", stop=32": ""},
)
refused(
    "a_limit_that_is_a_fraction",
    """
    x = c[ds(0, 64, stop=32.5), ds(0, 64)]
    #     ^^^^^^^^^^^^^^^^^^^^
""",
    simulated="ds(start, size, stop): stop must be an integer, got float; fix: int(x) truncates a "
    "float",
    compiled="ds(start, size, stop): stop must be an integer, got float64; fix: int(x) truncates "
    "a float",
    kind=SpecError,
    fix={"32.5": "32"},
)

# operations that would have to move values between registers
refused(
    "a_transpose_of_registers",
    """
    x = b[ds(0, 64), ds(0, 64)]
    y = x.T
    #   ^^^
""",
    "x.T of a register tile (64, 64): other lanes would have its elements; fix: store it to "
    "shared memory, tile[...] = x, and load tile.T[...]",
    kind=SpecError,
)
refused(
    "a_transpose_of_a_column",
    """
    x = b[ds(0, 64), ds(0, 64)].astype(np.float32).sum(axis=1)
    y = x[:, None].T
    #   ^^^^^^^^^^^^
""",
    "x.T of a register tile (64, 1): other lanes would have its elements; fix: "
    'numpipe.layout_cast(x.reshape(-1), "row").reshape(1, 64)',
    kind=SpecError,
    fix={
        "x[:, None].T": 'numpipe.layout_cast(x[:, None].reshape(-1), "row").reshape(1, 64)',
    },
)
refused(
    "a_tile_that_is_converted_as_a_number_is",
    """
    for (k,), (x,) in pipe(a):
        acc = acc + np.float32(x[...])
    #               ^^^^^^^^^^^^^^^^^^
    c[ds(0, 64), ds(0, 64)] = acc
""",
    "float32(…) converts a number, got a register tile (64, 64) of float16: write "
    "tile.astype(np.float32)",
    kind=SpecError,
    fix={"np.float32(x[...])": "x[...].astype(np.float32)"},
)
