"""Multi-GPU kernels on the simulator: results in any schedule, which signals order what, and
reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, ds
from numpipe.errors import PipelineDeadlock, PipelineRace, SpecError
from numpipe.sim import Costs
from numpipe.sim import gpus as of_gpus
from tests.kernels import gpu_kernels
from tests.kernels.covering import examples
from tests.kernels.gpu_kernels import CASES, Case

MESH = numpipe.Mesh.simulated
RINGS = "ring_gather", "reduce_scatter"


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def computes(case: Case, gpus: int, seed: Any, **options: Any) -> None:
    inputs = case.inputs(gpus)
    got = case.kernel.simulate(*inputs, mesh=MESH(gpus), seed=seed, **case.options(gpus), **options)
    for made, wanted in zip(
        [got] if isinstance(got, list) else got, case.results(*inputs), strict=True
    ):
        for gpu in range(gpus):
            np.testing.assert_array_equal(
                made[gpu], wanted[gpu], err_msg=f"GPU {gpu} of {gpus}, seed {seed}"
            )


@pytest.mark.variants(4, thorough=16)
@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", [name for name in CASES if name not in RINGS])
def test_kernels_compute_the_same_in_every_schedule(name: str, gpus: int) -> None:
    for seed in (None, *range(2 if gpus > 4 else 4)):
        computes(CASES[name], gpus, seed)


@pytest.mark.schedules
@pytest.mark.parametrize("gpus", [2, 3, 4, pytest.param(8, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", RINGS)
def test_rings_and_sums_in_a_fixed_order_have_the_same_bits(name: str, gpus: int) -> None:
    for seed in range(examples(20)):
        computes(CASES[name], gpus, seed, ctas=1 + seed % 3 if gpus < 8 else 1)


@pytest.mark.variants(3)
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("piped", "in_clusters")])
def test_gpus_may_have_more_ctas_than_tiles(name: str) -> None:
    for seed in (None, 0, 1):
        computes(CASES[name], 2, seed, ctas=6)


def test_a_kernel_with_semaphores_runs_on_one_gpu_too() -> None:
    for name, case in CASES.items():
        if name != "gather_matmul":
            computes(case, 1, None)


def test_verify_and_all_schedules_take_a_mesh() -> None:
    x = gpu_kernels.blocks(2, 128, 64)
    numpipe.verify(gpu_kernels.shift, x, mesh=MESH(2), schedules=6).raise_if_failed()

    @numpipe.kernel(grid=numpipe.persistent(1), semaphores=1, warp_specialized=False)
    def swapped(x, y, ready):
        other = 1 - numpipe.axis_index("gpu")
        numpipe.peer(y, other)[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]
        numpipe.signal(ready.at[0], other)
        numpipe.wait(ready.at[0], 1)

    x, y = gpu_kernels.blocks(2, 64, 64), [np.zeros((64, 64), np.float16) for _ in range(2)]
    numpipe.verify(swapped, x, y, mesh=MESH(2), schedules="all").raise_if_failed()


# ---- order between GPUs
def test_a_wait_learns_of_the_first_signals_only() -> None:
    @numpipe.kernel(grid=numpipe.persistent(1), semaphores=1)
    def taken(x, y, ready, *, wanted: numpipe.Static):
        me = numpipe.axis_index("gpu")
        if me > 0:
            numpipe.peer(x, 0)[ds(me * 64, 64), ds(0, 64)] = numpipe.full((64, 64), 1.0, np.float16)
            numpipe.signal(ready.at[0], 0)
        else:
            numpipe.wait(ready.at[0], wanted)
            y[ds(0, 64), ds(0, 64)] = x[ds(64, 64), ds(0, 64)]
            numpipe.wait(ready.at[0], 2)

    def run(wanted: int, seed: int) -> Any:
        x, y = ([np.zeros((192, 64), np.float16) for _ in range(3)] for _ in range(2))
        taken.simulate(x, y, mesh=MESH(3), seed=seed, wanted=wanted)
        return y[0]

    raced = 0
    for seed in range(12):
        assert (run(2, seed)[:64] == 1).all(), "both have come"
        try:
            run(1, seed)  # it may be the signal of GPU 1, or of GPU 2
        except PipelineRace as error:
            assert error.report is not None and error.report.hazard == "gpu-conflict"
            raced += 1
    assert 0 < raced < 12


def test_a_signal_may_add_more_than_one_and_a_wait_takes_nothing() -> None:
    @numpipe.kernel(grid=numpipe.persistent(2), num_compute_wgs=2, semaphores=1)
    def counted(y, ready):
        me, cta, wg = numpipe.axis_index("gpu"), numpipe.program_id(0), numpipe.axis_index("wg")
        y[ds(cta * 128 + wg * 64, 64), ds(0, 64)] = numpipe.full((64, 64), 1.0, np.float16)
        numpipe.signal(ready.at[0], 1 - me, add=cta + 2)
        for _ in range(3):
            numpipe.wait(ready.at[0], 2 * (2 + 3))

    for seed in range(4):
        y = [np.zeros((256, 64), np.float16) for _ in range(2)]
        counted.simulate(y, mesh=MESH(2), seed=seed)


def test_no_peer_is_accessed_before_its_launch_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_gpus.Begun, "meet", lambda self, who: None)
    with pytest.raises(PipelineRace, match=r"before the launch of GPU 1 has begun") as caught:
        gpu_kernels.shift.simulate(gpu_kernels.blocks(2, 128, 64), mesh=MESH(2))
    assert (
        caught.value.report is not None
        and caught.value.report.hazard == "read-before-grid-dependency"
    )


def test_every_access_by_a_peer_is_over_when_a_launch_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the check of launch ends reports it."""

    @numpipe.kernel(grid=numpipe.persistent(1), semaphores=1)
    def stored(y, ready):
        me = numpipe.axis_index("gpu")
        numpipe.peer(y, 1 - me)[ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), 1.0, np.float16)

    def run() -> None:
        stored.simulate([np.zeros((64, 64), np.float16) for _ in range(2)], mesh=MESH(2))

    with pytest.raises(
        PipelineRace,
        match=r"TMA store \(y of GPU \d\) of y of GPU \d\[0:64, 0:64\], in the memory of GPU",
    ):
        run()
    monkeypatch.setattr(of_gpus.Gpus, "leave", lambda self, who: None)
    run()


