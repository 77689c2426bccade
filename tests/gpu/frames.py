"""GPU arrays inside a larger allocation, so that writes outside of the array are detected."""

from __future__ import annotations

from typing import Any

import numpy as np

from numpipe import launch


class Framed:
    """An array on the GPU inside a larger one of NaN, with strides that are not dense.

    TMA can address it unless `odd` is true: then its rows are not at multiples of 16 bytes. With
    `order` "F", or values whose rows are not contiguous, the order of memory is reversed.
    """

    def __init__(self, values: Any, odd: bool = False, order: str = "C") -> None:
        self.shape, self.dtype = values.shape, values.dtype
        self.reverse = order == "F" or not values.flags.c_contiguous
        inner = values.T if self.reverse else values
        left = 1 if odd else 16
        pitch = left + inner.shape[-1] + 9
        pitch += 1 - pitch % 2 if odd else -pitch % 16
        self.frame = np.full((*(side + 2 for side in inner.shape[:-1]), pitch), np.nan, self.dtype)
        self.inside = (
            *(slice(1, 1 + side) for side in inner.shape[:-1]),
            slice(left, left + inner.shape[-1]),
        )
        self.frame[self.inside] = inner
        self.whole = launch.DeviceArray.from_host(self.frame.reshape(-1))
        interface = self.whole.__cuda_array_interface__
        view = self.frame[self.inside].T if self.reverse else self.frame[self.inside]
        offset = view.ctypes.data - self.frame.ctypes.data
        self.__cuda_array_interface__ = interface | {
            "shape": self.shape,
            "strides": view.strides,
            "data": (interface["data"][0] + offset, False),
        }

    @classmethod
    def poisoned(
        cls, shape: tuple[int, ...], dtype: Any, odd: bool = False, order: str = "C"
    ) -> Framed:
        values: Any = np.full(shape, np.nan, dtype, order=order)  # type: ignore[call-overload]
        return cls(values, odd)

    def values(self) -> Any:
        """Return the array on the host; asserts that nothing was written around it."""
        frame = self.whole.copy_to_host().reshape(self.frame.shape)
        values = frame[self.inside].copy()
        frame[self.inside] = np.nan
        assert np.isnan(frame.astype(np.float32)).all(), "something was written outside the output"
        return values.T if self.reverse else values
