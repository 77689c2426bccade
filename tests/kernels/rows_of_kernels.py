"""Kernels over rows, as a user writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import ArrayType
from numpipe.kernels.row_schedules import Needs, Request, Rows, choose


def same(x: Any) -> Any:
    return ArrayType(x.shape, x.dtype)


@numpipe.rows(out_type=same)
def layer_norm(x, gamma, beta, y, *, eps=1e-5, row: numpipe.Static):
    weight, bias = row.vector(gamma), row.vector(beta)
    for k in row.blocks(x):
        value, block = row.load(k, x)
        mean, variance = row.moments(value)
        scale = numpipe.rsqrt(variance + eps)
        row.store(block, y, lambda j: (value(j) - mean) * scale * weight(j) + bias(j))


@numpipe.rows(out_type=lambda x: (same(x), ArrayType((x.shape[0],), np.float32)))
def softmax(x, y, lse, *, row: numpipe.Static):
    for k in row.blocks(x):
        value, block = row.load(k, x)
        p, total = row.softmax(value)
        row.put(k, lse, total)
        row.store(block, y, p)


@numpipe.rows(once=True, out_type=lambda x: ArrayType((x.shape[0],), np.int32))
def argmax(x, y, *, row: numpipe.Static):
    """y = 1 + the first column with the maximum, or with NaN."""
    for k in row.blocks(x):
        value, _ = row.load(k, x)
        row.put(k, y, row.argmax(value) + 1)


@numpipe.rows(operands=2)
def swapped(x, y, one, other, *, row: numpipe.Static):
    for k in row.blocks(x):
        first, second, block = row.load(k, x, y)
        row.store(block, one, second, other, first)


@numpipe.rows(held=1, out_type=same)
def scaled(x, scale, y, *, row: numpipe.Static):
    """y = scale * (x / (1 + sum(x * x)) - max(x)), by row, and the column where x is 0"""
    for k in row.blocks(x):
        value, block = row.load(k, x)

        def number(j):
            tile = value(j)
            return np.where(tile == 0.0, row.column(j).astype(np.float32), tile)

        def square(j):
            tile = number(j)
            return tile * tile

        total, top = row.sum(square), row.max(number)
        by = row.get(k, scale)
        row.store(block, y, lambda j: (number(j) / (1.0 + total) - top) * by)


def schedule_for(*args: Any, **options: Any) -> Rows:
    """Return the schedule that `choose` returns for a Request of these arguments."""
    return choose(Request(*args, **options))


def in_steps(
    n: int,
    slots: int,
    dtype: Any = np.float32,
    operands: int = 1,
    flat: bool = False,
    cluster: int = 1,
) -> Rows:
    """Return a schedule for rows of n columns, of which two warpgroups of each CTA take 512 each in
    a step, and of which `slots` chunks of each are in shared memory."""
    steps, of = -(-n // (1024 * cluster)), (slots, np.dtype(dtype), flat)
    return Rows(n, 1, 512, 2, 0, 1, steps, *of, cluster=cluster, needs=Needs(operands))


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
    if name == "argmax":
        return (1 + x.argmax(1),)
    x = np.where(x == 0, np.arange(x.shape[1]), x)
    return (more[0][:, None] * (x / (1 + (x * x).sum(1, keepdims=True)) - x.max(1, keepdims=True)),)


def operands(name: str, x: Any) -> list[Any]:
    rng = np.random.default_rng(x.shape[1])
    if name == "layer_norm":
        return [*rng.standard_normal((2, x.shape[1])).astype(np.float32)]
    return [rng.standard_normal(x.shape[0]).astype(np.float32)] if name == "scaled" else []


KERNELS = {"layer_norm": layer_norm, "softmax": softmax, "scaled": scaled, "argmax": argmax}


def wrong(name: str, x: Any, target: str, schedule: Rows | None = None) -> list[float]:
    """Return the relative errors of a call's results that are too large."""
    more, kernel = operands(name, x), KERNELS[name]
    of = kernel.kernel(x, *more) if schedule is None else kernel.scheduled(schedule)
    got = of(x, *more, target=target)
    got = got if isinstance(got, tuple) else (got,)
    bound = 2e-6 if x.dtype == np.float32 else 4e-3
    errors = [
        float(np.linalg.norm(np.asarray(one, np.float64) - exact) / np.linalg.norm(exact))
        for one, exact in zip(got, expected(name, x, *more), strict=True)
    ]
    return [error for error in errors if not error <= bound]
