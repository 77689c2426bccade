"""`numpipe.verify`: run a kernel on the simulated SM under many schedules and report what they
find.

The simulated SM's clocks find a race in any schedule that executes both accesses. But the schedule
decides what is executed at all: which way a polling loop goes, which warpgroup reaches a barrier
first, which deadlock occurs. So a kernel is run in the order of the virtual-time model and in
random orders of three kinds (`numpipe.sim.schedule`).
"""

from __future__ import annotations

import functools
import gc
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ...arch.dimensions import Ints, Names
from ...arch.targets import DEFAULT
from ...core.process_guards import COMPILES
from ...core.records import plain
from ...diagnostics.argument_checks import STRING, each, finite, require, whole, word
from ...diagnostics.errors import SimulationError, SpecError, printable
from ...diagnostics.frames import brief
from ...diagnostics.reports import Line, Report
from ...kernels.simulation_checks import Judge
from ...plan.specs import Persistent
from .argument_copies import Arguments, Array, Arrays, first_seed
from .exploring import All, Class, Coverage

if TYPE_CHECKING:
    from ...kernels.kernel import Kernel
    from ...launch.mesh import Mesh

__all__ = ["Verification", "verify"]

Seed: TypeAlias = "int | str | None"
Key: TypeAlias = tuple[str, tuple[Line, ...]]
"""the hazard and its lines"""
MOST_SCHEDULES = 10**6
_PLACE = re.compile(r"(?P<file>[^\n]+?):(?P<line>\d+): ")


@dataclass(frozen=True)
class Failure:
    """One hazard at one place, in any number of schedules.

    hazard      its name in `numpipe.hazards.HAZARDS`; for an error of the kernel itself (an
                assertion, an overflow), the type of the error
    lines       the user's lines: of the access that exposed the hazard, and of the other side
    schedules   how many schedules showed it
    seed        the seed of the first of them (None: the virtual-time order; a string: the shortest
                schedule that an exploration found)
    error       the PipelineRace, PipelineDeadlock or SimulationError of that schedule
    ctas        number of CTAs in that schedule, if it differs from the other schedules
    """

    hazard: str
    lines: tuple[Line, ...]
    schedules: int
    seed: Seed
    error: SimulationError
    ctas: int | None = None

    @property
    def text(self) -> str:
        return str(self.error)

    @property
    def report(self) -> Report | None:
        return self.error.report

    def as_dict(self) -> dict[str, Any]:
        return {
            "hazard": self.hazard,
            "lines": [vars(line) for line in self.lines],
            "schedules": self.schedules,
            "seed": self.seed,
            "error": type(self.error).__name__,
            "text": self.text,
            "report": None if self.report is None else self.report.as_dict(),
        }


@dataclass(frozen=True)
class Difference:
    """An array whose contents differ, bit by bit, between schedules.

    schedules   how many schedules left other contents than the first one that completed
    seed        the seed of the first of them
    elements    how many elements differ there, of `size`; `largest` is the largest difference, at
                `index`
    summed      whether TMA or lanes add floats to this array; the order of the sums may then show,
                which is not an error
    """

    array: str
    schedules: int
    seed: Seed
    elements: int
    size: int
    largest: float
    index: Ints
    summed: bool

    @printable
    def __str__(self) -> str:
        return (
            f"{self.array}: {self.elements} of {self.size} elements differ, by up to "
            f"{self.largest:.3g}, at {self.index}"
            + ("; sums of floats in different orders" if self.summed else "")
        )


