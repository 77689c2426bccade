"""Covering arrays: few rows in which all pairs of factor values occur, as far as rules between
factors allow them.

The construction is greedy, one row at a time (AETG; Cohen, Dalal, Fredman, Patton 1997): a row
begins with a pair that no row has yet, and each further factor takes the value that completes the
most missing pairs. Everything is deterministic.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings

Factors = Mapping[str, tuple[Any, ...]]
Row = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]


@dataclass(frozen=True, eq=False)
class Rule:
    """A constraint on rows: a predicate of the factors that its parameters name."""

    holds: Callable[..., bool]
    mildest: Mapping[str, Any] = field(default_factory=dict)
    """factor values that satisfy the rule whenever any values do

    For a factor without one, all values are tried before a rule is given up.
    """
    of: tuple[str, ...] = ()
    """the rule's factors, if they are not the parameters of `holds`"""

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        return self.of or tuple(inspect.signature(self.holds).parameters)


Rules = tuple[Rule, ...]
Needs = Mapping[tuple[str, Any], Factors]
"""the values that a factor's value leaves to other factors"""


def leaves(name: str, value: Any, other: str, few: tuple[Any, ...]) -> Rule:
    """Return the rule that a value of one factor allows only some values of another."""
    return Rule(lambda one, another: one != value or another in few, of=(name, other))


def rules_of(needs: Needs) -> Rules:
    """Return the rules of these predicates."""
    return tuple(
        leaves(*key, other, few) for key, left in needs.items() for other, few in left.items()
    )


@functools.cache
def about(rules: Rules, *names: str) -> Rules:
    """Return the rules that mention all of these factors."""
    return tuple(rule for rule in rules if set(names) <= set(rule.names))


@functools.cache
def joined(rules: Rules, name: str) -> tuple[str, ...]:
    """Return the factors that share a rule with a factor."""
    return tuple(dict.fromkeys(n for rule in about(rules, name) for n in rule.names if n != name))


@functools.cache
def may_hold(rule: Rule, *choices: tuple[Any, ...]) -> bool:
    """Return whether a rule holds for any combination of values, given as a tuple for each
    factor."""
    return any(rule.holds(*values) for values in itertools.product(*choices))


def keeps(row: Row, factors: Factors, rules: Rules) -> bool:
    """Return whether all rules can hold in a row, with any values for the factors not yet
    assigned."""
    return all(
        may_hold(
            rule,
            *(
                (row[n],) if n in row else (rule.mildest[n],) if n in rule.mildest else factors[n]
                for n in rule.names
            ),
        )
        for rule in rules
    )


def narrowed(row: Row, left: Factors, factors: Factors, rules: Rules, name: str) -> Factors:
    """Return what is left of `left` once `name` has a value."""
    found = {n: values for n, values in left.items() if n != name}
    for n in joined(rules, name):
        if n in found:
            found[n] = tuple(
                value
                for value in found[n]
                if keeps(row | {n: value}, factors, about(rules, name, n))
            )
    return found


def open_values(row: Row, factors: Factors, rules: Rules) -> Factors:
    """Return the values that unassigned factors can still take."""
    return {
        name: tuple(
            value for value in values if keeps(row | {name: value}, factors, about(rules, name))
        )
        for name, values in factors.items()
        if name not in row
    }


def completed(
    row: Row,
    left: Factors,
    factors: Factors,
    rules: Rules,
    order: Sequence[str],
    best: Callable[[Row, str, Sequence[Any]], Sequence[Any]] = lambda row, name, values: values,
) -> Row | None:
    """Return the row completed with values for the factors in `left` that satisfy all rules, or
    None.

    The search is exhaustive. A factor with at most one value left is assigned first, so that
    contradictions are found early.
    """
    if not left:
        return row
    name = min((n for n in order if n in left), key=lambda n: len(left[n]) > 1)
    for value in best(row, name, left[name]):
        longer = row | {name: value}
        found = completed(
            longer, narrowed(longer, left, factors, rules, name), factors, rules, order, best
        )
        if found is not None:
            return found
    return None


def pairs(row: Row, factors: Factors) -> Iterator[Pair]:
    """Return the pairs of a row, names in the factors' order."""
    return itertools.combinations([(name, row[name]) for name in factors], 2)


def all_pairs(factors: Factors) -> Iterator[Pair]:
    for first, second in itertools.combinations(factors, 2):
        for x, y in itertools.product(factors[first], factors[second]):
            yield (first, x), (second, y)


def possible(pair: Pair, factors: Factors, rules: Rules) -> bool:
    """Return whether any valid row has this pair."""
    row = dict(pair)
    left = open_values(row, factors, rules)
    return (
        keeps(row, factors, rules)
        and completed(row, left, factors, rules, list(factors)) is not None
    )


def covering_array(
    factors: Factors, rules: Rules = (), *, seed: int = 0, tries: int = 3
) -> list[Row]:
    """Return rows that satisfy all rules and contain every pair that any valid row has.

    Each `seed` gives other rows.
    """
    shuffled = random.Random(seed)
    names = list(factors)
    missing = {pair: None for pair in all_pairs(factors)}  # a dict keeps its order

    def best(row: Row, name: str, values: Sequence[Any]) -> Sequence[Any]:
        def gain(value: Any) -> int:
            return sum(
                ((other, row[other]), (name, value)) in missing
                or ((name, value), (other, row[other])) in missing
                for other in row
            )

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
            order = shuffled.sample(names, len(names))
            row = completed(
                dict(pair), open_values(dict(pair), factors, rules), factors, rules, order, best
            )
            assert row is not None
            found.append(
                (
                    sum(p in missing for p in pairs(row, factors)),
                    {name: row[name] for name in names},
                )
            )
        row = max(found, key=lambda scored: scored[0])[1]
        for p in pairs(row, factors):
            missing.pop(p, None)
        rows.append(row)
    return rows


def pairwise(*rules: Rule, **factors: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test over its arguments so that any two values of different arguments meet in a
    test.

    Pairs that the rules exclude are left out. Values need not be hashable.
    """
    positions = {name: tuple(range(len(values))) for name, values in factors.items()}
    about_positions = tuple(_of_positions(rule, factors) for rule in rules)
    rows = covering_array(positions, about_positions)
    return pytest.mark.parametrize(
        tuple(factors), [tuple(factors[name][row[name]] for name in factors) for row in rows]
    )


def _of_positions(rule: Rule, factors: Mapping[str, Sequence[Any]]) -> Rule:
    def holds(*positions: int) -> bool:
        return rule.holds(
            *(factors[name][position] for name, position in zip(rule.names, positions, strict=True))
        )

    return Rule(holds, of=rule.names)


def examples(number: int) -> int:
    """Return how many examples a test draws.

    All with ``--hypothesis-profile all``, half with ``thorough`` as in .ci/run, else 20 %.
    """
    return settings.default.max_examples * number // 100
