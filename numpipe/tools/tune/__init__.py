"""`numpipe.autotune`: measures which of a kernel's configurations is the fastest, and remembers it.
Read `tuning` first.

============  ==========================================================================
`candidates`  configs by name, their kernels, compiled in worker processes, and the timed calls, on
              inputs that L2 does not hold
`winners`     what an answer depends on, and the files that keep answers
`tuning`      the function
============  ==========================================================================

How calls are timed belongs to `bench`, predictions without measuring to `model`.
"""

from ...compile.cache import VARIABLE
from .tuning import Tuned, autotune
from .winners import directory

__all__ = ["VARIABLE", "Tuned", "autotune", "directory"]
