"""Running sums of register tiles on the GPU: shuffles within a quad or among the quads, shared memory between the warps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...arch.dtypes import FLOAT32
from ...core import numba as nb
from ...core.op import cuda_meaning
from . import scans as source
from .layouts import ACCUMULATOR, places
from .reduce_cuda import of_warps
from .tile_cuda import TileType, assembled, registers, undefined
from .words_cuda import REGISTERS

Add = Callable[[Any, Any], Any]
QUAD, WARP = 0x1c00, 0
"""operands c of ``shfl.sync`` that keep a shuffle within 4 lanes, or within all 32 (PTX ISA, "shfl.sync")"""


def of_before(builder: Any, value: Any, distance: int, within: int) -> Any:
    """Return the value of the lane `distance` before; where there is none, -0.0 or 0, which changes nothing when added."""
    register, nothing = REGISTERS[str(value.type)], "0x80000000" if value.type == nb.f32 else "0"
    text = (f"{{ .reg .pred there; .reg .b32 got; shfl.sync.up.b32 got|there, $1, {distance}, {within}, 0xffffffff; "
            f"@!there mov.b32 got, {nothing}; mov.b32 $0, got; }}")
    return nb.emit_asm(builder, value.type, [value], text, f"={register},{register}")


def of_last(builder: Any, value: Any, within: int) -> Any:
    """Return the value of the last lane of a quad, or of the lane in the last quad that has the same place there."""
    register = REGISTERS[str(value.type)]
    lane = nb.const(3) if within == QUAD else builder.or_(builder.and_(nb.thread_index(builder), nb.const(3)), nb.const(28))
    return nb.emit_asm(builder, value.type, [value, lane], f"shfl.sync.idx.b32 $0, $1, $2, {within | 31}, 0xffffffff;",
                       f"={register},{register},r")


def _running(builder: Any, add: Add, value: Any, within: int) -> Any:
    """Return the running sum along the lanes of a quad, or along the quads of a warp."""
    for distance in (1, 2) if within == QUAD else (4, 8, 16):
        value = add(value, of_before(builder, value, distance, within))
    return value


@cuda_meaning(source.cumsum)
def _cumsum(_context: Any, np_: Any, tile: Any, axis: Any) -> Any:
    form, along, _ = source.plan(np_, tile, axis)
    result = TileType(form)
    _, builder, args = yield result(np_, tile, axis)
    if np_.role == "memory":
        return undefined(result)
    values = registers(builder, tile, args[1])[:result.registers]
    if source.alone(form, along):
        return assembled(builder, result, values)
    elements = dict(zip(places(form.shape, form.layout), values, strict=True))
    add = builder.fadd if form.dtype == FLOAT32 else builder.add
    sums = (_along_rows if along else _along_columns)(builder, add, elements, form.layout == ACCUMULATOR)
    return assembled(builder, result, [sums[place] for place in elements])


def _along_rows(builder: Any, add: Add, elements: dict[Any, Any], _columns: bool) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    base: dict[Any, Any] = {}
    for row, column in [place for place in elements if place[1] % 2 == 0]:
        first, second = elements[row, column], elements[row, column + 1]
        own = add(first, second)
        quad = _running(builder, add, own, QUAD)
        before = of_before(builder, quad, 1, QUAD)
        before = before if column == 0 else add(base[row], before)
        total = of_last(builder, quad, QUAD)
        base[row] = total if column == 0 else add(base[row], total)
        found[row, column], found[row, column + 1] = add(before, first), add(before, own)
    return found


def _along_columns(builder: Any, add: Add, elements: dict[Any, Any], columns: bool) -> dict[Any, Any]:
    running = {place: _running(builder, add, value, WARP) for place, value in elements.items()}
    totals = {place: of_last(builder, value, WARP) for place, value in running.items()}
    warp = builder.and_(builder.lshr(nb.thread_index(builder), nb.const(5)), nb.const(3))
    blocks = [(row, column) for row, column in elements if row % 64 == 0]
    sums = [add(totals[row, column], totals[row + 8, column]) for row, column in blocks]
    found: dict[Any, Any] = {}
    base: dict[Any, Any] = {}
    for (row, column), each in zip(blocks, of_warps(builder, sums, 4 if columns else 1), strict=True):
        before = [base.get(column)]
        for total in each:
            before.append(total if before[-1] is None else add(before[-1], total))
        base[column] = before.pop()
        nothing = nb.ir.Constant(each[0].type, -0.0 if each[0].type == nb.f32 else 0)
        own = nothing if before[0] is None else before[0]
        for number, value in enumerate(before[1:], 1):
            own = builder.select(builder.icmp_unsigned("==", warp, nb.const(number)), value, own)
        found[row, column] = add(own, running[row, column])
        found[row + 8, column] = add(add(own, totals[row, column]), running[row + 8, column])
    return found
