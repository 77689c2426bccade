"""Functions called by kernels of other modules."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import ds


@numpipe.function
def store_rows(c, tile, *, cfg, at=0):
    """Store this warpgroup's share of a tile of ``cfg.tm`` rows, in the array's dtype."""
    rows = cfg.tm // numpipe.axis_size("wg")
    c[ds(at * 64 + numpipe.axis_index("wg") * rows, rows), ds(0, tile.shape[1])] = tile.astype(
        c.dtype
    )


@numpipe.function
def add_bias(tile, bias, scale=1.0):
    return (tile + bias) * scale


@numpipe.function
def index_of(value):
    """Return a value that depends on the type of a constant."""
    if isinstance(value, bool):
        return 1
    return value + 6 if isinstance(value, int) else value * 3


@numpipe.function
def tripled(value):
    return value * 3


@numpipe.function
def unfit():
    return numpipe.zeros((0, 5), np.float32)


@numpipe.function
def recursive(n):
    return recursive(n - 1) + 1
