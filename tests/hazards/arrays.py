"""Hazards of arrays in global memory: conflicts between CTAs, unwritten elements, accesses out of
bounds, and data that the previous kernel still writes."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import (
    SMEM,
    ArrayType,
    BlockSpec,
    CompilerParams,
    Element,
    LoweringSemantics,
    PipelineDeadlock,
    SimulationError,
    Workspace,
    ds,
)
from numpipe.core.lanes import one_lane
from numpipe.core.machine import TensorMap, current
from numpipe.intrinsics import barrier, cp_async_bulk, fence, griddep, mbarrier, memory
from numpipe.language.memory.per_lane import syncwarp
from tests.kernels.sim_pipelines import panel_chunks

from .catalogue import F16, F32, integers, kernel, machine, zeros

X = integers(64, 192)
PANEL = integers(64, 64)
ONE = np.ones((64, 64), F32)
DONE = np.array([7])
READY = 60 * 1024


# ---- CTAs
@kernel(
    zeros(128, 64, dtype=F32),
    hazard="cta-conflict",
    says=r"warpgroup 0 \(compute\) of CTA \(1, 0, 0\): TMA store \(y\) writes y\[0:64, \d+:\d+\], "
    r"which CTA \(0, 0, 0\) writes too.*fix: +give each CTA its own blocks",
    gives=np.concatenate([ONE, ONE]),
    grid=2,
)
def two_ctas_store_to_one_block(y, *, fixed: numpipe.Static):
    row = numpipe.program_id(0) * 64 if fixed else 0
    y[ds(row, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    integers(64, 256),
    hazard="cta-conflict",
    says=r"of CTA \(1, 0, 0\): TMA store \(x\) writes x\[0:64, 64:128\], which CTA \(0, 0, 0\) "
    r"reads.*fix: +read the results of other CTAs in a later kernel",
    gives=integers(64, 256),
    grid=2,
)
def a_cta_loads_what_another_one_stores(x, *, fixed: numpipe.Static):
    at = numpipe.program_id(0)
    pipe = numpipe.pipeline(
        grid=(1,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, at if fixed else at + 1)),),
        out_specs=(BlockSpec((64, 64), lambda k: (0, at)),),
    )
    for _, (x_tile, y_tile) in pipe(x, x):
        y_tile[...] = x_tile[...]


@kernel(
    zeros(64, 64),
    hazard="cta-conflict",
    says=r"TMA reduction 'max' \(y\) writes y\[0:64, 0:64\], which CTA \(0, 0, 0\) writes "
    r"too.*fix: .*all CTAs use the same reduction_op",
    gives=np.full((64, 64), 2, F16),
    grid=2,
)
def ctas_that_combine_in_two_ways(y, *, fixed: numpipe.Static):
    tile = numpipe.scratch(SMEM((64, 64), np.float16))
    tile[...] = (numpipe.zeros((64, 64), np.float32) + 1.0).astype(np.float16)
    if numpipe.program_id(0) == 0:
        numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(0, 64)], reduction_op="add")
    else:
        numpipe.copy_smem_to_gmem(
            tile, y.at[ds(0, 64), ds(0, 64)], reduction_op="add" if fixed else "max"
        )


# ---- parts of tiles
@kernel(
    zeros(64, 64, dtype=F32),
    hazard="cta-conflict",
    says=r"of CTA \(1, 0, 0\): TMA store \(y\) writes y\[0:64, \d+:\d+\], which CTA \(0, 0, 0\) "
    r"writes too",
    gives=2 * ONE,
    grid=2,
    workspace=Workspace((64, 64), 2),
)
def every_part_of_a_tile_stores_it(y, work, *, fixed: numpipe.Static):
    for m, n, part in numpipe.split_tiles(1, 1, steps=2, split=2):
        acc = numpipe.combine(numpipe.zeros((64, 64), np.float32) + 1.0, part, work)
        if part.begin == 0 or not fixed:
            y[ds(m * 64, 64), ds(n * 64, 64)] = acc


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="deadlock",
    says=r"blocked on the flag of work\[0\].*the flag of work\[0\]: it was never set.*fix: +pass "
    r"every part on",
    gives=2 * ONE,
    error=PipelineDeadlock,
    grid=2,
    workspace=Workspace((64, 64), 2),
)
def a_part_of_a_tile_that_nobody_hands_over(y, work, *, fixed: numpipe.Static):
    for m, n, part in numpipe.split_tiles(1, 1, steps=2, split=2):
        acc = numpipe.zeros((64, 64), np.float32) + 1.0
        if part.begin == 0 or fixed:
            acc = numpipe.combine(acc, part, work)
        if part.begin == 0:
            y[ds(m * 64, 64), ds(n * 64, 64)] = acc


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="exit-in-flight",
    says=r"the flag of work\[0\], which warpgroup 0 \(compute\) of CTA \(0, 0, 0\) at .* set, is "
    r"still set when the kernel has ended.*including the owner's",
    gives=2 * ONE,
    error=SimulationError,
    grid=2,
    workspace=Workspace((64, 64), 2),
)
def an_owner_that_takes_no_other_part(y, work, *, fixed: numpipe.Static):
    for m, n, part in numpipe.split_tiles(1, 1, steps=2, split=2):
        acc = numpipe.zeros((64, 64), np.float32) + 1.0
        if part.begin > 0 or fixed:
            acc = numpipe.combine(acc, part, work)
        if part.begin == 0:
            y[ds(m * 64, 64), ds(n * 64, 64)] = acc


# ---- proxies and warpgroups
@kernel(
    np.zeros((128, 64), F32, order="F"),
    hazard="unordered-accesses",
    says=r"store \(y\) writes y\[0:64, 0:64\], which store \(y\) of warpgroup \d \(compute\) "
    r"writes too.*no barrier orders warpgroup \d.*fix: .*, or num_compute_wgs=1",
    gives=np.concatenate([ONE, ONE]),
    num_compute_wgs=2,
)
def two_warpgroups_store_to_one_block(y, *, fixed: numpipe.Static):
    row = numpipe.axis_index("wg") * (64 if fixed else 0)
    y[ds(row, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="array-in-transfer",
    says=r"TMA store \(y\) writes the array at y\[0:64, \d+:\d+\] while TMA store \(y\) by .* may "
    r"still be writing it.*fix: .*wait_smem_to_gmem\(0\)",
    gives=2 * ONE,
)
def stored_twice_in_no_order(y, *, fixed: numpipe.Static):
    for k in range(2):
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + (k + 1)
        if fixed:
            numpipe.wait_smem_to_gmem(0)


# ---- arrays that steer a kernel
COUNTS = np.full((64, 64), 2, np.int32)


@kernel(
    integers(128, 64),
    COUNTS,
    zeros(64, 64, dtype=np.dtype(np.int32)),
    hazard="steering-data-written",
    says=r"TMA store \(y\) writes y\[0:64, \d+:\d+\], which load \(counts\) of warpgroup 1 "
    r"\(memory\) reads.*each role reads 'counts' separately.*fix: +store to a different array"
    r"",
    gives=np.ones((64, 64), np.int32),
    alias=1,
)
def what_steers_is_stored_to(x, counts, y, *, fixed: numpipe.Static):
    pipe = numpipe.pipeline(
        grid=(counts[0, 0],), in_specs=(BlockSpec((64, 64), lambda k: (counts[0, 1] - k - 1, 0)),)
    )
    acc = numpipe.zeros((64, 64), np.float32)
    for _, (x_tile,) in pipe(x):
        acc = numpipe.wgmma(acc, x_tile, x_tile.T)
    y[ds(0, 64), ds(0, 64)] = (acc * 0.0).astype(np.int32) + 1


@kernel(
    integers(64, 256),
    np.arange(4, dtype=np.int64),
    np.zeros(4, np.int64),
    hazard="steering-data-written",
    says=r"load \(order\).*each role reads 'order' separately",
    gives=np.array([0, 1, 2, 3]),
    alias=1,
)
def an_order_that_is_marked_as_done(x, order, y, *, fixed: numpipe.Static):
    for i in range(4):
        for _, (x_tile,) in numpipe.pipeline(
            grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, order[i])),)
        )(x):
            x_tile[...]
        y[i] = i


@kernel(
    integers(64, 256),
    np.arange(4, dtype=np.int64),
    np.zeros(4, np.int64),
    hazard="steering-data-written",
    says=r"load \(order\).*each role reads 'order' separately",
    gives=np.array([0, 1, 2, 3]),
    alias=1,
)
def an_order_that_is_copied_once_and_marked_as_done(x, order, y, *, fixed: numpipe.Static):
    order_ = numpipe.prefetched(order)
    for i in range(4):
        for _, (x_tile,) in numpipe.pipeline(
            grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, order_[i])),)
        )(x):
            x_tile[...]
        y[i] = i


@machine(
    "read-before-ready",
    r"read \(load_word\) reads SMEM\[0:4\) while TMA load \(table\) of warpgroup 0 \(compute\) "
    r"may still be writing it.*fix: +wait for mbarrier at 61440, phase 0",
    PANEL,
    gives=PANEL.view(np.int32)[0, :2].copy(),
)
def a_table_that_is_read_before_it_has_landed(fixed, x, out):
    one_lane(copy_table, x)
    barrier.sync(0, 128)
    if fixed:
        mbarrier.wait(READY, 0, -1)
    for word in range(2):
        out[word] = memory.load_word(4 * word)
    mbarrier.wait(READY, 0, -1)


def copy_table(x):
    mbarrier.init(READY, 1)
    fence.mbarrier_init()
    mbarrier.arrive_expect_tx(READY, 128)
    cp_async_bulk.load_bytes(0, TensorMap(x.array.reshape(-1), (64,), 0, "table"), 128, READY)


# ---- unwritten and out-of-bounds elements
@kernel(
    PANEL,
    hazard="uninitialised-read",
    says=r"TMA load \(y\) reads y\[0:64, 64:96\], which has not been written: 'y' is allocated by "
    r"the call.*fix: +pass 'y'",
    gives=3 * ONE,
    error=SimulationError,
    warp_specialized=False,
    out_type=lambda x, fixed: (ArrayType((64, 128), np.float32), ArrayType((64, 64), np.float32)),
)
def an_output_is_read_where_nobody_wrote(x, y, z, *, fixed: numpipe.Static):
    tile = numpipe.scratch(SMEM((64, 64), np.float32))
    tile[...] = numpipe.zeros((64, 64), np.float32) + 3.0
    numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(0, 64)])
    numpipe.wait_smem_to_gmem(0)
    for _, (y_tile,) in numpipe.pipeline(
        grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, 0 if fixed else 1)),)
    )(y):
        z[ds(0, 64), ds(0, 64)] = y_tile[...]


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="out-of-bounds",
    says=r"'y\[…\] = tile': negative start \(-64, 0\): a TMA store stops the kernel there",
    gives=ONE,
    error=SimulationError,
)
def a_tile_before_the_array(y, *, fixed: numpipe.Static):
    y[ds(0 if fixed else y.shape[0] - 128, 64), ds(0, 64)] = (
        numpipe.zeros((64, 64), np.float32) + 1.0
    )


@machine(
    "out-of-bounds",
    r"store to out: elements 32 … 95 along dimension 0 of an array that has 64: ordinary stores "
    r"are not clipped",
    gives=ONE,
    error=SimulationError,
)
def an_ordinary_store_past_the_end(fixed, out):
    start = 0 if fixed else 32
    current().gmem_write(out.array, (slice(start, start + 64), slice(0, 64)), ONE, "out")


# ---- blocks that are read as register tiles
@kernel(
    zeros(64, 64, dtype=F32),
    zeros(64, 64, dtype=F32),
    hazard="array-in-transfer",
    says=r"load \(y\) reads the array at y\[0:64, 0:64\] while TMA store \(y\) by warpgroup 0 "
    r"\(compute\) may still be writing it.*fix: .*wait_smem_to_gmem\(0\)",
    gives=3 * ONE,
)
def a_block_is_read_before_its_store_has_ended(y, z, *, fixed: numpipe.Static):
    y[ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), 2.0, np.float32)
    if fixed:
        numpipe.wait_smem_to_gmem(0)
    z[ds(0, 64), ds(0, 64)] = y[ds(0, 64), ds(0, 64)] + 1.0


@kernel(
    integers(64, 256, dtype=F32),
    hazard="cta-conflict",
    says=r"of CTA \(1, 0, 0\): TMA store \(x\) writes x\[0:64, 64:96\], which CTA \(0, 0, 0\) "
    r"reads.*fix: +read the results of other CTAs in a later kernel",
    grid=2,
    gives=integers(64, 256, dtype=F32) * np.repeat(F32.type([2, 2, 1, 1]), 64),
)
def a_cta_reads_a_block_that_another_one_stores(x, *, fixed: numpipe.Static):
    at = numpipe.program_id(0) * 64
    tile = x[ds(0, 64), ds(at if fixed else at + 64, 64)]
    x[ds(0, 64), ds(at, 64)] = tile * 2.0


@kernel(
    np.ones((128, 64), F32, order="F"),
    hazard="unordered-accesses",
    says=r"(store \(y\) writes y\[\d+:\d+, 0:64\], which load \(y\) of warpgroup \d \(compute\) "
    r"reads|load \(y\) reads y\[\d+:\d+, 0:64\], which store \(y\) of warpgroup \d "
    r"\(compute\) writes).*no barrier orders warpgroup",
    gives=np.concatenate([2 * ONE, 2 * ONE]),
    num_compute_wgs=2,
)
def a_warpgroup_reads_a_block_that_another_one_stores(y, *, fixed: numpipe.Static):
    row = numpipe.axis_index("wg") * 64
    y[ds(row, 64), ds(0, 64)] = y[ds(row if fixed else 64 - row, 64), ds(0, 64)] * 2.0


@kernel(
    np.ones((64, 64), F32, order="F"),
    zeros(64, 64, dtype=F32),
    hazard="unordered-accesses",
    says=r"load \(y\) reads y\[0:64, 0:64\], which store \(y\) of warpgroup 0 \(compute\) "
    r"writes.*no barrier orders its four warps.*fix: .*use the stored value",
    gives=5 * ONE,
)
def a_block_is_read_again_that_lanes_have_stored(y, z, *, fixed: numpipe.Static):
    tile = y[ds(0, 64), ds(0, 64)] * 4.0
    y[ds(0, 64), ds(0, 64)] = tile
    z[ds(0, 64), ds(0, 64)] = (tile if fixed else y[ds(0, 64), ds(0, 64)]) + 1.0


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="uninitialised-read",
    says=r"load \(y\) reads y\[0:64, 0:64\], which has not been written: 'y' is allocated by the "
    r"call.*fix: +pass 'y'",
    gives=ONE,
    error=SimulationError,
    out_type=lambda x, fixed: ArrayType((64, 64), np.float32),
)
def an_output_is_added_to_that_holds_nothing(x, y, *, fixed: numpipe.Static):
    y[ds(0, 64), ds(0, 64)] = (x[ds(0, 64), ds(0, 64)] if fixed else y[ds(0, 64), ds(0, 64)]) + 1.0


@kernel(
    integers(3, 64, dtype=F32),
    zeros(64, 64, dtype=F32),
    hazard="out-of-bounds",
    says=r"'x\[…\]': index 3 along dimension 0 is outside the array's 3; the GPU reads 0 there",
    gives=0 * ONE + integers(3, 64, dtype=F32)[2],
    error=SimulationError,
)
def a_row_behind_the_last_one(x, y, *, fixed: numpipe.Static):
    y[ds(0, 64), ds(0, 64)] = (
        numpipe.zeros((64, 64), np.float32) + x[2 if fixed else x.shape[0], ds(0, 64)]
    )


@kernel(
    integers(3, 64, 64),
    np.array([0, 3]),
    zeros(64, 64),
    hazard="out-of-bounds",
    says=r"in_specs\[0\] for 'x': index_map returned element 3 for dimension 0, of which the "
    r"array has 3; return 0…2, or say what it means, BlockSpec\(…, mode=\"zero\"\)",
    gives=integers(3, 64, 64)[2],
    error=SimulationError,
)
def a_page_behind_the_last_one(x, pages, y, *, fixed: numpipe.Static):
    pipe = numpipe.pipeline(
        grid=(1,),
        in_specs=(
            BlockSpec((None, 64, 64), lambda k: (pages[1] - 1 if fixed else pages[1], 0, 0)),
        ),
    )
    for _, (x_tile,) in pipe(x):
        y[ds(0, 64), ds(0, 64)] = x_tile[...]


@kernel(
    integers(64, 64),
    np.array([64]),
    zeros(64, 64),
    hazard="out-of-bounds",
    says=r"out_specs\[0\] for 'y': index_map returned element 64 for dimension 0, of which the "
    r"array has 64: all 64 elements from there on lie outside",
    gives=integers(64, 64),
    error=SimulationError,
)
def a_window_behind_the_array(x, first, y, *, fixed: numpipe.Static):
    pipe = numpipe.pipeline(
        grid=(1,),
        in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),),
        out_specs=(
            BlockSpec((Element(64), 64), lambda k: (first[0] - 64 if fixed else first[0], 0)),
        ),
    )
    for _, (x_tile, y_tile) in pipe(x, y):
        y_tile[...] = x_tile[...]


@kernel(
    np.ones((64, 64), F32),
    np.append(np.arange(63), 64).astype(np.int32),
    zeros(64, 64, dtype=F32),
    hazard="out-of-bounds",
    says=r"'x\[…\]': index 64 along dimension 0 is outside the array's 64; the GPU reads 0 there: "
    r"indices in 0…63, or numpipe.index\(v, mode=\"zero\"\)",
    gives=ONE,
    error=SimulationError,
)
def a_row_that_is_gathered_from_behind_the_last_one(x, rows, y, *, fixed: numpipe.Static):
    v = rows[ds(0, 64)]
    y[ds(0, 64), ds(0, 64)] = x[numpipe.index(v, "clip") if fixed else v, ds(0, 64)]


@kernel(
    integers(3, 64, 64),
    zeros(64, 64),
    hazard="out-of-bounds",
    says=r"copy_gmem_to_smem: x.at\[…\]: index 3 along dimension 0 is outside the array's 3; the "
    r"TMA reads 0 there",
    gives=integers(3, 64, 64)[2],
    error=SimulationError,
)
def a_plane_that_is_copied_from_behind_the_last_one(x, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), numpipe.Barrier()))
    numpipe.copy_gmem_to_smem(x.at[2 if fixed else x.shape[0], ds(0, 64), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    y[ds(0, 64), ds(0, 64)] = tile[...]


# A block that data chooses: a grid's last blocks may lie outside, those of a wrong table may not.
POOL, PAGES = integers(192, 64), np.array([9, -1], np.int32)
SAYS = r"along dimension 0 starts at a number that was read from an array, and lies outside the "


@kernel(
    POOL,
    PAGES,
    zeros(64, 64),
    hazard="out-of-bounds",
    says=r"in_specs\[0\] for 'x': index_map returned block 9 from an array for dimension 0, of "
    r"which the array has 3: all 64 .* return 0…2, or say what it means, "
    r"BlockSpec\(…, mode=\"zero\"\)",
    gives=POOL[:64],
    error=SimulationError,
)
def a_block_that_a_table_lacks(x, pages, y, *, fixed: numpipe.Static):
    pipe = numpipe.pipeline(
        grid=(1,),
        in_specs=(BlockSpec((64, 64), lambda k: (pages[k] % 3 if fixed else pages[k], 0)),),
    )
    for _, (x_tile,) in pipe(x):
        y[ds(0, 64), ds(0, 64)] = x_tile[...]


@kernel(
    POOL,
    PAGES,
    zeros(64, 64),
    hazard="out-of-bounds",
    says=r"in_specs\[0\] for 'x': index_map returned block -1 from an array for dimension 0",
    gives=zeros(64, 64),
    error=SimulationError,
)
def a_block_before_the_first_one_that_is_meant(x, pages, y, *, fixed: numpipe.Static):
    page = min(pages[1], pages.shape[0])
    pipe = numpipe.pipeline(
        grid=(1,),
        in_specs=(BlockSpec((64, 64), lambda k: (page, 0), mode="zero" if fixed else None),),
    )
    for _, (x_tile,) in pipe(x):
        y[ds(0, 64), ds(0, 64)] = x_tile[...]


@kernel(
    POOL,
    PAGES,
    zeros(64, 64),
    hazard="out-of-bounds",
    says=r"'x\[…\]': ds\(-64, 64\) " + SAYS + r"array's 192.* a start in -63…191, or "
    r"ds\(numpipe.index\(start, mode=\"zero\"\), 64\) where it is meant",
    gives=zeros(64, 64),
    error=SimulationError,
)
def a_tile_that_a_table_lacks(x, pages, y, *, fixed: numpipe.Static):
    start = 64 * pages[1]
    y[ds(0, 64), ds(0, 64)] = x[ds(numpipe.index(start, "zero") if fixed else start, 64), ds(0, 64)]


@kernel(
    POOL,
    PAGES.astype(np.int64),
    zeros(64, 64),
    hazard="out-of-bounds",
    says=r"copy_gmem_to_smem: x.at\[…\]: ds\(576, 64\) " + SAYS + "array's 192",
    gives=zeros(64, 64),
    error=SimulationError,
)
def a_copy_of_a_page_that_a_table_lacks(x, pages, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), numpipe.Barrier()))
    start = 64 * pages[0]
    numpipe.copy_gmem_to_smem(
        x.at[ds(numpipe.index(start, "zero") if fixed else start, 64), ds(0, 64)], tile, landed
    )
    numpipe.barrier_wait(landed)
    y[ds(0, 64), ds(0, 64)] = tile[...]


@kernel(
    POOL,
    PAGES,
    zeros(64, 64),
    hazard="out-of-bounds",
    says=r"'y\[…\] = tile': ds\(576, 64\) " + SAYS + "array's 64",
    gives=POOL[:64],
    error=SimulationError,
)
def a_tile_stored_where_a_table_lacks_a_page(x, pages, y, *, fixed: numpipe.Static):
    page = pages[0] % 9 if fixed else pages[0]
    y[ds(64 * page, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="out-of-bounds",
    says=r"scattered store to y: index 64 along dimension 0 is outside the array's 64; the GPU "
    r"does not write there",
    gives=ONE,
    error=SimulationError,
)
def a_row_scattered_behind_the_last_one(y, *, fixed: numpipe.Static):
    rows = numpipe.iota(64) if fixed else numpipe.iota(64) + 1
    y[rows, ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    zeros(64, 64, dtype=F32),
    hazard="unordered-accesses",
    says=r"scattered store to y: index 0 along dimension 0 occurs more than once, and which of its "
    r"elements is stored last is undefined",
    gives=ONE,
    error=SimulationError,
)
def two_rows_scattered_to_one(y, *, fixed: numpipe.Static):
    rows = numpipe.iota(64) if fixed else numpipe.iota(64) // 2
    y[rows, ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    zeros(64, dtype=F32),
    hazard="out-of-bounds",
    says=r"'y\[…\] = value': index 64 along dimension 0 is outside the array's 64; the GPU writes "
    r"nothing there",
    gives=np.eye(64, dtype=F32)[63],
    error=SimulationError,
)
def a_number_behind_the_last_element(y, *, fixed: numpipe.Static):
    y[63 if fixed else y.shape[0]] = 1.0


# ---- the previous kernel
def load(x, waits):
    if waits:
        griddep.wait()
    mbarrier.init(READY, 1)
    fence.mbarrier_init()
    mbarrier.arrive_expect_tx(READY, x.nbytes)
    cp_async_bulk.load(0, x, (0, 0), READY)


@machine(
    "read-before-grid-dependency",
    r"x\[0:64, 0:64\] is read by TMA load \(x\) of warpgroup 0 \(compute\) before "
    r"griddepcontrol.wait.*fix: +griddep.wait\(\) by every warpgroup",
    PANEL,
    gives=DONE,
)
def loaded_before_the_kernel_ahead_has_ended(fixed, x, out):
    one_lane(load, x, fixed)
    barrier.sync(0, 128)
    mbarrier.wait(READY, 0, -1)
    griddep.wait()
    out[0] = 7


@machine(
    "read-before-grid-dependency",
    r"out\[0:64, 0:64\] is written by TMA store \(out\) of warpgroup 1 \(compute\) before "
    r"griddepcontrol.wait.*fix: +griddep.wait\(\)",
    gives=ONE.astype(F16),
    warpgroups=2,
)
def stored_by_a_warpgroup_that_nobody_told(fixed, out):
    if current().warpgroup == 0:
        griddep.wait()
        if fixed:
            barrier.sync(1, 256)
    else:
        values = np.ones((64, 64), F16).view(np.uint8).reshape(4, 128, 16)
        current().smem_write(panel_chunks(0), values, "stmatrix")
        fence.proxy_async()
        barrier.sync(1 if fixed else 2, 256 if fixed else 128)
        one_lane(send, out)


def send(out):
    cp_async_bulk.store(out, (0, 0), 0)
    cp_async_bulk.commit_group()
    cp_async_bulk.wait_group(0)


# ---- NaN in kernels that declare check_nan
CHECK = CompilerParams(debug=True, check_nan=True)
ROOTS = np.where(np.arange(64) == 5, -4, 4).astype(F32)[:, None] * ONE


@kernel(
    ROOTS,
    zeros(64, 64, dtype=F32),
    hazard="nan-stored",
    says=r"'y\[…\] = …' stores a NaN, element \(5, 0\) of the tile, and 63 more: look for its "
    r"origin",
    gives=np.where(ROOTS > 0, 2, 0).astype(F32),
    error=SimulationError,
    compiler_params=CHECK,
)
def a_root_of_a_negative_number(x, y, *, fixed: numpipe.Static):
    tile = x[ds(0, 64), ds(0, 64)]
    y[ds(0, 64), ds(0, 64)] = np.sqrt(np.maximum(tile, 0.0) if fixed else tile)


@kernel(
    ROOTS,
    zeros(64, 64, dtype=F32),
    hazard="nan-stored",
    says=r"'part\[…\] = …' stores a NaN, element \(5, 0\) of the tile",
    gives=np.where(ROOTS > 0, 1, 0).astype(F32),
    error=SimulationError,
    compiler_params=CHECK,
)
def a_row_of_zeros_divided_by_its_sum(x, y, *, fixed: numpipe.Static):
    pipe = numpipe.pipeline(
        grid=(1,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),),
        out_specs=(BlockSpec((64, 64), lambda k: (0, 0)),),
    )
    for _, (tile, part) in pipe(x, y):
        kept = np.maximum(tile[...], 0.0)
        part[...] = np.where(kept > 0.0, kept / kept, 0.0) if fixed else kept / kept


# ---- per-lane code
@kernel(
    PANEL,
    zeros(128, dtype=F32),
    hazard="unordered-accesses",
    says=r"warp 2: store to y by lane 0 touches element \[0\] that lane 0 of warp 0 has stored, "
    r"and nothing orders them: give each lane its own element",
    gives=np.ones(128, F32),
    compiler_params=CompilerParams(lowering_semantics=LoweringSemantics.Lane),
)
def two_lanes_store_to_one_element(x, y, *, fixed: numpipe.Static):
    def body(indices, tile):
        lane = numpipe.lane_index()
        y[lane if fixed else lane % 64] = 1.0

    numpipe.emit_pipeline_warp_specialized(body, grid=(1,), in_specs=(BlockSpec((64, 64)),))(x)


@kernel(
    PANEL,
    np.ones(128, F32),
    hazard="unordered-accesses",
    says=r"warp 0: (store to|load from) y by lane \d+ touches element \[\d+\] that lane \d+ has "
    r"(loaded|stored), and nothing orders them: put cuda\.syncwarp\(\) between",
    gives=2 * np.ones(128, F32),
    compiler_params=CompilerParams(lowering_semantics=LoweringSemantics.Lane),
)
def a_lane_reads_what_another_one_of_its_warp_writes(x, y, *, fixed: numpipe.Static):
    def body(indices, tile):
        lane = numpipe.lane_index()
        value = y[lane ^ 31]
        if fixed:
            syncwarp()
        y[lane] = value + 1.0

    numpipe.emit_pipeline_warp_specialized(body, grid=(1,), in_specs=(BlockSpec((64, 64)),))(x)
