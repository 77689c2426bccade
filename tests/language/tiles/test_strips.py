"""numpipe.map_columns: computing a tile strip by strip gives the same result as computing it
whole."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from numpipe.language.tiles.layouts import Form, places
from tests.kernels.kernels_for_tests import operands
from tests.kernels.strip_kernels import SHAPES, expected, numbered
from tests.language.pipeline.test_turns import compiles


@pytest.mark.variants(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_each_strip_is_given_its_first_column(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    for rows, columns, width in SHAPES:
        a, b = operands(rows, columns, 16)
        c = numbered(
            a,
            b,
            factor=0.5,
            rows=rows,
            columns=columns,
            width=width,
            dtype=np.dtype(dtype).name,
            target="sim",
        )
        np.testing.assert_array_equal(c, expected(a, b, 0.5, dtype))


@compiles
def test_a_strip_is_the_registers_of_its_columns() -> None:
    from numpipe.language.tiles.store_ring_cuda import registers_of
    from numpipe.language.tiles.tile_cuda import TileType

    for dtype, each in ((np.dtype(np.float32), 1), (np.dtype(np.float16), 2)):
        for rows, columns, width in SHAPES:
            tile = TileType(Form((rows, columns), dtype))
            strip = TileType(Form((rows, width), dtype))
            taken = [
                [
                    register
                    for row in range(0, rows, 64)
                    for register in range(tile.registers)[registers_of(tile, row, first, width)]
                ]
                for first in range(0, columns, width)
            ]
            assert sorted(itertools.chain(*taken)) == list(range(tile.registers))
            for number, run in enumerate(taken):
                own = [places(tile.shape, tile.layout)[each * register] for register in run]
                assert own == [
                    (r, c + number * width) for r, c in places(strip.shape, strip.layout)[::each]
                ]  # type: ignore[operator]
