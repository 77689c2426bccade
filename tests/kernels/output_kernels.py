"""Kernels whose pipelines have out_specs, each with a function that computes its result, for the
simulator and the GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import numpipe
from numpipe import BlockSpec, cdiv, ds
from tests.kernels.kernels_for_tests import BF16, F16, F32

emit = numpipe.emit_pipeline_warp_specialized


@dataclass(frozen=True)
class Config:
    """Blocks of rows x columns, and slots of inputs and outputs."""

    rows: int = 128
    columns: int = 64
    slots: int = 3
    outs: int = 2


@functools.cache
def copy(num_compute_wgs: int = 2) -> Any:
    @numpipe.kernel(num_compute_wgs=num_compute_wgs)
    def copied(a, o, *, cfg: numpipe.Static = Config()):
        wg = numpipe.axis_index("wg")
        rows = cfg.rows // numpipe.axis_size("wg")
        pipe = numpipe.pipeline(
            grid=(cdiv(a.shape[0], cfg.rows), cdiv(a.shape[1], cfg.columns)),
            max_concurrent_steps=cfg.slots,
            in_specs=(BlockSpec((cfg.rows, cfg.columns), lambda i, k: (i, k)),),
            out_specs=(
                BlockSpec((cfg.rows, cfg.columns), lambda i, k: (i, k), buffer_count=cfg.outs),
            ),
        )
        for (_, _), (x, y) in pipe(a, o):
            y[ds(wg * rows, rows), :] = x[ds(wg * rows, rows), :]

    return copied


@numpipe.kernel(out_type=lambda a: numpipe.ArrayType(a.shape, a.dtype), num_compute_wgs=2)
def doubled(a, o):
    """Double a in the body form, with a carry that counts steps; only out_specs makes o an
    output."""
    wg = numpipe.axis_index("wg")

    def body(indices, x, y, count):
        y[ds(wg * 64, 64), :] = (x[ds(wg * 64, 64), :].astype(np.float32) * 2.0).astype(y.dtype)
        return count + 1

    def compute(pipeline):
        pipeline(0)

    emit(
        body,
        grid=(cdiv(a.shape[0], 128), cdiv(a.shape[1], 64)),
        compute_context=compute,
        in_specs=(BlockSpec((128, 64), lambda i, k: (i, k)),),
        out_specs=(BlockSpec((128, 64), lambda i, k: (i, k)),),
    )(a, o)


@numpipe.kernel(num_compute_wgs=2)
def sums(a, rows, total, o, *, slots: numpipe.Static = 2):
    """Store three outputs: one per step, one per row of the grid (revisited), and one in all."""
    wg = numpipe.axis_index("wg")
    pipe = numpipe.pipeline(
        grid=(cdiv(a.shape[0], 128), cdiv(a.shape[1], 64)),
        max_concurrent_steps=slots,
        in_specs=(BlockSpec((128, 64), lambda i, k: (i, k)),),
        out_specs=(
            BlockSpec((128, 64), lambda i, k: (i, 0)),
            BlockSpec((128, 64), lambda i, k: (0, 0)),
            BlockSpec((128, 64), lambda i, k: (i, k)),
        ),
    )
    for (i, k), (x, row, whole, y) in pipe(a, rows, total, o):
        value = x[ds(wg * 64, 64), :].astype(np.float32)
        if k == 0:
            row[ds(wg * 64, 64), :] = value
            if i == 0:
                whole[ds(wg * 64, 64), :] = numpipe.zeros((64, 64), np.float32)
        else:
            row[ds(wg * 64, 64), :] = row[ds(wg * 64, 64), :] + value
        whole[ds(wg * 64, 64), :] += value
        y[ds(wg * 64, 64), :] = (value + 1.0).astype(y.dtype)


@numpipe.kernel(grid=numpipe.persistent(2), num_compute_wgs=2)
def in_tiles(a, b, o, c, *, slots: numpipe.Static = 2):
    """Run a pipeline per tile, with counters that go on; a product is stored through the store ring
    too."""
    wg = numpipe.axis_index("wg")
    for (m,) in numpipe.tiles(cdiv(a.shape[0], 128)):
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(cdiv(a.shape[1], 64),),
            max_concurrent_steps=3,
            in_specs=(
                BlockSpec((128, 64), lambda k: (m, k)),
                BlockSpec((64, 64), lambda k: (0, k)),
            ),
            out_specs=(BlockSpec((128, 64), lambda k: (m, k), buffer_count=slots),),
        )
        for (_,), (x, y, z) in pipe(a, b, o):
            acc = numpipe.wgmma(acc, x.at[ds(wg * 64, 64), :], y.T)
            z[ds(wg * 64, 64), :] = (x[ds(wg * 64, 64), :].astype(np.float32) * 3.0).astype(z.dtype)
        c[ds(m * 128 + wg * 64, 64), ds(0, 64)] = acc


@numpipe.kernel
def nested(a, b, o, p):
    """Store outputs of an outer and of an inner pipeline."""
    outer = numpipe.pipeline(
        grid=(cdiv(a.shape[0], 64),),
        in_specs=(BlockSpec((64, 64), lambda i: (i, 0)),),
        out_specs=(BlockSpec((64, 64), lambda i: (i, 0)),),
    )
    for (i,), (x, y) in outer(a, o):
        total = x[...].astype(np.float32)
        inner = numpipe.pipeline(
            grid=(cdiv(b.shape[1], 64),),
            in_specs=(BlockSpec((64, 64), lambda j: (0, j)),),
            out_specs=(BlockSpec((64, 64), lambda j: (i, j)),),
            max_concurrent_steps=3,
        )
        for (_,), (z, w) in inner(b, p):
            part = z[...].astype(np.float32)
            total = total + part
            w[...] = (x[...].astype(np.float32) + part).astype(w.dtype)
        y[...] = total


@numpipe.kernel
def batches(a, o):
    """Copy matrix b of a to matrix b of o, 16 columns further left, by squeezed and element
    dimensions."""
    pipe = numpipe.pipeline(
        grid=(a.shape[0], cdiv(a.shape[1], 64), cdiv(a.shape[2], 64)),
        in_specs=(
            BlockSpec(
                (None, 64, numpipe.Element(64)), lambda b, i, k: (b, i, k * 64 + 16), mode="zero"
            ),
        ),
        out_specs=(BlockSpec((None, 64, 64), lambda b, i, k: (b, i, k)),),
    )
    for (_, _, _), (x, y) in pipe(a, o):
        y[...] = x[...]


class Both(NamedTuple):
    up: Any
    down: Any


@numpipe.kernel
def trees(a, up, down):
    """Return outputs in a NamedTuple."""
    pipe = numpipe.pipeline(
        grid=(cdiv(a.shape[0], 64),),
        in_specs=(BlockSpec((64, 64), lambda i: (i, 0)),),
        out_specs=(
            Both(BlockSpec((64, 64), lambda i: (i, 0)), BlockSpec((64, 64), lambda i: (i, 0))),
        ),
    )
    for (_,), (x, both) in pipe(a, Both(up, down)):
        value = x[...].astype(np.float32)
        both.up[...] = value + 1.0
        both.down[...] = value - 1.0


@numpipe.kernel
def filled(o, value):
    """Fill an output without inputs."""
    pipe = numpipe.pipeline(
        grid=(cdiv(o.shape[0], 64), cdiv(o.shape[1], 64)),
        out_specs=(BlockSpec((64, 64), lambda i, k: (i, k)),),
    )
    for (i, k), (y,) in pipe(o):
        y[...] = numpipe.zeros((64, 64), np.float32) + (value + i * 100 + k)


@numpipe.kernel(num_compute_wgs=2)
def one_by_one(a, b, o):
    """Store outputs from a body that waits for its inputs and releases them itself."""
    wg = numpipe.axis_index("wg")

    def body(indices, x, y, z, x_ready, y_ready, x_consumed, y_consumed):
        numpipe.barrier_wait(x_ready)
        value = x[ds(wg * 64, 64), :].astype(np.float32)
        numpipe.barrier_arrive(x_consumed)
        numpipe.barrier_wait(y_ready)
        z[ds(wg * 64, 64), :] = value - y[ds(wg * 64, 64), :].astype(np.float32)
        numpipe.barrier_arrive(y_consumed)

    emit(
        body,
        grid=(cdiv(a.shape[1], 64),),
        in_specs=(BlockSpec((128, 64), lambda k: (0, k)), BlockSpec((128, 64), lambda k: (0, k))),
        out_specs=(BlockSpec((128, 64), lambda k: (0, k)),),
        manual_produced_barriers=True,
        manual_consumed_barriers=True,
    )(a, b, o)


@numpipe.kernel(num_compute_wgs=2)
def chained(a, b, o, p):
    """Run two pipelines on the same slots, one after the other."""
    wg = numpipe.axis_index("wg")

    def doubles(indices, x, y):
        y[ds(wg * 64, 64), :] = (x[ds(wg * 64, 64), :].astype(np.float32) * 2.0).astype(y.dtype)

    def negates(indices, x, y):
        y[ds(wg * 64, 64), :] = (-x[ds(wg * 64, 64), :].astype(np.float32)).astype(y.dtype)

    first = emit(
        doubles,
        grid=(cdiv(a.shape[1], 64),),
        max_concurrent_steps=3,
        in_specs=(BlockSpec((128, 64), lambda k: (0, k)),),
        out_specs=(BlockSpec((128, 64), lambda k: (0, k)),),
    )
    shared = first.get_allocations(a, o)
    first(a, o, allocations=shared)
    emit(
        negates,
        grid=(cdiv(b.shape[1], 64),),
        max_concurrent_steps=3,
        in_specs=(BlockSpec((128, 64), lambda k: (0, k)),),
        out_specs=(BlockSpec((128, 64), lambda k: (0, k)),),
    )(b, p, allocations=shared)


@numpipe.kernel(num_compute_wgs=2)
def product(a, b, o, *, slots: numpipe.Static = 2):
    """Store a product's tile through an output in the last step, in the dtype of o."""
    wg = numpipe.axis_index("wg")
    depth = cdiv(a.shape[1], 64)

    def body(indices, x, y, z, acc):
        _, k = indices
        if k == 0:
            acc = numpipe.zeros((64, 64), np.float32)
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, x.at[ds(wg * 64, 64), :], y.T), 0)
        if k == depth - 1:
            z[ds(wg * 64, 64), :] = acc.astype(z.dtype)
        return acc

    def compute(pipeline):
        pipeline(numpipe.zeros((64, 64), np.float32))

    emit(
        body,
        grid=(cdiv(a.shape[0], 128), depth),
        max_concurrent_steps=3,
        compute_context=compute,
        in_specs=(
            BlockSpec((128, 64), lambda i, k: (i, k)),
            BlockSpec((64, 64), lambda i, k: (0, k)),
        ),
        out_specs=(BlockSpec((128, 64), lambda i, k: (i, 0), buffer_count=slots),),
    )(a, b, o)


