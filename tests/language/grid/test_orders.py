"""numpipe.orders: each order visits each tile once, in the same order in kernels and on the host;
tables; and L2 traffic."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numpipe
from numpipe import CompileError, SpecError
from numpipe.language.grid import split_k
from numpipe.language.grid.orders import tile_numbers
from numpipe.orders import NAMES, Column, Grouped, Order, Row, Snake, Table, named
from tests.kernels.covering import examples
from tests.kernels.order_kernels import (
    ORDERS,
    by_table,
    expected,
    grouped_at_run_time,
    numbered,
    numbers,
    on_host,
    one_plane,
    output,
    some_rows,
)


@pytest.mark.parametrize("module", [tile_numbers, split_k], ids=lambda module: module.__name__)
def test_tiles_are_numbered_in_int32_when_compiled(module: Any) -> None:
    """As when simulated. Python's operators would be Numba's, in which int32 - int32 is an
    int64."""
    functions = [
        node
        for node in ast.parse(Path(module.__file__).read_text(encoding="utf8")).body
        if isinstance(node, ast.FunctionDef)
    ]
    helpers = [
        node
        for node in functions
        if any(isinstance(d, ast.Name) and d.id == "helper" for d in node.decorator_list)
    ]
    assert len(helpers) > 5
    assert not [
        f"{node.lineno}: {ast.unparse(node)}"
        for helper in helpers
        for node in ast.walk(helper)
        if isinstance(node, (ast.BinOp, ast.AugAssign, ast.USub))
    ]


ANY = st.one_of(
    st.just(Row()),
    st.just(Column()),
    st.builds(Grouped, st.integers(1, 20)),
    st.builds(Snake, st.integers(1, 20)),
)
GRID = st.tuples(st.integers(1, 24), st.integers(1, 24)) | st.tuples(
    st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)
)


# ---- on the host
@settings(max_examples=examples(60), deadline=None)
@given(ANY, GRID)
def test_an_order_is_a_permutation_of_its_grid_plane_by_plane(
    order: Order, shape: tuple[int, ...]
) -> None:
    table = order.table(shape)
    assert (
        sorted(map(tuple, table.tolist())) == list(np.ndindex(*shape)) and not table.flags.writeable
    )
    if len(shape) == 3:
        plane = order.table(shape[1:]).tolist()
        assert table.tolist() == [[p, *place] for p in range(shape[0]) for place in plane]


def test_strips_are_walked_column_by_column_and_the_snakes_come_back() -> None:
    for kind, rows, columns, group in itertools.product(
        (Grouped, Snake), (1, 3, 5, 8), (1, 2, 5), (1, 2, 3, 16)
    ):
        grid = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1)
        found = []
        for number, start in enumerate(range(0, rows, group)):
            strip = grid[start : start + group].transpose(1, 0, 2)
            found += (
                (strip[::-1] if kind is Snake and number % 2 else strip).reshape(-1, 2).tolist()
            )
        assert kind(group).table((rows, columns)).tolist() == found, (kind, rows, columns, group)
    assert Column().table((3, 2)).tolist() == Row().table((2, 3))[:, ::-1].tolist()


def test_places_of_a_tile_or_grid_that_is_not_there_are_refused() -> None:
    for shape in ((4,), (4, -1), (2, 2, 2, 2), (2.0, 2), (True, 2)):
        with pytest.raises(SpecError, match="the shape of a grid of tiles must be"):
            Row().table(shape)  # type: ignore[arg-type]
    for group in (0, -1, 1.5, True):
        with pytest.raises(SpecError, match=r"(Grouped|Snake): group must be an int"):
            (Grouped if group else Snake)(group)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="'row', 'column', 'grouped' or 'snake', got 'spiral'"):
        named("spiral")
    assert [named(name, 8) for name in NAMES] == [Row(), Column(), Grouped(8), Snake(8)]
    assert (
        str(Snake(8)) == "snake(8)"
        and str(Row()) == "row"
        and hash(Snake(8)) == hash(Snake(8))
        and Snake(8) != Grouped(8)
    )


# ---- in a kernel
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_kernel_walks_an_order_as_the_host_does(order: Any, target: str) -> None:
    more = ((1, 64, 33), (3, 17, 19), (1, 1, 50), (1, 50, 1)) if target == "gpu" else ((2, 0, 3),)
    for shape in ((1, 5, 3), (2, 3, 4), (1, 1, 1), *more):
        c = output(shape[0] * shape[1], shape[2])
        numbered(c, *map(np.int32, shape), order=order, target=target)
        found = numbers(c) if np.prod(shape) else numbers(c)[:0]
        np.testing.assert_array_equal(found, expected(on_host(order), shape))


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_the_only_plane_takes_no_division(order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("numpipe.orders.tile_numbers.in_plane")
    c = output(5, 3)
    one_plane.simulate(c, 5, 3, order=order)
    np.testing.assert_array_equal(numbers(c), expected(on_host(order), (5, 3)))
    with pytest.raises(AttributeError, match="in_plane"):
        numpipe.Kernel(numbered.function, numbered.options).simulate(c, 1, 5, 3, order=order)


@pytest.mark.parametrize("order", ["grouped", "snake"])
def test_a_group_may_be_a_value_of_run_time(order: str, target: str) -> None:
    shape = (23, 9) if target == "gpu" else (5, 3)
    for group in (1, 2, 7, 16, 100):
        c = output(*shape)
        grouped_at_run_time(c, *map(np.int32, (*shape, group)), order=order, target=target)
        np.testing.assert_array_equal(numbers(c), expected(named(order, group), shape))


@pytest.mark.parametrize("order", [Column(), Snake(2)], ids=str)
def test_the_table_of_an_order_is_walked_as_the_order(order: Order, target: str) -> None:
    for shape in ((5, 3), (1, 1), *[(40, 31)] * (target == "gpu")):
        c = output(*shape)
        by_table(order.table(shape), c, *map(np.int32, shape), target=target)
        np.testing.assert_array_equal(numbers(c), expected(order, shape))
    c = output(5, 3)
    some_rows(order.table((5, 3)), c, np.int32(4), target=target)
    walked = expected(order, (5, 3))
    np.testing.assert_array_equal(numbers(c), np.where(walked < 4, walked, -1))


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((5, 0), r"row 3 is \(5, 0\), outside the grid of 5 x 3 tiles"),
        ((0, -1), r"row 3 is \(0, -1\): indices of tiles are not negative"),
        ((0, 0), r"tile \(0, 0\) comes 2 times, so 1 tiles of the grid never come"),
    ],
)
def test_a_table_that_is_not_an_order_of_the_grid_is_refused(
    row: tuple[int, int], text: str
) -> None:
    table = Row().table((5, 3)).copy()
    table[3] = row
    with pytest.raises(SpecError, match=text):
        Table(table).check((5, 3))
    with pytest.raises(SpecError, match="order='table'.: " + text):
        by_table.simulate(table, output(5, 3), 5, 3)


def test_tables_of_another_size_or_type_are_refused() -> None:
    table = Row().table((5, 3))
    with pytest.raises(
        SpecError, match=r"order='table'.: a grid of 5 x 4 has 20 tiles, the table has 15 rows"
    ):
        by_table.simulate(table, output(5, 4), 5, 4)
    with pytest.raises(
        SpecError,
        match=r"a host table of 2 indices a tile has as many columns, got an array of shape \(15, "
        r"1\)",
    ):
        by_table.simulate(np.ascontiguousarray(table[:, :1]), output(5, 3), 5, 3)
    with pytest.raises(SpecError, match=r"tiles\(16, order='table'\): the table has 15 rows"):
        some_rows.simulate(table, output(5, 3), 16)
    with pytest.raises(SpecError, match="Table: a host table is a 2-D int32 array, got 2-D int64"):
        Table(table.astype(np.int64))
    with pytest.raises(SpecError, match="got list"):
        Table(table.tolist())  # type: ignore[arg-type]
    assert Table(table).check((5, 3)).table((5, 3)) is table


MADE = Table(Row().table((2, 2)))


@numpipe.kernel
def with_a_constant_table(c):
    for _ in numpipe.tiles(2, 2, order=MADE):
        pass


@numpipe.kernel
def with_two_groups(c):
    for _ in numpipe.tiles(2, 2, order=Grouped(4), group=8):
        pass


@numpipe.kernel
def with_an_object_of_run_time(c, group):
    for _ in numpipe.tiles(2, 2, order=Snake(group)):
        pass


@pytest.mark.parametrize(
    ("kernel", "args", "text"),
    [
        (
            with_a_constant_table,
            (),
            "a host table must be an argument of the kernel, a 2-D int32 array; fix: pass the "
            "array",
        ),
        (
            with_two_groups,
            (),
            r"order=Grouped\(group=4\) already has a group; fix: leave group= out",
        ),
        (
            with_an_object_of_run_time,
            (np.int32(3),),
            r'must be compile-time constants; fix: .* separately: order="snake", group=…',
        ),
    ],
)
def test_orders_that_a_kernel_cannot_hold_are_refused(
    kernel: Any, args: tuple[Any, ...], text: str
) -> None:
    with pytest.raises(CompileError, match=text):
        kernel.simulate(output(1, 1), *args)


def test_a_kernel_reads_its_table_one_tile_ahead_and_divides_nothing() -> None:
    """In PTX each of two roles reads two indices before the loop and in it, predicated, and never
    divides."""
    table = numpipe.ArrayType((15, 2), np.dtype(np.int32))
    c = numpipe.ArrayType((320, 24), np.dtype(np.float32))
    ptx = by_table.inspect("ptx", table, c, np.int32(5), np.int32(3))
    read = [line for line in ptx.splitlines() if "ld.global.nc.b32" in line]
    assert len(read) == 8 and all("@there" in line for line in read)
    assert "div." not in ptx and "rem." not in ptx


@pytest.mark.soak
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_no_order_divides_in_64_bits(order: Any) -> None:
    c = numpipe.ArrayType((320, 24), np.dtype(np.float32))
    ptx = numbered.inspect("ptx", c, *map(np.int32, (1, 5, 3)), order=order)
    assert "div.u32" in ptx and not re.search(r"(div|rem)\.[su]64", ptx)


# ---- L2 traffic
@settings(max_examples=examples(40), deadline=None)
@given(ANY, GRID, st.integers(1, 40))
def test_bytes_count_the_panels_that_a_wave_needs(
    order: Order, shape: tuple[int, ...], ctas: int
) -> None:
    """Panels have 4 and 6 bytes."""
    every = [tuple(place) for place in order.table(shape).tolist()]
    total = 0
    for at in range(0, len(every), ctas):
        wave = every[at : at + ctas]
        total += 4 * len({place[:-1] for place in wave})
        total += 6 * len({(*place[:-2], place[-1]) for place in wave})
    tile, k, size = (2, 3), 2, 1
    found = order.bytes(shape, tile=tile, k=k, itemsize=size, ctas=ctas)
    least = order.bytes(shape, tile=tile, k=k, itemsize=size, ctas=len(every))
    assert least <= found == total


def test_bytes_distinguish_a_bad_order_of_a_large_product_from_good_ones() -> None:
    """16384³ on an H200: the row order ran at 0.76 of cuBLAS, groups of 8 at 1.07, groups of
    16 at 1.03 to 1.05."""
    of = {
        order: order.bytes((128, 64), tile=(128, 256), k=16384)
        for order in (Row(), Grouped(8), Grouped(16), Snake(16))
    }
    assert of[Row()] > 3 * of[Grouped(16)] and of[Snake(16)] <= of[Grouped(16)]
    assert of[Grouped(8)] < of[Row()] / 2
    with pytest.raises(SpecError, match="ctas must be an int"):
        Row().bytes((2, 2), tile=(1, 1), k=1, ctas=0)
    with pytest.raises(SpecError, match=r"k must be an int >= 1, got 0"):
        Row().bytes((2, 2), tile=(1, 1), k=0)


# ---- with warpgroups that take turns
@numpipe.kernel(
    out_type=lambda a, b, table: numpipe.ArrayType((a.shape[0], b.shape[0]), np.float32),
    grid=numpipe.persistent(ctas=2),
    num_compute_wgs=2,
    schedule="pingpong",
)
def in_turns(a, b, table, c):
    """Compute c = a @ b.T by ping-pong, with tiles in the order of a table."""
    for m, n in numpipe.tiles(
        numpipe.cdiv(a.shape[0], 64), numpipe.cdiv(b.shape[0], 64), order=table
    ):
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(numpipe.cdiv(a.shape[1], 64),),
            max_concurrent_steps=2,
            in_specs=(
                numpipe.BlockSpec((64, 64), lambda k: (m, k)),
                numpipe.BlockSpec((64, 64), lambda k: (n, k)),
            ),
        )
        for (k,), (a_tile, b_tile) in pipe(a, b):
            acc = numpipe.wgmma(acc, a_tile, b_tile.T)
        c[numpipe.ds(m * 64, 64), numpipe.ds(n * 64, 64)] = acc


@pytest.mark.parametrize("shape", [(5, 3), (1, 1), (2, 3)])
def test_each_role_reads_ahead_in_its_own_share_of_a_table(shape: tuple[int, int]) -> None:
    """The memory role takes every tile of the CTA, a compute warpgroup every second one."""
    random = np.random.default_rng(0)
    a, b = (random.integers(-2, 3, (64 * n, 128)).astype(np.float16) for n in shape)
    found = in_turns(a, b, Snake(2).table(shape), target="sim")
    np.testing.assert_array_equal(found, a.astype(np.float32) @ b.astype(np.float32).T)
