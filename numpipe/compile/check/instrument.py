"""The changes that `CompilerParams.debug` and `.jitter` make in a kernel's LLVM IR; without them the IR stays as it is.

Each wait for an mbarrier, arrival at one and start of a copy is a statement of inline PTX, so that both options replace statements,
wherever they come from: the ring, a user's own barriers, intrinsics.

debug   a wait gives up after a while (`plan.watch`): it records who waited for what, and sets a flag that makes every wait of the
        kernel fall through from then on, so that the kernel ends; what mbarriers count is left out behind such waits (`stopping`).
        Waits are those for mbarriers, at named barriers and for flags of other CTAs. No instruction asks a named barrier whether
        all are there, so warps count themselves in shared memory first, and execute ``bar.sync`` once all will. Whoever gives up
        closes the count, so that the warps of one use either all meet or all go by. Uncounted are barriers of one warpgroup in
        an operation on tiles (``bar.sync $0, 128;``).
jitter  each of these statements is preceded by a nanosleep of a random length, one time in four
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from ...core import numba as nb
from ...diagnostics.errors import Position
from ...language.pipeline.turns import turn_of
from ...plan import watch
from ...plan.unit import Unit
from . import stopping

_STATEMENT = re.compile(r'call (?P<type>\w+) asm sideeffect "(?P<text>[^"]*)", "(?P<constraints>[^"]*)"\((?P<args>.*)\) convergent')
_TRANSITION = re.compile(
    r"mbarrier\.(try_wait|test_wait|arrive)|cp(\.reduce)?\.async\.bulk\.(tensor|commit|wait)|st\.async|bar\.sync")
_ADDRESS = f'i64 ptrtoint ([{watch.CONTROL_BYTES // 8} x i64] addrspace(1)* @"{watch.SYMBOL}" to i64)'
_DECLARATION = f'@"{watch.SYMBOL}" = external addrspace(1) global [{watch.CONTROL_BYTES // 8} x i64]\n'

# The parts of a wait that gives up. BAR is the mbarrier, PHASE the phase or its parity, WATCH the control block, WORDS the CTA's; a
# record is of KIND, PLACE leaves its address in `word`, and ASKING its state in `state`.
_NAMES = """.reg .pred done, late, own; .reg .b32 parity, flag, lane, active, number, word; .reg .b64 now, end, at, state, place;"""
# One lane of the warp records; the others go on, as all do, once the flag is set. What a phase lacks only an arrival tells (an
# mbarrier's bytes do not hold it, on an H200), which changes it: that waits until all who wait have seen the flag, and is made once
# for each mbarrier (`stopping` says why it is legal then).
_TELL = """STOPPING mov.u32 active, %lanemask_lt; activemask.b32 lane; and.b32 active, active, lane;
setp.ne.u32 own, active, 0; @own bra OUT;
mov.u64 now, %globaltimer; st.relaxed.gpu.global.u64 [WATCH+24], now;
fence.sc.gpu; mov.u32 word, 1; st.relaxed.gpu.global.u32 [WATCH+16], word;
atom.relaxed.gpu.global.add.u32 number, [WATCH+20], 1; setp.ge.u32 late, number, CAPACITY; @late bra OUT;
ld.global.u64 at, [WATCH]; mul.wide.u32 place, number, RECORD_BYTES; add.u64 at, at, place;
ld.global.u32 word, [WATCH+36]; st.volatile.global.u32 [at+4], word;
mov.u32 word, %ctaid.x; st.volatile.global.u32 [at+8], word;
mov.u32 word, %ctaid.y; st.volatile.global.u32 [at+12], word;
mov.u32 word, %ctaid.z; st.volatile.global.u32 [at+16], word;
mov.u32 word, %tid.x; st.volatile.global.u32 [at+20], word;
PLACE st.volatile.global.u32 [at+24], word;
st.volatile.global.u32 [at+28], PHASE;
mov.u64 end, %globaltimer; add.u64 end, end, SETTLING; mov.u32 lane, 100000;
LATER: nanosleep.u32 lane; mov.u64 now, %globaltimer; setp.lt.u64 late, now, end; @late bra LATER;
ASKING st.volatile.global.u64 [at+32], state;
fence.sc.sys; mov.u32 word, KIND; st.volatile.global.u32 [at], word;"""
# In a cluster bits 24 and up of an address are the CTA's rank, and [WATCH+32] is where memory begins in the CTA that came last.
_OFFSET = "ld.global.u32 word, [WATCH+32]; sub.u32 word, BAR, word; and.b32 word, word, 0xffffff;"
# bit (word / 8) % 128 of TOLD
_ASK = """shr.u32 lane, word, 3; and.b32 lane, lane, 31; mov.u32 active, 1; shl.b32 active, active, lane;
shr.u32 word, word, 6; and.b32 word, word, 12; add.u32 word, word, WORDS; atom.shared.or.b32 number, [word+TOLD], active;
and.b32 number, number, active; setp.eq.u32 own, number, 0; @own mbarrier.arrive.shared::cta.b64 state, [BAR];"""
_PASSED = "mov.u64 now, %globaltimer; st.relaxed.gpu.global.u64 [WATCH+40], now;"
_WAIT = """{ NAMES and.b32 parity, PHASE, 1; ld.volatile.shared.u32 flag, [WORDS]; setp.ne.u32 late, flag, 0; @late bra ABORTED;
mbarrier.try_wait.parity.shared::cta.b64 done, [BAR], parity; @done bra PASSED;
ld.relaxed.gpu.global.u32 flag, [WATCH+16]; setp.ne.u32 late, flag, 0; @late bra ABORTED;
mov.u64 now, %globaltimer; ld.global.u64 end, [WATCH+8]; add.u64 end, end, now;
AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [BAR], parity; @done bra PASSED;
ld.relaxed.gpu.global.u32 flag, [WATCH+16]; setp.ne.u32 late, flag, 0; @late bra TELL;
mov.u64 now, %globaltimer; setp.lt.u64 late, now, end; @late bra AGAIN;
TELL: TELLING bra OUT;
ABORTED: ENDING bra OUT;
PASSED: PASSING
OUT: }"""
# behind a wait that was given up: a kernel that this does not end traps
_END = """STOPPING ld.relaxed.gpu.global.u64 end, [WATCH+24]; setp.eq.u64 done, end, 0; @done bra OUT;
add.u64 end, end, GRACE; mov.u64 now, %globaltimer; setp.gt.u64 late, now, end; @late trap;"""
# One lane counts its warp; ID is the barrier, THREADS those who meet there, SPOT the address of the count. The lanes meet first: a
# lane that sleeps, or asks for a flag in a loop, may be left behind by the others (ptxas writes YIELD there), and who counted
# himself without it would wait at the barrier for a lane that gives up, and never comes.
_COUNT = """{ NAMES .reg .b32 gone, first, many, mine, spot; .reg .b64 met;
mov.b32 first, 0xffffffff; bar.warp.sync first; mov.u32 gone, 0; mov.u32 active, %lanemask_lt;
setp.ne.u32 own, active, 0; @own bra OUT;
shl.b32 spot, ID, 2; add.u32 spot, spot, WORDS; shr.u32 many, THREADS, 5;
EARLY ld.volatile.shared.u32 mine, [spot+MET];
COUNT: setp.lt.s32 late, mine, 0; @late bra GIVEN;
add.u32 word, mine, 1; and.b32 number, word, 255; setp.ne.u32 late, number, many; @late bra SWAP;
sub.u32 word, word, many; add.u32 word, word, 256; and.b32 word, word, 0x7fffffff;
SWAP: atom.shared.cas.b32 number, [spot+MET], mine, word; setp.eq.u32 done, number, mine; @done bra COUNTED;
mov.u32 mine, number; bra COUNT;
GIVEN: mov.u32 gone, 1; ENDING bra OUT;
COUNTED: MEETING
OUT: setp.ne.u32 late, gone, 0; vote.sync.any.pred late, late, first; @!late STATEMENT }"""
_CLOSED = """ld.relaxed.gpu.global.u32 flag, [WATCH+16]; setp.eq.u32 done, flag, 0; @done bra OPEN;
atom.shared.or.b32 number, [spot+MET], 0x80000000; bra GIVEN; OPEN:"""
_OVER = "xor.b32 word, number, mine; and.b32 word, word, 0x7fffff00; setp.ne.u32 done, word, 0; @done bra PASSED;"
_MEET = """mov.u64 now, %globaltimer; ld.global.u64 end, [WATCH+8]; add.u64 end, end, now;
AGAIN: ld.volatile.shared.u32 number, [spot+MET]; OVER setp.lt.s32 late, number, 0; @late bra GIVEN;
ld.relaxed.gpu.global.u32 flag, [WATCH+16]; setp.ne.u32 late, flag, 0; @late bra TELL;
mov.u64 now, %globaltimer; setp.lt.u64 late, now, end; @late bra AGAIN;
TELL: atom.shared.or.b32 number, [spot+MET], 0x80000000; OVER and.b32 number, number, 255; cvt.u64.u32 met, number;
mov.u32 gone, 1; TELLING bra OUT;
PASSED: PASSING"""
# each lane waits for flags of its own, `memory.await_each_acquire_gpu_b32`
_FLAGS = """{ NAMES .reg .pred set, more; .reg .b32 seen, index; .reg .b64 spot;
mov.b32 index, $2; cvt.s64.s32 spot, index; mad.lo.s64 spot, spot, $1, $0;
NEXT: setp.lt.s32 more, index, $3; @!more bra OUT;
ld.volatile.shared.u32 flag, [WORDS]; setp.ne.u32 late, flag, 0; @late bra ABORTED;
mov.u64 now, %globaltimer; ld.global.u64 end, [WATCH+8]; add.u64 end, end, now;
AGAIN: ld.acquire.gpu.global.b32 seen, [spot]; setp.ne.u32 set, seen, 0; @set bra TAKEN;
ld.relaxed.gpu.global.u32 flag, [WATCH+16]; setp.ne.u32 late, flag, 0; @late bra TELL;
mov.u64 now, %globaltimer; setp.lt.u64 late, now, end; @late bra AGAIN;
TELL: TELLING bra OUT;
ABORTED: ENDING bra OUT;
TAKEN: st.global.b32 [spot], 0; PASSING add.s32 index, index, 128; mad.lo.s64 spot, $1, 128, spot; bra NEXT;
OUT: }"""
# a test that is asked again and again: it gives up when nothing in the kernel has passed for so long
_TEST = """{ NAMES STATEMENT setp.ne.u32 done, $0, 0; @done bra PASSED;
ld.relaxed.gpu.global.u32 flag, [WATCH+16]; setp.ne.u32 late, flag, 0; @late bra GIVEN;
ld.relaxed.gpu.global.u64 now, [WATCH+40]; ld.global.u64 end, [WATCH+8]; add.u64 end, end, now;
mov.u64 now, %globaltimer; setp.lt.u64 late, now, end; @late bra OUT;
mov.u32 $0, 1; TELLING bra OUT;
GIVEN: STOPPING mov.u32 $0, 1; bra OUT;
PASSED: PASSING
OUT: }"""

_SLEEP = """{ .reg .pred now; .reg .b32 drawn, rest;
mov.u32 drawn, %clock; xor.b32 drawn, drawn, SEED; mul.lo.u32 drawn, drawn, 747796405;
shr.u32 rest, drawn, 15; xor.b32 drawn, drawn, rest; mul.lo.u32 drawn, drawn, 277803737; and.b32 rest, drawn, 3;
shr.u32 drawn, drawn, 21; setp.eq.u32 now, rest, 0; @now nanosleep.u32 drawn; } """


def instrument(unit: Unit, library: Any, call: Callable[[str], Position]) -> None:
    """Make the changes in a compiled kernel's IR that its parameters ask for; `call`: the first call whose text has a pattern."""
    params = unit.params
    if params.debug:
        nb.rewrite_ir(library, lambda text: _bounded(text, unit, call))
    if params.jitter is not None:
        seed = (params.jitter * 0x9E3779B1 + 0x85EBCA6B) & 0xFFFFFFFF
        sleep = " ".join(_SLEEP.replace("SEED", str(seed)).split())

        def jittered(found: re.Match[str]) -> str:
            return found[0].replace(found["text"], sleep + found["text"], 1) if _TRANSITION.search(found["text"]) else found[0]

        nb.rewrite_ir(library, lambda text: _STATEMENT.sub(jittered, text))


