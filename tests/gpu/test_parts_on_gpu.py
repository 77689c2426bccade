"""Slices and reshapes of register tiles on the GPU."""

from __future__ import annotations

from tests.kernels.part_kernels import coalesced_wrong, halves_wrong, vectors_wrong
from tests.language.tiles.test_parts import (  # noqa: F401
    test_parts_of_tiles_are_numpys,
)


def test_parts_of_vectors_coalesced_tiles_and_accumulators_are_numpys() -> None:
    assert not vectors_wrong("gpu") and not coalesced_wrong("gpu") and not halves_wrong("gpu")
