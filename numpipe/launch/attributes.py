"""Launch attributes: clusters, cooperative launch and programmatic dependent launch (CUDA driver
API, "CUlaunchAttribute")."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..arch.dimensions import Dim3, Names, round_up
from ..diagnostics.argument_checks import FLAG, NONE, as_tuple, is_int, require
from ..diagnostics.errors import SpecError

PORTABLE_CLUSTER = 8
"""cluster size, in CTAs, that every GPU with clusters can run"""
LARGEST_CLUSTER = 16
"""cluster size, in CTAs, that a Hopper GPU can run if the kernel allows it"""
MAX_GRID = ((1 << 31) - 1, 65535, 65535)
"""maximum CTAs along x, y, z (CUDA C++ Programming Guide, "Compute Capabilities")"""
Grid = Dim3


@dataclass(frozen=True)
class Attributes:
    """Launch attributes of a kernel."""

    cluster: Grid = (1, 1, 1)
    """CTAs per cluster along x, y, z"""
    cooperative: bool = False
    """all CTAs run at the same time, or the launch is refused"""
    programmatic: bool = True
    """programmatic dependent launch: the kernel may be launched while the previous kernel in the
    stream is finishing"""

    @property
    def size(self) -> int:
        """Number of CTAs per cluster."""
        return math.prod(self.cluster)

    def check_grid(self, grid: Sequence[int], kernel: str) -> None:
        """Raise SpecError if a dimension of the grid is not a multiple of the cluster's."""
        for axis, n, size in zip("xyz", grid, self.cluster, strict=False):
            if n % size:
                raise SpecError(
                    f"kernel {kernel}: the grid has {n} CTAs along {axis}, not a multiple of the "
                    f"{size} of a cluster {self.cluster}: round it up to {round_up(n, size)} "
                    "and let the extra CTAs do nothing, or use a smaller cluster"
                )
        if any(size > 1 for size in self.cluster[len(grid) :]):
            least = max(axis + 1 for axis, size in enumerate(self.cluster) if size > 1)
            raise SpecError(
                f"kernel {kernel}: the grid {tuple(grid)} has {len(grid)} "
                f"dimension{'s' * (len(grid) != 1)}, but a cluster {self.cluster} needs {least}"
            )


PLAIN = Attributes()


def names_of(kernel: str, option: str, names: Any) -> Names:
    """Return the names that an option gives, as a tuple; a single name need not be in one. Raises
    SpecError unless they are different strings."""
    several = as_tuple(names)
    if not all(isinstance(name, str) for name in several) or len(set(several)) < len(several):
        raise SpecError(
            f"kernel {kernel}: {option} must be different strings, got {names!r}: give a tuple of "
            f"names, or leave {option} out"
        )
    return several


def axis_names(kernel: str, cluster: Any, names: Any) -> Names:
    """Return `cluster_names` as a tuple. Raises SpecError unless there is one name per dimension of
    `cluster`, which `of_options` validates."""
    axes = names_of(kernel, "cluster_names", names)
    dims = () if cluster is None else as_tuple(cluster)
    if axes and len(axes) != len(dims):
        fix = "cluster=(2,), cluster_names=('cluster',)" if not dims else f"give {len(dims)}"
        raise SpecError(
            f"kernel {kernel}: cluster_names {axes} name {len(axes)} "
            f"dimension{'s' * (len(axes) > 1)}, but the cluster has "
            f"{len(dims)}{f', {tuple(dims)}' * bool(dims)}: {fix}"
        )
    return axes


def of_options(kernel: str, cluster: Any, cooperative: Any, programmatic: Any) -> Attributes:
    """Return the attributes that a kernel's options select. Raises SpecError for invalid options.

    `programmatic` None means True unless the launch is cooperative.
    """
    require(f"kernel {kernel}", locals(), cooperative=FLAG, programmatic=FLAG | NONE)
    dims = (1,) if cluster is None else as_tuple(cluster)
    if not 1 <= len(dims) <= 3 or not all(is_int(n) and n > 0 for n in dims):
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
            f"kernel {kernel}: a cluster {dims} has {attributes.size} CTAs, but on Hopper it has "
            f"at most {LARGEST_CLUSTER}, and {PORTABLE_CLUSTER} run on any GPU with clusters: use "
            "a smaller one"
        )
    return attributes
