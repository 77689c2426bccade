"""A model of a kernel on a GPU: what `numpipe.explain` says without running it.

=============  =====================================================================================
`count`        what one CTA moves and multiplies: its control flow runs, its data does not
`work`         the same of all CTAs, and how much of what they load is the same
`device`       what a GPU can do, and how that was measured
`limits`       the time, what each unit of the GPU needs of it, what is lost to what
`explanation`  figures and their table
`explaining`   the function
=============  =====================================================================================

>>> from numpipe.model import H200
>>> H200.sms
132
"""

from .device import H200, Clock, DeviceModel
from .explaining import explain
from .explanation import Explanation, Measured, Registers, Slots

__all__ = ["H200", "Clock", "DeviceModel", "Explanation", "Measured", "Registers", "Slots", "explain"]
