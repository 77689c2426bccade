"""Partial sums in global memory: CTAs that compute parts of a tile write their sums to the kernel's
workspace, and the CTA that owns the tile adds them.

The workspace is the kernel's last array, which callers do not pass: each launch gets the workspace
of its stream (`launch.buffers`). A slot of it is a row of float32: the sums of a tile, one compute
warpgroup after the other, followed by a flag for each warpgroup. Within a warpgroup's part, the
order is that of its registers, which only `combine` knows: float4 number i of lane l is at 16 (128
i + l) bytes, so a warp moves whole lines. Warpgroup w of a CTA hands over to warpgroup w of the
other::

    of another part   write   all lanes store their registers
                              named barrier: the stores of all lanes come before what one of
                              them does next
                      signal  one lane writes 1 to the flag (st.release.gpu)
    of the owner      await   each lane polls the flag of another part (ld.acquire.gpu), and sets it
                              to 0 for the next launch
                              named barrier: what these lanes have observed, all lanes may read
                      add     all lanes load, and add to their registers, part by part, in the order
                              of the steps; the loads of several parts of a small tile overlap

If the CTAs of a cluster loop over the same tiles, each has its own slots, which only the CTA with
the same index in another cluster reads. All flags are 0 between launches, so the next launch on the
stream may use the same workspace; it accesses no memory before its ``griddepcontrol.wait``. The
warpgroups of a CTA need not synchronize. `combined` runs unchanged in the simulator and on the GPU.
The release is a MEMBAR.ALL.GPU, which the code checks (`compile.check.gate`) allow outside the
product loops of a kernel with a workspace.

PTX ISA, "Memory Consistency Model: Release and Acquire Patterns; Causality order".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...arch.dimensions import Ints
from ...arch.dtypes import FLOAT32
from ...core.arith import ge, gt, sub
from ...core.lanes import one_lane
from ...core.machine import current, failure
from ...core.op import helper, op
from ...diagnostics.errors import SimulationError, SpecError
from ...plan.cluster_ranks import place_of, rank_of
from ...plan.specs import FLAGS
from ..tiles.fence_order import meet
from ..tiles.layouts import only_accumulator
from ..tiles.refs import GmemRef
from ..tiles.tile import Tile, tile_form
from .split_k import Part

__all__ = ["combine"]

OTHERS = 32
"""registers of a lane that are reserved for addresses and other values while it loads other
parts"""


@op
def combine(acc: Tile, part: Any, work: GmemRef | None = None, axis: str | None = None) -> Tile:
    """Return the whole sum of a tile, in the part that owns it: ``acc = numpipe.combine(acc, part,
    work)``.

    acc   the float32 register tile with the sum of this part
    part  from `split_tiles`; with `axis`, it may be None
    work  the kernel's workspace parameter (`Workspace`). None returns `acc`, for tiles that are not
          cut (``split=None``)
    axis  the axis of the cluster along which the tile was cut, ``split_tiles(…, split=axis)``, a
          compile-time string. Each of the n CTAs gets its share of the whole sum, a tile of
          ``columns / n`` columns: CTA ``axis_index(axis)`` gets those from ``axis_index(axis) *
          columns // n`` on. `work` is None. All CTAs along the axis call it for each tile

    The owner (``part.begin == 0``) waits for the tile's other parts and adds them, always in the
    same order, so results are bitwise reproducible. The other parts write `acc` to the workspace
    and return it unchanged. In the memory role it does nothing.

    Raises SpecError for a tile that is not float32, for an array that is not a workspace, and for
    columns that cannot be divided into shares. On the simulated SM it raises PipelineDeadlock if a
    part never comes, PipelineRace if it is not ordered, and SimulationError if it does not fit. PTX
    ISA, "Memory Consistency Model"; "st.async".
    """
    check(acc, work)
    if work is None or acc.inert:
        return acc
    _fits(work, acc, part)
    whole: Tile = combined(work, acc, part)
    return whole


def check(acc: Any, work: Any) -> None:
    """Raise SpecError unless `acc` is a tile of partial sums, and `work` is a workspace or None,
    given values or Numba types."""
    form = tile_form(acc, "numpipe.combine", "acc")
    only_accumulator(form, "numpipe.combine")
    if work is None:
        return
    if not getattr(getattr(work, "arg", None), "workspace", False):
        raise SpecError(
            "numpipe.combine(acc, part, work): work must be the kernel's workspace, its last "
            "parameter; fix: declare it with @numpipe.kernel(workspace=numpipe.Workspace(…))"
        )
    if form.dtype != FLOAT32:
        raise SpecError(
            "numpipe.combine(acc, part, work): acc must be a float32 register tile, got "
            f"{form.dtype}; fix: combine before astype"
        )


def _fits(work: GmemRef, acc: Tile, part: Part) -> None:
    """Raise SimulationError unless the workspace has the slot, and it is large enough. The GPU
    would end the kernel with an illegal address."""
    slots, size = work.array.shape
    wanted = acc.shape[0] * acc.shape[1] * work.unit.tile_wgs
    if wanted > size - FLAGS:
        fix = f"Workspace(({acc.shape[0] * work.unit.tile_wgs}, {acc.shape[1]}), …)"
        raise failure(
            SimulationError,
            "out-of-bounds",
            f"numpipe.combine: a tile of {wanted} elements, but the workspace has room for "
            f"{size - FLAGS}: {fix}",
            fix,
            "hands a part over",
        )
    if (slot := _own(work, part.slot)) >= slots and (part.begin > 0 or part.others > 0):
        fix = (
            "for split_tiles(split=n) a workspace has n slots for each tile: Workspace(tile, "
            'slots=…), for split="stream" '
            "slots=None"
        )
        raise failure(
            SimulationError,
            "out-of-bounds",
            f"numpipe.combine: slot {slot}, but the workspace has {slots} slots: {fix}",
            fix,
            "hands a part over",
        )


@helper
def combined(work, tile, part):  # type: ignore[no-untyped-def]
    """Return a tile's whole sum in the part that owns it. Other parts write their sum to the
    workspace and return it."""
    if gt(part.begin, 0):
        write_partial(work, part.slot, tile)
        meet()
        one_lane(signal, work, part.slot)
    elif gt(part.others, 0):
        slot = sub(part.slot, 1)
        last = sub(part.slot, part.others)
        await_signals(work, last, part.others)
        meet()
        while ge(slot, last):
            tile = add_partials(work, slot, last, tile)
            slot = sub(slot, parts_together(work, tile))
    return tile


def together(unit: Any, shape: Ints) -> int:
    """Return the number of parts whose registers a lane loads at once, for a tile of this shape: as
    many as fit in addition to the tile itself."""
    own = math.prod(shape) // 128
    return max(1, min(8, int(unit.compute_registers - OTHERS - own) // own))


def _elements(work: GmemRef, slot: int, tile: Tile) -> tuple[slice, slice]:
    """Return the index into the workspace of this warpgroup's elements of a slot."""
    size = tile.shape[0] * tile.shape[1]
    first = _part(work) * size
    return slice(slot, slot + 1), slice(first, first + size)


