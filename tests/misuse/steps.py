"""Specs of operands that change at their own pace, and pipelines that share allocations, that must be refused."""
# ruff: noqa: F841 (kernels that are wrong on purpose)

from __future__ import annotations

import numpipe
from numpipe import GMEM, SMEM, BlockSpec, SpecError
from tests.kernels.refusals import Cases

refused = Cases()
emit = numpipe.emit_pipeline_warp_specialized


@refused("BlockSpec: buffer_count must be an int >= 1, got 0", kind=SpecError, mend={"buffer_count=0": "buffer_count=1"})
def no_buffers(a, b, c):
    spec = BlockSpec((64, 64), lambda k: (0, k), buffer_count=0)
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("BlockSpec: memory_space=numpipe.GMEM passes the whole array to the body and loads nothing: leave out "
         "block_shape=(64, 64)", kind=SpecError, mend={"(64, 64), ": ""})
def a_block_in_global_memory(a, b, c):
    spec = BlockSpec((64, 64), memory_space=GMEM)
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("BlockSpec: memory_space=numpipe.GMEM passes the whole array to the body and loads nothing: leave out oob_fill='nan'",
         kind=SpecError, mend={', oob_fill="nan"': ""})
def a_fill_of_what_is_not_loaded(a, b, c):
    spec = BlockSpec(memory_space=GMEM, oob_fill="nan")
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("BlockSpec: memory_space=numpipe.GMEM passes the whole array to the body and loads nothing: leave out "
         "eviction_policy='evict_first'", kind=SpecError, mend={', eviction_policy="evict_first"': ""})
def a_policy_for_what_is_not_loaded(a, b, c):
    spec = BlockSpec(memory_space=GMEM, eviction_policy="evict_first")
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("BlockSpec: memory_space must be numpipe.SMEM or numpipe.GMEM, a compile-time constant, got a",
         mend={"memory_space=a": "memory_space=SMEM"})
def a_memory_space_that_is_none(a, b, c):
    spec = BlockSpec((64, 64), memory_space=a)
    #                                       ^


@refused("BlockSpec: memory_space must be numpipe.SMEM or numpipe.GMEM, a compile-time constant, got SMEM((64, 64), 'float16')",
         mend={'SMEM((64, 64), "float16")': "SMEM"})
def an_allocation_for_a_memory_space(a, b, c):
    spec = BlockSpec((64, 64), memory_space=SMEM((64, 64), "float16"))
    #                                       ^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(", pipeline at {file}:{line}: delay_release=1 needs more than 1 slots, got buffer_count=1 of in_specs[0]: the slot "
         "of step k is "
         "still held when step k + delay_release waits for its own", kind=SpecError, mend={"buffer_count=1": "buffer_count=2"})
def one_buffer_and_a_delay(a, b, c):
    pipe = numpipe.pipeline(grid=(3,), delay_release=1, in_specs=(BlockSpec((64, 64), lambda k: (0, k), buffer_count=1),))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(", pipeline at {file}:{line-1}: called on arrays (*, *), but in_specs has (*, (*,)): pass them in the same tuples",
         kind=SpecError, mend={"(x, y) in pipe(a, b)": "(x, (y,)) in pipe(a, (b,))"})
def arrays_in_other_tuples(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)), (BlockSpec((64, 64), lambda k: (0, k)),)))
    for _, (x, y) in pipe(a, b):
    #                ^^^^^^^^^^
        pass


@refused(simulated=", pipeline at {file}:{line}: steps_of must be a function nested in the kernel, of one argument, the warpgroup, "
                   "got int",
         compiled=", pipeline at {file}:{line}: steps_of must be a function nested in the kernel, of one argument, the warpgroup, "
                  "got int32", kind=SpecError, mend={"steps_of=2": "steps_of=lambda wg: 2"})
