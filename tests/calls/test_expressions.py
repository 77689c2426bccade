"""Functions of shapes recorded as expressions: what they give, what a file may hold, and what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from numpipe import ArrayType, SpecError, cdiv
from numpipe.errors import ImageError
from numpipe.kernels.expressions import Expression
from numpipe.kernels.recording import record

HALF = np.dtype(np.float16)


def recorded(function: Any) -> Expression:
    expression = record(function, "grid", "k", {"a": (HALF, 2), "b": (HALF, 2)}, {}, {})
    assert Expression.from_json(json.loads(json.dumps(expression.to_json()))) == expression
    return expression


@pytest.mark.parametrize("function", [
    lambda a, b: ArrayType((a.shape[0], max(b.shape[0], 8)), a.dtype), lambda a, b: cdiv(a.shape[0], 128) * cdiv(b.shape[0], 64),
    lambda a, b: (min(a.shape), math.prod(b.shape), sum(a.shape), math.ceil(a.shape[0] / 3)),
    lambda a, b: a.shape[0] // b.shape[0], lambda a, b: divmod(a.shape[0], b.shape[1] + 1)])
def test_an_expression_gives_what_the_function_gives(function: Any) -> None:
    expression = recorded(function)
    for shape in ((0, 1), (3, 5), (64, 4096)):
        a, b = np.empty(shape, HALF), np.empty(shape[::-1], HALF)
        try:
            expected = function(a, b)
        except ZeroDivisionError:
            with pytest.raises(ZeroDivisionError):
                expression(a=a, b=b)
        else:
            assert expression(a=a, b=b) == expected


@pytest.mark.parametrize("function, message", [
    (lambda a: int(a.shape[0]), "leave int"), (lambda a: math.sqrt(a.shape[0]), "operators"),
    (lambda a: len(range(a.shape[0])), "Statics"), (lambda a: {1: 2}[a.shape[0]], "key of a dict"),
    (lambda a: type(a.shape[0]) is int, "isinstance"), (lambda a: len(str(a.shape[0])), "cannot be kept")])
def test_what_no_expression_can_say_is_refused(function: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        recorded(function)


def test_a_damaged_expression_is_refused() -> None:
    good = recorded(lambda a: (a.shape[0],)).to_json()
    for code in ([], [["axis", [], "a", 2]], [["return", [0]]], [["exec", [], "x"]], [[[[[[]]]]]]):
        with pytest.raises(ImageError):
            Expression.from_json({**good, "code": code})
