"""Cases of every kind of numpipe.ops.attention, at small sizes, for the simulator and the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import flash_attention
from numpipe.ops import attention
from numpipe.ops.attention import Config

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
BOUND = {"float16": 1e-3, "bfloat16": 6e-3}
"""relative error in the Frobenius norm, from rounding P and the result"""


@dataclass(frozen=True)
class Case:
    batches: int = 1
    heads: int = 1
    shared: int = 1
    queries: int = 72
    keys: int = 72
    depth: int = 64
    dtype: str = "float16"
    layout: str = "bhsd"
    causal: bool = False
    diagonal: int = 0
    scale: float | None = None
    size: float = 1.0
    """scale of q: the larger it is, the fewer keys carry all of the weight"""

    def arrays(self) -> list[np.ndarray]:
        """Return q, k, v of shape (batches, heads, positions, depth)."""
        rng = np.random.default_rng(self.queries + self.keys)
        q, k, v = (
            rng.standard_normal((self.batches, heads, rows, self.depth))
            for heads, rows in (
                (self.heads, self.queries),
                (self.shared, self.keys),
                (self.shared, self.keys),
            )
        )
        return [x.astype(DTYPES[self.dtype]) for x in (q * self.size, k, v)]

    def laid(self, x: Any) -> Any:
        return x if self.layout == "bhsd" else np.ascontiguousarray(x.swapaxes(1, 2))

    def run(
        self, target: str, config: Config | None = None, exact: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run attention into poisoned arrays and return (result, sums)."""
        q, k, v = map(self.laid, self.arrays())
        out = (
            np.full_like(q, np.nan),
            np.full((self.batches, self.heads, self.queries), np.nan, np.float32),
        )
        attention(
            q,
            k,
            v,
            causal=self.causal,
            diagonal=self.diagonal,
            scale=self.scale,
            layout=self.layout,
            exact=exact,
            return_lse=True,
            out=out,
            config=config,
            target=target,
        )
        return (out[0] if self.layout == "bhsd" else out[0].swapaxes(1, 2)), out[1]

    def wrong(self, o: np.ndarray, sums: np.ndarray, more: float = 1.0) -> str:
        """Return how the result differs from float64, or "". `more` multiplies the tolerance."""
        exact, logs = flash_attention.exactly(
            *self.arrays(), causal=self.causal, diagonal=self.diagonal, scale=self.scale
        )
        there = np.isfinite(logs)
        error = float(np.linalg.norm(o.astype(np.float64) - exact)) / max(
            float(np.linalg.norm(exact)), 1e-30
        )
        if not error <= more * BOUND[self.dtype]:
            return f"relative error {error:.2e}"
        if not (np.isneginf(sums) == ~there).all() or (o[~there] != 0).any():
            return "rows that see nothing"
        off = np.abs(sums[there] - logs[there]).max(initial=0.0)
        return (
            ""
            if off <= 2e-5 * max(1.0, np.abs(logs[there]).max(initial=0.0))
            else f"sums are off by {off:.2e}"
        )


CASES = {
    "no key": Case(queries=8, keys=0),
    "one key": Case(queries=8, keys=1),
    "ragged": Case(2, 2, 2, 72, 136),
    "whole blocks": Case(queries=128, keys=128, dtype="bfloat16"),
    "causal": Case(queries=136, keys=136, causal=True),
    "a block for one key": Case(queries=128, keys=136, causal=True, diagonal=1),
    "the last query sees all": Case(queries=72, keys=200, causal=True, diagonal=128),
    "rows that see nothing": Case(
        queries=136, keys=72, causal=True, diagonal=-70, dtype="bfloat16"
    ),
    "nobody sees anything": Case(queries=72, keys=72, causal=True, diagonal=-200),
    "groups of heads": Case(2, 4, 2, 40, 40, causal=True, dtype="bfloat16"),
    "one head of keys": Case(1, 8, 1, 72, 72),
    "positions before heads": Case(2, 2, 1, 136, 40, layout="bshd", causal=True),
    "depth 128": Case(1, 2, 1, 72, 136, 128, dtype="bfloat16", causal=True),
    "depth 256": Case(1, 8, 1, 72, 72, 256, layout="bshd"),
    "a scale": Case(scale=0.03),
    "peaked": Case(queries=72, keys=200, size=24.0),
}
