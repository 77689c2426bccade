"""Recording on the GPU: a place in shared memory for each warpgroup, and events of 16 bytes in global memory.

A statement is predicated throughout: a branch around it would be a divergent path, on which ptxas serialises wgmma.
"""

from __future__ import annotations

from typing import Any

from . import _numba as nb
from . import _profile
from . import profiling as source
from ._op import cuda_meaning, immediate
from ._unit import Unit
from .errors import SpecError

I32 = nb.types.int32
_EVENT = """{ .reg .pred fits, own; .reg .b32 np_used, room, low, high; .reg .b64 at, now, offset;
setp.eq.u32 own, $3, 0;
ld.shared.v2.u32 {np_used, room}, [$0]; ld.shared.u64 at, [$0+8];
setp.lt.and.u32 fits, np_used, room, own;
mul.wide.u32 offset, np_used, 16; add.u64 at, at, offset; mov.u64 now, %clock64; mov.b64 {low, high}, now;
@fits st.global.v4.u32 [at], {$1, $2, low, high};
add.u32 np_used, np_used, 1; @own st.shared.u32 [$0], np_used; }"""
_BEGIN = """{ .reg .pred sampled; .reg .b32 count, room, part, word; .reg .b64 at, buffer, time, size;
ld.global.u64 buffer, [$0]; ld.global.v2.u32 {count, room}, [$0+8];
setp.lt.u32 sampled, $2, count; selp.u32 room, room, 0, sampled;
ld.global.u32 word, [$0+12]; mul.wide.u32 size, word, 16; add.u64 size, size, 64; cvt.u64.u32 at, $3; mul.lo.u64 at, at, size;
add.u64 at, at, buffer; mov.u32 word, %smid; @sampled st.global.u32 [at+4], word;
mov.u64 time, %globaltimer; @sampled st.global.u64 [at+8], time; mov.u64 time, %clock64; @sampled st.global.u64 [at+16], time;
add.u64 at, at, 64; mov.u32 part, 0; st.shared.v2.u32 [$1], {part, room}; st.shared.u64 [$1+8], at; }"""
_END = """{ .reg .pred sampled; .reg .b32 used, room; .reg .b64 at, time;
ld.shared.v2.u32 {used, room}, [$0]; ld.shared.u64 at, [$0+8]; setp.ne.u32 sampled, room, 0;
@sampled st.global.u32 [at+-64], used;
mov.u64 time, %globaltimer; @sampled st.global.u64 [at+-40], time;
mov.u64 time, %clock64; @sampled st.global.u64 [at+-32], time; }"""


def _text(statement: str) -> str:
    return " ".join(statement.split())


def _place(builder: Any, unit: Unit, warpgroup: Any) -> Any:
    """Shared-space address of a warpgroup's place."""
    return builder.add(builder.add(nb.shared_base(builder), nb.const(unit.header_end)),
                       builder.mul(warpgroup, nb.const(_profile.PLACE_BYTES)))


def _warpgroup(builder: Any) -> Any:
    return builder.lshr(nb.thread_index(builder), nb.const(7))


def record(builder: Any, unit: Unit, role: str, kind: str, step: Any, ring: int = 0, operand: int = 0) -> None:
    """An event of the warpgroup, by its first lane, or by the one lane that the memory role is; nothing without a profile."""
    if not unit.params.profile_space:
        return
    word = _profile.KINDS.index(kind) | ring << 8 | operand << 16
    other = nb.const(0) if role == "memory" else builder.and_(nb.thread_index(builder), nb.const(127))
    place = _place(builder, unit, _warpgroup(builder))
    nb.emit_asm(builder, nb.void, [place, nb.const(word), step, other], _text(_EVENT), "r,r,r,r,~{memory}")


def define_profile(builder: Any, unit: Unit) -> Any:
    """In the entry module: the control block, and by the lane that initialises barriers the places of all warpgroups."""
    kind = nb.ir.ArrayType(nb.i64, _profile.CONTROL_BYTES // 8)
    block = nb.ir.GlobalVariable(builder.module, kind, _profile.SYMBOL, addrspace=1)
    block.initializer, block.align = nb.ir.Constant(kind, None), 16
    address = builder.ptrtoint(block, nb.i64)
    x, y, z = nb.block_index(builder)
    nx, ny = (nb.external(builder, f"llvm.nvvm.read.ptx.sreg.nctaid.{axis}", nb.i32) for axis in "xy")
    cta = builder.add(x, builder.mul(nx, builder.add(y, builder.mul(ny, z))))
    for warpgroup in range(unit.warpgroups):
        part = builder.add(builder.mul(cta, nb.const(unit.warpgroups)), nb.const(warpgroup))
        nb.emit_asm(builder, nb.void, [address, _place(builder, unit, nb.const(warpgroup)), cta, part], _text(_BEGIN),
                    "l,r,r,r,~{memory}")


def end_profile(builder: Any, unit: Unit) -> None:
    """By one lane of a warpgroup: it has ended."""
    if unit.params.profile_space:
        nb.emit_asm(builder, nb.void, [_place(builder, unit, _warpgroup(builder))], _text(_END), "r,~{memory}")


# ---- the operations
@cuda_meaning(source.mark)
def _mark(_context: Any, ring: Any, event: Any, step: Any, part: Any) -> Any:
    kind, operand = nb.literal(event), nb.literal(part)

    def codegen(context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        unit, role = ring.context.unit, ring.context.role
        record(builder, unit, role, kind, context.cast(builder, args[2], step, I32), ring.plan.index, operand)
        return nb.nothing(context)

    return nb.types.void(ring, event, step, part), codegen


def _of_region(operation: Any, kind: str) -> None:
    def typer(_context: Any, np_: Any, name: Any) -> Any:
        said = immediate("region", "name", name)
        if not isinstance(said, str):
            raise SpecError(f"region: name must be a string, got {said!r}")

        def codegen(context: Any, builder: Any, _sig: Any, _args: Any) -> Any:
            record(builder, np_.unit, np_.role, kind, nb.const(np_.unit.region(said)))
            return nb.nothing(context)

        return nb.types.void(np_, name), codegen

    cuda_meaning(operation)(typer)


_of_region(source.region_begin, "region begin")
_of_region(source.region_end, "region end")


@cuda_meaning(source.mark_tile)
def _mark_tile(_context: Any, np_: Any, tile: Any) -> Any:
    def codegen(context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        record(builder, np_.unit, np_.role, "tile", context.cast(builder, args[1], tile, I32))
        return nb.nothing(context)

    return nb.types.void(np_, tile), codegen


@cuda_meaning(source.mark_store)
def _mark_store(_context: Any, ref: Any, event: Any) -> Any:
    kind = nb.literal(event)

    def codegen(context: Any, builder: Any, _sig: Any, _args: Any) -> Any:
        record(builder, ref.unit, ref.role, kind, nb.const(0))
        return nb.nothing(context)

    return nb.types.void(ref, event), codegen
