"""Stores of numbers to single elements of an array on the GPU: by lane 0 of the warpgroup, or in
per-lane code by all lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...arch.dtypes import BFLOAT16, BOOL
from ...core import numba as nb
from ...core.arith_cuda import convert, type_of
from ...core.numba import BOOLEAN, F32
from .array_views_cuda import Block
from .refs_cuda import GmemType

SUFFIXES = {nb.f32: "f32", nb.f64: "f64", nb.i16: "b16", nb.i32: "b32", nb.i64: "b64"}
"""PTX types of values, by LLVM types"""


def in_type(builder: Any, value: Any, ty: Any, dtype: np.dtype) -> Any:
    """Return a number converted to the element type of an array."""
    kind = nb.unliteral(ty)
    if kind != ty:  # a literal may be 64 bits wide, whatever its type says
        value, ty = builder.cast(value, ty, kind), kind
    if dtype == BOOL:
        return builder.zext(builder.cast(value, ty, BOOLEAN), nb.i16)
    if dtype == BFLOAT16:
        single = convert(builder, value, ty, F32)
        return builder.pure_asm(nb.i16, [single], "cvt.rn.bf16.f32 $0, $1;")
    return convert(builder, value, ty, type_of(dtype))


def write_element(
    builder: Any,
    ref: GmemType,
    array: Any,
    index: Sequence,
    value: Any,
    ty: Any,
    statement: str = "",
) -> None:
    """Emit a store of a number, or another `statement` on address $0 and value $1. In the memory
    role nothing is emitted."""
    if not ref.role.computes:
        return
    dtype = ref.arg.dtype
    block = Block(builder, ref, array, index, ())
    found = in_type(builder, value, ty, dtype)
    if dtype.itemsize == 1 and dtype != BOOL:
        found = builder.zext(found, nb.i16)
    suffix = "b8" if dtype.itemsize == 1 else SUFFIXES[found.type]
    text = statement or f"st.global.{suffix} [$0], $1;"
    own = block.inside
    if not ref.by_lane:
        own = builder.and_(
            own,
            builder.icmp_unsigned("==", builder.lane_index(), 0),
        )
    builder.emit_where(own, text, block.base, found)
