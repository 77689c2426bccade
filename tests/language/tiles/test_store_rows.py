"""Stores to arrays whose rows TMA cannot write: simulated against NumPy, the lanes' arithmetic,
missing barriers, and shared-memory limits."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import SMEM, PipelineRace, SimulationError
from numpipe.kernels.definition import ends_whole
from numpipe.language.tiles import store_rows, store_rows_cuda, words_cuda
from numpipe.language.tiles.shared_tiles import _chunks, _to_bytes
from numpipe.language.tiles.store_ring import panel_layout
from numpipe.launch import describe
from numpipe.plan.plans import ArrayArg
from numpipe.plan.unit import Unit
from tests.hazards.removal import places_of, without
from tests.kernels import turn_kernels
from tests.kernels.kernels_for_tests import Config, gemm, operands, product
from tests.kernels.lane_builder import LaneBuilder
from tests.kernels.odd_outputs import (
    BF16,
    F16,
    F32,
    I32,
    Odd,
    behind_a_reduction,
    between_rings,
    copied,
    expected,
    in_batches,
    odd_outputs,
    values,
)

ORDERS: Any = "C", "F"
TILES = ((64, 8), (64, 64), (128, 72), (64, 120), (64, 256))


@pytest.fixture(autouse=True)
def _odd(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    with odd_outputs():
        yield


# ---- simulated
@pytest.mark.variants(14)
@pytest.mark.parametrize("dtype", [F16, BF16, F32, I32], ids=str)
@pytest.mark.parametrize("shape", TILES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_tile_equals_its_part_of_the_array(
    shape: tuple[int, int], dtype: np.dtype, order: Any
) -> None:
    a = values(*shape, dtype=dtype)
    for size, at in (
        ((201, 301), (3, 7)),
        ((130, 67), (64, 0)),
        ((90, 71), (63, 63)),
        ((90, 70), (90, 0)),
        ((64, 1), (0, 0)),
    ):
        c = np.full(size, 7, dtype, order=order)
        wanted = expected(a, c, *at)
        copied(*shape).simulate(a, c, *at, 0, 0)
        np.testing.assert_array_equal(c, wanted)


@pytest.mark.parametrize(
    "ends", [(70, 69), (3, 500), (500, 9), (40, 40), (0, 70), (-5, 70)], ids=str
)
def test_elements_at_or_after_the_stop_are_not_stored(ends: tuple[int, int]) -> None:
    a = values(64, 72, dtype=F16)
    for order in ORDERS:
        c = np.full((90, 71), 7, F16, order=order)
        wanted = expected(a, c, 5, 3, ends) if min(ends) > 0 else c.copy()
        copied(64, 72, True).simulate(a, c, 5, 3, *ends)
        np.testing.assert_array_equal(c, wanted)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_tile_goes_through_shared_memory(order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written = store_rows.write
    monkeypatch.setattr(
        store_rows,
        "write",
        lambda layout, address, value, what: written(layout, address, value + 1, what),
    )
    a, c = values(64, 72, dtype=F16), np.full((64, 71), 7, F16, order=order)
    copied(64, 72).simulate(a, c, 0, 0, 0, 0)
    np.testing.assert_array_equal(c, a[:, :71] + 1)


def test_an_index_outside_its_dimension_is_refused() -> None:
    a, c = values(64, 64), np.zeros((3, 63, 61), F32)
    in_batches.simulate(a, c, 1)
    np.testing.assert_array_equal(c, [c[0] * 0, a[:63, :61], c[0] * 0])
    with pytest.raises(
        SimulationError,
        match=r"index 3 along dimension 0 is outside the array's 3; the GPU writes nothing",
    ):
        in_batches.simulate(a, c, 3)
    with pytest.raises(
        SimulationError,
        match="negative start \\(-1, 0\\): the GPU writes only elements inside the array",
    ):
        copied(64, 72).simulate(values(64, 72), np.zeros((64, 71), F32), -1, 0, 0, 0)


@pytest.mark.variants(5)
@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize(("warpgroups", "order"), [(1, "C"), (2, "C"), (2, "F"), (3, "C")])
def test_products_of_several_warpgroups(warpgroups: int, order: Any, seed: int | None) -> None:
    a, b = operands(64 * warpgroups + 5, 131, 72)
    c = np.full((len(a), len(b)), np.nan, F16, order=order)
    gemm(warpgroups, ctas=1).simulate(a, b, c, cfg=Config(64 * warpgroups, 72, 64, 2), seed=seed)
    np.testing.assert_array_equal(c, product(a, b, F16))


@pytest.mark.parametrize("name", ["gemm", "skips"])
def test_warpgroups_that_take_turns(name: str) -> None:
    for seed in (None, 1, 2):
        turn_kernels.cases()[name].check(turn_kernels.cases()[name].kernel.simulate, seed=seed)


@pytest.mark.parametrize(("order", "barriers"), [("C", 1), ("F", 2)])
def test_each_barrier_is_missed(order: Any, barriers: int) -> None:
    """Without it a warp overwrites values that others still read, or loads values that others have
    not stored."""
    x, wide = values(128, 72, dtype=F16), values(128, 72).reshape(2, 64, 72)

    def run(seed: int | None = None) -> np.ndarray:
        y = np.zeros((128, 143), F16, order=order)
        behind_a_reduction.simulate(x, y, seed=seed)
        return y

    wanted = np.concatenate(
        [wide - wide.sum(1, keepdims=True), wide - wide.max(1, keepdims=True)], axis=2
    ).reshape(128, 144)
    for seed in (None, *range(5)):
        np.testing.assert_array_equal(run(seed), wanted[:, :143].astype(F16))
    places = [
        place for place in places_of(run)[0] if place.calls[0].startswith("tiles.store_rows.")
    ]
    assert len(places) == barriers
    for place, seed in itertools.product(places, (None, *range(5))):
        with without(place), pytest.raises(PipelineRace, match=r"'y\[…\] = tile'") as caught:
            run(seed)
        assert (
            caught.value.report is not None and caught.value.report.hazard == "unordered-accesses"
        )


# ---- the lanes, as elements of an array
class Lanes(LaneBuilder):
    """A builder, and other functions that `store_rows_cuda` uses, for 128 lanes at once.

    Global memory is `array`, whose element 0 is at `base`.
    """

    EXCHANGE, WARP_BYTES = store_rows_cuda.EXCHANGE, store_rows.WARP_BYTES

    def __init__(self, base: int, nbytes: int) -> None:
        self.memory = np.zeros(nbytes, np.uint8)
        self.shared = np.zeros(8192, np.uint8)
        self.base = base
        self.stored = 0

    i16, i32, i64, void = 16, 32, 64, None
    const = staticmethod(lambda value, bits=32: np.int64(value))
    external = staticmethod(lambda name, result: np.int64(0))
    lane_index = staticmethod(lambda: np.arange(128))
    zext = staticmethod(lambda value, bits: value)
    trunc = staticmethod(lambda value, bits: value)

    @staticmethod
    def icmp_unsigned(test: str, left: Any, right: Any) -> Any:
        return {"<": np.less, "==": np.equal}[test](
            np.asarray(left).astype(np.uint32), np.asarray(right).astype(np.uint32)
        )

    def write_panel(
        self,
        builder: Any,
        tile: Any,
        value: Any,
        row: int,
        column: int,
        columns: int,
        address: Any,
        inner: int,
    ) -> None:
        layout = panel_layout(columns, tile.dtype.itemsize, inner)
        warps = np.broadcast_to(address, 128).reshape(4, 32)
        assert (warps == warps[:, :1]).all()
        chunks = _chunks(layout) + warps[:, :1]
        found = _to_bytes(value[row : row + 64, column : column + columns], layout)
        self.shared[chunks[..., None] + np.arange(16)] = found

    def load_words(
        self, builder: Any, machine: int, kind: str, address: np.ndarray, count: int
    ) -> list[np.ndarray]:
        assert kind == f"b{machine}" and count == 1 and (address % (machine // 8) == 0).all()
        banks = np.unique(address.reshape(4, 32) // 4, axis=1) % 32
        assert all(len(set(warp)) == len(warp) for warp in banks), "two lanes meet in a bank"
        return [self.shared[address[:, None] + np.arange(machine // 8)]]

    def store_words(
        self,
        builder: Any,
        kind: str,
        address: np.ndarray,
        words: list[np.ndarray],
        chosen: Any,
        statement: str,
    ) -> None:
        nbytes = int(kind[1:]) // 8
        assert statement == "st.global" and (address[chosen] % nbytes == 0).all()
        at = address[chosen] - self.base
        assert not at.size or (at.min() >= 0 and at.max() + nbytes <= len(self.memory))
        self.memory[at[:, None] + np.arange(nbytes)] = words[0][chosen]
        self.stored += 1


class Block:
    def __init__(
        self,
        lanes: Lanes,
        c: np.ndarray,
        start: tuple[int, int],
        pitch: int,
        inner: int = 1,
        step: int = 1,
    ) -> None:
        self.dtype, self.base, self.start, self.size = c.dtype, np.int64(lanes.base), start, c.shape
        self.stride = (
            (np.int64(pitch), np.int64(step)) if inner else (np.int64(step), np.int64(pitch))
        )

    def moved(self, address: Any, place: Any, stride: Any) -> Any:
        return (
            address
            + np.asarray(place).astype(np.int32).astype(np.int64) * stride * self.dtype.itemsize
        )


def by_lanes(
    monkeypatch: pytest.MonkeyPatch,
    a: np.ndarray,
    c: np.ndarray,
    start: tuple[int, int],
    nbytes: int,
    *,
    base: int,
    pitch: int,
    order: str = "C",
    step: int = 1,
) -> tuple[np.ndarray, int]:
    """Return what the lanes store to an array like `c`, and how many instructions of a warp do it.

    `pitch` and `step` are in elements, between lines and within a line.
    """
    inner = int(order == "C")
    lines, length = c.shape if inner else c.shape[::-1]
    lanes = Lanes(base, lines * pitch * c.itemsize)
    whole = lanes.memory.view(c.dtype).reshape(lines, pitch)
    whole[...] = 7
    for name in ("write_panel", "load_words", "store_words"):
        monkeypatch.setattr(store_rows_cuda, name, getattr(lanes, name))
    monkeypatch.setattr(store_rows_cuda, "nb", lanes)
    monkeypatch.setattr(words_cuda, "nb", lanes)
    for meeting in ("converge", "barrier"):
        monkeypatch.setattr(store_rows_cuda, meeting, lambda builder: None)
    store_rows_cuda._Rows(
        lanes, a, Block(lanes, c, start, pitch, inner, step), inner, nbytes
    ).store(a)
    found = whole[:, : length * step : step].copy()
    whole[:, : length * step : step] = 7
    assert (whole == 7).all()
    return found if inner else found.T, lanes.stored


@pytest.mark.variants(7)
@pytest.mark.parametrize(("dtype", "order"), [(F16, "C"), (F16, "F"), (F32, "C")], ids=str)
@pytest.mark.parametrize("shape", TILES, ids=str)
def test_the_lanes_write_the_tile(
    shape: tuple[int, int], dtype: np.dtype, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, size = values(*shape, dtype=dtype), dtype.itemsize
    for sizes, at in (
        ((201, 301), (3, 7)),
        ((130, 67), (64, 0)),
        ((90, 71), (63, 63)),
        ((64, 1), (0, 0)),
        ((1, 64), (0, 0)),
    ):
        c = np.full(sizes, 7, dtype)
        made, _ = by_lanes(
            monkeypatch,
            a,
            c,
            at,
            size,
            base=4096 + size,
            pitch=sizes[order == "C"] + 2,
            order=order,
        )
        np.testing.assert_array_equal(made, expected(a, c, *at))


@pytest.mark.variants(5)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", TILES, ids=str)
def test_the_lanes_write_pairs(
    shape: tuple[int, int], order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = values(*shape, dtype=F16)
    for sizes, at in (((202, 302), (4, 6)), ((130, 66), (64, 0)), ((90, 70), (62, 62))):
        c = np.full(sizes, 7, F16)
        made, instructions = by_lanes(
            monkeypatch, a, c, at, 4, base=4096 + 4, pitch=sizes[order == "C"] + 8, order=order
        )
        np.testing.assert_array_equal(made, expected(a, c, *at))
        assert instructions == a.nbytes // 128 // 4


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_store_from_a_negative_start_is_clipped(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, c = values(64, 72, dtype=F16), np.full((70, 70), 7, F16)
    for at, nbytes in (((-4, -4), 4), ((-3, -5), 2), ((-64, 0), 2), ((0, -100), 4)):
        made, _ = by_lanes(monkeypatch, a, c, at, nbytes, base=4096, pitch=70, order=order)
        wanted, part = c.copy(), a[max(0, -at[0]) :, max(0, -at[1]) :]
        wanted[: part.shape[0], : part.shape[1]] = part[:70, :70]
        np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("dtype", [F16, F32], ids=str)
def test_lanes_write_elements_that_are_not_contiguous(
    dtype: np.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, c = values(64, 72, dtype=dtype), np.full((130, 66), 7, dtype)
    for step in (2, 3):
        made, _ = by_lanes(
            monkeypatch, a, c, (3, 6), dtype.itemsize, base=4096, pitch=400, step=step
        )
        np.testing.assert_array_equal(made, expected(a, c, 3, 6))


@pytest.mark.parametrize(
    ("start", "size", "base", "pitch", "step", "even"),
    [
        (0, 66, 4096, 66, 1, True),
        (64, 1582, 4100, 1600, 1, True),
        (0, 66, 4098, 66, 1, False),
        (1, 66, 4096, 66, 1, False),
        (0, 65, 4096, 66, 1, False),
        (0, 66, 4096, 67, 1, False),
        (0, 66, 4096, 132, 2, False),
    ],
)
def test_pairs_are_aligned_in_every_row_and_whole(
    start: int,
    size: int,
    base: int,
    pitch: int,
    step: int,
    even: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lanes = Lanes(base, 2)
    monkeypatch.setattr(store_rows_cuda, "nb", lanes)
    for inner, shape, at in ((1, (3, size), (5, start)), (0, (size, 3), (start, 5))):
        block = Block(lanes, np.empty(shape, F16), at, pitch, inner, step)
        assert store_rows_cuda._pairs(lanes, block, inner) == even


# ---- compiled
def instructions(kernel: Any, *args: Any, **named: Any) -> dict[str, int]:
    """Return the number of store instructions."""
    sass = kernel.inspect("sass", *args, **named)
    return {
        name: len(re.findall(rf"\b{re.escape(name)}(?![.\w])", sass))
        for name in ("STG.E.U16", "STG.E", "STSM.16.M88.4", "STSM.16.MT88.4", "UTMASTG")
    }


T16 = numpipe.ArrayType((512, 512), F16)


@pytest.mark.parametrize(
    ("shape", "order", "whole"),
    [
        ((130, 72), "C", True),
        ((136, 67), "C", False),
        ((130, 72), "F", False),
        ((136, 67), "F", True),
    ],
)
def test_tma_writes_what_ends_at_16_bytes_along_the_contiguous_dimension(
    shape: tuple[int, int], order: Any, whole: bool
) -> None:
    """A TMA store writes whole chunks of 16 bytes.

    After a column of 130 elements, padded to 136, it would overwrite 6 elements of others.
    """
    assert ends_whole(describe(np.zeros(shape, F16, order), "c")) == whole


@pytest.mark.thorough
def test_columns_are_written_from_transposed_panels() -> None:
    assert instructions(
        gemm(2), T16, T16, Odd((511, 512), F16, "F"), cfg=Config(128, 128, 64, 3)
    ) == {"STG.E.U16": 64, "STG.E": 32, "STSM.16.M88.4": 0, "STSM.16.MT88.4": 16, "UTMASTG": 0}


@pytest.mark.thorough
def test_a_kernel_without_room_for_a_panel_stores_what_the_lanes_have() -> None:
    kernel, cfg = gemm(2), Config(128, 128, 64, 7)
    assert instructions(kernel, T16, T16, Odd((512, 511), F16), cfg=cfg) == {
        "STG.E.U16": 64,
        "STG.E": 0,
        "STSM.16.M88.4": 0,
        "STSM.16.MT88.4": 0,
        "UTMASTG": 0,
    }
    assert instructions(kernel, T16, T16, Odd((512, 511), F16), cfg=Config(128, 128, 64, 6)) == {
        "STG.E.U16": 64,
        "STG.E": 32,
        "STSM.16.M88.4": 16,
        "STSM.16.MT88.4": 0,
        "UTMASTG": 0,
    }


@pytest.mark.variants(0, thorough=1)
@pytest.mark.parametrize("memory_role", [False, True])
def test_a_ring_that_is_met_after_a_store_keeps_its_room(memory_role: bool) -> None:
    """Without a memory role, whose rings are known first, the kernel is compiled a second time."""
    assert (
        instructions(
            between_rings(memory_role), numpipe.ArrayType((64, 1024), F16), Odd((128, 65), F16)
        )["STG.E"]
        == 0
    )


# ---- shared memory
def unit_with(free: int, *outputs: ArrayArg, **params: Any) -> Unit:
    """Return a kernel of two compute warpgroups with this many free bytes of shared memory."""
    unit = Unit("k", outputs, (), "wg", 2, 40, params=numpipe.CompilerParams(**params))
    unit.plan_scratch("a line", SMEM((unit.target.smem_bytes - 1024 - free,), np.uint8), True)
    return unit


def test_a_panel_is_planned_where_it_fits_next_to_the_store_ring_of_other_outputs() -> None:
    odd = ArrayArg("c", F16, 2, tma=False)
    aligned = ArrayArg("d", F16, 2)
    work = ArrayArg("w", F32, 2, workspace=True)
    for free, slots, arrays, fits in (
        (16384, 0, (odd,), True),
        (16368, 0, (odd,), False),
        (16384, 4, (odd, work), True),
        (16384, 0, (odd, aligned), False),
        (32768, 0, (odd, aligned), True),
        (32768, 2, (odd, aligned), False),
        (49152, 2, (odd, aligned), True),
    ):
        unit = unit_with(free, *arrays, store_slots=slots)
        assert unit.plan_row_stores() == fits and unit.exchange_bytes == 8192 * fits
        assert unit.plan_row_stores() == fits
        if aligned in arrays:  # the ring has what is left, and everything fits
            assert (
                unit.plan_staging(4) == (slots or 1) and unit.smem_bytes <= unit.target.smem_bytes
            )
    unit = unit_with(24 * 2048, aligned, odd)
    assert (
        unit.plan_staging(2) == 2
        and unit.plan_row_stores()
        and unit.exchange.base >= unit.staging.end
    )
    with pytest.raises(
        numpipe.SpecError,
        match=r"16384 B  reductions and stores by rows of register tiles: 8192 B for each",
    ):
        unit.plan_scratch("another line", SMEM((65536,), np.uint8), True)
