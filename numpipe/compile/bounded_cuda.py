"""Waits with a time limit, in kernels with ``CompilerParams(debug=True)``.

`mbarrier.wait` and the other operations listed after the helpers compile to the helpers here. A
wait that takes longer than the limit stops the kernel: it sets `STOPPED` in the control block
(`plan.wait_records`) and leaves a record. Every wait that sees `STOPPED` returns; those that began
earlier leave a record too. All warps then run to the end of the kernel, and still take part in
whatever others wait for: named barriers, cluster barriers, flags in global memory.

The hardware traps when an mbarrier gets an arrival that its phase does not lack (an illegal
instruction on an H200, and the CUDA context is lost). So once a wait has timed out, its CTA omits
arrivals, announcements and copies ("$gate " in their statements). No arrival can trap then:

- A warp that reaches one of these after such a wait, directly or through a barrier where it met
  others, sees the CTA's word set. Between CTAs only mbarriers order the protocol, and these have
  stopped. So an mbarrier gets no arrival that it would not get in a kernel that hangs.
- The state of an mbarrier is what one more arrival returns. That is legal unless the phase lacks
  only bytes, which happens where the stop comes between an announcement and its copies. So a wait
  asks only if it began long before the stop: nobody announced anything there in the meantime. One
  record per mbarrier has the state, read after `SETTLING`, when all copies have landed. In a
  cluster, where copies of other CTAs may be missing, no state is recorded.
- A warp whose wait timed out sleeps for `SETTLING`, so a CTA does not end while copies to its
  shared memory are in flight.

A CTA that begins after the stop omits all of these from the start.
"""

from __future__ import annotations

from typing import Any

from ..core import numba as nb
from ..core.numba import BOOLEAN, I32, I64
from ..core.op import Op, entry_operation, helper, ptx
from ..intrinsics import mbarrier, memory
from ..plan import outside_cuda
from ..plan.unit import Unit
from ..plan.wait_records import (
    ASKED,
    FLAG,
    FLAG_PLACE,
    GRACE,
    LIMIT,
    MBARRIER,
    PASSED,
    SETTLING,
    STOPPED,
    WORDS_BYTES,
)


# ---- statements; the memory role may execute those that are marked "np_bounded"
@ptx("mov.u64 $ret, %globaltimer;", returns="l")
def now() -> int:
    """Return the GPU's time in nanoseconds."""
    raise NotImplementedError


@ptx("ld.relaxed.gpu.global.u64 $ret, [$address];", returns="l", address="l")
def load(address: int) -> int:
    """Return 8 bytes of the control block."""
    raise NotImplementedError


@ptx(
    "{ .reg .pred np_bounded; st.relaxed.gpu.global.u64 [$address], $value; }",
    address="l",
    value="l",
)
def store(address: int, value: int) -> None:
    """Write 8 bytes of the control block."""


@ptx(
    "{ .reg .pred np_bounded; st.volatile.shared.u32 [$address], $value; }", address="r", value="r"
)
def store_word(address: int, value: int) -> None:
    """Write one of the CTA's words."""


@ptx(
    "{ .reg .pred done; "
    "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$addr], $parity; "
    "selp.b32 $ret, 1, 0, done; }",
    returns="bool",
    addr="r",
    parity="r",
)
def try_wait_cluster(addr: int, parity: int) -> bool:
    """Like `mbarrier.try_wait`, with cluster scope."""
    raise NotImplementedError


try_wait: Op[..., bool] = Op(mbarrier.try_wait.function, mbarrier.try_wait.typer)
test_wait: Op[..., bool] = Op(mbarrier.test_wait.function, mbarrier.test_wait.typer)


@ptx(
    "{ .reg .pred np_bounded, own; .reg .b32 bit, word; and.b32 bit, $number, 31; "
    "shl.b32 bit, 1, bit; shr.u32 word, $number, 5; mad.lo.u32 word, word, 4, $asked; "
    "setp.ne.u32 np_bounded, $chosen, 0; @np_bounded atom.shared.or.b32 word, [word], bit; "
    "and.b32 word, word, bit; setp.eq.and.u32 own, word, 0, np_bounded; "
    "@own mbarrier.arrive.shared::cta.b64 $ret, [$addr]; @!own mov.b64 $ret, 0; }",
    returns="l",
    addr="r",
    number="r",
    asked="r",
    chosen="r",
)
def state_of(addr: int, number: int, asked: int, chosen: int) -> int:
    """Return an mbarrier's state if this lane is `chosen` and is the first to query it; else 0."""
    raise NotImplementedError


@ptx(
    "{ .reg .pred first; .reg .b32 here, before; activemask.b32 here; mov.u32 before, "
    "%lanemask_lt; and.b32 here, here, before; setp.eq.u32 first, here, 0; selp.b32 $ret, 1, 0, "
    "first; }",
    returns="bool",
)
def is_first() -> bool:
    """Return whether this is the first of the warp's lanes that execute this call."""
    raise NotImplementedError


@ptx("nanosleep.u32 100000;")
def sleep() -> None:
    """Sleep for a tenth of a millisecond."""


@ptx("trap;")
def trap() -> None:
    """End the kernel, and with it all work of the process on the GPU."""


