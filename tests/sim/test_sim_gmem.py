"""Global memory on the simulated SM: conflicting accesses of CTAs, and of the proxies of one CTA.

Every kernel exists twice: as intended, silent in every schedule, and broken, reported in every one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, PipelineRace, SimulationError, ds
from numpipe.core.machine import Machine, TensorMap
from numpipe.intrinsics import griddep
from numpipe.sim import simulate
from tests.kernels.sim_pipelines import F16, one, panel_chunks

F32 = np.float32
SEEDS = (None, *range(10))
BAR = 64 * 1024


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def silent(run: Callable[[int | None], Any]) -> None:
    for seed in SEEDS:
        run(seed)


def reported(
    run: Callable[[int | None], Any],
    hazard: str,
    *patterns: str,
    kind: type[SimulationError] = PipelineRace,
) -> None:
    """Assert that every schedule reports `hazard` with a text that matches all `patterns`."""
    for seed in SEEDS:
        with pytest.raises(kind) as caught:
            run(seed)
        assert caught.value.report is not None and caught.value.report.hazard == hazard, (
            seed,
            caught.value,
        )
        for pattern in patterns:
            assert re.search(pattern, str(caught.value)), (
                f"seed {seed}: {pattern} is not in\n{caught.value}"
            )
        assert re.match(r".*(test_sim_gmem|sim_pipelines)\.py:\d+: ", str(caught.value))


# ---- kernels -------------------------------------------------------------------------------------
@functools.cache
def ones(partitioned: bool) -> Any:
    @numpipe.kernel(grid=(2,))
    def fills(c):
        row = numpipe.program_id(0) * 64 if partitioned else 0
        c[ds(row, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0

    return fills


@pytest.mark.parametrize("order, how", [("C", r"TMA store \(c\)"), ("F", r"store \(c\)")])
def test_two_ctas_that_store_to_one_block_conflict(order: Any, how: str) -> None:
    """Through the store ring, and by lanes."""

    def c() -> np.ndarray:
        return np.zeros((128, 64), F32, order=order)

    silent(lambda seed: ones(True).simulate(c(), seed=seed))
    line = ones(True).function.__code__.co_firstlineno + 3
    reported(
        lambda seed: ones(False).simulate(c(), seed=seed),
        "cta-conflict",
        rf"warpgroup 0 \(compute\) of CTA \(1, 0, 0\): {how} writes c\[0:64, \d+:\d+\], which CTA "
        r"\(0, 0, 0\) writes too",
        rf"now:    {how} by warpgroup 0 \(compute\) of CTA \(1, 0, 0\) at test_sim_gmem.py:{line} "
        r"in fills: c\[0:64",
        rf"before: {how} by warpgroup 0 \(compute\) of CTA \(0, 0, 0\) at test_sim_gmem.py:{line} "
        r"in fills: c\[0:64",
        r"fix:    give each CTA its own blocks: .*numpipe.program_id.*reduction_op='add'",
    )


def test_a_report_has_both_accesses() -> None:
    with pytest.raises(PipelineRace) as caught:
        ones(False).simulate(np.zeros((128, 64), F32))
    report = caught.value.report
    assert report is not None and report.now is not None and report.before is not None
    assert (report.now.cta, report.before.cta) == ((1, 0, 0), (0, 0, 0))
    assert (
        report.now.did.startswith("TMA store (c) of c[0:64, ")
        and report.now.lines[0].function == "fills"
    )
    assert "program_id" in report.fix and "concurrently" in report.cause


@numpipe.kernel(grid=(2,))
def copies(a, o):
    at = numpipe.program_id(0)
    pipe = numpipe.pipeline(
        grid=(1,),
        in_specs=(BlockSpec((64, 64), lambda k: (at, 0)),),
        out_specs=(BlockSpec((64, 64), lambda k: (at, 0)),),
    )
    for _, (x, y) in pipe(a, o):
        y[...] = x[...]


def test_views_of_one_allocation_meet_where_they_overlap() -> None:
    def run(seed: int | None, rows: int, columns: int = 0, same: bool = True) -> None:
        base = np.zeros((256, 128), F16)
        o = base[rows : rows + 128, columns : columns + 64]
        copies.simulate(base[:128, :64], o if same else o.copy(), seed=seed)

    for apart in ((128,), (0,), (64, 64), (64, 0, False)):
        silent(lambda seed, apart=apart: run(seed, *apart))
    reported(
        lambda seed: run(seed, 64),
        "cta-conflict",
        r"CTA \(1, 0, 0\): TMA load \(a\) reads a\[64:128, 0:64\], which CTA \(0, 0, 0\) writes",
        r"before: TMA store \(o\) by .*: o\[0:64, 0:64\]",
    )
    # the elements that both access
    reported(
        lambda seed: run(seed, 96), "cta-conflict", r"TMA load \(a\) reads a\[96:128, 0:64\], which"
    )


def test_a_transposed_view_is_reported_in_its_own_indices() -> None:
    @numpipe.kernel(grid=(2,))
    def copied(b, o):
        at = numpipe.program_id(0)
        block = BlockSpec((64, 64), lambda k: (0, at))
        for _, (x,) in numpipe.pipeline(grid=(1,), in_specs=(block,))(b):
            o[ds(0, 64), ds(at * 64, 64)] = x[...]

    def run(seed: int | None, start: int) -> None:
        base = np.zeros((256, 64), F16)
        copied.simulate(base[:128].T, base[start : start + 128].T, seed=seed)

    silent(lambda seed: run(seed, 128))
    reported(
        lambda seed: run(seed, 64),
        "cta-conflict",
        r"TMA load \(b\) reads b\[0:64, 64:128\], which CTA \(0, 0, 0\) writes",
    )


@functools.cache
def reduced(first: str | None, second: str | None) -> Any:
    """Reduce by `first` in CTA 0 (None: store) and by `second` in the other CTA."""

    @numpipe.kernel(grid=(2,))
    def sums(c):
        tile = numpipe.scratch(numpipe.SMEM((64, 64), np.float16))
        tile[...] = numpipe.zeros((64, 64), np.float32).astype(np.float16)
        if numpipe.program_id(0) == 0:
            numpipe.copy_smem_to_gmem(tile, c.at[ds(0, 64), ds(0, 64)], reduction_op=first)
        else:
            numpipe.copy_smem_to_gmem(tile, c.at[ds(0, 64), ds(0, 64)], reduction_op=second)

    return sums


def test_reductions_of_one_kind_may_meet() -> None:
    def run(seed: int | None, first: str | None, second: str | None) -> None:
        reduced(first, second).simulate(np.zeros((64, 64), F16), seed=seed)

    silent(lambda seed: run(seed, "add", "add"))
    reported(
        lambda seed: run(seed, "add", "max"),
        "cta-conflict",
        r"TMA reduction 'max' \(c\) writes c\[0:64, 0:64\], which CTA \(0, 0, 0\) writes too",
        r"before: TMA reduction 'add' \(c\)",
        "fix:    initialize the array before the kernel .*all CTAs use the same reduction_op",
    )
    reported(lambda seed: run(seed, None, "add"), "cta-conflict", r"before: TMA store \(c\)")
    reported(
        lambda seed: run(seed, "add", None), "cta-conflict", r"before: TMA reduction 'add' \(c\)"
    )


# ---- uninitialized arrays -------------------------------------------------------------------
def test_a_reduction_needs_what_it_adds_to() -> None:
    @numpipe.kernel(out_type=lambda a: numpipe.ArrayType((64, 32), np.float32))
    def adds(a, o):
        tile = numpipe.scratch(numpipe.SMEM((64, 32), np.float32))
        tile[...] = numpipe.zeros((64, 32), np.float32) + 1.0
        numpipe.copy_smem_to_gmem(tile, o.at[ds(0, 64), ds(0, 32)], reduction_op="add")

    a = np.ones((64, 32), F32)
    silent(lambda seed: adds.simulate(a, out=a.copy(), seed=seed))
    reported(
        lambda seed: adds.simulate(a, seed=seed),
        "uninitialised-read",
        r"TMA reduction 'add' \(o\) changes o\[0:64, 0:32\], which has not been written",
        kind=SimulationError,
    )


# ---- outside the array ---------------------------------------------------------------------------
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_tile_sticks_out_at_the_end_only(order: Any) -> None:
    @numpipe.kernel
    def at(c, row, column):
        c[ds(row, 64), ds(column, 64)] = numpipe.zeros((64, 64), np.float32)

    def c() -> np.ndarray:
        return np.ones((100, 72), F32, order=order)

    for start in ((60, 8), (99, 64), (128, 0), (0, 128)):
        silent(lambda seed, start=start: at.simulate(c(), *start, seed=seed))
    for start in ((-64, 0), (0, -8)):
        reported(
            lambda seed, start=start: at.simulate(c(), *start, seed=seed),
            "out-of-bounds",
            rf"'c\[…\] = tile': negative start \({start[0]}, {start[1]}\): ",
            kind=SimulationError,
        )


@pytest.mark.parametrize(
    "index, told",
    [
        (
            (slice(0, 4), slice(60, 65)),
            "elements 60 … 64 along dimension 1 of an array that has 64",
        ),
        ((slice(-2, 2), slice(0, 8)), "elements -2 … 1 along dimension 0 of an array that has 16"),
        ((16, slice(0, 8)), "elements 16 … 16 along dimension 0 of an array that has 16"),
    ],
)
def test_ordinary_stores_are_not_clipped(index: Any, told: str) -> None:
    def run(seed: int | None, index: Any) -> None:
        simulate(
            lambda machine: machine.gmem_write(
                np.zeros((16, 64), F16), index, np.zeros((), F16), "c"
            ),
            grid=(1, 1, 1),
            warpgroups=1,
            smem_bytes=1024,
            seed=seed,
        )

    silent(lambda seed: run(seed, (slice(0, 16), slice(60, 64))))
    reported(
        lambda seed: run(seed, index),
        "out-of-bounds",
        f"store to c: {told}: ordinary stores are not clipped",
        kind=SimulationError,
    )


# ---- within a CTA --------------------------------------------------------------------------------
def load(
    machine: Machine,
    tensor: TensorMap,
    coords: tuple[int, ...],
    address: int = 0,
    phase: int = 0,
    wait: bool = True,
) -> None:
    """Load by the elected lane."""
    machine.mbar_init_at_entry(BAR, 1, "landed")
    machine.mbar_arrive_expect_tx(BAR, tensor.nbytes)
    machine.tma_load(address, tensor, coords, BAR)
    if wait:
        machine.mbar_wait(BAR, phase)


def write_panel(machine: Machine, address: int = 8192) -> None:
    machine.smem_write(panel_chunks(address), np.zeros((4, 128, 16), np.uint8), "panel")
    machine.fence_proxy_async()
    machine.bar_sync(1 + machine.warpgroup, 128)


def run_body(body: Callable[..., None], seed: int | None, warpgroups: int = 1, **more: Any) -> None:
    simulate(body, grid=(1, 1, 1), warpgroups=warpgroups, smem_bytes=BAR + 1024, seed=seed, **more)


def test_ordinary_stores_are_not_there_for_the_tma() -> None:
    def body(machine: Machine, loaded: int) -> None:
        array = np.zeros((128, 64), F16)
        machine.gmem_write(array, (slice(0, 64), slice(0, 64)), np.ones((64, 64), F16), "a")
        machine.fence_proxy_async()  # on shared memory only
        machine.bar_sync(1, 128)
        one(machine, load, machine, TensorMap(array, (64, 64), 128, "a"), (loaded, 0))

    silent(lambda seed: run_body(lambda machine: body(machine, 64), seed))
    reported(
        lambda seed: run_body(lambda machine: body(machine, 0), seed),
        "array-in-transfer",
        r"TMA load \(a\) reads a\[0:64, 0:64\], which store \(a\) of the same CTA wrote: ordinary "
        r"stores to an array are not visible",
        r"fence.proxy.async.shared::cta, covers only shared memory",
        r"fix:    store it with copy_smem_to_gmem",
    )


@pytest.mark.parametrize("lanes", [False, True])
def test_a_store_over_what_a_load_still_reads(lanes: bool) -> None:
    array = np.zeros((64, 64), F16)
    tensor = TensorMap(array, (64, 64), 128, "a")

    def body(machine: Machine, waits: bool) -> None:
        write_panel(machine)
        one(machine, load, machine, tensor, (0, 0), wait=False)
        if waits:
            machine.mbar_wait(BAR, 0)
        if lanes:
            machine.gmem_write(array, (slice(0, 64),), np.ones((64, 64), F16), "a")
        else:
            one(machine, machine.tma_store, tensor, (0, 0), 8192)
            one(machine, machine.bulk_commit)
            one(machine, machine.bulk_wait, 0, read=False)
        if not waits:
            machine.mbar_wait(BAR, 0)

    silent(lambda seed: run_body(lambda machine: body(machine, True), seed))
    reported(
        lambda seed: run_body(lambda machine: body(machine, False), seed),
        "array-in-transfer",
        r"store \(a\) writes the array at a\[0:64, 0:64\] while TMA load \(a\) by warpgroup 0 "
        r"\(compute\) may still be "
        "reading it",
    )


@pytest.mark.parametrize("second", ["TMA store", "store", "TMA load"])
def test_a_store_is_complete_only_for_warpgroups_that_are_notified(second: str) -> None:
    """Warpgroup 0 stores and waits; the other one must be notified, even if the copy happens to be
    done."""

    def body(machine: Machine, array: np.ndarray, told: bool) -> None:
        tensor = TensorMap(array, (64, 64), 128, "a")
        write_panel(machine, 8192 * (1 + machine.warpgroup))
        if machine.warpgroup == 0:
            one(machine, machine.tma_store, tensor, (0, 0), 8192)
            one(machine, machine.bulk_commit)
            one(machine, machine.bulk_wait, 0, read=False)
        if told or machine.warpgroup == 0:
            machine.bar_sync(8, 256 if told else 128)
        if machine.warpgroup == 1:
            if second == "store":
                machine.gmem_write(array, (slice(0, 8), slice(0, 64)), np.ones((8, 64), F16), "a")
            elif second == "TMA load":
                one(machine, load, machine, tensor, (0, 0))
            else:
                one(machine, machine.tma_store, tensor, (0, 0), 16384)
                one(machine, machine.bulk_commit)
                one(machine, machine.bulk_wait, 0, read=False)

    def run(seed: int | None, told: bool) -> None:
        array = np.zeros((64, 64), F16)
        run_body(lambda machine: body(machine, array, told), seed, warpgroups=2)

    silent(lambda seed: run(seed, True))
    reported(
        lambda seed: run(seed, False),
        "array-in-transfer",
        r"\(a\) (reads|writes) the array at a\[0:\d+, 0:64\] while .*\(a\) by warpgroup [01] "
        r"\(compute\) may still be "
        "(reading|writing) it|ordinary stores to an array are not visible",
    )


def test_two_warpgroups_store_to_parts_of_their_own() -> None:
    @numpipe.kernel(num_compute_wgs=2)
    def halves(c, own):
        row = numpipe.axis_index("wg") * own
        c[ds(row, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    def run(seed: int | None, own: int, order: Any) -> None:
        halves.simulate(np.ones((128, 64), F32, order=order), own, seed=seed)

    for order in "CF":
        silent(lambda seed, order=order: run(seed, 64, order))
    reported(
        lambda seed: run(seed, 32, "F"),
        "unordered-accesses",
        r"store \(c\) writes c\[32:64, 0:64\], which store \(c\) of "
        r"warpgroup \d \(compute\) writes too",
        r"no barrier orders warpgroup \d \(compute\) before warpgroup \d",
    )
    reported(
        lambda seed: run(seed, 0, "C"),
        "array-in-transfer",
        r"while TMA store \(c\) by warpgroup \d \(compute\) may still be",
    )


# ---- griddepcontrol ------------------------------------------------------------------------------
WAITS = {
    "its own": lambda machine: machine.grid_dependency_wait(),
    "one lane's": lambda machine: one(machine, machine.grid_dependency_wait),
    "another warpgroup's": lambda machine: (
        machine.warpgroup == 1 and machine.grid_dependency_wait(),
        machine.bar_sync(8, 256),
    ),
    "another's, but not told": lambda machine: (
        machine.warpgroup == 1 and machine.grid_dependency_wait()
    ),
    "another's, told too early": lambda machine: (
        machine.bar_sync(8, 256),
        machine.warpgroup == 1 and machine.grid_dependency_wait(),
    ),
    "too late": None,
    "none": lambda machine: None,
}


@pytest.mark.parametrize("access", ["load", "store", "TMA store"])
@pytest.mark.parametrize(
    "wait, good",
    [
        ("its own", True),
        ("one lane's", None),
        ("another warpgroup's", True),
        ("another's, but not told", False),
        ("another's, told too early", False),
        ("too late", False),
        ("none", True),
    ],
)
def test_arrays_are_accessed_after_a_griddepcontrol_wait(
    wait: str, good: bool | None, access: str
) -> None:
    def body(machine: Machine) -> None:
        array = np.zeros((64, 64), F16)
        tensor = TensorMap(array, (64, 64), 128, "a")
        if machine.warpgroup == 0:
            write_panel(machine)
        if WAITS[wait] is not None:
            WAITS[wait](machine)
        if machine.warpgroup == 0:
            if access == "load":
                one(machine, load, machine, tensor, (0, 0))
            elif access == "store":
                machine.gmem_write(array, (slice(0, 64), slice(0, 64)), np.ones((64, 64), F16), "a")
            else:
                one(machine, machine.tma_store, tensor, (0, 0), 8192)
                one(machine, machine.bulk_commit)
                one(machine, machine.bulk_wait, 0, read=False)
        if wait == "too late":
            machine.grid_dependency_wait()

    def run(seed: int | None) -> None:
        run_body(body, seed, warpgroups=2)

    if access != "store" if good is None else good:  # the lane that waited is the one that copies
        silent(run)
    else:
        reported(
            run,
            "read-before-grid-dependency",
            r"a\[0:64, 0:64\] is (read|written) by (TMA (load|store)|store) \(a\) of warpgroup 0 "
            r"\(compute\) before griddepcontrol.wait",
            r"fix:    griddep.wait\(\) by every warpgroup",
        )


def test_a_dependent_launch_needs_a_wait_whether_there_is_one_or_not() -> None:
    array = np.zeros((64, 64), F16)

    def body(machine: Machine, waits: bool) -> None:
        if waits:
            machine.grid_dependency_wait()
        machine.gmem_write(array, (slice(0, 64), slice(0, 64)), np.ones((64, 64), F16), "a")

    silent(lambda seed: run_body(lambda machine: body(machine, True), seed, programmatic=True))
    reported(
        lambda seed: run_body(lambda machine: body(machine, False), seed, programmatic=True),
        "read-before-grid-dependency",
    )


def test_a_kernel_begins_with_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra wait anywhere is right; without the wait at its entry, every kernel is wrong."""

    @numpipe.kernel
    def waits_late(c):
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
        griddep.wait()

    silent(lambda seed: waits_late.simulate(np.ones((64, 64), F32), seed=seed))
    monkeypatch.setattr(griddep.wait, "function", lambda: None)
    reported(
        lambda seed: waits_late.simulate(np.ones((64, 64), F32), seed=seed),
        "read-before-grid-dependency",
        r"c\[0:64, \d+:\d+\] is written by TMA store \(c\) of warpgroup 0",
    )


