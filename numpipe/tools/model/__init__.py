"""A model of a kernel on a GPU: what `numpipe.explain` says without running it.

=============  =====================================================================================
`count`        what one CTA moves and multiplies: its control flow runs, its data does not
`work`         the same of all CTAs, and how much of what they load is the same
`device`       what a GPU can do, and how that was measured
`limits`       the time, what each unit of the GPU needs of it, what is lost to what
`explanation`  figures and their table
`explaining`   the function
`products`     the time of a tiled matrix product in closed form: a millisecond, to choose a configuration by
=============  =====================================================================================

>>> from numpipe.model import H200
>>> H200.sms
132
"""

from .device import H200, Clock, DeviceModel
from .explaining import explain
from .explanation import Explanation, Measured, Registers, Slots
from .limits import Prediction
from .products import product

__all__ = ["H200", "Clock", "DeviceModel", "Explanation", "Measured", "Prediction", "Registers", "Slots", "explain", "product"]