def _bounded(text: str, unit: Unit, call: Callable[[str], Position]) -> str:
    """Return a module whose waits give up, with the declarations that they need."""
    changed = _STATEMENT.sub(lambda found: _give_up(found, unit, call), text)
    needed = "".join(line for line in (_DECLARATION, stopping.DECLARATION) if line.partition(" =")[0] + " =" not in text)
    if changed == text or not needed:
        return changed
    head, newline, rest = changed.partition("\ntarget datalayout")
    line, end, body = rest.partition("\n")
    return head + newline + line + end + needed + body


def _first_place(unit: Unit, names: list[str]) -> str:
    """Return the number in `Unit.places` of the first of these names, which stand there behind one another."""
    if names[0] not in unit.places:
        unit.places += names
    return str(unit.places.index(names[0]))


def _at(position: Position) -> str:
    return f" @ {os.path.basename(position.filename)}:{position.line}"


def _named_barriers(unit: Unit, call: Callable[[str], Position]) -> list[str]:
    """Return the names of the named barriers: whose turn each is, and the line that takes it."""
    at = _at(call(r"\bturn\(|\bpipeline\(" if unit.tokens or unit.turns > 1 else r"\bsync\("))
    return [f"named barrier {number}{f' ({turn})' if (turn := turn_of(unit, number)) else ''}{at}" for number in range(16)]


