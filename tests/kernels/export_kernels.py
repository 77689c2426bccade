"""Kernels for tests of `Kernel.export` and `numpipe.load`, in a module that the command line
imports and loading never does."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams, cdiv


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


class Pair(NamedTuple):
    rows: int
    columns: int


PAIR = Pair(1, 2)


@dataclass(frozen=True)
class Config:
    tm: int = 64
    mode: Mode = Mode.FAST
    pair: Pair = PAIR
    dtype: Any = np.float32


@numpipe.function
def twice(value):
    return value + value


@numpipe.function
def thrice(value):
    return value + value + value


@numpipe.kernel(
    grid=lambda x, cfg: (cdiv(x.shape[0], cfg.tm), cdiv(x.shape[1], 64)),
    in_specs=BlockSpec((64, 64), lambda i, k: (i, k)),
    out_specs=BlockSpec((64, 64), lambda i, k: (i, k)),
    compiler_params=CompilerParams(dimension_semantics=("parallel", "sequential")),
    out_type=lambda x: ArrayType(x.shape, x.dtype),
)
def scaled(x, y, *, scale: numpipe.Static = 2.0, cfg: numpipe.Static = Config()):
    """Compute y = x * scale; the steps along columns are sequential, and the kernel passes itself
    their number."""
    y[...] = x[...] * scale
