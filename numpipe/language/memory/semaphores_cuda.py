"""Semaphores, compiled: additions at a GPU, and waits that always end, whether or not the value was
reached.

A wait must end because the GPU that should signal may be gone. After the longest wait of the
launch, one lane leaves a record in host memory (`plan.control_block`), and every further wait is
given up at once, so that the kernel ends.
"""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.numba import I32
from ...core.op import constant, cuda_meaning
from ...diagnostics.argument_checks import FLAG
from ...intrinsics import memory
from ...plan.context_cuda import counter_pointer
from ...plan.control_block import LOST, SEMAPHORE, SEMAPHORES
from ...plan.outside_cuda import report
from ...plan.plans import GPU
from ...plan.profiling_cuda import record
from . import semaphores as source
from .peer_arrays_cuda import TELL, address, reached, section, statement, words

# $0 the semaphore, $1 the value, $2 the launch's words, $3 the semaphore's index, $4 this GPU's
# semaphores, $5 the wait's place
_POLL = """{ .reg .pred np_gpus, late; .reg .b32 seen, word; .reg .b64 at, now, end;
ld.acquire.sys.global.b32 seen, [$0]; setp.ge.s32 np_gpus, seen, $1; @np_gpus bra OUT;
ld.b64 end, [$2+16]; mov.u64 now, %globaltimer; add.u64 end, end, now;
AGAIN: ld.acquire.sys.global.b32 seen, [$0]; setp.ge.s32 np_gpus, seen, $1; @np_gpus bra OUT;
ld.relaxed.sys.global.b32 word, [$4+LOST]; setp.ne.u32 late, word, 0; @late bra OUT;
mov.u64 now, %globaltimer; setp.lt.u64 late, now, end; @late bra AGAIN;
TELL
OUT: }"""


def _place(builder: Any, semaphore: Any, value: Any, what: str) -> tuple[Any, Any]:
    """Return (index, byte offset) of a semaphore. A kernel compiled with debug reports one that
    does not exist as `what`."""
    view = builder.fields(semaphore, value)
    index = builder.extract_value(view.start, 0)
    unit = semaphore.ref.unit
    if unit.params.debug:
        size = builder.extract_value(builder.fields(semaphore.ref, view.ref).shape, 0)
        outside = builder.icmp_unsigned(">=", index, size)
        if semaphore.ref.role.computes:
            report(
                builder,
                unit,
                f"{what}({semaphore.ref.arg.name}.at[i], …)",
                0,
                index,
                size,
                outside,
                False,
            )
        index = builder.select(outside, 0, index)
    return index, builder.shl(builder.zext(index, nb.i64), 2)


@cuda_meaning(source.add_to)
def _add_to(np_: Any, semaphore: Any, rank: Any, add: Any) -> Any:
    builder, args = yield nb.VOID(np_, semaphore, I32, I32)
    _, offset = _place(builder, semaphore, args[1], "numpipe.signal")
    gpu = reached(builder, np_, args[0], args[2], "numpipe.signal(…, rank): rank")
    place = builder.add(
        address(builder, section(builder, args[0], gpu), semaphore.ref.index), offset
    )
    if np_.unit.params.debug:  # how much of it each GPU has added
        ref = builder.fields(semaphore.ref, builder.fields(semaphore, args[1]).ref)
        me = builder.load(counter_pointer(builder, args[0], GPU))
        before = builder.mul(builder.extract_value(ref.shape, 0), builder.add(me, 1))
        whose = builder.add(place, builder.shl(builder.zext(before, nb.i64), 2))
        builder.execute(
            [whose, args[3]],
            "red.relaxed.sys.global.add.s32 [$0], $1;",
        )
    builder.issue(memory.red_release_sys_add, place, args[3])


@cuda_meaning(source.wait)
def _wait(np_: Any, site: Any, semaphore: Any, value: Any, loads: Any = True) -> Any:
    source.check_wait(np_, semaphore, value)
    if not constant("numpipe.wait", "loads", loads, FLAG) and not np_.computes:
        yield nb.VOID(np_, site, semaphore, I32, loads)
        return
    function = source.await_together if np_.computes else source.await_value
    what = f"the wait for {semaphore.ref.arg.name} @ {nb.literal(site)}"
    if what not in np_.unit.places:
        np_.unit.places.append(what)
    types = np_, semaphore, I32, I32
    nb.returns(function, types)
    builder, args = yield nb.VOID(np_, site, semaphore, I32, *[loads] * (loads is not True))
    index = builder.extract_value(builder.fields(semaphore, args[2]).start, 0)
    record(builder, np_.unit, args[0], "await", index)
    builder.apply(
        function,
        types,
        (args[0], args[2], args[3], nb.const(np_.unit.places.index(what))),
    )
    record(builder, np_.unit, args[0], "awaited", index)


@cuda_meaning(source.poll)
def _poll(np_: Any, semaphore: Any, value: Any, place: Any) -> Any:
    builder, args = yield nb.VOID(np_, semaphore, I32, I32)
    index, offset = _place(builder, semaphore, args[1], "numpipe.wait")
    ref = builder.fields(semaphore.ref, builder.fields(semaphore, args[1]).ref)
    lost = 4 * (LOST - SEMAPHORES)
    tell = statement(
        TELL,
        FLAG=f"$4+{lost}",
        WORDS="$2",
        INDEX="$3",
        SEEN="seen",
        WANTED="$1",
        KIND=SEMAPHORE,
        PLACE="$5",
    )
    operands = [
        builder.add(ref.pointer, offset),
        args[2],
        words(builder, args[0]),
        index,
        ref.pointer,
        args[3],
    ]
    builder.execute(operands, statement(_POLL, TELL=tell, LOST=lost))
