"""A model of a kernel on a GPU: `numpipe.explain` counts a call's work and predicts its time,
without running it.

=============  =====================================================================================
`explaining`   the function, its figures and their table: read it first
`work`         what all CTAs move and multiply, and how much of what they load is the same; one
               CTA's is counted by `sim.work_count`
`device`       what a GPU can do, and how that was measured
`limits`       the time, what each unit of the GPU needs of it, what is lost to what
`products`     the time of a tiled matrix product in closed form: a millisecond, to choose a
               configuration by
=============  =====================================================================================

Measured times belong to `bench`; a trace's summary of one run (`numpipe.Trace.summary`) belongs to
`traces`.

>>> from numpipe.model import H200
>>> H200.sms
132
"""

from __future__ import annotations

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
