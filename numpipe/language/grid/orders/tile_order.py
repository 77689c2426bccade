"""Tile orders as objects, with their host tables. They are frozen, so that a Static may hold
one."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ....arch.dimensions import Ints
from ....core.op import Helper
from ....diagnostics.argument_checks import (
    POSITIVE,
    SHAPE,
    each,
    require,
    told,
    whole,
    word,
)
from ....diagnostics.errors import SpecError
from . import tile_numbers


@dataclass(frozen=True)
class Order:
    """An order of the tiles of a grid. Use one of `Row`, `Column`, `Grouped`, `Snake` and
    `Table`.

    A grid is (rows, columns), in tiles, or (planes, rows, columns). Planes come one after the
    other, and each is walked in the order.

    >>> from numpipe.orders import Grouped
    >>> Grouped(2).table((4, 3))[:4].tolist()
    [[0, 0], [1, 0], [0, 1], [1, 1]]
    """

    name: ClassVar[str]
    begin: ClassVar[Helper]
    place: ClassVar[Helper]

    @property
    def parameters(self) -> Ints:
        """The last arguments of `begin` and `place`."""
        return ()

    def __str__(self) -> str:
        return f"{self.name}({self.parameters[0]})" if self.parameters else self.name

    def table(self, shape: Sequence[int]) -> np.ndarray:
        """Return the indices of all tiles of a grid in this order: a read-only int32 array with one
        row per tile. Any kernel takes it as a host table.

        >>> from numpipe.orders import Column
        >>> Column().table((2, 2)).tolist()
        [[0, 0], [1, 0], [0, 1], [1, 1]]
        """
        return _table(self, checked(shape))

    def panels(self, shape: Sequence[int], ctas: int) -> list[tuple[int, int]]:
        """Return, for each wave of `ctas` tiles that run at the same time, how many panels of A and
        of B the wave reads, as pairs (rows, columns)."""
        require(str(self), locals(), ctas=POSITIVE)
        every = self.table(shape).tolist()
        return [
            (
                len({(*plane, m) for *plane, m, _ in wave}),
                len({(*plane, n) for *plane, _, n in wave}),
            )
            for wave in (every[at : at + ctas] for at in range(0, len(every), ctas))
        ]

    def bytes(
        self,
        shape: Sequence[int],
        *,
        tile: tuple[int, int],
        k: int,
        itemsize: int = 2,
        ctas: int = 132,
    ) -> int:
        """Return the bytes of A and B that are loaded from memory into L2 for C = A B, assuming
        that the tiles of a wave share their panels and that no wave reuses panels of an earlier
        one.

        shape     the grid of C's tiles
        tile      (rows, columns) of a tile of C, elements: a panel of A is rows x k, one of B
                  columns x k
        k         depth, elements
        itemsize  bytes of an element of A and B
        ctas      tiles that run at the same time; all CTAs are assumed to run at the same speed

        Orders that keep consecutive tiles close together in the grid load fewer bytes:

        >>> from numpipe.orders import Grouped, Row
        >>> [
        ...     order.bytes((64, 64), tile=(128, 256), k=16384) >> 20
        ...     for order in (Row(), Grouped(16))
        ... ]
        [16280, 4432]
        """
        require(
            f"{self}.bytes",
            locals(),
            tile=each(POSITIVE, 2),
            k=POSITIVE,
            itemsize=POSITIVE,
        )
        panels = self.panels(shape, ctas)
        return sum(a * tile[0] + b * tile[1] for a, b in panels) * k * itemsize


@dataclass(frozen=True)
class Row(Order):
    """Row-major order: the last index changes fastest."""

    name = "row"
    begin, place = tile_numbers.begin_row, tile_numbers.place_row


@dataclass(frozen=True)
class Column(Order):
    """Column-major order: the first index changes fastest."""

    name = "column"
    begin, place = tile_numbers.begin_column, tile_numbers.place_column


@dataclass(frozen=True)
class Grouped(Order):
    """Strips of `group` rows of tiles, each walked column by column. Strips of 1000 to 2000 rows of
    C work well."""

    group: int = 16

    name = "grouped"
    begin, place = tile_numbers.begin_strips, tile_numbers.place_grouped

    def __post_init__(self) -> None:
        require(type(self).__name__, vars(self), group=whole(1, 2**31 - 1))

    @property
    def parameters(self) -> Ints:
        return (int(self.group),)


@dataclass(frozen=True)
class Snake(Grouped):
    """`Grouped`, but every second strip is walked backwards, so that each strip begins where the
    previous one ended."""

    name = "snake"
    begin, place = tile_numbers.begin_strips, tile_numbers.place_snake


@dataclass(frozen=True, eq=False)
class Table(Order):
    """A host table as an order on the host. A kernel takes the array itself as an argument, and as
    ``order=table``.

    array  2-D, int32, a row of non-negative indices for each tile

    Raises SpecError for any other array; `check` also compares it with a grid.

    >>> import numpy as np
    >>> table = Table(np.array([[0, 0], [1, 1], [0, 1], [1, 0]], np.int32))
    >>> table.check((2, 2)).panels((2, 2), ctas=2)
    [(2, 2), (2, 2)]
    """

    array: np.ndarray

    name = "table"

    def __post_init__(self) -> None:
        if (wrong := misfit(self.array)) is not None:
            raise SpecError(f"Table: {wrong}")

    def check(self, shape: Sequence[int]) -> Table:
        """Return the table itself. Raises SpecError unless it visits each tile of a grid exactly
        once."""
        if (wrong := misfit(self.array, checked(shape))) is not None:
            raise SpecError(f"Table: {wrong}")
        return self

    def table(self, shape: Sequence[int]) -> np.ndarray:
        return self.check(shape).array


NAMES: dict[str, type[Order]] = {kind.name: kind for kind in (Row, Column, Grouped, Snake)}
"""Orders that a kernel may give by name."""


def named(name: str, group: int = 16) -> Order:
    """Return the order that ``tiles(order=name, group=group)`` uses. Raises SpecError for an
    unknown name.

    >>> named("snake", 8)
    Snake(group=8)
    """
    require("an order of tiles", locals(), name=word(*NAMES))
    kind = NAMES[name]
    return kind(group) if issubclass(kind, Grouped) else kind()


def misfit(array: Any, shape: Sequence[int] | None = None, columns: int = 0) -> str | None:
    """Return what is wrong with a host table, or None. It is checked against the grid `shape`, or
    for at least `columns` indices per row."""
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype != np.int32:
        found = (
            f"{array.ndim}-D {array.dtype}"
            if isinstance(array, np.ndarray)
            else type(array).__name__
        )
        return f"a host table is a 2-D int32 array, got {found}"
    wanted = columns if shape is None else len(shape)
    if array.shape[1] < wanted:
        return (
            f"a host table of {wanted} indices a tile has as many columns, got an array of shape "
            f"{array.shape}"
        )
    array = array[:, :wanted] if wanted else array
    below = np.argwhere(array < 0)
    if len(below):
        return (
            f"row {below[0][0]} is {tuple(array[below[0][0]].tolist())}: indices of tiles are not "
            "negative"
        )
    if shape is None:
        return None
    if len(array) != math.prod(shape):
        return (
            f"a grid of {spelled(shape)} has {math.prod(shape)} tiles, the table has {len(array)} "
            "rows"
        )
    outside = np.argwhere(array >= np.asarray(shape))
    if len(outside):
        return (
            f"row {outside[0][0]} is {tuple(array[outside[0][0]].tolist())}, outside the grid of "
            f"{spelled(shape)} tiles"
        )
    _, first, times = np.unique(array, axis=0, return_index=True, return_counts=True)
    if len(first) < len(array):
        twice = tuple(array[first[times > 1].min()].tolist())
        return (
            f"tile {twice} comes {times[times > 1].max()} times, so {len(array) - len(first)} "
            "tiles of the grid never come"
        )
    return None


def checked(shape: Sequence[int]) -> Ints:
    """Return a validated grid shape. Raises SpecError for any other value."""
    if not SHAPE.holds(shape) or len(shape) not in (2, 3):
        raise SpecError(
            "the shape of a grid of tiles must be (rows, columns) or (planes, rows, columns), "
            f"got {told(shape)}"
        )
    return tuple(int(n) for n in shape)


def spelled(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


@functools.lru_cache(maxsize=32)
def _table(order: Order, shape: Ints) -> np.ndarray:
    *planes, rows, columns = shape
    begun = order.begin(np.int32(rows), np.int32(columns), *order.parameters)
    plane = [order.place(np.int32(t), begun, *order.parameters) for t in range(rows * columns)]
    found = np.array([(*at, *place) for at in np.ndindex(*planes) for place in plane], np.int32)
    found = found.reshape(-1, len(shape))
    found.flags.writeable = False
    return found
