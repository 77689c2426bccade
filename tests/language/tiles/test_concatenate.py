"""``np.concatenate`` of register tiles: NumPy's elements, and errors for tiles that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, SpecError
from numpipe.compile.check import gate
from numpipe.language.tiles.concatenate import joined_form
from numpipe.language.tiles.layouts import Form
from numpipe.language.tiles.tile import Tile
from tests.kernels.compilers import compiles


@numpipe.kernel(grid=1, num_compute_wgs=1, out_type=lambda x: ArrayType((128, 96), x.dtype))
def rotated(x, y):
    left, right = x[0:128, 0:32], x[0:128, 32:96]
    y[:, :] = np.concatenate((right, left), axis=1)


@numpipe.kernel(grid=1, num_compute_wgs=1, out_type=lambda x: ArrayType((128, 32), x.dtype))
def swapped(x, y):
    top, bottom = x[0:64, 0:32], x[64:128, 0:32]
    y[:, :] = np.concatenate((bottom, top))


@numpipe.kernel(grid=1, num_compute_wgs=1, out_type=lambda x: ArrayType((96,), x.dtype))
def of_vectors(x, y):
    y[:] = np.concatenate((x[64:96], x[:64]))


@numpipe.kernel(grid=1, num_compute_wgs=1, out_type=lambda x: ArrayType((10, 96), x.dtype))
def of_five_rows(x, y):
    tile = numpipe.load_tile(x.at[0:5, 0:96], "rows 128")
    y[:, :] = np.concatenate((tile, tile))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_tiles_are_joined_as_by_numpy(dtype: Any, target: str) -> None:
    x = np.arange(128 * 96).reshape(128, 96).astype(dtype)
    assert (rotated(x, target=target) == np.concatenate((x[:, 32:], x[:, :32]), 1)).all()
    x = np.ascontiguousarray(x[:, :32])
    assert (swapped(x, target=target) == np.concatenate((x[64:], x[:64]))).all()
    x = np.arange(5 * 96).reshape(5, 96).astype(dtype)
    assert (of_five_rows(x, target=target) == np.concatenate((x, x))).all()
    v = np.arange(96).astype(dtype)
    assert (of_vectors(v, target=target) == np.concatenate((v[64:], v[:64]))).all()


@pytest.mark.parametrize(("rows", "lanes"), [(4, 32), (8, 32), (64, 4)])
def test_rows_that_lanes_share_stay_in_their_registers(rows: int, lanes: int) -> None:
    """Also those of tiles with fewer rows than their lanes have registers for."""
    dtype = np.dtype(np.float16)
    form = Form((rows, 40), dtype, f"rows {lanes}")
    result, parts = joined_form((Tile(np.zeros((rows, 40), dtype), form),) * 2, 0)
    assert result.layout == form.layout
    found = dict.fromkeys(result.places)
    for number, (part, elements) in enumerate(parts):
        assert part == form
        for (row, column), element in zip(part.places, elements, strict=True):
            if element >= 0:
                found[result.places[element]] = (number * rows + row, column)
    # the places of the first lane, whose row and column are 0
    assert all(place == found[place] for place in found if place[0] < 2 * rows)


def test_columns_that_lanes_share_stay_in_their_registers() -> None:
    dtype = np.dtype(np.float32)
    forms = [Form((16, columns), dtype, "rows 16") for columns in (128, 59)]
    result, parts = joined_form(tuple(Tile(np.zeros(form.shape), form) for form in forms), 1)
    assert result == Form((16, 187), dtype, "rows 16")
    assert [part for part, _ in parts] == forms


@pytest.mark.parametrize(
    ("size", "layout", "kept"), [(16, "row 8", "row 8"), (24, "column 16", "row")]
)
def test_short_vectors_are_joined(size: int, layout: str, kept: str) -> None:
    form = Form((size,), np.dtype(np.float32), layout)
    result, parts = joined_form((Tile(np.zeros(size), form),) * 2, 0)
    assert result.layout == kept and all(-1 not in elements for _, elements in parts)


@pytest.mark.parametrize(
    ("shapes", "layout"),
    [(((16, 1), (16, 1)), "column 16"), (((1, 512), (1, 256)), "row 128")],
)
def test_tiles_that_would_have_elements_of_other_lanes_are_refused(
    shapes: Any, layout: str
) -> None:
    dtype = np.dtype(np.float32)
    tiles = tuple(Tile(np.zeros(shape), Form(shape, dtype, layout)) for shape in shapes)
    with pytest.raises(SpecError, match="lanes keep their elements"):
        joined_form(tiles, 1)


@compiles
def test_the_gate_finds_nothing() -> None:
    for kernel, shape in (
        (rotated, (128, 96)),
        (swapped, (128, 32)),
        (of_five_rows, (5, 96)),  # 10 rows have registers for 16
        (of_vectors, (96,)),
    ):
        assert gate.findings(kernel.compiled(np.zeros(shape, np.float32))) == ()


@numpipe.function
def of_two_types(a, b):
    return np.concatenate((a, b.astype(np.float32)), 1)


@numpipe.function
def of_two_heights(a, b):
    return np.concatenate((a, b))


@numpipe.function
def of_a_number(a, b):
    return np.concatenate((a, 3), 1)


@numpipe.function
def of_a_tile(a, b):
    return np.concatenate(a, 1)


@numpipe.function
def along_a_third_axis(a, b):
    return np.concatenate((a, b), axis=2)


@pytest.mark.parametrize(
    "joined, message",
    [
        (of_two_types, "float16 .128, 32. and float32 .128, 64.: they differ"),
        (of_two_heights, "dimension 0 of tiles .*: they differ in more than"),
        (of_a_number, r"takes a tuple of register tiles, got \(tile"),
        (of_a_tile, "takes a tuple of register tiles, got tile"),
        (along_a_third_axis, "axis must be a compile-time int from -2 to 1"),
    ],
)
def test_tiles_that_do_not_fit_are_refused(joined: Any, message: str) -> None:
    @numpipe.kernel(grid=1, num_compute_wgs=1)
    def joins(x, y):
        y[:, :] = joined(x[0:128, 0:32], x[0:128, 32:96])

    x, y = np.zeros((128, 96), np.float16), np.zeros((128, 96), np.float16)
    for call in (joins.simulate, joins.compiled):
        with pytest.raises(SpecError, match=message):
            call(x, y)


def test_rows_that_all_lanes_have_are_not_joined_to_two_rows() -> None:
    row = Tile(None, Form((1, 512), np.dtype(np.float32), "row 128"))
    with pytest.raises(SpecError, match="must be multiples of 2"):
        joined_form((row, row), 0)
    for layout in ("row 128", "rows 32"):
        row = Tile(None, Form((1, 512), np.dtype(np.float32), layout))
        assert joined_form((row, row), 1)[0].layout == layout
