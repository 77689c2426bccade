"""Detection of output elements that nobody has written when the launch has ended."""

from __future__ import annotations

import numpy as np

from ..diagnostics.errors import SimulationError, reported
from ..diagnostics.reports import Party, Report
from ..plan.roles import COMPUTE
from . import gmem_accesses
from .gmem import GlobalMemory

COVER = (
    "store to all of it: a grid and loops that cover it (numpipe.cdiv rounds up), and a part for "
    "each warpgroup"
)


def unwritten(
    gmem: GlobalMemory, name: str, array: np.ndarray, before: np.ndarray | None
) -> SimulationError | None:
    """Return the error for output elements that nobody wrote, which it names; None if there are
    none.

    `before` is the earlier contents of the array; None if the call has allocated it, filled with
    bytes 0xFF. An element that differs from that was written, in whatever way. A passed array that
    the kernel also reads is updated in place, so not all of its elements need to be written.
    """
    if not array.size:
        return None
    place = gmem.place(array)
    if before is not None and place.read.any():
        return None
    units = tuple(range(array.ndim, place.written.ndim))
    missing = (place.written == 0).all(axis=units) & _same(array, before)
    if not missing.any():
        return None
    number, whole = int(missing.sum()), tuple(slice(0, size) for size in array.shape)
    box = gmem_accesses.extent(missing, whole)
    within = (
        ""
        if number == np.prod([part.stop - part.start for part in box])
        else f"{number} elements within "
    )
    where = f"{within}{name}[{', '.join(f'{part.start}:{part.stop}' for part in box)}]"
    if before is None:
        cause = (
            f"'{name}' is allocated by the call (out_type), and these elements are uninitialized"
        )
        fix = (
            f"{COVER}; to keep the other elements unchanged, pass '{name}' or out= with its values"
        )
    else:
        cause = "these elements keep their values from before the call"
        fix = f"{COVER}; if this is intended, verify(…, partial='{name}')"
    last = gmem.newest_write(place)
    what = f"{where}, {number} of {array.size} elements, is never written: {cause}"
    newest = "" if last is None else f"\n  last:   {last.tell()}"
    text = f"{what}{newest}\n  fix:    {fix}"
    now = Party("stores nothing there", 0, COMPUTE.name) if last is None else last.party()
    return reported(SimulationError, Report("unwritten-output", text, now, cause=cause, fix=fix))


def _same(array: np.ndarray, before: np.ndarray | None) -> np.ndarray:
    """Return for each element whether it has its earlier value."""
    now = _bytes(array)
    return np.asarray((now == (0xFF if before is None else _bytes(before))).all(axis=-1))


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(array.shape)[..., None].view(np.uint8)
