"""Measure what it costs to verify a matrix product on a CPU, with numpipe's simulated SM and with
Pallas' GPU interpreter with race detection.

    python examples/benchmarks/verifier.py --out result.json
    python examples/benchmarks/verifier.py --jax-python venv/bin/python --out result.json

numpipe   examples/gemm.py, float16, tile 128 x 128 x 64, two compute warpgroups, one core,
          detecting every hazard: 512 x 512 x 512, then with more steps per tile and with more
          tiles, to show that the time is proportional to the steps; and `numpipe.verify`
Pallas    the same product by a kernel of the same shape, in JAX's GPU interpreter with
          detect_races=True on all cores (its threads are Python's). It needs jax and absl-py (pip
          install "jax[cpu]" absl-py) in any environment: --jax-python names its interpreter.
          Without them, this line is omitted. The interpreter is internal to JAX; tested with 0.10.

Each figure is the median over `--processes` processes of the median wall time of their runs; raw
values and CPU times are also written to the file. The time per step is CPU time, which other work
on the machine affects little. The ratio uses Pallas' fastest run, not counting the first, which
traces the kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

SIZE, TILE, DEPTH, SLOTS = 512, 128, 64, 3
SHAPES = {
    "K": [(512, 512, k) for k in (256, 512, 1024, 2048)],
    "tiles": [(512, n, 512) for n in (256, 512, 1024, 2048)],
}
SCHEDULES = 20
LIMIT, RATIO = 0.5, 10
"""largest seconds for 512 x 512 x 512, and least speedup over Pallas, that numpipe promises"""
HANGS = 240
"""seconds after which a process of the interpreter, whose threads may deadlock, is killed"""


def spell(shape: tuple[int, int, int]) -> str:
    return " x ".join(map(str, shape))


def operands(m: int, n: int, k: int) -> tuple[Any, Any]:
    import numpy as np

    random = np.random.default_rng(0)
    return random.standard_normal((m, k)).astype(np.float16), random.standard_normal((n, k)).astype(
        np.float16
    )


def right(c: Any, exact: Any) -> None:
    import numpy as np

    error = np.linalg.norm(np.asarray(c, np.float64) - exact) / np.linalg.norm(exact)
    if not error < 1e-3:
        raise AssertionError(f"the product is off by {error:.1e}")


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(begun: tuple[float, float]) -> tuple[float, float]:
    """Return the wall and CPU seconds since a time from `now`."""
    return time.perf_counter() - begun[0], time.process_time() - begun[1]


# ---- numpipe
def numpipe_times(runs: int) -> None:
    """Print {shape: [[wall, CPU seconds]]} and the seconds of a verification."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ["NUMPIPE_COMPILE_CHECK"] = "0"  # do not measure compile time
    import numpy as np

    import numpipe
    from gemm import Config, matmul

    config = Config(tm=TILE, tn=TILE, tk=DEPTH, slots=SLOTS)
    times: dict[str, list[tuple[float, float]]] = {}
    for shape in dict.fromkeys(shape for shapes in SHAPES.values() for shape in shapes):
        a, b = operands(*shape)
        exact = a.astype(np.float64) @ b.astype(np.float64).T
        right(matmul(a, b, cfg=config, target="sim"), exact)  # the first run lifts the source
        for _ in range(runs):
            begun = now()
            matmul(a, b, cfg=config, target="sim")
            times.setdefault(spell(shape), []).append(since(begun))
    result = numpipe.verify(matmul, *operands(SIZE, SIZE, SIZE), cfg=config, schedules=SCHEDULES)
    result.raise_if_failed()
    print(json.dumps({"times": times, "verify": result.seconds}))


