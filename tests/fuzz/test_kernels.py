"""The generator of whole kernels: what it draws agrees with NumPy, and planted mistakes are
detected."""

from __future__ import annotations

import functools
import inspect
import math
import random
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from numpipe.compile.build import toolchain
from tests.fuzz import meaning, pipeline_plans, products
from tests.fuzz.case import Case, wrong
from tests.fuzz.checks import Found, compiled, simulated, verified
from tests.fuzz.drawing import AUTHORS, draw, kernels
from tests.fuzz.pipeline_plans import Plan
from tests.fuzz.pipeline_sources import case as case_of
from tests.fuzz.programs import Program
from tests.kernels.covering import examples


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


common: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


@given(case=kernels(), seed=st.integers(0, 2**16))
@settings(max_examples=examples(150), derandomize=True, phases=[Phase.generate], **common)
def test_any_kernel_computes_what_numpy_does(case: Case, seed: int) -> None:
    note(case.source(seed))
    simulated(case, seed)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@given(case=kernels(), seed=st.integers(0, 2**16))
@settings(max_examples=5000, print_blob=True, **common)
def test_many_kernels_compute_what_numpy_does_and_are_silent(case: Case, seed: int) -> None:
    note(case.source(seed))
    simulated(case, seed)
    verified(case, seed)


@pytest.mark.thorough
@pytest.mark.parametrize("author", AUTHORS)
def test_kernels_are_verified_without_a_false_alarm(author: Any) -> None:
    for seed in range(10):
        verified(author(random.Random(seed)), seed)


@pytest.mark.thorough
@pytest.mark.skipif(toolchain() is not None, reason="no compiler")
@pytest.mark.parametrize("author", AUTHORS)
def test_kernels_compile_and_pass_the_build_gate(author: Any) -> None:
    compiled(author(random.Random(0)), 0)


# ---- coverage of the generator
WANTED = {
    f"{author} {name} {value}"
    for author, factors in (("pipeline", pipeline_plans.FACTORS), ("product", products.FACTORS))
    for name, values in factors.items()
    for value in values
    if value != values[0]
} | {f"statement {line.__name__}" for line in Program(random.Random()).known()}
"""every choice that is not the default, and every kind of statement"""


@functools.cache
def drawn_kernels() -> list[Case]:
    """Return the kernels of the first seeds."""
    return [draw(random.Random(seed)) for seed in range(600)]


def test_every_feature_is_drawn_soon_and_nearly_all_kernels_differ() -> None:
    drawn = drawn_kernels()
    assert WANTED - {name for case in drawn for name in case.features} == set()
    assert len({case.digest for case in drawn}) >= 590
    assert draw(random.Random(7)) == drawn[7]


# ---- detection
@pytest.mark.parametrize("author", AUTHORS)
def test_results_depend_on_the_numbers_that_are_read(author: Any) -> None:
    steering = "table", "counts", "places", "trips", "order", "p"
    found = []
    for seed in range(6):
        case = author(random.Random(seed))
        given, others = case.given(0), case.given(1)
        others |= {name: given[name] for name in steering if name in given}
        found.append(wrong(case.right(given), case.right(others)) != "")
    assert sum(found) >= 4


def instead(name: str, function: Callable[..., Any]) -> Any:
    """Replace a function that NumPy executes, as a planted mistake."""
    return mock.patch.object(meaning.NUMPY, name, function)


