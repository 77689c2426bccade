"""The launches that a function makes, kept to be made again on arrays at the same addresses.

A caller that passes the same addresses again and again, as XLA does, runs the function once, inside
of `collecting`, with descriptions of the arrays (`ArrayInfo`). From then on it makes the launches
of the list, and nothing is looked up. A *dry* run launches nothing: it compiles what the launches
need, and tells how large a workspace they want.

A launch that is collected has its parameters for itself, its scalars among them. Its workspace is
taken from the memory that the caller lends, where that suffices: then it belongs to the caller, who
knows what else runs at the same time. Lent memory holds anything, so the flags in it are cleared in
front of the launch.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..plan.specs import FLAGS
from . import driver
from .array_info import ArrayInfo, dense_strides

if TYPE_CHECKING:
    from .launcher import Prepared

__all__ = ["COLLECTING", "Collected", "collecting"]

_FLOAT = np.dtype(np.float32)
_LINE = 128
"""bytes: arrays between launches begin at a multiple"""
_IMAGINED = 1 << 55
"""where arrays of a dry run lie: at no address of a GPU"""


class Collected:
    """What a function launched.

    launches  functions that make its launches again, in order
    nbytes    the bytes of memory that they want: a workspace, which they share because they run one
              after the other, and what was allocated between them
    """

    def __init__(self, dry: bool = False, memory: int = 0, nbytes: int = 0) -> None:
        """`memory` is the address of `nbytes` lent bytes for workspaces, at a multiple of 16; 0:
        there are none."""
        self.launches: list[Callable[[], None]] = []
        self._workspace = self._allocated = 0
        self._held: list[Any] = []
        self._dry, self._memory, self._lent = dry, memory, nbytes

    def take(
        self,
        prepared: Prepared,
        grid: tuple[int, int, int],
        infos: Sequence[ArrayInfo],
        scalars: Sequence[Any],
        stream: int,
    ) -> None:
        """Make and keep a launch; a dry run only notes its workspace."""
        work, shape = None, prepared.workspace_shape(grid, infos)
        if shape is not None:
            slots, words = shape
            nbytes = slots * words * _FLOAT.itemsize
            self._workspace = max(self._workspace, nbytes)
            if self._memory and nbytes + self._allocated <= self._lent and not self._dry:
                device = infos[0].device
                strides = words * _FLOAT.itemsize, _FLOAT.itemsize
                work = ArrayInfo("cuda", self._memory, shape, strides, _FLOAT, device, True, None)
                flags = self._memory + strides[0] - FLAGS * _FLOAT.itemsize
                self._keep(
                    functools.partial(
                        driver.get().clear, flags, strides[0], FLAGS, slots, stream, device
                    )
                )
        if not self._dry:
            self._held += [info.owner for info in infos]  # the function may have allocated some
            self._keep(prepared.alone(grid, infos, scalars, stream, work))

    @property
    def nbytes(self) -> int:
        return self._workspace + self._allocated

    def allocate(self, shape: Sequence[int], dtype: np.dtype[Any], device: int) -> ArrayInfo | None:
        """Return an array at the end of the lent memory, for data that one launch passes to the
        next; None if the memory is too small. A dry run only counts the bytes."""
        nbytes = math.prod(shape) * dtype.itemsize
        taken = self._allocated + nbytes + (2 * _LINE - nbytes % _LINE)
        if not self._dry and taken + self._workspace > self._lent:
            return None
        self._allocated = taken
        place = _IMAGINED + taken if self._dry else self._memory + self._lent - taken
        place = -(-place // _LINE) * _LINE
        strides = dense_strides(tuple(shape), dtype.itemsize)
        return ArrayInfo("cuda", place, tuple(shape), strides, dtype, device, True, None)

    def _keep(self, launch: Callable[[], None]) -> None:
        launch()
        self.launches.append(launch)


class _Collecting(threading.local):
    now: Collected | None = None
    """what this thread's launches go into"""


COLLECTING = _Collecting()


@contextlib.contextmanager
def collecting(collected: Collected) -> Iterator[Collected]:
    """Collect the launches on arrays of a GPU that this thread makes, of kernels that are called
    with descriptions of arrays."""
    before, COLLECTING.now = COLLECTING.now, collected
    try:
        yield collected
    finally:
        COLLECTING.now = before
