"""Slots that CTAs of a cluster fill for each other: who is told that one is free, and who copies which share where.

Each of the CTAs along an axis of the cluster loads its share of a block, and one copy of it lands in all of them. The ring's
protocol (`ring`) stays, with two counts changed: a slot is free when the warpgroups of all CTAs that it is filled together with
have released it, and ready when all shares have come, whose bytes each CTA announces for itself::

    CTA 0   wait consumed[s]; expect the whole block on ready[s]; multicast the first half to CTAs 0 and 1
    CTA 1   wait consumed[s]; expect the whole block on ready[s]; multicast the second half to CTAs 0 and 1
    both    wait ready[s]; read; lane i of each warp arrives on consumed[s] of the i-th of the two

A share may land before the bytes it brings are announced; the phase cannot end without that announcement's arrival. And it says
that its sender's slot had been released before, so that who has waited for a step's shares may release to all who sent them.

PTX ISA, "cp.async.bulk.tensor": .multicast::cluster; "mbarrier.arrive": .shared::cluster.
"""

from __future__ import annotations

from typing import Protocol

from ...core.machine import current
from ...plan.block import Block
from ...plan.cluster import mask_of, place_of, rank_of, share_of
from ...plan.plans import RingPlan


class Ring(Protocol):
    """What is asked of a ring (`ring.Ring`) here."""

    plan: RingPlan
    step: int


def own_share(ring: Ring, block: Block) -> tuple[int, int, int]:
    """The share of a block that this CTA loads: (rows before it in the tile, bytes before it, the CTAs that it is for, as bits)."""
    dims = ring.plan.cluster
    place = place_of(current().cta, dims)
    rows = share_of(place, dims, block.along) * block.share_rows
    return rows, rows * block.layout.width, mask_of(place, dims, block.along)


def agree(ring: Ring, number: int, start: list[int], what: str) -> None:
    """The simulator raises where CTAs load shares of different blocks. Nothing on the GPU, where tiles would be patchwork."""
    block, dims = ring.plan.blocks[number], ring.plan.cluster
    here = place_of(current().cta, dims)
    group = rank_of([0 if axis in block.along else at for axis, at in enumerate(here)], dims)
    current().agree((ring.plan.name, number, int(ring.step), group), tuple(start), block.shares, what)