def steps_that_are_a_number(a, b, c):
    pipe = numpipe.pipeline(grid=(3,), steps_of=2, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(", pipeline at {file}:{line}: steps_of takes 2 arguments, but is called with one, the warpgroup", kind=SpecError,
         mend={"lambda wg, k: 2": "lambda wg: 2"})
def steps_of_two(a, b, c):
    pipe = numpipe.pipeline(grid=(3,), steps_of=lambda wg, k: 2, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(", pipeline at {file}:{line-1}: steps_of, but its body holds another pipeline, whose loads are issued for all "
         "steps: give "
         "steps_of to the inner one, or run all steps", kind=SpecError, mend={"steps_of=lambda wg: 2, ": ""})
def unequal_steps_around_a_pipeline(a, b, c):
    pipe = numpipe.pipeline(grid=(3,), steps_of=lambda wg: 2, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for _, (x,) in pipe(a):
    #              ^^^^^^^
        for _, (y,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(b):
            pass


@refused(", pipeline at {file}:{line}: pipeline_state must be None, numpipe.PipelineState.START, STEADY or STOP, or an "
         "integer 0…2, "
         "got 3", kind=SpecError, mend={"pipeline_state=3": "pipeline_state=None"})
def a_state_that_is_none(a, b, c):
    def body(indices, x):
        pass

    emit(body, grid=(1,), pipeline_state=3, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(", pipeline at {file}:{line}: memory_thread_idx=2, but the CTA's warpgroups are 0…1: num_compute_wgs=1 and the "
         "memory role", kind=SpecError, mend={"memory_thread_idx=2": "memory_thread_idx=1"})
def another_memory_thread(a, b, c):
    def body(indices, x):
        pass

    emit(body, grid=(1,), memory_thread_idx=2, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(", pipeline at {file}:{line}: allocations of a @ {file}:{line-2} have other slots than this pipeline, a @ "
         "{file}:{line}: 2, and "
         "it needs 3; pipelines that share them have the same", kind=SpecError,
         mend={"max_concurrent_steps=3": "max_concurrent_steps=2"})
def allocations_with_other_slots(a, b, c):
    def body(indices, x):
        pass

    one = emit(body, grid=(c.shape[0],), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    shared = one.get_allocations(a)
    emit(body, grid=(c.shape[0],), max_concurrent_steps=3, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a, allocations=shared)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(", pipeline at {file}:{line}: allocations of a @ {file}:{line-2} are 1 rings, but this pipeline has 2: operands "
         "that change "
         "together and have as many slots share a ring; pipelines that share allocations have the same", kind=SpecError)
def allocations_of_fewer_rings(a, b, c):
    def body(indices, x):
        pass

    def other(indices, x, y):
        pass

    one = emit(body, grid=(c.shape[0],), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    shared = one.get_allocations(a)
    emit(other, grid=(c.shape[0],), in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64))))(a, b, allocations=shared)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(", pipeline at {file}:{line-2}: called on 1 arrays, but in_specs has 2", kind=SpecError,
         mend={"get_allocations(a)": "get_allocations(a, b)"})
def allocations_for_fewer_arrays(a, b, c):
    def body(indices, x, y):
        pass

    pipe = emit(body, grid=(1,), in_specs=(
        BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))))
    numpipe.run_scoped(lambda parts: pipe(a, b, allocations=parts), pipe.get_allocations(a), collective_axes="wg")
    #                                                               ^^^^^^^^^^^^^^^^^^^^^^^


@refused(", pipeline at {file}:{line}: allocations of a @ {file}:{line-2} have other blocks in shared memory than this pipeline, "
         "a @ {file}:{line}: (64, 64) of 2 B, rows of 128 B along 1, and it needs (64, 32) of 2 B, rows of 64 B along 1; pipelines "
         "that share them have the same", kind=SpecError, mend={"(64, 32)": "(64, 64)"})
def allocations_with_other_blocks(a, b, c):
    def body(indices, x):
        pass

    one = emit(body, grid=(c.shape[0],), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    shared = one.get_allocations(a)
    emit(body, grid=(c.shape[0],), in_specs=(BlockSpec((64, 32), lambda k: (0, k)),))(a, allocations=shared)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(", pipeline at {file}:{line}: allocations of a @ {file}:{line-2} have other barriers, which the body uses itself (ready, "
         "consumed), than this pipeline, a @ {file}:{line}: (False, False), and it needs (True, False); pipelines that share them "
         "have the same", kind=SpecError)
def allocations_with_other_barriers(a, b, c):
    def body(indices, x):
        pass

    def waits(indices, x, ready):
        numpipe.barrier_wait(ready)

    specs = (BlockSpec((64, 64), lambda k: (0, k)),)
    shared = emit(body, grid=(c.shape[0],), in_specs=specs).get_allocations(a)
    each = c.shape[0]
    emit(waits, grid=(each,), in_specs=specs, manual_ready_barriers=True)(a, allocations=shared)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated=", pipeline at {file}:{line}: pipeline_state must be None, numpipe.PipelineState.START, STEADY or STOP, or an "
                   "integer 0…2, got 128", kind=SpecError, mend={"a.shape[0]": "a.shape[0] - 126"})
def a_run_time_state_that_is_none(a, b, c):
    def body(indices, x):
        pass

    emit(body, grid=(1,), pipeline_state=a.shape[0], in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


# ---- a pipeline's slots are in use while it runs ---------------------------------------------------------------------
@refused("pipe(a) runs inside its own loop of line {line-1}, on the same slots, which are in use until that one ends: make a "
         "second pipeline for it",
         mend={
               "    for _, (x,) in":
                 "    second = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))\n    for _, (x,) in",
               "(y,) in pipe(a)": "(y,) in second(a)"})
def a_pipeline_inside_itself(a, b, c):
    pipe = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for _, (x,) in pipe(a):
        for _, (y,) in pipe(a):
        #              ^^^^^^^
            pass


@refused("second(a, allocations=shared) runs inside the loop of line {line-1}, whose slots it has: they are in use until that one "
         "ends; let it have its own", mend={"second(a, allocations=shared)": "second(a)"})
def a_loop_inside_another_one_on_its_slots(a, b, c):
    first = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    second = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    shared = first.get_allocations(a)
    for _, (x,) in first(a):
        for _, (y,) in second(a, allocations=shared):
        #              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
            pass


@refused(", pipeline at {file}:{line-2}: allocations of a @ {file}:{line-3} have other slots than this pipeline, a @ "
         "{file}:{line-2}: 2, and it needs 3; pipelines that share them have the same", kind=SpecError,
         mend={"buffer_count=2": "buffer_count=3"})
def a_loop_on_fewer_slots_than_it_needs(a, b, c):
    first = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k), buffer_count=2),))
    second = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k), buffer_count=3),))
    shared = first.get_allocations(a)
    for _, (x,) in second(a, allocations=shared):
    #              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass


@refused(", pipeline at {file}:{line-4}: it runs inside the pipeline at {file}:{line+2}, on the same slots, which are in use until "
         "that one ends: the inner one must be a pipeline of its own, with its own allocations", kind=SpecError)
def shared_allocations_inside(a, b, c):
    def inner(indices, x):
        pass

    one = emit(inner, grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    shared = one.get_allocations(a)

    def outer(indices, x):
        one(a, allocations=shared)
      # ^^^^^^^^^^^^^^^^^^^^^^^^^^
    emit(outer, grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a, allocations=shared)  # called
