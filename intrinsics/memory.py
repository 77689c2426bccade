"""Loads and stores that Numba's arrays cannot express: by shared-memory address, of raw bits, and
ordered between CTAs. PTX ISA, "Data Movement and Conversion Instructions: ld, st"."""

from __future__ import annotations

from typing import NoReturn

from numpipe.core.machine import current
from numpipe.core.op import ptx


@ptx("st.volatile.shared.b32 [$addr], $value;", addr="r", value="r")
def store_word(addr: int, value: int) -> None:
    """Write 32 bits at `addr` (a multiple of 4). Scope: a lane.

    Used for counters passed between warpgroups and ordered by a barrier; volatile keeps the
    compiler from caching the word in a register. PTX ISA: st, "st.volatile".
    """
    current().store_word(addr, value)


@ptx("ld.volatile.shared.b32 $ret, [$addr];", returns="r", addr="r")
def load_word(addr: int) -> int:
    """Read 32 bits at `addr` (a multiple of 4). Scope: a lane; lanes with the same address share
    one access.

    Example: ``step = memory.load_word(base + 4 * ring)`` after the barrier that passes the turn.
    PTX ISA: ld, "ld.volatile".
    """
    return current().load_word(addr)


@ptx("st.global.b32 [$ptr], $bits;", ptr="l", bits="r")
def store_global_b32(ptr: int, bits: int) -> None:
    """Write 32 bits of GMEM at `ptr` (a multiple of 4). Scope: a lane. GPU only: raises
    NotImplementedError elsewhere.

    With `convert.pack_bf16x2`, one store writes two adjacent elements. PTX ISA: st.
    """
    _gpu_only("store_global_b32", "store a tile: c[rows, columns] = tile")


@ptx("ld.acquire.gpu.global.b32 $ret, [$ptr];", returns="r", ptr="l")
def ld_acquire_gpu_b32(ptr: int) -> int:
    """Read 32 bits of GMEM at `ptr` (a multiple of 4) that another CTA may be writing. Scope: a
    lane. GPU only.

    This lane then sees everything that the CTA did before it wrote the value with
    `st_release_gpu_b32`, and so do lanes that synchronize with this lane at a barrier. PTX ISA:
    ld.acquire; "Memory Consistency Model: Release and Acquire Patterns".
    """
    _gpu_only("ld_acquire_gpu_b32", "numpipe.combine waits for the parts of a tile")


@ptx(
    "{ .reg .pred set, more; .reg .b32 seen, word; .reg .b64 at; mov.b32 word, $first; "
    "cvt.s64.s32 at, word; mad.lo.s64 at, at, $step, $ptr; NEXT: setp.lt.s32 more, word, $count; "
    "@!more bra DONE; WAIT: ld.acquire.gpu.global.b32 seen, [at]; setp.ne.u32 set, seen, 0; @!set "
    "bra WAIT; st.global.b32 [at], 0; add.s32 word, word, 128; mad.lo.s64 at, $step, 128, at; bra "
    "NEXT; DONE: }",
    ptr="l",
    step="l",
    first="r",
    count="r",
)
def await_each_acquire_gpu_b32(ptr: int, step: int, first: int, count: int) -> None:
    """Wait until each of several words of GMEM is not 0, and set it to 0. Scope: a lane. GPU only.

    The lane waits for words number `first`, `first` + 128, … of `count` words, so that the lanes of
    a warpgroup together wait for 128 words at a time. The first word is at `ptr`, and words are
    `step` bytes apart. The CTAs that write them must be running, or be able to run before this CTA
    ends::

        memory.await_each_acquire_gpu_b32(
            flags, 4, lane, count
        )  # then a barrier, after which all lanes may read

    PTX ISA: ld.acquire.
    """
    _gpu_only("await_each_acquire_gpu_b32", "numpipe.combine waits for the parts of a tile")


@ptx("st.release.gpu.global.b32 [$ptr], $value;", ptr="l", value="r")
def st_release_gpu_b32(ptr: int, value: int) -> None:
    """Write 32 bits of GMEM at `ptr` (a multiple of 4) after everything that this lane has done or
    seen. Scope: a lane. GPU only.

    Stores of other lanes are included if a barrier orders them before. It is a fence for the whole
    GPU (MEMBAR.ALL.GPU), so use it once per tile and not in a main loop. PTX ISA: st.release;
    "Memory Consistency Model: Release and Acquire Patterns".
    """
    _gpu_only("st_release_gpu_b32", "numpipe.combine hands parts of a tile over")


@ptx("red.release.sys.global.add.s32 [$ptr], $value;", ptr="l", value="r")
def red_release_sys_add(ptr: int, value: int) -> None:
    """Add to 32 bits of memory at `ptr` (a multiple of 4), on this GPU or a peer, after everything
    that this lane has done or seen. Scope: a lane. GPU only.

    Stores of other lanes are included if a barrier orders them before, and TMA stores once their
    lane has waited for them (`cp_async_bulk.wait_group`). It is a fence for the whole system
    (MEMBAR.ALL.SYS), so use it once per block and not in a main loop. PTX ISA: red; "Memory
    Consistency Model: Scope; Release and Acquire Patterns".
    """
    _gpu_only("red_release_sys_add", "numpipe.signal(semaphore.at[i], rank)")


def _gpu_only(name: str, instead: str) -> NoReturn:
    raise NotImplementedError(
        f"memory.{name} takes a GPU address, which the simulated SM does not have; in a "
        f"kernel that also runs there, {instead}"
    )
