"""Reductions into an array on the GPU: reductions of TMA through the store ring, or ``red.global`` by the lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arch.dtypes import FLOAT32, HALVES
from ...core import numba as nb
from ...core.op import Op, cuda_meaning
from . import atomics as source
from .store_cuda import Statement, write_out, writing


def _statement(reduction: str, dtype: np.dtype) -> Statement:
    """What a lane does with an element."""
    if dtype in HALVES:
        kind = "noftz.f16" if dtype == np.float16 else "noftz.bf16"
        return f"red.relaxed.gpu.global.{reduction}.{kind} [$0], $1;", "h"
    kind = "f32" if dtype == FLOAT32 else "s32" if reduction in ("add", "min", "max") else "b32"
    return f"red.relaxed.gpu.global.{reduction}.{kind} [$0], $1;", "f" if dtype == FLOAT32 else "r"


def _atomic(name: str, operation: Op[..., Any]) -> None:
    reduction = name.removeprefix("atomic_")

    @cuda_meaning(operation)
    def typer(typing_context: Any, dst: Any, tile: Any) -> Any:
        source.check_atomic(name, dst, tile)
        how = writing(typing_context, dst.ref, tile, dst.axes, reduction, _statement(reduction, tile.dtype))
        context, builder, args = yield nb.types.void(dst, tile)
        view = nb.fields(context, builder, dst, args[0])
        write_out(context, builder, how, view.ref, nb.cgutils.unpack_tuple(builder, view.start), args[1])


for _name, _operation in source.ATOMICS.items():
    _atomic(_name, _operation)
