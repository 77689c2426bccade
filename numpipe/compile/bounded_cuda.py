"""Waits with a time limit, in kernels with ``CompilerParams(debug=True)``.

`mbarrier.wait` and the other operations listed after the helpers compile to the helpers here.
A wait that takes longer than the limit stops the kernel: it sets `STOPPED` in the control block
(`plan.watch`) and leaves a record. Every wait that sees `STOPPED` returns; those that began earlier
leave a record too. All warps then run to the end of the kernel, and still take part in whatever
others wait for: named barriers, cluster barriers, flags in global memory.

The hardware traps when an mbarrier gets an arrival that its phase does not lack (an illegal
instruction on an H200, and the CUDA context is lost). So once a wait has timed out, its CTA omits
arrivals, announcements and copies (`core.op.Gate`). No arrival can trap then:

- A warp that reaches one of these after such a wait, directly or through a barrier where it met
  others, sees the CTA's word set. Between CTAs only mbarriers order the protocol, and these have
  stopped. So an mbarrier gets no arrival or bytes that it would not get in a kernel that hangs.
- A copy is made exactly if the announcement before it was: announcements copy the CTA's word to a
  byte of the warp, and copies read that byte. So no phase lacks only bytes, unless the kernel
  announces by hand what it does not copy. One more arrival is then legal, and returns the state of
  the mbarrier: one record per mbarrier has it, read after `SETTLING`, when all copies have landed.
  In a cluster, where copies of other CTAs may be missing, no state is recorded.
- A warp whose wait timed out sleeps for `SETTLING`, so a CTA does not end while copies to its
  shared memory are in flight.

A CTA that begins after the stop omits all of these from the start.
"""

from __future__ import annotations

from typing import Any

from ..core import numba as nb
from ..core.op import entry_operation, helper, ptx
from ..intrinsics import mbarrier, memory
from ..plan import outside_cuda
from ..plan.unit import Unit
from ..plan.watch import (
    ASKED,
    FLAG,
    FLAG_PLACE,
    GRACE,
    LIMIT,
    MBARRIER,
    PASSED,
    SETTLING,
    STOPPED,
    WARPS,
    WORDS_BYTES,
)

I32, I64 = nb.types.int32, nb.types.int64


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


@ptx("{ .reg .pred np_bounded; st.volatile.shared.u8 [$address], $value; }", address="r", value="r")
def store_byte(address: int, value: int) -> None:
    """Write a warp's byte."""


@ptx(
    "{ .reg .pred np_bounded; atom.shared.or.b32 $ret, [$address], $bits; }",
    returns="r",
    address="r",
    bits="r",
)
def set_bits(address: int, bits: int) -> int:
    """Set bits of one of the CTA's words, and return what it was."""
    raise NotImplementedError


@ptx(
    "{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [$addr], $parity; "
    "selp.b32 $ret, 1, 0, done; }",
    returns="bool",
    addr="r",
    parity="r",
)
def try_wait(addr: int, parity: int) -> bool:
    """`mbarrier.try_wait` itself."""
    raise NotImplementedError


@ptx(
    "{ .reg .pred done; "
    "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$addr], $parity; selp.b32 $ret, 1, 0, done; }",
    returns="bool",
    addr="r",
    parity="r",
)
def try_wait_cluster(addr: int, parity: int) -> bool:
    """`try_wait` with the cluster's scope."""
    raise NotImplementedError


@ptx(
    "{ .reg .pred done; mbarrier.test_wait.parity.shared::cta.b64 done, [$addr], $parity; "
    "selp.b32 $ret, 1, 0, done; }",
    returns="bool",
    addr="r",
    parity="r",
)
def test_wait(addr: int, parity: int) -> bool:
    """`mbarrier.test_wait` itself."""
    raise NotImplementedError


@ptx("mbarrier.arrive.shared::cta.b64 $ret, [$addr];", returns="l", addr="r")
def arrive(addr: int) -> int:
    """Arrive, and return the state that the mbarrier had."""
    raise NotImplementedError


@ptx("activemask.b32 $ret;", returns="r")
def lanes() -> int:
    """Return the lanes of the warp that are here."""
    raise NotImplementedError


@ptx(
    "{ .reg .pred first; .reg .b32 before; mov.u32 before, %lanemask_lt; "
    "and.b32 before, before, $lanes; setp.eq.u32 first, before, 0; selp.b32 $ret, 1, 0, first; }",
    returns="bool",
    lanes="r",
)
def is_first(lanes: int) -> bool:
    """Return whether this is the first of these lanes."""
    raise NotImplementedError


@ptx("{ .reg .pred np_bounded; bar.warp.sync $lanes; }", lanes="r")
def meet(lanes: int) -> None:
    """Wait for these lanes."""


@ptx("nanosleep.u32 100000;")
def sleep() -> None:
    """Sleep for a tenth of a millisecond."""


@ptx("trap;")
def trap() -> None:
    """End the kernel, and with it the process's work on the GPU."""


def _of_the_kernel(name: str, result: Any = nb.i32) -> Any:
    """Return an operation that asks the kernel's entry module for a number."""

    def typer(_context: Any) -> Any:
        _, builder, _ = yield I32() if result is nb.i32 else I64()
        return nb.external(builder, name, result)

    return entry_operation(typer)


words = _of_the_kernel("np_words")
asks = _of_the_kernel("np_asks")
base = _of_the_kernel("np_base")
warp = _of_the_kernel("np_warp")
omitting = _of_the_kernel("np_omitted_arrival")
control = _of_the_kernel("np_control", nb.i64)


