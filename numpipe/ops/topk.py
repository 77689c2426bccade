"""``topk(x, k)``: the k largest elements along the last dimension, in descending order.

The columns of a row that are `WIDTH` apart form groups. A row of more than `MOST` columns is read
once, for the maximum of each group: the k groups with the largest maxima have the k largest
elements. Their members, a few thousand at most, are compared again. Maxima that are still too many
have groups themselves.

=========  =====================================================================================
kernel     result
=========  =====================================================================================
`maxima`   the maximum of each group
`picker`   the k largest of a row, or of the members of k groups, in the registers of a CTA: the
           bits of the k-th largest are found one by one, by counting the elements that are larger
=========  =====================================================================================
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, call-overload, index, operator"

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..core.functions import function
from ..core.static_range import static_range
from ..diagnostics.argument_checks import whole
from ..diagnostics.errors import SpecError
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.memory.copies import commit_smem
from ..language.tiles.tile import bitcast
from ..language.tiles.elementwise import full, iota
from ..language.tiles.indices import index
from ..language.tiles.refs import ds
from ..language.tiles.warp_parts import STEP, join_row, split_row
from ..launch.array_info import ArrayInfo
from ..plan.context import program_id
from ..plan.specs import ArrayType, Static
from .declaration import op
from .op_outputs import allocated
from .tiled import TYPES, rows_of, with_fitting

__all__ = ["topk"]

WIDTH = 512
"""columns between the members of a group"""
MOST = 8192
"""columns that a CTA compares in registers"""
MEMBERS = 32
"""most members of a group"""
LARGEST_K = 1024


@function
def keys_of(tile):
    """Return integers in the order of the elements, all larger than 0; NaN is the largest."""
    narrow, tile = tile.dtype != np.float32, tile.astype(np.float32)
    bits = bitcast(tile, np.uint32)
    keys = np.where(bits >> 31 != 0, ~bits, bits | np.uint32(1 << 31))
    keys = np.where(np.isnan(tile), np.uint32(0xFFFFFFFE), keys)
    return keys >> 13 if narrow else keys  # the low bits of 16-bit elements are equal


@numpipe_kernel(
    grid=lambda x, tops: (x.shape[0] * cdiv(tops.shape[1], WIDTH),), warp_specialized=False
)
def maxima(x, tops, *, members: Static):
    """Store the maximum of each group of the rows of x."""
    parts = cdiv(tops.shape[1], WIDTH)
    row, part = program_id(0) // parts, program_id(0) % parts
    top = full((1, WIDTH), -np.inf, np.float32)
    for member in static_range(members):
        first = (part * members + member) * WIDTH
        tile = x[ds(row, 1), ds(first, WIDTH)].astype(np.float32)
        inside = iota((1, WIDTH), 1) + first < x.shape[1]
        top = np.maximum(top, np.where(inside, tile, -np.inf))
    tops[ds(row, 1), ds(part * WIDTH, WIDTH)] = top


@functools.cache
def picker(size: int, kept: int, members: int, last: bool) -> Kernel:
    """Return the kernel ``(x, groups, chosen, values, indices, k)`` that stores the columns of the
    k largest elements of each row of x to `chosen`; if it is the `last` kernel, it also stores them
    in order.

    groups   (rows, k), the groups that have these elements; without `members`, it is not passed
    size     elements to compare, a multiple of 512
    kept     at least k, a power of two
    members  of a group
    """
    block = min(kept, MOST // kept)
    unused = {"groups": not members, "values": not last, "indices": not last}

    @numpipe_kernel(
        grid=lambda x: (x.shape[0],),
        warp_specialized=False,
        without=tuple(name for name, off in unused.items() if off),
    )
    def pick(x, groups, chosen, values, indices, k):
        row = program_id(0)
        columns = join_row(split_row(iota((1, size), 1))).reshape(-1)
        if groups is None:
            inside = columns < x.shape[1]
        else:
            group, member = columns // members, columns % members
            inside = group < k
            group = groups[row, index(group, "zero")]
            columns = (group // WIDTH * members + member) * WIDTH + group % WIDTH
            inside = inside & (columns < x.shape[1])
        keys = np.where(inside, keys_of(x[row, index(columns, "zero")]), np.uint32(0))
        keys = split_row(keys.reshape(1, -1))
        # the largest number that k keys reach
        least, bit, count = np.uint32(0), 32, size
        while bit > 0 and count != k:
            bit -= 1
            more = least | (np.uint32(1) << np.uint32(bit))
            reaching = (keys >= more).astype(np.int32).sum()
            if reaching >= k:
                least, count = more, reaching
        # larger keys come first, then those that are equal, as many as there is room for
        larger, equal = (keys > least).astype(np.int32), (keys == least).astype(np.int32)
        marks = larger | (equal << 16)
        counts = marks.sum(axis=1)
        running = np.cumsum(marks, axis=1) + (np.cumsum(counts) - counts)[:, None]
        place = np.where(larger != 0, running & 0xFFFF, larger.sum() + (running >> 16)) - 1
        place = join_row(np.where(keys >= least, place, -1)).reshape(-1)
        chosen[row, index(place, "zero")] = columns
        if last:
            commit_smem()
            every = chosen[row, ds(0, kept)]
            theirs = np.where(iota(kept) < k, keys_of(x[row, every]), np.uint32(0))
            for first in range(0, kept, block):
                columns, number = chosen[row, ds(first, block)], iota(block) + first
                own = x[row, columns]
                mine = np.where(number < k, keys_of(own), np.uint32(0))
                # of equal keys, the first is larger
                before = (iota(kept)[None, :] < number[:, None]).astype(np.uint32)
                above = (theirs[None, :] + before > mine[:, None]).astype(np.int32)
                rank = index(above.sum(axis=1), "zero")
                values[row, rank] = own
                indices[row, rank] = columns

    return pick


def _launch(
    x: ArrayInfo, values: ArrayInfo, indices: ArrayInfo, k: int, target: str | None, stream: Any
) -> None:
    kept = max(8, 1 << (k - 1).bit_length())
    members = min(MEMBERS, MOST // kept)
    place = {"target": target, "stream": stream}

    def run(arrays: dict[str, ArrayInfo]) -> None:
        whole = {name: rows_of(info) for name, info in arrays.items()}
        levels = [whole.pop("x")]
        rows, count = levels[0].shape
        while count > MOST:
            wide = WIDTH * members
            count = count // wide * WIDTH + min(count % wide, WIDTH)
            tops = allocated("topk", x, (rows, count), stream)
            maxima(levels[-1], tops, members=members, **place)
            levels.append(tops)
        chosen: dict[str, Any] = {}
        size = 1 << (max(count, STEP) - 1).bit_length()
        while levels:
            made = allocated("topk", indices, (rows, k), stream)
            results = whole if len(levels) == 1 else {}
            kernel = picker(size, kept, members if chosen else 0, not levels[1:])
            kernel(levels.pop(), **chosen, chosen=made, **results, k=k, **place)
            chosen, size = {"groups": made}, max(STEP, kept * members)

    with_fitting(
        "topk", {"x": x}, {"values": values, "indices": indices}, rows_of, target, stream, run
    )


def _result(x: Any, k: int, dtype: Any) -> ArrayType:
    if k > x.shape[-1]:
        raise SpecError(
            f"topk: k={k} for rows of {x.shape[-1]} elements, x {tuple(x.shape)}; fix: pass k <= "
            f"{x.shape[-1]}"
        )
    return ArrayType((*x.shape[:-1], k), dtype)


@op(
    operands={"x": "... n"},
    results={
        "values": lambda x, k: _result(x, k, x.dtype),
        "indices": lambda x, k: _result(x, k, np.int32),
    },
    types=TYPES,
    launch=_launch,
    checks={"k": whole(1, LARGEST_K)},
    batching="leading",
)
def topk(
    x: Any, k: int, *, out: Any = None, target: str | None = None, stream: Any = None
) -> Any:
    """Return (the k largest elements along the last dimension in descending order, their int32
    indices).

    x    (…, n) of float16, bfloat16 or float32, with any n and any strides
    k    1 to 1024, at most n
    out  arrays (…, k) of x's type and of int32 to write to; allocated by default
    target, stream
         as for any kernel

    NaN are the largest, as in torch.topk. Of equal elements, any may be returned, and in any order,
    but the same in each call. x is read once; if its last dimension is not contiguous, it is copied
    first. Raises SpecError for other element types and for k outside 1…n.

    >>> topk(np.array([3, 1, 4, 1, 5], np.float32), 2, target="sim")
    (array([5., 4.], dtype=float32), array([4, 2], dtype=int32))
    """
