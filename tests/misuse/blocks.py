"""Invalid blocks: squeezed and element dimensions, blocks out of bounds, stores to 3-D arrays."""

from __future__ import annotations

import numpy as np

from numpipe import CompileError, SimulationError, SpecError
from tests.kernels.refusals import A, B, C, Cases

A3, C3 = np.ones((2, 128, 128), np.float16), np.zeros((2, 64, 64), np.float32)
THREE = A3, B, C3
REFUSED_INDEX = (
    "array 'c' has 3 dimensions: expected c[…] with ds(start, size) along one or two "
    "of them and an integer along each of the others, got "
)
refused = Cases()

# block shapes
refused(
    "a_block_of_the_whole_array",
    """
    spec = BlockSpec(None, lambda k: (0, k))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec: block_shape=None, the whole array: a block's sides are compile-time "
    "constants and shapes are run-time values. Say sides as large as the array (literals, "
    "fields of a Static) and leave index_map out: the block at the origin, loaded once",
    kind=SpecError,
    fix={"None, lambda k: (0, k)": "(64, 128)"},
)
refused(
    "a_side_that_is_a_string",
    """
    spec = BlockSpec((64, "64"), lambda k: (0, k))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec: block_shape must be a tuple of ints, None (squeezed) and "
    "numpipe.Element(size), got (64, '64')",
    kind=SpecError,
    fix={'"64"': "64"},
)
refused(
    "an_element_of_no_size",
    """
    spec = BlockSpec((Element(0), 64), lambda k: (0, k))
    #                 ^^^^^^^^^^
""",
    "Element: size must be an int of 1…65536, got 0",
    kind=SpecError,
    fix={"(0)": "(64)"},
)
refused(
    "an_element_of_run_time_size",
    """
    spec = BlockSpec((Element(a.shape[0]), 64), lambda k: (0, k))
    #                 ^^^^^^^^^^^^^^^^^^^
""",
    "Element: size must be a compile-time constant, not a run-time int32: pass a literal, a "
    "constant of the module or a Static field",
    kind=SpecError,
    fix={"a.shape[0]": "64"},
)
refused(
    "an_element_without_a_size",
    """
    spec = BlockSpec((Element(), 64), lambda k: (0, k))
    #                 ^^^^^^^^^
""",
    "Element(size): argument 'size' missing",
    fix={"Element()": "Element(64)"},
)
refused(
    "a_tile_of_three_dimensions",
    """
    spec = BlockSpec((1, 64, 64), lambda k: (0, 0, k))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec: block_shape (1, 64, 64) leaves a tile of 3 dimensions, (1, 64, 64); tiles "
    "have 1 or 2: squeeze dimensions of one element: write None",
    kind=SpecError,
    args=THREE,
    fix={"(1, 64, 64)": "(None, 64, 64)"},
)
refused(
    "a_tile_of_no_dimension",
    """
    spec = BlockSpec((None, None), lambda k: (0, k))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec: block_shape (None, None) leaves a tile of 0 dimensions, (); tiles have 1 or "
    "2: None leaves a dimension out of it",
    kind=SpecError,
)
refused(
    "a_squeezed_last_dimension",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64, None), lambda k: (0, 0, k)),))
    for _, (x,) in pipe(a):
    #              ^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-1}: in_specs[0] for 'a': block_shape (64, 64, None) squeezes "
    "dimension 2, which is contiguous, and TMA moves at least 16 B of that: pass a copy of "
    "the array whose last dimension is one of the tile's",
    kind=SpecError,
    args=THREE,
)
refused(
    "a_squeezed_dimension_of_a_column_major_array",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((None, 64, 64), lambda k: (0, 0, k)),))
    for _, (x,) in pipe(a):
    #              ^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-1}: in_specs[0] for 'a': block_shape (None, 64, 64) squeezes "
    "dimension 0, which is contiguous, and TMA moves at least 16 B of that: the array is "
    "column-major; pass np.ascontiguousarray of it",
    kind=SpecError,
    args=(np.asfortranarray(A3), B, C3),
)
refused(
    "a_vector_of_8_bytes",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((None, 4), lambda k: (0, k)),))
    for _, (x,) in pipe(a):
    #              ^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-1}: in_specs[0] for 'a': block (4,) of float16 is 8 B, but "
    "TMA moves multiples of 16 B; fix: make it a multiple of 8 elements",
    kind=SpecError,
    fix={"4)": "8)"},
)
refused(
    "a_vector_with_a_swizzle",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(
        BlockSpec((None, 64), lambda k: (0, k), transforms=(numpipe.SwizzleTransform(64),)),))
    for _, (x,) in pipe(a):
    #              ^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-2}: in_specs[0] for 'a': block (64,) has one dimension, "
    "whose elements are contiguous; fix: leave out transforms=",
    kind=SpecError,
)
refused(
    "two_parts_of_a_vector",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((None, 64), lambda k: (0, k)),))
    for _, (x,) in pipe(a):
        _ = x[ds(0, 64), :]
    #       ^^^^^^^^^^^^^^^