def given_other(owner: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Replace the argument of a constructor that NumPy executes, as a planted mistake."""
    init = owner.__init__

    def other(self: Any, *args: Any, **named: Any) -> None:
        bound = inspect.signature(init).bind(self, *args, **named)
        bound.apply_defaults()
        change(bound.arguments)
        init(*bound.args, **bound.kwargs)

    return mock.patch.object(owner, "__init__", other)


tiles, split_tiles, iota = meaning.NUMPY.tiles, meaning.NUMPY.split_tiles, meaning.NUMPY.iota
PLANTED = {
    r"ds\(.*stop=": given_other(meaning.Ds, lambda given: given.update(stop=None)),
    "oob_fill": given_other(meaning.BlockSpec, lambda given: given.update(oob_fill="zeros")),
    "TransposeTransform": given_other(meaning.BlockSpec, lambda given: given.update(transforms=())),
    "steps_of": given_other(meaning.Pipeline, lambda given: given.update(steps_of=None)),
    r"Element\(": given_other(meaning.Element, lambda given: given.update(size=given["size"] // 2)),
    r"\.tiles": instead("tiles", lambda *n, **named: list(tiles(*n, **named))[1:]),
    "split_tiles": instead("split_tiles", lambda *n, **named: list(split_tiles(*n, **named))[1:]),
    "iota": instead("iota", lambda shape, axis: iota(shape, 0)),
    "wgmma": instead("wgmma", lambda acc, left, right: acc),
    "combine.*axis": instead("combine", lambda acc, *more, axis=None: acc[:, : acc.shape[1] // 2]),
    "layout_cast": instead("layout_cast", lambda tile, layout: tile[::-1]),
    "load_tile": instead("load_tile", lambda view, layout: np.flip(view.read())),
    "copy_gmem": instead("copy_gmem_to_smem", meaning.nothing),
    "run_scoped": instead("run_scoped", meaning.nothing),
    "program_id": instead("program_id", lambda axis: 0),
    "cumsum": mock.patch.object(np, "cumsum", lambda tile, axis: tile),
    **{
        f"atomic_{name}": instead(f"atomic_{name}", meaning.nothing)
        for name in ("add", "min", "max", "and", "or", "xor")
    },
}


def test_a_mistake_in_any_operation_shows_in_one_of_the_first_kernels_that_have_it() -> None:
    drawn = drawn_kernels()
    tries = dict.fromkeys(PLANTED, math.inf)
    for word, mistake in PLANTED.items():
        for number, case in enumerate((one for one in drawn if re.search(word, one.text)), 1):
            numbers, found = case.given(), True
            right = case.right(numbers)
            with mistake, suppress(ValueError, IndexError, TypeError):
                found = wrong(right, case.right(numbers)) != ""
            if found:
                tries[word] = number
                break
    assert max(tries.values()) <= 12, tries


@pytest.mark.variants(1)
@pytest.mark.parametrize("operation", ["barrier_wait", "barrier_arrive"])
def test_most_synchronizations_left_out_are_found(operation: str) -> None:
    found = []
    for seed, case in enumerate(drawn_kernels()[:250]):
        lines = case.text.splitlines(keepends=True)
        at = [n for n, line in enumerate(lines) if line.lstrip().startswith(f"numpipe.{operation}")]
        if at and len(found) < 10:
            n = at[seed % len(at)]
            lines[n] = lines[n].partition("numpipe")[0] + "pass\n"
            found.append(False)
            try:
                simulated(replace(case, text="".join(lines)), 1)
            except Found:
                found[-1] = True
    assert sum(found) >= 7, found


BROKEN = """import numpy as np
import numpipe
from numpipe import ds


@numpipe.kernel(num_compute_wgs=1)
def kernel(x, y):
    y[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(8, 64)]
"""
CASE = Case(
    BROKEN,
    (
        ("x", "rng.integers(0, 9, (64, 80)).astype(np.float32)"),
        ("y", "np.zeros((64, 64), np.float32)"),
    ),
)


def test_results_that_differ_from_numpys_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated(CASE, 0)
    monkeypatch.setattr(
        Case, "right", lambda self, given: {**given, "y": np.asarray(given["x"])[:, 9:73]}
    )
    with pytest.raises(Found, match="wrong: y: .* elements are wrong, the first at"):
        simulated(CASE, 0)


def test_a_kernel_that_is_refused_and_a_report_of_a_hazard_are_found() -> None:
    with pytest.raises(Found, match="refused: "):
        simulated(replace(CASE, text=BROKEN.replace("64)]", "0)]")), 0)
    both = BROKEN.replace("num_compute_wgs=1", "num_compute_wgs=2")  # store to the same place
    with pytest.raises(Found, match="false alarm: "):
        verified(replace(CASE, text=both, wgs=2), 0)


@pytest.mark.thorough
@pytest.mark.skipif(toolchain() is not None, reason="no compiler")
@pytest.mark.parametrize(
    "plan",
    [
        Plan(delay=1, carry="tile", static=True, chain=2, extent=(2, 1, 1)),
        Plan(
            builder="single",
            slots=3,
            delay=2,
            carry="tile",
            static=True,
            chain=2,
            chained="sites",
            extent=(4, 1, 1),
        ),
    ],
    ids=["links in a loop", "links one after the other"],
)
def test_plain_products_that_ptxas_serializes_are_not_failures(plan: Plan) -> None:
    """Links whose number of steps the compiler knows give C7515, and the products are right."""
    compiled(case_of(plan, plan.grids()[0]), 0)
