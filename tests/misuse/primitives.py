"""Misused primitives: types that cannot be allocated, copies between mismatched operands, and
operations on something that is not the right kind of barrier."""

from __future__ import annotations

import numpy as np

from numpipe import SpecError
from tests.kernels.refusals import A, B, C, Cases

X = np.ones((128, 64), np.float16)
refused = Cases()

# ---- types
refused(
    "scratch_of_no_dimension",
    """
    numpipe.scratch(SMEM((), np.float16))
    #               ^^^^^^^^^^^^^^^^^^^^
""",
    "SMEM: shape must be a tuple of positive compile-time ints, (n,) or (*slots, rows, "
    "columns), got ()",
    kind=SpecError,
    fix={"()": "(64,)"},
)
refused(
    "a_tile_whose_rows_are_no_chunks",
    """
    numpipe.scratch(SMEM((64, 30), np.float16))
    #               ^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "SMEM: tile (64, 30) of float16 is 60 B along its contiguous dimension 1, but TMA moves "
    "multiples of 16 B; fix: make that side a multiple of 8 elements",
    kind=SpecError,
    fix={"(64, 30)": "(64, 32)"},
)
refused(
    "a_tile_of_complex_numbers",
    """
    numpipe.scratch(SMEM((64, 64), np.complex64))
    #               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "SMEM: dtype must be one that arrays of a kernel have, bool, int8, int16, int32, int64, "
    "uint8, uint16, uint32, uint64, float16, float32, float64, bfloat16, float8_e4m3fn, "
    "float8_e5m2, got dtype('complex64')",
    kind=SpecError,
    fix={"complex64": "float32"},
)
refused(
    "scratch_slots_known_at_run_time",
    """
    numpipe.scratch(SMEM((a.shape[0], 64, 64), np.float16))
    #                    ^^^^^^^^^^^^^^^^^^^^
""",
    "(a.shape[0], 64, 64) is not a compile-time constant, which the type of an allocation must "
    "be; fix: use literals, constants of the module or fields of a Static",
    fix={"a.shape[0]": "2"},
)
refused(
    "a_barrier_that_nobody_completes",
    """
    numpipe.scratch(Barrier(num_arrivals=0))
    #               ^^^^^^^^^^^^^^^^^^^^^^^
""",
    "Barrier: num_arrivals must be an int of 1…65536, got 0",
    kind=SpecError,
    fix={"num_arrivals=0": "num_arrivals=1"},
)
refused(
    "too_many_barriers_for_one_word",
    """
    numpipe.scratch(Barrier(num_barriers=(4, 9)))
    #               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "Barrier: num_barriers=(4, 9) is 36 barriers, and the phases of at most 32 fit the 32 "
    "bits that a warpgroup keeps for them: allocate several",
    kind=SpecError,
    fix={"(4, 9)": "(4, 8)"},
)
refused(
    "a_union_with_a_barrier",
    """
    numpipe.scratch(RefUnion(SMEM((64, 64), np.float16), Barrier()))
    #               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "RefUnion: members are SMEM(…) or tuples of them, got Barrier(num_arrivals=1, "
    "num_barriers=1); barriers keep their bytes for the whole kernel: allocate them apart",
    kind=SpecError,
)
refused(
    "scratch_of_an_array",
    """
    numpipe.scratch(a)
    #               ^
""",
    "numpipe.scratch takes a type, numpipe.SMEM(shape, dtype), numpipe.Barrier(…) or "
    "numpipe.RefUnion(…), which is a compile-time constant, got a",
)
refused(
    "scratch_of_a_misspelled_barrier",
    """
    numpipe.scratch((numpipe.Barrier(), ClusterBarier("pair")))
    #                                   ^^^^^^^^^^^^^
""",
    "name 'ClusterBarier' is not defined",
)
refused(
    "more_scratch_than_there_is",
    """
    numpipe.scratch(SMEM((20, 128, 64), np.float16))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "shared memory: 328704 B, but a CTA has 232448 B: use fewer slots (max_concurrent_steps, "
    "buffer_count), smaller blocks or fewer store_slots, or smaller scratch: what is not "
    "used at one time may share memory, in a RefUnion\n  1024 B  barriers\n327680 B  "
    "SMEM((20, 128, 64), float16) @ {file}:{line}",
    kind=SpecError,
    fix={"(20, 128": "(8, 128"},
)
refused(
    "an_axis_of_the_grid_to_share_on",
    """
    def body(tile):
        pass

    numpipe.run_scoped(body, SMEM((64, 64), np.float16), collective_axes="x")
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "run_scoped: collective_axes must be None (an allocation for each compute warpgroup) or 'wg' "
    "(one for all warpgroups of the CTA), got 'x'",
    kind=SpecError,
    fix={'"x"': '"wg"'},
)
refused(
    "a_type_too_many_for_the_function",
    """
    def body(tile):
        pass

    numpipe.run_scoped(body, SMEM((64, 64), np.float16), Barrier())
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "run_scoped: body(tile) is called with a reference for each type: 2 positional arguments "
    "given, it takes 1",
    fix={"(tile)": "(tile, barrier)"},
)
refused(
    "a_number_to_be_called_with_memory",
    """
    numpipe.run_scoped(3, SMEM((64, 64), np.float16))
    #                  ^
""",
    "run_scoped: function must be nested in the kernel, or decorated with @numpipe.function, got 3",
)

# ---- references
refused(
    "too_many_indices_of_slots",
    """
    slots = numpipe.scratch(SMEM((2, 64, 64), np.float16))
    _ = slots.at[0, 1]
    #   ^^^^^^^^^^^^^^
""",
    simulated=(
        "buffer.at[…]: expected an integer for each dimension of slots (2,), then nothing or two "
        "of ds(start, size) and ':', got (0, 1)"
    ),
    compiled=(
        "buffer.at[…]: expected an integer for each dimension of slots (2,), then nothing or two "
        "of ds(start, size) and ':', got (int64, int64)"
    ),
    kind=SpecError,
    fix={"at[0, 1]": "at[0]"},
)
refused(
    "an_index_of_slots_without_a_view",
    """
    slots = numpipe.scratch(SMEM((2, 64, 64), np.float16))
    _ = slots[0]
    #   ^^^^^^^^
""",
    "slots of shared memory have no value; fix: buffer.at[slot] is a tile",
    kind=SpecError,
    fix={"slots[0]": "slots.at[0]"},
)
refused(
    "a_view_of_all_of_an_array",
    """
    _ = a.at[:, ds(0, 64)]
    #   ^^^^^^^^^^^^^^^^^^
""",
    "a.at[…]: ':' has no compile-time size here; fix: write ds(start, size)",
    kind=SpecError,
    fix={"at[:,": "at[ds(0, 64),"},
)
refused(
    "a_view_by_numbers",
    """
    _ = numpipe.load_tile(a.at[0, 1])
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "load_tile(view, layout): the view is a single element; fix: write a[i, j]",
    kind=SpecError,
    fix={"numpipe.load_tile(a.at[0, 1])": "a[0, 1]"},
)
refused(
    "a_prefetch_of_an_element",
    """
    numpipe.async_prefetch(c.at[0])
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "async_prefetch: c.at[…] has 0 dimensions; fix: write ds(i, size) instead of an integer",
    kind=SpecError,
    args=(A, B, np.zeros(64, np.float32)),
    fix={"0": "ds(0, 64)"},
)
refused(
    "a_copy_to_a_row",
    """
    tile = numpipe.scratch(SMEM((64, 64), np.float32))
    tile[...] = numpipe.zeros((64, 64), np.float32)
    numpipe.commit_smem()
    numpipe.copy_smem_to_gmem(tile, c.at[0, ds(0, 64)])
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "copy_smem_to_gmem: c.at[…] has 1 dimension, the tile 2, (64, 64): copy between a view "
    "of two and it, or have a tile of one, SMEM((64,), dtype)",
    kind=SpecError,
    fix={"c.at[0, ": "c.at[ds(0, 64), "},
)
refused(
    "a_view_that_starts_at_a_fraction",
    """
    _ = a.at[ds(a.shape[0] / 64, 64), ds(0, 64)]
    #        ^^^^^^^^^^^^^^^^^^^^^^^
""",
    "ds(start, size): start must be an integer, got float32; fix: int(x) truncates a float, // "
    "divides integers",
    kind=SpecError,
    fix={"/ 64": "// 64"},
)
refused(
    "a_block_with_a_stop_that_starts_at_a_fraction",
    """
    _ = a[ds(a.shape[0] / 64, 64, stop=9), ds(0, 64)]
    #     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "ds(start, size): start must be an integer, got float32; fix: int(x) truncates a float, // "
    "divides integers",
    kind=SpecError,
    fix={"/ 64": "// 64"},
)

# ---- barriers
refused(
    "a_wait_on_several_barriers",
    """
    barriers = numpipe.scratch(Barrier(num_barriers=(2, 2)))
    numpipe.barrier_wait(barriers.at[1])
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "barrier_wait expects one barrier, got 2 barriers of shape (2,); fix: select one, "
    "barriers.at[i]",
    kind=SpecError,
)
refused(
    "a_test_of_a_tile",
    """
    tile = numpipe.scratch(SMEM((64, 64), np.float16))
    numpipe.barrier_test(tile)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "barrier_test expects one barrier of a numpipe.Barrier(…) that the kernel allocates, got "
        "shared-memory tile"
    ),
    compiled=(
        "barrier_test expects one barrier of a numpipe.Barrier(…) that the kernel allocates, got "
        "shared-memory tile (64, 64) float16"
    ),
    kind=SpecError,
)
refused(
    "a_branch_on_a_barrier_itself",
    """
    barrier = numpipe.scratch(Barrier())
    if barrier:
  # ^^^^^^^^^^
        numpipe.barrier_wait(barrier)
""",
    "a barrier has no value; fix: pass it to barrier_arrive, barrier_wait, barrier_test or a copy",
)
refused(
    "a_test_that_steers_the_memory_role",
    """
    barrier = numpipe.scratch(Barrier())
    numpipe.barrier_arrive(barrier)
    while numpipe.barrier_test(barrier):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        numpipe.barrier_wait(barrier)
""",
    "the state of a barrier steers control flow, a grid or an index, but loads must not depend "
    "on tile data or on the warpgroup axis, because the memory role has no such value: use it in "
    "tile.at[…] and in stores",
)

# ---- copies
refused(
    "a_copy_of_another_shape",
    """
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 32)], tile, landed)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "copy_gmem_to_smem: a.at[…] has shape (64, 32), but the tile has shape (64, 64): they must be "
    "equal",
    kind=SpecError,
    fix={
        "ds(0, 32)": "ds(0, 64)",
        "tile, landed)": "tile, landed)\n    numpipe.barrier_wait(landed)",
    },
)
refused(
    "a_copy_of_another_type",
    """
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float32), Barrier()))
    numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 64)], tile, landed)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "copy_gmem_to_smem: 'a' is float16, but the tile is float32: a copy does not convert",
    kind=SpecError,
)
refused(
    "a_copy_of_a_whole_array",
    """
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(a, tile, landed)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "copy_gmem_to_smem: src must be a view of an array, array.at[ds(i, 64), ds(j, 64)], got "
        "array"
    ),
    compiled=(
        "copy_gmem_to_smem: src must be a view of an array, array.at[ds(i, 64), ds(j, 64)], got "
        "array 'a'"
    ),
    kind=SpecError,
)
refused(
    "a_copy_to_slots",
    """
    slots, landed = numpipe.scratch((SMEM((2, 64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 64)], slots, landed)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "copy_gmem_to_smem: dst must be a tile in shared memory that the kernel has allocated, "
    "as numpipe.scratch gives it (buffer.at[slot] where it has slots), got slots of a tile",
    kind=SpecError,
    fix={"slots, landed)": "slots.at[0], landed)\n    numpipe.barrier_wait(landed)"},
)
refused(
    "a_copy_without_a_barrier",
    """
    tile = numpipe.scratch(SMEM((64, 64), np.float16))
    numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 64)], tile, None)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "copy_gmem_to_smem: barrier must be one of a numpipe.Barrier(…) that the kernel has "
        "allocated, got NoneType"
    ),
    compiled=(
        "copy_gmem_to_smem: barrier must be one of a numpipe.Barrier(…) that the kernel has "
        "allocated, got none"
    ),
    kind=SpecError,
)
refused(
    "a_copy_with_two_barriers",
    """
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier(num_barriers=2)))
    numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 64)], tile, landed)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "copy_gmem_to_smem expects one barrier, got 2 barriers of shape (2,); fix: select one, "
    "barriers.at[i]",
    kind=SpecError,
    fix={"tile, landed)": "tile, landed.at[0])\n    numpipe.barrier_wait(landed.at[0])"},
)
refused(
    "a_copy_with_a_word_for_a_predicate",
    """
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 64)], tile, landed, predicate="yes")
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated="copy_gmem_to_smem: predicate must be a bool, got str",
    compiled="copy_gmem_to_smem: predicate must be a bool, got unicode_type",
    kind=SpecError,
    fix={'"yes")': "True)\n    numpipe.barrier_wait(landed)"},
)
refused(
    "a_copy_of_columns_into_rows",
    """
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 64)], tile, landed)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "copy_gmem_to_smem: the tile's rows must be along dimension 0 of 'a', which is contiguous; "
    "fix: use tile.T of a tile (64, 64)",
    kind=SpecError,
    args=(np.asfortranarray(X), B, C),
    fix={"tile, landed)": "tile.T, landed)\n    numpipe.barrier_wait(landed)"},
)
refused(
    "a_reduction_that_the_type_has_not",
    """
    tile = numpipe.scratch(SMEM((64, 64), np.float32))
    numpipe.copy_smem_to_gmem(tile, c.at[ds(0, 64), ds(0, 64)], reduction_op="max")
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "copy_smem_to_gmem: reduction_op='max' is not for float32: it takes int32, int64, "
    "uint32, uint64, float16, bfloat16",
    kind=SpecError,
)
refused(
    "a_bitwise_reduction_of_int64",
    """
    tile = numpipe.scratch(SMEM((64, 64), np.int64))
    numpipe.copy_smem_to_gmem(tile, c.at[ds(0, 64), ds(0, 64)], reduction_op="xor")
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "copy_smem_to_gmem: reduction_op='xor' is not for int64: it takes int32, uint32, uint64; "
    "uint64 has the same bits: pass the array as array.view(np.uint64), and a tile of that "
    "type",
    kind=SpecError,
    args=(A, B, np.zeros((128, 64), np.int64)),
)
refused(
    "a_reduction_that_there_is_not",
    """
    tile = numpipe.scratch(SMEM((64, 64), np.float32))
    numpipe.copy_smem_to_gmem(tile, c.at[ds(0, 64), ds(0, 64)], reduction_op="mul")
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "copy_smem_to_gmem: reduction_op must be None, 'add', 'min', 'max', 'inc', 'dec', "
    "'and', 'or' or 'xor', got 'mul'",
    kind=SpecError,
)
refused(
    "a_number_for_commit_group",
    """
    tile = numpipe.scratch(SMEM((64, 64), np.float32))
    numpipe.copy_smem_to_gmem(tile, c.at[ds(0, 64), ds(0, 64)], commit_group=1)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "copy_smem_to_gmem: commit_group must be True or False, got 1",
    kind=SpecError,
)
refused(
    "a_run_time_number_of_groups",
    """
    numpipe.wait_smem_to_gmem(a.shape[0])
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wait_smem_to_gmem: n must be a compile-time constant, not a run-time int32: pass a "
    "literal, a constant of the module or a Static field",
    kind=SpecError,
    fix={"a.shape[0]": "0"},
)
refused(
    "a_negative_number_of_groups",
    """
    numpipe.wait_smem_to_gmem(-1)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "wait_smem_to_gmem: n must be an int >= 0, got -1",
    kind=SpecError,
    fix={"-1": "0"},
)
refused(
    "a_prefetch_of_less_than_a_chunk",
    """
    numpipe.async_prefetch(a.at[ds(0, 64), ds(0, 4)])
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "async_prefetch: a.at[…] has 4 elements along dimension 1, which is contiguous: the TMA "
    "moves multiples of 16 B, 8 elements",
    kind=SpecError,
    fix={"ds(0, 4)": "ds(0, 8)"},
)

