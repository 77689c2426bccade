"""Score and mask functions of attention, and the lists of key blocks that a mask leaves in.

A mask is evaluated once for each pair of positions, by `classify`, which writes for each block of
queries and of keys whether nothing, a part or all of it is visible. `collect` turns each row of
these flags into a list of the blocks that are visible, those that need the mask first. The kernel
of attention loads the blocks of its list only, and evaluates the mask again in the first ones.
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, index, var-annotated"

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..core.functions import Function, function
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.tiles.elementwise import full, iota
from ..language.tiles.indices import index
from ..language.tiles.reduce import partial_sum
from ..language.tiles.refs import ds
from ..core.static_range import static_range
from ..plan.context import program_id
from ..plan.params import CompilerParams

MOST = 3
"""arrays that a function may take"""
NOTHING, PART, ALL = 0, 1, 2
CHUNK = 1024
"""flags that `collect` reads at once"""


@functools.cache
def caller(of: Function, count: int) -> Function:
    """Return `of` as a kernel function with `MOST` arrays, of which it takes the first `count`."""

    @function
    def scored(score, b, h, query, key, x, y, z):
        if count == 0:
            return of(score, b, h, query, key)
        elif count == 1:
            return of(score, b, h, query, key, x)
        elif count == 2:
            return of(score, b, h, query, key, x, y)
        else:
            return of(score, b, h, query, key, x, y, z)

    return scored


@functools.cache
def mask_caller(of: Function, count: int) -> Function:
    @function
    def seen(b, h, query, key, x, y, z):
        if count == 0:
            return of(b, h, query, key)
        elif count == 1:
            return of(b, h, query, key, x)
        elif count == 2:
            return of(b, h, query, key, x, y)
        else:
            return of(b, h, query, key, x, y, z)

    return seen


@functools.cache
def classify(mask: Function, count: int, rows: int, columns: int) -> Kernel:
    """Return the kernel of the flags of all blocks of `rows` queries and `columns` keys."""
    seen = mask_caller(mask, count)

    @numpipe_kernel(
        grid=lambda flags: (flags.shape[3], flags.shape[2], flags.shape[0] * flags.shape[1]),
        warp_specialized=False,
        without=[f"mask_{n}" for n in range(count, MOST)],
        compiler_params=CompilerParams(ctas_per_sm=4),
    )
    def attention_mask_flags(mask_0, mask_1, mask_2, flags, *, queries, keys):
        j, i, head = program_id(0), program_id(1), program_id(2)
        b, h = head // flags.shape[1], head % flags.shape[1]
        key = np.minimum(iota(columns) + j * columns, keys - 1)[None, :]
        total = full((64, 8), 0.0, np.float32)
        for part in static_range(rows // 64):
            query = np.minimum(iota(64) + (i * rows + part * 64), queries - 1)[:, None]
            visible = seen(b, h, query, key, mask_0, mask_1, mask_2)
            total = total + partial_sum(
                np.where(visible, full((64, columns), 1.0, np.float32), 0.0)
            )
        found = total.sum()
        whole = found == float(rows * columns) and (j + 1) * columns <= keys
        flags[b, h, i, j] = ALL if whole else PART if found > 0.0 else NOTHING

    return attention_mask_flags


@numpipe_kernel(
    grid=lambda flags: (flags.shape[2], flags.shape[0] * flags.shape[1]), warp_specialized=False
)
def attention_mask_lists(flags, lists):
    """Store, for each row of flags, how many blocks are visible in part and how many as a whole,
    the first ones in order, and the others from the end of the list back."""
    i, b, h = program_id(0), program_id(1) // flags.shape[1], program_id(1) % flags.shape[1]
    n = flags.shape[3]
    parts, wholes = 0, 0
    for first in range(0, n, CHUNK):
        at = iota(CHUNK) + first
        flag = flags[b, h, i, ds(first, CHUNK)]
        some, every = (flag == PART).astype(np.int32), (flag == ALL).astype(np.int32)
        place = np.where(flag == PART, np.cumsum(some) + (parts + 1), -1)
        place = np.where(flag == ALL, (n + 2 - wholes) - np.cumsum(every), place)
        lists[b, h, i, index(place, "zero")] = at
        parts, wholes = parts + some.sum(), wholes + every.sum()
    lists[b, h, i, 0] = parts
    lists[b, h, i, 1] = wholes
