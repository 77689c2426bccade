"""Types of sizes, positions and strides in several dimensions."""

from __future__ import annotations

Ints = tuple[int, ...]
"""a shape, strides, coordinates or axes: an int for each dimension"""
Dim3 = tuple[int, int, int]
"""CUDA's dim3: numbers of CTAs, or the index of one, along x, y and z"""
