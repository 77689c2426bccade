"""Kernels used by several tests: GEMMs of every configuration, nested pipelines, a host table, trip
counts per tile.

All compute ``c = a @ b.T`` for a (M, K) and b (N, K), unless noted. What a kernel's options fix
(warpgroups, staging) is an argument of the factory; what one compile fixes is a `Static`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams, cdiv, ds

F16 = np.dtype(np.float16)
BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Config:
    """Tile and ring of a GEMM."""

    tm: int = 128
    tn: int = 256
    tk: int = 64
    slots: int = 4
    delay: int = 0
    order: str = "grouped"
    group: int = 16
    dynamic: bool = False
    """whether CTAs take tiles from a counter"""


SMALL = Config(tm=128, tn=64, tk=64, slots=2)


def product_type(a: Any, b: Any) -> ArrayType:
    return ArrayType((a.shape[0], b.shape[0]), a.dtype)


@functools.cache
def gemm(num_compute_wgs: int = 2, store_slots: int = 0, ctas: int | None = None) -> Any:
    """Return the kernel of examples/gemm.py; c may have any dtype that `astype` supports."""

    @numpipe.kernel(
        out_type=product_type,
        grid=numpipe.persistent(ctas),
        num_compute_wgs=num_compute_wgs,
        wg_axis="wg",
        memory_registers=40,
        compiler_params=CompilerParams(store_slots=store_slots),
    )
    def matmul(a, b, c, *, cfg: numpipe.Static = Config()):
        wg = numpipe.axis_index("wg")
        rows = cfg.tm // numpipe.axis_size("wg")
        m_tiles, n_tiles = cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn)
        for m, n in numpipe.tiles(
            m_tiles, n_tiles, order=cfg.order, group=cfg.group, dynamic=cfg.dynamic
        ):
            acc = numpipe.zeros((rows, cfg.tn), np.float32)
            pipe = numpipe.pipeline(
                grid=(cdiv(a.shape[1], cfg.tk),),
                max_concurrent_steps=cfg.slots,
                delay_release=cfg.delay,
                in_specs=(
                    BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
                    BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
                ),
            )
            for (k,), (a_tile, b_tile) in pipe(a, b):
                acc = numpipe.wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T)
            c[ds(m * cfg.tm + wg * rows, rows), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)

    return matmul


@functools.cache
def gemm_by_table(ctas: int = 2) -> Any:
    """Compute tiles in the order of a host table of int32 rows (m, n)."""

    @numpipe.kernel(grid=numpipe.persistent(ctas), num_compute_wgs=2, wg_axis="wg")
    def matmul_by_table(a, b, table, c, *, cfg: numpipe.Static = Config()):
        wg = numpipe.axis_index("wg")
        rows = cfg.tm // numpipe.axis_size("wg")
        for m, n in numpipe.tiles(table.shape[0], order=table):
            acc = numpipe.zeros((rows, cfg.tn), np.float32)
            pipe = numpipe.pipeline(
                grid=(cdiv(a.shape[1], cfg.tk),),
                max_concurrent_steps=cfg.slots,
                delay_release=cfg.delay,
                in_specs=(
                    BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
                    BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
                ),
            )
            for (k,), (a_tile, b_tile) in pipe(a, b):
                acc = numpipe.wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T)
            c[ds(m * cfg.tm + wg * rows, rows), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)

    return matmul_by_table


@functools.cache
def nested_gemm(ctas: int = 2) -> Any:
    """Loop over blocks of 128 columns of a; in each, b comes in two steps of 64 through a ring of
    its own."""

    @numpipe.kernel(
        out_type=product_type, grid=numpipe.persistent(ctas), num_compute_wgs=2, wg_axis="wg"
    )
    def matmul_nested(a, b, c, *, cfg: numpipe.Static = Config()):
        wg = numpipe.axis_index("wg")
        rows = cfg.tm // numpipe.axis_size("wg")
        for m, n in numpipe.tiles(cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn)):
            acc = numpipe.zeros((rows, cfg.tn), np.float32)
            outer = numpipe.pipeline(
                grid=(cdiv(a.shape[1], 128),),
                max_concurrent_steps=2,
                in_specs=(BlockSpec((cfg.tm, 128), lambda i: (m, i)),),
            )
            for (i,), (a_tile,) in outer(a):
                inner = numpipe.pipeline(
                    grid=(2,),
                    max_concurrent_steps=cfg.slots,
                    delay_release=cfg.delay,
                    in_specs=(BlockSpec((cfg.tn, 64), lambda j: (n, 2 * i + j)),),
                )
                for (j,), (b_tile,) in inner(b):
                    acc = numpipe.wgmma(
                        acc, a_tile.at[ds(wg * rows, rows), ds(j * 64, 64)], b_tile.T
                    )
            c[ds(m * cfg.tm + wg * rows, rows), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)

    return matmul_nested


def operands(
    m: int,
    n: int,
    k: int,
    dtype: np.dtype = F16,
    *,
    a_order: str = "row",
    b_order: str = "row",
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return small integers: all products and sums of them are exact, in any order."""
    rng = np.random.default_rng(seed)

    def one(shape: tuple[int, int], order: str) -> np.ndarray:
        array = rng.integers(-3, 4, shape).astype(dtype)
        return array if order == "row" else np.asfortranarray(array)

    return one((m, k), a_order), one((n, k), b_order)


def product(a: np.ndarray, b: np.ndarray, dtype: np.dtype | None = None) -> np.ndarray:
    """Return ``a @ b.T`` computed in float64 and rounded to `dtype` (default: a's)."""
    return (a.astype(np.float64) @ b.astype(np.float64).T).astype(dtype or a.dtype)


@functools.cache
def by_trip_count(ctas: int = 2) -> Any:
    """Sum tile (m, n) over `steps` blocks of K, from rows (m, n, steps) of a host table; 0 steps
    give zeros."""

    @numpipe.kernel(grid=numpipe.persistent(ctas), num_compute_wgs=2, wg_axis="wg")
    def matmul_by_trip_count(a, b, counts, c, *, cfg: numpipe.Static = Config()):
        wg = numpipe.axis_index("wg")
        rows = cfg.tm // numpipe.axis_size("wg")
        for m, n, steps in numpipe.tiles(counts.shape[0], order=counts, dynamic=cfg.dynamic):
            acc = numpipe.zeros((rows, cfg.tn), np.float32)
            pipe = numpipe.pipeline(
                grid=(steps,),
                max_concurrent_steps=cfg.slots,
                delay_release=cfg.delay,
                in_specs=(
                    BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
                    BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
                ),
            )
            for (k,), (a_tile, b_tile) in pipe(a, b):
                acc = numpipe.wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T)
            c[ds(m * cfg.tm + wg * rows, rows), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)

    return matmul_by_trip_count
