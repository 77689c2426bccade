"""What was fuzzed, over runs: a JSON file to which each run adds itself."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ...diagnostics.errors import NumpipeError, SpecError
from ...launch import device
from .checks import STAGES

VERSION = 1


class Counts:
    """The counts of one run, and those of the runs before in its file.

    A kernel is counted once a stage, however often it ran there: kernels of one source are one. Between runs nobody compares
    sources, so each run has another seed.
    """

    def __init__(self, file: Path | None, seed: int | None) -> None:
        self.file, self.before = file, self._read(file)
        known = {run["seed"] for run in self.before}
        if seed in known:
            raise SpecError(f"{file}: kernels of seed {seed} are counted already; leave --seed out, or take {max(known) + 1}")
        self.seed = 1 + max(known, default=0) if seed is None else seed
        self.begun = time.time()
        self.kernels: dict[str, set[str]] = {stage: set() for stage in STAGES}
        self.runs: Counter[str] = Counter()
        self.found: Counter[str] = Counter()
        self.features: dict[str, Counter[str]] = {stage: Counter() for stage in STAGES}

    @staticmethod
    def _read(file: Path | None) -> list[dict[str, Any]]:
        if file is None or not file.exists():
            return []
        try:
            known = json.loads(file.read_text(encoding="utf8"))
            if known["version"] != VERSION:
                raise ValueError(f"version {known['version']}")
            return list(known["runs"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise SpecError(f"{file}: no counts of numpipe fuzz ({type(error).__name__}: {error}); name another file") from None

    def passed(self, stage: str, digest: str, runs: int, features: tuple[str, ...]) -> None:
        """A kernel did in a stage what it must, so many times."""
        self.runs[stage] += runs
        if digest not in self.kernels[stage]:
            self.kernels[stage].add(digest)
            self.features[stage].update(features)

    def as_dict(self) -> dict[str, Any]:
        """Return this run's entry."""
        try:
            gpu = device.gpu_state().device
        except NumpipeError:
            gpu = None
        names = sorted({name for found in self.features.values() for name in found})
        return {"seed": self.seed, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.begun)),
                "seconds": round(time.time() - self.begun, 1), "numpipe": version(), "cores": os.cpu_count(),
                "machine": platform.machine(), "gpu": gpu.name if gpu else None,
                "kernels": {stage: len(self.kernels[stage]) for stage in STAGES},
                "runs": {stage: self.runs[stage] for stage in STAGES},
                "found": dict(self.found), "features": {name: [self.features[stage][name] for stage in STAGES] for name in names}}

    def write(self) -> None:
        """Write the file, whole or not at all."""
        if self.file is None:
            return
        runs = [*self.before, self.as_dict()]
        text = json.dumps({"version": VERSION, "stages": STAGES, "total": total(runs), "runs": runs}, indent=1)
        fresh = self.file.with_name(self.file.name + ".part")
        fresh.write_text(text + "\n", encoding="utf8")
        fresh.replace(self.file)

    def __str__(self) -> str:
        """A table of this run, and of all runs."""
        mine = self.as_dict()
        rows = [("this run", mine), *[("all runs", total([*self.before, mine]))] * bool(self.before)]
        lines = [f"{'kernels':10}" + "".join(f"{stage:>12}" for stage in STAGES) + "   found"]
        for name, row in rows:
            lines.append(f"{name:10}" + "".join(f"{row['kernels'][stage]:12,}" for stage in STAGES)
                         + "   " + (", ".join(f"{n} {kind}" for kind, n in row["found"].items()) or "nothing"))
        lines.append(f"{'times run':10}" + "".join(f"{mine['runs'][stage]:12,}" for stage in STAGES))
        return "\n".join(lines)


def version() -> str:
    """Of numpipe, as it is installed."""
    try:
        return importlib.metadata.version("numpipe")
    except importlib.metadata.PackageNotFoundError:
        return ""


def total(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The sums of runs."""
    found: Counter[str] = Counter()
    for run in runs:
        found.update(run["found"])
    return {what: {stage: sum(run[what][stage] for run in runs) for stage in STAGES} for what in ("kernels", "runs")} | {
        "found": dict(found)}
