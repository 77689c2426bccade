"""The report of a deadlock: who waits for what, the state of the mbarriers, and who should have
arrived.

It is made from plain data, so that a deadlock on the simulated SM and a hung kernel on the GPU are
reported in the same form::

    g.py:41: CTA (0, 0, 0): every warpgroup waits and nothing is in flight
      warpgroup 0 (compute): blocked on ready[1] of a, b @ g.py:41 phase 1 step 3 at g.py:43 in mm
      warpgroup 1 (memory): blocked on consumed[1] of a, b @ g.py:41 phase 0 step 3 at g.py:41 in mm
      consumed[1] of a, b @ g.py:41: phase 0, 4 of 4 arrivals missing, 0 bytes missing
      hint: consumed[1] of a, b @ g.py:41 is still missing 4 of 4 arrivals in phase 0: a slot was …
      fix:    warpgroup 0 (compute) releases slot 1 of a, b @ g.py:41 after step 1: …
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..diagnostics.reports import Barrier, Party, Report
from ..plan.protocol import BARRIERS
from ..plan.roles import COMPUTE

WAITS = "every warpgroup waits and nothing is in flight"
FINISHED = "finished"
"""`Party.did` of a warpgroup that has ended"""


class Hint(NamedTuple):
    """Something that is probably missing: the hazard's name, the line of text that explains it, and
    what to write instead.

    sure   whether it is certainly a cause, and not a consequence of another one
    """

    hazard: str
    text: str
    fix: str = ""
    sure: bool = True


def blocked_on(barrier: str, phase: int, step: int | None) -> str:
    """Return `Party.did` of a warpgroup that waits for an mbarrier.

    >>> blocked_on("ready[1] of a, b @ gemm.py:41", 1, 3)
    'blocked on ready[1] of a, b @ gemm.py:41 phase 1 step 3'
    """
    return f"blocked on {barrier} phase {phase}" + (
        f" step {step}" if step is not None and step >= 0 else ""
    )


def deadlock(
    where: str,
    waiting: Sequence[Party],
    barriers: Sequence[Barrier],
    hints: Sequence[Hint] = (),
    kernel: str = "",
) -> Report:
    """Return the report of a deadlock.

    where     the first line: ``CTA (0, 0, 0): every warpgroup waits and nothing is in flight``
    waiting   one party per warpgroup of the CTA: what it does (`blocked_on`, or `FINISHED`), its
              lines, and the barrier, phase, ring, slot and step that it waits for
    barriers  the barriers that are in the middle of a phase, or waited for
    hints     what is known in addition to the mbarriers: named barriers, registers

    The report's hazard is the one that the hints establish: "too-few-arrivals", "wrong-expect-tx",
    "register-budget" or "named-barrier-mismatch"; otherwise "deadlock".
    """
    missing = _missing(waiting, barriers)
    sure = [hint for hint in (*hints, *missing) if hint.sure]
    shown = [*hints, *(hint for hint in missing if hint.sure or not sure)]
    first = next(iter(sure or shown), Hint("deadlock", WAITS))
    return Report(
        first.hazard if sure else "deadlock",
        _text(where, waiting, barriers, shown),
        waiting=tuple(waiting),
        barriers=tuple(barriers),
        cause=first.text.removeprefix("hint: "),
        fix=first.fix,
        kernel=kernel,
    )


def _text(
    where: str, waiting: Sequence[Party], barriers: Sequence[Barrier], hints: Sequence[Hint]
) -> str:
    lines = [where]
    for party in waiting:
        at = f" at {' <- '.join(map(str, party.lines))}" if party.lines else ""
        lines.append(f"  {_name(party, waiting)}: {party.did}{at}")
    for barrier in barriers:
        misses = (
            f"{barrier.pending} of {barrier.count} arrivals missing, {barrier.missing_bytes} "
            "bytes missing"
            if barrier.known
            else "its missing arrivals and bytes are not known"
        )
        arrived = ", ".join(f"{who} x {times}" for who, times in barrier.arrived)
        lines.append(
            f"  {barrier.name}: phase {barrier.phase}, {misses}"
            + (f"; arrived: {arrived}" if arrived else "")
        )
    lines += [f"  {hint.text}" for hint in hints]
    lines += [f"  fix:    {fix}" for fix in dict.fromkeys(hint.fix for hint in hints) if fix]
    return "\n".join(lines)


def _name(party: Party, waiting: Sequence[Party]) -> str:
    """Return a warpgroup's name, with its CTA if there are several."""
    return (
        party.name
        if len({(other.gpu, other.cta) for other in waiting}) < 2
        else f"{party.name} of {party.where}"
    )


