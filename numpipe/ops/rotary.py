"""``rotary(x, cos, sin)``: rotary position embeddings. Pairs of elements of each row are rotated by
angles; the gradient is the rotation by the negative angles."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..core.static_range import static_range
from ..diagnostics.argument_checks import a
from ..diagnostics.errors import SpecError
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.tiles.refs import ds
from ..launch.array_info import ArrayInfo
from ..launch.windows import broadcast, strided
from ..plan.context import program_id
from ..plan.specs import ArrayType
from .declaration import Operand, op
from .op_outputs import allocated
from .operands import move
from .tiled import TYPES

__all__ = ["rotary"]

ELEMENTS_EACH = 1024
"""elements of a tile of half rows"""


@functools.cache
def rotated(repeats: int, height: int, width: int, inverse: bool) -> Kernel:
    """Return the kernel for tiles of `height` rows of `width` pairs, with the same angles for
    `repeats` tiles. x1 and x2 are the elements of the pairs, (outer, repeated, rows, pairs)."""

    def grid(x1: Any) -> tuple[int]:
        down, across = cdiv(x1.shape[2], height), cdiv(x1.shape[3], width)
        return (x1.shape[0] * (x1.shape[1] // repeats) * down * across,)

    @numpipe_kernel(grid=grid, warp_specialized=False)
    def rotate(x1, x2, cos, sin, y1, y2):  # type: ignore[no-untyped-def]
        place = program_id(0)
        down, across = cdiv(x1.shape[2], height), cdiv(x1.shape[3], width)
        i, j = ds(place // across % down * height, height), ds(place % across * width, width)
        place = place // (across * down)
        groups = x1.shape[1] // repeats
        outer, first = place // groups, place % groups * repeats
        c, s = cos[outer, i, j].astype(np.float32), sin[outer, i, j].astype(np.float32)
        if inverse:
            s = -s
        for k in static_range(repeats):
            a, b = x1[outer, first + k, i, j], x2[outer, first + k, i, j]
            a, b = a.astype(np.float32), b.astype(np.float32)
            y1[outer, first + k, i, j] = a * c - b * s
            y2[outer, first + k, i, j] = a * s + b * c

    return rotate  # type: ignore[no-any-return]


# ---- views
def pairs(x: ArrayInfo, interleaved: bool) -> tuple[ArrayInfo, ArrayInfo]:
    """Return the first and the second elements of the pairs."""
    n, step, array = x.shape[-1] // 2, x.strides[-1], x.array
    offset = 1 if interleaved else n
    shape, strides = (*x.shape[:-1], n), (*x.strides[:-1], step * (2 if interleaved else 1))
    second = x._replace(
        ptr=x.ptr + offset * step, array=None if array is None else array[..., offset:]
    )
    return strided(x, shape, strides), strided(second, shape, strides)


def grouped(
    arrays: Sequence[ArrayInfo], angles: Sequence[ArrayInfo]
) -> tuple[list[ArrayInfo], list[ArrayInfo]] | None:
    """Return views (outer, repeated, rows, pairs) of the arrays, and (outer, rows, pairs) of the
    angles, which do not change along the repeated dimension; None if there are none. All have one
    shape."""
    *shape, columns = arrays[0].shape
    every = [*arrays, *angles]
    # dimensions as (size, strides, whether angles change), those that can be merged in one
    dims: list[tuple[int, tuple[int, ...], bool]] = []
    for k, size in enumerate(shape):
        if size == 1:
            continue
        strides = tuple(info.strides[k] for info in every)
        changes = any(strides[len(arrays) :])
        if dims:
            above, steps, changed = dims[-1]
            follows = all(step == size * inner for step, inner in zip(steps, strides, strict=True))
            if follows and changed == changes:
                dims[-1] = above * size, strides, changes
                continue
        dims.append((size, strides, changes))
    none = (1, (0,) * len(every))

    def largest(changes: bool) -> tuple[int, tuple[int, ...]]:
        known = [dim for dim in dims if dim[2] == changes]
        if not known:
            return none
        chosen = max(known, key=lambda dim: dim[0])
        dims.remove(chosen)
        return chosen[:2]

    rows, repeated = largest(True), largest(False)
    if len(dims) > 1:
        return None
    outer = dims[0][:2] if dims else none
    sizes = (outer[0], repeated[0], rows[0], columns)

    def view(k: int, info: ArrayInfo, kept: Sequence[int]) -> ArrayInfo:
        strides = (outer[1][k], repeated[1][k], rows[1][k], info.strides[-1])
        return strided(info, [sizes[d] for d in kept], [strides[d] for d in kept])

    count = len(arrays)
    return (
        [view(k, info, (0, 1, 2, 3)) for k, info in enumerate(arrays)],
        [view(count + k, info, (0, 2, 3)) for k, info in enumerate(angles)],
    )


def _launch(
    x: ArrayInfo,
    cos: ArrayInfo,
    sin: ArrayInfo,
    y: ArrayInfo,
    interleaved: bool,
    inverse: bool,
    target: str | None,
    stream: Any,
) -> None:
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    angles = [broadcast(info, shape) for info in (cos, sin)]
    size = x.dtype.itemsize
    result = y if y.strides[-1] == size else allocated("rotary", y, y.shape, stream)
    if x.strides[-1] != size:
        x = contiguous(x, target, stream)
    found = grouped([*pairs(x, interleaved), *pairs(result, interleaved)], angles)
    if found is None:
        x = contiguous(x, target, stream)
        result = y if result is y and dense(y) else allocated("rotary", y, y.shape, stream)
        arrays = [*pairs(x, interleaved), *pairs(result, interleaved)]
        found = grouped(arrays, angles)
        if found is None:
            angles = [contiguous(info, target, stream) for info in angles]
            found = grouped(arrays, angles)
    assert found is not None
    (x1, x2, y1, y2), (c, s) = found
    repeats = next(k for k in (4, 3, 2, 1) if x1.shape[1] % k == 0)
    n = x1.shape[3]
    width = min(256, -(-n // 64) * 64) if n > 32 else 32 if n > 16 else 16
    height = min(32, ELEMENTS_EACH // width)
    kernel = rotated(repeats, height, width, inverse)
    kernel(x1, x2, c, s, y1, y2, target=target, stream=stream)
    if result is not y:
        move(result, y, target, stream)


def dense(info: ArrayInfo) -> bool:
    """Return whether an array is C-contiguous."""
    step = info.dtype.itemsize
    for size, stride in zip(info.shape[::-1], info.strides[::-1], strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def contiguous(info: ArrayInfo, target: str | None, stream: Any) -> ArrayInfo:
    """Return a C-contiguous copy."""
    fresh = allocated("rotary", info, info.shape, stream)
    move(info, fresh, target, stream)
    return fresh


# ---- declaration
def _result(x: Any, cos: Any, sin: Any) -> ArrayType:
    shape = tuple(x.shape)
    if not shape or shape[-1] % 2:
        raise SpecError(
            f"rotary: the last dimension of 'x' must be an even number of elements, got shape "
            f"{shape}"
        )
    half = (*shape[:-1], shape[-1] // 2)
    for name, angles in (("cos", cos), ("sin", sin)):
        given = tuple(angles.shape)
        if given and given[-1] == shape[-1] != 1:
            raise SpecError(
                f"rotary: '{name}' has one element for each pair, {half[-1]} columns, got shape "
                f"{given}; fix: pass {name}[..., : {half[-1]}] if its halves are equal"
            )
        fits = len(given) <= len(half) and all(
            mine in (1, size) for mine, size in zip(given[::-1], half[::-1], strict=False)
        )
        if not fits or not given or given[-1] != half[-1]:
            raise SpecError(
                f"rotary: '{name}' must broadcast to {half}, with {half[-1]} columns, got shape "
                f"{given}; fix: insert dimensions of size 1, as {name}[:, None] does"
            )
    return ArrayType(shape, x.dtype)


def _gradient(xp: Any, cos: Any, sin: Any, grad_y: Any, interleaved: bool, inverse: bool) -> Any:
    return xp(rotary, grad_y, cos, sin, interleaved=interleaved, inverse=not inverse)


def _over_batch(
    xp: Any, size: Any, batched: Any, x: Any, cos: Any, sin: Any, interleaved: bool, inverse: bool
) -> Any:
    if not batched["x"]:
        x = xp.broadcast_to(x, (size, *x.shape))
    angles = []
    for name, given in (("cos", cos), ("sin", sin)):
        if batched[name]:
            lacking = len(x.shape) - len(given.shape)
            given = given.reshape((size, *[1] * lacking, *given.shape[1:]))
        angles.append(given)
    return xp(rotary, x, *angles, interleaved=interleaved, inverse=inverse)


@op(
    operands={"x": "", "cos": Operand(types=TYPES), "sin": Operand(types=TYPES)},
    results={"y": _result},
    types=TYPES,
    launch=_launch,
    checks={"interleaved": a(bool), "inverse": a(bool)},
    gradients={"x": _gradient},
    batching=_over_batch,
)
def rotary(
    x: Any,
    cos: Any,
    sin: Any,
    *,
    interleaved: bool = False,
    inverse: bool = False,
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return x with pairs of elements (a, b) rotated to ``(a cos - b sin, a sin + b cos)``.

    x            (…, d) of float16, bfloat16 or float32, with any strides
    cos, sin     (…, d / 2) of any of these types; broadcast, so (tokens, d / 2) suits x of shape
                 (batch, heads, tokens, d), and ``cos[:, None]`` x of shape (batch, tokens, heads, d)
    interleaved  whether pairs are (x[2 k], x[2 k + 1]), as in GPT-J, rather than (x[k], x[k + d /
                 2]), as in Llama
    inverse      whether to rotate by the negative angles
    out          an array of x's shape and type to write to, which may be x; allocated by default
    target, stream
                 as for any kernel

    Arithmetic is float32. x is read once; cos and sin are read once for up to 4 rows that share
    them. There is a gradient of x, the rotation by the negative angles, and none of cos and sin.
    Raises SpecError for an odd d and for angles that do not broadcast.

    >>> rotary(
    ...     np.ones((1, 4), np.float32),
    ...     np.zeros(2, np.float32),
    ...     np.ones(2, np.float32),
    ...     target="sim",
    ... )
    array([[-1., -1.,  1.,  1.]], dtype=float32)
    """
