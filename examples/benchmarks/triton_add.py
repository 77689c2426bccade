"""A Triton kernel of three tensors, in its own file because Triton reads a kernel's source, and
numpipe does not need Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(x, y, z, BLOCK: tl.constexpr):
    """Compute z = x + y for the first BLOCK elements."""
    i = tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + i) + tl.load(y + i))
