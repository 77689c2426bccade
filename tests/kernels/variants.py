"""The ``variants`` mark: which cases of a test always run, and which only with ``pytest -m
thorough``.

Compiling takes most of the time of a run, and many tests compile one kernel for each of their
parameters. Such a test is marked ``@pytest.mark.variants(n)``: n of its cases, spread evenly, run
each time. Of the others, half are marked ``thorough``, for the second stage of .ci/run, and half
``soak``. With ``variants(n, thorough=m)``, m of them are ``thorough``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest


def spread(cases: int, n: int) -> frozenset[int]:
    """Return the positions of n evenly spread cases, including the first."""
    n = min(cases, n)
    return frozenset(k * cases // n for k in range(n))


def left(items: Iterable[pytest.Item]) -> Iterator[tuple[pytest.Item, str]]:
    """Yield the cases beyond a test's ``variants``, each with its mark: "thorough" or "soak"."""
    cases: dict[tuple[str, int, int | None], list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("variants")
        if mark is not None and item.get_closest_marker("soak") is None:
            key = item.nodeid.partition("[")[0], mark.args[0], mark.kwargs.get("thorough")
            cases.setdefault(key, []).append(item)
    for (_, n, m), of_one in cases.items():
        kept = spread(len(of_one), n)
        others = [item for position, item in enumerate(of_one) if position not in kept]
        later = spread(len(others), -(-len(others) // 2) if m is None else m)
        yield from (
            (item, "thorough" if position in later else "soak")
            for position, item in enumerate(others)
        )
