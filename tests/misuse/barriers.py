"""Misused barriers of a body: wrong arguments, and operations on something that is not the right
kind of barrier."""

from __future__ import annotations

import numpipe
from numpipe import PipelineDeadlock, PipelineRace, SpecError
from tests.kernels.refusals import Cases

emit = numpipe.emit_pipeline_warp_specialized
refused = Cases(emit=emit)
refused(
    "a_body_without_ready_barriers",
    """
    def body(indices, x, y):
        pass

    specs = spec, spec
    emit(body, grid=(2,), manual_produced_barriers=True, in_specs=specs)(a, b)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: body 'body' takes 3 arguments, but is called with 5: "
    "(indices, 2 tiles, 2 ready barriers)",
    kind=SpecError,
    fix={"x, y):": "x, y, x_ready, y_ready):"},
)
refused(
    "a_body_without_consumed_barriers",
    """
    def body(indices, x, x_ready):
        pass

    emit(body, grid=(2,), in_specs=(spec,), manual_produced_barriers=True,
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
         manual_consumed_barriers=True)(a)
""",
    ", pipeline at {file}:{line}: body 'body' takes 3 arguments, but is called with 4: "
    "(indices, 1 tile, 1 ready barrier, 1 consumed barrier)",
    kind=SpecError,
    fix={
        "x, x_ready):\n        pass": (
            "x, x_ready, x_consumed):\n        numpipe.barrier_arrive(x_consumed)"
        ),
    },
)
refused(
    "a_body_with_neither_barriers_nor_carry",
    """
    def compute(pipeline):
        pipeline(0)

    emit(body, grid=(2,), in_specs=(spec,), manual_consumed_barriers=True,
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
         compute_context=compute)(a)
""",
    ", pipeline at {file}:{line}: body 'body' takes 2 arguments, but is called with 4: "
    "(indices, 1 tile, 1 consumed barrier, carry)",
    kind=SpecError,
)
refused(
    "a_number_for_a_flag",
    """
    def body(indices, x, x_ready):
        pass

    emit(body, grid=(2,), manual_produced_barriers=1, in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: manual_produced_barriers must be True or False, got 1",
    kind=SpecError,
    fix={"barriers=1": "barriers=True"},
)
refused(
    "a_run_time_flag",
    """
    def body(indices, x, x_consumed):
        pass

    emit(body, grid=(2,), manual_consumed_barriers=a.shape[0], in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: manual_consumed_barriers must be a compile-time constant, "
    "not a run-time int32: pass a literal, a constant of the module or a Static field",
    kind=SpecError,
    fix={"a.shape[0]": "True", "        pass": "        numpipe.barrier_arrive(x_consumed)"},
)
refused(
    "a_wait_on_a_consumed_barrier",
    """
    def body(indices, x, x_consumed):
        numpipe.barrier_wait(x_consumed)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

    emit(body, grid=(2,), manual_consumed_barriers=True, in_specs=(spec,))(a)  # called
""",
    "barrier_wait takes a ready barrier; that one is for numpipe.barrier_arrive(…), got a "
    "consumed barrier",
    kind=SpecError,
    fix={"barrier_wait": "barrier_arrive"},
)
refused(
    "an_arrival_on_a_ready_barrier",
    """
    def body(indices, x, x_ready):
        numpipe.barrier_arrive(x_ready)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

    emit(body, grid=(2,), manual_produced_barriers=True, in_specs=(spec,))(a)  # called
""",
    "barrier_arrive takes a consumed barrier; that one is for numpipe.barrier_wait(…), got a "
    "ready barrier",
    kind=SpecError,
    fix={"barrier_arrive": "barrier_wait"},
)
refused(
    "a_wait_on_a_tile",
    """
    for (k,), (tile,) in pipe(a):
        numpipe.barrier_wait(tile)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "barrier_wait takes a ready barrier, which the body is given with "
        "manual_produced_barriers=True, got shared-memory tile"
    ),
    compiled=(
        "barrier_wait takes a ready barrier, which the body is given with "
        "manual_produced_barriers=True, got shared-memory tile (64, 64) float16"
    ),
    kind=SpecError,
)
refused(
    "an_arrival_on_a_number",
    """
    numpipe.barrier_arrive(a.shape[0])
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "barrier_arrive takes a consumed barrier, which the body is given with "
    "manual_consumed_barriers=True, got int32",
    kind=SpecError,
)
refused(
    "a_branch_on_a_barrier",
    """
    def body(indices, x, x_ready):
        if x_ready:
    #   ^^^^^^^^^^
            numpipe.barrier_wait(x_ready)

    emit(body, grid=(2,), manual_produced_barriers=True, in_specs=(spec,))(a)  # called
""",
    "a ready barrier has no value; fix: pass it to numpipe.barrier_wait(…)",
)

# ---- detected only in a run
refused(
    "a_body_that_releases_nothing",
    """
    def body(indices, x, x_consumed):
        pass

    emit(body, grid=(2,), manual_consumed_barriers=True, in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "warpgroup 0 (compute) of CTA (0, 0, 0) did not arrive on consumed[0] for in_specs[0] 'a' "
        "of a @ {file}:{line} for step 0: the memory role would wait forever; with "
        "manual_consumed_barriers every compute warpgroup arrives once on each consumed barrier "
        "of a step"
    ),
    kind=PipelineDeadlock,
    fix={"        pass": "        numpipe.barrier_arrive(x_consumed)"},
)
refused(
    "a_body_that_releases_twice",
    """
    def body(indices, x, x_consumed):
        numpipe.barrier_arrive(x_consumed)
        numpipe.barrier_arrive(x_consumed)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

    emit(body, grid=(2,), manual_consumed_barriers=True, in_specs=(spec,))(a)  # called
""",
    simulated=(
        "warpgroup 0 (compute) of CTA (0, 0, 0) arrives twice on consumed[0] for in_specs[0] 'a' "
        "of a @ {file}:{line+3} for step 0: the tile would be loaded over while another "
        "warpgroup reads it; with manual_consumed_barriers every compute warpgroup arrives once "
        "on each consumed barrier of a step"
    ),
    kind=PipelineRace,
    fix={
        "        numpipe.barrier_arrive(x_consumed)\n"
        "        numpipe.barrier_arrive(x_consumed)\n": (
            "        numpipe.barrier_arrive(x_consumed)\n"
        ),
    },
)

