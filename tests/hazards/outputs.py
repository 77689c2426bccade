"""Hazards of outputs: elements that are never written, and conflicts of CTAs that occur only with
all CTAs of a GPU.

`numpipe.verify` reports both.
"""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, ArrayType, Barrier, BlockSpec, SimulationError, cdiv, ds

from .catalogue import F16, F32, integers, kernel, zeros

X = integers(192, 64, dtype=F32)
TALL = integers(136, 64, dtype=F32)
LIKE_X = {
    "out_type": lambda x: ArrayType(x.shape, x.dtype),
    "verify": True,
    "error": SimulationError,
}
ALLOCATED = (
    r"elements, is never written: 'y' is allocated by the call \(out_type\).*fix: +store to "
    r"all of it: a grid and"
)


@kernel(
    X,
    hazard="unwritten-output",
    says=rf"y\[128:192, 0:64\], 4096 of 12288 {ALLOCATED}",
    gives=X,
    **LIKE_X,
)
def a_loop_that_ends_a_block_early(x, y, *, fixed: numpipe.Static):
    for i in range(3 if fixed else 2):
        y[ds(i * 64, 64), ds(0, 64)] = x[ds(i * 64, 64), ds(0, 64)]


@kernel(
    TALL,
    hazard="unwritten-output",
    says=rf"y\[128:136, 0:64\], 512 of 8704 {ALLOCATED}.*cdiv rounds up",
    gives=TALL,
    **LIKE_X,
)
def whole_blocks_of_an_array_that_has_more(x, y, *, fixed: numpipe.Static):
    for i in range(cdiv(x.shape[0], 64) if fixed else x.shape[0] // 64):
        y[ds(i * 64, 64), ds(0, 64)] = x[ds(i * 64, 64), ds(0, 64)]


@kernel(
    X,
    hazard="unwritten-output",
    says=rf"y\[0:192, 32:64\], 6144 of 12288 {ALLOCATED}",
    gives=X,
    **LIKE_X,
)
def half_of_the_columns(x, y, *, fixed: numpipe.Static):
    for i in range(3):
        for j in range(2 if fixed else 1):
            y[ds(i * 64, 64), ds(j * 32, 32)] = x[ds(i * 64, 64), ds(j * 32, 32)]


@kernel(
    integers(128, 64, dtype=F32),
    hazard="unwritten-output",
    says=rf"4096 elements within y\[0:128, 0:64\], 4096 of 8192 {ALLOCATED}",
    gives=integers(128, 64, dtype=F32),
    **LIKE_X,
)
def one_of_two_corners(x, y, *, fixed: numpipe.Static):
    for i in range(2):
        for j in range(2):
            if fixed or i == j:
                y[ds(i * 64, 64), ds(j * 32, 32)] = x[ds(i * 64, 64), ds(j * 32, 32)]


@kernel(
    X[:128],
    hazard="unwritten-output",
    says=rf"y\[64:128, 0:64\], 4096 of 8192 {ALLOCATED}.*a part for each warpgroup",
    gives=X[:128],
    num_compute_wgs=2,
    warp_specialized=False,
    wg_axis="wg",
    **LIKE_X,
)
def rows_of_a_warpgroup_that_does_not_store(x, y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    tile = x[ds(wg * 64, 64), ds(0, 64)]
    if fixed or wg == 0:
        y[ds(wg * 64, 64), ds(0, 64)] = tile


@kernel(
    X,
    hazard="unwritten-output",
    says=rf"y\[128:192, 0:64\], 4096 of 12288 {ALLOCATED}",
    gives=X,
    fix={"grid": 3},
    grid=2,
    **LIKE_X,
)
def a_grid_of_too_few_ctas(x, y, *, fixed: numpipe.Static):
    i = numpipe.program_id(0)
    y[ds(i * 64, 64), ds(0, 64)] = x[ds(i * 64, 64), ds(0, 64)]


@kernel(
    X,
    hazard="unwritten-output",
    says=rf"y\[128:192, 0:64\], 4096 of 12288 {ALLOCATED}",
    gives=X,
    **LIKE_X,
)
def a_pipeline_with_a_step_too_few(x, y, *, fixed: numpipe.Static):
    block = BlockSpec((64, 64), lambda k: (k, 0))
    for _, (tile, stored) in numpipe.pipeline(
        grid=(3 if fixed else 2,), in_specs=(block,), out_specs=(block,)
    )(x, y):
        stored[...] = tile[...]


@kernel(
    X[:64],
    hazard="unwritten-output",
    says=r"y\[0:64, 0:64\], 4096 of 4096 elements, is never written: 'y' is allocated by the "
    r"call",
    gives=X[:64],
    **LIKE_X,
)
def an_output_that_no_path_stores(x, y, *, fixed: numpipe.Static):
    tile = x[ds(0, 64), ds(0, 64)]
    if fixed:
        y[ds(0, 64), ds(0, 64)] = tile


# ---- conflicts between many CTAs
BY_TWO = np.concatenate([np.ones((128, 64)), np.zeros((192, 64))])
"""what the two CTAs of a run by hand store"""
WIDE = {"grid": numpipe.persistent(), "verify": True}


@kernel(
    zeros(320, 64, dtype=F32),
    hazard="cta-conflict",
    says=r"of CTA \(5, 0, 0\): TMA store \(y\) writes y\[0:64, 0:32\], which CTA \(0, 0, 0\) "
    r"writes too.*found: +on 132 CTAs; .*simulate\(…, ctas=132\)",
    gives=BY_TWO,
    **WIDE,
)
def ctas_that_come_round(y, *, fixed: numpipe.Static):
    cta = numpipe.program_id(0)
    if not fixed or cta < 5:
        y[ds(cta % 5 * 64, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


@kernel(
    zeros(320, 64, dtype=F32),
    hazard="cta-conflict",
    says=r"of CTA \(3, 0, 0\): TMA store \(y\) writes y\[128:192, 0:32\], which CTA \(2, 0, 0\) "
    r"writes too",
    gives=BY_TWO,
    **WIDE,
)
def ctas_past_the_last_tile_that_take_it_too(y, *, fixed: numpipe.Static):
    cta = numpipe.program_id(0)
    if not fixed or cta < 3:
        y[ds((2 if cta > 2 else cta) * 64, 64), ds(0, 64)] = (
            numpipe.zeros((64, 64), np.float32) + 1.0
        )


@kernel(
    X[:128],
    zeros(64, 64, dtype=F32),
    hazard="cta-conflict",
    says=r"CTA \(2, 0, 0\): load \(x\) reads x\[0:64, 0:32\], which CTA \(0, 0, 0\) writes.*read "
    r"the results of other CTAs in a later kernel",
    gives=zeros(64, 64, dtype=F32),
    **WIDE,
)
def a_cta_that_loads_what_the_first_one_stores(x, y, *, fixed: numpipe.Static):
    cta = numpipe.program_id(0)
    if cta < 2:
        x[ds(cta * 64, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
    elif cta == 2 and not fixed:
        y[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]


# ---- other ways to skip elements
@kernel(
    X[:128],
    hazard="unwritten-output",
    says=r"4096 elements within y\[0:127, 0:64\], 4096 of 8192 elements|y\[1:128, 0:64\], 4096 of "
    r"8192 elements|4096 elements within y\[1:128, 0:64\]",
    gives=X[:128],
    **LIKE_X,
)
def rows_that_no_index_names(x, y, *, fixed: numpipe.Static):
    rows = numpipe.iota(64) * 2
    y[rows, ds(0, 64)] = x[rows, ds(0, 64)]
    if fixed:
        y[rows + 1, ds(0, 64)] = x[rows + 1, ds(0, 64)]


@kernel(
    integers(64, 128),
    hazard="unwritten-output",
    says=rf"y\[0:64, 64:128\], 4096 of 8192 {ALLOCATED}",
    gives=integers(64, 128),
    **LIKE_X,
)
def a_copy_by_hand_of_the_first_half(x, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    for half in range(2 if fixed else 1):
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(half * 64, 64)], tile, landed)
        numpipe.barrier_wait(landed)
        numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(half * 64, 64)])
        numpipe.wait_smem_to_gmem(0)


@kernel(
    X[:128],
    hazard="unwritten-output",
    says=r"y\[64:128\], 64 of 128 elements, is never written",
    gives=X[:128].sum(axis=1),
    **LIKE_X | {"out_type": lambda x: ArrayType((x.shape[0],), x.dtype)},
)
def sums_of_half_the_rows(x, y, *, fixed: numpipe.Static):
    for i in range(2 if fixed else 1):
        y[ds(i * 64, 64)] = x[ds(i * 64, 64), ds(0, 64)].sum(axis=1)


@kernel(
    X[:128],
    hazard="unwritten-output",
    says=r"z\[64:128, 0:64\], 4096 of 8192 elements, is never written: 'z' is allocated by "
    r"the call",
    gives=2 * X[:128],
    **LIKE_X | {"out_type": lambda x: (ArrayType(x.shape, x.dtype), ArrayType(x.shape, x.dtype))},
)
def the_second_output_in_part(x, y, z, *, fixed: numpipe.Static):
    for i in range(2):
        tile = x[ds(i * 64, 64), ds(0, 64)]
        y[ds(i * 64, 64), ds(0, 64)] = tile
        if fixed or i == 0:
            z[ds(i * 64, 64), ds(0, 64)] = tile * 2.0


@kernel(
    X[:128],
    hazard="unwritten-output",
    says=rf"y\[64:128, 0:64\], 4096 of 8192 {ALLOCATED}",
    gives=X[:128],
    grid=2,
    cluster=2,
    cluster_names="pair",
    **LIKE_X,
)
def a_cta_of_a_cluster_that_does_not_store(x, y, *, fixed: numpipe.Static):
    rank = numpipe.axis_index("pair")
    if fixed or rank == 0:
        y[ds(rank * 64, 64), ds(0, 64)] = x[ds(rank * 64, 64), ds(0, 64)]


@kernel(
    np.array([1, 0], np.int32),
    X[:128],
    hazard="unwritten-output",
    says=rf"y\[64:128, 0:64\], 4096 of 8192 {ALLOCATED}",
    gives=X[:128],
    **LIKE_X | {"out_type": lambda x: ArrayType(x.shape, x.dtype)},
)
def a_block_that_data_leave_out(steps, x, y, *, fixed: numpipe.Static):
    for i in range(2):
        if fixed or steps[i] > 0:
            y[ds(i * 64, 64), ds(0, 64)] = x[ds(i * 64, 64), ds(0, 64)]


@kernel(
    X,
    hazard="unwritten-output",
    says=rf"y\[128:192, 0:64\], 4096 of 12288 {ALLOCATED}",
    gives=X,
    grid=numpipe.persistent(),
    **LIKE_X,
)
def a_tile_that_is_dealt_to_nobody(x, y, *, fixed: numpipe.Static):
    for (i,) in numpipe.tiles(x.shape[0] // 64 - (0 if fixed else 1)):
        y[ds(i * 64, 64), ds(0, 64)] = x[ds(i * 64, 64), ds(0, 64)]


@kernel(
    zeros(512, 64, dtype=F32),
    hazard="cta-conflict",
    says=r"CTA \(8, 0, 0\).* writes y\[0:64, 0:32\], which CTA \(0, 0, 0\) writes too",
    gives=np.concatenate([np.ones((128, 64)), np.zeros((384, 64))]),
    **WIDE,
)
def a_copy_by_hand_of_every_eighth_cta(y, *, fixed: numpipe.Static):
    tile = numpipe.scratch(SMEM((64, 32), np.float32))
    tile[...] = numpipe.zeros((64, 32), np.float32) + 1.0
    cta = numpipe.program_id(0)
    if not fixed or cta < 8:
        for half in range(2):
            numpipe.copy_smem_to_gmem(tile, y.at[ds(cta % 8 * 64, 64), ds(half * 32, 32)])


@kernel(
    zeros(64, 64),
    hazard="cta-conflict",
    says=r"TMA reduction 'max' \(y\) writes y\[0:64, 0:64\], which CTA \(0, 0, 0\) writes too",
    gives=np.full((64, 64), 2, F16),
    **WIDE,
)
def the_fifth_cta_that_reduces_otherwise(y, *, fixed: numpipe.Static):
    tile = numpipe.scratch(SMEM((64, 64), np.float16))
    tile[...] = (numpipe.zeros((64, 64), np.float32) + 1.0).astype(np.float16)
    if fixed or numpipe.program_id(0) != 4:
        numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(0, 64)], reduction_op="add")
    else:
        numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(0, 64)], reduction_op="max")