def test_a_deadlock_of_two_gpus_names_who_waits_and_who_has_signalled() -> None:
    @numpipe.kernel(grid=numpipe.persistent(2), semaphores=2)
    def stuck(y, ready):
        me = numpipe.axis_index("gpu")
        if me == 0:
            numpipe.signal(ready.at[1], 1)
        numpipe.wait(ready.at[1], 2 + 2 * me)

    with pytest.raises(PipelineDeadlock) as caught:
        stuck.simulate([np.zeros((64, 64), np.float16) for _ in range(2)], mesh=MESH(2))
    report = caught.value.report
    assert report is not None and report.hazard == "deadlock"
    assert {(party.gpu, party.cta[0]) for party in report.waiting} == {
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    }
    for text in (
        "warpgroup 0 (compute) of CTA (1, 0, 0) of GPU 0: blocked on the semaphore ready[1] of "
        "GPU 0: it is 0, and the wait is for 2",
        "ready[1] of GPU 1 is 2 and the wait is for 4: signaled by warpgroup 0 (compute) of CTA (",
        "of GPU 0 at test_sim_gpus.py:",
        "2 more signals",
    ):
        assert text in str(caught.value)


def test_a_timeline_has_the_rows_of_each_gpu(tmp_path: Path) -> None:
    trace = numpipe.Trace()
    gpu_kernels.shift.simulate(gpu_kernels.blocks(2, 128, 64), mesh=MESH(2), trace=trace)
    assert {event.gpu for event in trace.events} == {0, 1}
    text = trace.timeline()
    rows = [line.partition("|")[0].strip() for line in text.splitlines() if "|" in line]
    assert (
        rows[:3] == ["GPU 0 wg0 compute", "GPU 0 wg1 compute", "GPU 0 wg2 memory"]
        and "GPU 1 wg2 memory" in rows
    )
    assert text.startswith("CTA (0, 0, 0) of 2 GPUs") and trace.timeline(
        cta=(1, 0, 0, 0)
    ).startswith("CTA (0, 0, 0) of GPU 1")
    trace.save(tmp_path / "run.json")
    again = numpipe.Trace.load(tmp_path / "run.json")
    assert again.timeline() == text and again.gpus == [0, 1]
    assert (
        '"CTA (0, 0, 0) of GPU 1"' in (tmp_path / "run.json").read_text()
        and len(trace.summary().ctas) == 4
    )
    assert {event.details["semaphore"] for event in trace.of("signal")} == {
        "ready[0] of GPU 0",
        "ready[0] of GPU 1",
    }