# ---- other primitives
refused(
    "registers_that_are_shared_out",
    """
    numpipe.set_max_registers(40, action="decrease")
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "set_max_registers: the kernel has a memory role, so numpipe distributes the registers: 40 "
    "per lane for that role, 256 for each of 1 compute warpgroups; fix: set memory_registers=, or "
    "use a kernel with warp_specialized=False",
    kind=SpecError,
    fixed_options={"warp_specialized": False},
)
refused(
    "a_snake_along_a_third_dimension",
    """
    _ = numpipe.planar_snake(a.shape[0], (4, 5), 2, 2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "planar_snake: minor_dim must be 0 or 1, a compile-time constant: the dimension that is "
    "cut into strips, got 2",
    fix={"(4, 5), 2,": "(4, 5), 1,"},
)
refused(
    "a_snake_along_a_dimension_of_run_time",
    """
    _ = numpipe.planar_snake(0, (4, 5), a.shape[0] % 2, 2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "planar_snake: minor_dim must be 0 or 1, a compile-time constant: the dimension that is "
    "cut into strips, got a run-time value",
    fix={"a.shape[0] % 2": "1"},
)
refused(
    "a_snake_of_no_width",
    """
    _ = numpipe.planar_snake(a.shape[0], (4, 5), minor_dim=1, tile_width=0)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "planar_snake: tile_width must be at least 1, got 0",
    fix={"width=0": "width=1"},
)
refused(
    "a_dimension_that_no_grid_has",
    """
    _ = numpipe.program_id(3)
    #   ^^^^^^^^^^^^^^^^^^^^^
""",
    "program_id: axis must be an int of 0…2, got 3",
    kind=SpecError,
    fix={"program_id(3)": "program_id(2)"},
)
refused(
    "a_loop_over_a_grid_without_its_tuple",
    """
    for i in numpipe.nd_loop((2, 3)):
    #   ^
        pass
""",
    "numpipe.nd_loop of 2 dimensions gives a tuple of 2 indices, got `for i in`",
    fix={"for i in": "for i, j in"},
)
refused(
    "a_loop_over_a_fraction_of_tiles",
    """
    for _, j in numpipe.nd_loop((2, a.shape[0] / 64)):
    #                               ^^^^^^^^^^^^^^^
        pass
""",
    "a loop over tiles takes integers, got float32 for dimension 1; fix: // divides integers, "
    "cdiv rounds up",
    kind=SpecError,
    fix={"/ 64": "// 64"},
)
refused(
    "a_loop_over_a_grid_out_of_a_for",
    """
    _ = numpipe.nd_loop((2, 3))
    #   ^^^^^^^^^^^^^^^^^^^^^^^
""",
    "numpipe.nd_loop(…) is only allowed in a `for`; fix: for m, n in numpipe.nd_loop(…):",
    fix={"_ = numpipe.nd_loop((2, 3))": "for i, j in numpipe.nd_loop((2, 3)):\n        pass"},
)
refused(
    "a_copy_over_a_tile_of_a_pipeline",
    """
    landed = numpipe.scratch(Barrier())
    for _, (tile,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
        numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 64)], tile, landed)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "copy_gmem_to_smem: dst is a tile of a pipeline, which loads its slots itself; fix: copy to a "
    "tile that the kernel allocates, numpipe.scratch(numpipe.SMEM(…))",
    kind=SpecError,
)
refused(
    "a_fraction_as_the_seed_of_random_numbers",
    """
    x = numpipe.random(seed=7.5, counter=numpipe.iota((64, 64), 0))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    c[ds(0, 64), ds(0, 64)] = x
""",
    "random(…): '+' of an int32 tile and a float; fix: pass what it takes\nseed     an int32 "
    "number, or an int32 or uint32 tile\ncounter  an int32 or uint32 tile: elements with the same "
    "counter get the same number",
    kind=SpecError,
    fix={"seed=7.5": "seed=7"},
)
