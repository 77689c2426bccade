"""How a launch's CTAs run together, and whether it overlaps the launch before it: CUDA driver API,
"CUlaunchAttribute"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..diagnostics.argument_checks import FLAG, NONE, require
from ..diagnostics.errors import SpecError

PORTABLE_CLUSTER = 8
"""CTAs of a cluster that every GPU with clusters can run"""
LARGEST_CLUSTER = 16
"""CTAs of a cluster that a Hopper GPU can run where it is allowed to"""
MAX_GRID = ((1 << 31) - 1, 65535, 65535)
"""CTAs along x, y, z (CUDA C++ Programming Guide, "Compute Capabilities")"""
Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Attributes:
    """Launch attributes of a kernel."""

    cluster: Grid = (1, 1, 1)
    """CTAs of a cluster along x, y, z"""
    cooperative: bool = False
    """all CTAs run at the same time, or the launch is refused"""
    programmatic: bool = True
    """programmatic dependent launch: the kernel may be launched while the one before it in the
    stream ends"""

    @property
    def size(self) -> int:
        """CTAs of a cluster."""
        return math.prod(self.cluster)

    def check_grid(self, grid: Sequence[int], kernel: str) -> None:
        """Raise SpecError for a grid that is no whole number of clusters."""
        for axis, n, size in zip("xyz", grid, self.cluster, strict=False):
            if n % size:
                raise SpecError(
                    f"kernel {kernel}: the grid has {n} CTAs along {axis}, no multiple of the "
                    f"{size} of a cluster {self.cluster}: round it up to {-(-n // size) * size} "
                    "and let the CTAs beyond do nothing, or use a smaller cluster"
                )
        if any(size > 1 for size in self.cluster[len(grid) :]):
            least = max(axis + 1 for axis, size in enumerate(self.cluster) if size > 1)
            raise SpecError(
                f"kernel {kernel}: the grid {tuple(grid)} has {len(grid)} "
                f"dimension{'s' * (len(grid) != 1)}, and a cluster {self.cluster} needs {least}"
            )


PLAIN = Attributes()


def names_of(kernel: str, option: str, names: Any) -> tuple[str, ...]:
    """Return the names that an option gives; one may stand alone. Raises SpecError unless they are
    different strings."""
    several = tuple(names) if isinstance(names, (tuple, list)) else (names,)
    if not all(isinstance(name, str) for name in several) or len(set(several)) < len(several):
        raise SpecError(
            f"kernel {kernel}: {option} must be different strings, got {names!r}: give a tuple of "
            f"names, or leave {option} out"
        )
    return several


def axis_names(kernel: str, cluster: Any, names: Any) -> tuple[str, ...]:
    """Return `cluster_names`. Raises SpecError unless they name the dimensions of `cluster`, which
    `of_options` checks."""
    axes = names_of(kernel, "cluster_names", names)
    dims = () if cluster is None else cluster if isinstance(cluster, (tuple, list)) else (cluster,)
    if axes and len(axes) != len(dims):
        fix = "cluster=(2,), cluster_names=('cluster',)" if not dims else f"give {len(dims)}"
        raise SpecError(
            f"kernel {kernel}: cluster_names {axes} name {len(axes)} "
            f"dimension{'s' * (len(axes) > 1)}, and the cluster has "
            f"{len(dims)}{f', {tuple(dims)}' * bool(dims)}: {fix}"
        )
    return axes


def of_options(kernel: str, cluster: Any, cooperative: Any, programmatic: Any) -> Attributes:
    """Return the attributes that a kernel's options ask for. Raises SpecError for others than those
    that `Attributes` describes.

    `programmatic` None: unless the launch is cooperative.
    """
    require(f"kernel {kernel}", locals(), cooperative=FLAG, programmatic=FLAG | NONE)
    dims = (
        (1,)
        if cluster is None
        else tuple(cluster)
        if isinstance(cluster, (tuple, list))
        else (cluster,)
    )
    if not 1 <= len(dims) <= 3 or not all(
        isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n > 0 for n in dims
    ):
        raise SpecError(
            f"kernel {kernel}: cluster must be 1 to 3 positive ints, CTAs along the grid's "
            f"dimensions, got {cluster!r}"
        )
    x, y, z = (*(int(n) for n in dims), 1, 1)[:3]
    attributes = Attributes(
        (x, y, z), cooperative, not cooperative if programmatic is None else programmatic
    )
    if attributes.size > LARGEST_CLUSTER:
        raise SpecError(
            f"kernel {kernel}: a cluster {dims} has {attributes.size} CTAs; on Hopper it has at "
            f"most {LARGEST_CLUSTER}, and any GPU with clusters runs {PORTABLE_CLUSTER}: use a "
            "smaller one"
        )
    return attributes
