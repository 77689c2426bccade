"""``swiglu(gate, up)`` and ``geglu(gate, up)``: the gated units of feed-forward layers, each with
its gradient in one pass over memory, and with a quantized result on request."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..arch.dtypes import ELEMENTS
from ..core.arith import cdiv
from ..core.functions import function
from ..diagnostics.argument_checks import NONE, word
from ..diagnostics.errors import SpecError
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..kernels.rows import RowKernel, rows
from ..language.tiles.mathematics import sigmoid
from ..launch.array_info import ArrayInfo
from ..launch.windows import strided
from ..plan.context import program_id
from ..plan.params import CompilerParams
from ..plan.specs import ArrayType, Static
from .activations import ACTIVATIONS
from .declaration import op
from .over_rows import MATRIX, ROWS, launch_over_rows
from .quantizing import DTYPE, quantizer
from .quantize import launch_over_blocks, scales_shape
from .tiled import TYPES, launch_over_tiles, tile_at, tiles_of

__all__ = ["geglu", "swiglu"]

PARAMS = CompilerParams(approx_math=True)


@function
def silu_slope(x):  # type: ignore[no-untyped-def]
    """Return (silu(x), its derivative)."""
    s = sigmoid(x)
    return x * s, s * (1.0 + x * (1.0 - s))


@function
def gelu_slope(x):  # type: ignore[no-untyped-def]
    """Return (gelu(x), its derivative), for the tanh approximation."""
    t = np.tanh(0.7978845608 * x * (1.0 + 0.044715 * x * x))
    inner = 0.7978845608 * (1.0 + 3 * 0.044715 * x * x)
    return 0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner


SLOPES: dict[str, Any] = {"silu": silu_slope, "gelu": gelu_slope}


@functools.cache
def forward(activation: str, height: int, width: int) -> Kernel:
    """Return the kernel of ``y = activation(gate) * up``."""
    act, at = ACTIVATIONS[activation], tile_at(height, width)

    @numpipe_kernel(
        grid=lambda gate: tiles_of(gate, height, width),
        warp_specialized=False,
        compiler_params=PARAMS,
    )
    def gated(gate, up, y):  # type: ignore[no-untyped-def]
        i, j = at(gate)
        g, u = gate[i, j], up[i, j]
        y[i, j] = act(g.astype(np.float32)) * u.astype(np.float32)

    return gated  # type: ignore[no-any-return]


@functools.cache
def backward(activation: str, height: int, width: int) -> Kernel:
    """Return the kernel of the gradients of gate and up."""
    slope, at = SLOPES[activation], tile_at(height, width)

    @numpipe_kernel(
        grid=lambda gate: tiles_of(gate, height, width),
        warp_specialized=False,
        compiler_params=PARAMS,
    )
    def gated_gradient(grad, gate, up, dgate, dup):  # type: ignore[no-untyped-def]
        i, j = at(gate)
        d, g, u = grad[i, j], gate[i, j], up[i, j]
        d = d.astype(np.float32)
        value, derivative = slope(g.astype(np.float32))
        dgate[i, j] = d * u.astype(np.float32) * derivative
        dup[i, j] = d * value

    return gated_gradient  # type: ignore[no-any-return]


@functools.cache
def by_row(activation: str, dtype: str) -> RowKernel:
    """Return the kernel over rows with a quantized result and a scale for each row."""
    act, quantized = ACTIVATIONS[activation], quantizer(dtype)

    @rows(operands=2)
    def gated_row(gate, up, y, scales, *, row: Static):  # type: ignore[no-untyped-def]
        i, j = row.block()
        g, u = gate[i, j], up[i, j]
        tile = act(g.astype(np.float32)) * u.astype(np.float32)
        values, scale = quantized(tile, row.max(np.abs(tile), gate.shape[1]))
        y[i, j] = values
        row.put(scales, scale)

    return gated_row


@functools.cache
def by_block(activation: str, dtype: str, height: int, width: int) -> Kernel:
    """Return the kernel with a quantized result and a scale for each 128 columns."""
    act, quantized, at = ACTIVATIONS[activation], quantizer(dtype), tile_at(height, width)

    @numpipe_kernel(
        grid=lambda gate: tiles_of(gate, height, width),
        warp_specialized=False,
        compiler_params=PARAMS,
    )
    def gated_block(gate, up, y, scales):  # type: ignore[no-untyped-def]
        i, j = at(gate)
        g, u = gate[i, j], up[i, j]
        tile = act(g.astype(np.float32)) * u.astype(np.float32)
        values, scale = quantized(tile, np.abs(tile).max(axis=1)[:, None])
        y[i, j] = values
        scales[i, program_id(0) % cdiv(gate.shape[1], width)] = scale.reshape(-1)

    return gated_block  # type: ignore[no-any-return]


# ---- shapes and launches
def halves(x: ArrayInfo) -> tuple[ArrayInfo, ArrayInfo]:
    """Return the two halves of an array's last dimension."""
    n = x.shape[-1] // 2
    array = x.array
    second = x._replace(
        ptr=x.ptr + n * x.strides[-1], array=None if array is None else array[..., n:]
    )
    return tuple(strided(part, (*x.shape[:-1], n), x.strides) for part in (x, second))  # type: ignore[return-value]