# ---- in the loop form
refused(
    "a_loop_without_its_barriers",
    """
    pipe = numpipe.pipeline(grid=(2,), in_specs=(spec,), manual_produced_barriers=True)
    for _, (x,) in pipe(a):
    #              ^^^^^^^
        pass
""",
    ", pipeline at {file}:{line-1}: the loop unpacks 2 groups, but each step has 3; fix: write "
    "`for (indices), (tiles), (ready barriers) in pipe(arrays):`; barriers come with "
    "manual_produced_barriers=True and manual_consumed_barriers=True",
    kind=SpecError,
    fix={"(x,) in": "(x,), (x_ready,) in"},
)
refused(
    "a_loop_with_barriers_that_nobody_asked_for",
    """
    pipe = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for _, (x,), (x_ready,) in pipe(a):
    #                          ^^^^^^^
        numpipe.barrier_wait(x_ready)
""",
    ", pipeline at {file}:{line-1}: the loop unpacks 3 groups, but each step has 2; fix: write "
    "`for (indices), (tiles) in pipe(arrays):`; barriers come with "
    "manual_produced_barriers=True and manual_consumed_barriers=True",
    kind=SpecError,
    fix={"),))": "),), manual_produced_barriers=True)"},
)
refused(
    "a_loop_with_too_few_barriers",
    """
    specs = spec, spec
    pipe = numpipe.pipeline(grid=(2,), in_specs=specs, manual_consumed_barriers=True)

    for _, (x, y), (x_consumed,) in pipe(a, b):
    #                               ^^^^^^^^^^
        numpipe.barrier_arrive(x_consumed)
""",
    ", pipeline at {file}:{line-2}: the loop unpacks 1 consumed barriers, but the pipeline "
    "has 2: one for each array that it loads, in the tuples of in_specs",
    kind=SpecError,
    fix={
        "(x_consumed,)": "(x_consumed, y_consumed)",
        "        numpipe.barrier_arrive(x_consumed)": (
            "        numpipe.barrier_arrive(x_consumed)\n        numpipe.barrier_arrive(y_consumed)"
        ),
    },
)
refused(
    "a_loop_that_takes_them_in_the_other_order",
    """
    pipe = numpipe.pipeline(grid=(2,), in_specs=(spec,), manual_produced_barriers=True,
                            manual_consumed_barriers=True)
    for _, (x,), (x_consumed,), (x_ready,) in pipe(a):
        numpipe.barrier_arrive(x_consumed)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "barrier_arrive takes a consumed barrier; that one is for numpipe.barrier_wait(…), got a "
    "ready barrier",
    kind=SpecError,
    fix={"(x_consumed,), (x_ready,)": "(x_ready,), (x_consumed,)"},
)
refused(
    "a_loop_that_takes_what_comes",
    """
    pipe = numpipe.pipeline(grid=(2,), in_specs=(spec,), manual_produced_barriers=True)
    for _, (x,), *barriers in pipe(a):
    #   ^^^^^^^^^^^^^^^^^^
        pass
""",
    "expected a pipeline loop `for (indices), (tiles) in pipe(arrays):`, got `for (_, "
    "(x,), *barriers)`",
)
refused(
    "a_barrier_that_outlives_its_loop",
    """
    pipe = numpipe.pipeline(grid=(2,), in_specs=(spec,), manual_produced_barriers=True)
    for _, (x,), (x_ready,) in pipe(a):
        numpipe.barrier_wait(x_ready)
    numpipe.barrier_wait(x_ready)
    #                    ^^^^^^^
""",
    "'x_ready' belongs to a step of the pipeline loop at line {line-2} but is used after the loop, "
    "where its slot is filled again; fix: use it, or load it with x_ready[...], in the loop",
    fix={"\n    numpipe.barrier_wait(x_ready)": ""},
)
refused(
    "barriers_without_a_memory_role",
    """
    pipe = numpipe.pipeline(grid=(2,), in_specs=(spec,), manual_consumed_barriers=True)
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    for _, (x,), (x_consumed,) in pipe(a):
        numpipe.barrier_arrive(x_consumed)
""",
    ", pipeline at {file}:{line}: manual_consumed_barriers=True in a single-stream pipeline, "
    "whose warpgroup loads all tiles of a step itself; fix: leave it out, or use a memory role, "
    "warp_specialized=True",
    kind=SpecError,
    warp_specialized=False,
    fixed_options={"warp_specialized": True},
)
refused(
    "a_loop_that_releases_nothing",
    """
    pipe = numpipe.pipeline(grid=(2,), in_specs=(spec,), manual_consumed_barriers=True)
    for _, (x,), (x_consumed,) in pipe(a):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    simulated=(
        "warpgroup 0 (compute) of CTA (0, 0, 0) did not arrive on consumed[0] for in_specs[0] 'a' "
        "of a @ {file}:{line-1} for step 0: the memory role would wait forever; with "
        "manual_consumed_barriers every compute warpgroup arrives once on each consumed barrier "
        "of a step"
    ),
    kind=PipelineDeadlock,
    fix={"        pass": "        numpipe.barrier_arrive(x_consumed)"},
)
refused(
    "barriers_by_both_their_names",
    """
    def body(indices, x, x_ready):
        pass

    emit(body, grid=(2,), in_specs=(spec,), manual_ready_barriers=True,
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
         manual_produced_barriers=True)(a)
""",
    "emit_pipeline_warp_specialized(body, *, grid, in_specs=(), out_specs=(), "
    "max_concurrent_steps=None, delay_release=None, compute_context=None, carry_coroutine=None, "
    "num_compute_wgs=None, wg_axis=None, memory_registers=None, manual_produced_barriers=False, "
    "manual_consumed_barriers=False, pipeline_state=None, memory_thread_idx=None, "
    "steps_of=None): argument 'manual_produced_barriers' given twice",
    fix={"manual_ready_barriers=True,": ""},
)
