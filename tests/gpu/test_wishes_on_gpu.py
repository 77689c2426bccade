"""Ten kernels that needed workarounds in earlier versions, in their plain form on the GPU, several
times each."""

from __future__ import annotations

import pytest

from tests.kernels.wish_kernels import CASES, wrong


@pytest.mark.parametrize("name", CASES)
def test_it_agrees_with_numpy(name: str) -> None:
    assert [found for seed in range(5) for found in wrong(name, "gpu", seed)] == []
