"""Covering arrays: few rows in which all pairs of factor values meet, as far as rules between factors allow them to.

A greedy one-row-at-a-time construction (AETG; Cohen, Dalal, Fredman, Patton 1997): a row begins with a pair that no row has yet,
and each further factor takes the value that meets most of the pairs still missing. Everything is deterministic.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Factors = Mapping[str, Sequence[Any]]
Row = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]


@dataclass(frozen=True, eq=False)
class Rule:
    """What rows must fulfil: a predicate of the factors that its parameters name."""

    holds: Callable[..., bool]
    mildest: Mapping[str, Any] = field(default_factory=dict)
    """values that make it hold whenever any do: with them it can be judged before all of its factors have values"""

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.holds).parameters)


Rules = tuple[Rule, ...]


@functools.cache
def about(rules: Rules, name: str) -> Rules:
    """The rules that a factor stands in."""
    return tuple(rule for rule in rules if name in rule.names)


@functools.cache
def joined(rules: Rules, name: str) -> tuple[str, ...]:
    """The factors that rules join to one."""
    return tuple(dict.fromkeys(n for rule in about(rules, name) for n in rule.names if n != name))


def keeps(row: Row, rules: Rules, name: str) -> bool:
    """Whether a row that was given a value of `name` keeps all rules that can be judged by now."""
    for rule in about(rules, name):
        try:
            values = [row[n] if n in row else rule.mildest[n] for n in rule.names]
        except KeyError:
            continue
        if not rule.holds(*values):
            return False
    return True


def leaves_a_value(row: Row, factors: Factors, rules: Rules, name: str) -> bool:
    """Whether all factors that rules join to `name` have a value left that keeps them."""
    return all(any(keeps(row | {n: value}, rules, n) for value in factors[n]) for n in joined(rules, name) if n not in row)


def near_first(names: Sequence[str], start: Sequence[str], rules: Rules) -> list[str]:
    """The names that are not in `start`, first those that rules join to it: contradictions are met early."""
    found = list(start)
    for name in found:  # grows
        found += [n for n in joined(rules, name) if n not in found]
    return [n for n in found if n not in start] + [n for n in names if n not in found]


def completed(row: Row, factors: Factors, rules: Rules, order: Sequence[str],
              best: Callable[[Row, str, Sequence[Any]], Sequence[Any]] = lambda row, name, values: values) -> Row | None:
    """The row with values for the factors in `order`, such that all rules hold; None if there are none (all have been tried)."""
    if not order:
        return row
    name, *rest = order
    for value in best(row, name, factors[name]):
        longer = row | {name: value}
        if keeps(longer, rules, name) and leaves_a_value(longer, factors, rules, name):
            found = completed(longer, factors, rules, rest, best)
            if found is not None:
                return found
    return None


def pairs(row: Row, factors: Factors) -> Iterator[Pair]:
    """The pairs of a row, names in the factors' order."""
    return itertools.combinations([(name, row[name]) for name in factors], 2)


def all_pairs(factors: Factors) -> Iterator[Pair]:
    for first, second in itertools.combinations(factors, 2):
        for x, y in itertools.product(factors[first], factors[second]):
            yield (first, x), (second, y)


def possible(pair: Pair, factors: Factors, rules: Rules) -> bool:
    """Whether any row has this pair."""
    row = dict(pair)
    return (all(keeps(row, rules, name) for name in row)
            and completed(row, factors, rules, near_first(list(factors), list(row), rules)) is not None)


def covering_array(factors: Factors, rules: Rules = (), *, seed: int = 0, tries: int = 3) -> list[Row]:
    """Rows that keep all rules, and have every pair of values that any such row has; other ones for each `seed`."""
    shuffled = random.Random(seed)
    names = list(factors)
    missing = {pair: None for pair in all_pairs(factors)}  # a dict keeps its order

    def best(row: Row, name: str, values: Sequence[Any]) -> Sequence[Any]:
        def gain(value: Any) -> int:
            return sum(((other, row[other]), (name, value)) in missing or ((name, value), (other, row[other])) in missing
                       for other in row)

        mixed = shuffled.sample(list(values), len(values))
        return sorted(mixed, key=gain, reverse=True)

    rows: list[Row] = []
    while missing:
        pair = shuffled.choice(list(missing))
        if not possible(pair, factors, rules):
            del missing[pair]
            continue
        found: list[tuple[int, Row]] = []
        for _ in range(tries):
            others = near_first(shuffled.sample(names, len(names)), [name for name, _ in pair], rules)
            row = completed(dict(pair), factors, rules, others, best)
            assert row is not None
            found.append((sum(p in missing for p in pairs(row, factors)), {name: row[name] for name in names}))
        row = max(found, key=lambda scored: scored[0])[1]
        for p in pairs(row, factors):
            missing.pop(p, None)
        rows.append(row)
    return rows
