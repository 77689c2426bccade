"""The CUDA implementation of ldmatrix, whose statement has several results."""

from __future__ import annotations

from typing import Any

from numpipe.core import numba as nb
from numpipe.core.numba import I32
from numpipe.core.op import cuda_meaning

from . import ldmatrix


def emit(builder: Any, count: int, transposed: bool, address: Any) -> list:
    """Emit one load, and return its `count` registers."""
    results = ", ".join(f"${i}" for i in range(count))
    text = ldmatrix.statement(count, transposed, results, f"${count}")
    return builder.emit_asm([nb.i32] * count, [address], text)  # type: ignore[no-any-return]


def _meaning(operation: Any, count: int, transposed: bool) -> None:
    result = I32 if count == 1 else nb.UniTuple(I32, count)

    def typer(addr: Any) -> Any:
        builder, args = yield result(I32)
        registers = emit(builder, count, transposed, args[0])
        return registers[0] if count == 1 else builder.make_tuple(result, registers)

    cuda_meaning(operation)(typer)


for _count in (1, 2, 4):
    _meaning(getattr(ldmatrix, f"load_x{_count}"), _count, False)
    _meaning(getattr(ldmatrix, f"load_x{_count}_trans"), _count, True)
