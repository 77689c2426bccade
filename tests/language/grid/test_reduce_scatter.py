"""Tiles split along K among the CTAs of a cluster, which exchange shares of their sums through
shared memory."""

from __future__ import annotations

import inspect
import itertools
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import (
    ArrayType,
    BlockSpec,
    CompileError,
    PipelineDeadlock,
    PipelineRace,
    SimulationError,
    SpecError,
    Workspace,
    ds,
)
from numpipe.compile.build import toolchain
from numpipe.compile.check import gate
from numpipe.language.grid import cluster_exit, cluster_sums, split_k
from numpipe.model import H200
from tests.kernels.compilers import compiles
from tests.kernels.split_cases import BF16, integers
from tests.kernels.split_kernels import InCluster, exchanged

T16 = ArrayType((512, 512), np.float16)
TWO = InCluster()
IN_TURNS = InCluster(2, wgs=2, schedule="pingpong")
CONFIGS = [
    InCluster(1),
    TWO,
    InCluster(3, tn=48),
    InCluster(4),
    InCluster(8, slots=2),
    InCluster(2, tm=128, tn=32, wgs=2),
    IN_TURNS,
    InCluster(4, wgs=3, schedule="pingpong"),
]


# ---- right and reproducible
@pytest.mark.variants(2)
@pytest.mark.parametrize("cfg", CONFIGS, ids=str)
def test_products_in_parts_of_a_cluster_are_products(cfg: InCluster) -> None:
    for (m, n, k), dtype in (
        ((200, 136, 328), BF16),
        ((64, 64, 64), np.float16),
        ((64, 8, 0), BF16),
    ):
        a, b, exact = integers(m, n, k, dtype)
        np.testing.assert_array_equal(
            exchanged(cfg).simulate(a, b).astype(np.float64), exact.astype(np.float64)
        )


@pytest.mark.parametrize("cfg", [InCluster(4), IN_TURNS], ids=str)
def test_sums_are_the_same_bits_in_any_schedule(cfg: InCluster) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, 448), np.float32).astype(BF16) for rows in (128, 64))
    first = exchanged(cfg).simulate(a, b)
    for seed in range(3):
        np.testing.assert_array_equal(
            exchanged(cfg).simulate(a, b, seed=seed).view(np.uint16), first.view(np.uint16)
        )


@pytest.mark.parametrize(
    "cfg", [TWO, *[pytest.param(cfg, marks=pytest.mark.soak) for cfg in CONFIGS[2:]]], ids=str
)
def test_no_schedule_has_a_report(cfg: InCluster) -> None:
    a, b, _ = integers(320, 64, 320)
    assert (result := numpipe.verify(exchanged(cfg), a, b, schedules=8 if cfg == TWO else 40)), str(
        result
    )


def test_a_cta_that_leaves_before_its_sums_were_read_is_a_race(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_exit, "shared_sums", lambda unit: [])
    a, b, _ = integers(64, 64, 128)
    with pytest.raises(PipelineRace, match="may have ended|was never waited for") as caught:
        for seed in (None, *range(20)):
            exchanged(TWO).simulate(a, b, seed=seed)
    assert caught.value.report is not None and caught.value.report.hazard == "exit-in-flight"


def test_sums_that_one_cta_keeps_for_itself_are_reported_with_the_fix() -> None:
    """The other CTA waits forever, or its sum arrives at a CTA that has exited, depending on the
    schedule."""

    @numpipe.kernel(grid=2, cluster=2, cluster_names="k")
    def selfish(c):
        for m, n, part in numpipe.split_tiles(1, 1, steps=2, split="k"):
            acc = numpipe.zeros((64, 64), np.float32)
            if part.begin == 0:
                c[ds(m * 64, 64), ds(n * 64, 32)] = numpipe.combine(acc, part, axis="k")

    for seed in (None, *range(8)):
        with pytest.raises((PipelineRace, PipelineDeadlock)) as caught:
            selfish.simulate(np.zeros((64, 64), np.float32), seed=seed)
        assert caught.value.report is not None and caught.value.report.hazard in (
            "exit-in-flight",
            "too-few-arrivals",
        )
        assert "numpipe.combine(acc, part, axis=…) in all CTAs" in str(caught.value)


def test_ctas_along_one_axis_share_blocks_and_along_the_other_the_steps() -> None:
    @numpipe.kernel(grid=(2, 4), cluster=(2, 2), cluster_names=("m", "k"))
    def both(a, b, c):
        m = numpipe.axis_index("m")
        for _, n, part in numpipe.split_tiles(1, 2, steps=5, split="k"):
            acc = numpipe.zeros((64, 64), np.float32)
            pipe = numpipe.pipeline(
                grid=(part.steps,),
                max_concurrent_steps=2,
                in_specs=(
                    BlockSpec((64, 64), lambda k: (m, part.begin + k)),
                    BlockSpec((64, 64), lambda k: (n, part.begin + k), collective_axes="m"),
                ),
            )
            for _, (a_tile, b_tile) in pipe(a, b):
                acc = numpipe.wgmma(acc, a_tile, b_tile.T)
            acc = numpipe.combine(acc, part, axis="k")
            c[ds(m * 64, 64), ds(n * 64 + 32 * numpipe.axis_index("k"), 32)] = acc

    a, b, _ = integers(128, 128, 320)
    for seed in (None, 0, 1):
        c = np.zeros((128, 128), np.float32)
        both.simulate(a, b, c, seed=seed)
        np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


