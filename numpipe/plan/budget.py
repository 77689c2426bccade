"""The shared memory of a CTA: regions of it, and how many slots of a ring fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..arch.dimensions import round_up
from ..arch.dtypes import BY_DTYPE
from ..arch.targets import DEFAULT
from ..diagnostics.argument_checks import SHAPE, Rule, each, element_type, require, whole
from ..diagnostics.errors import SpecError
from .layout import ATOM

__all__ = ["fit_slots"]

PANEL_BYTES = 8192  # bytes of a panel of a store slot: 64 rows of 128 bytes
HEADER = 1024  # bytes for barriers, and for counters that a warpgroup passes to the next


@dataclass(frozen=True)
class Region:
    """A region of `nbytes` of shared memory that starts at `base`. With `owners`, each of that many
    compute warpgroups has `nbytes` of its own, one after another.

    >>> Region(1024, 256, owners=2).at(1), Region(1024, 256).at(1)
    (1280, 1024)
    """

    base: int
    nbytes: int
    owners: int = 0
    """0: the warpgroups share the bytes."""

    def at(self, number: int) -> int:
        """Return the address of a compute warpgroup's bytes."""
        return self.base + (number * self.nbytes if self.owners else 0)

    @property
    def total(self) -> int:
        return max(1, self.owners) * self.nbytes

    @property
    def end(self) -> int:
        return self.base + self.total

    def __contains__(self, address: int) -> bool:
        return self.base <= address < self.end


def fit_slots(
    *blocks: tuple[Sequence[int], Any],
    store_slots: int = 1,
    num_compute_wgs: int = 2,
    other_bytes: int = 0,
) -> int:
    """Return how many slots of a ring fit in the shared memory of a CTA (227 KB). Pass it as
    ``max_concurrent_steps``.

    blocks           (shape in elements, dtype) of each operand's block; each takes a multiple of
                     1024 bytes of a slot
    store_slots      panels of 8192 bytes (64 rows x 128 bytes) to reserve for ``c[…] = tile`` in
                     each compute warpgroup, 0…8; with fewer panels, a store waits sooner for the
                     previous one. Pass the same number to `CompilerParams`: by default the store
                     ring takes what the slots leave, up to a tile's panels
    num_compute_wgs  compute warpgroups of the CTA
    other_bytes      shared memory used for anything else: scratch, other rings

    For a 128 x 256 tile the ring has 4 slots with 1 store panel per warpgroup, or 3 slots with 4
    panels (all of a 64 x 256 part):

    >>> a, b = ((128, 64), np.float16), ((256, 64), np.float16)
    >>> fit_slots(a, b), fit_slots(a, b, store_slots=4)
    (4, 3)

    Raises SpecError if not even one slot fits. (CUDA C++ Programming Guide, "Compute Capabilities":
    shared memory of 9.0.)
    """
    pair = Rule(
        ("a pair (shape, dtype)",),
        lambda one: isinstance(one, tuple) and len(one) == 2 and SHAPE.holds(one[0]),
    )
    require(
        "fit_slots",
        locals(),
        store_slots=whole(0),
        num_compute_wgs=whole(1, 8),
        other_bytes=whole(0),
        blocks=each(pair),
    )
    stage = sum(
        round_up(BY_DTYPE[element_type("fit_slots", dtype)].nbytes(math.prod(shape)), ATOM)
        for shape, dtype in blocks
    )
    if not stage:
        raise SpecError(
            f"fit_slots: expected (shape, dtype) of each operand's block, got {blocks}, which "
            "have no bytes; fix: fit_slots(((128, 64), np.float16), ((256, 64), np.float16))"
        )
    staging = num_compute_wgs * store_slots * PANEL_BYTES
    room = DEFAULT.smem_bytes - HEADER - staging - other_bytes
    if room < stage:
        raise SpecError(
            f"fit_slots: a slot needs {stage} B, but only {max(0, room)} B of "
            f"{DEFAULT.smem_bytes} B are left after {HEADER} B of barriers, {staging} B of "
            f"store_slots ({num_compute_wgs} warpgroups x {store_slots} x {PANEL_BYTES} B) and "
            f"{other_bytes} B of other_bytes; fix: use smaller blocks or fewer store_slots"
        )
    return room // stage
