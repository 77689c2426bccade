"""Prefetched arrays on the GPU: the number of bytes to copy, and loads from the copy or from the
array."""

from __future__ import annotations

import operator
from typing import Any

from ...core import numba as nb
from ...core.arith_cuda import type_of
from ...core.inert_cuda import InertType
from ...core.numba import I32, I64
from ...core.op import cuda_meaning
from ...diagnostics.errors import CompileError
from ...plan.context_cuda import own_part
from ..tiles.array_views_cuda import Block
from ..tiles.indices_cuda import settled
from ..tiles.load import without_value
from ..tiles.refs import whole_slices
from ..tiles.refs_cuda import GmemType
from ..tiles.words_cuda import load_words
from . import prefetched as source
from .scratch_cuda import BarriersType, barrier_address


class PrefetchedType(source.TableFacts, nb.FieldsType):
    ref: GmemType
    landed: BarriersType


nb.struct_model(
    PrefetchedType,
    lambda ty: [
        ("ref", ty.ref),
        ("landed", ty.landed),
        ("address", I32),
        ("nbytes", I32),
        ("source", I64),
        ("arrival", I32),
    ],
    *("landed", "address", "nbytes", "source", "arrival"),
)
nb.constant_attributes(
    PrefetchedType, None, dtype=lambda ty: ty.ref.arg.dtype.name, ndim=lambda ty: ty.ref.arg.ndim
)
nb.attribute(
    PrefetchedType,
    "shape",
    lambda ty: nb.UniTuple(I32, ty.ref.arg.ndim),
    lambda builder, ty, value: builder.fields(ty.ref, builder.fields(ty, value).ref).shape,
)


def _nbytes(builder: Any, ref: GmemType, array: Any, most: int) -> Any:
    """Return the number of bytes of an array that are copied: 0 if its rows are not contiguous, or
    if it is misaligned."""
    if ref.arg.order != "row":
        return nb.const(0)
    shape, strides = (builder.unpack_tuple(of) for of in (array.shape, array.strides))
    whole = builder.icmp_unsigned("==", builder.and_(array.pointer, source.ALIGNED - 1), 0)
    count = nb.const(1, nb.i64)
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        follows = builder.or_(
            builder.icmp_signed("==", stride, count), builder.icmp_signed("==", size, 1)
        )
        whole, count = builder.and_(whole, follows), builder.mul(count, builder.zext(size, nb.i64))
    least = builder.trunc(
        builder.select(builder.icmp_signed("<", count, most), count, most), nb.i32
    )
    found = builder.and_(builder.mul(least, ref.arg.dtype.itemsize), -source.ALIGNED)
    return builder.select(whole, found, 0)


@cuda_meaning(source.prefetched)
def _prefetched(np_: Any, site: Any, table: Any, size: Any) -> Any:
    tile, barrier = source.planned(np_, nb.literal(site), table, size).tree
    landed = BarriersType(np_, barrier, barrier.kind.shape)
    result = PrefetchedType(table, landed)
    nb.returns(source.begin, (result,))
    builder, args = yield result
    array = builder.fields(table, args[2])
    first = builder.struct(landed, np=args[0], first=nb.const(0))
    value = builder.struct(
        result,
        ref=args[2],
        landed=first,
        address=own_part(builder, np_.unit, tile.memory),
        nbytes=_nbytes(builder, table, array, tile.kind.shape[0]),
        source=array.pointer,
        arrival=barrier_address(builder, landed, first),
    )
    builder.apply(source.begin, (result,), (value,))
    return value


def _element(table: Any, index: Any) -> Any:
    if not isinstance(table, PrefetchedType):
        return None
    arg, ref = table.ref.arg, table.ref
    inert = source.check_index(arg.name, arg.ndim, whole_slices(index))
    lacks = inert is not None and not table.landed.np.computes
    unknown = without_value(arg, whole_slices(index)) if lacks else ""
    builder, args = yield InertType(unknown) if unknown else type_of(arg.dtype)
    if unknown:
        return None
    fields = builder.fields(table, args[0])
    array = builder.fields(ref, fields.ref)
    place = settled(builder, ref, fields.ref, index, args[1])
    size, offset, inside = arg.dtype.itemsize, nb.const(0, nb.i64), nb.const(1, nb.i1)
    strides, shape = (builder.unpack_tuple(of) for of in (array.strides, array.shape))
    for part, stride, most in zip(place, strides, shape, strict=True):
        offset = builder.add(offset, builder.mul(builder.sext(part, nb.i64), stride))
        inside = builder.and_(inside, builder.icmp_unsigned("<", part, most))
    offset = builder.mul(offset, size)
    machine = nb.i64 if size == 8 else nb.i32
    there = builder.and_(
        inside, builder.icmp_signed("<", offset, builder.sext(fields.nbytes, nb.i64))
    )

    def shared() -> list:
        at = builder.add(fields.address, builder.trunc(offset))
        return load_words(builder, machine, f"b{8 * size}", at, 1)

    def behind() -> list:
        block = Block(builder, ref, fields.ref, place, ())
        return [builder.bitcast(block.load(block.base, block.inside), machine)]

    return builder.one_of(there, shared, behind)[0]


def _no_value(table: Any, _index: Any = None) -> None:
    if isinstance(table, PrefetchedType):
        raise CompileError(source.no_value(table.ref.arg.name))


nb.overload(operator.getitem, _element)
nb.overload(bool, _no_value)
