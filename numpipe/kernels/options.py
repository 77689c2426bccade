"""The options of `@numpipe.kernel`, checked where they are given."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compile.lift.asked import Said, Split
from ..diagnostics.errors import SpecError
from ..launch.attributes import PLAIN, Attributes
from ..plan.shape import SCHEDULES, KernelShape
from ..plan.specs import CompilerParams, Persistent, Workspace
from .shapes import Signature

TARGETS = ("auto", "gpu", "sim")
MAX_GRID = ((1 << 31) - 1, 65535, 65535)
"""CTAs along x, y, z (CUDA C++ Programming Guide, "Compute Capabilities")"""


LEAST = Split(1, "", 24)
"""a split that whatever else is said goes with"""


@dataclass(frozen=True)
class Options:
    """Options of `kernel`, as given."""

    grid: Any
    grid_names: tuple[str, ...]
    out_type: Any
    signature: Signature | None
    split: Said
    """num_compute_wgs, wg_axis and memory_registers, as far as they are given"""
    warp_specialized: bool
    compiler_params: CompilerParams
    target: str | None
    in_specs: Any = None
    out_specs: Any = None
    schedule: str = "cooperative"
    attributes: Attributes = PLAIN
    """of each launch"""
    cluster_names: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """parameters of the function that this kernel has not"""
    workspace: Any = None

    def without_workspace(self, function: Callable[..., Any]) -> Options:
        """The same for a kernel whose `workspace` is none (``split=None``, an axis of the cluster): made without that parameter."""
        if not isinstance(self.workspace, Workspace) or self.workspace.exists(self.cluster_names):
            return self
        empty = inspect.Parameter.empty
        arrays = [name for name, parameter in inspect.signature(function).parameters.items()
                  if parameter.kind is not parameter.KEYWORD_ONLY and parameter.default is empty]
        return dataclasses.replace(self, workspace=None, without=(*self.without, *arrays[-1:]))

    @property
    def takes(self) -> set[str]:
        """The arguments that the functions `grid` and `out_type` are called with."""
        return {name for function in (self.grid, self.out_type) if callable(function) for name in parameter_names(function)}

    def check(self, kernel: str, parameters: int) -> None:
        """Raise SpecError for options that no call could have."""
        self.split.check(kernel)
        if not isinstance(self.compiler_params, CompilerParams):
            raise SpecError(f"kernel {kernel}: compiler_params must be numpipe.CompilerParams(…), got {self.compiler_params!r}")
        if self.out_type is not None and not callable(self.out_type):
            raise SpecError(f"kernel {kernel}: out_type must be a function of the arguments that returns an ArrayType, got "
                            f"{self.out_type!r}: write out_type=lambda …: {self.out_type!r}")
        if self.target is not None and self.target not in TARGETS:
            raise SpecError(f"kernel {kernel}: target is {self.target!r}; use one of {', '.join(map(repr, TARGETS))}")
        if self.signature is not None and len(self.signature.inputs + self.signature.outputs) > parameters:
            raise SpecError(f"kernel {kernel}: signature {self.signature.text!r} speaks of "
                            f"{len(self.signature.inputs + self.signature.outputs)} arrays, the kernel has {parameters} parameters")
        if not all(isinstance(name, str) for name in self.grid_names) or len(set(self.grid_names)) != len(self.grid_names):
            raise SpecError(f"kernel {kernel}: grid_names must be different strings, got {self.grid_names}")
        if not isinstance(self.warp_specialized, bool):
            raise SpecError(f"kernel {kernel}: warp_specialized must be True or False, got {self.warp_specialized!r}")
        if not self.warp_specialized and self.split.memory_registers is not None:
            raise SpecError(f"kernel {kernel}: memory_registers={self.split.memory_registers} are those of the memory role, which "
                            "warp_specialized=False leaves out: leave memory_registers out too")
        if self.workspace is not None and not callable(self.workspace) and not isinstance(self.workspace, Workspace):
            raise SpecError(f"kernel {kernel}: workspace must be a numpipe.Workspace, or a function of the arguments that returns "
                            f"one, got {self.workspace!r}")
        self._check_schedule(kernel)
        least = LEAST.given(self.split)
        KernelShape(kernel, (), self.grid_names, least.wg_axis, least.num_compute_wgs, least.memory_registers,
                    warp_specialized=self.warp_specialized, **self.cluster)
        if not callable(self.grid):
            dims = (1,) if isinstance(self.grid, Persistent) else grid_dims(self.grid, kernel)
            self.check_names(dims, kernel)
            if not isinstance(self.grid, Persistent):
                self.attributes.check_grid(dims, kernel)
            elif self.attributes.cluster[1:] != (1, 1):
                raise SpecError(f"kernel {kernel}: a grid of numpipe.persistent() has CTAs along x only, and the cluster "
                                f"{self.attributes.cluster} has them along y or z: use cluster={self.attributes.size}")

    @property
    def cluster(self) -> dict[str, Any]:
        """What a Unit is told of the cluster: nothing where its axes have no names, for then CTAs share nothing."""
        return {"cluster": self.attributes.cluster, "cluster_axes": self.cluster_names} if self.cluster_names else {}

    def _check_schedule(self, kernel: str) -> None:
        """The schedule is one, and there is something to schedule."""
        if self.schedule not in SCHEDULES:
            raise SpecError(f"kernel {kernel}: schedule is {self.schedule!r}; use one of {', '.join(map(repr, SCHEDULES))}")
        if self.schedule == "cooperative":
            return
        asked = f"kernel {kernel}: schedule={self.schedule!r}"
        if not self.warp_specialized:
            raise SpecError(f"{asked} with warp_specialized=False: compute warpgroups take turns on what the memory role loads; "
                            "leave warp_specialized out")
        if self.in_specs is not None or self.out_specs is not None:
            raise SpecError(f"{asked} with in_specs or out_specs of the kernel: its blocks are steps of one pipeline, not tiles to "
                            "take turns on; loop over numpipe.tiles in the kernel, with a pipeline in it")
        if self.split.num_compute_wgs == 1:
            raise SpecError(f"{asked} lets compute warpgroups take turns, and needs 2 or more: num_compute_wgs=1; give "
                            "num_compute_wgs=2")

    def check_names(self, dims: tuple[int, ...], kernel: str) -> None:
        """The grid has as many dimensions as names, if it has names."""
        if self.grid_names and len(self.grid_names) != len(dims):
            raise SpecError(f"kernel {kernel}: grid_names {self.grid_names} name {len(self.grid_names)} dimensions, but the grid "
                            f"{dims} has {len(dims)}")


def parameter_names(function: Callable[..., Any], what: str = "grid or out_type") -> list[str]:
    """The arguments that a function takes, a `grid` say; SpecError for one that does not tell (a C function)."""
    try:
        return list(inspect.signature(function).parameters)
    except (ValueError, TypeError):
        raise SpecError(f"{function!r} as {what} does not tell its parameters' names: write a lambda or a def") from None


def names(given: Sequence[str] | str) -> tuple[str, ...]:
    """grid_names as a tuple; one name may stand alone."""
    return (given,) if isinstance(given, str) else tuple(given)


def grid_dims(grid: Any, kernel: str) -> tuple[int, ...]:
    """CTAs per dimension, as given or as the function of the arguments returned them."""
    dims = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
    counts = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in dims)
    if not 1 <= len(dims) <= 3 or not counts:
        raise SpecError(f"kernel {kernel}: grid must be 1 to 3 non-negative ints, got {grid!r}")
    for axis, (n, limit) in enumerate(zip(dims, MAX_GRID, strict=False)):
        if n > limit:
            raise SpecError(f"kernel {kernel}: grid {dims} has {n} CTAs along dimension {axis}, at most {limit} are possible: put "
                            "the largest dimension first, or loop over numpipe.tiles in a persistent kernel")
    return tuple(int(n) for n in dims)
