"""`numpipe.Mesh`: the GPUs that a kernel with semaphores runs on, and where their memory comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..diagnostics.arguments import element_type, require, told, whole
from ..diagnostics.errors import SpecError
from ..plan.control_block import MOST_GPUS

__all__ = ["Mesh"]


class Mesh:
    """The GPUs of a kernel of several GPUs, in an order: GPU r has the rank r, ``numpipe.axis_index("gpu")``.

    One source runs on each of them at once, and what belongs to one call is launched together. `simulated` needs no GPU.

    >>> numpipe.Mesh.simulated(2)
    Mesh.simulated(2)
    """

    size: int
    """how many GPUs there are"""
    rank: int | None = None
    """this process' rank where each GPU has a process of its own; None: this process has them all, and calls take lists of arrays"""
    where: str
    """"simulated", "local" or "torch\""""

    def __init__(self, size: int, where: str) -> None:
        self.size, self.where = size, where

    @classmethod
    def simulated(cls, gpus: int) -> Mesh:
        """Return a mesh of simulated GPUs, for any number of them up to 62. Arrays are NumPy's, a list of one for each GPU."""
        require("Mesh.simulated", locals(), gpus=whole(1, MOST_GPUS))
        return cls(int(gpus), "simulated")

    def empty(self, shape: int | Sequence[int], dtype: Any) -> Any:
        """Return uninitialised arrays of one shape and type, one on each GPU."""
        return self._arrays(np.empty, "empty", shape, dtype)

    def zeros(self, shape: int | Sequence[int], dtype: Any) -> Any:
        """Return arrays of zeros of one shape and type, one on each GPU."""
        return self._arrays(np.zeros, "zeros", shape, dtype)

    def _arrays(self, make: Any, what: str, shape: Any, dtype: Any) -> list[np.ndarray[Any, Any]]:
        kind = element_type(f"Mesh.{what}", dtype)
        return [make(shape, kind) for _ in range(self.size)]

    def __repr__(self) -> str:
        return f"Mesh.{self.where}({self.size})"


def check_mesh(mesh: Any, kernel: str) -> None:
    """Raise SpecError for what is no mesh."""
    if not isinstance(mesh, Mesh):
        raise SpecError(f"kernel {kernel}: mesh must be a numpipe.Mesh, got {told(mesh)}: numpipe.Mesh.simulated(2), "
                        "numpipe.Mesh.local() or numpipe.Mesh.torch()")
