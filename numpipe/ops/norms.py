"""Kernels of rms_norm and layer_norm, and of their gradients.

A row is read once and stays in registers. The gradient kernel computes mean and variance again
from x. Each of its programs takes many rows, adds up the gradients of weight and bias in registers,
and stores one row of sums; a second kernel adds these rows, always in the same order.
"""

# tiles and schedules in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, call-overload"

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..diagnostics.argument_checks import Rule, finite, whole
from ..kernels.decorator import kernel
from ..kernels.row_kernels import RowKernel, choose, rows
from ..language.tiles.mathematics import rsqrt
from ..language.tiles.refs import ds
from ..launch.array_info import ArrayInfo
from ..plan.context import program_id
from ..plan.specs import ArrayType, Static
from .op_outputs import allocated
from .over_rows import COLUMNS, MATRIX, launch_over_rows

CHECKS = {
    "eps": finite(0.0),
    "dropout": Rule(("a number of 0…1",), lambda value: finite(0.0).holds(value) and value <= 1),
    "seed": whole(-(2**31), 2**31 - 1),
}
SMS = 132
"""programs of the gradient kernel per CTA that an SM has room for"""


@functools.cache
def forward(centered: bool, *present: str) -> RowKernel:
    """Return the kernel of y = norm(x + residual) * weight + bias, and total = x + residual, with
    the operands that are `present`; with "dropout", elements of x are dropped first."""
    absent = [name for name in ("residual", "weight", "bias") if name not in present]
    absent += ["total"] * ("residual" in absent)
    drops = "dropout" in present

    # the draw takes registers: without this, ptxas spills
    @rows(operands=3 if drops else 1, without=absent)
    def norm(x, residual, weight, bias, y, total, *, eps, dropout, scale, seed, row: Static):
        i, j = row.block()
        tile, n = x[i, j].astype(np.float32), x.shape[1]
        if drops:
            tile = np.where(row.random(seed) < dropout, 0.0, tile * scale)
        if residual is not None:
            tile = tile + residual[i, j].astype(np.float32)
            total[i, j] = tile
        if centered:
            tile, square = row.moments(tile, n)
        else:
            square = row.sum(tile * tile, n) / n
        tile = tile * rsqrt(square + eps)
        if weight is not None:
            tile = tile * weight[j].astype(np.float32)
        if bias is not None:
            tile = tile + bias[j].astype(np.float32)
        y[i, j] = tile

    return norm


@functools.cache
def backward(centered: bool, *present: str) -> RowKernel:
    """Return the kernel that computes the gradients of x, weight and bias.

    With "dropout", it has the gradient of x before elements were dropped; x is the array that they
    are dropped from, or with "residual" the total, and dresidual is the gradient of the total."""
    absent = [name for name in ("weight", "grad_total") if name not in present]
    absent += ["dweight"] * ("weight" in absent) + ["dbias"] * ("bias" not in present)
    drops, adds = "dropout" in present, "residual" in present
    absent += ["dresidual"] * (not (drops and adds))
    programs = "dweight" if "weight" in present else "dbias" if "bias" in present else ""

    @rows(operands=(3 if programs else 2) + 2 * (drops and adds), programs=programs, without=absent)
    def norm_gradient(
        x,
        grad,
        weight,
        grad_total,
        dx,
        dresidual,
        dweight,
        dbias,
        *,
        eps,
        dropout,
        scale,
        seed,
        row: Static,
    ):
        n = x.shape[1]
        if weight is not None:
            _, j = row.block()
            gain = weight[j].astype(np.float32)
            of_weight = row.zeros()
        if dbias is not None:
            of_bias = row.zeros()
        i, j = row.block(row.start())
        next_tile, next_grad = x[i, j], grad[i, j]
        for k in range(row.start(), row.blocks(x.shape[0]), row.step()):
            i, j = row.block(k)
            tile, own = next_tile.astype(np.float32), next_grad.astype(np.float32)
            # the loads of the next block overlap the arithmetic of this one
            after, _ = row.block(k + row.step())
            next_tile, next_grad = x[after, j], grad[after, j]
            if drops and not adds:
                tile = np.where(row.random(seed, k) < dropout, 0.0, tile * scale)
            if centered:
                tile, square = row.moments(tile, n)
            else:
                square = row.sum(tile * tile, n) / n
            inverse = rsqrt(square + eps)
            tile = tile * inverse
            if dbias is not None:
                of_bias = of_bias + own
            if weight is not None:
                of_weight = of_weight + own * tile
                own = own * gain
            along, mean = row.sums(own * tile, own, n)
            own = own - tile * (along / n)
            if centered:
                own = own - mean / n
            own = own * inverse
            if grad_total is not None:
                own = own + grad_total[i, j].astype(np.float32)
            if drops and adds:
                dresidual[i, j] = own
            if drops:
                # the draw is repeated rather than kept in registers
                own = np.where(row.random(seed, k) < dropout, 0.0, own * scale)
            dx[i, j] = own
        at = row.start()
        if weight is not None:
            dweight[ds(at, 1), j] = of_weight.sum(axis=0)[None, :]
        if dbias is not None:
            dbias[ds(at, 1), j] = of_bias.sum(axis=0)[None, :]

    return norm_gradient


