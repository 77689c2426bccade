"""Arrays that ops allocate for their results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from numpipe import ops

X = np.random.default_rng(0).standard_normal((1, 2, 64, 64)).astype(np.float16)


@pytest.mark.parametrize(
    ("name", "arrays"), [("matmul", (X, X)), ("attention", (X, X, X)), ("copy", (X,))]
)
def test_an_output_allocated_for_a_repeated_call_is_reused_if_the_call_is_not_repeated(
    name: str, arrays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allocator returns the memory that was freed last.

    If the first call allocated a second array next to it, no repeated call would be found.
    """
    place, op = np.full_like(X, np.nan), getattr(ops, name)
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    wanted = op(*arrays)
    monkeypatch.setattr(op._repeats, "again", lambda *_: (False, place))
    assert op(*arrays) is place
    np.testing.assert_array_equal(place, wanted)
