"""Code for each lane: what a body may do under
``CompilerParams(lowering_semantics=LoweringSemantics.Lane)``.

Such a body runs 128 times a step, once for each lane of the warpgroup, like a function of
`numba.cuda`. Each lane has its own values, including the ones that it carries::

    def body(indices, x, o, total):  # the sum of column `lane` of the tiles
        lane = cuda.threadIdx.x % 64
        for row in range(64):
            total = total + x[row, lane]
        return total

=====================================  =============================================================
`lane_index()`                         0 … 127 in the warpgroup
``cuda.threadIdx.x``, ``cuda.laneid``  0 … in the CTA; 0 … 31 in the warp
``tile[i, j]``                         an element; ``tile[i, j] = x`` for tiles that a kernel writes
``atomic_add(tile.at[i, j], x)``       and the other atomics: on an element of int32 or uint32, sums
                                       of float32 too, from any lanes
``array[i, j]``, ``array[i, j] = x``   an element of an array, of 16 bits or more; accesses of
                                       neighboring lanes to neighboring elements are coalesced
``array.words[i]``                     a word of 32 bits of a contiguous array, as int32: an
                                       element, or two of 16 bits. Words are at multiples of 4
                                       bytes, so half of the first or the last one may be outside
                                       the array: it has no defined value, and cannot be stored
``atomic_add(array.at[i, j], x)``      and the other atomics: as a warpgroup adds a number, but once
                                       for each lane
``cuda.shfl_sync`` and its variants    a value of another lane of the warp (PTX ISA, "shfl.sync")
``cuda.syncwarp``                      stores of lanes of the warp before it are visible to loads
                                       after it ("bar.warp.sync")
=====================================  =============================================================

Elements of bfloat16 tiles are float32 numbers, rounded when they are stored. The simulator runs the
lanes as greenlets that meet at shuffles and `syncwarp`. It reports lanes that do not arrive there,
and lanes of a warp that access what another lane has stored without a `syncwarp` in between. There
are no automatic barriers, and operations of the warpgroup (wgmma, ``tile[...]``, stores of tiles)
are rejected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ...arch.dtypes import BFLOAT16
from ...core import arith
from ...core.functions import Facts, facts_of
from ...core.machine import Lane, current, failure
from ...core.op import called, op
from ...diagnostics.errors import SimulationError, SpecError
from ...plan.layout import Layout, swizzled
from ...plan.nested_tuples import Tree, leaves, made, tree_of
from ...plan.params import LoweringSemantics
from ...plan.unit import Unit
from ..tiles.elements import as_element, check_number, is_number
from ..tiles.refs import READ_ONLY, SharedTile, SmemTile
from ..tiles.shared_atomics import check_type
from .scratch import Slots

__all__ = ["lane_index"]

LANES = 128
FULL = 0xFFFFFFFF
OPTION = "CompilerParams(lowering_semantics=LoweringSemantics.Lane)"
NOT_HERE = (
    "is per-lane code, which is supported only in the body of a body-form pipeline, in a kernel "
    "with "
    f"{OPTION}; here the code is the warpgroup's"
)


def lane(what: str) -> Lane:
    """Return the lane that is executing. Raises SpecError in code of the warpgroup."""
    machine: Any = current()
    if getattr(machine, "lane", None) is None:
        raise SpecError(f"{what} {NOT_HERE}")
    return machine  # type: ignore[no-any-return]


def by_lane(unit: Unit) -> bool:
    """Return whether a kernel's bodies are code for each lane."""
    return unit.params.lowering_semantics is LoweringSemantics.Lane


def check_lane_body(where: str, body: Facts, manual: tuple[str, ...]) -> None:
    """Raise SpecError for a body that uses an operation of the warpgroup."""
    does = (
        "holds a pipeline"
        if body.pipelines
        else "issues wgmmas"
        if body.products
        else "is given barriers, which warpgroups wait for and arrive on"
        if manual
        else "goes through blocks of numpipe.turn, which are warpgroups'"
        if body.turns
        else ""
    )
    if does:
        raise SpecError(
            f"{where}: body '{body.name}' {does}, but with {OPTION} it is per-lane code; fix: use "
            "LoweringSemantics.Warpgroup"
        )


def check_lane_carry(where: str, carry: str) -> None:
    """Raise SpecError for a carry that is distributed over the lanes."""
    if "tile" in carry:
        raise SpecError(
            f"{where}: the carry is {carry}, but with {OPTION} each lane has its own carry: "
            "numbers, and tuples of numbers"
        )


# ---- the lane's index
@op
def lane_index() -> Any:
    """Return the index of the lane in its warpgroup, 0 … 127, int32. Available in bodies under
    ``lowering_semantics=Lane``."""
    return np.int32(lane("lane_index()").lane)


