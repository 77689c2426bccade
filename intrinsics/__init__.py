"""One Python function for each PTX instruction that a pipelined Hopper kernel needs.

An intrinsic works in three places: in a ``@numpipe.kernel``, in a plain ``@numba.cuda.jit`` kernel
compiled for sm_90a, and on the simulated SM, where its Python body runs. Nothing here allocates,
counts or orders: rings and pipelines do, which are made of these functions. A file holds a family
of PTX; its `_cuda` sibling, where it has one, what a single statement cannot say. Read `mbarrier`
first.

==================  ============================================================  ==================
module              PTX                                                           executed by
==================  ============================================================  ==================
mbarrier            mbarrier.init, .inval, .arrive, .expect_tx, .try_wait         a lane
fence               fence.proxy.async, fence.mbarrier_init                        a lane
barrier             bar.sync, bar.arrive (named barriers)                         a warp
cluster             mapa, barrier.cluster.arrive, .wait                           a lane
cp_async_bulk       cp.async.bulk.tensor (TMA), commit_group, wait_group          one elected lane
wgmma               wgmma.mma_async, .fence, .commit_group, .wait_group           a warpgroup
setmaxnreg          setmaxnreg.inc, .dec                                          a warpgroup
elect               elect.sync                                                    a warp
stmatrix            stmatrix .x1, .x2, .x4, with and without .trans               a warp
ldmatrix            ldmatrix .x1, .x2, .x4, with and without .trans               a warp
convert             cvt to and from bf16x2, f16x2                                 a lane
special             %tid, %ctaid, %nctaid, %clock64, …                            a lane
memory              ld.shared, st.shared, ld.global(.nc, .acquire), st.global     a lane
griddep             griddepcontrol (programmatic dependent launch)                a lane
==================  ============================================================  ==================

Conventions. An *address* is a 32-bit byte address in the shared-memory window of the executing CTA
(on the simulator: a byte offset in it). *Bytes* are counted, not elements, except for TMA
coordinates. An operand called an immediate is part of the instruction: it must be a compile-time
constant. Values that differ by lane are NumPy arrays over the 128 lanes of the warpgroup on the
simulator, scalars on the GPU.

>>> from numpipe import intrinsics
>>> intrinsics.wgmma.legal_n("bf16")[:3]
(8, 16, 24)
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = [
    "barrier",
    "cluster",
    "convert",
    "cp_async_bulk",
    "elect",
    "fence",
    "griddep",
    "ldmatrix",
    "mbarrier",
    "memory",
    "setmaxnreg",
    "special",
    "stmatrix",
    "wgmma",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(
        f"numpipe.intrinsics has no family {name!r}; there are: {', '.join(__all__)}"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
