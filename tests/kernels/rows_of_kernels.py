"""Kernels over rows, as a user writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import ArrayType


def same(x: Any) -> Any:
    return ArrayType(x.shape, x.dtype)


@numpipe.rows(out_type=same)
def layer_norm(x, gamma, beta, y, *, eps=1e-5, row: numpipe.Static):
    i, j = row.block()
    centered, variance = row.moments(x[i, j].astype(np.float32), x.shape[1])
    y[i, j] = centered * numpipe.rsqrt(variance + eps) * gamma[j] + beta[j]


@numpipe.rows(out_type=lambda x: (same(x), ArrayType((x.shape[0],), np.float32)))
def softmax(x, y, lse, *, row: numpipe.Static):
    i, j = row.block()
    y[i, j], total = row.softmax(x[i, j].astype(np.float32), x.shape[1])
    row.put(lse, total)


@numpipe.rows(out_type=same)
def scaled(x, scale, y, *, row: numpipe.Static):
    """y = scale * (x / (1 + sum(x * x)) - max(x)), by row, and the column where x is 0"""
    i, j = row.block()
    tile, n = x[i, j].astype(np.float32), x.shape[1]
    tile = np.where(tile == 0.0, row.column().astype(np.float32), tile)
    apart = tile / (1.0 + row.sum(tile * tile, n)) - row.max(tile, n)
    y[i, j] = apart * row.get(scale)


def expected(name: str, x: Any, *more: Any) -> tuple[Any, ...]:
    x = np.asarray(x, np.float64)
    if name == "layer_norm":
        gamma, beta = more
        variance = x.var(1, keepdims=True)
        return ((x - x.mean(1, keepdims=True)) / np.sqrt(variance + 1e-5) * gamma + beta,)
    if name == "softmax":
        top = x.max(1, keepdims=True)
        total = np.exp(x - top).sum(1, keepdims=True)
        return np.exp(x - top) / total, (top + np.log(total))[:, 0]
    x = np.where(x == 0, np.arange(x.shape[1]), x)
    return (more[0][:, None] * (x / (1 + (x * x).sum(1, keepdims=True)) - x.max(1, keepdims=True)),)


def operands(name: str, x: Any) -> list[Any]:
    rng = np.random.default_rng(x.shape[1])
    if name == "layer_norm":
        return [*rng.standard_normal((2, x.shape[1])).astype(np.float32)]
    return [rng.standard_normal(x.shape[0]).astype(np.float32)] if name == "scaled" else []


KERNELS = {"layer_norm": layer_norm, "softmax": softmax, "scaled": scaled}


def wrong(name: str, x: Any, target: str) -> list[float]:
    """Return the relative errors of a call's results that are too large."""
    more = operands(name, x)
    got = KERNELS[name](x, *more, target=target)
    got = got if isinstance(got, tuple) else (got,)
    bound = 2e-6 if x.dtype == np.float32 else 4e-3
    errors = [
        float(np.linalg.norm(np.asarray(one, np.float64) - exact) / np.linalg.norm(exact))
        for one, exact in zip(got, expected(name, x, *more), strict=True)
    ]
    return [error for error in errors if not error <= bound]
