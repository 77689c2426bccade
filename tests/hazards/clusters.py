"""Hazards of clusters: slots that CTAs fill for each other, arrivals on each other's barriers, and
CTAs that have not started or have exited."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, BlockSpec, ClusterBarrier, PipelineDeadlock, ds
from numpipe.core.lanes import each_warp, one_lane
from numpipe.core.machine import current
from numpipe.intrinsics import barrier, cluster, cp_async_bulk, fence, mbarrier, memory

from .catalogue import F32, integers, kernel, machine

X = integers(64, 128)
READY, FREE = 60 * 1024, 60 * 1024 + 8
PAIR = {"grid": (2, 1, 1), "cluster": (2, 1, 1)}
WORDS = X[:, ::64].copy().view(np.int16)[0].astype(np.int32) & 0xFFFF
"""the first element of each of the two tiles of X, as bits"""


def begin(*counts):
    for number, count in enumerate(counts):
        mbarrier.init(READY + 8 * number, count)
    fence.mbarrier_init()


def meet():
    cluster.arrive()
    cluster.wait()


def fill(x, step):
    """Load this CTA's half of a tile to both CTAs; each expects all of it."""
    mbarrier.wait(FREE, step - 1, step)
    mbarrier.arrive_expect_tx(READY, 2 * x.nbytes)
    rank = current().rank
    cp_async_bulk.multicast(4096 * rank, x, (32 * rank, 64 * step), READY, 0b11)


def release(to):
    """Arrive with every warp on the consumed barrier of each of these CTAs."""
    barrier.sync(1, 128)
    for rank in to:
        each_warp(mbarrier.arrive_remote, cluster.map_shared(FREE, rank))


def two_steps(x, out, counts, to):
    """Process two tiles through one slot in both CTAs, and record the first word of each."""
    one_lane(begin, 1, 4 * counts)
    meet()
    rank = current().rank
    for step in range(2):
        one_lane(fill, x, step)
        mbarrier.wait(READY, step, step)
        out[2 * rank + step] = memory.load_word(0) & 0xFFFF
        release(to)
    meet()


@machine(
    "refilled-while-read",
    r"TMA load \(x\).*(warpgroup 0 \(compute\) of CTA \([01], 0, 0\) does not wait until (CTA "
    r"\([01], 0, 0\) has released these bytes.*fix: +every CTA whose slot is filled releases it to "
    r"every CTA that fills|warpgroup 0 \(compute\) of CTA \([01], 0, 0\) has read.*fix: "
    r"+barrier_arrive by the readers))",
    X,
    gives=np.tile(WORDS, 2),
    box=(32, 64),
    **PAIR,
)
def a_slot_that_is_not_released_to_the_peer_that_fills_it(fixed, x, out):
    if fixed:
        two_steps(x, out, 2, (0, 1))
    else:
        two_steps(x, out, 1, (current().rank,))


@machine(
    "too-few-arrivals",
    r"the cluster of CTAs \(0, 0, 0\), \(1, 0, 0\): every warpgroup waits.*warpgroup 0 "
    r"\(compute\) of CTA \(1, 0, 0\): blocked on mbarrier at 61448 of CTA \(1, 0, 0\) phase 0 "
    r"step 1.*mbarrier at 61448 of CTA \(1, 0, 0\): phase 0, 4 of 8 arrivals missing, 0 bytes "
    r"missing; arrived: warpgroup 0 \(compute\) of CTA \(1, 0, 0\) x 4",
    X,
    gives=np.tile(WORDS, 2),
    box=(32, 64),
    error=PipelineDeadlock,
    **PAIR,
)
def a_release_that_misses_a_peer(fixed, x, out):
    two_steps(x, out, 2, (0, 1) if fixed else (current().rank,))


@machine(
    "exit-in-flight",
    r"mbar_arrive_remote on mbarrier at 61440 in shared memory of CTA \([01], 0, 0\), which may "
    r"have ended: it does not wait for this access: all warpgroups of the cluster meet",
    gives=np.array([7, 7]),
    **PAIR,
)
def a_cta_that_ends_while_its_peer_arrives(fixed, out):
    one_lane(begin, 4)
    meet()
    each_warp(mbarrier.arrive_remote, cluster.map_shared(READY, 1 - current().rank))
    out[current().rank] = 7
    if fixed:
        meet()


