"""Kernels on tiles of any shape, in no layout by name: each operation, for the simulator and the
GPU.

Numbers are small integers, so that results are NumPy's to the last bit.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

import numpipe
from numpipe import SMEM, ArrayType, cdiv, ds

F32, I32, F16 = (np.dtype(of) for of in (np.float32, np.int32, np.float16))
BF16 = np.dtype(ml_dtypes.bfloat16)


def drawn(shape: tuple[int, ...], dtype: np.dtype, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


@numpipe.kernel(num_compute_wgs=1, warp_specialized=False)
def every_operation(x, v, rows, columns, tiles, *, m: numpipe.Static, n: numpipe.Static):
    """Reduce, scan and combine a tile (m, n), with vectors that are loaded and made.

    rows     (m, 8), of the reductions along rows
    columns  (4, n), of those along columns
    tiles    (5, m, n)
    """
    t = x[ds(0, m), ds(0, n)]
    along, down = v[ds(0, n)], v[ds(1, m)]
    rows[ds(0, m), 0] = t.max(axis=1)
    rows[ds(0, m), 1] = t.min(axis=1)
    rows[ds(0, m), 2] = t.argmax(axis=1).astype(rows.dtype)
    rows[ds(0, m), 3] = np.any(t > 3, axis=1).astype(np.int32).astype(rows.dtype)
    rows[ds(0, m), 4] = (t + t.max(axis=1)[:, None]).max(axis=1)
    rows[ds(0, m), 5] = down + t.max(axis=1)
    columns[0, ds(0, n)] = t.max(axis=0)
    columns[1, ds(0, n)] = t.argmin(axis=0).astype(columns.dtype)
    columns[2, ds(0, n)] = along + t.min(axis=0)
    tiles[0, ds(0, m), ds(0, n)] = t + along
    tiles[1, ds(0, m), ds(0, n)] = t * down[:, None] + numpipe.full((m, 1), 2, t.dtype)
    tiles[2, ds(0, m), ds(0, n)] = np.where(t > along, t, down[:, None])


def expected_of_every(x: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    m, n = x.shape
    along, down, f = v[:n], v[1 : m + 1], x.dtype.type
    rows = [
        x.max(1),
        x.min(1),
        x.argmax(1).astype(f),
        (x > 3).any(1).astype(f),
        (x + x.max(1, keepdims=True)).max(1),
        down + x.max(1),
    ]
    columns = [x.max(0), x.argmin(0).astype(f), along + x.min(0)]
    tiles = [x + along, x * down[:, None] + f(2), np.where(x > along, x, down[:, None])]
    return np.stack(rows, 1).astype(f), np.stack(columns).astype(f), np.stack(tiles).astype(f)


@numpipe.kernel(num_compute_wgs=1, warp_specialized=False)
def sums_and_scans(x, rows, columns, tiles, whole, *, m: numpipe.Static, n: numpipe.Static):
    """Add up a tile of float32 or int32 in every way."""
    t = x[ds(0, m), ds(0, n)]

    def added(a, b):
        return a + b

    rows[ds(0, m), 0] = t.sum(axis=1)
    rows[ds(0, m), 1] = (t - t.sum(axis=1)[:, None]).max(axis=1)
    rows[ds(0, m), 2] = t.sum(axis=1).cumsum()
    columns[0, ds(0, n)] = t.sum(axis=0)
    columns[1, ds(0, n)] = t.sum(axis=0).cumsum()
    tiles[0, ds(0, m), ds(0, n)] = t.cumsum(axis=1)
    tiles[1, ds(0, m), ds(0, n)] = t.cumsum(axis=0)
    tiles[2, ds(0, m), ds(0, n)] = np.maximum.accumulate(t, axis=1)
    tiles[3, ds(0, m), ds(0, n)] = np.minimum.accumulate(t, axis=0)
    tiles[4, ds(0, m), ds(0, n)] = numpipe.scan(added, t, axis=0)
    tiles[5, ds(0, m), ds(0, n)] = numpipe.scan(added, t, axis=1)
    whole[0] = t.sum()
    whole[1] = t.sum(axis=0).sum()
    whole[2] = t.sum(axis=1).sum()
    whole[3] = t.max() - t.min()


def expected_of_sums(x: np.ndarray) -> tuple[np.ndarray, ...]:
    total, f = x.sum(), x.dtype.type
    rows = [x.sum(1), (x - x.sum(1, keepdims=True)).max(1), x.sum(1).cumsum()]
    columns = [x.sum(0), x.sum(0).cumsum()]
    tiles = [
        x.cumsum(1),
        x.cumsum(0),
        np.maximum.accumulate(x, 1),
        np.minimum.accumulate(x, 0),
        x.cumsum(0),
        x.cumsum(1),
    ]
    found = np.stack(rows, 1), np.stack(columns), np.stack(tiles)
    return (*(each.astype(f) for each in found), np.array([total] * 3 + [x.max() - x.min()], f))


@numpipe.kernel(num_compute_wgs=1, warp_specialized=False)
def best_and_strips(x, values, places, partial, strips, *, m: numpipe.Static, n: numpipe.Static):
    """Take the largest elements of rows, partial reductions, and strips of a tile (m, n)."""
    t = x[ds(0, m), ds(0, n)]
    found, at = numpipe.top_k(t, 5)
    values[ds(0, m), ds(0, 8)] = found
    places[ds(0, m), ds(0, 8)] = at
    partial[0, ds(0, m), ds(0, 8)] = numpipe.partial_sum(t)
    partial[1, ds(0, m), ds(0, 8)] = numpipe.partial_max(t) + np.where(at < 0, 0, found)

    def doubled(strip, first):
        return strip + x[ds(0, m), ds(first, 8)] + first

    strips[ds(0, m), ds(0, n)] = numpipe.map_columns(doubled, t, 8)


def expected_of_best(x: np.ndarray) -> tuple[np.ndarray, ...]:
    m, n = x.shape
    order = np.argsort(-x.astype(np.int64), axis=1, kind="stable")[:, :5]
    values = np.full((m, 8), -np.inf if x.dtype == F32 else np.iinfo(np.int32).min, x.dtype)
    places = np.full((m, 8), -1, np.int32)
    values[:, :5], places[:, :5] = np.take_along_axis(x, order, 1), order
    by_eight = x.reshape(m, -1, 8)
    first = np.arange(n) // 8 * 8
    sums = by_eight.sum(1).astype(x.dtype)
    most = by_eight.max(1) + np.where(places < 0, x.dtype.type(0), values)
    return values, places, np.stack([sums, most]), (x + x + first).astype(x.dtype)


@numpipe.kernel(num_compute_wgs=1, warp_specialized=False)
def through_memory(x, at, y, hist, *, m: numpipe.Static, n: numpipe.Static):
    """Store a tile and vectors to shared memory, load parts of them, gather, scatter and add."""
    t = x[ds(0, m), ds(0, n)]

    def body(room, line, counts):
        room[...] = t
        line[...] = t.max(axis=0)
        counts[...] = numpipe.zeros((64,), np.int32)
        y[0, ds(0, m), ds(0, n)] = room[...] + line[...]
        y[1, ds(0, m), ds(0, n)] = numpipe.load_tile(room) * line[...]
        numpipe.atomic_add(counts.at[at[ds(0, m)]], numpipe.full((m,), 1, np.int32))
        hist[ds(0, 64)] = counts[...]

    numpipe.run_scoped(body, SMEM((m, n), x.dtype), SMEM((n,), x.dtype), SMEM((64,), np.int32))
    rows = at[ds(0, m)]
    y[2, ds(0, m), ds(0, n)] = x[rows, ds(0, n)]
    y[3, rows, ds(0, n)] = t


@numpipe.kernel(num_compute_wgs=1, warp_specialized=False)
def carried(x, y, *, m: numpipe.Static, n: numpipe.Static, steps: numpipe.Static):
    """Carry maxima, sums and a tile over a loop."""
    most, sums = numpipe.full(m, -np.inf, np.float32), numpipe.zeros(m, np.float32)
    total = numpipe.zeros((m, n), np.float32)
    for i in range(steps):
        t = x[ds(0, m), ds(i * n, n)]
        most = np.maximum(most, t.max(axis=1))
        sums = sums + t.sum(axis=1)
        total = total + t * most[:, None]
    y[ds(0, m), ds(0, n)] = total + sums[:, None]


def expected_of_carried(x: np.ndarray, n: int) -> np.ndarray:
    total = np.zeros((len(x), n), x.dtype)
    for i in range(x.shape[1] // n):
        total += x[:, i * n :][:, :n] * x[:, : (i + 1) * n].max(1, keepdims=True)
    return total + x.sum(1, keepdims=True)


@numpipe.kernel(num_compute_wgs=1, warp_specialized=False)
def meeting(x, v, y, z, *, m: numpipe.Static, n: numpipe.Static):
    """Combine tiles and vectors that lie in different layouts."""
    wide, tile = x[ds(0, m), ds(0, n)], x[ds(0, m), ds(0, 64)]
    apart = numpipe.load_tile(x.at[ds(0, m), ds(0, 64)], "rows 8")
    y[0, ds(0, m), ds(0, 64)] = tile + apart * wide.max(axis=1)[:, None]
    y[1, ds(0, m), ds(0, 64)] = wide[:, 64:128] + tile.max(axis=0)
    y[2, ds(0, m), ds(0, 64)] = np.where(apart > tile.max(axis=1)[:, None] - 3, apart, tile)
    z[ds(0, m)] = wide.max(axis=1) + apart.min(axis=1) + tile.max(axis=1) + v[ds(0, m)]
    z[ds(m, m)] = (tile.max(axis=1)[None, :] + v[ds(0, m)]).reshape(-1)


def expected_of_meeting(x: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    m, tile = len(x), x[:, :64]
    most = tile.max(1, keepdims=True)
    y = [
        tile + tile * x.max(1, keepdims=True),
        x[:, 64:128] + tile.max(0),
        np.where(tile > most - 3, tile, tile),
    ]
    z = [x.max(1) + tile.min(1) + most[:, 0] + v[:m], most[:, 0] + v[:m]]
    return np.stack(y).astype(x.dtype), np.concatenate(z).astype(x.dtype)


@numpipe.kernel(
    out_type=lambda x, gamma, beta: ArrayType(x.shape, x.dtype),
    grid=lambda x: (x.shape[0],),
    num_compute_wgs=1,
    warp_specialized=False,
)
def layer_norm(x, gamma, beta, y, *, n: numpipe.Static):
    """Normalize rows of n elements, one a CTA."""
    at = ds(numpipe.program_id(0), 1), ds(0, n)
    row = x[at].astype(np.float32)
    row = row - row.mean(axis=1, keepdims=True)
    row = row * numpipe.rsqrt((row * row).mean(axis=1) + 1e-5)[:, None]
    y[at] = row * gamma[ds(0, n)] + beta[ds(0, n)]


def layer_norm_of(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x = x - x.mean(1, keepdims=True)
    return x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * gamma + beta


@numpipe.kernel(
    out_type=lambda x: (ArrayType((x.shape[0], 8), np.float32), ArrayType((x.shape[0], 8), I32)),
    grid=lambda x: (cdiv(x.shape[0], 8),),
    num_compute_wgs=1,
    warp_specialized=False,
)
def chosen_experts(x, weights, experts, *, n: numpipe.Static):
    """Return the softmax of the 4 largest of each row's n numbers, and where they are."""
    rows = ds(numpipe.program_id(0) * 8, 8)
    best, at = numpipe.top_k(x[rows, ds(0, n)].astype(np.float32), 4)
    e = np.exp(best - best.max(axis=1)[:, None])
    weights[rows, ds(0, 8)] = e / e.sum(axis=1)[:, None]
    experts[rows, ds(0, 8)] = at