""",
    simulated=("a tile (64,) is indexed by ds(start, size) or ':', or by ..., got (ds(0, 64), :)"),
    compiled=("a tile (64,) is indexed by ds(start, size) or ':', or by ..., got (ds(64), :)"),
    kind=SpecError,
)
refused(
    "a_part_past_a_vector",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((None, 64), lambda k: (0, k)),))
    for _, (x,) in pipe(a):
        _ = x[ds(8, 64)]
    #       ^^^^^^^^^^^^
""",
    compiled="tile[…]: elements 8 … 71 are not in a tile (64,) in shared memory; fix: select "
    "elements in 0 … 63",
    kind=SpecError,
)
refused(
    "a_block_of_six_dimensions",
    """
    spec = BlockSpec((None, None, None, None, 64, 64), lambda k: (0, 0, 0, 0, 0, k))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec: block_shape (None, None, None, None, 64, 64) has 6 dimensions, and TMA "
    "addresses at most 5: reshape the array, so that dimensions that are contiguous together "
    "are one",
    kind=SpecError,
    args=(np.ones((1, 1, 1, 1, 64, 64), np.float16), B, C),
)
refused(
    "a_squeezed_block_of_8_bytes",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((None, 64, 4), lambda k: (0, 0, k)),))
    for _, (x,) in pipe(a):
    #              ^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-1}: in_specs[0] for 'a': block (64, 4) of float16 is 8 B "
    "along its contiguous dimension 1, but TMA moves multiples of 16 B; fix: make that side a "
    "multiple of 8 elements",
    kind=SpecError,
    args=THREE,
)
refused(
    "a_block_for_several_ctas",
    """
    spec = BlockSpec((64, 64), lambda k: (0, k), collective_axes="cluster")
    pipe = numpipe.pipeline(grid=(1,), in_specs=(spec,))
    for _, (x,) in pipe(a):
    #              ^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-1}: in_specs[0] for 'a': collective_axes has 'cluster', "
    "which is not an axis of the cluster: the kernel names none: @numpipe.kernel(cluster=(2,), "
    "cluster_names=('cluster',))",
    kind=SpecError,
    fixed_options={"grid": (2,), "cluster": (2,), "cluster_names": ("cluster",)},
)
refused(
    "a_block_shared_twice",
    """
    spec = BlockSpec((64, 64), lambda k: (0, k), collective_axes=("x", "x"))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec: collective_axes must be the name of an axis of the cluster (cluster_names= "
    "of the kernel), or a tuple of different ones, got ('x', 'x')",
    kind=SpecError,
)
refused(
    "a_mode_of_an_operand",
    """
    spec = BlockSpec((64, 64), lambda k: (0, k), pipeline_mode=2)
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec(block_shape=None, index_map=None, *, memory_space=None, transforms=(), "
    "delay_release=None, oob_fill='zeros', buffer_count=None, eviction_policy=None, "
    "collective_axes=None, mode=None): it has no argument 'pipeline_mode'",
)
refused(
    "an_element_with_padding",
    """
    spec = BlockSpec((Element(64, (1, 1)), 64), lambda k: (0, k))
    #                 ^^^^^^^^^^^^^^^^^^^
""",
    "Element(size): 2 positional arguments given, it takes 1",
)
refused(
    "a_block_of_one_row",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((1, 64), lambda k: (0, k)),))
    for _, (x,) in pipe(a):
    #              ^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-1}: in_specs[0] for 'a': block (1, 64) has 1 rows along the "
    "dimension that is not contiguous, but rows in shared memory are swizzled in groups of 8; "
    "fix: make that side a multiple of 8, or None, which makes the row a vector",
    kind=SpecError,
    fix={"(1, 64)": "(None, 64)"},
)
refused(
    "a_block_of_60_rows",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((60, 64), lambda k: (0, k)),))
    for _, (x,) in pipe(a):
    #              ^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-1}: in_specs[0] for 'a': block (60, 64) has 60 rows along "
    "the dimension that is not contiguous, but rows in shared memory are swizzled in groups of "
    "8; fix: make that side a multiple of 8",
    kind=SpecError,
    fix={"(60, 64)": "(64, 64)"},
)

