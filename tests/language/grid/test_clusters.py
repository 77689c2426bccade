"""Clusters whose CTAs load blocks for each other: simulated together, and the code for a GPU."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import (
    BlockSpec,
    ClusterBarrier,
    CompilerParams,
    PipelineDeadlock,
    PipelineRace,
    SpecError,
    Trace,
    ds,
    sim,
)
from numpipe.arch.targets import HOPPER
from numpipe.compile.check import gate
from numpipe.kernels import simulate
from numpipe.sim.warpgroup import Warpgroup
from tests.kernels.cluster_kernels import (
    SMALL,
    Config,
    by_hand,
    four,
    operands,
    pair,
    product,
    reference,
    rounds,
)
from tests.traces.legal import check_legal

SEEDS = (None, 0, 1, 2)
A, B = operands(128, 64, 128)


# ---- results --------------------------------------------------------------------------------
@pytest.mark.variants(2)
@pytest.mark.parametrize("schedule", ["cooperative", "pingpong"])
@pytest.mark.parametrize("cluster", [(2, 1), (1, 2)], ids=str)
def test_products_of_any_shape_are_those_of_one_cta(
    cluster: tuple[int, int], schedule: str
) -> None:
    cfg = dataclasses.replace(SMALL, along_m=cluster[0], along_n=cluster[1], schedule=schedule)
    # one tile; partial tiles; an odd number of tiles
    for number, shape in enumerate(((64, 64, 64), (136, 200, 136), (192, 64, 200))):
        a, b = operands(*shape)
        for seed in (None, number):
            np.testing.assert_array_equal(
                product(cfg).simulate(a, b, seed=seed),
                reference(a, b),
                err_msg=f"{shape} seed {seed}",
            )


def test_both_operands_are_shared_in_clusters_of_two_dimensions(runs: Any, target: str) -> None:
    a, b = operands(*(1000, 1096, 520) if target == "gpu" else (72, 128, 200))
    wanted = reference(a, b)
    for run in runs:
        np.testing.assert_array_equal(run(four, a, b), wanted)


@pytest.mark.parametrize("consumed", [False, True])
@pytest.mark.parametrize("ready", [False, True])
def test_bodies_wait_for_and_release_shared_operands(
    ready: bool, consumed: bool, runs: Any, target: str
) -> None:
    a, b = operands(128, 64, {"sim": 320, "gpu": 2000}[target])
    for run in runs:
        c = np.zeros((128, 64), np.float32)
        run(by_hand(ready, consumed), a, b, c)
        np.testing.assert_array_equal(c, reference(a, b))


def test_cluster_barriers_let_the_ctas_of_a_cluster_meet(runs: Any, target: str) -> None:
    pairs = {"sim": 2, "gpu": 100}[target]
    for run in runs:
        y = np.zeros((128 * pairs, 32), np.float32)
        run(rounds, y)
        assert y[::64, 0].tolist() == [20, 21] * pairs


def test_tiles_are_dealt_to_clusters_and_each_share_is_loaded_once() -> None:
    a, b = operands(320, 64, 64)
    trace = Trace()
    cfg = dataclasses.replace(SMALL, along_m=2)
    product(cfg).simulate(a, b, trace=trace)
    loads = {
        cta: [
            tuple(e.details["coords"]) for e in trace.of("issue", cta) if e.details["tensor"] == "b"
        ]
        for cta in trace.ctas
    }
    assert loads == {
        (0, 0, 0): [(0, 0), (0, 0)],
        (1, 0, 0): [(32, 0), (32, 0)],
        (2, 0, 0): [(0, 0)],
        (3, 0, 0): [(32, 0)],
    }
    own = [
        tuple(e.details["coords"])
        for cta in trace.ctas
        for e in trace.of("issue", cta)
        if e.details["tensor"] == "a"
    ]
    # three pairs of tiles; the last of them is out of bounds
    assert sorted(own) == [(64 * m, 0) for m in range(6)]
    check_legal(trace)


def test_a_cluster_of_one_shares_nothing() -> None:
    a, b = operands(100, 64, 64)
    trace = Trace()
    np.testing.assert_array_equal(product(SMALL).simulate(a, b, trace=trace), reference(a, b))
    assert {e.details["coords"] for e in trace.of("issue") if e.details["tensor"] == "b"} == {
        (0, 0)
    }
    assert not trace.of("cluster") and all(
        e.details["mbar"].startswith("consumed") for e in trace.of("arrive")
    )


def test_kernels_over_tiles_share_blocks_of_their_specs_too() -> None:
    semantics = CompilerParams(dimension_semantics=("parallel", "sequential"))

    @numpipe.kernel(
        grid=(4, 3),
        cluster=2,
        cluster_names="pair",
        compiler_params=semantics,
        out_specs=(BlockSpec((64, 64), lambda m, k: (m, 0)),),
        in_specs=(
            BlockSpec((64, 64), lambda m, k: (m, k)),
            BlockSpec((64, 64), lambda m, k: (0, k), collective_axes="pair"),
        ),
    )
    def sums(x, y, z):
        before = z[...] if numpipe.program_id(1) > 0 else numpipe.zeros((64, 64), np.float32)
        z[...] = before + x[...] + y[...]

    x, y = operands(256, 64, 192, np.float32)
    z = np.zeros((256, 64), np.float32)
    sums.simulate(x, y, z)
    np.testing.assert_array_equal(z, (x + np.tile(y, (4, 1))).reshape(256, 3, 64).sum(1))


def test_what_a_kernel_loads_is_counted_by_shares() -> None:
    a, b = operands(256, 64, 128)
    alone, pairs = (
        numpipe.explain(product(dataclasses.replace(SMALL, along_m=n)), a, b, compiled=False)
        for n in (1, 2)
    )
    assert pairs.loaded == {"a": alone.loaded["a"], "b": alone.loaded["b"] // 2}
    assert pairs.copied_bytes == alone.copied_bytes


# ---- hazards --------------------------------------------------------------------------------
def test_a_release_that_misses_a_peer_is_a_deadlock_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrive = Warpgroup.mbar_arrive_remote

    def own_only(self: Warpgroup, address: int) -> None:
        if address >> 24 == self.rank + 1:
            arrive(self, address)

    monkeypatch.setattr(Warpgroup, "mbar_arrive_remote", own_only)
    with pytest.raises(
        PipelineDeadlock,
        match=r"(?s)consumed\[0\] of a, b @ .* of CTA \(0, 0, 0\): phase 0, 4 of 8 arrivals "
        r"missing.*hint: .*warpgroup 0 \(compute\) of CTA \(1, 0, 0\) has not released",
    ):
        product(dataclasses.replace(SMALL, along_m=2)).simulate(*operands(128, 64, 320))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slot_freed_by_one_cta_alone_is_a_race(
    seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the count, and the releases, were those of the CTA's own warpgroups."""
    from numpipe.plan.plans import RingPlan

    monkeypatch.setattr(RingPlan, "peers", property(lambda plan: (((0, 0, 0),),) * len(plan.parts)))
    with pytest.raises(PipelineRace) as caught:
        product(dataclasses.replace(SMALL, along_m=2)).simulate(*operands(128, 64, 320), seed=seed)
    assert caught.value.report is not None and caught.value.report.hazard in (
        "refilled-while-read",
        "read-after-release",
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cta_that_leaves_without_its_peers_is_a_race(
    seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate, "await_peers", lambda np_: None)
    with pytest.raises(
        PipelineRace, match=r"to CTA \(., 0, 0\), which may be in flight|which may have ended"
    ) as caught:
        product(dataclasses.replace(SMALL, along_m=2)).simulate(*operands(128, 64, 128), seed=seed)
    assert caught.value.report is not None and caught.value.report.hazard == "exit-in-flight"


def test_a_kernel_that_reaches_into_other_ctas_by_itself_meets_at_its_end() -> None:
    assert "barrier.cluster.arrive.release" not in product(
        dataclasses.replace(SMALL, along_m=2)
    ).inspect("ptx", A, B)

    @numpipe.kernel(grid=2, cluster=2, cluster_names="pair")
    def meets(y):
        met = numpipe.scratch(ClusterBarrier("pair"))
        numpipe.barrier_arrive(met)
        numpipe.barrier_wait(met)

    assert "barrier.cluster.arrive.release" in meets.inspect("ptx", np.zeros((64, 32), np.float32))


def test_ctas_of_a_cluster_that_store_to_one_block_are_reported() -> None:
    @numpipe.kernel(grid=2, cluster=2, cluster_names="pair")
    def clash(y):
        y[ds(0, 64), ds(0, 32)] = numpipe.zeros((64, 32), np.float32)

    for seed in SEEDS:
        with pytest.raises(PipelineRace, match="cta-conflict|which CTA") as caught:
            clash.simulate(np.zeros((64, 32), np.float32), seed=seed)
        assert caught.value.report is not None and caught.value.report.hazard == "cta-conflict"


def test_ctas_with_other_numbers_of_steps_wait_for_each_other_for_ever() -> None:
    @numpipe.kernel(grid=2, grid_names="cta", cluster=2, cluster_names="pair")
    def uneven(b, c):
        m = numpipe.axis_index("cta")
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(2 + m,), in_specs=(BlockSpec((64, 64), lambda k: (0, k), collective_axes="pair"),)
        )
        for _, (tile,) in pipe(b):
            acc = numpipe.wgmma(acc, tile, tile.T)
        c[ds(m * 64, 64), ds(0, 64)] = acc

    with pytest.raises(
        PipelineDeadlock,
        match=r"(?s)of CTA \(0, 0, 0\): finished.*of CTA \(1, 0, 0\): blocked on "
        r"ready\[0\].*hint: ready\[0\] of b .* is still missing 4096 bytes of step 2 .*"
        r"another CTA of the cluster has not loaded its share.*the same pipelines",
    ):
        uneven.simulate(operands(64, 64, 192)[1], np.zeros((128, 64), np.float32))


