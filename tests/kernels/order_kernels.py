"""Kernels that write a tile's number where its order places it, for the simulator and the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import ds, orders

ROWS, COLUMNS = 64, 8
"""size of a tile in the output"""
ORDERS: list[Any] = ["row", "column", orders.Grouped(3), orders.Snake(2), "snake"]


def on_host(order: Any) -> orders.Order:
    return orders.named(order) if isinstance(order, str) else order


@numpipe.function
def put(c, m, n, t):
    """Store t in tile (m, n)."""
    tile = numpipe.zeros((ROWS, COLUMNS), np.float32) + t * 1.0
    c[ds(m * ROWS, ROWS), ds(n * COLUMNS, COLUMNS)] = tile


walker = numpipe.kernel(grid=numpipe.persistent(ctas=3))


@walker
def numbered(c, planes, rows, columns, *, order: numpipe.Static = "row"):
    """Store t + 1 in the place of tile t, of planes x rows x columns in an order."""
    t = numpipe.program_id(0) + 1
    for p, m, n in numpipe.tiles(planes, rows, columns, order=order):
        put(c, p * rows + m, n, t)
        t = t + numpipe.num_programs(0)


@walker
def one_plane(c, rows, columns, *, order: numpipe.Static = "row"):
    t = numpipe.program_id(0) + 1
    for p, m, n in numpipe.tiles(1 if c.ndim == 2 else c.shape[0], rows, columns, order=order):
        put(c, p * rows + m, n, t)
        t = t + numpipe.num_programs(0)


@walker
def grouped_at_run_time(c, rows, columns, group, *, order: numpipe.Static = "grouped"):
    t = numpipe.program_id(0) + 1
    for m, n in numpipe.tiles(rows, columns, order=order, group=group):
        put(c, m, n, t)
        t = t + numpipe.num_programs(0)


@walker
def by_table(table, c, rows, columns):
    t = numpipe.program_id(0) + 1
    for m, n in numpipe.tiles(rows, columns, order=table):
        put(c, m, n, t)
        t = t + numpipe.num_programs(0)


@walker
def some_rows(table, c, rows):
    """Visit only the first `rows` rows of a table."""
    t = numpipe.program_id(0) + 1
    for m, n in numpipe.tiles(rows, order=table):
        put(c, m, n, t)
        t = t + numpipe.num_programs(0)


def output(rows: int, columns: int) -> np.ndarray:
    return np.zeros((max(rows, 1) * ROWS, max(columns, 1) * COLUMNS), np.float32)


def numbers(c: np.ndarray) -> np.ndarray:
    """Return the number stored in each tile minus one; -1 for a tile that was not written.

    Raises AssertionError for a tile with more than one value.
    """
    tiles = c.reshape(len(c) // ROWS, ROWS, -1, COLUMNS).transpose(0, 2, 1, 3)
    assert (tiles == tiles[:, :, :1, :1]).all()
    return tiles[:, :, 0, 0].astype(int) - 1


def expected(order: orders.Order, shape: tuple[int, ...]) -> np.ndarray:
    """Return the expected `numbers` of a grid traversed in an order, with planes stacked
    vertically."""
    table = order.table(shape)
    grid = np.empty(shape, int)
    grid[tuple(table.T)] = np.arange(len(table))
    return grid.reshape(-1, shape[-1])
