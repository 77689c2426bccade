"""Products whose tiles are split along K (`numpipe.split_tiles`), under both schedules, for the
simulator and the GPU."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

import numpipe
from numpipe import BlockSpec, Workspace, cdiv, ds


@dataclass(frozen=True)
class Config:
    """A tile of tm x tn elements with steps of tk; `split` as in `numpipe.split_tiles`."""

    tm: int = 64
    tn: int = 64
    tk: int = 64
    slots: int = 3
    split: int | str | None = "stream"
    schedule: str = "cooperative"
    wgs: int = 1


@functools.cache
def split_product(cfg: Config, ctas: int | None = None) -> Any:
    """Return a kernel ``c = a @ b.T`` for a config, on `ctas` CTAs (None: as many as the GPU has
    SMs)."""

    @numpipe.kernel(
        out_type=lambda a, b: numpipe.ArrayType((a.shape[0], b.shape[0]), a.dtype),
        grid=numpipe.persistent(ctas),
        num_compute_wgs=cfg.wgs,
        wg_axis="wg",
        schedule=cfg.schedule,
        workspace=Workspace((cfg.tm, cfg.tn), cfg.split),
    )
    def split_matmul(a, b, c, work):
        wg = numpipe.axis_index("wg")
        rows = cfg.tm // numpipe.axis_size("wg")
        for m, n, part in numpipe.split_tiles(
            cdiv(a.shape[0], cfg.tm),
            cdiv(b.shape[0], cfg.tn),
            steps=cdiv(a.shape[1], cfg.tk),
            split=cfg.split,
            order="grouped",
            group=2,
        ):
            acc = numpipe.zeros((rows, cfg.tn), np.float32)
            pipe = numpipe.pipeline(
                grid=(part.steps,),
                max_concurrent_steps=cfg.slots,
                in_specs=(
                    BlockSpec((cfg.tm, cfg.tk), lambda k: (m, part.begin + k)),
                    BlockSpec((cfg.tn, cfg.tk), lambda k: (n, part.begin + k)),
                ),
            )
            for (k,), (a_tile, b_tile) in pipe(a, b):
                acc = numpipe.wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T)
            acc = numpipe.combine(acc, part, work)
            if part.begin == 0:
                c[ds(m * cfg.tm + wg * rows, rows), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)

    return split_matmul


@dataclass(frozen=True)
class InCluster:
    """A tile of tm x tn elements whose steps are distributed over the `size` CTAs of a cluster."""

    size: int = 2
    tm: int = 64
    tn: int = 64
    tk: int = 64
    slots: int = 3
    schedule: str = "cooperative"
    wgs: int = 1


@functools.cache
def exchanged(cfg: InCluster) -> Any:
    """Return a kernel ``c = a @ b.T`` in which each CTA of a cluster has a part of each tile's
    steps.

    Each CTA stores a share of the tile's columns.
    """

    @numpipe.kernel(
        out_type=lambda a, b: numpipe.ArrayType((a.shape[0], b.shape[0]), a.dtype),
        grid=numpipe.persistent(),
        cluster=cfg.size,
        cluster_names="k",
        num_compute_wgs=cfg.wgs,
        wg_axis="wg",
        schedule=cfg.schedule,
    )
    def exchanged_matmul(a, b, c):
        wg = numpipe.axis_index("wg")
        rows, columns = cfg.tm // numpipe.axis_size("wg"), cfg.tn // numpipe.axis_size("k")
        for m, n, part in numpipe.split_tiles(
            cdiv(a.shape[0], cfg.tm),
            cdiv(b.shape[0], cfg.tn),
            steps=cdiv(a.shape[1], cfg.tk),
            split="k",
            order="grouped",
            group=2,
        ):
            acc = numpipe.zeros((rows, cfg.tn), np.float32)
            pipe = numpipe.pipeline(
                grid=(part.steps,),
                max_concurrent_steps=cfg.slots,
                in_specs=(
                    BlockSpec((cfg.tm, cfg.tk), lambda k: (m, part.begin + k)),
                    BlockSpec((cfg.tn, cfg.tk), lambda k: (n, part.begin + k)),
                ),
            )
            for (k,), (a_tile, b_tile) in pipe(a, b):
                acc = numpipe.wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T)
            acc = numpipe.combine(acc, part, axis="k")
            column = n * cfg.tn + numpipe.axis_index("k") * columns
            c[ds(m * cfg.tm + wg * rows, rows), ds(column, columns)] = acc.astype(c.dtype)

    return exchanged_matmul