def test_barriers_along_two_axes_do_not_cover_a_cta_at_the_corner() -> None:
    """A CTA waits for those in its row and column only.

    A CTA in neither may arrive for the next phase before this one ends.
    """

    @numpipe.kernel(grid=(2, 2), cluster=(2, 2), cluster_names=("x", "y"))
    def corners(y):
        met = numpipe.scratch(ClusterBarrier(("x", "y")))
        for number in range(3):
            numpipe.barrier_arrive(met)
            numpipe.barrier_wait(met)

    for seed in SEEDS:
        with pytest.raises(
            PipelineRace,
            match=r"arrives on barrier .* in phase \d, but nothing orders this after the end of",
        ):
            corners.simulate(np.zeros((64, 32), np.float32), seed=seed)


# ---- what is rejected ------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"cluster_names": "c"},
            r"cluster_names \('c',\) name 1 dimension, but the cluster has 0: cluster=\(2,\), "
            r"cluster_names=",
        ),
        (
            {"cluster": (2,), "cluster_names": ("a", "b")},
            r"name 2 dimensions, but the cluster has 1, \(2,\): give 1",
        ),
        (
            {"cluster": (2, 1), "cluster_names": ("a", "a")},
            r"cluster_names must be different strings, got \('a', 'a'\)",
        ),
        (
            {"cluster": 2, "cluster_names": "wg", "wg_axis": "wg"},
            r"cluster_names \('wg',\) has 'wg', which is also the warpgroup axis",
        ),
        (
            {"cluster": 2, "cluster_names": "g", "grid": (2,), "grid_names": "g"},
            "has 'g', which is also a grid axis; fix: give each axis",
        ),
        (
            {"cluster": 32, "cluster_names": "c"},
            "a cluster .* has 32 CTAs, but on Hopper it has at most 16",
        ),
    ],
)
def test_invalid_clusters_are_refused_when_the_kernel_is_made(
    options: dict[str, Any], message: str
) -> None:
    def nothing(y):
        pass

    with pytest.raises(SpecError, match=message):
        numpipe.kernel(nothing, **{"grid": (32,), **options})


