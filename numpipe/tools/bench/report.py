"""Benchmark results: a JSON file of all raw runs, and a table of figures with their uncertainty.

The file (schema ``numpipe-bench/1``) holds ``runs``, one entry for each case and process, including
failed ones, and ``rows``, the figures computed from them.

Measurements in one process share clocks, memory addresses and chance, so the process is the unit of
repetition: each process gives one ratio. The figure is their median, with a 95 % interval from
their spread.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import statistics
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...arch.dtypes import ELEMENTS
from ...arch.products import WGMMA
from ...core.records import parsed
from ...diagnostics.argument_checks import MAPPING, PATH, STRING, a, each, finite, require, told
from ...diagnostics.errors import SpecError, printable
from ...diagnostics.regular_files import content, put
from .protocols import AGAIN, Sample

MOST_BYTES = 1 << 30
SCHEMA = "numpipe-bench/1"
TENSOR_FLOPS = 2 * WGMMA.rate(ELEMENTS["float16"])
"""floating-point operations per cycle of the tensor cores of a Hopper SM, for 16-bit operands"""

_T_975 = {2: 12.7062, 3: 4.3027, 4: 3.1824, 5: 2.7764}
"""97.5 % quantile of Student's t for n values (n - 1 degrees of freedom)"""


@dataclass(frozen=True)
class Figure:
    """The median of the processes' ratios and its 95 % interval, `low` to `high`, which are None
    for a single process."""

    median: float
    low: float | None
    high: float | None
    count: int

    def reaches(self, target: float) -> bool:
        """Return whether the interval's upper end reaches a required ratio."""
        return (self.median if self.high is None else self.high) >= target

    @printable
    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.median:.3f} [one process]"
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def figure(ratios: Sequence[float]) -> Figure:
    """Return the median and the 95 % interval of positive ratios, one per process.

    For two to five values, the interval is Student's t on the logarithms,
    ``exp(mean ± t s / sqrt n)``, assuming a normal distribution, because so few values do not show
    its shape. For six or more, it lies between the order statistics whose binomial coverage of the
    median is at least 95 %.

    >>> print(figure([1.02, 1.03, 1.04]))
    1.030 [1.005, 1.055]
    """
    require("figure", locals(), ratios=each(finite(above=0)))
    values, n = sorted(ratios), len(ratios)
    if n == 0:
        raise SpecError("figure: expected at least one ratio, got none")
    median = statistics.median(values)
    if n == 1:
        return Figure(median, None, None, 1)
    if n in _T_975:
        logs = [math.log(v) for v in values]
        centre, half = statistics.fmean(logs), _T_975[n] * statistics.stdev(logs) / math.sqrt(n)
        return Figure(median, math.exp(centre - half), math.exp(centre + half), n)
    # number of values to drop at each end: the largest k with P(Binomial(n, 1/2) <= k) <= 2.5 %
    below, outside = 1 / 2**n, 0
    while (below := below + math.comb(n, outside + 1) / 2**n) <= 0.025:
        outside += 1
    return Figure(median, values[outside], values[n - 1 - outside], n)


@dataclass(frozen=True)
class Row:
    """The figures of one case, protocol and competitor over all processes."""

    case: dict[str, Any]
    protocol: str
    name: str
    reference: str
    rate: float
    """of `name`: median over the processes, in `work` per second: TFLOPS for work = 1e-12 flops"""
    reference_rate: float
    ratio: Figure
    noise: Figure
    """the reference relative to itself"""
    sensors: dict[str, float]
    """medians of the readings while `name` ran"""
    fraction: float | None = None
    """fraction of the tensor cores' limit in the cycles that `name` took (`limit` of
    `run_entry`)"""
    reference_fraction: float | None = None
    work: float | None = None
    """work of one call"""
    error: float | None = None
    """largest error of `name` over the processes; None if the runs have no `errors`"""
    reference_error: float | None = None

    @property
    def seconds(self) -> float | None:
        """Seconds per call: the median over the processes."""
        return None if self.work is None else self.work / self.rate

    @property
    def reference_seconds(self) -> float | None:
        return None if self.work is None else self.work / self.reference_rate


@dataclass(frozen=True)
class Result:
    """A result file, read back or to be written."""

    benchmark: str
    machine: dict[str, Any]
    method: dict[str, Any]
    runs: list[dict[str, Any]]

    @property
    def rows(self) -> list[Row]:
        return summarise(self.runs)

    def write(self, path: Path) -> None:
        """Write the file atomically: readers never see a partial file."""
        head = {
            "schema": SCHEMA,
            "benchmark": self.benchmark,
            **self.machine,
            "method": self.method,
        }
        lists = {"rows": [asdict(row) for row in self.rows], "runs": self.runs}
        text = json.dumps(head, indent=1).removesuffix("\n}")
        for name, entries in lists.items():  # one line per entry
            text += f',\n "{name}": [\n  ' + ",\n  ".join(map(json.dumps, entries)) + "\n ]"
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path, (text + "\n}\n").encode())


_DAMAGED = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    EOFError,
    zlib.error,
    gzip.BadGzipFile,
)


