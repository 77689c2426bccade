"""Arithmetic of 16-bit register tiles on the GPU: the same bits as NumPy."""

from __future__ import annotations

from tests.language.tiles.test_half_tiles import (  # noqa: F401
    test_every_operation_gives_numpys_bits,
)
