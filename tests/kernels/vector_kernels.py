"""Kernels on 1-D blocks and shared arrays, for the simulator and the GPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import numpipe
from numpipe import SMEM, BlockSpec, CompilerParams, LoweringSemantics, Static, cdiv, ds

DTYPES = [
    np.dtype(of)
    for of in (
        np.int8,
        np.float32,
        ml_dtypes.bfloat16,
        np.uint8,
        np.int32,
        np.float16,
        np.uint32,
        ml_dtypes.float8_e4m3fn,
    )
]
SIZES = 1000, 512, 7


def array(size: int, dtype: np.dtype) -> np.ndarray:
    return (np.arange(size) % 50).astype(dtype)


@numpipe.kernel
def copied(x, y, z):
    """Copy x to y through an output of the pipeline, and to z from registers."""
    pipe = numpipe.pipeline(
        grid=(cdiv(x.shape[0], 256),),
        in_specs=(BlockSpec((256,), lambda i: (i,)),),
        out_specs=(BlockSpec((256,), lambda i: (i,)),),
    )
    for (i,), (tile, out) in pipe(x, y):
        out[...] = tile[...]
        z[ds(i * 256, 256)] = tile[ds(0, 256)]


@numpipe.kernel
def shifted(x, y, by):
    pipe = numpipe.pipeline(
        grid=(cdiv(x.shape[0], 256),), in_specs=(BlockSpec((256,), lambda i: (i,)),)
    )
    for (i,), (tile,) in pipe(x):
        y[ds(i * 256, 256)] = tile[...]
        y[ds(i * 256 + 64, 64)] = tile[ds(by, 64)]


def expected(x: np.ndarray, by: int) -> np.ndarray:
    y = np.concatenate([x, np.zeros(-len(x) % 256, x.dtype)])
    for start in range(0, len(x), 256):
        y[start + 64 : start + 128] = np.concatenate([x, y[len(x) :]])[start + by : start + by + 64]
    return y[: len(x)]


def _by_hand(x, y):
    buffer, landed = numpipe.scratch(SMEM((1024,), np.float32)), numpipe.scratch(numpipe.Barrier())
    numpipe.copy_gmem_to_smem(x.at[ds(0, 1024)], buffer, landed)
    numpipe.barrier_wait(landed)
    buffer[ds(100, 64)] = numpipe.full((64,), 5.0, np.float32)
    y[ds(0, 1024)] = buffer[...]


by_hand = numpipe.kernel(_by_hand, warp_specialized=False)
without_barriers = numpipe.kernel(
    _by_hand, warp_specialized=False, compiler_params=CompilerParams(unsafe_no_auto_barriers=True)
)


@numpipe.kernel(compiler_params=CompilerParams(lowering_semantics=LoweringSemantics.Lane))
def through_lanes(x, y):
    def body(indices, tile, out):
        lane = numpipe.lane_index()
        out[lane] = tile[255 - lane]
        out[lane + 128] = tile[127 - lane]

    spec = BlockSpec((256,), lambda i: (i,))
    numpipe.emit_pipeline(body, grid=(1,), in_specs=(spec,), out_specs=(spec,))(x, y)


@numpipe.kernel(warp_specialized=False)
def part_of_flat(x, y, *, first: Static):
    buffer, landed = numpipe.scratch((SMEM((256,), np.float32), numpipe.Barrier()))
    numpipe.copy_gmem_to_smem(x.flat.at[ds(first, 256)], buffer, landed)
    numpipe.barrier_wait(landed)
    y[ds(0, 256)] = buffer[...]


@numpipe.kernel(grid=(2,), static_dims=(-1,), warp_specialized=False)
def begins_early(x, y):
    j = ds(numpipe.program_id(0) * 512 - 1, 512, most=511, least=-1)
    y[ds(0, 1), j] = x[ds(0, 1), j]