def test_a_share_is_a_multiple_of_eight_rows() -> None:
    cfg = dataclasses.replace(SMALL, along_m=16)
    with pytest.raises(
        SpecError,
        match=r"in_specs\[1\] for 'b': collective_axes=\('cluster',\): each of 16 CTAs loads a "
        r"share of its 64 rows \(along dimension 0, the one that is not contiguous\), and a share "
        r"must be a multiple of 8 rows; fix: make that side a multiple of 128, or the cluster "
        r"smaller",
    ):
        product(cfg).simulate(A, B)


def other_axis(a, b, c):
    pipe = numpipe.pipeline(
        grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k), collective_axes="cluster"),)
    )
    for _, (tile,) in pipe(a):
        pass


def shared_output(a, b, c):
    pipe = numpipe.pipeline(
        grid=(1,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        out_specs=(BlockSpec((64, 64), lambda k: (0, k), collective_axes="pair"),),
    )
    for _, (tile, out) in pipe(a, c):
        out[...] = tile[...]


def alone(a, b, c):
    def body(indices, tile):
        numpipe.commit_smem()

    numpipe.emit_pipeline(
        body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k), collective_axes="pair"),)
    )(a)


def copied(a, b, c):
    tile, landed = numpipe.scratch((numpipe.SMEM((64, 64), np.float16), ClusterBarrier("pair")))
    numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 64)], tile, landed)


