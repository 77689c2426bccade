"""Rules between the factors of a plan, judged while only some of them have values."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Factors = Mapping[str, tuple[Any, ...]]
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Rule:
    """What rows must fulfil: a predicate of the factors that its parameters name."""

    holds: Callable[..., bool]
    mildest: Mapping[str, Any] = field(default_factory=dict)
    """values that make it hold whenever any do; of factors without one all values are tried before a rule is given up"""

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.holds).parameters)


Rules = tuple[Rule, ...]


@functools.cache
def about(rules: Rules, *names: str) -> Rules:
    """The rules that all of these factors stand in."""
    return tuple(rule for rule in rules if set(names) <= set(rule.names))


@functools.cache
def joined(rules: Rules, name: str) -> tuple[str, ...]:
    """The factors that rules join to one."""
    return tuple(dict.fromkeys(n for rule in about(rules, name) for n in rule.names if n != name))


@functools.cache
def may_hold(rule: Rule, *choices: tuple[Any, ...]) -> bool:
    """Whether a rule holds for any of these values, a tuple of them for each of its factors."""
    return any(rule.holds(*values) for values in itertools.product(*choices))


def keeps(row: Row, factors: Factors, rules: Rules) -> bool:
    """Whether all rules may hold in a row, each with any values for the factors that have none yet."""
    return all(may_hold(rule, *((row[n],) if n in row else (rule.mildest[n],) if n in rule.mildest else factors[n]
                                for n in rule.names)) for rule in rules)


def narrowed(row: Row, left: Factors, factors: Factors, rules: Rules, name: str) -> Factors:
    """What is `left` when `name` has got a value."""
    found = {n: values for n, values in left.items() if n != name}
    for n in joined(rules, name):
        if n in found:
            found[n] = tuple(value for value in found[n] if keeps(row | {n: value}, factors, about(rules, name, n)))
    return found
