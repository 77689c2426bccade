"""The ``variants`` mark (tests/kernels/variants.py): which cases of a test run each time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.kernels.variants import left, spread


@pytest.mark.parametrize(
    ("cases", "n", "kept"), [(10, 3, {0, 3, 6}), (5, 1, {0}), (4, 4, {0, 1, 2, 3}), (2, 5, {0, 1})]
)
def test_the_cases_that_run_each_time_are_spread_evenly(cases: int, n: int, kept: set[int]) -> None:
    assert spread(cases, n) == kept


def test_each_test_keeps_its_number_of_cases_that_are_not_soak() -> None:
    def item(nodeid: str, **marks: Any) -> Any:
        return SimpleNamespace(nodeid=nodeid, get_closest_marker=marks.get)

    two, soak = pytest.mark.variants(2).mark, pytest.mark.soak.mark
    items = [
        *(item(f"x.py::test_a[{k}]", variants=two) for k in range(4)),
        item("x.py::test_a[soak]", variants=two, soak=soak),
        *(item(f"y.py::test_a[{k}]", variants=two) for k in range(2)),
        item("y.py::test_b[0]"),
    ]
    assert [(item.nodeid, mark) for item, mark in left(items)] == [
        ("x.py::test_a[1]", "thorough"),
        ("x.py::test_a[3]", "soak"),
    ]


def test_each_test_marks_its_number_of_further_cases_thorough() -> None:
    some = SimpleNamespace(args=(1,), kwargs={"thorough": 2})
    items = [
        SimpleNamespace(nodeid=f"x.py::test_a[{k}]", get_closest_marker={"variants": some}.get)
        for k in range(5)
    ]
    assert [(item.nodeid[-2], mark) for item, mark in left(items)] == [
        ("1", "thorough"),
        ("2", "soak"),
        ("3", "thorough"),
        ("4", "soak"),
    ]
