"""Recording of the launches that a function makes, to repeat them on arrays at the same addresses.

A caller that passes the same addresses repeatedly, such as XLA, runs the function once inside
`collecting`, with descriptions of the arrays (`ArrayInfo`). From then on it makes the recorded
launches, without any look-ups. A *dry* run launches nothing. It compiles what the launches need,
and determines how large a workspace they need.

A recorded launch has its own copy of its parameters, including scalars. Its workspace is in memory
lent by the caller, if that suffices. The caller then controls what else uses this memory at the
same time. The contents of lent memory are undefined, so the flags in it are cleared before the
launch.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..arch.dimensions import Dim3, round_up
from ..plan.specs import FLAGS
from . import driver
from .array_info import ArrayInfo, dense_strides

if TYPE_CHECKING:
    from .launcher import Prepared


_FLOAT = np.dtype(np.float32)
_LINE = 128
"""alignment in bytes of arrays that one launch passes to the next"""
_IMAGINED = 1 << 55
"""base address of the arrays of a dry run, which is not an address on any GPU"""


class Collected:
    """The launches of a function.

    launches  functions that repeat its launches, in order
    arrays    their arrays, among them those that the function allocated
    nbytes    bytes of memory that they need: a workspace, which they share because they run one
              after another, and arrays allocated between them"""

    def __init__(self, dry: bool = False, memory: int = 0, nbytes: int = 0) -> None:
        """`memory` is the address of `nbytes` lent bytes for workspaces, aligned to 16 bytes, or 0
        if no memory is lent."""
        self.launches: list[Callable[[], None]] = []
        self._workspace = self._allocated = 0
        self.arrays: list[ArrayInfo] = []
        self._dry, self._memory, self._lent = dry, memory, nbytes

    def take(
        self,
        prepared: Prepared,
        grid: Dim3,
        infos: Sequence[ArrayInfo],
        scalars: Sequence,
        stream: int,
    ) -> None:
        """Make and record a launch; in a dry run, only record its workspace size."""
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
            self.arrays += infos
            self._keep(prepared.alone(grid, infos, scalars, stream, work))

    @property
    def nbytes(self) -> int:
        return self._workspace + self._allocated

    def allocate(self, shape: Sequence[int], dtype: np.dtype, device: int) -> ArrayInfo | None:
        """Return an array at the end of the caller's memory, for data that one launch passes to the
        next, or None if the memory is too small. A dry run only counts the bytes."""
        nbytes = math.prod(shape) * dtype.itemsize
        taken = self._allocated + nbytes + (2 * _LINE - nbytes % _LINE)
        if not self._dry and taken + self._workspace > self._lent:
            return None
        self._allocated = taken
        place = _IMAGINED + taken if self._dry else self._memory + self._lent - taken
        place = round_up(place, _LINE)
        strides = dense_strides(tuple(shape), dtype.itemsize)
        return ArrayInfo("cuda", place, tuple(shape), strides, dtype, device, True, None)

    def _keep(self, launch: Callable[[], None]) -> None:
        launch()
        self.launches.append(launch)


class _Collecting(threading.local):
    now: Collected | None = None
    """what records this thread's launches; None: they are not recorded"""


COLLECTING = _Collecting()


@contextlib.contextmanager
def collecting(collected: Collected) -> Iterator[Collected]:
    """Record the launches on GPU arrays that this thread makes, for kernels that are called with
    descriptions of arrays."""
    before, COLLECTING.now = COLLECTING.now, collected
    try:
        yield collected
    finally:
        COLLECTING.now = before
