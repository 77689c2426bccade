"""numpipe.torch.scaled_dot_product_attention in training, on the GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.frameworks.test_torch_attention import (  # noqa: F401
    real,
    test_a_layer_trains,
    test_dropout_follows_the_generator,
    test_masks_match_pytorch,
)
