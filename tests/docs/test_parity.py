"""docs/parity.md: each row has a test (parity_tests.txt) that exists, and the simulated SM does
something else when a parameter of a pipeline changes."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from numpipe import Trace
from tests.fuzz.pipeline_plans import Plan, allowed
from tests.kernels.pipeline_arrays import inputs, load
from tests.misuse.test_misuse import MODULES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "parity.md"
TESTS = Path(__file__).parent / "parity_tests.txt"


# ---- parameters
LOOP, BODY = Plan(wgs=2, slots=3), Plan(form="body", wgs=2, slots=3)
GRID = Plan(rank=2, slots=3)
CHAIN = Plan(form="body", chain=2, chained="sites")
HEEDED: dict[str, tuple[Plan, Plan]] = {
    "max_concurrent_steps": (LOOP, replace(LOOP, slots=2)),
    "delay_release": (LOOP, replace(LOOP, delay=1)),
    "static grid": (
        replace(LOOP, slots=5, chain=2),
        replace(LOOP, slots=5, chain=2, static=True, extent=(4, 1, 1)),
    ),
    "tree": (LOOP, replace(LOOP, tree="named")),
    "manual_produced_barriers": (BODY, replace(BODY, ready=True)),
    "manual_consumed_barriers": (BODY, replace(BODY, consumed=True)),
    "carry_coroutine": (
        replace(BODY, carry="tile"),
        replace(BODY, carry="tile", context="coroutine"),
    ),
    "memory_thread_idx": (BODY, replace(BODY, memory="first")),
    "allocations": (CHAIN, replace(CHAIN, chained="shared")),
    "invariant input": (LOOP, replace(LOOP, reads="none")),
    "slowly changing input": (GRID, replace(GRID, reads="some")),
    "no index map": (replace(LOOP, chain=2, reads="none"), replace(LOOP, chain=2, reads="origin")),
    "revisited output": (replace(GRID, outputs=1), replace(GRID, outputs=1, writes="some")),
    "steps_of": (LOOP, replace(LOOP, steps="unequal")),
    "memory_space": (replace(LOOP, gmem=False), replace(LOOP, gmem=True)),
    "BlockSpec.delay_release": (LOOP, replace(LOOP, own="delay")),
    "buffer_count": (LOOP, replace(LOOP, own="slots")),
}
"""a plan without the parameter and one with it, which are otherwise equal"""

SAME = {"tree", "carry_coroutine", "memory_space"}
"""other ways to write the same

It is enough that they compute the right result, which the covering array checks.
"""


@functools.cache
def seen(plan: Plan) -> tuple[Any, ...]:
    """Return what the simulated SM did: timed events, with the names of barriers and rings."""
    trace = Trace()
    grid = plan.grids()[-1 if plan.static else 4]
    load(plan).simulate(*inputs(plan, grid), trace=trace)
    for event in trace.events:
        event.details.pop("statement", None)
    return tuple(
        (e.warpgroup, e.role, e.kind, e.start, re.sub(r"pipeline_\w+\.py:\d+", "", str(e.details)))
        for e in trace.events
    )


@pytest.mark.parametrize("parameter", HEEDED)
def test_a_pipeline_heeds(parameter: str) -> None:
    without, with_it = HEEDED[parameter]
    assert allowed(without) and allowed(with_it)
    if parameter in SAME:
        assert load(without) is not load(with_it)
    assert (seen(without) == seen(with_it)) == (parameter in SAME)


def goes_on(plan: Plan) -> bool:
    """Return whether the second pipeline's first loads begin before the first one's last step is
    computed."""
    trace = Trace()
    load(plan).simulate(*inputs(plan, (4,)), trace=trace)
    notes = [
        (e.details["event"], e.details["step"])
        for e in sorted(trace.of("note"), key=lambda e: e.start)
    ]
    return notes.index(("fill", 4)) < notes.index(("compute", 3))


def test_a_chain_does_not_drain() -> None:
    assert goes_on(replace(CHAIN, chained="shared", slots=3))


def test_a_chain_drains_on_request() -> None:
    assert not goes_on(replace(CHAIN, chained="shared", slots=3, drain=True))


# ---- the page
Row = tuple[str, str, str]
"""section, what Pallas has, what numpipe has or the test of it"""


def rows() -> list[Row]:
    """The rows of the page."""
    found, section = [], ""
    for line in PAGE.read_text(encoding="utf8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith("| Pallas"):
            theirs, ours = (cell.strip() for cell in line.strip("|").split(" | "))
            found.append((section, theirs, ours))
    return found


def listed() -> list[Row]:
    """The rows of parity_tests.txt, without its first line."""
    lines = TESTS.read_text(encoding="utf8").splitlines()[1:]
    return [tuple(line.split(" | ")) for line in lines]  # type: ignore[misc]


@functools.cache
def names(file: Path) -> set[str]:
    """Return the tests of a file, or the refused kernels of a file of misuse."""
    if file.parent.name == "misuse":
        return {
            case.kernel.name
            for module in MODULES
            if module.__file__ == str(file)
            for case in module.refused
        }
    return {
        node.name
        for node in ast.parse(file.read_text(encoding="utf8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_row_has_a_test_or_says_no() -> None:
    assert [row[:2] for row in rows()] == [row[:2] for row in listed()]
    for (section, theirs, ours), (*_, test) in zip(rows(), listed(), strict=True):
        assert test != "none" or re.match(r"no\b", ours), (section, theirs)


@pytest.mark.parametrize(
    "row", [row for row in listed() if row[2] != "none"], ids=lambda row: row[1][:40]
)
def test_the_test_of_a_row_exists(row: Row) -> None:
    found = re.fullmatch(r"((?:gpu/|misuse/)?\w+\.py)::(\w+)(?:\[([^\]]+)\])?", row[2])
    assert found, row
    path, name, case = found.groups()
    files = list((ROOT / "tests").rglob(path))
    assert len(files) == 1 and name in names(files[0]), (row, files)
    assert case is None or case in HEEDED, row


def test_every_parameter_that_is_tried_has_a_row() -> None:
    assert {case for row in listed() for case in re.findall(r"\[([^\]]+)\]$", row[2])} == set(
        HEEDED
    )
