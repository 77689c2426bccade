"""`numpipe.autotune`: measure which of a kernel's configurations is the fastest, and remember it.
Start with `tuning`.

============  ==========================================================================
`candidates`  configs by name, their kernels, compiled in worker processes, and the timed
              calls, on inputs that are not in L2
`winners`     what an answer depends on, and the files that keep answers
`tuning`      the function
============  ==========================================================================

Timing of calls belongs to `bench`, predictions without measuring to `model`.
"""

from ...compile.cache import VARIABLE
from .tuning import Tuned, autotune
from .winners import directory

__all__ = ["VARIABLE", "Tuned", "autotune", "directory"]
