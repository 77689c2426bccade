"""Every op of one GPU in PyTorch and in JAX, on the GPU."""

from __future__ import annotations

import os

# read when JAX is imported: other libraries need memory too
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import pytest

pytest.importorskip("torch")

from tests.frameworks.test_every_op import (  # noqa: F401
    place,
    test_in_jax,
    test_in_pytorch,
)

PROCESSES = 8
