"""A performance model of kernels: `numpipe.explain` counts a call's work and predicts its time on a
GPU, without running it.

==============  ====================================================================================
`explaining`    the function, its figures and their table; start here
`work`          what all CTAs move and multiply, and how much of what they load is shared; the work
                of one CTA is counted by `sim.work_count`
`gpu_figures`   what a GPU can do, and how that was measured
`limits`        the predicted time, each unit's part of it, and the losses
`op_launches`   the kernels that a call of an op launches
==============  ====================================================================================

Measured times belong to `bench`; the summary of a run's trace (`numpipe.Trace.summary`) belongs to
`traces`.

>>> from numpipe.model import H200
>>> H200.sms
132
"""

from typing import TYPE_CHECKING

from ...core.lazy import names

if TYPE_CHECKING:
    from .explaining import Explanation, Measured, Registers, Slots, explain
    from .gpu_figures import H200, Clock, DeviceModel
    from .op_launches import OpExplanation

__getattr__ = names(
    __name__,
    {
        "gpu_figures": "H200 Clock DeviceModel",
        "explaining": "Explanation Measured Registers Slots explain",
        "op_launches": "OpExplanation",
    },
)
__all__ = [
    "H200",
    "Clock",
    "DeviceModel",
    "Explanation",
    "Measured",
    "OpExplanation",
    "Registers",
    "Slots",
    "explain",
]
