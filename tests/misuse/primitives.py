"""Primitives: types that cannot be allocated, copies between what does not fit, operations on what is no barrier of theirs."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, RefUnion, SpecError, ds
from tests.kernels.refusals import A, B, C, Cases

refused = Cases()
X = np.ones((128, 64), np.float16)


# ---- types
@refused("SMEM: shape must be a tuple of positive compile-time ints, (n,) or (*slots, rows, columns), got ()", kind=SpecError,
         mend={"()": "(64,)"})
def scratch_of_no_dimension(a, b, c):
    numpipe.scratch(SMEM((), np.float16))
    #               ^^^^^^^^^^^^^^^^^^^^


@refused("SMEM: tile (64, 30) of float16 is 60 B along its contiguous dimension 1, but TMA moves multiples of "
         "16 B: make that side a multiple of 8 elements", kind=SpecError, mend={"(64, 30)": "(64, 32)"})
def a_tile_whose_rows_are_no_chunks(a, b, c):
    numpipe.scratch(SMEM((64, 30), np.float16))
    #               ^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("SMEM: dtype must be one that arrays of a kernel have, bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, "
         "float16, float32, float64, bfloat16, float8_e4m3fn, float8_e5m2, got dtype('complex64')", kind=SpecError,
         mend={"complex64": "float32"})
def a_tile_of_complex_numbers(a, b, c):
    numpipe.scratch(SMEM((64, 64), np.complex64))
    #               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("(a.shape[0], 64, 64) is no compile-time constant, and the type of an allocation is one: write "
         "literals, constants of the module or fields of a Static", mend={"a.shape[0]": "2"})
def scratch_slots_known_at_run_time(a, b, c):
    numpipe.scratch(SMEM((a.shape[0], 64, 64), np.float16))
    #                    ^^^^^^^^^^^^^^^^^^^^


@refused("Barrier: num_arrivals must be a compile-time int of at least 1: the warpgroups and copies whose "
         "arrival completes a phase, got 0", kind=SpecError, mend={"num_arrivals=0": "num_arrivals=1"})
def a_barrier_that_nobody_completes(a, b, c):
    numpipe.scratch(Barrier(num_arrivals=0))
    #               ^^^^^^^^^^^^^^^^^^^^^^^


@refused("Barrier: num_barriers=(4, 9) is 36 barriers, and the phases of at most 32 fit the 32 bits that a "
         "warpgroup keeps for them: allocate several", kind=SpecError, mend={"(4, 9)": "(4, 8)"})
def too_many_barriers_for_one_word(a, b, c):
    numpipe.scratch(Barrier(num_barriers=(4, 9)))
    #               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("RefUnion: members are SMEM(…) or tuples of them, got Barrier(num_arrivals=1, num_barriers=1); "
         "barriers keep their bytes for the whole kernel: allocate them apart", kind=SpecError)
def a_union_with_a_barrier(a, b, c):
    numpipe.scratch(RefUnion(SMEM((64, 64), np.float16), Barrier()))
    #               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("numpipe.scratch takes a type, numpipe.SMEM(shape, dtype), numpipe.Barrier(…) or numpipe.RefUnion(…), "
         "which is a compile-time constant, got a")
def scratch_of_an_array(a, b, c):
    numpipe.scratch(a)
    #               ^


@refused("shared memory: 328704 B, but a CTA has 232448 B: use fewer slots (max_concurrent_steps, buffer_count), smaller blocks "
         "or fewer store_slots, or smaller scratch: what is not used at one time may share memory, in a RefUnion\n"
         "  1024 B  barriers\n327680 B  SMEM((20, 128, 64), float16) @ {file}:{line}", kind=SpecError, mend={"(20, 128": "(8, 128"})
def more_scratch_than_there_is(a, b, c):
    numpipe.scratch(SMEM((20, 128, 64), np.float16))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("run_scoped: collective_axes must be None (an allocation for each compute warpgroup) or 'wg' (one for "
         "all of the CTA's), got 'x'", kind=SpecError, mend={'"x"': '"wg"'})
def an_axis_of_the_grid_to_share_on(a, b, c):
    def body(tile):
        pass

    numpipe.run_scoped(body, SMEM((64, 64), np.float16), collective_axes="x")
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("run_scoped: body(tile) is called with a reference for each type: 2 positional arguments given, it takes 1",
         mend={"(tile)": "(tile, barrier)"})
def a_type_too_many_for_the_function(a, b, c):
    def body(tile):
        pass

    numpipe.run_scoped(body, SMEM((64, 64), np.float16), Barrier())
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("run_scoped: function must be one that is nested in the kernel, or decorated with @numpipe.function, got 3")
def a_number_to_be_called_with_memory(a, b, c):
    numpipe.run_scoped(3, SMEM((64, 64), np.float16))
    #                  ^


# ---- references
@refused(simulated="buffer.at[…]: 1 dimension of slots (2,), each indexed by an integer, then the whole tile, "
                   "or two of ds(start, size) and ':', got (0, 1)",
         compiled="buffer.at[…]: 1 dimension of slots (2,), each indexed by an integer, then the whole tile, or"
                  " two of ds(start, size) and ':', got (int64, int64)", kind=SpecError, mend={"at[0, 1]": "at[0]"})
def too_many_indices_of_slots(a, b, c):
    slots = numpipe.scratch(SMEM((2, 64, 64), np.float16))
    _ = slots.at[0, 1]
    #   ^^^^^^^^^^^^^^


@refused("slots of shared memory have no value: buffer.at[slot] is a tile", kind=SpecError, mend={"slots[0]": "slots.at[0]"})
def an_index_of_slots_without_a_view(a, b, c):
    slots = numpipe.scratch(SMEM((2, 64, 64), np.float16))
    _ = slots[0]
    #   ^^^^^^^^


@refused("a.at[…]: ':' has no compile-time size here; use ds(start, size)", kind=SpecError, mend={"at[:,": "at[ds(0, 64),"})
def a_view_of_all_of_an_array(a, b, c):
    _ = a.at[:, ds(0, 64)]
    #   ^^^^^^^^^^^^^^^^^^


@refused("load_tile(view, layout): the view is a single element: a[i, j] loads it", kind=SpecError,
         mend={"numpipe.load_tile(a.at[0, 1])": "a[0, 1]"})
def a_view_by_numbers(a, b, c):
    _ = numpipe.load_tile(a.at[0, 1])
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("async_prefetch: c.at[…] has 0 dimensions: write ds(i, size) in place of an integer", kind=SpecError,
         args=(A, B, np.zeros(64, np.float32)), mend={"0": "ds(0, 64)"})
def a_prefetch_of_an_element(a, b, c):
    numpipe.async_prefetch(c.at[0])
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("copy_smem_to_gmem: c.at[…] has 1 dimension, the tile 2, (64, 64): copy between a view of two and it, or have a tile of "
         "one, SMEM((64,), dtype)",
         kind=SpecError, mend={"c.at[0, ": "c.at[ds(0, 64), "})
def a_copy_to_a_row(a, b, c):
    tile = numpipe.scratch(SMEM((64, 64), np.float32))
    tile[...] = numpipe.zeros((64, 64), np.float32)
    numpipe.commit_smem()
    numpipe.copy_smem_to_gmem(tile, c.at[0, ds(0, 64)])
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("ds(start, size): start must be an integer, got float32: int(x) truncates a float, // divides integers", kind=SpecError,
         mend={"/ 64": "// 64"})
def a_view_that_starts_at_a_fraction(a, b, c):
    _ = a.at[ds(a.shape[0] / 64, 64), ds(0, 64)]
    #        ^^^^^^^^^^^^^^^^^^^^^^^


# ---- barriers
@refused("barrier_wait takes one barrier, got 2 barriers of shape (2,): choose one, barriers.at[i]", kind=SpecError)
def a_wait_on_several_barriers(a, b, c):
    barriers = numpipe.scratch(Barrier(num_barriers=(2, 2)))
    numpipe.barrier_wait(barriers.at[1])
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="barrier_test takes one barrier of a numpipe.Barrier(…) that the kernel allocates, got "
                   "shared-memory tile",
         compiled="barrier_test takes one barrier of a numpipe.Barrier(…) that the kernel allocates, got "
                  "shared-memory tile (64, 64) float16", kind=SpecError)
def a_test_of_a_tile(a, b, c):
    tile = numpipe.scratch(SMEM((64, 64), np.float16))
    numpipe.barrier_test(tile)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("a barrier has no value: it is passed to barrier_arrive, barrier_wait, barrier_test or a copy")
def a_branch_on_a_barrier_itself(a, b, c):
    barrier = numpipe.scratch(Barrier())
    if barrier:
  # ^^^^^^^^^^
        numpipe.barrier_wait(barrier)


@refused("the state of a barrier steers control flow, a grid or an index: loads must not depend on tile data or"
         " on the warpgroup axis, because the memory role has no such value; use it in tile.at[…] and in stores")
def a_test_that_steers_the_memory_role(a, b, c):
    barrier = numpipe.scratch(Barrier())
    numpipe.barrier_arrive(barrier)
    if numpipe.barrier_test(barrier):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        numpipe.barrier_wait(barrier)


# ---- copies
@refused("copy_gmem_to_smem: a.at[…] has (64, 32) elements, the tile (64, 64): both must be of one shape", kind=SpecError,
         mend={"ds(0, 32)": "ds(0, 64)", "tile, landed)": "tile, landed)\n    numpipe.barrier_wait(landed)"})
def a_copy_of_another_shape(a, b, c):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 32)], tile, landed)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("copy_gmem_to_smem: 'a' is float16, the tile float32: a copy does not convert", kind=SpecError)
def a_copy_of_another_type(a, b, c):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float32), Barrier()))
    numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 64)], tile, landed)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="copy_gmem_to_smem: src must be a view of an array, array.at[ds(i, 64), ds(j, 64)], got "
                   "array",
         compiled="copy_gmem_to_smem: src must be a view of an array, array.at[ds(i, 64), ds(j, 64)], got array"
                  " 'a'", kind=SpecError)
def a_copy_of_a_whole_array(a, b, c):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(a, tile, landed)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("copy_gmem_to_smem: dst must be a tile in shared memory that the kernel has allocated, as "
         "numpipe.scratch gives it (buffer.at[slot] where it has slots), got slots of a tile", kind=SpecError,
         mend={"slots, landed)": "slots.at[0], landed)\n    numpipe.barrier_wait(landed)"})
def a_copy_to_slots(a, b, c):
    slots, landed = numpipe.scratch((SMEM((2, 64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 64)], slots, landed)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="copy_gmem_to_smem: barrier must be one of a numpipe.Barrier(…) that the kernel has "
                   "allocated, got NoneType",
         compiled="copy_gmem_to_smem: barrier must be one of a numpipe.Barrier(…) that the kernel has "
                  "allocated, got none", kind=SpecError)
def a_copy_without_a_barrier(a, b, c):
    tile = numpipe.scratch(SMEM((64, 64), np.float16))
    numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 64)], tile, None)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("copy_gmem_to_smem takes one barrier, got 2 barriers of shape (2,): choose one, barriers.at[i]", kind=SpecError,
         mend={"tile, landed)": "tile, landed.at[0])\n    numpipe.barrier_wait(landed.at[0])"})
def a_copy_with_two_barriers(a, b, c):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier(num_barriers=2)))
    numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 64)], tile, landed)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="copy_gmem_to_smem: predicate must be a bool, got str",
         compiled="copy_gmem_to_smem: predicate must be a bool, got unicode_type", kind=SpecError,
         mend={'"yes")': "True)\n    numpipe.barrier_wait(landed)"})
def a_copy_with_a_word_for_a_predicate(a, b, c):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 64)], tile, landed, predicate="yes")
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("copy_gmem_to_smem: dimension 0 of 'a' is contiguous, and the tile's rows must lie along it: use "
         "tile.T of a tile (64, 64)", kind=SpecError, args=(np.asfortranarray(X), B, C),
         mend={"tile, landed)": "tile.T, landed)\n    numpipe.barrier_wait(landed)"})
def a_copy_of_columns_into_rows(a, b, c):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 64)], tile, landed)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("copy_smem_to_gmem: reduction_op='max' is not for float32: it takes int32, int64, uint32, uint64, "
         "float16, bfloat16", kind=SpecError)
def a_reduction_that_the_type_has_not(a, b, c):
    tile = numpipe.scratch(SMEM((64, 64), np.float32))
    numpipe.copy_smem_to_gmem(tile, c.at[ds(0, 64), ds(0, 64)], reduction_op="max")
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("copy_smem_to_gmem: reduction_op='xor' is not for int64: it takes int32, uint32, uint64; uint64 has the same bits: pass "
         "the array as array.view(np.uint64), and a tile of that type", kind=SpecError, args=(A, B, np.zeros((128, 64), np.int64)))
def a_bitwise_reduction_of_int64(a, b, c):
    tile = numpipe.scratch(SMEM((64, 64), np.int64))
    numpipe.copy_smem_to_gmem(tile, c.at[ds(0, 64), ds(0, 64)], reduction_op="xor")
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("copy_smem_to_gmem: reduction_op must be None or one of 'add', 'min', 'max', 'inc', 'dec', 'and', "
         "'or', 'xor', got 'mul'", kind=SpecError)
def a_reduction_that_there_is_not(a, b, c):
    tile = numpipe.scratch(SMEM((64, 64), np.float32))
    numpipe.copy_smem_to_gmem(tile, c.at[ds(0, 64), ds(0, 64)], reduction_op="mul")
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("copy_smem_to_gmem: commit_group must be True or False, got 1", kind=SpecError)
def a_number_for_commit_group(a, b, c):
    tile = numpipe.scratch(SMEM((64, 64), np.float32))
    numpipe.copy_smem_to_gmem(tile, c.at[ds(0, 64), ds(0, 64)], commit_group=1)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("wait_smem_to_gmem: n must be a compile-time constant, not a run-time int32: pass a literal, a "
         "constant of the module or a Static field", kind=SpecError, mend={"a.shape[0]": "0"})
def a_run_time_number_of_groups(a, b, c):
    numpipe.wait_smem_to_gmem(a.shape[0])
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("wait_smem_to_gmem: n must be a compile-time int of at least 0: the groups that may still be on their "
         "way, got -1", kind=SpecError, mend={"-1": "0"})
def a_negative_number_of_groups(a, b, c):
    numpipe.wait_smem_to_gmem(-1)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("async_prefetch: a.at[…] has 4 elements along dimension 1, which is contiguous: the TMA moves "
         "multiples of 16 B, 8 elements", kind=SpecError, mend={"ds(0, 4)": "ds(0, 8)"})
def a_prefetch_of_less_than_a_chunk(a, b, c):
    numpipe.async_prefetch(a.at[ds(0, 64), ds(0, 4)])
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


# ---- the rest
@refused("set_max_registers: the kernel has a memory role, and numpipe has shared the registers out: 40 a lane "
         "for it, 256 for each of 1 compute warpgroups; say memory_registers=, or use a kernel with "
         "warp_specialized=False", kind=SpecError, mended_options={"warp_specialized": False})
def registers_that_are_shared_out(a, b, c):
    numpipe.set_max_registers(40, action="decrease")
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("planar_snake: minor_dim must be 0 or 1, a compile-time constant: the dimension that is cut into strips, got 2",
         mend={"(4, 5), 2,": "(4, 5), 1,"})
def a_snake_along_a_third_dimension(a, b, c):
    _ = numpipe.planar_snake(a.shape[0], (4, 5), 2, 2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("planar_snake: minor_dim must be 0 or 1, a compile-time constant: the dimension that is cut into strips, got a run-time "
         "value", mend={"a.shape[0] % 2": "1"})
def a_snake_along_a_dimension_of_run_time(a, b, c):
    _ = numpipe.planar_snake(0, (4, 5), a.shape[0] % 2, 2)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("planar_snake: tile_width must be at least 1, got 0", mend={"width=0": "width=1"})
def a_snake_of_no_width(a, b, c):
    _ = numpipe.planar_snake(a.shape[0], (4, 5), minor_dim=1, tile_width=0)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("program_id(axis): axis is a compile-time int of 0…2, a dimension of the grid, got 3", kind=SpecError,
         mend={"program_id(3)": "program_id(2)"})
def a_dimension_that_no_grid_has(a, b, c):
    _ = numpipe.program_id(3)
    #   ^^^^^^^^^^^^^^^^^^^^^


@refused("numpipe.nd_loop of 2 dimensions gives a tuple of 2 indices, got `for i in`", mend={"for i in": "for i, j in"})
def a_loop_over_a_grid_without_its_tuple(a, b, c):
    for i in numpipe.nd_loop((2, 3)):
    #   ^
        pass


@refused("a loop over tiles takes integers, got float32 for dimension 1: // divides integers, cdiv rounds up", kind=SpecError,
         mend={"/ 64": "// 64"})
def a_loop_over_a_fraction_of_tiles(a, b, c):
    for _, j in numpipe.nd_loop((2, a.shape[0] / 64)):
    #                               ^^^^^^^^^^^^^^^
        pass


@refused("numpipe.nd_loop(…) stands in a `for` only: for m, n in numpipe.nd_loop(…):",
         mend={"_ = numpipe.nd_loop((2, 3))": "for i, j in numpipe.nd_loop((2, 3)):\n        pass"})
def a_loop_over_a_grid_out_of_a_for(a, b, c):
    _ = numpipe.nd_loop((2, 3))
    #   ^^^^^^^^^^^^^^^^^^^^^^^


@refused("copy_gmem_to_smem: dst is a tile of a pipeline, whose slots the pipeline loads itself: copy to a tile of your own, "
         "numpipe.scratch(numpipe.SMEM(…))", kind=SpecError)
def a_copy_over_a_tile_of_a_pipeline(a, b, c):
    landed = numpipe.scratch(Barrier())
    for _, (tile,) in numpipe.pipeline(grid=(1,), in_specs=(numpipe.BlockSpec((64, 64), lambda k: (0, k)),))(a):
        numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 64)], tile, landed)
      # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
