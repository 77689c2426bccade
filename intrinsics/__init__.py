"""One Python function for each PTX instruction that a pipelined Hopper kernel needs.

An intrinsic can be used in three places: in a ``@numpipe.kernel``, in a plain ``@numba.cuda.jit``
kernel compiled for sm_90a, and on the simulated SM, which runs its Python body. Intrinsics do not
allocate, count or order anything; rings and pipelines, which are built from them, do. Each file
holds one PTX family, and its `_cuda` sibling, if it has one, the operations that need more than a
single statement. Read `mbarrier` first.

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

Conventions: An *address* is a 32-bit byte address in the shared-memory window of the executing CTA
(on the simulator, a byte offset in it). Sizes are in *bytes*, not elements, except for TMA
coordinates. An operand called an immediate is part of the instruction, so it must be a compile-time
constant. Values that differ by lane are scalars on the GPU, and NumPy arrays over the 128 lanes of
the warpgroup on the simulator.

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
        f"numpipe.intrinsics has no family {name!r}: use one of {', '.join(__all__)}"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