# ---- Pallas
def pallas_times(runs: int) -> None:
    """Print the seconds of each run, one line each as it ends."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import numpy as np

    interpreted, races = pallas_matmul(SIZE, SIZE, SIZE)
    call = jax.jit(interpreted)
    a, b = operands(SIZE, SIZE, SIZE)
    b = np.ascontiguousarray(b.T)  # the interpreter does not support transposed tiles
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for _ in range(runs + 1):
        begun = now()
        c = np.asarray(call(a, b))
        seconds, cpu_seconds = since(begun)
        right(c, exact)
        print(
            json.dumps(
                {
                    "jax": jax.__version__,
                    "seconds": seconds,
                    "cpu": cpu_seconds,
                    "races": bool(races()),
                }
            ),
            flush=True,
        )


def pallas_matmul(m: int, n: int, k: int) -> tuple[Callable[[Any, Any], Any], Callable[[], bool]]:
    """Return c = a @ b for b (K, N), computed by two CTAs that loop over the tiles as numpipe's do,
    and a function that says whether a race was found."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax._src.pallas.mosaic_gpu.interpret import interpret_pallas_call
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    half = TILE // 2
    across = n // TILE
    layout = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))

    def kernel(a: Any, b: Any, c: Any) -> None:
        wg = lax.axis_index("wg")
        own = pl.ds(wg * half, half)

        def all_tiles(staging: Any) -> None:
            def one_tile(loop: Any) -> None:
                row, column = loop.index[0] // across, loop.index[0] % across

                def compute(pipeline: Any) -> None:
                    def with_accumulator(acc: Any) -> None:
                        pipeline(acc)
                        staging[wg] = acc[...].astype(jnp.float16)
                        plgpu.commit_smem()
                        plgpu.copy_smem_to_gmem(
                            staging.at[wg],
                            c.at[pl.ds(row * TILE + wg * half, half), pl.ds(column * TILE, TILE)],
                        )
                        plgpu.wait_smem_to_gmem(0)

                    pl.run_scoped(with_accumulator, plgpu.ACC((half, TILE), jnp.float32))

                def step(_: Any, a_tile: Any, b_tile: Any, acc: Any) -> Any:
                    plgpu.wgmma(acc, a_tile.at[own], b_tile)
                    plgpu.wgmma_wait(0)
                    return acc

                plgpu.emit_pipeline_warp_specialized(
                    step,
                    grid=(k // DEPTH,),
                    memory_registers=40,
                    num_compute_wgs=2,
                    wg_axis="wg",
                    max_concurrent_steps=SLOTS,
                    compute_context=compute,
                    in_specs=[
                        plgpu.BlockSpec(
                            (TILE, DEPTH),
                            lambda i: (row, i),
                            transforms=layout,
                            memory_space=plgpu.SMEM,
                        ),
                        plgpu.BlockSpec(
                            (DEPTH, TILE),
                            lambda i: (i, column),
                            transforms=layout,
                            memory_space=plgpu.SMEM,
                        ),
                    ],
                )(a, b)

            plgpu.nd_loop((m // TILE * across,), collective_axes="cta")(one_tile)

        pl.run_scoped(
            all_tiles,
            plgpu.SMEM((2, half, TILE), jnp.float16, transforms=layout),
            collective_axes="wg",
        )

    call = plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((m, n), jnp.float16),
        grid=(2,),
        grid_names=("cta",),
        num_threads=3,
        thread_name="wg",
        interpret=InterpretGPUParams(detect_races=True),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return call, lambda: interpret_pallas_call.get_races().races_found


# ---- both
def worker(
    python: str, name: str, runs: int, **environment: str
) -> tuple[list[dict[str, Any]], str]:
    """Return the JSON lines that a new process prints, and the reason if it ended early."""
    with subprocess.Popen(
        [python, __file__, "--worker", name, "--runs", str(runs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    ) as process:
        try:
            out, err = process.communicate(timeout=HANGS)
            why = "" if process.returncode == 0 else (err.strip().splitlines() or ["no output"])[-1]
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            why = f"no answer within {HANGS} s: its threads wait for each other"
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")], why


def line_through(points: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Return (offset, slope, largest relative distance of a point) of the least-squares line."""
    slope, offset = statistics.linear_regression(*zip(*points, strict=True))
    return offset, slope, max(abs(offset + slope * x - y) / y for x, y in points)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--jax-python",
        default=sys.executable,
        help="a Python interpreter with jax (default: this one)",
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", choices=("numpipe", "pallas"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        (numpipe_times if options.worker == "numpipe" else pallas_times)(options.runs)
        return 0

    import harness  # not in a worker, whose interpreter has JAX but may lack numpipe

    one_core = {
        name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    }
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    available = True
    for _ in range(options.processes):  # in turn, because the machine's speed varies over time
        answer, why = worker(sys.executable, "numpipe", options.runs, **one_core)
        if why:
            raise SystemExit(f"numpipe: {why}")
        ours += answer
        if available:
            runs, why = worker(options.jax_python, "pallas", options.runs)
            theirs.append({"runs": runs, "ended": why or "well"})
            if why:
                print(f"Pallas: {why}")
            available = "ModuleNotFoundError" not in why and "ImportError" not in why
    found = record(ours, [process for process in theirs if process["runs"] or available], options)
    tell(found)
    harness.write(options.out, found)
    return 0


def record(
    ours: list[dict[str, Any]], theirs: list[dict[str, Any]], options: argparse.Namespace
) -> dict[str, Any]:
    """Return the file's contents: figures, every raw value, and the machine."""
    from numpipe.bench import environment

    def median(name: str, which: int) -> float:
        return statistics.median(
            statistics.median(run[which] for run in process["times"][name]) for process in ours
        )

    steps: dict[str, Any] = {}
    for what, shapes in SHAPES.items():
        points = [
            (m // TILE * (n // TILE) * (k // DEPTH), median(spell((m, n, k)), 1))
            for m, n, k in shapes
        ]
        offset, slope, off = line_through([(float(x), y) for x, y in points])
        steps[what] = {
            "points": points,
            "seconds_at_0": offset,
            "seconds_a_step": slope,
            "furthest_from_the_line": off,
        }
    first = [process["runs"][0]["seconds"] for process in theirs if process["runs"]]
    warm = [run["seconds"] for process in theirs for run in process["runs"][1:]]
    figures: dict[str, Any] = {
        "numpipe": median(spell((SIZE,) * 3), 0),
        "numpipe_cpu": median(spell((SIZE,) * 3), 1),
        "steps": steps,
        "schedules": SCHEDULES,
        "verify": statistics.median(process["verify"] for process in ours),
    }
    if warm:
        figures["pallas"] = {
            "jax": theirs[0]["runs"][0]["jax"],
            "first": statistics.median(first),
            "median": statistics.median(warm),
            "fastest": min(warm),
            "races": any(run["races"] for process in theirs for run in process["runs"]),
            "ratio": min(warm) / figures["numpipe"],
        }
    return {
        "benchmark": "verifier",
        "case": f"{spell((SIZE,) * 3)} float16, tile {spell((TILE, TILE, DEPTH))}, {SLOTS} slots, "
        "two compute warpgroups, two CTAs",
        "processes": options.processes,
        "runs": options.runs,
        "host": {
            "system": platform.system(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "cpu": cpu(),
            "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
            "python": platform.python_version(),
        },
        "versions": environment.versions(),
        "figures": figures,
        "raw": {"numpipe": ours, "pallas": theirs},
    }


def cpu() -> str:
    """Return the name of the processor, if it can be read."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def tell(found: dict[str, Any]) -> None:
    figures = found["figures"]
    print(f"{found['case']}\n")
    print(
        f"numpipe, every hazard, one core   {figures['numpipe']:7.3f} s   CPU "
        f"{figures['numpipe_cpu']:.3f} s (promised: {LIMIT} s)"
    )
    print(f"numpipe.verify, {figures['schedules']} schedules      {figures['verify']:7.3f} s")
    if "pallas" in figures:
        pallas = figures["pallas"]
        print(
            f"Pallas' interpreter, races        {pallas['median']:7.3f} s   first "
            f"{pallas['first']:.1f} s, fastest {pallas['fastest']:.2f} s (jax {pallas['jax']})"
        )
        print(f"fastest of Pallas over numpipe    {pallas['ratio']:7.0f}     (promised: {RATIO})")
    else:
        print(
            'Pallas: not measured; pip install "jax[cpu]" absl-py somewhere, and --jax-python its '
            "interpreter"
        )
    for what, line in figures["steps"].items():
        print(
            f"\nmore {what}: {1e6 * line['seconds_a_step']:.0f} us of CPU a step, at most "
            f"{100 * line['furthest_from_the_line']:.1f} % off the line"
        )
        for steps, seconds in line["points"]:
            print(
                f"  {steps:5} steps  {1e3 * seconds:7.1f} ms  {1e6 * seconds / steps:6.0f} us a "
                "step"
            )


if __name__ == "__main__":
    sys.exit(main())
