"""A performance model of kernels: `numpipe.explain` counts a call's work and predicts its time on a
GPU, without running it.

==============  ====================================================================================
`explaining`    the function, its figures and their table; start here
`work`          what all CTAs move and multiply, and how much of what they load is shared; the work
                of one CTA is counted by `sim.work_count`
`gpu_figures`   what a GPU can do, and how that was measured
`limits`        the predicted time, each unit's part of it, and the losses
`op_launches`   the kernels that a call of an op launches
`product_time`  the time of a tiled matrix product in closed form, in a millisecond, for choosing a
                configuration
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
    from .limits import Prediction
    from .op_launches import OpExplanation
    from .product_time import product

__getattr__ = names(
    __name__,
    {
        "gpu_figures": "H200 Clock DeviceModel",
        "explaining": "Explanation Measured Registers Slots explain",
        "limits": "Prediction",
        "op_launches": "OpExplanation",
        "product_time": "product",
    },
)
__all__ = [
    "H200",
    "Clock",
    "DeviceModel",
    "Explanation",
    "Measured",
    "OpExplanation",
    "Prediction",
    "Registers",
    "Slots",
    "explain",
    "product",
]
