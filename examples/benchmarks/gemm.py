"""Compare the matrix products of examples/gemm.py and its variants with cuBLAS (through torch),
Triton and Pallas, by the three protocols of numpipe.bench.

    cd examples/benchmarks
    # every product that numpipe is judged by
    python gemm.py --suite all --out result.json
    python gemm.py --suite square,skinny --peers triton,pallas --dtype bf16,f16 --out result.json
    python gemm.py --shapes 4096,4096,4096 64x1024,1024,1024 --out result.json
    # all configs, next to the chosen one
    python gemm.py --suite all --all --out result.json
    # examples/gemm_body.py against examples/gemm.py
    python gemm.py --forms --out result.json
    # examples/gemm.py with one ring through all tiles against a ring that is drained after each
    python gemm.py --chain --out result.json
    # examples/gemm.py with a profile against examples/gemm.py without one
    python gemm.py --profile --out result.json
    # examples/gemm_ladder.py
    python gemm.py --ladder --dtype bf16 --out result.json --table result.md

A row takes about 12 s per process, 25 s with Triton and Pallas; every raw run is written to the
JSON file at once. Peers that are not installed, or do not support a product, are skipped with a
message. The file also has the relative errors of all competitors (Frobenius norm against float64,
of 64 rows of a large product), on the inputs that were timed and on others. A row fails if an error
exceeds cuBLAS' by a factor of 1.05, if a call leaves its output untouched or gives other bits at
another time, or if 20 repeats are not bit-identical.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpipe import bench

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(Path(__file__).resolve().parent))

import gemm_suite
import harness
import ladders
from gemm_competitors import DTYPES, PEERS, Competitor, Inputs, competitors

SUITE = "square,shallow"
REPEATS = 20
ERROR = 1.05
"""largest error relative to the reference's"""
# above this, the float64 product of all rows would take longer than the measurement: sample rows
HOST_FLOPS = 4e12
SAMPLED_ROWS = 64


