"""Which cases of a test run each time, and which in the second stage of .ci/run: ``pytest -m thorough``.

Compiling is what a run spends its minutes on, and many tests compile one kernel for each of their parameters. Such a test says
``@pytest.mark.variants(n)``: n of its cases, spread evenly, run each time. The others are marked ``thorough``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest


def spread(cases: int, n: int) -> frozenset[int]:
    """The positions of n cases, the first among them."""
    n = min(cases, n)
    return frozenset(k * cases // n for k in range(n))


def left_to_thorough(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """The cases beyond the number that their test says, of those that it does not leave to soak."""
    cases: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("variants")
        if mark is not None and item.get_closest_marker("soak") is None:
            cases.setdefault((item.nodeid.partition("[")[0], mark.args[0]), []).append(item)
    for (_, n), of_one in cases.items():
        kept = spread(len(of_one), n)
        yield from (item for position, item in enumerate(of_one) if position not in kept)
