"""Automatic barriers on the GPU: symbols that each kernel's entry module defines, because a kernel
may omit the barriers."""

from __future__ import annotations

import functools
from typing import Any

from ...core import numba as nb
from ...core.op import cuda_meaning
from ...plan.unit import Unit
from . import fence_order as source

ACCESS, ASYNC = "np_before_access", "np_before_async"


def _barrier(symbol: str, *tiles: Any) -> Any:
    builder, _ = yield
    if any(tile.writable and tile.role.computes for tile in tiles):
        builder.external(symbol, nb.void)


cuda_meaning(source.before_access)(functools.partial(_barrier, ACCESS))
cuda_meaning(source.before_async)(functools.partial(_barrier, ASYNC))


def own_barrier(builder: Any) -> Any:
    """Return the number of the warpgroup's own named barrier."""
    return builder.add(builder.lshr(builder.thread_index(), 7), 1)


def define_order(outer: Any, unit: Unit) -> None:
    """Define the symbols for this kernel, in its entry module."""
    for name, text in (
        (ACCESS, "bar.sync $0, 128;"),
        (ASYNC, "fence.proxy.async.shared::cta; bar.sync $0, 128;"),
    ):
        with outer.define(name, nb.void) as (builder, _):
            if not unit.params.unsafe_no_auto_barriers:
                builder.execute([own_barrier(builder)], text)
            builder.ret_void()