@machine(
    "exit-in-flight",
    r"tma_multicast of x to CTA \(1, 0, 0\), which may be in flight when CTA \(0, 0, 0\) ends: the "
    r"CTA does not wait for it: all warpgroups of the cluster meet",
    X,
    gives=WORDS[[0, 0]],
    **PAIR,
)
def a_cta_that_ends_while_its_copy_to_the_peer_is_on_its_way(fixed, x, out):
    one_lane(begin, 1)
    meet()
    if current().rank == 0:
        one_lane(cp_async_bulk.multicast, 0, x, (0, 0), READY, 0b10)
        out[0] = WORDS[0]
    else:
        one_lane(mbarrier.arrive_expect_tx, READY, x.nbytes)
        mbarrier.wait(READY, 0, 0)
        out[1] = memory.load_word(0) & 0xFFFF
    if fixed:
        meet()


@machine(
    "missing-init-fence",
    r"mbar_arrive_remote on (SMEM\[61440\], where no mbarrier has been initialized yet|mbarrier at "
    r"61440, but nothing orders this after its initialization at clusters.py:\d+ in begin)",
    gives=np.array([7, 7]),
    **PAIR,
)
def an_arrival_at_a_cta_that_may_not_have_begun(fixed, out):
    one_lane(begin, 4)
    if fixed:
        meet()
    else:
        barrier.sync(0, 128)
    each_warp(mbarrier.arrive_remote, cluster.map_shared(READY, 1 - current().rank))
    mbarrier.wait(READY, 0, -1)
    out[current().rank] = 7
    meet()


@machine(
    "too-few-arrivals",
    r"cluster_wait without a cluster_arrive; cluster_arrive first",
    gives=np.array([7, 7]),
    error=numpipe.SimulationError,
    **PAIR,
)
def a_wait_for_the_cluster_without_an_arrival(fixed, out):
    if fixed:
        cluster.arrive()
    cluster.wait()
    out[current().rank] = 7


# ---- values sent between CTAs ----------------------------------------------------------------
CHUNKS = 16 * np.arange(128).reshape(4, 32)
"""addresses of a float4 per lane, by warp"""
SENT = np.array([11, 10, 21, 20])
"""what each CTA receives: ten times the round, plus the other CTA's rank"""


def send(number):
    """Send a word from all lanes to the other CTA, which adds it to its own."""
    words = np.full((4, 32, 4), 10 * number + current().rank, np.float32)
    current().smem_send(CHUNKS, words.view(np.uint8), 1 - current().rank, READY, "sums")


def found():
    return current().smem_read(CHUNKS, "sums").view(np.float32)[3, 31, 3]


def rounds(out, *, waits=True, asks=True, meets=False):
    """Twice, send from each CTA, wait for the other's data, read it, and report that it was
    read."""
    one_lane(begin, 4, 4)
    meet()
    for number in range(2):
        each_warp(mbarrier.arrive_expect_tx, READY, 512)
        if asks:
            mbarrier.wait(FREE, number - 1, -1)
        send(number + 1)
        if meets:
            meet()  # both have sent, which does not order when it arrives
        if waits:
            mbarrier.wait(READY, number, -1)
        out[2 * number + current().rank] = found()
        each_warp(mbarrier.arrive_remote, cluster.map_shared(FREE, 1 - current().rank))
    meet()


@machine(
    "read-before-ready",
    r"read \(sums\) reads SMEM\[\d+:\d+\) while st.async \(sums\) of warpgroup 0 \(compute\) of "
    r"CTA \([01], 0, 0\) may still be writing it.*.* does not wait until the data from .* has "
    r"landed.*fix: +wait for mbarrier at 61440, phase 0, in every warp",
    gives=SENT,
    **PAIR,
)
def sums_that_are_read_before_they_have_come(fixed, out):
    rounds(out, waits=fixed, meets=True)


@machine(
    "refilled-while-read",
    r"st.async \(sums\) fills SMEM\[\d+:\d+\) while .*warpgroup 0 \(compute\) of CTA \([01], 0, "
    r"0\) does not wait until CTA \([01], 0, 0\) has read the previous data.*fix: +each warp that "
    r"reads the data arrives on a barrier of the sending CTA",
    gives=SENT,
    **PAIR,
)
def sums_that_are_sent_over_those_before(fixed, out):
    rounds(out, asks=fixed)


