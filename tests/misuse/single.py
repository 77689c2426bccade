"""Misused kernels without a memory role, and misused single-stream pipelines."""

from __future__ import annotations

import numpipe
from numpipe import SpecError
from tests.kernels.refusals import Cases

emit_ws = numpipe.emit_pipeline_warp_specialized
emit = numpipe.emit_pipeline
refused = Cases(emit=emit, emit_ws=emit_ws)
refused(
    "warp_specialized_without_a_memory_role",
    """
    def body(indices, a_tile):
        pass

    emit_ws(body, grid=(1,), in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: emit_pipeline_warp_specialized needs a memory role, which "
    "warp_specialized=False removes; fix: use emit_pipeline, in which each compute warpgroup "
    "issues its own loads",
    kind=SpecError,
    warp_specialized=False,
    fix={"emit_ws(": "emit("},
)
refused(
    "too_large_without_a_memory_role",
    """
    acc = numpipe.zeros((64, 256), np.float32)
    #     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    c[0:64, 0:256] = acc
""",
    "register budget: zeros (64, 256) takes 64 x 256 / 128 = 128 registers per lane, but each of "
    "4 compute warpgroups has 128: 65536 / 512 threads in steps of 8, at most 255; fix: use a "
    "smaller tile, such as (64, 192), and more CTAs or warpgroups",
    warp_specialized=False,
    num_compute_wgs=4,
)

# ---- the pipeline
refused(
    "single_not_called",
    """
    def body(indices, x):
        pass

    emit(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "a pipeline is emitted for arrays: emit_pipeline(…)(a, b)",
    fix={"lambda k: (0, k)),))": "lambda k: (0, k)),))(a)"},
)
refused(
    "single_called_with_keywords",
    """
    run = emit(body, grid=(1,), in_specs=(spec,))
    run(x=a)
  # ^^^^^^^^
""",
    "an emitted pipeline is called on its arrays by position",
    fix={"run(x=a)": "run(a)"},
)
refused(
    "a_carry_without_init_carry",
    """
    def body(indices, x, acc):
        return acc

    emit(body, grid=(1,), in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: body 'body' takes 3 arguments, but is called with 2: "
    "(indices, 1 tile); a carry needs init_carry",
    kind=SpecError,
    fix={"grid=(1,), ": "grid=(1,), init_carry=0, "},
)
refused(
    "init_carry_that_the_body_does_not_take",
    """
    emit(body, grid=(1,), init_carry=0, in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: body 'body' takes 2 arguments, but is called with 3: "
    "(indices, 1 tile, carry); with init_carry the carry comes last",
    kind=SpecError,
    fix={"(indices, x):\n        pass": "(indices, x, n):\n        return n"},
)
refused(
    "a_value_that_nothing_receives",
    """
    def body(indices, x):
        return 3

    emit(body, grid=(1,), in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: body 'body' returns a value, but there is no carry; fix: pass "
    "init_carry, or return nothing",
    kind=SpecError,
    fix={"return 3": "pass"},
)
refused(
    "a_single_carry_that_grows",
    """
    def body(indices, x, n):
        return n, n

    emit(body, grid=(1,), init_carry=0, in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: body 'body' was given the carry int32 and returned (int32, "
    "int32): a carry keeps its shape and type from step to step",
)
refused(
    "single_more_arrays_than_specs",
    """
    emit(body, grid=(1,), in_specs=(spec,))(a, b)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: called on 2 arrays, but in_specs has 1",
    kind=SpecError,
    fix={")(a, b)": ")(a)"},
)
refused(
    "a_delay_with_one_slot",
    """
    emit(body, grid=(1,), delay_release=1, in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: delay_release=1 needs more than 1 slots, got "
    "max_concurrent_steps=1: the slot of step k is still in use when step k + delay_release waits "
    "for its own; fix: set the number of slots to at least 2",
    kind=SpecError,
    fix={"delay_release=1": "delay_release=1, max_concurrent_steps=2"},
)
refused(
    "single_break_without_a_memory_role",
    """
    for (_,), (_,) in pipe(a):
        break
    #   ^^^^^
""",
    "'break' leaves the pipeline loop at line {line-1}: the next steps are being loaded, and "
    "nobody would wait for them; fix: run all steps, or make the grid smaller",
    warp_specialized=False,
)
refused(
    "allocations_of_a_single_stream_pipeline",
    """
    one = emit(body, grid=(1,), in_specs=(spec,))
    one(a, one.get_allocations(a))
    #      ^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line-1}: allocations belong to emit_pipeline_warp_specialized, whose "
    "slots all warpgroups share, but a single-stream pipeline has slots and barriers for each "
    "warpgroup; fix: leave out allocations=",
    kind=SpecError,
    fix={"a, one.get_allocations(a)": "a"},
)
refused(
    "allocations_for_a_single_stream_pipeline",
    """
    specs = (spec,)
    shared = emit_ws(body, grid=(1,), max_concurrent_steps=1, in_specs=specs).get_allocations(a)
    emit(body, grid=(1,), in_specs=specs)(a, shared)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: allocations belong to emit_pipeline_warp_specialized, whose "
    "slots all warpgroups share, but a single-stream pipeline has slots and barriers for each "
    "warpgroup; fix: leave out allocations=",
    kind=SpecError,
    fix={"(a, shared)": "(a)"},
)
