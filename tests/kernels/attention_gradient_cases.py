"""Cases of the gradients of numpipe.ops.attention, for the simulator and the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from numpipe.ops.attention import attention_backward

from .attention_cases import CASES, Case

BOUND = {"float16": 1.2e-3, "bfloat16": 9e-3}
"""relative error in the Frobenius norm, from rounding P, dS, o and the result"""


def exact(case: Case) -> tuple[np.ndarray, ...]:
    """Return (o, lse, grad, grad_lse, dq, dk, dv) in float64, by heads."""
    q, k, v = (x.astype(np.float64) for x in case.arrays())
    rng = np.random.default_rng(case.queries)
    grad = rng.standard_normal(q.shape).astype(case.arrays()[0].dtype).astype(np.float64)
    grad_lse = rng.standard_normal(q.shape[:3])
    sharing = case.heads // case.shared
    keys, values = (np.repeat(x, sharing, 1) for x in (k, v))
    scale = case.depth**-0.5 if case.scale is None else case.scale
    s = scale * q @ keys.swapaxes(2, 3)
    if case.causal:
        seen = np.arange(case.keys) <= np.arange(case.queries)[:, None] + case.diagonal
        s = np.where(seen, s, -np.inf)
    top = s.max(3, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = e.sum(3, keepdims=True)
    p = e / np.where(total > 0, total, 1)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + np.where(np.isfinite(top), top, 0))[..., 0]
    o = p @ values
    slopes = p * (grad @ values.swapaxes(2, 3) - (grad * o).sum(3, keepdims=True))
    slopes += p * grad_lse[..., None]

    def folded(x: np.ndarray) -> np.ndarray:
        return x.reshape(case.batches, case.shared, sharing, *x.shape[2:]).sum(2)

    dk, dv = folded(slopes.swapaxes(2, 3) @ q) * scale, folded(p.swapaxes(2, 3) @ grad)
    return o, lse, grad, grad_lse, slopes @ keys * scale, dk, dv


def operands(case: Case) -> list[np.ndarray]:
    """Return (q, k, v, o, lse, grad, grad_lse) in the layout and types of a call."""
    o, lse, grad, grad_lse, *_ = exact(case)
    q, k, v = case.arrays()
    o, grad = (x.astype(q.dtype) for x in (o, grad))
    wide = [x.astype(np.float32) for x in (lse, grad_lse)]
    return [*map(case.laid, (q, k, v, o)), wide[0], case.laid(grad), wide[1]]


def options(case: Case) -> dict[str, Any]:
    names = "causal", "diagonal", "scale", "layout"
    return {name: getattr(case, name) for name in names}


def run(case: Case, target: str, deterministic: bool) -> list[np.ndarray]:
    """Return (dq, dk, dv) in poisoned arrays, by heads."""
    given = operands(case)
    out = tuple(np.full_like(x, np.nan) for x in given[:3])
    how = {"deterministic": deterministic, "target": target}
    attention_backward(*given, **options(case), **how, out=out)
    return [case.laid(x) for x in out]


def wrong(case: Case, found: list[np.ndarray], more: float = 1.0) -> str:
    """Return how the gradients differ from float64, or ""."""
    _, lse, *_, dq, dk, dv = exact(case)
    if (found[0][np.isneginf(lse)] != 0).any():
        return "rows that see nothing"
    for name, got, right in zip(("dq", "dk", "dv"), found, (dq, dk, dv), strict=True):
        off = float(np.linalg.norm(got.astype(np.float64) - right))
        error = off / max(float(np.linalg.norm(right)), 1e-30)
        if not error <= more * BOUND[case.dtype]:
            return f"relative error of {name} {error:.2e}"
    return ""


__all__ = ["CASES", "Case", "exact", "operands", "options", "run", "wrong"]
