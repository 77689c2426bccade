"""Arrays of other GPUs, compiled: their addresses and tensor maps, and how the launches of all GPUs
begin.

In a kernel with semaphores, the packed parameter holds, after tensor maps and counter and from
`Unit.peers_at` on, the launch's words (`plan.control_block`) and a section of `Unit.section_bytes`
for each GPU: its tensor maps and the addresses of its arrays. Their offsets are known only when the
entry is lowered, after all code that uses them, so they are link symbols, like axes. The control
block of a GPU lies before its semaphores.

A launch may be one ahead of a peer's, so the words that say that launches have begun are counters.
PTX ISA, "Memory Consistency Model: Release and Acquire Patterns".
"""

from __future__ import annotations

import re
from typing import Any

from ...core import numba as nb
from ...core.numba import I32
from ...core.op import cuda_meaning
from ...plan.context_cuda import counter_pointer, wide_counter
from ...plan.control_block import BEGIN, GO, LOST, SEMAPHORES, WORDS_BYTES
from ...plan.outside_cuda import report
from ...plan.plans import BEGUN, GPU
from ...plan.unit import Unit
from . import peer_arrays as source

_BEFORE = 4 * SEMAPHORES
"""Bytes of a control block before its semaphores."""
_AT, _SECTION, _ADDRESSES = "np_gpus_at", "np_gpus_section", "np_gpus_addresses"
"""Link symbols: the offset of the launch's words in the packed parameter, the bytes of a section,
and the offset of the addresses in a section."""

# Sets LOST, the word at FLAG. The first to set it writes the record: WORDS is the address of the
# launch's words; INDEX, SEEN and WANTED describe the wait, of KIND, at the PLACE of the unit.
TELL = """atom.relaxed.sys.global.exch.b32 word, [FLAG], 1;
setp.ne.u32 late, word, 0; @late bra OUT;
ld.b64 at, [WORDS+8]; setp.eq.u64 late, at, 0; @late bra OUT;
ld.b32 word, [WORDS]; st.volatile.global.b32 [at+4], word; st.volatile.global.b32 [at+8], INDEX;
st.volatile.global.b32 [at+12], SEEN; st.volatile.global.b32 [at+16], WANTED;
mov.u32 word, %ctaid.x; st.volatile.global.b32 [at+20], word;
mov.u32 word, %ctaid.y; st.volatile.global.b32 [at+24], word;
mov.u32 word, %ctaid.z; st.volatile.global.b32 [at+28], word;
mov.u32 word, %tid.x; st.volatile.global.b32 [at+32], word; st.volatile.global.b32 [at+36], PLACE;
mov.u32 word, KIND; st.release.sys.global.b32 [at], word;"""
# $0 the launch's words, $1 the sections, $2 bytes of a section, $3 the offset in a section of the
# address of its semaphores
_BEGIN = """{ .reg .pred np_gpus, late; .reg .b32 me, gpus, rank, seen, word;
.reg .b64 at, own, begun, now, end, mine;
ld.b32 me, [$0]; ld.b32 gpus, [$0+4]; mul.wide.s32 mine, me, 4;
mul.wide.s32 at, me, $2; add.s64 at, at, $1; add.s64 at, at, $3;
ld.b64 own, [at]; add.s64 own, own, -BEFORE;
mov.u32 rank, 0;
SAY: setp.ge.s32 np_gpus, rank, gpus; @np_gpus bra SAID;
setp.eq.s32 np_gpus, rank, me; @np_gpus bra NEXT;
mul.wide.s32 at, rank, $2; add.s64 at, at, $1; add.s64 at, at, $3;
ld.b64 at, [at]; add.s64 at, at, mine;
red.release.sys.global.add.s32 [at+-BEFORE], 1;
NEXT: add.s32 rank, rank, 1; bra SAY;
SAID: ld.b64 end, [$0+16]; mov.u64 now, %globaltimer; add.u64 end, end, now;
mov.b64 begun, own; mov.u32 rank, 0;
EACH: setp.ge.s32 np_gpus, rank, gpus; @np_gpus bra ALL;
setp.eq.s32 np_gpus, rank, me; @np_gpus bra FURTHER;
AGAIN: ld.acquire.sys.global.b32 seen, [begun]; setp.ge.s32 np_gpus, seen, 1; @np_gpus bra CAME;
ld.relaxed.sys.global.b32 word, [own+LOST]; setp.ne.u32 late, word, 0; @late bra OUT;
mov.u64 now, %globaltimer; setp.lt.u64 late, now, end; @late bra AGAIN;
TELL bra OUT;
CAME: red.relaxed.sys.global.add.s32 [begun], -1;
FURTHER: add.s32 rank, rank, 1; add.s64 begun, begun, 4; bra EACH;
ALL: mov.u32 word, 1; st.release.gpu.global.b32 [own+GO], word;
OUT: }"""
# $0 1: the launches of all peers have begun, 2: they have not, and the wait was given up; $1 this
# GPU's semaphores
_GATE = """{ .reg .pred np_gpus; .reg .b32 seen;
AGAIN: mov.u32 $0, 1; ld.acquire.gpu.global.b32 seen, [$1+GO];
setp.ne.u32 np_gpus, seen, 0; @np_gpus bra OUT;
mov.u32 $0, 2; ld.relaxed.sys.global.b32 seen, [$1+LOST];
setp.eq.u32 np_gpus, seen, 0; @np_gpus bra AGAIN;
OUT: fence.proxy.async.global; }"""


