"""Kernels of examples/gallery relative to the op that numpipe has for it, or to PyTorch.

    cd examples/benchmarks
    python gallery.py --processes 1 --protocols interleaved --out result.json
    python gallery.py --processes 1 --protocols interleaved --of softmax,transpose

Results are compared with float64, or with the reference where that would take too long, before
and after calls are measured. Rates count the bytes that a call has to read and write once, or its
floating-point operations. all_gather_matmul runs on two GPUs, and is left out if there are fewer.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpipe
from numpipe import bench, ops

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parent))

import harness
from harness.scripts import compare_options

OURS = "gallery"
PAIR = "all_gather_matmul"
"""the kernel that runs on two GPUs"""
DEVICES = ("cuda:0", "cuda:1")


@dataclass(frozen=True)
class Case:
    """A kernel of the gallery and what it is compared with."""

    what: str
    """its operands, as the gallery's page says it"""
    inputs: Callable[[], tuple[Any, ...]]
    """returns the input arrays of one set of buffers"""
    outs: Callable[..., tuple[Any, ...]]
    """returns the output arrays for these inputs"""
    ours: Callable[..., object]
    """called with the inputs and outputs"""
    reference: Callable[..., object]
    exact: Callable[..., tuple[Any, ...]]
    """returns the outputs' values, at best in float64"""
    work: float
    """bytes or floating-point operations of a call, on all GPUs"""
    name: str = "op"
    """of the reference"""
    unit: str = "TB/s"
    error: float = 1e-2
    """The largest allowed error of an output in the Frobenius norm, relative"""
    gpus: int = 1


def normal(*shape: int, dtype: str = "bfloat16", device: str = "cuda") -> Any:
    """Return normally distributed numbers on a GPU."""
    import torch

    return torch.randn(shape, device=device).to(getattr(torch, dtype))


# ---- rows
def softmax() -> Case:
    import torch

    from examples.gallery.softmax import softmax as ours

    return Case(
        "a bfloat16 matrix of 16384 x 4096",
        lambda: (normal(16384, 4096),),
        lambda x: (torch.empty_like(x),),
        lambda x, y: ours(x, out=y),
        lambda x, y: ops.softmax(x, out=y),
        lambda x: (torch.softmax(x.double(), -1),),
        work=4 * 16384 * 4096,
    )


def layer_norm() -> Case:
    import torch

    from examples.gallery.layer_norm import layer_norm as ours

    return Case(
        "a bfloat16 matrix of 65536 x 4096",
        lambda: (normal(65536, 4096), normal(4096), normal(4096)),
        lambda x, *_: (torch.empty_like(x),),
        lambda *arrays: ours(*arrays[:3], out=arrays[3]),
        lambda *arrays: ops.layer_norm(*arrays[:3], out=arrays[3]),
        lambda x, w, b: (
            torch.nn.functional.layer_norm(x.double(), w.shape, w.double(), b.double()),
        ),
        work=4 * 65536 * 4096,
    )


def layer_norm_backward() -> Case:
    """The op's statistics are those that its forward pass has stored."""
    import torch

    from examples.gallery.layer_norm_backward import WARPGROUPS, gradients, programs
    from numpipe.ops.norms import norm_backward, norm_rows

    statistics = {}

    def of_op(x: Any, grad: Any, weight: Any, dx: Any, sums: Any) -> None:
        if x.data_ptr() not in statistics:
            statistics[x.data_ptr()] = norm_rows(x, weight, centered=True, eps=1e-5)[1]
        out = (dx, sums[0], sums[1])
        norm_backward(x, grad, statistics[x.data_ptr()], weight, bias=True, out=out)

    parts = torch.empty(2, WARPGROUPS * programs(normal(131072, 1)), 1024, device="cuda")

    def of_gallery(x: Any, grad: Any, weight: Any, dx: Any, sums: Any) -> None:
        gradients(x, grad, weight, out=(dx, parts))
        ops.sum(parts, axis=1, out=sums)

    def exact(x: Any, grad: Any, weight: Any) -> tuple[Any, Any]:
        x, grad, weight = x.double(), grad.double(), weight.double()
        centered = x - x.mean(1, keepdim=True)
        inverse = (centered.square().mean(1, keepdim=True) + 1e-5).rsqrt()
        normed, slope = centered * inverse, grad * weight
        along, mean = (slope * normed).mean(1, keepdim=True), slope.mean(1, keepdim=True)
        sums = torch.stack([(grad * normed).sum(0), grad.sum(0)])
        return inverse * (slope - normed * along - mean), sums

    return Case(
        "bfloat16 matrices of 131072 x 1024",
        lambda: (normal(131072, 1024), normal(131072, 1024), normal(1024)),
        lambda x, *_: (torch.empty_like(x), torch.empty(2, 1024, device="cuda")),
        of_gallery,
        of_op,
        exact,
        work=6 * 131072 * 1024,
    )


