"""How reductions combine elements.

The kinds of reductions are sums ("sum"), sums of products ("dot"), maxima ("max"), maxima of
absolute values ("top") and indices of maxima ("argmax", the first, where NaN is largest).
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, call-overload, index, arg-type"

from __future__ import annotations

import numpy as np

from ..core.functions import Function, function
from ..language.tiles.mathematics import differ

BEYOND = 2**31 - 1
"""larger than every index"""


def combiner(
    kind: str, axis: int | None, exact: bool, finish: Function | None, again: bool = False
) -> tuple[Function, Function, Function]:
    """Return functions of kernels: ``combined(total, at, tile, place)`` combines a tile, whose
    indices are `place`, with those before, element by element; ``reduced(total, at)`` combines the
    elements of a tile along an axis (None: each element is a result). Both return the new values of
    `total` and of `at`: the indices, or for exact sums, what additions have rounded away.
    ``final(result, at, scale)`` returns what is stored.

    exact   whether sums include what additions have rounded away
    finish  function of results
    again   whether tiles with indices come in any order; elements are compared as float32
    """
    index, sums = kind == "argmax", kind in ("sum", "dot")

    @function
    def combined(total, at, tile, place):
        if kind == "top":
            tile = np.abs(tile)
        if sums or index:
            # -0 becomes 0, so that equal numbers have equal bits
            tile = tile + 0.0
        if sums or again:
            tile = tile.astype(np.float32)
        if sums:
            whole = total + tile
            if exact:
                at = at + (tile - (whole - total))
            return whole, at
        higher = np.maximum(total, tile)
        if index:
            changed = differ(higher, total)
            if again:
                at = np.where(differ(tile, total), at, np.minimum(at, place))
            at = np.where(changed, place, at)
        return higher, at

    @function
    def reduced(total, at):
        if sums:
            if exact:
                total = total + np.where(np.isnan(at), 0.0, at)  # NaN if a sum is infinite
            return (total if axis is None else total.sum(axis=axis)), at
        if axis is None:
            return total.astype(np.float32), at
        highest = total.max(axis=axis).astype(np.float32)
        if not index:
            return highest, at
        total = total.astype(np.float32)
        top = highest[:, None] if axis else highest[None, :]
        # An index that no element has replaced is that of the first one, which is then -inf. NaN
        # from 16-bit elements has other bits than a float32 maximum; adding 0 makes them the same
        return highest + 0.0, np.where((total == top) | np.isnan(total), at, BEYOND).min(axis=axis)

    @function
    def final(result, at, scale):
        if index:
            return at
        result = result * scale
        return result if finish is None else finish(result)

    return combined, reduced, final