def read(path: str | os.PathLike[str]) -> Result:
    """Read a result file, which may be compressed (``.gz``).

    Raises SpecError for any other file.
    """
    require("bench.read", locals(), path=PATH)
    path = Path(path)
    try:
        text = content(path, MOST_BYTES)
        if path.suffix == ".gz":
            text = gzip.GzipFile(fileobj=io.BytesIO(text)).read(MOST_BYTES)
        data = parsed(text)
        if data.get("schema") != SCHEMA:
            raise ValueError(f"its schema is {told(data.get('schema'))}, expected {SCHEMA!r}")
        known = {"schema", "benchmark", "method", "rows", "runs"}
        machine = {k: data[k] for k in data.keys() - known}
        result = Result(data["benchmark"], machine, data["method"], data["runs"])
        device = machine.get("device", {})
        require(
            "result", {"device": device, "method": result.method}, device=MAPPING, method=MAPPING
        )
        table(result.rows)
    except _DAMAGED as error:
        why = error or type(error).__name__
        raise SpecError(
            f"{path} is not a result file of numpipe.bench, or damaged: {why}"
        ) from None
    return result


def run_entry(
    process: int,
    case: Mapping[str, Any],
    work: float,
    samples: Iterable[Sample],
    limit: float | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """Return a `runs` entry.

    work   work of one call: 1e-12 × flops gives TFLOPS
    limit  the GPU's maximum work per cycle, in units of `work`: ``1e-12 * TENSOR_FLOPS * sms``
    facts  further values to keep, e.g. errors
    """
    known = {} if limit is None else {"limit": limit}
    return {
        "process": process,
        "case": dict(case),
        "work": work,
        **known,
        "samples": [asdict(s) for s in samples],
        **facts,
    }


def summarise(runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the figures of all complete runs, in the order in which cases were first measured."""
    require("summarise", locals(), runs=each(MAPPING))
    groups: dict[tuple[str, str, str], list[tuple[Mapping[str, Any], Sample]]] = {}
    for run in runs:
        for raw in run.get("samples", ()):
            sample = Sample(**raw)
            for name in sample.times:
                if name not in (sample.reference, sample.reference + AGAIN):
                    key = case_key(run), sample.protocol, name
                    groups.setdefault(key, []).append((run, sample))
    return [_row(protocol, name, members) for (_, protocol, name), members in groups.items()]


def case_key(run: Mapping[str, Any]) -> str:
    """Return the case of a `runs` entry as a key."""
    return json.dumps(run["case"], sort_keys=True)


def _row(protocol: str, name: str, members: list[tuple[Mapping[str, Any], Sample]]) -> Row:
    readings, reference = [sample.sensed(name) for _, sample in members], members[0][1].reference
    sensed = sorted({k for r in readings for k in r})

    def fraction(of: str) -> float | None:
        values = [v for run, sample in members if (v := _fraction(run, sample, of)) is not None]
        return statistics.median(values) if values else None

    def error(of: str) -> float | None:
        return max(
            (run["errors"][of] for run, _ in members if of in run.get("errors", ())), default=None
        )

    return Row(
        case=dict(members[0][0]["case"]),
        protocol=protocol,
        name=name,
        reference=reference,
        rate=statistics.median(run["work"] / sample.seconds(name) for run, sample in members),
        reference_rate=statistics.median(
            run["work"] / sample.reference_seconds for run, sample in members
        ),
        ratio=figure([sample.ratio(name) for _, sample in members]),
        noise=figure([sample.noise for _, sample in members]),
        sensors={k: statistics.median(r[k] for r in readings if k in r) for k in sensed},
        fraction=fraction(name),
        reference_fraction=fraction(reference),
        work=members[0][0]["work"],
        error=error(name),
        reference_error=error(reference),
    )


def _fraction(run: Mapping[str, Any], sample: Sample, name: str) -> float | None:
    """Return the work relative to the maximum that is possible in the cycles it took."""
    mhz = sample.sensed(name).get("clock_mhz")
    if not mhz or not run.get("limit"):
        return None
    return float(run["work"] / (sample.seconds(name) * mhz * 1e6 * run["limit"]))


def table(rows: Sequence[Row], unit: str = "TFLOPS") -> str:
    """Return the rows as aligned text, one line each."""
    require("table", locals(), rows=each(a(Row)), unit=STRING)
    if not rows:
        return "nothing was measured"
    reference = rows[0].reference
    lines = [
        [
            "case",
            "protocol",
            f"{reference} {unit}",
            "",
            unit,
            "ratio [95 %]",
            f"{reference} / itself",
            "MHz",
            "W",
            "°C",
            f"of the limit ({reference})",
        ]
    ]
    for row in rows:
        clock = "clock_mhz" if "clock_mhz" in row.sensors else "sm_mhz"
        sensed = [
            f"{row.sensors[k]:.0f}" if k in row.sensors else "" for k in (clock, "watts", "celsius")
        ]
        lines.append(
            [
                title(row.case),
                row.protocol,
                _rate(row.reference_rate),
                row.name,
                _rate(row.rate),
                str(row.ratio),
                str(row.noise),
                *sensed,
                _pair(row.fraction, row.reference_fraction),
            ]
        )
    shown = [i for i in range(len(lines[0])) if i < 10 or any(line[i] for line in lines[1:])]
    return aligned([[line[i] for i in shown] for line in lines])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return lines with equal numbers of cells as text in columns."""
    require("aligned", locals(), lines=each(each(STRING)))
    counts = sorted(set(map(len, lines)))
    if len(counts) != 1:
        raise SpecError(f"aligned: all lines must have the same number of cells, got {counts}")
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    cells = [[cell.ljust(w) for cell, w in zip(line, widths, strict=True)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in cells)


def title(case: Mapping[str, Any]) -> str:
    """Return the values of a case as one text: ``4096,4096,4096 bf16``."""
    return " ".join(map(str, case.values()))


def _pair(value: float | None, reference: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" + ("" if reference is None else f" ({reference:.3f})")


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