# ---- what is missing -----------------------------------------------------------------------------
def _missing(waiting: Sequence[Party], barriers: Sequence[Barrier]) -> list[Hint]:
    """Return the hints that follow from the state of the mbarriers."""
    hints = []
    for barrier in barriers:
        row = BARRIERS.get(barrier.kind)
        if barrier.kind == "sums" and (barrier.waiters or barrier.missing_bytes > 0):
            hints.append(_no_sum(barrier))
        elif barrier.missing_bytes and not barrier.pending:
            several = len({(party.gpu, party.cta) for party in waiting}) > 1
            loads = row is not None and row.completes.loads
            # bytes that came to another CTA, which expects none of them
            by_hand = barrier.kind == "own" and any(other.missing_bytes < 0 for other in barriers)
            hints.append(_no_bytes(barrier, several and (loads or by_hand)))
        elif barrier.waiters and barrier.pending:
            hints.append(
                (_no_arrival if row is None else _no_load if row.completes.loads else _no_release)(
                    barrier, waiting
                )
            )
    return hints


def _no_sum(barrier: Barrier) -> Hint:
    """Return the hint for a CTA of a cluster that has not sent its sum of a tile, or has not read
    this CTA's."""
    misses = (
        f"{barrier.missing_bytes} bytes"
        if barrier.missing_bytes
        else f"{barrier.pending} of {barrier.count} arrivals"
        if barrier.known
        else "bytes or arrivals"
    )
    return Hint(
        "too-few-arrivals",
        f"hint: {barrier.name} is still missing {misses} in phase {barrier.phase}: another CTA of "
        "the cluster did not exchange its partial sum of a tile",
        "call numpipe.combine(acc, part, axis=…) in all CTAs along the axis, for each tile, "
        "whatever part of it they have",
    )


def _no_bytes(barrier: Barrier, shared: bool) -> Hint:
    """Return the hint for a barrier with all arrivals but missing bytes. `shared`: each CTA of a
    cluster loads a share of them."""
    text = f"hint: {barrier.name} is still missing {barrier.missing_bytes} bytes "
    if shared:
        step = f"of step {barrier.step} " if barrier.step is not None else ""
        return Hint(
            "multicast-mismatch",
            f"{text}{step}and no copy is in flight: another CTA of the cluster has not loaded its "
            "share of them",
            "copy_gmem_to_smem(…, collective_axes=…) by all CTAs along the axes"
            if barrier.kind == "own"
            else "use the same pipelines, with the same grids and the same number of tiles, in all "
            "CTAs along collective_axes",
        )
    brought = "more were announced than the copies of this phase bring"
    if (announced := barrier.expected) is not None:
        brought = (
            f"expect_tx announced {announced} bytes, but the copies of this phase brought "
            f"{announced - barrier.missing_bytes}"
        )
    return Hint(
        "wrong-expect-tx",
        f"{text}and no copy is in flight: {brought}",
        "announce the bytes of all copies that are issued for the phase, and no more",
    )


def _misses(barrier: Barrier) -> str:
    return (
        f"hint: {barrier.name} is still missing {barrier.pending} of {barrier.count} arrivals in "
        f"phase {barrier.phase}: "
    )


