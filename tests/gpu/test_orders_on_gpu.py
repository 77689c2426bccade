"""Orders of tiles on the GPU: the numbers that kernels write are those of the host's tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from numpipe.orders import Hilbert, Order, Snake, named
from tests.kernels.order_kernels import (
    ORDERS,
    by_table,
    expected,
    grouped_at_run_time,
    numbered,
    numbers,
    on_host,
    one_plane,
    output,
    some_rows,
)

SHAPES = ((1, 5, 3), (2, 3, 4), (1, 1, 1), (1, 64, 33), (3, 17, 19), (1, 1, 50), (1, 50, 1))


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_kernel_walks_an_order_as_the_host_does(order: Any) -> None:
    for shape in SHAPES:
        c = output(shape[0] * shape[1], shape[2])
        numbered(c, *map(np.int32, shape), order=order, target="gpu")
        np.testing.assert_array_equal(numbers(c), expected(on_host(order), shape))


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_one_plane_is_walked_as_no_plane(order: Any) -> None:
    c = output(23, 9)
    one_plane(c, np.int32(23), np.int32(9), order=order, target="gpu")
    np.testing.assert_array_equal(numbers(c), expected(on_host(order), (23, 9)))


@pytest.mark.parametrize("order", ["grouped", "snake"])
def test_a_group_may_be_a_value_of_run_time(order: str) -> None:
    for group in (1, 2, 7, 16, 100):
        c = output(23, 9)
        grouped_at_run_time(c, np.int32(23), np.int32(9), np.int32(group), order=order, target="gpu")
        np.testing.assert_array_equal(numbers(c), expected(named(order, group), (23, 9)))


@pytest.mark.parametrize("order", [Hilbert(), Snake(2)], ids=str)
def test_the_table_of_an_order_is_walked_as_the_order(order: Order) -> None:
    for shape in ((5, 3), (1, 1), (40, 31)):
        c = output(*shape)
        by_table(order.table(shape), c, *map(np.int32, shape), target="gpu")
        np.testing.assert_array_equal(numbers(c), expected(order, shape))
    c = output(5, 3)
    some_rows(order.table((5, 3)), c, np.int32(4), target="gpu")
    walked = expected(order, (5, 3))
    np.testing.assert_array_equal(numbers(c), np.where(walked < 4, walked, -1))
