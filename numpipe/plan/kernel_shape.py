"""The `KernelShape`: what is known about a kernel before its source is read, such as its arrays,
roles, registers, axes and cluster.

setmaxnreg moves registers between the roles: the memory role gets `memory_registers`, and the
compute warpgroups share the rest of the pool. The pool is what the CTA holds at launch, 504 per
lane for three warpgroups, not the SM's 512: requesting 32 + 240 + 240 hangs on an H200.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

from ..arch.dimensions import Ints, Names
from ..arch.target import Target
from ..arch.targets import DEFAULT
from ..diagnostics.errors import OfKernel, SpecError
from .allocations import Barrier, ClusterBarrier
from .block import Block
from .cluster_ranks import ALONE, ROWS, Dims, Sharing
from .folded_grids import along_x
from .layout import Layout
from .params import CompilerParams, LoweringSemantics
from .plans import ArrayArg
from .roles import ROLES, Role, parts_of, warps_of

SCHEDULES = "cooperative", "pingpong"
GPU_AXIS = "gpu"
"""The axis of the mesh's GPUs, in kernels with semaphores."""
OUTPUTS_BARRIER = 15
"""The named barrier of outputs that all compute warpgroups write (`pipeline_outputs`). Barrier 0 is
the CTA's, and 1 + w is warpgroup w's."""


