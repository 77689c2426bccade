"""Pipelines written by hand from primitives: loads, barriers, products and stores, for the
simulator and the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import SMEM, ArrayType, Barrier, cdiv, ds


def product(a: np.ndarray, b: np.ndarray) -> Any:
    return a.astype(np.float64) @ b.astype(np.float64).T


def product_type(a: Any, b: Any) -> ArrayType:
    return ArrayType((a.shape[0], b.shape[0]), np.float32)


@numpipe.kernel(
    grid=lambda a, b: (cdiv(b.shape[0], 64), cdiv(a.shape[0], 64)), out_type=product_type
)
def single_stream(a, b, c, *, slots: numpipe.Static = 2):
    """Load ahead in one warpgroup for itself."""
    n, m = numpipe.program_id(0), numpipe.program_id(1)
    a_slots = numpipe.scratch(SMEM((slots, 64, 64), a.dtype))
    b_slots = numpipe.scratch(SMEM((slots, 64, 64), b.dtype))
    landed = numpipe.scratch(Barrier(num_arrivals=2, num_barriers=slots))

    def load(k):
        slot = k % slots
        numpipe.copy_gmem_to_smem(
            a.at[ds(m * 64, 64), ds(k * 64, 64)], a_slots.at[slot], landed.at[slot]
        )
        numpipe.copy_gmem_to_smem(
            b.at[ds(n * 64, 64), ds(k * 64, 64)], b_slots.at[slot], landed.at[slot]
        )

    steps = cdiv(a.shape[1], 64)
    for k in range(min(slots, steps)):
        load(k)
    acc = numpipe.zeros((64, 64), np.float32)
    for k in range(steps):
        slot = k % slots
        numpipe.barrier_wait(landed.at[slot])
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, a_slots.at[slot], b_slots.at[slot].T), 0)
        if k + slots < steps:
            numpipe.commit_smem()
            load(k + slots)
    c[ds(m * 64, 64), ds(n * 64, 64)] = acc


@numpipe.kernel(
    grid=lambda a, b: (cdiv(b.shape[0], 64), cdiv(a.shape[0], 128)),
    num_compute_wgs=2,
    out_type=product_type,
)
def shared_tiles(a, b, c, *, slots: numpipe.Static = 3):
    """Share tiles loaded by the first warpgroup with the second; slots are returned over a
    barrier."""
    wg, n, m = numpipe.axis_index("wg"), numpipe.program_id(0), numpipe.program_id(1)
    steps = cdiv(a.shape[1], 64)

    def body(a_slots, b_slots, barriers):
        landed, free = barriers

        def load(k):
            slot = k % slots
            numpipe.copy_gmem_to_smem(
                a.at[ds(m * 128, 128), ds(k * 64, 64)],
                a_slots.at[slot],
                landed.at[slot],
                predicate=wg == 0,
            )
            numpipe.copy_gmem_to_smem(
                b.at[ds(n * 64, 64), ds(k * 64, 64)],
                b_slots.at[slot],
                landed.at[slot],
                predicate=wg == 0,
            )

        for k in range(min(slots, steps)):
            load(k)
        acc = numpipe.zeros((64, 64), np.float32)
        for k in range(steps):
            slot = k % slots
            numpipe.barrier_wait(landed.at[slot])
            acc = numpipe.wgmma_wait(
                numpipe.wgmma(acc, a_slots.at[slot, ds(wg * 64, 64), :], b_slots.at[slot].T), 0
            )
            if k + slots < steps:
                numpipe.barrier_arrive(free.at[slot])
                numpipe.barrier_wait(free.at[slot])
                load(k + slots)
        return acc

    acc = numpipe.run_scoped(
        body,
        SMEM((slots, 128, 64), a.dtype),
        SMEM((slots, 64, 64), b.dtype),
        (Barrier(num_arrivals=4, num_barriers=slots), Barrier(num_arrivals=2, num_barriers=slots)),
        collective_axes="wg",
    )
    c[ds(m * 128 + wg * 64, 64), ds(n * 64, 64)] = acc


ROWS, COLUMNS = 64, 128


@numpipe.kernel(grid=lambda x, y: (2,), num_compute_wgs=2)
def copied(x, y):
    """Copy blocks in each warpgroup through its own slots: y = x where y is larger."""
    wg = numpipe.axis_index("wg")

    def body(tile, landed):
        for i, j in numpipe.nd_loop((cdiv(x.shape[0], 2 * ROWS), cdiv(x.shape[1], COLUMNS))):
            numpipe.async_prefetch(
                x.at[ds(i * 2 * ROWS, 2 * ROWS), ds(j * COLUMNS + COLUMNS, COLUMNS)]
            )
            numpipe.copy_gmem_to_smem(
                x.at[ds((2 * i + wg) * ROWS, ROWS), ds(j * COLUMNS, COLUMNS)], tile, landed
            )
            numpipe.barrier_wait(landed)
            numpipe.commit_smem()
            numpipe.copy_smem_to_gmem(
                tile, y.at[ds((2 * i + wg) * ROWS, ROWS), ds(j * COLUMNS, COLUMNS)]
            )
            numpipe.wait_smem_to_gmem(0, wait_read_only=True)

    numpipe.run_scoped(body, SMEM((ROWS, COLUMNS), x.dtype), Barrier())


def reduced(operation: str) -> Any:
    """Return a kernel that computes y[i] = operation(y[i], x[i]), once for each of two CTAs."""

    @numpipe.kernel(grid=2)
    def kernel(x, y):
        tile, landed = numpipe.scratch((SMEM((64, 32), x.dtype), Barrier()))
        for i in range(cdiv(x.shape[0], 64)):
            numpipe.copy_gmem_to_smem(x.at[ds(i * 64, 64), ds(0, 32)], tile, landed)
            numpipe.barrier_wait(landed)
            numpipe.copy_smem_to_gmem(tile, y.at[ds(i * 64, 64), ds(0, 32)], reduction_op=operation)
            numpipe.wait_smem_to_gmem(0)

    return kernel


@numpipe.kernel(grid=1, num_compute_wgs=2)
def polled(x, y):
    """Poll in both warpgroups until the tile that one of them requested has arrived."""
    wg = numpipe.axis_index("wg")

    def body(tile, landed):
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed, predicate=wg == 0)
        tries = 0
        while not numpipe.barrier_test(landed):
            tries = tries + 1
        numpipe.barrier_wait(landed)
        numpipe.copy_smem_to_gmem(tile, y.at[wg, ds(0, 64), ds(0, 64)])

    def compute(pipeline):
        numpipe.run_scoped(
            body, SMEM((64, 64), x.dtype), Barrier(num_arrivals=2), collective_axes="wg"
        )
        pipeline(0)

    def step(indices, tile, carry):
        return carry

    numpipe.emit_pipeline_warp_specialized(
        step,
        grid=(1,),
        compute_context=compute,
        in_specs=(numpipe.BlockSpec((64, 64), lambda k: (0, k)),),
    )(x)


@numpipe.kernel(grid=1)
def united(x, y):
    """Use a union of one large tile and two small ones: the same bytes, one after the other."""
    whole, (upper, lower) = numpipe.scratch(
        numpipe.RefUnion(
            SMEM((128, 64), x.dtype), (SMEM((64, 64), x.dtype), SMEM((64, 64), x.dtype))
        )
    )
    landed = numpipe.scratch(Barrier())
    numpipe.copy_gmem_to_smem(x.at[ds(0, 128), ds(0, 64)], whole, landed)
    numpipe.barrier_wait(landed)
    numpipe.copy_smem_to_gmem(upper, y.at[ds(0, 64), ds(0, 64)], commit_group=False)
    numpipe.copy_smem_to_gmem(lower, y.at[ds(64, 64), ds(0, 64)], commit_group=False)
    numpipe.commit_smem_to_gmem_group()


@numpipe.kernel(grid=1)
def tall(x, y):
    """Load a tile of more rows than a TMA box allows, whole, and its lower half again."""
    slots = numpipe.scratch(SMEM((2, 320, 32), x.dtype))
    landed = numpipe.scratch(Barrier())
    numpipe.copy_gmem_to_smem(x.at[1, ds(0, 320), ds(32, 32)], slots.at[1], landed)
    numpipe.barrier_wait(landed.at[0])
    numpipe.copy_smem_to_gmem(slots.at[1], y.at[ds(0, 320), 0, ds(0, 32)])
    numpipe.copy_smem_to_gmem(slots.at[1, ds(160, 160), :], y.at[ds(0, 160), 1, ds(0, 32)])


@numpipe.kernel(grid=1)
def column_major(x, y):
    """Load tiles whose rows are columns of an array with a contiguous first dimension."""
    tile, landed = numpipe.scratch((SMEM((32, 64), x.dtype), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(64, 64), ds(0, 32)], tile.T, landed)
    numpipe.barrier_wait(landed)
    numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 32), ds(0, 64)])


@numpipe.kernel(grid=(2, 3))
def places(visits, a, b, c, d):
    """Loop over four dimensions with nd_loop; a CTA adds a tile of ones at each place."""
    tile, landed = numpipe.scratch((SMEM((8, 16), visits.dtype), Barrier()))
    numpipe.copy_gmem_to_smem(visits.at[ds(0, 8), ds(0, 16)], tile, landed)
    numpipe.barrier_wait(landed)
    for i, j, k, m in numpipe.nd_loop((a, b, c, d)):
        place = ((i * b + j) * c + k) * d + m
        numpipe.copy_smem_to_gmem(
            tile, visits.at[ds(8 + 8 * place, 8), ds(16, 16)], reduction_op="add"
        )
    tiles = numpipe.num_programs(0) * numpipe.num_programs(1)
    here = numpipe.program_id(0) * numpipe.num_programs(1) + numpipe.program_id(1)
    i, j = numpipe.planar_snake(here, (numpipe.num_programs(0), numpipe.num_programs(1)), 1, 2)
    numpipe.copy_smem_to_gmem(
        tile,
        visits.at[ds(8 * (i * numpipe.num_programs(1) + j), 8), ds(32, 16)],
        reduction_op="add",
        predicate=here < tiles,
    )


@numpipe.kernel(
    grid=lambda a, b: (cdiv(b.shape[0], 64), cdiv(a.shape[0], 128)),
    num_compute_wgs=3,
    warp_specialized=False,
    out_type=product_type,
)
def roles_by_hand(a, b, c, *, slots: numpipe.Static = 3):
    """Build a memory role by hand: warpgroup 2 loads and the others compute."""
    wg, n, m = numpipe.axis_index("wg"), numpipe.program_id(0), numpipe.program_id(1)
    a_slots, b_slots = numpipe.scratch(
        (SMEM((slots, 128, 64), a.dtype), SMEM((slots, 64, 64), b.dtype))
    )
    landed, free = numpipe.scratch(
        (Barrier(num_arrivals=2, num_barriers=slots), Barrier(num_arrivals=2, num_barriers=slots))
    )
    steps = cdiv(a.shape[1], 64)
    if wg == 2:
        numpipe.set_max_registers(40, "decrease")
        for k in range(steps):
            slot = k % slots
            if k >= slots:
                numpipe.barrier_wait(free.at[slot])
            numpipe.copy_gmem_to_smem(
                a.at[ds(m * 128, 128), ds(k * 64, 64)], a_slots.at[slot], landed.at[slot]
            )
            numpipe.copy_gmem_to_smem(
                b.at[ds(n * 64, 64), ds(k * 64, 64)], b_slots.at[slot], landed.at[slot]
            )
    else:
        numpipe.set_max_registers(232, "increase")
        acc = numpipe.zeros((64, 64), np.float32)
        for k in range(steps):
            slot = k % slots
            numpipe.barrier_wait(landed.at[slot])
            acc = numpipe.wgmma_wait(
                numpipe.wgmma(acc, a_slots.at[slot, ds(wg * 64, 64), :], b_slots.at[slot].T), 0
            )
            if k + slots < steps:
                numpipe.barrier_arrive(free.at[slot])
        c[ds(m * 128 + wg * 64, 64), ds(n * 64, 64)] = acc


@numpipe.kernel(grid=lambda x, y: (cdiv(x.shape[0], 128),), num_compute_wgs=2)
def squared(x, y):
    """Compute y = x * x a column of blocks at a time, through two slots per warpgroup."""
    wg, i = numpipe.axis_index("wg"), numpipe.program_id(0)

    def body(loaded, stored, landed):
        for j in range(cdiv(x.shape[1], 32)):
            numpipe.copy_gmem_to_smem(
                x.at[ds(i * 128 + wg * 64, 64), ds(j * 32, 32)], loaded, landed
            )
            numpipe.barrier_wait(landed)
            tile = loaded[...]
            numpipe.wait_smem_to_gmem(1, wait_read_only=True)
            stored.at[j % 2][...] = tile * tile
            numpipe.commit_smem()
            numpipe.copy_smem_to_gmem(
                stored.at[j % 2], y.at[ds(i * 128 + wg * 64, 64), ds(j * 32, 32)]
            )

    numpipe.run_scoped(body, SMEM((64, 32), np.float32), SMEM((2, 64, 32), np.float32), Barrier())


@numpipe.kernel(grid=2, num_compute_wgs=2)
def moved(
    x,
    y,
    *,
    rows: numpipe.Static,
    columns: numpipe.Static,
    slots: numpipe.Static,
    transforms: numpipe.Static = (),
):
    """Copy x to y in tiles of any size.

    Each warpgroup loads `slots` tiles ahead and stores them from where they were loaded to.
    """
    wg, across = numpipe.axis_index("wg"), cdiv(x.shape[1], columns)
    tiles = cdiv(cdiv(x.shape[0], rows) * across, 2 * numpipe.num_programs(0))

    def body(buffer, landed):
        def place(k):
            number = (k * 2 + wg) * numpipe.num_programs(0) + numpipe.program_id(0)
            return ds(number // across * rows, rows), ds(number % across * columns, columns)

        def load(k):
            numpipe.copy_gmem_to_smem(x.at[place(k)], buffer.at[k % slots], landed.at[k % slots])

        for k in range(min(slots, tiles)):
            load(k)
        for k in range(tiles):
            numpipe.barrier_wait(landed.at[k % slots])
            numpipe.copy_smem_to_gmem(buffer.at[k % slots], y.at[place(k)])
            if k + slots < tiles:
                numpipe.wait_smem_to_gmem(0, wait_read_only=True)
                load(k + slots)

    numpipe.run_scoped(
        body, SMEM((slots, rows, columns), x.dtype, transforms), Barrier(num_barriers=slots)
    )
