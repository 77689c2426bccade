"""Invalid pipelines and tile loops: blocks, slots, budgets, grids, index maps, and loop targets."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import BlockSpec, SpecError
from tests.kernels.refusals import Cases

SPEC = BlockSpec((64, 64), lambda k: (0, k))
OVERFLOW = (
    "shared memory: {} B, but a CTA has 232448 B: use fewer slots (max_concurrent_steps, "
    "buffer_count), smaller blocks or "
    "fewer store_slots"
)
# Variables that a loop changes. In a simulated call the memory role passes the loop and the error
# comes after it; a compile reports the line in the loop that changes the variable.
KEPT = "'acc' is {} before the pipeline loop of line {{line-1}}, and {} after a step: {}"
BEGIN = "begin it as numpipe.{}, or give one of them another name"
SUMS = np.zeros((128, 64), np.float32), np.zeros((64, 128), np.float32), np.zeros(128, np.float32)
refused = Cases(SPEC=SPEC)

# blocks, rings, budgets
refused(
    "a_block_wider_than_shared_memory",
    """
    spec = BlockSpec((64, 131072), lambda k: (0, k))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec: block_shape (64, 131072) has a side outside 1…65536 elements: split the block",
    kind=SpecError,
    fix={"(64, 131072)": "(64, 512)"},
)
refused(
    "a_block_of_8_bytes",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 4), lambda k: (0, k)),))
    for (k,), (x,) in pipe(a):
    #                 ^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-1}: in_specs[0] for 'a': block (64, 4) of float16 is 8 B "
    "along its contiguous dimension 1, but TMA moves multiples of 16 B; fix: make that side a "
    "multiple of 8 elements",
    kind=SpecError,
    fix={"(64, 4)": "(64, 8)"},
)
refused(
    "a_block_of_another_rank",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(
        spec, BlockSpec((None, 64, 64), lambda k: (0, k, 0))))
    for (k,), (x, y) in pipe(a, b):
    #                   ^^^^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-2}: in_specs[1] for 'b': block_shape (None, 64, 64) has 3 "
    "dimensions, the array has 2",
    kind=SpecError,
    fix={"(None, 64, 64), lambda k: (0, k, 0)": "(64, 64), lambda k: (0, k)"},
)
refused(
    "a_block_of_run_time_size",
    """
    spec = BlockSpec((a.shape[0], 64), lambda k: (0, k))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "BlockSpec: block_shape must be a compile-time constant, not a run-time int32: pass a "
        "literal, a constant of the module or a Static field"
    ),
    compiled=(
        "BlockSpec: block_shape must be a compile-time constant, not a run-time (int32, 64): "
        "pass a literal, a constant of the module or a Static field"
    ),
    kind=SpecError,
    fix={"a.shape[0]": "64"},
)
refused(
    "slots_beyond_shared_memory",
    """
    spec = BlockSpec((256, 64), lambda k: (0, k))
    pipe = numpipe.pipeline(grid=(a.shape[0],), max_concurrent_steps=8, in_specs=(spec,))
    for (k,), (x,) in pipe(a):
    #                 ^^^^^^^
        pass
""",
    OVERFLOW.format(263168)
    + "\n  1024 B  barriers\n262144 B  in_specs[0] for 'a': 8 slots x 32768 B, pipeline at "
    "{file}:{line-1}",
    kind=SpecError,
    fix={"max_concurrent_steps=8": "max_concurrent_steps=4"},
)
refused(
    "staging_beyond_shared_memory",
    """
    spec = BlockSpec((256, 64), lambda k: (0, k))
    pipe = numpipe.pipeline(grid=(a.shape[0],), max_concurrent_steps=6, in_specs=(spec,))
    for (k,), (x,) in pipe(a):
        pass
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
  # ^^^^^^^^^^^^^^^^^^^^^^^
""",
    OVERFLOW.format(263168)
    + "\n  1024 B  barriers\n196608 B  in_specs[0] for 'a': 6 slots x 32768 B, pipeline at "
    "{file}:{line-3}\n 65536 B  'array[…] = tile': 1 warpgroup x 8 store slots x 8192 B",
    kind=SpecError,
    compiler_params=numpipe.CompilerParams(store_slots=8),
    fix={"max_concurrent_steps=6": "max_concurrent_steps=4"},
)
refused(
    "an_accumulator_beyond_the_registers",
    """
    acc = numpipe.zeros((256, 256), np.float32)
    #     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "register budget: zeros (256, 256) takes 256 x 256 / 128 = 512 registers per lane, but each "
    "of 2 compute warpgroups has 232: (504 - 40 of the memory role) / 2, at most 256; fix: use a "
    "smaller tile, such as (64, 256), and more CTAs or warpgroups",
    num_compute_wgs=2,
    fix={"(256, 256)": "(64, 256)"},
)
refused(
    "no_slots",
    """
    pipe = numpipe.pipeline(grid=(1,), max_concurrent_steps=0, in_specs=(spec,))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: max_concurrent_steps must be at least 1, got 0",
    kind=SpecError,
    fix={"max_concurrent_steps=0": "max_concurrent_steps=1"},
)
refused(
    "slots_known_at_run_time",
    """
    pipe = numpipe.pipeline(grid=(1,), max_concurrent_steps=a.shape[0], in_specs=(spec,))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: max_concurrent_steps must be a compile-time constant, not "
    "a run-time int32: pass a literal, a constant of the module or a Static field",
    kind=SpecError,
    fix={"a.shape[0]": "2"},
)
refused(
    "slots_held_too_long",
    """
    pipe = numpipe.pipeline(grid=(1,), max_concurrent_steps=2, delay_release=2, in_specs=(spec,))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: delay_release=2 needs more than 2 slots, got "
    "max_concurrent_steps=2: the slot of step k is still in use when step k + delay_release waits "
    "for its own; fix: set the number of slots to at least 3",
    kind=SpecError,
    fix={"max_concurrent_steps=2": "max_concurrent_steps=3"},
)
refused(
    "a_delay_that_is_no_number",
    """
    pipe = numpipe.pipeline(grid=(1,), delay_release=True, in_specs=(spec,))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: delay_release must be an int or None, got True",
    kind=SpecError,
    fix={"delay_release=True": "delay_release=1"},
)
refused(
    "slots_held_too_long_by_the_kernel",
    """
    pipe = numpipe.pipeline(grid=(1,), max_concurrent_steps=2, in_specs=(spec,))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: delay_release=3 needs more than 3 slots, got "
    "max_concurrent_steps=2: the slot of step k is still in use when step k + delay_release waits "
    "for its own; fix: set the number of slots to at least 4",
    kind=SpecError,
    compiler_params=numpipe.CompilerParams(delay_release=3),
    fix={"max_concurrent_steps=2": "max_concurrent_steps=4"},
)

# misused pipelines
refused(
    "a_grid_that_is_no_tuple",
    """
    pipe = numpipe.pipeline(grid=1, in_specs=(spec,))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: grid must be a tuple of step counts, got 1",
    kind=SpecError,
    fix={"grid=1": "grid=(1,)"},
)
refused(
    "a_grid_of_floats",
    """
    pipe = numpipe.pipeline(grid=(1.5,), in_specs=(spec,))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=", pipeline at {file}:{line}: grid must contain integers, got (1.5,)",
    compiled=", pipeline at {file}:{line}: grid must contain integers, got (float64,)",
    kind=SpecError,
    fix={"1.5": "1"},
)
refused(
    "a_grid_of_negative_constants",
    """
    pipe = numpipe.pipeline(grid=(2, -1), in_specs=(BlockSpec((64, 64), lambda i, k: (i, k)),))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: the sizes in grid must be at least 0, got 2, -1",
    kind=SpecError,
    fix={"-1": "1"},
)
refused(
    "a_grid_that_is_negative_at_run_time",
    """
    pipe = numpipe.pipeline(grid=(a.shape[0] - 200,), in_specs=(spec,))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=", pipeline at {file}:{line}: the sizes in grid must be at least 0, got -72",
    kind=SpecError,
)
refused(
    "a_leaf_of_the_specs_that_is_none",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(spec, (None,)))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: in_specs[1][0] is None, and each array has a BlockSpec: "
    "leave out None and its array, or pass the array to the body as it is, "
    "BlockSpec(memory_space=numpipe.GMEM)",
    kind=SpecError,
)
refused(
    "one_spec_without_its_tuple",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=BlockSpec((64, 64), lambda k: (0, k)))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: in_specs must be a tuple of BlockSpec, got BlockSpec: "
    "write (spec,)",
    kind=SpecError,
    fix={"BlockSpec((64, 64), lambda k: (0, k))": "(BlockSpec((64, 64), lambda k: (0, k)),)"},
)
refused(
    "more_arrays_than_specs",
    """
    for (k,), (x, y) in pipe(a, b):
    #                   ^^^^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-1}: called on 2 arrays, but in_specs has 1",
    kind=SpecError,
    fix={"(x, y) in pipe(a, b)": "(x,) in pipe(a)"},
)
refused(
    "a_pipeline_over_a_number",
    """
    for (k,), (x,) in pipe(3):
    #                 ^^^^^^^
        pass
""",
    simulated=(
        ", pipeline at {file}:{line-1}: called on (int), but a pipeline must be called on the "
        "kernel's array parameters"
    ),
    compiled=(
        ", pipeline at {file}:{line-1}: called on (int32), but a pipeline must be called on the "
        "kernel's array parameters"
    ),
    kind=SpecError,
    fix={"pipe(3)": "pipe(a)"},
)
refused(
    "more_tiles_than_arrays",
    """
    for (k,), (x, y) in pipe(a):
    #   ^^^^^^^^^^^^
        pass
""",
    "the pipeline is called with 1 arrays, but the loop unpacks 2 tiles: (x, y)",
    fix={"(x, y)": "(x,)"},
)
refused(
    "a_loop_over_three",
    """
    for k, x, y in pairs(a, b):
    #   ^^^^^^^
        pass
""",
    "expected a pipeline loop `for (indices), (tiles) in pipe(arrays):`, got `for (k, x, y)`",
    fix={"for k, x, y in": "for (k,), (x, y) in"},
)
refused(
    "arrays_by_name",
    """
    for (k,), (x,) in pipe(a, more=b):
    #                 ^^^^^^^^^^^^^^^
        pass
""",
    "a pipeline is called with its arrays by position",
    fix={", more=b": ""},
)
refused(
    "an_index_map_to_one_number",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: k),))
    for (k,), (x,) in pipe(a):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    simulated=(
        ", pipeline at {file}:{line-1}: in_specs[0] for 'a': index_map must return a tuple of 2 "
        "integer block indices, got 0"
    ),
    compiled=(
        ", pipeline at {file}:{line-1}: in_specs[0] for 'a': index_map must return a tuple of 2 "
        "integer block indices, got int32"
    ),
    kind=SpecError,
    fix={"lambda k: k": "lambda k: (0, k)"},
)
refused(
    "an_index_map_to_three_numbers",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(spec, BlockSpec((64, 64), lambda k: (k, k, k))))
    for (k,), (x, y) in pipe(a, b):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-1}: in_specs[1] for 'b': index_map must return a tuple of 2 "
    "integer block indices, got (int32, int32, int32)",
    kind=SpecError,
    fix={"(k, k, k)": "(0, k)"},
)
refused(
    "an_index_map_to_floats",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (k, 0.5)),))
    for (k,), (x,) in pipe(a):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-1}: in_specs[0] for 'a': index_map must return a tuple of 2 "
    "integer block indices, got (int32, float32)",
    kind=SpecError,
    fix={"(k, 0.5)": "(k, 0)"},
)
refused(
    "an_index_map_of_another_grid",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda i, k: (i, k)),))
    #                                                                ^^^^^^^^^^^^^^^^^^^
