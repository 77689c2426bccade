"""Stores from registers to the shared memory of another CTA of the cluster.

::

    numpipe.async_store_smem(
        sums, buffer, landed, cluster_idx=other, cluster_dim="cluster"
    )  # to the other one's buffer
    numpipe.barrier_wait(landed)  # what it has sent is here
    total = sums + buffer[...]
    numpipe.barrier_arrive(free)  # a ClusterBarrier: the buffers may be written again

An allocation has the same address in all CTAs, so a CTA passes its own tile and barrier, and the
index of the receiving CTA. The sender's warps arrive on the receiver's barrier and announce the
bytes there, so a receiver only waits on its barrier. ``st.async`` is an ordinary store that
completes on an mbarrier: the data is read with ordinary loads, and is not visible to the TMA and
wgmma (`reduce_scatter` exchanges partial sums in the same way).

PTX ISA, "st.async"; "mbarrier.arrive": .shared::cluster; "Memory Consistency Model: Proxies".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...core import arith
from ...core.inert import NoValue
from ...core.lanes import each_warp
from ...core.machine import current, failure
from ...core.op import called, constant, context_op, is_none
from ...diagnostics.argument_checks import a
from ...diagnostics.errors import SimulationError, SpecError
from ...intrinsics import cluster, mbarrier
from ...plan.allocations import ARRIVALS_A_WARPGROUP
from ...plan.cluster_ranks import place_of, rank_of
from ...plan.context import Context
from ..tiles.conversions import moved
from ..tiles.layout_names import COLUMN
from ..tiles.layouts import ACCUMULATOR, Form, fits
from ..tiles.shared_tiles import send
from ..tiles.tile import cast_to_store, tile_form
from .copies import check_landing, check_operands
from .scratch import BarrierRef

__all__ = ["async_store_smem"]

SEND = "async_store_smem"
AXIS = a(str, text="the name of an axis of the cluster (cluster_names= of the kernel)")


def check(np_: Any, src: Any, dst: Any, barrier: Any, index: Any, name: Any) -> int:
    """Return the dimension of the cluster along which a tile is sent. Raises SpecError for tiles
    that st.async cannot send."""
    check_landing(SEND, dst, barrier)
    form, layout = tile_form(src, SEND, "src"), dst.layout
    if len(form.shape) == 1:
        whole = 64 if (sent := sent_form(form)).layout == COLUMN else 8
        if form.shape[0] % whole or form.dtype.itemsize != 4 or sent.record.warps < 4:
            raise SpecError(
                f"{SEND}: a vector must have a multiple of 64 elements of 32 bits, or be one that "
                f"tile.sum(axis=1) of a tile by rows returns, got {form.dtype} {form.shape}"
            )
    elif not fits(form.shape):
        raise SpecError(
            f"{SEND}: a tile must have a multiple of 64 rows, and at most 256 columns, got "
            f"{form.shape}"
        )
    if form.shape != layout.sides:
        raise SpecError(
            f"{SEND}: src is {form.shape}, but dst is {layout.sides}: they must have the same shape"
        )
    if form.dtype != dst.dtype:
        raise SpecError(
            f"{SEND}: src is {form.dtype}, but dst is {dst.dtype}; fix: send src.astype(dst.dtype)"
        )
    if layout.itemsize * (2 if layout.inner == 1 else 1) < 4:
        share = "two adjacent columns" if layout.inner == 1 else "one element of a row"
        raise SpecError(
            f"{SEND}: st.async stores at least 4 bytes, but a lane has only {share} of "
            f"{dst.dtype}; fix: send "
            + (
                "a tile of 16 or 32 bits, src.astype(…)"
                if layout.itemsize == 1
                else "to a tile whose rows are contiguous, or to one of 32 bits"
            )
        )
    return dimension_of(SEND, np_, index, name)


def sent_form(form: Form) -> Form:
    """Return the form in which a tile is sent: a vector along rows, as the sums of a tile's rows
    lie."""
    if len(form.shape) == 2:
        return replace(form, layout=ACCUMULATOR)
    return form if form.layout.startswith(f"{COLUMN} ") else replace(form, layout=COLUMN)


def dimension_of(operation: str, np_: Any, index: Any, name: Any) -> int:
    """Return the dimension of the cluster that `name` names, given values or types. Raises
    SpecError if there is none, and for an index that is not an integer."""
    axis = constant(operation, "cluster_dim", name, AXIS)
    if not (is_none(index) or arith.is_integer(index) or isinstance(index, NoValue)):
        raise SpecError(
            f"{operation}: cluster_idx, the index of the other CTA along {axis!r}, must be an "
            f"integer, got {called(index)}"
        )
    dimension: int = np_.unit.cluster_dims((axis,), operation, "cluster_dim")[0]
    np_.unit.reaches |= not is_none(index)
    return dimension


def rank_along(operation: str, np_: Context, axis: int, index: Any, name: str, does: str) -> int:
    """Return the rank of the CTA with this index along a dimension of the cluster. Raises
    SimulationError if there is none."""
    dims = np_.unit.cluster
    place = list(place_of(current().cta, dims))
    if not 0 <= index < dims[axis]:
        raise failure(
            SimulationError,
            "out-of-bounds",
            f"{operation}: cluster_idx={index}, but the cluster has {dims[axis]} CTAs along "
            f"{name!r}; the GPU would {does} memory outside the cluster",
            f"an index in 0…{dims[axis] - 1}",
            "accesses another CTA's tile",
        )
    place[axis] = int(index)
    rank: int = rank_of(place, dims)
    return rank


@context_op
def async_store_smem(
    np_: Context, src: Any, dst: Any, barrier: BarrierRef, *, cluster_idx: Any, cluster_dim: str
) -> None:
    """Start storing a register tile to the shared memory of a CTA of the cluster, inside a kernel.

    src          a register tile (64 j, columns) in accumulator layout, of 32-bit or 16-bit
                 elements; or a vector of 32-bit elements along the rows, as ``tile.sum(axis=1)``
                 returns it
    dst          a tile in shared memory of the same shape and type (`numpipe.scratch`,
                 `numpipe.run_scoped`), or a part of one (`tile.at`). For 16-bit elements its rows
                 are contiguous. The data is stored at the same address in the other CTA.
    barrier      one barrier of a `numpipe.Barrier`; the other CTA's barrier at the same address is
                 used. The store counts as an arrival of its phase, which ends when the bytes have
                 landed.
    cluster_idx  the index of the receiving CTA along the axis, a non-negative run-time integer; it
                 may be this CTA's own index. Along other axes, the CTAs have the same index. None:
                 all CTAs along the axis, each of which must wait for all that it is sent before it
                 ends
    cluster_dim  the name of an axis of the cluster (`cluster_names` of the kernel)

    Before the call, the other CTA's warpgroups must be done with the tile, and must have signaled
    that to this warpgroup with a `numpipe.ClusterBarrier`. There, read the tile with ``tile[...]``
    after `barrier_wait`; the data is not visible to the TMA and wgmma.

    All lanes of a warpgroup call it, and each stores its own elements (PTX ISA, "st.async"). Raises
    SpecError if shapes or types differ, and for axes that the cluster does not have.
    """
    check_operands(SEND, dst=("tile", dst), barrier=("barrier", barrier))
    src = cast_to_store(src, dst.dtype)
    axis = check(np_, src, dst, barrier, cluster_idx, cluster_dim)
    if not np_.computes:
        return
    src = moved(src, sent_form(src.form))
    for index in range(np_.unit.cluster[axis]) if is_none(cluster_idx) else [cluster_idx]:
        to = rank_along(SEND, np_, axis, index, cluster_dim, "store to")
        each_warp(
            mbarrier.arrive_expect_tx_remote,
            cluster.map_shared(barrier.address, to),
            dst.layout.nbytes // ARRIVALS_A_WARPGROUP,
        )
        send(dst.layout, dst.address, src.form, src.value, to, barrier.address, SEND)
