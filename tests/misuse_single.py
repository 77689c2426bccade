"""Kernels without a memory role, and pipelines that a warpgroup runs for itself."""

from __future__ import annotations

import numpy as np
from refusals import Cases

import numpipe
from numpipe import BlockSpec, SpecError

refused = Cases()
emit_ws = numpipe.emit_pipeline_warp_specialized


@refused(", pipeline at {file}:{line}: emit_pipeline_warp_specialized needs the memory role, which warp_specialized=False leaves "
         "out: use emit_pipeline, whose loads every compute warpgroup issues for itself", kind=SpecError, warp_specialized=False)
def warp_specialized_without_a_memory_role(a, b, c):
    def body(indices, a_tile):
        pass

    emit_ws(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("register budget: zeros (64, 256) takes 64 x 256 / 128 = 128 registers a lane, but each of 4 compute warpgroups has 128: "
         "65536 / 512 threads in steps of 8, at most 255; use a smaller tile, or share it between more warpgroups",
         warp_specialized=False, num_compute_wgs=4)
def too_large_without_a_memory_role(a, b, c):
    acc = numpipe.zeros((64, 256), np.float32)
    #     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    c[0:64, 0:256] = acc
