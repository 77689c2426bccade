"""The fix in every report of the catalogue, applied: as the twin does, or to the broken source.

`test_catalogue` checks that the twins are silent and right.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np
import pytest

from numpipe.errors import SimulationError
from numpipe.sim import livelocks
from tests.hazards import test_catalogue
from tests.hazards.catalogue import ENTRIES
from tests.hazards.fixes import changes, edited

assert test_catalogue.TOPICS  # importing these files registers the entries


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    for bound, number in (("MOST", 3000), ("TURNS", 100)):
        monkeypatch.setattr(livelocks, bound, number)


@functools.cache
def fix_of(name: str) -> str:
    with pytest.raises(SimulationError) as caught:
        ENTRIES[name].run(False, None)
    report = caught.value.report
    assert report is not None
    return report.fix


TWINS = (
    # ---- whole kernels
    (
        r"barrier_arrive by .* after its (?:read|wait_smem_to_gmem|wgmma_wait)",
        r"\+.*(barrier_(arrive|wait)\(|step % 2)",
    ),
    (
        r"numpipe.atomic_add\((?:tile|array)\.at\[…\], \w+\), if",
        r"\+.*(numpipe.atomic_add|step % 2)",
    ),
    (r"barrier_arrive on .* after the store, not before it", r"\+.*sums\[\.\.\.\] = total"),
    (r"the leader, arrives on another ClusterBarrier", r"\+.*barrier_arrive\(go\)"),
    (r"more in phase \d of .* before the wait for it", r"\+.*(\(met\)|values, landed)"),
    (r"in phase 2 of .* by warpgroup 0", r"\+.*range\(3\)"),
    (r"store to these bytes, or load them", r"\+.*(k < pages|k % 2 == 0|collective_axes)"),
    (r"must not wait inside one for work", r"\+.*if wg == 0"),
    (r"all CTAs use the same reduction_op", r"\+.*atomic_add"),
    (r"signals a semaphore of this GPU", r"\+.*\] = total"),
    (r"collective_axes=…\) by all CTAs along", r"\+    numpipe.copy_gmem_to_smem"),
    (r"give each its own blocks: a ds", r"\+.*64 \* me"),
    (r"write all of an output tile in every block", r"\+.*lambda i, k"),
    (r"use the stored value instead of the load", r"\+.*= tile$"),
    (r"or only one store to each block", r"\+.*side = 64"),
    (r"read the tile of step 0 before barrier_arrive", r"\+.*(unpack|numpipe.mma)\("),
    (r"wgmma_wait\((\d)\) and commit_smem before the bytes", r"\+.*wgmma_wait\(acc, {0}\)"),
    (r"wait for ready\[1\] for in_specs\[1\]", r"\+.*barrier_wait\(scale_ready\)"),
    (r"stop=end\) where a block reaches into the next", r"\+.*stop=starts"),
    (r"barriers.at\[i\] for slot i", r"\+.*landed.at\[c\]"),
    (r"then commit_smem, before the copy", r"\+.*commit_smem"),
    # ---- single mistakes
    (
        r"^barrier_arrive on a ClusterBarrier by the CTA that has read",
        r"^\+ +numpipe\.barrier_wait\(read\)",
    ),
    (
        r"^barrier_arrive after the store, on a ClusterBarrier",
        r"^\+ +numpipe\.barrier_wait\(there\)",
    ),
    # ---- the fix of a report, and what the twin has (+) or lacks (-); {0} is the fix's first
    # matched group
    (
        r"wgmma_wait with few enough groups pending(?:: |, 0)",
        r"\+.*wgmma_(wait\(\w+, 0\)|commit\(\))",
    ),
    (
        r"wgmma_wait with few enough groups pending before .*, or other registers",
        r"\+.*(wgmma_wait\(0\)|first\[)",
    ),
    (r"read the newest one", r"\+.* = second"),
    (r"wgmma_fence", r"\+.*wgmma_fence\(\)"),
    (r"wgmma_wait\((\d)\) before barrier_arrive", r"\+.*wgmma_wait\(.*{0}\)"),
    (
        r"issue the product of step 0, and wgmma_wait\(0\), before barrier_arrive",
        r"\+.*wgmma_wait\(numpipe.wgmma\(.*0\)",
    ),
    (
        r"wgmma_commit and wgmma_wait\(0\) before it ends|wgmma_wait\(0\), then commit_smem",
        r"\+.*wgmma_wait\((\w+, )?0\)",
    ),
    (
        r"give each CTA its own blocks: .* that depends on numpipe.program_id",
        r"\+.*(program_id|part.begin == 0|if cta <)",
    ),
    (r"read the results of other CTAs in a later kernel", r"-.*(at \+ |x\[)"),
    (r"all CTAs use the same reduction_op", r"\+.*'add'"),
    (
        r"look for its origin: .* a root or logarithm of a negative number",
        r"\+.*np\.(maximum|where)",
    ),
    (r"numpipe.combine", r"\+    .*numpipe.combine"),
    (r"give each warpgroup its own rows and columns", r"\+.*('wg'\) \* 64|y\[ds\(row, 64\))"),
    (r"use the stored value instead of the load", r"\+.*= tile \+ "),
    (
        r"wait_smem_to_gmem\((\d), wait_read_only=True\)",
        r"\+.*(wait_smem_to_gmem\({0}, wait_read_only=True\)|commit_smem_to_gmem_group"
        r"|wait_group_read, {0}\))",
    ),
    (r"wait_smem_to_gmem\(0\)", r"\+.*(wait_smem_to_gmem\(0\)|lambda k: \(0, k \+ 1\))|^$"),
    (
        r"signals a semaphore of",
        r"\+.*(numpipe.signal\(|numpipe.wait\(ready.at\[(0|1 - cta)\], (1|2|i \+ "
        r"1))|-.*numpipe.peer\(y",
    ),
    (r"reductions are atomic among the CTAs of one GPU only", r"\+.*64 \* me"),
    (r"numpipe.signal\(ready.at\[…\], 0\) for ready\[1\]", r"\+.*numpipe.signal\(ready.at\[1\]"),
    (r"or a wait for 1", r"\+.*numpipe.wait\(ready.at\[0\], 1\)"),
    (r"numpipe.signal\(semaphore.at\[i\], \d\) after it", r"\+.*numpipe.signal"),
    (r"GPU \d must wait for all signals that it is sent", r"\+.*numpipe.wait"),
    (r"a rank in 0…1", r"\+.*% 2"),
    (
        r"store to a different array|griddep.wait\(\) by every|fence_mbarrier_init by "
        r"the lane|each warp that reads the data",
        r"\+|^$",
    ),
    (
        r"pass 'y' \(or out=\) with the values it starts from, or write it before",
        r"\+.*(x\[|\(0, 0\)\))",
    ),
    (
        r"(?:an index in|indices in|a start in|return) ?-?\d*…?|starts of 0 or more|store only "
        "what lies inside|start at 0",
        r"\+",
    ),
    (r"use indices that are all different", r"\+.*iota\(64\)$"),
    (
        r"initialize it, then fence_mbarrier_init, then bar_sync|bar_sync between|a barrier of the "
        r"four warps|wait for the phase before mbar_inval",
        r"\+.*(barrier\.sync|meet)|^$",
    ),
    (r"mbar_inval it first", r"\+.*mbarrier.inval"),
    (
        r"place mbarriers outside the slots, and mbar_inval them before",
        r"\+.*(barrier.sync|nbytes, 0\))",
    ),
    (
        r"an arrival by warpgroup \d \(compute\) after each of its waits: on",
        r"\+.*(barrier_arrive|num_arrivals=2|barrier.sync)",
    ),
    (r"at most one phase ahead", r"\+.*mbarrier.wait\(READY, 0"),
    (
        r"wait for each phase that completes|wait for phase 0 of",
        r"\+.*(barrier_wait|mbarrier.wait)",
    ),
    (
        r"wait for phase 0 before the next arrival, or num_arrivals=2",
        r"\+.*(barrier_wait|num_arrivals=2)",
    ),
    (r"announce the bytes of all copies", r"\+.*x\.nbytes\)"),
    (
        r"one barrier_arrive on|every compute warpgroup arrives once|barrier_arrive by the readers",
        r"[+-].*barrier_arrive\((free|met)\)",
    ),
    (r"num_arrivals=1", r"\+.*num_arrivals=1"),
    (r"\d+ more arrivals", r"\+.*(arrive|\(0, 1\))"),
    (
        r"every CTA whose slot is filled releases it to every CTA that fills it",
        r"\+.*(barrier_arrive|\(0, 1\))",
    ),
    (r"all warpgroups of the cluster meet", r"\+.*meet\(\)"),
    (r"cluster_arrive first", r"\+.*cluster.arrive"),
    (r"in warps that have waited for it", r"\+.*smem_read"),
    (r"use the same start for all CTAs along collective_axes", r"\+.*(\(0, k\)|ds\(0, 64\)\])"),
    (r"barrier_wait for .*, phase \d, before the bytes are read", r"\+.*barrier_wait"),
    (r"barrier_arrive by .* after its wgmma_wait", r"\+.*barrier_arrive\(read\)"),
    (r"give each sender its own part", r"\+.*row = 64 \* rank"),
    (r"both inside with numpipe.turn", r"\+.*with numpipe.turn"),
    (
        r"wait for .* phase 0.*(?:before the bytes are accessed|before step 0)",
        r"\+.*(barrier_wait|mbarrier.wait)|^$",
    ),
    (
        r"end the loop by a count|change in the body what the loop's condition tests",
        r"[+-].*(\+= 1|-= 1|at < 64|more = 0)",
    ),
    (
        r"store to all of it: a grid and loops that cover it",
        r"\+.*(range\((2|3|cdiv.*)\)|tiles\(|[yz]\[|grid.*3)",
    ),
    (
        r"commit_smem \(fence.proxy.async by every warp that wrote, then a barrier\)",
        r"\+.*(commit_smem|fence.proxy_async)",
    ),
    (
        r"a barrier between the two: commit_smem within a warpgroup|commit_smem between the last "
        r"read and",
        r"\+.*(commit_smem|barrier_arrive|barrier.sync|compiler_params|wg \* 64)",
    ),
    (r"store (?:to these bytes|initial values for the atomics)", r"\+.*\[\.\.\.\] = "),
    (
        r"read (?:the tile of step 0|before the arrival)",
        r"\+.*(tile\[\.\.\.\]|delay_release=1|barrier_arrive\(free\))",
    ),
    (r"write all of an output tile in every block", r"\+.*y_tile"),
    (
        r"the same number|use another barrier|must enter the blocks of a numpipe.turn equally often"
        r"",
        r"\+.*(barrier.sync|mbarrier.arrive|tile|range\(2\))",
    ),
    (
        r"outside one_lane, each_warp|one_lane\(function, …\)",
        r"\+.*(barrier.sync|'all'|setmaxnreg.dec)",
    ),
    (r"counts that add up to at most 504", r"\+.*(dec\(24\)|'decrease')"),
    (r"one arrival \(barrier_arrive, or a copy\) in phase 0", r"\+.*barrier_arrive"),
    (r"give each lane its own element", r"\+.*y\[lane\]"),
    (r"put cuda\.syncwarp\(\) between", r"\+.*syncwarp\(\)"),
    (r"a multiple of (?:16|128)|stay within what the CTA has", r"\+"),
)


@pytest.mark.variants(24)
@pytest.mark.parametrize("name", ENTRIES)
def test_the_twin_applies_the_fix(name: str) -> None:
    fix, change = fix_of(name), changes(ENTRIES[name])
    rules = [(match, twin) for says, twin in TWINS if (match := re.search(says, fix))]
    assert rules, f"no rule for: {fix}"
    assert any(
        re.search(twin.replace("{0}", (match.groups() or ("",))[0] or ""), change, re.MULTILINE)
        for match, twin in rules
    ), f"{fix}\n{change}"


SUM = "numpipe.atomic_add(y.at[{}], numpipe.zeros((64, 64), np.float32) + 1.0)"
OTHERS = {
    # ---- alternative fixes: the text, edits of the source, and whether the result equals the
    # twin's
    "one_product_too_many_left_in_flight": (
        r"delay_release=2 and max_concurrent_steps of 3 or more",
        [
            ("max_concurrent_steps=2", "max_concurrent_steps=3"),
            ("delay_release=1", "delay_release=2"),
        ],
        True,
    ),
    "the_step_before_released_ahead_of_a_product": (
        r"barrier_arrive after the product of its step and wgmma_wait\(1\)",
        [
            (
                "        if fixed:\n            acc = numpipe.wgmma_wait(acc, 0)\n",
                "        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, a_tile, b_tile.T), 1)\n",
            ),
            ("return numpipe.wgmma(acc, a_tile, b_tile.T)", "return acc"),
        ],
        True,
    ),
    "a_tile_kept_for_the_next_step": (
        r"read the tile of step 0 in step 0 at the latest",
        [
            ("before = tile\n        acc", "before = tile[...].astype(np.float32)\n        acc"),
            ("before[...].astype(np.float32) * tile", "before * tile"),
            ("before = tile\n    y", "before = tile[...].astype(np.float32)\n    y"),
        ],
        True,
    ),
    "two_copies_on_a_barrier_of_one": (
        r"wait for phase 0 before the next arrival",
        [("left, landed)\n", "left, landed)\n    numpipe.barrier_wait(landed)\n")],
        True,
    ),
    "arrives_for_a_phase_that_may_not_have_begun": (
        r"num_arrivals=2",
        [("Barrier()", "Barrier(num_arrivals=2)")],
        True,
    ),
    "one_copy_on_a_barrier_of_two": (
        r"one arrival \(barrier_arrive, or a copy\) more in phase 0",
        [
            (
                "numpipe.barrier_wait(landed)\n",
                "numpipe.barrier_arrive(landed)\n    numpipe.barrier_wait(landed)\n",
            )
        ],
        True,
    ),
    "ends_in_the_middle_of_a_phase": (
        r"1 more \(barrier_arrive, or a copy\).* and wait for the phase \(barrier_wait\)",
        [("    if fixed:\n        numpipe", "    numpipe.barrier_arrive(done)\n    numpipe")],
        True,
    ),
    "one_warp_arrives_for_four": (
        r"or a count of 1",
        [("one_lane(begin, 4)", "one_lane(begin, 1)")],
        True,
    ),
    "two_warpgroups_store_to_one_block": (
        r"or num_compute_wgs=1",
        [("num_compute_wgs=2", "num_compute_wgs=1")],
        False,
    ),
    "both_warpgroups_write_one_half": (
        r"or give each warpgroup its own part",
        [("wg * 64 if fixed else wg * 0", 'numpipe.axis_index("wg") * 64')],
        True,
    ),
    "two_ctas_store_to_one_block": (
        r"numpipe.atomic_add\(array.at\[…\], tile\)",
        [
            (
                "y[ds(row, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0",
                SUM.format("ds(row, 64), ds(0, 64)"),
            )
        ],
        False,
    ),
    "ctas_that_come_round": (
        r"numpipe.atomic_add\(array.at\[…\], tile\)",
        [
            (
                "y[ds(cta % 5 * 64, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0",
                SUM.format("ds(cta % 5 * 64, 64), ds(0, 64)"),
            )
        ],
        False,
    ),
    "a_page_behind_the_last_one": (
        r'mode="clip"',
        [("pages[1], 0, 0)),", 'pages[1], 0, 0), mode="clip"),')],
        True,
    ),
    "a_block_that_a_table_lacks": (
        r'BlockSpec\(…, mode="zero"\)',
        [("pages[k], 0)),", 'pages[k], 0), mode="zero"),')],
        False,
    ),
    "a_row_that_is_gathered_from_behind_the_last_one": (
        r'numpipe.index\(v, mode="zero"\)',
        [('numpipe.index(v, "clip") if fixed else v', 'numpipe.index(v, mode="zero")')],
        False,
    ),
    "a_warpgroup_reads_a_block_that_another_one_stores": (
        r"a barrier between the two",
        [
            (
                "    y[ds(row, 64)",
                "    met = numpipe.scratch(numpipe.Barrier(num_arrivals=2))\n    tile = y[ds(64 - "
                "row, 64), ds(0, 64)] * 2.0\n    numpipe.barrier_arrive(met)\n    "
                "numpipe.barrier_wait(met)\n    y[ds(row, 64)",
            ),
            ("y[ds(row if fixed else 64 - row, 64), ds(0, 64)] * 2.0", "tile"),
        ],
        True,
    ),
    "a_block_is_read_again_that_lanes_have_stored": (
        r"a barrier between the two",
        [("] = tile\n", "] = tile\n    numpipe.commit_smem()\n")],
        True,
    ),
    "an_atomic_on_what_another_warp_has_stored": (
        r"commit_smem within a warpgroup",
        [
            ("    numpipe.atomic_add", "    numpipe.commit_smem()\n    numpipe.atomic_add"),
            ("    y[ds", "    numpipe.commit_smem()\n    y[ds"),
        ],
        True,
    ),
    "shares_of_two_blocks": (
        r"or leave collective_axes out",
        [(', collective_axes="cta"', "")],
        True,
    ),
    "the_newer_of_two_operands_used_again": (
        r"wgmma_wait with few enough groups pending before",
        [("    wg.wgmma_wait(1)\n", "    wg.wgmma_wait(0)\n")],
        True,
    ),
    "stored_by_a_warpgroup_that_nobody_told": (
        r"griddep.wait\(\) by every warpgroup",
        [
            (
                "    if current().warpgroup == 0:\n        griddep.wait()\n",
                "    griddep.wait()\n    if current().warpgroup == 0:\n",
            )
        ],
        True,
    ),
    "a_loop_that_ends_a_block_early": (
        r"pass 'y' or out= with its values",
        [
            ("    X,\n", "    X,\n    zeros(192, 64, dtype=F32),\n"),
            ("    **LIKE_X,\n", "    verify=True,\n"),
        ],
        False,
    ),
    "an_empty_loop": (
        r"end it by a count",
        [("while rounds < 1:", "for rounds in range(1):")],
        True,
    ),
    "a_static_ring_that_loads_ahead_by_a_slot_too_many": (
        r"wgmma_wait\(0\), then commit_smem",
        [("if fixed:", "if True:"), ("wgmma_wait(acc, 1)", "wgmma_wait(acc, 0)")],
        True,
    ),
    "rows_stepped_in_place_while_a_neighbor_reads": (
        r"after its read, and barrier_wait by warpgroup \d \(compute\) before the store",
        [
            (
                "        new[ds(64 * wg, 64), :] = old[ds(64 - 64 * wg, 64), :]\n",
                "        part = old[ds(64 - 64 * wg, 64), :]\n        numpipe.barrier_arrive(met)\n"
                "        numpipe.barrier_wait(met)\n        new[ds(64 * wg, 64), :] = part\n",
            )
        ],
        True,
    ),
    "a_meeting_in_steps_that_one_warpgroup_lacks": (
        r"one arrival .* more in phase 1 of .* by warpgroup 0",
        [
            (
                "    y[ds(64 * wg",
                "    if wg == 0:\n        numpipe.barrier_arrive(met)\n    y[ds(64 * wg",
            )
        ],
        True,
    ),
    "a_wait_that_may_come_before_the_phase_before_has_ended": (
        r"at most one phase ahead",
        [("for phase in range(2):", "for phase in range(1):"), ("READY, 1, -1", "READY, 0, -1")],
        True,
    ),
}


@pytest.mark.variants(12)
@pytest.mark.parametrize("name", OTHERS)
def test_what_else_the_fix_offers_makes_the_report_go_away(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says, edits, right = OTHERS[name]
    assert re.search(says, fix_of(name)), fix_of(name)
    entry = edited(ENTRIES[name], edits, tmp_path, monkeypatch)
    for seed in (None, 1):
        result = entry.run(False, seed)
        if right:
            np.testing.assert_array_equal(result, entry.gives, err_msg=f"seed {seed}")


def test_half_a_fix_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "released_before_the_product_has_drained"
    edits = [("numpipe.wgmma_wait(acc, 0)", "numpipe.wgmma_wait(acc, 1)"), ("if fixed", "if True")]
    with pytest.raises(SimulationError, match="did not signal that their wgmma had finished"):
        edited(ENTRIES[name], edits, tmp_path, monkeypatch).run(False, None)


def test_a_twin_that_does_something_else_is_none_of_the_fix() -> None:
    assert "wgmma_wait(acc, 0)" in changes(ENTRIES["released_before_the_product_has_drained"])
    assert "wgmma_wait" not in changes(ENTRIES["stored_without_commit_smem"])
