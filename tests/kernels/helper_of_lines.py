"""A helper of another module, whose lines a line table names."""

from __future__ import annotations

import numpipe


@numpipe.function
def doubled(x):
    return x + x
