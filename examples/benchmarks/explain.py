"""Compare the predictions of `numpipe.explain` with measurements on a GPU, for the kernels of
explained.py, each of which is slow for a different reason.

    python examples/benchmarks/explain.py --out result.json

Times are from the burst protocol. A limiter counts as confirmed if the fixed kernel, which differs
in the named property, is at least FIXED times as fast for the same FLOP; at a roofline, if the
kernel reaches ROOFLINE of it. The script fails if a result is wrong, and with --out also if a
limiter is not named or not confirmed.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import explained
import harness

from numpipe import bench

FIXED = 1.15
ROOFLINE = 0.6
RELATIVE_ERROR = 5e-3


def exact(variant: explained.Variant, inputs: list[Any], rows: Any) -> Any:
    """Return some rows of the result in float64; a copy is exact."""
    a, *others = inputs
    if not others:
        return a[rows].double()
    found = a[rows].double() @ others[0].double().T
    for other in others[1:]:
        found = found * (a[rows].double() @ other.double().T)
    return found


def check(name: str, variant: explained.Variant, inputs: list[Any], out: Any) -> float:
    """Return the relative error of 64 rows in the Frobenius norm. Raises AssertionError if it is
    too large or NaN."""
    import torch

    rows = torch.randperm(len(out), device=out.device)[:64]
    right = exact(variant, inputs, rows)
    error = harness.relative_error(out[rows], right)
    if not error <= (RELATIVE_ERROR if len(inputs) > 1 else 0.0):
        raise AssertionError(f"{name}: relative error {error:.1e}")
    return error


def measure(process: int, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one case; return its entry of the result file."""
    import torch

    torch.manual_seed(process)
    case = next(case for case in explained.CASES if case.name == name)
    variants = {"slow": case.slow} | ({"fixed": case.fixed} if case.fixed else {})
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    calls, facts, inputs = {}, {}, {}
    for which, variant in variants.items():
        explanation = variant.explain()
        moved = 2 * sum(m * n for m, n in variant.shapes) + sum(explanation.stored.values())
        inputs[which] = arrays = [
            [torch.randn(shape, device="cuda").to(torch.bfloat16) for shape in variant.shapes]
            for _ in range(bench.rotation_sets(moved, l2))
        ]
        calls[which] = harness.InPlace(
            [variant.kernel(*given, cfg=variant.config) for given in arrays],
            lambda i, out, variant=variant, arrays=arrays: variant.kernel(
                *arrays[i], cfg=variant.config, out=out
            ),
        )
        config, predicted = vars(variant.config), explanation.as_dict()
        facts[which] = {"shapes": variant.shapes, "config": config, "predicted": predicted}
    harness.run_all(calls, max(map(len, inputs.values())))
    for which, variant in variants.items():
        results = zip(inputs[which], calls[which].outs, strict=True)
        errors = [check(f"{name} ({which})", variant, *pair) for pair in results]
        facts[which]["relative_error"] = max(errors)
    samples = harness.compare_checked(calls, "slow", options, name)
    [sample] = samples
    seconds = {which: sample.seconds(which) for which in variants}
    for which, variant in variants.items():
        explanation = variant.explain(measured=seconds[which])
        facts[which] |= {
            "seconds": seconds[which],
            "over_predicted": seconds[which] / explanation.predicted_seconds,
        }
        print(f"\n== {name} ({which})\n{explanation}", flush=True)
    flop = {which: each["predicted"]["flop"] for which, each in facts.items()}
    explanation = case.slow.explain(measured=seconds["slow"])
    if case.fixed:
        gain = seconds["slow"] / flop["slow"] / (seconds["fixed"] / flop["fixed"])
        confirmed, how = gain >= FIXED, f"fixed {gain:.2f} x as fast"
    else:
        unit = "tensor cores" if case.limiter == "tensor cores" else "memory bandwidth"
        share = explanation.limits[unit] / seconds["slow"]
        confirmed, how = share >= ROOFLINE, f"{share:.0%} of the roofline"
    named = explanation.limiter == case.limiter
    print(
        f"\n{'ok  ' if named and confirmed else 'FAIL'} {name}: limited by {explanation.limiter}"
        + ("" if named else f", expected {case.limiter}")
        + (
            f"; predicted {1e6 * explanation.predicted_seconds:.1f} us, measured "
            f"{1e6 * seconds['slow']:.1f} us; {how}"
        ),
        flush=True,
    )
    return bench.run_entry(
        process,
        {"case": name},
        1.0,
        samples,
        variants=facts,
        limiter=explanation.limiter,
        expected=case.limiter,
        confirmed=bool(named and confirmed),
        how=how,
    )


def main() -> int:
    parser = harness.script(__doc__)
    parser.add_argument(
        "--case",
        action="append",
        choices=[case.name for case in explained.CASES],
        help="default: all",
    )
    parser.add_argument("--idle", type=float, default=0.5, help="s without work before a burst")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.protocols, options.plan = ["burst"], bench.Plan(idle=options.idle)
    cases = [
        {"case": case.name}
        for case in explained.CASES
        if not options.case or case.name in options.case
    ]
    status = harness.main(
        "explain",
        cases,
        lambda process, case: measure(process, case["case"], options),
        processes=options.processes,
        out=options.out,
        method=vars(options.plan),
        unit="calls/s",
    )
    if options.out is None or harness.PROCESS in os.environ:
        return status
    return status or int(not all(run.get("confirmed") for run in bench.read(options.out).runs))


if __name__ == "__main__":
    harness.run(main)
