"""Automatic barriers, which order a warpgroup's operations on a tile in shared memory that its
kernel writes.

The warps of a warpgroup do not run in lockstep. If one warp stores a part of a tile that another
warp, TMA or wgmma then reads, there must be a barrier in between::

    tile[...] = x                 each warp its 16 rows of every 64
        named barrier of the warpgroup
    y = tile.T[...]               rows that other warps have stored

    tile[...] = x
        fence.proxy.async         generic stores become visible to the async proxy
        named barrier of the warpgroup
    numpipe.wgmma(acc, tile, b)   reads what all four warps have stored

Which accesses overlap is known only at run time (`ds` has run-time starts), so the rule is
conservative: there is a barrier before *every* load from and store to a tile that the kernel may
write (an output's tile, or scratch), and a fence and a barrier before every asynchronous operation
on one. Input tiles are never written and need none. The barrier is the warpgroup's own, number 1 +
its index, so it does not order accesses of different warpgroups.

`CompilerParams(unsafe_no_auto_barriers=True)` omits them.
"""

from __future__ import annotations

from ...core.machine import current
from ...core.op import helper, op
from ...intrinsics import barrier, special
from .refs import SmemTile


def automatic() -> bool:
    """Return whether the running kernel has automatic barriers; a machine without a kernel has
    none."""
    unit = current().unit
    return unit is not None and not unit.params.unsafe_no_auto_barriers


@helper
def meet():  # type: ignore[no-untyped-def]
    """Wait for the other warps of the warpgroup, at its named barrier."""
    barrier.sync(1 + special.warpgroup_index(), 128)


@op
def before_access(tile: SmemTile) -> None:
    """Order the warpgroup's own loads and stores of a tile; called before each."""
    if tile.writable and tile.role.computes and automatic():
        meet()


@op
def before_async(*tiles: SmemTile) -> None:
    """Order stores to tiles before an asynchronous operation (wgmma, a TMA copy) reads or writes
    them."""
    if any(tile.writable and tile.role.computes for tile in tiles) and automatic():
        current().fence_proxy_async()
        meet()