def dropout() -> Case:
    import torch

    from examples.gallery.dropout import dropout as ours

    def of_op(x: Any, residual: Any, weight: Any, *out: Any) -> Any:
        return ops.rms_norm(x, weight, residual, dropout=0.1, seed=7, out=out or None)

    return Case(
        "bfloat16 matrices of 65536 x 4096",
        lambda: (normal(65536, 4096), normal(65536, 4096), normal(4096)),
        lambda x, *_: (torch.empty_like(x), torch.empty_like(x)),
        lambda *arrays: ours(*arrays[:3], p=0.1, seed=7, out=arrays[3:]),
        of_op,
        of_op,
        work=8 * 65536 * 4096,
    )


# ---- products
def matmul() -> Case:
    import torch

    from examples.gallery.matmul import matmul as ours

    n = 8192
    return Case(
        "float16 matrices of 8192 x 8192",
        lambda: (normal(n, n, dtype="float16"), normal(n, n, dtype="float16")),
        lambda a, b: (torch.empty_like(a),),
        lambda a, b, c: ours(a, b, out=c),
        lambda a, b, c: ops.matmul(a, b, out=c),
        lambda a, b: (a.float() @ b.float(),),
        work=2 * n**3,
        unit="TFLOPS",
    )


def grouped_product() -> Case:
    import torch

    from examples.gallery.grouped_product import grouped_product as ours

    rows, experts, n, k = 16384, 16, 4096, 4096

    def inputs() -> tuple[Any, ...]:
        ends = torch.randint(rows + 1, (experts,), device="cuda").sort().values.int()
        ends[-1] = rows
        return normal(rows, k), normal(experts, n, k), ends

    def reference(x: Any, w: Any, ends: Any, y: Any) -> None:
        y.data = torch._grouped_mm(x, w.transpose(1, 2), offs=ends)

    def exact(x: Any, w: Any, ends: Any) -> tuple[Any]:
        groups = torch.tensor_split(x, ends[:-1].cpu().long())
        return (torch.cat([a.double() @ b.T.double() for a, b in zip(groups, w, strict=True)]),)

    return Case(
        f"{rows} bfloat16 rows in {experts} groups of random sizes, by matrices of {n} x {k}",
        inputs,
        lambda x, w, ends: (torch.empty(rows, n, device="cuda", dtype=x.dtype),),
        lambda x, w, ends, y: ours(x, w, ends, out=y),
        reference,
        exact,
        work=2 * rows * n * k,
        name="PyTorch's grouped_mm",
        unit="TFLOPS",
    )


def block_scaled() -> Case:
    import torch
    from torch.nn.functional import ScalingType, scaled_mm

    from examples.gallery.block_scaled import block_scaled as ours

    size, blocks = 8192, 8192 // 128

    def inputs() -> tuple[Any, ...]:
        a, b = (normal(size, size, dtype="float32") for _ in range(2))
        a_scales = a.reshape(size, blocks, 128).abs().amax(2) / 448
        b_scales = b.reshape(blocks, 128, blocks, 128).abs().amax((1, 3)) / 448
        a = a / a_scales.repeat_interleave(128, 1)
        b = b / b_scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
        a, b = (each.to(torch.float8_e4m3fn) for each in (a, b))
        return a, a_scales.T.contiguous(), b, b_scales

    def reference(a: Any, a_scales: Any, b: Any, b_scales: Any, c: Any) -> None:
        one, two = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
        c.data = scaled_mm(a, b.T, a_scales.T, one, b_scales.T, two, output_dtype=torch.bfloat16)

    def exact(a: Any, a_scales: Any, b: Any, b_scales: Any) -> tuple[Any]:
        left = a.double() * a_scales.T.repeat_interleave(128, 1)
        right = b.double() * b_scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
        return (left @ right.T,)

    return Case(
        f"float8 matrices of {size} x {size} with block scales, to bfloat16",
        inputs,
        lambda a, *_: (torch.empty(size, size, device="cuda", dtype=torch.bfloat16),),
        lambda a, a_scales, b, b_scales, c: ours(a, a_scales, b, b_scales, out=c),
        reference,
        exact,
        work=2 * size**3,
        name="PyTorch's scaled_mm",
        unit="TFLOPS",
    )


