"""All schedules of the kernels that together reach every synchronization, and of the catalogue's
broken ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, ds
from numpipe.errors import SimulationError
from numpipe.sim import livelocks
from numpipe.sim.exploration import Exploration, Explored
from tests.kernels.covering import examples
from tests.kernels.steered_kernels import KERNELS, arrays

from .removal_kernels import RUNS
from .test_catalogue import ENTRIES

MOST_SECONDS = 120.0
EACH_RUN = (
    "a ring, two warpgroups",
    "rings in rings",
    "chained",
    "turns, gemm",
    "a body's barriers (True, True)",
    "order tokens, two",
    "outputs of one slot",
    "outputs by a store role",
    "tiles by a store role",
    "a cluster that shares blocks of b",
    "a poll",
    "two GPUs, without a memory role",
    "two GPUs, tiles",
)
MEET_ONCE = {"a poll", "two GPUs, tiles"}
"""kernels with more than one class: some poll a phase, and some have two warpgroups that signal one
semaphore"""
BROKEN = [name for name, entry in ENTRIES.items() if not entry.verified]


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    # otherwise each livelock takes a second
    for bound, rounds_ in (("MOST", 3000), ("TURNS", 100)):
        monkeypatch.setattr(livelocks, bound, rounds_)


def classes(run: Callable[[Any], Any], seconds: float = MOST_SECONDS) -> list[list[Explored]]:
    """Return the classes of each cluster; fails if they are not all found in time."""
    end, found = time.perf_counter() + seconds, []
    while not found or len(found) < exploration.clusters:  # noqa: F821  # bound in the first round
        exploration = Exploration(run, len(found))
        of = []
        for one in exploration:
            assert time.perf_counter() < end, (
                f"bound reached after {len(of)} classes of cluster {len(found)}"
            )
            of += [one] if one is not None else []
        assert not exploration.partly
        found.append(of)
    return found


def explore_whole(name: str) -> None:
    found = classes(RUNS[name])
    for of in found:
        assert all(one.error is None for one in of), [
            str(one.error) for one in of if one.error is not None
        ][:1]
        first = of[0].result
        for one in of[1:]:
            for a, b in zip(
                np.atleast_1d(one.result) if isinstance(one.result, np.ndarray) else one.result,
                np.atleast_1d(first) if isinstance(first, np.ndarray) else first,
                strict=True,
            ):
                np.testing.assert_array_equal(a, b)
        assert name in MEET_ONCE or len(of) == 1, f"{len(of)} classes"


@pytest.mark.variants(5)
@pytest.mark.parametrize("name", EACH_RUN)
def test_all_schedules_of_a_fixed_kernel_leave_one_result(name: str) -> None:
    explore_whole(name)


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in RUNS if name not in EACH_RUN])
def test_all_schedules_of_each_kernel_leave_one_result(name: str) -> None:
    explore_whole(name)


KINDS = {
    "load ring": ("a ring, two warpgroups", "a ring with delay_release"),
    "barriers by hand": ("a body's barriers (True, True)", "a loop's barriers"),
    "automatic barriers": ("automatic barriers, turned", "automatic barriers, in_place"),
    "chained pairs": ("chained",),
    "nested": ("rings in rings",),
    "ping-pong": ("turns, gemm", "turns, barriers by hand, in place", "turns, skips"),
    "order tokens": ("order tokens, two", "order tokens, fewer steps"),
    "cluster of 2": (
        "a cluster that shares blocks of b",
        "a cluster that exchanges sums",
        "a cluster that passes tiles on",
    ),
    "store role": (
        "outputs by a store role",
        "tiles by a store role",
        "reductions by a store role",
    ),
    "store ring": ("outputs", "outputs of one slot", "examples/gemm.py"),
}
"""kind of pipeline -> its kernels that are explored completely; kernels steered by data follow"""


def test_each_kind_of_pipeline_is_among_the_kernels() -> None:
    assert {name for names in KINDS.values() for name in names} <= set(RUNS)


@pytest.mark.parametrize(
    ("name", "slots", "delay"),
    [
        pytest.param(
            name, slots, delay, marks=[] if (name, slots) == ("walks", 1) else [pytest.mark.soak]
        )
        for name in KERNELS
        for slots, delay in ((1, 0), (2, 0), (2, 1))
    ],
)
def test_all_schedules_of_kernels_steered_by_data_leave_one_result(
    name: str, slots: int, delay: int
) -> None:
    """A schedule includes which CTA draws which tile; without a counter, a CTA has one class."""
    given = arrays(np.random.default_rng(2), np.int32)
    result = numpipe.verify(
        KERNELS[name], *given, slots=slots, delay=delay, schedules="all", limit=MOST_SECONDS
    )
    assert result.ok and result.coverage is not None and result.coverage.complete, str(result)
    ctas = 1 if name == "walks" else 3 if name == "tiles_of_a_table" else 2
    assert result.schedules == (128 if name == "tiles_of_a_counter" else ctas)


def hazards(run: Callable[[Any], Any], seeds: Any) -> set[str]:
    """Return the hazards that random schedules find."""
    found = set()
    for seed in seeds:
        try:
            run(seed)
        except SimulationError as error:
            assert error.report is not None
            found.add(error.report.hazard)
    return found


def explored_hazards(run: Callable[[Any], Any]) -> list[set[str]]:
    """Return the hazard of each class; "" if there is none."""
    return [
        {
            "" if one.error is None or one.error.report is None else one.error.report.hazard
            for one in of
        }
        for of in classes(run)
    ]


@pytest.mark.variants(12)
@pytest.mark.parametrize("name", BROKEN)
def test_what_random_schedules_find_in_a_broken_kernel_is_found(name: str) -> None:
    entry = ENTRIES[name]
    found = explored_hazards(lambda seed: entry.run(False, seed))
    assert any(of == {entry.hazard} for of in found)
    assert hazards(
        lambda seed: entry.run(False, seed), (None, *range(examples(20)))
    ) <= set().union(*found)


def test_the_twin_of_a_kernel_that_verify_reports_is_explored_as_one_run() -> None:
    entry = ENTRIES["half_of_the_columns"]
    assert entry.verified and all(
        one.error is None for one in classes(lambda seed: entry.run(True, seed))[0]
    )


# ---- a small ring in place of a large one
MISTAKES = "", "early", "undrained", "never", "twice", "one of two"


def ring(slots: int, delay: int, wgs: int, mistake: str) -> Any:
    """Compute a product whose body releases the tiles.

    A `mistake` releases them before the product, before it has drained, never, and so on.
    """

    @numpipe.kernel(num_compute_wgs=wgs, grid=1)
    def product(a, b, c):
        wg = numpipe.axis_index("wg")

        def body(indices, a_tile, b_tile, a_free, b_free, acc):
            if mistake == "early":
                numpipe.barrier_arrive(a_free)
            acc = numpipe.wgmma(acc, a_tile.at[ds(wg * 64, 64), ds(0, 64)], b_tile.T)
            acc = numpipe.wgmma_wait(acc, delay + 1 if mistake == "undrained" else delay)
            if mistake not in ("early", "never"):
                numpipe.barrier_arrive(a_free)
            if mistake != "one of two" or wg == 0:
                numpipe.barrier_arrive(b_free)
            if mistake == "twice":
                numpipe.barrier_arrive(b_free)
            return acc

        def compute(pipeline):
            c[ds(wg * 64, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        specs = BlockSpec((64 * wgs, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))
        numpipe.emit_pipeline_warp_specialized(
            body,
            grid=(a.shape[1] // 64,),
            max_concurrent_steps=slots,
            delay_release=delay,
            in_specs=specs,
            compute_context=compute,
            manual_consumed_barriers=True,
        )(a, b)

    return product


def runs(slots: int, delay: int, wgs: int, mistake: str, steps: int) -> Callable[[Any], Any]:
    kernel = ring(slots, delay, wgs, mistake)
    a, b = (
        np.random.default_rng(0).integers(-3, 4, (rows, 64 * steps)).astype(np.float16)
        for rows in (64 * wgs, 64)
    )

    def run(seed: Any) -> Any:
        c = np.zeros((64 * wgs, 64), np.float32)
        kernel.simulate(a, b, c, seed=seed)
        return c

    return run


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    ("slots", "delay", "wgs"), [(2, 1, 2), (1, 0, 1), (1, 0, 2), (2, 0, 1), (2, 0, 2), (2, 1, 1)]
)
def test_a_ring_that_releases_by_itself_has_one_class(slots: int, delay: int, wgs: int) -> None:
    @numpipe.kernel(num_compute_wgs=wgs, grid=1)
    def product(a, b, c):
        wg = numpipe.axis_index("wg")
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(a.shape[1] // 64,),
            max_concurrent_steps=slots,
            delay_release=delay,
            in_specs=(
                BlockSpec((64 * wgs, 64), lambda k: (0, k)),
                BlockSpec((64, 64), lambda k: (0, k)),
            ),
        )
        for (k,), (a_tile, b_tile) in pipe(a, b):
            acc = numpipe.wgmma(acc, a_tile.at[ds(wg * 64, 64), ds(0, 64)], b_tile.T)
        c[ds(wg * 64, 64), ds(0, 64)] = acc

    a, b = (np.ones((rows, 64 * (slots + delay + 2)), np.float16) for rows in (64 * wgs, 64))
    result = numpipe.verify(
        product, a, b, np.zeros((64 * wgs, 64), np.float32), schedules="all", limit=MOST_SECONDS
    )
    assert (
        result.ok
        and result.coverage is not None
        and result.coverage.complete
        and result.schedules == 1
    )


@pytest.mark.variants(6)
@pytest.mark.parametrize(
    ("slots", "delay", "wgs"), [(2, 1, 2), (1, 0, 1), (1, 0, 2), (2, 0, 1), (2, 0, 2), (2, 1, 1)]
)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_a_long_ring_does_in_random_schedules_a_short_one_does_in_all(
    slots: int, delay: int, wgs: int, mistake: str
) -> None:
    if mistake == "one of two" and wgs == 1:
        mistake = "never"
    small = explored_hazards(runs(slots, delay, wgs, mistake, slots + delay + 2))[0]
    large = hazards(
        runs(slots, delay, wgs, mistake, 4 * slots + delay + 7), (None, *range(examples(20)))
    )
    assert large == small - {""}
    assert (small == {""}) == (mistake == "")