def unknown_axis(a, b, c):
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float16) + numpipe.axis_index("cta")


@pytest.mark.parametrize(
    "body, message",
    [
        (
            other_axis,
            "collective_axes has 'cluster', which is not an axis of the cluster: the cluster's "
            "axes are 'pair'",
        ),
        (shared_output, r"out_specs\[0\]: collective_axes=\('pair',\) is only for inputs"),
        (
            alone,
            r"in_specs\[0\]: collective_axes needs a memory role that loads for the CTAs, but the "
            r"slots of a single-stream pipeline belong to one warpgroup",
        ),
        (
            copied,
            r"copy_gmem_to_smem: barrier is ClusterBarrier\('pair', num_barriers=1, "
            r"num_arrivals=1\), which counts",
        ),
        (
            unknown_axis,
            "unknown axis 'cta': the grid's axes are not named .*the cluster's 'pair', and the "
            "warpgroup axis is 'wg'",
        ),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
@pytest.mark.parametrize("compiled", [False, True])
def test_what_has_no_meaning_in_a_cluster_is_refused(
    body: Any, message: str, compiled: bool
) -> None:
    kernel = pair(body)
    c = np.zeros((128, 128), np.float16)
    with pytest.raises(numpipe.NumpipeError, match=message):
        kernel.compiled(A, B, c) if compiled else kernel.simulate(A, B, c)


@pytest.mark.parametrize(
    "given, message",
    [
        (((),), "must be the name of an axis"),
        ((("a", "a"),), "a tuple of different ones"),
        (("a", 1, 0), "num_arrivals must be an int of 1…65536"),
        (("a", 1, 1, "x"), "leader_tracked must be True or False, got 'x'"),
    ],
)
def test_invalid_cluster_barriers_are_refused(given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        ClusterBarrier(*given)


# ---- compiled code ---------------------------------------------------------------------------
RECORD = Config(along_m=2, tn=256)


@pytest.mark.variants(0, thorough=2)
@pytest.mark.parametrize(
    "cfg",
    [
        RECORD,
        Config(along_n=2, tn=192, slots=4, schedule="pingpong"),
        Config(along_m=4, tm=64, tn=256, slots=5, schedule="pingpong"),
    ],
    ids=str,
)
def test_the_code_passes_the_gate_and_releases_without_a_fence(cfg: Config) -> None:
    array = numpipe.ArrayType((512, 512), np.float16)
    kernel = product(cfg)
    assert kernel.inspect("gate", array, array) == ()
    ptx = kernel.inspect("ptx", array, array)
    assert f".reqnctapercluster {cfg.along_m * cfg.along_n}, 1, 1" in ptx
    assert "mbarrier.arrive.shared::cluster.b64 _" in ptx and "release.cluster.shared" not in ptx
    assert len(re.findall(r"complete_tx::bytes\.multicast::cluster", ptx)) >= 1


@pytest.mark.thorough
def test_the_code_of_a_cluster_of_one_has_nothing_of_clusters() -> None:
    array = numpipe.ArrayType((512, 512), np.float16)
    ptx = product(SMALL).inspect("ptx", array, array)
    assert not re.search(r"multicast|barrier\.cluster|reqnctapercluster|mapa", ptx)


def test_the_gate_finds_a_fence_of_the_gpu_in_a_loop() -> None:
    text = "\n".join(
        f"        /*{16 * at:04x}*/                   {line} ;"
        for at, line in enumerate(
            (
                "MEMBAR.ALL.GPU",
                "ERRBAR",
                "UCGABAR_ARV",
                "UCGABAR_WAIT",
                "NOP",
                "MEMBAR.ALL.GPU",
                "SYNCS.ARRIVE.TRANS64 RZ, [R1], RZ",
                "MEMBAR.ALL.GPU",
                "UCGABAR_ARV",
                "UCGABAR_WAIT",
                "@P0 BRA `(.L_x_0)",
                "EXIT",
            )
        )
    )
    looping = text.replace("        /*0040*/", ".L_x_0:\n        /*0040*/")
    built: Any = SimpleNamespace(
        unit=SimpleNamespace(
            arrays=(),
            work_ring=None,
            clustered=True,
            meets_at_end=True,
            orders_stores=False,
            takes_turns=False,
        )
    )
    clean = text.replace("/*0050*/                   MEMBAR.ALL.GPU", "/*0050*/     NOP")
    assert list(gate.memory_barriers(built, gate.Sass(clean, HOPPER))) == []
    assert [
        line.partition("/*")[2][:4]
        for line in gate.memory_barriers(built, gate.Sass(looping, HOPPER))
    ] == ["0050", "0070"]


# ---- the simulated cluster -----------------------------------------------------------------------
def test_ctas_of_a_cluster_know_their_rank_and_run_at_once() -> None:
    seen: list[tuple[Any, ...]] = []

    def body(machine: Any) -> None:
        seen.append((machine.cta, machine.rank))
        machine.cluster_arrive()
        machine.cluster_wait()
        seen.append(("met", machine.cta))

    sim.simulate(body, grid=(4, 2, 1), warpgroups=1, smem_bytes=1024, cluster=(2, 2, 1))
    ranks = {
        (0, 0, 0): 0,
        (1, 0, 0): 1,
        (0, 1, 0): 2,
        (1, 1, 0): 3,
        (2, 0, 0): 0,
        (3, 0, 0): 1,
        (2, 1, 0): 2,
        (3, 1, 0): 3,
    }
    assert dict(entry for entry in seen if entry[0] != "met") == ranks
    assert [entry[0] == "met" for entry in seen] == ([False] * 4 + [True] * 4) * 2


def test_warpgroups_that_have_ended_count_as_arrived() -> None:
    met: list[tuple[int, int, int]] = []

    def body(machine: Any) -> None:
        if machine.cta != (1, 0, 0):
            machine.cluster_arrive()
            machine.cluster_wait()
            met.append(machine.cta)

    for seed in (None, *range(6)):
        sim.simulate(
            body, grid=(3, 1, 1), warpgroups=1, smem_bytes=1024, cluster=(3, 1, 1), seed=seed
        )
    assert sorted(met) == [(0, 0, 0)] * 7 + [(2, 0, 0)] * 7


@numpipe.kernel(
    grid=numpipe.persistent(4),
    num_compute_wgs=2,
    schedule="pingpong",
    cluster=4,
    cluster_names="four",
)
def twice_in_turns(a: Any, b: Any, c: Any) -> None:
    """Compute c = 2 a @ b.T with two rings per tile, whose counters go from one warpgroup to the
    next."""
    for m_cluster, n in numpipe.tiles(1, 4):
        m = m_cluster * 4 + numpipe.axis_index("four")
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(2,),
            in_specs=(
                BlockSpec((64, 64), lambda k: (m, k)),
                BlockSpec((64, 64), lambda k: (n, k), collective_axes="four"),
            ),
        )
        for _, (a_tile, b_tile) in pipe(a, b):
            acc = numpipe.wgmma(acc, a_tile, b_tile.T)
        again = numpipe.pipeline(
            grid=(2,),
            in_specs=(
                BlockSpec((64, 64), lambda k: (m, k)),
                BlockSpec((64, 64), lambda k: (n, k), collective_axes="four"),
            ),
        )
        for _, (a_tile, b_tile) in again(a, b):
            acc = numpipe.wgmma(acc, a_tile, b_tile.T)
        c[ds(m * 64, 64), ds(n * 64, 64)] = acc


def test_each_cta_of_a_cluster_hands_over_the_counters_of_the_rings_that_it_has_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One CTA may not have reached its second ring when another takes its first turn.

    No word for that ring has been written there yet.
    """
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    a, b = operands(256, 256, 128)
    for seed in (0, 1, 3):
        c = np.zeros((256, 256), np.float32)
        twice_in_turns.simulate(a, b, c, seed=seed)
        np.testing.assert_array_equal(c, 2 * (a.astype(np.float32) @ b.astype(np.float32).T))
