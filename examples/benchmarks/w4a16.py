"""examples/w4a16.py against PyTorch's product of float16 weights, in TB/s of 4-bit weights read.

    python examples/benchmarks/w4a16.py --protocols interleaved --processes 1 --out result.json

Each call uses other weights, from a set twice as large as the L2 cache. PyTorch multiplies the same
weights in float16, four times the bytes. Outputs are compared with float64.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from numpipe import bench

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(Path(__file__).resolve().parent))

import harness
import w4a16

CONFIGS = {
    "2 warpgroups, 12 slots": w4a16.Config(),
    "2 warpgroups, 6 slots": w4a16.Config(slots=6),
    "2 warpgroups, 15 slots": w4a16.Config(slots=15),
    "2 groups a step, 7 slots": w4a16.Config(slots=7, groups=2),
    "2 groups a step, 4 slots": w4a16.Config(slots=4, groups=2),
    "2 groups, 3 warpgroups": w4a16.Config(3, 3, 24, 4, 2),
    "3 warpgroups, 3 CTAs": w4a16.Config(3, 3, 24, 9),
    "4 warpgroups, 4 CTAs": w4a16.Config(4, 4, 32, 6),
    "1 warpgroup, 1 CTA": w4a16.Config(1, 1, 16, 20),
}
MOST_ERROR = 1e-6
"""The largest allowed error relative to float64, in the Frobenius norm; sums are float32."""


def weights(n: int, k: int) -> tuple[Any, Any, Any]:
    """Return (w, scales, float16 weights) for normally distributed weights, on the GPU."""
    import torch

    groups = torch.randn(n, k // w4a16.GROUP, w4a16.GROUP, device="cuda")
    scales = (groups.abs().amax(2) / 7).half()
    q = (groups / scales.float()[:, :, None]).round().clamp(-8, 7)
    nibbles = q.to(torch.int8).view(torch.uint8).reshape(n, k) & 15
    w = nibbles[:, ::2] | nibbles[:, 1::2] << 4
    return w, scales.T.contiguous(), (q * scales[:, :, None]).half().reshape(n, k)


def exact(w: Any, scales: Any, x: Any) -> Any:
    """Return W x^T in float64."""
    import torch

    q = torch.stack([w & 15, w >> 4], 2).reshape(len(w), -1, w4a16.GROUP)
    q = (q.to(torch.int8) ^ 8).double() - 8
    return (q * scales.T.double()[:, :, None]).reshape(len(w), -1) @ x.double().T


def measure(process: int, case: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Measure one case in this process. Return its entry of the result file."""
    import torch

    n, k, tokens = map(int, case["shape"].split(","))
    torch.manual_seed(process)
    cached = torch.cuda.get_device_properties(0).L2_cache_size
    sets = range(bench.rotation_sets(n * k // 2, cached))
    packed, halves = [], []
    for _ in sets:
        w, scales, half = weights(n, k)
        packed.append((w, scales))
        halves.append(half)
    x = torch.randn(tokens, k, device="cuda").half()

    def ours(config: w4a16.Config) -> harness.InPlace:
        kernel = w4a16.kernel(config)
        outs = [torch.empty(n, tokens, device="cuda") for _ in sets]
        return harness.InPlace(outs, lambda i, out: kernel(*packed[i], x, out=out))

    calls = {name: ours(CONFIGS[name]) for name in options.configs} | {
        "torch, float16": harness.InPlace(
            [torch.empty(tokens, n, device="cuda").half() for _ in sets],
            lambda i, out: torch.mm(x, halves[i].T, out=out),
        )
    }
    harness.run_all(calls, len(sets))
    right, errors = [exact(*each, x) for each in packed], {}
    for name, each in calls.items():
        found = [out.T if out.shape[0] == tokens else out for out in each.outs]
        errors[name] = max(
            float((a - b).norm() / b.norm()) for a, b in zip(found, right, strict=True)
        )
        if not errors[name] < (MOST_ERROR if name in CONFIGS else 2e-3):
            raise AssertionError(f"{name}: error {errors[name]:.1e} in the first call, {case}")
    samples = harness.compare_checked(calls, "torch, float16", options, str(case))
    work = 1e-12 * n * k / 2
    for sample in samples:
        for name in calls:
            seconds = sample.seconds(name)
            print(
                f"{sample.protocol} {case['shape']} {name:>24}: {1e6 * seconds:6.1f} us, "
                f"{work / seconds:.2f} TB/s of packed weights, error {errors[name]:.1e}",
                file=sys.stderr,
                flush=True,
            )
    return bench.run_entry(process, case, work, samples, rotation_sets=len(sets), errors=errors)


def main() -> int:
    parser = harness.script(__doc__)
    parser.add_argument("--shapes", nargs="+", default=("8192,8192,16",), metavar="N,K,TOKENS")
    parser.add_argument(
        "--configs",
        default=list(CONFIGS),
        type=lambda text: [each.strip() for each in text.split(";")],
        help="separated by semicolons, of: " + "; ".join(CONFIGS),
    )
    options = harness.parse(parser, None, configs=CONFIGS)
    return harness.main(
        "w4a16",
        [{"shape": shape} for shape in options.shapes],
        lambda process, case: measure(process, dict(case), options),
        unit="TB/s",
        **harness.main_options(options),
    )


if __name__ == "__main__":
    harness.run(main)
