"""Arithmetic of 16-bit register tiles: the same result types and bits as NumPy."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import ds, full
from tests.kernels.compilers import compiles

F32, F16, BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
DTYPES = {"float16": F16, "bfloat16": BF16}
ARITHMETIC = (
    "a + b",
    "a - b",
    "a * b",
    "a / b",
    "-a",
    "abs(b)",
    "a * a + b",
    "a ** 3",
    "np.maximum(a, b)",
    "np.minimum(a, b)",
    "2.5 * a - 1",
    "np.where(a < b, a, b * 2.0)",
    "a + row",
    "a * column[:, None]",
    "a - row[None, :]",
    "np.exp(a * 0.125)",
    "np.sqrt(abs(a))",
    "(a + b).max(axis=1)[:, None] + a",
    "a.min(axis=0) - b",
    "full(64, s, a.dtype) * a",
    "np.where(row >= 0.0, row, column[:, None] * 1.0)",
    "a * 1.00048828125091",
)
COMPARISONS = ("a < b", "a <= b", "a > row", "a >= 1.5", "a == column[:, None]", "a != a")


@numpipe.function
def put(out, number, tile):
    """Store a tile as tile `number` of `out`."""
    out[ds(64 * number, 64), ds(0, 64)] = tile


@numpipe.kernel
def halves(x, y, r, out, masks, top, s):
    """Compute `ARITHMETIC` and `COMPARISONS`, stacked vertically."""
    a, b = x[ds(0, 64), ds(0, 64)], y[ds(0, 64), ds(0, 64)]
    row, column = r[0, ds(0, 64)], r[1, ds(0, 64)]
    put(out, 0, a + b)
    put(out, 1, a - b)
    put(out, 2, a * b)
    put(out, 3, a / b)
    put(out, 4, -a)
    put(out, 5, abs(b))
    put(out, 6, a * a + b)
    put(out, 7, a**3)
    put(out, 8, np.maximum(a, b))
    put(out, 9, np.minimum(a, b))
    put(out, 10, 2.5 * a - 1)
    put(out, 11, np.where(a < b, a, b * 2.0))
    put(out, 12, a + row)
    put(out, 13, a * column[:, None])
    put(out, 14, a - row[None, :])
    put(out, 15, np.exp(a * 0.125))
    put(out, 16, np.sqrt(abs(a)))
    put(out, 17, (a + b).max(axis=1)[:, None] + a)
    put(out, 18, a.min(axis=0) - b)
    put(out, 19, full(64, s, a.dtype) * a)
    put(out, 20, np.where(row >= 0.0, row, column[:, None] * 1.0))
    put(out, 21, a * 1.00048828125091)  # which float32 rounds to a tie of float16
    put(masks, 0, (a < b).astype(np.int32))
    put(masks, 1, (a <= b).astype(np.int32))
    put(masks, 2, (a > row).astype(np.int32))
    put(masks, 3, (a >= 1.5).astype(np.int32))
    put(masks, 4, (a == column[:, None]).astype(np.int32))
    put(masks, 5, (a != a).astype(np.int32))
    top[ds(0, 64)] = full(64, np.where(a == a, a, 0.0).max() * 1.0, np.float32)


def arrays_of_halves(name: str) -> dict[str, Any]:
    """Return random bits, including subnormals, infinities and NaN; every second row has ordinary
    values."""
    dtype, rng = DTYPES[name], np.random.default_rng(11)

    def bits(*shape: int) -> np.ndarray:
        found = rng.integers(0, 1 << 16, shape).astype(np.uint16).view(dtype)
        found[..., ::2] = rng.standard_normal(found[..., ::2].shape).astype(dtype)
        return found

    return {
        "x": bits(64, 64),
        "y": bits(64, 64),
        "r": bits(2, 64),
        "out": np.zeros((64 * len(ARITHMETIC), 64), dtype),
        "masks": np.zeros((64 * len(COMPARISONS), 64), np.int32),
        "top": np.zeros(64, F32),
        "s": np.float32(1.7),
    }


def evaluated(text: str, arrays: dict[str, Any]) -> np.ndarray:
    """Return NumPy's value of an expression.

    Python literals are weak, and functions are computed in float32 and rounded.
    """
    dtype = arrays["x"].dtype

    class Wide:
        """NumPy, with functions computed in float32."""

        maximum, minimum, where = np.maximum, np.minimum, staticmethod(np.where)

        @staticmethod
        def exp(x: np.ndarray) -> np.ndarray:
            return np.exp(x.astype(np.float64)).astype(F32).astype(dtype)

        @staticmethod
        def sqrt(x: np.ndarray) -> np.ndarray:
            return np.sqrt(x.astype(F32)).astype(dtype)

    scope = {
        "a": arrays["x"],
        "b": arrays["y"],
        "row": arrays["r"][0],
        "column": arrays["r"][1],
        "np": Wide,
        "s": arrays["s"],
        "full": lambda n, value, dtype: np.full(n, value, dtype),
        "own": dtype.type,
    }
    # ml_dtypes makes float32 of those
    text = re.sub(r"\d+\.\d+", r"own(\g<0>)", text.replace("a ** 3", "a * a * a"))
    with np.errstate(all="ignore"):
        return np.broadcast_to(np.asarray(eval(text, scope)), (64, 64))


def same(wanted: np.ndarray, got: np.ndarray) -> bool:
    """Return whether two arrays hold the same numbers; NaN equals NaN."""
    return np.array_equal(wanted.astype(F32), got.astype(F32), equal_nan=True)


def neighbours(wanted: np.ndarray, got: np.ndarray) -> bool:
    """Return whether two arrays of halves differ in at most one element in fifty, by one ulp.

    Signs must agree, and NaN equals NaN.
    """
    nan = np.isnan(wanted)
    apart = np.abs(wanted.view(np.int16).astype(int) - got.view(np.int16))[~nan]
    return (
        np.array_equal(np.isnan(got), nan)
        and bool((apart <= 1).all())
        and np.count_nonzero(apart) <= 0.02 * wanted.size
    )


def wrong(name: str, target: str) -> list[str]:
    """Return the expressions for which a kernel's bits differ from NumPy's."""
    arrays = arrays_of_halves(name)
    halves(*arrays.values(), target=target)
    found = []
    for number, text in enumerate(ARITHMETIC):
        wanted, got = evaluated(text, arrays), arrays["out"][64 * number : 64 * number + 64]
        assert wanted.dtype == got.dtype, text
        # the GPU's exp is within 2 ulp of float32, so some results round to the other neighbor
        agree = neighbours if text.startswith("np.exp") and target == "gpu" else same
        if not agree(wanted, got):
            found.append(text)
    for number, text in enumerate(COMPARISONS):
        if not (evaluated(text, arrays) == arrays["masks"][64 * number : 64 * number + 64]).all():
            found.append(text)
    x = arrays["x"].astype(F32)
    return found + ["top"] * (not (arrays["top"] == np.where(np.isnan(x), 0, x).max()).all())


@pytest.mark.parametrize("name", DTYPES)
def test_every_operation_gives_numpys_bits(name: str, target: str) -> None:
    assert wrong(name, target) == []


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
def test_a_rounding_to_the_other_neighbour_is_borne_in_a_few_elements(dtype: np.dtype) -> None:
    wanted = np.exp(np.linspace(-8, 8, 100)).astype(dtype)
    wanted[7] = np.nan

    def changed(elements: list[int], by: int) -> np.ndarray:
        got = wanted.copy()
        got.view(np.int16)[elements] += by
        return got

    assert all(
        neighbours(wanted, got)
        for got in (wanted.copy(), changed([3, 50], 1), changed([3, 50], -1))
    )
    assert not any(neighbours(wanted, got) for got in (changed([3], 2), changed([3, 50, 90], 1)))
    for element, value in ((7, 1.0), (3, np.nan)):  # a number for NaN, NaN for a number
        got = wanted.copy()
        got[element] = value
        assert not neighbours(wanted, got)


@pytest.mark.variants(1)
@compiles
@pytest.mark.parametrize(
    "dtype, kind", [(F16, "f16x2"), (BF16, "bf16x2")], ids=["float16", "bfloat16"]
)
def test_two_elements_are_one_instruction_and_nothing_is_widened(
    dtype: np.dtype, kind: str
) -> None:
    @numpipe.kernel
    def computed(x, y):
        a = x[ds(0, 64), ds(0, 64)]
        y[ds(0, 64), ds(0, 64)] = np.maximum(np.where(a == a, a * a - 1.0, 2.0), -abs(a))

    x, y = (np.ones((64, 64), dtype) for _ in "xy")
    ptx = computed.inspect("ptx", x, y)
    # of 32 elements per lane
    assert (
        ptx.count(f"mul.rn.{kind}")
        == ptx.count(f"sub.rn.{kind}")
        == ptx.count(f"max.NaN.{kind}")
        == 16
    )
    assert len(re.findall(rf"cvt\.rn\.{kind}\.f32", ptx)) <= 2  # the constants
    assert not re.search(r"fma\.rn\.b?f16", ptx)
