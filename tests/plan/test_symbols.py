"""Symbolic sizes of a framework that traces a call: an ArrayType may have them, and out_type
computes with them."""

from __future__ import annotations

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, SpecError
from numpipe.plan import specs


class Symbol:
    """A size of a traced call."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __mul__(self, by: int) -> Symbol:
        return Symbol(f"{by} {self.text}")


def test_a_size_is_a_number_or_a_symbol_of_a_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="ArrayType: shape must be a tuple of non-negative ints"):
        ArrayType((Symbol("rows"), 64), np.float32)
    monkeypatch.setattr(specs, "SYMBOLIC", [Symbol])
    assert ArrayType((Symbol("rows"), 64), np.float32).shape[0].text == "rows"


def test_out_type_computes_with_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    @numpipe.kernel(out_type=lambda x: ArrayType((x.shape[0] * 2, x.shape[1]), x.dtype))
    def doubled(x, y):
        y[...] = x[...]

    monkeypatch.setattr(specs, "SYMBOLIC", [Symbol])
    definition = doubled.definition
    known = {"x": ArrayType((Symbol("rows"), 64), np.float32)}
    (made,) = definition.results.types(["y"], known)
    assert made.shape[0].text == "2 rows" and made.shape[1] == 64
