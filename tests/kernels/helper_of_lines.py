"""A helper function in another module, whose lines appear in a line table."""

from __future__ import annotations

import numpipe


@numpipe.function
def doubled(x):
    return x + x
