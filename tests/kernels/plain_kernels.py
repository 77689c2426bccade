"""Kernels as a new user writes them: loops over constants, `if wg == 0:`, bound defaults, a
parameter `seed`, repeated specs, one verb for sums; for the simulator and the GPU.

`CASES` gives the arguments of each and NumPy's result; the numbers are such that both agree to the
last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import numpipe
from numpipe import SMEM, ArrayType, Barrier, BlockSpec, ds

F32, Arrays = np.float32, dict[str, Any]
WEIGHTS = (1.0, 0.5, -2.0)
ROWS = 2


@numpipe.kernel
def halves_in_turn(x, y):
    t = x[ds(0, 64), ds(0, 256)]
    for c in (0, 128):
        y[ds(0, 64), ds(128 - c, 128)] = t[:, c : c + 128]


@numpipe.kernel
def weighted_parts(x, y):
    t = x[ds(0, 64), ds(0, 192)]
    acc = numpipe.zeros((64, 64), np.float32)
    for i, (weight, dtype) in enumerate(
        zip(WEIGHTS, (np.float32, np.float16, np.float32), strict=True)
    ):
        first = 64 * i
        for j in numpipe.static_range(2):
            if i == 2 and j == 1:
                continue
            acc += (t[:, first : first + 64] * weight).astype(dtype).astype(np.float32)
    y[ds(0, 64), ds(0, 64)] = acc


@numpipe.kernel(grid=lambda x, y, total: (x.shape[0] // 64,), num_compute_wgs=2)
def one_warpgroup_stores(x, y, total):
    m = numpipe.program_id(0)
    wg = numpipe.axis_index("wg")
    t = x[ds(m * 64, 64), ds(0, 64)]
    if wg == 0:
        y[ds(m * 64, 64), ds(0, 64)] = t + 1.0
    else:
        numpipe.atomic_add(total.at[ds(0, 64)], t.sum(axis=0))


@numpipe.kernel(grid=lambda x, y, total: (x.shape[0] // 64,), num_compute_wgs=2)
def branches_around_a_pipeline(x, y, total):
    m = numpipe.program_id(0)
    wg = numpipe.axis_index("wg")
    summed = numpipe.scratch(Barrier(1))
    rows = BlockSpec((64, 64), lambda k: (m, k))
    acc, first = numpipe.zeros((64, 64), np.float32), 0
    for _, (tile,) in numpipe.pipeline(grid=(x.shape[1] // 64,), in_specs=(rows,))(x):
        acc = acc + tile[...]
    if wg == 0 and x.shape[1] > 64:
        numpipe.atomic_add(total.at[0], acc.sum())
        first = 32
        numpipe.barrier_arrive(summed)
    elif wg == 1 or x.shape[1] > 4096:
        first = 64
    numpipe.barrier_wait(summed)
    y[ds(m * 64, 64), ds(first - 32, 32)] = acc[:, 0:32] + first
    for _, (tile,) in numpipe.pipeline(grid=(1,), in_specs=(rows,))(x):
        if wg == 1:
            y[ds(m * 64, 64), ds(64, 64)] = tile[...]


@numpipe.kernel(
    grid=lambda x, n=ROWS: (n,), out_type=lambda x, order="F": ArrayType(x.shape, x.dtype, order)
)
def shifted_by_seed(x, y, *, seed=1):
    rows = ds(numpipe.program_id(0) * 64, 64)
    y[rows, ds(0, 64)] = x[rows, ds(0, 64)] + seed


@numpipe.kernel
def both_from_one_spec(a, b, y):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(grid=(3,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),) * 2)
    for _, (a_tile, b_tile) in pipe(a, b):
        acc = numpipe.wgmma(acc, a_tile, b_tile.T)
    y[ds(0, 64), ds(0, 64)] = acc


@numpipe.kernel(grid=(3,))
def sums_from_registers_and_shared_memory(x, y, z):
    tile = numpipe.scratch(SMEM((64, 64), np.float32))
    tile[...] = x[ds(0, 64), ds(0, 64)]
    numpipe.atomic_add(y.at[ds(0, 64), ds(0, 64)], x[ds(0, 64), ds(0, 64)])
    numpipe.atomic_add(z.at[ds(0, 64), ds(0, 64)], tile)
    numpipe.wait_smem_to_gmem(0)


def _whole(rng: np.random.Generator, *shape: int, dtype: Any = F32) -> np.ndarray:
    return rng.integers(-4, 5, shape).astype(dtype)


def _halves(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = _whole(rng, 64, 256)
    return {"x": x, "y": np.zeros_like(x)}, {"y": np.roll(x, 128, axis=1)}


def _weighted(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = _whole(rng, 64, 192)
    p = [x[:, 64 * i : 64 * i + 64] * F32(w) for i, w in enumerate(WEIGHTS)]
    return {"x": x, "y": np.zeros((64, 64), F32)}, {"y": 2 * p[0] + 2 * p[1] + p[2]}


def _stores(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = _whole(rng, 128, 64)
    return {"x": x, "y": np.zeros_like(x), "total": np.zeros(64, F32)}, {
        "y": x + 1,
        "total": x.sum(0),
    }


def _around(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = _whole(rng, 128, 128)
    acc = x[:, :64] + x[:, 64:]
    y = np.concatenate([acc[:, :32] + 32, acc[:, :32] + 64, x[:, :64]], axis=1)
    return {"x": x, "y": np.zeros((128, 128), F32), "total": np.zeros(1, F32)}, {
        "y": y,
        "total": acc.sum(),
    }


def _shifted(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = _whole(rng, 128, 64)
    y = np.zeros((128, 64), F32, "F")
    return {"x": x, "y": y, "seed": 5}, {"y": x + 5}


def _product(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    a, b = (_whole(rng, 64, 192, dtype=np.float16) for _ in range(2))
    return {"a": a, "b": b, "y": np.zeros((64, 64), F32)}, {"y": a.astype(F32) @ b.T.astype(F32)}


def _sums(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = _whole(rng, 64, 64)
    return {"x": x, "y": np.zeros_like(x), "z": np.zeros_like(x)}, {"y": 3 * x, "z": 3 * x}


CASES: dict[str, tuple[Any, Callable[[np.random.Generator], tuple[Arrays, Arrays]]]] = {
    kernel.name: (kernel, given)
    for kernel, given in (
        (halves_in_turn, _halves),
        (weighted_parts, _weighted),
        (one_warpgroup_stores, _stores),
        (branches_around_a_pipeline, _around),
        (shifted_by_seed, _shifted),
        (both_from_one_spec, _product),
        (sums_from_registers_and_shared_memory, _sums),
    )
}


def wrong(name: str, target: str, seed: int = 0) -> list[str]:
    """Run a kernel, and return the names of arrays that differ from NumPy's."""
    kernel, given = CASES[name]
    arguments, wanted = given(np.random.default_rng(seed))
    kernel(target=target, **arguments)
    return [array for array, right in wanted.items() if not (arguments[array] == right).all()]
