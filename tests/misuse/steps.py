from __future__ import annotations

import numpipe
from numpipe import SpecError
from tests.kernels.refusals import Cases

emit = numpipe.emit_pipeline_warp_specialized
refused = Cases(emit=emit)
"""Misused specs of operands that change at their own rate, and of pipelines that share
allocations."""
refused(
    "no_buffers",
    """
    spec = BlockSpec((64, 64), lambda k: (0, k), buffer_count=0)
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec: buffer_count must be an int >= 1 or None, got 0",
    kind=SpecError,
    fix={"buffer_count=0": "buffer_count=1"},
)
refused(
    "a_block_in_global_memory",
    """
    spec = BlockSpec((64, 64), memory_space=GMEM)
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec: memory_space=numpipe.GMEM passes the whole array to the body and loads "
    "nothing: leave out block_shape=(64, 64)",
    kind=SpecError,
    fix={"(64, 64), ": ""},
)
refused(
    "a_fill_of_what_is_not_loaded",
    """
    spec = BlockSpec(memory_space=GMEM, oob_fill="nan")
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec: memory_space=numpipe.GMEM passes the whole array to the body and loads "
    "nothing: leave out oob_fill='nan'",
    kind=SpecError,
    fix={', oob_fill="nan"': ""},
)
refused(
    "a_policy_for_what_is_not_loaded",
    """
    spec = BlockSpec(memory_space=GMEM, eviction_policy="evict_first")
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec: memory_space=numpipe.GMEM passes the whole array to the body and loads "
    "nothing: leave out eviction_policy='evict_first'",
    kind=SpecError,
    fix={', eviction_policy="evict_first"': ""},
)
refused(
    "a_memory_space_that_is_none",
    """
    spec = BlockSpec((64, 64), memory_space=a)
    #                                       ^
""",
    "BlockSpec: memory_space must be numpipe.SMEM or numpipe.GMEM, a compile-time constant, got a",
    fix={"memory_space=a": "memory_space=SMEM"},
)
refused(
    "an_allocation_for_a_memory_space",
    """
    spec = BlockSpec((64, 64), memory_space=SMEM((64, 64), "float16"))
    #                                       ^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec: memory_space must be numpipe.SMEM or numpipe.GMEM, a compile-time constant, "
    "got SMEM((64, 64), 'float16')",
    fix={'SMEM((64, 64), "float16")': "SMEM"},
)
refused(
    "one_buffer_and_a_delay",
    """
    spec = BlockSpec((64, 64), lambda k: (0, k), buffer_count=1)
    pipe = numpipe.pipeline(grid=(3,), delay_release=1, in_specs=(spec,))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: delay_release=1 needs more than 1 slots, got buffer_count=1 of "
    "in_specs[0]: the slot of step k is still in use when step k + delay_release waits for its "
    "own; fix: set the number of slots to at least 2",
    kind=SpecError,
    fix={"buffer_count=1": "buffer_count=2"},
)
refused(
    "arrays_in_other_tuples",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(spec, (spec,)))
    for _, (x, y) in pipe(a, b):
    #                ^^^^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-1}: called on arrays (*, *), but in_specs has (*, (*,)): "
    "pass them in the same tuples",
    kind=SpecError,
    fix={"(x, y) in pipe(a, b)": "(x, (y,)) in pipe(a, (b,))"},
)
refused(
    "steps_that_are_a_number",
    """
    pipe = numpipe.pipeline(grid=(3,), steps_of=2, in_specs=(spec,))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        ", pipeline at {file}:{line}: steps_of must be a function nested in the kernel with one "
        "parameter, the warpgroup, got int"
    ),
    compiled=(
        ", pipeline at {file}:{line}: steps_of must be a function nested in the kernel with one "
        "parameter, the warpgroup, got int32"
    ),
    kind=SpecError,
    fix={"steps_of=2": "steps_of=lambda wg: 2"},
)
refused(
    "steps_of_two",
    """
    pipe = numpipe.pipeline(grid=(3,), steps_of=lambda wg, k: 2, in_specs=(spec,))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: steps_of takes 2 arguments, but is called with one, the "
    "warpgroup",
    kind=SpecError,
    fix={"lambda wg, k: 2": "lambda wg: 2"},
)
refused(
    "unequal_steps_around_a_pipeline",
    """
    pipe = numpipe.pipeline(grid=(3,), steps_of=lambda wg: 2, in_specs=(spec,))
    for _, (x,) in pipe(a):
    #              ^^^^^^^
        for _, (y,) in pipe(b):
            pass
""",
    ", pipeline at {file}:{line-1}: steps_of, but its body contains another pipeline, whose loads "
    "are issued for all steps; fix: pass steps_of to the inner one, or leave it out",
    kind=SpecError,
    fix={"steps_of=lambda wg: 2, ": ""},
)
refused(
    "a_state_that_is_none",
    """
    emit(body, grid=(1,), pipeline_state=3, in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: pipeline_state must be None, numpipe.PipelineState.START, "
    "STEADY or STOP, or an integer 0…2, got 3",
    kind=SpecError,
    fix={"pipeline_state=3": "pipeline_state=None"},
)
refused(
    "another_memory_thread",
    """
    emit(body, grid=(1,), memory_thread_idx=2, in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: memory_thread_idx=2, but the CTA's warpgroups are 0…1: "
    "num_compute_wgs=1 and the memory role",
    kind=SpecError,
    fix={"memory_thread_idx=2": "memory_thread_idx=1"},
)
refused(
    "allocations_with_other_slots",
    """
    one = emit(body, grid=(c.shape[0],), in_specs=(spec,))
    shared = one.get_allocations(a)
    emit(body, grid=(c.shape[0],), max_concurrent_steps=3, in_specs=(spec,))(a, allocations=shared)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: allocations of a @ {file}:{line-2} have other slots than "
    "this pipeline, a @ {file}:{line}: 2, and it needs 3; pipelines that share them have the "
    "same",
    kind=SpecError,
    fix={"max_concurrent_steps=3": "max_concurrent_steps=2"},
)
refused(
    "allocations_of_fewer_rings",
    """
    def other(indices, x, y):
        pass

    one = emit(body, grid=(c.shape[0],), in_specs=(spec,))
    shared = one.get_allocations(a)
    emit(other, grid=(c.shape[0],), in_specs=(spec, BlockSpec((64, 64))))(a, b, allocations=shared)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: the allocations of a @ {file}:{line-2} have 1 rings, but this "
    "pipeline has 2. Pipelines that share allocations must have the same number of rings; "
    "operands that change together and have the same number of slots share a ring",
    kind=SpecError,
)
refused(
    "allocations_for_fewer_arrays",
    """
    def body(indices, x, y):
        pass

    pipe = emit(body, grid=(1,), in_specs=(spec, spec))
    numpipe.run_scoped(lambda parts: pipe(a, b, allocations=parts),
                       pipe.get_allocations(a), collective_axes="wg")
    #                  ^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line-2}: called on 1 arrays, but in_specs has 2",
    kind=SpecError,
    fix={"get_allocations(a)": "get_allocations(a, b)"},
)
refused(
    "allocations_with_other_blocks",
    """
    narrow = BlockSpec((64, 32), lambda k: (0, k))
    one = emit(body, grid=(c.shape[0],), in_specs=(spec,))
    shared = one.get_allocations(a)
    emit(body, grid=(c.shape[0],), in_specs=(narrow,))(a, allocations=shared)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: allocations of a @ {file}:{line-2} have other blocks in "
    "shared memory than this pipeline, a @ {file}:{line}: (64, 64) of 2 B, rows of 128 B "
    "along 1, and it needs (64, 32) of 2 B, rows of 64 B along 1; pipelines that share them "
    "have the same",
    kind=SpecError,
    fix={"(64, 32)": "(64, 64)"},
)
refused(
    "allocations_with_other_barriers",
    """
    def waits(indices, x, ready):
        numpipe.barrier_wait(ready)

    specs = (spec,)
    shared = emit(body, grid=(c.shape[0],), in_specs=specs).get_allocations(a)
    each = c.shape[0]
    emit(waits, grid=(each,), in_specs=specs, manual_produced_barriers=True)(a, allocations=shared)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: allocations of a @ {file}:{line-2} have other barriers, "
    "which the body uses itself (ready, consumed), than this pipeline, a @ {file}:{line}: "
    "(False, False), and it needs (True, False); pipelines that share them have the same",
    kind=SpecError,
)
refused(
    "a_run_time_state_that_is_none",
    """
    emit(body, grid=(1,), pipeline_state=a.shape[0], in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        ", pipeline at {file}:{line}: pipeline_state must be None, numpipe.PipelineState.START, "
        "STEADY or STOP, or an integer 0…2, got 128"
    ),
    kind=SpecError,
    fix={"a.shape[0]": "a.shape[0] - 126"},
)

# a pipeline's slots are in use while it runs
refused(
    "a_pipeline_inside_itself",
    """
    for _, (x,) in pipe(a):
        for _, (y,) in pipe(a):
    #                  ^^^^^^^
            pass
""",
    "pipe(a) runs inside its own loop at line {line-1}, whose slots are in use until that loop "
    "ends; fix: make a second pipeline for it",
    fix={
        "    for _, (x,) in": (
            "    second = numpipe.pipeline(grid=(2,), in_specs=(spec,))\n    for _, (x,) in"
        ),
        "(y,) in pipe(a)": "(y,) in second(a)",
    },
)
refused(
    "a_loop_inside_another_one_on_its_slots",
    """
    first = numpipe.pipeline(grid=(2,), in_specs=(spec,))
    second = numpipe.pipeline(grid=(2,), in_specs=(spec,))
    shared = first.get_allocations(a)
    for _, (x,) in first(a):
        for _, (y,) in second(a, allocations=shared):
    #                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
            pass
""",
    "second(a, allocations=shared) runs inside the loop at line {line-1} and shares its slots, "
    "which are in use until that loop ends; fix: give it its own allocations",
    fix={"second(a, allocations=shared)": "second(a)"},
)
refused(
    "a_loop_on_fewer_slots_than_it_needs",
    """
    two = BlockSpec((64, 64), lambda k: (0, k), buffer_count=2)
    three = BlockSpec((64, 64), lambda k: (0, k), buffer_count=3)
    first = numpipe.pipeline(grid=(2,), in_specs=(two,))
    second = numpipe.pipeline(grid=(2,), in_specs=(three,))
    shared = first.get_allocations(a)
    for _, (x,) in second(a, allocations=shared):
    #              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-2}: allocations of a @ {file}:{line-3} have other slots than "
    "this pipeline, a @ {file}:{line-2}: 2, and it needs 3; pipelines that share them have "
    "the same",
    kind=SpecError,
    fix={"buffer_count=2": "buffer_count=3"},
)
refused(
    "shared_allocations_inside",
    """
    def inner(indices, x):
        pass

    one = emit(inner, grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    shared = one.get_allocations(a)

    def outer(indices, x):
        one(a, allocations=shared)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^
    emit(outer, grid=(2,), in_specs=(spec,))(a, allocations=shared)  # called
""",
    ", pipeline at {file}:{line-4}: it runs inside the pipeline at {file}:{line+2}, on the same "
    "slots, which are in use until that one ends; fix: leave out allocations= for the inner "
    "pipeline",
    kind=SpecError,
)
