"""Kernels whose block specs set the shared-memory layout, for the simulator and the GPU."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, SwizzleTransform, TilingTransform, TransposeTransform

Transforms = tuple[Any, ...]


@dataclass(frozen=True)
class Layouts:
    """Transforms of both operands of a product."""

    a: Transforms = ()
    b: Transforms = (TransposeTransform(),)


@numpipe.kernel(out_type=lambda a, b, to: ArrayType((128, 128), np.float32), num_compute_wgs=2)
def product(a, b, c, *, to: numpipe.Static = Layouts()):
    """Compute c = a @ b.T for a and b of 128 rows; the tiles of b arrive transposed."""
    wg = numpipe.axis_index("wg")
    acc = numpipe.zeros((64, 128), np.float32)
    pipe = numpipe.pipeline(
        grid=(numpipe.cdiv(a.shape[1], 64),),
        max_concurrent_steps=2,
        in_specs=(
            BlockSpec((128, 64), lambda k: (0, k), transforms=to.a),
            BlockSpec((128, 64), lambda k: (0, k), transforms=to.b),
        ),
    )
    for _, (a_tile, b_tile) in pipe(a, b):
        acc = numpipe.wgmma(acc, a_tile.at[numpipe.ds(wg * 64, 64), :], b_tile)
    c[numpipe.ds(wg * 64, 64), :128] = acc


@numpipe.kernel(out_type=lambda a, b: ArrayType((64, 64), np.float32))
def half_of_a_panel(a, b, c):
    """Load blocks of the first 32 of a's 64 columns, clipped where 64-byte panels end.

    128-byte panels could not be clipped there.
    """
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(1,),
        in_specs=(
            BlockSpec(
                (64, 64),
                lambda k: (0, k),
                transforms=(numpipe.TilingTransform((8, 32)), numpipe.SwizzleTransform(64)),
            ),
            BlockSpec(
                (64, 64),
                lambda k: (0, k),
                transforms=(numpipe.SwizzleTransform(64), numpipe.TransposeTransform()),
            ),
        ),
    )
    for _, (a_tile, b_tile) in pipe(a, b):
        acc = numpipe.wgmma(acc, a_tile.at[:, numpipe.ds(32, 32)], b_tile.at[numpipe.ds(32, 32), :])
    c[:64, :64] = acc


WIDTHS = (16, 32, 64, 128)
MAJORS = ("CC", "CF", "FC", "FF")
COMBINATIONS = [(width, majors) for width, majors in itertools.product(WIDTHS, MAJORS)]


def of_width(width: int) -> Transforms:
    """Return transforms of float16 panels that are `width` bytes wide."""
    return (SwizzleTransform(width),) if width > 16 else (TilingTransform((8, 8)),)


def layouts(width: int) -> Layouts:
    return Layouts(of_width(width), (*of_width(width), TransposeTransform()))


def operands(majors: str, rows: int = 128, columns: int = 192) -> tuple[np.ndarray, np.ndarray]:
    """Return small integers, whose products are exact in every order."""
    random = np.random.default_rng(len(majors))
    a, b = (random.integers(-4, 5, (rows, columns)).astype(np.float16) for _ in majors)
    return np.asarray(a, order=majors[0]), np.asarray(b, order=majors[1])  # type: ignore[call-overload]


def expected(a: np.ndarray, b: np.ndarray) -> Any:
    return a.astype(np.float32) @ b.astype(np.float32).T


@numpipe.kernel(num_compute_wgs=2)
def copied(x, y, *, to: numpipe.Static = Layouts((), ())):
    """Copy x to y through a pipeline's input and output, with the layout that each one
    specifies."""
    wg = numpipe.axis_index("wg")
    pipe = numpipe.pipeline(
        grid=(numpipe.cdiv(x.shape[0], 128), numpipe.cdiv(x.shape[1], 64)),
        in_specs=(BlockSpec((128, 64), lambda i, j: (i, j), transforms=to.a),),
        out_specs=(BlockSpec((128, 64), lambda i, j: (i, j), transforms=to.b),),
    )
    for _, (x_tile, y_tile) in pipe(x, y):
        y_tile[numpipe.ds(wg * 64, 64), :] = x_tile[numpipe.ds(wg * 64, 64), :]


@numpipe.kernel
def turned(x, y, *, to: numpipe.Static = Layouts((), ())):
    """Compute y = x.T in blocks: an output whose tile is transposed."""
    pipe = numpipe.pipeline(
        grid=(numpipe.cdiv(x.shape[0], 64), numpipe.cdiv(x.shape[1], 64)),
        in_specs=(BlockSpec((64, 64), lambda i, j: (i, j), transforms=to.a),),
        out_specs=(BlockSpec((64, 64), lambda i, j: (j, i), transforms=to.b),),
    )
    for _, (x_tile, y_tile) in pipe(x, y):
        y_tile[...] = x_tile[...]


def check_copied(width: int, **options: Any) -> None:
    x = operands("CC", 200, 136)[0]
    y = np.zeros_like(x)
    copied(x, y, to=Layouts(of_width(width), of_width(256 // width)), **options)
    np.testing.assert_array_equal(y, x)


def check_turned(width: int, **options: Any) -> None:
    x = operands("CC", 200, 136)[0]
    y = np.zeros((136, 200), x.dtype)
    turned(x, y, to=layouts(width), **options)
    np.testing.assert_array_equal(y, x.T)