# index maps
refused(
    "an_index_map_to_two_of_three",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((None, 64, 64), lambda k: (0, k)),))
    for _, (x,) in pipe(a):
  # ^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-1}: in_specs[0] for 'a': index_map must return a tuple of 3 "
    "integer block indices, got (int32, int32)",
    kind=SpecError,
    args=THREE,
    fix={"lambda k: (0, k)": "lambda k: (0, 0, k)"},
)
refused(
    "an_index_map_of_too_many_indices",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(
        BlockSpec((None, 64, 64), lambda m, k: (0, m, k)),))
    #                             ^^^^^^^^^^^^^^^^^^^^^^
""",
    "in_specs[0]: index_map takes 2 indices, but the pipeline's grid has 1",
    args=THREE,
    fix={"lambda m, k: (0, m, k)": "lambda k: (0, 0, k)"},
)
refused(
    "a_squeezed_index_that_is_the_warpgroup",
    """
    wg = numpipe.axis_index("wg")
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((None, 64, 64), lambda k: (wg, 0, k)),))
    for _, (x,) in pipe(a):
  # ^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    simulated=(
        "the warpgroup axis steers control flow, a grid or an index, but loads must not depend "
        "on tile data or on the warpgroup axis, because the memory role has no such value: use "
        "it in tile.at[…] and in stores"
    ),
    compiled=(
        ", pipeline at {file}:{line-1}: in_specs[0] for 'a': index_map: the warpgroup axis "
        "steers control flow, a grid or an index, but loads must not depend on tile data or on the "
        "warpgroup axis, because the memory role has no such value: use it in tile.at[…] and in "
        "stores"
    ),
    kind=CompileError,
    args=THREE,
)
refused(
    "a_constant_start_that_is_not_aligned",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, Element(64)), lambda k: (k, 4)),))
    for _, (x,) in pipe(a):
    #              ^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-1}: in_specs[0] for 'a': index_map returned element 4 for "
    "dimension 1, which is contiguous: there a block starts at a multiple of 16 B, 8 "
    "elements; an H200 stops with an illegal instruction otherwise",
    kind=SpecError,
    fix={"(k, 4)": "(k, 8)"},
)
refused(
    "a_run_time_start_that_is_not_aligned",
    """
    spec = BlockSpec((64, Element(64)), lambda k: (0, 12 * k))
    pipe = numpipe.pipeline(grid=(4,), in_specs=(spec,))
    for _, (x,) in pipe(a):
  # ^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    simulated=(
        ", pipeline at {file}:{line-1}: in_specs[0] for 'a': index_map returned element 12 for "
        "dimension 1, which is contiguous: there a block starts at a multiple of 16 B, 8 "
        "elements; an H200 stops with an illegal instruction otherwise"
    ),
    kind=SpecError,
    fix={"12 * k": "16 * k"},
)

# out of bounds
refused(
    "ones_outside",
    """
    spec = BlockSpec((64, 64), lambda k: (0, k), oob_fill="ones")
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec: oob_fill must be 'zeros' or 'nan', got 'ones'",
    kind=SpecError,
    fix={'"ones"': '"nan"'},
)
refused(
    "a_fill_known_at_run_time",
    """
    spec = BlockSpec((64, 64), lambda k: (0, k), oob_fill=a.shape[0])
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec: oob_fill must be a compile-time constant, not a run-time int32: pass a "
    "literal, a constant of the module or a Static field",
    kind=SpecError,
    fix={"a.shape[0]": '"zeros"'},
)
refused(
    "nan_around_integers",
    """
    spec = BlockSpec((64, 64), lambda k: (0, k), oob_fill="nan")
    pipe = numpipe.pipeline(grid=(1,), in_specs=(spec,))
    for _, (x,) in pipe(a):
    #              ^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-1}: in_specs[0] for 'a': oob_fill='nan', but int16 has no "
    "NaN that TMA knows: use 'zeros'",
    kind=SpecError,
    args=(A.astype(np.int16), B, C),
    fix={'"nan"': '"zeros"'},
)

