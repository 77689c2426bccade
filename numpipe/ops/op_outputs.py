"""Allocate the output arrays of an op, in the library and on the device of its first operand, and
return them to the caller in that library's form.

Nothing is allocated while an op's calls are only recorded (`kernels.noted_calls`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import launch
from ..arch.dimensions import Ints
from ..diagnostics import log
from ..kernels.noted_calls import imagined, taken
from ..launch.array_info import ArrayInfo
from ..launch.collected_launches import COLLECTING
from ..plan.specs import ArrayType

Place = dict[str, Any]
"""the arguments ``target`` and ``stream`` of a call, which its kernels get too"""
Arrays = Mapping[str, ArrayInfo]
"""arrays by name"""


def same(x: Any, present: bool = True) -> ArrayType | None:
    """Return the shape and type of a result that has those of x; None unless both are present."""
    return ArrayType(x.shape, x.dtype) if present and x is not None else None


def allocated(like: ArrayInfo, shape: Ints, place: Place, dtype: Any = None) -> ArrayInfo:
    """Return a new array of this shape and of `like`'s library, allocated in the order of the
    stream. Its type is `dtype`, or `like`'s."""
    dtype = np.dtype(like.dtype if dtype is None else dtype)
    if taken() is not None:
        return imagined(shape, dtype)
    collected = COLLECTING.now
    if collected is not None and (made := collected.allocate(shape, dtype, like.device)):
        return made
    stream = place["stream"]
    handle = None if stream is None else launch.as_stream(stream)
    return launch.describe_fresh(launch.empty_like_kind(like, shape, dtype, handle), "out", "")


def delivered(like: ArrayInfo, result: ArrayInfo, stream: Any) -> Any:
    """Return an array from `allocated`, after it was written, as an array of `like`'s library."""
    if taken() is not None:
        return None
    if launch.foreign([result]):
        launch.settle(
            [result],
            launch.current_stream([result]) if stream is None else launch.as_stream(stream),
            1,
        )
    return launch.deliver(like, [result.owner])[0]


def tell_copied(op: str, name: str, info: ArrayInfo, reason: str) -> None:
    """Report that an operand is copied before the kernel runs, and why: in the recorded notes, or
    with NUMPIPE_LOG=launch in the log."""
    notes = taken()
    if notes is None and not log.on("launch"):
        return
    message = (
        f"'{name}', {info.dtype.name} {info.shape}, strides {info.strides} bytes, is copied: "
        f"{reason}"
    )
    if notes is not None:
        notes.copied.append(message)
    else:
        log.say("launch", f"{op}: {message}")
