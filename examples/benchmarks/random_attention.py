"""numpipe.ops.attention against cuDNN (through torch) on random shapes: lengths, heads, shared heads, depths, masks.

    python examples/benchmarks/random_attention.py --out result.json                       # 40 shapes, of a seed drawn now
    python examples/benchmarks/random_attention.py --seed 7 --count 100 --lengths 32,600 --depths 64 --out result.json
    python examples/benchmarks/random_attention.py --seed 7 --configs --processes 1 --out result.json     # all configs that fit
    python examples/benchmarks/random_attention.py --read result.json                      # no GPU: tell what it holds

The seed is printed, and is in the file before anything is measured (`numpipe.bench.sweep` says how rows are measured). Lengths are
log-uniform. Errors are relative, in the Frobenius norm, of some rows of all heads of the first batch, against float64. A row fails
with an error beyond 1.05 of cuDNN's, an output that a call did not write whole, or other bits in a later call.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpipe import bench
from numpipe.errors import NumpipeError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(Path(__file__).resolve().parent))

from benchmark_options import listed

from flash_attention import flops, shape_of
from numpipe.ops import attention
from numpipe.ops.attention import CONFIGS, FITTING, SMALLER, choose

DTYPES = {"bf16": "bfloat16", "f16": "float16"}
OURS, REFERENCE = "numpipe", "cuDNN"
HEADS, SHARING, MASKS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 64), (1, 1, 2, 4, 8), ("full", "causal")
LARGEST, WORK, MOST_SETS, SAMPLED_ROWS = 1 << 28, 4e12, 64, 64
"""bytes of q, flops of a call, sets of buffers, rows that are compared, at most"""
GEOMETRIC, LEAST, ERROR = 1.16, 0.95, 1.05
"""what the ratios' mean and each of them have to reach, and errors may have, over cuDNN's"""
LOAD = {"shape": "4,16,4096,128", "mask": "full", "of": "load"}
Case = dict[str, Any]


def random_cases(count: int, seed: int, lengths: tuple[int, int], depths: Sequence[int], dtype: str) -> list[Case]:
    """Shapes that are drawn one after the other: the first n of a seed are the same, however many there are."""
    rng, found = random.Random(seed), []
    low, high = map(math.log, lengths)
    while len(found) < count:
        positions, depth, heads = round(math.exp(rng.uniform(low, high))), rng.choice(depths), rng.choice(HEADS)
        shared, batches, mask = heads // rng.choice(SHARING), round(math.exp(rng.uniform(0, math.log(64)))), rng.choice(MASKS)
        shape = batches, heads, max(shared, 1), positions, depth
        if 2 * batches * heads * positions * depth <= LARGEST and flops(shape, False) <= WORK and heads % shape[2] == 0:
            found.append({"shape": f"{batches},{heads}/{shape[2]},{positions},{depth}", "mask": mask, "dtype": dtype,
                          "of": "random"})
    return found


def contest(process: int, case: bench.Case, configs: bool) -> bench.Contest:
    """The row, ready to be measured."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    torch.manual_seed(process)
    shape, causal, dtype = shape_of(case["shape"]), case["mask"] == "causal", getattr(torch, DTYPES[case["dtype"]])
    batches, heads, shared, positions, depth = shape
    moved = 4 * batches * positions * depth * (heads + shared)
    sets = range(min(bench.rotation_sets(moved, torch.cuda.get_device_properties(0).L2_cache_size), MOST_SETS))
    inputs = [[torch.randn(batches, h, positions, depth, device="cuda").to(dtype) for h in (heads, shared, shared)] for _ in sets]
    outputs: dict[str, list[Any]] = {}

    def ours(name: str, **options: Any) -> Callable[[int], object]:
        outs = outputs[name] = [torch.empty_like(q) for q, _, _ in inputs]
        return lambda i: attention(*inputs[i % len(sets)], causal=causal, out=outs[i % len(sets)], **options)

    def cudnn(i: int) -> object:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            found = scaled_dot_product_attention(*inputs[i % len(sets)], is_causal=causal, enable_gqa=heads != shared)
        outputs[REFERENCE][i % len(sets)] = found
        return found

    calls = {OURS: ours(OURS)}
    if configs:
        calls |= {name: ours(name, config=CONFIGS[name]) for name in candidates(depth, causal)}
    outputs[REFERENCE] = [None] * len(sets)
    calls[REFERENCE] = cudnn
    first: dict[str, Any] = {}

    def poison() -> None:
        for name, outs in outputs.items():
            for number, out in enumerate(outs):
                if name == REFERENCE:
                    outs[number] = None
                else:
                    out.fill_(math.nan)

    def verify() -> dict[str, Any]:
        errors = {name: relative_error(*inputs[0], outs[0], causal) for name, outs in outputs.items()}
        for name, error in errors.items():
            if not error <= ERROR * errors[REFERENCE]:
                raise AssertionError(f"{name}: relative error {error:.3e}, {REFERENCE}'s {errors[REFERENCE]:.3e}, {dict(case)}")
        first.update({name: outs[0].clone() for name, outs in outputs.items() if name != REFERENCE})
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        config = choose(depth, causal, True, positions, positions, batches * heads, sms)
        return {"errors": errors, "config": next(name for name, known in CONFIGS.items() if known == config)}

    def check() -> None:
        for name, expected in first.items():
            for out in outputs[name]:
                empty = out.isnan()
                if bool(empty.any()) and not bool(empty.all()):
                    raise AssertionError(f"{name} left elements of its output as they were, or gave NaN, {dict(case)}")
            again = outputs[name][0]
            if not bool(again.isnan().any()) and not torch.equal(again, expected):
                raise AssertionError(f"{name} gave other bits than in its first call, {dict(case)}")

    return bench.Contest(calls, len(sets), 1e-12 * flops(shape, causal), poison, verify, check,
                         {"length": positions, "heads x batches": batches * heads, "depth": depth})