@machine(
    "exit-in-flight",
    r"st.async \(sums\) on mbarrier at 61440 phase 0 .* was never waited for before the CTA ends|"
    r"st.async of sums in shared memory of CTA \([01], 0, 0\), which may have ended",
    gives=np.array([7, 7]),
    **PAIR,
)
def a_cta_that_ends_while_its_peer_sends(fixed, out):
    one_lane(begin, 4)
    meet()
    each_warp(mbarrier.arrive_expect_tx, READY, 512)
    send(1)
    if fixed:
        mbarrier.wait(READY, 0, -1)
        meet()
    out[current().rank] = 7


@machine(
    "unfenced-writes",
    r"TMA store \(out\) reads SMEM\[\d+:\d+\) while st.async \(sums\) of warpgroup 0 \(compute\) "
    r"of CTA \([01], 0, 0\) may still be writing it.*writes through the generic proxy, as ordinary "
    r"stores do: the data is not visible to the async proxy.*fix: +read the data with ordinary "
    r"loads",
    gives=np.repeat(np.array([11, 10], F32), 16)[:, None] * np.ones(32, F32),
    box=(16, 32),
    **PAIR,
)
def sums_that_the_tma_stores_as_they_come(fixed, out):
    one_lane(begin, 4)
    meet()
    each_warp(mbarrier.arrive_expect_tx, READY, 512)
    send(1)
    mbarrier.wait(READY, 0, -1)
    if fixed:
        current().smem_write(CHUNKS, current().smem_read(CHUNKS, "sums"), "sums")
    fence.proxy_async()
    barrier.sync(1, 128)
    one_lane(stored, out)
    meet()


def stored(out):
    cp_async_bulk.store(out, (16 * current().rank, 0), 0)
    cp_async_bulk.commit_group()
    cp_async_bulk.wait_group(0)


A, B = integers(128, 128), integers(64, 128)


@kernel(
    A,
    np.concatenate([B, B]),
    np.zeros((128, 64), F32),
    hazard="multicast-mismatch",
    says=r"kernel shares_of_two_blocks, pipeline at .*: in_specs\[1\] for 'b': index_map is "
    r"\(\d+, \d+\) of 'b' in CTA \([01], 0, 0\) and \(\d+, \d+\) of 'b' in CTA \([01], 0, "
    r"0\), and each loads a share of the block for both: the tile would mix two blocks; use the "
    r"same start for all CTAs along collective_axes",
    gives=A.astype(F32) @ B.astype(F32).T,
    grid=2,
    cluster=2,
    cluster_names="cta",
)
def shares_of_two_blocks(a, b, c, *, fixed: numpipe.Static):
    m = numpipe.axis_index("cta")
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(2,),
        in_specs=(
            BlockSpec((64, 64), lambda k: (m, k)),
            BlockSpec((64, 64), lambda k: (0 if fixed else m, k), collective_axes="cta"),
        ),
    )
    for _, (a_tile, b_tile) in pipe(a, b):
        acc = numpipe.wgmma(acc, a_tile, b_tile.T)
    c[ds(m * 64, 64), ds(0, 64)] = acc


# ---- multicast copies by hand ----------------------------------------------------------------
TWICE = np.concatenate([A[:64, :64].astype(F32) + A[:64, 64:].astype(F32)] * 2)


@kernel(
    A[:64],
    np.zeros((128, 64), F32),
    hazard="refilled-while-read",
    says=r"TMA load \(x\) fills SMEM\[\d+:\d+\) .*warpgroup 0 \(compute\) of CTA \([01], 0, 0\) "
    r"does not wait until (CTA \([01], 0, 0\) has released these bytes|warpgroup 0 "
    r"\(compute\) of CTA \([01], 0, 0\) has read)",
    gives=TWICE,
    grid=2,
    cluster=2,
    cluster_names="pair",
)
def a_tile_that_is_not_free_in_the_other_cta(x, y, *, fixed: numpipe.Static):
    tile, landed, free = numpipe.scratch(
        (SMEM((64, 64), np.float16), Barrier(), ClusterBarrier("pair"))
    )
    acc = numpipe.zeros((64, 64), np.float32)
    for k in range(2):
        numpipe.copy_gmem_to_smem(
            x.at[ds(0, 64), ds(k * 64, 64)], tile, landed, collective_axes="pair"
        )
        numpipe.barrier_wait(landed)
        acc = acc + tile[...].astype(np.float32)
        if fixed:
            numpipe.barrier_arrive(free)
            numpipe.barrier_wait(free)
    y[ds(numpipe.axis_index("pair") * 64, 64), ds(0, 64)] = acc