@numpipe.kernel(
    out_type=lambda x: ArrayType((x.shape[0],), np.float32),
    grid=lambda x: (cdiv(x.shape[0], 8),),
    num_compute_wgs=1,
    warp_specialized=False,
)
def log_sum_exp(x, y, *, n: numpipe.Static):
    """Return log(sum(exp(row))) of rows that are read 256 elements after 256."""
    rows = ds(numpipe.program_id(0) * 8, 8)
    most, total = numpipe.full(8, -np.inf, np.float32), numpipe.zeros(8, np.float32)
    for first in range(0, n, 256):
        part = x[rows, ds(first, 256)].astype(np.float32)
        before, most = most, np.maximum(most, part.max(axis=1))
        total = total * np.exp(before - most) + np.exp(part - most[:, None]).sum(axis=1)
    y[rows] = most + np.log(total)


@numpipe.kernel(num_compute_wgs=1)
def numbers(x, t, y):
    """Compute with elements of a bfloat16 or float16 array, also as the memory role sees them."""
    scale, shift = x[1].astype(np.float32), float(x[2])
    y[0] = scale * 2.0 + shift
    y[1] = abs(-scale)
    y[2] = np.maximum(float(x[1]), shift)
    y[3] = np.float32(x[3]).astype(np.int32)
    y[ds(8, 24)] = t[ds(0, 24)] * x[1] + numpipe.full(24, x[2], np.float32)


def numbers_of(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    x = x.astype(np.float32)
    head = [x[1] * 2 + x[2], abs(x[1]), max(x[1], x[2]), int(x[3]), 0, 0, 0, 0]
    return np.concatenate([np.array(head, np.float32), t[:24] * x[1] + x[2]])
