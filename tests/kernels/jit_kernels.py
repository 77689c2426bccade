"""Kernels for tests of `numpipe.jit` and `numpipe.warmup`, in a module that worker processes can
import."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import numpipe
from numpipe import ArrayType, ds


@dataclass(frozen=True)
class Config:
    tm: int = 64


FACTOR = 2.0


@numpipe.kernel(out_type=lambda x: ArrayType(x.shape, x.dtype))
def times(x, y, *, cfg: numpipe.Static = Config()):
    y[ds(0, cfg.tm), ds(0, 64)] = x[ds(0, cfg.tm), ds(0, 64)] * FACTOR


@numpipe.kernel(out_type=lambda x: ArrayType(x.shape, x.dtype))
def misspelt(x, y):
    y[ds(0, 64), ds(0, 64)] = x.shap


def make(number):
    """Return a kernel that no other process can import."""

    @numpipe.kernel(out_type=lambda x: ArrayType(x.shape, x.dtype))
    def local(x, y):
        y[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)] * np.float32(number)

    return local
