"""The shared memory of a CTA, operand by operand: what the error says where it is more than there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .errors import SpecError

if TYPE_CHECKING:
    from ._unit import Unit

SMEM_BYTES = 232448  # 227 KB: what one CTA of sm_90 can have (CUDA C++ Programming Guide, "Compute Capabilities")
PANEL_BYTES = 8192  # of a store slot: 64 rows of 128 bytes

def too_much(unit: Unit, header: int, staging: int) -> SpecError:
    """The error, with a table: bytes, whose, and of how many slots.

    `header` and `staging` are the bytes of barriers and of the store ring.
    """
    found = rows(unit, header, staging)
    total = sum(size for size, _ in found)
    width = len(str(total))
    return SpecError("\n".join([
        f"kernel {unit.kernel}: shared memory: {total} B, but a CTA has {SMEM_BYTES} B: use fewer slots (max_concurrent_steps, "
        "buffer_count), smaller blocks or fewer store_slots"
        + ", or smaller scratch: what is not used at one time may share memory, in a RefUnion" * bool(unit.scratch),
        *(f"  {size:>{width}} B  {what}" for size, what in found)]))


def rows(unit: Unit, header: int, staging: int) -> list[tuple[int, str]]:
    """(bytes, whose, and of how many slots) of all that a CTA has in shared memory, without what is left over between."""
    found = [(header, "barriers"), *_rings(unit), *_scratch(unit)]
    if staging:
        slots = staging // unit.compute_wgs // PANEL_BYTES
        warpgroups = f"{unit.compute_wgs} warpgroup{'s' * (unit.compute_wgs > 1)}"
        found.append((staging, f"'array[…] = tile': {warpgroups} x {slots} store slots x {PANEL_BYTES} B"))
    return found


def _rings(unit: Unit) -> Iterator[tuple[int, str]]:
    for plan in (*unit.rings.values(), *unit.outputs.values()):
        copies = max(1, plan.private)
        site = plan.name.rsplit(" @ ", 1)[1]
        ends = (*plan.offsets[1:], plan.stage_stride)
        for arg, label, start, end in zip(plan.args, plan.labels, plan.offsets, ends, strict=True):
            yield copies * plan.slots * (end - start), (
                f"{label} for '{unit.arrays[arg].name}': {f'{copies} warpgroups x ' * (copies > 1)}{plan.slots} "
                f"{'output ' * plan.written}slot{'s' * (plan.slots > 1)} x {end - start} B, pipeline at {site}")


def _scratch(unit: Unit) -> Iterator[tuple[int, str]]:
    for part in unit.scratch.values():
        if part.nbytes:
            each = f": {part.copies} warpgroups x {part.nbytes} B" if part.copies > 1 else ""
            yield part.copies * part.nbytes, f"{part.name}{each}"
