"""Stores to the shared memory of another CTA of the cluster, straight from registers.

::

    numpipe.async_store_smem(
        sums, buffer, landed, cluster_idx=other, cluster_dim="cluster"
    )  # to the other one's buffer
    numpipe.barrier_wait(landed)  # what it has sent is here
    total = sums + buffer[...]
    numpipe.barrier_arrive(free)  # a ClusterBarrier: the buffers may be written again

An allocation lies at the same place in all CTAs, so a CTA names its own tile and barrier, and the
CTA whose they are to be. The sender announces its bytes where they land, with the arrival of each
of its warps; who waits there needs to know of nothing else. ``st.async`` is an ordinary store that
completes on an mbarrier: what has come is read with ordinary loads, and the TMA and wgmma do not
see it (`reduce_scatter` exchanges partial sums in the same way).

PTX ISA, "st.async"; "mbarrier.arrive": .shared::cluster; "Memory Consistency Model: Proxies".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...core import arith
from ...core.inert import NoValue
from ...core.lanes import each_warp
from ...core.machine import current, failure
from ...core.op import called, constant, op
from ...diagnostics.errors import SimulationError, SpecError
from ...intrinsics import cluster, mbarrier
from ...plan.allocations import ARRIVALS_A_WARPGROUP
from ...plan.cluster_ranks import place_of, rank_of
from ...plan.context import Context
from ..tiles.conversions import moved
from ..tiles.layouts import ACCUMULATOR, COLUMN, Form, fits
from ..tiles.shared_tiles import send
from ..tiles.tile import cast_to_store, form_of
from .copies import check_landing, check_operands
from .scratch import BarrierRef

__all__ = ["async_store_smem"]

SEND = "async_store_smem"


def check(np_: Any, src: Any, dst: Any, barrier: Any, index: Any, name: Any) -> int:
    """Return the dimension of the cluster along which a tile is sent; SpecError for what st.async
    cannot send."""
    check_landing(SEND, dst, barrier)
    form = form_of(src, SEND)
    if form is None:
        raise SpecError(f"{SEND}: src must be a register tile, got {called(src)}")
    layout = dst.layout
    if len(form.shape) == 1:
        if form.shape[0] % 64 or form.dtype.itemsize != 4:
            raise SpecError(
                f"{SEND}: a vector has 64 x j elements of 32 bits, got {form.dtype} {form.shape}"
            )
    elif not fits(form.shape):
        raise SpecError(f"{SEND}: a tile has 64 x j rows and at most 256 columns, got {form.shape}")
    if form.shape != layout.sides:
        raise SpecError(
            f"{SEND}: src is {form.shape}, dst {layout.sides}: both must be of one shape"
        )
    if form.dtype != dst.dtype:
        raise SpecError(f"{SEND}: src is {form.dtype}, dst {dst.dtype}: send src.astype(dst.dtype)")
    if layout.itemsize * (2 if layout.inner == 1 else 1) < 4:
        share = "two adjacent columns" if layout.inner == 1 else "one element of a row"
        raise SpecError(
            f"{SEND}: st.async stores 4 bytes at least, and a lane has {share} of {dst.dtype}: "
            "send "
            + (
                "a tile of 16 or 32 bits, src.astype(…)"
                if layout.itemsize == 1
                else "to a tile whose rows are contiguous, or one of 32 bits"
            )
        )
    return dimension_of(SEND, np_, index, name)


def sent_form(form: Form) -> Form:
    """Return the form in which a tile is sent: a vector along rows, as the sums of a tile's rows
    lie."""
    return replace(form, layout=COLUMN if len(form.shape) == 1 else ACCUMULATOR)


def dimension_of(operation: str, np_: Any, index: Any, name: Any) -> int:
    """Return the dimension of the cluster along which a CTA is named, given values or types;
    SpecError where none is."""
    axis = constant(operation, "cluster_dim", name)
    if not isinstance(axis, str):
        raise SpecError(
            f"{operation}: cluster_dim must be the name of an axis of the cluster (cluster_names= "
            f"of the kernel), got {axis!r}"
        )
    if not (arith.is_integer(index) or isinstance(index, NoValue)):
        raise SpecError(
            f"{operation}: cluster_idx must be an integer, the place along {axis!r} of the CTA "
            f"that is meant, got {called(index)}"
        )
    dimension: int = np_.unit.cluster_dims((axis,), operation, "cluster_dim")[0]
    np_.unit.reaches = True
    return dimension


def rank_along(operation: str, np_: Context, axis: int, index: Any, name: str, does: str) -> int:
    """Return the rank of the CTA at a place along a dimension of the cluster; SimulationError where
    there is none."""
    dims = np_.unit.cluster
    place = list(place_of(current().cta, dims))
    if not 0 <= index < dims[axis]:
        raise failure(
            SimulationError,
            "out-of-bounds",
            f"{operation}: cluster_idx={index}, and the cluster has {dims[axis]} CTAs "
            f"along {name!r}; the GPU would {does} memory that is nobody's",
            f"a place in 0…{dims[axis] - 1}",
            "reaches for another CTA's tile",
        )
    place[axis] = int(index)
    rank: int = rank_of(place, dims)
    return rank


@op(context=True)
def async_store_smem(
    np_: Context, src: Any, dst: Any, barrier: BarrierRef, *, cluster_idx: Any, cluster_dim: str
) -> None:
    """Start storing a register tile to the shared memory of a CTA of the cluster, inside a kernel.

    src          a register tile (64 j, columns) in the accumulator's layout, of 32 bits an element,
                 or of 16; or a vector of 32 bits that lies along the rows, as ``tile.sum(axis=1)``
                 does
    dst          a tile in shared memory of its shape and type, or a part of one that `tile.at`
                 gives (`numpipe.scratch`, `numpipe.run_scoped`); of 16 bits its rows are
                 contiguous. The CTA that gets `src` has it at the same place.
    barrier      one of a `numpipe.Barrier`, of that CTA too. The store counts as an arrival of its
                 phase there, which is over when the bytes have come.
    cluster_idx  the place of that CTA along the axis, a run-time integer from 0 on; along other
                 axes it is where this one is. This CTA's own place is allowed.
    cluster_dim  the name of an axis of the cluster (`cluster_names` of the kernel)

    What the other CTA's warpgroups did with the tile is over: they have told this warpgroup, with a
    `numpipe.ClusterBarrier`. There the tile is read with ``tile[...]`` behind `barrier_wait`; the
    TMA and wgmma do not see what has come.

    By all lanes of a warpgroup, each with its own elements (PTX ISA, "st.async"). Raises SpecError
    where shapes or types differ, and for axes that the cluster has not.
    """
    check_operands(SEND, dst=("tile", dst), barrier=("barrier", barrier))
    src = cast_to_store(src, dst.dtype)
    axis = check(np_, src, dst, barrier, cluster_idx, cluster_dim)
    if not np_.computes:
        return
    to = rank_along(SEND, np_, axis, cluster_idx, cluster_dim, "store to")
    each_warp(
        mbarrier.arrive_expect_tx_remote,
        cluster.map_shared(barrier.address, to),
        dst.layout.nbytes // ARRIVALS_A_WARPGROUP,
    )
    src = moved(src, sent_form(src.form))
    send(dst.layout, dst.address, src.form, src.value, to, barrier.address, SEND)
