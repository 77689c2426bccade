"""Views of arrays as Numba values: sizes in the type, starts in the value."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ...core import numba as nb
from ...core.inert_cuda import InertType
from . import views as source
from .refs import whole_slices
from .refs_cuda import DsType, GmemType

I32 = nb.types.int32


class GmemAtType(nb.types.Type):  # type: ignore[misc]
    def __init__(self, ref: GmemType) -> None:
        self.ref = ref
        super().__init__(name=f"at({ref})")


class ViewType(nb.types.Type, source.GmemView):  # type: ignore[misc]
    def __init__(self, ref: GmemType, axes: tuple[int, ...], shape: tuple[int, ...]) -> None:
        self.ref, self.axes, self.shape, self.dtype = ref, axes, shape, ref.arg.dtype
        super().__init__(name=f"view({ref}, {axes}, {shape})")  # type: ignore[call-arg]

    @property
    def place(self) -> Any:
        return nb.types.UniTuple(I32, self.ref.arg.ndim)


nb.struct_model(GmemAtType, lambda ty: [("ref", ty.ref)])
nb.struct_model(ViewType, lambda ty: [("ref", ty.ref), ("start", ty.place)])


class Block:
    """Where a block's elements are: the address of the array's element 0 in it, and along its dimensions start, size, stride."""

    def __init__(self, context: Any, builder: Any, ref: GmemType, value: Any, start: list[Any], axes: tuple[int, ...],
                 indices: Sequence[tuple[int, Any, Any]] = ()) -> None:
        self.builder, self.dtype = builder, ref.arg.dtype
        array = nb.fields(context, builder, ref, value)
        shape, strides = (nb.cgutils.unpack_tuple(builder, of) for of in (array.shape, array.strides))
        self.base, self.inside = array.pointer, nb.const(1, nb.i1)
        for axis, place in enumerate(start):
            if axis not in axes:
                self.inside = builder.and_(self.inside, builder.icmp_unsigned("<", place, shape[axis]))
                self.base = self.moved(self.base, place, strides[axis])
        self.start, self.size, self.stride = ([of[axis] for axis in axes] for of in (start, shape, strides))
        inner = ref.arg.ndim - 1 if ref.arg.order == "row" else 0
        self.indices = indices
        """(which dimension, vector's type, value) of indices that elements are gathered at"""
        self.pairs = bool(axes) and axes[-1] == inner and ref.arg.tma and not any(
            number == len(axes) - 1 for number, *_ in self.indices)
        """whether elements along the last dimension may be loaded at once: they are neighbours, and rows are aligned"""

    def moved(self, address: Any, place: Any, stride: Any) -> Any:
        """The address `place` elements further along a dimension."""
        builder = self.builder
        far = builder.mul(builder.sext(place, nb.i64), builder.mul(stride, nb.const(self.dtype.itemsize, nb.i64)))
        return builder.add(address, far)

    def aligned(self, columns: int, run: int) -> Any:
        """Whether a block of so many columns starts at a multiple of `run` elements, and the array has all its columns."""
        builder, begin = self.builder, self.start[-1]
        most = builder.sub(self.size[-1], nb.const(columns))
        whole = builder.and_(builder.icmp_signed(">=", begin, nb.const(0)), builder.icmp_signed("<=", begin, most))
        return builder.and_(whole, builder.icmp_unsigned("==", builder.and_(begin, nb.const(run - 1)), nb.const(0)))

    def load(self, address: Any, inside: Any, count: int = 1) -> Any:
        """One element, or `count` neighbours; what lies outside is not touched, but the array's first element."""
        builder, nbytes = self.builder, count * self.dtype.itemsize
        words = nbytes // 4
        machine: Any = nb.ir.IntType(8 * nbytes) if not words else nb.i32 if words == 1 else nb.ir.VectorType(nb.i32, words)
        pointer = builder.inttoptr(address, nb.global_pointer(machine))
        found = builder.load(pointer, align=self.dtype.itemsize * count)
        zero = nb.ir.Constant(machine, [0] * words if words > 1 else 0)
        return builder.select(inside, found, zero)


def _at(context: Any, builder: Any, ty: Any, value: Any) -> Any:
    return nb.struct(context, builder, GmemAtType(ty), ref=value)


nb.attribute(GmemType, "at", GmemAtType, _at)
nb.constant_attributes(ViewType, None, shape=lambda ty: ty.shape, dtype=lambda ty: ty.dtype.name)


def _view(target: Any, index: Any) -> Any:
    if not isinstance(target, GmemAtType):
        return None
    parts = whole_slices(index)
    axes = source.view_axes(target.ref, parts)
    result = ViewType(target.ref, axes, tuple(parts[axis].size for axis in axes))
    context, builder, args = yield result(target, index)
    ref = nb.fields(context, builder, target, args[0]).ref
    start = []
    for axis, part in enumerate(parts):
        inert = isinstance(part, InertType) or getattr(part, "inert", False)
        given = args[1] if not isinstance(index, nb.types.BaseTuple) else builder.extract_value(args[1], axis)
        found = nb.const(0) if inert else given
        start.append(found if inert or isinstance(part, DsType) else context.cast(builder, found, part, I32))
    return nb.struct(context, builder, result, ref=ref, start=context.make_tuple(builder, result.place, start))


nb.binary(operator.getitem, _view)