# ---- cost -----------------------------------------------------------------------------------
def test_an_array_that_is_never_written_costs_one_lookup_per_block() -> None:
    """However often its blocks are loaded, by however many CTAs: only the first load of each is
    recorded."""
    array = np.zeros((128, 64), F16)
    remembered = []

    def body(machine: Any) -> None:
        tensor = TensorMap(array, (64, 64), 128, "a")
        for phase in range(6):
            one(machine, load, machine, tensor, (64 * (phase % 2), 0), phase=phase)
        gmem = machine.sm.gmem
        remembered.append((len(gmem._touches), [region.open for region in gmem._regions]))

    simulate(body, grid=(5, 1, 1), warpgroups=1, smem_bytes=BAR + 1024)
    assert remembered == [(2, [False])] * 5


def stores(view: Callable[[np.ndarray], np.ndarray]) -> Callable[[Machine, np.ndarray], None]:
    def access(machine: Machine, base: np.ndarray) -> None:
        array = view(base)
        machine.gmem_write(
            array,
            (slice(0, array.shape[0]), slice(0, array.shape[1])),
            np.zeros((), array.dtype),
            "a",
        )

    return access


def loads(view: Callable[[np.ndarray], np.ndarray]) -> Callable[[Machine, np.ndarray], None]:
    def access(machine: Machine, base: np.ndarray) -> None:
        array = view(base)
        one(machine, load, machine, TensorMap(array, array.shape, 0, "a"), (0, 0))

    return access


