"""Kernels that are slow, each for a different reason, which `numpipe.explain` must find without
running them.

tests/tools/model/test_explain.py checks the explanations; explain.py in this folder measures each
kernel on a GPU, together with a fixed one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import numpipe
from numpipe import BlockSpec, cdiv, ds

sys.path.insert(0, str(Path(__file__).parent.parent))

import copy_pipeline

import gemm

BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class GatedConfig:
    """Tile of the output (tm x tn), depth of a step (tk), steps in shared memory at once."""

    tm: int = 128
    tn: int = 256
    tk: int = 64
    slots: int = 2


@numpipe.kernel(
    out_type=lambda a, b, d, cfg: numpipe.ArrayType((a.shape[0], b.shape[0]), a.dtype),
    signature="(m,k),(n,k),(n,k)->(m,n)",
    grid=numpipe.persistent(),
    num_compute_wgs=2,
)
def gated(a, b, d, c, *, cfg: numpipe.Static = GatedConfig()):
    """c = (a @ b.T) * (a @ d.T), with two accumulators at a time."""
    wg = numpipe.axis_index("wg")
    rows = cfg.tm // numpipe.axis_size("wg")
    for m, n in numpipe.tiles(
        cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn), order="grouped", group=16
    ):
        left = numpipe.zeros((rows, cfg.tn), np.float32)
        right = numpipe.zeros((rows, cfg.tn), np.float32)
        pipe = numpipe.pipeline(
            grid=(cdiv(a.shape[1], cfg.tk),),
            max_concurrent_steps=cfg.slots,
            in_specs=(
                BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
                BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
                BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
            ),
        )
        for _, (a_tile, b_tile, d_tile) in pipe(a, b, d):
            left = numpipe.wgmma(left, a_tile.at[ds(wg * rows, rows), :], b_tile.T)
            right = numpipe.wgmma(right, a_tile.at[ds(wg * rows, rows), :], d_tile.T)
        c[ds(m * cfg.tm + wg * rows, rows), ds(n * cfg.tn, cfg.tn)] = (left * right).astype(c.dtype)


@numpipe.kernel(
    out_type=lambda a, b, cfg: numpipe.ArrayType((a.shape[0], b.shape[0]), a.dtype),
    signature="(m,k),(n,k)->(m,n)",
    grid=lambda a, b, cfg: (cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn)),
    grid_names=("m", "n"),
    num_compute_wgs=2,
)
def one_tile(a, b, c, *, cfg: numpipe.Static):
    """c = a @ b.T, with one CTA per tile."""
    wg, m, n = numpipe.axis_index("wg"), numpipe.axis_index("m"), numpipe.axis_index("n")
    rows = cfg.tm // numpipe.axis_size("wg")
    acc = numpipe.zeros((rows, cfg.tn), np.float32)
    pipe = numpipe.pipeline(
        grid=(cdiv(a.shape[1], cfg.tk),),
        max_concurrent_steps=cfg.slots,
        in_specs=(
            BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
            BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
        ),
    )
    for _, (a_tile, b_tile) in pipe(a, b):
        acc = numpipe.wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T)
    c[ds(m * cfg.tm + wg * rows, rows), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)


@dataclass(frozen=True)
class Variant:
    """A call: the shapes of a kernel's inputs, and its configuration."""

    kernel: Any
    shapes: tuple[tuple[int, ...], ...]
    config: Any

    @property
    def types(self) -> list[numpipe.ArrayType]:
        """Types of the inputs, bfloat16; nothing is allocated."""
        return [numpipe.ArrayType(shape, BF16) for shape in self.shapes]

    def explain(self, **options: Any) -> Any:
        """Return the explanation of the call."""
        return numpipe.explain(self.kernel, *self.types, cfg=self.config, **options)


@dataclass(frozen=True)
class Case:
    """A slow call, its limiter, and `why`; `fixed` is the same work without that limit, if
    possible."""

    name: str
    limiter: str
    why: str
    slow: Variant
    fixed: Variant | None = None


def product(m: int, n: int, k: int, **config: Any) -> Variant:
    """Return examples/gemm.py for a shape."""
    return Variant(gemm.matmul, ((m, k), (n, k)), gemm.Config(**config))


def two_products(n: int, **config: Any) -> Variant:
    """Return `gated` for square matrices."""
    return Variant(gated, ((n, n), (n, n), (n, n)), GatedConfig(**config))


CASES = (
    Case(
        name="one slot",
        limiter="slots",
        why="the next tile is requested only when the last one has been used, and takes longer "
        "than its products",
        slow=product(4096, 4096, 1024, slots=1),
        fixed=product(4096, 4096, 1024),
    ),
    Case(
        name="narrow tiles",
        limiter="tile size",
        why="128 x 64 tiles load 24 KiB for 256 cycles of products, twice the bytes per FLOP of "
        "128 x 256",
        slow=product(4096, 2048, 1024, tn=64, slots=6),
        fixed=product(4096, 2048, 1024),
    ),
    Case(
        name="few rows",
        limiter="memory bandwidth",
        why="128 FLOP for each byte of b; in its time, the tensor cores could do 250",
        slow=product(128, 16896, 8192, tn=128, slots=6),
    ),
    Case(
        name="133 tiles",
        limiter="wave tail",
        why="132 SMs have a tile each, then one SM computes the last one",
        slow=product(2432, 1792, 2048),
        fixed=product(1536, 2816, 2048),
    ),
    Case(
        name="short CTAs",
        limiter="CTA start",
        why="2048 CTAs of four steps: each waits for its first tile, and the next CTA for its "
        "store",
        slow=Variant(one_tile, ((8192, 256), (8192, 256)), gemm.Config()),
        fixed=product(8192, 8192, 256),
    ),
    Case("one step", "stores", "K = 64: 134 MB are written and 2 MB read", product(8192, 8192, 64)),
    Case(
        name="two accumulators",
        limiter="registers",
        why="two sums of 128 registers per lane, of 232: they are spilled to memory",
        slow=two_products(2048),
        fixed=two_products(2048, tn=128, slots=4),
    ),
    Case(
        name="copy",
        limiter="memory bandwidth",
        why="every byte is read once and written once, and nothing is multiplied",
        slow=Variant(copy_pipeline.copy, ((32768, 16384),), copy_pipeline.Config()),
    ),
    Case(
        "square",
        "tensor cores",
        "a step is 1024 cycles of products, and 30 of everything else",
        product(4096, 4096, 4096),
    ),
)
"""one case for each limiter that a kernel's author can change, and the two rooflines"""
