"""The CUDA implementation of special values that have LLVM intrinsics, so that arithmetic on them
can be folded."""

from __future__ import annotations

from typing import Any

from numpipe.core.numba import I32
from numpipe.core.op import cuda_meaning

from . import special


@cuda_meaning(special.thread_index)
def _thread_index() -> Any:
    builder, _ = yield I32
    return builder.thread_index()


@cuda_meaning(special.warpgroup_index)
def _warpgroup_index() -> Any:
    builder, _ = yield I32
    return builder.lshr(builder.thread_index(), 7)


@cuda_meaning(special.smem_base)
def _smem_base() -> Any:
    builder, _ = yield I32
    return builder.shared_base()
