"""Hazards of outputs: bugs injected into the protocol's source, and bodies that write too little or
too much.

Each is reported in every schedule; the unmodified protocol is silent in every one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, PipelineRace, SimulationError, cdiv, ds
from numpipe.language.pipeline import pipeline_outputs
from tests.kernels.kernels_for_tests import F16, F32
from tests.kernels.output_kernels import Config, check_copy, copy, integers
from tests.language.pipeline.test_injected import Bug

SCHEDULES = (None, *range(6))


UNORDERED = (
    r"(TMA store \(o\) reads SMEM.* while write|bytes have not been written|write \(tile\[…\] = "
    r"value\) writes)"
)
BUGS = {
    "no fence": Bug(
        where=pipeline_outputs.store_alone,
        old="fence.proxy_async()",
        new="pass",
        error=PipelineRace,
        message=r"TMA store \(o\) reads SMEM.* while write \(tile\[…\] = "
        r"value\).*fence.proxy.async",
    ),
    "fence by the storing lane alone": Bug(
        where=pipeline_outputs.store_alone,
        old="fence.proxy_async()",
        new="first_lane(ring, fence.proxy_async)",
        error=PipelineRace,
        message=r"TMA store \(o\) reads SMEM.* while write \(tile\[…\] = value\)",
    ),
    "no barrier": Bug(pipeline_outputs.store_alone, "meet(ring)", "pass", PipelineRace, UNORDERED),
    "a barrier of each warpgroup's own": Bug(
        where=pipeline_outputs.meet,
        old="if ring.private",
        new="if True",
        error=PipelineRace,
        message=UNORDERED,
    ),
    "stored before the barrier": Bug(
        where=pipeline_outputs.store_alone,
        old="meet(ring)\n",
        new="first_lane(ring, copy_block, ring, unravel(k - 1, grid), slot_of(ring, step_of(ring, "
        "k, 1)))\n    meet(ring)\n    return\n",
        error=PipelineRace,
        message=r"TMA store \(o\) reads SMEM",
    ),
    "the slot is not waited for": Bug(
        where=pipeline_outputs.await_slot,
        old="current().bulk_wait(unread(ring.plan), read=True)",
        new="pass",
        error=PipelineRace,
        message=r"write \(tile\[…\] = value\) writes .* while TMA store \(o\)",
    ),
    "one group too many may be unread": Bug(
        where=pipeline_outputs.await_slot,
        old="unread(ring.plan)",
        new="unread(ring.plan) + 1",
        error=PipelineRace,
        message=r"write \(tile\[…\] = value\) writes .* while TMA store \(o\)",
    ),
    "the slot is waited for after the barrier": Bug(
        where=pipeline_outputs.store_alone,
        old="if ring.slots > 1:\n        first_lane(ring, await_slot, ring)\n    meet(ring)\n",
        new="meet(ring)\n    first_lane(ring, await_slot, ring)\n",
        error=PipelineRace,
        message=r"write \(tile\[…\] = value\) writes .* while TMA store \(o\)",
    ),
    "the wrong slot": Bug(
        where=pipeline_outputs.store_alone,
        old="slot_of(ring, step_of(ring, k, 1))",
        new="slot_of(ring, step_of(ring, k, 1) + 1)",
        error=PipelineRace,
        message=r"TMA store \(o\) reads SMEM",
    ),
    "stored a step early": Bug(
        where=pipeline_outputs.end_block,
        old="if k > 0 and ends(ring, k - 1):",
        new="if k > 0:",
        error=PipelineRace,
        message=r"(bytes have not been written since|while TMA store)",
    ),
}


def run_for(bug: str, seed: int | None) -> None:
    if bug == "stored a step early":
        revisited().simulate(integers((128, 256)), np.zeros((128, 64), F32), seed=seed)
    else:
        check_copy(
            lambda kernel, *args, **statics: kernel.simulate(*args, seed=seed, **statics),
            copy(),
            F16,
            (128, 320),
            cfg=Config(outs=2),
        )


def revisited() -> Any:
    @numpipe.kernel
    def row_sums(a, o):
        pipe = numpipe.pipeline(
            grid=(cdiv(a.shape[1], 64),),
            in_specs=(BlockSpec((128, 64), lambda k: (0, k)),),
            out_specs=(BlockSpec((128, 64), lambda k: (0, 0)),),
        )
        for (k,), (x, y) in pipe(a, o):
            if k == 0:
                y[...] = numpipe.zeros((128, 64), np.float32)
            if k != 2:
                y[...] += x[...].astype(np.float32)

    return row_sums


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("bug", ["", "stored a step early"])
def test_without_a_bug_it_is_silent(bug: str, seed: int | None) -> None:
    run_for(bug, seed)


@pytest.mark.variants(28)
@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("bug", BUGS)
def test_an_injected_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, bug: str, seed: int | None
) -> None:
    BUGS[bug].inject(monkeypatch)
    with pytest.raises(BUGS[bug].error, match=f"(?s){BUGS[bug].message}"):
        run_for(bug, seed)


def forgetful(how: str) -> Any:
    @numpipe.kernel(num_compute_wgs=2)
    def forgets(a, o):
        wg = numpipe.axis_index("wg")
        pipe = numpipe.pipeline(
            grid=(cdiv(a.shape[1], 64),),
            in_specs=(BlockSpec((128, 64), lambda k: (0, k)),),
            out_specs=(BlockSpec((128, 64), lambda k: (0, k)),),
        )
        for (k,), (x, y) in pipe(a, o):
            if how == "a step":
                if k != 3:
                    y[ds(wg * 64, 64), :] = x[ds(wg * 64, 64), :]
            elif how == "a half":
                y[ds(0, 64), :] = x[ds(0, 64), :]
            elif how == "its own half":
                y[ds(64 - wg * 64, 64), :] = x[ds(wg * 64, 64), :]
            elif how == "the order":
                y[ds(wg * 64, 64), :] = x[ds(wg * 64, 64), :]
                y[ds(64 - wg * 64, 64), :] = x[ds(wg * 64, 64), :]

    return forgets


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    "how, error, message",
    [
        (
            "a step",
            PipelineRace,
            r"TMA store \(o\) reads .* but these bytes have not been written since TMA store "
            r"\(o\) by .*: "
            "write all of an output tile in every block",
        ),
        (
            "anything",
            PipelineRace,
            r"TMA store \(o\) reads .*, but these bytes have not been written: write all of "
            r"an output tile",
        ),
        ("a half", PipelineRace, r"write \(tile\[…\] = value\) writes .* while write"),
        ("the order", PipelineRace, r"write \(tile\[…\] = value\) writes .* while write"),
    ],
)
def test_a_tile_must_be_written_exactly_once(
    how: str, error: type[SimulationError], message: str
) -> None:
    a, o = integers((128, 448)), np.zeros((128, 448), F16)
    for seed in SCHEDULES:
        with pytest.raises(error, match=f"(?s){message}"):
            forgetful(how).simulate(a, o, seed=seed)
    forgetful("its own half").simulate(a, o)
    np.testing.assert_array_equal(o, np.concatenate([a[64:], a[:64]]))


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("how", ["a load", "a product"])
def test_a_block_that_comes_again_is_a_new_one(how: str, slots: int) -> None:
    """With as many slots as blocks in between, the slot would hold the block's old values.

    With other numbers of slots it would hold those of another block.
    """

    @numpipe.kernel
    def comes_again(a, o):
        pipe = numpipe.pipeline(
            grid=(3, 2),
            max_concurrent_steps=2,
            in_specs=(BlockSpec((64, 64), lambda j, k: (j, k)),),
            out_specs=(BlockSpec((64, 64), lambda j, k: (0, k), buffer_count=slots),),
        )
        for (j, k), (x, y) in pipe(a, o):
            value = x[...].astype(np.float32)
            if j != 0 and how == "a load":
                value = value + y[...].astype(np.float32)
            elif j != 0:
                value = numpipe.wgmma_wait(numpipe.wgmma(value, x, y), 0)
            y[...] = value.astype(y.dtype)

    for seed in SCHEDULES:
        with pytest.raises(
            PipelineRace,
            match=r"(read \(tile\[…\]\)|wgmma \(.*\)) reads SMEM.*, but these bytes have not been "
            r"written since TMA store \(o\) by .*: write all of an output tile in every "
            r"block, before it is read",
        ) as caught:
            comes_again.simulate(integers((192, 128)), np.zeros((64, 128), F16), seed=seed)
        assert "value = " in str(caught.value)


def test_reading_a_tile_that_nobody_has_written_is_an_error() -> None:
    @numpipe.kernel
    def reads(o):
        pipe = numpipe.pipeline(grid=(1,), out_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
        for (_,), (y,) in pipe(o):
            y[...] = y[...] + 1.0

    with pytest.raises(
        PipelineRace,
        match=r"read \(tile\[…\]\) reads SMEM.*, but these bytes have not been written",
    ):
        reads.simulate(np.zeros((64, 64), F32))


# ---- one array, loaded and stored ----------------------------------------------------------------
def in_place(loaded: int, stored: int) -> Any:
    """Load block k + loaded of an array and store block k + stored in step k."""

    @numpipe.kernel
    def moves(a):
        pipe = numpipe.pipeline(
            grid=(3,),
            max_concurrent_steps=2,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k + loaded)),),
            out_specs=(BlockSpec((64, 64), lambda k: (0, k + stored)),),
        )
        for _, (x, y) in pipe(a, a):
            y[...] = x[...]

    return moves


@pytest.mark.parametrize("seed", SCHEDULES)
def test_a_block_is_stored_over_what_was_loaded_for_it_or_before(seed: int | None) -> None:
    a = integers((64, 256))
    in_place(0, 0).simulate(a, seed=seed)
    moved = a.copy()
    in_place(1, 0).simulate(moved, seed=seed)
    np.testing.assert_array_equal(moved[:, :192], a[:, 64:])


MEETING = (
    r"TMA (load|store) \(a\) (reads|writes) the array at .* while TMA (load|store) \(a\) by .* "
    r"may still be"
)


@pytest.mark.parametrize("seed", SCHEDULES)
def test_a_step_that_loads_what_another_stores_is_a_race(seed: int | None) -> None:
    with pytest.raises(PipelineRace, match=MEETING):
        in_place(0, 1).simulate(integers((64, 256)), seed=seed)


@pytest.mark.variants(12)
@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("roles", [True, False])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_later_pipeline_that_loads_what_an_earlier_one_stores_is_a_race(
    steps: int, roles: bool, seed: int | None
) -> None:
    @numpipe.kernel(warp_specialized=roles)
    def twice(b, a, o):
        block = BlockSpec((64, 64), lambda k: (0, k))
        first = numpipe.pipeline(grid=(steps,), in_specs=(block,), out_specs=(block,))
        for _, (x, y) in first(b, a):
            y[...] = x[...]
        second = numpipe.pipeline(grid=(steps,), in_specs=(block,), out_specs=(block,))
        for _, (x, y) in second(a, o):
            y[...] = x[...]

    b = integers((64, 192))
    with pytest.raises(
        PipelineRace,
        match="(?s)" + MEETING + r".*fix:    a pipeline's stores complete when the kernel ends",
    ):
        twice.simulate(b, 0 * b, 0 * b, seed=seed)


@pytest.mark.parametrize("waits", [True, False])
def test_a_copy_of_the_kernels_own_is_waited_for(waits: bool) -> None:
    @numpipe.kernel(warp_specialized=False)
    def there_and_back(a, o):
        tile = numpipe.scratch(numpipe.SMEM((64, 64), np.float32))
        tile[...] = numpipe.zeros((64, 64), np.float32) + 3.0
        numpipe.copy_smem_to_gmem(tile, a.at[ds(0, 64), ds(0, 64)])
        if waits:
            numpipe.wait_smem_to_gmem(0)
        for _, (x,) in numpipe.pipeline(
            grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )(a):
            o[ds(0, 64), ds(0, 64)] = x[...]

    a, o = np.zeros((64, 64), F32), np.zeros((64, 64), F32)
    if waits:
        there_and_back.simulate(a, o)
        assert (o == 3).all()
    else:
        with pytest.raises(PipelineRace, match=MEETING):
            there_and_back.simulate(a, o)
