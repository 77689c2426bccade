"""What newcomers could write by detours only, in its plain form on the hardware, several times
each."""

from __future__ import annotations

import pytest

from tests.kernels.wish_kernels import CASES, wrong


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_numpy_makes(name: str) -> None:
    assert [found for seed in range(5) for found in wrong(name, "gpu", seed)] == []
