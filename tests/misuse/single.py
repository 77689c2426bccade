"""Kernels without a memory role, and pipelines that a warpgroup runs for itself."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import BlockSpec, SpecError
from tests.kernels.refusals import Cases

refused = Cases()
emit_ws = numpipe.emit_pipeline_warp_specialized
emit = numpipe.emit_pipeline


@refused(", pipeline at {file}:{line}: emit_pipeline_warp_specialized needs the memory role, which warp_specialized=False leaves "
         "out: use emit_pipeline, whose loads every compute warpgroup issues for itself", kind=SpecError, warp_specialized=False,
         mend={"emit_ws(": "emit("})
def warp_specialized_without_a_memory_role(a, b, c):
    def body(indices, a_tile):
        pass

    emit_ws(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("register budget: zeros (64, 256) takes 64 x 256 / 128 = 128 registers a lane, but each of 4 compute warpgroups has 128: "
         "65536 / 512 threads in steps of 8, at most 255; use a smaller tile, such as (64, 192), and more CTAs or warpgroups",
         warp_specialized=False, num_compute_wgs=4)
def too_large_without_a_memory_role(a, b, c):
    acc = numpipe.zeros((64, 256), np.float32)
    #     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    c[0:64, 0:256] = acc


# ---- the pipeline
@refused("a pipeline is emitted for arrays: emit_pipeline(…)(a, b)", mend={"lambda k: (0, k)),))": "lambda k: (0, k)),))(a)"})
def single_not_called(a, b, c):
    def body(indices, x):
        pass

    emit(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("an emitted pipeline is called on its arrays by position", mend={"run(x=a)": "run(a)"})
def single_called_with_keywords(a, b, c):
    def body(indices, x):
        pass

    run = emit(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    run(x=a)
  # ^^^^^^^^


@refused(", pipeline at {file}:{line}: body 'body' takes 3 arguments, but is called with 2: (indices, 1 tile); a carry needs "
         "init_carry", kind=SpecError, mend={"grid=(1,), ": "grid=(1,), init_carry=0, "})
def a_carry_without_init_carry(a, b, c):
    def body(indices, x, acc):
        return acc

    emit(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(", pipeline at {file}:{line}: body 'body' takes 2 arguments, but is called with 3: (indices, 1 tile, carry); with "
         "init_carry the carry comes last", kind=SpecError,
         mend={"(indices, x):\n        pass": "(indices, x, n):\n        return n"})
def init_carry_that_the_body_does_not_take(a, b, c):
    def body(indices, x):
        pass

    emit(body, grid=(1,), init_carry=0, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(", pipeline at {file}:{line}: body 'body' returns a value, but there is no carry: give init_carry, or return nothing",
         kind=SpecError, mend={"return 3": "pass"})
def a_value_that_nothing_receives(a, b, c):
    def body(indices, x):
        return 3

    emit(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(", pipeline at {file}:{line}: body 'body' was given the carry int32 and returned (int32, int32): a carry keeps its "
         "shape and type from step to step")
def a_single_carry_that_grows(a, b, c):
    def body(indices, x, n):
        return n, n

    emit(body, grid=(1,), init_carry=0, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(", pipeline at {file}:{line}: called on 2 arrays, but in_specs has 1", kind=SpecError, mend={")(a, b)": ")(a)"})
def single_more_arrays_than_specs(a, b, c):
    def body(indices, x):
        pass

    emit(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a, b)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(", pipeline at {file}:{line}: delay_release=1 needs more than 1 slots, got max_concurrent_steps=1: the slot of step k "
         "is still held when step k + delay_release waits for its own", kind=SpecError,
         mend={"delay_release=1": "delay_release=1, max_concurrent_steps=2"})
def a_delay_with_one_slot(a, b, c):
    def body(indices, x):
        pass

    emit(body, grid=(1,), delay_release=1, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("'break' leaves the pipeline loop of line {line-1}: the next steps are being loaded, and nobody would wait for them; run "
         "all steps, or make the grid smaller", warp_specialized=False)
def single_break_without_a_memory_role(a, b, c):
    pipe = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for (_,), (_,) in pipe(a):
        break
      # ^^^^^


@refused(", pipeline at {file}:{line-1}: allocations are what emit_pipeline_warp_specialized uses, and all warpgroups share; a "
         "single-stream pipeline has slots and barriers for each warpgroup: call it without them", kind=SpecError,
         mend={"a, one.get_allocations(a)": "a"})
def allocations_of_a_single_stream_pipeline(a, b, c):
    def body(indices, x):
        pass

    one = emit(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    one(a, one.get_allocations(a))
    #      ^^^^^^^^^^^^^^^^^^^^^^


@refused(", pipeline at {file}:{line}: allocations are what emit_pipeline_warp_specialized uses, and all warpgroups share; a "
         "single-stream pipeline has slots and barriers for each warpgroup: call it without them", kind=SpecError,
         mend={"(a, shared)": "(a)"})
def allocations_for_a_single_stream_pipeline(a, b, c):
    def body(indices, x):
        pass

    specs = (BlockSpec((64, 64), lambda k: (0, k)),)
    shared = emit_ws(body, grid=(1,), max_concurrent_steps=1, in_specs=specs).get_allocations(a)
    emit(body, grid=(1,), in_specs=specs)(a, shared)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