""",
    "in_specs[0]: index_map takes 2 indices, but the pipeline's grid has 1",
    fix={"lambda i, k: (i, k)": "lambda k: (0, k)"},
)
refused(
    "an_index_map_that_is_a_tuple",
    """
    spec = BlockSpec((64, 64), (0, 0))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated="BlockSpec: index_map must be a function of the grid indices or None, got (0, 0)",
    compiled="BlockSpec: index_map must be a function of the grid indices or None, got '(0, 0)'",
    kind=SpecError,
)
refused(
    "a_spec_of_the_module",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(SPEC,))
    #                                            ^^^^
    for (k,), (x,) in pipe(a):
        pass
""",
    "SPEC is a BlockSpec made outside the kernel, whose index map is not compiled with the "
    "kernel; fix: make it in the kernel",
    fix={"(SPEC,)": "(BlockSpec((64, 64), lambda k: (0, k)),)"},
)
refused(
    "a_pipeline_called_outside_a_loop",
    """
    x = pipe(a)
    #   ^^^^^^^
""",
    "a pipeline may only be called in a `for`; fix: for (indices), (tiles) in pipe(arrays):",
    fix={"x = pipe(a)": "for (k,), (x,) in pipe(a):\n        pass"},
)
refused(
    "a_pipeline_passed_on",
    """
    def run(pipe):
        for (k,), (x,) in pipe(a):
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^
            pass

    run(numpipe.pipeline(grid=(1,), in_specs=(spec,)))
