"""A Triton kernel of three tensors, in a file of its own: Triton reads a kernel's source, and
numpipe needs no Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(x, y, z, BLOCK: tl.constexpr):
    """z = x + y, of the first BLOCK elements."""
    i = tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + i) + tl.load(y + i))
