"""Register tiles from and to shared memory on the GPU: ldmatrix and stmatrix for 16-bit types, ld.shared and st.shared."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...arch.dtypes import INTEGERS
from ...core import numba as nb
from ...diagnostics.errors import SpecError
from ...intrinsics.ldmatrix_cuda import emit as ldmatrix
from ...plan.layout import Layout
from . import shared as source
from .addresses import Access, accesses, detour, lane_offset
from .order import before_access
from .refs import ASSIGNED
from .refs_cuda import AtType, SmemType, view
from .tile_cuda import TileType, assembled, cast_to_store, undefined, words


class Value:
    """An int32 of LLVM with Python's operators, for address arithmetic that is written once."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def _apply(self, instruction: str, other: Any) -> Value:
        right = other.value if isinstance(other, Value) else nb.const(other)
        return Value(self.builder, getattr(self.builder, instruction)(self.value, right))


for _name, _instruction in (("add", "add"), ("mul", "mul"), ("and", "and_"), ("xor", "xor"), ("lshift", "shl"), ("rshift", "lshr")):
    setattr(Value, f"__{_name}__", functools.partialmethod(Value._apply, _instruction))


REGISTERS = {str(nb.f32): "f", str(nb.i32): "r", str(nb.i64): "l", str(nb.i16): "h"}
"""constraints of registers, by their types"""


def load_words(builder: Any, machine: Any, kind: str, address: Any, count: int) -> list[Any]:
    """Load `count` adjacent elements of shared memory by one instruction; each has the LLVM type `machine`, in PTX `kind`."""
    register = REGISTERS[str(machine)]
    if count == 1:
        return [nb.emit_asm(builder, machine, [address], f"ld.shared.{kind} $0, [$1];", f"={register},r,~{{memory}}")]
    names = ", ".join(f"${i}" for i in range(count))
    found = nb.emit_asm(builder, nb.ir.LiteralStructType([machine] * count), [address],
                        f"ld.shared.v{count}.{kind} {{{names}}}, [${count}];", f"={register}," * count + "r,~{memory}")
    return [builder.extract_value(found, i) for i in range(count)]


def store_words(builder: Any, kind: str, address: Any, values: Sequence[Any], chosen: Any = None, space: str = "shared") -> None:
    """Store registers to adjacent places in memory by one instruction, in lanes where `chosen`, an int32, is not 0."""
    where = [address] if chosen is None else [address, chosen]
    names = ", ".join(f"${len(where) + i}" for i in range(len(values)))
    vector, names = (f".v{len(values)}", f"{{{names}}}") if len(values) > 1 else ("", names)
    text = f"st.{space}{vector}.{kind} [$0], {names};"
    if chosen is not None:
        text = f"{{ .reg .pred own; setp.ne.u32 own, $1, 0; @own {text} }}"
    constraints = ",".join(REGISTERS[str(value.type)] for value in (*where, *values))
    nb.emit_asm(builder, nb.void, [*where, *values], text, f"{constraints},~{{memory}}")


def in_place(builder: Any, layout: Layout, registers: list[Any]) -> list[Any]:
    """Convert registers from a tile's order to that in which accesses move them, or back: a swap that undoes itself (`detour`)."""
    turn = detour(layout)
    if turn is None:
        return registers
    bit = builder.and_(nb.thread_index(builder), nb.const(1 << turn.bit))
    other = builder.icmp_unsigned("!=", bit, nb.const(0))
    return [builder.select(other, registers[r ^ 4 * turn.groups], registers[r]) for r in range(len(registers))]


def write_registers(builder: Any, layout: Layout, address: Any, registers: list[Any]) -> None:
    """Store a tile's registers (`tile_cuda.words`) to shared memory."""
    registers = in_place(builder, layout, registers)
    for access, at in _addresses(builder, layout, address):
        run = registers[access.first:access.first + access.count]
        if layout.itemsize != 2:
            store_words(builder, "u16" if layout.itemsize == 1 else "f32", at, run)
            continue
        names = ", ".join(f"${i + 1}" for i in range(access.count))
        kind = f"x{access.count}{'.trans' if layout.inner == 0 else ''}"
        nb.emit_asm(builder, nb.void, [at, *run], f"stmatrix.sync.aligned.m8n8.{kind}.shared.b16 [$0], {{{names}}};",
                    "r" + ",r" * access.count + ",~{memory}")


def read_registers(builder: Any, layout: Layout, address: Any, dtype: np.dtype) -> list[Any]:
    """Load a tile's registers from shared memory."""
    machine, kind = (nb.i32, "u16") if layout.itemsize == 1 else (nb.f32, "f32")
    found: list[Any] = [None] * (layout.shape[0] * layout.shape[1] * max(layout.itemsize, 2) // 512)
    for access, at in _addresses(builder, layout, address):
        found[access.first:access.first + access.count] = (
            ldmatrix(builder, access.count, layout.inner == 0, at) if layout.itemsize == 2 else
            load_words(builder, machine, kind, at, access.count))
    whole = dtype in INTEGERS and dtype.itemsize == 4
    return [builder.bitcast(part, nb.i32) if whole else part for part in in_place(builder, layout, found)]


def _addresses(builder: Any, layout: Layout, address: Any) -> Iterator[tuple[Access, Any]]:
    """Yield (access, address) for each access that a lane needs for the whole tile."""
    thread = builder.and_(nb.thread_index(builder), nb.const(127))
    start = builder.add(address, lane_offset(layout, Value(builder, thread)).value)
    for access in accesses(layout):
        at = builder.xor(start, nb.const(access.xor)) if access.xor else start
        yield access, builder.add(at, nb.const(access.add)) if access.add else at


def converge(builder: Any) -> None:
    """Order what the lanes of a warp did before against what any of them does next: one lane arrives for all of them, and
    reads what the others wrote (PTX ISA, "bar.warp.sync")."""
    nb.emit_asm(builder, nb.void, [], "bar.warp.sync 0xffffffff;", "~{memory}")


# ---- tile[...] and tile[...] = value in a kernel's source
def _get_item(_context: Any, whole: Any, index: Any) -> Any:
    if not isinstance(whole, SmemType):
        return None
    tile, address = view(whole, index)
    result = TileType(source.load_form(tile))
    context, builder, args = yield result(whole, index)
    if tile.role == "memory":
        return undefined(result)
    start = address(builder, *args)
    nb.call(context, builder, before_access, (tile,), (start,))
    found = read_registers(builder, tile.layout, start, tile.dtype)
    converge(builder)
    return assembled(builder, result, found)


def _set_item(_context: Any, whole: Any, index: Any, value: Any) -> Any:
    if isinstance(whole, AtType):
        raise SpecError(ASSIGNED)
    if not isinstance(whole, SmemType):
        return None
    tile, address = view(whole, index)
    stored, convert = cast_to_store(value, tile.dtype)
    source.check_store(tile, stored)
    context, builder, args = yield nb.types.none(whole, index, value)
    if tile.role != "memory":
        start = address(builder, *args[:2])
        nb.call(context, builder, before_access, (tile,), (start,))
        write_registers(builder, tile.layout, start, words(builder, stored, convert(builder, args[2])))
        converge(builder)


nb.overload(operator.getitem, _get_item)
nb.overload(operator.setitem, _set_item)
