"""Register tiles of integers on the hardware: NumPy's bits."""

from __future__ import annotations

import itertools

import pytest

from tests.kernels.integer_kernels import (
    NUMBERS,
    SAME_SIZE,
    TYPES,
    bits_wrong,
    conversion_is_numpys,
    extremes_wrong,
    operations_wrong,
    unsigned_wrong,
    wrapping_wrong,
)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_operation_of_integers_is_numpys(dtype: str) -> None:
    assert operations_wrong(dtype, "gpu") == []


@pytest.mark.parametrize(("have", "want"), [pair for pair in itertools.permutations(NUMBERS, 2) if set(pair) & set(TYPES)], ids=str)
def test_conversions_of_integers_are_numpys(have: str, want: str) -> None:
    assert conversion_is_numpys(have, want, "gpu")


@pytest.mark.parametrize(("have", "want"), SAME_SIZE)
def test_a_bitcast_keeps_the_bits(have: str, want: str) -> None:
    assert not bits_wrong(have, want, "gpu")


def test_int32_wraps_where_it_is_computed_in_uint32() -> None:
    assert not wrapping_wrong("gpu")


def test_reductions_and_atomics_of_uint32_are_numpys() -> None:
    assert unsigned_wrong("gpu") == []


def test_extremes_of_negations_are_numpys() -> None:
    """ptxas of CUDA 13.0 drops the sign of an operand of VIMNMX3: 62 was the greatest of numbers from -63 to 0."""
    assert extremes_wrong("gpu") == []
