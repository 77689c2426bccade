"""Launches of elementwise kernels on arrays of any dimensions and strides.

Arrays without gaps are read as one long row, so that all tiles but the last are whole; other arrays
as matrices whose rows are contiguous. Such a kernel is made for a tile (height, width), and its
grid is `tiles_of` the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..core.arith import cdiv
from ..core.functions import Function, function
from ..kernels.kernel import Kernel
from ..language.tiles.refs import ds
from ..launch.array_info import ArrayInfo
from ..launch.windows import merged, strided
from ..plan.context import program_id
from .op_outputs import allocated
from .operands import copied, move

TYPES = ("float16", "bfloat16", "float32")
LONGEST = 1 << 31
"""elements of a row are numbered with 32 bits"""


def tile_for(columns: int, elements: int) -> tuple[int, int]:
    """Return the (height, width) of tiles of up to about `elements` elements for rows of `columns`.

    >>> tile_for(1 << 20, 4096), tile_for(5000, 4096), tile_for(1000, 4096), tile_for(9, 4096)
    ((1, 4096), (1, 2560), (4, 1024), (32, 16))
    """
    if columns > elements // 4:
        parts = -(-columns // elements)
        return 1, -(-columns // (512 * parts)) * 512
    width = -(-columns // 64) * 64 if columns > 32 else 16 if columns <= 16 else 32
    height = 4
    # taller tiles would be accumulators, whose rows are loaded in short pieces
    while height < 32 and 2 * height * width <= elements:
        height *= 2
    return height, width


def tiles_of(x: Any, height: int, width: int) -> tuple[int]:
    """Return the grid of a kernel with a CTA for each tile of a matrix."""
    return (cdiv(x.shape[0], height) * cdiv(x.shape[1], width),)


def tile_at(height: int, width: int) -> Function[..., Any]:
    """Return the function ``at(x)`` that returns the rows and columns of a CTA's tile of x."""

    @function
    def at(x):  # type: ignore[no-untyped-def]
        across = cdiv(x.shape[1], width)
        place = program_id(0)
        return ds(place // across * height, height), ds(place % across * width, width)

    return at


def one_row(info: ArrayInfo) -> ArrayInfo | None:
    """Return an array without gaps as a matrix of one row; None for other arrays."""
    size = info.dtype.itemsize
    view = merged(strided(info, (*info.shape, 1), (*info.strides, size)), 1)
    if view is None or view.shape[0] >= LONGEST or (view.strides[0] != size and view.shape[0] > 1):
        return None
    count = view.shape[0]
    # the step to the next row, which does not exist, keeps accesses of several elements aligned
    return strided(view, (1, count), (-(-count * size // 16) * 16, size))


def rows(info: ArrayInfo) -> ArrayInfo | None:
    """Return an array as a matrix with contiguous rows; None if it has none, or if they are not
    evenly spaced."""
    view = merged(info, 1) if info.shape else one_row(info)
    adjacent = view is not None and (view.strides[1] == info.dtype.itemsize or view.shape[1] == 1)
    return view if adjacent else None


def launch_over_tiles(
    op: str,
    kernel_for: Callable[[int, int], Kernel],
    inputs: Mapping[str, ArrayInfo],
    results: Mapping[str, ArrayInfo],
    target: str | None,
    stream: Any,
    nbytes: int = 8192,
    rowwise: Mapping[str, ArrayInfo] | None = None,
    flat: bool = True,
    **scalars: Any,
) -> None:
    """Launch an elementwise kernel on arrays of one shape.

    kernel_for  returns the kernel for a tile (height, width)
    nbytes      bytes of a tile of the first input
    rowwise     further arrays, passed as they are
    flat        whether arrays without gaps may be read as one long row

    Inputs without contiguous rows are copied first; such results are computed in new arrays and
    copied.
    """
    size = next(iter(inputs.values())).dtype.itemsize
    every = {**inputs, **results}
    long = [one_row(info) for info in every.values()] if flat else [None]
    if None not in long:
        views = dict(zip(every, long, strict=True))
        late = []
    else:
        views = {
            name: rows(info) or rows(copied(info, target, stream)) for name, info in inputs.items()
        }
        late = []
        for name, info in results.items():
            if (view := rows(info)) is None:
                fresh = allocated(op, info, info.shape, stream)
                late.append((fresh, info))
                view = rows(fresh)
            views[name] = view
    columns = views[next(iter(views))].shape[1]  # type: ignore[union-attr]
    kernel = kernel_for(*tile_for(columns, nbytes // size))
    kernel(**views, **(rowwise or {}), **scalars, target=target, stream=stream)
    for fresh, info in late:
        move(fresh, info, target, stream)