@entry_operation
def words() -> Any:
    """Return the address of the CTA's words."""
    builder, _ = yield I32
    return builder.external("np_words", nb.i32)


@entry_operation
def base() -> Any:
    """Return the address at which the CTA's shared memory begins."""
    builder, _ = yield I32
    return builder.shared_base()


@entry_operation
def control() -> Any:
    """Return the address of the control block."""
    builder, _ = yield I64
    return builder.ptrtoint(outside_cuda.control(builder), nb.i64)


@entry_operation
def record(kind: Any, chosen: Any, address: Any, phase: Any, state: Any) -> Any:
    """Write a record of this kind, a compile-time constant, in lanes that are `chosen`."""
    builder, args = yield nb.VOID(kind, BOOLEAN, I32, I32, I64)
    halves = [args[4], builder.lshr(args[4], 32)]
    outside_cuda.record(
        builder,
        args[1],
        nb.literal(kind),
        *args[2:4],
        *(builder.trunc(half) for half in halves),
    )


# ---- waits
@helper
def wait(addr, phase, step):  # type: ignore[no-untyped-def]
    """Wait for an mbarrier; replaces `mbarrier.wait`."""
    await_phase(try_wait, addr, phase)


@helper
def wait_cluster(addr, phase, step):  # type: ignore[no-untyped-def]
    """Wait for an mbarrier; replaces `mbarrier.wait_cluster`."""
    await_phase(try_wait_cluster, addr, phase)


@helper
def await_phase(test, addr, phase):  # type: ignore[no-untyped-def]
    """Wait until `test` of an mbarrier is true."""
    if not returns_at_once():
        since = now()
        while not test(addr, phase & 1):
            if over(MBARRIER, addr, phase, since):
                return
        note_progress()


@helper
def poll(addr, parity):  # type: ignore[no-untyped-def]
    """Test an mbarrier. A poll times out if no wait in the kernel has succeeded for that long."""
    if returns_at_once():
        return True
    if test_wait(addr, parity):
        note_progress()
        return True
    since = now() if load(control() + STOPPED) else load(control() + PASSED)
    return over(MBARRIER, addr, parity, since)


@helper
def await_each(ptr, step, first, count):  # type: ignore[no-untyped-def]
    """Wait for flags of other CTAs, and clear them; replaces
    `memory.await_each_acquire_gpu_b32`."""
    number = first
    while number < count and not returns_at_once():
        since, flag = now(), ptr + step * number
        while memory.ld_acquire_gpu_b32(flag) == 0:
            if over(FLAG, FLAG_PLACE, number, since):
                return
        memory.store_global_b32(flag, 0)
        note_progress()
        number += 128


@helper
def note_progress():  # type: ignore[no-untyped-def]
    """Record for the host, and for polls, that the kernel makes progress."""
    store(control() + PASSED, now())


@helper
def returns_at_once():  # type: ignore[no-untyped-def]
    """Return whether a wait of this CTA timed out earlier; trap if the kernel should have ended."""
    omits = memory.load_word(words())
    if omits and 0 < load(control() + STOPPED) < now() - GRACE:
        trap()
    return omits != 0


@helper
def over(kind, address, phase, since):  # type: ignore[no-untyped-def]
    """Return whether a wait that began at `since` ends, because of the limit or because the kernel
    stopped."""
    stopped, limit, time = load(control() + STOPPED), load(control() + LIMIT), now()
    if not stopped and time <= since + limit:
        return False
    store_word(words(), 1)
    if not stopped:
        store(control() + STOPPED, time)
    while now() < time + SETTLING:
        sleep()
    chosen = is_first() and not 0 < stopped < since  # except for a wait that began after the stop
    if kind == MBARRIER:
        at = (address - base()) & 0xFFFFFF  # in a cluster the bits above hold the CTA's rank
        asks = chosen and time > since + limit // 2
        record(MBARRIER, chosen, at, phase, state_of(address, at >> 3, words() + ASKED, asks))
    else:
        record(FLAG, chosen, address, phase, 0)
    return True


@helper
def begin(asked):  # type: ignore[no-untyped-def]
    """Initialize a CTA's words, in one lane; `asked` is -1 if no mbarrier's state is queried."""
    for at in range(ASKED, WORDS_BYTES, 4):
        store_word(words() + at, asked)
    store_word(words(), load(control() + STOPPED) != 0)
    note_progress()


for _operation, _bounded in (
    (mbarrier.wait, wait),
    (mbarrier.wait_cluster, wait_cluster),
    (mbarrier.try_wait, poll),
    (mbarrier.test_wait, poll),
    (memory.await_each_acquire_gpu_b32, await_each),
):
    _operation.bounded = _bounded


# ---- the entry
def begin_bounds(builder: Any, unit: Unit) -> None:
    """Define the control block and the words in the entry module; emit `begin`."""
    block = outside_cuda.control(builder)
    block.initializer, block.align = nb.ir.Constant(block.value_type, None), 64
    with builder.define("np_words", nb.i32) as (inner, _):
        inner.ret(inner.smem(unit.barrier_room))
    builder.issue(begin, -unit.clustered)
