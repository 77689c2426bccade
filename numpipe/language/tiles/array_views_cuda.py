"""Views of arrays as Numba values: sizes in the type, starts in the value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...arch.dimensions import Ints
from ...core import numba as nb
from ...core.inert import NoValue
from ...core.numba import I32
from . import array_views as source
from .indices import plain
from .layout_names import EITHER
from .layouts import Form, before, farthest, needed, sources
from .refs import All, Index, method_of, unlimited, whole_slices
from .refs_cuda import AtType, DsType, GmemType, LimitedType, with_at
from .tile_cuda import TileType, registers
from .words_cuda import type_of_bytes


class ViewType(nb.FieldsType, source.GmemView):
    ref: GmemType
    axes: Ints
    shape: Ints
    placed: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        self.dtype = self.ref.arg.dtype


nb.struct_model(
    ViewType, lambda ty: [("ref", ty.ref), ("start", nb.UniTuple(I32, ty.ref.arg.ndim))]
)


class Block:
    """A block of an array in generated code: the address of the array's element 0; start, size and
    stride along each dimension."""

    def __init__(
        self,
        builder: Any,
        ref: GmemType,
        value: Any,
        start: Sequence,
        axes: Ints,
        stops: Sequence = (),
        parts: Sequence = (),
        tile: Any = None,
    ) -> None:
        """`stops`: where the block ends before the array, by dimension. `parts`: the types of the
        index, if known. `tile`: the form of the tile that is moved, if a part may be a vector of
        indices."""
        self.builder, self.dtype = builder, ref.arg.dtype
        array = builder.fields(ref, value)
        shape, strides = (builder.unpack_tuple(of) for of in (array.shape, array.strides))
        for axis, size in enumerate(ref.arg.sizes):
            if size is not None:
                shape[axis] = nb.const(size)
        if ref.arg.adjacent:
            strides[-1] = nb.const(1, nb.i64)
        if ref.arg.dense:
            strides[-2] = builder.zext(shape[-1], nb.i64)
        for axis, stop in enumerate(stops):
            if stop is not None:
                least = builder.select(
                    builder.icmp_signed("<", stop, shape[axis]), stop, shape[axis]
                )
                shape[axis] = builder.select(builder.icmp_signed("<", least, 0), 0, least)
        self.base, self.inside = array.pointer, nb.const(1, nb.i1)
        for axis, place in enumerate(start):
            if axis not in axes:
                self.inside = builder.and_(
                    self.inside, builder.icmp_unsigned("<", place, shape[axis])
                )
                self.base = self.moved(self.base, place, strides[axis])
        self.start, self.size, self.stride = (
            [of[axis] for axis in axes] for of in (start, shape, strides)
        )
        inner = ref.arg.ndim - 1 if ref.arg.order == "row" else 0
        self.indices: list[tuple[int, TileType, Any]] = []
        """(dimension, type of the vector, value) for each vector of indices of a gather or a
        scatter"""
        for number, axis in enumerate(axes if parts else ()):
            if isinstance(vector := parts[axis], TileType):
                want = TileType(source.index_form(tile, number, vector.form))
                self.indices.append((number, want, builder.cast(start[axis], vector, want)))
        self.room = 0
        """how many columns the array has from the last column on at which the block may start; 0 if
        that is not known at compile time"""
        self.least = 0
        """the first column at which the block may start, if there is a last one"""
        if axes and parts and not stops[axes[-1]] and any(ref.arg.sizes):
            size, part = ref.arg.sizes[axes[-1]], parts[axes[-1]]
            if size is not None and getattr(part, "most", None) is not None:
                self.room, self.least = size - part.most, part.least
        self.pairs = (
            bool(axes)
            and axes[-1] == inner
            and (ref.arg.tma or ref.arg.adjacent)
            and not any(number == len(axes) - 1 for number, *_ in self.indices)
        )
        """whether adjacent elements of a row may be loaded at once: they are contiguous, and rows
        are `even`"""
        self.lines = ref.arg.tma
        """whether all rows start at multiples of 16 bytes"""

    def moved(self, address: Any, place: Any, stride: Any) -> Any:
        """Return the address `place` elements further along a dimension."""
        builder = self.builder
        far = builder.mul(builder.sext(place, nb.i64), builder.mul(stride, self.dtype.itemsize))
        return builder.add(address, far)

    def aligned(self, shape: Sequence[int], run: int) -> Any:
        """Return whether a block starts at a multiple of `run` columns, and the array has all its
        elements along the last dimensions, of which `shape` has the sizes."""
        builder = self.builder
        found = builder.icmp_unsigned("==", builder.and_(self.start[-1], run - 1), 0)
        for axis, size in enumerate(shape, -len(shape)):
            begin, most = self.start[axis], builder.sub(self.size[axis], size)
            found = builder.and_(found, builder.icmp_signed(">=", begin, 0))
            found = builder.and_(found, builder.icmp_signed("<=", begin, most))
        return found

    def even(self, shape: Sequence[int], run: int) -> Any:
        """Return whether all rows of a block start at multiples of the size of `run` elements."""
        builder, none, one = self.builder, nb.const(0, nb.i64), nb.const(1, nb.i64)
        at = self.moved(none if self.lines else self.base, self.start[-1], one)
        if len(shape) == 2 and not self.lines:
            if shape[0] == 1:
                at = self.moved(at, self.start[0], self.stride[0])
            else:
                at = builder.or_(at, self.moved(none, nb.const(1), self.stride[0]))
        odd = builder.and_(at, run * self.dtype.itemsize - 1)
        return builder.icmp_unsigned("==", odd, none)

    def whole_pairs(self, shape: Sequence[int], run: int) -> Any:
        """Return whether every pair, or `run`, of columns is inside the array or outside it, or
        `may_split`, and can be moved at once."""
        builder = self.builder
        if self.may_split or self.room >= shape[-1]:
            return self.even(shape, run)
        odd = builder.and_(builder.or_(self.start[-1], self.size[-1]), run - 1)
        whole = builder.icmp_unsigned("==", odd, 0)
        whole = builder.or_(whole, self.aligned(shape[-1:], 1))
        return builder.and_(self.even(shape, run), whole)

    @property
    def may_split(self) -> bool:
        """Whether the array may begin or end inside a pair of columns, which then `splits`."""
        return self.least < 0 or self.room % 2 > 0

    def splits(self, form: Form, distance: int | None, run: int) -> bool:
        """Return whether a run of columns of a tile is moved by elements, because the array may not
        have all of it."""
        return self.may_split and not self.surely(form, distance or 0, run)

    def surely(self, form: Form, distance: int, run: int = 2) -> bool:
        """Return whether all lanes' columns distance … distance + run of a tile are inside the
        array, wherever the block starts."""
        end = distance + farthest(form.record)[1] + run
        return -self.least <= distance and end <= self.room

    def has(self, form: Form, own: Any, distance: int, beyond: bool = False) -> Any:
        """Return whether the array has a lane's pair of columns of a tile.

        own, distance  the pair's first column, in the block: a lane's own and a constant
        beyond         whether the column of some lanes is outside the tile
        """
        if self.surely(form, distance) and not beyond:
            return nb.const(1, nb.i1)
        builder = self.builder
        column = builder.add(own, distance)
        here = builder.icmp_unsigned("<", builder.add(self.start[-1], column), self.size[-1])
        if beyond:
            here = builder.and_(here, builder.icmp_unsigned("<", column, form.shape[-1]))
        return here

    def load(self, address: Any, inside: Any, count: int = 1) -> Any:
        """Load one element, or `count` adjacent ones. Outside the array, load the array's first
        element and return 0."""
        builder, nbytes = self.builder, count * self.dtype.itemsize
        machine = type_of_bytes(nbytes)
        found = builder.load(builder.inttoptr(address, nb.global_pointer(machine)), align=nbytes)
        return builder.select(inside, found, nb.ir.Constant(machine, None))


def indices_of(builder: Any, tile: Form, axis: int, vector: TileType, value: Any) -> list:
    """Return the index, along a dimension, of each element of a lane of a tile that is gathered, or
    scattered."""
    have, lies = registers(builder, vector, value), source.along(vector.form, tile, axis)
    want = needed(lies, tile.shape, tile.layout)
    first = before(vector.shape, want) if vector.layout == EITHER else 0
    return [have[first + i] for i in sources(tile.shape, tile.layout, lies, want)]


with_at(GmemType)
nb.constant_attributes(ViewType, None, shape=lambda ty: ty.shape, dtype=lambda ty: ty.dtype.name)


def starts(builder: Any, index: Any, value: Any) -> list:
    """Return the start of each part of an index, as int32; 0 where it is unknown. A vector of
    indices is returned unchanged."""
    values = builder.unpack_tuple(value) if isinstance(index, nb.BaseTuple) else [value]
    parts = whole_slices(index)
    values = [
        builder.fields(part, found).value if isinstance(part, Index) else found
        for part, found in zip(parts, values, strict=True)
    ]
    return [
        nb.const(0)
        if isinstance(part, (NoValue, All)) or getattr(part, "inert", False)
        else builder.fields(part, found).start
        if isinstance(part, LimitedType)
        else found
        if isinstance(part, (DsType, TileType))
        else builder.cast(found, part, I32)
        for part, found in zip(plain(parts), values, strict=True)
    ]


def stops(builder: Any, index: Any, value: Any) -> list:
    """Return the stop of each part of an index, as int32; None for parts that have none."""
    values = builder.unpack_tuple(value) if isinstance(index, nb.BaseTuple) else [value]
    return [
        builder.fields(part, found).stop
        if isinstance(part, LimitedType) and not part.inert
        else None
        for part, found in zip(whole_slices(index), values, strict=True)
    ]


@method_of(GmemType, "at")
def _view(of: GmemType, target: AtType, index: Any) -> Any:
    parts = whole_slices(index)
    axes = source.block_axes(of, parts, f"{of.arg.name}.at[…]")
    unlimited(parts, f"{of.arg.name}.at[…]")
    sizes = tuple(parts[axis].size for axis in axes)
    result = ViewType(of, axes, sizes, source.placed(parts))  # type: ignore[arg-type]
    builder, args = yield result
    ref = builder.fields(target, args[0]).of
    place = builder.make_tuple(nb.UniTuple(I32, of.arg.ndim), starts(builder, index, args[1]))
    return builder.struct(result, ref=ref, start=place)
