"""`numpipe.Mesh`: the GPUs that a kernel with semaphores runs on, and where their memory comes
from."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from ..diagnostics.argument_checks import NONE, SHAPE, each, element_type, require, told, whole
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
    """The GPUs of a kernel of several GPUs, in an order: number r has the rank r, which is
    ``numpipe.axis_index("gpu")`` there.

    ====================  ==================================================================  ======
    `simulated`           simulated GPUs, any number of them; no GPU is needed                calls
                                                                                              take
                                                                                              lists
                                                                                              of
                                                                                              NumPy
                                                                                              arrays
    `local`               the GPUs of this process                                            calls
                                                                                              take
                                                                                              lists
                                                                                              of
                                                                                              arrays
    `torch`               a process for each GPU, of torch.distributed                        each
                                                                                              rank
                                                                                              passes
                                                                                              its
                                                                                              own
                                                                                              arrays
    ====================  ==================================================================  ======

    >>> numpipe.Mesh.simulated(2)
    Mesh.simulated(2)
    """

    size: int
    """how many GPUs there are"""
    rank: int | None
    """this process' rank where each GPU has a process of its own; None: this process has them
    all"""
    name: str
    """what a graph of PyTorch calls it, which holds strings and no meshes"""

    def __init__(self, size: int, rank: int | None, gpus: LocalGpus | TorchGpus | None) -> None:
        self.size, self.rank = size, rank
        self.name = f"mesh {next(_numbers)}"
        _named[self.name] = self
        self.gpus = gpus
        """None: they are simulated"""
        self.controls: Controls | None = None if gpus is None else Controls(gpus)
        self._rooms: dict[Hashable, tuple[int, Any]] = {}
        self._outgrown: list[Any] = []
        """workspaces that were too small for a later call, which graphs may hold"""

    # ---- the kinds
    @classmethod
    def simulated(cls, gpus: int) -> Mesh:
        """Return a mesh of so many simulated GPUs, at most 62."""
        require("Mesh.simulated", locals(), gpus=whole(1, MOST_GPUS))
        return cls(int(gpus), None, None)

    @classmethod
    def local(cls, devices: Sequence[int] | None = None) -> Mesh:
        """Return a mesh of GPUs of this process; `devices` are their CUDA ordinals, by default all
        that kernels run on.

        Raises TargetError where there is none, and LaunchError where two of them have no peer
        access.
        """
        require("Mesh.local", locals(), devices=NONE | each(whole(0)))
        if devices is not None and (
            not devices or len({*devices}) < len(devices) or len(devices) > MOST_GPUS
        ):
            raise SpecError(
                "Mesh.local: devices must be different CUDA ordinals, at least one, got "
                f"{told(devices)}"
            )
        gpus = LocalGpus(devices)
        return cls(gpus.size, None, gpus)

    @classmethod
    def torch(cls, group: Any = None) -> Mesh:
        """Return a mesh of the ranks of a process group of torch.distributed, by default of all;
        every rank of it calls this.

        Raises TargetError without PyTorch, and SpecError where torch.distributed is not
        initialised.
        """
        gpus = TorchGpus(group)
        if gpus.size > MOST_GPUS:
            raise SpecError(
                f"Mesh.torch: the group has {gpus.size} ranks, and a mesh at most {MOST_GPUS}: "
                "pass a smaller group"
            )
        return cls(gpus.size, gpus.rank, gpus)

    # ---- memory
    def empty(self, shape: int | Sequence[int], dtype: Any) -> Any:
        """Return uninitialised memory that kernels reach on other GPUs, of one shape and type on
        each.

        Simulated and local it is a list of arrays, NumPy's or numpipe's own (PyTorch tensors where
        `dtype` is PyTorch's); under `torch` this rank's tensor, in symmetric memory, and every rank
        calls it at the same place of its program.
        """
        return self._made("empty", shape, dtype, False)

    def zeros(self, shape: int | Sequence[int], dtype: Any) -> Any:
        """Return memory as `empty` does, filled with zeros on all GPUs."""
        return self._made("zeros", shape, dtype, True)

    def _made(self, what: str, shape: Any, dtype: Any, zeros: bool) -> Any:
        dims = _dims(f"Mesh.{what}", shape)
        if self.gpus is not None:
            return self.gpus.empty(dims, dtype, zeros)
        kind, make = element_type(f"Mesh.{what}", dtype), np.zeros if zeros else np.empty
        return [make(dims, kind) for _ in range(self.size)]

    def to_device(self, arrays: Any) -> Any:
        """Copy host arrays to the GPUs, to memory as `empty` returns it: a list of one for each
        GPU, under `torch` this rank's own.

        All have one shape and type. Simulated they are returned as they are.
        """
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
                    f"{info.shape} beside {infos[0].dtype.name} {infos[0].shape}"
                )
            host.append(info.array)
        return list(given) if self.gpus is None else self.gpus.to_device(host)

    def workspace(
        self, name: str, shape: int | Sequence[int], dtype: Any, stream: Hashable = None
    ) -> Any:
        """Return memory as `empty` does, for what runs on a stream: the same for the same name and
        stream, as long as it is large enough. Its contents are undefined. All ranks ask for the
        same."""
        dims = _dims("Mesh.workspace", shape)
        if self.gpus is None:
            return self.empty(dims, dtype)
        wanted, key = max(self.gpus.nbytes(dims, dtype), 1), (name, stream)
        size, room = self._rooms.get(key, (0, None))
        if size < wanted:
            if room is not None:
                self._outgrown.append(room)
            size = max(1 << (wanted - 1).bit_length(), 4096)
            room = self.gpus.room(size)
            self._rooms[key] = size, room
        return self.gpus.window(room, dims, dtype)

    def reaches(self, infos: Sequence[ArrayInfo]) -> bool:
        """Whether kernels on other GPUs reach these arrays of this process' GPUs."""
        return self.rank is None or len(self.gpus.alive(infos)) == len(infos)  # type: ignore[union-attr]

    # ---- its state
    def check(self) -> None:
        """Wait for all work of this process' GPUs; PipelineDeadlock where a launch waited for a
        peer too long.

        The next call on the mesh raises it too, and every later one. A simulated mesh has nothing
        to wait for.
        """
        if self.gpus is not None and self.controls is not None:
            self.controls.check()
            self.gpus.finish()
            self.controls.check()

    def __repr__(self) -> str:
        return f"Mesh.simulated({self.size})" if self.gpus is None else repr(self.gpus)


@contextlib.contextmanager
def compiling(mesh: Mesh | None, what: str, facts: dict[str, str]) -> Iterator[None]:
    """Let the ranks wait for each other while one compiles what these facts say; an error of one is
    told to the others."""
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
    """Return the mesh of this process that has this name; SpecError where it is gone."""
    mesh = _named.get(name)
    if mesh is None:
        raise SpecError(
            f"{what}: no numpipe.Mesh of this process is {name!r}: a graph runs in the process "
            "that made it, or in one that makes the same meshes in the same order, and while its "
            "mesh lives"
        )
    return mesh


def key_of(mesh: Mesh | None) -> Hashable:
    """Return what the plans of calls depend on: simulated meshes of one size are alike."""
    return mesh.size if mesh is not None and mesh.gpus is None else mesh


def _dims(what: str, shape: Any) -> tuple[int, ...]:
    require(what, locals(), shape=whole(0) | SHAPE)
    return tuple(map(int, shape)) if isinstance(shape, (tuple, list)) else (int(shape),)


def check_mesh(mesh: Any, kernel: str) -> None:
    """Raise SpecError for what is no mesh."""
    if not isinstance(mesh, Mesh):
        raise SpecError(
            f"kernel {kernel}: mesh must be a numpipe.Mesh, got {told(mesh)}: "
            "numpipe.Mesh.simulated(2), numpipe.Mesh.local() or numpipe.Mesh.torch()"
        )
