"""References to tiles in the shared memory of other CTAs of the cluster, for loading.

::

    tile[...] = part
    numpipe.barrier_arrive(
        there
    )  # a ClusterBarrier(…, orders_stores=True): what was stored may be loaded
    numpipe.barrier_wait(there)
    other = numpipe.cluster_ref(tile, cluster_idx=1 - rank, cluster_dim="cluster")
    total = part + other[...]
    numpipe.barrier_arrive(read)  # a ClusterBarrier: the tile may be stored again

An allocation has the same address in all CTAs, so a CTA passes its own tile and the index of the
other CTA. A load is an ordinary ``ld.shared::cluster``, of single elements or pairs. Two things
order it: the arrival after the store releases at cluster scope, and the wait acquires at cluster
scope (`phases`). Without ``orders_stores`` both have the CTA's scope, which orders reads but does
not make stores visible to other CTAs. The CTA that owns the tile cannot exit early, because the
CTAs meet at the end of the kernel.

Loads are slow compared with stores to another CTA (`remote`): a load waits for a round trip, and
the release is a fence of the whole GPU.

PTX ISA, "ld": .shared::cluster; "mapa"; "Memory Consistency Model: Scope".
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from ...core.machine import current
from ...core.op import context_op
from ...diagnostics.errors import SpecError
from ...plan.context import Context
from ..tiles.refs import SmemTile
from ..tiles.scattered_shared import load as load_elements
from ..tiles.shared_tiles import load_form, part_of
from ..tiles.tile import Tile
from .copies import check_operands
from .remote import dimension_of, rank_along

__all__ = ["cluster_ref"]

REF = "cluster_ref"
LOADED = (
    "a tile of another CTA can only be loaded from, cluster_ref(…)[…]; fix: store to it with "
    "numpipe.async_store_smem"
)


def check(np_: Any, tile: Any, index: Any, name: Any) -> int:
    """Return the dimension of the cluster along which a CTA is named. Raises SpecError if `tile` is
    not a tile that the kernel allocated."""
    check_operands(REF, tile=("tile", tile))
    if not tile.writable:
        raise SpecError(
            f"{REF}: tile belongs to a pipeline, which refills its slots; fix: pass a tile that "
            "the kernel allocates, numpipe.scratch(numpipe.SMEM(…))"
        )
    return dimension_of(REF, np_, index, name)


class RemoteTile:
    """A tile in the shared memory of the CTA with a given rank, on the simulated SM."""

    def __init__(self, tile: SmemTile, rank: int) -> None:
        self.tile, self.rank = tile, rank
        self.shape, self.dtype = tile.shape, tile.dtype

    def __getitem__(self, index: Any) -> Tile:
        parts, starts = part_of(self.tile, index)
        form = load_form(self.tile, parts, f"{REF}(…)[…]")
        if not self.tile.role.computes:
            return Tile(None, form)
        machine = current()

        def fetch(addresses: np.ndarray, nbytes: int, _what: str) -> np.ndarray:
            return machine.smem_fetch(addresses, nbytes, self.rank, f"{REF}(…)[…]")

        return Tile(
            load_elements(self.tile.layout, self.tile.address, form, (0, *starts)[-2:], fetch), form
        )

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise SpecError(LOADED)


@context_op
def cluster_ref(np_: Context, tile: Any, *, cluster_idx: Any, cluster_dim: str) -> RemoteTile:
    """Return a reference to a tile in the shared memory of another CTA of the cluster, inside a
    kernel.

    tile         a tile that the kernel allocated (`numpipe.scratch`), a slot or a part of one. The
                 other CTA's tile has the same address.
    cluster_idx  the index of that CTA along the axis, a non-negative run-time integer; along other
                 axes it has this CTA's index
    cluster_dim  the name of an axis of the cluster (`cluster_names` of the kernel)

    ``ref[...]`` and ``ref[ds(i, 64), :]`` load the tile, or a part of it, as a register tile. Data
    that the other CTA stored before it arrived on a ``ClusterBarrier(…, orders_stores=True)`` can
    be loaded after `barrier_wait`. Before that CTA stores or copies to the tile again, it must wait
    on a `ClusterBarrier` that says it was read. If copies landed in the tile, the CTA that arrives
    must have waited for them.

    PTX ISA, "ld": .shared::cluster. Raises SpecError for tiles of a pipeline, and for axes that the
    cluster does not have.
    """
    axis = check(np_, tile, cluster_idx, cluster_dim)
    if not np_.computes:
        return RemoteTile(tile, 0)
    return RemoteTile(tile, rank_along(REF, np_, axis, cluster_idx, cluster_dim, "load from"))
