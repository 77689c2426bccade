"""Behind a wait that was given up (`CompilerParams.debug`), a CTA leaves out all that an mbarrier counts.

A wait that is given up falls through, so that its warp comes to the kernel's end through everything else that other warps wait
for: named barriers, barriers of the cluster, flags in global memory. But the protocol no longer orders what the warp does on its
way, and the hardware traps at an arrival that a phase does not miss (on an H200 an illegal instruction, and the context is lost):
the memory role would announce its next copy while the bytes of the last one are on their way. So a given-up wait first sets a word
of its CTA (`plan.watch`), and every arrival, announcement, copy and ``st.async`` of the kernel is predicated on it.

Why nothing can trap then:

- A warp that executes one of these behind a given-up wait, in its own order or in that of a barrier where it met others, reads the
  word as set: it was written before, in the same CTA. Between CTAs only mbarriers order the protocol, and these stand still.
- The statements that are executed are therefore closed under "happens before": a kernel whose warps wait on could have executed
  them by then. So no mbarrier gets an arrival, or bytes, that it would not have got in a kernel that hangs.
- There is one exception: bytes that a warp announced before it saw the word, and whose copies come later. These follow their
  announcement, which is kept for the warp (`ANNOUNCED`) up to the warp's own given-up wait. So an mbarrier at rest misses arrivals,
  or, where the copies came first and the announcement was left out, has bytes too many; it never misses bytes alone, unless the
  kernel announces by hand what it does not copy. One more arrival is legal then, and from it a record learns the state: one arrival
  of the CTA's for each mbarrier (`TOLD`), SETTLING after the flag, when the copies have landed. In a cluster other CTAs may arrive,
  or their copies be missing: there no state is recorded.
- A CTA that gave up rests at its end, so that no copy lands in the shared memory of the next one on its SM.

The words of a CTA that begins when the flag is set say from the start that a wait was given up.
"""

from __future__ import annotations

import re
from typing import Any

from ...core import numba as nb
from ...plan import watch

BASE = '@"numpipe_smem"'
DECLARATION = f"{BASE} = external addrspace(3) global [0 x i8], align 1024\n"
_COUNTED = re.compile(
    r"(?:@(?P<only>\w+) )?"
    r"(?P<does>(?:mbarrier\.arrive(?P<expect>\.expect_tx)?|(?P<copy>cp(\.reduce)?\.async\.bulk\.tensor)|st\.async)\.[^;]*;)")
# a number of `number_ring`: step counters that go from turn to turn are not marked, and are stored all the same
_NUMBER = re.compile(r"(?P<only>)(?P<expect>)(?P<copy>)(?<=np_scheduler; )(?P<does>st\.volatile\.shared\.b32 [^;]*;)")

# The parts of a statement. WORDS is the address of the CTA's words.
_NAMES = ".reg .pred np_go; .reg .b32 np_word, np_warp;"
_GO = "ld.volatile.shared.u32 np_word, [WORDS]; setp.eq.u32 np_go, np_word, 0;"
_WARP = "mov.u32 np_warp, %tid.x; shr.u32 np_warp, np_warp, 5; add.u32 np_warp, np_warp, WORDS;"
_ANNOUNCE = "add.u32 np_word, np_word, 1; ONLY st.volatile.shared.u8 [np_warp+ANNOUNCED], np_word;"
_FOLLOW = """ld.volatile.shared.u8 np_word, [np_warp+ANNOUNCED];
setp.eq.and.u32 np_go, np_word, 0, np_go; setp.eq.or.u32 np_go, np_word, 1, np_go;"""
STOP = """mov.u32 word, 1; st.volatile.shared.u32 [WORDS], word;
mov.u32 number, %tid.x; shr.u32 number, number, 5; add.u32 number, number, WORDS;
mov.u32 word, 2; st.volatile.shared.u8 [number+ANNOUNCED], word;"""
"""the statements of a wait that is given up"""


def words(at: int) -> str:
    """Return the address of the CTA's given-up words as an LLVM operand; `at`: their offset in its shared memory."""
    return f"i32 add (i32 ptrtoint ([0 x i8] addrspace(3)* {BASE} to i32), i32 {at})"


def gated(text: str, place: str) -> str | None:
    """Return a PTX statement whose effects on mbarriers happen only if no wait was given up; None if it has none.

    `place` is the operand with the words' address.
    """
    found = _COUNTED.search(text) or _NUMBER.search(text)
    if found is None:
        return None
    only, announces, loads = found["only"], bool(found["expect"]), bool(found["copy"]) and "mbarrier::" in found["does"]
    before = [_NAMES, *[_WARP] * (announces or loads), _GO, *[_FOLLOW] * loads]
    here = [_ANNOUNCE] * announces + [f"and.pred np_go, np_go, {only};"] * bool(only) + [f"@np_go {found['does']}"]
    statement = " ".join([*before, text[:found.start()], *here]) + text[found.end():]
    for name, value in (("WORDS", place), ("ANNOUNCED", str(watch.ANNOUNCED)), ("ONLY", f"@{only}" if only else "")):
        statement = statement.replace(name, value)
    return f"{{ {' '.join(statement.split())} }}"


def define_words(builder: Any, words: Any, control: Any) -> None:
    """Initialise the words at a CTA's beginning, by the lane that initialises its barriers."""
    clear = " ".join(f"st.shared.u32 [$0+{at}], word;" for at in range(watch.TOLD, watch.WORDS_BYTES, 4))
    nb.emit_asm(builder, nb.void, [words, control],
                "{ .reg .b32 word; ld.relaxed.gpu.global.u32 word, [$1+16]; st.shared.u32 [$0], word; mov.u32 word, 0; "
                f"{clear} }}", "r,l,~{memory}")


_REST = f"""{{ .reg .pred done; .reg .b32 word; .reg .b64 now, end;
ld.volatile.shared.u32 word, [$0]; setp.eq.u32 done, word, 0; @done bra OUT;
mov.u64 now, %globaltimer; add.u64 end, now, {watch.REST}; mov.u32 word, 100000;
RESTING: nanosleep.u32 word; mov.u64 now, %globaltimer; setp.lt.u64 done, now, end; @done bra RESTING; OUT: }}"""


def rest(builder: Any, words: Any) -> None:
    """Let a CTA that gave up a wait rest at its end."""
    nb.emit_asm(builder, nb.void, [words], " ".join(_REST.split()), "r,~{memory}")
