"""Measuring which of a kernel's configurations is the fastest, and remembering it: `numpipe.autotune`.

============  ==========================================================================
`space`       candidates by name, and what a winner is remembered by
`candidates`  their kernels, compiled in worker processes; those that cannot be are told
`contest`     the calls that are timed, on inputs that L2 does not hold
`winners`     files on disk, one for each question that was answered
`tuning`      the function
============  ==========================================================================
"""

from .tuning import Tuned, autotune
from .winners import VARIABLE, directory

__all__ = ["VARIABLE", "Tuned", "autotune", "directory"]
