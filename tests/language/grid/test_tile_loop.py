"""numpipe.tiles: the tiles that each CTA visits in row order. test_orders has the other orders."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe.core.machine import current
from numpipe.core.op import op

seen: list[tuple[int, ...]] = []


@op
def visit(*indices: Any) -> None:
    """Record the tiles that a compute warpgroup visits."""
    if current().role.computes:
        seen.append((int(current().cta[0]), *(int(i) for i in indices)))


def visited(kernel: Any, *args: Any, **statics: Any) -> list[tuple[int, ...]]:
    seen.clear()
    kernel.simulate(*args, **statics)
    return list(seen)


C = np.zeros((8, 8), np.float32)


@pytest.mark.parametrize("ctas", [1, 2, 3])
def test_row_order_visits_the_last_index_fastest(ctas: int) -> None:
    @numpipe.kernel(grid=numpipe.persistent(ctas=ctas))
    def walk(c, m, n, o, *, dimensions: numpipe.Static):
        if dimensions == 1:
            for (i,) in numpipe.tiles(m):
                visit(i)
        elif dimensions == 2:
            for i, j in numpipe.tiles(m, n):
                visit(i, j)
        else:
            for i, j, k in numpipe.tiles(m, n, o):
                visit(i, j, k)

    for shape in itertools.product((0, 1, 2, 5), (1, 3, 4), (1, 2)):
        for rank in (1, 2, 3):
            order = list(np.ndindex(*shape[:rank]))
            expected = [(cta, *tile) for cta in range(ctas) for tile in order[cta::ctas]]
            assert visited(walk, C, *shape, dimensions=rank) == expected, (shape, rank)


def test_continue_and_break_in_a_tile_loop() -> None:
    @numpipe.kernel
    def some(c, n):
        for (i,) in numpipe.tiles(n):
            if i == 1:
                continue
            if i == 4:
                break
            visit(i)

    assert visited(some, C, 9) == [(0, 0), (0, 2), (0, 3)]
