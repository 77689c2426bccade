"""``topk(x, k)``: the k largest elements along the last dimension, in descending order.

==================  ================================================================================
rows                how
==================  ================================================================================
short, k <= 32      a row is in the registers of a warp (`numpipe.rows`)
up to 8192 columns  a row is in the registers of a CTA, which bisects the keys of the elements: it
                    counts how many are at least the middle of two bounds
longer              columns g, g + s, g + 2 s … are a group, for s groups. One launch reads x for
                    the maximum of each group, and the next one selects the k groups with the
                    largest maxima, which have the k largest elements. The last one selects these
                    among the members of the groups, and the columns that no group has. Maxima of
                    more than 8192 groups are selected in the same way
==================  ================================================================================

Up to 64 chosen elements are sorted by the CTA that chose them, more by several CTAs in another
launch: each element is compared with all others.
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, index"

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..arch.dimensions import next_power_of_two, round_up
from ..core.arith import cdiv
from ..core.functions import function
from ..diagnostics.argument_checks import whole
from ..diagnostics.errors import SpecError
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..kernels.row_kernels import rows as numpipe_rows
from ..language.memory.copies import commit_smem
from ..language.tiles.elementwise import iota
from ..language.tiles.indices import index
from ..language.tiles.reduce import partial_max
from ..language.tiles.refs import ds
from ..language.tiles.tile import bitcast
from ..language.tiles.top_k import top_k
from ..language.tiles.warp_parts import STEP, join_row, split_row
from ..launch.array_info import ArrayInfo
from ..launch.windows import strided
from ..plan.context import program_id
from ..plan.params import CompilerParams
from ..plan.specs import ArrayType, Static
from .declaration import op
from .op_outputs import allocated
from .over_rows import MATRIX, TYPES, given, launch_over_rows
from .reduce_axis import launch_reduction

SHORT, FEW = 256, 32
"""most columns of short rows, and largest k"""
MOST = 8192
"""columns that a CTA compares in registers"""
MAXIMA = 64
"""elements of `partial_max`"""
LOWEST = -(2**31)
"""less than every key"""


@numpipe_rows(held=1, once=True)
def topk_short(x, values, indices, *, k: Static, row: Static):
    for block in row.blocks(x):
        value, _ = row.load(block, x)
        j = row.columns()
        tile = np.where(row.column(j) < x.shape[1], value(j), -np.inf)
        i, found = ds(block * row.height, row.height), ds(0, cdiv(k, 8) * 8)
        values[i, found], indices[i, found] = top_k(tile, k)


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


def block_of(kept: int) -> int:
    """Return how many elements a CTA compares with `kept` others at once."""
    return min(kept, MOST // kept)


@function
def put_ranked(x, row, first, block, kept, chosen, values, indices, k):
    """Store elements `first` … of the chosen ones, `block` of them, to their places in the
    results."""
    number, own = iota(kept), iota(block) + first
    theirs = np.where(number < k, chosen[row, 1, ds(1, kept)], LOWEST)[None, :]
    mine = np.where(own < k, chosen[row, 1, ds(first + 1, block)], LOWEST)
    # of equal keys, the first is larger
    before = (number[None, :] < own[:, None]).astype(np.int32)
    rank = (theirs + before > mine[:, None]).astype(np.int32).sum(axis=1)
    # the lanes that have a rank load its column
    found = np.where(rank < k, chosen[row, 0, ds(first + 1, block)], 0)
    indices[row, index(rank, "zero")] = found
    values[row, index(rank, "zero")] = x[row, found]


@functools.cache
def ranker(kept: int) -> Kernel:
    """Return the kernel that sorts up to `kept` chosen elements of each row, in many CTAs."""
    block = block_of(kept)

    @numpipe_kernel(grid=lambda x: (x.shape[0], kept // block), warp_specialized=False)
    def sort_chosen(x, chosen, values, indices, k):
        first = program_id(1) * block
        put_ranked(x, program_id(0), first, block, kept, chosen, values, indices, k)

    return sort_chosen  # type: ignore[no-any-return]


@functools.cache
def selector(size: int, kept: int, members: int, last: bool) -> Kernel:
    """Return the kernel ``(x, groups, chosen, values, indices, k)`` that selects the k largest
    elements of each row. It stores a lower bound of their keys, then their columns in any order, to
    `chosen` (row, 0, k + 1). The `last` kernel also stores their keys, to (row, 1, k + 1), and the
    results, if a CTA can sort the elements at once.

    size     elements to compare, a multiple of `STEP`
    kept     at least k, a power of two
    members  of each of the `groups` to compare, which another kernel has `chosen`; 0: all columns
             are compared
    """
    sorts = last and block_of(kept) == kept

    @numpipe_kernel(
        grid=lambda x: (x.shape[0],),
        warp_specialized=False,
        without=("groups",) * (not members) + ("values", "indices") * (not sorts),
        compiler_params=CompilerParams(ctas_per_sm=min(4, MOST // size)),
    )
    def select(x, groups, chosen, values, indices, k):
        row, n = program_id(0), x.shape[1]
        columns = join_row(split_row(iota((1, size), 1))).reshape(-1)
        if groups is not None:
            step, group, low = n // members & -2, columns // members, groups[row, 0, 0]
            member = groups[row, 0, index(group + 1, "zero")] + columns % members * step
            columns = np.where(group < k, member, columns + (step - k) * members)
        keys = split_row(keys_at(x, row, columns, columns < n).reshape(1, -1))
        # the largest number below the maximum that k keys reach, at least that of MAXIMA maxima
        tops = partial_max(keys)
        high, low, reaching = tops.max(), tops.min() if kept <= MAXIMA else LOWEST, 0
        while low + 1 < high and reaching != k:
            middle = (low >> 1) + (high >> 1) + (low & high & 1)
            reaching = (keys >= middle).astype(np.int32).sum()
            if reaching >= k:
                low = middle
            else:
                high = middle
        # larger keys come first, then as many equal ones as there is room for
        equal = keys == low
        marks = (keys > low).astype(np.int32) + (equal.astype(np.int32) << 16)
        counts = marks.sum(axis=1)
        running = np.cumsum(marks, axis=1) + (np.cumsum(counts) - counts)[:, None]
        place = np.where(keys > low, running & 0xFFFF, (counts.sum() & 0xFFFF) + (running >> 16))
        place = join_row(np.where(keys >= low, place, -1)).reshape(-1)
        chosen[row, 0, index(place, "zero")] = columns
        if last:
            chosen[row, 1, index(place, "zero")] = join_row(keys).reshape(-1)
            if sorts:
                commit_smem()
                put_ranked(x, row, 0, kept, kept, chosen, values, indices, k)
        else:
            chosen[row, 0, 0] = low

    return select  # type: ignore[no-any-return]


def _select(x: Any, k: int, target: str | None, stream: Any, **results: Any) -> ArrayInfo | None:
    """Select the k largest elements of the rows of a matrix; without results, return `chosen`."""
    (rows, n), place = x.shape, {"target": target, "stream": stream}
    if results and n <= SHORT and k <= FEW:
        topk_short(x, **results, k=k, **place)
        return None
    kept = max(8, next_power_of_two(k))
    size, members, groups = round_up(n, STEP), 0, {}
    if n > MOST:
        size = max(STEP, min(MOST, 32 * kept))
        # the number of groups is even, so that members are loaded in pairs: fewer than 2 * members
        # columns are left over
        members = size // (kept + 2)
        step, itemsize = n // members & -2, x.dtype.itemsize
        tops = allocated(x, (rows, step), place)
        lines = strided(x, (rows, members, step), (x.strides[0], step * itemsize, itemsize))
        launch_reduction("max", lines, 1, tops, place)
        groups = {"groups": _select(tops, k, **place)}
    chosen = allocated(x, (rows, 2, k + 1), place, np.int32)
    inside = results if block_of(kept) == kept else {}
    kernel = selector(size, kept, members, bool(results))
    kernel(x, **groups, chosen=chosen, **inside, k=k, **place)
    if results and not inside:
        ranker(kept)(x, chosen=chosen, **results, k=k, **place)
    return chosen


def _values(x: Any, k: int) -> ArrayType:
    n = x.shape[-1]
    if not 0 < k <= n:
        raise SpecError(
            f"topk: k={k}, but rows of x have {n} elements; fix: pass k of 1…{min(n, 1024)}"
        )
    return ArrayType((*x.shape[:-1], k), x.dtype)


@op(
    operands={"x": "... n"},
    results={
        "values": _values,
        "indices": lambda x, k: ArrayType((*x.shape[:-1], k), np.int32),
    },
    types=TYPES,
    launch=lambda x, values, indices, k, place: launch_over_rows(
        _select, given(MATRIX, x=x), given(MATRIX, values=values, indices=indices), place, k=k
    ),
    checks={"k": whole(0, 1024)},
    gradients={"x": lambda xp, x, indices, grad_values: xp.scattered(x, indices, grad_values)},
    batching="leading",
)
def topk(x: Any, k: int, *, out: Any = None, target: str | None = None, stream: Any = None) -> Any:
    """Return (the k largest elements along the last dimension in descending order, their int32
    indices).

    x    (…, n) of float16, bfloat16 or float32, with any n and any strides
    k    1 to 1024, at most n
    out  arrays (…, k) of x's type and of int32 to write to; allocated by default
    target, stream
         as for any kernel

    NaN are the largest, as in torch.topk. Of equal elements, any may be returned, and in any order,
    but the same in each call. x is read once; if its last dimension is not contiguous, it is copied
    first. Raises SpecError for other element types and for other k.

    >>> topk(np.array([3, 1, 4, 1, 5], np.float32), 2, target="sim")
    (array([5., 4.], dtype=float32), array([4, 2], dtype=int32))
    """
