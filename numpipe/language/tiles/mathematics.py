"""Functions of tiles of floats and of float32 numbers: ``np.exp`` and its like, and those that NumPy has not.

=====================================  ==================  ================================================================
function                               error, ulp          with ``CompilerParams(approx_math=True)``
=====================================  ==================  ================================================================
``np.exp``                             2                   ``ex2.approx.ftz`` of x log2(e): 2 + 1.2 |x|; exp2: 2
``np.log``, ``np.log2``                1                   ``lg2.approx.ftz``: 2^-21 absolute from 0.5 to 2, else 2 ulp + 1
``np.sqrt``                            0 (rounded)         ``sqrt.approx.ftz``: 1
``np.tanh``                            2                   ``tanh.approx``: relative 2^-11
`rsqrt`                                2                   ``rsqrt.approx.ftz``: 2
`sigmoid`                              4                   ``tanh.approx`` of x / 2: absolute 2^-11
`fma`                                  0 (rounded once)    the same
=====================================  ==================  ================================================================

Errors are those of the CUDA C++ Programming Guide, "Mathematical Functions", and of the PTX ISA, against the exact result.
``.ftz``: subnormal operands and results are zeros. The simulator rounds what float64 gives. Of a tile of 16 bits a function is
computed in float32, and rounded; `fma` has none, because it would be rounded twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...arch.dtypes import FLOAT32
from ...core import arith
from ...core.op import Op
from .elementwise import evaluated, not_computed

__all__ = ["fma", "rsqrt", "sigmoid"]


def check_number(name: str, dtype: np.dtype) -> None:
    """SpecError unless a function of numbers is computed in float32: int32 and int literals are not."""
    if dtype != FLOAT32:
        raise not_computed(name, f"{dtype}: convert it with float(x)")


def _computed(name: str, function: Callable[..., Any], values: tuple[Any, ...], takes: str) -> Any:
    def compute(*values: Any) -> Any:
        wide = [np.asarray(value, np.float64) for value in values]
        return np.asarray(function(*wide)).astype(np.float32)[()]

    return evaluated(name, values, compute, takes=takes, check=functools.partial(check_number, name))


def _function(name: str, function: Callable[..., Any], doc: str) -> Op[..., Any]:
    def operation(x: Any, literals: int = 0) -> Any:
        return _computed(name, function, (x,), "fh")

    plain = name.removeprefix("np.")
    return arith.named(operation, plain, doc, () if plain == name else getattr(np, plain))


def _fma(x: Any, y: Any, z: Any, literals: int = 0) -> Any:
    return _computed("fma", lambda x, y, z: x * y + z, (x, y, z), "f")  # the product is exact in float64


exp = _function("np.exp", np.exp, "``np.exp(x)`` of a float32 tile or number.")
exp2 = _function("np.exp2", np.exp2, "``np.exp2(x)``, 2 to the x: one instruction where `approx_math` is on.")
log = _function("np.log", np.log, "``np.log(x)``: of 0 -inf, below NaN.")
log2 = _function("np.log2", np.log2, "``np.log2(x)``")
sqrt = _function("np.sqrt", np.sqrt, "``np.sqrt(x)``, rounded correctly by default.")
tanh = _function("np.tanh", np.tanh, "``np.tanh(x)``")
rsqrt = _function("rsqrt", lambda x: 1 / np.sqrt(x), """1 / sqrt(x) of a float32 tile or number, within 2 ulp (PTX ISA, "rsqrt").

>>> float(rsqrt(np.float32(4)))
0.5
""")
def _sigmoid(x: Any) -> Any:
    """Of an exponential that is 1 at most: 1 + exp(-x) would be infinite where the result is still a number."""
    power = np.exp(-np.abs(x))
    return np.where(x < 0, power, np.ones_like(x)) / (1 + power)


sigmoid = _function("sigmoid", _sigmoid, """1 / (1 + exp(-x)) of a float32 tile or number, within 4 ulp.

``x * numpipe.sigmoid(x)`` is SiLU. With ``approx_math`` it is ``tanh.approx``, absolutely within 2^-11 (PTX ISA, "tanh").

>>> float(sigmoid(np.float32(0)))
0.5
""")
fma = arith.named(_fma, "fma", """``x * y + z`` of float32 tiles and numbers, rounded once (PTX ISA, "fma").

Written with operators, the GPU may do the same, or round the product too. Here it is sure.

>>> float(fma(np.float32(2), np.float32(3), np.float32(1)))
7.0
""")

FUNCTIONS: dict[str, Op[..., Any]] = {f.__name__: f for f in (exp, exp2, log, log2, sqrt, tanh, rsqrt, sigmoid)}  # type: ignore[attr-defined]
