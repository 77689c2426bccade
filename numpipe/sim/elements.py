"""Loads, stores and atomics of single elements of shared memory by the warps of a warpgroup: at any address, a row of them a warp.

An atomic (PTX ISA, "red", "atom") is ordered with other atomics on the same bytes by the hardware; with loads and stores only by
what orders these with each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .boxes import UPDATES, intervals
from .footprints import WRITES
from .generic import note_all
from .state import Warpgroup

Addresses = npt.NDArray[np.int64]


def _touch(who: Warpgroup, addresses: Addresses, nbytes: int, what: str, kind: str) -> None:
    """Record what each warp touches, all or the first of them: `nbytes` at each of its addresses."""
    who.sm.memory.check_range(who, int(addresses.min()), int(addresses.max()) + nbytes, what)
    who.elapse(-(-nbytes * addresses.size // who.sm.costs.generic_bytes))
    note_all(who, what, kind, ((0, intervals(own, nbytes)) for own in addresses))


def _view(who: Warpgroup, addresses: Addresses, nbytes: int) -> tuple[Any, Any]:
    """Return an index into the bytes of shared memory, of `nbytes` at each address."""
    return who.sm.memory.bytes, addresses[..., None] + np.arange(nbytes)


def load(who: Warpgroup, addresses: Addresses, nbytes: int, what: str) -> npt.NDArray[np.uint8]:
    _touch(who, addresses, nbytes, what, "read")
    memory, where = _view(who, addresses, nbytes)
    return memory[where]  # type: ignore[no-any-return]


def store(who: Warpgroup, addresses: Addresses, values: npt.NDArray[np.uint8], what: str) -> None:
    _touch(who, addresses, values.shape[-1], what, "write")
    memory, where = _view(who, addresses, values.shape[-1])
    memory[where] = values


def update(who: Warpgroup, addresses: Addresses, values: npt.NDArray[Any], reduction: str, what: str) -> None:
    _touch(who, addresses, values.itemsize, what, "atomic")
    touch_atomic(who, int(addresses.min()), int(addresses.max()) + values.itemsize, values.dtype, reduction)
    combine(who.sm.memory.bytes, addresses, values, reduction)


def touch_atomic(who: Warpgroup, lo: int, hi: int, dtype: np.dtype[Any], reduction: str) -> None:
    """Note atomics on SMEM[lo:hi): those of one kind commute, but for sums of floats, which round."""
    who.sm.scheduler.touch_bytes(who.place, lo, hi, reduction if dtype.kind in "iub" else WRITES)


def combine(memory: npt.NDArray[np.uint8], addresses: Addresses, values: npt.NDArray[Any], reduction: str) -> None:
    """Combine each value with what is at its address, one after another."""
    with np.errstate(all="ignore"):
        UPDATES[reduction].at(memory.view(values.dtype), addresses // values.itemsize, values)
