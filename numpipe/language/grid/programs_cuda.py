"""The place of a CTA in the grid, on the GPU."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.op import cuda_meaning
from ...plan.unit import Unit
from . import programs as source

I32 = nb.types.int32


def _special(operation: Any, name: str, register: str) -> None:
    @cuda_meaning(operation)
    def typer(_context: Any, axis: Any) -> Any:
        dimension = "xyz"[source.check(name, axis)]
        _, builder, _ = yield I32(axis)
        return nb.special(builder, f"{register}.{dimension}")


def check_ctas(unit: Unit, library: Any) -> None:
    """Raise SpecError where compiled code asks for a dimension that the CTAs of a kernel over tiles do not have."""
    for operation, register in (("program_id", "ctaid"), ("num_programs", "nctaid")):
        for symbol in nb.undefined_symbols(library, f"llvm.nvvm.read.ptx.sreg.{register}."):
            source.check_ctas(unit, operation, "xyz".index(symbol[-1]))


_special(source.program_id, "program_id", "ctaid")
_special(source.num_programs, "num_programs", "nctaid")


@cuda_meaning(source.own_index)
def _own_index(_context: Any) -> Any:
    _, builder, _ = yield I32()
    return nb.block_number(builder)


@cuda_meaning(source.cta_count)
def cta_count(_context: Any) -> Any:
    _, builder, _ = yield I32()
    x, y, z = nb.grid_size(builder)
    return builder.mul(x, builder.mul(y, z))
