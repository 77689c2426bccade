"""Register tiles loaded from and stored to tiles in shared memory: ``tile[...]`` and ``tile[...] =
value``."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, CompileError, PipelineRace, SpecError, cdiv, ds
from numpipe.compile.build import toolchain
from numpipe.language.tiles import shared_tiles
from numpipe.language.tiles.addresses import Access, accesses, detour, lane_offset
from numpipe.language.tiles.layouts import Form
from numpipe.language.tiles.refs import SmemTile
from numpipe.language.tiles.tile import Tile
from numpipe.plan.layout import Layout, block_layout, swizzled
from numpipe.plan.roles import COMPUTE
from numpipe.sim import simulate
from tests.kernels.compilers import compiles
from tests.kernels.kernels_for_tests import BF16, F16, F32
from tests.kernels.smem_kernels import ARRAYS, array, copied, scaled, sum_of_views

DTYPES = (F16, BF16, F32)
SHAPES = [(64, 64), (64, 8), (128, 24), (192, 40), (64, 256), (128, 128)]
SCHEDULES = (None, *range(8))
THREADS = np.arange(128)


# ---- bytes that the lanes move ----------------------------------------------------------------
def layouts() -> list[Layout]:
    found = []
    for shape, dtype, inner in itertools.product(SHAPES, (F16, F32), (0, 1)):
        whole = block_layout(shape, inner, dtype, "block")
        found.append(whole)
        if inner == 0:  # views of taller blocks have narrower panels
            for rows in (96, 80, 72, 68, 36):
                if rows * dtype.itemsize % 16 == 0:
                    tall = block_layout((2 * rows, 16), 0, dtype, "block")
                    if 64 % tall.per_panel == 0:
                        found.append(tall.sliced(0, 64)[0])
    return list(dict.fromkeys(found))


def element_offset(layout: Layout, row: Any, column: Any) -> Any:
    """Return where an element is, from the layout's own definition."""
    outer, inside = (
        (row, column * layout.itemsize) if layout.inner == 1 else (column, row * layout.itemsize)
    )
    return inside // layout.width * layout.panel_stride + swizzled(
        outer * layout.width + inside % layout.width, layout.width
    )


def addresses(layout: Layout, access: Access, base: int = 0) -> Any:
    return ((base + lane_offset(layout, THREADS)) ^ access.xor) + access.add


