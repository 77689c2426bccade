"""The arrays of an op of several GPUs: what a call passes for each GPU of its mesh, and what it gets back.

Under `Mesh.simulated` and `Mesh.local` an array of such an op is a list, of one array for each GPU; under `Mesh.torch` each rank
passes its own, and gets its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import launch
from ..diagnostics.arguments import told
from ..diagnostics.errors import SpecError
from ..kernels.kernels import Kernel
from ..launch.info import ArrayInfo, tma_addressable
from ..launch.mesh import Mesh
from ..launch.views import strided
from .operands import Operand, copied, described, laid
from .results import allocated, delivered


class Shards:
    """A call of an op on a mesh. Its methods take and give a list with one array for each GPU of this process."""

    def __init__(self, op: str, mesh: Any, stream: Any = None) -> None:
        """Raises SpecError for what is no mesh."""
        if not isinstance(mesh, Mesh):
            raise SpecError(f"{op}: mesh must be a numpipe.Mesh: Mesh.simulated(2), Mesh.local() or Mesh.torch(), got {told(mesh)}")
        self.op, self.mesh, self.stream = op, mesh, stream
        self.target = "sim" if mesh.gpus is None else None

    def described(self, arrays: dict[str, Any], types: Sequence[np.dtype], added: Sequence[str] = ()) -> dict[str, list[ArrayInfo]]:
        """Describe the arrays of a call by name; those that are None, and may be, are left out.

        Raises SpecError for what is no list of as many arrays as there are GPUs, for other types, and for shapes that differ.
        """
        given = {name: self._parts(name, value) for name, value in arrays.items() if value is not None or name != "out"}
        count = 1 if self.mesh.rank is not None else self.mesh.size
        each = [described(self.op, {name: parts[gpu] for name, parts in given.items()}, types, added) for gpu in range(count)]
        for name in given:
            for gpu, infos in enumerate(each):
                if infos[name].shape != each[0][name].shape:
                    raise SpecError(f"{self.op}: '{name}' is {each[0][name].shape} on GPU 0 and {infos[name].shape} on GPU {gpu}: "
                                    "all GPUs have shards of one shape; pad the last one")
        return {name: [infos[name] for infos in each] for name in given}

    def _parts(self, name: str, value: Any) -> Sequence[Any]:
        if self.mesh.rank is not None:
            return [value]
        if type(value) not in (list, tuple) or len(value) != self.mesh.size:
            got = f"{len(value)} of them" if type(value) in (list, tuple) else told(value)
            raise SpecError(f"{self.op}: '{name}' under {self.mesh!r} must be a list of {self.mesh.size} arrays, one for each GPU, "
                            f"got {got}")
        return value  # type: ignore[no-any-return]

    # ---- layouts
    def rows(self, infos: list[ArrayInfo]) -> list[ArrayInfo]:
        """Return matrices whose rows TMA can address: those of the call, or copies of them."""
        return [info if self._by_rows(info) else copied(info, self.target, self.stream) for info in infos]

    def laid(self, name: str, infos: list[ArrayInfo]) -> list[Operand]:
        """Return matrices that TMA can address by rows or by columns: those of the call, or copies of them."""
        return [laid(self.op, {name: info}, (), self.target, self.stream)[0] for info in infos]

    def _by_rows(self, info: ArrayInfo) -> bool:
        return info.strides[-1] == info.dtype.itemsize and not tma_addressable(info)

    # ---- memory
    def made(self, like: list[ArrayInfo], shape: Sequence[int]) -> list[ArrayInfo]:
        """Return new arrays of this shape and of the type of `like`, each on its GPU."""
        return [allocated(self.op, info, shape, self.stream) for info in like]

    def workspace(self, name: str, like: list[ArrayInfo], shape: Sequence[int], dtype: np.dtype) -> list[ArrayInfo]:
        """Return symmetric memory of the mesh, which launches of this stream share."""
        stream = None if self.mesh.gpus is None else launch.current_stream(like[:1]) if self.stream is None else self.stream
        room = self.mesh.workspace(f"{self.op}: {name}", tuple(shape), dtype, stream)
        return [launch.describe(part, name, self.op) for part in self._parts(name, room)]

    def symmetric(self, infos: list[ArrayInfo]) -> bool:
        """Whether kernels on other GPUs reach these arrays: those of a process with all GPUs always do."""
        return self.mesh.rank is None or self.mesh.reaches(infos[0])

    # ---- the call
    def run(self, kernel: Kernel, *arrays: list[ArrayInfo]) -> None:
        """Run a kernel on all GPUs."""
        one = self.mesh.rank is not None
        kernel(*[infos[0] if one else infos for infos in arrays], mesh=self.mesh, stream=self.stream)

    def delivered(self, like: list[ArrayInfo], results: list[ArrayInfo]) -> Any:
        """Return what the call returns, of arrays that were `made`."""
        found = [delivered(of, info, self.stream) for of, info in zip(like, results, strict=True)]
        return found if self.mesh.rank is None else found[0]


def planes(info: ArrayInfo, count: int) -> ArrayInfo:
    """Return a matrix as a batch of `count` matrices, of its rows one behind the other."""
    rows, (_, columns) = info.shape[0] // count, info.shape
    return strided(info, (count, rows, columns), (rows * info.strides[0], *info.strides))


def check_matrices(op: str, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[tuple[int, int], int]:
    """Return ((M, K), N) of shards (M, K) and (K, N); SpecError for others."""
    if len(a) != 2 or len(b) != 2:
        raise SpecError(f"{op}: 'a' and 'b' must be matrices, got {a} and {b}: reshape batches to rows")
    if a[1] != b[0]:
        raise SpecError(f"{op}: K = {a[1]} in 'a' {a}, {b[0]} in 'b' {b}" + "; pass b.T of a b (N, K)" * (a[1] == b[1]))
    return (a[0], a[1]), b[1]


def check_out(op: str, results: list[ArrayInfo], shape: tuple[int, ...]) -> None:
    """Raise SpecError for results of another shape, or that TMA cannot address by rows, or that must not be written."""
    for info in results:
        if info.shape != shape:
            raise SpecError(f"{op}: 'out' must be {shape}, got {info.shape}")
        launch.check_writable(info, "out", op)
