"""Two result files compared: what has changed, and only where that can be said.

Rates of two cards of one model differ by a tenth, and ratios within one process hardly do. So files of one card are compared by
rates and ratios, those of two cards of one model by ratios only, and those of different models not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...diagnostics.errors import SpecError
from .interval import Figure
from .report import Result, aligned, title

_MODEL = ("name", "compute_capability", "sms", "l2_bytes", "memory_bytes", "power_limit_watts")


@dataclass(frozen=True)
class Change:
    """How one case, protocol and competitor differs between two files."""

    case: dict[str, Any]
    protocol: str
    name: str
    before: Figure
    """ratio to the reference"""
    after: Figure
    speed: float | None
    """rate after over rate before; None on two cards"""

    @property
    def certain(self) -> bool:
        """Whether the intervals of the ratios do not meet. False where only one process ran."""
        low, high, new_low, new_high = self.before.low, self.before.high, self.after.low, self.after.high
        if low is None or high is None or new_low is None or new_high is None:
            return False
        return new_low > high or new_high < low


def same_model(results: Sequence[tuple[str, Result]]) -> bool:
    """Return whether all files, given with their names, are of one card. Raises SpecError where they are not even of one model."""
    (first, reference), *others = results
    known = reference.machine.get("device", {})
    for name, result in others:
        device = result.machine.get("device", {})
        differing = [f"{key} {known.get(key)!r} and {device.get(key)!r}" for key in _MODEL if device.get(key) != known.get(key)]
        if differing:
            raise SpecError(f"{first} and {name} are of different devices, whose results cannot be compared: "
                            f"{', '.join(differing)}; measure both on one of them")
    cards = {result.machine.get("device", {}).get("uuid") for _, result in results}
    return len(cards) == 1 and None not in cards


def changes(before: Result, after: Result, names: tuple[str, str] = ("the first file", "the second")) -> list[Change]:
    """Return the changes of all rows that both files have, in the first one's order.

    Raises SpecError for files of different devices, of different references, and where no row is in both.
    """
    one_card = same_model(list(zip(names, (before, after), strict=True)))
    known = {row.key: row for row in after.rows}
    common = []
    for old in before.rows:
        new = known.get(old.key)
        if new is None:
            continue
        if new.reference != old.reference:
            raise SpecError(f"{names[0]} compares {old.name} with {old.reference}, {names[1]} with {new.reference}: ratios to "
                            "different references say nothing of each other")
        common.append(Change(old.case, old.protocol, old.name, old.ratio, new.ratio, new.rate / old.rate if one_card else None))
    if not common:
        raise SpecError(f"{names[0]} and {names[1]} have no case, protocol and competitor in common")
    return common


def as_text(rows: Sequence[Change]) -> str:
    """Return changes as aligned text, a line each; * marks ratios whose intervals do not meet."""
    lines = [["case", "protocol", "", "ratio before", "ratio after", "", "speed after / before"]]
    for change in rows:
        speed = "another card" if change.speed is None else f"{change.speed:.3f}"
        lines.append([title(change.case), change.protocol, change.name, str(change.before), str(change.after),
                      "*" * change.certain, speed])
    return aligned(lines)
