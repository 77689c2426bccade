"""Recording of events on the GPU by one lane of each warpgroup. In other lanes the room for events
is 0.

Each lane has four words after the ring counters of the context, in registers: events so far, room
for events, and the address of the next one. Every statement is predicated: a branch around it would
be a divergent path, on which ptxas serializes wgmma.
"""

from __future__ import annotations

from typing import Any

from ..core import numba as nb
from ..core.numba import I32
from ..core.op import constant, cuda_meaning
from ..diagnostics.argument_checks import STRING
from . import profiling as source
from .context_cuda import counter_pointer, place_among, wide_counter
from .plans import PROFILE
from .roles import Role
from .unit import Unit

# $0 events so far, $1 room, $2 and $3 the address, $4 and $5 the event
_EVENT = (
    "{ .reg .pred np_used; .reg .b32 low, high; .reg .b64 at, now; setp.lt.u32 np_used, $0, $1; "
    "mov.b64 at, {$2, $3}; @np_used mov.u64 now, %clock64; mov.b64 {low, high}, now; @np_used "
    "st.global.v4.u32 [at], {$4, $5, low, high}; }"
)
# $0 room, $1 and $2 the address of the first event; $3 the control block, $4 the CTA, $5 the number
# of the warpgroup's part, $6 whether this lane records, $7 whether it is the first of the lanes
# that may record
_BEGIN = (
    "{ .reg .pred sampled, first; .reg .b32 count, word; .reg .b64 at, buffer, time, size; "
    "ld.global.u64 buffer, [$3]; ld.global.v2.u32 {count, word}, [$3+8]; setp.lt.u32 sampled, $4, "
    "count; setp.ne.and.u32 sampled, $6, 0, sampled; selp.u32 $0, word, 0, sampled; mul.wide.u32 "
    "size, word, 16; add.u64 size, size, 64; cvt.u64.u32 at, $5; mul.lo.u64 at, at, size; add.u64 "
    "at, at, buffer; setp.ne.and.u32 first, $7, 0, sampled; mov.u32 word, %smid; @first "
    "st.global.u32 [at+4], word; mov.u64 time, %globaltimer; @first st.global.u64 [at+8], time; "
    "mov.u64 time, %clock64; @first st.global.u64 [at+16], time; add.u64 at, at, 64; mov.b64 {$1, "
    "$2}, at; }"
)
# $0 events so far, $1 room, $2 and $3 the address of the next one
_END = (
    "{ .reg .pred np_used; .reg .b32 kept; .reg .b64 at, time, past; setp.ne.u32 np_used, $1, 0; "
    "setp.ne.and.u32 np_used, $0, 0, np_used; min.u32 kept, $0, $1; mul.wide.u32 past, kept, 16; "
    "mov.b64 at, {$2, $3}; sub.u64 at, at, past; sub.u64 at, at, 64; @np_used st.global.u32 [at], "
    "$0; mov.u64 time, %globaltimer; @np_used st.global.u64 [at+24], time; mov.u64 time, "
    "%clock64; @np_used st.global.u64 [at+32], time; }"
)


def _words(builder: Any, state: Any) -> list:
    """Return pointers to a lane's four words."""
    return [counter_pointer(builder, state, PROFILE + number) for number in range(4)]


def record(
    builder: Any, unit: Unit, state: Any, kind: str, step: Any, ring: int = 0, operand: int = 0
) -> None:
    """Record an event of the warpgroup whose context is `state`. Without a profile it does
    nothing."""
    if not unit.params.profile_space:
        return
    word = nb.const(source.KINDS.index(kind) | ring << 8 | operand << 16)
    used, room, low, high = _words(builder, state)
    held = [builder.load(pointer) for pointer in (used, room, low, high)]
    builder.execute([*held, word, step], _EVENT, memory=False)
    fits = builder.icmp_unsigned("<", held[0], held[1])
    builder.store(builder.add(held[0], 1), used)
    # LLVM drops the second loads of low and high
    address = wide_counter(builder, state, PROFILE + 2)
    address = builder.add(address, builder.select(fits, nb.const(source.EVENT_BYTES, nb.i64), 0))
    builder.store(builder.trunc(address), low)
    builder.store(builder.high_word(address), high)


def define_profile(builder: Any) -> None:
    """Define the control block, in the entry module."""
    kind = nb.ir.ArrayType(nb.i64, source.CONTROL_BYTES // 8)
    block = nb.ir.GlobalVariable(builder.module, kind, source.SYMBOL, addrspace=1)
    block.initializer, block.align = nb.ir.Constant(kind, None), 16


def begin_profile(builder: Any, unit: Unit, role: Role, state: Any) -> None:
    """Set up, at the start of a role, where the warpgroup's events go. Lanes that do not record
    have no room."""
    control = builder.ptrtoint(builder.module.globals[source.SYMBOL], nb.i64)
    cta = builder.block_number()
    thread = builder.thread_index()
    number = builder.lshr(thread, 7)
    lane = builder.and_(thread, 127)
    first = builder.icmp_unsigned("==", lane, 0)
    # the recording lane of this warp is elected below
    records = builder.icmp_unsigned("<", lane, 32) if role.lanes == "one" else first
    if role.option:
        records, place = place_among(builder, unit.beside[role])
        number = builder.add(place, unit.parts.index(role))
        lane = builder.and_(thread, 31)
        first = builder.and_(records, builder.icmp_unsigned("==", lane, 0))
    part = builder.add(builder.mul(cta, len(unit.parts)), number)
    found = builder.emit_asm(
        [nb.i32] * 3,
        [control, cta, part, builder.zext(records), builder.zext(first)],
        _BEGIN,
        early=True,
    )
    used, room, low, high = _words(builder, state)
    builder.store(0, used)
    for value, pointer in zip(found, (room, low, high), strict=True):
        builder.store(value, pointer)


def end_profile(builder: Any, _unit: Unit, _role: Role, state: Any) -> None:
    """Record the end of a warpgroup, and its number of events."""
    held = [builder.load(pointer) for pointer in _words(builder, state)]
    builder.execute(held, _END)


# ---- the operations
def of_ring(ring: Any, event: Any, step: Any, part: Any) -> Any:
    """Record an event of a ring: the typer of `ring.note`."""
    kind, operand = nb.literal(event), nb.literal(part)
    builder, args = yield
    state = builder.fields(ring, args[0]).np
    record(
        builder,
        ring.np.unit,
        state,
        kind,
        builder.cast(args[2], step, I32),
        ring.plan.index,
        operand,
    )


def _of_region(operation: Any, kind: str) -> None:
    @cuda_meaning(operation)
    def typer(np_: Any, name: Any) -> Any:
        text = constant("region", "name", name, STRING)
        builder, args = yield
        record(builder, np_.unit, args[0], kind, nb.const(np_.unit.region(text)))


_of_region(source.region_begin, "region begin")
_of_region(source.region_end, "region end")


@cuda_meaning(source.mark_tile)
def _mark_tile(np_: Any, tile: Any) -> Any:
    builder, args = yield
    record(builder, np_.unit, args[0], "tile begin", builder.cast(args[1], tile, I32))


@cuda_meaning(source.mark_store)
def _mark_store(ref: Any, event: Any) -> Any:
    kind = nb.literal(event)
    builder, args = yield
    if ref.unit.params.profile_space:
        record(builder, ref.unit, builder.fields(ref, args[0]).np, kind, nb.const(0))
