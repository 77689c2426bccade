"""Indices outside their arrays, and parts outside their tiles: clipped, and reported to the host by
kernels compiled with ``CompilerParams(debug=True)``."""

from __future__ import annotations

from typing import Any

from ..core import numba as nb
from . import wait_records
from .unit import Unit

# $0 whether to report, $1 the control block, $2 … $5 the record's address, phase and state (low and
# high word); KIND its kind
_TELL = f"""{{ .reg .pred np_outside, late; .reg .b32 number, word; .reg .b64 at, place;
setp.eq.u32 np_outside, $0, 0; @np_outside bra OUT;
atom.relaxed.gpu.global.add.u32 number, [$1+20], 1;
setp.ge.u32 late, number, {wait_records.CAPACITY}; @late bra OUT;
ld.global.u64 at, [$1]; mul.wide.u32 place, number, {wait_records.RECORD_BYTES};
add.u64 at, at, place;
ld.global.u32 word, [$1+36]; st.volatile.global.u32 [at+4], word;
mov.u32 word, %ctaid.x; st.volatile.global.u32 [at+8], word;
mov.u32 word, %ctaid.y; st.volatile.global.u32 [at+12], word;
mov.u32 word, %ctaid.z; st.volatile.global.u32 [at+16], word;
mov.u32 word, %tid.x; st.volatile.global.u32 [at+20], word;
st.volatile.global.u32 [at+24], $2; st.volatile.global.u32 [at+28], $3;
st.volatile.global.u32 [at+32], $4; st.volatile.global.u32 [at+36], $5;
fence.sc.sys; mov.u32 word, KIND; st.volatile.global.u32 [at], word;
OUT: }}"""


def clipped(builder: Any, index: Any, last: Any) -> Any:
    """Return `index` clipped to 0 … `last`; 0 if the range is empty."""
    for comparison, bound in (("<", last), (">", 0)):
        index = builder.select(builder.icmp_signed(comparison, index, bound), index, bound)
    return index


def narrowed(builder: Any, value: Any) -> Any:
    """Return an integer as an int32, clipped to its range."""
    if value.type.width <= 32:
        return value
    for comparison, limit in (("<", 2**31 - 1), (">", -(2**31))):
        value = builder.select(builder.icmp_signed(comparison, value, limit), value, limit)
    return builder.trunc(value)


def report(
    builder: Any,
    unit: Unit,
    what: str,
    axis: int,
    index: Any,
    size: Any,
    outside: Any,
    once: bool = False,
    kind: int = wait_records.OUTSIDE,
) -> None:
    """Emit a record (`wait_records`) of an index along a dimension of an array of `size`, in lanes
    where `outside` is true.

    `what` names the index. `once`: all lanes of the warpgroup have the same index, and the first
    one reports. `kind`: of the record.
    """
    if once:
        thread = builder.lane_index()
        outside = builder.and_(outside, builder.icmp_unsigned("==", thread, 0))
    if what not in unit.places:
        unit.places.append(what)
    record(builder, outside, kind, nb.const(unit.places.index(what)), index, size, nb.const(axis))


def record(
    builder: Any, chosen: Any, kind: int, address: Any, phase: Any, low: Any, high: Any
) -> None:
    """Emit a `wait_records.Record`, in lanes where `chosen` is true; `low` and `high` are the words
    of its state."""
    operands = [
        builder.zext(chosen),
        builder.ptrtoint(control(builder), nb.i64),
        address,
        phase,
        low,
        high,
    ]
    builder.execute(
        operands,
        " ".join(_TELL.replace("KIND", str(kind)).split()),
    )


def control(builder: Any) -> Any:
    """Return the control block, which the entry module defines."""
    found = builder.module.globals.get(wait_records.SYMBOL)
    if found is None:
        kind = nb.ir.ArrayType(nb.i64, wait_records.CONTROL_BYTES // 8)
        found = nb.ir.GlobalVariable(builder.module, kind, wait_records.SYMBOL, addrspace=1)
    return found


def within(
    builder: Any, unit: Unit | None, what: str, axis: int, place: Any, last: int, once: bool
) -> Any:
    """Return a place in shared memory. In a kernel compiled with debug (`unit`), a place outside 0
    … `last` is reported, and 0 returned.

    `what` names the place, and ends in its kind: "start", "index". `once` as in `report`.
    """
    if unit is None:
        return place
    end = nb.const(last)
    outside = builder.or_(builder.icmp_signed("<", place, 0), builder.icmp_signed(">", place, end))
    report(builder, unit, what, axis, place, end, outside, once, wait_records.SHARED)
    return builder.select(outside, 0, place)
