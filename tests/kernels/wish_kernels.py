"""Ten kernels that needed workarounds in earlier versions, in their plain form, for the simulator
and the GPU.

`CASES` gives the inputs and NumPy's result of each; the numbers are such that both agree to the
last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import numpipe
from numpipe import SMEM, BlockSpec, Element, cdiv, ds

F32, Arrays = np.float32, dict[str, np.ndarray]


@numpipe.kernel
def one_row_blocks(x, y):
    row = BlockSpec((None, 256), lambda i: (i, 0))
    pipe = numpipe.pipeline(
        grid=(x.shape[0],), max_concurrent_steps=3, in_specs=(row,), out_specs=(row,)
    )
    for _, (tile, out) in pipe(x, y):
        out[...] = tile[...] * 2.0


@numpipe.kernel
def bytes_with_edges(x, y):
    block = BlockSpec((512,), lambda i: (i,))
    pipe = numpipe.pipeline(
        grid=(cdiv(x.shape[0], 512),), max_concurrent_steps=3, in_specs=(block,), out_specs=(block,)
    )
    for _, (tile, out) in pipe(x, y):
        out[...] = tile[...] + tile[...]


@numpipe.kernel(grid=lambda pool, pages, counts, y: (counts.shape[0],))
def pages_by_table(pool, pages, counts, y):
    s = numpipe.program_id(0)
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(counts[s],),
        max_concurrent_steps=3,
        in_specs=(BlockSpec((64, 64), lambda k: (pages[s, k], 0)),),
    )
    for _, (page,) in pipe(pool):
        acc = acc + page[...].astype(np.float32)
    y[ds(s * 64, 64), ds(0, 64)] = acc


@numpipe.kernel
def three_dimensions(x, y):
    block = BlockSpec((None, 16, 64), lambda i, j, k: (i, j, k))
    pipe = numpipe.pipeline(
        grid=(x.shape[0], cdiv(x.shape[1], 16), cdiv(x.shape[2], 64)),
        max_concurrent_steps=3,
        in_specs=(block,),
        out_specs=(block,),
    )
    for _, (tile, out) in pipe(x, y):
        out[...] = tile[...] + 1.0


@numpipe.kernel
def five_points(x, y):
    pipe = numpipe.pipeline(
        grid=(cdiv(x.shape[0], 64), cdiv(x.shape[1], 128)),
        in_specs=(BlockSpec((Element(72), Element(160)), lambda i, j: (i * 64 - 1, j * 128 - 4)),),
    )
    for (i, j), (t,) in pipe(x):
        near = t[0:64, 4:132] + t[2:66, 4:132] + t[1:65, 3:131] + t[1:65, 5:133]
        y[ds(i * 64, 64), ds(j * 128, 128)] = near - 4.0 * t[1:65, 4:132]


@numpipe.kernel
def sums_of_rows(x, y):
    pipe = numpipe.pipeline(
        grid=(x.shape[0],),
        max_concurrent_steps=3,
        in_specs=(BlockSpec((None, 256), lambda i: (i, 0)),),
    )
    for (i,), (row,) in pipe(x):
        y[i] = row[...].sum()


@numpipe.kernel(grid=2)
def histogram(x, counts):
    bins = numpipe.scratch(SMEM((256,), np.int32))
    bins[...] = numpipe.full(256, 0, np.int32)
    cta = numpipe.program_id(0)
    pipe = numpipe.pipeline(
        grid=(x.shape[0] // 128,), in_specs=(BlockSpec((64, 128), lambda i: (2 * i + cta, 0)),)
    )
    for _, (tile,) in pipe(x):
        numpipe.atomic_add(bins.at[tile[...].astype(np.int32)], 1)
    numpipe.atomic_add(counts.at[ds(0, 256)], bins[...])


@numpipe.kernel(grid=lambda x, places, y: (cdiv(x.shape[0], 64),))
def scattered_rows(x, places, y):
    rows = ds(numpipe.program_id(0) * 64, 64)
    y[places[rows], :] = x[rows, ds(0, 128)]


@numpipe.kernel
def product_of_32_rows(a, b, c, first):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(cdiv(a.shape[1], 64),),
        max_concurrent_steps=3,
        in_specs=(
            BlockSpec((Element(64), 64), lambda k: (first, k)),
            BlockSpec((64, 64), lambda k: (0, k)),
        ),
    )
    for _, (x, y) in pipe(a, b):
        acc = numpipe.wgmma(acc, x, y.T)
    c[ds(first, 64, stop=first + 32), ds(0, 64)] = acc


@numpipe.kernel(warp_specialized=False, grid=lambda x, best, at: (cdiv(x.shape[0], 8),))
def argmax_of_long_rows(x, best, at):
    rows = ds(numpipe.program_id(0) * 8, 8)
    top = numpipe.layout_cast(numpipe.full(8, -np.inf, np.float32), "column 32")
    where = numpipe.layout_cast(numpipe.full(8, 0, np.int32), "column 32")
    for j in range(cdiv(x.shape[1], 1024)):
        tile = np.where(
            numpipe.iota((8, 1024), 1) < x.shape[1] - j * 1024, x[rows, ds(j * 1024, 1024)], -np.inf
        )
        new = tile.max(axis=1)
        where = np.where(new > top, tile.argmax(axis=1) + j * 1024, where)
        top = np.maximum(top, new)
    best[rows] = top
    at[rows] = where


# ---- inputs and results of each kernel
def _rows(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = rng.integers(-9, 10, (37, 256)).astype(F32)
    return {"x": x, "y": np.zeros_like(x)}, {"y": 2 * x}


def _bytes(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = rng.integers(-60, 60, 1777).astype(np.int8)
    return {"x": x, "y": np.zeros_like(x)}, {"y": 2 * x}


def _pages(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    pool = rng.integers(-3, 4, (640, 64)).astype(np.float16)
    pages = rng.integers(0, 10, (3, 5))
    counts = np.array([4, 0, 1])
    sums = [
        pool.astype(F32).reshape(10, 64, 64)[at[:n]].sum(0)
        for at, n in zip(pages, counts, strict=True)
    ]
    return {"pool": pool, "pages": pages, "counts": counts, "y": np.ones((192, 64), F32)}, {
        "y": np.concatenate(sums)
    }


def _three(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = rng.integers(-9, 10, (3, 40, 100)).astype(F32)
    return {"x": x, "y": np.zeros_like(x)}, {"y": x + 1}


def _points(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = rng.integers(-9, 10, (130, 300)).astype(F32)
    p = np.pad(x, 1)
    return {"x": x, "y": np.zeros_like(x)}, {
        "y": p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * x
    }


def _sums(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = rng.integers(-9, 10, (37, 256)).astype(F32)
    return {"x": x, "y": np.zeros(37, F32)}, {"y": x.sum(1)}


def _counts(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = rng.integers(0, 256, (256, 128)).astype(np.uint8)
    return {"x": x, "counts": np.zeros(256, np.int32)}, {
        "counts": np.bincount(x.reshape(-1), minlength=256)
    }


def _places(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x, places = rng.random((192, 128), F32), rng.permutation(200)[:192].astype(np.int32)
    y = np.zeros((200, 128), F32)
    y[places] = x
    return {"x": x, "places": places, "y": np.zeros_like(y)}, {"y": y}


def _product(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    a, b = (rng.integers(-3, 4, (rows, 200)).astype(np.float16) for rows in (96, 64))
    c = np.full((96, 64), 7, F32)
    c[40:72] = a[40:72].astype(F32) @ b.T.astype(F32)
    return {"a": a, "b": b, "c": np.full((96, 64), 7, F32), "first": np.int32(40)}, {"c": c}  # type: ignore[dict-item]


def _argmax(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = rng.integers(-(10**6), 10**6, (20, 100_000)).astype(F32)
    x[3, [5, 70_000]], x[4], x[5] = 10**6, -7, np.linspace(-1, 0, 100_000)
    found = {"best": x.max(1), "at": x.argmax(1)}
    return {"x": x, "best": np.zeros(20, F32), "at": np.zeros(20, np.int32)}, found


CASES: dict[str, tuple[Any, Callable[[np.random.Generator], tuple[Arrays, Arrays]]]] = {
    kernel.name: (kernel, given)
    for kernel, given in (
        (one_row_blocks, _rows),
        (bytes_with_edges, _bytes),
        (pages_by_table, _pages),
        (three_dimensions, _three),
        (five_points, _points),
        (sums_of_rows, _sums),
        (histogram, _counts),
        (scattered_rows, _places),
        (product_of_32_rows, _product),
        (argmax_of_long_rows, _argmax),
    )
}


def wrong(name: str, target: str, seed: int = 0) -> list[str]:
    """Run a kernel, and return the names of arrays that differ from NumPy's."""
    kernel, given = CASES[name]
    arguments, wanted = given(np.random.default_rng(seed))
    kernel(*arguments.values(), target=target)
    return [array for array, right in wanted.items() if not (arguments[array] == right).all()]
