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
from .layouts import EITHER, Form

_Numbers = npt.NDArray[np.int64]


@functools.lru_cache(maxsize=256)
def held(form: Form) -> tuple[_Numbers, _Numbers]:
    """Return (rows, columns) of the elements that each warp has: one row of the result per warp,
    each element once.

    For a vector the row is 0, and in either layout all warps have all of it.

    >>> held(Form((64,), np.dtype(np.float32), "column"))[1][1].tolist() == list(range(16, 32))
    True
    """
    record = form.record
    places = record.places(form.shape)
    rows, columns = (
        lane[:, None] + np.array([place[axis] or 0 for place in places])
        for axis, lane in enumerate(record.own(np.arange(LANES)))
    )
    if len(form.shape) == 1:
        rows, columns = np.zeros_like(rows), columns if record.axes == (1,) else rows
    across = form.shape[-1]
    numbers = np.stack([np.unique(warp) for warp in (rows * across + columns).reshape(4, -1)])
    return numbers // across, numbers % across


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
    record = form.record
    row, column = record.own(np.arange(LANES))
    found, flat = [], len(form.shape) == 1
    for down, right in record.places(form.shape)[:: 1 + pairs]:
        rows, columns = row + (down or 0), column + (right or 0)
        if flat:
            rows, columns = np.zeros_like(rows), columns if right is not None else rows
        lanes = swizzled(address + layout.offset(rows + start[0], columns + start[1]), layout.width)
        found += list(np.asarray(lanes).reshape(4, 32)[: record.warps])
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
        layout.inner == 1 and start[1] % 2 == 0 and form.layout != EITHER and 1 in form.record.axes
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
    warps = form.record.warps
    if warps == 1:
        current().scoped("one", operation, (where[:1], values[:1], *more))
    else:
        operation(where[:warps], values[:warps], *more)