def w4a16() -> Case:
    import torch

    from examples import w4a16 as long
    from examples.gallery.w4a16 import w4a16 as ours

    n, k, tokens = 8192, 8192, 16
    op = long.kernel(long.Config(slots=7, groups=2))

    def exact(w: Any, scales: Any, x: Any) -> tuple[Any]:
        weights = (torch.stack([w & 15, w >> 4], 2).reshape(n, k) ^ 8).double() - 8
        return (weights * scales.T.repeat_interleave(128, 1) @ x.T.double(),)

    return Case(
        f"{n} x {k} weights of 4 bits and {tokens} rows of float16",
        lambda: (
            torch.randint(256, (n, k // 2), device="cuda", dtype=torch.uint8),
            torch.rand(k // 128, n, device="cuda").half(),
            normal(tokens, k, dtype="float16"),
        ),
        lambda *_: (torch.empty(n, tokens, device="cuda"),),
        lambda w, scales, x, y: ours(w, scales, x, out=y),
        lambda w, scales, x, y: op(w, scales, x, out=y),
        exact,
        work=n * k / 2,
        name="examples/w4a16.py",
        error=1e-6,
    )


# ---- attention
def attention() -> Case:
    import torch

    from examples.gallery.attention import attention as ours

    def exact(*arrays: Any) -> tuple[Any, ...]:
        function = torch.nn.functional.scaled_dot_product_attention
        # one batch after the other: all scores would take too much memory
        batches = zip(*(x.double().split(1) for x in arrays), strict=True)
        return (torch.cat([function(*each) for each in batches]),)

    return Case(
        "bfloat16, 4 x 16 heads of 4096 positions x 128",
        lambda: tuple(normal(4, 16, 4096, 128) for _ in range(3)),
        lambda q, k, v: (torch.empty_like(q),),
        lambda q, k, v, o: ours(q, k, v, out=o),
        lambda q, k, v, o: ops.attention(q, k, v, out=o),
        exact,
        work=4 * 4 * 16 * 4096 * 4096 * 128,
        unit="TFLOPS",
    )


def attention_backward() -> Case:
    import torch

    from examples.gallery import attention_backward as page
    from numpipe.ops.attention import attention_backward as op

    def inputs() -> tuple[Any, ...]:
        q, k, v, do = (normal(4, 16, 4096, 128) for _ in range(4))
        return q, k, v, *ops.attention(q, k, v, return_lse=True), do

    def ours(q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any, *out: Any) -> None:
        delta, dq = page.prepare(o, do)
        page.gradients(q, k, v, do, lse, delta, dq, out=out[1:])
        out[0].copy_(dq)  # the page's dq is float32

    def reference(*arrays: Any) -> None:
        for out, found in zip(arrays[6:], op(*arrays[:6]), strict=True):
            out.set_(found)  # the op has no `out`

    def exact(q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any) -> tuple[Any, ...]:
        function, found = torch.nn.functional.scaled_dot_product_attention, []
        # one batch after the other: all scores would take too much memory
        for *leaves, grad in zip(*(x.double().split(1) for x in (q, k, v, do)), strict=True):
            leaves = [x.detach().requires_grad_() for x in leaves]
            found.append(torch.autograd.grad(function(*leaves), leaves, grad))
        return tuple(map(torch.cat, zip(*found, strict=True)))

    return Case(
        "bfloat16, 4 x 16 heads of 4096 positions x 128",
        inputs,
        lambda *arrays: tuple(map(torch.empty_like, arrays[:3])),
        ours,
        reference,
        exact,
        work=10 * 4 * 16 * 4096 * 4096 * 128,
        unit="TFLOPS",
    )


def paged_decode() -> Case:
    import torch

    from examples.gallery.paged_decode import paged_decode as ours

    sequences, pages, attend = 64, 64, torch.nn.functional.scaled_dot_product_attention

    def inputs() -> tuple[Any, ...]:
        q, (keys, values) = normal(sequences, 8, 8, 128), normal(2, sequences * pages, 64, 8, 128)
        table = torch.randperm(sequences * pages, device="cuda").int().view(sequences, pages)
        lengths = torch.full((sequences,), 64 * pages, dtype=torch.int32, device="cuda")
        # for the reference, which has no table
        ordered = (x[table].flatten(1, 2).transpose(1, 2).contiguous() for x in (keys, values))
        return q, keys, values, table, lengths, *ordered

    def reference(q: Any, *others: Any) -> None:
        *_, k, v, out = others
        out.set_(attend(q.view(sequences, 64, 1, 128), k, v, enable_gqa=True).view(q.shape))

    def exact(q: Any, *others: Any) -> tuple[Any, ...]:
        # a few sequences at a time: keys and values in float64 are large
        parts = zip(*(x.split(4) for x in (q, *others[-2:])), strict=True)
        return (torch.cat([attend(*(x.double() for x in each)) for each in parts]),)

    return Case(
        "bfloat16, 64 sequences of 4096 keys, 8 heads of keys x 128, 64 of q",
        inputs,
        lambda q, *_: (torch.empty_like(q),),
        lambda *arrays: ours(*arrays[:5], out=arrays[-1]),
        reference,
        exact,
        work=2 * 2 * sequences * pages * 64 * 8 * 128,
        name="PyTorch on keys without pages",
    )


# ---- other kernels
def transpose() -> Case:
    import torch

    from examples.gallery.transpose import transpose as ours

    return Case(
        "a bfloat16 matrix of 16384 x 16384",
        lambda: (normal(16384, 16384),),
        lambda x: (torch.empty_like(x),),
        lambda x, y: ours(x, out=y),
        lambda x, y: ops.transpose(x, out=y),
        lambda x: (x.T,),
        work=4 * 16384**2,
    )


def top_k() -> Case:
    import torch

    from examples.gallery.top_k import K
    from examples.gallery.top_k import top_k as ours

    def outs(x: Any) -> tuple[Any, ...]:
        values = torch.empty(len(x), K, device="cuda")
        return values, torch.empty_like(values, dtype=torch.int32)

    return Case(
        "131072 rows of 256 float32, k = 8",
        lambda: (normal(131072, 256, dtype="float32"),),
        outs,
        lambda x, *y: ours(x, out=y),
        lambda x, *y: ops.topk(x, K, out=y),
        lambda x: tuple(torch.topk(x, K)),
        work=131072 * (256 * 4 + K * 8),
    )


def scan() -> Case:
    import torch

    from examples.gallery.scan import scan as ours

    return Case(
        "the rows of a float32 matrix of 16384 x 8192",
        lambda: (normal(16384, 8192, dtype="float32"),),
        lambda x: (torch.empty_like(x),),
        lambda x, y: ours(x, out=y),
        lambda x, y: ops.cumsum(x, out=y),
        lambda x: (torch.cumsum(x, -1, dtype=torch.float64),),
        work=8 * 16384 * 8192,
    )


def stencil() -> Case:
    import torch

    from examples.gallery.stencil import stencil as ours

    cross = torch.tensor([[0, 1, 0], [1, 4, 1], [0, 1, 0]], device="cuda") / 8
    weight = cross[None, None]
    return Case(
        "a float32 matrix of 16384 x 16384",
        lambda: (normal(16384, 16384, dtype="float32"),),
        lambda x: (torch.empty_like(x),),
        lambda x, y: ours(x, out=y),
        lambda x, y: convolved(x[None, None], weight, y[None, None]),
        lambda x: (torch.conv2d(x[None, None], weight, padding=1)[0, 0],),
        work=8 * 16384**2,
        name="cuDNN",
    )


def convolution() -> Case:
    import torch

    from examples.gallery.convolution import convolution as ours

    def inputs() -> tuple[Any, ...]:
        w = normal(3, 3, 256, 256)
        # cuDNN's weights have the output channel first
        return normal(8, 128, 128, 256), w, w.permute(2, 0, 1, 3).contiguous()

    def channels_second(x: Any) -> Any:
        return x.permute(0, 3, 1, 2)

    def exact(x: Any, w: Any, v: Any) -> tuple[Any, ...]:
        torch.backends.cudnn.allow_tf32 = False
        y = torch.conv2d(channels_second(x.float()), channels_second(v.float()), padding=1)
        return (y.permute(0, 2, 3, 1),)

    return Case(
        "bfloat16 images 8 x 128 x 128 with 256 channels, 256 output channels",
        inputs,
        lambda x, w, v: (torch.empty_like(x),),
        lambda x, w, v, y: ours(x, w, out=y),
        lambda x, w, v, y: convolved(*map(channels_second, (x, v, y))),
        exact,
        work=2 * 8 * 128**2 * 256**2 * 9,
        name="cuDNN",
        unit="TFLOPS",
    )


def convolved(x: Any, weight: Any, y: Any) -> None:
    """Let cuDNN compute a convolution with a padding of 1, by its fastest algorithm."""
    import torch

    one = (1, 1)
    # padding, stride, dilation, groups, benchmark, deterministic, allow_tf32
    torch.ops.aten.cudnn_convolution.out(x, weight, one, one, one, 1, True, False, False, out=y)


# ---- two GPUs
def all_gather_matmul(size: int = 8192) -> Case:
    """Each GPU has half of the rows of a square matrix, and its own half of the columns of another.

    Arrays of the two GPUs alternate. The rows that the gallery's kernel receives are outputs, too,
    so they are poisoned and checked; the op has a workspace for them.
    """
    import torch

    from examples.gallery.all_gather_matmul import multiply

    half, mesh = size // 2, numpipe.Mesh.local([0, 1])

    def inputs() -> tuple[Any, ...]:
        # all drawn on one GPU: the generators of both have the same seed
        own = [normal(half, size, device=DEVICES[0]) for _ in range(4)]
        rows = [torch.empty(2, half, size, device=gpu, dtype=own[0].dtype) for gpu in DEVICES]
        rows[0][0], rows[1][1] = own[:2]
        return *rows, own[2], own[3].to(DEVICES[1])

    def outs(x: Any, y: Any, *_: Any) -> tuple[Any, ...]:
        c = (torch.empty(size, half, device=gpu, dtype=x.dtype) for gpu in DEVICES)
        return *c, x[1], y[0]

    def of_gallery(x: Any, y: Any, b: Any, d: Any, *out: Any) -> None:
        results = [each.view(2, half, half) for each in out[:2]]
        multiply([x, y], [b, d], results, mesh=mesh)

    def of_op(x: Any, y: Any, b: Any, d: Any, *out: Any) -> None:
        ops.all_gather_matmul([x[0], y[1]], [b.T, d.T], out=list(out[:2]), mesh=mesh)

    def exact(x: Any, y: Any, b: Any, d: Any) -> tuple[Any, ...]:
        received = y[1].to(x.device), x[0].to(y.device)
        rows = torch.cat([x[0], received[0]]), torch.cat([received[1], y[1]])
        products = (a.double() @ each.double().T for a, each in zip(rows, (b, d), strict=True))
        return *products, *received

    return Case(
        f"the bfloat16 product of matrices of {size} x {size}, half of the columns on each",
        inputs,
        outs,
        by_the_slower(of_gallery),
        by_the_slower(of_op),
        exact,
        work=2 * size**3,
        unit="TFLOPS",
        # 1.7e-3 is the error of rounding to bfloat16
        error=2e-3,
        gpus=2,
    )


def by_the_slower(call: Callable[..., object]) -> Callable[..., object]:
    """Return a call of two GPUs that begins and ends on GPU 0's stream, where it is timed: GPU 1
    begins no earlier than GPU 0, and GPU 0's next work waits for both."""
    import torch

    def joined(*arrays: Any) -> None:
        here, there = map(torch.cuda.current_stream, range(2))
        there.wait_stream(here)
        call(*arrays)
        here.wait_stream(there)

    return joined


CASES: dict[str, Callable[[], Case]] = {
    case.__name__: case
    for case in (
        softmax,
        layer_norm,
        layer_norm_backward,
        dropout,
        matmul,
        grouped_product,
        block_scaled,
        w4a16,
        attention,
        attention_backward,
        paged_decode,
        transpose,
        top_k,
        scan,
        stencil,
        convolution,
        all_gather_matmul,
    )
}


@dataclass
class _Calls:
    """A competitor with a set of outputs for each set of inputs."""

    call: Callable[..., object]
    inputs: list[tuple[Any, ...]]
    outs: list[tuple[Any, ...]]

    def __call__(self, i: int) -> object:
        i %= len(self.inputs)
        return self.call(*self.inputs[i], *self.outs[i])

    def poison(self) -> None:
        for out in sum(self.outs, ()):
            out.fill_(math.nan if out.dtype.is_floating_point else -1)

    def errors(self, exact: tuple[Any, ...]) -> list[float]:
        """Return the errors of the outputs of the first set."""
        return [
            float((found.double() - right).norm() / right.norm())
            for found, right in zip(self.outs[0], (each.double() for each in exact), strict=True)
        ]


def measure(process: int, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one kernel in this process. Return its entry of the result file."""
    import torch

    torch.manual_seed(process)
    case = CASES[name]()
    first = case.inputs()
    held = sum(each.nbytes for each in (*first, *case.outs(*first)))
    cached = torch.cuda.get_device_properties(0).L2_cache_size
    inputs = [first, *(case.inputs() for _ in range(bench.rotation_sets(held, cached) - 1))]
    calls = {
        key: _Calls(call, inputs, [case.outs(*each) for each in inputs])
        for key, call in ((OURS, case.ours), (case.name, case.reference))
    }
    exact, errors = case.exact(*first), {}

    def poison() -> None:
        for each in calls.values():
            each.poison()

    def check(protocol: str) -> None:
        for key, each in calls.items():
            found = each.errors(exact)
            if not all(error <= case.error for error in found):
                of_outputs = ", ".join(f"{error:.1e}" for error in found)
                raise AssertionError(f"{name}, {key}: errors of outputs {of_outputs} {protocol}")
            errors[key] = max(found)

    poison()
    for each in calls.values():
        for i in range(len(inputs)):
            each(i)
    check("in the first call")
    how = compare_options(options)
    samples = bench.compare(calls, reference=case.name, poison=poison, check=check, **how)
    for sample in samples:
        ours, other = sample.seconds(OURS), sample.seconds(case.name)
        print(
            f"{sample.protocol} {name:20} {1e6 * ours:8.1f} us, {case.name} {1e6 * other:8.1f} us: "
            f"{other / ours:.3f}, {1e-12 * case.work / ours:.3f} {case.unit}, "
            f"error {errors[OURS]:.1e} (reference {errors[case.name]:.1e})",
            file=sys.stderr,
            flush=True,
        )
    return bench.run_entry(
        process,
        {"kernel": name, "what": case.what, "unit": case.unit, "gpus": case.gpus},
        1e-12 * case.work,
        samples,
        rotation_sets=len(inputs),
        errors=errors,
    )


def main() -> int:
    parser = harness.script(__doc__)
    parser.add_argument("--of", type=lambda text: text.split(","), default=list(CASES))
    options = harness.parse(parser, None)
    bench.require_gpu()
    names = options.of
    if PAIR in names and len(harness.cards()) < 2:
        names = [name for name in names if name != PAIR]
        if harness.PROCESS not in os.environ:
            print(f"{PAIR} is left out: it needs two GPUs, and this process sees one")
    return harness.main(
        "gallery",
        [{"kernel": name} for name in names],
        lambda process, case: measure(process, case["kernel"], options),
        unit="T/s",
        **harness.main_options(options),
    )


if __name__ == "__main__":
    harness.run(main)
