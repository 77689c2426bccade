"""Layouts of register tiles that do not match, and variables with two layouts."""

from __future__ import annotations

from numpipe import SpecError
from tests.kernels.refusals import Cases

refused = Cases()

# layout casts
refused(
    "a_cast_of_a_tile",
    """
    x = numpipe.layout_cast(numpipe.zeros((64, 64), np.float32), "row")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "layout_cast: the layout of a tile (M, N) must be one of 'accumulator', 'coalesced', got 'row'",
    kind=SpecError,
    fix={'"row"': '"coalesced"'},
)
refused(
    "a_cast_to_no_layout",
    """
    x = numpipe.layout_cast(numpipe.iota(64), "columns")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "layout_cast: the layout of a vector must be one of 'row', 'column', got 'columns'",
    kind=SpecError,
    fix={'"columns"': '"column"'},
)
refused(
    "a_coalesced_tile_to_register_order",
    """
    x = numpipe.to_register_order(numpipe.load_tile(c.at[ds(0, 64), ds(0, 64)]))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "to_register_order(tile): tile must be a register tile in accumulator layout, got float32 "
    "(64, 64) (coalesced 4 layout); fix: numpipe.layout_cast(tile, "
    '"accumulator")',
    kind=SpecError,
    fix={
        "numpipe.load_tile(c.at[ds(0, 64), ds(0, 64)])": (
            'numpipe.layout_cast(numpipe.load_tile(c.at[ds(0, 64), ds(0, 64)]), "accumulator")'
        ),
    },
)
refused(
    "a_tile_that_is_too_small_for_register_order",
    """
    x = numpipe.to_register_order(numpipe.zeros((64, 8), np.float32))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "to_register_order: expected an accumulator of 16-bit or 32-bit elements, with a multiple of "
    "8192 bytes, got float32 (64, 8); fix: a tile (64, 64)",
    kind=SpecError,
    fix={"(64, 8)": "(64, 64)"},
)
refused(
    "another_shape_from_register_order",
    """
    x = numpipe.to_register_order(numpipe.zeros((64, 64), np.float32))
    y = numpipe.from_register_order(x, (64, 128))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "from_register_order: (64, 128) of float32 is (256, 32) in register order, but the tile is "
    "(128, 32); fix: pass the shape that was given to to_register_order",
    kind=SpecError,
    fix={"(64, 128)": "(64, 64)"},
)
refused(
    "a_product_of_a_coalesced_tile",
    """
    for (k,), (y,) in pipe(b):
        p = numpipe.wgmma(None, numpipe.load_tile(a.at[ds(0, 64), ds(0, 64)]), y)
    #       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma: expected a tile in accumulator layout, got (64, 64) in coalesced 8 layout; fix: "
    'numpipe.layout_cast(tile, "accumulator")',
    kind=SpecError,
    fix={
        "numpipe.load_tile(a.at[ds(0, 64), ds(0, 64)])": (
            'numpipe.layout_cast(numpipe.load_tile(a.at[ds(0, 64), ds(0, 64)]), "accumulator")'
        ),
    },
)
refused(
    "a_block_in_no_layout",
    """
    x = numpipe.load_tile(c.at[ds(0, 64), ds(0, 64)], "lines")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    'load_tile: layout must be "coalesced", "accumulator", "rows" or "rows 32" for a tile of two '
    "dimensions, got 'lines'",
    kind=SpecError,
    fix={'"lines"': '"rows"'},
)
refused(
    "a_vector_in_the_layout_of_a_tile",
    """
    x = numpipe.load_tile(c.at[0, ds(0, 64)], "lines")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    'load_tile: layout must be "auto", "row 32" or "column 32" for a vector, got \'lines\'',
    kind=SpecError,
    fix={'"lines"': '"row 32"'},
)
refused(
    "a_block_by_64_lanes",
    """
    x = numpipe.load_tile(c.at[ds(0, 64), ds(0, 64)], "rows 64")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    'load_tile: the layout by rows of a tile (M, N) must be "rows" or "rows L", where L lanes (1, '
    "2, 4, 8, 16 or 32, and 128 except in a column) share a row, got 'rows 64'",
    kind=SpecError,
    fix={"rows 64": "rows 32"},
)
refused(
    "a_product_of_8_rows",
    """
    for (k,), (x, y) in pairs(a, b):
        acc = numpipe.wgmma(numpipe.zeros((8, 64), np.float32), x, y.T)
    #         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma: expected a tile in accumulator layout, got (8, 64) in rows 16 layout; fix: use a tile "
    "of 64, 128 or 192 rows (a multiple of 64) and at most 256 columns",
    kind=SpecError,
)
refused(
    "a_cast_of_a_short_vector",
    """
    x = numpipe.layout_cast(numpipe.iota(40), "column")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "layout_cast: a vector of 40 elements has no column layout: a row layout has a multiple of 8 "
    "elements up to 256, a column layout a multiple of 64",
    kind=SpecError,
)
refused(
    "a_cast_of_a_number",
    """
    x = numpipe.layout_cast(3, "row")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated="layout_cast: tile must be a register tile, got int",
    compiled="layout_cast: tile must be a register tile, got int32",
    kind=SpecError,
)
refused(
    "a_cast_of_a_mask",
    """
    x = numpipe.layout_cast(numpipe.iota((64, 64)) < 3, "coalesced")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "layout_cast: bool has no coalesced layout; fix: cast a tile of 16 or 32 bits, then convert it "
    "with astype",
    kind=SpecError,
)

# a variable with two layouts: types are checked when a kernel is compiled
refused(
    "a_vector_that_is_a_row_and_a_column",
    """
    x = numpipe.zeros((64, 64), np.float32)
    m = x.max(axis=0)
  # ^^^^^^^^^^^^^^^^^
    if a.shape[0] > 3:
        m = x.max(axis=1)
    c[ds(0, 64), ds(0, 64)] = x - m
""",
    compiled=(
        "`m = x.max(axis=0)` cannot be compiled: 'm' has two layouts here, tile (64,) float32 "
        "(row layout) and tile (64,) float32 (column layout); fix: cast one: "
        'numpipe.layout_cast(m, "column")'
    ),
    fix={"x.max(axis=1)": 'numpipe.layout_cast(x.max(axis=1), "row")'},
)
refused(
    "a_vector_that_a_loop_carries",
    """
    x = numpipe.zeros((64, 64), np.float32)
    m = x.max(axis=0)
    for i in range(a.shape[0]):
        m = x.max(axis=1) + m.sum()
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^
    m = m + 1.0
    c[ds(0, 64), ds(0, 64)] = x - m.sum()
""",
    compiled=(
        "`m = x.max(axis=1) + m.sum()` cannot be compiled: 'm' has two layouts here, tile (64,) "
        "float32 (row layout) and tile (64,) float32 (column layout); fix: cast one: "
        'numpipe.layout_cast(m, "column")'
    ),
    fix={"x.max(axis=0)": 'numpipe.layout_cast(x.max(axis=0), "column")'},
)
refused(
    "a_vector_in_either_layout_that_is_a_row_and_a_column",
    """
    x = numpipe.zeros((64, 64), np.float32)
    m = numpipe.full(64, 0.0, np.float32)
    if a.shape[0] > 3:
        m = x.max(axis=0)
    #   ^^^^^^^^^^^^^^^^^
    if a.shape[0] > 4:
        m = x.max(axis=1)
    c[ds(0, 64), ds(0, 64)] = x + m.sum()
""",
    compiled=(
        "`m = x.max(axis=0)` cannot be compiled: 'm' has two layouts here, tile (64,) float32 "
        "(row layout) and tile (64,) float32 (column layout); fix: cast one: "
        'numpipe.layout_cast(m, "column")'
    ),
    fix={"m = x.max(axis=0)": 'm = numpipe.layout_cast(x.max(axis=0), "column")'},
)
refused(
    "a_tile_that_is_coalesced_sometimes",
    """
    x = numpipe.load_tile(c.at[ds(0, 64), ds(0, 64)])
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    if a.shape[0] > 3:
        x = numpipe.zeros((64, 64), np.float32)
    c[ds(0, 64), ds(0, 64)] = x
""",
    compiled=(
        "`x = numpipe.load_tile(c.at[ds(0, 64), ds(0, 64)])` cannot be compiled: 'x' has two "
        "layouts here, tile (64, 64) float32 (coalesced 4 layout) and tile (64, 64) float32 "
        '(accumulator layout); fix: cast one: numpipe.layout_cast(x, "accumulator")'
    ),
)
refused(
    "a_function_of_two_layouts",
    """
    def largest(x, n):
        if n > 3:
            return x.max(axis=0)
        return x.max(axis=1)
    #   ^^^^^^^^^^^^^^^^^^^^

    m = largest(numpipe.zeros((64, 64), np.float32), a.shape[0])  # called
""",
    compiled=(
        "`return x.max(axis=1)` cannot be compiled: it returns two layouts, tile (64,) float32 "
        "(row layout) and tile (64,) float32 (column layout); fix: cast one: "
        'numpipe.layout_cast(x, "column")'
    ),
)
refused(
    "a_choice_of_two_layouts",
    """
    x = numpipe.zeros((64, 64), np.float32)
    m = x.max(axis=0) if a.shape[0] > 3 else x.max(axis=1)
  # ^
    m = m * m + m  # of one layout
""",
    compiled=(
        "`m` cannot be compiled: a conditional expression needs one layout, got tile (64,) float32 "
        "(row layout) and tile (64,) float32 (column layout); fix: cast one: "
        'numpipe.layout_cast(x, "column")'
    ),
)
refused(
    "a_carry_that_changes_its_layout",
    """
    def body(indices, x, m):
        return x[...].astype(np.float32).max(axis=1) + m.sum()

    def compute(pipeline):
        m = pipeline(numpipe.layout_cast(numpipe.full(64, 0.0, np.float32), "row"))
    #       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

    numpipe.emit_pipeline_warp_specialized(body, grid=(1,), compute_context=compute,  # called
                                           in_specs=(spec,))(b)
""",
    ", pipeline at {file}:{line+3}: body 'body' was given the carry tile (64,) float32 (row "
    "layout) and returned tile (64,) float32 (column layout): a carry keeps its layout too: "
    'cast one: numpipe.layout_cast(x, "column")',
    fix={'"row"': '"column"'},
)
