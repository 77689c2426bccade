"""`numpipe.schedule_fence`: a point that the compiler does not move statements across."""

from __future__ import annotations

from typing import Any

from ...core.op import context_op
from ...diagnostics.errors import SpecError
from ...plan.context import Context
from ..tiles.tile import Tile

__all__ = ["schedule_fence"]


@context_op
def schedule_fence(np_: Context, after: Any = None) -> None:
    """Keep the compiler from moving statements across this point; with `after`, keep it only from
    moving waits above the tile's computation.

    after   a register tile. Operations that other threads could observe, above all waits
            (`wgmma_wait`, `barrier_wait`) and releases, stay after the tile's computation, while
            ptxas still interleaves the arithmetic before and after. None: nothing crosses, not even
            arithmetic.

    ptxas reorders statements between two branches, and moves a wait for a product up, above
    arithmetic that does not need the product. The arithmetic then runs after the product instead of
    overlapping it. That may save registers, and lets ptxas interleave statements after the wait
    with earlier ones, so measure::

        e = np.exp2(s)  # while the product `acc` runs
        numpipe.schedule_fence(after=e)
        acc = numpipe.wgmma_wait(acc)

    In the compute role `after` costs two instructions: a comparison, and a store that is never
    executed, which reads the tile's last register. Without `after`, the fence is a backward branch
    that is never taken, on a value that ptxas does not know. It costs three to six instructions (a
    comparison, a branch, a NOP) and the interleaving across it. It orders nothing that other
    threads observe: it is neither a barrier nor a wait. In the memory role, and on the simulated
    SM, it does nothing.

    Raises SpecError if `after` is not a register tile.
    """
    if not np_.computes or after is None:
        return
    if not isinstance(after, Tile):
        raise no_tile(np_.unit.kernel, type(after).__name__)
    after.value  # noqa: B018 - raises where a product is still adding to it


def no_tile(kernel: str, given: str) -> SpecError:
    """Return the error for an `after` that is not a register tile."""
    return SpecError(
        f"kernel {kernel}: schedule_fence(after): after must be a register tile, got {given}"
    )
