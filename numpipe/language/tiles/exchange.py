"""Exchanges between the warps of a warpgroup through shared memory: partial results of reductions,
or elements of layout casts.

::

    barrier of the warpgroup     the previous exchange has been read
    each warp stores its part
    barrier of the warpgroup     all parts have been stored
    each warp loads what it needs

On the GPU the bytes are exchanged in the `_cuda` siblings of `reduce` and `conversions`. The
simulated SM takes NumPy's result, and records the bytes that each warp stores and loads, which the
barriers must order. Where a tile goes through shared memory (`rows`), each warp loads its own rows
only, and there is one barrier.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...arch.dimensions import round_up
from ...core.machine import Machine, current
from ...plan.budget import Region
from ...plan.context import Context, own_part
from ...plan.unit import Unit
from .fence_order import meet
from .layouts import BLOCK

ROOM = 16384
"""Bytes of shared memory that the simulated SM reserves for the exchanges of a warpgroup, after the
staging memory."""
CHUNK = 16
_Chunks = npt.NDArray[np.int64]


def each_to_all(nbytes: int) -> tuple[_Chunks, _Chunks]:
    """Return (what each warp stores, what it loads) for equal parts of `nbytes`: addresses of
    16-byte chunks, one row per warp.

    >>> each_to_all(32)[0].tolist()
    [[0, 16], [32, 48], [64, 80], [96, 112]]
    """
    own = _spread(round_up(nbytes, CHUNK))  # here 4 bytes of a number have their own chunk
    return own, np.tile(own.reshape(-1), (4, 1))


def _spread(nbytes: int) -> _Chunks:
    """Return four consecutive parts of `nbytes`."""
    return np.arange(0, 4 * nbytes, CHUNK).reshape(4, -1)


def rows(width: int) -> _Chunks:
    """Return a panel of 64 rows of `width` bytes: each warp has 16 rows."""
    return _spread(BLOCK // 4 * width)


def room(unit: Unit) -> int:
    """Return the address of the shared memory that the warps of this simulated warpgroup use for
    exchanges."""
    return own_part(unit, Region(2 * unit.target.smem_bytes, ROOM, unit.compute_wgs))


def exchange(
    np_: Context | Machine, stored: _Chunks, loaded: _Chunks, what: str, *, apart: bool = False
) -> None:
    """Simulate an exchange between warps: barriers, writes to `stored`, reads of `loaded`.

    np_    whose `unit` is the kernel's
    what   its name in reports
    apart  each warp loads only what it has stored itself, so there is no barrier in between
    """
    machine = current()
    base = room(np_.unit)
    meet()
    machine.smem_write(base + stored, np.zeros((*stored.shape, CHUNK), np.uint8), what)
    if not apart:
        meet()
    machine.smem_read(base + loaded, what)
