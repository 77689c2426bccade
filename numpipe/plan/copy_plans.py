"""Plans of copies: the TMA instructions that move a tile between an array and shared memory.

A TMA instruction moves one box of the array, of at most 256 elements per side, to or from
contiguous shared memory (PTX ISA, "Tensors: Box"). A tile takes one instruction for each of its
panels (`layout`), and more if it has more rows than a box may have.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..arch.dimensions import Ints
from ..diagnostics.errors import SpecError
from .layout import Layout

MAX_SIDE = 256
"""Maximum elements of a TMA box along a dimension."""
Fill = Literal["zeros", "nan"]


@dataclass(frozen=True)
class MapRequest:
    """A CUtensorMap that the kernel needs: argument number, box (outermost dimension first) and
    swizzle in bytes.

    `written` says whether it is used by a store.
    """

    arg: int
    box: Ints
    swizzle: int
    fill: Fill = "zeros"
    written: bool = False


@dataclass(frozen=True)
class CopyPlan:
    """The TMA copies of a tile: their tensor map, and where each of them starts.

    places     (byte offset in the tile, rows, columns), from the tile's start; for a
               one-dimensional tile (byte offset, elements)
    axes       the array's dimensions that are the tile's rows and columns, or its only one
    reverse    whether memory lists the dimensions in reverse order (column-major arrays)
    policy     what L2 does with the lines (`intrinsics.cp_async_bulk`), or None
    reduction  how a store combines an element with the array's element; "": it replaces it
    """

    request: MapRequest
    places: tuple[Ints, ...]
    axes: Ints
    reverse: bool = False
    policy: str | None = None
    reduction: str = ""

    def boxes(self, start: Sequence, address: Any, share: Any) -> Iterator[tuple[tuple, Any]]:
        """Yield (coordinates in memory order, address) of each copy, as ints or as LLVM values with
        Python's operators.

        `start` is the position in the array, by dimension, of the tile or of its share that is
        copied. In shared memory the tile is at `address`, and the share `share` bytes after it.
        """
        for offset, *moved in self.places:
            at = list(start)
            for axis, far in zip(self.axes, moved, strict=True):
                at[axis] = at[axis] + far if far else at[axis]
            yield tuple(reversed(at) if self.reverse else at), address + offset + share


def cut(
    arg: int,
    rank: int,
    reverse: bool,
    axes: Ints,
    layout: Layout,
    lines: int | None = None,
    offset: int = 0,
    *,
    fill: Fill = "zeros",
    written: bool = False,
    policy: str | None = None,
    reduction: str = "",
) -> CopyPlan:
    """Return the copies of a tile of this layout: each moves a panel, or a part of one that has
    more lines than a box may have.

    `lines` of each panel are copied, by default all; the tile begins at byte `offset`. A
    one-dimensional tile is copied in consecutive boxes.
    """
    places: list[Ints] = []
    if layout.flat:
        # a box begins at a multiple of 128 bytes in shared memory
        side = _side(layout.shape[1], math.gcd(layout.nbytes, 128) // layout.itemsize)
        sides: Ints = (side,)
        for start in range(0, layout.shape[1], side):
            places.append((offset + start * layout.itemsize, start))
    else:
        inner = layout.inner
        lines = layout.shape[1 - inner] if lines is None else lines
        side = lines if lines <= MAX_SIDE else _side(lines, 8)
        sides = (side, layout.per_panel) if inner else (layout.per_panel, side)
        for panel in range(layout.panels):
            for line in range(0, lines, side):
                across = panel * layout.per_panel
                at = (line, across) if inner else (across, line)
                places.append((offset + panel * layout.panel_stride + line * layout.width, *at))
    swizzle = 0 if layout.flat else layout.swizzle
    request = _request(arg, rank, reverse, axes, sides, swizzle, fill, written)
    return CopyPlan(request, tuple(places), axes, reverse, policy, reduction)


def cut_prefetch(
    name: str,
    arg: int,
    rank: int,
    reverse: bool,
    axes: Ints,
    sizes: Ints,
    itemsize: int,
) -> CopyPlan:
    """Return the copies of a prefetch, which has no tile: as few boxes as possible."""
    contiguous = 0 if reverse else rank - 1
    if contiguous not in axes:
        raise SpecError(
            f"async_prefetch: dimension {contiguous} of '{name}' is contiguous: a ds(start, size) "
            "has to be there"
        )
    inner, unit = axes.index(contiguous), 16 // itemsize
    if sizes[inner] % unit:
        raise SpecError(
            f"async_prefetch: {name}.at[…] has {sizes[inner]} elements along dimension "
            f"{axes[inner]}, which is contiguous: the TMA moves multiples of 16 B, {unit} elements"
        )
    sides = [_side(size, unit if number == inner else 1) for number, size in enumerate(sizes)]
    places = [
        (0, *at)
        for at in itertools.product(
            *(range(0, size, side) for size, side in zip(sizes, sides, strict=True))
        )
    ]
    return CopyPlan(
        _request(arg, rank, reverse, axes, sides, 0, "zeros", False), tuple(places), axes, reverse
    )


def _request(
    arg: int,
    rank: int,
    reverse: bool,
    axes: Ints,
    sides: Sequence[int],
    swizzle: int,
    fill: Fill,
    written: bool,
) -> MapRequest:
    """Return the tensor map of boxes with these sides along one or two of the array's
    dimensions."""
    box = [1] * rank
    for axis, side in zip(axes, sides, strict=True):
        box[axis] = side
    return MapRequest(arg, tuple(reversed(box) if reverse else box), swizzle, fill, written)


def _side(size: int, unit: int) -> int:
    """Return the largest side of a box that divides `size`."""
    return next(
        side for side in range(min(size, MAX_SIDE) // unit * unit, 0, -unit) if size % side == 0
    )
