"""Semaphores, compiled: additions at a GPU, and waits that end, with or without the value.

A wait for another GPU ends always, for that GPU may be gone: after the longest wait of the launch (`peers_cuda`) one lane leaves a
record of 64 bytes in the host's memory, and every further wait of the launch is given up at once, so that the kernel ends::

    0    u32   1: a wait for a semaphore, 2: one for the beginning of a peer's launch; written last
    4    i32   the GPU that waits
    8    i32   the semaphore's index, or the GPU whose launch has not begun
    12   i32   the value that it has; 16: the value that the wait is for
    20   u32   %ctaid.x, y and z; 32: %tid.x
"""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.op import cuda_meaning
from ...intrinsics import cp_async_bulk, memory
from ...plan.outside_cuda import report
from ..tiles.refs_cuda import I32, gmem_value
from . import semaphores as source
from .peers_cuda import TELL, address, block, reached, section, statement

# $0 the semaphore, $1 the value, $2 the block, $3 the semaphore's index
_POLL = """{ .reg .pred np_gpus, late; .reg .b32 seen, word; .reg .b64 at, now, end;
ld.acquire.sys.global.b32 seen, [$0]; setp.ge.s32 np_gpus, seen, $1; @np_gpus bra OUT;
ld.b64 end, [$2+16]; mov.u64 now, %globaltimer; add.u64 end, end, now; ld.b64 at, [$2+24];
AGAIN: ld.acquire.sys.global.b32 seen, [$0]; setp.ge.s32 np_gpus, seen, $1; @np_gpus bra OUT;
ld.relaxed.sys.global.b32 word, [at+252]; setp.ne.u32 late, word, 0; @late bra OUT;
mov.u64 now, %globaltimer; setp.lt.u64 late, now, end; @late bra AGAIN;
TELL
OUT: }"""


def _place(context: Any, builder: Any, semaphore: Any, value: Any, what: str) -> tuple[Any, Any]:
    """Return (index, byte offset) of a semaphore; in a kernel that is debugged one that does not exist is reported as `what`."""
    view = nb.fields(context, builder, semaphore, value)
    index = builder.extract_value(view.start, 0)
    unit = semaphore.ref.unit
    if unit.params.debug:
        size = builder.extract_value(gmem_value(context, builder, semaphore.ref, view.ref).shape, 0)
        outside = builder.icmp_unsigned(">=", index, size)
        if semaphore.ref.role != "memory":
            report(builder, unit, f"{what}({semaphore.ref.arg.name}.at[i], …)", 0, index, size, outside, False)
        index = builder.select(outside, nb.const(0), index)
    return index, builder.shl(builder.zext(index, nb.i64), nb.const(2, nb.i64))


@cuda_meaning(source.complete_stores)
def _complete_stores(_context: Any, np_: Any) -> Any:
    context, builder, _ = yield nb.types.void(np_)
    none, value = nb.immediate(0)
    nb.call(context, builder, cp_async_bulk.wait_group, (none,), (value,))


@cuda_meaning(source.add_to)
def _add_to(_context: Any, np_: Any, semaphore: Any, rank: Any, add: Any) -> Any:
    context, builder, args = yield nb.types.void(np_, semaphore, I32, I32)
    _, offset = _place(context, builder, semaphore, args[1], "numpipe.signal")
    gpu = reached(context, builder, np_, args[0], args[2], "numpipe.signal(…, rank): rank")
    place = builder.add(address(builder, section(builder, args[0], gpu), semaphore.ref.index), offset)
    nb.call(context, builder, memory.red_release_sys_add, (nb.types.int64, I32), (place, args[3]))


@cuda_meaning(source.poll)
def _poll(_context: Any, np_: Any, semaphore: Any, value: Any) -> Any:
    context, builder, args = yield nb.types.void(np_, semaphore, I32)
    index, offset = _place(context, builder, semaphore, args[1], "numpipe.wait")
    ref = gmem_value(context, builder, semaphore.ref, nb.fields(context, builder, semaphore, args[1]).ref)
    tell = statement(TELL, BLOCK="$2", INDEX="$3", SEEN="seen", WANTED="$1", KIND=1)
    nb.emit_asm(builder, nb.void, [builder.add(ref.pointer, offset), args[2], block(builder, args[0]), index],
                statement(_POLL, TELL=tell), "l,r,l,r,~{memory}")
