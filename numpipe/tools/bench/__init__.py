"""Benchmarks: measure a kernel against a reference so that the ratio is meaningful.

`compare` measures competitors in this process with three protocols; start with `protocols`. It
compares medians of CUDA event times over rotated buffers as ratios within one process, because the
speeds of two cards of the same model differ by up to a tenth.

    samples = bench.compare(
        {
            "numpipe": lambda i: matmul(a[i % 3], b[i % 3], out=c[i % 3]),
            "cuBLAS": lambda i: torch.mm(a[i % 3], bt[i % 3], out=d[i % 3]),
        },
        reference="cuBLAS",
    )
    samples[0].ratio("numpipe"), samples[0].noise

To save samples, put one `run_entry` for each case and process in a `Result` and `write` it; `read`
reads the file, and ``python -m numpipe.bench show`` prints its table.

`timer` measures, `environment` describes the machine, `report` has the file format and its figures.
Running a benchmark in several processes, sweeps of hundreds of rows, and comparing files are in
``examples/benchmarks/harness``. Kernel calls never load this package.
"""

from typing import TYPE_CHECKING

from ...core.lazy import names

if TYPE_CHECKING:
    from .environment import describe, sensors
    from .protocols import PROTOCOLS, Plan, Sample, compare, rotation_sets
    from .report import (
        TENSOR_FLOPS,
        Figure,
        Result,
        Row,
        aligned,
        figure,
        read,
        run_entry,
        summarise,
        table,
    )
    from .timer import EventTimer, Timer, require_gpu

__getattr__ = names(
    __name__,
    {
        "environment": "describe sensors",
        "protocols": "PROTOCOLS Plan Sample compare rotation_sets",
        "report": "TENSOR_FLOPS Figure Result Row aligned figure read run_entry summarise table",
        "timer": "EventTimer Timer require_gpu",
    },
)
__all__ = [
    "PROTOCOLS",
    "TENSOR_FLOPS",
    "EventTimer",
    "Figure",
    "Plan",
    "Result",
    "Row",
    "Sample",
    "Timer",
    "aligned",
    "compare",
    "describe",
    "figure",
    "read",
    "require_gpu",
    "rotation_sets",
    "run_entry",
    "sensors",
    "summarise",
    "table",
]
