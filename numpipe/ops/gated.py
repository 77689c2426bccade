"""``swiglu(gate, up)`` and ``geglu(gate, up)``: the gated units of feed-forward layers, each with
its gradient in one pass over memory, and with a quantized result on request."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..core.functions import Function, function
from ..diagnostics.argument_checks import word
from ..diagnostics.errors import SpecError
from ..kernels.kernel import Kernel
from ..kernels.row_registers import LARGEST
from ..language.tiles.mathematics import fma
from ..launch.array_info import ArrayInfo
from ..launch.windows import strided
from .declaration import op
from .op_outputs import Place, same
from .quantize import QUANTIZED, launch_quantized, result_type, scales_type
from .tiled import TYPES, Tile, launch_over_tiles


def unit(gelu: bool) -> Function:
    """Return the kernel function from x to (activation(x), its derivative): silu(x), or gelu(x) by
    its tanh approximation. Both are x * sigmoid(z), here accurate to a few ulp for any x."""

    @function
    def activated(x):  # type: ignore[no-untyped-def]
        square = x * x
        z = x * (1.5957691216 + 0.0713548163 * square) if gelu else x
        slope = 1.5957691216 + 0.2140644488 * square if gelu else 1.0
        power = np.exp(-abs(z))
        rest = power / (1.0 + power)
        # max(x, 0) - |x| * rest, rounded once: infinity stays infinity, and -0 stays -0
        y = fma(-abs(np.minimum(x, LARGEST)), rest, np.where(x < 0.0, -0.0, x))
        s = np.where(x > 0.0, 1.0 - rest, rest)
        return y, s + x * (rest * (1.0 - rest)) * slope

    return activated


UNITS = {"silu": unit(gelu=False), "gelu": unit(gelu=True)}


@functools.cache
def forward(activation: str, tile: Tile) -> Kernel:
    """Return the kernel of ``y = activation(x) * up``."""
    activated, at = UNITS[activation], tile.at

    @tile.kernel()
    def gated(x, up, y):  # type: ignore[no-untyped-def]
        i, j = at(x)
        gate, factor = x[i, j], up[i, j]
        made, _ = activated(gate.astype(np.float32))
        y[i, j] = made * factor.astype(np.float32)

    return gated


@functools.cache
def backward(activation: str, tile: Tile) -> Kernel:
    """Return the kernel of the gradients of gate and up."""
    activated, at = UNITS[activation], tile.at

    @tile.kernel()
    def gated_gradient(x, up, grad, dgate, dup):  # type: ignore[no-untyped-def]
        i, j = at(x)
        g, u, d = x[i, j], up[i, j], grad[i, j]
        d = d.astype(np.float32)
        y, slope = activated(g.astype(np.float32))
        dgate[i, j] = d * u.astype(np.float32) * slope
        dup[i, j] = d * y

    return gated_gradient


def halves(x: ArrayInfo, interleaved: bool = False) -> list[ArrayInfo]:
    """Return the two halves of an array's last dimension, or its even and its odd elements."""
    (*outer, n), (*steps, size) = x.shape, x.strides
    shape, strides = (*outer, n // 2), (*steps, size * (1 + interleaved))
    second = 1 if interleaved else n // 2
    return [strided(x, shape, strides, (*[0] * len(outer), first)) for first in (0, second)]


def _shape(name: str, gate: Any, up: Any) -> tuple:
    """Return the shape of the result. Raises SpecError if gate has no halves."""
    *outer, n = gate.shape
    if up is None and n % 2:
        raise SpecError(
            f"{name}: without 'up', the last dimension of 'gate' has both halves, an even number "
            f"of elements, got shape {tuple(gate.shape)}; fix: pass gate and up"
        )
    return (*outer, n // 2 if up is None else n)


def _launch_gradient(
    grad: Any, gate: Any, up: Any, dgate: Any, dup: Any, activation: str, place: Place
) -> None:
    if up is None:
        (gate, up), (dgate, dup) = halves(gate), halves(dgate)
    launch_over_tiles(
        functools.partial(backward, activation),
        {"x": gate, "up": up, "grad": grad},
        {"dgate": dgate, "dup": dup},
        place,
    )


@op(
    operands={"grad": "", "gate": "", "up": ""},
    results={
        "dgate": lambda gate: same(gate),
        "dup": lambda up: same(up),
    },
    types=TYPES,
    launch=_launch_gradient,
    checks={"activation": word(*UNITS)},
    batching="leading",
)
def gated_backward(
    grad: Any,
    gate: Any,
    up: Any = None,
    *,
    activation: str = "silu",
) -> Any:
    """Return the gradients of gate and up, where grad is the gradient of activation(gate) * up."""


def _declared(name: str, activation: str) -> Any:
    """Return the declaration of an op."""

    def launch(
        gate: Any, up: Any, y: Any, scales: Any, out_scales: Any, out_dtype: Any,
        place: Place,
    ) -> None:  # fmt: skip
        if up is None:
            gate, up = halves(gate)
        inputs = {"x": gate, "up": up}
        if out_scales is None:
            launch_over_tiles(functools.partial(forward, activation), inputs, {"y": y}, place)
        else:
            launch_quantized(UNITS[activation], inputs, y, scales, out_dtype, out_scales, place)

    def gradient(xp: Any, gate: Any, up: Any, grad_y: Any, out_scales: Any) -> Any:
        if out_scales is not None:
            raise SpecError(f"{name}: quantized results have no gradient; fix: omit out_scales")
        made = xp(gated_backward, grad_y, gate, up, activation=activation)
        return (made, None) if up is None else made

    return op(
        operands={"gate": "... n", "up": "... n"},
        results={
            "y": lambda gate, up, out_scales, out_dtype: result_type(
                _shape(name, gate, up), gate, out_scales, out_dtype
            ),
            "scales": lambda gate, up, out_scales: scales_type(_shape(name, gate, up), out_scales),
        },
        types=TYPES,
        launch=launch,
        checks=QUANTIZED,
        gradients={"gate up": gradient},
        batching="leading",
    )


@_declared("swiglu", "silu")
def swiglu(
    gate: Any,
    up: Any = None,
    *,
    out_scales: str | None = None,
    out_dtype: str = "float8_e4m3fn",
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return ``gate * sigmoid(gate) * up``.

    gate, up    arrays of one shape, of float16, bfloat16 or float32, with any strides; without up,
                gate is (…, 2 n), with gate and up as the halves of its last dimension
    out_scales  "row" or "1x128": return (y, scales), with y quantized to `out_dtype` as by
                `quantize` with this block; without gradient
    out_dtype   "float8_e4m3fn" or "int8", for quantized results
    out         an array to write to, or a tuple of two; allocated by default
    target, stream
                as for any kernel

    The operands are read once, in the gradient too, and all arithmetic is float32. Raises SpecError
    for operands that do not match.

    >>> swiglu(np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32), target="sim")[0]
    array([0., 0., 0.], dtype=float32)
    """


@_declared("geglu", "gelu")
def geglu(
    gate: Any,
    up: Any = None,
    *,
    out_scales: str | None = None,
    out_dtype: str = "float8_e4m3fn",
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return ``gelu(gate) * up``, with the tanh approximation of gelu, as in Gemma. Parameters and
    errors are those of `swiglu`.

    >>> geglu(np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32), target="sim")[0]
    array([0., 0., 0.], dtype=float32)
    """
