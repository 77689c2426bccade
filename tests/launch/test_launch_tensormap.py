"""Arguments of cuTensorMapEncodeTiled."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from numpipe import launch
from tests.kernels.launch_fakes import FakeDriver

F16 = np.dtype(np.float16)


def test_the_driver_gets_the_innermost_dimension_first(fake: FakeDriver) -> None:
    encoded = launch.encode(4096, F16, (3, 5, 64), (1280, 256, 2), (1, 4, 32), 64)
    assert fake.maps == [("FLOAT16", 4096, [64, 5, 3], (256, 1280), (32, 4, 1), 64, False)]
    assert len(encoded) == 128


@pytest.mark.parametrize(
    "dtype, name",
    [
        (ml_dtypes.bfloat16, "BFLOAT16"),
        (np.float32, "FLOAT32"),
        (np.int8, "UINT8"),
        (ml_dtypes.float8_e4m3fn, "UINT8"),
        (np.bool_, "UINT8"),
        (np.int16, "UINT16"),
        (np.int32, "INT32"),
        (np.uint64, "UINT64"),
    ],
)
def test_types_by_the_drivers_name(fake: FakeDriver, dtype: Any, name: str) -> None:
    dtype = np.dtype(dtype)
    launch.encode(4096, dtype, (64,), (dtype.itemsize,), (16,), 0)
    assert fake.maps[0][0] == name


def test_a_map_is_encoded_once_for_the_same_arguments(fake: FakeDriver) -> None:
    first = launch.encode(4096, F16, (8, 64), (128, 2), (8, 64), 128)
    assert launch.encode(4096, F16, (8, 64), (128, 2), (8, 64), 128) is first
    assert len(fake.maps) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"ptr": 8192},
        {"dtype": np.dtype(np.int16)},
        {"shape": (9, 64)},
        {"strides": (256, 2)},
        {"box": (4, 64)},
        {"swizzle": 0},
        {"fill": "nan"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_argument_makes_another_map(fake: FakeDriver, change: dict[str, Any]) -> None:
    usual: dict[str, Any] = {
        "ptr": 4096,
        "dtype": F16,
        "shape": (8, 64),
        "strides": (128, 2),
        "box": (8, 64),
        "swizzle": 128,
        "fill": "zeros",
    }
    launch.encode(**usual)
    launch.encode(**usual | change)
    assert len(set(fake.maps_as_text())) == 2


def test_an_array_without_elements_is_one_element(fake: FakeDriver) -> None:
    launch.encode(4096, F16, (0, 3), (6, 2), (8, 64), 128)
    _, address, dims, strides, *_ = fake.maps[0]
    assert dims == [1, 1] and strides == (16,) and address == 4096
    launch.encode(4096, F16, (2, 0, 300), (6, 2, 2), (1, 8, 64), 128)
    assert fake.maps[1][2:4] == ([1, 1, 1], (16, 16))


def test_a_single_row_may_have_any_stride(fake: FakeDriver) -> None:
    launch.encode(4096, F16, (1, 3), (6, 2), (1, 64), 128)
    assert fake.maps[0][3] == (16,)


def test_a_box_wider_than_a_swizzle_is_fine_without_one(fake: FakeDriver) -> None:
    launch.encode(4096, F16, (8, 512), (1024, 2), (8, 256), 0)
    assert fake.maps[0][5] == 0