""",
    "a pipeline must be called in a `for` of the function that creates it, for (indices), (tiles) "
    "in pipe(arrays):, or of a function that binds it to a name, pipe = function(…), where "
    "function returns a pipeline in every return",
)
refused(
    "tiles_outside_a_loop",
    """
    t = numpipe.tiles(3)
    #   ^^^^^^^^^^^^^^^^
""",
    "numpipe.tiles(…) is only allowed in a `for`; fix: for m, n in numpipe.tiles(…):",
    fix={"t = numpipe.tiles(3)": "for t, in numpipe.tiles(3):\n        pass"},
)
refused(
    "tiles_in_an_unknown_order",
    """
    for m, n in numpipe.tiles(2, 2, order="spiral"):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    "numpipe.tiles: order='spiral' is unknown: 'row', 'column', 'grouped', 'snake', "
    "an object of numpipe.orders, or a host table (a 2-D int32 array argument)",
    fix={"spiral": "snake"},
)
refused(
    "one_dimension_of_tiles_in_groups",
    """
    for m, in numpipe.tiles(2, order="grouped"):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    "numpipe.tiles: order='grouped' with 1 counts: 'row' takes 1 to 3, the others take 2, or "
    "3: planes, rows, columns",
    fix={'"grouped"': '"row"'},
)
refused(
    "tiles_with_another_option",
    """
    for m, in numpipe.tiles(2, shuffle=True):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    "numpipe.tiles takes the tile counts, order=, group= and dynamic=",
    fix={"shuffle=True": 'order="row"'},
)
refused(
    "one_count_unpacked_as_an_int",
    """
    for m in numpipe.tiles(2):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    "numpipe.tiles gives a tuple of indices, even for a single count; fix: `for (m,) in "
    "numpipe.tiles(…):`",
    fix={"for m in": "for (m,) in"},
)
refused(
    "counts_in_a_tuple",
    """
    n = a.shape[0] // 64
    for (m,) in numpipe.tiles((n,)):
    #                         ^^^^
        pass
""",
    "a loop over tiles takes its counts as separate arguments, got a tuple; fix: numpipe.tiles(m, "
    "n)",
    kind=SpecError,
    fix={"tiles((n,))": "tiles(n)"},
)
refused(
    "more_indices_than_counts",
    """
    for m, n, o in numpipe.tiles(2, 2):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    "numpipe.tiles of 2 counts gives 2 indices, the loop unpacks 3: (m, n, o)",
    fix={"m, n, o": "m, n"},
)
refused(
    "an_order_that_is_a_number",
    """
    for m, n in numpipe.tiles(2, 2, order=a.shape[0]):
    #                                     ^^^^^^^^^^
        pass
""",
    "numpipe.tiles: order= must be 'row', 'column', 'grouped', 'snake', an object of "
    "numpipe.orders, or a host table (a 2-D int32 array argument); got a run-time int32",
    kind=SpecError,
    fix={"a.shape[0]": '"snake"'},
)
refused(
    "a_table_of_floats",
    """
    for m, n in numpipe.tiles(2, order=b):
    #                                  ^
        pass
""",
    "tiles(order='b'): a host table must be a 2-D int32 array, got 2-D float16",
    kind=SpecError,
)
refused(
    "a_number_that_becomes_a_tile",
    """
def a_number_that_becomes_a_tile(a, b, sums):
    acc = 0.0
    rows = BlockSpec((64, 64), lambda k: (k, 0))
    for (k,), (x,) in numpipe.pipeline(grid=(2,), in_specs=(rows,))(a):
        acc = acc + x[...]
      # ^^^^^^^^^^^^^^^^^^
    sums[ds(0, 64)] = acc.sum(axis=1)
""",
    compiled=KEPT.format(
        "a number", "a tile (64, 64) float32", BEGIN.format("zeros((64, 64), np.float32)")
    ),
    args=SUMS,
    fix={"0.0": "numpipe.zeros((64, 64), np.float32)"},
)
refused(
    "a_tile_that_becomes_a_vector",
    """
def a_tile_that_becomes_a_vector(a, b, sums):
    acc = numpipe.zeros((64, 64), np.float32)
    rows = BlockSpec((64, 64), lambda k: (k, 0))
    for (k,), (x,) in numpipe.pipeline(grid=(2,), in_specs=(rows,))(a):
        acc = x[...].sum(axis=1)
      # ^^^^^^^^^^^^^^^^^^^^^^^^
    sums[ds(0, 64)] = acc
""",
    compiled=KEPT.format(
        "a tile (64, 64) float32", "a tile (64,) float32", BEGIN.format("zeros((64,), np.float32)")
    ),
    args=SUMS,
    fix={"(64, 64), np": "(64,), np"},
)
refused(
    "a_tile_that_becomes_one_of_float16",
    """
def a_tile_that_becomes_one_of_float16(a, b, sums):
    acc = numpipe.zeros((64, 64), np.float32)
    rows = BlockSpec((64, 64), lambda k: (k, 0))
    for (k,), (x,) in numpipe.pipeline(grid=(2,), in_specs=(rows,))(a):
        acc = x[...].astype(np.float16)
      # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    y = acc
""",
    KEPT.format(
        "a tile (64, 64) float32",
        "a tile (64, 64) float16",
        BEGIN.format("full((64, 64), 0, np.float16)"),
    ),
    args=SUMS,
    fix={"zeros((64, 64), np.float32)": "full((64, 64), 0, np.float16)"},
)
refused(
    "a_tile_that_becomes_a_number",
    """
def a_tile_that_becomes_a_number(a, b, sums):
    acc = numpipe.zeros((64, 64), np.float32)
    rows = BlockSpec((64, 64), lambda k: (k, 0))
    for (k,), (x,) in numpipe.pipeline(grid=(2,), in_specs=(rows,))(a):
        acc = k
      # ^^^^^^^
    y = acc
""",
    KEPT.format("a tile (64, 64) float32", "a number", "give the other value a name of its own"),
    args=SUMS,
    fix={"acc = k": "number = k"},
)
