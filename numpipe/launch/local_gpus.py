"""The GPUs of `numpipe.Mesh.local`: a single process has all of them, and each can access the
memory of the others.

All GPUs and the host share one address space, so an array has the same address on every GPU. Only
access must be enabled: between primary contexts for memory of cuMemAlloc, which PyTorch, CuPy and
Numba use, and separately for each memory pool. CUDA driver API, "Peer Context Memory Access",
cuMemPoolSetAccess.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arch.dimensions import Ints
from ..diagnostics.argument_checks import element_type
from ..diagnostics.errors import LaunchError, SpecError, TargetError
from . import driver
from .array_info import ArrayInfo, argument, dense_strides
from .current_gpu import gpu_state
from .device_array import DeviceArray

_OWN_STREAM = 0


class LocalGpus:
    """GPUs that can access each other's memory; rank r has the CUDA ordinal ``devices[r]``."""

    meets = False
    """whether `control` waits for other processes"""

    def __init__(self, devices: Sequence[int] | None) -> None:
        """Raises TargetError if there is no such GPU, and LaunchError if two of them cannot access
        each other's memory."""
        state = gpu_state()
        if state.status != "ok":
            raise TargetError(
                f"Mesh.local: the GPUs cannot be used: {state.reason}; use "
                "numpipe.Mesh.simulated(2), which needs no GPU"
            )
        able = [device.ordinal for device in state.gpus if device.cc == state.device.cc]  # type: ignore[union-attr]
        self.devices = tuple(able if devices is None else map(int, devices))
        """CUDA ordinals by rank"""
        if unknown := [device for device in self.devices if device not in able]:
            raise TargetError(
                f"Mesh.local: GPU {unknown[0]} cannot run kernels; fix: choose from "
                f"{', '.join(map(str, able))}"
            )
        self.size, self.ranks = len(self.devices), tuple(range(len(self.devices)))
        cuda = driver.get()
        for device, peer in itertools.permutations(self.devices, 2):
            try:
                cuda.enable_peer(device, peer)
            except driver.DriverError as error:
                raise LaunchError(
                    f"Mesh.local: no peer access between GPU {device} and GPU {peer}: NVLink or "
                    "PCIe peer-to-peer is missing or off (nvidia-smi topo -p2p r shows it); "
                    f"choose other GPUs, Mesh.local(devices=(…)); {error}"
                ) from error
        try:
            for device in self.devices:
                cuda.share_pool(device, self.devices)
        except driver.DriverError as error:
            raise LaunchError(f"Mesh.local{self.devices}: {error}") from error

    def empty(self, shape: Ints, dtype: Any, zeros: bool) -> list:
        """Return an array on each GPU: PyTorch tensors if the dtype is PyTorch's, otherwise
        numpipe's own arrays."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(dtype, torch.dtype):
            make = torch.zeros if zeros else torch.empty
            return [
                make(shape, dtype=dtype, device=torch.device("cuda", device))
                for device in self.devices
            ]
        kind, arrays = element_type("Mesh.empty", dtype), []
        for device in self.devices:
            array = DeviceArray(shape, kind, _OWN_STREAM, device)
            driver.get().synchronize(_OWN_STREAM, device)
            if zeros and array.nbytes:
                driver.get().poke(array.ptr, bytes(array.nbytes), device)
            arrays.append(array)
        return arrays

    def to_device(self, arrays: Sequence) -> list[DeviceArray]:
        """Copy host arrays, one to each GPU."""
        return [
            DeviceArray.from_host(np.ascontiguousarray(array), _OWN_STREAM, device)
            for array, device in zip(arrays, self.devices, strict=True)
        ]

    def room(self, nbytes: int) -> list[int]:
        """Return the addresses of new memory on each GPU, which is never freed."""
        return [driver.get().kept(bytes(nbytes), device) for device in self.devices]

    def control(self, words: int) -> list[int]:
        """Return the addresses of new zero-filled memory, by rank."""
        return self.room(4 * words)

    def window(self, room: list[int], shape: Ints, dtype: Any) -> list[ArrayInfo]:
        """Return arrays in memory allocated by `room`."""
        kind = element_type("Mesh.workspace", dtype)
        strides = dense_strides(shape, kind.itemsize)
        return [
            ArrayInfo("cuda", address, shape, strides, kind, device, True, None)
            for address, device in zip(room, self.devices, strict=True)
        ]

    @staticmethod
    def nbytes(shape: Ints, dtype: Any) -> int:
        """Return the size of an array in bytes."""
        return math.prod(shape) * element_type("Mesh.workspace", dtype).itemsize

    def addresses(self, infos: Sequence[ArrayInfo], name: str, kernel: str) -> list[int]:
        """Return the address of an array on each GPU, by rank, for kernels that access it on other
        GPUs."""
        for info in infos if infos[0].ptr else ():
            driver.get().share_memory(info.ptr, info.device, self.devices)
        return [info.ptr for info in infos]

    def check_place(self, own: int, info: ArrayInfo, name: str, kernel: str) -> None:
        """Raise SpecError for an array that is not on its GPU."""
        if info.kind == "host" or info.device != self.devices[own]:
            where = (
                "on the host" if info.kind == "host" else f"on GPU {info.device} of this process"
            )
            raise SpecError(
                f"{argument(name, kernel)} of rank {own} is {where}, but rank {own} of this mesh "
                f"is GPU {self.devices[own]}: pass a list with one array on each GPU, in the "
                "mesh's order, as made by Mesh.empty"
            )

    def agree(self, facts: dict[str, str], kernel: str, moment: str) -> None:
        """Do nothing, because one process makes all launches of a call."""

    def alive(self, infos: Sequence[ArrayInfo]) -> Sequence:
        """Return the objects that must exist for launches on these arrays to be repeated."""
        return ()

    def silent(self) -> list[int]:
        """Return no ranks, because there is only this process."""
        return []

    def finish(self) -> None:
        """Wait for all work of the GPUs."""
        for device in self.devices:
            driver.get().finish(device)

    def __repr__(self) -> str:
        return f"Mesh.local({list(self.devices)})"
