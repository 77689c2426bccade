"""The context, a hidden first parameter of a kernel function: it identifies the kernel and the role
that runs it.

The AST pass gives every kernel function a parameter ``__np`` and passes it to the operations that
depend on the kernel (pipelines, tile loops) or on the role (the warpgroup axis). Its Numba type
carries the Unit and the role; its value is a pointer to the warpgroup's ring counters, so that a
helper called twice continues a ring instead of restarting it.

This file also has the operations that return the position of a CTA in the grid: `axis_index` and
`axis_size` by name, `program_id` and `num_programs` by number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core.inert import Inert
from ..core.machine import current
from ..core.op import Hidden, constant, context_op, formula, op
from ..diagnostics.argument_checks import whole
from ..diagnostics.errors import SpecError
from .budget import Region
from .cluster_ranks import rank_of
from .folded_grids import index
from .kernel_shape import GPU_AXIS
from .plans import STATE, TURN
from .roles import Role
from .unit import Unit

__all__ = ["axis_index", "axis_size", "num_programs", "program_id"]


class ContextFacts:
    """The facts of a `Context` and of its Numba type that are known at compile time."""

    unit: Unit
    role: Role
    state: Any
    """The words of the warpgroup's state (`plans.STATE`), by index."""
    counted = False
    """Whether its work is counted, and nothing is moved."""

    @property
    def turn(self) -> Any:
        """The compute warpgroup that runs the next loop's first tile (`turns`)."""
        return self.state[TURN]

    @turn.setter
    def turn(self, warpgroup: Any) -> None:
        self.state[TURN] = warpgroup

    @property
    def loads(self) -> bool:
        return self.role.loads

    @property
    def computes(self) -> bool:
        return self.role.computes

    @property
    def stores(self) -> bool:
        """Whether this role issues the TMA stores of tiles."""
        return self.role is self.unit.storing

    @property
    def assists(self) -> bool:
        """Whether this role only stores what another one computes."""
        return self.stores and not self.computes

    @property
    def numbered(self) -> bool:
        return self.role.numbered

    @property
    def several(self) -> bool:
        """Whether the warpgroup is one of several compute warpgroups."""
        return self.computes and self.unit.compute_wgs > 1

    @property
    def in_turns(self) -> bool:
        """Whether the warpgroup takes turns with others (`turns`)."""
        return self.computes and self.unit.turns > 1

    @property
    def sharing(self) -> bool:
        """Whether the warpgroup is a compute warpgroup that shares each tile with the others."""
        return self.computes and self.unit.turns < 2


class StoringFacts:
    """Who issues the TMA stores for an object that holds a context `np`: an array or a ring.

    stores_alone  this role computes the tiles and stores them too
    hands_over    this role computes the tiles, and another role stores them
    takes_over    this role stores tiles that another role has computed
    """

    np: Any

    @property
    def stores_alone(self) -> bool:
        return bool(self.np.computes and self.np.stores)

    @property
    def hands_over(self) -> bool:
        return bool(self.np.computes and not self.np.stores)

    @property
    def takes_over(self) -> bool:
        return bool(self.np.stores and not self.np.computes)


class Context(ContextFacts, Hidden):
    """A role of one warpgroup on the simulated SM. Its `state` lives as long as the kernel, as on
    the GPU."""

    def __init__(self, unit: Unit, role: Role) -> None:
        self.unit = unit
        self.role = role
        self.state = [0] * STATE
        self.phases: dict[int, int] = {}
        """The phase that this warpgroup waits for next, by the address of a barrier that the kernel
        made."""
        self.compute_only = False
        """Whether it runs a function that the memory role does not run."""
        self.running: dict[int, str] = {}
        """Rings of the pipelines whose bodies this warpgroup runs, by counter
        (`chains.running`)."""
        self.work_ring: Any = None
        """The ring of work indices, a `Ring`; None before the first loop that takes them
        (`tile_scheduler`)."""
        self.dynamic_loop: str | None = None
        """The source position of the loop that takes work indices now."""

    @property
    def counted(self) -> bool:  # type: ignore[override]
        return not current().moves

    @property
    def number(self) -> Any:
        """The number of this warpgroup among the compute warpgroups."""
        return self.unit.number(current().warpgroup)

    @property
    def cta(self) -> Sequence:
        return current().cta

    @property
    def grid(self) -> Sequence:
        return current().grid

    def part_of(self, region: Region, offset: int = 0) -> Any:
        """Return the address of this warpgroup's bytes of a region, plus `offset` bytes."""
        return own_part(self.unit, region) + offset


@op
def only_if(holder: Any, fact: str, function: Callable[..., None], *args: Any) -> None:
    """Call ``function(holder, *args)`` if a fact of `holder`, a context or a loop, is true.
    Otherwise the call is not even compiled."""
    if getattr(holder, fact):
        function(holder, *args)


@op
def over(values: tuple, function: Callable[..., None], *args: Any) -> None:
    """Call ``function(value, *args)`` for each value of a tuple, of any types."""
    for value in values:
        function(value, *args)


