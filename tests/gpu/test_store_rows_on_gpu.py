"""Stores to arrays whose rows TMA cannot write, on the GPU: all alignments of base and pitch,
inside larger arrays of NaN."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from numpipe import launch
from numpipe.ops import matmul
from tests.kernels import turn_kernels
from tests.kernels.kernels_for_tests import Config, gemm, operands, product
from tests.kernels.odd_outputs import (
    BF16,
    F16,
    F32,
    behind_a_reduction,
    copied,
    expected,
    in_batches,
    values,
)

PROCESSES = 4
on_gpu = launch.DeviceArray.from_host
PLACES = ((0, 1), (1, 0), (1, 1), (2, 2), (2, 0), (4, 4), (8, 8))
"""elements by which the array's start and a row's end are past a multiple of 16"""


class Framed:
    """An array on the GPU inside a larger one of NaN; with `order` "F" both are transposed."""

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, base: int, rest: int, order: str = "C"
    ) -> None:
        self.order, outer = order, shape
        shape = shape if order == "C" else shape[::-1]
        self.shape, self.dtype, self.base = shape, np.dtype(dtype), base + 32
        self.pitch = (shape[-1] // 16 + 3) * 16 + rest
        rows = int(np.prod(shape[:-1]))
        self.whole = launch.DeviceArray.from_host(np.full(rows * self.pitch + 128, np.nan, dtype))
        interface = self.whole.__cuda_array_interface__
        strides = (
            np.array([*np.cumprod((self.pitch, *shape[:0:-1][1:]))[::-1], 1]) * self.dtype.itemsize
        )
        self.__cuda_array_interface__ = interface | {
            "shape": outer,
            "strides": tuple(strides.tolist()[:: 1 if order == "C" else -1]),
            "data": (interface["data"][0] + self.base * self.dtype.itemsize, False),
        }

    def values(self) -> np.ndarray:
        """Return the array on the host; asserts that nothing was written around it."""
        whole = self.whole.copy_to_host()
        end = self.base + int(np.prod(self.shape[:-1])) * self.pitch
        inside = whole[self.base : end].reshape(*self.shape[:-1], self.pitch)[..., : self.shape[-1]]
        found = inside.copy()
        inside[...] = np.nan
        assert np.isnan(whole.astype(np.float32)).all(), "something was written outside the output"
        return found if self.order == "C" else found.T


def poisoned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.full(shape, np.nan, dtype)


@pytest.mark.parametrize(
    ("dtype", "order"),
    [(F16, "C"), (BF16, "C"), (F32, "C"), (F16, "F"), (BF16, "F"), (F32, "F")],
    ids=str,
)
@pytest.mark.parametrize("shape", [(64, 8), (64, 64), (128, 72), (64, 120), (64, 256)], ids=str)
def test_a_tile_equals_its_part_of_the_array(
    shape: tuple[int, int], dtype: np.dtype, order: str
) -> None:
    a = values(*shape, dtype=dtype)
    for size, at in (
        ((202, 302), (3, 7)),
        ((202, 302), (4, 6)),
        ((130, 67), (64, 0)),
        ((90, 70), (62, 62)),
        ((64, 1), (0, 0)),
        ((1, 64), (0, 0)),
    ):
        for place in PLACES:
            c = Framed(size, dtype, *place, order)
            copied(*shape)(on_gpu(a), c, *at, 0, 0)
            wanted = expected(a, poisoned(size, dtype), *at)
            # NaN equals NaN
            np.testing.assert_array_equal(c.values().astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("dtype", [F16, F32], ids=str)
@pytest.mark.parametrize("steps", [(1, 2), (2, 2), (3, 5)], ids=str)
def test_elements_that_are_not_contiguous(steps: tuple[int, int], dtype: np.dtype) -> None:
    a, whole = values(64, 72, dtype=dtype), poisoned((202, 302), dtype)
    card = on_gpu(whole)
    cut, interface = whole[:: steps[0], :: steps[1]], card.__cuda_array_interface__
    c = Framed(cut.shape, dtype, 0, 0)
    strides = tuple(step * stride for step, stride in zip(steps, interface["strides"], strict=True))
    c.__cuda_array_interface__ = interface | {"shape": cut.shape, "strides": strides}
    copied(64, 72)(on_gpu(a), c, 3, 6, 0, 0)
    cut[...] = expected(a, cut, 3, 6)
    np.testing.assert_array_equal(card.copy_to_host(), whole)


@pytest.mark.parametrize(
    "ends", [(70, 69), (70, 68), (3, 500), (500, 9), (40, 40), (0, 70), (-5, 70)], ids=str
)
def test_elements_at_or_after_the_stop_are_not_stored(ends: tuple[int, int]) -> None:
    a = values(64, 72, dtype=F16)
    for at, place, order in itertools.product(((5, 3), (6, 4)), ((1, 1), (2, 2), (0, 0)), "CF"):
        c = Framed((90, 74), F16, *place, order)
        copied(64, 72, True)(on_gpu(a), c, *at, *ends)
        wanted = poisoned((90, 74), F16)
        np.testing.assert_array_equal(
            c.values(), expected(a, wanted, *at, ends) if min(ends) > 0 else wanted
        )


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_batches_and_indices_out_of_bounds(place: tuple[int, int]) -> None:
    a = values(64, 64)
    for i in (0, 2, 3, -1):
        c, wanted = Framed((3, 63, 62), F32, *place), poisoned((3, 63, 62), F32)
        if 0 <= i < 3:
            wanted[i] = a[:63, :62]
        in_batches(on_gpu(a), c, i)
        np.testing.assert_array_equal(c.values(), wanted)


def test_sums_that_warps_exchange_before_and_behind() -> None:
    x, wide = values(128, 72), values(128, 72).reshape(2, 64, 72)
    wanted = np.concatenate(
        [wide - wide.sum(1, keepdims=True), wide - wide.max(1, keepdims=True)], axis=2
    ).reshape(128, 144)
    for (dtype, order), _ in itertools.product(((F32, "C"), (F16, "C"), (F16, "F")), range(20)):
        c = Framed((128, 143), dtype, 1, 1, order)
        behind_a_reduction(on_gpu(x), c)
        np.testing.assert_array_equal(c.values(), wanted[:, :143].astype(dtype))


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("warpgroups", [1, 2, 3])
def test_products_of_several_warpgroups(warpgroups: int, place: tuple[int, int]) -> None:
    a, b = operands(300, 522, 136)
    for order in "CF":
        c = Framed((300, 522), F16, *place, order)
        gemm(warpgroups)(on_gpu(a), on_gpu(b), c, cfg=Config(64 * warpgroups, 136, 64, 3))
        np.testing.assert_array_equal(c.values(), product(a, b, F16))


@pytest.mark.parametrize("name", ["gemm", "skips"])
def test_warpgroups_that_take_turns(name: str) -> None:
    case = turn_kernels.cases()[name]
    for place in ((1, 1), (2, 2)):
        c = Framed(case.expected.shape, case.expected.dtype, *place)
        case.kernel(*map(on_gpu, case.inputs), c, cfg=case.cfg)
        found = c.values()
        np.testing.assert_array_equal(
            np.where(np.isnan(found), 0, found).astype(np.float64), case.expected.astype(np.float64)
        )


@pytest.mark.parametrize(
    "sizes", [(1055, 1582, 66), (803, 961, 98), (4097, 333, 640), (130, 2050, 4096)], ids=str
)
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_products_whose_rows_begin_anywhere(sizes: tuple[int, int, int], dtype: np.dtype) -> None:
    m, n, k = sizes
    a, b = operands(m, n, -(-k // 8) * 8, dtype)
    for place, order in itertools.product(((1, 1), (2, 2)), "CF"):
        c = Framed((m, n), dtype, *place, order)
        matmul(on_gpu(a), on_gpu(b).T, out=c)
        np.testing.assert_array_equal(
            c.values().astype(np.float32), product(a, b, dtype).astype(np.float32)
        )