@numpipe.kernel(num_compute_wgs=2)
def alone(a, o, *, slots: numpipe.Static = 2):
    """Run a single-stream pipeline in each warpgroup next to a memory role; each has its own
    rows."""
    wg = numpipe.axis_index("wg")

    def body(indices, x, y):
        y[...] = (x[...].astype(np.float32) * 2.0).astype(y.dtype)

    numpipe.emit_pipeline(
        body,
        grid=(cdiv(a.shape[1], 64) - wg,),
        max_concurrent_steps=slots,
        in_specs=(BlockSpec((64, 64), lambda k: (wg, k)),),
        out_specs=(BlockSpec((64, 64), lambda k: (wg, k)),),
    )(a, o)


@numpipe.kernel(num_compute_wgs=3, warp_specialized=False)
def without_memory_role(a, o):
    """Sum every second block column without a memory role, with a row of blocks per warpgroup."""
    wg = numpipe.axis_index("wg")
    pipe = numpipe.pipeline(
        grid=(2, cdiv(a.shape[1], 128)),
        in_specs=(BlockSpec((64, 64), lambda h, k: (wg, 2 * k + h)),),
        out_specs=(BlockSpec((64, 64), lambda h, k: (wg, h)),),
    )
    for (_, k), (x, y) in pipe(a, o):
        if k == 0:
            y[...] = x[...].astype(np.float32)
        else:
            y[...] += x[...].astype(np.float32)


