"""The roles of a CTA's warps: what each of them does with the kernel function, which all of them
run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.machine import Lanes


@dataclass(frozen=True)
class Role:
    """A role of some warps of a warpgroup; code asks it for what it needs to know, never for its
    name.

    name      in reports, traces and timelines; `str` of the role
    lanes     the lanes that run the kernel function, see `core.machine`
    warps     the warps of its warpgroup that it has
    loads     whether it fills the slots of pipelines, ahead of the roles that use them
    computes  whether tiles have values; in other roles they are inert, and nothing that depends on
              them is compiled
    stores    whether it issues the TMA stores of tiles, unless a role after it in `ROLES` does
    numbered  whether it has the number of a compute warpgroup: its own, or of the one it works for
    option    the field of `CompilerParams` that a kernel has the role for, in the memory warpgroup
              next to the loading role, with a warp for each compute warpgroup; "": always, with a
              warpgroup of its own

    `protocol.BARRIERS` says which barriers of a slot its arrivals complete. Registers belong to a
    warpgroup, whose roles share them, see `kernel_shape`.
    """

    name: str
    lanes: Lanes
    warps: range
    loads: bool = False
    computes: bool = False
    stores: bool = False
    numbered: bool = False
    option: str = ""

    def __str__(self) -> str:
        return self.name


COMPUTE = Role("compute", "all", range(4), computes=True, stores=True, numbered=True)
MEMORY = Role("memory", "one", range(1), loads=True)
STORE = Role("storing", "one", range(1, 4), stores=True, numbered=True, option="store_role")
ROLES = COMPUTE, MEMORY, STORE
"""all roles, in the order of a timeline's rows"""


def parts_of(
    warpgroups: int, memory_warpgroup: int, compute_wgs: int, options: object
) -> tuple[Role, ...]:
    """Return the role of each part of a CTA that runs the kernel function by itself: of each
    warpgroup, then of each warp that has a role next to the loading one. `options`: a
    `CompilerParams`."""
    own = [MEMORY if number == memory_warpgroup else COMPUTE for number in range(warpgroups)]
    for role in ROLES:
        if role.option and getattr(options, role.option):
            own += [role] * compute_wgs
    return tuple(own)


def warps_of(parts: Sequence[Role]) -> list[range]:
    """Return the warps of the CTA that each of its parts has.

    >>> warps_of([COMPUTE, MEMORY])
    [range(0, 4), range(4, 5)]
    """
    found: list[range] = []
    memory = next((number for number, role in enumerate(parts) if role.loads), 0)
    for number, role in enumerate(parts):
        if role.option:
            first = 4 * memory + role.warps[parts[:number].count(role)]
            found.append(range(first, first + 1))
        else:
            found.append(range(4 * number + role.warps.start, 4 * number + role.warps.stop))
    return found
