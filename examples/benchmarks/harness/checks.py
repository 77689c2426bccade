"""Checks of results that are tensors of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def relative_error(found: Any, exact: Any) -> float:
    """Return ``|found - exact| / |exact|`` in the Frobenius norm; `exact` is of float64."""
    import torch

    return float(torch.linalg.norm(found.double() - exact) / torch.linalg.norm(exact))


def check_written(outputs: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    """Raise AssertionError unless an output was written, and all that were are as expected.

    One that was not written is None, or NaN throughout.
    """
    import torch

    written = [
        (found, right)
        for found, right in zip(outputs, expected, strict=True)
        if found is not None and not bool(torch.isnan(found).all())
    ]
    if not written or not all(torch.equal(found, right) for found, right in written):
        raise AssertionError(f"another result, or none, {what}")
