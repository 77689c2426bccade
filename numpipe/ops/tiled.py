"""Launches of kernels on tiles of arrays of any dimensions and strides.

Elementwise kernels read arrays without gaps as one long row, so that all tiles but the last are
whole, and other arrays as matrices with contiguous rows. Such a kernel is made by
`Tile.kernel`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..arch.dimensions import round_up
from ..core.arith import cdiv
from ..core.functions import Function, function
from ..kernels.decorator import kernel
from ..kernels.kernel import Kernel
from ..language.tiles.refs import ds
from ..launch.array_info import ArrayInfo, dense_strides
from ..launch.windows import merged, strided
from ..plan.context import program_id
from ..plan.params import CompilerParams
from .op_outputs import Arrays, Place, allocated
from .operands import move

TYPES = ("float16", "bfloat16", "float32")
NBYTES = 4096
"""bytes of a tile of the first input: small tiles, of which an SM has several at a time, suit small
arrays and are as fast for large ones (measured on an H200)"""


def tile_for(columns: int, elements: int) -> tuple[int, int]:
    """Return the (height, width) of tiles of up to about `elements` elements for rows of `columns`.
    Tiles of 64 rows would be accumulators, whose rows are loaded in short pieces.

    >>> tile_for(1 << 20, 4096), tile_for(5000, 4096), tile_for(1000, 4096), tile_for(9, 4096)
    ((1, 4096), (1, 2560), (4, 1024), (32, 16))
    """
    if columns > elements // 4:
        return 1, round_up(cdiv(columns, cdiv(columns, elements)), 512)
    width = round_up(columns, 64) if columns > 32 else 16 if columns <= 16 else 32
    return next(height for height in (32, 16, 8, 4) if height * width <= elements), width


@dataclass(frozen=True)
class Tile:
    """The tile of each CTA of a kernel.

    height  rows; 0: the kernel reads matrices of one row
    width   columns
    exact   whether division and functions such as np.exp are not approximated
    """

    height: int
    width: int
    exact: bool = False

    def kernel(self) -> Callable[[Callable], Kernel]:
        """Return a decorator that makes a kernel with a CTA for each tile of its first parameter,
        a matrix x."""

        def grid(x: Any) -> tuple[int]:
            return (cdiv(x.shape[0], self.height or 1) * cdiv(x.shape[1], self.width),)

        return kernel(  # type: ignore[no-any-return]
            grid=grid,
            warp_specialized=False,
            static_dims=(-1,) if self.height else (),
            compiler_params=CompilerParams(ctas_per_sm=8, approx_math=not self.exact),
        )

    @property
    def at(self) -> Function:
        """The kernel function ``at(x)`` that returns the rows and columns of a CTA's tile."""
        height, width = self.height, self.width

        @function
        def at(x):  # type: ignore[no-untyped-def]
            place = program_id(0)
            if height == 0:
                return ds(0, 1), ds(place * width, width)
            across = cdiv(x.shape[1], width)
            return ds(place // across * height, height), ds(place % across * width, width)

        return at


def reshaped(info: ArrayInfo, *shape: int) -> ArrayInfo:
    """Return an array without gaps in another shape."""
    return strided(info, shape, dense_strides(shape, info.dtype.itemsize))


def dense(info: ArrayInfo) -> bool:
    """Return whether an array has no gaps and is in row-major order."""
    strides = dense_strides(info.shape, info.dtype.itemsize)
    return 0 in info.shape or all(
        size == 1 or mine == step
        for size, mine, step in zip(info.shape, info.strides, strides, strict=True)
    )


def rows_of(info: ArrayInfo) -> Any:
    """Return an array as a matrix with contiguous rows; None if it has none, or if they are not
    evenly spaced."""
    view, size = merged(info, 1) if info.shape else reshaped(info, 1, 1), info.dtype.itemsize
    adjacent = view and (view.strides[1] == size or view.shape[1] == 1 or 0 in view.shape)
    return view if adjacent else None


def with_fitting(
    inputs: Arrays,
    results: Arrays,
    fits: Callable[[ArrayInfo], Any],
    place: Place,
    run: Callable[[Arrays], None],
) -> None:
    """Call ``run`` with arrays by name. Those that do not fit are replaced by arrays without gaps,
    which inputs are copied to before, and results are copied from afterwards."""
    arrays = {
        name: info if fits(info) else allocated(info, info.shape, place)
        for name, info in {**inputs, **results}.items()
    }
    for name, info in inputs.items():
        if arrays[name] is not info:
            move(info, arrays[name], place)
    run(arrays)
    for name, info in results.items():
        if arrays[name] is not info:
            move(arrays[name], info, place)


def launch_over_tiles(
    kernel_for: Callable[[Tile], Kernel],
    inputs: Arrays,
    results: Arrays,
    place: Place,
    **others: Any,
) -> None:
    """Launch an elementwise kernel on arrays of one shape.

    others  further arguments of the kernel
    """

    def run(arrays: Arrays) -> None:
        first = next(iter(arrays.values()))
        count, size = math.prod(first.shape), first.dtype.itemsize
        if all(map(dense, arrays.values())) and count < 1 << 30:
            # rows of a multiple of 16 bytes keep accesses of several elements aligned
            pitch, tile = round_up(count, 16), (0, NBYTES // size)
            views: dict[str, Any] = {
                name: strided(info, (1, count), (pitch * step, step))
                for name, info in arrays.items()
                for step in [info.dtype.itemsize]
            }
        else:
            views = {name: rows_of(info) for name, info in arrays.items()}
            tile = tile_for(views[next(iter(views))].shape[1], NBYTES // size)
        kernel_for(Tile(*tile, exact=size > 2))(**views, **others, **place)

    with_fitting(inputs, results, rows_of, place, run)