@kernel(
    A[:64],
    np.zeros((128, 64), F32),
    hazard="multicast-mismatch",
    says=r"copy_gmem_to_smem: src is \(0, \d+\) of 'x' in CTA \([01], 0, 0\) and \(0, \d+\) of "
    r"'x' in CTA \([01], 0, 0\), and each loads a share of the block for both: the tile would mix "
    r"two blocks; use the same start for all CTAs along collective_axes",
    gives=np.tile(A[:64, :64].astype(F32), (2, 1)),
    grid=2,
    cluster=2,
    cluster_names="pair",
)
def a_copy_of_two_views(x, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    rank = numpipe.axis_index("pair")
    numpipe.copy_gmem_to_smem(
        x.at[ds(0, 64), ds(0 if fixed else rank * 64, 64)], tile, landed, collective_axes="pair"
    )
    numpipe.barrier_wait(landed)
    y[ds(rank * 64, 64), ds(0, 64)] = tile[...].astype(np.float32)


# ---- stores to other CTAs by hand ----------------------------------------------------------------
HALVES = np.concatenate([A[64:, :32], A[:64, :32]]).astype(F32)


@kernel(
    A.astype(F32),
    np.zeros((128, 32), F32),
    hazard="read-before-ready",
    says=r"reads SMEM\[\d+:\d+\) while st.async \(async_store_smem\) of warpgroup 0 \(compute\) "
    r"of CTA \([01], 0, 0\) may still be writing it.*.* does not wait until the data from .* has "
    r"landed",
    gives=HALVES,
    grid=2,
    cluster=2,
    cluster_names="pair",
)
def a_tile_that_is_read_before_it_has_come(x, y, *, fixed: numpipe.Static):
    buffer, landed, sent = numpipe.scratch(
        (SMEM((64, 32), np.float32), Barrier(), ClusterBarrier("pair"))
    )
    rank = numpipe.axis_index("pair")
    numpipe.async_store_smem(
        x[ds(rank * 64, 64), ds(0, 32)], buffer, landed, cluster_idx=1 - rank, cluster_dim="pair"
    )
    numpipe.barrier_arrive(sent)
    numpipe.barrier_wait(sent)  # both have sent, which does not order when it arrives
    if fixed:
        numpipe.barrier_wait(landed)
    y[ds(rank * 64, 64), ds(0, 32)] = buffer[...]
    if not fixed:
        numpipe.barrier_wait(landed)


@kernel(
    A.astype(F32),
    np.zeros((128, 32), F32),
    hazard="refilled-while-read",
    says=r"st.async \(async_store_smem\) fills SMEM\[\d+:\d+\) while .*warpgroup 0 \(compute\) of "
    r"CTA \([01], 0, 0\) does not wait until CTA \([01], 0, 0\) has read the previous data",
    gives=HALVES + np.concatenate([A[64:, 32:64], A[:64, 32:64]]).astype(F32),
    grid=2,
    cluster=2,
    cluster_names="pair",
)
def a_tile_that_is_sent_over_one_before(x, y, *, fixed: numpipe.Static):
    buffer, landed, free = numpipe.scratch(
        (SMEM((64, 32), np.float32), Barrier(num_barriers=2), ClusterBarrier("pair"))
    )
    rank = numpipe.axis_index("pair")
    total = numpipe.zeros((64, 32), np.float32)
    for k in range(2):
        numpipe.async_store_smem(
            x[ds(rank * 64, 64), ds(k * 32, 32)],
            buffer,
            landed.at[k],
            cluster_idx=1 - rank,
            cluster_dim="pair",
        )
        numpipe.barrier_wait(landed.at[k])
        total = total + buffer[...]
        if fixed:
            numpipe.barrier_arrive(free)
            numpipe.barrier_wait(free)
    y[ds(rank * 64, 64), ds(0, 32)] = total


# ---- loads from other CTAs -----------------------------------------------------------------------
@kernel(
    A.astype(F32),
    np.zeros((128, 32), F32),
    hazard="unordered-accesses",
    says=r"remote load \(cluster_ref\(…\)\[…\]\) reads SMEM\[\d+:\d+\) while write \(tile\[…\] = "
    r"value\) of warpgroup 0 \(compute\) of CTA \([01], 0, 0\) may still be writing "
    r"it.*.* does not wait until the data that .* wrote is visible to other CTAs.*fix: "
    r"+barrier_arrive after the store, on a ClusterBarrier\(…, orders_stores=True\)",
    gives=HALVES,
    grid=2,
    cluster=2,
    cluster_names="pair",
)
def a_tile_that_is_loaded_behind_a_barrier_that_orders_no_stores(x, y, *, fixed: numpipe.Static):
    tile, met, there = numpipe.scratch(
        (
            SMEM((64, 32), np.float32),
            ClusterBarrier("pair"),
            ClusterBarrier("pair", orders_stores=True),
        )
    )
    rank = numpipe.axis_index("pair")
    tile[...] = x[ds(rank * 64, 64), ds(0, 32)]
    if fixed:
        numpipe.barrier_arrive(there)
        numpipe.barrier_wait(there)
    else:
        numpipe.barrier_arrive(met)
        numpipe.barrier_wait(met)
    y[ds(rank * 64, 64), ds(0, 32)] = numpipe.cluster_ref(
        tile, cluster_idx=1 - rank, cluster_dim="pair"
    )[...]


@kernel(
    A.astype(F32),
    np.zeros((128, 32), F32),
    hazard="unordered-accesses",
    says=r"(write \(tile\[…\] = value\)|remote load \(cluster_ref\(…\)\[…\]\)) \w+ "
    r"SMEM\[\d+:\d+\) while .* of warpgroup 0 \(compute\) of CTA \([01], 0, 0\) may still be "
    r"(reading|writing) it.*.* does not wait until .* has read the previous data.*fix: "
    r"+barrier_arrive on a ClusterBarrier by the CTA that has read",
    gives=HALVES + np.concatenate([A[64:, 32:64], A[:64, 32:64]]).astype(F32),
    grid=2,
    cluster=2,
    cluster_names="pair",
)
def a_tile_that_is_stored_over_while_another_cta_loads_it(x, y, *, fixed: numpipe.Static):
    tile, there, read = numpipe.scratch(
        (
            SMEM((64, 32), np.float32),
            ClusterBarrier("pair", 2, orders_stores=True),
            ClusterBarrier("pair"),
        )
    )
    rank = numpipe.axis_index("pair")
    total = numpipe.zeros((64, 32), np.float32)
    for k in range(2):
        tile[...] = x[ds(rank * 64, 64), ds(k * 32, 32)]
        numpipe.barrier_arrive(there.at[k])
        numpipe.barrier_wait(there.at[k])
        total = total + numpipe.cluster_ref(tile, cluster_idx=1 - rank, cluster_dim="pair")[...]
        if fixed:
            numpipe.barrier_arrive(read)
            numpipe.barrier_wait(read)
    y[ds(rank * 64, 64), ds(0, 32)] = total


@machine(
    "exit-in-flight",
    r"a remote load \(sums\) in shared memory of CTA \([01], 0, 0\), which may have ended: it does "
    r"not wait for this access: all warpgroups of the cluster meet",
    gives=np.array([11, 10]),
    **PAIR,
)
def a_cta_that_ends_while_its_peer_loads(fixed, out):
    words = np.full((4, 32, 4), 10 + current().rank, np.float32)
    current().smem_write(CHUNKS, words.view(np.uint8), "sums")
    meet()
    loaded = current().smem_fetch(CHUNKS, 16, 1 - current().rank, "sums").view(np.float32)
    out[current().rank] = loaded[3, 31, 3]
    if fixed:
        meet()
