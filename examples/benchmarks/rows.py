"""Measure ops over rows in TB/s moved, against PyTorch and a copy of as many bytes.

    cd examples/benchmarks
    python rows.py --out result.json
    python rows.py --of layer_norm,softmax --shapes 131072,1024 8192,5001 --dtype bf16,f32

Each operand and each result of the size of the matrix counts once: a forward pass moves as much as
a copy, a gradient 1.5 times as much. Outputs are allocated beforehand. Buffers rotate over twice
the size of the L2 cache. The first results are compared with float64 in sampled rows; all later
ones must have the same bits.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpipe import bench, ops
from numpipe.ops.gated import gated_backward
from numpipe.ops.norms import norm_backward, norm_rows
from numpipe.ops.softmax import softmax_backward

sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness

SHAPES = ("16384,16384", "65536,4096", "131072,1024", "8192,65536", "4096,50257")
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
ERRORS = {"bf16": 8e-3, "f16": 1e-3, "f32": 4e-6}
"""largest relative errors (Frobenius norm) of sampled rows, by element type"""
SAMPLED_ROWS = 64
EPS = 1e-5
DEVICE = "cuda"


@dataclass(frozen=True)
class Contest:
    """An op and what it is compared with.

    matrices  matrices that it reads
    results   matrices that it writes
    vectors   vectors along the columns that it reads
    others    function of the first matrix that returns further outputs, which do not count
    narrow    bytes of each element of the first of `others`, if it does count
    inputs    function of the first matrix that returns further inputs, which do not count
    ours      function of (matrices, vectors, inputs, results, others) that returns a call of the op
    theirs    function of (matrices, vectors, inputs) that returns a call of PyTorch's, or None if
              results are random: they are not compared
    exact     function of (matrices, vectors) in float64 that returns the first result, or None if
              it is compared with PyTorch's
    """

    matrices: int
    ours: Callable[..., object]
    theirs: Callable[..., Any] | None
    exact: Callable[..., Any]
    vectors: int = 0
    results: int = 1
    others: Callable[[Any], list[Any]] = lambda x: []
    narrow: int = 0
    inputs: Callable[[Any], list[Any]] = lambda x: []


def _norm(layer: bool, x: Any, weight: Any, bias: Any = 0.0) -> Any:
    x = x - x.mean(1, keepdim=True) if layer else x
    return x * (x.square().mean(1, keepdim=True) + EPS).rsqrt() * weight + bias


def _gradient_of(function: Callable[..., Any], x: Any, grad: Any) -> Any:
    import torch

    x = x.clone().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(function(x), x, grad)[0]


def _aten(name: str, *args: Any) -> Any:
    import torch

    return getattr(torch.ops.aten, name)(*args)


def _our_backward(layer: bool, x: Any, grad: Any, weight: Any, out: Any) -> Any:
    _, statistics = norm_rows(x, weight, centered=layer, eps=EPS)
    return lambda: norm_backward(x, grad, statistics, weight, bias=layer, out=out)


def _norm_backward(layer: bool, x: Any, grad: Any, weight: Any, bias: Any = None) -> Any:
    """Run PyTorch's gradient on statistics that were computed before."""
    n = list(weight.shape)
    if layer:
        _, mean, inverse = _aten("native_layer_norm", x, n, weight, bias, EPS)
        return lambda: _aten(
            "native_layer_norm_backward", grad, x, n, mean, inverse, weight, bias, [True] * 3
        )
    _, inverse = _aten("_fused_rms_norm", x, n, weight, EPS)
    return lambda: _aten("_fused_rms_norm_backward", grad, x, n, inverse, weight, [True] * 2)


def _functional(name: str) -> Any:
    import torch

    return getattr(torch.nn.functional, name)


def _floats(*shape: int) -> Any:
    import torch

    return torch.empty(shape, device=DEVICE)


def _labels(x: Any) -> list[Any]:
    import torch

    return [torch.randint(x.shape[1], (x.shape[0],), device=DEVICE)]


HEAD = 128
"""columns of a head, and of a block with a scale"""


