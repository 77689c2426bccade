"""One product, c = a @ b.T, in the loop form and in every variant of the body form, for the
simulator and the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, cdiv, ds

HALF = np.dtype(np.float16)
emit = numpipe.emit_pipeline_warp_specialized


@dataclass(frozen=True)
class Config:
    tm: int = 128
    tn: int = 128
    tk: int = 64
    slots: int = 3


def product(a: np.ndarray, b: np.ndarray) -> Any:
    return a.astype(np.float64) @ b.astype(np.float64).T


def gemm(function: Any) -> Any:
    return numpipe.kernel(
        function,
        out_type=lambda a, b, cfg: ArrayType((a.shape[0], b.shape[0]), a.dtype),
        grid=numpipe.persistent(),
        num_compute_wgs=2,
    )


@gemm
def gemm_loop(a, b, c, *, cfg: numpipe.Static = Config()):
    wg = numpipe.axis_index("wg")
    rows = cfg.tm // numpipe.axis_size("wg") if cfg.tm >= 128 else 64
    for m, n in numpipe.tiles(cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn)):
        acc = numpipe.zeros((rows, cfg.tn), np.float32)
        pipe = numpipe.pipeline(
            grid=(cdiv(a.shape[1], cfg.tk),),
            max_concurrent_steps=cfg.slots,
            in_specs=(
                BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
                BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
            ),
        )
        for (_,), (a_tile, b_tile) in pipe(a, b):
            acc = numpipe.wgmma(acc, a_tile.at[ds(wg * rows % cfg.tm, rows), :], b_tile.T)
        c[ds(m * cfg.tm + wg * rows % cfg.tm, rows), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)


@gemm
def gemm_body(a, b, c, *, cfg: numpipe.Static = Config()):
    wg = numpipe.axis_index("wg")
    rows = cfg.tm // numpipe.axis_size("wg") if cfg.tm >= 128 else 64
    for m, n in numpipe.tiles(cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn)):

        def body(indices, a_tile, b_tile, acc):
            return numpipe.wgmma(acc, a_tile.at[ds(wg * rows % cfg.tm, rows), :], b_tile.T)

        def compute(pipeline):
            acc = pipeline(numpipe.zeros((rows, cfg.tn), np.float32))
            c[ds(m * cfg.tm + wg * rows % cfg.tm, rows), ds(n * cfg.tn, cfg.tn)] = acc.astype(
                c.dtype
            )

        emit(
            body,
            grid=(cdiv(a.shape[1], cfg.tk),),
            max_concurrent_steps=cfg.slots,
            compute_context=compute,
            in_specs=(
                BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
                BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
            ),
        )(a, b)


@gemm
def gemm_coroutine(a, b, c, *, cfg: numpipe.Static = Config()):
    """Compute the product with functions defined outside of the tile loop, which capture the tile
    as a tuple."""
    wg = numpipe.axis_index("wg")
    rows = cfg.tm // numpipe.axis_size("wg")

    def body(indices, a_tile, b_tile, acc):
        return numpipe.wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T)

    for m, n in numpipe.tiles(cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn)):

        def compute():
            acc = yield numpipe.zeros((rows, cfg.tn), np.float32)
            c[ds(m * cfg.tm + wg * rows, rows), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)

        emit(
            body,
            grid=(cdiv(a.shape[1], cfg.tk),),
            max_concurrent_steps=cfg.slots,
            carry_coroutine=compute,
            in_specs=(
                BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
                BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
            ),
        )(a, b)


@numpipe.function
def share(cfg, parts):
    """Return the rows of a tile per part: a compile-time constant if both arguments are."""
    return cfg.tm // parts


@numpipe.function
def accumulate(indices, a_tile, b_tile, acc):
    """Accumulate a step, as a body imported from another module would."""
    rows = acc.shape[0]
    return numpipe.wgmma(acc, a_tile.at[ds(numpipe.axis_index("wg") * rows, rows), :], b_tile.T)


@numpipe.function
def tile_product(a, b, c, m, n, *, cfg, slots=3):
    """Compute a whole tile with a pipeline of its own, whose ring belongs to the calling kernel."""
    wg, rows = numpipe.axis_index("wg"), share(cfg, numpipe.axis_size("wg"))

    def compute(pipeline):
        acc = pipeline(numpipe.zeros((rows, cfg.tn), np.float32))
        c[ds(m * cfg.tm + wg * rows, rows), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)

    emit(
        accumulate,
        grid=(cdiv(a.shape[1], cfg.tk),),
        max_concurrent_steps=slots,
        compute_context=compute,
        in_specs=(
            BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
            BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
        ),
    )(a, b)


@gemm
def gemm_functions(a, b, c, *, cfg: numpipe.Static = Config()):
    for m, n in numpipe.tiles(cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn)):
        tile_product(a, b, c, n=n, m=m, cfg=cfg)


KERNELS = [gemm_body, gemm_coroutine, gemm_functions]
