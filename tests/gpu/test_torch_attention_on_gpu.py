"""numpipe.torch.scaled_dot_product_attention in training, on the GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.frameworks.test_torch_attention import test_a_layer_trains  # noqa: F401
