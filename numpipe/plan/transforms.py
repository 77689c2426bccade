"""Transforms of a block in shared memory: the width of its rows, their swizzle, and which side
comes first.

A block is stored in shared memory as *panels*: `n` elements of its contiguous dimension, for all of
its lines (see `layout`). Eight lines of a panel are the unit that swizzling permutes and that wgmma
reads, so a panel is a column of (8, n) tiles::

    # float16
    BlockSpec((64, 128), index_map, transforms=(TilingTransform((8, 32)), SwizzleTransform(64)))

                     n = 32 elements = 64 bytes, the swizzle's span
                   | tile | tile | tile | tile |
      8 lines ->   | tile | tile | tile | tile |     4 panels: 4 TMA copies of boxes (64, 32)
                   | …    |      |      |      |

Without transforms a block has the widest panels that divide it: 128, 64, 32 or (not swizzled) 16
bytes. The widest are the fastest, because narrower panels need more copies and cause more bank
conflicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..diagnostics.argument_checks import is_int
from ..diagnostics.errors import SpecError

__all__ = ["SwizzleTransform", "TilingTransform", "TransposeTransform"]

WIDTHS = (32, 64, 128)


@dataclass(frozen=True)
class TilingTransform:
    """Panels of `tiling[1]` elements along the contiguous dimension, whichever that is; `tiling[0]`
    is 8, the lines of a tile.

    Raises SpecError for other tilings. The panel's bytes must be the swizzle's span, or 16, which
    is not swizzled.

    >>> TilingTransform((8, 64)).tiling
    (8, 64)
    """

    tiling: tuple[int, int]

    def __post_init__(self) -> None:
        tiling = self.tiling
        if (
            not isinstance(tiling, tuple)
            or len(tiling) != 2
            or not all(map(is_int, tiling))
            or tiling[0] != 8
            or tiling[1] < 1
        ):
            raise SpecError(
                "TilingTransform: tiling must be (8, n): 8 lines, the group that is swizzled, of "
                f"n elements along the contiguous dimension, got {tiling!r}"
            )


@dataclass(frozen=True)
class SwizzleTransform:
    """Rows of `swizzle` bytes (32, 64 or 128), whose 16-byte chunks are XORed with the row (PTX
    ISA, "Tensor swizzling modes").

    Raises SpecError for other spans.

    >>> SwizzleTransform(64).swizzle
    64
    """

    swizzle: int

    def __post_init__(self) -> None:
        if not is_int(self.swizzle) or self.swizzle not in WIDTHS:
            raise SpecError(
                f"SwizzleTransform: swizzle must be 32, 64 or 128 bytes, got {self.swizzle!r}"
            )


@dataclass(frozen=True)
class TransposeTransform:
    """A transposed tile, (columns, rows), passed to the body. It is a view, like ``tile.T``:
    nothing is moved.

    Raises SpecError for any permutation but (1, 0), the only one that changes a two-dimensional
    tile.

    >>> TransposeTransform().permutation
    (1, 0)
    """

    permutation: tuple[int, int] = (1, 0)

    def __post_init__(self) -> None:
        if not isinstance(self.permutation, tuple) or self.permutation != (1, 0):
            raise SpecError(
                "TransposeTransform: permutation must be (1, 0), because a tile has two "
                f"dimensions, got {self.permutation!r}"
            )


Transform = TilingTransform | SwizzleTransform | TransposeTransform


def check(transforms: Any, what: str) -> None:
    """Raise SpecError unless `transforms` is a tuple of transforms, each kind at most once."""
    if not isinstance(transforms, tuple) or not all(isinstance(t, Transform) for t in transforms):
        raise SpecError(
            f"{what}: transforms must be a tuple of TilingTransform, SwizzleTransform and "
            f"TransposeTransform, got {transforms!r}"
            + (f": write ({transforms!r},)" if isinstance(transforms, Transform) else "")
        )
    kinds = [type(t) for t in transforms]
    twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
    if twice is not None:
        raise SpecError(
            f"{what}: transforms has {kinds.count(twice)} {twice.__name__}s, at most one is "
            f"meant: {transforms!r}"
        )


def transposes(transforms: tuple[Transform, ...]) -> bool:
    """Return whether the tile is passed to the body transposed."""
    return any(isinstance(t, TransposeTransform) for t in transforms)


def row_width(nbytes: int) -> int:
    """Return the default width in bytes of a panel's row: the widest of 128, 64, 32 and 16 that
    divides a row of `nbytes`."""
    return next(width for width in (128, 64, 32, 16) if nbytes % width == 0)


def panel_bytes(transforms: tuple[Transform, ...], nbytes: int, itemsize: int, what: str) -> int:
    """Return the bytes of a panel's row in a block whose contiguous side has `nbytes`. Raises
    SpecError if the transforms do not fit."""
    widest = row_width(nbytes)
    swizzle = next((t.swizzle for t in transforms if isinstance(t, SwizzleTransform)), None)
    tiling = next((t.tiling[1] for t in transforms if isinstance(t, TilingTransform)), None)
    swizzled = f" SwizzleTransform({widest})" * (widest > 16)
    left_out = (
        f"left out, the transforms are (TilingTransform((8, {widest // itemsize})),{swizzled})"
    )
    tiled = None if tiling is None else tiling * itemsize
    if tiled is not None and tiled not in (16, *WIDTHS):
        raise SpecError(
            f"{what}: TilingTransform((8, {tiling})) has rows of {tiled} B, but rows have 16 B, "
            f"not swizzled, or 32, 64 or 128 B, a swizzle's span; {left_out}"
        )
    if tiled is not None and swizzle is not None and tiled != swizzle:
        raise SpecError(
            f"{what}: TilingTransform((8, {tiling})) has rows of {tiled} B, but "
            f"SwizzleTransform({swizzle}) ones of {swizzle} B: write TilingTransform((8, "
            f"{swizzle // itemsize})), or leave one of them out"
        )
    width = swizzle or tiled or widest
    if nbytes % width:
        raise SpecError(
            f"{what} is {nbytes} B along its contiguous dimension, which "
            f"{f'SwizzleTransform({width})' if swizzle else f'TilingTransform((8, {tiling}))'} "
            f"does not cut into rows of {width} B: use a multiple of {width // itemsize} "
            f"elements; {left_out}"
        )
    return width