@dataclass
class KernelShape(OfKernel):
    """The warpgroups of a CTA and their registers, and the axes of the grid, of the cluster and of
    the warpgroups.

    Raises SpecError for too many warpgroups, too few registers, and two axes with the same name.
    """

    kernel: str
    arrays: tuple[ArrayArg, ...]
    axes: Names
    wg_axis: str
    compute_wgs: int
    memory_registers: int
    params: CompilerParams = field(default_factory=CompilerParams)
    memory_thread: int = -1
    """The number of the memory warpgroup in the CTA; -1: the last one."""
    warp_specialized: bool = True
    """Whether one of the CTA's warpgroups is the memory role. If not, all warpgroups compute, and
    registers are not moved."""
    schedule: str = "cooperative"
    """One of SCHEDULES: the compute warpgroups share each tile, or take turns on whole tiles."""
    cluster: Dims = ALONE
    """CTAs of a cluster along x, y, z; (1, 1, 1) if the kernel does not name cluster axes, so that
    its CTAs share nothing."""
    cluster_axes: Names = ()
    grid_rank: int = 3
    """The number of grid dimensions, at least 3."""
    target: Target = DEFAULT
    gpus: int = 0
    """The number of GPUs of the mesh that it runs on; 0: a kernel of one GPU, without
    semaphores."""

    def __post_init__(self) -> None:
        if self.wg_axis in self.axes:
            raise self.refused(
                f"wg_axis={self.wg_axis!r} is also the name of a grid axis, "
                f"{self.axes}; fix: give wg_axis another name"
            )
        most = 8 - self.warp_specialized
        if not 1 <= self.compute_wgs <= most:
            memory = " and one warpgroup is the memory role" * self.warp_specialized
            raise self.refused(
                f"num_compute_wgs must be 1…{most} (a CTA has at most 1024 "
                f"threads{memory}), got {self.compute_wgs}"
            )
        if self.schedule == "pingpong" and self.compute_wgs < 2:
            raise self.refused(
                f"schedule='pingpong' needs at least 2 compute warpgroups, "
                f"which take turns, got num_compute_wgs={self.compute_wgs}; fix: num_compute_wgs=2"
            )
        if self.gpus and GPU_AXIS in (*self.axes, *self.cluster_axes, self.wg_axis):
            raise self.refused(
                f"{GPU_AXIS!r} is reserved for the axis of the GPUs in a "
                "kernel with semaphores=; fix: rename the axis of the grid, the cluster or the "
                "warpgroups"
            )
        for name in self.cluster_axes:
            if name in self.axes or name == self.wg_axis:
                other = "a grid axis" if name in self.axes else "the warpgroup axis"
                raise self.refused(
                    f"cluster_names {self.cluster_axes} has {name!r}, which "
                    f"is also {other}; fix: give each axis its own name"
                )
        for role in ROLES:
            if role.option and getattr(self.params, role.option):
                self._check_beside(role)
        if not self.warp_specialized:
            return
        if self.memory_registers % 8 or not 24 <= self.memory_registers <= 256:
            raise self.refused(
                f"memory_registers must be a multiple of 8 in 24…256, got {self.memory_registers}"
            )
        if self.compute_registers < 24:
            raise self.refused(
                f"register budget: {self.register_pool} - "
                f"{self.memory_registers} (memory) leaves "
                f"{self.register_pool - self.memory_registers} registers per lane for "
                f"{self.compute_wgs} compute warpgroups, {self.compute_registers} each, but each "
                "needs at least 24; fix: lower memory_registers or num_compute_wgs"
            )

    def _check_beside(self, role: Role) -> None:
        """Raise SpecError for a kernel that cannot have a role next to the loading one."""
        most = len(role.warps)
        for refused, why, fix in (
            (
                not self.warp_specialized,
                "the role needs a warp of the memory warpgroup, which the kernel does not have",
                "warp_specialized=True",
            ),
            (
                self.compute_wgs > most,
                "the role needs one warp per compute warpgroup, and the memory warpgroup has "
                f"{most} besides the loading one, but num_compute_wgs={self.compute_wgs}",
                f"num_compute_wgs={most}",
            ),
            (
                bool(self.gpus),
                "a signal to another GPU covers only stores by the compute warpgroups themselves",
                f"{role.option}=False in a kernel with semaphores",
            ),
            (
                self.params.lowering_semantics is LoweringSemantics.Lane,
                "bodies that are code for each lane have no tiles to store",
                f"{role.option}=False, or LoweringSemantics.Warpgroup",
            ),
        ):
            if refused:
                raise self.refused(f"CompilerParams({role.option}=True): {why}; fix: {fix}")

    # ---- threads and registers
    @property
    def warpgroups(self) -> int:
        return self.compute_wgs + self.warp_specialized

    @property
    def threads(self) -> int:
        return 128 * self.warpgroups

    @property
    def compute_registers(self) -> int:
        """Registers per lane of a compute warpgroup: its share, rounded down to a multiple of 8, of
        the registers that the memory role leaves in the CTA's pool.

        Without a memory role it is the number that a lane has at launch, at most 255, because an
        instruction cannot name more.
        """
        if not self.warp_specialized:
            return min(self.target.lane_registers, self.register_pool // self.warpgroups)
        return min(256, (self.register_pool - self.memory_registers) // self.compute_wgs // 8 * 8)

    @property
    def register_pool(self) -> int:
        """Registers that the CTA holds at launch, summed over one lane of each warpgroup. Each has
        floor8(target.registers / threads)."""
        return self.warpgroups * self.target.registers_of(self.warpgroups)

    @property
    def first_compute(self) -> int:
        """The number in the CTA of the first compute warpgroup."""
        return int(self.memory_warpgroup == 0)

    @property
    def memory_warpgroup(self) -> int:
        """The number in the CTA of the memory warpgroup. If there is none, a number that no
        warpgroup has."""
        return (
            self.memory_thread
            if self.warp_specialized and 0 <= self.memory_thread <= self.compute_wgs
            else self.compute_wgs
        )

    @property
    def parts(self) -> tuple[Role, ...]:
        """The role of each part of the CTA that runs the kernel function independently: its
        warpgroups, then the warps next to the loading one."""
        return parts_of(self.warpgroups, self.memory_warpgroup, self.compute_wgs, self.params)

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that the CTA has."""
        return tuple(dict.fromkeys(self.parts))

    @property
    def storing(self) -> Role:
        """The role that issues the TMA stores of tiles."""
        return next(role for role in reversed(self.roles) if role.stores)

    @property
    def beside(self) -> dict[Role, range]:
        """The roles next to the loading one, each with its warps of the CTA."""
        found: dict[Role, range] = {}
        for role, warps in zip(self.parts, warps_of(self.parts), strict=True):
            if role.option:
                found[role] = range(found.get(role, warps).start, warps.stop)
        return found

    @property
    def references_hold_context(self) -> bool:
        """Whether references to arrays hold the context on the GPU, which is needed to record
        stores as events and to count tiles that are handed to the storing role."""
        return bool(self.params.profile_space or self.beside)

    def role(self, part: int) -> Role:
        """Return the role of a part of the CTA."""
        return self.parts[part]

    def number(self, part: int) -> int:
        """Return the number of the compute warpgroup that a part of the CTA is, or works for."""
        if part >= self.warpgroups:
            return (part - self.warpgroups) % self.compute_wgs
        return part - (part > self.memory_warpgroup)

    # ---- how the compute warpgroups divide tiles
    @property
    def turns(self) -> int:
        """Number of compute warpgroups that take turns on tiles (`turns`); 1: they share each
        tile."""
        return self.compute_wgs if self.schedule == "pingpong" else 1

    @property
    def tile_wgs(self) -> int:
        """Number of compute warpgroups that share a tile: the size of the warpgroup axis."""
        return self.compute_wgs // self.turns

    @property
    def default_delay(self) -> int:
        """Default number of steps that a slot is kept after use: 1 with turns, where no other
        product fills the gap of a full wait."""
        return int(self.turns > 1)

    # ---- order tokens
    def token_barrier(self, number: int) -> int:
        """Return the first compute warpgroup's named barrier for an order token. The barriers of
        the other warpgroups follow it (`warpgroup_order`)."""
        return 1 + self.compute_wgs + self.warp_specialized + number * self.compute_wgs

    @property
    def token_room(self) -> int:
        """The number of order tokens for which the CTA has named barriers."""
        return max(0, OUTPUTS_BARRIER - self.token_barrier(0)) // self.compute_wgs

    # ---- axes
    @property
    def folded(self) -> Ints:
        """The dimensions of the grid that are folded into x together (`folded`): none if it has at
        most three dimensions."""
        return along_x(self.grid_rank)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the axes that are known at compile time."""
        gpus = {GPU_AXIS: self.gpus} if self.gpus else {}
        return {
            self.wg_axis: self.tile_wgs,
            **dict(zip(self.cluster_axes, self.cluster, strict=False)),
            **gpus,
        }

    @property
    def clustered(self) -> bool:
        """Whether CTAs access each other's shared memory, and so begin and end together."""
        return self.cluster != ALONE

    def axis(self, name: str) -> int:
        """Return the dimension of the grid (0, 1, 2, …) of a named axis."""
        if name not in self.axes:
            cluster = f", the cluster {self.cluster_axes}" * bool(self.cluster_axes)
            raise self.refused(
                f"unknown axis {name!r}: the grid has "
                f"{self.axes or 'no named axes'}{cluster}, and the warpgroup axis is "
                f"{self.wg_axis!r}"
            )
        return self.axes.index(name)

    def cluster_dims(self, names: Names, what: str, option: str = "collective_axes") -> Ints:
        """Return the dimensions of the cluster that these names stand for. Raises SpecError for
        other names, citing the `option` of `what` that has them."""
        for name in names:
            if name not in self.cluster_axes:
                known = (
                    f"the cluster's axes are {', '.join(map(repr, self.cluster_axes))}"
                    if self.cluster_axes
                    else (
                        "the kernel names none: @numpipe.kernel(cluster=(2,), "
                        "cluster_names=('cluster',))"
                    )
                )
                raise SpecError(
                    f"{what}: {option} has {name!r}, which is not an axis of the cluster: {known}"
                )
        return tuple(sorted(self.cluster_axes.index(name) for name in names))

    def arrive_groups(self, barrier: Barrier, what: str) -> tuple[Ints, ...]:
        """Return the dimensions of the cluster along which CTAs arrive on each other's barriers:
        none for a plain Barrier."""
        axes = self.cluster_dims(barrier.axes, what) if isinstance(barrier, ClusterBarrier) else ()
        shared = tuple(axis for axis in axes if self.cluster[axis] > 1)
        led = isinstance(barrier, ClusterBarrier) and barrier.leader_tracked
        return (shared,) * bool(shared) if led else tuple((axis,) for axis in shared)

    def shared_block(self, block: Block, names: Names, what: str) -> Block:
        """Return the block of an operand with these `collective_axes`, cut into shares."""
        sharing = self.tile_sharing(block.layout, block.axes, names, what)
        return (
            dataclasses.replace(block, along=sharing.along, shares=sharing.shares)
            if sharing
            else block
        )

    def tile_sharing(self, layout: Layout, axes: Ints, names: Names, what: str) -> Sharing | None:
        """Return how the CTAs along `names` load a tile of this layout together, where the tile's
        rows and columns lie along `axes` of its array. Return None if there is only one CTA. Raises
        SpecError for axes that the cluster does not have, and for a tile that cannot be cut into
        these shares."""
        along = tuple(axis for axis in self.cluster_dims(names, what) if self.cluster[axis] > 1)
        if not along:
            return None
        if layout.flat:
            raise SpecError(
                f"{what}: collective_axes={names}: each CTA loads a share of a block's rows, but "
                "this block has only one dimension; fix: use a two-dimensional block, or leave "
                "collective_axes out"
            )
        shares = math.prod(self.cluster[axis] for axis in along)
        outer = 1 - layout.inner
        rows = layout.shape[outer]
        if rows % (ROWS * shares):
            raise SpecError(
                f"{what}: collective_axes={names}: each of {shares} CTAs loads a share of its "
                f"{rows} rows (along dimension {axes[outer]}, the one that is not contiguous), "
                f"and a share must be a multiple of {ROWS} rows; fix: make that side a multiple "
                f"of {ROWS * shares}, or the cluster smaller"
            )
        return Sharing(self.cluster, along, axes[outer], rows // shares, layout.width)
