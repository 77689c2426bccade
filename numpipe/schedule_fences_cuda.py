"""A boundary of basic blocks that ptxas keeps.

A loop that runs once, because of a value that ptxas does not know, around an instruction that it does not know to be nothing. It
deletes an empty loop, makes predicated instructions of a short branch, and behind a branch alone it sinks arithmetic that is
needed there. Of what a branch could skip, `exit` would end the products in flight (note C7517), and with `trap` ptxas gives the
role no more registers than the launch.
"""

from __future__ import annotations

from typing import Any

from . import _numba as nb
from . import schedule_fences as source
from ._op import cuda_meaning
from .context_cuda import own_warpgroup

NOBODY = 0x7FFFFFFF
"""number of no warpgroup"""
_FENCE = f"{{ .reg .pred never; setp.eq.u32 never, $0, {NOBODY}; AGAIN: bar.warp.sync 0xffffffff; @never bra AGAIN; }}"


@cuda_meaning(source.fence_schedule)
def _fence_schedule(_context: Any, np_: Any) -> Any:
    def codegen(context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        if np_.role == "compute":
            nb.emit_asm(builder, nb.void, [own_warpgroup(builder, args[0])], _FENCE, "r,~{memory}")
        return nb.nothing(context)

    return nb.types.void(np_), codegen
