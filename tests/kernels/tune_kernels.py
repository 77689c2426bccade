"""Factories for tests of the tuner, in a module that worker processes can import, and a fake of
timing on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, cdiv


@dataclass(frozen=True)
class Config:
    """Columns of a tile, and slots of the ring."""

    tn: int = 64
    slots: int = 2


@functools.cache
def product(cfg: Config) -> Any:
    """Return a kernel c = a @ b.T in tiles of 64 rows."""

    @numpipe.kernel(
        grid=numpipe.persistent(),
        out_type=lambda a, b: ArrayType((a.shape[0], b.shape[0]), a.dtype),
        signature="(m,k),(n,k)->(m,n)",
    )
    def multiply(a, b, c):
        for m, n in numpipe.tiles(cdiv(a.shape[0], 64), cdiv(b.shape[0], cfg.tn)):
            acc = numpipe.zeros((64, cfg.tn), np.float32)
            pipe = numpipe.pipeline(
                grid=(cdiv(a.shape[1], 64),),
                max_concurrent_steps=cfg.slots,
                in_specs=(
                    BlockSpec((64, 64), lambda k: (m, k)),
                    BlockSpec((cfg.tn, 64), lambda k: (n, k)),
                ),
            )
            for (_,), (a_tile, b_tile) in pipe(a, b):
                acc = numpipe.wgmma(acc, a_tile, b_tile.T)
            c[numpipe.ds(m * 64, 64), numpipe.ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)

    return multiply


def no_kernel(cfg: Config) -> Any:
    """Return something that is not a kernel, which a factory must not do."""
    return cfg


class Measured:
    """A fake timer that returns given seconds per candidate; `asked` records each request."""

    __module__, __qualname__ = "tests.kernels.tune_kernels", "Measured"

    def __init__(self, **seconds: float) -> None:
        self.seconds, self.asked = seconds, list[list[str]]()

    def __call__(self, calls: Mapping[str, Any]) -> Mapping[str, float]:
        self.asked.append(list(calls))
        return {name: self.seconds.get(name, 3e-6) for name in calls}
