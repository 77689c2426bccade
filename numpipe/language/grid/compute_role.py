"""The code that a compute warpgroup runs right before and right after the kernel function, on the
GPU and in the simulator.

The entry of a compiled kernel (`compile.entry_cuda`) and a simulated warpgroup (`kernels.simulate`)
call these helpers. The code around the calls differs between the two: registers, arguments, elected
lanes.
"""

from ...core.op import helper
from ...plan.context import only_if
from ..pipeline.pingpong import begin_turns, finish_turns
from ..pipeline.warpgroup_order import end_tokens
from .cluster_exit import await_peers
from .tile_scheduler import end_scheduler


@helper
def begin_compute(np_):  # type: ignore[no-untyped-def]
    only_if(np_, "in_turns", begin_turns)


@helper
def end_compute(np_):  # type: ignore[no-untyped-def]
    only_if(np_, "in_turns", finish_turns)
    await_peers(np_)
    end_tokens(np_)
    end_scheduler(np_)
