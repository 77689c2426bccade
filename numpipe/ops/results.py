"""Arrays that an op allocates: of the library and on the device of its first operand, and complete when the caller gets them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import launch
from ..launch.info import ArrayInfo


def allocated(op: str, like: ArrayInfo, shape: Sequence[int], stream: Any) -> ArrayInfo:
    """Return a new array of this shape and of the type of `like`, which its library allocates in the order of `stream`."""
    handle = None if stream is None else launch.as_stream(stream)
    return launch.describe_fresh(launch.empty_like_kind(like, shape, like.dtype, handle), "out", op)


def delivered(like: ArrayInfo, result: ArrayInfo, stream: Any) -> Any:
    """Return an array that was `allocated` and written, as the library of `like` has it."""
    if launch.foreign([result]):
        launch.settle([result], launch.current_stream([result]) if stream is None else launch.as_stream(stream), 1)
    return launch.deliver(like, [result.owner])[0]
