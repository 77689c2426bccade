"""Kernels of clusters, for the simulator and the GPU: products whose blocks are multicast along M,
along N and along both."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, BlockSpec, ClusterBarrier, cdiv, ds


@dataclass(frozen=True)
class Config:
    """Tile, schedule and cluster of a product.

    CTAs of a cluster along M share blocks of b; CTAs along N share blocks of a.
    """

    along_m: int = 1
    along_n: int = 1
    tm: int = 128
    tn: int = 128
    tk: int = 64
    slots: int = 3
    schedule: str = "cooperative"


SMALL = Config(tm=64, tn=64, tk=64, slots=2)


@functools.cache
def product(cfg: Config) -> numpipe.Kernel:
    """Compute ``c = a @ b.T`` over tiles that are assigned to clusters."""

    @numpipe.kernel(
        out_type=lambda a, b: numpipe.ArrayType((a.shape[0], b.shape[0]), a.dtype),
        grid=numpipe.persistent(),
        cluster=(cfg.along_m * cfg.along_n,),
        cluster_names=("cluster",),
        schedule=cfg.schedule,
        num_compute_wgs=2 if cfg.schedule == "pingpong" or cfg.tm > 64 else 1,
    )
    def product(a, b, c):
        wg = numpipe.axis_index("wg")
        rows = cfg.tm // numpipe.axis_size("wg")
        along_m, along_n = cfg.along_m, cfg.along_n
        rank = numpipe.axis_index("cluster")
        m_tiles, n_tiles = cdiv(a.shape[0], cfg.tm * along_m), cdiv(b.shape[0], cfg.tn * along_n)
        for m_cluster, n_cluster in numpipe.tiles(m_tiles, n_tiles, order="grouped", group=4):
            m = m_cluster * along_m + (rank if along_m > 1 else 0)
            n = n_cluster * along_n + (rank if along_n > 1 else 0)
            acc = numpipe.zeros((rows, cfg.tn), np.float32)
            pipe = numpipe.pipeline(
                grid=(cdiv(a.shape[1], cfg.tk),),
                max_concurrent_steps=cfg.slots,
                in_specs=(
                    BlockSpec(
                        (cfg.tm, cfg.tk),
                        lambda k: (m, k),
                        collective_axes="cluster" if cfg.along_n > 1 else None,
                    ),
                    BlockSpec(
                        (cfg.tn, cfg.tk),
                        lambda k: (n, k),
                        collective_axes="cluster" if cfg.along_m > 1 else None,
                    ),
                ),
            )
            for (k,), (a_tile, b_tile) in pipe(a, b):
                acc = numpipe.wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T)
            c[ds(m * cfg.tm + wg * rows, rows), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)

    made: numpipe.Kernel = product
    return made


@numpipe.kernel(
    grid=lambda a, b: (cdiv(cdiv(a.shape[0], 64), 2) * 2, cdiv(cdiv(b.shape[0], 64), 2) * 2),
    grid_names=("m", "n"),
    cluster=(2, 2),
    cluster_names=("x", "y"),
    out_type=lambda a, b: numpipe.ArrayType((a.shape[0], b.shape[0]), np.float32),
)
def four(a, b, c):
    """Compute one tile per CTA in clusters of 2 x 2, which share blocks of a along y and of b along
    x."""
    m, n = numpipe.axis_index("m"), numpipe.axis_index("n")
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(cdiv(a.shape[1], 64),),
        max_concurrent_steps=2,
        in_specs=(
            BlockSpec((64, 64), lambda k: (m, k), collective_axes="y"),
            BlockSpec((64, 64), lambda k: (n, k), collective_axes=("x",)),
        ),
    )
    for _, (a_tile, b_tile) in pipe(a, b):
        acc = numpipe.wgmma(acc, a_tile, b_tile.T)
    c[ds(m * 64, 64), ds(n * 64, 64)] = acc


@functools.cache
def by_hand(ready: bool, consumed: bool) -> numpipe.Kernel:
    """Compute a product in the body form, whose body may wait for each operand and release it.

    Blocks of a belong to one CTA; blocks of b are shared.
    """

    @numpipe.kernel(grid=2, grid_names="cta", cluster=2, cluster_names="pair")
    def product(a, b, c):
        m = numpipe.axis_index("cta")

        def step(a_tile, b_tile, acc):
            return numpipe.wgmma_wait(numpipe.wgmma(acc, a_tile, b_tile.T), 0)

        def plain(indices, a_tile, b_tile, acc):
            return step(a_tile, b_tile, acc)

        def waits(indices, a_tile, b_tile, a_ready, b_ready, acc):
            numpipe.barrier_wait(a_ready)
            numpipe.barrier_wait(b_ready)
            return step(a_tile, b_tile, acc)

        def releases(indices, a_tile, b_tile, a_free, b_free, acc):
            acc = step(a_tile, b_tile, acc)
            numpipe.barrier_arrive(a_free)
            numpipe.barrier_arrive(b_free)
            return acc

        def both(indices, a_tile, b_tile, a_ready, b_ready, a_free, b_free, acc):
            numpipe.barrier_wait(a_ready)
            numpipe.barrier_wait(b_ready)
            acc = step(a_tile, b_tile, acc)
            numpipe.barrier_arrive(b_free)
            numpipe.barrier_arrive(a_free)
            return acc

        def compute(pipeline):
            c[ds(m * 64, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        specs = (
            BlockSpec((64, 64), lambda k: (m, k)),
            BlockSpec((64, 64), lambda k: (0, k), collective_axes="pair"),
        )
        numpipe.emit_pipeline_warp_specialized(
            both if ready and consumed else waits if ready else releases if consumed else plain,
            grid=(cdiv(a.shape[1], 64),),
            in_specs=specs,
            max_concurrent_steps=2,
            compute_context=compute,
            manual_produced_barriers=ready,
            manual_consumed_barriers=consumed,
        )(a, b)

    made: numpipe.Kernel = product
    return made


@numpipe.kernel(grid=lambda y: y.shape[0] // 64, grid_names="cta", cluster=2, cluster_names="pair")
def rounds(y):
    """Let the CTAs of a cluster meet five times at ClusterBarriers, then store each CTA's rank."""
    met = numpipe.scratch(ClusterBarrier("pair", num_barriers=2))
    for number in range(5):
        numpipe.barrier_arrive(met.at[number // 2 % 2])  # twice on one barrier, then on the other
        numpipe.barrier_wait(met.at[number // 2 % 2])
    rank = numpipe.axis_index("pair") + 10 * numpipe.axis_size("pair")
    y[ds(numpipe.axis_index("cta") * 64, 64), ds(0, 32)] = (
        numpipe.zeros((64, 32), np.float32) + rank
    )


@numpipe.kernel(
    grid=lambda x, y: y.shape[0] // 64, grid_names="cta", cluster=2, cluster_names="pair"
)
def loaded_together(x, y):
    """Load a row of tiles by hand from both CTAs through two slots.

    CTA m of a cluster stores m + 1 times the sum of the row.
    """
    tiles, landed, free = numpipe.scratch(
        (SMEM((2, 64, 64), x.dtype), Barrier(num_barriers=2), ClusterBarrier("pair", 2))
    )
    m, steps = numpipe.axis_index("cta"), cdiv(x.shape[1], 64)
    acc = numpipe.zeros((64, 64), np.float32)
    for k in range(steps):
        slot = k % 2
        if k >= 2:
            numpipe.barrier_wait(free.at[slot])  # both CTAs have read the previous tile
        numpipe.copy_gmem_to_smem(
            x.at[ds(m // 2 * 64, 64), ds(k * 64, 64)],
            tiles.at[slot],
            landed.at[slot],
            collective_axes="pair",
        )
        numpipe.barrier_wait(landed.at[slot])
        acc = acc + tiles.at[slot][...].astype(np.float32)
        if k + 2 < steps:
            numpipe.barrier_arrive(free.at[slot])
    y[ds(m * 64, 64), ds(0, 64)] = acc * (m % 2 + 1)


@numpipe.kernel(
    grid=lambda a, b, c: (cdiv(a.shape[0], 64), cdiv(b.shape[1], 64)),
    grid_names=("m", "n"),
    cluster=(2, 2),
    cluster_names=("x", "y"),
    warp_specialized=False,
)
def multiplied_together(a, b, c):
    """Compute a product by hand.

    CTAs that differ in y share tiles of a, CTAs that differ in x share tiles of b, and all four
    share a bias.
    """
    m, n = numpipe.axis_index("m"), numpipe.axis_index("n")
    a_tile, b_tile, ones = numpipe.scratch(
        (SMEM((64, 64), a.dtype), SMEM((64, 64), b.dtype), SMEM((64, 64), a.dtype))
    )
    landed, free = numpipe.scratch((Barrier(num_arrivals=2), ClusterBarrier(("x", "y"))))
    all_landed = numpipe.scratch(Barrier())
    numpipe.copy_gmem_to_smem(
        a.at[ds(0, 64), ds(0, 64)], ones, all_landed, collective_axes=("x", "y")
    )
    acc = numpipe.zeros((64, 64), np.float32)
    for k in range(cdiv(a.shape[1], 64)):
        numpipe.copy_gmem_to_smem(
            a.at[ds(m * 64, 64), ds(k * 64, 64)], a_tile, landed, collective_axes="y"
        )
        numpipe.copy_gmem_to_smem(
            b.at[ds(k * 64, 64), ds(n * 64, 64)], b_tile, landed, collective_axes=("x",)
        )
        numpipe.barrier_wait(landed)
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, a_tile, b_tile), 0)
        numpipe.barrier_arrive(free)
        numpipe.barrier_wait(free)
    numpipe.barrier_wait(all_landed)
    c[ds(m * 64, 64), ds(n * 64, 64)] = acc + ones[...].astype(np.float32)


@functools.cache
def passed_round(size: int, dtype: Any, shape: tuple[int, int]) -> numpipe.Kernel:
    """Pass tiles around the CTAs of a cluster until each can store the sum of all tiles."""
    kind = SMEM(shape, dtype), Barrier(), ClusterBarrier("ring")
    rows, columns = shape

    @numpipe.kernel(
        grid=lambda x, y: x.shape[0] // rows, grid_names="cta", cluster=size, cluster_names="ring"
    )
    def passed_round(x, y):
        buffer, landed, free = numpipe.scratch(kind)
        m, following = numpipe.axis_index("cta"), (numpipe.axis_index("ring") + 1) % size
        tile = x[ds(m * rows, rows), ds(0, columns)]
        total = tile
        for _ in range(size - 1):
            numpipe.async_store_smem(
                tile, buffer, landed, cluster_idx=following, cluster_dim="ring"
            )
            numpipe.barrier_wait(landed)
            tile = buffer[...]
            numpipe.barrier_arrive(free)
            total = total + tile
            numpipe.barrier_wait(free)  # all have read their tile, so the next CTA has
        y[ds(m * rows, rows), ds(0, columns)] = total

    made: numpipe.Kernel = passed_round
    return made


@numpipe.kernel(
    grid=lambda x, y: x.shape[0] // 128,
    grid_names="cta",
    cluster=4,
    cluster_names="all",
    num_compute_wgs=2,
)
def summed_by_all(x, y):
    """Send each warpgroup's half of a tile to every CTA of the cluster, and store the sum in each
    CTA."""
    parts, landed = numpipe.scratch((SMEM((4, 128, 32), np.float32), Barrier(num_arrivals=8)))
    m, wg, rank = numpipe.axis_index("cta"), numpipe.axis_index("wg"), numpipe.axis_index("all")
    tile = x[ds(m * 128 + wg * 64, 64), ds(0, 32)]
    for to in range(4):
        numpipe.async_store_smem(
            tile, parts.at[rank].at[ds(wg * 64, 64), :], landed, cluster_idx=to, cluster_dim="all"
        )
    numpipe.barrier_wait(landed)
    total = numpipe.zeros((64, 32), np.float32)
    for part in range(4):
        total = total + parts.at[part, ds(wg * 64, 64), :][...]
    y[ds(m * 128 + wg * 64, 64), ds(0, 32)] = total


@numpipe.kernel(
    grid=lambda x, y: (2, x.shape[0] // 128), cluster=2, cluster_names="columns", num_compute_wgs=2
)
def times_row_sums(x, y):
    """Multiply rows by their sums; each CTA of a cluster has half of the columns and sends the sums
    of its half."""
    sums, landed = numpipe.scratch((SMEM((256,), x.dtype), Barrier(num_arrivals=4)))
    n, m, wg = numpipe.axis_index("columns"), numpipe.program_id(1), numpipe.axis_index("wg")
    tile = x[ds(m * 128 + wg * 64, 64), ds(n * 64, 64)]
    part = tile.sum(axis=1)
    for to in range(2):
        numpipe.async_store_smem(
            part, sums.at[ds(n * 128 + wg * 64, 64)], landed, cluster_idx=to, cluster_dim="columns"
        )
    numpipe.barrier_wait(landed)
    total = sums[ds(wg * 64, 64)] + sums[ds(128 + wg * 64, 64)]
    y[ds(m * 128 + wg * 64, 64), ds(n * 64, 64)] = tile * total[:, None]


@numpipe.kernel(grid=(2, 4), cluster=(2, 2), cluster_names=("a", "b"))
def sent_by_the_leader(x, y, *, hears: numpipe.Static = True):
    """Send tiles from the first CTA of a cluster to all, which add them up.

    The first CTA waits until all have read the previous tile.
    """
    buffer, landed, free = numpipe.scratch(
        (SMEM((64, 32), np.float32), Barrier(), ClusterBarrier(("a", "b"), leader_tracked=True))
    )
    i, j = numpipe.axis_index("a"), numpipe.axis_index("b")
    forward, there = numpipe.scratch((SMEM((64, 32), np.float32), Barrier()))
    total, steps = numpipe.zeros((64, 32), np.float32), x.shape[1] // 32
    for k in range(steps):
        if i + j == 0:
            if k > 0 and hears:
                numpipe.barrier_wait(free)
            tile = x[ds(numpipe.program_id(1) // 2 * 64, 64), ds(k * 32, 32)]
            numpipe.async_store_smem(tile, forward, there, cluster_idx=0, cluster_dim="b")
            numpipe.async_store_smem(tile, forward, there, cluster_idx=1, cluster_dim="b")
        if i == 0:  # each CTA of the first column forwards it along its row
            numpipe.barrier_wait(there)
            for to in range(2):
                numpipe.async_store_smem(
                    forward[ds(0, 64), :], buffer, landed, cluster_idx=to, cluster_dim="a"
                )
        numpipe.barrier_wait(landed)
        total = total + buffer[...]
        numpipe.barrier_arrive(free)
    if i + j == 0:
        numpipe.barrier_wait(free)
    y[ds((numpipe.program_id(0) + 2 * numpipe.program_id(1)) * 64, 64), ds(0, 32)] = total


def sums_of_clusters(x: np.ndarray, size: int, rows: int) -> np.ndarray:
    """Return what each CTA of a cluster of `size` stores.

    Each CTA has `rows` rows of x, and all of them store the sum.
    """
    return np.repeat(
        x.reshape(-1, size, rows, x.shape[1]).sum(1, keepdims=True, dtype=x.dtype), size, 1
    ).reshape(x.shape)


def operands(m: int, n: int, k: int, dtype: Any = np.float16) -> tuple[np.ndarray, np.ndarray]:
    """Return small integers: products are exact in any order."""
    random = np.random.default_rng(m + n + k)
    return random.integers(-2, 3, (m, k)).astype(dtype), random.integers(-2, 3, (n, k)).astype(
        dtype
    )


def integers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(dtype)


def pair(body: Any) -> numpipe.Kernel:
    """Return a kernel of one cluster of two CTAs, for functions that are rejected or reported."""
    made: numpipe.Kernel = numpipe.kernel(body, grid=2, cluster=2, cluster_names="pair")
    return made


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float32) @ b.astype(np.float32).T


@functools.cache
def read_by_all(
    size: int, dtype: Any, shape: tuple[int, int], memory_role: bool = True
) -> numpipe.Kernel:
    """Store a CTA's tiles in shared memory, one after another; all CTAs of the cluster load and add
    them."""
    kind = SMEM(shape, dtype), ClusterBarrier("ring", orders_stores=True), ClusterBarrier("ring")
    rows, columns = shape

    @numpipe.kernel(
        grid=lambda x, y: x.shape[0] // rows,
        grid_names="cta",
        cluster=size,
        cluster_names="ring",
        warp_specialized=memory_role,
    )
    def read_by_all(x, y):
        tile, there, read = numpipe.scratch(kind)
        m = numpipe.axis_index("cta")
        for k in range(x.shape[1] // columns):
            tile[...] = x[ds(m * rows, rows), ds(k * columns, columns)]
            numpipe.barrier_arrive(there)
            numpipe.barrier_wait(there)
            total = numpipe.zeros(shape, np.float32)
            for i in range(size):
                other = numpipe.cluster_ref(tile, cluster_idx=i, cluster_dim="ring")
                total = total + other[...].astype(np.float32)
            y[ds(m * rows, rows), ds(k * columns, columns)] = total
            numpipe.barrier_arrive(read)
            numpipe.barrier_wait(read)  # all have read it

    made: numpipe.Kernel = read_by_all
    return made


@numpipe.kernel(
    grid=lambda x, y: x.shape[0] // 64, grid_names="cta", cluster=2, cluster_names="pair"
)
def halos(x, y):
    """Read parts of a tile and a vector of the neighbor CTA.

    y is x plus the neighbor's columns, shifted by two, and its row sums.
    """
    tile, sums, there = numpipe.scratch(
        (
            SMEM((64, 64), np.float32),
            SMEM((64,), np.float32),
            ClusterBarrier("pair", orders_stores=True),
        )
    )
    m, other = numpipe.axis_index("cta"), 1 - numpipe.axis_index("pair")
    own = x[ds(m * 64, 64), ds(0, 64)]
    tile[...] = own
    sums[...] = own.sum(axis=1)
    numpipe.barrier_arrive(there)
    numpipe.barrier_wait(there)
    beside = numpipe.cluster_ref(tile, cluster_idx=other, cluster_dim="pair")[:, ds(2, 32)]
    theirs = numpipe.layout_cast(
        numpipe.cluster_ref(sums, cluster_idx=other, cluster_dim="pair")[...], "column"
    )
    y[ds(m * 64, 64), ds(0, 32)] = own[:, 0:32] + beside + theirs[:, None]
