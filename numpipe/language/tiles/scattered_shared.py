"""Register tiles loaded from and stored to shared memory at any position, element by element.

This path is used for one-dimensional tiles, and for parts of other tiles that do not start at a row
where the swizzle pattern repeats (``tile[ds(i - 1, 64), ds(1, 128)]``): a stencil reads its
neighbors as shifted views of one tile. Each lane computes the address of each of its elements.
Offsets by whole patterns, 8 rows or a panel, are immediates of the instruction.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ...arch.register_layouts import LANES
from ...core.machine import current
from ...plan.layout import Layout, swizzled
from .layout_names import EITHER
from .layouts import Form

_Numbers = npt.NDArray[np.int64]


@functools.lru_cache(maxsize=256)
def held(form: Form) -> tuple[_Numbers, _Numbers]:
    """Return (rows, columns) of the elements that each warp has: one row of the result per warp,
    each element once.

    For a vector the row is 0, and in either layout all warps have all of it.

    >>> held(Form((64,), np.dtype(np.float32), "column"))[1][1].tolist() == list(range(16, 32))
    True
    """
    each = _by_warp(form)
    # a warp that has fewer elements than others, or none, has one of them several times
    most, across = max(map(len, each)), form.shape[-1]
    numbers = np.stack([np.resize(own if len(own) else each[0][:1], most) for own in each])
    return numbers // across, numbers % across


@functools.lru_cache(maxsize=256)
def _by_warp(form: Form) -> list[_Numbers]:
    """Return the elements that each warp has, as numbers in row-major order."""
    rows, columns = lane_elements(form)
    inside = (rows < _rows(form)) & (columns < form.shape[-1])
    numbers = np.where(inside, rows * form.shape[-1] + columns, -1)
    return [np.unique(warp[warp >= 0]) for warp in numbers.reshape(4, -1)]


def _rows(form: Form) -> int:
    return form.shape[0] if len(form.shape) == 2 else 1


def lane_elements(form: Form) -> tuple[_Numbers, _Numbers]:
    """Return (rows, columns) of the elements of each lane, also of those outside the tile."""
    form = form.settled()
    of = form.record
    rows, columns = (
        np.zeros((LANES, 1), np.int64)
        + (lane[:, None] if axis in of.axes else 0)
        + np.array([place[axis] or 0 for place in form.places])
        for axis, lane in enumerate(of.own(np.arange(LANES)))
    )
    if len(form.shape) == 1:
        rows, columns = np.zeros_like(rows), columns if of.axes == (1,) else rows
    return rows, columns


def holding(form: Form) -> int:
    """Return how many warps, from the first one on, have elements of a tile that no warp before
    them has."""
    return min(form.record.warps, sum(bool(len(own)) for own in _by_warp(form)))


def addresses(layout: Layout, address: int, form: Form, start: tuple[int, int]) -> _Numbers:
    """Return the addresses of the elements that each warp has of a part of a tile that starts at
    (row, column)."""
    rows, columns = held(form)
    return np.asarray(
        swizzled(address + layout.offset(rows + start[0], columns + start[1]), layout.width)
    )


def lane_addresses(
    layout: Layout, address: int, form: Form, start: tuple[int, int], pairs: bool
) -> list[_Numbers]:
    """Return the addresses of each access of a warp, one per lane: one element at a time, or with
    `pairs` two adjacent elements."""
    found, lines = [], (_rows(form) - 1, form.shape[-1] - 1)
    rows, columns = (
        np.minimum(every, last).T[:: 1 + pairs]
        for every, last in zip(lane_elements(form), lines, strict=True)
    )
    for row, column in zip(rows, columns, strict=True):
        lanes = swizzled(address + layout.offset(row + start[0], column + start[1]), layout.width)
        found += list(np.asarray(lanes).reshape(4, 32)[: form.record.warps])
    return found


def _note(
    kind: str,
    what: str,
    layout: Layout,
    address: int,
    form: Form,
    start: tuple[int, int],
    pairs: bool = False,
) -> None:
    """Record the lanes' accesses in a trace (`sim.banks`)."""
    current().note(
        "accesses",
        lanes=functools.partial(lane_addresses, layout, address, form, start, pairs),
        what=what,
        kind=kind,
        nbytes=form.dtype.itemsize * (1 + pairs),
    )


def load(
    layout: Layout,
    address: int,
    form: Form,
    start: tuple[int, int],
    fetch: Callable[[_Numbers, int, str], np.ndarray] | None = None,
) -> np.ndarray:
    """Return the elements of a part of a tile. `fetch` replaces `smem_load`."""
    rows, columns = held(form)
    pairs = (
        layout.inner == 1
        and (start[1] | form.shape[-1]) % 2 == 0
        and form.layout != EITHER
        and 1 in form.record.axes
    )
    _note("read", "tile[…]", layout, address, form, start, pairs)
    found = (fetch or current().smem_load)(
        addresses(layout, address, form, start), form.dtype.itemsize, "tile[…]"
    )
    value = np.empty((form.shape[0] if len(form.shape) == 2 else 1, form.shape[-1]), form.dtype)
    value[rows, columns] = found.view(form.dtype)[..., 0]
    return value.reshape(form.shape)


def store(
    layout: Layout, address: int, form: Form, start: tuple[int, int], value: np.ndarray
) -> None:
    """Store a tile to a part of another. If several warps have an element, the first stores it."""
    rows, columns = held(form)
    _note("write", "tile[…] = value", layout, address, form, start)
    whole = np.ascontiguousarray(value).reshape(-1, form.shape[-1])
    found = whole[rows, columns][..., None].view(np.uint8)
    by_first(
        current().smem_store,
        form,
        addresses(layout, address, form, start),
        found,
        "tile[…] = value",
    )


def by_first(
    operation: Callable[..., None], form: Form, where: _Numbers, values: np.ndarray, *more: str
) -> None:
    """Call a machine's operation with the addresses `where` and the `values` of the elements that
    each warp has of a tile. If several warps have an element, the first does it."""
    warps = holding(form)
    if warps == 1:
        current().scoped("one", operation, (where[:1], values[:1], *more))
    else:
        operation(where[:warps], values[:warps], *more)
