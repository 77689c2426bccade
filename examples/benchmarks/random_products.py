"""Compare numpipe.ops.matmul with cuBLAS (through torch) on hundreds of products: random ones, the
layers of language models, squares.

    cd examples/benchmarks
    # 200 random products with a new seed
    python random_products.py --out result.json
    python random_products.py --seed 7 --count 40 --distribution uniform --out result.json
    python random_products.py --rows layers,squares,off-grid --dtype bf16,f16 --out result.json
    # more rows of the same run
    python random_products.py --seed 7 --out result.json --resume --seconds 500
    python random_products.py --space 26 --processes 1 --out result.json
    # needs no GPU
    python random_products.py --read result.json --fit rows.jsonl --picture result.svg
    python -m choice_fit evaluate rows.jsonl

The seed is printed and written to the file before anything is measured. A row takes a few tenths of
a second per process; kernels are compiled ahead, in as many processes as there are CPUs
(`harness.sweep` describes how rows are measured). Inputs are random normal numbers. A row has at
most 512 sets of buffers, so operands smaller than 240 KB may partly stay in L2.

Errors are relative, in the Frobenius norm, of 64 sampled rows against float64; in addition, every
element is compared with cuBLAS'. A row fails if an element differs by more than rounding can
explain, if an element was not written, if something outside the output was written, or if a later
call gives other bits. `--space 26` measures, in addition to the chosen config, 26 of those that the
op ranks highest for the row (`numpipe.ops.configs.space`). `--fit` writes a line for the GPU and a
line for each (shape, config, seconds), to which ``python -m choice_fit fit`` fits the
choice.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
import product_rows
from harness import listed
from product_rows import Case, dimensions

from numpipe import bench
from numpipe.errors import NumpipeError
from numpipe.ops import configs as op_configs

# the attribute `matmul` of the package is the function, not the module
OP = importlib.import_module("numpipe.ops.matmul")
DTYPES = {"bf16": "bfloat16", "f16": "float16"}
OURS, REFERENCE = "numpipe", "cuBLAS"
STORED = ("mk,nk", "mk,kn", "km,nk", "km,kn")
"""how a and b lie in memory: the last dimension is contiguous; in linear layers it is K for both"""
MOST_SETS, SAMPLED_ROWS = 512, 64
PAD = 128
"""least elements between outputs, which must stay unwritten"""
CHUNK = 1 << 26
"""elements that are checked at a time"""
DIFFERENCE, ERROR = 0.06, 0.02
"""largest difference of an element from cuBLAS', relative to the element and the root mean square;
largest relative error. Larger values mean that something else was computed. (If cuBLAS splits K, it
may round partial sums to 16 bits; leaving out one step of 64 of 16384 changes some element by 0.2.)
"""
LOAD = "8192,8192,4096"
BEST = 600
"""number of configs with the fewest predicted cycles from which those with other widths are
drawn"""
DEVICE = "cuda"


# ---- what is measured
class Buffers:
    """Sets of matrices of one shape, each aligned as if allocated separately."""

    def __init__(self, sets: int, shape: tuple[int, int], dtype: Any, turned: bool = False) -> None:
        import torch

        rows, columns = reversed(shape) if turned else shape
        self.size = rows * columns
        self.flat = torch.empty(
            (sets, -(-self.size // PAD) * PAD + PAD), dtype=dtype, device=DEVICE
        )
        views = [flat[: self.size].view(rows, columns) for flat in self.flat]
        self.views = [view.T for view in views] if turned else views

    def randomise(self) -> Buffers:
        self.flat.normal_()
        return self

    def poison(self) -> None:
        self.flat.fill_(math.nan)

    def check(self, name: str) -> None:
        """Raise AssertionError if a set was only partly written, if none was written, or if
        something outside an output was."""
        empty = self.flat.isnan()
        inside, beside = empty[:, : self.size], empty[:, self.size :]
        whole, untouched = ~inside.any(1), inside.all(1)
        if not bool(beside.all()):
            raise AssertionError(f"{name} wrote outside its output")
        if not bool((whole | untouched).all()) or not bool(whole.any()):
            raise AssertionError(f"{name} left elements of its output unwritten, or gave NaN")


def contest(process: int, case: harness.Case, space: int = 0) -> harness.Contest:
    """Return a row that is ready to be measured: numpipe's product, cuBLAS', and those of other
    configs (`configs`)."""
    import torch

    if torch.cuda.memory_reserved() > torch.cuda.get_device_properties(0).total_memory // 2:
        torch.cuda.empty_cache()
    torch.manual_seed(process)
    (m, n, k), dtype, stored = (
        dimensions(case),
        getattr(torch, DTYPES[case["dtype"]]),
        case.get("stored", STORED[0]),
    )
    moved = 2 * (m * k + n * k + m * n)
    sets = min(
        bench.rotation_sets(moved, torch.cuda.get_device_properties(0).L2_cache_size), MOST_SETS
    )
    a = Buffers(sets, (m, k), dtype, stored.startswith("km")).randomise().views
    b = Buffers(sets, (k, n), dtype, stored.endswith("nk")).randomise().views
    outputs: dict[str, Buffers] = {}

    def competitor(name: str, function: Callable[..., object]) -> Callable[[int], object]:
        outputs[name] = Buffers(sets, (m, n), dtype)
        c = outputs[name].views

        def call(i: int) -> object:
            i %= sets
            return function(a[i], b[i], out=c[i])

        return call

    calls = {OURS: competitor(OURS, OP.matmul)}
    for name, config in configs(m, n, k, space).items():
        try:
            OP.matmul(a[0], b[0], config=config)
        except NumpipeError as error:
            print(f"without {name}: {str(error)[:200]}", flush=True)
        else:
            calls[name] = competitor(name, functools.partial(OP.matmul, config=config))
    calls[REFERENCE] = competitor(REFERENCE, torch.mm)
    first: dict[str, Any] = {}

    def poison() -> None:
        for each in outputs.values():
            each.poison()

    def verify() -> dict[str, Any]:
        found = {name: each.views[0] for name, each in outputs.items()}
        rows = torch.randperm(m, device=DEVICE)[:SAMPLED_ROWS]
        errors = {name: relative_error(a[0][rows], b[0], c[rows]) for name, c in found.items()}
        for name, c in found.items():
            if (
                not errors[name] <= ERROR
                or not largest_difference(c, found[REFERENCE]) <= DIFFERENCE
            ):
                raise AssertionError(
                    f"{name}: relative error {errors[name]:.3e} of sampled rows; an element "
                    f"differs from cuBLAS' by {largest_difference(c, found[REFERENCE]):.3e} of "
                    f"its size, {dict(case)}"
                )
        first.update({name: c.clone() for name, c in found.items() if name != REFERENCE})
        return {"errors": errors}

    def check() -> None:
        for name, each in outputs.items():
            each.check(name)
        for name, c in first.items():
            again = outputs[name].views[0]
            if not bool(again[0, 0].isnan()) and not torch.equal(again, c):
                raise AssertionError(f"{name} gave other bits than in its first call, {dict(case)}")

    return harness.Contest(
        calls,
        sets,
        2e-12 * m * n * k,
        poison,
        verify,
        check,
        {"M": m, "N x K": n * k, "flops a byte": 2 * m * n * k / moved},
    )


def configs(m: int, n: int, k: int, space: int) -> dict[str, op_configs.Config]:
    """Return, by name, `space` of the configs that the op ranks highest for a row.

    Half of them are the best of as many kinds; a quarter are of the next kinds; the rest are of the
    first kinds again, with other widths, staging panels and slots, the other fields on which the
    time of a config depends most.
    """
    if not space:
        return {}
    aligned, draw = math.gcd(2 * k, 128), random.Random(f"{m} {n} {k}")
    kinds = op_configs.space(m, n, k, aligned=aligned, most=2 * space)
    first, rest = kinds[: space // 2], kinds[space // 2 :]
    chosen = first + draw.sample(rest, min(len(rest), space // 4))
    wider = [
        config
        for config in op_configs.space(m, n, k, aligned=aligned, most=BEST, widths=BEST)
        if any(
            dataclasses.replace(config, tn=one.tn, slots=one.slots, panels=one.panels) == one
            for one in first
        )
        and config not in chosen
    ]
    chosen += draw.sample(wider, min(len(wider), space - len(chosen)))
    return {spell(config): config for config in chosen}


def spell(config: op_configs.Config) -> str:
    """Return the name of a config: the Python expression that constructs it."""
    usual = op_configs.Config()
    fields = (
        f"{name}={value!r}"
        for name, value in dataclasses.asdict(config).items()
        if value != getattr(usual, name)
    )
    return f"Config({', '.join(fields)})"


def relative_error(a: Any, b: Any, c: Any) -> float:
    """Return ``|c - a b| / |a b|`` in the Frobenius norm, with the product computed in float64,
    some columns at a time."""
    step, above, below = max(1, CHUNK // b.shape[0]), 0.0, 0.0
    left = a.double()
    for at in range(0, b.shape[1], step):
        exact = left @ b[:, at : at + step].double()
        above += float(((c[:, at : at + step].double() - exact) ** 2).sum())
        below += float((exact**2).sum())
    return math.sqrt(above / below)


def largest_difference(c: Any, reference: Any) -> float:
    """Return the largest ``|c - reference| / (|reference| + its root mean square)`` of any element,
    or NaN if there is one."""
    step, largest = max(1, CHUNK // c.shape[1]), 0.0
    for at in range(0, c.shape[0], step):
        one, other = c[at : at + step].float(), reference[at : at + step].float()
        scale = other.square().mean().sqrt()
        found = float(((one - other).abs() / (other.abs() + scale)).max())
        largest = found if math.isnan(found) else max(largest, found)
        if math.isnan(found):
            return found
    return largest


# ---- compiling ahead
def call_once(case: harness.Case) -> None:
    """Call a row once in a worker process, so that its kernels are compiled and kept on disk."""
    import torch

    (m, n, k), dtype, stored = (
        dimensions(case),
        getattr(torch, DTYPES[case["dtype"]]),
        case.get("stored", STORED[0]),
    )
    a = Buffers(1, (m, k), dtype, stored.startswith("km"))
    b = Buffers(1, (k, n), dtype, stored.endswith("nk"))
    options = {"config": op_configs.Config(**case["config"])} if "config" in case else {}
    try:
        OP.matmul(a.views[0], b.views[0], out=Buffers(1, (m, n), dtype).views[0], **options)
    except NumpipeError:
        if not options:  # `contest` also skips a config that does not support the shape
            raise
    torch.cuda.synchronize()
    del a, b
    torch.cuda.empty_cache()  # many processes share the GPU's memory


def kernels_of(case: harness.Case) -> tuple[object, ...]:
    """Return what determines the kernel that a config compiles to for a row."""
    m, n, k = dimensions(case)
    return (
        str(case["config"]),
        m % 8 == 0,
        n % 8 == 0,
        k % 8 == 0,
        min(m, n, k) == 1,
        case["dtype"],
        case.get("stored"),
    )


def ahead(cases: Sequence[Case], space: int) -> None:
    """Compile the kernels that the rows need, small rows first. Each row is called with the chosen
    config, which takes a worker some time to determine."""
    begun = time.monotonic()
    rows = sorted(cases, key=lambda case: math.prod(dimensions(case)))
    rows += harness.distinct(
        kernels_of,
        [
            case | {"config": dataclasses.asdict(config)}
            for case in rows
            for config in configs(*dimensions(case), space).values()
        ],
    )
    print(f"compiling the kernels of {len(rows)} calls", flush=True)
    for case, error in harness.spread(call_once, rows):
        print(f"not compiled ahead: {case}: {error[:300]}", flush=True)
    print(f"compiled in {time.monotonic() - begun:.0f} s", flush=True)


# ---- options and output
def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = harness.script(__doc__)
    parser.add_argument(
        "--rows",
        type=listed,
        default=["random"],
        metavar="KINDS",
        help=f"comma-separated, of: {', '.join(product_rows.MUST)} (default: random)",
    )
    parser.add_argument(
        "--count",
        type=int,
        default=200,
        help="random products, and off-grid ones (default: %(default)s)",
    )
    parser.add_argument(
        "--distribution",
        choices=product_rows.DISTRIBUTIONS,
        default="log",
        help="distribution of N and K (default: %(default)s)",
    )
    parser.add_argument(
        "--shapes",
        nargs="+",
        default=[],
        metavar="M,N,K",
        help="these products, in addition to --rows if that is given",
    )
    parser.add_argument(
        "--dtype", type=listed, default=["bf16"], help="comma-separated, of: " + ", ".join(DTYPES)
    )
    parser.add_argument(
        "--stored",
        choices=STORED,
        default=STORED[0],
        help="how a and b lie in memory (default: %(default)s)",
    )
    parser.add_argument(
        "--space",
        type=int,
        default=0,
        metavar="N",
        help="also measure N of the configs that the op ranks highest for each row",
    )
    parser.add_argument(
        "--rounds", type=int, help="rounds per row (default: 11, or 5 with --space)"
    )
    parser.add_argument(
        "--idle",
        type=float,
        default=0.0,
        metavar="S",
        help="pause before the measurements of each competitor, at the boost clock "
        "(default: under load)",
    )
    parser.add_argument(
        "--fit",
        type=Path,
        help="a file to write with a line for the GPU, then shape, config, seconds of each row",
    )
    options = harness.parse_sweep(parser, arguments, dtype=DTYPES)
    if options.shapes and "--rows" not in (sys.argv[1:] if arguments is None else arguments):
        options.rows = []
    try:
        options.cases = product_rows.cases(
            options.rows,
            options.dtype,
            count=options.count,
            seed=options.seed,
            distribution=options.distribution,
        )
        options.cases += [
            {"shape": shape, "dtype": dtype, "of": "asked for"}
            for shape in options.shapes
            for dtype in options.dtype
        ]
        for case in options.cases:
            if min(dimensions(case)) < 1:
                raise ValueError(f"{case['shape']!r} is not M,N,K")
    except ValueError as error:
        parser.error(str(error))
    if options.stored != STORED[0]:
        options.cases = [{"stored": options.stored} | case for case in options.cases]
    return options


def fit_lines(result: bench.Result) -> str:
    """Return a JSON line for the GPU, and one for each row and competitor, as
    `choice_fit.measurements` reads them."""
    device = result.machine["device"]
    lines: list[dict[str, Any]] = [
        {"gpu": device["name"], "sms": device["sms"], "bandwidth": device.get("bandwidth", 0)}
    ]
    for row in result.rows:
        what = {
            "shape": list(dimensions(row.case)),
            "dtype": row.case["dtype"],
            "stored": row.case.get("stored", STORED[0]),
            "protocol": row.protocol,
        }
        ours = (
            {"chosen": spell(op_configs.choose(*dimensions(row.case)))} if row.name == OURS else {}
        )
        lines.append(
            what
            | ours
            | {"config": row.name, "seconds": row.seconds, "ratio": round(row.ratio.median, 4)}
        )
        if row.name == OURS:
            lines.append(
                what | {"config": REFERENCE, "seconds": row.reference_seconds, "ratio": 1.0}
            )
    return "".join(json.dumps(line) + "\n" for line in lines)


def main() -> int:
    options = parse()

    def tell(rows: Sequence[bench.Row]) -> str:
        chosen_rows = [row for row in rows if row.name == OURS]
        text = harness.summary(chosen_rows, by=product_rows.kind)
        if len(chosen_rows) < len(rows):
            best = {
                json.dumps(row.case): row.ratio.median
                for row in sorted(rows, key=lambda row: row.ratio.median)
            }
            lost = [row.ratio.median / best[json.dumps(row.case)] for row in chosen_rows]
            mean = math.exp(math.fsum(map(math.log, lost)) / max(len(lost), 1))
            text += (
                f"\n\nthe choice over the best config: geometric mean {mean:.3f}, least "
                f"{min(lost, default=1):.3f}"
            )
        return f"{text}\n\n{product_rows.verdict(rows, OURS)}"

    load = {"shape": LOAD, "dtype": options.dtype[0], "of": "load"}
    rounds = options.rounds or (5 if options.space else harness.SweepPlan.rounds)
    status = harness.sweep_or_read(
        "random_products",
        options,
        lambda process, case: contest(process, case, options.space),
        name=OURS,
        reference=REFERENCE,
        plan=harness.SweepPlan(rounds=rounds, idle=options.idle),
        load=load,
        method={
            "distribution": options.distribution,
            "stored": options.stored,
            "errors": f"relative Frobenius norm against float64, {SAMPLED_ROWS} sampled rows",
        },
        ahead=lambda: ahead([load, *options.cases], options.space),
        tell=tell,
    )
    file = options.read or options.out
    if options.fit is not None and file is not None and harness.PROCESS not in os.environ:
        result = bench.read(file)
        options.fit.write_text(fit_lines(result), encoding="utf8")
    return status


if __name__ == "__main__":
    harness.run(main)