# L2 policies
refused(
    "a_policy_that_there_is_not",
    """
    spec = BlockSpec((64, 64), lambda k: (0, k), eviction_policy="evict_normal")
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec: eviction_policy must be 'evict_first', 'evict_last' or None, got 'evict_normal'",
    kind=SpecError,
    fix={"evict_normal": "evict_first"},
)
refused(
    "a_policy_known_at_run_time",
    """
    spec = BlockSpec((64, 64), lambda k: (0, k), eviction_policy=a.shape[0])
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec: eviction_policy must be a compile-time constant, not a run-time int32: pass "
    "a literal, a constant of the module or a Static field",
    kind=SpecError,
    fix={"a.shape[0]": '"evict_last"'},
)

# stores
refused(
    "a_store_by_two_of_three_indices",
    """
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
  # ^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=REFUSED_INDEX + "(ds(0, 64), ds(0, 64))",
    compiled=REFUSED_INDEX + "(ds(64), ds(64))",
    kind=SpecError,
    args=THREE,
    fix={"c[ds": "c[0, ds"},
)
refused(
    "a_store_along_three_dimensions",
    """
    c[ds(0, 64), ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=REFUSED_INDEX + "(ds(0, 64), ds(0, 64), ds(0, 64))",
    compiled=REFUSED_INDEX + "(ds(64), ds(64), ds(64))",
    kind=SpecError,
    args=THREE,
    fix={"c[ds(0, 64), ": "c[0, "},
)
refused(
    "a_store_at_a_fraction",
    """
    c[0.5, ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=REFUSED_INDEX + "(float32, ds(0, 64), ds(0, 64))",
    compiled=REFUSED_INDEX + "(float32, ds(64), ds(64))",
    kind=SpecError,
    args=THREE,
    fix={"0.5": "0"},
)
refused(
    "a_store_to_one_dimension",
    """
    c[ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
  # ^^^^^^^^^^^^
""",
    "'c[…] = tile': the index selects (64,), but the tile is (64, 64)",
    kind=SpecError,
    args=(A, B, np.zeros(64, np.float32)),
)
refused(
    "a_store_behind_the_last_index",
    """
    c[a.shape[0], ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "'c[…] = tile': index 2 along dimension 0 is outside the array's 2; the GPU writes "
        "nothing there"
    ),
    kind=SimulationError,
    args=THREE,
)
refused(
    "a_store_before_the_first_index",
    """
    c[-1, ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "'c[…] = tile': index -1 along dimension 0 is outside the array's 2; a TMA store stops "
        "the kernel there"
    ),
    kind=SimulationError,
    args=THREE,
)