def _in_heads(x: Any) -> Any:
    """Return a matrix as (1, heads, tokens, HEAD)."""
    return x.view(1, -1, math.gcd(x.numel() // HEAD, 4096), HEAD)


def _angles(x: Any) -> list[Any]:
    """Return tables (tokens, HEAD / 2), which are small next to x."""
    import torch

    angles = torch.rand(_in_heads(x).shape[2], HEAD // 2, device=DEVICE)
    return [angles.cos().to(x.dtype), angles.sin().to(x.dtype)]


def _turned(x: Any, cos: Any, sin: Any) -> Any:
    import torch

    a, b = _in_heads(x).chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).view(x.shape)


def _swiglu_backward(grad: Any, gate: Any, up: Any) -> Any:
    return _aten("silu_backward", grad * up, gate), grad * _functional("silu")(gate)


def _bytes_and_scales(x: Any) -> list[Any]:
    import torch

    return [torch.empty_like(x, dtype=torch.int8), _floats(len(x), -(-x.shape[1] // HEAD))]


def _quantized(x: Any) -> Any:
    """Return the bytes of the float8 numbers of a matrix with scales for blocks of HEAD columns."""
    import torch

    blocks = _functional("pad")(x, (0, -x.shape[1] % HEAD)).view(len(x), -1, HEAD).float()
    blocks = blocks * (448 / blocks.abs().amax(-1, keepdim=True))
    return blocks.to(torch.float8_e4m3fn).view(torch.int8).flatten(1)[:, : x.shape[1]]


def _quantize(x: Any, values: Any, scales: Any) -> Any:
    import torch

    out = values.view(torch.float8_e4m3fn), scales
    return lambda: ops.quantize(x, block="1x128", out=out)


def _norm_quantized(x: Any, weight: Any, values: Any, scales: Any) -> Any:
    import torch

    out = values.view(torch.float8_e4m3fn), scales
    return lambda: ops.rms_norm(x, weight, eps=EPS, out_scales="1x128", out=out)


def _loss_and_gradient(x: Any, labels: Any) -> Any:
    loss = lambda x: _functional("cross_entropy")(x, labels.long(), reduction="sum")
    return lambda: _gradient_of(loss, x, None)


def _topk(k: int) -> Contest:
    return Contest(
        1,
        lambda x, *out: lambda: ops.topk(x, k, out=out),
        lambda x: lambda: x.topk(k),
        lambda x: x.topk(k)[0],
        results=0,
        others=lambda x: [x.new_empty(x.shape[0], k), x.new_empty(x.shape[0], k).int()],
    )


def _reduction(name: str, axis: int) -> Contest:
    """Return the contest of a reduction of rows (axis 1) or of columns (0)."""
    theirs = "amax" if name == "max" else name
    empty = lambda x: x.new_empty(x.shape[1 - axis])
    return Contest(
        1,
        lambda x, out: lambda: getattr(ops, name)(x, axis, out=out),
        lambda x: lambda: getattr(x, theirs)(axis),
        lambda x: getattr(x, theirs)(axis).double() if axis else None,
        results=0,
        others=lambda x: [empty(x).int() if name == "argmax" else empty(x)],
    )


CONTESTS = {
    "softmax": Contest(
        1,
        lambda x, out: lambda: ops.softmax(x, out=out),
        lambda x: lambda: _aten("softmax", x, 1),
        lambda x: x.softmax(1),
    ),
    "softmax_backward": Contest(
        2,
        lambda y, grad, out: lambda: softmax_backward(y, grad, out=out),
        lambda y, grad: lambda: _aten("_softmax_backward_data", grad, y, 1, y.dtype),
        lambda y, grad: y * (grad - (y * grad).sum(1, keepdim=True)),
    ),
    "layer_norm": Contest(
        1,
        lambda x, w, b, out: lambda: ops.layer_norm(x, w, b, eps=EPS, out=out),
        lambda x, w, b: lambda: _functional("layer_norm")(x, w.shape, w, b, EPS),
        lambda x, w, b: _norm(True, x, w, b),
        vectors=2,
    ),
    "rms_norm": Contest(
        1,
        lambda x, w, out: lambda: ops.rms_norm(x, w, eps=EPS, out=out),
        lambda x, w: lambda: _functional("rms_norm")(x, w.shape, w, EPS),
        lambda x, w: _norm(False, x, w),
        vectors=1,
    ),
    "residual_rms_norm": Contest(
        2,
        lambda x, r, w, *out: lambda: ops.rms_norm(x, w, r, eps=EPS, out=out),
        lambda x, r, w: (
            lambda: (
                _functional("rms_norm")(total := x + r, w.shape, w, EPS),
                total,
            )
        ),
        lambda x, r, w: _norm(False, x + r, w),
        vectors=1,
        results=2,
    ),
    "dropout_residual_rms_norm": Contest(
        2,
        lambda x, r, w, *out: lambda: ops.rms_norm(x, w, r, eps=EPS, dropout=0.1, out=out),
        None,
        lambda x, r, w: None,
        vectors=1,
        results=2,
    ),
    "layer_norm_backward": Contest(
        2,
        lambda x, g, w, b, *out: _our_backward(True, x, g, w, out),
        lambda x, g, w, b: _norm_backward(True, x, g, w, b),
        lambda x, g, w, b: _gradient_of(lambda x: _norm(True, x, w, b), x, g),
        vectors=2,
        others=lambda x: [_floats(x.shape[1]), _floats(x.shape[1])],
    ),
    "rms_norm_backward": Contest(
        2,
        lambda x, g, w, *out: _our_backward(False, x, g, w, out),
        lambda x, g, w: _norm_backward(False, x, g, w),
        lambda x, g, w: _gradient_of(lambda x: _norm(False, x, w), x, g),
        vectors=1,
        others=lambda x: [_floats(x.shape[1])],
    ),
    "swiglu": Contest(
        2,
        lambda x, up, out: lambda: ops.swiglu(x, up, out=out),
        lambda x, up: lambda: _functional("silu")(x) * up,
        lambda x, up: x * x.sigmoid() * up,
    ),
    "swiglu_backward": Contest(
        3,
        lambda *arrays: lambda: gated_backward(*arrays[:3], out=arrays[3:]),
        lambda *arrays: lambda: _swiglu_backward(*arrays),
        lambda grad, gate, up: _swiglu_backward(grad, gate, up)[0],
        results=2,
    ),
    "quantize": Contest(
        1,
        _quantize,
        lambda x: lambda: _quantized(x),
        lambda x: None,
        results=0,
        others=_bytes_and_scales,
        narrow=1,
    ),
    "rms_norm_quantized": Contest(
        1,
        _norm_quantized,
        lambda x, w: (
            lambda: _quantized(_functional("rms_norm")(x.float(), w.shape, w.float(), EPS))
        ),
        lambda x, w: None,
        vectors=1,
        results=0,
        others=_bytes_and_scales,
        narrow=1,
    ),
    "rotary": Contest(
        1,
        lambda x, cos, sin, out: lambda: ops.rotary(_in_heads(x), cos, sin, out=_in_heads(out)),
        lambda x, cos, sin: lambda: _turned(x, cos, sin),
        lambda x, cos, sin: None,
        inputs=_angles,
    ),
    "cross_entropy": Contest(
        1,
        lambda x, labels, out: lambda: ops.cross_entropy(x, labels, reduction="none", out=out),
        lambda x, labels: lambda: _functional("cross_entropy")(x, labels, reduction="none"),
        lambda x, labels: x.logsumexp(1) - x.gather(1, labels[:, None].long())[:, 0],
        results=0,
        inputs=_labels,
        others=lambda x: [_floats(x.shape[0])],
    ),
    "cross_entropy_and_gradient": Contest(
        1,
        lambda x, labels, dx, loss: (
            lambda: ops.cross_entropy(
                x, labels, reduction="sum", with_gradient=True, out=(loss, dx)
            )
        ),
        _loss_and_gradient,
        lambda x, labels: _loss_and_gradient(x, labels)(),
        inputs=_labels,
        others=lambda x: [_floats()],
    ),
    "topk_8": _topk(8),
    "topk_64": _topk(64),
    "cumsum": Contest(
        1,
        lambda x, out: lambda: ops.cumsum(x, out=out),
        lambda x: lambda: x.cumsum(1),
        lambda x: x.cumsum(1),
    ),
    "transpose": Contest(
        1,
        lambda x, out: lambda: ops.transpose(x, out=out.view(x.shape[1], x.shape[0])),
        # a copy, even of a single row
        lambda x: lambda: x.new_empty(x.T.shape).copy_(x.T),
        lambda x: None,
    ),
    "matvec": Contest(
        1,
        lambda x, v, out: lambda: ops.matvec(x, v, out=out),
        lambda x, v: lambda: x @ v,
        lambda x, v: x @ v,
        vectors=1,
        results=0,
        others=lambda x: [x.new_empty(x.shape[0])],
    ),
    **{
        f"{name}{of}": _reduction(name, axis)
        for name in ("sum", "max", "argmax")
        for axis, of in ((1, ""), (0, "_of_columns"))
    },
}


class InPlace(harness.InPlace):
    """Competitors whose outputs may be integers."""

    def poison(self) -> None:
        for out in self.outs:
            out.fill_(math.nan if out.is_floating_point() else -1)


class Allocating:
    """A competitor that returns new arrays: ``function(i)``, of which the first is kept."""

    def __init__(self, count: int, function: Callable[[int], Any]) -> None:
        self.count, self.function = count, function
        self.poison()

    def __call__(self, i: int) -> object:
        made = self.function(i % self.count)
        self.outs[i % self.count] = made[0] if isinstance(made, tuple) else made
        return made

    def poison(self) -> None:
        self.outs: list[Any] = [None] * self.count


def buffers(contest: Contest, rows: int, columns: int, dtype: Any) -> tuple[list[Any], list[Any]]:
    """Return random inputs of a contest, and its outputs."""
    import torch

    def numbers(*shape: int) -> Any:
        return torch.randn(shape, device=DEVICE).to(dtype)

    made = [numbers(rows, columns) for _ in range(contest.matrices)]
    if contest is CONTESTS["softmax_backward"]:
        made[0] = made[0].softmax(1)
    vectors = [numbers(columns) for _ in range(contest.vectors)]
    outs = [torch.empty_like(made[0]) for _ in range(contest.results)]
    return made + vectors + contest.inputs(made[0]), outs + contest.others(made[0])


def measure(process: int, case: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Measure one case in this process; return its entry of the result file."""
    import torch

    torch.manual_seed(process)
    rows, columns = (int(size) for size in case["shape"].split(","))
    dtype, contest = getattr(torch, DTYPES[case["dtype"]]), CONTESTS[case["of"]]
    matrices = contest.matrices + contest.results
    nbytes = rows * columns * (matrices * dtype.itemsize + contest.narrow)
    cached = torch.cuda.get_device_properties(0).L2_cache_size
    sets = range(bench.rotation_sets(nbytes, cached))
    made = [buffers(contest, rows, columns, dtype) for _ in sets]
    arrays, outs = [each[0] for each in made], [each[1] for each in made]
    ours = [contest.ours(*each, *out) for each, out in zip(arrays, outs, strict=True)]
    sources = [torch.randn(nbytes // 2 // dtype.itemsize, device=DEVICE).to(dtype) for _ in sets]
    calls: dict[str, Any] = {
        "numpipe": InPlace([out[0] for out in outs], lambda i, _: ours[i]()),
        "copy": harness.InPlace(
            [torch.empty_like(each) for each in sources], lambda i, out: out.copy_(sources[i])
        ),
    }
    if contest.theirs is not None:
        theirs = [contest.theirs(*each) for each in arrays]
        calls["PyTorch"] = Allocating(len(sets), lambda i: theirs[i]())
    harness.run_all(calls, len(sets))
    some, errors = torch.randperm(rows, device=DEVICE)[:SAMPLED_ROWS], {"numpipe": 0.0}
    for name in ("numpipe", "PyTorch") if contest.theirs is not None else ():
        errors[name] = 0.0
        for each, out in zip(arrays, calls[name].outs, strict=True):
            sampled = [
                (
                    array[some]
                    if number < contest.matrices or not array.is_floating_point()
                    else array
                ).double()
                for number, array in enumerate(each)
            ]
            exact = contest.exact(*sampled)
            if exact is not None:
                errors[name] = max(errors[name], harness.relative_error(out[some], exact))
            elif name == "numpipe":  # other ops are compared with PyTorch's result
                theirs_now = calls["PyTorch"].outs[0].double().flatten()
                errors[name] = harness.relative_error(
                    calls[name].outs[0].double().flatten(), theirs_now
                )
    unwritten = any(
        bool(torch.isnan(out).any()) for each in outs for out in each if out.is_floating_point()
    )
    if unwritten or not errors["numpipe"] <= ERRORS[case["dtype"]]:
        raise AssertionError(f"numpipe: errors {errors}, elements unwritten: {unwritten}, {case}")
    samples = harness.compare_checked(calls, "copy", options, str(case))
    return bench.run_entry(
        process, case, 1e-12 * nbytes, samples, errors=errors, rotation_sets=len(sets)
    )


def main() -> int:
    parser = harness.script(__doc__)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="ROWS,COLUMNS")
    for option, default, known in (
        ("--dtype", ["bf16"], DTYPES),
        ("--of", list(CONTESTS), CONTESTS),
    ):
        what = "comma-separated, of: " + ", ".join(known)
        parser.add_argument(option, default=default, type=harness.listed, help=what)
    options = harness.parse(parser, None, dtype=DTYPES, of=CONTESTS)
    cases: list[dict[str, Any]] = [
        {"shape": shape, "of": of, "dtype": dtype}
        for shape in options.shapes
        for dtype in options.dtype
        for of in options.of
    ]
    return harness.main(
        "rows",
        cases,
        lambda process, case: measure(process, dict(case), options),
        unit="TB/s",
        **harness.main_options(options),
    )


if __name__ == "__main__":
    harness.run(main)
