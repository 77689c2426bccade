"""Reductions into an array on the GPU: TMA reductions through the store ring, or ``red.global`` by
the lanes."""

from __future__ import annotations

import functools
from typing import Any

from ...arch.dtypes import FLOAT32, HALVES
from ...core import numba as nb
from ...core.op import cuda_meaning
from . import atomics as source
from .elements_cuda import write_element
from .indices_cuda import report_view
from .shared_atomics_cuda import shared_atomic
from .store_cuda import writing


def _atomic(name: str, dst: Any, tile: Any) -> Any:
    if source.of_lane(dst):
        yield from dst.update(name, tile)
        return
    if source.from_shared(dst, tile):
        options = (True, True, name.removeprefix("atomic_"))
        given = (dst.ref.np, tile, dst, *map(nb.types.literal, options))
        copy = source.COPIES[0]._numba_type_
        nb.returns(copy, given)
        builder, args = yield
        constants = [nb.nothing] * 3  # their types have the values
        builder.apply(copy, given, [constants[0], args[1], args[0], *constants])
        return
    if source.in_shared(dst):
        yield from shared_atomic(name, dst, tile)
        return
    source.check_atomic(name, dst, tile)
    reduction = name.removeprefix("atomic_")
    dtype = dst.dtype
    kind = (
        "noftz." + {"float16": "f16", "bfloat16": "bf16"}[dtype.name]
        if dtype in HALVES
        else "f32"
        if dtype == FLOAT32
        else f"{'u' if dtype.kind == 'u' else 's'}32"
        if reduction in ("add", "min", "max")
        else "b32"
    )
    statement = f"red.relaxed.gpu.global.{reduction}.{kind} [$0], $1;"
    block = dst.axes and writing(dst.ref, tile, dst.axes, reduction, statement)
    builder, args = yield
    view = builder.fields(dst, args[0])
    start = builder.unpack_tuple(view.start)
    if dst.ref.unit.params.debug and dst.ref.role.computes:
        shape = builder.fields(dst.ref, view.ref).shape
        report_view(builder, dst, shape, start, not dst.ref.by_lane)
    if block:
        block(builder, view.ref, start, args[1])
    else:
        write_element(builder, dst.ref, view.ref, start, args[1], tile, statement)


for _name, _operation in source.ATOMICS.items():
    cuda_meaning(_operation)(functools.partial(_atomic, _name))
