"""Results: every raw run in JSON, and a table of the figures drawn from them.

The file (schema ``numpipe-bench/1``) holds ``runs``, one entry a case and process as it was measured, failed ones
included; ``rows``, the figures, can always be computed again from them.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...arch.dtypes import ELEMENTS
from ...arch.targets import DEFAULT
from .interval import Figure, figure
from .protocols import AGAIN, Sample

SCHEMA = "numpipe-bench/1"
TENSOR_FLOPS = 2 * DEFAULT.rate(ELEMENTS["float16"])
"""floating-point operations, of 16-bit operands, that the tensor cores of a Hopper SM do in a cycle"""


@dataclass(frozen=True)
class Row:
    """One case, one protocol, one competitor, over all processes."""

    case: dict[str, Any]
    protocol: str
    name: str
    reference: str
    rate: float
    """of `name`: median over the processes, in units of `work` a second (TFLOPS for work = 1e-12 flops)"""
    reference_rate: float
    ratio: Figure
    noise: Figure
    """the reference against itself"""
    sensors: dict[str, float]
    """medians of what was read while `name` ran"""
    fraction: float | None = None
    """of what the tensor cores can do in the cycles that `name` took, by the SMs' clock then (`limit` of `run_entry`)"""
    reference_fraction: float | None = None
    per_watt: float | None = None
    """rate over power, in units of `work` a joule; of the protocol "alone" only: a sensor of watts averages over a second"""
    reference_per_watt: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells the rows of one file apart."""
        return json.dumps(self.case, sort_keys=True), self.protocol, self.name


@dataclass(frozen=True)
class Result:
    """A result file read back or about to be written."""

    benchmark: str
    machine: dict[str, Any]
    method: dict[str, Any]
    runs: list[dict[str, Any]]

    @property
    def rows(self) -> list[Row]:
        return summarise(self.runs)

    def write(self, path: Path) -> None:
        """Write the file in one step: a writer that is killed leaves the old one, and readers never see half of one."""
        head = {"schema": SCHEMA, "benchmark": self.benchmark, **self.machine, "method": self.method}
        lists = {"rows": [asdict(row) for row in self.rows], "runs": self.runs}
        text = json.dumps(head, indent=1).removesuffix("\n}")
        for name, entries in lists.items():  # a line an entry: files of thousands of raw times stay readable
            text += f',\n "{name}": [\n  ' + ",\n  ".join(map(json.dumps, entries)) + "\n ]"
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(path.suffix + ".part")
        part.write_text(text + "\n}\n", encoding="utf8")
        os.replace(part, path)


def read(path: Path) -> Result:
    """Read a result file. Raises ValueError for another file, and for one of another schema."""
    try:
        data = json.loads(path.read_text(encoding="utf8"))
        if data.get("schema") != SCHEMA:
            raise ValueError(f"{path}: schema {data.get('schema')!r}, expected {SCHEMA!r}")
        machine = {k: data[k] for k in data.keys() - {"schema", "benchmark", "method", "rows", "runs"}}
        return Result(data["benchmark"], machine, data["method"], data["runs"])
    except (KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: not a result file of numpipe.bench: {error}") from None


def run_entry(process: int, case: Mapping[str, Any], work: float, samples: Iterable[Sample],
              limit: float | None = None, **facts: Any) -> dict[str, Any]:
    """Return a `runs` entry.

    work   what one call does: 1e-12 × flops gives TFLOPS
    limit  the most work that the GPU can do in a cycle of its SMs, in units of `work`: ``1e-12 * TENSOR_FLOPS * sms``, say
    facts  more to keep, e.g. errors
    """
    known = {} if limit is None else {"limit": limit}
    return {"process": process, "case": dict(case), "work": work, **known, "samples": [asdict(s) for s in samples], **facts}


def summarise(runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the figures of all complete runs, in the order in which the cases were first measured."""
    groups: dict[tuple[str, str, str], list[tuple[Mapping[str, Any], Sample]]] = {}
    for run in runs:
        for raw in run.get("samples", ()):
            sample = Sample(**raw)
            for name in sample.times:
                if name not in (sample.reference, sample.reference + AGAIN):
                    key = json.dumps(run["case"], sort_keys=True), sample.protocol, name
                    groups.setdefault(key, []).append((run, sample))
    return [_row(protocol, name, members) for (_, protocol, name), members in groups.items()]


def _row(protocol: str, name: str, members: list[tuple[Mapping[str, Any], Sample]]) -> Row:
    readings, reference = [sample.sensed(name) for _, sample in members], members[0][1].reference

    def median(value: Callable[[Mapping[str, Any], Sample, str], float | None], of: str) -> float | None:
        values = [v for run, sample in members if (v := value(run, sample, of)) is not None]
        return statistics.median(values) if values else None

    return Row(
        case=dict(members[0][0]["case"]), protocol=protocol, name=name, reference=reference,
        rate=statistics.median(run["work"] / sample.seconds(name) for run, sample in members),
        reference_rate=statistics.median(run["work"] / sample.reference_seconds for run, sample in members),
        ratio=figure([sample.ratio(name) for _, sample in members]),
        noise=figure([sample.noise for _, sample in members]),
        sensors={k: statistics.median(r[k] for r in readings if k in r) for k in sorted({k for r in readings for k in r})},
        fraction=median(_fraction, name), reference_fraction=median(_fraction, reference),
        per_watt=median(_per_watt, name), reference_per_watt=median(_per_watt, reference),
    )


def _fraction(run: Mapping[str, Any], sample: Sample, name: str) -> float | None:
    """Return the work over the most that could be done in the cycles it took."""
    mhz = sample.sensed(name).get("clock_mhz")
    return run["work"] / (sample.seconds(name) * mhz * 1e6 * run["limit"]) if mhz and run.get("limit") else None


def _per_watt(run: Mapping[str, Any], sample: Sample, name: str) -> float | None:
    watts = sample.sensed(name).get("watts")
    return run["work"] / sample.seconds(name) / watts if watts and sample.protocol == "alone" else None


def table(rows: Sequence[Row], unit: str = "TFLOPS") -> str:
    """Return the rows as aligned text, a line each."""
    if not rows:
        return "nothing was measured"
    reference = rows[0].reference
    lines = [["case", "protocol", f"{reference} {unit}", "", unit, "ratio [95 %]", f"{reference} / itself", "MHz", "W", "°C",
              f"of the limit ({reference})", f"{unit}/W ({reference})"]]
    for row in rows:
        clock = "clock_mhz" if "clock_mhz" in row.sensors else "sm_mhz"
        sensed = [f"{row.sensors[k]:.0f}" if k in row.sensors else "" for k in (clock, "watts", "celsius")]
        lines.append([title(row.case), row.protocol, _rate(row.reference_rate), row.name, _rate(row.rate), str(row.ratio),
                      str(row.noise), *sensed, _pair(row.fraction, row.reference_fraction),
                      _pair(row.per_watt, row.reference_per_watt)])
    shown = [i for i in range(len(lines[0])) if i < 10 or any(line[i] for line in lines[1:])]
    return aligned([[line[i] for i in shown] for line in lines])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of as many cells each as text in columns."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def title(case: Mapping[str, Any]) -> str:
    """Return the values of a case as one text: ``4096,4096,4096 bf16``."""
    return " ".join(map(str, case.values()))


def _pair(value: float | None, reference: float | None) -> str:
    return "" if value is None else f"{value:.3f}" + ("" if reference is None else f" ({reference:.3f})")


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