def _own(work: GmemRef, slot: Any) -> int:
    """Return this CTA's slot among the slots that the CTAs of its cluster have for the same
    part."""
    cluster = work.unit.cluster
    rank: int = rank_of(place_of(current().cta, cluster), cluster)
    return int(slot) * math.prod(cluster) + rank


def _part(work: GmemRef) -> int:
    return int(work.unit.number(current().warpgroup) % work.unit.tile_wgs)


def _flag(work: GmemRef, slot: int) -> tuple[np.ndarray, int, str]:
    flags = work.array[slot, work.array.shape[1] - FLAGS :].view(np.int32)
    return flags, _part(work), f"{work.name}[{slot}]"


@op
def write_partial(work: GmemRef, slot: Any, tile: Tile) -> None:
    """Write the tile's registers to a slot: each lane 16 bytes at a time."""
    current().gmem_write(
        work.array, _elements(work, _own(work, slot), tile), tile.value.reshape(1, -1), work.name
    )


@op
def parts_together(work: GmemRef, tile: Tile) -> Any:
    """Return the number of parts that `add_partials` adds to a tile."""
    return np.int32(together(work.unit, tile.shape))


@op
def add_partials(work: GmemRef, slot: Any, last: Any, tile: Tile) -> Tile:
    """Return the tile plus the sums that other CTAs wrote to a slot and to the slots before it, at
    most `together` of them, down to `last`."""
    total = tile.value
    for each in range(
        int(slot), max(int(last), int(slot) + 1 - together(work.unit, tile.shape)) - 1, -1
    ):
        found = current().gmem_read(work.array, _elements(work, _own(work, each), tile), work.name)
        with np.errstate(all="ignore"):  # floats overflow to inf, as on the GPU
            total = total + found.reshape(tile.shape)
    return Tile(total, tile.form)


@op
def signal(work: GmemRef, slot: Any) -> None:
    """Set this warpgroup's flag of a slot (st.release.gpu), in one lane."""
    current().gmem_signal(*_flag(work, _own(work, slot)))


@op
def await_signals(work: GmemRef, first: Any, count: Any) -> None:
    """Wait until the flags of `count` slots are set (ld.acquire.gpu), and clear them. On the GPU,
    each of 128 lanes polls one flag."""
    current().scoped("one", _await_each, (work, first, count))


def _await_each(work: GmemRef, first: Any, count: Any) -> None:
    for slot in range(int(first), int(first) + int(count)):
        current().gmem_await(*_flag(work, _own(work, slot)))