# ---- links
@pytest.mark.parametrize("stores", [False, True])
def test_gpus_share_the_ports_of_a_peer_that_all_access(
    stores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three GPUs that load from one, or store to it, take three times as long as each with its own
    peer."""
    monkeypatch.setattr(numpipe.sim, "Costs", lambda: Costs(link_bytes=2))

    @numpipe.kernel(grid=numpipe.persistent(1), semaphores=1)
    def copied(x, y, ready, *, one: numpipe.Static):
        me, gpus = numpipe.axis_index("gpu"), numpipe.axis_size("gpu")
        other = 0 if one else (me + 1) % gpus
        x_there = x if stores else numpipe.peer(x, other)
        y_there = numpipe.peer(y, other) if stores else y
        for (k,), (tile,) in numpipe.pipeline(
            grid=(8 if me > 0 or not one else 0,),
            max_concurrent_steps=4,
            in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),),
        )(x_there):
            y_there[ds((me * 8 + k) * 64, 64), ds(0, 64)] = tile[...]
        for gpu in range(gpus):
            numpipe.signal(ready.at[0], gpu)
        numpipe.wait(ready.at[0], gpus)

    def cycles(one: bool) -> int:
        x, trace = gpu_kernels.blocks(4, 512, 64), numpipe.Trace()
        y = [np.zeros((4 * 512, 64), np.float16) for _ in range(4)]
        copied.simulate(x, y, mesh=MESH(4), one=one, trace=trace)
        moved = trace.of("store" if stores else "load")
        return max(e.end for e in moved) - min(e.start for e in moved)

    assert 2.6 < cycles(one=True) / cycles(one=False) < 3.1


# ---- what is rejected
def test_bad_arrays_semaphores_and_ranks_are_refused() -> None:
    def refused(body: Any, says: str) -> None:
        kernel = numpipe.kernel(grid=numpipe.persistent(1), semaphores=2)(body)
        with pytest.raises(SpecError, match=says):
            kernel.simulate([np.zeros((64, 64), np.float16) for _ in range(2)], mesh=MESH(2))

    def of_tile(y, ready):
        numpipe.peer(y[ds(0, 64), ds(0, 64)], 0)

    def of_semaphores(y, ready):
        numpipe.peer(ready, 0)

    def to_array(y, ready):
        numpipe.signal(y.at[0, 0], 0)

    def to_all(y, ready):
        numpipe.signal(ready, 0)

    def reads(y, ready):
        y[ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), 1.0, np.float16) * ready[0]

    def adds(y, ready):
        numpipe.atomic_add(ready.at[0], 1)

    def by_float(y, ready):
        numpipe.peer(y, 0.5)

    def of_half(y, ready):
        numpipe.wait(ready.at[0], 0.5)

    for body, says in (
        (of_tile, "array must be an array parameter of the kernel, got"),
        (of_semaphores, "can only be signaled; fix: numpipe.signal"),
        (to_array, r"ready.at\[i\], got"),
        (to_all, r"ready.at\[i\], got"),
        (by_float, "rank must be an integer"),
        (reads, "semaphores are signalled and waited for"),
        (adds, "semaphores are signalled and waited for"),
        (of_half, "value must be an integer"),
    ):
        refused(body, says)


def test_a_kernel_of_one_gpu_has_no_peers() -> None:
    for body, says in (
        (lambda_peer, "numpipe.peer.* in a kernel that runs on one GPU"),
        (lambda_axis, "the axis of a mesh's GPUs"),
    ):
        with pytest.raises(numpipe.NumpipeError, match=says):
            numpipe.kernel(grid=1)(body).simulate(np.zeros((64, 64), np.float16))


def lambda_peer(y):
    numpipe.peer(y, 0)[ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), 1.0, np.float16)


def lambda_axis(y):
    y[ds(numpipe.axis_index("gpu"), 64), ds(0, 64)] = numpipe.full((64, 64), 1.0, np.float16)
