"""Benchmarks: a kernel against a reference, so that the ratio means something.

`compare` measures competitors inside one process by three protocols (read `protocols` first); `main` repeats that in several
processes and writes the table and the JSON file that ``docs/results`` holds. Only medians of CUDA events over rotated buffers are
reported, as ratios within one process, because absolute rates of one card move by a tenth from machine to machine.

    samples = bench.compare({"numpipe": lambda i: matmul(a[i % 3], b[i % 3], out=c[i % 3]),
                             "cuBLAS": lambda i: torch.mm(a[i % 3], bt[i % 3], out=d[i % 3])}, reference="cuBLAS")
    samples[0].ratio("numpipe"), samples[0].noise

``examples/benchmarks/gemm.py`` is a whole one. `sweep` measures hundreds of rows in minutes, as
``examples/benchmarks/random_products.py`` does. ``python -m numpipe.bench`` shows, draws, merges and compares result files.

What measures (`timer`, `probes`), what a result is (`report`, `device`) and what reads results (`files`) belong here; the
competitors themselves belong to examples/benchmarks, but for `blas`. No kernel's call loads this room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.lazy import names

if TYPE_CHECKING:
    from .blas import Cublas, cublas
    from .device import describe, sensors
    from .files import Change, changes, merge, plot
    from .maps import ratio_map
    from .protocols import PROTOCOLS, Plan, Sample, compare, rotation_sets
    from .report import TENSOR_FLOPS, Figure, Result, Row, aligned, figure, read, run_entry, summarise, table
    from .spreads import distinct, spread
    from .summaries import Group, groups, summary
    from .sweeps import Contest, Sweep, SweepPlan, sweep
    from .timer import EventTimer, Timer, require_gpu
    from .workers import collect, main

__getattr__ = names(__name__, {
    "blas": "Cublas cublas",
    "device": "describe sensors",
    "files": "Change changes merge plot",
    "maps": "ratio_map",
    "protocols": "PROTOCOLS Plan Sample compare rotation_sets",
    "report": "TENSOR_FLOPS Figure Result Row aligned figure read run_entry summarise table",
    "spreads": "distinct spread",
    "summaries": "Group groups summary",
    "sweeps": "Contest Sweep SweepPlan sweep",
    "timer": "EventTimer Timer require_gpu",
    "workers": "collect main",
})
__all__ = ["PROTOCOLS", "TENSOR_FLOPS", "Change", "Contest", "Cublas", "EventTimer", "Figure", "Group", "Plan", "Result", "Row",
           "Sample", "Sweep", "SweepPlan", "Timer", "aligned", "changes", "collect", "compare", "cublas", "describe",
           "distinct", "figure", "groups", "main", "merge", "plot", "ratio_map", "read", "require_gpu", "rotation_sets",
           "run_entry", "sensors", "spread", "summarise", "summary", "sweep", "table"]