@pytest.mark.parametrize("layout", layouts(), ids=str)
def test_every_lane_moves_the_elements_that_an_accumulator_gives_it(layout: Layout) -> None:
    moved = {}  # register -> byte offsets of the lanes' elements in it
    for access in accesses(layout):
        at = addresses(layout, access, 1 << 16) - (1 << 16)
        for register in range(access.count):
            if layout.itemsize == 4:
                number = access.first + register
                turn = detour(layout)
                # lanes whose access is to another group of columns
                other = turn is not None and (THREADS >> turn.bit & 1 == 1)
                partner = number ^ 4 * turn.groups if turn else number
                for place, here in ((number, ~np.asarray(other)), (partner, np.asarray(other))):
                    offsets = moved.setdefault(place, [np.full(128, -1)])[0]
                    np.copyto(offsets, at + 4 * register, where=here)
                continue
            lane, warp = THREADS % 32, THREADS // 32 * 32
            # matrix `register`: row lane // 4 at the address that lane 8 register + lane // 4 gave
            if layout.inner == 1:
                row = at[warp + 8 * register + lane // 4]
                moved[access.first + register] = [row + 4 * (lane % 4), row + 4 * (lane % 4) + 2]
            else:  # transposed: the lane's two elements are in two rows of the matrix
                moved[access.first + register] = [
                    at[warp + 8 * register + 2 * (lane % 4) + odd] + 2 * (lane // 4)
                    for odd in (0, 1)
                ]
    elements = {
        len(offsets) * register + half: offset
        for register, offsets in moved.items()
        for half, offset in enumerate(offsets)
    }
    assert len(elements) == layout.shape[0] * layout.shape[1] // 128
    per_block = layout.shape[1] // 2
    for element, offset in elements.items():
        block, i = divmod(element, per_block)
        row = 64 * block + 16 * (THREADS // 32) + THREADS % 32 // 4 + 8 * (i // 2 % 2)
        column = 8 * (i // 4) + 2 * (THREADS % 4) + i % 2
        assert (offset == element_offset(layout, row, column)).all(), element


@pytest.mark.parametrize(
    "layout",
    [layout for layout in layouts() if layout.itemsize == 2 and layout.inner == 1],
    ids=str,
)
def test_without_matrices_a_lane_moves_its_own_pairs(layout: Layout) -> None:
    registers = layout.shape[1] // 4
    found = accesses(layout, matrices=False)
    assert sorted(access.first for access in found) == list(
        range(registers * layout.shape[0] // 64)
    )
    for access in found:
        at = (
            (((1 << 16) + lane_offset(layout, THREADS, False)) ^ access.xor)
            + access.add
            - (1 << 16)
        )
        block, i = divmod(access.first, registers)
        row = 64 * block + 16 * (THREADS // 32) + THREADS % 32 // 4 + 8 * (i % 2)
        assert (
            access.count == 1
            and (at == element_offset(layout, row, 8 * (i // 2) + 2 * (THREADS % 4))).all()
        )


def ways(offsets: Any, nbytes: int) -> int:
    """Return the number of accesses to one bank by lanes that are served together, at different
    words."""
    words = np.unique(np.concatenate([offsets // 4 + i for i in range(nbytes // 4)]))
    return int(np.bincount(words % 32).max())


@pytest.mark.parametrize(
    "layout", [layout for layout in layouts() if layout.itemsize == 2], ids=str
)
def test_matrices_are_moved_without_bank_conflicts(layout: Layout) -> None:
    for access in accesses(layout):
        rows = addresses(layout, access).reshape(4, 4, 8)
        for warp, matrix in itertools.product(range(4), range(access.count)):
            assert ways(rows[warp, matrix], 16) == 1


@pytest.mark.parametrize(
    "layout",
    [
        layout
        for layout in layouts()
        if layout.itemsize == 4 and (layout.inner == 1 or layout.width == 128)
    ],
    ids=str,
)
def test_words_are_moved_without_bank_conflicts(layout: Layout) -> None:
    for access in accesses(layout):
        served = addresses(layout, access).reshape(-1, 16 if layout.inner == 1 else 32)
        assert {ways(lanes, 4 * access.count) for lanes in served} == {1}


@pytest.mark.parametrize("width", [128, 64])
def test_without_the_detour_rows_of_words_would_conflict(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numpipe.language.tiles.addresses.detour", lambda layout: None)
    layout = Layout((64, width // 4), 4, 1, width, 64 * width)
    assert {
        ways(lanes, 8)
        for access in accesses(layout)
        for lanes in addresses(layout, access).reshape(-1, 16)
    } == {2}


def test_without_the_swizzle_matrices_would_conflict() -> None:
    rows = np.arange(8) * 128
    assert ways(rows, 16) == 8


# ---- the simulated SM ----------------------------------------------------------------------------
def on_one_warpgroup(function: Any, **options: Any) -> None:
    simulate(
        lambda machine: function(), grid=(1, 1, 1), warpgroups=1, smem_bytes=200 * 1024, **options
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inner", [1, 0], ids=["rows", "columns"])
def test_what_is_stored_is_what_is_loaded(dtype: Any, inner: int) -> None:
    def body() -> None:
        for shape in SHAPES:
            # a tile of another shape has other bytes for each warp
            numpipe.intrinsics.barrier.sync(1, 128)
            tile = SmemTile(1024, block_layout(shape, inner, dtype, "block"), dtype, COMPUTE, True)
            value = np.random.default_rng(0).standard_normal(shape).astype(dtype)
            tile[...] = Tile(value, Form(shape, dtype))
            assert (tile[...].value == value).all()
            assert (tile[:, :].value == value).all()
            if shape[0] == 128:
                assert (tile.at[ds(64, 64), :][...].value == value[64:]).all()
                tile[ds(64, 64), :] = Tile(value[:64], Form((64, shape[1]), dtype))
                assert (tile[...].value == np.concatenate([value[:64], value[:64]])).all()

    on_one_warpgroup(body)


@pytest.mark.parametrize("inner", [1, 0], ids=["rows", "columns"])
def test_bytes_are_where_the_layout_says(inner: int) -> None:
    layout = block_layout((128, 64), inner, F16, "block")
    value = np.arange(128 * 64, dtype=np.uint16).view(np.float16).reshape(128, 64)

    def body() -> None:
        tile = SmemTile(2048, layout, F16, COMPUTE, True)
        tile[...] = Tile(value, Form((128, 64), F16))
        memory = numpipe.core.machine.current().sm.memory.bytes
        for row, column in ((0, 0), (1, 9), (77, 63), (127, 8)):
            at = 2048 + int(element_offset(layout, np.int64(row), np.int64(column)))
            assert memory[at : at + 2].view(np.uint16)[0] == 64 * row + column

    on_one_warpgroup(body)


def test_the_other_order_crosses_warps_and_needs_a_barrier() -> None:
    def body(barrier: bool) -> None:
        tile = SmemTile(1024, block_layout((64, 64), 1, F16, "block"), F16, COMPUTE, True)
        value = np.arange(4096).reshape(64, 64).astype(F16)
        tile[...] = Tile(value, Form((64, 64), F16))
        if barrier:
            numpipe.intrinsics.barrier.sync(1, 128)
        assert (tile.T[...].value == value.T).all()

    on_one_warpgroup(lambda: body(True))
    with pytest.raises(
        PipelineRace, match=r"read \(tile\[…\]\) reads .* while write \(tile\[…\] = value\)"
    ):
        on_one_warpgroup(lambda: body(False))


# ---- in a pipeline -------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ARRAYS)
def test_a_copy_through_registers(name: str) -> None:
    a = array(name)
    c = np.zeros(a.shape, a.dtype)
    copied.simulate(a, c)
    assert (c == a).all()


@pytest.mark.parametrize("name", ARRAYS)
def test_arithmetic_of_a_loaded_tile(name: str) -> None:
    a = array(name)
    c = np.zeros(a.shape, a.dtype)
    scaled.simulate(a, c)
    assert (c.astype(F32) == (2 * a.astype(F32) + 1).astype(a.dtype).astype(F32)).all()


@pytest.mark.parametrize("seed", SCHEDULES)
def test_in_any_schedule(seed: int | None) -> None:
    a = array("float16 rows")
    c = np.zeros(a.shape, F16)
    scaled.simulate(a, c, seed=seed)
    assert (c == (2 * a.astype(F32) + 1).astype(F16)).all()


def test_views_of_a_tile(target: str) -> None:
    a, c = array("float16 rows"), np.zeros((64, 64), F32)
    sum_of_views(a, c, target=target)
    first = a[:128, :64].astype(F32)
    np.testing.assert_array_equal(c, first[:64] + first[64:] + first[:64].T)


def early(wait: bool) -> Any:
    @numpipe.kernel
    def reads_early(a, c):
        def body(indices, x, ready):
            (k,) = indices
            if wait:
                numpipe.barrier_wait(ready)
            c[ds(0, 64), ds(k * 64, 64)] = x[...]

        numpipe.emit_pipeline_warp_specialized(
            body,
            grid=(cdiv(a.shape[1], 64),),
            manual_produced_barriers=True,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        )(a)

    return reads_early


def late(after: bool) -> Any:
    @numpipe.kernel
    def reads_late(a, c):
        def body(indices, x, consumed):
            (k,) = indices
            if after:
                value = x[...]
                numpipe.barrier_arrive(consumed)
            else:
                numpipe.barrier_arrive(consumed)
                value = x[...]
            c[ds(0, 64), ds(k * 64, 64)] = value

        numpipe.emit_pipeline_warp_specialized(
            body,
            grid=(cdiv(a.shape[1], 64),),
            manual_consumed_barriers=True,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        )(a)

    return reads_late


@pytest.mark.variants(3)
@pytest.mark.parametrize("seed", SCHEDULES)
def test_reading_before_the_tile_has_landed_is_a_race(seed: int | None) -> None:
    a, c = np.ones((64, 640), F16), np.zeros((64, 640), F16)
    early(True).simulate(a, c, seed=seed)
    assert (c == a).all()
    with pytest.raises(
        PipelineRace, match=r"(?s)read \(tile\[…\]\) reads .*(has landed|not been written)"
    ):
        early(False).simulate(a, c, seed=seed)


@pytest.mark.variants(3)
@pytest.mark.parametrize("seed", SCHEDULES)
def test_reading_after_the_release_is_a_race(seed: int | None) -> None:
    a, c = np.ones((64, 640), F16), np.zeros((64, 640), F16)
    late(True).simulate(a, c, seed=seed)
    assert (c == a).all()
    with pytest.raises(
        PipelineRace,
        match=r"(?s)(TMA load \(a\) fills .* while read \(tile\[…\]\)|read \(tile\[…\]\) reads .* "
        r"while TMA load)",
    ):
        late(False).simulate(a, c, seed=seed)


# ---- the memory role -----------------------------------------------------------------------------
@pytest.mark.thorough
def test_a_loaded_tile_has_no_value_in_the_memory_role() -> None:
    @numpipe.kernel
    def nested(a, b, c):
        outer = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda i: (i, 0)),))
        for (i,), (x,) in outer(a):
            total = x[...].astype(np.float32)
            inner = numpipe.pipeline(grid=(3,), in_specs=(BlockSpec((64, 64), lambda j: (0, j)),))
            for (_,), (y,) in inner(b):
                total = total + y[...].astype(np.float32)
            c[ds(i * 64, 64), ds(0, 64)] = total

    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (128, 64)).astype(F16), rng.integers(-9, 9, (64, 192)).astype(F16)
    c = np.zeros((128, 64), F32)
    nested.simulate(a, b, c)
    sums = b.astype(F32).reshape(64, 3, 64).sum(1)
    np.testing.assert_array_equal(c, a.astype(F32) + np.concatenate([sums, sums]))
    if toolchain() is None:
        assert nested.inspect("resources", a, b, c).spill_bytes == 0


def test_it_steers_nothing() -> None:
    @numpipe.kernel
    def steered(a, c):
        pipe = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda i: (i, 0)),))
        for (_,), (x,) in pipe(a):
            if x[...]:
                c[ds(0, 64), ds(0, 64)] = x[...]

    with pytest.raises(CompileError, match="a register tile steers control flow"):
        steered.simulate(np.ones((128, 64), F16), np.ones((64, 64), F16))


# ---- what is rejected ------------------------------------------------------------------------
@pytest.mark.parametrize(
    "write, message",
    [
        (
            lambda tile, value: tile.__setitem__(..., 1.0),
            "the value must be a register tile, got float",
        ),
        (
            lambda tile, value: tile.__setitem__((ds(0, 64), slice(None)), value),
            r"the tile is \(64, 64\), but the value is \(128, 64\); fix: store to a part of it",
        ),
        (
            lambda tile, value: tile.__setitem__(..., value.astype(np.int8)),
            r"the tile is float16, but the value is int8; fix: store value.astype\(tile.dtype\)",
        ),
        (
            lambda tile, value: tile.at.__setitem__(..., value),
            "tile.at.* is a view and cannot be assigned to",
        ),
        (
            lambda tile, value: tile.__setitem__((0, 0), value),
            r"tile\[i, j\], an element of a tile, is per-lane code",
        ),
    ],
)
def test_stores_that_do_not_fit(write: Any, message: str) -> None:
    tile = SmemTile(1024, block_layout((128, 64), 1, F16, "block"), F16, COMPUTE, True)
    with pytest.raises(SpecError, match=message):
        write(tile, Tile(np.zeros((128, 64), F32), Form((128, 64), F32)).astype(F16))


def test_a_part_with_more_elements_than_registers_is_not_a_register_tile() -> None:
    tile = SmemTile(1024, block_layout((1024, 64), 1, F16, "block"), F16, COMPUTE, True)
    with pytest.raises(SpecError, match=r"tile\[…\]: .* 1 to 32768 elements .*got \(520, 64\)"):
        _ = tile[ds(0, 520), :]


# ---- the machine code ----------------------------------------------------------------------------
@pytest.mark.variants(1, thorough=2)
@compiles
@pytest.mark.parametrize(
    "name, loads",
    [
        ("float16 rows", r"LDSM\.16\.M88\.4"),
        ("bfloat16 rows", r"LDSM\.16\.M88\.4"),
        ("float16 columns", r"LDSM\.16\.MT88\.4"),
        ("float32 rows", r"LDS\.64"),
        ("float32 columns", r"LDS "),
    ],
)
def test_tiles_are_loaded_by_the_widest_instruction(name: str, loads: str) -> None:
    a = array(name)
    c = np.zeros(a.shape, a.dtype)
    sass = copied.inspect("sass", a, c)
    wanted = {"LDSM": 4, r"LDS\.64": 16, "LDS ": 32}[re.sub(r"(?<=LDSM).*", "", loads)]
    assert len(re.findall(loads, sass)) == wanted
    assert not re.search(r"\b(LDL|STL)\b", sass)
    assert copied.inspect("resources", a, c).spill_bytes == 0


def test_offsets_are_computed_once_a_layout() -> None:
    layout = block_layout((64, 64), 1, F16, "block")
    assert shared_tiles._chunks(layout) is shared_tiles._chunks(layout)
