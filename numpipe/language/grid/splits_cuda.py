"""Parts of tiles on the GPU: what cannot be a number of parts is refused when it is typed."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.op import cuda_meaning
from ...diagnostics.errors import SpecError
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


@cuda_meaning(source.check_split)
def _check_split(_context: Any, split: Any) -> Any:
    if not isinstance(split, nb.types.Integer):
        raise SpecError(source.no_split(f"a run-time {split}"))
    return nb.types.void(split), lambda context, builder, sig, args: nb.nothing(context)
