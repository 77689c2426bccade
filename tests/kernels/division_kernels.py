"""A kernel that divides tiles and numbers, with and without approx_math, for the simulator and the
GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import BlockSpec, CompilerParams, ds
from numpipe.core.op import helper


@helper
def quotient(x, y):  # type: ignore[no-untyped-def]
    """Divide, in a function compiled once for all kernels, as no type in it names a kernel."""
    return numpipe.core.arith.truediv(x, y)


def divide(a: Any, c: Any, x: Any, y: Any) -> None:
    acc = numpipe.zeros((64, 64), np.float32)
    for _, (a_tile,) in numpipe.pipeline(
        grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
    )(a):
        acc = numpipe.wgmma(acc, a_tile, a_tile.T)
    c[ds(0, 64), ds(0, 64)] = acc / (x / y) + quotient(y, x)


exact = numpipe.kernel(divide)
fast = numpipe.kernel(compiler_params=CompilerParams(approx_math=True))(divide)


def quotients(a: np.ndarray, x: np.float32, y: np.float32) -> np.ndarray:
    """Return what the kernel stores if every division is rounded correctly."""
    acc = a.astype(np.float32) @ a.astype(np.float32).T
    found: np.ndarray = acc / (x / y) + y / x
    return found


def divide_by(a: Any, c: Any, x: Any) -> None:
    """Compute c = (a @ a.T) / x, one division per element."""
    acc = numpipe.zeros((64, 64), np.float32)
    for _, (a_tile,) in numpipe.pipeline(
        grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
    )(a):
        acc = numpipe.wgmma(acc, a_tile, a_tile.T)
    c[ds(0, 64), ds(0, 64)] = acc / x


divide_by_exact = numpipe.kernel(divide_by)
divide_by_fast = numpipe.kernel(compiler_params=CompilerParams(approx_math=True))(divide_by)
