"""Arithmetic of kernels on a GPU: many generated expressions against an interpreter, and integer
wrap-around.

NUMPIPE_RANDOM_EXPRESSIONS=n tries n kernels of 40 expressions, different ones each time (6 fixed
ones by default).
"""

from __future__ import annotations

import math
import os
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import numpipe
from numpipe import ds
from tests.core.test_arithmetic import CASES, Case
from tests.kernels.expressions import (
    SCALARS,
    WIDTH,
    Uncertain,
    Undefined,
    agrees,
    drawn,
    load,
    result,
    scalars,
    source,
    worth,
)

SOAK = int(os.environ.get("NUMPIPE_RANDOM_EXPRESSIONS", "0"))
KERNELS, EACH, SETS = SOAK or 6, 40, 6
REAL = [False, True] * (EACH // 2)


def many(what: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Return `count` different values that Hypothesis draws."""
    found: list[Any] = []

    @given(value=what)
    @settings(
        max_examples=2 * count,
        derandomize=not SOAK,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def collect(value: Any) -> None:
        if value not in found:
            found.append(value)

    collect()
    assert len(found) >= count // 2
    return found[:count]


@pytest.fixture(scope="module")
def batches() -> list[tuple[list[str], list[dict[str, Any]]]]:
    """Yield the expressions of each kernel, and the scalars for which all of them are defined."""
    sets = many(scalars(), 4 * SETS)
    chooser = random.Random(0)

    def defined(text: str, values: dict[str, Any]) -> bool:
        try:
            worth(text, values)
        except (Undefined, Uncertain):
            return False
        return True

    pools = {is_real: many(drawn(is_real), KERNELS * EACH) for is_real in (False, True)}
    made = []
    for _ in range(KERNELS):
        values = chooser.sample(sets, SETS)
        texts = []
        for is_real in REAL:
            candidates = (chooser.choice(pools[is_real]) for _ in range(1000))
            texts.append(next(text for text in candidates if all(defined(text, v) for v in values)))
        made.append((texts, values))
    return made


@pytest.mark.parametrize("number", range(KERNELS))
def test_expressions_are_worth_what_python_says(number: int, batches: list[Any]) -> None:
    texts, sets = batches[number]
    kernel = load(source(texts, REAL))
    for values in sets:
        c = np.full((64, WIDTH * EACH), np.nan, np.float32)
        kernel(c, -1, *(values[name] for name in SCALARS), target="gpu")
        for i, (text, is_real) in enumerate(zip(texts, REAL, strict=True)):
            found, expected = result(c, i, is_real), worth(text, values)
            assert agrees(found, expected, exactly=False), (text, values, found, expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel.name)
def test_a_kernel_computes(case: Case) -> None:
    c = np.full((64, 64), np.nan, np.float32)
    case.kernel(c, *case.args, target="gpu")
    np.testing.assert_array_equal(c, np.float32(case.expected))


@numpipe.kernel
def wrapped(c, most, least, one):
    """Compute what the simulator rejects: on a GPU, int32 arithmetic wraps modulo 2**32."""
    values = (
        most + one,
        least - one,
        most * most,
        -least,
        abs(least),
        (most + one) // 2,
        3 << 31 * one,
        most**3,
    )
    for i in range(len(values)):
        v = values[i]
        c[ds(0, 64), ds(i * 16, 8)] = numpipe.zeros((64, 8), np.float32) + (v >> 16)
        c[ds(0, 64), ds(i * 16 + 8, 8)] = numpipe.zeros((64, 8), np.float32) + (v & 65535)


def test_int32_wraps() -> None:
    most, least = 2**31 - 1, -(2**31)
    c = np.full((64, 128), np.nan, np.float32)
    wrapped(c, most, least, 1, target="gpu")
    exact = (most + 1, least - 1, most * most, -least, abs(least), least // 2, 3 << 31, most**3)
    assert [result(c, i, False) for i in range(len(exact))] == [
        (v + 2**31) % 2**32 - 2**31 for v in exact
    ]


@numpipe.kernel
def divided(c, a, b, x, y):
    """Compute quotients and remainders by run-time divisors of both signs, and by constants."""
    whole = (a // b, a % b, a // 7, a % 7, a // -7, a % -7, a // 64, a % 64)
    for i in range(len(whole)):
        v = whole[i]
        c[ds(0, 64), ds(i * 16, 8)] = numpipe.zeros((64, 8), np.float32) + (v >> 16)
        c[ds(0, 64), ds(i * 16 + 8, 8)] = numpipe.zeros((64, 8), np.float32) + (v & 65535)
    c[ds(0, 64), ds(128, 8)] = numpipe.zeros((64, 8), np.float32) + x // y
    c[ds(0, 64), ds(144, 8)] = numpipe.zeros((64, 8), np.float32) + x % y


@pytest.mark.parametrize(
    "a, b",
    [
        (7, 2),
        (-7, 2),
        (7, -2),
        (-7, -2),
        (2**31 - 1, 3),
        (-(2**31), 5),
        (-(2**31), 2**31 - 1),
        (0, -9),
        (-1, 64),
    ],
)
def test_integer_division_rounds_down(a: int, b: int) -> None:
    c = np.full((64, 160), np.nan, np.float32)
    divided(c, a, b, 1.0, 1.0, target="gpu")
    assert [result(c, i, False) for i in range(8)] == [
        f(a, d) for d in (b, 7, -7, 64) for f in (int.__floordiv__, int.__mod__)
    ]


@pytest.mark.parametrize("y", [3.0, -3.0, 0.1, -1e-3, 1e30, math.inf, -math.inf, 0.0, math.nan])
@pytest.mark.parametrize("x", [7.5, -7.5, 0.0, 1e-40, 1e30, -1e30, math.inf, 16777216.0])
def test_float_division_rounds_down_as_numpys(x: float, y: float) -> None:
    c = np.full((64, 160), np.nan, np.float32)
    divided(c, 1, 1, x, y, target="gpu")
    with np.errstate(all="ignore"):
        expected = (
            np.floor_divide(np.float32(x), np.float32(y)),
            np.remainder(np.float32(x), np.float32(y)),
        )
    np.testing.assert_array_equal((c[0, 128], c[0, 144]), expected)
