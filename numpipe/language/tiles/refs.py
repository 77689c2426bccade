"""References to arrays in global memory and tiles in shared memory, and views of them.

``ref.at[...]`` is a view; ``ref[...]`` loads or stores. Each dimension of a view takes ``ds(start,
size)`` (run-time start, compile-time size) or ``:``::

    a_tile.at[ds(wg * 64, 64), :]  # the 64 rows of this warpgroup
    x = a_tile[ds(wg * 64, 64), :]  # the same rows as a register tile
    c[ds(m * 128, 128), ds(n * 256, 256)] = tile  # a block of the output
    d[b, ds(m * 128, 128), ds(n * 256, 256)] = (
        tile  # in an array of 3 dimensions: integers along the others
    )
    (
        acc + c[ds(m * 128, 128), ds(n * 256, 256)] + bias[ds(n * 256, 256)]
    )  # blocks of arrays, as register tiles

The Numba types of `Ds` and `All` are subclasses of these classes, so one `isinstance` check works
for values and types.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index as as_index
from typing import Any, NoReturn, TypeVar

import numpy as np

from ...arch.dimensions import Ints
from ...core import arith
from ...core.inert import REASON, Inert
from ...core.machine import TensorMap, current, failure
from ...core.op import called, constant, op
from ...diagnostics.argument_checks import whole as integer
from ...diagnostics.errors import CompileError, SimulationError, SpecError
from ...plan.context import Context, StoringFacts
from ...plan.copy_plans import MapRequest
from ...plan.layout import Layout
from ...plan.plans import ArrayArg
from ...plan.roles import Role
from .tile import TileLike

__all__ = ["ds"]

ASSIGNED = "tile.at[…] is a view and cannot be assigned to; fix: write tile[…] = value"
READ_ONLY = "a tile of a pipeline is read-only: TMA refills its slot; fix: store to an array"


_F = TypeVar("_F")
_S = TypeVar("_S", bound="SharedTile")


def method_of(kind: type, name: str) -> Callable[[_F], _F]:
    """Return a decorator that makes a function a method of a reference. References are defined
    here, but their loads, stores and views are defined in modules that import this one."""

    def attach(function: _F) -> _F:
        setattr(kind, name, function)
        return function

    return attach


class Ds:
    """A dynamic slice: elements ``[start, start + size)``, up to `stop` if it has one; see `ds`."""

    limited = False
    """whether there is a stop; the Numba type sets it"""

    most: int | None = None
    """the largest value that `start` may have, if known when the kernel is compiled"""

    def __init__(self, start: Any, size: int, stop: Any = None, least: int = 0) -> None:
        self.start, self.size, self.stop, self.limited = start, size, stop, stop is not None
        self.least = least
        """the smallest value that `start` may have, if there is a largest"""

    def __repr__(self) -> str:
        return f"ds({self.start}, {self.size}{f', stop={self.stop}' * self.limited})"


@dataclass(eq=False)
class Index:
    """An index with a mode (`indices.index`), or the Numba type of one, whose `value` is a type."""

    value: Any
    mode: str

    def __repr__(self) -> str:
        return f"index({self.value!r}, {self.mode!r})"


@op
def ds(start: Any, size: int, stop: Any = None, most: int | None = None, least: int = 0) -> Ds:
    """Select `size` elements from `start`: `start` may be a run-time value, `size` is a
    compile-time constant.

    start  ``numpipe.index(i, "zero")`` if a block that starts at a number read from an array may
           lie wholly outside: it reads as zeros, and is not written. Otherwise the simulator
           reports it (`out-of-bounds`)
    stop   None, or a run-time integer, in a load from an array or a store to one. Elements of the
           array from `stop` on are treated like elements past its end: they are loaded as zeros,
           and not written. ``c[ds(row, 128, stop=end), …] = tile`` stores the rows of a group that
           ends in the middle of a tile.
    most   None, or a compile-time constant: the largest value that `start` may have. Elements of
           an array with `static_dims` that are inside for every such start need no bounds checks.
           A larger start is the hazard `out-of-bounds`, and undefined on the GPU.
    least  a compile-time constant: with `most`, the smallest value that `start` may have. If it is
           negative, elements before the array are treated like those past its end.

    >>> ds(64, 32), ds(64, 32, stop=70)
    (ds(64, 32), ds(64, 32, stop=70))
    """
    if stop is not None and not isinstance(stop, Inert) and not arith.is_integer(stop):
        raise no_stop(stop)
    if isinstance(start, Index) and start.mode == "zero":  # no longer one that was read
        start = start.value if isinstance(start.value, Inert) else int(start.value)
    if not isinstance(start, (int, np.integer, Inert)):
        try:
            as_index(start)  # tiles raise an error of their own here
        except TypeError:
            raise no_start(start) from None
    if most is not None and not isinstance(start, Inert) and not least <= start <= most:
        raise failure(
            SimulationError,
            "out-of-bounds",
            f"ds({start}, {size}, most={most}): the start is not in {least}…{most}",
            f"a start in {least}…{most}, or another `most`",
            "selects elements",
        )
    return Ds(start, ds_size(size), stop, least)


def no_stop(stop: Any) -> SpecError:
    """Return the error for the stop of a `ds` that is not an integer."""
    return SpecError(
        f"ds(start, size, stop): stop must be an integer, got {called(stop)}; fix: int(x) "
        "truncates a float"
    )


def unlimited(parts: Sequence, what: str) -> None:
    """Raise SpecError if a part of an index, given as values or types, is a `ds` with a stop, which
    `what` does not support."""
    if any(isinstance(part, Ds) and part.limited for part in parts):
        raise SpecError(
            f"{what}: stop= of ds(…) is supported only in loads from arrays, array[…], and stores "
            "to them, array[…] = tile; fix: leave out stop="
        )


POSITIVE = integer(1)


def ds_size(size: Any) -> int:
    return int(constant("ds(start, size)", "size", size, POSITIVE))


def no_start(start: Any) -> SpecError:
    """Return the error for the start of a `ds` that is not an integer."""
    return SpecError(
        f"ds(start, size): start must be an integer, got {called(start)}; fix: int(x) truncates a "
        "float, // divides integers"
    )


class Span:
    """A slice of a register tile with an omitted bound, or one counted from the end: ``64:``,
    ``-8:``, ``0:-8``."""

    def __init__(self, start: int | None, stop: int | None) -> None:
        self.start, self.stop = start, stop

    def __repr__(self) -> str:
        return (
            f"{'' if self.start is None else self.start}:{'' if self.stop is None else self.stop}"
        )


@op
def span(start: int, stop: int | None) -> Span:
    """Return a slice as written in the source; the AST pass writes calls of it."""
    return Span(start, stop)


class All:
    """A whole dimension: ``:`` in an index."""

    def __repr__(self) -> str:
        return ":"


ALL = All()


@op
def whole() -> All:
    """Return ``:`` of an index; the AST pass writes calls of it."""
    return ALL


@dataclass(eq=False)
class SharedTile:
    """A one- or two-dimensional tile in shared memory, or a view of one. Its shape is in
    elements."""

    address: int
    layout: Layout
    dtype: np.dtype
    role: Role
    writable: bool = False

    @property
    def shape(self) -> Ints:
        return self.layout.sides

    @property
    def at(self) -> At:
        """``tile.at[rows, columns]``: a view of part of the tile; no data is moved."""
        return At(self.part)

    def indexed(self, index: Any) -> Any:
        """Return a view of the elements at the indices in a register tile; see `shared_atomics`."""
        raise NotImplementedError

    def part(self, index: Any) -> Any:
        """Return the view that an index selects."""
        return self.indexed(index) if isinstance(index, TileLike) else self._part(index)

    def _part(self: _S, index: Any) -> _S:
        if index is Ellipsis:
            return self
        layout, address = self.layout, self.address
        for axis, part in enumerate(slices(index, layout), 2 - len(layout.sides)):
            if isinstance(part, All):
                continue
            layout, scale = layout.sliced(axis, part.size)
            if not isinstance(part.start, Inert):
                start = int(part.start)
                check_start(self.layout, axis, start, part.size, "tile.at[…]", self.role.numbered)
                check_aligned(self.layout, axis, start, part.size)
                address += start * scale
        return type(self)(address, layout, self.dtype, self.role, self.writable)

    @property
    def T(self: _S) -> _S:
        """The transposed view; no data is moved."""
        return type(self)(self.address, self.layout.T, self.dtype, self.role, self.writable)


class SmemLike:
    """The attributes that a tile in shared memory has in common with its Numba type."""

    operand = "tile"
    layout: Layout
    dtype: np.dtype
    writable: bool


class SmemTile(SharedTile, SmemLike):
    """A shared-memory tile that a pipeline passes to the kernel's body.

    ``tile[...]``, ``tile[:, :]``, ``tile[ds(start, size), :]`` load it, or a part of it, as a
    register tile; ``tile[...] = value`` stores one if the tile is `writable`.
    """

    def _steers(self, *_: Any) -> NoReturn:
        raise CompileError(f"a shared-memory tile {REASON}")

    __bool__ = __int__ = __index__ = __float__ = _steers


def check_start(
    layout: Layout, axis: int, start: int, size: int, what: str, simulated: bool
) -> None:
    """Raise an error for a part of a tile that is not inside it: SimulationError (a hazard) if
    `simulated`, else SpecError."""
    last = layout.shape[axis] - size
    if 0 <= start <= last:
        return
    text = (
        f"{what}: elements {start} … {start + size - 1}{along(layout, axis)} are not in a tile "
        f"{layout.sides} in shared memory"
    )
    if simulated:
        raise failure(
            SimulationError,
            "out-of-bounds",
            f"{text}; the GPU accesses whatever is there",
            f"a start in 0…{last}",
            "accesses memory next to a tile",
        )
    raise SpecError(f"{text}; fix: select elements in 0 … {layout.shape[axis] - 1}")


def check_aligned(layout: Layout, axis: int, start: int, size: int) -> None:
    """Raise SpecError unless a view of a tile starts where the swizzle pattern repeats, or where
    lanes load two elements."""
    unit = 2 if layout.flat else layout.per_panel if axis == layout.inner else 8
    if start % unit:
        raise SpecError(
            f"tile.at[…]: ds({start}, {size}){along(layout, axis)} of a tile {layout.sides}: the "
            f"start must be a multiple of {unit}"
        )


def along(layout: Layout, axis: int) -> str:
    """Return the words that name a dimension of a tile, if it has several."""
    return "" if layout.flat else f" along axis {axis}"


class At:
    """``x.at`` of tiles, arrays, slots and barriers: indexing it gives a view."""

    def __init__(self, view: Callable[[Any], Any]) -> None:
        self._view = view

    def __getitem__(self, index: Any) -> Any:
        return self._view(index)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise SpecError(ASSIGNED)


ELEMENT = (
    "tile[i, j], an element of a tile, is per-lane code, which is supported only in the body of a "
    "body-form "
    "pipeline, in a kernel with CompilerParams(lowering_semantics=LoweringSemantics.Lane); here a "
    "tile is indexed by two of ds(start, size) and ':', or by ..."
)


def bounded(parts: tuple) -> None:
    """Raise SpecError for a slice with an omitted bound, or one counted from the end: the size may
    not be known at compile time."""
    for part in parts:
        if isinstance(part, Span):
            raise SpecError(
                f"'{part}': a slice of an array, or of a tile in shared memory, must have two "
                "compile-time bounds that are not negative; fix: write 0:64, or ds(start, size) "
                "for a run-time start"
            )


def slices(index: Any, layout: Layout) -> tuple:
    """Return the parts of a tile's index, one for each dimension, given an index or its type.
    Raises SpecError for other indices."""
    parts, count = whole_slices(index), len(layout.sides)
    bounded(parts)
    unlimited(parts, "a tile in shared memory")
    if len(parts) != count or not all(isinstance(part, (Ds, All)) for part in parts):
        if any(arith.is_integer(part) for part in parts):
            raise SpecError(ELEMENT)
        how = "two of ds(start, size) and" if count == 2 else "ds(start, size) or"
        raise SpecError(
            f"a tile {layout.sides} is indexed by {how} ':', or by ..., got "
            f"{parts if len(parts) > 1 else parts[0]!r}"
        )
    return parts


@functools.singledispatch
def whole_slices(index: Any) -> tuple:
    """Return the parts of an index, or the types of its parts; ``:`` becomes `All`."""
    parts = index if isinstance(index, tuple) else (index,)
    return tuple(ALL if isinstance(p, slice) and p == slice(None) else p for p in parts)


@functools.singledispatch
def is_whole(index: Any) -> bool:
    """Return whether an index, or its Numba type, is ``...``."""
    return index is Ellipsis


class GmemRef(StoringFacts):
    """An array argument of a kernel, in global memory. ``ref.shape[i]`` is a run-time int32;
    ``ref.strides[i]``, in bytes, is a run-time int64.

    np    the context of the warpgroup that it belongs to
    on    the array on each GPU, in a kernel that runs on several
    gpu   the GPU that the array is on, if it belongs to a peer (`memory.peer_arrays`)
    """

    def __init__(
        self,
        array: np.ndarray,
        index: int,
        np_: Context,
        on: Sequence[np.ndarray] = (),
        gpu: int | None = None,
    ) -> None:
        self.array, self.index, self.unit, self.on, self.gpu = array, index, np_.unit, on, gpu
        self.np = np_
        self.peers: dict[int, GmemRef] = {}
        self.tensor_maps: dict[MapRequest, TensorMap] = {}
        self.shape = tuple(np.int32(n) for n in array.shape)
        self.strides = array.strides
        self.dtype = array.dtype
        self.ndim = array.ndim

    @property
    def arg(self) -> ArrayArg:
        return self.unit.arrays[self.index]

    @property
    def name(self) -> str:
        return self.arg.name if self.gpu is None else f"{self.arg.name} of GPU {self.gpu}"

    def of(self, gpu: int) -> GmemRef:
        """Return the same array argument on another GPU."""
        return self.peers.setdefault(gpu, GmemRef(self.on[gpu], self.index, self.np, self.on, gpu))

    @functools.cached_property
    def flat(self) -> FlatRef:
        """The elements of a contiguous array, in order, as an array of one dimension."""
        return FlatRef(self)

    @property
    def words(self) -> WordsRef:
        """The words of 32 bits of a contiguous array, in per-lane code (`memory.per_lane`)."""
        check_words(self.dtype, getattr(current(), "lane", None) is not None)
        return self._words

    @functools.cached_property
    def _words(self) -> WordsRef:
        return WordsRef(self)


class FlatRef(GmemRef):
    """A contiguous array as one of a single dimension. TMA loads any part of it that begins at a
    multiple of 16 bytes, wherever rows begin."""

    def __init__(self, of: GmemRef) -> None:
        if not of.array.flags.c_contiguous:
            raise SpecError(f"{of.name}.flat: strides {of.strides}; fix: pass a contiguous array")
        super().__init__(of.array.reshape(-1), of.index, of.np)

    @property
    def arg(self) -> ArrayArg:
        return super().arg.flat


def check_words(dtype: np.dtype, by_lane: bool) -> None:
    """Raise SpecError unless an array has words here."""
    if dtype.itemsize not in (2, 4) or not by_lane:
        raise SpecError(
            "array.words[i] is two elements of 16 bits, or one of 32, in per-lane code; fix: "
            "array.flat[i]"
        )


class WordsRef(FlatRef):
    """The words of 32 bits of a contiguous array, as int32. The first one and the last one may be
    partly outside the array; `whole` are the others."""

    def __init__(self, of: GmemRef) -> None:
        super().__init__(of)
        begin = self.array.ctypes.data
        end, first = begin + self.array.nbytes, begin // 4
        memory = (ctypes.c_int32 * ((end + 3) // 4 - first)).from_address(4 * first)
        GmemRef.__init__(self, np.ctypeslib.as_array(memory), of.index, of.np)
        self.whole = range((begin + 3) // 4 - first, end // 4 - first)

    @property
    def arg(self) -> ArrayArg:
        return super().arg.words

    def __setitem__(self, index: Any, value: Any) -> None:
        place = int(getattr(index, "value", index))
        if 0 <= place < self.array.size and place not in self.whole:
            raise failure(
                SimulationError,
                "out-of-bounds",
                f"'{self.name}.words[…] = value': half of the word is outside the array; the GPU "
                "writes all of it",
                f"{self.name}.flat[i] = value for its first or last element",
                f"stores to '{self.name}'",
            )
        super().__setitem__(index, value)  # type: ignore[misc]


def tensor_map(ref: GmemRef, request: MapRequest) -> TensorMap:
    """Return the simulator's tensor map of an array, with dimensions in memory order, as the
    driver's encoder takes them. Raises SpecError for a peer's array that TMA cannot address."""
    if request not in ref.tensor_maps:
        if ref.gpu is not None and ref.index in ref.unit.obstacles:
            raise SpecError(ref.unit.obstacles[ref.index])
        flipped = ref.arg.order != "row"
        ref.tensor_maps[request] = TensorMap(
            ref.array.T if flipped else ref.array,
            request.box,
            request.swizzle,
            ref.name,
            request.fill,
            padded=True,
            flipped=flipped,
        )
        ref.unit.map_slot(request)
    return ref.tensor_maps[request]
