"""examples/train_transformer.py on the GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.examples.test_example_train_transformer import (  # noqa: F401
    test_losses_of_both_fall_alike,
)
