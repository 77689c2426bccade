"""Running operations in fewer lanes than a warpgroup: `one_lane` once, `each_warp` once per
warp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .machine import current
from .op import op


@op
def one_lane(function: Callable, *args: Any) -> None:
    """Call ``function(*args)`` in one elected lane of the warpgroup's first warp (elect.sync; PTX
    ISA, "elect.sync").

    It is always the same lane. Bulk groups depend on this, because they belong to the lane that
    committed them."""
    current().scoped("one", function, args)


@op
def each_warp(function: Callable, *args: Any) -> None:
    """Call ``function(*args)`` in lane 0 of each of the warpgroup's four warps."""
    current().scoped("warps", function, args)
