"""References to tiles of other CTAs on the GPU: each lane loads its elements with
``ld.shared::cluster``."""

from __future__ import annotations

import operator
from typing import Any

from ...core import numba as nb
from ...core.formula_cuda import Value
from ...core.numba import I32
from ...core.op import cuda_meaning
from ...diagnostics.errors import SpecError
from ...intrinsics import cluster
from ...plan.cluster_ranks import rank_of
from ...plan.context_cuda import cluster_place
from ..tiles import scattered_shared_cuda as anywhere
from ..tiles.refs_cuda import SmemType, inside
from ..tiles.shared_tiles import load_form
from ..tiles.shared_tiles_cuda import converge, part_of, starts_of
from ..tiles.tile_cuda import TileType, assembled, undefined
from ..tiles.words_cuda import load_words
from . import cluster_refs as source

SPACE = "shared::cluster"


class RemoteTileType(nb.FieldsType):
    """The type of a `cluster_refs.RemoteTile`. The value has the tile's address in this CTA, and
    its distance to the other CTA's tile in the cluster's address window."""

    tile: SmemType


nb.struct_model(RemoteTileType, lambda ty: [("address", I32), ("away", I32)])
nb.constant_attributes(
    RemoteTileType, None, shape=lambda ty: ty.tile.layout.sides, dtype=lambda ty: ty.tile.dtype.name
)


@cuda_meaning(source.cluster_ref)
def _cluster_ref(np_: Any, tile: Any, cluster_idx: Any, cluster_dim: Any) -> Any:
    axis, dims = source.check(np_, tile, cluster_idx, cluster_dim), np_.unit.cluster
    result = RemoteTileType(tile)
    builder, args = yield result
    if not np_.computes:
        return builder.struct(result, address=args[1], away=nb.const(0))
    place = cluster_place(builder, dims)
    place[axis] = Value(builder, builder.cast(args[2], cluster_idx, I32))
    to = rank_of(place, dims).value
    there = builder.issue(cluster.map_shared, args[1], to)
    return builder.struct(result, address=args[1], away=builder.sub(there, args[1]))


def _get_item(ref: Any, index: Any) -> Any:
    if not isinstance(ref, RemoteTileType):
        return None
    whole = ref.tile
    parts, starts = part_of(whole, index)
    result = TileType(load_form(whole, parts, f"{source.REF}(…)[…]"))
    builder, args = yield result
    if not whole.role.computes:
        return undefined(result)
    fields = builder.fields(ref, args[0])
    place = inside(builder, whole, index, args[1], f"{source.REF}(…)[…]")

    def fetched(builder: Any, address: Any, nbytes: int) -> list:
        """Load from the cluster's address window what `load_bytes` loads from the CTA's own
        memory."""
        there = builder.add(address, fields.away)
        if nbytes >= 4:
            return load_words(builder, nb.i32, "u32", there, nbytes // 4, SPACE)
        (part,) = load_words(builder, nb.i16, f"u{8 * nbytes}", there, 1, SPACE)
        return [builder.zext(part)]

    even = starts[-1] is not None and starts[-1] % 2 == 0
    at = starts_of(builder, whole, index, parts, place)
    found = anywhere.load(builder, whole.layout, fields.address, result, at, even, fetched)
    converge(builder)
    return assembled(builder, result, found)


def _set_item(ref: Any, _index: Any, _value: Any) -> None:
    if isinstance(ref, RemoteTileType):
        raise SpecError(source.LOADED)


nb.overload(operator.getitem, _get_item)
nb.overload(operator.setitem, _set_item)