def _no_arrival(barrier: Barrier, waiting: Sequence[Party]) -> Hint:
    """Return the hint for a barrier that does not belong to a pipeline.

    A barrier with at least one arrival is closer to the cause than one that waits for a blocked
    warpgroup.
    """
    some = barrier.pending < barrier.count
    sure = some or all(
        party.did == FINISHED or (party.barrier, party.phase) == (barrier.name, barrier.phase)
        for party in waiting
    )
    if barrier.kind != "own":
        return Hint(
            "too-few-arrivals",
            f"{_misses(barrier)}a slot was never released, or the count is higher than the number "
            "of arrivals",
            f"{barrier.pending} more arrivals in phase {barrier.phase} of {barrier.name}"
            + (f", or a count of {barrier.count - barrier.pending}" if some else "")
            if sure
            else "",
            sure,
        )
    number = -(-barrier.pending // 4) if some else barrier.count // 4
    absent = [
        party
        for party in waiting
        if party.role == COMPUTE.name
        and _name(party, waiting) not in dict(barrier.arrived)
        and (some or party.did == FINISHED)
    ]
    names = " and ".join(_name(party, waiting) for party in absent)
    who = f" by {names}" if len(absent) == number else ""
    fix = (
        f"{number} arrivals (barrier_arrive, or copies)"
        if number > 1
        else "one arrival (barrier_arrive, or a copy)"
    )
    fix += f"{' more' * some} in phase {barrier.phase} of {barrier.name}"
    fix += who + " before the wait for it" * some
    if some:
        fix += f", or a Barrier with num_arrivals={(barrier.count - barrier.pending) // 4}"
    elif not who:
        fix += (
            ", by a warpgroup that does not wait for it first; or wait for another barrier: in a "
            "ring, barriers.at[i] for slot i"
        )
    return Hint(
        "too-few-arrivals",
        f"{_misses(barrier)}a barrier_arrive or a copy is missing, or the count is higher than the "
        "number of arrivals (an arrival by a warpgroup or a copy counts 4, one per warp)",
        fix,
        sure,
    )


def _no_release(barrier: Barrier, waiting: Sequence[Party]) -> Hint:
    """Return the hint for a slot that is still in use, because a warpgroup in later steps, or one
    that has finished, did not release it."""
    some, row = barrier.pending < barrier.count, BARRIERS[barrier.kind]
    done = [who for who, times in barrier.arrived for _ in range(times)]
    missing = [
        party
        for party in waiting
        if party.role == row.completes.name and done.count(_name(party, waiting)) < row.arrivals
    ]
    late = [
        party
        for party in missing
        if party.did == FINISHED
        or (
            party.ring == barrier.ring
            and party.step is not None
            and barrier.step is not None
            and party.step > barrier.step
        )
    ]
    names = [_name(party, waiting) for party in late or missing] if done or not some else []
    who, has, gives = (
        (", ".join(names), "have", "release")
        if len(names) > 1
        else (names[0] if names else "one of the compute warpgroups", "has", "releases")
    )
    slot = f"slot {barrier.slot} of {barrier.ring} after step {barrier.step}"
    sure = some or bool(late)
    return Hint(
        "too-few-arrivals",
        f"{_misses(barrier)}a slot was never released, or the count is higher than the number of "
        f"arrivals: {who} {has} not released {slot}",
        f"{who} {gives} {slot}, on every path through the body: one barrier_arrive per step on its "
        "consumed barrier, by all four warps"
        if sure
        else "",
        sure,
    )


def _no_load(barrier: Barrier, waiting: Sequence[Party]) -> Hint:
    """Return the hint for a slot that was not filled. Whatever blocks the memory role is the cause,
    unless it has finished."""
    role = BARRIERS[barrier.kind].completes.name
    loaders = [party for party in waiting if party.role == role]
    over = any(party.did == FINISHED for party in loaders)
    who = (
        ", ".join(
            f"{_name(party, waiting)} {'has' if over else 'is'} {party.did}" for party in loaders
        )
        or "no warpgroup loads"
    )
    return Hint(
        "too-few-arrivals",
        f"{_misses(barrier)}step {barrier.step} was never loaded into slot {barrier.slot} of "
        f"{barrier.ring}: {who}",
        "load as many steps as are computed: both roles must run the same pipelines with the same "
        "grids"
        if over
        else "",
        over,
    )
