"""Measure ops over rows on random shapes, against a copy of the same bytes or PyTorch's own op.

    cd examples/benchmarks
    # 50 shapes with a new seed
    python random_rows.py --processes 1 --out result.json
    python random_rows.py --processes 1 --part small --seed 7 --out result.json
    python random_rows.py --processes 1 --of softmax,sum --count 10 --dtype f32 --out result.json
    # print the contents of a file, without a GPU
    python random_rows.py --read result.json

=====  =================================================================  ===================
part   arrays                                                             compared with
=====  =================================================================  ===================
large  8 MB to 256 MB, in more sets of buffers than the L2 cache holds    a copy
small  16 KB to 1 MB                                                      PyTorch's own op
=====  =================================================================  ===================

Sizes are log-uniform, and half of the rows are a multiple of 64 elements long. The copy is a
PyTorch kernel that reads and writes as many bytes as all inputs and outputs of the op have
together. Calls that take less than `SHORT` are launched in CUDA graphs (`harness.sweep`).

Errors are relative, in the Frobenius norm, against float64, over all elements of the first result;
those of the reference are PyTorch's. The error of a few numbers depends on the numbers drawn more
than on how they were computed, and all elements of a row share the error of its sums. So results of
fewer than `ENOUGH` elements, or a quarter as many rows, are computed for further random inputs, up
to `DRAWS` of them, and so are running sums of a whole array. A later call must give the same bits.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from typing import Any

import harness
import product_rows
import rows
from harness import listed
from product_rows import Case, Goal, log_uniform
from rows import DTYPES, ERRORS, Contest

from numpipe import bench, ops

OURS, REFERENCE = "numpipe", {"large": "copy", "small": "PyTorch"}
BYTES = {"large": (8 << 20, 256 << 20), "small": (16 << 10, 1 << 20)}
MUST = {"large": Goal(0.88, None, 0.65), "small": Goal(1.0, None, 0.85)}
COLUMNS = {"rotary": (32, 256), "layer_norm_backward": (16, 52_416)}
COLUMNS["rms_norm_backward"] = COLUMNS["layer_norm_backward"]
ANY_COLUMNS = (16, 131_072)
MOST_SETS, SHORT = 64, 100e-6
K, HEADS = 8, 8
"""of topk; dimension of rotary's operand along which angles are the same"""
ENOUGH, DRAWS = 4096, 200
ALONE = {"topk"}
"""ops that are only compared with PyTorch's"""
LOAD = {"op": "softmax", "shape": "16384,16384", "type": "bf16", "of": "load"}


# ---- contests
def _in_heads(x: Any) -> Any:
    return x.view(HEADS, -1, x.shape[1])


