"""The shared memory of a CTA: how many slots fit, and operand by operand what the error says where it is more than there is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arch.hopper import HOPPER
from ..diagnostics.errors import SpecError
from .layout import ATOM

if TYPE_CHECKING:
    from .unit import Unit

__all__ = ["fit_slots"]

PANEL_BYTES = 8192  # of a store slot: 64 rows of 128 bytes
HEADER = 1024  # barriers, and counters on their way


def fit_slots(*blocks: tuple[Sequence[int], Any], store_slots: int = 1, num_compute_wgs: int = 2, other_bytes: int = 0) -> int:
    """Slots of a ring that fit into the shared memory of a CTA (227 KB): a value for ``max_concurrent_steps``.

    blocks           (shape in elements, dtype) of each operand's block; each takes a multiple of 1024 bytes of a slot
    store_slots      panels of 8192 bytes (64 rows x 128 bytes) to leave to each compute warpgroup for ``c[…] = tile``, 0…8: the
                     fewer, the sooner a store waits for the one before; give `CompilerParams` the same number, or it takes
                     what the slots leave, up to a tile's panels
    num_compute_wgs  compute warpgroups of the CTA
    other_bytes      of shared memory for something else: scratch, other rings

    The ring of a 128 x 256 tile has 4 slots and 1 panel a warpgroup, or 3 and all 4 of a tile of 64 x 256:

    >>> a, b = ((128, 64), np.float16), ((256, 64), np.float16)
    >>> fit_slots(a, b), fit_slots(a, b, store_slots=4)
    (4, 3)

    Raises SpecError where not even one fits. (CUDA C++ Programming Guide, "Compute Capabilities": shared memory of 9.0.)
    """
    stage: int = sum(-(-math.prod(shape) * np.dtype(dtype).itemsize // ATOM) * ATOM for shape, dtype in blocks)
    if not stage:
        raise SpecError(f"fit_slots: the blocks have no bytes, got {blocks}: give (shape, dtype) of each operand's block")
    staging = num_compute_wgs * store_slots * PANEL_BYTES
    room = HOPPER.smem_bytes - HEADER - staging - other_bytes
    if room < stage:
        raise SpecError(f"fit_slots: a slot is {stage} B, but of {HOPPER.smem_bytes} B {max(0, room)} B are left beside {HEADER} B "
                        f"of barriers, {staging} B of store_slots ({num_compute_wgs} warpgroups x {store_slots} x {PANEL_BYTES} B) "
                        f"and {other_bytes} B of other_bytes: use smaller blocks or fewer store_slots")
    return room // stage


def too_much(unit: Unit, header: int, staging: int) -> SpecError:
    """The error, with a table: bytes, whose, and of how many slots.

    `header` and `staging` are the bytes of barriers and of the store ring.
    """
    found = rows(unit, header, staging)
    total = sum(size for size, _ in found)
    width = len(str(total))
    return SpecError("\n".join([
        f"kernel {unit.kernel}: shared memory: {total} B, but a CTA has {unit.target.smem_bytes} B: use fewer slots "
        "(max_concurrent_steps, buffer_count), smaller blocks or fewer store_slots"
        + ", or smaller scratch: what is not used at one time may share memory, in a RefUnion" * bool(unit.scratch),
        *(f"  {size:>{width}} B  {what}" for size, what in found)]))


def rows(unit: Unit, header: int, staging: int) -> list[tuple[int, str]]:
    """(bytes, whose, and of how many slots) of all that a CTA has in shared memory, without what is left over between."""
    found = [(header, "barriers"), *_rings(unit), *_scratch(unit)]
    if staging:
        slots = staging // unit.compute_wgs // PANEL_BYTES
        warpgroups = f"{unit.compute_wgs} warpgroup{'s' * (unit.compute_wgs > 1)}"
        found.append((staging, f"'array[…] = tile': {warpgroups} x {slots} store slots x {PANEL_BYTES} B"))
    if unit.exchange_bytes:
        what = "reductions and layout casts" if unit.casts else "reductions"
        each = f" for each of {unit.compute_wgs} warpgroups" * (unit.compute_wgs > 1)
        found.append((unit.compute_wgs * unit.exchange_bytes, f"{what} of register tiles: {unit.exchange_bytes} B{each}"))
    return found


def _rings(unit: Unit) -> Iterator[tuple[int, str]]:
    for plan in (*unit.load_rings, *unit.outputs.values()):
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
