"""Slices and reshapes of register tiles, with NumPy's results."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import numpipe
from numpipe import ds

TYPES = [np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.int8)]


@numpipe.kernel
def columns_of_tiles(x, y):
    """Slice columns: swapped halves, a middle part, the last ones; slice the second 64 rows."""
    t = x[ds(0, 128), ds(0, 64)]
    y[ds(0, 128), ds(0, 32)] = t[:, 32:]
    y[ds(0, 128), ds(32, 32)] = t[:, 0:32]
    y[ds(0, 128), ds(64, 24)] = t[:, ds(16, 24)]
    y[ds(0, 128), ds(88, 8)] = t[:, -8:]
    y[ds(0, 64), ds(96, 16)] = t[64:128, :][:, :16]
    y[ds(64, 64), ds(96, 16)] = t[:, 8:-40][0:64, :]
    y[ds(0, 128), ds(112, 64)] = t[:, :]


def columns_wrong(dtype: np.dtype, target: str) -> bool:
    x, y = np.arange(128 * 64).reshape(128, 64).astype(dtype), np.zeros((128, 176), dtype)
    columns_of_tiles(x, y, target=target)
    rows = np.concatenate([x[64:, :16], x[:64, 8:24]])
    return not (
        y == np.concatenate([x[:, 32:], x[:, :32], x[:, 16:40], x[:, 56:], rows, x], axis=1)
    ).all()


@numpipe.kernel
def parts_of_vectors(x, y, z):
    """Slice vectors of each layout, and tiles with one row or column, and reshape them."""
    v, t = x[0, ds(0, 192)], x[ds(0, 192), ds(0, 64)]
    y[0, ds(0, 40)] = v[ds(8, 40)]
    y[1, ds(0, 64)] = v[ds(64, 64)]
    y[2, ds(0, 64)] = t.max(axis=1)[ds(128, 64)]
    y[3, ds(0, 8)] = t.max(axis=0)[ds(24, 8)]
    y[ds(4, 1), ds(0, 16)] = t.max(axis=0, keepdims=True)[:, 8:24]
    y[ds(5, 1), ds(0, 64)] = t.max(axis=0).reshape(1, -1)
    y[6, ds(0, 64)] = t.max(axis=1, keepdims=True)[64:128, :].reshape(64)
    z[ds(0, 64), ds(0, 64)] = (
        t[0:64, :] + v[ds(64, 64)][:, None] - v[ds(128, 64)].reshape((64, 1)) + v[ds(64, 64)]
    )
    z[ds(64, 64), ds(0, 64)] = np.exp2(t[128:192, :]) * t.sum(axis=1)[ds(0, 64)].reshape(-1, 1)


def vectors_wrong(target: str) -> bool:
    x = np.random.default_rng(2).integers(-6, 6, (192, 192)).astype(np.float32)
    y, z = np.zeros((7, 64), np.float32), np.zeros((128, 64), np.float32)
    parts_of_vectors(x, y, z, target=target)
    t, v = x[:, :64], x[0]
    found = [
        v[8:48],
        v[64:128],
        t.max(1)[128:],
        t.max(0)[24:32],
        t.max(0)[8:24],
        t.max(0),
        t.max(1)[64:128],
    ]
    wanted = np.stack([np.pad(part, (0, 64 - part.size)) for part in found])
    other = np.concatenate(
        [
            t[:64] + v[64:128, None] - v[128:, None] + v[64:128],
            np.exp2(t[128:]) * t.sum(1)[:64, None],
        ]
    )
    return not ((y == wanted).all() and (z == other).all())


@numpipe.kernel
def coalesced_parts(x, y):
    t = numpipe.load_tile(x.at[ds(0, 128), ds(0, 128)])
    y[ds(0, 128), ds(0, 64)] = t[:, 64:128]
    y[ds(0, 64), ds(64, 128)] = t[64:128, :] * 2


def coalesced_wrong(target: str) -> bool:
    x = np.arange(128 * 128).reshape(128, 128).astype(np.float16) % 512
    y = np.zeros((128, 192), np.float16)
    coalesced_parts(x, y, target=target)
    return not ((y[:, :64] == x[:, 64:]).all() and (y[:64, 64:] == x[64:] * np.float16(2)).all())


@numpipe.kernel
def halves_of_a_product(a, b, c):
    """Compute SwiGLU: the gate and the value are the two halves of one accumulator's columns."""
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(a.shape[1] // 64,),
        in_specs=(
            numpipe.BlockSpec((64, 64), lambda k: (0, k)),
            numpipe.BlockSpec((64, 64), lambda k: (0, k)),
        ),
    )
    for (_,), (x, y) in pipe(a, b):
        acc = numpipe.wgmma(acc, x, y.T)
    gate, value = acc[:, :32], acc[:, 32:]
    c[ds(0, 64), ds(0, 32)] = gate * numpipe.sigmoid(gate) * value


def halves_wrong(target: str) -> bool:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((64, 128)).astype(np.float16) for _ in "ab")
    c = np.zeros((64, 32), np.float32)
    halves_of_a_product(a, b, c, target=target)
    acc = a.astype(np.float64) @ b.astype(np.float64).T
    wanted = acc[:, :32] / (1 + np.exp(-acc[:, :32])) * acc[:, 32:]
    return bool(np.abs(c - wanted).max() > 1e-2 * np.abs(wanted).max())
