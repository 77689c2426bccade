"""Reductions of an axis of an array: sums, maxima, and indices of maxima.

A CTA walks along the axis with a tile of a few rows and columns in registers and combines all tiles
element by element, in float32, so that only one tile is reduced across lanes. If there would be too
few CTAs, several share the axis, and a second launch combines their partial results, always in the
same order. The size of x's last dimension is a compile-time constant.

=========  =====================  ===========================
`down`     x                      y
=========  =====================  ===========================
False      (1, rows, n)           (parts, 1, rows, 1)
True       (batch, n, columns)    (parts, batch, columns, 1)
=========  =====================  ===========================
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, call-overload"

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..core.functions import Function
from ..core.static_range import static_range
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.tiles.elementwise import full, iota
from ..language.tiles.refs import ds
from ..language.tiles.tile import bitcast
from ..launch.array_info import ArrayInfo
from ..launch.windows import merged, strided
from ..plan.context import program_id
from ..plan.params import CompilerParams
from .op_outputs import allocated
from .tiled import dense, reshaped, with_fitting

ENOUGH = 1024
"""CTAs from which on the axis is not shared: about 8 on each SM"""
BEYOND = 2**31 - 1
"""larger than every index"""


@functools.cache
def reducer(
    kind: str,
    down: bool,
    step: int,
    across: int,
    length: int,
    again: bool = False,
    last: bool = True,
    finish: Function[..., Any] | None = None,
) -> Kernel:
    """Return the kernel of sums ("sum"), maxima ("max"), maxima of absolute values ("top") or
    indices of maxima ("argmax", the first, where NaN is largest).

    step, across  elements of a tile along the axis and across it
    length  elements along the axis that are loaded at once
    again   x has maxima, and `places` their indices in the original array
    last    whether there is no further launch: y has indices, and no `found` has them
    finish  function of the reduced vector, applied before it is stored

    Scalars are `parts`, the CTAs that share the axis, and `scale`, a factor of the result.
    """
    shape, axis = ((step, across), 0) if down else ((across, step), 1)
    index, lowest = kind == "argmax", -np.inf if "max" in kind else 0.0
    unused = {"places": not again, "found": last or not index}

    @numpipe_kernel(
        grid=lambda x, parts: (x.shape[0] * cdiv(x.shape[2 - axis], across), parts),
        warp_specialized=False,
        without=tuple(name for name, off in unused.items() if off),
        compiler_params=CompilerParams(ctas_per_sm=5),
        static_dims=(-1,),
    )
    def reduce_axis(x, places, y, found, parts, scale):
        tiles, n = cdiv(x.shape[2 - axis], across), x.shape[axis + 1]
        batch, part, whole = program_id(0) // tiles, program_id(1), n // length * length
        own = ds(program_id(0) % tiles * across, across)
        if down:
            # without a branch for each tile, the loads of several overlap
            own = ds(program_id(0) % tiles * across, across, most=max(tiles - 1, 0) * across)

        def piece(of, start, k, along, tail):
            if down:
                return of[batch, ds(start + k, step), own]
            # one load for all pieces
            if tail:
                return of[batch, own, ds(start, length)][:, along]
            return of[batch, own, ds(start, length, most=max(whole - length, 0))][:, along]

        def combined(total, at, start, tail):
            for k in static_range(0, length, step):
                number = start + k
                tile = piece(x, start, k, ds(k, step), tail).astype(np.float32)
                if kind == "top":
                    tile = np.abs(tile)
                if tail and lowest < 0:
                    tile = np.where(iota(shape, axis) < n - number, tile, lowest)
                if index:
                    if again:
                        number = piece(places, start, k, ds(k, step), tail)
                    tile = tile + 0.0  # -0 becomes 0, so that equal numbers have equal bits
                    changed = bitcast(np.maximum(total, tile), np.int32) != bitcast(total, np.int32)
                    at = np.where(changed, number, at)
                total = total + tile if kind == "sum" else np.maximum(total, tile)
            return total, at

        total, at = full(shape, lowest, np.float32), full(shape, 0, np.int32)
        each = cdiv(whole // length, parts) * length
        for start in range(part * each, min(part * each + each, whole), length):
            total, at = combined(total, at, start, False)
        if whole < n and part == parts - 1:
            total, at = combined(total, at, whole, True)
        result = total.sum(axis=axis) if kind == "sum" else total.max(axis=axis)
        if index:
            if not again:
                at = at + iota(shape, axis)
            top = result[None, :] if down else result[:, None]
            # an element that no other exceeds is -inf, as is the first of the axis
            at = np.where((total == top) | np.isnan(total), at, BEYOND).min(axis=axis)
        if index and last:
            y[part, batch, own, 0] = at
        else:
            if index:
                found[part, batch, own, 0] = at
            if last:
                result = result * scale
            if finish is not None:
                result = finish(result)
            y[part, batch, own, 0] = result

    return reduce_axis  # type: ignore[no-any-return]


def view_of(x: ArrayInfo, axis: int | None) -> tuple[ArrayInfo, bool] | None:
    """Return (the array that a kernel reads, `down`), or None if it needs a copy."""
    if axis is None:
        return view_of(reshaped(x, math.prod(x.shape)), 0) if dense(x) else None
    if 0 in x.shape:
        x = reshaped(x, *x.shape)
    size, after = x.dtype.itemsize, axis % len(x.shape) + 1
    shape = (*x.shape[:after], math.prod(x.shape[after:]))
    view = merged(strided(x, shape, (*x.strides[:after], size)))
    if view is None or not dense(strided(x, x.shape[after:], x.strides[after:])):
        return None
    if shape[-1] > 1:
        return view, True
    (rows, n, _), (far, near, _) = view.shape, view.strides
    return (strided(x, (1, rows, n), (0, far, size)), False) if near == size or n == 1 else None


def schedule(
    shape: tuple[int, ...], down: bool, itemsize: int, again: bool = False
) -> tuple[int, int, int, int]:
    """Return (step, across, length, parts) of a reduction: of a tile, of what is loaded at once,
    and the CTAs that share the axis. `again`: combine the parts of a reduction.

    >>> schedule((1, 65536, 4096), False, 2), schedule((1, 8192, 65536), False, 2)
    ((64, 16, 512, 1), (1024, 1, 8192, 1))
    >>> schedule((1, 16384, 16384), True, 2)
    (8, 256, 64, 16)
    """
    n, others = shape[1:] if down else shape[:0:-1]
    n = max(n, 1)
    if down:
        columns = max(16, 1 << (others - 1).bit_length())
        across = min(columns, 64 if again else 256, max(64, columns // 16))
        step = 2048 // across
    else:
        # CTAs with a long row each need no second launch, and are faster than few with 16 rows
        least = 16 * ENOUGH if n > 4096 else 0
        across = next((h for h in (16, 8) if others >= max(h * ENOUGH // 2, least)), 1)
        step = 64 if across > 1 else min(1024, -(-n // 256) * 256)
    tiles, length = shape[0] * -(-others // across), -(-n // step) * step
    if not again:
        length = min(length, step * 16 // itemsize)
    return step, across, length, max(1, min(ENOUGH // max(tiles, 1), n // (2 * length), 512))


def launch_reduction(
    op: str,
    kind: str,
    x: ArrayInfo,
    axis: int | None,
    y: ArrayInfo,
    target: str | None,
    stream: Any,
    scale: float = 1.0,
    finish: Function[..., Any] | None = None,
    again: bool = False,
    places: ArrayInfo | None = None,
) -> None:
    """Reduce an axis of x, or all of x, to y: to indices for "argmax".

    scale, finish  a factor of the result, and a function of a vector of results
    again, places  whether x has partial results, and their indices
    """
    index = kind == "argmax"

    def run(arrays: dict[str, ArrayInfo]) -> None:
        (view, down), y = view_of(arrays["x"], axis), arrays["y"]  # type: ignore[misc]
        # a tile of indices takes as many registers as a tile of float32
        size = x.dtype.itemsize * (1 + index)
        step, across, length, parts = schedule(view.shape, down, size, again)
        batch, others, last = view.shape[0], view.shape[1 + down], parts == 1
        new = lambda dtype: allocated(
            op, x._replace(dtype=np.dtype(dtype)), (1, parts, batch * others), stream
        )
        made = {"y": y if last else new(np.float32)}
        if index and not last:
            made["found"] = new(np.int32)
        more = {name: reshaped(info, parts, batch, others, 1) for name, info in made.items()}
        if places is not None:
            more["places"] = strided(places, view.shape, view.strides)
        kernel = reducer(
            kind, down, step, across, length, again and index, last, finish if last else None
        )
        kernel(view, **more, parts=parts, scale=scale, target=target, stream=stream)
        if not last:
            way = "max" if kind == "top" else kind
            launch_reduction(
                op, way, made["y"], 1, y, target, stream, scale, finish, True, made.get("found")
            )

    fits = lambda info: dense(info) if info is y else view_of(info, axis)
    with_fitting(op, {"x": x}, {"y": y}, fits, target, stream, run)
