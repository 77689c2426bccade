"""Calls on host arrays: copies to the GPU, the kernel, and copies back.

Such a call returns when its results are on the host. The copies, the kernel and the freeing of GPU
memory are queued on the call's stream, so no buffer is reused before the kernel that reads it has
finished.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import driver, streams
from .array_info import ArrayInfo
from .attributes import Grid
from .buffers import DeviceBuffer
from .debug_reports import WATCH
from .driver_errors import naming
from .overlapping_outputs import check_overlap
from .profiles import PROFILES
from .transfers import Transfers

if TYPE_CHECKING:
    from .launcher import Prepared


class Staging:
    """GPU memory for the host arrays of one call, for upload, launch and download; the memory is
    freed at the end of the with block.

    An array that is passed twice (as input and output of an in-place kernel) has only one buffer.
    """

    def __init__(self, stream: int, device: int) -> None:
        self.stream, self.device = stream, device
        self._buffers: dict[tuple, DeviceBuffer] = {}
        self._transfers = Transfers(stream, device)

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *exc: Any) -> None:
        try:
            self._transfers.__exit__(*exc)
        finally:
            for buffer in self._buffers.values():
                # after a failed kernel freeing fails too; the kernel's error is the one to report
                with contextlib.suppress(driver.DriverError):
                    buffer.free()

    def upload(self, infos: Sequence[ArrayInfo], fresh: int = 0) -> list[DeviceBuffer]:
        """Return buffers with copies of arrays, except that the last `fresh` are not
        initialized."""
        buffers: list[DeviceBuffer] = []
        jobs = []
        for info in infos:
            key = _key(info)
            if key not in self._buffers:
                self._buffers[key] = DeviceBuffer.like(info, self.stream, self.device)
                if len(buffers) < len(infos) - fresh:
                    jobs.append((info, self._buffers[key]))
            buffers.append(self._buffers[key])
        self._transfers.upload(jobs)
        return buffers

    def download(self, infos: Sequence[ArrayInfo]) -> None:
        """Copy arrays back to the host. Returns after the copies have finished."""
        jobs = {_key(info): (info, self._buffers[_key(info)]) for info in infos}
        self._transfers.download(list(jobs.values()))


def _key(info: ArrayInfo) -> tuple:
    assert info.array is not None, "a host array"
    return info.array.ctypes.data, info.shape, info.strides, info.dtype


def run(
    prepared: Prepared,
    grid: Grid,
    infos: Sequence[ArrayInfo],
    scalars: Sequence = (),
    stream: int = 0,
    *,
    outputs: int,
    fresh: int = 0,
    device: int = 0,
) -> None:
    """Copy host arrays to the GPU, launch, and copy the last `outputs` arrays back. Returns after
    the copies have finished.

    The last `fresh` outputs were allocated for this call, so their contents are not copied to the
    GPU. Raises LaunchError if the kernel fails.
    """
    name = prepared.name
    with naming(name):
        streams.check_host_call(stream, device, name)
    # excludes the workspace at the end
    inputs, arguments = len(infos) - outputs, prepared.compiled.arrays[: len(infos)]
    check_overlap(infos, arguments, outputs, name)
    with naming(name), Staging(stream, device) as staging:
        buffers = staging.upload(infos, fresh)
        prepared(grid, [buffer.info() for buffer in buffers], scalars, stream)
        if prepared.compiled.debug:
            WATCH.await_end(prepared.compiled, device)
        staging.download(infos[inputs:])
        if WATCH.kernels:
            WATCH.check()
        if PROFILES.kernels:
            PROFILES.fetch()
