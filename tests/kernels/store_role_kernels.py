"""Kernels whose TMA stores are issued by a warp next to the loading one if `stores` is true."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

import numpipe
from numpipe import BlockSpec, CompilerParams, ds


@functools.cache
def gemm(stores: bool, wgs: int = 2, cluster: int = 1, persistent: bool = False, **params: Any):
    """Return a kernel ``a @ b.T`` with a float32 output and a tile of 64 rows per compute
    warpgroup."""
    rows = 64 * wgs if params.get("schedule") != "pingpong" else 64
    schedule = params.pop("schedule", "cooperative")
    options: dict[str, Any] = {
        "compiler_params": CompilerParams(store_role=stores, **params),
        "num_compute_wgs": wgs,
        "wg_axis": "wg",
        "schedule": schedule,
    }
    if cluster > 1:
        options |= {"cluster": (cluster,), "cluster_names": ("cluster",)}
    shared = "cluster" if cluster > 1 else None

    @numpipe.kernel(
        grid=lambda a, b, c: (
            (2 * cluster,) if persistent else (c.shape[0] // rows * (c.shape[1] // 128),)
        ),
        grid_names="cta",
        **options,
    )
    def product(a, b, c):
        wg = numpipe.axis_index("wg")
        down = c.shape[0] // rows
        rank = numpipe.axis_index("cluster") if cluster > 1 else 0
        for mc, n in numpipe.tiles(down // cluster, c.shape[1] // 128):
            m = mc * cluster + rank
            pipe = numpipe.pipeline(
                grid=(a.shape[1] // 64,),
                in_specs=(
                    BlockSpec((rows, 64), lambda k: (m, k)),
                    BlockSpec((128, 64), lambda k: (n, k), collective_axes=shared),
                ),
                max_concurrent_steps=2,
            )
            acc = numpipe.zeros((64, 128), np.float32)
            for (_,), (a_tile, b_tile) in pipe(a, b):
                acc = numpipe.wgmma(acc, a_tile.at[ds(wg * 64, 64), :], b_tile.T)
            c[ds(m * rows + wg * 64, 64), ds(n * 128, 128)] = acc

    return product


def by_store_role(kernel: Any) -> Any:
    """Return the kernel with its stores issued by the store role."""
    options = kernel.options
    params = (options.compiler_params or CompilerParams()).replace(store_role=True)
    return numpipe.Kernel(kernel.function, dataclasses.replace(options, compiler_params=params))


def operands(m: int = 256, n: int = 256, k: int = 128) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return small integers, so that sums are exact, and an output filled with NaN."""
    random = np.random.default_rng(m + n + k)
    a, b = (random.integers(-3, 4, shape).astype(np.float16) for shape in ((m, k), (n, k)))
    return a, b, np.full((m, n), np.nan, np.float32)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float32) @ b.astype(np.float32).T


@functools.cache
def sums(stores: bool, store_slots: int = 0) -> Any:
    """Return a small version of the dQ of attention backward: CTA i adds ``x[i] * k`` to block k of
    `dq`, for each k."""

    @numpipe.kernel(
        grid=lambda x, dq: (x.shape[0] // 128,),
        grid_names="i",
        num_compute_wgs=2,
        compiler_params=CompilerParams(store_role=stores, store_slots=store_slots),
    )
    def added(x, dq):
        wg, i = numpipe.axis_index("wg"), numpipe.axis_index("i")
        pipe = numpipe.pipeline(
            grid=(x.shape[1] // 64,),
            in_specs=(BlockSpec((128, 64), lambda k: (i, k)),),
            max_concurrent_steps=2,
        )
        for (k,), (x_tile,) in pipe(x):
            part = x_tile[ds(wg * 64, 64), :].astype(np.float32)
            numpipe.atomic_add(dq.at[ds(k * 128 + wg * 64, 64), ds(0, 64)], part)

    return added


def added_up(x: np.ndarray) -> np.ndarray:
    """Return what `sums` adds to an array of zeros."""
    blocks = x.astype(np.float32).reshape(-1, 128, x.shape[1] // 64, 64).sum(0)
    return np.ascontiguousarray(blocks.swapaxes(0, 1)).reshape(-1, 64)
