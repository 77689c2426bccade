"""Two scheduling fences that ptxas keeps.

The plain fence is a boundary between basic blocks: a loop that runs once, which depends on a value
that ptxas does not know, around an instruction that ptxas cannot prove to be a no-op. ptxas deletes
an empty loop, predicates the instructions of a short branch, and sinks arithmetic below a plain
branch. A branch around `exit` would end the products in flight (note C7517); with one around
`trap`, ptxas gives the role no more registers than the launch.

The fence after a tile is a store to shared memory that depends on the tile, under a predicate that
is false for the same reason. ptxas does not move a wait for products above a store. A volatile
load, a prefetch or `bar.warp.sync` does not hold the wait; a predicated `red`, `fence`, `nanosleep`
or `commit_group` becomes a branch, which ends the block.
"""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.op import cuda_meaning
from ...plan.context_cuda import own_warpgroup
from ..tiles.tile_cuda import InFlightType, TileType, words
from . import schedule_fences as source

NOBODY = 0x7FFFFFFF
"""A number that no warpgroup has."""
_NEVER = f".reg .pred never; setp.eq.u32 never, $0, {NOBODY};"
_FENCE = f"{{ {_NEVER} AGAIN: bar.warp.sync 0xffffffff; @never bra AGAIN; }}"
_BEHIND = f"{{ {_NEVER} @never st.weak.shared.b32 [$1], $2; }}"


@cuda_meaning(source.schedule_fence)
def _fence_schedule(np_: Any, after: Any) -> Any:
    none = isinstance(after, nb.NoneType)
    if np_.computes and not none and not isinstance(after, (TileType, InFlightType)):
        raise source.no_tile(np_.unit.kernel, str(nb.unliteral(after)))
    tile = after.settled("schedule_fence(after)") if np_.computes and not none else None
    builder, args = yield
    if np_.computes:
        own = own_warpgroup(builder, args[0])
        if tile is None:
            builder.execute([own], _FENCE)
        else:
            parts = words(builder, tile, args[1])
            # both rows, if there are two
            ends = [builder.bitcast(part, nb.i32) for part in (parts[0], parts[-1])]
            builder.execute([own, *ends], _BEHIND)