def _angles(x: Any) -> list[Any]:
    import torch

    angles = torch.rand(x.shape[0] // HEADS, x.shape[1] // 2, device=rows.DEVICE)
    return [angles.cos().to(x.dtype), angles.sin().to(x.dtype)]


def _turned(x: Any, cos: Any, sin: Any) -> Any:
    import torch

    a, b = _in_heads(x).chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _geglu(x: Any, up: Any) -> Any:
    return rows._functional("gelu")(x, approximate="tanh") * up


def _quantized(x: Any, block: str) -> Any:
    """Return values and scales as `quantize` defines them."""
    import torch

    n = x.shape[1]
    width = n if block == "row" else rows.HEAD
    blocks = rows._functional("pad")(x.float(), (0, -n % width)).view(len(x), -1, width)
    scales = blocks.abs().amax(2) / 448
    values = (blocks / scales[:, :, None]).to(torch.float8_e4m3fn).flatten(1)[:, :n]
    return values.contiguous(), scales.view(-1) if block == "row" else scales


def _dequantized(values: Any, scales: Any) -> Any:
    n = values.shape[1]
    width = n if scales.ndim == 1 else rows.HEAD
    return values.float() * scales.view(len(values), -1).repeat_interleave(width, 1)[:, :n]


def _quantize(block: str) -> Contest:
    return Contest(
        1,
        lambda x, *out: lambda: ops.quantize(x, block=block, out=out),
        lambda x: lambda: _quantized(x, block),
        lambda x: x,
        results=0,
        others=lambda x: [each.clone() for each in _quantized(x, block)],
    )


FIXED = {"topk_8", "topk_64", "rms_norm_quantized", "dropout_residual_rms_norm"}
"""contests of rows.py that are not measured here"""
CONTESTS = {name: contest for name, contest in rows.CONTESTS.items() if name not in FIXED} | {
    "mean": rows._reduction("mean", 1),
    "mean_of_columns": rows._reduction("mean", 0),
    "cumsum_flat": Contest(
        1,
        lambda x, out: lambda: ops.cumsum(x.view(-1), out=out.view(-1)),
        lambda x: lambda: x.view(-1).cumsum(0),
        lambda x: None,
    ),
    "geglu": Contest(
        2,
        lambda x, up, out: lambda: ops.geglu(x, up, out=out),
        lambda x, up: lambda: _geglu(x, up),
        lambda x, up: None,
    ),
    "rotary": Contest(
        1,
        lambda x, cos, sin, out: lambda: ops.rotary(_in_heads(x), cos, sin, out=_in_heads(out)),
        lambda x, cos, sin: lambda: _turned(x, cos, sin),
        lambda x, cos, sin: None,
        inputs=_angles,
    ),
    "quantize": _quantize("1x128"),
    "quantize_rows": _quantize("row"),
    "topk": rows._topk(K),
}
VALUE = {"quantize": _dequantized, "quantize_rows": _dequantized}
"""what is compared with float64, unless it is the first result"""


def random_cases(
    part: str, count: int, seed: int, names: Sequence[str], types: Sequence[str]
) -> list[Case]:
    """Return `count` cases of a seed; a larger count starts with the same cases."""
    draw, found, left = random.Random(f"{seed} {part} rows"), [], list[str]()
    if part == "large":
        names = [name for name in names if name not in ALONE]
    while len(found) < count:
        left = left or draw.sample(names, len(names))
        name, kind = left.pop(), draw.choice(types)
        elements = log_uniform(draw, *BYTES[part]) / (4 if kind == "f32" else 2)
        low, high = COLUMNS.get(name, ANY_COLUMNS)
        columns = round(log_uniform(draw, low, min(high, elements)))
        if draw.random() < 0.5:
            columns = min(-(-columns // 64) * 64, high)
        step = HEADS if name == "rotary" else 1
        columns += columns % 2 if step > 1 else 0
        height = max(step, int(elements / columns / step) * step)
        height += step if part == "large" and height < elements / columns else 0
        found.append({"op": name, "shape": f"{height},{columns}", "type": kind, "of": part})
    return found


# ---- what is measured
def prepared(case: harness.Case) -> tuple[Contest, int, int, Any]:
    """Return a case's contest and the arguments of `rows.buffers`."""
    import torch

    height, columns = map(int, case["shape"].split(","))
    return CONTESTS[case["op"]], height, columns, getattr(torch, DTYPES[case["type"]])


def exact_of(of: Contest, inputs: Sequence[Any]) -> Any:
    """Return the first result in float64, by the contest's own function or by PyTorch's op."""
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    exact = of.exact(*wide)
    return of.theirs(*wide)() if exact is None else exact


def squares(name: str, made: Any, exact: Any) -> Any:
    """Return the sum of the squares of the errors, and that of the exact elements."""
    import torch

    made, exact = (x if isinstance(x, tuple | list) else (x,) for x in (made, exact))
    value = VALUE.get(name, lambda first, *others: first)(*made)
    off = value.double().reshape(-1) - exact[0].reshape(-1)
    return torch.stack([each.double().square().sum() for each in (off, exact[0])])


def relative_error(squares: Any) -> float:
    above, below = squares.tolist()
    return math.sqrt(above / (below or 1.0))  # indices of a single row are 0


def contest(process: int, case: harness.Case) -> harness.Contest:
    """Return a row that is ready to be measured."""
    import torch

    torch.manual_seed(process)
    if torch.cuda.memory_reserved() > torch.cuda.get_device_properties(0).total_memory // 2:
        torch.cuda.empty_cache()
    of, height, columns, dtype = prepared(case)
    made = [rows.buffers(of, height, columns, dtype)]
    nbytes = sum(each.nbytes for arrays in made[0] for each in arrays)
    cached = torch.cuda.get_device_properties(0).L2_cache_size
    sets = min(bench.rotation_sets(nbytes, cached), MOST_SETS)
    made += [rows.buffers(of, height, columns, dtype) for _ in range(sets - 1)]
    ours = [of.ours(*inputs, *outs) for inputs, outs in made]
    theirs = [of.theirs(*inputs) for inputs, _ in made]
    reference = REFERENCE.get(case["of"], "copy")
    if reference == "copy":
        sources = [torch.randn(nbytes // 8, device=rows.DEVICE) for _ in range(sets)]
        copies = [torch.empty_like(each) for each in sources]
        # in CUDA graphs, copy_ of contiguous arrays is no kernel, and has 2.6 instead of 4.1 TB/s
        other: Any = lambda i: torch.neg(sources[i % sets], out=copies[i % sets])
    else:
        other = rows.Allocating(sets, lambda i: theirs[i]())
    outputs = rows.InPlace([out for _, outs in made for out in outs if _floating(out)], other)
    first: list[Any] = []

    def verify() -> dict[str, Any]:
        found = dict.fromkeys((OURS, reference), 0.0)
        number = 1 if case["op"] == "cumsum_flat" else min(4 * height, made[0][1][0].numel())
        for i in range(min(DRAWS, math.ceil(ENOUGH / number))):
            inputs, outs = rows.buffers(of, height, columns, dtype) if i else made[0]
            of.ours(*inputs, *outs)()
            exact = exact_of(of, inputs)
            found[OURS] += squares(case["op"], outs, exact)
            found[reference] += squares(case["op"], of.theirs(*inputs)(), exact)
        errors = {name: relative_error(each) for name, each in found.items()}
        if not (errors[OURS] <= max(ERRORS[case["type"]], 1.05 * errors[reference])):
            raise AssertionError(f"relative errors {errors}, {dict(case)}")
        first[:] = [out.clone() for out in made[0][1]]
        return {"errors": errors}

    def check() -> None:
        if any(bool(out.isnan().any()) for out in outputs.outs):
            raise AssertionError(f"elements of an output were not written, {dict(case)}")
        if not all(map(_same, first, made[0][1])):
            raise AssertionError(f"other bits than in the first call, {dict(case)}")

    return harness.Contest(
        {OURS: lambda i: ours[i % sets](), reference: other},
        sets,
        1e-12 * nbytes,
        outputs.poison,
        verify,
        check,
        {"columns": columns, "rows": height, "MB": 1e-6 * nbytes},
    )


def _floating(x: Any) -> bool:
    return x.is_floating_point() and x.dtype.itemsize > 1


def _same(one: Any, other: Any) -> bool:
    import torch

    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def call_once(case: harness.Case) -> None:
    """Call an op in a worker process, so that its kernel is compiled and kept on disk."""
    import torch

    of, *shape = prepared(case)
    inputs, outs = rows.buffers(of, *shape)
    of.ours(*inputs, *outs)()
    torch.cuda.synchronize()


# ---- options and output
def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = harness.script(__doc__)
    parser.add_argument("--part", choices=list(BYTES), default="large", help="default: %(default)s")
    parser.add_argument("--count", type=int, default=50, help="shapes (default: %(default)s)")
    for option, known in (("--of", CONTESTS), ("--dtype", DTYPES)):
        what = "comma-separated, of: " + ", ".join(known)
        parser.add_argument(option, default=list(known), type=listed, help=what)
    options = harness.parse_sweep(parser, arguments, dtype=DTYPES, of=CONTESTS)
    options.cases = random_cases(
        options.part, options.count, options.seed, options.of, options.dtype
    )
    return options


def tell(found: Sequence[bench.Row]) -> str:
    ours = [row for row in found if row.name == OURS]
    verdict = product_rows.verdict(ours, OURS, MUST, {})
    return f"{harness.summary(ours, by=product_rows.kind)}\n\n{verdict}"


def main() -> int:
    options = parse()

    def ahead() -> None:
        for case, error in harness.spread(call_once, [LOAD, *options.cases]):
            print(f"not called ahead: {case}: {error[:300]}", flush=True)

    return harness.sweep_or_read(
        "random_rows",
        options,
        contest,
        name=OURS,
        reference=REFERENCE[options.part],
        plan=harness.SweepPlan(load=1.0, graph_below=SHORT),
        load=LOAD | {"of": options.part},
        ahead=ahead,
        tell=tell,
    )


if __name__ == "__main__":
    harness.run(main)