@entry_operation
def record(_context: Any, kind: Any, address: Any, phase: Any, state: Any) -> Any:
    """Write a record; its kind is a compile-time constant."""
    _, builder, (_, *operands, whole) = yield nb.types.void(kind, I32, I32, I64)
    halves = [
        builder.trunc(part, nb.i32) for part in (whole, builder.lshr(whole, nb.const(32, nb.i64)))
    ]
    outside_cuda.record(builder, nb.const(1, nb.i1), nb.literal(kind), *operands, *halves)


# ---- waits
@helper
def wait(addr, phase, step):  # type: ignore[no-untyped-def]
    """Wait for an mbarrier: `mbarrier.wait`."""
    await_phase(try_wait, addr, phase)


@helper
def wait_cluster(addr, phase, step):  # type: ignore[no-untyped-def]
    """Wait for an mbarrier: `mbarrier.wait_cluster`."""
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
    """Test an mbarrier; a poll times out when nothing in the kernel has passed for so long."""
    if returns_at_once():
        return True
    if test_wait(addr, parity):
        note_progress()
        return True
    since = now() if load(control() + STOPPED) else load(control() + PASSED)
    return over(MBARRIER, addr, parity, since)


@helper
def await_each(ptr, step, first, count):  # type: ignore[no-untyped-def]
    """Wait for flags of other CTAs, and clear them: `memory.await_each_acquire_gpu_b32`."""
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
    """Let the host, and polls, see that the kernel goes on."""
    store(control() + PASSED, now())


@helper
def returns_at_once():  # type: ignore[no-untyped-def]
    """Return whether a wait of this CTA timed out earlier; trap if the kernel should have ended."""
    if omitting() and 0 < load(control() + STOPPED) < now() - GRACE:
        trap()
    return omitting() != 0


@helper
def over(kind, address, phase, since):  # type: ignore[no-untyped-def]
    """Return whether a wait that began at `since` ends: by the limit, or as the kernel stopped."""
    stopped = load(control() + STOPPED)
    if stopped or now() > since + load(control() + LIMIT):
        give_up(kind, address, phase, 0 < stopped < since)
        return True
    return False


@helper
def give_up(kind, address, phase, late):  # type: ignore[no-untyped-def]
    """Stop the kernel, and record this warp's wait, unless it began too `late`: after the stop."""
    here = lanes()
    store_word(words(), 1)
    store_byte(warp(), 1)
    if is_first(here):
        begin = now()
        if not load(control() + STOPPED):
            store(control() + STOPPED, begin)
        while now() < begin + SETTLING:
            sleep()
        if not late:
            report(kind, address, phase)
    meet(here)


@helper
def report(kind, address, phase):  # type: ignore[no-untyped-def]
    """Write a record of a wait, with the mbarrier's state."""
    if kind == MBARRIER:
        at = (address - base()) & 0xFFFFFF  # in a cluster the CTA's rank is above
        record(MBARRIER, at, phase, state_of(address, at >> 3))
    else:
        record(FLAG, address, phase, 0)


@helper
def state_of(addr, number):  # type: ignore[no-untyped-def]
    """Return the state of an mbarrier, for the first record that asks; 0 for others."""
    bit = 1 << (number & 31)
    if asks() and not set_bits(words() + ASKED + 4 * (number >> 5), bit) & bit:
        return arrive(addr)
    return 0


@helper
def begin():  # type: ignore[no-untyped-def]
    """Initialize a CTA's words, in one lane."""
    for at in range(0, WORDS_BYTES, 4):
        store_word(words() + at, 0)
    if load(control() + STOPPED):
        store_word(words(), 1)
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
def begin_bounds(context: Any, builder: Any, unit: Unit) -> None:
    """Define the control block and what the helpers ask for, in the entry module; emit `begin`."""
    block = outside_cuda.control(builder)
    block.initializer, block.align = nb.ir.Constant(block.value_type, None), 64

    def first(inner: Any) -> Any:
        return nb.smem(inner, unit.barrier_room)

    def own_byte(inner: Any) -> Any:
        number = inner.lshr(nb.thread_index(inner), nb.const(5))
        return inner.add(nb.smem(inner, unit.barrier_room + WARPS), number)

    def loaded(inner: Any, kind: str, address: Any) -> Any:
        text = f"ld.volatile.shared.{kind} $0, [$1];"
        return nb.emit_asm(inner, nb.i32, [address], text, "=r,r,~{memory}")

    def announcement(inner: Any) -> Any:
        value = loaded(inner, "u32", first(inner))
        nb.call(context, inner, store_byte, (I32, I32), (own_byte(inner), value))
        return value

    for name, value in (
        ("words", first),
        ("asks", lambda inner: nb.const(int(not unit.clustered))),
        ("base", lambda inner: nb.smem(inner, 0)),
        ("warp", own_byte),
        ("omitted_arrival", lambda inner: loaded(inner, "u32", first(inner))),
        ("omitted_announcement", announcement),
        ("omitted_copy", lambda inner: loaded(inner, "u8", own_byte(inner))),
    ):
        with nb.define(builder.module, f"np_{name}", nb.i32) as (inner, _):
            inner.ret(value(inner))
    with nb.define(builder.module, "np_control", nb.i64) as (inner, _):
        inner.ret(inner.ptrtoint(block, nb.i64))
    nb.call(context, builder, begin, (), ())
