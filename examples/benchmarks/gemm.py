"""The GEMM of examples/gemm.py against cuBLAS (through torch), by the three protocols of numpipe.bench.

    python examples/benchmarks/gemm.py --shapes 4096,4096,4096 8192,8192,8192 --dtype bf16,f16 --out result.json
    python examples/benchmarks/gemm.py --forms --out result.json    # examples/gemm_body.py against examples/gemm.py
    python examples/benchmarks/gemm.py --chain --out result.json    # examples/gemm.py against itself, drained after each tile
    python examples/benchmarks/gemm.py --profile --out result.json  # examples/gemm.py that records what it does against itself

A row takes about 12 s a process; every raw run goes into the JSON file as soon as it is there. Beside the times it
holds the relative error of both (Frobenius norm, against float64); 50 repeats that are not bit-identical are a failure.
"""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import functools
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpipe import bench
from numpipe.errors import TargetError
from numpipe.kernels import Kernel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

DTYPES = {"bf16": "bfloat16", "f16": "float16"}
SHAPES = ("4096,4096,4096", "8192,8192,8192", "8192,8192,512")
REPEATS = 50
EVENTS = 4000
"""of a profile: more than a warpgroup has in 4096,4096,4096"""
HOST_FLOPS = 4e12  # beyond this the float64 product of all rows takes longer than the measurement: sample rows


