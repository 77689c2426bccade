"""Misused reductions and votes of register tiles, stores of vectors, atomics and gathered
blocks."""

from __future__ import annotations

import numpy as np

from numpipe import SimulationError, SpecError
from numpipe.core.inert import REASON
from tests.kernels.refusals import A, B, Cases

DECIDES = (
    "{} decides {}, but the memory role, which issues the loads, has no such value; fix: move that "
    "out of the 'if', and leave stores, atomics and arrivals in it"
)

LOADED = "; tile[...] loads a shared-memory tile to registers"
MASK = "a mask, of whose elements np.any(mask) or np.all(mask) make one bool,"
# stores of vectors to arrays, atomics, gathered blocks
SUMS = np.zeros(64, np.float32)
refused = Cases()

# reductions
refused(
    "a_sum_of_float16",
    """
    m = b[ds(0, 64), ds(0, 64)].sum(axis=1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "sum: a float16 tile would be rounded at each step; fix: use .astype(np.float32) first",
    kind=SpecError,
    fix={".sum(": ".astype(np.float32).sum("},
)
refused(
    "a_sum_along_a_third_axis",
    """
    m = numpipe.zeros((64, 64), np.float32).sum(axis=2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "sum: axis must be None or an int from -2 to 1 for shape (64, 64), got 2",
    kind=SpecError,
    fix={"axis=2": "axis=1"},
)
refused(
    "a_vote_on_floats",
    """
    m = np.any(numpipe.zeros((64, 64), np.float32))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "any expects a mask, such as x < y, got float32",
    kind=SpecError,
    fix={"np.float32))": "np.float32) < 1.0)"},
)
refused(
    "a_sum_of_a_mask",
    """
    m = (numpipe.iota(64) < 3).sum()
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "sum of a mask; fix: count with mask.astype(np.int32).sum(), or test np.any(mask)",
    kind=SpecError,
    fix={"< 3)": "< 3).astype(np.int32)"},
)
refused(
    "a_mean_of_a_mask",
    """
    m = np.mean(numpipe.iota(64) < 3)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "mean of a mask; fix: count with mask.astype(np.int32).sum(), or test np.any(mask)",
    kind=SpecError,
    fix={"np.mean(": "np.any("},
)
refused(
    "an_index_along_no_axis",
    """
    m = numpipe.zeros((64, 64), np.float32).argmax(axis=-3)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "argmax: axis must be None or an int from -2 to 1 for shape (64, 64), got -3",
    kind=SpecError,
    fix={"axis=-3": "axis=-1"},
)
refused(
    "an_index_along_an_axis_of_run_time",
    """
    m = np.argmin(numpipe.zeros((64, 64), np.float32), axis=a.shape[0])
    #                                                       ^^^^^^^^^^
""",
    "np.argmin: axis must be a compile-time constant",
    fix={"a.shape[0]": "1"},
)
refused(
    "a_mean_with_too_many_arguments",
    """
    m = b[ds(0, 64), ds(0, 64)].mean(0, 1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "b[ds(0, 64), ds(0, 64)].mean(axis=None, keepdims=False) in a kernel, got b[ds(0, 64), "
    "ds(0, 64)].mean(0, 1)",
)
refused(
    "a_running_sum_without_an_axis",
    """
    m = np.cumsum(numpipe.zeros((64, 64), np.float32))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "cumsum: axis must be 0 or 1 for shape (64, 64); without an axis, NumPy scans the flattened "
    "array, which is not supported",
    kind=SpecError,
    fix={"np.float32))": "np.float32), axis=1)"},
)
refused(
    "a_running_sum_along_a_third_axis",
    """
    m = numpipe.zeros((64, 64), np.float32).cumsum(axis=2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "cumsum: axis must be a compile-time int from -2 to 1 for shape (64, 64), got 2",
    kind=SpecError,
    fix={"axis=2": "axis=1"},
)
refused(
    "a_running_sum_of_float16",
    """
    m = b[ds(0, 64), ds(0, 64)].cumsum(axis=1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "cumsum takes tiles of float32 or int32, got float16 (64, 64); fix: use .astype(np.float32) "
    "first",
    kind=SpecError,
    fix={".cumsum(": ".astype(np.float32).cumsum("},
)
refused(
    "a_running_count_of_a_mask",
    """
    m = np.cumsum(numpipe.iota(64) < 3)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "cumsum takes tiles of float32 or int32, got bool (64,) (either layout); fix: use "
    ".astype(np.int32) first",
    kind=SpecError,
    fix={"numpipe.iota(64) < 3": "(numpipe.iota(64) < 3).astype(np.int32)"},
)
refused(
    "a_running_sum_of_another_type",
    """
    m = np.cumsum(numpipe.iota(64), dtype="float32")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "np.cumsum(tile, axis=None) in a kernel, got np.cumsum(numpipe.iota(64), dtype='float32')",
    fix={', dtype="float32"': ""},
)
refused(
    "the_floor_of_a_mask",
    """
    m = np.floor(numpipe.iota(64) < 3)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'np.floor' takes tiles of float32 or int32, got a mask; fix: use .astype(np.float32) first",
    kind=SpecError,
    fix={"numpipe.iota(64) < 3": "(numpipe.iota(64) < 3).astype(np.float32)"},
)
refused(
    "integers_clipped_by_floats",
    """
    m = np.clip(numpipe.iota(64), 0.5, 2.5)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'np.clip' of an int32 tile and a float; fix: convert the tile, .astype(np.float32)",
    kind=SpecError,
    fix={"iota(64)": "iota(64).astype(np.float32)"},
)
refused(
    "a_clip_without_bounds",
    """
    m = np.clip(numpipe.iota(64), None, None)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "np.clip(x, low, high): one of the two bounds may be None, not both",
    kind=SpecError,
    fix={"None, None": "None, 2"},
)
refused(
    "a_clip_with_one_argument",
    """
    m = np.clip(numpipe.iota(64), 2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "np.clip takes 3 arguments in a kernel, (a, a_min, a_max), got np.clip(numpipe.iota(64), 2)",
    fix={"iota(64), 2": "iota(64), 0, 2"},
)
refused(
    "nan_of_a_tile_in_shared_memory",
    """
    for (k,), (y,) in pipe(b):
        x = np.isnan(y)
    #       ^^^^^^^^^^^
""",
    simulated="np.isnan(…) takes register tiles and numbers, got shared-memory tile" + LOADED,
    compiled="np.isnan(…) takes register tiles and numbers, got shared-memory tile (64, 64) float16"
    + LOADED,
    kind=SpecError,
    fix={"isnan(y)": "isnan(y[...])"},
)
refused(
    "a_sum_of_a_tile_in_shared_memory",
    """
    for (k,), (y,) in pipe(b):
        x = np.sum(y, axis=1)
    #       ^^^^^^^^^^^^^^^^^
""",
    simulated="sum: tile must be a register tile, got shared-memory tile" + LOADED,
    compiled="sum: tile must be a register tile, got shared-memory tile (64, 64) float16" + LOADED,
    kind=SpecError,
    fix={"sum(y,": "sum(y[...].astype(np.float32),"},
)
refused(
    "a_mask_along_a_third_axis",
    """
    x = np.any(numpipe.iota((64, 64)) < 3, axis=2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "any: axis must be None or an int from -2 to 1 for shape (64, 64), got 2",
    kind=SpecError,
    fix={"axis=2": "axis=1"},
)
refused(
    "a_variance_of_a_sample",
    """
    x = np.var(numpipe.iota(64), ddof=1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "np.var(tile, axis=None, keepdims=False) in a kernel, got np.var(numpipe.iota(64), ddof=1)",
    fix={", ddof=1": ""},
)
refused(
    "partial_sums_of_a_vector",
    """
    x = numpipe.partial_sum(numpipe.full(64, 1.0, np.float32))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "partial_sum(tile) expects a float32 or int32 tile (M, N), got float32 (64,) (either layout)",
    kind=SpecError,
)
refused(
    "a_sum_with_another_option",
    """
    m = np.sum(numpipe.iota(64), dtype="float32")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "np.sum(tile, axis=None, keepdims=False) in a kernel, got np.sum(numpipe.iota(64), "
    "dtype='float32')",
    fix={', dtype="float32"': ""},
)
refused(
    "a_sum_that_is_a_grid",
    """
    for (k,), (y,) in numpipe.pipeline(grid=(numpipe.iota(64).sum(),), in_specs=(spec,))(b):
    #                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
""",
    f", pipeline at {{file}}:{{line}}: grid: a reduction of a register tile {REASON}",
)
refused(
    "a_vote_that_steers_loads",
    """
    if np.any(numpipe.iota(64) < 3):
     # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        for (k,), (y,) in pipe(b):
            c[ds(0, 64), ds(0, 64)] = y[...].astype(np.float32)
""",
    DECIDES.format("a reduction of a register tile", "what is loaded at line {line+2}"),
)
refused(
    "a_warpgroup_that_steers_loads",
    """
    wg = numpipe.axis_index("wg")
    if a.shape[0] > 0 and wg == 0:
     # ^^^^^^^^^^^^^^^^^^^^^^^^^^
        for (k,), (y,) in pipe(b):
            c[ds(0, 64), ds(0, 64)] = y[...].astype(np.float32)
""",
    DECIDES.format("the warpgroup axis", "what is loaded at line {line+2}"),
    fix={"if a.shape[0] > 0 and wg == 0:": "if a.shape[0] > 0:", " c[": " if wg == k: c["},
)
refused(
    "a_warpgroup_that_leaves_a_loop",
    """
    for i in range(2):
        if numpipe.axis_index("wg") == i:
         # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
            break
        for (k,), (y,) in pipe(b):
            c[ds(0, 64), ds(0, 64)] = y[...].astype(np.float32)
""",
    DECIDES.format("the warpgroup axis", "the 'break' of line {line+2}"),
)
refused(
    "a_vote_that_a_loop_asks",
    """
    while np.any(numpipe.iota(64) < a.shape[0]):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        for (k,), (y,) in pipe(b):
            c[ds(0, 64), ds(0, 64)] = y[...].astype(np.float32)
""",
    f"a reduction of a register tile {REASON}",
)
refused(
    "a_mask_that_says_which_block",
    """
    mask = numpipe.iota(64) < 3
    spec = BlockSpec((64, 64), lambda k: (mask, k))
    for (k,), (y,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(b):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        c[ds(0, 64), ds(0, 64)] = y[...].astype(np.float32)
""",
    simulated=f"{MASK} {REASON}",
    compiled=f", pipeline at {{file}}:{{line}}: in_specs[0] for 'b': index_map: {MASK} {REASON}",
)
refused(
    "a_number_that_a_vote_decides",
    """
    steps = 1
    if np.any(numpipe.iota(64) < 3):
        steps = 2
    for (k,), (y,) in numpipe.pipeline(grid=(steps,), in_specs=(spec,))(b):
    #                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
""",
    f", pipeline at {{file}}:{{line}}: grid: a number that an 'if' may have changed {REASON}",
)
refused(
    "a_wait_with_too_many_groups",
    """
    for (k,), (y,) in pipe(b):
        s = numpipe.wgmma_wait(numpipe.wgmma(None, y, y.T), 8)
    #       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wgmma.wait_group: n must be in 0 … 7, the number of groups that may stay in flight, got 8",
    kind=SpecError,
    fix={"), 8)": "), 0)"},
)
refused(
    "a_column_stored_as_a_vector",
    """
    c[ds(0, 64)] = numpipe.zeros((64, 64), np.float32).sum(axis=1, keepdims=True)
  # ^^^^^^^^^^^^
""",
    "'c[…] = tile': the index selects (64,), but the tile is (64, 1)",
    kind=SpecError,
    args=(A, B, SUMS),
    fix={", keepdims=True": ""},
)
an_atomic_of_another_type = refused(
    "an_atomic_of_another_type",
    """
    numpipe.atomic_add(c.at[ds(0, 64)], numpipe.iota(64))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "atomic_add: c.at[…]: the array is float32, but the tile is int32; fix: store "
    "tile.astype(c.dtype)",
    kind=SpecError,
    args=(A, B, SUMS),
    fix={"iota(64)": "iota(64).astype(c.dtype)"},
)
refused.also(
    an_atomic_of_another_type,
    "atomic_add: c.at[…]: the array is float64, but the tile is int32; fix: pass an array of "
    "int32 as 'c'",
    kind=SpecError,
    args=(A, B, SUMS.astype(np.float64)),
)
refused(
    "a_vector_stored_to_float64",
    """
    c[ds(0, 64)] = numpipe.iota(64)
  # ^^^^^^^^^^^^
""",
    "'c[…] = tile': the array is float64, but the tile is int32; fix: pass an array of int32 as "
    "'c'",
    kind=SpecError,
    args=(A, B, SUMS.astype(np.float64)),
)
refused(
    "a_scattered_sum",
    """
    numpipe.atomic_add(c.at[numpipe.iota(64), ds(0, 32)], numpipe.zeros((64, 32), np.float32))
    #                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "c.at[…]: a vector of indices is supported only in loads (gather) and stores (scatter); here "
    "an index has ds(start, size) and integers; fix: write c.at[ds(start, 64), ds(start, 32)]",
    kind=SpecError,
)
refused(
    "a_maximum_of_floats",
    """
    numpipe.atomic_max(c.at[ds(0, 64), ds(0, 64)], numpipe.zeros((64, 64), np.float32))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "atomic_max: expected int32, uint32 for this reduction in global memory, got float32",
    kind=SpecError,
)
refused(
    "a_minimum_of_a_float16_vector",
    """
    numpipe.atomic_min(c.at[ds(0, 64)], numpipe.full(64, 0.0, np.float32).astype(np.float16))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "atomic_min: expected int32, uint32 for this reduction in global memory, got float16; a tile "
    "(M, N) to an array that TMA can store, whose rows are multiples of 16 B, has float16 and "
    "bfloat16 too",
    kind=SpecError,
    args=(A, B, SUMS.astype(np.float16)),
)
refused(
    "an_atomic_without_a_view",
    """
    numpipe.atomic_add(c[ds(0, 64), ds(0, 64)], numpipe.zeros((64, 64), np.float32))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "atomic_add(dst, tile): dst must be a view of an array, got tile; fix: pass "
        "array.at[ds(i, 64), ds(j, 64)]"
    ),
    compiled=(
        "atomic_add(dst, tile): dst must be a view of an array, got tile (64, 64) float32; fix: "
        "pass array.at[ds(i, 64), ds(j, 64)]"
    ),
    kind=SpecError,
    fix={"c[ds": "c.at[ds"},
)
refused(
    "an_atomic_before_the_first_element",
    """
    numpipe.atomic_add(c.at[ds(c.shape[0] - 128, 64)], numpipe.full(64, 1.0, np.float32))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated="atomic_add: c.at[…]: negative start -64: the GPU writes only elements inside the "
    "array",
    kind=SimulationError,
    args=(A, B, SUMS),
)
refused(
    "a_gather_at_fractions",
    """
    x = b[numpipe.full(64, 1.0, np.float32), ds(0, 64)]
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "b[…]: only one part of the index may be a vector of int32, with ds(start, size) and integers "
    "for the others, got float32 (64,) (either layout)",
    kind=SpecError,
)

# ---- scatter stores
refused(
    "rows_scattered_by_fractions",
    """
    c[numpipe.full(64, 1, np.float32), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'c[…] = tile': only one part of the index may be a vector of int32, with ds(start, size) and "
    "integers for the others, got float32 (64,) (either layout)",
    kind=SpecError,
    fix={"numpipe.full(64, 1, np.float32), ds": "numpipe.iota(64), ds"},
)
refused(
    "more_indices_than_rows",
    """
    c[numpipe.iota(128), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'c[…] = tile': the index selects (128, 64), but the tile is (64, 64)",
    kind=SpecError,
    fix={"iota(128)": "iota(64)"},
)
