"""Select how a copy is done, from shapes and strides alone.

`ways` reduces a copy to its simplest form and cuts it into pieces, each for one kernel of
`ops.copy`:

============  ============================  ========================================================
way           source                        target
============  ============================  ========================================================
"rows"        rows that TMA can address     rows that TMA can store
"transposed"  the same, but contiguous      rows that TMA can store
              along another dimension than
              the target
"sectors"     large matrices, contiguous    any, contiguous along one dimension
              along another dimension
"columns"     large matrices of few rows    rows without gaps
"turned"      elements that are closer      any, contiguous along one dimension
              along another dimension
"line"        a short line                  a line
"lanes"       any strides, elements of 16   rows packed one after another, the first at a multiple
              or 32 bits                    of 16 bytes
"blocks"      any                           any
============  ============================  ========================================================

To simplify a copy, dimensions of size 1 are dropped, the others are sorted by the target's strides,
largest first, dimensions that are contiguous in both arrays are merged, and elements that are
adjacent in both are combined into larger ones::

    float16 (8, 512, 64), strides (65536, 128, 2) bytes  ->  131072 elements of 32 bits
    float16 (8, 512, 33), strides (65536, 128, 2) bytes  ->  (4096, 33) elements of 16 bits,
                                                             in rows of 66 bytes
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from ..arch.dimensions import Ints, round_up

LINE = 16
"""TMA addresses and strides are multiples of this many bytes"""
SMALL = 1 << 19
"""elements below which lines and blocks of transposes are cut small, for more CTAs"""
ROWS = 128
"""rows from which "sectors" transposes large matrices"""
MATRICES = 1 << 16
"""matrices from which "sectors" is not used: the second dimension of its grid would be too large"""
SUPER = 128
"""least bytes of a super-row: as many as a warpgroup of "lanes" stores side by side"""
_NUMBERS = 1 << 31


class Part(NamedTuple):
    """A view of an array: offset of its first element in bytes, shape, and strides in bytes."""

    offset: int
    shape: Ints
    strides: Ints


class Piece(NamedTuple):
    """What one launch copies.

    way      one of the module's table
    size     bytes of an element as it is moved
    source   what the kernel reads
    target   what the kernel writes; for "lanes" super-rows, each of as many rows as make it start
             at a multiple of 16 bytes
    pitch    for "lanes": elements from row to row of the target
    """

    way: str
    size: int
    source: Part
    target: Part
    pitch: int = 0

    def moved(self, source: int, target: int) -> Piece:
        """Return the same piece, moved by these numbers of bytes."""
        return self._replace(
            source=self.source._replace(offset=self.source.offset + source),
            target=self.target._replace(offset=self.target.offset + target),
        )


class Dim(NamedTuple):
    """A dimension: size in elements, and the byte strides of source and target."""

    size: int
    source: int
    target: int


@functools.lru_cache(maxsize=4096)
def ways(
    shape: Ints,
    source: Ints,
    target: Ints,
    size: int,
    places: tuple[int, int] = (0, 0),
    padded: bool = False,
) -> list[Piece]:
    """Return the pieces of a copy.

    shape           shape of both arrays
    source, target  byte strides; no two elements of the target may overlap
    size            bytes of an element
    places          addresses of source and target modulo 16
    padded          whether bytes between the target's rows may be overwritten

    >>> [piece.way for piece in ways((64, 33), (128, 2), (66, 2), 2)]
    ['lanes']
    """
    if 0 in shape:
        return []
    dims, moved = _simplest(
        [Dim(*dim) for dim in zip(shape, source, target, strict=True) if dim[0] != 1], size
    )
    ends = places[0] + moved[0], places[1] + moved[1]
    dims, size = _widened(dims, size, ends)
    return [piece.moved(*moved) for piece in _pieces(dims, size, ends, padded)]


def _simplest(dims: list[Dim], size: int) -> tuple[list[Dim], tuple[int, int]]:
    """Return an equivalent copy with the fewest dimensions, and the byte offsets of its first
    elements in both arrays."""
    source = target = 0
    for number, dim in enumerate(dims):
        if dim.target < 0:  # walk it backwards
            source += (dim.size - 1) * dim.source
            target += (dim.size - 1) * dim.target
            dims[number] = Dim(dim.size, -dim.source, -dim.target)
    merged: list[Dim] = []
    for dim in sorted(dims, key=lambda dim: -dim.target):
        if merged and merged[-1][1:] == (dim.source * dim.size, dim.target * dim.size):
            merged[-1] = Dim(merged[-1].size * dim.size, dim.source, dim.target)
        else:
            merged.append(dim)
    return merged or [Dim(1, size, size)], (source, target)


def _widened(dims: list[Dim], size: int, places: tuple[int, int]) -> tuple[list[Dim], int]:
    """Return an equivalent copy with the largest elements of up to 4 bytes, and their size."""
    *outer, last = dims
    if (last.source, last.target) != (size, size):
        return (dims, size) if size <= 4 else ([*dims, Dim(size // 4, 4, 4)], 4)
    wide = math.gcd(4, last.size * size, *places, *(stride for dim in outer for stride in dim[1:]))
    return [*outer, Dim(last.size * size // wide, wide, wide)], wide


def _pieces(dims: list[Dim], size: int, places: tuple[int, int], padded: bool) -> list[Piece]:
    *outer, last = dims
    if last.target != size:
        return _blocks(dims, size)
    if not outer:
        return _flat(last, size, places)
    aligned = [place % LINE == 0 for place in places]
    by_tma = aligned[0] and len(dims) <= 4
    stored = (
        aligned[1]
        and all(_line(dim.target) for dim in outer)
        and (padded or last.size * size % LINE == 0)
    )
    if by_tma and stored and last.source == size and all(_line(dim.source) for dim in outer):
        source, target = _views(dims, 4)
        # TMA fills the target's padding with zeros, because the source ends before it
        whole = round_up(last.size * size, LINE) // size
        return [Piece("rows", size, source, target._replace(shape=(*target.shape[:3], whole)))]
    turned = min(outer, key=lambda dim: abs(dim.source))
    closer = 0 < abs(turned.source) < abs(last.source) and len(dims) <= 4
    if size > 1 and closer:
        rest = [dim for dim in outer if dim is not turned]
        source, target = _views([*rest, last, turned], 4)[0], _views([*rest, turned, last], 4)[1]
        large = math.prod(dim.size for dim in dims) >= SMALL and turned.source == size
        lines = all(_line(dim.source) for dim in (*rest, last))
        stored &= last.size * size % LINE == 0
        # at least half of the columns of blocks of 64 are inside the matrix
        used = 2 * turned.size >= round_up(turned.size, 64)
        if large and by_tma and lines and used and stored:
            return [Piece("transposed", size, source, target)]
        reach = max(sum((dim.size - 1) * dim[side] for dim in dims) for side in (1, 2))
        large &= (
            len(rest) < 2
            and all(dim.size < MATRICES for dim in rest)
            and all(dim.source > 0 for dim in dims)
            # "columns" and "sectors" count elements; launches of "turned" refuse other strides
            and math.gcd(*places, *(stride for dim in dims for stride in dim[1:])) % size == 0
            and reach < (_NUMBERS - 1) * size  # the number of elements is an int32, too
        )
        few = not rest and last.size < ROWS and turned.target == last.size * size
        way = "columns" if few else "sectors" if last.size >= ROWS else "turned"
        return [Piece(way if large else "turned", size, source, target)]
    neighbors = itertools.pairwise(outer if padded else dims)
    dense = all(one.target == other.size * other.target for one, other in neighbors)
    if size > 1 and aligned[1] and dense:
        return _lanes(outer, last, size)
    return _blocks(dims, size)


def _line(stride: int) -> bool:
    return 0 < stride < 1 << 40 and stride % LINE == 0


def _views(dims: Sequence[Dim], rank: int) -> tuple[Part, Part]:
    """Return the views of source and target, padded in front with dimensions of size 1 to
    `rank`."""
    whole = [Dim(1, LINE, LINE)] * (rank - len(dims)) + list(dims)
    shape, source, target = zip(*whole, strict=True)
    return Part(0, shape, source), Part(0, shape, target)


def _flat(line: Dim, size: int, places: tuple[int, int]) -> list[Piece]:
    """Return the pieces of a one-dimensional copy, which is cut into rows and a remainder."""
    whole = line.size * size
    if line.source == size and line.size < SMALL:
        return [Piece("line", size, *_views([line], 2))]
    row = min(whole & -whole, 8192)  # bytes, the largest power of two that divides the line's
    if row < 256:
        row = 4096
    count, rest = divmod(line.size, row // size)
    cut = Dim(row // size, line.source, size)
    if count < 2:
        return _blocks([line], size)
    found = _pieces([Dim(count, line.source * cut.size, row), cut], size, places, False)
    if rest:
        found += [
            piece.moved(count * cut.size * line.source, count * row)
            for piece in _flat(line._replace(size=rest), size, places)
        ]
    return found


def _lanes(outer: list[Dim], last: Dim, size: int) -> list[Piece]:
    """Return the pieces of a copy whose elements lanes look up one by one."""
    pitch = outer[-1].target
    count = math.prod(dim.size for dim in outer)
    if len(outer) > 4 or count >= _NUMBERS:
        return _blocks([*outer, last], size)
    group = LINE // math.gcd(pitch, LINE)
    while group * pitch < SUPER and count >= 128 * group:
        group *= 2
    found = []
    if count >= group:
        source, _ = _views([*outer, last], 5)
        rows = Part(0, (count // group, group * pitch // size), (group * pitch, size))
        found.append(Piece("lanes", size, source, rows, pitch // size))
    row, inner = count - count % group, outer[-1]
    while row < count:  # the rows that fill no super-row, as many at a time as share a dimension
        more = inner.size - row % inner.size
        at, left = 0, row
        for dim in reversed(outer):
            left, index = divmod(left, dim.size)
            at += index * dim.source
        found += [
            piece.moved(at, row * pitch)
            for piece in _blocks([inner._replace(size=more), last], size)
        ]
        row += more
    return found


def _blocks(dims: list[Dim], size: int) -> list[Piece]:
    """Return the pieces of a copy by blocks of the last dimension and of the one along which the
    source's elements are closest.

    There is usually one piece. Elements that are cut into 32-bit words have one more dimension than
    the array, which may need a few.
    """
    *outer, last = dims
    if len(outer) > 4:
        least = min(outer, key=lambda dim: dim.size)
        outer.remove(least)
        pieces = _blocks([*outer, last], size)
        return [
            piece.moved(i * least.source, i * least.target)
            for i in range(least.size)
            for piece in pieces
        ]
    outer.sort(key=lambda dim: -abs(dim.source))
    source, target = _views([*outer, last], 5)
    return [Piece("blocks", size, source, target)]