def measure(process: int, case: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """One case in this process -> its entry of the result file."""
    import torch

    from gemm import Config  # type: ignore[import-not-found]  # examples/gemm.py

    functions = competitors(options.against)
    first, reference = functions
    m, n, k = (int(v) for v in case["shape"].split(","))
    dtype = getattr(torch, DTYPES[case["dtype"]])
    config = Config(*(int(v) for v in case["config"].split(","))) if "config" in case else Config()
    torch.manual_seed(process)

    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    sets = range(bench.rotation_sets(2 * (m * k + n * k + m * n), l2))
    a = [torch.randn(m, k, device="cuda").to(dtype) for _ in sets]
    b = [torch.randn(n, k, device="cuda").to(dtype) for _ in sets]
    outputs = {name: [torch.empty(m, n, device="cuda", dtype=dtype) for _ in sets] for name in functions}
    ours = outputs[first]

    def call(name: str, i: int) -> None:
        i %= len(sets)
        functions[name](a[i], b[i], outputs[name][i], config)

    calls = {name: functools.partial(call, name) for name in functions}

    def poison() -> None:
        for each in outputs.values():
            for out in each:
                out.fill_(math.nan)

    poison()
    for i in sets:
        for each in calls.values():
            each(i)
    errors = {name: relative_error(a[0], b[0], out[0]) for name, out in outputs.items()}
    print(f"{case['shape']} {case['dtype']} {config}: relative error",
          ", ".join(f"{name} {error:.3e}" for name, error in errors.items()), flush=True)
    expected = {name: [out.clone() for out in each] for name, each in outputs.items()}

    def check(when: str) -> None:
        """Every output is either untouched poison or, bit for bit, what the verified first call gave."""
        for name, each in outputs.items():
            written = [(o, e) for o, e in zip(each, expected[name], strict=True) if not bool(torch.isnan(o).all())]
            if not written or not all(torch.equal(o, e) for o, e in written):
                raise AssertionError(f"{name} gave another result {when} than in its first call, {case}")

    samples = bench.compare(
        calls, reference=reference, protocols=tuple(options.protocols),
        plan=options.plan, sensors=bench.sensors(), poison=poison, check=lambda protocol: check(f"under {protocol}"))

    for _ in range(REPEATS):
        poison()
        calls[first](0)
        if not torch.equal(ours[0], expected[first][0]):
            raise AssertionError(f"{first}: {REPEATS} repeats of {case} are not bit-identical")
    return bench.run_entry(process, case, 2e-12 * m * n * k, samples, errors=errors, bit_identical_repeats=REPEATS,
                           rotation_sets=len(sets), resolved_config=str(config))


def competitors(against: str) -> dict[str, Callable[[Any, Any, Any, Any], object]]:
    """Name -> function(a, b, out, config); the last one is the reference."""
    import torch

    import gemm

    def call(kernel: Any) -> Callable[[Any, Any, Any, Any], object]:
        return lambda a, b, out, config: kernel(a, b, out=out, cfg=config)

    if against == "gemm_forms":
        import gemm_body  # type: ignore[import-not-found]

        return {"body form": call(gemm_body.matmul), "loop form": call(gemm.matmul)}
    if against == "gemm_chain":
        options = gemm.matmul.options
        drained = dataclasses.replace(options, compiler_params=options.compiler_params.replace(drain=True))
        return {"chained": call(gemm.matmul), "drained": call(Kernel(gemm.matmul.function, drained))}
    if against == "gemm_profile":
        folder = tempfile.TemporaryDirectory()
        atexit.register(folder.cleanup)
        options = gemm.matmul.options
        recording = dataclasses.replace(options, compiler_params=options.compiler_params.replace(
            profile_space=EVENTS, profile_dir=folder.name))
        return {"recording": call(Kernel(gemm.matmul.function, recording)), "plain": call(gemm.matmul)}
    return {"numpipe": call(gemm.matmul), "cuBLAS": lambda a, b, out, config: torch.mm(a, b.T, out=out)}


def relative_error(a: Any, b: Any, c: Any) -> float:
    """``|c - a b^T| / |a b^T|`` in the Frobenius norm, the product in float64; of 64 sampled rows if it is large."""
    import torch

    if 2 * a.shape[0] * b.shape[0] * a.shape[1] > HOST_FLOPS:
        rows = torch.randperm(a.shape[0], device=a.device)[:64]
        a, c = a[rows], c[rows]
    exact = a.double() @ b.double().T
    return float(torch.linalg.norm(c.double() - exact) / torch.linalg.norm(exact))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="M,N,K")
    parser.add_argument("--dtype", default="bf16,f16", help="comma-separated, of: " + ", ".join(DTYPES))
    parser.add_argument("--forms", dest="against", action="store_const", const="gemm_forms", default="gemm",
                        help="the body form against the loop form")
    parser.add_argument("--chain", dest="against", action="store_const", const="gemm_chain",
                        help="one ring through all tiles against a ring that is drained after each")
    parser.add_argument("--profile", dest="against", action="store_const", const="gemm_profile",
                        help=f"with a profile of {EVENTS} events a warpgroup against without")
    parser.add_argument("--config", nargs="+", default=[], metavar="M,N,K=TM,TN,TK,SLOTS",
                        help="tile sizes and slots of a shape; others take Config()")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--protocols", default=",".join(bench.PROTOCOLS), type=lambda s: s.split(","))
    parser.add_argument("--load", type=float, default=bench.Plan.load, help="s of load before interleaved timing")
    parser.add_argument("--alone-load", type=float, default=bench.Plan.alone_load, help="s of load of each alone")
    parser.add_argument("--idle", type=float, default=bench.Plan.idle, help="s without work before a burst")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.plan = bench.Plan(idle=options.idle, load=options.load, alone_load=options.alone_load)
    options.dtypes = options.dtype.split(",")
    if unknown := set(options.dtypes) - DTYPES.keys():
        parser.error(f"--dtype {sorted(unknown)}: choose from {sorted(DTYPES)}")
    return options


def main() -> int:
    options = parse()
    configs = dict(text.split("=") for text in options.config)
    cases = [{"shape": shape, "dtype": dtype} | ({"config": configs[shape]} if shape in configs else {})
             for shape in options.shapes for dtype in options.dtypes]
    return bench.main(options.against, cases, lambda process, case: measure(process, dict(case), options),
                      processes=options.processes, out=options.out, method=vars(options.plan))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TargetError as error:
        sys.exit(f"error: {error}")
