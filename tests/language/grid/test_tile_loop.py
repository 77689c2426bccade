"""numpipe.tiles: in which order tiles come, and who visits them, against a model in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe.core.machine import current
from numpipe.core.op import op

seen: list[tuple[int, ...]] = []


@op
def visit(*indices: Any) -> None:
    """Test probe: which tiles a compute warpgroup walks through."""
    if current().role == "compute":
        seen.append((int(current().cta[0]), *(int(i) for i in indices)))


def visited(kernel: Any, *args: Any) -> list[tuple[int, ...]]:
    seen.clear()
    kernel.simulate(*args)
    return list(seen)


def shares(order: list[tuple[int, ...]], ctas: int) -> list[tuple[int, ...]]:
    """The tiles of an order as CTA 0, 1, … visit them."""
    return [(cta, *tile) for cta in range(ctas) for tile in order[cta::ctas]]


def in_groups(rows: int, columns: int, group: int) -> Iterator[tuple[int, int]]:
    """A model of order="grouped": blocks of `group` rows; in a block, columns slowest."""
    grid = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1)
    for start in range(0, rows, group):
        yield from map(tuple, grid[start:start + group].transpose(1, 0, 2).reshape(-1, 2).tolist())


def walker(ctas: int, order: str, dimensions: int) -> Any:
    options: dict[str, Any] = {"num_compute_wgs": 1, "grid": numpipe.persistent(ctas=ctas)}
    if order == "grouped":
        @numpipe.kernel(**options)
        def grouped(c, m, n, group):
            for i, j in numpipe.tiles(m, n, order="grouped", group=group):
                visit(i, j)

        return grouped
    if dimensions == 1:
        @numpipe.kernel(**options)
        def row_1(c, m):
            for i, in numpipe.tiles(m):
                visit(i)

        return row_1
    if dimensions == 2:
        @numpipe.kernel(**options)
        def row_2(c, m, n):
            for i, j in numpipe.tiles(m, n, order="row"):
                visit(i, j)

        return row_2

    @numpipe.kernel(**options)
    def row_3(c, m, n, o):
        for i, j, k in numpipe.tiles(m, n, o):
            visit(i, j, k)

    return row_3


C = np.zeros((8, 8), np.float32)


@pytest.mark.parametrize("ctas", [1, 2, 3])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_row_order_visits_the_last_index_fastest(ctas: int, dimensions: int) -> None:
    kernel = walker(ctas, "row", dimensions)
    for shape in itertools.product((0, 1, 2, 5), (1, 3, 4), (1, 2)):
        counts = shape[:dimensions]
        assert visited(kernel, C, *counts) == shares(list(np.ndindex(*counts)), ctas), counts


@pytest.mark.parametrize("ctas", [1, 3])
def test_grouped_order_visits_rows_of_a_group_fastest(ctas: int) -> None:
    kernel = walker(ctas, "grouped", 2)
    for rows, columns, group in itertools.product((0, 1, 2, 3, 5, 8), (1, 2, 5), (1, 2, 3, 4, 16)):
        expected = list(in_groups(rows, columns, group))
        assert sorted(expected) == list(np.ndindex(rows, columns))
        assert visited(kernel, C, rows, columns, group) == shares(expected, ctas), (rows, columns, group)


@pytest.mark.parametrize("ctas", [1, 2])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_table_is_walked_row_by_row(ctas: int, rows: int) -> None:
    @numpipe.kernel(num_compute_wgs=1, grid=numpipe.persistent(ctas=ctas))
    def walk(c, table):
        for i, j in numpipe.tiles(table.shape[0], order=table):
            visit(i, j)

    table = np.random.default_rng(rows).integers(0, 99, (rows, 3), np.int32)
    assert visited(walk, C, table) == shares([(int(i), int(j)) for i, j, _ in table], ctas)


def test_continue_and_break_in_a_tile_loop() -> None:
    @numpipe.kernel(num_compute_wgs=1)
    def some(c, n):
        for i, in numpipe.tiles(n):
            if i == 1:
                continue
            if i == 4:
                break
            visit(i)

    assert visited(some, C, 9) == [(0, 0), (0, 2), (0, 3)]
