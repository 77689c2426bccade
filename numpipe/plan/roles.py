"""The roles of a CTA's warps. Every role runs the kernel function; a role says which parts of it
have an effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.machine import Lanes


@dataclass(frozen=True)
class Role:
    """A role of some warps of a warpgroup. Code asks for the role's properties, never for its name.

    name      the name in reports, traces and timelines; `str` of the role
    lanes     the lanes that run the kernel function, see `core.machine`
    warps     the warps of the warpgroup that have this role
    loads     whether it fills the slots of pipelines, ahead of the roles that use them
    computes  whether tiles have values; in other roles they are inert, and nothing that depends on
              them is compiled
    stores    whether it issues the TMA stores of tiles, unless a role after it in `ROLES` does
    numbered  whether it has the number of a compute warpgroup: its own, or of the one it works for
    option    the field of `CompilerParams` that enables the role. Its warps are in the memory
              warpgroup, next to the loading one, one per compute warpgroup. "": the role always
              exists, and has its own warpgroup

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
"""All roles, in the order of a timeline's rows."""


def parts_of(
    warpgroups: int, memory_warpgroup: int, compute_wgs: int, options: object
) -> tuple[Role, ...]:
    """Return the role of each part of a CTA that runs the kernel function independently: first each
    warpgroup, then each warp that has a role next to the loading one. `options` is a
    `CompilerParams`."""
    own = [MEMORY if number == memory_warpgroup else COMPUTE for number in range(warpgroups)]
    for role in ROLES:
        if role.option and getattr(options, role.option):
            own += [role] * compute_wgs
    return tuple(own)


def warps_of(parts: Sequence[Role]) -> list[range]:
    """Return the range of the CTA's warps that belongs to each part.

    >>> warps_of([COMPUTE, MEMORY])
    [range(0, 4), range(4, 5)]
    """
    found = []
    memory = next((number for number, role in enumerate(parts) if role.loads), 0)
    for number, role in enumerate(parts):
        if role.option:
            first = 4 * memory + role.warps[parts[:number].count(role)]
            found.append(range(first, first + 1))
        else:
            found.append(range(4 * number + role.warps.start, 4 * number + role.warps.stop))
    return found