def statement(text: str, **names: Any) -> str:
    """Return PTX on one line, with values substituted for names in capital letters."""
    for name, value in names.items():
        text = re.sub(rf"\b{name}\b", str(value).replace("\\", "\\\\"), text)
    return " ".join(text.split())


# ---- the packed parameter
def define_offsets(outer: Any, unit: Unit) -> None:
    """Define the link symbols in the kernel's entry module."""
    for symbol, value in (
        (_AT, unit.peers_at),
        (_SECTION, unit.section_bytes),
        (_ADDRESSES, 128 * len(unit.maps)),
    ):
        with outer.define(symbol, nb.i32) as (builder, _):
            builder.ret(nb.const(value))


def begin_gpus(builder: Any, np_: Any, table: Any, unit: Unit) -> None:
    """Write the number of this GPU and the address of the packed parameter to a warpgroup's
    state."""
    words = builder.bitcast(table, nb.i32.as_pointer())
    base = builder.ptrtoint(table, nb.i64)
    me = builder.load(builder.gep(words, [unit.peers_at // 4]))
    high = builder.high_word(base)
    for number, value in enumerate((me, builder.trunc(base), high)):
        builder.store(value, counter_pointer(builder, np_, GPU + number))


def _offset(builder: Any, symbol: str) -> Any:
    return builder.zext(builder.external(symbol, nb.i32), nb.i64)


def words(builder: Any, np_: Any) -> Any:
    """Return the address of the launch's words."""
    return builder.add(wide_counter(builder, np_, GPU + 1), _offset(builder, _AT))


def section(builder: Any, np_: Any, rank: Any) -> Any:
    """Return the address of a GPU's section."""
    first = builder.add(words(builder, np_), WORDS_BYTES)
    return builder.add(first, builder.mul(builder.zext(rank, nb.i64), _offset(builder, _SECTION)))


def address(builder: Any, of: Any, argument: int) -> Any:
    """Return the address of an array argument on a GPU, given the address `of` its section."""
    place = builder.add(builder.add(of, _offset(builder, _ADDRESSES)), 8 * argument)
    return builder.pure_asm(nb.i64, [place], "ld.b64 $0, [$1];")


# ---- who is there
def launch_begins(builder: Any, unit: Unit, table: Any) -> None:
    """Signal the peers that this GPU's launch has begun, and signal this GPU's CTAs when all
    launches have begun. Runs in one lane of the first CTA."""
    base = builder.ptrtoint(table, nb.i64)
    at, semaphores = unit.peers_at, 128 * len(unit.maps) + 8 * (len(unit.arrays) - 1)
    operands = [
        builder.add(base, at),
        builder.add(base, at + WORDS_BYTES),
        nb.const(unit.section_bytes),
        nb.const(semaphores, nb.i64),
    ]
    tell = statement(
        TELL,
        FLAG=f"own+{4 * LOST}",
        WORDS="$0",
        INDEX="rank",
        SEEN="seen",
        WANTED="1",
        KIND=BEGIN,
        PLACE="-1",
    )
    text = statement(_BEGIN, TELL=tell, BEFORE=_BEFORE, GO=4 * GO, LOST=4 * LOST)
    builder.execute(operands, text)


@cuda_meaning(source.await_launches)
def _await_launches(np_: Any) -> Any:
    builder, args = yield
    met = counter_pointer(builder, args[0], BEGUN)
    with builder.if_then(builder.icmp_unsigned("==", builder.load(met), 0), likely=False):
        own = section(builder, args[0], builder.load(counter_pointer(builder, args[0], GPU)))
        semaphores = address(builder, own, len(np_.unit.arrays) - 1)
        text = statement(_GATE, GO=4 * GO - _BEFORE, LOST=4 * LOST - _BEFORE)
        builder.store(builder.emit_asm(nb.i32, [semaphores], text, early=True), met)


def reached(builder: Any, np_: Any, value: Any, rank: Any, what: str) -> Any:
    """Return the GPU that `rank` reaches, after `await_launches`.

    Return this GPU itself if the launches have not begun (after a wait that was given up), or if
    there is no such rank in a kernel compiled with debug, which reports the rank as `what`.
    """
    me = builder.load(counter_pointer(builder, value, GPU))
    if np_.unit.params.debug:
        outside = builder.icmp_unsigned(">=", rank, np_.unit.gpus)
        if np_.computes:
            report(builder, np_.unit, what, 0, rank, nb.const(np_.unit.gpus), outside, True)
        rank = builder.select(outside, me, rank)
    return builder.select(
        builder.icmp_unsigned("==", builder.load(counter_pointer(builder, value, BEGUN)), 2),
        me,
        rank,
    )


@cuda_meaning(source.peer)
def _peer(np_: Any, array: Any, rank: Any) -> Any:
    source.check_peer(np_, array, rank)
    np_.unit.peered.add(array.index)
    builder, args = yield array(np_, array, I32)
    builder.apply(source.await_launches, (np_,), (args[0],))
    gpu = reached(builder, np_, args[0], args[2], f"numpipe.peer({array.arg.name}, rank): rank")
    found, ref = section(builder, args[0], gpu), builder.fields(array, args[1])
    ref.table, ref.pointer = found, address(builder, found, array.index)
    return ref._getvalue()
