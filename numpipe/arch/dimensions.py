"""Sizes and names: types for several dimensions, and rounding."""

from __future__ import annotations

Ints = tuple[int, ...]
"""a shape, strides, coordinates or axes: an int for each dimension"""
Dim3 = tuple[int, int, int]
"""CUDA's dim3: numbers of CTAs, or the index of one, along x, y and z"""
Names = tuple[str, ...]
"""names of dimensions, axes, arrays or others"""


def next_power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least `size`, a positive number.

    >>> next_power_of_two(5), next_power_of_two(8)
    (8, 8)
    """
    return 1 << (size - 1).bit_length()


def round_up(size: int, unit: int) -> int:
    """Return the smallest multiple of `unit` that is at least `size`.

    >>> round_up(130, 64)
    192
    """
    return -(-size // unit) * unit
