"""Loads and stores that Numba's arrays cannot express: by shared-memory address, through the read-only cache, of raw bits, and
ordered ones between CTAs. PTX ISA, "Data Movement and Conversion Instructions: ld, st"."""

from __future__ import annotations

from typing import NoReturn

from numpipe.core.machine import current
from numpipe.core.op import ptx


@ptx("st.volatile.shared.b32 [$addr], $value;", addr="r", value="r")
def store_word(addr: int, value: int) -> None:
    """Write 32 bits at `addr` (a multiple of 4). Scope: a lane.

    For counters handed from one warpgroup to another, ordered by a barrier: volatile keeps the compiler from holding
    the word in a register. PTX ISA: st, "st.volatile".
    """
    current().store_word(addr, value)


@ptx("ld.volatile.shared.b32 $ret, [$addr];", returns="r", addr="r")
def load_word(addr: int) -> int:
    """Read 32 bits at `addr` (a multiple of 4). Scope: a lane; lanes with one address share one access.

    Example: ``step = memory.load_word(base + 4 * ring)`` after the barrier that hands the turn over. PTX ISA: ld,
    "ld.volatile".
    """
    return current().load_word(addr)


@ptx("ld.global.nc.b32 $ret, [$ptr];", returns="r", memory=False, ptr="l")
def ld_global_nc_b32(ptr: int) -> int:
    """Read 32 bits of GMEM through the read-only cache. Scope: a lane. GPU only: raises NotImplementedError elsewhere.

    `ptr` is a global address, a multiple of 4, that nobody writes while the kernel runs (a tile table made by the
    host). PTX ISA: ld.global.nc.
    """
    _gpu_only("ld_global_nc_b32", "index the reference: table[i]")


@ptx("st.global.b16 [$ptr], $bits;", ptr="l", bits="h")
def store_global_b16(ptr: int, bits: int) -> None:
    """Write 16 bits of GMEM at `ptr` (a multiple of 2). Scope: a lane. GPU only: raises NotImplementedError elsewhere.

    Only the low 16 bits of an integer are stored. PTX ISA: st.
    """
    _gpu_only("store_global_b16", "store a tile: c[rows, columns] = tile")


@ptx("st.global.b32 [$ptr], $bits;", ptr="l", bits="r")
def store_global_b32(ptr: int, bits: int) -> None:
    """Write 32 bits of GMEM at `ptr` (a multiple of 4). Scope: a lane. GPU only: raises NotImplementedError elsewhere.

    With `convert.pack_bf16x2` two neighbouring elements in one store. PTX ISA: st.
    """
    _gpu_only("store_global_b32", "store a tile: c[rows, columns] = tile")


@ptx("ld.acquire.gpu.global.b32 $ret, [$ptr];", returns="r", ptr="l")
def ld_acquire_gpu_b32(ptr: int) -> int:
    """Read 32 bits of GMEM at `ptr` (a multiple of 4) that another CTA may be writing. Scope: a lane. GPU only.

    This lane then sees what that CTA did before it wrote the value by `st_release_gpu_b32`, and so do lanes that meet this one
    at a barrier. PTX ISA: ld.acquire; "Memory Consistency Model: Release and Acquire Patterns".
    """
    _gpu_only("ld_acquire_gpu_b32", "numpipe.combine waits for the parts of a tile")


@ptx("{ .reg .pred unset; .reg .b32 seen; WAIT: ld.acquire.gpu.global.b32 seen, [$ptr]; setp.eq.u32 unset, seen, 0; "
     "@unset bra WAIT; }", ptr="l")
def await_acquire_gpu_b32(ptr: int) -> None:
    """`ld_acquire_gpu_b32` again and again, until the word is not 0. Scope: a lane. GPU only.

    The CTA that writes it must be running, or sure to run without this one's end::

        one_lane(memory.await_acquire_gpu_b32, flag)        # then a barrier, behind which all lanes may read

    PTX ISA: ld.acquire.
    """
    _gpu_only("await_acquire_gpu_b32", "numpipe.combine waits for the parts of a tile")


@ptx("st.release.gpu.global.b32 [$ptr], $value;", ptr="l", value="r")
def st_release_gpu_b32(ptr: int, value: int) -> None:
    """Write 32 bits of GMEM at `ptr` (a multiple of 4) after all that this lane has done or seen. Scope: a lane. GPU only.

    Stores of other lanes count if a barrier orders them before. A fence for the whole GPU (MEMBAR.ALL.GPU): once a tile, not in
    a main loop. PTX ISA: st.release; "Memory Consistency Model: Release and Acquire Patterns".
    """
    _gpu_only("st_release_gpu_b32", "numpipe.combine hands parts of a tile over")


def _gpu_only(name: str, instead: str) -> NoReturn:
    raise NotImplementedError(f"memory.{name} takes a GPU address, and the simulated SM has arrays in its place; in a "
                              f"kernel that also runs there, {instead}")