@pytest.mark.parametrize(
    "first, second, meets",
    [
        (loads(lambda b: b[:16, :64]), stores(lambda b: b[16:, :64].view(F32)), False),
        # the load was in a region of its own
        (loads(lambda b: b[:16, :64]), stores(lambda b: b[15:, :64].view(F32)), True),
        (stores(lambda b: b[:16].view(F32)), stores(lambda b: b[16:]), False),
        (stores(lambda b: b[:17].view(F32)), stores(lambda b: b[16:]), True),  # units become finer
        (stores(lambda b: b[:, ::2]), stores(lambda b: b[:, 1::2]), False),
        (stores(lambda b: b[:, ::2]), stores(lambda b: b[:, ::3]), True),
        (stores(lambda b: b[4:8, 8:16]), loads(lambda b: b[::2, 16:32]), False),
        (stores(lambda b: b[4:8, 8:17]), loads(lambda b: b[::2, 16:32]), True),
        # reversed, rows 5 … 31
        (stores(lambda b: b[4:5, 8:16]), stores(lambda b: b[::-1, ::-1][:27]), False),
        (stores(lambda b: b[4:5, 8:16]), stores(lambda b: b[::-1, ::-1][:28]), True),
        (stores(lambda b: b[4:8, 8:16].T), loads(lambda b: b[8:16, :64]), False),
        (stores(lambda b: b[4:9, 8:16].T), loads(lambda b: b[8:16, :64]), True),
    ],
)
def test_views_meet_where_their_bytes_do(first: Any, second: Any, meets: bool) -> None:
    """For any types, strides and directions. Between the two, a third view of another row is
    recorded."""

    def run(seed: int | None) -> None:
        base = np.zeros((64, 64), F16)

        def body(machine: Machine) -> None:
            (first, stores(lambda b: b[40:41, ::2]), second)[machine.cta[0]](
                machine, base[:32] if machine.cta[0] != 1 else base
            )

        simulate(body, grid=(3, 1, 1), warpgroups=1, smem_bytes=BAR + 1024, seed=seed)

    if meets:
        reported(
            run,
            "cta-conflict",
            r"\(a\) (reads|writes) a\[\d+:\d+, \d+:\d+\], which CTA \(0, 0, 0\) (reads|writes)",
        )
    else:
        silent(run)


def test_the_maps_of_a_region_stay_as_arrays_are_met() -> None:
    """In the left half, A is read and C is written.

    They are apart until a part of the right half is accessed, which overlaps both.
    """
    met = (
        loads(lambda b: b[:16, :32]),
        stores(lambda b: b[32:, :32].view(F32)),
        loads(lambda b: b[8:20, :32]),
        stores(lambda b: b[:, 33:40]),
    )

    def run(seed: int | None, last: Any) -> None:
        base = np.zeros((64, 64), F16)
        simulate(
            lambda machine: (*met, last)[machine.cta[0]](machine, base),
            grid=(5, 1, 1),
            warpgroups=1,
            smem_bytes=BAR + 1024,
            seed=seed,
        )

    silent(lambda seed: run(seed, stores(lambda b: b[20:32, :33])))
    for row, earlier in ((7, "0, 0, 0) reads"), (19, "2, 0, 0) reads"), (63, "1, 0, 0) writes")):
        # from whichever of the two comes later
        told = rf"which CTA \(({re.escape(earlier)}|4, 0, 0\) writes)"
        reported(
            lambda seed, row=row: run(seed, stores(lambda b: b[row : row + 1, :33])),
            "cta-conflict",
            told,
        )
