"""Parts of tiles on the GPU: what cannot be a number of parts is refused when it is typed."""

from __future__ import annotations

from typing import Any

from . import _numba as nb
from . import splits as source
from ._op import cuda_meaning
from .errors import SpecError


@cuda_meaning(source.check_alone)
def _check_alone(_context: Any, np_: Any) -> Any:
    if np_.unit.clustered:
        raise SpecError(source.no_cluster(np_.unit))
    return nb.types.void(np_), lambda context, builder, sig, args: nb.nothing(context)


@cuda_meaning(source.check_split)
def _check_split(_context: Any, split: Any) -> Any:
    if not isinstance(split, nb.types.Integer):
        raise SpecError(source.no_split(f"a run-time {split}"))
    return nb.types.void(split), lambda context, builder, sig, args: nb.nothing(context)