@op
def axis_index(name: str | tuple[str, ...]) -> Any:
    """Return the index of this CTA along a named axis of the grid or of its cluster, or of this
    warpgroup along the warpgroup axis (`wg_axis`).

    A tuple of axes gives the linear index over them, the first name slowest: ``axis_index(("a",
    "b"))`` is ``axis_index("a") * axis_size("b") + axis_index("b")``. So ``axis_index(("cta",
    "wg"))`` numbers the compute warpgroups of the launch.

    With ``schedule="pingpong"`` the warpgroup axis has size 1 and every compute warpgroup has index
    0, because tiles are not shared. The memory role has no index on the warpgroup axis: there it is
    an inert value that must not steer loads.

    ``axis_index("gpu")`` is the number of the GPU in the mesh, in a kernel with semaphores;
    ``axis_size("gpu")`` is a compile-time constant there.
    """
    machine, unit = current(), current().unit
    if name == GPU_AXIS and unit.gpus:  # kernels are rewritten to `gpu_index`
        return np.int32(machine.gpu or 0)
    if name == unit.wg_axis:  # called by plain helpers; kernels are rewritten to `warpgroup_part`
        return np.int32(unit.number(machine.warpgroup) % unit.tile_wgs)
    if name in unit.cluster_axes:
        axis = unit.cluster_axes.index(name)
        return np.int32(machine.cta[axis] % unit.cluster[axis])
    return folded_index(unit.axis(name))


@op
def axis_size(name: str | tuple[str, ...]) -> Any:
    """Return the size of a named axis of the grid, of the cluster (in CTAs), or of the warpgroup
    axis (in compute warpgroups that share a tile). The last two are compile-time constants. A tuple
    of axes, ``axis_size(("a", "b"))``, gives the product."""
    unit = current().unit
    if name == GPU_AXIS and unit.gpus:
        return np.int32(unit.gpus)
    if name in unit.cluster_axes:
        return np.int32(unit.cluster[unit.cluster_axes.index(name)])
    return np.int32(unit.tile_wgs) if name == unit.wg_axis else folded_size(unit.axis(name))


GRID_AXIS = whole(0, 2)


def checked_axis(operation: str, axis: Any) -> Any:
    """Return a dimension of a grid, 0…2, given as a constant or as its Numba type. Raises SpecError
    for other values.

    The AST pass rewrites the dimensions of a grid of more than three dimensions to `folded_index`
    and `folded_size`, so these are not passed to this function.
    """
    return constant(operation, "axis", axis, GRID_AXIS)


def check_ctas(unit: Unit | None, operation: str, axis: int) -> int:
    """Return `axis`. Raises SpecError in a kernel over tiles whose CTAs do not have this dimension
    because it is a loop of steps in the source."""
    words = None if unit is None else unit.params.dimension_semantics
    if words is not None and axis >= words.count("parallel"):
        why = (
            "is sequential, so only the kernel function itself can read it; fix: write "
            f"{operation}({axis}) there, with a literal number, and pass its value to functions"
            if axis < len(words)
            else f"does not exist: the kernel's grid has {len(words)}"
        )
        raise SpecError(f"{operation}({axis}): dimension {axis} {why}")
    return axis


@op
def program_id(axis: int) -> Any:
    """Return the index of this CTA along dimension `axis` of the grid (0, 1, …, a compile-time
    int), an int32.

    In a grid of up to three dimensions it is blockIdx.x, y or z.
    """
    return np.int32(
        current().cta[check_ctas(current().unit, "program_id", checked_axis("program_id", axis))]
    )


@op
def num_programs(axis: int) -> Any:
    """Return the number of CTAs along dimension `axis` of the grid (0, 1, …, a compile-time int),
    an int32.

    In a grid of up to three dimensions it is gridDim.x, y or z.
    """
    return np.int32(
        current().grid[
            check_ctas(current().unit, "num_programs", checked_axis("num_programs", axis))
        ]
    )


@op
def folded_index(dimension: int) -> Any:
    """Return `program_id` of a dimension that may be folded into x with others (`folded`). The AST
    pass inserts the call."""
    machine, unit = current(), current().unit
    if dimension not in unit.folded:
        return np.int32(machine.cta[dimension])
    return np.int32(index(machine.cta[0], unit.grid_sizes, dimension))


@op
def folded_size(dimension: int) -> Any:
    """Return `num_programs` of a dimension that may be folded into x with others (`folded`). The
    AST pass inserts the call."""
    machine, unit = current(), current().unit
    if dimension not in unit.folded:
        return np.int32(machine.grid[dimension])
    return np.int32(unit.grid_sizes[unit.folded.index(dimension)])


@op
def own_index() -> Any:
    """Return the index of this CTA in the grid, x fastest."""
    return np.int32(rank_of(current().cta, current().grid))


@op
def cta_count() -> Any:
    """Return the number of CTAs of the grid."""
    return np.int32(math.prod(current().grid))


@context_op
def warpgroup_part(np_: Context) -> Any:
    """Return the number of the part of a tile that this compute warpgroup computes:
    `axis_index(wg_axis)` in a kernel."""
    return np.int32(np_.number % np_.unit.tile_wgs) if np_.numbered else Inert("the warpgroup axis")


@context_op
def gpu_index(np_: Context) -> Any:
    """Return the number of this GPU in the mesh: `axis_index("gpu")` in a kernel with
    semaphores."""
    return np.int32(current().gpu or 0)


def own_part(unit: Unit, region: Region) -> int:
    """Return the address of this warpgroup's bytes of a region."""
    machine = current()
    return region.at(unit.number(machine.warpgroup) if machine.role.numbered else 0)


@formula
def counter(np_: Context, index: int) -> Any:
    return np_.state[index]


@formula
def set_counter(np_: Context, index: int, value: Any) -> None:
    np_.state[index] = value