def measure(process: int, case: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Measure one case in this process; return its entry of the result file."""
    import torch

    inputs = Inputs(case["shape"], case["dtype"], seed=process)
    calls = competitors(options.against, inputs, case.get("config"), options.peers)
    first, reference = next(iter(calls)), list(calls)[-1]

    harness.run_all(calls, inputs.sets)
    errors = accurate(inputs, calls, first, reference, case)
    samples = harness.compare_checked(calls, reference, options, str(case))
    # only these two: a peer may have copied the inputs
    ends = {name: calls[name] for name in (first, reference)}
    inputs.renew()
    harness.run_all(ends, 1)
    harness.check_repeats(calls[first], REPEATS, f"{first}, {case}")
    again = accurate(inputs, ends, first, reference, case)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    return bench.run_entry(
        process,
        case,
        1e-12 * gemm_suite.flops(case["shape"]),
        samples,
        limit=1e-12 * bench.TENSOR_FLOPS * sms,
        errors=errors,
        errors_on_fresh_inputs=again,
        bit_identical_repeats=REPEATS,
        rotation_sets=inputs.sets,
    )


def accurate(
    inputs: Inputs, calls: dict[str, Competitor], first: str, reference: str, case: dict[str, Any]
) -> dict[str, float]:
    """Return the relative error of each competitor on the first set. Raises AssertionError if
    numpipe's exceeds `ERROR` times the reference's."""
    errors = {
        name: relative_error(inputs.a[0], inputs.b[0], each.outs[0]) for name, each in calls.items()
    }
    print(
        f"{case['shape']} {case['dtype']}: relative error",
        ", ".join(f"{name} {error:.3e}" for name, error in errors.items()),
        flush=True,
    )
    if not errors[first] <= ERROR * errors[reference]:
        raise AssertionError(
            f"{first}: the relative error is {errors[first]:.3e}, that of {reference} "
            f"{errors[reference]:.3e}, {case}"
        )
    return errors


def relative_error(a: Any, b: Any, c: Any) -> float:
    """Return ``|c - a b^T| / |a b^T|`` in the Frobenius norm, with the product in float64, for 64
    sampled rows if it is large."""
    import torch

    if 2 * a.numel() * b.shape[-2] > HOST_FLOPS:
        rows = torch.randperm(a.shape[-2], device=a.device)[:SAMPLED_ROWS]
        a, c = a[..., rows, :], c[..., rows, :]
    return harness.relative_error(c, a.double() @ b.double().transpose(-1, -2))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = harness.script(__doc__)
    parser.add_argument(
        "--suite",
        type=harness.listed,
        metavar="NAMES",
        help=f"comma-separated, of: all, {', '.join(gemm_suite.SUITES)} (default: {SUITE})",
    )
    parser.add_argument(
        "--shapes",
        nargs="+",
        default=[],
        metavar="M,N,K",
        help="other products; BxM,N,K is a batch",
    )
    parser.add_argument(
        "--dtype",
        type=harness.listed,
        default=list(DTYPES),
        help="comma-separated, of: " + ", ".join(DTYPES),
    )
    parser.add_argument(
        "--peers",
        type=harness.listed,
        default=[],
        help="in addition to cuBLAS, comma-separated, of: " + ", ".join(PEERS),
    )
    parser.add_argument(
        "--forms",
        dest="against",
        action="store_const",
        const="gemm_forms",
        default="gemm",
        help="the body form against the loop form",
    )
    parser.add_argument(
        "--chain",
        dest="against",
        action="store_const",
        const="gemm_chain",
        help="one ring through all tiles against a ring that is drained after each",
    )
    parser.add_argument(
        "--profile",
        dest="against",
        action="store_const",
        const="gemm_profile",
        help="with a profile against without one",
    )
    parser.add_argument(
        "--ladder",
        dest="against",
        action="store_const",
        const="gemm_ladder",
        help="each rung of examples/gemm_ladder.py against cuBLAS",
    )
    parser.add_argument(
        "--all",
        dest="against",
        action="store_const",
        const="gemm_configs",
        help="the chosen config of examples/gemm_tuned.py, its other configs, and cuBLAS",
    )
    parser.add_argument("--table", type=Path, help="with --ladder: a table in Markdown")
    parser.add_argument(
        "--config",
        nargs="+",
        default=[],
        metavar="M,N,K=TM,TN,TK,SLOTS",
        help="tile sizes and slots of a shape for examples/gemm.py; others run gemm_tuned.py",
    )
    options = harness.parse(parser, arguments, dtype=DTYPES, peers=PEERS)
    suites = (
        options.suite
        if options.suite is not None
        else []
        if options.shapes
        else harness.listed(SUITE)
    )
    try:
        options.shapes = [*gemm_suite.shapes_of(suites), *options.shapes]
        for shape in options.shapes:
            gemm_suite.dimensions(shape)
        options.configs = dict(text.split("=") for text in options.config)
    except ValueError as error:
        parser.error(str(error))
    if options.against not in ("gemm", "gemm_configs") and any(
        gemm_suite.dimensions(shape)[0] for shape in options.shapes
    ):
        parser.error("--forms, --chain, --profile and --ladder take plain products, M,N,K")
    return options


def cases(options: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        {"shape": shape, "dtype": dtype}
        | ({"config": options.configs[shape]} if shape in options.configs else {})
        for shape in options.shapes
        for dtype in options.dtype
    ]


def main() -> int:
    options = parse()

    def tell(rows: Sequence[bench.Row]) -> str:
        if options.against in ("gemm", "gemm_configs"):
            return gemm_suite.verdict(rows)
        return ladders.told(rows, lambda case: str(case["shape"]), options.table)

    return harness.main(
        options.against,
        cases(options),
        lambda process, case: measure(process, dict(case), options),
        tell=tell if options.against in ("gemm", "gemm_configs", "gemm_ladder") else None,
        **harness.main_options(options),
    )


if __name__ == "__main__":
    harness.run(main)
