"""Reductions into an array on the GPU: reductions of TMA through the store ring, or ``red.global`` by the lanes."""

from __future__ import annotations

from typing import Any

from ...arch.dtypes import FLOAT32, HALVES
from ...core import numba as nb
from ...core.op import Op, cuda_meaning
from . import atomics as source
from .store_cuda import writing


def _atomic(name: str, operation: Op[..., Any]) -> None:
    reduction = name.removeprefix("atomic_")

    @cuda_meaning(operation)
    def typer(typing_context: Any, dst: Any, tile: Any) -> Any:
        source.check_atomic(name, dst, tile)
        kind, register = (("noftz." + {"float16": "f16", "bfloat16": "bf16"}[tile.dtype.name], "h") if tile.dtype in HALVES else
                          ("f32", "f") if tile.dtype == FLOAT32 else
                          ("s32" if reduction in ("add", "min", "max") else "b32", "r"))
        statement = f"red.relaxed.gpu.global.{reduction}.{kind} [$0], $1;", register
        write = writing(typing_context, dst.ref, tile, dst.axes, reduction, statement)
        context, builder, args = yield nb.types.void(dst, tile)
        view = nb.fields(context, builder, dst, args[0])
        write(context, builder, view.ref, nb.cgutils.unpack_tuple(builder, view.start), args[1])


for _name, _operation in source.ATOMICS.items():
    _atomic(_name, _operation)
