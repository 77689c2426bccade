"""Fused epilogues of a matrix product: functions of float32 tiles, passed to `numpipe.ops.matmul`
as activation=.

    python examples/epilogues.py                        on the GPU if there is one, else simulated
    python examples/epilogues.py --target sim

The named activations are in numpipe/ops/activations.py; your own `numpipe.function` is passed in
the same way. It is called on one strip of the tile at a time (`numpipe.map_columns`), so that its
intermediate values fit in registers next to the accumulators.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

import numpipe
from numpipe import launch, ops


@numpipe.function
def clipped(x):  # type: ignore[no-untyped-def]
    """A user-defined activation: a ReLU that is clipped at 6."""
    return np.minimum(np.maximum(x, 0.0), 6.0)


# ---- running it
EXACT: dict[Any, Any] = {
    None: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    clipped: lambda x: np.clip(x, 0, 6),
}


def error(
    shape: tuple[int, int, int], activation: Any, target: str | None, dtype: Any = np.float16
) -> float:
    """Return the relative error (Frobenius norm) of ``activation(a b^T / 2 + bias + residual)``
    against float64."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b, residual, bias = (
        rng.standard_normal(of, np.float32).astype(dtype) for of in ((m, k), (n, k), (m, n), (n,))
    )
    c = ops.matmul(a, b.T, residual, alpha=0.5, bias=bias, activation=activation, target=target)
    left, right, added, along = (x.astype(np.float64) for x in (a, b, residual, bias))
    exact = EXACT[activation](left @ right.T / 2 + added + along)
    return float(np.linalg.norm(c.astype(np.float64) - exact) / np.linalg.norm(exact))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    target = launch.choose_target(parser.parse_args().target).target
    shape = (4096, 4096, 1024) if target == "gpu" else (200, 136, 72)
    print(f"target: {target}\n\n{'activation':>10}  {'error':>7}")
    for activation in EXACT:
        name = (
            activation if isinstance(activation, str) else getattr(activation, "__name__", "none")
        )
        print(f"{name:>10}  {error(shape, activation, target):>7.1e}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except numpipe.NumpipeError as problem:
        sys.exit(f"error: {problem}")
