"""Products of examples/gemm_tuned.py in every layout and with every epilogue, for the simulator and
the GPU."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import epilogues
import gemm_tuned
from numpipe.ops import activations

LAYOUTS = tuple(map("".join, itertools.product("CF", repeat=3)))
"""layouts of a, b and the output: row-major (C) or column-major (F) matrices"""
RANKS = ((0, 0), (3, 3), (3, 0), (0, 3))
"""batches of a and b; 0 for a matrix"""


def laid(array: np.ndarray, order: str) -> np.ndarray:
    """Return a copy whose matrices are row-major ("C") or column-major ("F")."""
    if order == "C":
        return np.ascontiguousarray(array)
    return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)


def matrices(rows: int, k: int, batches: int, dtype: Any, seed: int) -> np.ndarray:
    """Return small integers: sums of their products are exact."""
    shape = (batches, rows, k) if batches else (rows, k)
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def product(a: np.ndarray, b: np.ndarray, dtype: Any) -> np.ndarray:
    """Return the exact product, rounded once."""
    exact: np.ndarray = a.astype(np.float64) @ b.astype(np.float64).swapaxes(-1, -2)
    return exact.astype(dtype)


def layouts(
    m: int, n: int, k: int, dtype: Any, ranks: tuple[int, int]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield (a, b, an output full of NaN, the expected output) for every layout."""
    a, b = matrices(m, k, ranks[0], dtype, 1), matrices(n, k, ranks[1], dtype, 2)
    expected = product(a, b, dtype)
    for orders in LAYOUTS:
        yield (
            laid(a, orders[0]),
            laid(b, orders[1]),
            laid(np.full_like(expected, np.nan), orders[2]),
            expected,
        )


# ---- epilogues
@dataclasses.dataclass(frozen=True)
class Epilogue:
    """Epilogue of a product; `exact` is its activation in float64."""

    alpha: float = 1.0
    beta: float = 0.0
    bias: str = ""
    activation: Any = None
    exact: Callable[[np.ndarray], np.ndarray] = lambda x: x

    def run(
        self,
        m: int,
        n: int,
        k: int,
        *,
        batches: int = 0,
        dtype: Any = np.float16,
        order: str = "C",
        inplace: bool = False,
        **options: Any,
    ) -> float:
        """Run a product and return its relative error in the Frobenius norm.

        With `inplace` the source is also the output.
        """
        rng = np.random.default_rng(0)
        lead = (batches,) * bool(batches)
        a, b, c, row, column = (
            rng.standard_normal(shape, np.float32).astype(dtype)
            for shape in ((*lead, m, k), (n, k), (*lead, m, n), (n,), (m, 1))
        )
        vector = {"": None, "n": row.astype(np.float32), "m": column}[self.bias]
        wide = [x.astype(np.float64) for x in (a, b, c)]
        exact = self.exact(
            self.alpha * (wide[0] @ wide[1].T)
            + self.beta * wide[2]
            + (0 if vector is None else vector)
        )
        source = laid(c, order)
        found = gemm_tuned.matmul(
            a,
            b,
            source if self.beta else None,
            alpha=self.alpha,
            beta=self.beta,
            bias=vector,
            activation=self.activation,
            out=source if inplace else None,
            **options,
        )
        assert found is source or not inplace
        return float(np.linalg.norm(found.astype(np.float64) - exact) / np.linalg.norm(exact))


EPILOGUES = {
    "alpha": Epilogue(0.5),
    "beta c": Epilogue(1.0, -2.0),
    "bias": Epilogue(bias="n"),
    "bias of rows": Epilogue(bias="m"),
    "relu": Epilogue(activation="relu", exact=epilogues.EXACT["relu"]),
    "silu": Epilogue(0.5, bias="n", activation="silu", exact=epilogues.EXACT["silu"]),
    "gelu": Epilogue(bias="m", activation="gelu", exact=epilogues.EXACT["gelu"]),
    "one of the user's": Epilogue(
        activation=epilogues.clipped, exact=epilogues.EXACT[epilogues.clipped]
    ),
    "all": Epilogue(0.25, 0.5, "n", "gelu", epilogues.EXACT["gelu"]),
}

FORMS = {
    "plain": gemm_tuned.Form(),
    "batches": gemm_tuned.Form("bmk", "bkn"),
    "one b": gemm_tuned.Form("bkm", "nk"),
    "all": gemm_tuned.Form(alpha=True, source=True, bias="n", activation=activations.gelu),
    "batches, all": gemm_tuned.Form("bmk", "bnk", True, True, "m", activations.silu),
}
"""the products whose generated code is inspected"""
