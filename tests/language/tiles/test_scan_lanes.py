"""The code that lanes run in a scan and for the largest elements of a row: its generators, run by
NumPy on 128 lanes at once.

A builder whose values are arrays of 128 elements replaces LLVM's; shuffles and exchanges do what
PTX specifies.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from numpipe.compile.build import toolchain

if toolchain() is not None:
    pytest.skip("no compiler", allow_module_level=True)

from numpipe.core import numba as nb
from numpipe.language.tiles import scan_cuda, top_k_cuda
from numpipe.language.tiles.layouts import Form
from numpipe.language.tiles.scan import Lines, _along_columns, _along_rows, lines_of
from tests.kernels.tile_function_kernels import drawn

THREADS = np.arange(128)
COMPARE = {"==": operator.eq, "<": operator.lt, ">": operator.gt, ">=": operator.ge}


@dataclass
class Lanes:
    """A value per lane."""

    value: np.ndarray
    type: Any = None


def number(value: Any) -> Any:
    return getattr(value, "value", value)


class Builder:
    """The builder methods that the generators use."""

    @staticmethod
    def thread_index() -> Lanes:
        return Lanes(THREADS)

    @staticmethod
    def emit_asm(_type: Any, values: list[Lanes], text: str, memory: bool) -> Lanes:
        assert text.startswith("shfl.sync.bfly.b32 ") and not memory
        return Lanes(values[0].value[THREADS ^ int(text.split(",")[2])], values[0].type)

    @staticmethod
    def icmp_signed(symbol: str, a: Any, b: Any) -> Lanes:
        return Lanes(COMPARE[symbol](number(a), number(b)))

    icmp_unsigned = icmp_signed  # for non-negative values

    @staticmethod
    def select(test: Lanes, a: Lanes, b: Lanes) -> Lanes:
        return Lanes(np.where(test.value, number(a), number(b)), getattr(a, "type", None))

    @staticmethod
    def bitcast(value: Lanes, to: Any) -> Lanes:
        return Lanes(value.value, to)

    def __getattr__(self, name: str) -> Any:
        function = {
            "and_": np.bitwise_and,
            "or_": np.bitwise_or,
            "lshr": np.right_shift,
            "add": np.add,
            "sub": np.subtract,
        }[name]
        return lambda a, b: Lanes(function(number(a), number(b)), a.type)


def before(_builder: Any, value: Lanes, distance: int, among: int) -> Lanes:
    own = THREADS % among
    return Lanes(
        np.where(own >= distance, value.value[THREADS - np.minimum(distance, own)], 777), value.type
    )


def last(_builder: Any, value: Lanes, lines: Lines) -> Lanes:
    return Lanes(
        value.value[THREADS | lines.among - (lines.lanes if lines.step else 1)], value.type
    )


def of_warps(_builder: Any, values: list[Lanes], lanes: int) -> Iterator[list[Lanes]]:
    for each in values:
        # all lanes that share a column have the same
        shared = each.value.reshape(4, -1, lanes)
        assert (shared == shared[:, :1]).all()
        yield [Lanes(each.value.reshape(4, 32)[warp][THREADS % lanes]) for warp in range(4)]


@pytest.fixture(autouse=True)
def _lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nb, "const", lambda value, *_: Lanes(np.full(128, value)))
    for name, function in (("of_before", before), ("of_last", last), ("of_warps", of_warps)):
        monkeypatch.setattr(scan_cuda, name, function)


def held(x: np.ndarray, layout: str = "accumulator") -> dict[Any, Lanes]:
    """Return a tile's elements as the lanes hold them, by places; 555 for those outside it."""
    form = Form(x.shape, np.dtype(np.float32), layout)
    row, column = form.record.own(THREADS)
    every = np.full(np.add(form.covered, 1), 555, x.dtype)
    every[: x.shape[0], : x.shape[1]] = x
    return {(r, c): Lanes(every[row + r, column + c], nb.f32) for r, c in form.places}


def whole(elements: dict[Any, Lanes], form: Form) -> np.ndarray:
    x = np.zeros(form.covered, next(iter(elements.values())).value.dtype)
    row, column = form.record.own(THREADS)
    for (r, c), lanes in elements.items():
        x[row + r, column + c] = lanes.value
    return x[: form.shape[0], : form.shape[1]]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    "shape, layout",
    [
        ((64, 8), "accumulator"),
        ((192, 24), "accumulator"),
        ((8, 96), "rows 32"),
        ((8, 16), "rows 4"),
        ((32, 64), "rows 16"),
        ((5, 21), "rows 8"),
        ((5, 512), "rows 32 8"),
    ],
)
def test_a_scan_matches_the_simulators_to_the_last_bit(
    shape: tuple[int, int], layout: str, axis: int
) -> None:
    """For a function that neither commutes nor rounds the same in another order."""
    form = Form(shape, np.dtype(np.float32), layout)
    x = (10.0 ** np.random.default_rng(6).uniform(-1, 1, shape)).astype(np.float32)

    def function(a: Any, b: Any) -> Any:
        return a * np.float32(0.875) + b

    def combine(one: list[Lanes], other: list[Lanes]) -> list[Lanes]:
        return [Lanes(function(a.value, b.value), a.type) for a, b in zip(one, other, strict=True)]

    elements = held(x, layout)
    lines: dict[Any, dict[Any, list[Lanes]]] = {}
    for place, lanes in elements.items():
        lines.setdefault(place[1 - axis], {})[place[axis]] = [lanes]
    along, beside = lines_of(form, axis), list(lines)
    scan = scan_cuda._Scan(Builder(), along, combine)
    each = list(lines.values())
    found = list(map(scan.along_rows, each)) if axis else scan.along_columns(each, True)
    y = whole(
        {
            (other, at) if axis else (at, other): line[0]
            for other, of in zip(beside, found, strict=True)
            for at, line in of.items()
        },
        form,
    )
    outside = [None] * (form.covered[axis] - shape[axis])
    simulated = (_along_rows if axis else _along_columns)(
        along,
        lambda a, b: a and b and [function(a[0], b[0])],
        [[line] for line in (x.T if axis else x)] + outside,
    )
    wanted = np.stack([line[0] for line in simulated[: shape[axis]]], axis=axis)
    assert (y == wanted).all()
    assert not (y == np.flip(wanted, axis)).all()


def test_each_round_finds_the_next_of_a_row() -> None:
    x = drawn((64, 24), "int32")
    x[3], x[4, ::2], x[5, 1:] = top_k_cuda.LEAST, top_k_cuda.LAST, top_k_cuda.LEAST
    builder, elements = Builder(), held(x).items()
    own = Lanes(THREADS % 4 * 2)
    order = np.argsort(-x.astype(np.int64), axis=1, kind="stable")
    for row in (0, 8):
        rank, column = Lanes(np.full(128, top_k_cuda.LAST)), Lanes(np.full(128, -1))
        for number in range(24):
            rank, column = top_k_cuda._next(
                builder,
                [(c, lanes) for (r, c), lanes in elements if r == row],
                own,
                rank,
                column,
                (1, 2),
            )
            mine = THREADS // 32 * 16 + THREADS % 32 // 4 + row
            assert (column.value == order[mine, number]).all()
            assert (rank.value == x[mine, column.value]).all()
