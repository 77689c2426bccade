"""Tile orders on the GPU: kernels visit tiles in the order of the host's tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.order_kernels import ORDERS, expected, numbers, on_host, one_plane, output
from tests.language.grid.test_orders import (  # noqa: F401
    test_a_group_may_be_a_value_of_run_time,
    test_a_kernel_walks_an_order_as_the_host_does,
    test_the_table_of_an_order_is_walked_as_the_order,
)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_one_plane_is_walked_as_no_plane(order: Any) -> None:
    c = output(23, 9)
    one_plane(c, np.int32(23), np.int32(9), order=order, target="gpu")
    np.testing.assert_array_equal(numbers(c), expected(on_host(order), (23, 9)))
