"""numpipe.ops.attention_varlen and its gradients on the GPU."""

from __future__ import annotations

import pytest

from tests.ops.test_attention_varlen import CASES, check, check_bits, check_gradients


@pytest.mark.parametrize("name", CASES)
def test_every_sequence_matches_float64(name: str) -> None:
    check(name, "gpu")


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_every_sequence_match_float64(name: str) -> None:
    check_gradients(name, "gpu")


def test_bits_of_a_row_do_not_depend_on_other_rows() -> None:
    check_bits("gpu")