@dataclass(frozen=True)
class Verification:
    """The result of `verify`, which is true if nothing was found. ``print`` shows a table, followed
    by the report of each failure."""

    kernel: str
    seeds: tuple[int | None, ...]
    """the seed of each schedule"""
    failures: tuple[Failure, ...]
    differences: tuple[Difference, ...]
    seconds: float
    """without the kernel's compile, of which a first call checks that it succeeds"""
    warnings: tuple[Failure, ...] = ()
    """outputs passed by the caller that have elements which keep their old contents, perhaps on
    purpose"""
    ctas: int | None = None
    """CTAs of the additional schedule of a persistent kernel, in the virtual-time order"""
    coverage: Coverage | None = None
    """for ``schedules="all"``: how many classes there are, and whether these are all; `seeds` is
    then empty"""
    seed_option: str = "seed"
    """the option of ``kernel.simulate`` that takes a seed"""

    @property
    def schedules(self) -> int:
        """Number of schedules that were run, or of classes in an exploration."""
        return len(self.seeds) if self.coverage is None else self.coverage.classes

    @property
    def ok(self) -> bool:
        """Whether no schedule failed, and outputs differ at most by the order in which TMA added
        floats."""
        return not self.failures and all(difference.summed for difference in self.differences)

    def __bool__(self) -> bool:
        return self.ok

    def raise_if_failed(self) -> None:
        """Raise the first failure, as a PipelineRace, PipelineDeadlock or SimulationError with its
        `report`.

        Outputs that differ without a report raise a SimulationError.
        """
        if self.failures:
            failure = self.failures[0]
            more = f"; {len(self.failures) - 1} more in the table" if len(self.failures) > 1 else ""
            found = (
                f"on {failure.ctas} CTAs"
                if failure.ctas
                else f"in {failure.schedules} of {self.schedules} schedules"
            )
            error = type(failure.error)(
                f"{failure.text}\n  found:  {found}; {self.replay(failure.seed, failure.ctas)} "
                f"shows it again{more}"
            )
            error.report = failure.report
            raise error from None
        for difference in self.differences:
            if not difference.summed:
                raise SimulationError(
                    f"kernel {self.kernel}: outputs depend on the schedule although no race was "
                    f"reported: {difference}, after {difference.schedules} of {self.schedules} "
                    f"schedules; compare {self.replay(None)} with {self.replay(difference.seed)}"
                )

    def replay(self, seed: Seed, ctas: int | None = None) -> str:
        """Return the call that runs one of the schedules again, as text."""
        options = "".join(
            f", {name}={value!r}"
            for name, value in ((self.seed_option, seed), ("ctas", ctas))
            if value is not None
        )
        return f"{self.kernel}.simulate(…{options})"

    def as_dict(self) -> dict[str, Any]:
        """Return the result as dicts, lists, strings and numbers."""
        return {
            "kernel": self.kernel,
            "ok": self.ok,
            "seeds": list(self.seeds),
            "seconds": self.seconds,
            "coverage": None if self.coverage is None else vars(self.coverage),
            "failures": [failure.as_dict() for failure in self.failures],
            "warnings": [warning.as_dict() for warning in self.warnings],
            "ctas": self.ctas,
            "differences": [plain(vars(difference)) for difference in self.differences],
        }

    @printable
    def __str__(self) -> str:
        from ...sim.schedule import kind

        kinds = ", ".join(f"{n} {name}" for name, n in Counter(map(kind, self.seeds)).items())
        rows = [
            (f.hazard, f.schedules, f.seed, " / ".join(map(_place, f.lines)) or "-")
            for f in self.failures
        ]
        rows += [("outputs differ", d.schedules, d.seed, str(d)) for d in self.differences]
        rows += [
            (f"{w.hazard} (a warning)", w.schedules, w.seed, " / ".join(map(_place, w.lines)))
            for w in self.warnings
        ]
        run = (
            f"{self.schedules} schedules "
            f"({kinds}{f'; one more on {self.ctas} CTAs' if self.ctas else ''})"
        )
        head = (
            f"kernel {self.kernel}: {run if self.coverage is None else self.coverage} in "
            f"{self.seconds:.2f} s: "
        )
        if not rows:
            return head + "no hazard, outputs equal bit for bit"
        width = max(len(name) for name, *_ in rows)
        lines = [
            head + ("passed" if self.ok else "failed"),
            f"  {'hazard':{width}}  schedules  seed  where",
        ]
        lines += [
            f"  {name:{width}}  {f'{n} of {self.schedules}':>9}  "
            f"{'-' if seed is None else seed:>4}  {where}"
            for name, n, seed, where in rows
        ]
        for remark, found in (("", self.failures), (", a warning", self.warnings)):
            for one in found:
                lines += ["", f"{one.hazard}{remark}, {self.replay(one.seed, one.ctas)}:", one.text]
        return "\n".join(lines)


