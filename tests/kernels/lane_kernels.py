"""Kernels whose bodies are per-lane code, for the simulator and the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import SMEM, BlockSpec, CompilerParams, LoweringSemantics, cdiv, ds

try:
    from numba import cuda
except ImportError:  # without CUDA wheels, kernels use numpipe's names
    from numpipe.language.memory import per_lane as cuda  # type: ignore[no-redef]

LANE = CompilerParams(lowering_semantics=LoweringSemantics.Lane)
emit = numpipe.emit_pipeline_warp_specialized


def by_lane(function: Any = None, **options: Any) -> Any:
    return numpipe.kernel(function, compiler_params=LANE, **options)


@by_lane
def column_sums(x, y):
    """Store the sum of column j of x to y[i, j] in each row.

    Every lane sums half of a column, and two lanes combine their sums in the scratch tile.
    """
    partial = numpipe.scratch(SMEM((64, 64), np.float32))
    partial[...] = numpipe.zeros((64, 64), np.float32)
    numpipe.commit_smem()

    def body(indices, tile, total):
        lane = numpipe.lane_index()
        column, half = lane % 64, lane // 64
        for row in range(32):
            total = total + tile[half * 32 + row, column]
        partial[half, column] = total
        return total

    def compute(pipeline):
        pipeline(0.0)
        y[ds(0, 64), ds(0, 64)] = partial[...]

    emit(
        body,
        grid=(cdiv(x.shape[0], 64),),
        compute_context=compute,
        max_concurrent_steps=3,
        in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),),
    )(x)


@by_lane
def warp_sums(x, y):
    """Store the sum of 32 columns to y[w, j] for warp w, by a butterfly of shuffles.

    Row 4 + w is the running maximum, by shfl_down.
    """
    out = numpipe.scratch(SMEM((64, 64), np.float32))
    out[...] = numpipe.zeros((64, 64), np.float32)
    numpipe.commit_smem()

    def body(indices, tile):
        (k,) = indices
        lane, warp = cuda.laneid, numpipe.lane_index() // 32
        value = tile[warp, lane] * 1.0
        best = value
        for step in (16, 8, 4, 2, 1):
            value = value + cuda.shfl_xor_sync(0xFFFFFFFF, value, step)
            best = max(best, cuda.shfl_down_sync(0xFFFFFFFF, best, step))
        best = cuda.shfl_sync(0xFFFFFFFF, best, 0)
        out[warp, k * 32 + lane] = value
        out[4 + warp, k * 32 + lane] = best - cuda.shfl_up_sync(0xFFFFFFFF, lane, 1)

    emit(body, grid=(2,), in_specs=(BlockSpec((8, 32), lambda k: (0, k)),))(x)
    y[ds(0, 64), ds(0, 64)] = out[...]


@by_lane
def mirrored(x, y):
    """Exchange the halves of each row of x, within the warp that wrote them; needs a syncwarp."""
    tile = numpipe.scratch(SMEM((64, 64), x.dtype))

    def body(indices, x_tile):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        for row in range(16):
            tile[warp * 16 + row, lane] = x_tile[warp * 16 + row, lane]
            tile[warp * 16 + row, 32 + lane] = x_tile.T[32 + lane, warp * 16 + row]
        cuda.syncwarp()
        for row in range(16):
            low = tile[warp * 16 + row, 31 - lane]
            high = tile.at[ds(0, 64), ds(0, 64)][warp * 16 + row, 63 - lane]
            cuda.syncwarp()
            tile[warp * 16 + row, lane], tile[warp * 16 + row, 32 + lane] = high, low

    emit(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),))(x)
    y[ds(0, 64), ds(0, 64)] = tile[...]


@numpipe.kernel(num_compute_wgs=2, compiler_params=LANE)
def scaled(x, y, factor: float = 2.0):
    """Compute y = x * factor element by element.

    Each warpgroup has half of the rows of a block, and each lane a column of them.
    """
    wg = numpipe.axis_index("wg")
    tile = numpipe.scratch(SMEM((128, 64), y.dtype))

    @numpipe.function
    def times(value):
        return value * factor

    def body(indices, x_tile):
        lane = cuda.threadIdx.x % 128
        for row in range(32):
            tile[wg * 64 + 2 * row + lane // 64, lane % 64] = times(
                x_tile[wg * 64 + 2 * row + lane // 64, lane % 64]
            )

    emit(body, grid=(1,), in_specs=(BlockSpec((128, 64), lambda k: (0, 0)),))(x)
    y[ds(wg * 64, 64), ds(0, 64)] = tile[ds(wg * 64, 64), :]


@by_lane(warp_specialized=False)
def alone(x, y):
    """Sum columns in a single-stream pipeline.

    The carry holds two numbers per lane, one of them the same in all lanes.
    """
    out = numpipe.scratch(SMEM((64, 64), np.float32))
    out[...] = numpipe.zeros((64, 64), np.float32)
    numpipe.commit_smem()

    def body(indices, tile, carry):
        total, steps = carry
        lane = numpipe.lane_index()
        for row in range(64):
            total = total + tile[row, lane % 64]
        if lane < 64:
            out[0, lane] = total
        return total, steps + 1

    _, steps = numpipe.emit_pipeline(
        body,
        grid=(cdiv(x.shape[0], 64),),
        init_carry=(0.0, 0),
        max_concurrent_steps=2,
        in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),),
    )(x)
    if steps > 0:
        y[ds(0, 64), ds(0, 64)] = out[...]


@by_lane
def slotted(x, y):
    """Copy x to y through slots of a scratch tile that the body selects."""
    slots = numpipe.scratch(SMEM((2, 64, 64), x.dtype))

    def body(indices, x_tile):
        (k,) = indices
        lane = numpipe.lane_index()
        for row in range(32):
            slots.at[k][lane // 64 + 2 * row, lane % 64] = x_tile[lane // 64 + 2 * row, lane % 64]

    emit(body, grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),))(x)
    y[ds(0, 64), ds(0, 64)] = slots.at[0][...]
    y[ds(64, 64), ds(0, 64)] = slots.at[1][...]


@by_lane
def looked_up(x, index, y):
    """Compute y[i, j] = x[index[i], j]; lanes read elements of arrays."""
    tile = numpipe.scratch(SMEM((64, 64), x.dtype))

    def body(indices, x_tile):
        lane = numpipe.lane_index()
        for row in range(32):
            i = 2 * row + lane // 64
            tile[i, lane % 64] = x[index[i], lane % 64]

    emit(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(x)
    y[ds(0, 64), ds(0, 64)] = tile[...]


@by_lane
def handed_out(x, places, y, counts, last):
    """Store 2 x[i] to row places[i] of y, element by element.

    counts[k] is the number of elements of x equal to k, and last is the maximum of each column.
    """

    def body(indices, x_tile):
        (k,) = indices
        lane = numpipe.lane_index()
        for row in range(4):
            i, j = 2 * row + lane // 64, lane % 64
            value = x_tile[i, j]
            y[places[k * 8 + i], j] = value
            y[places[k * 8 + i], j] = y[places[k * 8 + i], j] + value
            numpipe.atomic_add(counts.at[int(value)], 1)
            numpipe.atomic_max(last.at[0, j], int(value))

    emit(
        body,
        grid=(x.shape[0] // 8,),
        max_concurrent_steps=2,
        in_specs=(BlockSpec((8, 64), lambda k: (k, 0)),),
    )(x)


def arrays_handed_out(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    return {
        "x": rng.integers(0, 9, (24, 64)).astype(dtype),
        "places": rng.permutation(24).astype(np.int32),
        "y": np.zeros((24, 64), dtype),
        "counts": np.zeros(9, np.int32),
        "last": np.zeros((1, 64), np.int32),
    }


def check_handed_out(dtype: Any = np.float32, **options: Any) -> None:
    given = arrays_handed_out(dtype)
    handed_out(*given.values(), **options)
    x = given["x"]
    np.testing.assert_array_equal(given["y"][given["places"]], 2 * x)
    np.testing.assert_array_equal(given["counts"], np.bincount(x.astype(int).ravel(), minlength=9))
    np.testing.assert_array_equal(given["last"][0], x.max(0))


def integers(shape: tuple[int, ...], dtype: Any = np.float16, order: Any = "C") -> np.ndarray:
    """Return small integers: their sums are exact."""
    return np.asarray(
        np.random.default_rng(len(shape)).integers(-9, 10, shape).astype(dtype), order=order
    )


def check_column_sums(kernel: Any, **options: Any) -> None:
    x, y = integers((192, 64)), np.zeros((64, 64), np.float32)
    kernel(x, y, **options)
    np.testing.assert_array_equal(y[:2].sum(0), x.astype(np.float32).sum(0))


def check_warp_sums(**options: Any) -> None:
    x, y = integers((8, 64), np.float32), np.zeros((64, 64), np.float32)
    warp_sums(x, y, **options)
    blocks = x[:4].reshape(4, 2, 32)
    up = np.maximum(np.arange(32) - 1, 0)
    np.testing.assert_array_equal(
        y[:4].reshape(4, 2, 32), np.broadcast_to(blocks.sum(2)[..., None], (4, 2, 32))
    )
    np.testing.assert_array_equal(y[4:8].reshape(4, 2, 32), blocks.max(2)[..., None] - up)


def check_mirrored(dtype: Any, order: str, **options: Any) -> None:
    x, y = integers((64, 64), dtype, order), np.zeros((64, 64), dtype)
    mirrored(x, y, **options)
    np.testing.assert_array_equal(y, x[:, ::-1])


def check_scaled(dtype: Any, **options: Any) -> None:
    x, y = integers((128, 64), dtype), np.zeros((128, 64), dtype)
    scaled(x, y, factor=0.5, **options)
    np.testing.assert_array_equal(y, (x.astype(np.float32) * 0.5).astype(dtype))


def check_looked_up(**options: Any) -> None:
    x, index = integers((100, 64)), np.random.default_rng(3).permutation(100)[:64].astype(np.int32)
    y = np.zeros((64, 64), x.dtype)
    looked_up(x, index, y, **options)
    np.testing.assert_array_equal(y, x[index])


def check_slotted(**options: Any) -> None:
    x = integers((128, 64))
    y = np.zeros_like(x)
    slotted(x, y, **options)
    np.testing.assert_array_equal(y, x)


@numpipe.kernel(num_compute_wgs=2, compiler_params=LANE)
def shifted(x, y, by: int = 1):
    """Compute y[i, j] = x[i, j] + by * j element by element; the pipeline stores the tiles that
    lanes write."""
    wg = numpipe.axis_index("wg")

    def body(indices, x_tile, y_tile):
        lane = numpipe.lane_index()
        for row in range(32):
            i, j = wg * 64 + 2 * row + lane // 64, lane % 64
            y_tile[i, j] = x_tile[i, j] + by * j

    emit(
        body,
        grid=(cdiv(x.shape[0], 128), cdiv(x.shape[1], 64)),
        in_specs=(BlockSpec((128, 64), lambda i, j: (i, j)),),
        out_specs=(BlockSpec((128, 64), lambda i, j: (i, j)),),
    )(x, y)


def check_shifted(dtype: Any, shape: tuple[int, int] = (200, 128), **options: Any) -> None:
    x = integers(shape, dtype)
    y = np.zeros_like(x)
    shifted(x, y, by=2, **options)
    columns = np.arange(shape[1], dtype=np.int32) % 64
    np.testing.assert_array_equal(y, (x + 2 * columns).astype(dtype))
