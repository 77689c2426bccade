"""References: arrays in global memory, tiles in shared memory, and the views a kernel takes of them.

``ref.at[...]`` is a view, ``ref[...]`` loads or stores. Along each dimension a view takes ``ds(start, size)`` (run-time
start, compile-time size) or ``:``::

    a_tile.at[ds(wg * 64, 64), :]                     # the 64 rows of this warpgroup
    x = a_tile[ds(wg * 64, 64), :]                    # the same rows as a register tile
    c[ds(m * 128, 128), ds(n * 256, 256)] = tile      # a block of the output
    d[b, ds(m * 128, 128), ds(n * 256, 256)] = tile   # of an array of 3 dimensions: integers along the others
    acc + c[ds(m * 128, 128), ds(n * 256, 256)] + bias[ds(n * 256, 256)]        # blocks of arrays, as register tiles

The Numba types of `Ds` and `All` are subclasses of them, so that one check asks a value and its type alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import index as as_index
from typing import Any, NoReturn, TypeVar

import numpy as np

from ...core import arith
from ...core.inert import REASON, Inert
from ...core.machine import TensorMap
from ...core.op import called, constant, op
from ...diagnostics.errors import CompileError, SpecError
from ...plan.copies import MapRequest
from ...plan.layout import Layout
from ...plan.plans import ArrayArg
from ...plan.unit import Unit

__all__ = ["ds"]

ASSIGNED = "tile.at[…] is a view, and is not assigned to: tile[…] = value stores"
READ_ONLY = "a tile of a pipeline is read-only: TMA fills its slot again; store to an array instead"


_F = TypeVar("_F")


def method_of(kind: type, name: str) -> Callable[[_F], _F]:
    """Make a function a method of a reference: what references hold stands here, loads, stores and views in files above."""
    def attach(function: _F) -> _F:
        setattr(kind, name, function)
        return function

    return attach


class Ds:
    """A dynamic slice: elements ``[start, start + size)``; see `ds`."""

    def __init__(self, start: Any, size: int) -> None:
        self.start, self.size = start, size

    def __repr__(self) -> str:
        return f"ds({self.start}, {self.size})"


@op
def ds(start: Any, size: int) -> Ds:
    """`size` elements from `start` on: `start` may be a run-time value, `size` is a compile-time constant.

    >>> ds(64, 32)
    ds(64, 32)
    """
    if not isinstance(start, (int, np.integer, Inert)):
        try:
            as_index(start)  # tiles say that they steer
        except TypeError:
            raise no_start(start) from None
    return Ds(start, ds_size(size))


def ds_size(size: Any) -> int:
    """The size of a `ds`."""
    size = constant("ds(start, size)", "size", size)
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise SpecError(f"ds(start, size): size must be a positive compile-time int, got {size!r}")
    return int(size)


def no_start(given: Any) -> SpecError:
    """The error for the start of a `ds` that is no integer."""
    return SpecError(f"ds(start, size): start must be an integer, got {called(given)}: int(x) truncates a float, // divides "
                     "integers")


class All:
    """The whole of a dimension: what ``:`` means in an index."""

    def __repr__(self) -> str:
        return ":"


ALL = All()


@op
def whole() -> All:
    """``:`` in an index; the AST pass writes it."""
    return ALL


class SmemLike:
    """What is asked of a tile in shared memory, and of its Numba type."""

    layout: Layout
    dtype: np.dtype
    writable: bool


class SmemTile(SmemLike):
    """A 2-D tile in shared memory, as a pipeline hands it to the kernel's body. shape in elements.

    ``tile[...]``, ``tile[:, :]``, ``tile[ds(start, size), :]`` load it, or a part of it, as a register tile; where a tile is
    `writable`, ``tile[...] = value`` stores one.
    """

    operand = "tile"

    def __init__(self, address: int, layout: Layout, dtype: np.dtype, memory: bool, writable: bool = False) -> None:
        self.address, self.layout, self.dtype, self.memory, self.writable = address, layout, dtype, memory, writable

    @property
    def shape(self) -> tuple[int, int]:
        return self.layout.shape

    @property
    def at(self) -> At:
        """``tile.at[rows, columns]``: a view, nothing is moved."""
        return At(self)

    @property
    def T(self) -> SmemTile:
        """The transposed view."""
        return SmemTile(self.address, self.layout.T, self.dtype, self.memory, self.writable)

    def _steers(self, *_: Any) -> NoReturn:
        raise CompileError(f"a shared-memory tile {REASON}")

    __bool__ = __int__ = __index__ = __float__ = _steers


def check_start(layout: Layout, axis: int, start: int, size: int) -> None:
    """SpecError unless a part of a tile starts where its swizzle repeats, and lies inside the tile."""
    unit = layout.per_panel if axis == layout.inner else 8
    if start % unit or start < 0 or start + size > layout.shape[axis]:
        raise SpecError(f"tile.at[…]: ds({start}, {size}) along axis {axis} of a tile {layout.shape}: the start must be a multiple "
                        f"of {unit} and the slice must lie inside the tile")


class At:
    """Indexing with it gives a view: ``tile.at[ds(0, 64), :]``."""

    def __init__(self, tile: SmemTile) -> None:
        self.tile = tile

    def __getitem__(self, index: Any) -> SmemTile:
        tile = self.tile
        if index is Ellipsis:
            return tile
        layout, address = tile.layout, tile.address
        for axis, part in enumerate(two(index, "a tile")):
            if isinstance(part, All):
                continue
            layout, scale = layout.sliced(axis, part.size, "tile.at[…]")
            if not isinstance(part.start, Inert):
                start = int(part.start)
                check_start(tile.layout, axis, start, part.size)
                address += start * scale
        return SmemTile(address, layout, tile.dtype, tile.memory, tile.writable)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise SpecError(ASSIGNED)


ELEMENT = ("an element of a tile, tile[i, j], is code for a lane: it stands in the body of a body-form pipeline, in a kernel "
           "with CompilerParams(lowering_semantics=LoweringSemantics.Lane); here a tile is indexed by two of ds(start, size) "
           "and ':', or by ...")


def two(index: Any, what: str) -> tuple[Any, Any]:
    """The two parts of an index, or of the type of one; clear errors for everything else."""
    parts = whole_slices(index)
    if len(parts) != 2 or not all(isinstance(part, (Ds, All)) for part in parts):
        raise SpecError(ELEMENT if any(arith.is_integer(part) for part in parts) else
                        f"{what} is indexed by two of ds(start, size) and ':', or by ..., got "
                        f"{parts if len(parts) > 1 else parts[0]!r}")
    return parts[0], parts[1]


@functools.singledispatch
def whole_slices(index: Any) -> tuple[Any, ...]:
    """The parts of an index, ``:`` as `All`, or the types of its parts."""
    parts = index if isinstance(index, tuple) else (index,)
    return tuple(ALL if isinstance(p, slice) and p == slice(None) else p for p in parts)


class GmemRef:
    """An array argument of a kernel, in global memory. ``ref.shape[i]`` is a run-time int32."""

    def __init__(self, array: np.ndarray, index: int, unit: Unit) -> None:
        self.array, self.index, self.unit = array, index, unit
        self.tensor_maps: dict[MapRequest, TensorMap] = {}
        self.shape = tuple(np.int32(n) for n in array.shape)
        self.dtype = array.dtype
        self.ndim = array.ndim

    @property
    def arg(self) -> ArrayArg:
        return self.unit.arrays[self.index]

    @property
    def name(self) -> str:
        return self.arg.name


def tensor_map(ref: GmemRef, request: MapRequest) -> TensorMap:
    """The simulator's tensor map of an array: dimensions in memory order, as the driver's encoder wants them."""
    cached = ref.tensor_maps.get(request)
    if cached is None:
        flipped = ref.arg.order != "row"
        cached = TensorMap(ref.array.T if flipped else ref.array, request.box, request.swizzle, ref.name, request.fill, padded=True,
                           flipped=flipped)
        ref.tensor_maps[request] = cached
        ref.unit.map_slot(request)
    return cached