@brief
def verify(
    kernel: Kernel,
    /,
    *args: Any,
    schedules: int | Literal["all"] = 20,
    seed: int | None = None,
    schedule_seed: int = 0,
    ctas: int | None = None,
    partial: str | Sequence[str] = (),
    limit: float = 60.0,
    out: Any = None,
    mesh: Mesh | None = None,
    **named: Any,
) -> Verification:
    """Run `kernel` on the simulated SM under several schedules, each on fresh copies of the
    arguments.

    args, out, named   arguments of a call ``kernel(*args, out=out, **named)``; the caller's arrays
                       are not changed
    schedules          how many: the deterministic virtual-time order first, then the random
                       schedules of `seed`, `seed` + 1, …, of which a third each are uniform, by
                       priorities, and jittered. "all" runs one schedule of each equivalence class
                       (docs/exploration.md); the result's `coverage` says how many there are, and
                       whether they are all
    seed               any int. ``kernel.simulate(*args, seed=s)`` runs the schedule of seed s
                       again, and fails again
    schedule_seed      the same for a kernel that has a parameter `seed`, which then gets `seed`
    ctas               CTAs of a `persistent` grid in all schedules. None: 2 (clusters), and if no
                       schedule fails, the virtual-time order once more with as many CTAs as an H100
                       or H200 has SMs, 132, which some conflicts need (on more than two GPUs, as
                       many in total as on two)
    partial            names of outputs of which the kernel writes only a part on purpose.
                       Otherwise, an element that was never written is a failure,
                       "unwritten-output", if the call allocates the output, and a warning if the
                       caller passes it
    limit              seconds after which ``schedules="all"`` stops even if it has not run all
                       classes
    mesh               a `numpipe.Mesh.simulated` for a kernel with semaphores; arguments are then
                       lists with one array per GPU

    Hazards do not raise: the returned Verification groups them by name and lines. Outputs are
    compared bit by bit between schedules. Raises SpecError if arguments do not match, and any other
    exception of the kernel's Python code, with the seed in a note.

    >>> import numpipe
    >>> @numpipe.kernel
    ... def ones(x):
    ...     x[numpipe.ds(0, 64), numpipe.ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1
    >>> result = numpipe.verify(ones, np.zeros((64, 64), np.float32), schedules=4)
    >>> result.ok, result.schedules, result.failures
    (True, 4, ())
    """
    seed = first_seed("verify", kernel, named, seed, schedule_seed)
    arguments = Arguments(
        "verify", kernel, args, named, out, ("schedules", "ctas", "partial", "limit"), mesh
    )
    require(f"kernel {kernel.name}: verify", locals(), partial=STRING | each(STRING))
    names = (partial,) if isinstance(partial, str) else tuple(partial)
    if unknown := [name for name in names if name not in kernel.parameters]:
        raise SpecError(
            f"kernel {kernel.name}: partial={partial!r}: it has no parameter "
            f"{', '.join(map(repr, unknown))}; its parameters are {', '.join(kernel.parameters)}"
        )
    return verified(kernel, arguments, schedules, seed, ctas, names, limit)[0]


@dataclass
class _Cases:
    """Schedules that showed the same hazard: how many, the error, and the seed of the first, or in
    an exploration of the shortest."""

    seed: Seed
    error: SimulationError
    shown: Class | None
    number: int = 0


def _count(
    cases: dict[Key, _Cases], seed: Seed, error: SimulationError, shown: Class | None
) -> None:
    known = cases.setdefault(_key(error), _Cases(seed, error, shown))
    known.number += 1
    if shown is not None and known.shown is not None and shown.shown < known.shown.shown:
        known.seed, known.error, known.shown = seed, error, shown


Run: TypeAlias = tuple[Seed, Arrays, "SimulationError | None", Judge, "Class | None"]
"""(seed, arrays, error or None, the judge, and the equivalence class that it represents)"""


def _seeded(
    kernel: Kernel, arguments: Arguments, seeds: Sequence[int | None], judge: Callable[..., Judge]
) -> Iterator[Run]:
    """Run the schedules of the given seeds."""
    for seed in seeds:
        own_judge, failed = judge(seed=seed), None
        arrays: Arrays = {}
        try:
            arrays = arguments.run(functools.partial(kernel.judged, own_judge))
        except SimulationError as error:
            failed = error
        except Exception as error:
            if seed is not None and hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"raised in the schedule of {kernel.name}.simulate(…, seed={seed})")
            raise
        yield seed, arrays, failed, own_judge, None


