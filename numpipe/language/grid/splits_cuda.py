"""Where a CTA is among all, on the GPU."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.op import cuda_meaning
from . import splits as source

I32 = nb.types.int32


@cuda_meaning(source.own_index)
def _own_index(_context: Any) -> Any:
    _, builder, _ = yield I32()
    return nb.block_number(builder)


@cuda_meaning(source.cta_count)
def cta_count(_context: Any) -> Any:
    _, builder, _ = yield I32()
    x, y, z = nb.grid_size(builder)
    return builder.mul(x, builder.mul(y, z))