def integers(shape: tuple[int, ...], dtype: Any = F16, seed: int = 0) -> np.ndarray:
    """Return small integers: sums are exact in any order."""
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(dtype)


Run = Callable[..., None]


def check_copy(run: Run, kernel: Any, dtype: Any, shape: tuple[int, int], **statics: Any) -> None:
    a, o = integers(shape, dtype), np.zeros(shape, dtype)
    run(kernel, a, o, **statics)
    np.testing.assert_array_equal(o, a)


def check_sums(run: Run, shape: tuple[int, int], slots: int = 2) -> None:
    a, o = integers(shape), np.zeros(shape, F16)
    rows, total = np.full((shape[0], 64), np.nan, F32), np.full((128, 64), np.nan, F32)
    run(sums, a, rows, total, o, slots=slots)
    padded = np.zeros((-(-shape[0] // 128) * 128, -(-shape[1] // 64) * 64), F32)
    padded[: shape[0], : shape[1]] = a
    by_row = padded.reshape(len(padded), -1, 64).sum(1)
    np.testing.assert_array_equal(o, a + 1)
    np.testing.assert_array_equal(rows, by_row[: shape[0]])
    np.testing.assert_array_equal(total, by_row.reshape(-1, 128, 64).sum(0))


def check_in_tiles(run: Run, shape: tuple[int, int], slots: int = 2) -> None:
    a, b = integers(shape), integers((64, shape[1]), seed=1)
    o, c = np.zeros(shape, F16), np.zeros((shape[0], 64), F32)
    run(in_tiles, a, b, o, c, slots=slots)
    np.testing.assert_array_equal(o, 3 * a)
    np.testing.assert_array_equal(c, a.astype(F32) @ b.astype(F32).T)


def check_nested(run: Run, rows: int, columns: int) -> None:
    a, b = integers((rows, 64)), integers((64, columns), seed=1)
    o, p = np.full((rows, 64), np.nan, F32), np.full((rows, columns), np.nan, F16)
    run(nested, a, b, o, p)
    padded = np.zeros((64, -(-columns // 64) * 64), F32)
    padded[:, :columns] = b
    total = padded.reshape(64, -1, 64).sum(1)
    high = np.zeros((-(-rows // 64) * 64, 64), F32)
    high[:rows] = a
    np.testing.assert_array_equal(o, (high.reshape(-1, 64, 64) + total).reshape(-1, 64)[:rows])
    expected = high.reshape(-1, 64, 1, 64) + padded.reshape(64, -1, 64)
    np.testing.assert_array_equal(p, expected.reshape(len(high), -1)[:rows, :columns])


def check_batches(run: Run, shape: tuple[int, int, int]) -> None:
    a, o = integers(shape), np.full(shape, np.nan, F16)
    run(batches, a, o)
    expected = np.zeros(shape, F16)
    expected[:, :, : max(0, shape[2] - 16)] = a[:, :, 16:]
    np.testing.assert_array_equal(o, expected)


def check_trees(run: Run) -> None:
    a, up, down = integers((200, 64)), np.zeros((200, 64), F32), np.zeros((200, 64), F32)
    run(trees, a, up, down)
    np.testing.assert_array_equal(up, a + 1.0)
    np.testing.assert_array_equal(down, a - 1.0)


def check_filled(run: Run) -> None:
    o = np.zeros((200, 136), F32)
    run(filled, o, 7)
    i, k = np.indices(o.shape)
    np.testing.assert_array_equal(o, 7 + i // 64 * 100 + k // 64)


def check_one_by_one(run: Run, steps: int) -> None:
    a = integers((128, 64 * steps))
    b = integers((128, 64 * steps), seed=1)
    o = np.zeros((128, 64 * steps), F32)
    run(one_by_one, a, b, o)
    np.testing.assert_array_equal(o, a.astype(F32) - b)


def check_alone(run: Run, slots: int) -> None:
    a, o = integers((128, 320)), np.zeros((128, 320), F16)
    run(alone, a, o, slots=slots)
    expected = 2 * a
    expected[64:, 256:] = 0
    np.testing.assert_array_equal(o, expected)


def check_without_memory_role(run: Run) -> None:
    a, o = integers((192, 640)), np.zeros((192, 128), F32)
    run(without_memory_role, a, o)
    np.testing.assert_array_equal(o, a.astype(F32).reshape(192, 5, 128).sum(1))


def check_chained(run: Run, columns: tuple[int, int]) -> None:
    a, b = (integers((128, n), seed=n) for n in columns)
    o, p = (np.full((128, n), np.nan, F16) for n in columns)
    run(chained, a, b, o, p)
    np.testing.assert_array_equal(o, 2 * a)
    np.testing.assert_array_equal(p, -b)


def check_product(run: Run, shape: tuple[int, int], slots: int) -> None:
    a = integers(shape)
    b = integers((64, shape[1]), seed=1)
    o = np.full((shape[0], 64), np.nan, F32)
    run(product, a, b, o, slots=slots)
    np.testing.assert_array_equal(o, a.astype(F32) @ b.astype(F32).T)


CHECKS: dict[str, Callable[[Run], None]] = {
    **{
        f"copy {dtype}": lambda run, dtype=dtype: check_copy(run, copy(), dtype, (300, 200))
        for dtype in (F16, BF16, F32)
    },
    **{
        f"copy, {outs} slots": lambda run, outs=outs: check_copy(
            run, copy(), F16, (300, 328), cfg=Config(outs=outs)
        )
        for outs in (1, 2, 3, 4)
    },
    **{
        f"copy by {wgs} warpgroups": lambda run, wgs=wgs: check_copy(
            run, copy(wgs), F16, (400, 200), cfg=Config(rows=64 * wgs)
        )
        for wgs in (1, 3)
    },
    "copy, two 64 rows a warpgroup, two panels": lambda run: check_copy(
        run, copy(1), F16, (200, 264), cfg=Config(128, 128)
    ),
    "copy, narrow": lambda run: check_copy(run, copy(), F16, (200, 24), cfg=Config(columns=24)),
    "sums": lambda run: check_sums(run, (300, 264)),
    "sums, 1 slot": lambda run: check_sums(run, (300, 264), 1),
    "sums, 1 step": lambda run: check_sums(run, (128, 64), 3),
    "in tiles": lambda run: check_in_tiles(run, (600, 200)),
    "in tiles, 1 slot": lambda run: check_in_tiles(run, (600, 200), 1),
    "nested": lambda run: check_nested(run, 200, 200),
    "nested, no inner step": lambda run: check_nested(run, 200, 0),
    "batches": lambda run: check_batches(run, (3, 100, 136)),
    "trees": check_trees,
    "no inputs": check_filled,
    "alone, 1 slot": lambda run: check_alone(run, 1),
    "alone, 3 slots": lambda run: check_alone(run, 3),
    "chained": lambda run: check_chained(run, (320, 200)),
    "chained, nothing first": lambda run: check_chained(run, (0, 136)),
    "product": lambda run: check_product(run, (500, 200), 2),
    "product, 1 slot": lambda run: check_product(run, (300, 64), 1),
    "without memory role": check_without_memory_role,
    "one by one": lambda run: check_one_by_one(run, 5),
}
