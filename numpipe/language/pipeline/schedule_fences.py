"""`numpipe.schedule_fence`: a place in the machine code that statements are not moved across."""

from __future__ import annotations

from typing import Any

from ...core.op import op
from ...diagnostics.errors import SpecError
from ...plan.context import Context
from ..tiles.tile import Tile

__all__ = ["schedule_fence"]


@op(context=True)
def schedule_fence(np_: Context, after: Any = None) -> None:
    """Keep the compiler from moving statements from one side of this one to the other; with
    `after`, from moving waits above it.

    after   a register tile. What other threads could see, above all waits (`wgmma_wait`,
            `barrier_wait`) and releases, stays behind the tile's computation, while ptxas still
            interleaves the arithmetic before and after. None: nothing crosses, arithmetic neither.

    ptxas orders statements anew between two branches, and moves a wait for a product up, above
    arithmetic that does not need the product: so the arithmetic no longer runs beside the product,
    but behind it. Often that suits the registers there are, and it interleaves statements behind
    the wait with those before it; measure::

        e = np.exp2(s)  # while the product `acc` runs
        numpipe.schedule_fence(after=e)
        acc = numpipe.wgmma_wait(acc)

    In the compute role `after` costs two instructions, a comparison and a store that is never made,
    which reads the tile's last register. Without it the fence is a branch back that is never taken,
    on a value that ptxas does not know: three to six instructions (a comparison, a branch, a NOP),
    and what ptxas would have interleaved across it. It orders nothing that other threads see: no
    barrier, no wait. In the memory role, and on the simulated SM, it does nothing.

    Raises SpecError where `after` is no register tile.
    """
    if not np_.computes or after is None:
        return
    if not isinstance(after, Tile):
        raise no_tile(np_.unit.kernel, type(after).__name__)
    after.value  # noqa: B018 - raises where a product is still adding to it


def no_tile(kernel: str, given: str) -> SpecError:
    """Return the error for an `after` that is no register tile."""
    return SpecError(
        f"kernel {kernel}: schedule_fence(after): a register tile, whose computation comes first, "
        f"is expected, got {given}"
    )