def test_every_step_is_in_one_part_and_parts_differ_by_one_at_most() -> None:
    for steps, size in itertools.product((0, 1, 3, 8, 65), (1, 2, 3, 8)):
        parts = [
            split_k.cluster_part(np.int32(steps), np.int32(which), np.int32(size))
            for which in range(size)
        ]
        assert Counter(
            step for part in parts for step in range(part.begin, part.begin + part.steps)
        ) == Counter(range(steps))
        assert max(part.steps for part in parts) - min(part.steps for part in parts) <= 1


def test_a_lane_sends_its_own_registers_in_their_order() -> None:
    """Lane 4 g + t of warp w has rows 16 w + g and 8 more, and columns 2 t and 2 t + 1 of the
    chunk's block."""
    order = cluster_sums._elements((128, 32))
    assert sorted(order.reshape(-1)) == list(range(128 * 32))
    for warp, lane, chunk in ((0, 0, 0), (1, 5, 2), (3, 31, 7)):
        row = 64 * (chunk // 4) + 16 * warp + lane // 4
        column = 8 * (chunk % 4) + 2 * (lane % 4)
        assert [divmod(int(n), 32) for n in order[warp, 32 * chunk + lane]] == [
            (row, column),
            (row, column + 1),
            (row + 8, column),
            (row + 8, column + 1),
        ]


# ---- broken exchanges
BROKEN: dict[str, tuple[str, str, type[SimulationError], str]] = {
    "bytes not announced": ("each_warp(", "pass", PipelineDeadlock, "too-few-arrivals"),
    "sent over what is being read": ("mbarrier.wait(", "pass", PipelineRace, "refilled-while-read"),
    "read before it has come": (
        "phases.wait(",
        "pass",
        PipelineRace,
        "read-before-ready|uninitialised-read",
    ),
    "not told that it has been read": (
        "phases.arrive_at_peers",
        "pass",
        PipelineDeadlock,
        "too-few-arrivals",
    ),
    "told before it has been read": (
        "own = add(",
        "phases.arrive_at_peers(sums.consumed); own = add(sums, own); return own",
        PipelineRace,
        "refilled-while-read",
    ),
    "awaited by one warp": (
        "phases.wait(",
        "one_lane(phases.wait, sums.ready)",
        PipelineRace,
        "read-before-ready|uninitialised-read",
    ),
    "a phase ahead": (
        "mbarrier.wait(",
        "mbarrier.wait(sums.consumed.address, phases.next_phase(sums.consumed), -1)",
        PipelineDeadlock,
        "too-few-arrivals",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_exchange_without_one_of_its_steps_is_reported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, to, error, hazard = BROKEN[name]
    source = inspect.getsource(cluster_sums.scattered.function).splitlines()[1:]
    [at] = [number for number, text in enumerate(source) if line in text]
    source[at] = "    " + to
    ns = {**vars(cluster_sums), "one_lane": numpipe.core.lanes.one_lane}
    exec("\n".join(source), ns)
    a, b, exact = integers(256, 64, 128)
    np.testing.assert_array_equal(exchanged(TWO).simulate(a, b), exact)
    monkeypatch.setattr(cluster_sums, "scattered", ns["scattered"])
    for seed in (None, 0, 1):
        with pytest.raises(error) as caught:
            exchanged(TWO).simulate(a, b, seed=seed)
        assert re.fullmatch(hazard, caught.value.report.hazard) and "split_kernels.py" in str(
            caught.value
        ), seed


def test_a_share_that_is_not_added_is_a_wrong_product(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, exact = integers(64, 64, 128)
    monkeypatch.setattr(cluster_sums.add, "function", lambda sums, tile: tile)
    assert (exchanged(TWO).simulate(a, b) != exact).any()


# ---- what is rejected
def refused(body: Callable[..., Any], message: str, **options: Any) -> None:
    given = {"grid": 2, "cluster": 2, "cluster_names": "k", **options}
    c = np.zeros((64, 64), np.float32)
    for run in ("simulate", "compiled") if toolchain() is None else ("simulate",):
        with pytest.raises((SpecError, CompileError), match=message):
            getattr(numpipe.kernel(body, **given), run)(c, c)


def test_what_cannot_be_exchanged_is_refused() -> None:
    def unknown(a, c):
        for m, n, part in numpipe.split_tiles(1, 1, steps=4, split="m"):
            pass

    def along_no_axis(a, c):
        for m, n, part in numpipe.split_tiles(1, 1, steps=4, split="k"):
            c[ds(0, 64), ds(0, 64)] = numpipe.combine(
                numpipe.zeros((64, 64), np.float32), part, axis="m"
            )

    def halves(a, c):
        for m, n, part in numpipe.split_tiles(1, 1, steps=4, split="k"):
            half = numpipe.zeros((64, 64), np.float32).astype(np.float16)
            numpipe.combine(half, part, axis="k")

    def narrow(a, c):
        for m, n, part in numpipe.split_tiles(1, 1, steps=4, split="k"):
            numpipe.combine(numpipe.zeros((64, 8), np.float32), part, axis="k")

    def twice(a, c, work):
        for m, n, part in numpipe.split_tiles(1, 1, steps=4, split="k"):
            numpipe.combine(numpipe.zeros((64, 64), np.float32), part, work, axis="k")

    for body, message, options in (
        (
            unknown,
            "split_tiles: split='m' is not an axis of the cluster: the cluster's axes are 'k'",
            {},
        ),
        (
            unknown,
            "split='m' is not an axis of the cluster: the kernel names none",
            {"cluster_names": ()},
        ),
        (
            along_no_axis,
            "combine: axis='m' is not an axis of the cluster: the cluster's axes are 'k'",
            {},
        ),
        (
            halves,
            r"axis='k'\): acc must be a float32 register tile \(rows, columns\), got float16 "
            r"\(64, 64\); fix: combine before",
            {},
        ),
        (
            narrow,
            "2 CTAs along 'k' each keep a share of a tile's columns, a multiple of 8, but this "
            "tile has 8; fix: .* of 16",
            {},
        ),
        (
            twice,
            "axis='k' exchanges sums through shared memory, but work is a workspace in global "
            "memory; fix: leave one of",
            {"workspace": Workspace((64, 64))},
        ),
    ):
        refused(body, message, **options)
    with pytest.raises(
        SpecError,
        match=r"Workspace: split='k' is neither \"stream\" nor an axis of the cluster: .* are \(\)",
    ):
        numpipe.kernel(twice, workspace=Workspace((64, 64), "k"))


def test_buffers_count_for_the_shared_memory_of_a_cta() -> None:
    with pytest.raises(
        SpecError,
        match=r"(?s)shared memory: .* B, but a CTA has 232448 B.*98304 B  partial sums of CTAs "
        r"along 'k' @ split_kernels.py:\d+: 2 warpgroups x 49152 B",
    ):
        exchanged(InCluster(4, tm=128, tn=256, slots=4, wgs=2)).simulate(*integers(64, 64, 64)[:2])


# ---- explain
@pytest.mark.parametrize("cfg", [TWO, IN_TURNS], ids=str)
def test_exchanges_take_time_and_blocks_are_loaded_once(cfg: InCluster) -> None:
    few = replace(H200, sms=4)
    a, b = ArrayType((256, 640), np.float16), ArrayType((192, 640), np.float16)
    explained = numpipe.explain(exchanged(cfg), a, b, device=few, compiled=False)
    slow = replace(few, exchange_cycles=1_000_000)
    assert (
        numpipe.explain(exchanged(cfg), a, b, device=slow, compiled=False).predicted_seconds
        > 5 * explained.predicted_seconds
    )
    assert explained.copied_bytes == 12 * 10 * 2 * 64 * 64 * 2  # each step's blocks once


# ---- the machine code
@pytest.mark.thorough
@compiles
@pytest.mark.parametrize(
    "cfg",
    [
        InCluster(4, tn=128),
        *[
            pytest.param(cfg, marks=pytest.mark.soak)
            for cfg in (
                InCluster(2, 128, 128, 64, 4, wgs=2),
                InCluster(2, 128, 256, 64, 2, wgs=2),
                InCluster(2, 64, 256, 64, 2, "pingpong", 2),
                InCluster(3, 64, 48),
                InCluster(8, 128, 128, 64, 3, wgs=2),
            )
        ],
    ],
    ids=str,
)
def test_the_machine_code_passes_the_gate_and_sends_16_bytes_a_lane(cfg: InCluster) -> None:
    built = exchanged(cfg).compiled(T16, T16)
    assert gate.findings(built) == ()
    sass = built.sass
    pieces = (
        cfg.tm
        * cfg.tn
        // 128
        // 4
        // (1 if cfg.schedule == "pingpong" else cfg.wgs)
        // cfg.size
        * (cfg.size - 1)
    )
    assert sass.count("STAS.128") == sass.count("LDS.128") == pieces
    # at the beginning; at the end each CTA waits by itself
    assert not sass.count("MEMBAR.ALL.GPU") and sass.count("UCGABAR_ARV") == 1
    assert (
        "barrier.cluster.arrive.relaxed" in built.ptx
        and "barrier.cluster.arrive.release" not in built.ptx
    )