def _shape(name: str, gate: Any, up: Any) -> tuple[Any, ...]:
    """Return the shape of the result. Raises SpecError for operands that do not match."""
    shape = tuple(gate.shape)
    if up is None:
        if not shape or shape[-1] % 2:
            raise SpecError(
                f"{name}: without 'up', the last dimension of 'gate' has both halves, an even "
                f"number of elements, got shape {shape}; fix: pass gate and up"
            )
        return (*shape[:-1], shape[-1] // 2)
    if shape != tuple(up.shape):
        raise SpecError(
            f"{name}: 'gate' and 'up' must have one shape, got {shape} and {tuple(up.shape)}"
        )
    return shape


def _y(name: str, gate: Any, up: Any, out_scales: str | None, out_dtype: str) -> ArrayType:
    kind = gate.dtype if out_scales is None else ELEMENTS[out_dtype].dtype
    return ArrayType(_shape(name, gate, up), kind)


def _scales(name: str, gate: Any, up: Any, out_scales: str | None) -> ArrayType | None:
    if out_scales is None:
        return None
    return ArrayType(scales_shape(_shape(name, gate, up), out_scales), np.float32)


def _launch(activation: str, name: str) -> Any:
    def launch(
        gate: ArrayInfo,
        up: ArrayInfo | None,
        y: ArrayInfo,
        scales: ArrayInfo,
        out_scales: str | None,
        out_dtype: str,
        target: str | None,
        stream: Any,
    ) -> None:
        first, second = halves(gate) if up is None else (gate, up)
        inputs = {"gate": first, "up": second}
        if out_scales is None:
            of = functools.partial(forward, activation)
            launch_over_tiles(name, of, inputs, {"y": y}, target, stream)
        elif out_scales == "row":
            launch_over_rows(
                name,
                by_row(activation, out_dtype),
                {key: (MATRIX, info) for key, info in inputs.items()},
                {"y": (MATRIX, y), "scales": (ROWS, scales)},
                target,
                stream,
            )
        else:
            of = functools.partial(by_block, activation, out_dtype)
            launch_over_blocks(name, of, inputs, y, scales, target, stream)

    return launch


def _launch_gradient(activation: str, name: str) -> Any:
    def launch(
        grad: ArrayInfo,
        gate: ArrayInfo,
        up: ArrayInfo | None,
        dgate: ArrayInfo,
        dup: ArrayInfo,
        target: str | None,
        stream: Any,
    ) -> None:
        if up is None:
            gate, up = halves(gate)
            dgate, dup = halves(dgate)
        of = functools.partial(backward, activation)
        inputs, results = {"grad": grad, "gate": gate, "up": up}, {"dgate": dgate, "dup": dup}
        launch_over_tiles(name, of, inputs, results, target, stream, nbytes=4096)

    return launch


def _dgate(name: str, grad: Any, gate: Any, up: Any) -> ArrayType:
    if (shape := _shape(name, gate, up)) != tuple(grad.shape):
        raise SpecError(f"{name}: 'grad' must have shape {shape}, got {tuple(grad.shape)}")
    return ArrayType(gate.shape, gate.dtype)


def _dup(up: Any) -> ArrayType | None:
    return None if up is None else ArrayType(up.shape, up.dtype)


def _gradients(
    name: str, backward: Any, xp: Any, gate: Any, up: Any, grad_y: Any, out_scales: str | None
) -> Any:
    if out_scales is not None:
        raise SpecError(f"{name}: quantized results have no gradient; fix: omit out_scales")
    return (xp(backward, grad_y, gate), None) if up is None else xp(backward, grad_y, gate, up)


CHECKS = {"out_scales": NONE | word("row", "1x128"), "out_dtype": DTYPE}


@op(
    operands={"grad": "", "gate": "", "up": ""},
    results={
        "dgate": lambda grad, gate, up: _dgate("swiglu_backward", grad, gate, up),
        "dup": _dup,
    },
    types=TYPES,
    launch=_launch_gradient("silu", "swiglu_backward"),
    batching="leading",
)
def swiglu_backward(
    grad: Any,
    gate: Any,
    up: Any = None,
    *,
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return the gradients of gate and up of `swiglu`, where grad is the gradient of its result."""


@op(
    operands={"gate": "", "up": ""},
    results={
        "y": lambda gate, up, out_scales, out_dtype: _y("swiglu", gate, up, out_scales, out_dtype),
        "scales": lambda gate, up, out_scales: _scales("swiglu", gate, up, out_scales),
    },
    types=TYPES,
    launch=_launch("silu", "swiglu"),
    checks=CHECKS,
    gradients={
        "gate up": lambda xp, gate, up, grad_y, out_scales: _gradients(
            "swiglu", swiglu_backward, xp, gate, up, grad_y, out_scales
        )
    },
    batching="leading",
)
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
    """Return ``silu(gate) * up``, with silu(x) = x * sigmoid(x).

    gate, up    arrays of one shape, of float16, bfloat16 or float32, with any strides; without up,
                gate is (…, 2 n), with gate and up as the halves of its last dimension
    out_scales  "row" or "1x128": return (y, scales), with y quantized to `out_dtype` as by
                `quantize` with this block; without gradient
    out_dtype   "float8_e4m3fn" or "int8", for quantized results
    out         an array to write to, or a tuple of two; allocated by default
    target, stream
                as for any kernel

    The operands are read once, in the gradient too, and all arithmetic is float32. Raises SpecError
    for operands that do not match, and for quantized rows that do not fit in the registers of a
    cluster.

    >>> swiglu(np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32), target="sim")[0]
    array([0., 0., 0.], dtype=float32)
    """


@op(
    operands={"grad": "", "gate": "", "up": ""},
    results={
        "dgate": lambda grad, gate, up: _dgate("geglu_backward", grad, gate, up),
        "dup": _dup,
    },
    types=TYPES,
    launch=_launch_gradient("gelu", "geglu_backward"),
    batching="leading",
)
def geglu_backward(
    grad: Any,
    gate: Any,
    up: Any = None,
    *,
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return the gradients of gate and up of `geglu`, where grad is the gradient of its result."""


@op(
    operands={"gate": "", "up": ""},
    results={
        "y": lambda gate, up, out_scales, out_dtype: _y("geglu", gate, up, out_scales, out_dtype),
        "scales": lambda gate, up, out_scales: _scales("geglu", gate, up, out_scales),
    },
    types=TYPES,
    launch=_launch("gelu", "geglu"),
    checks=CHECKS,
    gradients={
        "gate up": lambda xp, gate, up, grad_y, out_scales: _gradients(
            "geglu", geglu_backward, xp, gate, up, grad_y, out_scales
        )
    },
    batching="leading",
)
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
    """Return ``gelu(gate) * up``, with gelu the tanh approximation, as in Gemma.

    Parameters and errors are those of `swiglu`.

    >>> geglu(np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32), target="sim")[0]
    array([0., 0., 0.], dtype=float32)
    """