@op
def thread_index() -> Any:
    """Return ``cuda.threadIdx.x``, the index of the lane in the CTA."""
    here = lane("cuda.threadIdx")
    return np.int32(128 * here.warpgroup + here.lane)


@op
def lane_in_warp() -> Any:
    """Return ``cuda.laneid``, the index of the lane in its warp."""
    return np.int32(lane("cuda.laneid").lane % 32)


# ---- shuffles
def check_shuffled(operation: str, value: Any) -> None:
    """Raise SpecError for a value, or a Numba type, that a shuffle cannot move."""
    of = arith.kind(value)
    if of is None or of is bool or (isinstance(of, np.dtype) and of.itemsize < 2):
        raise SpecError(
            f"cuda.{operation}: the value must be a number of 16, 32 or 64 bits, got "
            f"{'a bool' if of is bool else 'something else' if of is None else of}"
        )


def check_integers(operation: str, **parameters: Any) -> None:
    """Raise SpecError for masks, lanes and distances, or their Numba types, that are not
    integers."""
    for name, value in parameters.items():
        if not arith.is_integer(value):
            of = arith.kind(value)
            raise SpecError(
                f"cuda.{operation}: {name} must be an integer, got "
                f"{of.__name__ if isinstance(of, type) else of}"
            )


def strong(value: Any) -> Any:
    """Return a value, with Python numbers converted to the types that they have on the GPU."""
    if isinstance(value, (int, float)) and not isinstance(value, (bool, np.generic)):
        return np.int32(value) if isinstance(value, int) else np.float32(value)
    return value


def _shuffle(operation: str, mask: Any, value: Any, **by: Any) -> Any:
    ((_, amount),) = by.items()
    check_shuffled(operation, value)
    check_integers(operation, mask=mask, **by)
    return lane(f"cuda.{operation}").shuffle(
        operation, int(mask) & FULL, strong(value), int(amount)
    )


@op
def shfl_sync(mask: Any, value: Any, src_lane: Any) -> Any:
    """Return the value of lane `src_lane` of the warp; all lanes of `mask` take part. Lanes and
    distances are taken modulo 32."""
    return _shuffle("shfl_sync", mask, value, src_lane=src_lane)


@op
def shfl_up_sync(mask: Any, value: Any, delta: Any) -> Any:
    """Return the value of the lane `delta` below, or the lane's own value if there is none."""
    return _shuffle("shfl_up_sync", mask, value, delta=delta)


@op
def shfl_down_sync(mask: Any, value: Any, delta: Any) -> Any:
    """Return the value of the lane `delta` above, or the lane's own value if there is none."""
    return _shuffle("shfl_down_sync", mask, value, delta=delta)


@op
def shfl_xor_sync(mask: Any, value: Any, lane_mask: Any) -> Any:
    """Return the value of lane ``laneid ^ lane_mask``."""
    return _shuffle("shfl_xor_sync", mask, value, lane_mask=lane_mask)


@op
def syncwarp(mask: Any = FULL) -> None:
    """Synchronize the lanes of `mask`. After it, each sees what the others have stored."""
    check_integers("syncwarp", mask=mask)
    lane("cuda.syncwarp").syncwarp(int(mask) & FULL)


# ---- elements of tiles
def check_element(parts: tuple, given: str, layout: Layout | None = None) -> None:
    """Raise SpecError unless the parts of an index, or their Numba types, select one element of a
    tile."""
    flat = layout is not None and layout.flat
    if len(parts) != (1 if flat else 2) or not all(map(arith.is_integer, parts)):
        element = "tile[i]" if flat else "tile[i, j]"
        raise SpecError(
            f"with {OPTION} a body may access single elements of a tile, {element} with integers, "
            f"and views, tile.at[…] and tile.T, got {given}"
        )


def check_stored(dtype: np.dtype, value: Any) -> None:
    """Raise SpecError unless a value, or a Numba type, can be stored to an element."""
    of = arith.kind(value)
    fraction = of is float or (isinstance(of, np.dtype) and of.kind == "f")
    if not arith.is_integer(value) and not (fraction and dtype.kind not in "iu"):
        raise SpecError(
            f"tile[i, j] = value: the tile is {dtype}, the value {called(value)}"
            + (": int(x) truncates a float" if fraction else ": it must be a number")
        )


@dataclass(eq=False)
class LaneElement:
    """An element of a tile, ``tile.at[i, j]``, that a lane's atomics update."""

    operand = "element of a tile"

    tile: LaneTile
    place: int

    def update(self, name: str, value: Any) -> None:
        check_update(name, self.tile, value)
        number = as_element(name, self.tile.dtype, value)[()]
        lane(name).update(self.place, number, name.removeprefix("atomic_"), name)