def verified(
    kernel: Kernel,
    arguments: Arguments,
    schedules: int | Literal["all"],
    seed: int,
    ctas: int | None = None,
    partial: Names = (),
    limit: float = 60.0,
) -> tuple[Verification, Arrays]:
    """Run the schedules. Return the result, and the arrays of the first schedule that completed, or
    {} if none did."""
    require(
        f"kernel {kernel.name}: verify",
        locals(),
        schedules=whole(1, MOST_SCHEDULES) | word("all"),
        seed=whole(0),
        limit=finite(above=0.0),
    )
    judge = functools.partial(Judge, ctas, arguments.arrays, partial)
    every = All(kernel, arguments, judge, limit) if schedules == "all" else None
    seeds = () if schedules == "all" else (None, *range(seed, seed + schedules - 1))
    runs = (
        _seeded(kernel, arguments, seeds, judge)
        if every is None
        else (
            (str(one.explored.name), one.arrays, one.explored.error, one.judge, one)
            for one in every
        )
    )
    errors: dict[Key, _Cases] = {}
    kept: dict[Key, _Cases] = {}
    first: Arrays = {}
    others: dict[str, list[tuple[Seed, Array]]] = {}
    """by array name: (seed, array) for each array that differs from the one in `first`"""
    begun = time.perf_counter() - COMPILES.seconds
    for s, arrays, error, run_judge, one in runs:
        if error is not None:
            _count(errors, s, error, one)
            continue
        first = first or arrays
        for found, where in ((run_judge.unwritten, errors), (run_judge.kept, kept)):
            for unwritten in found.values():
                _count(where, s, unwritten, one)
        for name, array in arrays.items():
            if array.tobytes() != first[name].tobytes():
                others.setdefault(name, []).append((s, array))
    if every is not None:
        for cases_of in others.values():
            cases_of.sort(key=lambda case: len(str(case[0])))
    for cases in errors.values():
        if every is not None and cases.shown is not None:
            shortest = every.shortest(cases.shown).explored
            if shortest.error is not None:
                cases.seed, cases.error = str(shortest.name), shortest.error
    failures, warnings = (
        tuple(Failure(*key, cases.number, cases.seed, cases.error) for key, cases in found.items())
        for found in (errors, kept)
    )
    wide = (
        DEFAULT.sms
        if ctas is None and not failures and kernel.options.grid == Persistent()
        else None
    )
    if wide is not None:
        # the CTAs of all GPUs are alive at once, and their vector clocks take gigabytes
        if arguments.mesh is not None:
            wide = min(wide, 2 * DEFAULT.sms // arguments.mesh.size)
        wide -= wide % kernel.options.attributes.size
        try:
            arguments.run(functools.partial(kernel.judged, Judge(wide)))
        except SimulationError as error:
            failures = (Failure(*_key(error), 1, None, error, wide),)
        if arguments.mesh is not None:
            gc.collect()  # reference cycles keep the CTAs alive
    differences = tuple(
        _difference(name, first[name], arrays, _summed(kernel, arguments, arrays[0][0]))
        for name, arrays in others.items()
    )
    seconds = time.perf_counter() - COMPILES.seconds - begun
    coverage = None if every is None else every.coverage
    seed_option = "schedule_seed" if kernel.takes("seed") else "seed"
    return Verification(
        kernel.name, seeds, failures, differences, seconds, warnings, wide, coverage, seed_option
    ), first


# ---- failures ------------------------------------------------------------------------------------
def _key(error: SimulationError) -> tuple[str, tuple[Line, ...]]:
    """Return the hazard and its lines, by which failures are grouped."""
    report = error.report
    if report is None:
        match = _PLACE.match(str(error))
        return type(error).__name__, () if match is None else (
            Line(match["file"], int(match["line"]), ""),
        )
    parties = [party for party in (report.now, report.before, *report.waiting) if party is not None]
    return report.hazard, tuple(dict.fromkeys(party.lines[0] for party in parties if party.lines))


def _place(line: Line) -> str:
    return str(line) if line.function else f"{PurePath(line.filename).name}:{line.line}"


def _difference(
    name: str, first: Array, others: list[tuple[Seed, Array]], summed: set[str]
) -> Difference:
    """Return how the first of the other arrays differs."""
    seed, array = others[0]
    bits = [
        np.ascontiguousarray(each).view(f"u{each.itemsize}").reshape(each.shape)
        for each in (array, first)
    ]
    differ = bits[0] != bits[1]
    with np.errstate(all="ignore"):
        by = np.where(differ, np.abs(array.astype(np.float64) - first.astype(np.float64)), -1.0)
    by[np.isnan(by)] = np.inf
    index = np.unravel_index(int(by.argmax()), by.shape)
    return Difference(
        name,
        len(others),
        seed,
        int(differ.sum()),
        array.size,
        float(by[index]),
        tuple(map(int, index)),
        name in summed,
    )


def _summed(kernel: Kernel, arguments: Arguments, seed: Seed) -> set[str]:
    """Return the names of the float arrays that TMA or lanes add to in this schedule."""
    from ...sim import Trace

    trace = Trace()
    arrays = arguments.run(kernel.simulate, schedule_seed=seed, trace=trace)
    names = {
        event.details["tensor"]
        for event in trace.of("store")
        if event.details.get("reduction") == "add"
    }
    for event in trace.of("write"):
        does, _, array = event.details["what"].partition(" to ")
        if does == "add":
            names.add(array.partition("[")[0])
    return {name for name in names if name in arrays and arrays[name].dtype.kind not in "iub"}
