"""Checks of results that are PyTorch tensors."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpipe import bench

from .scripts import compare_options


def relative_error(found: Any, exact: Any) -> float:
    """Return ``|found - exact| / |exact|`` in the Frobenius norm; `exact` must be float64."""
    import torch

    return float(torch.linalg.norm(found.double() - exact) / torch.linalg.norm(exact))


def check_written(outputs: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    """Raise AssertionError unless at least one output was written, and all that were are as
    expected.

    An output that was not written is None, or filled with NaN.
    """
    import torch

    written = [
        (found, right)
        for found, right in zip(outputs, expected, strict=True)
        if found is not None and not bool(torch.isnan(found).all())
    ]
    if not written or not all(torch.equal(found, right) for found, right in written):
        raise AssertionError(f"another result, or none, {what}")


class InPlace:
    """A competitor that stores to the output of each set of buffers: ``function(i, outs[i])``."""

    def __init__(self, outs: list[Any], function: Callable[[int, Any], object]) -> None:
        self.outs, self.function = outs, function

    def __call__(self, i: int) -> object:
        i %= len(self.outs)
        return self.function(i, self.outs[i])

    def poison(self) -> None:
        for out in self.outs:
            out.fill_(math.nan)


def run_all(competitors: Mapping[str, Any], sets: int) -> None:
    """Run competitors, which have `outs` and `poison`, once on each set of buffers."""
    for each in competitors.values():
        each.poison()
        for i in range(sets):
            each(i)


def compare_checked(
    competitors: Mapping[str, Any], reference: str, options: argparse.Namespace, what: str
) -> list[bench.Sample]:
    """Measure competitors whose first results, on all sets, have been verified.

    Before each protocol every output is poisoned; afterwards it must be untouched or bit-identical
    to the first result. Raises AssertionError otherwise.
    """
    expected = {name: [out.clone() for out in each.outs] for name, each in competitors.items()}

    def poison() -> None:
        for each in competitors.values():
            each.poison()

    def check(protocol: str) -> None:
        for name, each in competitors.items():
            check_written(each.outs, expected[name], f"by {name} under {protocol}, {what}")

    how = compare_options(options)
    return bench.compare(competitors, reference=reference, poison=poison, check=check, **how)


def check_repeats(competitor: Any, repeats: int, what: str) -> None:
    """Raise AssertionError unless repeats on the first set are bit-identical."""
    import torch

    first = None
    for _ in range(repeats):
        competitor.poison()
        competitor(0)
        found = competitor.outs[0]
        if first is not None and not torch.equal(found, first):
            raise AssertionError(f"{what}: {repeats} repeats are not bit-identical")
        first = found.clone()
