"""The GPUs of `numpipe.Mesh.torch`: one process per GPU, started by torchrun or another launcher of
torch.distributed.

Memory is PyTorch's symmetric memory: `empty` and `rendezvous` of
``torch.distributed._symmetric_memory`` map each rank's memory into the others. Ranks exchange other
information through the store of torch.distributed, only before the first call of each kind. NVLink
multicast is not used.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import math
import os
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arch.dimensions import Ints
from ..diagnostics.argument_checks import element_type
from ..diagnostics.errors import LaunchError, SpecError, TargetError
from .array_info import ArrayInfo, argument

_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
AGREEMENT = 10.0
"""seconds within which all ranks must make the same call"""
COMPILED = "compiles it"
"""the `moment` of `agree` at which a rank has compiled a kernel, or failed to"""
COMPILING = 900.0
"""seconds that the other ranks wait for one that compiles"""
_SIGN = 1.0
"""seconds within which a process must respond"""
_meshes: dict[str, int] = {}
"""number of meshes made for each group of ranks"""


@dataclass(eq=False)
class Allocation:
    """Symmetric memory on all ranks: its address on each, and its size."""

    begins: list[int]
    own: int
    nbytes: int
    gone: bool = False
    """whether its tensor was freed, so that the address may belong to another tensor"""

    def end(self) -> None:
        self.gone = True


class TorchGpus:
    """The ranks of a process group, each with a GPU."""

    meets = True
    """whether `control` waits for other processes"""

    def __init__(self, group: Any = None) -> None:
        """Raises TargetError without PyTorch, and SpecError if torch.distributed is not
        initialized."""
        try:
            import torch
            import torch.distributed as distributed
        except ImportError as error:
            raise TargetError(
                f"Mesh.torch needs PyTorch, which cannot be imported ({error}): pip install torch"
            ) from error
        if not distributed.is_available() or not distributed.is_initialized():
            raise SpecError(
                "Mesh.torch: torch.distributed is not initialized: start the processes with "
                "torchrun, and call "
                'torch.distributed.init_process_group("nccl") in each of them before '
                "numpipe.Mesh.torch()"
            )
        from torch.distributed import distributed_c10d as c10d

        self._torch, self._group = torch, distributed.group.WORLD if group is None else group
        if self._group is distributed.GroupMember.NON_GROUP_MEMBER:
            raise SpecError(
                "Mesh.torch: this process is not a member of the group: make the mesh on the ranks "
                "of the group only"
            )
        self.rank = distributed.get_rank(self._group)
        self.size = distributed.get_world_size(self._group)
        self.ranks: Ints = (self.rank,)
        ranks = "_".join(map(str, distributed.get_process_group_ranks(self._group)))
        number = _meshes[ranks] = _meshes.get(ranks, 0) + 1
        self._store = distributed.PrefixStore(
            f"numpipe/{ranks}/{number}", c10d._get_process_group_store(c10d._get_default_group())
        )
        self._asked, self._agreed = 0, set[bytes]()
        self._kept: list = []
        """memory that is never freed"""
        self._allocations: list[Allocation] = []
        os.environ.setdefault(_MULTICAST, "1")  # PyTorch reads it in its first rendezvous

    @property
    def devices(self) -> Ints:
        """The CUDA ordinal of this process's GPU, which is the current one."""
        return (int(self._torch.cuda.current_device()),)

    # ---- memory
    def empty(self, shape: Ints, dtype: Any, zeros: bool) -> Any:
        """Return a tensor in symmetric memory. All ranks must make this call at the same point of
        the program."""
        torch = self._torch
        kind = self._dtype(dtype, "Mesh.empty")
        if not torch.cuda.is_available():
            raise TargetError(
                "Mesh.torch: PyTorch sees no GPU here, which symmetric memory requires: run on a "
                "machine with one GPU per rank, or simulate, with numpipe.Mesh.simulated(2)"
            )
        self.agree({"shape": str(tuple(shape)), "dtype": str(kind)}, "Mesh.empty", "allocates")
        from torch.distributed import _symmetric_memory as symmetric

        tensor = symmetric.empty(
            *(shape or (1,)), dtype=kind, device=torch.device("cuda", torch.cuda.current_device())
        )
        nbytes = max(tensor.untyped_storage().nbytes(), 1)
        try:
            handle = symmetric.rendezvous(tensor, self._group)
        except RuntimeError as error:
            raise LaunchError(
                f"Mesh.empty{tuple(shape)}: torch.distributed's symmetric memory: {error}; all "
                "ranks need GPUs with peer access to each other (nvidia-smi topo -p2p r)"
            ) from error
        begins = [int(address) for address in handle.buffer_ptrs]
        # PyTorch may have allocated it as part of a larger allocation
        apart = tensor.data_ptr() - begins[self.rank]
        self.agree({"offset": str(apart)}, "Mesh.empty", f"allocates {tuple(shape)}")
        allocation = Allocation([begin + apart for begin in begins], tensor.data_ptr(), nbytes)
        self._allocations = [one for one in self._allocations if not one.gone] + [allocation]
        weakref.finalize(tensor.untyped_storage(), allocation.end).atexit = False
        if zeros:
            tensor.zero_()
            # a peer may write to it as soon as it knows the address
            torch.cuda.current_stream().synchronize()
            self._meet("Mesh.zeros")
        return tensor if shape else tensor[0]

    def to_device(self, arrays: Sequence[np.ndarray]) -> Any:
        """Copy this rank's host array to symmetric memory."""
        array = np.ascontiguousarray(arrays[0])
        tensor = self.empty(array.shape, array.dtype, zeros=False)
        if array.size:
            tensor.view(-1).view(self._torch.uint8).copy_(
                self._torch.from_numpy(array.reshape(-1).view(np.uint8))
            )
        self._torch.cuda.current_stream().synchronize()
        self._meet("Mesh.to_device")
        return tensor

    def _dtype(self, dtype: Any, what: str) -> Any:
        """Return the PyTorch element type."""
        if isinstance(dtype, self._torch.dtype):
            return dtype
        kind = getattr(self._torch, element_type(what, dtype).name, None)
        if kind is None:
            raise SpecError(f"{what}: PyTorch has no element type {dtype}; choose another one")
        return kind

    def room(self, nbytes: int) -> Any:
        """Return new zero-filled symmetric memory, as a tensor of bytes."""
        return self.empty((nbytes,), self._torch.uint8, zeros=True)

    def control(self, words: int) -> list[int]:
        """Return the addresses of new zero-filled symmetric memory, by rank; it is never freed."""
        memory = self.room(4 * words)
        self._kept.append(memory)
        return self._allocations[-1].begins

    def window(self, room: Any, shape: Ints, dtype: Any) -> Any:
        """Return a tensor in memory allocated by `room`."""
        return (
            room[: self.nbytes(shape, dtype)].view(self._dtype(dtype, "Mesh.workspace")).view(shape)
        )

    def nbytes(self, shape: Ints, dtype: Any) -> int:
        """Return the size of an array in bytes."""
        return math.prod(shape) * int(self._dtype(dtype, "Mesh.workspace").itemsize)

    def _allocation(self, info: ArrayInfo) -> Allocation | None:
        """Return the symmetric memory that contains an array, or None."""
        own = (one for one in self._allocations if one.own <= info.ptr < one.own + one.nbytes)
        return next((one for one in own if not one.gone), None)

    def addresses(self, infos: Sequence[ArrayInfo], name: str, kernel: str) -> list[int]:
        """Return the address of an array on each GPU, by rank, for kernels that access it on other
        GPUs. Raises SpecError unless it is in symmetric memory."""
        (info,) = infos
        if 0 in info.shape:
            return [info.ptr] * self.size
        found = self._allocation(info)
        if found is None:
            raise SpecError(
                f"{argument(name, kernel)}: the kernel accesses it on other GPUs, but on rank "
                f"{self.rank} it is not in this mesh's symmetric memory: allocate it with "
                "mesh.empty or mesh.zeros, and pass outputs as out="
            )
        return [begin + info.ptr - found.own for begin in found.begins]

    def alive(self, infos: Sequence[ArrayInfo]) -> Sequence[Allocation]:
        """Return the allocations that must exist for launches on these arrays to be repeated."""
        return [found for found in map(self._allocation, infos) if found is not None]

    def check_place(self, own: int, info: ArrayInfo, name: str, kernel: str) -> None:
        """Raise SpecError for an array that is not on this process's GPU."""
        if info.kind == "host" or info.device != self.devices[0]:
            where = "on the host" if info.kind == "host" else f"on GPU {info.device}"
            here = f", but its current GPU is {self.devices[0]}" if info.kind != "host" else ""
            raise SpecError(
                f"{argument(name, kernel)} of rank {self.rank} is {where} of this process{here}: "
                "pass tensors of its GPU, and call torch.cuda.set_device(local_rank) before "
                "everything else"
            )

    # ---- communication between the ranks
    def agree(self, facts: dict[str, str], kernel: str, moment: str) -> None:
        """Compare facts of a call with the other ranks, once for each list of facts; `moment` says
        what a rank does at this point.

        All ranks must call this in the same order. Raises SpecError on every rank for differences,
        and LaunchError for a rank that does not respond.
        """
        text = json.dumps([kernel, facts, moment])
        digest = hashlib.sha256(text.encode()).digest()  # programs may have very many shapes
        if digest in self._agreed and kernel != "Mesh.empty":
            return
        found = self._exchange(
            text, COMPILING if moment == COMPILED else AGREEMENT, f"{kernel}: {moment}"
        )
        for rank, other in enumerate(found):
            if other != text:
                raise SpecError(self._differs(rank, json.loads(other), kernel, facts, moment))
        self._agreed.add(digest)

    def _exchange(self, text: str, seconds: float, what: str) -> list[str]:
        """Return the texts of all ranks. Raises LaunchError if one does not respond in time."""
        self._asked += 1
        keys = [f"{self._asked}/{rank}" for rank in range(self.size)]
        try:
            self._store.set(keys[self.rank], text)
            late = self._late(keys, seconds)
            texts = [] if late else [self._store.get(key).decode() for key in keys]
        except RuntimeError as error:
            raise LaunchError(
                f"{what} on rank {self.rank}: the store of torch.distributed does not respond "
                f"({error}): the process that holds it, rank 0 or torchrun, has ended; restart "
                "the processes"
            ) from error
        if late:
            raise LaunchError(
                f"{what} on rank {self.rank}, but rank{'s' * (len(late) > 1)} "
                f"{', '.join(map(str, late))} did not make the same call within {seconds:g} s: "
                "make the same calls in the same order on all ranks; look for an error, or for "
                "other work, there"
            )
        return texts

    def _late(self, keys: Sequence[str], seconds: float) -> list[int]:
        """Return the ranks that do not set their keys in the store in time."""
        end, late = time.monotonic() + seconds, list[int]()
        for rank, key in enumerate(keys):
            left = datetime.timedelta(seconds=max(end - time.monotonic(), 0.01))
            try:
                self._store.wait([key], left)
            except RuntimeError:
                late.append(rank)
        return late

    def _differs(
        self, rank: int, other: list, kernel: str, facts: dict[str, str], moment: str
    ) -> str:
        """Return the message for facts that differ from another rank's."""
        if (kernel, moment) != (other[0], other[2]):
            return (
                f"{kernel}: rank {self.rank} {moment}, but rank {rank} is at {other[0]}: it "
                f"{other[2]}; make the same calls of kernels, Mesh.empty and Mesh.zeros, in the "
                "same order, on all ranks"
            )
        names = [name for name in {**facts, **other[1]} if facts.get(name) != other[1].get(name)]
        differences = "; ".join(
            f"{name} is {facts.get(name, 'missing')} on rank {self.rank} and "
            f"{other[1].get(name, 'missing')} on rank {rank}"
            for name in names
        )
        return (
            f"{kernel}: {differences}: make the same call on all ranks, on arrays of the same "
            "shapes and layouts"
        )

    def _meet(self, what: str) -> None:
        """Wait until all ranks have made this call."""
        self._exchange("", AGREEMENT, f"{what}: it meets the other ranks")

    def silent(self) -> list[int]:
        """Return the ranks whose processes do not respond while this one handles a launch that
        waited too long.

        A process responds here when one of its own launches has waited too long, as happens in all
        living processes, because their launches wait for each other.
        """
        with contextlib.suppress(RuntimeError):
            self._store.set(f"lost/{self.rank}", "1")
            found = self._late([f"lost/{rank}" for rank in range(self.size)], _SIGN)
            return found if len(found) < self.size else []
        return []

    def finish(self) -> None:
        """Wait for all work of this process's GPU."""
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()

    def __repr__(self) -> str:
        return f"Mesh.torch(rank {self.rank} of {self.size})"