def check_update(name: str, tile: Any, value: Any) -> None:
    """Raise SpecError unless an atomic can combine a number, or a Numba type, with an element of a
    tile."""
    check_type(name, tile)
    if not is_number(value):
        raise SpecError(
            f"{name}(tile.at[i, j], value): value must be a number, got {called(value)}"
        )
    check_number(name, "the tile", tile.dtype, value)


class LaneTile(SharedTile):
    """A tile in shared memory in a lane's code: elements and views."""

    def _place(self, index: Any) -> int:
        parts = index if isinstance(index, tuple) else (index,)
        check_element(parts, "..." if index is Ellipsis else repr(index), self.layout)
        row, column = (0, *map(int, parts))[-2:]
        rows, columns = self.layout.shape
        if not (0 <= row < rows and 0 <= column < columns):
            raise failure(
                SimulationError,
                "out-of-bounds",
                f"tile[{row}, {column}] is outside the tile {self.shape}: the GPU does not check, "
                "and accesses whatever is there",
                f"row in 0…{rows - 1}, column in 0…{columns - 1}",
                f"accesses tile[{row}, {column}]",
            )
        return int(
            swizzled(np.asarray(self.address + self.layout.offset(row, column)), self.layout.width)
        )

    def part(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        return (
            LaneElement(self, self._place(index))
            if all(map(arith.is_integer, parts))
            else super().part(index)
        )

    def __getitem__(self, index: Any) -> Any:
        place = self._place(index)
        number = lane("tile[i, j]").load(place, self.dtype, "tile[i, j]")
        return np.float32(number) if self.dtype == BFLOAT16 else number

    def __setitem__(self, index: Any, value: Any) -> None:
        if not self.writable:
            raise SpecError(READ_ONLY)
        place = self._place(index)
        check_stored(self.dtype, value)
        what = "tile[i, j] = value"
        lane(what).store(place, as_element(what, self.dtype, value)[()], what)

    def _no_number(self, *_: Any) -> Any:
        check_element((), "the tile itself")

    __bool__ = __int__ = __index__ = __float__ = _no_number


# ---- a body's call, simulated
class PerLane:
    """The values of a carry, one for each lane of a warpgroup. The warpgroup's code can pass them
    on but cannot compute with them."""

    def __init__(self, values: list) -> None:
        self.values = values

    def _none(self, *_: Any) -> NoReturn:
        raise SpecError(
            f"the lanes carry different values here, {self.values[0]!r} in lane 0, but the "
            "warpgroup's code needs one value; fix: store them in the body, o[i, j] = value, or "
            "compute the same value in all lanes"
        )

    __bool__ = __int__ = __index__ = __float__ = __neg__ = __pos__ = __abs__ = __invert__ = _none
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = (
        _none
    )
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __lt__ = __le__ = __gt__ = __ge__ = _none


def each_lane(body: Callable, indices: Any, tiles: tuple, carry: tuple) -> Any:
    """Call ``body(indices, *tiles, *carry)`` in every lane, and return the lanes' results as one
    carry."""
    lanes = as_lane(tiles)
    packed = facts_of(body).packed  # type: ignore[union-attr]
    arguments = [packed((indices, *lanes, *scatter(carry, number))) for number in range(LANES)]
    return gather(current().each_lane(as_lane(body), arguments))


def as_lane(value: Any) -> Any:
    """Return a value for use in a lane's code: tiles, also those captured by nested functions,
    become `LaneTile`s."""
    if isinstance(value, SmemTile):
        return LaneTile(**vars(value))
    if isinstance(value, Slots):
        return Slots(value.plan, value.address, value.role, LaneTile)
    if isinstance(value, tuple):
        return mapped(as_lane, value)
    if isinstance(value, functools.partial):
        return functools.partial(value.func, *map(as_lane, value.args))
    return value


def mapped(function: Callable[[Any], Any], carry: Any) -> Any:
    """Return nested tuples with each leaf replaced by ``function(leaf)``."""
    return tree_of(carry).build(map(function, leaves(carry)), made)


def scatter(carry: Any, number: int) -> Any:
    """Return lane `number`'s values of a carry."""
    return mapped(lambda part: part.values[number] if isinstance(part, PerLane) else part, carry)


def gather(values: list) -> Any:
    """Return all lanes' carries as one: a plain value where all lanes agree, else a `PerLane`."""
    first = values[0]
    if isinstance(first, tuple) and all(
        isinstance(v, tuple) and len(v) == len(first) for v in values
    ):
        return made(
            Tree((), type(first)),
            [gather([value[n] for value in values]) for n in range(len(first))],
        )
    values = [strong(value) for value in values]
    same = all(
        type(v) is type(values[0])
        and (v is values[0] or (isinstance(v, np.generic) and v.tobytes() == values[0].tobytes()))
        for v in values
    )
    return values[0] if same else PerLane(values)
