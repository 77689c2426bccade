"""Events of a running kernel: what its pipelines do, and regions that a user names; on the GPU where a profile is asked for.

::

    with numpipe.region("softmax"):
        …

Each warpgroup records by itself, by one lane: no event waits for another warpgroup. Without a profile there is no trace of it in a
kernel's code. On the simulated SM a `numpipe.Trace` has them.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ..core.machine import current
from ..core.op import constant, op, outside
from .context import Context

__all__ = ["region"]


def region(name: str) -> NoReturn:
    """Name a part of a kernel in its traces: ``with numpipe.region("softmax"):`` around statements.

    `name` is a compile-time string. Regions may lie in each other, and are each warpgroup's own. `return`, and `break` or
    `continue` of a loop around it, may not leave one. They are in traces of the GPU
    (`CompilerParams.profile_space`) and of the simulated SM.
    """
    raise outside("region", ", as `with numpipe.region(\"name\"):`")


@op(context=True)
def region_begin(np_: Context, name: str) -> None:
    """The top of a region."""
    current().note("region begin", region=constant("region", "name", name))


@op(context=True)
def region_end(np_: Context, name: str) -> None:
    """The end of a region."""
    current().note("region end", region=name)


@op(context=True)
def mark_tile(np_: Context, tile: Any) -> None:
    """This CTA begins a tile of a tile loop."""
    current().note("tile begin", number=int(tile))


@op
def mark_store(ref: Any, event: str) -> None:
    """A register tile is stored; the simulated SM has events of its own for that."""
