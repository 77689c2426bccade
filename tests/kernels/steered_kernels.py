"""Kernels steered by integer arrays: which blocks are loaded, how many steps there are, whether and
in which order tiles are computed.

Each takes (a, table, counts, c): a (rows, 256) of float16 in blocks of 64 x 64; table (n, 2) and
counts (n,) of int32 or int64. `wanted` gives NumPy's exact result: the numbers are small integers.
With `size`, the arrays are read through copies of that many elements in shared memory
(`numpipe.prefetched`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import numpipe
from numpipe import BlockSpec, ds

BLOCKS, ROWS, MOST = 6, 8, 5
"""row blocks of a; rows of the table and number of counts; the largest count"""


@numpipe.kernel(num_compute_wgs=2, grid=3)
def tiles_of_a_table(
    a,
    table,
    counts,
    c,
    *,
    slots: numpipe.Static = 2,
    delay: numpipe.Static = 0,
    size: numpipe.Static = 0,
):
    """Sum counts[t] products of blocks in tile t, from row block table[t, 0] in steps of table[t,
    1].

    The rings form chains.
    """
    own = numpipe.axis_index("wg") * 64
    steps = numpipe.prefetched(counts) if size else counts
    for (t,) in numpipe.tiles(counts.shape[0]):
        rows = numpipe.prefetched(table, size=size) if size else table  # copied with the first tile
        first = rows[t, 0]
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(steps[t],),
            max_concurrent_steps=slots,
            delay_release=delay,
            in_specs=(
                BlockSpec((64, 64), lambda k: ((first + k * rows[t, 1]) % 6, 0)),
                BlockSpec((64, 64), lambda k: (rows[k, 0], 1)),
            ),
        )
        for _, (x, y) in pipe(a, a):
            acc = numpipe.wgmma(acc, x, y.T)
        c[ds(t * 128 + own, 64), ds(0, 64)] = acc


@numpipe.kernel(num_compute_wgs=2, schedule="pingpong", grid=2)
def tiles_in_turns(
    a,
    table,
    counts,
    c,
    *,
    slots: numpipe.Static = 2,
    delay: numpipe.Static = 0,
    size: numpipe.Static = 0,
):
    """Compute the same by warpgroups that take turns on tiles, in an order given by the table."""
    rows = numpipe.prefetched(table, size=size) if size else table
    for (s,) in numpipe.tiles(counts.shape[0]):
        t = (counts.shape[0] - 1 - s + rows[0, 0]) % counts.shape[0]
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(counts[t],),
            max_concurrent_steps=slots,
            delay_release=delay,
            in_specs=(
                BlockSpec((64, 64), lambda k: ((rows[t, 0] + k * rows[t, 1]) % 6, 0)),
                BlockSpec((64, 64), lambda k: (rows[k, 0], 1)),
            ),
        )
        for _, (x, y) in pipe(a, a):
            acc = numpipe.wgmma(acc, x, y.T)
        c[ds(t * 128, 64), ds(0, 64)] = acc
        c[ds(t * 128 + 64, 64), ds(0, 64)] = acc


@numpipe.kernel(num_compute_wgs=2, grid=numpipe.persistent())
def tiles_of_a_counter(a, table, counts, c, *, slots: numpipe.Static, delay: numpipe.Static):
    """Compute the same in the body form with tiles from a counter, as many as an array says.

    Only tiles with steps are computed.
    """
    own = numpipe.axis_index("wg") * 64

    def body(indices, x, y, acc):
        return numpipe.wgmma(acc, x, y.T)

    for (t,) in numpipe.tiles(counts.shape[0], dynamic=True):
        if counts[t] > 0:

            def compute(pipeline):
                c[ds(t * 128 + own, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

            numpipe.emit_pipeline_warp_specialized(
                body,
                grid=(counts[t],),
                max_concurrent_steps=slots,
                delay_release=delay,
                compute_context=compute,
                in_specs=(
                    BlockSpec((64, 64), lambda k: ((table[t, 0] + k * table[t, 1]) % 6, 0)),
                    BlockSpec((64, 64), lambda k: (table[k, 0], 1)),
                ),
            )(a, a)


@numpipe.function
def entry(table, t):
    return table[t, 0], table[t, 1]


@numpipe.kernel(num_compute_wgs=2, grid=2)
def tiles_of_each_warpgroup(a, table, counts, c, *, slots: numpipe.Static, delay: numpipe.Static):
    """Compute the same by warpgroups that load their own tiles; the memory role skips these
    pipelines."""

    def body(indices, x, y, acc):
        return numpipe.wgmma(acc, x, y.T)

    for turn in range(counts.shape[0] // 4):
        t = turn * 4 + numpipe.program_id(0) * 2 + numpipe.axis_index("wg")
        first, by = entry(table, t)
        acc = numpipe.emit_pipeline(
            body,
            grid=(counts[t],),
            max_concurrent_steps=slots,
            delay_release=delay,
            in_specs=(
                BlockSpec((64, 64), lambda k: ((first + k * by) % 6, 0)),
                BlockSpec((64, 64), lambda k: (table[k, 0], 1)),
            ),
            init_carry=numpipe.zeros((64, 64), np.float32),
        )(a, a)
        c[ds(t * 128, 64), ds(0, 64)] = acc
        c[ds(t * 128 + 64, 64), ds(0, 64)] = acc


@numpipe.kernel(grid=1)
def walks(
    a,
    table,
    counts,
    c,
    *,
    slots: numpipe.Static = 2,
    delay: numpipe.Static = 0,
    size: numpipe.Static = 0,
):
    """Use `if`, `range` and `while` on elements around pipeline steps, some of which store blocks
    where the table says."""
    rows = numpipe.prefetched(table, size=size) if size else table
    steps = numpipe.prefetched(counts, size=size) if size else counts
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(2,),
        max_concurrent_steps=slots,
        delay_release=delay,
        in_specs=(BlockSpec((64, 64), lambda k: (rows[k, 0], 0)),),
    )
    for i in range(rows[0, 0], rows[0, 0] + steps[0]):
        if steps[i % 8] > 2:
            for _, (x,) in pipe(a):
                acc = numpipe.wgmma(acc, x, x.T)
    more = numpipe.zeros((64, 64), np.float32)
    left = steps[1]
    while left > 0 and rows[left, 1] != 1:
        for _, (x,) in pipe(a):
            more = numpipe.wgmma(more, x, x.T)
        left = left - 1
    moved = numpipe.pipeline(
        grid=(min(steps[2], 4) if rows[1, 0] > 0 else 1,),
        max_concurrent_steps=2,
        in_specs=(BlockSpec((64, 64), lambda i: (rows[i, 0], 1)),),
        out_specs=(BlockSpec((64, 64), lambda i: (1 + i, 0)),),
    )
    for _, (x, y) in moved(a, c):
        y[...] = x[...].astype(np.float32)
    c[ds(0, 64), ds(0, 64)] = acc + more


KERNELS: dict[str, Any] = {
    kernel.name: kernel
    for kernel in (
        tiles_of_a_table,
        tiles_in_turns,
        tiles_of_a_counter,
        tiles_of_each_warpgroup,
        walks,
    )
}


def arrays(rng: np.random.Generator, dtype: Any, zeros: bool = False) -> tuple[np.ndarray, ...]:
    """Return a, table, counts and c for any of the kernels; with `zeros`, no tile has a step."""
    a = rng.integers(-2, 3, (64 * BLOCKS, 256)).astype(np.float16)
    table = np.stack([rng.integers(0, BLOCKS, ROWS), rng.integers(0, 3, ROWS)], axis=1).astype(
        dtype
    )
    counts = rng.integers(0, 1 if zeros else MOST + 1, ROWS).astype(dtype)
    return a, table, counts, np.zeros((128 * ROWS, 64), np.float32)


def wanted(
    name: str, a: np.ndarray, table: np.ndarray, counts: np.ndarray, c: np.ndarray
) -> np.ndarray:
    """Return c as a kernel must leave it."""
    c, blocks = c.copy(), a.astype(np.float32).reshape(BLOCKS, 64, 4, 64).swapaxes(1, 2)
    if name == "walks":

        def two() -> np.ndarray:
            return sum(
                (blocks[at, 0] @ blocks[at, 0].T for at in table[:2, 0]),
                np.zeros((64, 64), np.float32),
            )

        times = sum(int(counts[i % ROWS] > 2) for i in range(table[0, 0], table[0, 0] + counts[0]))
        left = counts[1]
        while left > 0 and table[left, 1] != 1:
            times, left = times + 1, left - 1
        for i in range(min(counts[2], 4) if table[1, 0] > 0 else 1):
            c[64 + 64 * i : 128 + 64 * i] = blocks[table[i, 0], 1]
        c[:64] = times * two()
        return c
    for t in range(ROWS):
        tile = sum(
            (
                blocks[(table[t, 0] + k * table[t, 1]) % BLOCKS, 0] @ blocks[table[k, 0], 1].T
                for k in range(counts[t])
            ),
            np.zeros((64, 64), np.float32),
        )
        c[128 * t : 128 * t + 64] = c[128 * t + 64 : 128 * t + 128] = tile
    return c


def check(
    name: str,
    run: Callable[..., Any],
    seed: int,
    dtype: Any,
    slots: int,
    delay: int,
    zeros: bool = False,
) -> None:
    """Run a kernel by ``run(kernel, *arrays, slots=…, delay=…)``, and compare it exactly with
    NumPy."""
    given = arrays(np.random.default_rng(seed), dtype, zeros)
    run(KERNELS[name], *given[:3], made := given[3], slots=slots, delay=delay)
    np.testing.assert_array_equal(made, wanted(name, *given[:3], np.zeros_like(made)))
