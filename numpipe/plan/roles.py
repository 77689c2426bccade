"""The roles of a CTA's warpgroups: what each of them does with the kernel function, which all of
them run."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.machine import Lanes


@dataclass(frozen=True)
class Role:
    """A role of a warpgroup; code asks it for what it needs to know, never for its name.

    name      in reports, traces and timelines; `str` of the role
    lanes     the lanes that run the kernel function, see `core.machine`
    loads     whether it fills the slots of pipelines, ahead of the roles that use them
    computes  whether tiles have values; in other roles they are inert, and nothing that depends on
              them is compiled

    `protocol.BARRIERS` says which barriers of a slot its arrivals complete. Registers belong to its
    warpgroup, see `kernel_shape`.
    """

    name: str
    lanes: Lanes
    loads: bool
    computes: bool

    def __str__(self) -> str:
        return self.name


COMPUTE = Role("compute", lanes="all", loads=False, computes=True)
MEMORY = Role("memory", lanes="one", loads=True, computes=False)
ROLES = COMPUTE, MEMORY
"""all roles, in the order of a timeline's rows"""


def role_of(warpgroup: int, memory_warpgroup: int) -> Role:
    """Return the role of a warpgroup of a CTA, given the number of its memory warpgroup."""
    return MEMORY if warpgroup == memory_warpgroup else COMPUTE
