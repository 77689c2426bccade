"""Score and mask functions of numpipe.ops.attention, and what attention gives with them in float64,
where the same functions are called with NumPy's arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import numpipe
from numpipe.ops import attention
from numpipe.ops.attention import attention_backward
from tests.kernels.attention_cases import BOUND
from tests.kernels.attention_cases import Case as Shapes
from tests.kernels.random_words import words


@numpipe.function
def causal(batch, head, query, key):
    return query >= key


@numpipe.function
def window(batch, head, query, key):
    return (query - key < 20) & (key - query < 30)


@numpipe.function
def documents(batch, head, query, key, ids):
    return ids[batch, query] == ids[batch, key]


@numpipe.function
def prefix(batch, head, query, key, lengths):
    return (key < lengths[batch]) | (query >= key)


@numpipe.function
def far(batch, head, query, key):
    return key - query > 30 * head


@numpipe.function
def soft_cap(score, batch, head, query, key):
    return 2.0 * np.tanh(score * 0.5)


@numpipe.function
def alibi(score, batch, head, query, key, slopes):
    return score + slopes[head] * (key - query).astype(np.float32)


@numpipe.function
def relative(score, batch, head, query, key, bias, table):
    score += bias[head, query, key].astype(np.float32)
    return score * (1.0 + table[key - query + 300])


@numpipe.function
def hiding(score, batch, head, query, key):
    return np.where(query >= key + 40, score, -np.inf)


@dataclass(frozen=True)
class Case(Shapes):
    score: Any = None
    mask: Any = None
    dropout: float = 0.0
    seed: int = -7

    def weights(self) -> np.ndarray:
        """Return what dropout multiplies the weights by."""
        i, j = np.ogrid[: self.queries, : self.keys]
        heads = np.arange(self.batches * self.heads).reshape(self.batches, self.heads, 1, 1)
        word = np.where(i & 8, *words(self.seed + heads * 0x5EBCA6B1, i & ~8, j & ~8)[::-1])
        draw = np.where(j & 8, word >> np.uint64(16), word & np.uint64(0xFFFF))
        return np.where(draw >= round(self.dropout * 2**16), 1 / (1 - self.dropout), 0.0)

    def arrays_of(self, function: Any) -> list[Any]:
        """Return the arrays that a function takes."""
        rng = np.random.default_rng(7)
        number = np.sort(rng.integers(0, 4, (self.batches, max(self.queries, self.keys))), axis=1)
        known = {
            documents: [number.astype(np.int32)],
            prefix: [np.arange(self.batches, dtype=np.int32) * 50 + 20],
            alibi: [2.0 ** -np.arange(1.0, self.heads + 1, dtype=np.float32)],
            relative: [
                rng.standard_normal((self.heads, self.queries, self.keys)).astype(np.float16),
                rng.standard_normal(600).astype(np.float32),
            ],
        }
        return known.get(function, [])

    def functions(self, of: Any = np.asarray) -> dict[str, Any]:
        """Return the options of a call; `of` makes its arrays."""
        given = {"score": self.score, "mask": self.mask}
        made = {
            name: (function, *map(of, self.arrays_of(function)))
            for name, function in given.items()
            if function is not None
        }
        seed = of(np.array([self.seed], np.int32))
        return made | ({"dropout": self.dropout, "seed": seed} if self.dropout else {})

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (result, logarithms of the sums) in float64."""
        q, k, v = (x.astype(np.float64) for x in self.arrays())
        k, v = (np.repeat(x, self.heads // self.shared, axis=1) for x in (k, v))
        s = q @ k.swapaxes(2, 3) * (self.scale or self.depth**-0.5)
        places = np.ogrid[tuple(map(slice, s.shape))]
        seen = np.ones(s.shape, bool)
        if self.score is not None:
            s = self.score(s, *places, *self.arrays_of(self.score))
        if self.mask is not None:
            seen = self.mask(*places, *self.arrays_of(self.mask)) & seen
        seen = seen & (s > -np.inf)
        with np.errstate(all="ignore"):
            s = np.where(seen, s, -np.inf)
            top = s.max(axis=3, keepdims=True)
            p = np.where(seen, np.exp(s - top), 0.0)
            total = p.sum(axis=3, keepdims=True)
            return (
                np.where(total > 0, p / total, 0.0) * self.weights() @ v,
                (np.log(total) + top)[..., 0],
            )

    def wrong(self, o: np.ndarray, sums: np.ndarray, more: float = 1.0) -> str:
        """Return how a result differs, or ""."""
        exact, logs = self.expected()
        there = np.isfinite(logs)
        error = np.linalg.norm(o.astype(np.float64) - exact) / np.linalg.norm(exact)
        if not error <= more * BOUND[self.dtype]:
            return f"relative error {error:.2e}"
        if o[~there].any() or not np.isneginf(sums[~there]).all():
            return "rows that see nothing"
        off = np.abs(sums[there] - logs[there]).max()
        return "" if off <= 1e-4 else f"sums are off by {off:.2e}"

    def wrong_gradients(self, target: str, *modes: bool) -> str:
        """Return how gradients differ from those in float64, or "", for each `deterministic` of
        `modes`."""
        q, k, v = map(self.laid, self.arrays())
        grad = np.random.default_rng(1).standard_normal(q.shape).astype(q.dtype)
        named = {"scale": self.scale, "layout": self.layout, **self.functions(), "target": target}
        o, sums = attention(q, k, v, return_lse=True, **named)
        given = q, k, v, o, sums, grad
        founds = [attention_backward(*given, deterministic=mode, **named) for mode in modes]
        q, k, v, grad = (self.laid(x).astype(np.float64) for x in (q, k, v, grad))
        shared = self.heads // self.shared
        k, v = (np.repeat(x, shared, axis=1) for x in (k, v))
        scale, slope = self.scale or self.depth**-0.5, 1.0
        s = q @ k.swapaxes(2, 3) * scale
        places = np.ogrid[tuple(map(slice, s.shape))]
        if self.score is not None:
            arrays = [x.astype(np.float64) for x in self.arrays_of(self.score)]
            ahead, behind = (self.score(s + step, *places, *arrays) for step in (1e-4, -1e-4))
            with np.errstate(invalid="ignore"):
                s, slope = (ahead + behind) / 2, np.nan_to_num((ahead - behind) / 2e-4)
        seen = s > -np.inf
        if self.mask is not None:
            seen &= self.mask(*places, *self.arrays_of(self.mask))
        s = np.where(seen, s, -np.inf)
        p = np.exp(s - np.maximum(s.max(axis=3, keepdims=True), -1e3))
        p /= np.maximum(p.sum(axis=3, keepdims=True), 1e-300)
        grad_p = grad @ v.swapaxes(2, 3) * self.weights()
        grad_s = p * (grad_p - (p * grad_p).sum(axis=3, keepdims=True)) * slope * scale
        dropped = p * self.weights()
        expected = grad_s @ k, grad_s.swapaxes(2, 3) @ q, dropped.swapaxes(2, 3) @ grad
        pairs = [
            (name, mine, exact)
            for found in founds
            for name, mine, exact in zip("qkv", found, expected, strict=True)
        ]
        for name, mine, exact in pairs:
            if name != "q":
                exact = exact.reshape(self.batches, self.shared, shared, *exact.shape[2:]).sum(2)
            mine = self.laid(mine).astype(np.float64)
            error = np.linalg.norm(mine - exact) / np.linalg.norm(exact)
            if not error <= BOUND[self.dtype]:
                return f"relative error of d{name} {error:.2e}"
            if name == "q" and mine[~seen.any(axis=3)].any():
                return "rows that see nothing"
        return ""


CASES = {
    "causal": Case(2, 2, 2, 200, 200, mask=causal),
    "window": Case(1, 2, 1, 200, 264, dtype="bfloat16", mask=window),
    "documents": Case(2, 1, 1, 136, 200, mask=documents),
    "prefix": Case(2, 2, 1, 136, 136, 128, layout="bshd", mask=prefix),
    "rows that see nothing": Case(1, 3, 1, 136, 130, mask=far),
    "soft cap": Case(1, 1, 1, 72, 136, scale=0.5, score=soft_cap),
    "alibi": Case(1, 2, 2, 136, 72, score=alibi, layout="bshd"),
    "scores of -inf": Case(1, 1, 1, 200, 200, score=hiding),
    "both, with arrays": Case(2, 4, 2, 72, 200, score=relative, mask=documents),
    "dropout": Case(2, 2, 1, 136, 200, dtype="bfloat16", dropout=0.25),
    "dropout, with both": Case(1, 2, 1, 136, 200, score=relative, mask=documents, dropout=0.5),
}