@kernel(
    grid=lambda parts: (cdiv(parts.shape[1], 64),),
    num_compute_wgs=1,
    warp_specialized=False,
)
def add_rows(parts, total):
    """total = the sum over the rows of a float32 matrix"""
    j = ds(program_id(0) * 64, 64)
    added = parts[ds(0, 64), j]
    for block in range(1, cdiv(parts.shape[0], 64)):
        added = added + parts[ds(block * 64, 64), j]
    total[j] = added.sum(axis=0)


Given = Mapping[str, ArrayInfo | None]


@dataclass(frozen=True)
class Numbers:
    """Scalars of a norm: eps, the probability of dropping an element, and the seed of the draw."""

    eps: float
    dropout: float = 0.0
    seed: int = 0

    def scalars(self) -> dict[str, Any]:
        """Return the scalar arguments of the kernels."""
        scale = 1 / (1 - self.dropout) if self.dropout < 1 else 0.0
        return {"eps": self.eps, "dropout": self.dropout, "scale": scale, "seed": self.seed}


def launch_forward(
    centered: bool, inputs: Given, results: Given, by: Numbers, target: str | None, stream: Any
) -> None:
    """Launch rms_norm, or layer_norm if `centered`, on the arrays that are not None."""
    given, made = _known(inputs), _known(results)
    drops = ["dropout"] * (by.dropout > 0)
    run = forward(centered, *[name for name in given if name != "x"], *drops)
    launch_over_rows("norm", run, given, made, target, stream, **by.scalars())


def _known(arrays: Given) -> dict[str, tuple[str, ArrayInfo]]:
    """Return (kind, array) of the arrays that are not None."""
    return {
        name: (COLUMNS if name in ("weight", "bias") else MATRIX, info)
        for name, info in arrays.items()
        if info is not None
    }


def launch_backward(
    centered: bool, inputs: Given, results: Given, by: Numbers, target: str | None, stream: Any
) -> None:
    """Launch the gradient of rms_norm, or of layer_norm if `centered`: inputs x, grad, weight and
    grad_total, and results dx, dresidual, dweight and dbias, each an array or None."""
    given, made = _known(inputs), _known(results)
    _, x = given["x"]
    count = math.prod(x.shape[:-1])
    present = [name for name in given if name in ("weight", "grad_total")]
    present += ["bias"] * ("dbias" in made) + ["dropout"] * (by.dropout > 0)
    run = backward(centered, *present, *["residual"] * ("dresidual" in made))
    row = choose(x.shape[-1], run.operands)
    programs = max(1, min(-(-count // row.height), SMS * row.ctas // row.cluster))
    like = x._replace(dtype=np.dtype(np.float32))
    sums = {name: info for name, (_, info) in made.items() if name[1:] in ("weight", "bias")}
    for name in sums:
        made[name] = MATRIX, allocated("norm", like, (programs, x.shape[-1]), stream)
    launch_over_rows("norm", run, given, made, target, stream, **by.scalars())
    for name, total in sums.items():
        add_rows(made[name][1], total, target=target, stream=stream)


def total_type(x: Any, residual: Any) -> ArrayType | None:
    """Return the type of x + residual, a result if there is a residual."""
    return None if residual is None else ArrayType(x.shape, x.dtype)


def dresidual_type(x: Any, dropout: float, residual: bool) -> ArrayType | None:
    """Return the type of the gradient of the residual, a result if it is not that of x."""
    return ArrayType(x.shape, x.dtype) if residual and dropout > 0 else None


def batched_norm(
    xp: Any,
    op: Any,
    size: Any,
    batched: Mapping[str, bool],
    operands: Mapping[str, Any],
    **options: Any,
) -> Any:
    """Apply the vmap rule of a norm: vectors that are batched are applied after it."""
    arrays = dict(operands)
    for name in ("x", "residual"):
        if arrays[name] is not None and not batched[name] and (batched["x"] or batched["residual"]):
            arrays[name] = xp.broadcast_to(arrays[name], (size, *arrays[name].shape))
    apart = [name for name in ("weight", "bias") if batched.get(name)]
    if not apart:
        return xp(op, **arrays, **options)
    made = xp(op, x=arrays["x"], residual=arrays["residual"], **options)
    y, *rest = made if isinstance(made, tuple) else (made,)
    if not (batched["x"] or batched["residual"]):
        y, *rest = (xp.broadcast_to(each, (size, *each.shape)) for each in (y, *rest))
    for name in ("weight", "bias"):
        if (vector := operands.get(name)) is not None:
            outer = vector.shape[:-1]
            between = [1] * (y.ndim - 1 - len(outer))
            wide = xp.cast(vector, y.dtype).reshape(*outer, *between, vector.shape[-1])
            y = y * wide if name == "weight" else y + wide
    return (y, *rest) if rest else y
