"""Kernels over arrays of any rank, with squeezed and element dimensions, and NumPy's results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, Element, cdiv, ds

HALF = np.dtype(np.float16)


def halves(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return small integers: sums of products are exact in every order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float16)


# ---- a product for each batch --------------------------------------------------------------------
@dataclass(frozen=True)
class Config:
    tm: int = 128
    tn: int = 128
    tk: int = 64
    slots: int = 3


@numpipe.kernel(
    out_type=lambda a, b, cfg: ArrayType((a.shape[0], a.shape[1], b.shape[1]), np.float32),
    signature="(b,m,k),(b,n,k)->(b,m,n)",
    grid=numpipe.persistent(),
    num_compute_wgs=2,
    wg_axis="wg",
)
def batched_gemm(a, b, c, *, cfg: numpipe.Static = Config()):
    """Compute c[i] = a[i] @ b[i].T."""
    wg = numpipe.axis_index("wg")
    rows = cfg.tm // numpipe.axis_size("wg")
    for i, m, n in numpipe.tiles(a.shape[0], cdiv(a.shape[1], cfg.tm), cdiv(b.shape[1], cfg.tn)):
        acc = numpipe.zeros((rows, cfg.tn), np.float32)
        pipe = numpipe.pipeline(
            grid=(cdiv(a.shape[2], cfg.tk),),
            max_concurrent_steps=cfg.slots,
            in_specs=(
                BlockSpec((None, cfg.tm, cfg.tk), lambda k: (i, m, k)),
                BlockSpec((None, cfg.tn, cfg.tk), lambda k: (i, n, k)),
            ),
        )
        for _, (a_tile, b_tile) in pipe(a, b):
            acc = numpipe.wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T)
        c[i, ds(m * cfg.tm + wg * rows, rows), ds(n * cfg.tn, cfg.tn)] = acc


@numpipe.kernel(
    out_type=lambda a, b: ArrayType((a.shape[0], a.shape[1], b.shape[1]), np.float32),
    grid=lambda a: (a.shape[0],),
    grid_names="i",
)
def batched_sum(a, b, c):
    """Compute the first 64 x 64 elements of each product, in the body form over a 2-D grid."""
    i = numpipe.axis_index("i")

    def body(indices, a_tile, b_tile, acc):
        return numpipe.wgmma(acc, a_tile, b_tile.T)

    def compute(pipeline):
        c[i, ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

    numpipe.emit_pipeline_warp_specialized(
        body,
        grid=(2, cdiv(a.shape[2], 64)),
        compute_context=compute,
        in_specs=(
            BlockSpec((None, 64, 64), lambda twice, k: (i, 0, k)),
            BlockSpec((None, 64, 64), lambda twice, k: (i, 0, k)),
        ),
    )(a, b)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64).swapaxes(-1, -2)


# ---- four dimensions, the squeezed ones apart ----------------------------------------------------
@numpipe.kernel(
    out_type=lambda q, k: ArrayType((q.shape[0], q.shape[1], q.shape[2], k.shape[1]), np.float16),
    grid=numpipe.persistent(),
)
def scores(q, k, c):
    """Compute c[b, s, h] = k[b, :, h] @ q[b, s, h].

    q is (batch, rows, heads, depth) and k is (batch, columns, heads, depth).
    """
    for b, m, n in numpipe.tiles(q.shape[0], cdiv(q.shape[1], 64), cdiv(k.shape[1], 64)):
        for h in range(q.shape[2]):
            acc = numpipe.zeros((64, 64), np.float32)
            pipe = numpipe.pipeline(
                grid=(cdiv(q.shape[3], 64),),
                in_specs=(
                    BlockSpec((None, 64, None, 64), lambda d: (b, m, h, d)),
                    BlockSpec((None, 64, None, 64), lambda d: (b, n, h, d)),
                ),
            )
            for _, (q_tile, k_tile) in pipe(q, k):
                acc = numpipe.wgmma(acc, q_tile, k_tile.T)
            c[b, ds(m * 64, 64), h, ds(n * 64, 64)] = acc.astype(c.dtype)


def all_scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return np.einsum("bshd,bthd->bsht", q.astype(np.float64), k.astype(np.float64))


# ---- blocks that start at elements ---------------------------------------------------------------
@dataclass(frozen=True)
class Taps:
    """The number of rows that a convolution reads, centered on the row itself.

    Blocks of x are indexed by batch, row and channel.
    """

    taps: int = 3
    block: tuple[Any, ...] = (None, Element(64), 64)
    fill: str = "zeros"


@numpipe.kernel(
    out_type=lambda x, w, cfg: ArrayType((x.shape[0], x.shape[1], w.shape[1]), np.float32),
    grid=numpipe.persistent(),
)
def convolution(x, w, y, *, cfg: numpipe.Static = Taps()):
    """Compute y[i, l] = the sum over t of w[t] @ x[i, l + t - taps // 2].

    x is (batch, rows, channels) and w is (taps, outputs, channels).
    """
    for i, m, n in numpipe.tiles(x.shape[0], cdiv(x.shape[1], 64), cdiv(w.shape[1], 64)):
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(cfg.taps, cdiv(x.shape[2], 64)),
            max_concurrent_steps=3,
            in_specs=(
                BlockSpec(
                    cfg.block, lambda t, k: (i, m * 64 + t - cfg.taps // 2, k), oob_fill=cfg.fill
                ),
                BlockSpec((None, 64, 64), lambda t, k: (t, n, k)),
            ),
        )
        for _, (x_tile, w_tile) in pipe(x, w):
            acc = numpipe.wgmma(acc, x_tile, w_tile.T)
        y[i, ds(m * 64, 64), ds(n * 64, 64)] = acc


def convolved(x: np.ndarray, w: np.ndarray, outside: float = 0.0) -> np.ndarray:
    half, rows = w.shape[0] // 2, x.shape[1]
    padded = np.pad(x.astype(np.float64), ((0, 0), (half, half), (0, 0)), constant_values=outside)
    return sum(padded[:, t : t + rows] @ w[t].astype(np.float64).T for t in range(w.shape[0]))  # type: ignore[return-value]


WINDOW = Element(64)


@numpipe.kernel
def windows(a, b, c, steps, first):
    """Compute c = the sum of a[:, window] @ b[:, window].T over windows of 64 columns.

    Each window starts 16 columns after the previous one.
    """
    rows = Element(64)
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(steps,),
        in_specs=(
            BlockSpec((rows, WINDOW), lambda k: (0, first + k * 16), mode="zero"),
            BlockSpec((64, WINDOW), lambda k: (0, first + k * 16), mode="zero"),
        ),
    )
    for _, (x, y) in pipe(a, b):
        acc = numpipe.wgmma(acc, x, y.T)
    c[ds(0, 64), ds(0, 64)] = acc


def windowed(a: np.ndarray, b: np.ndarray, steps: int, first: int) -> np.ndarray:
    total = np.zeros((len(a), len(b)))
    for start in range(first, first + 16 * steps, 16):
        seen = slice(max(start, 0), max(start + 64, 0))
        total += product(a[:, seen], b[:, seen])
    return total


@numpipe.kernel
def at_origin(a, b, c, *, fill: numpipe.Static = "zeros"):
    """Compute c = a[0, :64, :64] @ b.T."""
    acc = numpipe.zeros((64, 64), np.float32)
    for _, (x, y) in numpipe.pipeline(
        grid=(1,),
        in_specs=(
            BlockSpec((None, 64, 64), lambda k: (0, 0, k), oob_fill=fill),
            BlockSpec((64, 64), lambda k: (0, k)),
        ),
    )(a, b):
        acc = numpipe.wgmma(acc, x, y.T)
    c[ds(0, 64), ds(0, 64)] = acc


WITHOUT_ELEMENTS = [(0, 64, 64), (2, 0, 64), (2, 64, 0), (0, 0, 0), (0, 1000, 4096)]


def check_arrays_without_elements(shape: tuple[int, ...], fill: str, **named: Any) -> None:
    """Check that reads of an array without elements are all out of bounds."""
    c = np.full((64, 64), 7, np.float32)
    at_origin(np.zeros(shape, np.float16), np.ones((64, 64), np.float16), c, fill=fill, **named)
    assert (np.isnan(c) if fill == "nan" else c == 0).all()


# ---- copies: every rank --------------------------------------------------------------------------
def copier(function: Any) -> Any:
    """Return a kernel that copies a to c, tile by tile."""
    return numpipe.kernel(function, grid=numpipe.persistent())


@copier
def copy2(a, c):
    for m, n in numpipe.tiles(cdiv(a.shape[0], 64), cdiv(a.shape[1], 64)):
        spec = BlockSpec((64, 64), lambda _: (m, n))
        for _, (x,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
            c[ds(m * 64, 64), ds(n * 64, 64)] = x[...].astype(c.dtype)


@copier
def copy3(a, c):
    for i, m, n in numpipe.tiles(a.shape[0], cdiv(a.shape[1], 64), cdiv(a.shape[2], 64)):
        spec = BlockSpec((None, 64, 64), lambda _: (i, m, n))
        for _, (x,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
            c[i, ds(m * 64, 64), ds(n * 64, 64)] = x[...].astype(c.dtype)


@copier
def copy4(a, c):
    for m, i, n in numpipe.tiles(cdiv(a.shape[0], 64), a.shape[1], cdiv(a.shape[3], 64)):
        for j in range(a.shape[2]):
            spec = BlockSpec((64, None, None, 64), lambda _: (m, i, j, n))
            for _, (x,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
                c[ds(m * 64, 64), i, j, ds(n * 64, 64)] = x[...].astype(c.dtype)


@copier
def copy5(a, c):
    for h, m, n in numpipe.tiles(a.shape[0], cdiv(a.shape[2], 64), cdiv(a.shape[4], 64)):
        for i in range(a.shape[1]):
            for j in range(a.shape[3]):
                spec = BlockSpec((None, None, 64, None, 64), lambda _: (h, i, m, j, n))
                for _, (x,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
                    c[h, i, ds(m * 64, 64), j, ds(n * 64, 64)] = x[...].astype(c.dtype)


COPIES = {2: copy2, 3: copy3, 4: copy4, 5: copy5}
TILED = {2: (0, 1), 3: (1, 2), 4: (0, 3), 5: (2, 4)}
"""the dimensions along which copies have tiles, by rank"""


@copier
def first_last(a, c):
    """Compute c[m, n, i] = a[i, m, n]; the columns of a stored tile are not along the last
    dimension."""
    for i, m, n in numpipe.tiles(a.shape[0], cdiv(a.shape[1], 64), cdiv(a.shape[2], 64)):
        spec = BlockSpec((None, 64, 64), lambda _: (i, m, n))
        for _, (x,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
            c[ds(m * 64, 64), ds(n * 64, 64), i] = x[...].astype(c.dtype)


@copier
def columns_first(a, c):
    """Copy a column-major array, whose first dimension is contiguous."""
    for m, n, j in numpipe.tiles(cdiv(a.shape[0], 64), cdiv(a.shape[1], 64), a.shape[2]):
        spec = BlockSpec((64, 64, None), lambda _: (m, n, j))
        for _, (x,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
            c[ds(m * 64, 64), ds(n * 64, 64), j] = x[...].astype(c.dtype)


@numpipe.kernel(num_compute_wgs=2, wg_axis="wg")
def ones_at(c, i, row, column):
    """Store ones in c[i, row : row + 128, column : column + 64]; two warpgroups share the rows."""
    wg = numpipe.axis_index("wg")
    c[i, ds(row + wg * 64, 64), ds(column, 64)] = numpipe.zeros((64, 64), np.float32) + 1


@numpipe.kernel(num_compute_wgs=2, wg_axis="wg")
def ones_by_warpgroup(c):
    """Store ones with the warpgroup as the index along the first dimension."""
    wg = numpipe.axis_index("wg")
    c[wg, ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + (wg + 1)
