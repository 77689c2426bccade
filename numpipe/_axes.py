"""The named axes of a kernel: its grid's, its cluster's, its warpgroups'; and what CTAs along an axis of the cluster share."""

from __future__ import annotations

import dataclasses
import math
import re

from ._block import Block
from ._cluster import ALONE, ROWS, Dims
from ._schedule import Scheduled
from .allocations import Barrier, ClusterBarrier
from .errors import SpecError


def symbol(name: str, mark: str = "_") -> str:
    """A name as LLVM, PTX and file systems take it: each byte that is no ASCII letter, digit or `_` is `mark` and two hex digits.

    >>> symbol("gemm"), symbol("größe"), symbol("gemm[64]")
    ('gemm', 'gr_c3_b6_c3_9fe', 'gemm_5b64_5d')
    """
    return re.sub(r"[^A-Za-z0-9_]", lambda m: "".join(f"{mark}{byte:02x}" for byte in m[0].encode()), name)


def axis_symbol(what: str, name: str) -> str:
    """The function that says the "index" or the "size" of an axis in a kernel's code."""
    return f"np_axis_{what}_{symbol(name, '$')}"


def axis_of(symbol: str) -> str:
    """The axis that an `axis_symbol` is of."""
    spelled = re.sub(r"^np_axis_(index|size)_", "", symbol)
    return re.sub(r"(\$[0-9a-f]{2})+", lambda m: bytes.fromhex(m[0].replace("$", "")).decode(), spelled)


class Axes(Scheduled):
    """What a Unit knows of its axes and its cluster: of this nothing, unless the kernel names the cluster's axes."""

    axes: tuple[str, ...]
    wg_axis: str
    cluster: Dims
    cluster_axes: tuple[str, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The axes whose sizes are known when the kernel is compiled."""
        return {self.wg_axis: self.tile_wgs, **dict(zip(self.cluster_axes, self.cluster, strict=False))}

    @property
    def clustered(self) -> bool:
        """Whether CTAs reach into each other's shared memory, and so begin and end together."""
        return self.cluster != ALONE

    def check_cluster(self) -> None:
        """SpecError where a name stands for two axes."""
        for name in self.cluster_axes:
            if name in self.axes or name == self.wg_axis:
                other = "a grid axis" if name in self.axes else "the warpgroup axis"
                raise SpecError(f"kernel {self.kernel}: cluster_names {self.cluster_axes} has {name!r}, which is also {other}: "
                                "give each axis a name of its own")

    def axis(self, name: str) -> int:
        """Grid dimension (0, 1, 2) of a named axis."""
        if name not in self.axes:
            cluster = f", the cluster {self.cluster_axes}" * bool(self.cluster_axes)
            raise SpecError(f"kernel {self.kernel}: unknown axis {name!r}: the grid has {self.axes or 'no named axes'}{cluster} "
                            f"and the warpgroup axis is {self.wg_axis!r}")
        return self.axes.index(name)

    def cluster_dims(self, names: tuple[str, ...], what: str) -> tuple[int, ...]:
        """The cluster's dimensions of these names; SpecError for a name that it has not."""
        for name in names:
            if name not in self.cluster_axes:
                known = (f"the cluster's axes are {', '.join(map(repr, self.cluster_axes))}" if self.cluster_axes else
                         "the kernel names none: @numpipe.kernel(cluster=(2,), cluster_names=('cluster',))")
                raise SpecError(f"{what}: collective_axes has {name!r}, which is no axis of the cluster: {known}")
        return tuple(sorted(self.cluster_axes.index(name) for name in names))

    def arrive_groups(self, barrier: Barrier, what: str) -> tuple[tuple[int, ...], ...]:
        """The dimensions of the cluster along which CTAs arrive on each other's barriers: none of a plain Barrier."""
        axes = self.cluster_dims(barrier.axes, what) if isinstance(barrier, ClusterBarrier) else ()
        return tuple((axis,) for axis in axes if self.cluster[axis] > 1)

    def shared_block(self, block: Block, names: tuple[str, ...], what: str) -> Block:
        """The block, cut into shares, of an operand with these `collective_axes`."""
        along = tuple(axis for axis in self.cluster_dims(names, what) if self.cluster[axis] > 1)
        if not along:
            return block
        shares = math.prod(self.cluster[axis] for axis in along)
        outer = 1 - block.layout.inner
        rows = block.layout.shape[outer]
        if rows % (ROWS * shares):
            raise SpecError(f"{what}: collective_axes={names}: {shares} CTAs load a share each of its {rows} rows (of dimension "
                            f"{block.axes[outer]}, the one that is not contiguous), and a share is a multiple of {ROWS} rows: make "
                            f"that side a multiple of {ROWS * shares}, or the cluster smaller")
        return dataclasses.replace(block, along=along, shares=shares)
