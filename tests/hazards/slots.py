"""Hazards of slots: refilled while they are read, read before they are filled, and read after their
release."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, BlockSpec, ds
from numpipe.core.lanes import one_lane
from numpipe.intrinsics import barrier, cp_async_bulk, fence, mbarrier, memory

from .catalogue import BARE, F32, integers, kernel, machine, zeros

A, B = integers(64, 192), integers(64, 192)
PRODUCT = A.astype(F32) @ B.astype(F32).T
X = integers(64, 192)
emit = numpipe.emit_pipeline_warp_specialized


# ---- refilled too early
@kernel(
    A,
    B,
    zeros(64, 64, dtype=F32),
    hazard="refilled-while-read",
    says=r"TMA load \([ab]\) fills SMEM.* while wgmma \(batch 1\).* of step 0 \(slot 0\).*warps 0, "
    r"1, 2, 3 of warpgroup 0 \(compute\) did not signal that their wgmma had finished.*fix: "
    r"+wgmma_wait\(0\) before barrier_arrive: batch 1 may still read slot 0 of a, b @ slots.py:\d+",
    gives=PRODUCT,
)
def released_before_the_product_has_drained(a, b, c, *, fixed: numpipe.Static):
    def body(indices, a_tile, b_tile, a_free, b_free, acc):
        acc = numpipe.wgmma(acc, a_tile, b_tile.T)
        if fixed:
            acc = numpipe.wgmma_wait(acc, 0)
        numpipe.barrier_arrive(a_free)
        numpipe.barrier_arrive(b_free)
        return acc

    def compute(pipeline):
        c[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

    specs = BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))
    emit(
        body,
        grid=(3,),
        max_concurrent_steps=1,
        in_specs=specs,
        compute_context=compute,
        manual_consumed_barriers=True,
    )(a, b)


@kernel(
    A,
    B,
    zeros(64, 64, dtype=F32),
    hazard="refilled-while-read",
    says=r"TMA load \([ab]\) fills SMEM.* while wgmma \(batch [12]\).*step [01] \(slot [01].*fix: "
    r"+delay_release=2 and max_concurrent_steps of 3 or more is needed: wgmma_wait\(2\) "
    r"leaves 2 groups reading slot [01] of a, b",
    gives=PRODUCT,
)
def one_product_too_many_left_in_flight(a, b, c, *, fixed: numpipe.Static):
    def body(indices, a_tile, b_tile, a_free, b_free, acc):
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, a_tile, b_tile.T), 1 if fixed else 2)
        numpipe.barrier_arrive(a_free)
        numpipe.barrier_arrive(b_free)
        return acc

    def compute(pipeline):
        c[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

    specs = BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))
    emit(
        body,
        grid=(3,),
        max_concurrent_steps=2,
        delay_release=1,
        in_specs=specs,
        compute_context=compute,
        manual_consumed_barriers=True,
    )(a, b)


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="read-after-release",
    says=r"fix: +issue the product of step 0, and wgmma_wait\(0\), before barrier_arrive",
    gives=sum(X[:, k : k + 64].astype(F32) @ X[:, k : k + 64].astype(F32) for k in (0, 64, 128)),
)
def a_loop_that_releases_ahead_of_the_product(x, y, *, fixed: numpipe.Static):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(3,),
        max_concurrent_steps=2,
        delay_release=0,
        manual_consumed_barriers=True,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
    )
    for _, (tile,), (free,) in pipe(x):
        if fixed:
            acc = numpipe.wgmma_wait(numpipe.wgmma(acc, tile, tile), 0)
        numpipe.barrier_arrive(free)
        if not fixed:
            acc = numpipe.wgmma_wait(numpipe.wgmma(acc, tile, tile), 0)
    y[ds(0, 64), ds(0, 64)] = acc


@kernel(
    A,
    B,
    zeros(64, 64, dtype=F32),
    hazard="refilled-while-read",
    says=r"TMA load \([ab]\) fills SMEM.* while wgmma \(batch 1\).* of step 0 \(slot 0.*did not "
    r"signal that their wgmma had finished.*fix: +wgmma_wait\(0\) before barrier_arrive: batch 1 "
    r"may still read slot 0 of a, b @ slots.py:\d+",
    gives=PRODUCT,
)
def released_in_a_loop_before_the_product_has_drained(a, b, c, *, fixed: numpipe.Static):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(3,),
        max_concurrent_steps=1,
        manual_produced_barriers=True,
        manual_consumed_barriers=True,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
    )
    for _, (a_tile, b_tile), (a_ready, b_ready), (a_free, b_free) in pipe(a, b):
        numpipe.barrier_wait(a_ready)
        numpipe.barrier_wait(b_ready)
        acc = numpipe.wgmma(acc, a_tile, b_tile.T)
        if fixed:
            acc = numpipe.wgmma_wait(acc, 0)
        numpipe.barrier_arrive(a_free)
        numpipe.barrier_arrive(b_free)
    c[ds(0, 64), ds(0, 64)] = acc


@kernel(
    A,
    B,
    zeros(64, 64, dtype=F32),
    hazard="refilled-while-read",
    says=r"TMA load \([ab]\) fills SMEM.* while wgmma \(batch [12]\).*did not signal that their "
    r"wgmma had finished.*fix: +wgmma_wait\(0\) before barrier_arrive, or barrier_arrive after the "
    r"product of its step and wgmma_wait\(1\): batch [12] may still read slot [01] of a, b",
    gives=PRODUCT,
)
def the_step_before_released_ahead_of_a_product(a, b, c, *, fixed: numpipe.Static):
    def body(indices, a_tile, b_tile, a_free, b_free, acc):
        if fixed:
            acc = numpipe.wgmma_wait(acc, 0)
        numpipe.barrier_arrive(a_free)
        numpipe.barrier_arrive(b_free)
        return numpipe.wgmma(acc, a_tile, b_tile.T)

    def compute(pipeline):
        c[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

    specs = BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))
    emit(
        body,
        grid=(3,),
        max_concurrent_steps=2,
        delay_release=1,
        in_specs=specs,
        compute_context=compute,
        manual_consumed_barriers=True,
    )(a, b)


@kernel(
    A,
    B,
    zeros(64, 64, dtype=F32),
    hazard="read-after-release",
    says=r"(TMA load \([ab]\) fills SMEM.* while wgmma|wgmma \(batch \d\) reads SMEM.* while TMA "
    r"load).*fix: +issue the product of step \d, and wgmma_wait\(0\), before barrier_arrive: "
    r"slot 0 of a, b",
    gives=PRODUCT,
)
def released_ahead_of_the_product(a, b, c, *, fixed: numpipe.Static):
    def body(indices, a_tile, b_tile, a_free, b_free, acc):
        if fixed:
            acc = numpipe.wgmma_wait(numpipe.wgmma(acc, a_tile, b_tile.T), 0)
        numpipe.barrier_arrive(a_free)
        numpipe.barrier_arrive(b_free)
        if not fixed:
            acc = numpipe.wgmma(acc, a_tile, b_tile.T)
        return acc

    def compute(pipeline):
        c[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

    specs = BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))
    emit(
        body,
        grid=(3,),
        max_concurrent_steps=1,
        in_specs=specs,
        compute_context=compute,
        manual_consumed_barriers=True,
    )(a, b)


@kernel(
    X,
    zeros(64, 64),
    hazard="refilled-while-read",
    says=r"TMA load \(x\) fills SMEM.* while read \(tile\[…\]\).*no barrier orders warp 1 .*fix: "
    r"+commit_smem between the last read and the copy",
    gives=X[:, :64] + X[:, 64:128],
    compiler_params=BARE,
)
def loaded_again_while_other_warps_read(x, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    first = tile[...]
    if fixed:
        numpipe.commit_smem()
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(64, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    y[ds(0, 64), ds(0, 64)] = (first.astype(np.float32) + tile[...].astype(np.float32)).astype(
        np.float16
    )


@kernel(
    X,
    zeros(64, 128),
    hazard="refilled-while-read",
    says=r"TMA load \(x\) fills SMEM.* while TMA store \(y\).*fix: +wait_smem_to_gmem\(0, "
    r"wait_read_only=True\)",
    gives=X[:, :128],
)
def loaded_again_while_a_store_reads(x, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    for k in range(2):
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(k * 64, 64)], tile, landed)
        numpipe.barrier_wait(landed)
        numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(k * 64, 64)])
        if fixed:
            numpipe.wait_smem_to_gmem(0, wait_read_only=True)


@kernel(
    X,
    zeros(128, 64),
    hazard="refilled-while-read",
    says=r"(TMA load \(x\) fills SMEM.* while read \(tile\[…\]\) of warpgroup 1|read "
    r"\(tile\[…\]\) reads SMEM.* while TMA load \(x\)).*fix: +one barrier_arrive on barrier @ "
    r"slots.py:\d+ \(2\) by warpgroup 1 \(compute\) and one by each of the others: phase 0 "
    r"counts 2 of warpgroup 0 \(compute\), and none of warpgroup 1 \(compute\)",
    gives=np.concatenate([X[:, 64:128], X[:, :64]]),
    num_compute_wgs=2,
    warp_specialized=False,
)
def loaded_again_when_one_warpgroup_has_released_twice(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    tile, landed, again, free = numpipe.scratch(
        (SMEM((64, 64), np.float16), Barrier(), Barrier(), Barrier(num_arrivals=2))
    )
    if wg == 0:
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
        numpipe.barrier_wait(landed)
        numpipe.barrier_arrive(free)
        if not fixed:
            numpipe.barrier_arrive(free)
        numpipe.barrier_wait(free)
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(64, 64)], tile, again)
        numpipe.barrier_wait(again)
        y[ds(0, 64), ds(0, 64)] = tile[...]
    else:
        numpipe.barrier_wait(landed)
        y[ds(64, 64), ds(0, 64)] = tile[...]
        if fixed:
            numpipe.barrier_arrive(free)


@kernel(
    X,
    zeros(128, 64),
    hazard="refilled-while-read",
    says=r"(TMA load \(x\) fills SMEM.* while read \(tile\[…\]\) of warpgroup 1|read "
    r"\(tile\[…\]\) reads SMEM.* while TMA load \(x\)).*fix: +barrier_arrive by the readers, after "
    r"their last read, and barrier_wait before the copy",
    gives=np.concatenate([X[:, 64:128], X[:, :64]]),
    num_compute_wgs=2,
    warp_specialized=False,
)
def loaded_again_while_another_warpgroup_reads(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    tile, landed, again, free = numpipe.scratch(
        (SMEM((64, 64), np.float16), Barrier(), Barrier(), Barrier())
    )
    if wg == 0:
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
        numpipe.barrier_wait(landed)
        if fixed:
            numpipe.barrier_wait(free)
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(64, 64)], tile, again)
        numpipe.barrier_wait(again)
        y[ds(0, 64), ds(0, 64)] = tile[...]
    else:
        numpipe.barrier_wait(landed)
        y[ds(64, 64), ds(0, 64)] = tile[...]
        if fixed:
            numpipe.barrier_arrive(free)


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="refilled-while-read",
    says=r"write \(tile\[…\] = value\) writes SMEM.* while wgmma \(batch 1\).*fix: "
    r"+wgmma_wait\(0\), then commit_smem, before the store",
    gives=X[:, :64].astype(F32) @ X[:, :64].astype(F32) + 1,
)
def written_while_a_product_reads(x, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    acc = numpipe.wgmma(numpipe.zeros((64, 64), np.float32), tile, tile)
    if fixed:
        acc = numpipe.wgmma_wait(acc, 0)
    tile[...] = (numpipe.zeros((64, 64), np.float32) + 1.0).astype(np.float16)
    acc = numpipe.wgmma_wait(acc, 0)
    y[ds(0, 64), ds(0, 64)] = acc + tile[...].astype(np.float32)


# ---- read too early
@kernel(
    X,
    zeros(64, 64),
    hazard="read-before-ready",
    says=r"read \(tile\[…\]\) reads SMEM.* while TMA load \(x\).*warpgroup 0 \(compute\) does not "
    r"wait until this copy has landed.*fix: +barrier_wait for barrier @ slots.py:\d+, "
    r"phase 0",
    gives=X[:, :64],
)
def read_before_the_copy_has_landed(x, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    if fixed:
        numpipe.barrier_wait(landed)
    y[ds(0, 64), ds(0, 64)] = tile[...]


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="read-before-ready",
    says=r"wgmma \(batch 1\) reads SMEM.* while TMA load \(x\).*fix: +barrier_wait for "
    r"barrier\[1\] @ slots.py:\d+, phase 0",
    gives=X[:, 64:128].astype(F32) @ X[:, 64:128].astype(F32),
)
def multiplied_out_of_another_slot_than_was_waited_for(x, y, *, fixed: numpipe.Static):
    tiles, landed = numpipe.scratch((SMEM((2, 64, 64), np.float16), Barrier(num_barriers=2)))
    for k in range(2):
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(k * 64, 64)], tiles.at[k], landed.at[k])
    numpipe.barrier_wait(landed.at[0])
    if fixed:
        numpipe.barrier_wait(landed.at[1])
    y[ds(0, 64), ds(0, 64)] = numpipe.wgmma_wait(
        numpipe.wgmma(numpipe.zeros((64, 64), np.float32), tiles.at[1], tiles.at[1]), 0
    )


@kernel(
    A,
    B,
    zeros(64, 64, dtype=F32),
    hazard="read-before-ready",
    says=r"wgmma \(batch 1\) reads SMEM.*(not been written|TMA load \(b\).*ready\[0\] for "
    r"in_specs\[1\] 'b' of a, b @ slots.py:\d+ phase 0.*fix: +wait for ready\[0\])",
    gives=PRODUCT,
)
def a_body_that_waits_for_one_of_two_operands(a, b, c, *, fixed: numpipe.Static):
    def body(indices, a_tile, b_tile, a_ready, b_ready, acc):
        numpipe.barrier_wait(a_ready)
        if fixed:
            numpipe.barrier_wait(b_ready)
        return numpipe.wgmma(acc, a_tile, b_tile.T)

    def compute(pipeline):
        c[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

    specs = BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))
    emit(body, grid=(3,), in_specs=specs, compute_context=compute, manual_produced_barriers=True)(
        a, b
    )


@kernel(
    A,
    B,
    zeros(64, 64, dtype=F32),
    hazard="read-before-ready",
    says=r"wgmma \(batch 1\) reads SMEM.*(not been written|TMA load \(b\).*ready\[0\] for "
    r"in_specs\[1\] 'b' of a, b @ slots.py:\d+ phase 0.*fix: +wait for ready\[0\])",
    gives=PRODUCT,
)
def a_loop_that_waits_behind_the_first_use(a, b, c, *, fixed: numpipe.Static):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(3,),
        manual_produced_barriers=True,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
    )
    for _, (a_tile, b_tile), (a_ready, b_ready) in pipe(a, b):
        numpipe.barrier_wait(a_ready)
        if fixed:
            numpipe.barrier_wait(b_ready)
        acc = numpipe.wgmma(acc, a_tile, b_tile.T)
        numpipe.barrier_wait(b_ready)
    c[ds(0, 64), ds(0, 64)] = acc


@kernel(
    X,
    zeros(64, 64),
    hazard="read-before-ready",
    says=r"TMA store \(y\) reads SMEM.* while TMA load \(x\).*fix: +barrier_wait for barrier",
    gives=X[:, :64],
)
def stored_before_it_has_landed(x, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    if fixed:
        numpipe.barrier_wait(landed)
    numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(0, 64)])


@kernel(
    X,
    zeros(64, 64),
    hazard="read-before-ready",
    says=r"TMA load \(x\) fills SMEM.* while TMA load \(x\) .*may still be writing.*fix: "
    r"+barrier_wait for barrier",
    gives=X[:, 64:128],
)
def loaded_over_a_load_in_flight(x, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch(
        (SMEM((64, 64), np.float16), Barrier(num_arrivals=1 if fixed else 2))
    )
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    if fixed:
        numpipe.barrier_wait(landed)
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(64, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    y[ds(0, 64), ds(0, 64)] = tile[...]


READY = 60 * 1024


def load_words(x):
    mbarrier.init(READY, 1)
    fence.mbarrier_init()
    mbarrier.arrive_expect_tx(READY, x.nbytes)
    cp_async_bulk.load(0, x, (0, 0), READY)


@machine(
    "read-before-ready",
    r"read \(load_word\) reads SMEM\[0:4\) while TMA load \(x\).*fix: +wait for mbarrier at 61440, "
    r"phase 0",
    integers(64, 64, dtype=np.int16),
    gives=np.array([int(integers(64, 64, dtype=np.int16)[0, :2].view(np.int32)[0])]),
    box=(64, 64),
)
def waited_for_by_one_warp_and_read_by_four(fixed, x, out):
    one_lane(load_words, x)
    barrier.sync(0, 128)
    if fixed:
        mbarrier.wait(READY, 0, -1)
    else:
        one_lane(mbarrier.wait, READY, 0, -1)
    out[0] = memory.load_word(0)


# ---- read too late
@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="read-after-release",
    says=r"(TMA load \(x\) fills SMEM.* while read \(tile\[…\]\)|read \(tile\[…\]\) reads SMEM.* "
    r"while TMA load \(x\)).*of step [01] \(slot 0\).*fix: +read the tile of step [01] before "
    r"barrier_arrive: slot 0 of x @ slots.py:\d+ was released by barrier_arrive, and step "
    r"[12] is loaded there",
    gives=X.reshape(64, 3, 64).astype(F32).sum(axis=1),
)
def read_after_it_was_released(x, y, *, fixed: numpipe.Static):
    def body(indices, tile, free, acc):
        if fixed:
            acc = acc + tile[...].astype(np.float32)
            numpipe.barrier_arrive(free)
        else:
            numpipe.barrier_arrive(free)
            acc = acc + tile[...].astype(np.float32)
        return acc

    def compute(pipeline):
        y[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

    emit(
        body,
        grid=(3,),
        max_concurrent_steps=1,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        compute_context=compute,
        manual_consumed_barriers=True,
    )(x)


@kernel(
    X,
    zeros(128, 64),
    hazard="read-after-release",
    says=r"(TMA load \(x\) fills SMEM.* while read \(tile\[…\]\) of warpgroup 1|read "
    r"\(tile\[…\]\) reads SMEM.* while TMA load \(x\)).*warpgroup 1 \(compute\) arrived on "
    r"barrier @ slots.py:\d+ \(2\) before (the read|it reads).*fix: +read before the arrival "
    r"on barrier @ slots.py:\d+ \(2\)",
    gives=np.concatenate([X[:, 64:128], X[:, :64]]),
    num_compute_wgs=2,
    warp_specialized=False,
)
def handed_back_before_it_was_read(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    tile, landed, again, free = numpipe.scratch(
        (SMEM((64, 64), np.float16), Barrier(), Barrier(), Barrier())
    )
    if wg == 0:
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
        numpipe.barrier_wait(landed)
        numpipe.barrier_wait(free)
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(64, 64)], tile, again)
        numpipe.barrier_wait(again)
        y[ds(0, 64), ds(0, 64)] = tile[...]
    else:
        numpipe.barrier_wait(landed)
        if fixed:
            y[ds(64, 64), ds(0, 64)] = tile[...]
            numpipe.barrier_arrive(free)
        else:
            numpipe.barrier_arrive(free)
            y[ds(64, 64), ds(0, 64)] = tile[...]


@kernel(
    X,
    zeros(64, 64, dtype=F32),
    hazard="read-after-release",
    says=r"(TMA load \(x\) fills SMEM.* while read \(tile\[…\]\)|read \(tile\[…\]\) reads SMEM.* "
    r"while TMA load \(x\)).*fix: +read the tile of step \d in step \d at the latest, or keep "
    r"it with delay_release=1: slot [01] of x @ slots.py:\d+ was released by the ring, and "
    r"step \d is loaded there",
    gives=sum(
        X[:, 64 * k : 64 * k + 64].astype(F32) * X[:, 64 * max(k - 1, 0) :][:, :64]
        for k in range(3)
    ),
)
def a_tile_kept_for_the_next_step(x, y, *, fixed: numpipe.Static):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(3,),
        max_concurrent_steps=2,
        delay_release=1 if fixed else 0,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
    )
    for (k,), (tile,) in pipe(x):
        if k == 0:
            before = tile
        acc = acc + before[...].astype(np.float32) * tile[...].astype(np.float32)
        before = tile
    y[ds(0, 64), ds(0, 64)] = acc
