"""Automatic barriers: what a warpgroup does to a tile in shared memory that its kernel writes
happens in order.

The warps of a warpgroup do not run in step. Where one stores a part of a tile that another then
loads, or that TMA or wgmma then reads, a barrier must stand between::

    tile[...] = x                 each warp its 16 rows of every 64
        named barrier of the warpgroup
    y = tile.T[...]               rows that other warps have stored

    tile[...] = x
        fence.proxy.async         generic stores become visible to the async proxy
        named barrier of the warpgroup
    numpipe.wgmma(acc, tile, b)   reads what all four warps have stored

Which accesses touch which bytes is known at run time only (`ds` has run-time starts), so the rule
is conservative: a barrier before *every* load from and store to a tile that the kernel may write
(an output's, scratch), and a fence and a barrier before everything asynchronous on one. Input tiles
are never written and get none. The barrier is the warpgroup's own, number 1 + its index: what one
warpgroup does with the stores of another is not ordered by it.

`CompilerParams(unsafe_no_auto_barriers=True)` leaves them out.
"""

from __future__ import annotations

from ...core.machine import current
from ...core.op import op
from .refs import SmemTile


def automatic() -> bool:
    """Return whether the running kernel has these barriers; a machine without a kernel does not."""
    unit = current().unit
    return unit is not None and not unit.params.unsafe_no_auto_barriers


def _barrier() -> None:
    machine = current()
    machine.bar_sync(1 + machine.warpgroup, 128)


@op
def before_access(tile: SmemTile) -> None:
    """Order the warpgroup's own loads from, and stores to, a tile: called before each."""
    if tile.writable and tile.role.computes and automatic():
        _barrier()


@op
def before_async(*tiles: SmemTile) -> None:
    """Order stores to tiles before something asynchronous (wgmma, a TMA copy) reads or writes
    them."""
    if any(tile.writable and tile.role.computes for tile in tiles) and automatic():
        current().fence_proxy_async()
        _barrier()
