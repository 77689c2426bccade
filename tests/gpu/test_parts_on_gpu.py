"""Parts and other shapes of register tiles on the hardware."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.part_kernels import TYPES, coalesced_wrong, columns_wrong, halves_wrong, vectors_wrong


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_parts_of_tiles_are_numpys(dtype: np.dtype) -> None:
    assert not columns_wrong(dtype, "gpu")


def test_parts_of_vectors_coalesced_tiles_and_accumulators_are_numpys() -> None:
    assert not vectors_wrong("gpu") and not coalesced_wrong("gpu") and not halves_wrong("gpu")
