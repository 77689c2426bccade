"""Kernels of the k largest elements of rows.

A row of n columns has groups of columns g, g + s, g + 2 s …, for s groups (`stride`). The k groups
with the largest maxima have the k largest elements, so that a long row is read once, for these
maxima. The columns that are left over, fewer than two for each member of a group, are compared in
any case.
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, call-overload, operator, no-any-return"

from __future__ import annotations

import functools

import numpy as np

from ..core.arith import cdiv
from ..core.functions import function
from ..kernels.decorator import kernel
from ..kernels.kernel import Kernel
from ..language.memory.copies import commit_smem
from ..language.memory.scratch import scratch
from ..language.tiles.elementwise import iota
from ..language.tiles.indices import index
from ..language.tiles.refs import ds
from ..language.tiles.tile import bitcast
from ..language.tiles.top_k import top_k
from ..language.tiles.warp_parts import join_row, split_row
from ..plan.allocations import SMEM
from ..plan.context import program_id
from ..plan.params import CompilerParams

MOST = 8192
"""columns that a CTA compares in registers"""
LOWEST = -(2**31)
"""less than every key"""


@functools.cache
def short(width: int, k: int) -> Kernel:
    """Return the kernel ``(x, values, indices)`` of the k <= 32 largest of rows of up to `width`
    columns: a warp has two rows."""
    found = cdiv(k, 8) * 8

    @kernel(grid=lambda x: (cdiv(x.shape[0], 8),), warp_specialized=False)
    def topk_short(x, values, indices):
        rows, columns = ds(program_id(0) * 8, 8), iota((8, width), 1)
        tile = x[rows, ds(0, width)].astype(np.float32)
        best, places = top_k(np.where(columns < x.shape[1], tile, -np.inf), k)
        values[rows, ds(0, found)] = best.astype(x.dtype)
        indices[rows, ds(0, found)] = places

    return topk_short


def stride(n: int, members: int) -> int:
    """Return how many groups of this many members n columns have: an even number, so that the
    members are loaded in pairs."""
    return n // members & -2


@function
def keys_at(x, row, columns, inside):
    """Return integers in the order of elements of a row; NaN is the largest. Where `inside` is
    false, the key is `LOWEST`."""
    own = x[row, index(columns, "zero")]
    tile = own.astype(np.float32)
    bits = bitcast(tile, np.int32)
    keys = np.where(np.isnan(tile), 0x7FFFFFFE, bits ^ (bits >> 31 & 0x7FFFFFFF))
    # the low bits of a number of 16 bits are always equal
    return np.where(inside, keys if own.dtype == np.float32 else keys >> 13, LOWEST)


@functools.cache
def picker(size: int, kept: int, members: int, last: bool) -> Kernel:
    """Return the kernel ``(x, groups, chosen, values, indices, k)`` of the k largest elements of
    each row, which a CTA compares in registers. It stores to `chosen` (rows, k + 1) the key of the
    k-th largest, and the columns of all in any order; the `last` kernel also stores the results.

    size     elements to compare, a multiple of 512
    kept     at least k, a power of two
    members  of each of the `groups` to compare, which are columns `chosen` by another kernel; if 0,
             all columns are compared
    """
    block = min(kept, MOST // kept)
    unused = {"groups": not members, "values": not last, "indices": not last}

    @kernel(
        grid=lambda x: (x.shape[0],),
        warp_specialized=False,
        without=tuple(name for name, off in unused.items() if off),
        compiler_params=CompilerParams(ctas_per_sm=min(4, MOST // size)),
    )
    def pick(x, groups, chosen, values, indices, k):
        row, n = program_id(0), x.shape[1]
        columns, low = join_row(split_row(iota((1, size), 1))).reshape(-1), LOWEST
        if groups is not None:
            step, group, low = n // members & -2, columns // members, groups[row, 0]
            member = groups[row, index(group + 1, "zero")] + columns % members * step
            columns = np.where(group < k, member, columns + (step - k) * members)
        keys = split_row(keys_at(x, row, columns, columns < n).reshape(1, -1))
        # find the largest number that k keys reach
        high, count = keys.max() + 1, size
        while low + 1 < high and count != k:
            middle = (low >> 1) + (high >> 1) + (low & high & 1)
            reaching = (keys >= middle).astype(np.int32).sum()
            if reaching >= k:
                low, count = middle, reaching
            else:
                high = middle
        # larger keys come first, then as many equal ones as there is room for
        larger, equal = (keys > low).astype(np.int32), (keys == low).astype(np.int32)
        marks = larger | (equal << 16)
        counts = marks.sum(axis=1)
        running = np.cumsum(marks, axis=1) + (np.cumsum(counts) - counts)[:, None]
        place = np.where(larger != 0, running & 0xFFFF, larger.sum() + (running >> 16))
        place = join_row(np.where(keys >= low, place, -1)).reshape(-1)
        chosen[row, index(place, "zero")] = columns
        if last:
            commit_smem()
            held, number = scratch(SMEM((kept,), np.int32)), iota(kept)
            theirs = keys_at(x, row, chosen[row, ds(1, kept)], number < k)
            held[...] = theirs
            for first in range(0, kept, block):
                # of equal keys, the first is larger
                before = number[None, :] < (iota(block) + first)[:, None]
                above = theirs[None, :] + before.astype(np.int32) > held[ds(first, block)][:, None]
                rank = above.astype(np.int32).sum(axis=1)
                indices[row, index(rank, "zero")] = chosen[row, ds(first + 1, block)]
            commit_smem()
            values[row, ds(0, kept)] = x[row, indices[row, ds(0, kept)]]
        else:
            chosen[row, 0] = low

    return pick
