"""What a product may end with, fused into it: functions of float32 tiles that `gemm_tuned.matmul` takes as activation=.

    python examples/epilogues.py                        the layers below, on the GPU if there is one, else simulated
    python examples/epilogues.py --target sim

A `numpipe.function` of your own is passed like those here. It is called on a strip of the tile at a time (`numpipe.map_columns`),
so that what it computes fits into registers beside the sums.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

import numpipe
from numpipe import launch


@numpipe.function
def relu(x):  # type: ignore[no-untyped-def]
    return np.maximum(x, 0.0)


@numpipe.function
def silu(x):  # type: ignore[no-untyped-def]
    return x * numpipe.sigmoid(x)


@numpipe.function
def gelu(x):  # type: ignore[no-untyped-def]
    """The approximation with tanh."""
    return 0.5 * x * (1.0 + np.tanh(0.7978845608 * x * (1.0 + 0.044715 * x * x)))


@numpipe.function
def clipped(x):  # type: ignore[no-untyped-def]
    """One of your own: a ReLU that ends at 6."""
    return np.minimum(np.maximum(x, 0.0), 6.0)


ACTIVATIONS = {"relu": relu, "silu": silu, "gelu": gelu}
"""those that have a name"""


# ---- running it
EXACT: dict[Any, Any] = {
    None: lambda x: x, "relu": lambda x: np.maximum(x, 0), "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), clipped: lambda x: np.clip(x, 0, 6)}


def error(shape: tuple[int, int, int], activation: Any, target: str | None, dtype: Any = np.float16) -> float:
    """Of ``activation(a b^T / 2 + bias + residual)`` against float64, relative, in Frobenius norm."""
    import gemm_tuned  # which takes its activations from here

    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b, residual, bias = (rng.standard_normal(of, np.float32).astype(dtype) for of in ((m, k), (n, k), (m, n), (n,)))
    c = gemm_tuned.matmul(a, b, residual, alpha=0.5, bias=bias, activation=activation, target=target)
    left, right, added, along = (x.astype(np.float64) for x in (a, b, residual, bias))
    exact = EXACT[activation](left @ right.T / 2 + added + along)
    return float(np.linalg.norm(c.astype(np.float64) - exact) / np.linalg.norm(exact))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    target = launch.choose_target(parser.parse_args().target).target
    shape = (4096, 4096, 1024) if target == "gpu" else (200, 136, 72)
    print(f"target: {target}\n\n{'activation':>10}  {'error':>7}")
    for activation in EXACT:
        name = activation if isinstance(activation, str) else getattr(activation, "__name__", "none")
        print(f"{name:>10}  {error(shape, activation, target):>7.1e}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except numpipe.NumpipeError as problem:
        sys.exit(f"error: {problem}")
