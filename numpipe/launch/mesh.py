"""`numpipe.Mesh`: the GPUs that a kernel with semaphores runs on, and memory that they share."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from ..arch.dimensions import next_power_of_two
from ..diagnostics.argument_checks import (
    NONE,
    a,
    each,
    element_type,
    require,
    sizes_of,
    told,
    whole,
)
from ..diagnostics.errors import NumpipeError, SpecError
from ..plan.control_block import MOST_GPUS
from .array_info import ArrayInfo
from .arrays import describe
from .controls import Controls
from .local_gpus import LocalGpus
from .torch_gpus import COMPILED, TorchGpus

__all__ = ["Mesh"]

_numbers = itertools.count()
_named: weakref.WeakValueDictionary[str, Mesh] = weakref.WeakValueDictionary()


class Mesh:
    """The GPUs of a kernel of several GPUs, in order. The GPU with rank r has
    ``numpipe.axis_index("gpu") == r``.

    ===========  ==============================================  ================================
    `simulated`  any number of simulated GPUs; no GPU is needed  calls take lists of NumPy arrays
    `local`      the GPUs of this process                        calls take lists of arrays
    `torch`      one process per GPU, of torch.distributed       each rank passes its own arrays
    ===========  ==============================================  ================================

    >>> numpipe.Mesh.simulated(2)
    Mesh.simulated(2)
    """

    size: int
    """number of GPUs"""
    rank: int | None
    """rank of this process if each GPU has its own process; None: this process has all GPUs"""
    name: str
    """name of the mesh in PyTorch graphs, which can hold strings but not meshes"""

    def __init__(self, size: int, rank: int | None, gpus: LocalGpus | TorchGpus | None) -> None:
        self.size, self.rank = size, rank
        self.name = f"mesh {next(_numbers)}"
        _named[self.name] = self
        self.gpus = gpus
        """None: the GPUs are simulated"""
        self.controls: Controls | None = None if gpus is None else Controls(gpus)
        self._rooms: dict[Hashable, tuple[int, Any]] = {}
        self._outgrown: list = []
        """workspaces that became too small, which are kept because graphs may use them"""

    # ---- the kinds
    @classmethod
    def simulated(cls, gpus: int) -> Mesh:
        """Return a mesh of `gpus` simulated GPUs, at most 62."""
        require("Mesh.simulated", locals(), gpus=whole(1, MOST_GPUS))
        return cls(int(gpus), None, None)

    @classmethod
    def local(cls, devices: Sequence[int] | None = None) -> Mesh:
        """Return a mesh of GPUs of this process. `devices` are their CUDA ordinals; by default, all
        GPUs that can run kernels.

        Raises TargetError if there is none, and LaunchError if two of them have no peer access."""
        require("Mesh.local", locals(), devices=NONE | each(whole(0)))
        if devices is not None and (
            not devices or len({*devices}) < len(devices) or len(devices) > MOST_GPUS
        ):
            raise SpecError(
                "Mesh.local: devices must be a non-empty list of distinct CUDA ordinals, got "
                f"{told(devices)}"
            )
        gpus = LocalGpus(devices)
        return cls(gpus.size, None, gpus)

    @classmethod
    def torch(cls, group: Any = None) -> Mesh:
        """Return a mesh of the ranks of a torch.distributed process group, by default of all ranks.
        Every rank of the group must call this.

        Raises TargetError without PyTorch, and SpecError if torch.distributed is not
        initialized."""
        gpus = TorchGpus(group)
        if gpus.size > MOST_GPUS:
            raise SpecError(
                f"Mesh.torch: the group has {gpus.size} ranks, but a mesh has at most {MOST_GPUS}: "
                "pass a smaller group"
            )
        return cls(gpus.size, gpus.rank, gpus)

    # ---- memory
    def empty(self, shape: int | Sequence[int], dtype: Any) -> Any:
        """Return uninitialized memory that kernels on other GPUs can access, with the same shape
        and type on each GPU.

        A simulated or local mesh returns a list of arrays, which are NumPy's, or numpipe's own
        (PyTorch tensors if `dtype` is PyTorch's). A `torch` mesh returns this rank's tensor in
        symmetric memory, and all ranks must make the same call at the same point of the program."""
        return self._made("empty", shape, dtype, False)

    def zeros(self, shape: int | Sequence[int], dtype: Any) -> Any:
        """Return memory like `empty`, filled with zeros on all GPUs."""
        return self._made("zeros", shape, dtype, True)

    def _made(self, what: str, shape: Any, dtype: Any, zeros: bool) -> Any:
        dims = sizes_of(f"Mesh.{what}", shape)
        if self.gpus is not None:
            return self.gpus.empty(dims, dtype, zeros)
        kind, make = element_type(f"Mesh.{what}", dtype), np.zeros if zeros else np.empty
        return [make(dims, kind) for _ in range(self.size)]

    def to_device(self, arrays: Any) -> Any:
        """Copy host arrays to memory on the GPUs, allocated as by `empty`. Pass a list with one
        array per GPU; on a `torch` mesh, pass this rank's array.

        All arrays must have the same shape and type. A simulated mesh returns them unchanged."""
        given = [arrays] if self.rank is not None else arrays
        if type(given) not in (list, tuple) or len(given) != (
            1 if self.rank is not None else self.size
        ):
            raise SpecError(
                f"Mesh.to_device: arrays must be a list of {self.size} arrays, one for each GPU, "
                f"got {told(arrays)}"
            )
        infos, host = [describe(array, "arrays", "Mesh.to_device") for array in given], []
        for info in infos:
            if info.array is None:
                raise SpecError(
                    "Mesh.to_device: arrays must be on the host, got a "
                    f"{type(info.owner).__name__} on GPU {info.device}"
                )
            if (info.shape, info.dtype) != (infos[0].shape, infos[0].dtype):
                raise SpecError(
                    f"Mesh.to_device: arrays must have one shape and type, got {info.dtype.name} "
                    f"{info.shape} and {infos[0].dtype.name} {infos[0].shape}"
                )
            host.append(info.array)
        return list(given) if self.gpus is None else self.gpus.to_device(host)

    def workspace(
        self, name: str, shape: int | Sequence[int], dtype: Any, stream: Hashable = None
    ) -> Any:
        """Return memory like `empty`, for work that runs on a stream. Calls with the same name and
        stream share the same memory, as long as it is large enough. Its contents are undefined. All
        ranks must make the same call."""
        dims = sizes_of("Mesh.workspace", shape)
        if self.gpus is None:
            return self.empty(dims, dtype)
        wanted, key = max(self.gpus.nbytes(dims, dtype), 1), (name, stream)
        size, room = self._rooms.get(key, (0, None))
        if size < wanted:
            if room is not None:
                self._outgrown.append(room)
            size = max(next_power_of_two(wanted), 4096)
            room = self.gpus.room(size)
            self._rooms[key] = size, room
        return self.gpus.window(room, dims, dtype)

    def reaches(self, infos: Sequence[ArrayInfo]) -> bool:
        """Return whether kernels on other GPUs can access these arrays of this process's GPUs."""
        return self.rank is None or len(self.gpus.alive(infos)) == len(infos)  # type: ignore[union-attr]

    # ---- its state
    def check(self) -> None:
        """Wait for all work of this process's GPUs. Raises PipelineDeadlock if a launch waited too
        long for a peer.

        All later calls on the mesh raise it too. On a simulated mesh this does nothing."""
        if self.gpus is not None and self.controls is not None:
            self.controls.check()
            self.gpus.finish()
            self.controls.check()

    def __repr__(self) -> str:
        return f"Mesh.simulated({self.size})" if self.gpus is None else repr(self.gpus)


@contextlib.contextmanager
def compiling(mesh: Mesh | None, what: str, facts: dict[str, str]) -> Iterator[None]:
    """Make the ranks wait for each other while one of them compiles the kernel described by
    `facts`; an error on one rank is reported to the others."""
    if mesh is None or mesh.gpus is None:
        yield
        return
    try:
        yield
    except NumpipeError as error:
        with contextlib.suppress(NumpipeError):
            mesh.gpus.agree(
                {**facts, "the compile": f"{type(error).__name__}: {error}"}, what, COMPILED
            )
        raise
    mesh.gpus.agree({**facts, "the compile": "done"}, what, COMPILED)


def mesh_of(name: str, what: str) -> Mesh:
    """Return the mesh of this process that has this name. Raises SpecError if it no longer
    exists."""
    mesh = _named.get(name)
    if mesh is None:
        raise SpecError(
            f"{what}: this process has no numpipe.Mesh named {name!r}: run a graph in the process "
            "that made it, or in one that makes the same meshes in the same order, and keep the "
            "mesh alive"
        )
    return mesh


def key_of(mesh: Mesh | None) -> Hashable:
    """Return the part of a mesh that plans of calls depend on; simulated meshes of one size are
    equivalent."""
    return mesh.size if mesh is not None and mesh.gpus is None else mesh


def check_mesh(mesh: Any, where: str) -> None:
    """Raise SpecError if `mesh` is not a `Mesh`."""
    kinds = "a numpipe.Mesh (Mesh.simulated(2), Mesh.local() or Mesh.torch())"
    require(where, locals(), mesh=a(Mesh, text=kinds))