def candidates(depth: int, causal: bool) -> list[str]:
    """Names of the exact configs for a depth."""
    names = [*FITTING[depth, causal], *(pair[0] for pair in SMALLER[depth])]
    return [name for name in names if not CONFIGS[name].lazy]


def relative_error(q: Any, k: Any, v: Any, o: Any, causal: bool) -> float:
    """Frobenius norm, against float64, of some rows of the first batch, a head at a time."""
    import torch

    above = below = 0.0
    rows = torch.randperm(q.shape[2], generator=torch.Generator().manual_seed(0))[:SAMPLED_ROWS].to(q.device)
    for h in range(q.shape[1]):
        keys, values = (x[0, h * x.shape[1] // q.shape[1]].double() for x in (k, v))
        s = q[0, h, rows].double() @ keys.T * q.shape[3] ** -0.5
        if causal:
            s.masked_fill_(torch.arange(len(keys), device=q.device) > rows[:, None], -math.inf)
        exact = torch.softmax(s, dim=1) @ values
        above += float(((o[0, h, rows].double() - exact) ** 2).sum())
        below += float((exact**2).sum())
    return math.sqrt(above / below)


def verdict(rows: Sequence[bench.Row]) -> str:
    """Whether the chosen configs reach what they have to; with --configs, what the choice loses."""
    ours = [row for row in rows if row.name == OURS]
    if not ours:
        return "no row was measured"
    ratios = [row.ratio.median for row in ours]
    mean, least = math.exp(math.fsum(map(math.log, ratios)) / len(ratios)), min(ratios)
    lines = [f"geometric mean {mean:.3f} ({'met' if mean >= GEOMETRIC else 'missed'}: {GEOMETRIC}), least {least:.3f} "
             f"({'met' if least >= LEAST else 'missed'}: {LEAST}), {sum(ratio < LEAST for ratio in ratios)} of {len(ratios)} below"]
    best: dict[str, bench.Row] = {}
    for row in sorted(rows, key=lambda row: row.ratio.median):
        best[str(dict(row.case))] = row
    if len(rows) > len(ours):
        pairs = [(row, best[str(dict(row.case))]) for row in ours]
        for row, other in sorted(pairs, key=lambda pair: pair[0].ratio.median / pair[1].ratio.median)[:10]:
            lines.append(f"chosen over best {row.ratio.median / other.ratio.median:.3f}: {dict(row.case)}, best {other.name}")
    return "\n".join(lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="of the shapes (default: drawn from the system)")
    parser.add_argument("--count", type=int, default=40, help="shapes (default: %(default)s)")
    parser.add_argument("--lengths", type=listed, default=["32", "11000"], metavar="LEAST,MOST")
    parser.add_argument("--depths", type=listed, default=["64", "128"], help="of a head, comma-separated (default: 64,128)")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--configs", action="store_true", help="all exact configs that fit, beside the chosen one")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of this machine that share the processes out (default: 1)")
    parser.add_argument("--seconds", type=float, help="of the whole run: then no more rows begin")
    parser.add_argument("--resume", action="store_true", help="go on with the file of --out: rows of the fewest runs first")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", type=Path, help="a file to tell of, instead of measuring")
    options = parser.parse_args(arguments)
    try:
        options.lengths, options.depths = tuple(map(int, options.lengths)), list(map(int, options.depths))
    except ValueError as error:
        parser.error(str(error))
    if len(options.lengths) != 2 or not 0 < options.lengths[0] <= options.lengths[1]:
        parser.error(f"--lengths {options.lengths}: the least and the most")
    if unknown := [depth for depth in options.depths if depth not in SMALLER]:
        parser.error(f"--depths {unknown}: choose from {list(SMALLER)}")
    if options.seed is None:
        options.seed = int.from_bytes(os.urandom(4), "little")
        if arguments is None:
            sys.argv += ["--seed", str(options.seed)]  # of the processes that measure, and of the command in the file
    options.cases = random_cases(options.count, options.seed, options.lengths, options.depths, options.dtype)
    return options


def main() -> int:
    options = parse()
    if options.read is not None:
        print(verdict(bench.read(options.read).rows))
        return 0
    if "NUMPIPE_BENCH_PROCESS" not in os.environ:
        print(f"seed {options.seed}, {len(options.cases)} shapes", flush=True)
    return bench.sweep(
        "random_attention", options.cases, lambda process, case: contest(process, case, options.configs), reference=REFERENCE,
        load=LOAD | {"dtype": options.dtype}, processes=options.processes, gpus=options.gpus, out=options.out,
        seconds=options.seconds, resume=options.resume, method={"seed": options.seed, "lengths": options.lengths},
        tell=lambda rows: f"{bench.summary([row for row in rows if row.name == OURS])}\n\n{verdict(rows)}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NumpipeError as error:
        sys.exit(f"error: {error}")
