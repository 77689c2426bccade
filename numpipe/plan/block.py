"""Blocks: one- or two-dimensional tiles of an array of any rank, as TMA copies move them.

A `BlockSpec` has a side for each dimension of its array. Squeezed dimensions (None) have one
element in a block and are left out of the tile. The two other dimensions are the tile's rows and
columns, which are laid out in shared memory as described in `layout`. If only one dimension is
left, the tile is a vector of contiguous elements::

    array (B, M, K), row-major, block_shape (None, 128, 64)

        index map (b, m, k)  ->  starts (b, 128 m, 64 k)  ->  a TMA box (1, 128, 64)  ->  tile (128,
                             64)

Only the contiguous dimension is cut further, into panels of at most 128 bytes, with one copy each.
TMA lists dimensions in memory order. This is the array's own order, or its reverse if the array is
column-major (its first dimension is contiguous).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..arch.dimensions import Ints
from ..arch.dtypes import BY_DTYPE
from ..diagnostics.errors import SpecError
from .cluster_ranks import Dims, Sharing
from .copy_plans import CopyPlan
from .copy_plans import cut as copies_of
from .layout import Layout, block_layout, flat_layout
from .specs import Element, Side, spelled
from .transforms import Transform, transposes


@dataclass(frozen=True)
class Block:
    """The properties of an array's blocks that their copies need.

    layout    of the tile in shared memory
    axes      the array's dimensions that are the tile's rows and columns, or its only one
    scales    for each dimension of the array, the number of elements per block index; 1 where the
              map returns elements
    reverse   whether memory lists the dimensions in reverse order (column-major arrays)
    elements  whether the index map chooses the element at which the contiguous dimension starts,
              which may be misaligned
    fill      the value that elements outside the array read as
    policy    eviction policy of its copies' lines in L2 (`intrinsics.cp_async_bulk`), or None
    along     dimensions of the cluster along which CTAs load the same block, each a share of it:
              its n-th part in `shares`, cut across the dimension that is not contiguous
              (`cluster_ranks`)
    mode      how to treat a block that lies where the array has no element (`BlockSpec.mode`)
    """

    layout: Layout
    axes: Ints
    scales: Ints
    reverse: bool
    elements: bool
    fill: Literal["zeros", "nan"]
    policy: str | None = None
    along: Ints = ()
    shares: int = 1
    mode: Literal["zero", "clip"] | None = None

    @property
    def rank(self) -> int:
        return len(self.scales)

    @functools.cached_property
    def contiguous(self) -> int:
        """The array's contiguous dimension."""
        return self.axes[-1] if self.layout.flat else self.axes[self.layout.inner]

    @property
    def across(self) -> int:
        """The array's other dimension that the tile has."""
        return self.axes[1 - self.layout.inner]

    def sharing(self, dims: Dims) -> Sharing:
        """Return how the CTAs of a cluster with these dimensions share the block."""
        return Sharing(dims, self.along, self.across, self.share_rows, self.layout.width)

    @property
    def share_rows(self) -> int:
        """The number of contiguous lines of the tile that one CTA loads: all, or a share if CTAs of
        a cluster load the block together."""
        return self.layout.shape[1 - self.layout.inner] // self.shares

    @functools.cached_property
    def sides(self) -> Ints:
        """The elements of a block along each dimension of the array."""
        of = dict(zip(self.axes, self.layout.sides, strict=True))
        return tuple(of.get(axis, 1) for axis in range(self.rank))

    def copies(self, arg: int, offset: int, written: bool) -> CopyPlan:
        """Return the copies of a block, or of a CTA's share of it, between `offset` of its slot and
        array argument `arg`."""
        return copies_of(
            arg,
            self.rank,
            self.reverse,
            self.axes,
            self.layout,
            self.share_rows,
            offset,
            fill=self.fill,
            written=written,
            policy=self.policy,
        )

    def check_start(self, start: int, what: str) -> None:
        """Raise SpecError for a start along the contiguous dimension (in elements) that TMA does
        not support."""
        unit = 16 // self.layout.itemsize
        if start % unit:
            raise SpecError(
                f"{what} returned element {start} for dimension {self.contiguous}, which is "
                f"contiguous: there a block starts at a multiple of 16 B, {unit} elements; an "
                "H200 stops with an illegal instruction otherwise"
            )


def wrong_indices(what: str, rank: int, got: Any) -> SpecError:
    """Return the error for an index map, `what`, whose result `got` is not a tuple of `rank`
    integers."""
    return SpecError(f"{what} must return a tuple of {rank} integer block indices, got {got}")


def cut(
    shape: tuple[Side, ...],
    dtype: np.dtype,
    ndim: int,
    order: str,
    fill: Literal["zeros", "nan"],
    what: str,
    transforms: tuple[Transform, ...] = (),
    policy: str | None = None,
    mode: Literal["zero", "clip"] | None = None,
) -> Block:
    """Return the blocks of an array of this type, rank and major order. Raises SpecError if TMA or
    wgmma does not support them."""
    if ndim != len(shape):
        raise SpecError(
            f"{what}: block_shape {spelled(shape)} has {len(shape)} dimensions, the array has "
            f"{ndim}"
        )
    axes = tuple(axis for axis, side in enumerate(shape) if side is not None)
    sides = tuple(side.size if isinstance(side, Element) else int(side or 1) for side in shape)
    left = tuple(sides[axis] for axis in axes)
    contiguous = ndim - 1 if order == "row" else 0
    if contiguous not in axes:
        fix = (
            "pass a copy of the array whose last dimension is one of the tile's"
            if order == "row"
            else "the array is column-major; pass np.ascontiguousarray of it"
        )
        raise SpecError(
            f"{what}: block_shape {spelled(shape)} squeezes dimension {contiguous}, which is "
            f"contiguous, and TMA moves at least 16 B of that: {fix}"
        )
    if fill == "nan" and not BY_DTYPE[dtype].fills_nan:
        raise SpecError(
            f"{what}: oob_fill='nan', but {dtype} has no NaN that TMA knows: use 'zeros'"
        )
    layout = (
        flat_layout(left[0], dtype, f"{what}: block {left}", transforms)
        if len(left) == 1
        else block_layout(
            (left[0], left[1]), axes.index(contiguous), dtype, f"{what}: block {left}", transforms
        )
    )
    axes = axes[::-1] if transposes(transforms) else axes
    scales = tuple(int(side) if isinstance(side, (int, np.integer)) else 1 for side in shape)
    return Block(
        layout,
        axes,
        scales,
        order != "row",
        isinstance(shape[contiguous], Element),
        fill,
        policy,
        mode=mode,
    )