def _give_up(found: re.Match[str], unit: Unit, call: Callable[[str], Position]) -> str:
    """Return what stands in the place of a statement: a wait that gives up, or what is left out behind such a wait."""
    statement, constraints, args = found["text"], found["constraints"], found["args"]
    added = [("l", _ADDRESS), ("r", stopping.words(unit.barrier_room))]
    if statement.startswith("setmaxnreg.inc") and not unit.warp_specialized:  # told by the host: it cannot be given up
        _first_place(unit, [f"{watch.REGISTERS}{_at(call(r'set_max_registers.*increase'))}"])
    asking, place, kind = "mov.u64 state, 0;" + ("" if unit.clustered else _ASK), _OFFSET, 1
    if "@!done bra WAIT" in statement:
        scope = ".acquire.cluster" * (".acquire.cluster" in statement)
        bounded = _WAIT.replace("parity.shared", f"parity{scope}.shared")
        names = {"BAR": "$0", "PHASE": "$1", "WATCH": "$2", "WORDS": "$3"}
    elif met := re.fullmatch(r"bar\.(sync|arrive) \$0, \$1;", statement):
        waits = met[1] == "sync"
        bounded = _COUNT.replace("MEETING", _MEET * waits).replace("EARLY", _CLOSED * waits).replace("STATEMENT", statement)
        names = {"ID": "$0", "THREADS": "$1", "PHASE": "$1", "WATCH": "$2", "WORDS": "$3"}
        first = _first_place(unit, _named_barriers(unit, call))
        asking, place, kind = "mov.u64 state, met;", f"add.u32 word, $0, {first};", watch.NAMED
    elif "@!set bra WAIT" in statement:
        bounded, names = _FLAGS, {"PHASE": "index", "WATCH": "$4", "WORDS": "$5"}
        what = next((f" of '{array.name}'" for array in unit.arrays if array.workspace), "")
        at = _at(call(r"\bcombine\("))
        first = _first_place(unit, [f"the flag of another part{what}{at}"])
        asking, place, kind = "mov.u64 state, 0;", f"mov.u32 word, {first};", watch.FLAG
    elif re.search(r"mbarrier\.(try|test)_wait", statement):
        bounded, names = _TEST.replace("STATEMENT", statement), {"BAR": "$1", "PHASE": "$2", "WATCH": "$3", "WORDS": "$4"}
        constraints = constraints.replace("=r", "=&r", 1)  # written before the operands are read for the last time
    else:
        operands = [code for code in constraints.split(",") if not code.startswith("~")]
        left_out = stopping.gated(statement, f"${len(operands)}")
        if left_out is None:
            return found[0]
        bounded, names, added = left_out, {}, added[1:]
    names |= {"NAMES": _NAMES, "TELLING": _TELL, "STOPPING": stopping.STOP, "PASSING": _PASSED, "ENDING": _END, "OVER": _OVER,
              "ASKING": asking, "PLACE": place, "KIND": str(kind)}
    names |= {name: str(getattr(watch, name))
              for name in ("CAPACITY", "RECORD_BYTES", "GRACE", "SETTLING", "TOLD", "ANNOUNCED", "MET")}
    for _ in range(3):  # parts have parts
        bounded = re.sub(rf"\b({'|'.join(names)})\b", lambda name: names[name[1]], bounded)
    text = " ".join(bounded.split())
    codes = constraints.split(",")
    last = next((number for number, code in enumerate(codes) if code.startswith("~")), len(codes))
    codes[last:last] = [code for code, _ in added]
    args = ", ".join([args, *(value for _, value in added)])
    return f'call {found["type"]} asm sideeffect "{text}", "{",".join(codes)}"({args}) convergent'


def define_control(builder: Any, base: Any, words: Any) -> None:
    """Define the control block in the entry module; the lane that initialises barriers writes to it where shared memory begins,
    and initialises the CTA's words."""
    kind = nb.ir.ArrayType(nb.i64, watch.CONTROL_BYTES // 8)
    block = nb.ir.GlobalVariable(builder.module, kind, watch.SYMBOL, addrspace=1)
    block.initializer, block.align = nb.ir.Constant(kind, None), 64
    address = builder.ptrtoint(block, nb.i64)
    nb.emit_asm(builder, nb.void, [address, base], "{ .reg .b64 now; st.global.u32 [$0+32], $1; mov.u64 now, %globaltimer; "
                "st.relaxed.gpu.global.u64 [$0+40], now; }", "l,r,~{memory}")
    stopping.define_words(builder, words, address)
