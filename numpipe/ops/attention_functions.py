"""Score and mask functions of attention, and the lists of blocks that a mask leaves visible.

==========================  ========================================================================
kernel                      computes
==========================  ========================================================================
`classify`                  the mask for all pairs of positions, and a flag for each block of
                            queries and keys: `NOTHING`, `PART` or `ALL` of it is visible
`attention_mask_lists`      for each row of flags, a list of the visible blocks
`attention_mask_order`      the order of the rows, the longest list first
==========================  ========================================================================

The kernels of attention and of its gradients only load the blocks of their lists, and evaluate the
mask again where a part of a block is visible. A row of attention's lists ends with the number of
the row that is computed in this place.
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, operator, arg-type, call-overload, index"

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..core.functions import Function, function, generated
from ..core.static_range import static_range
from ..diagnostics.argument_checks import as_tuple
from ..diagnostics.errors import SpecError
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.tiles.elementwise import full, iota
from ..language.tiles.indices import index
from ..language.tiles.mathematics import mullo
from ..language.tiles.random_numbers import philox_2x32
from ..language.tiles.reduce import partial_sum
from ..language.tiles.refs import ds
from ..launch.array_info import ArrayInfo
from ..plan.context import program_id
from ..plan.params import CompilerParams
from ..plan.specs import ArrayType, Static
from .attention_configs import Form, with_functions
from .declaration import of_function
from .op_outputs import Place, allocated

LEAD = {
    "score": ("score", "batch", "head", "query", "key"),
    "mask": ("batch", "head", "query", "key"),
}
"""what a function is called with, before its arrays"""
NOTHING, PART, ALL = 0, 1, 2
CHUNK = 1024
"""flags that `attention_mask_lists` reads at once"""
MOST = 1 << 15
"""most lists, and most blocks of a list, for `counts`: an entry has 15 bits for each number"""


@functools.cache
def caller(name: str, of: Function, count: int) -> Function:
    """Return the kernel function that calls `of` with the parameters of `LEAD` and the first
    `count` of `ARRAYS` arrays, and is given all of them."""
    arrays = of_function(name)
    text = f"""def call({", ".join([*LEAD[name], *arrays])}):
    return of({", ".join([*LEAD[name], *arrays[:count]])})
"""
    return generated(text, f"call of {name} with {count} arrays", {"of": of})


HEADS = 0x5EBCA6B1
"""multiplied by the head's number and added to the seed: heads of consecutive seeds have different
keys of the generator"""


@function
def kept(seeds, dropped, head, query, key):
    """Return which weights dropout keeps, for int32 tiles of queries and keys, and the number of
    the head among those of all batches.

    The seed and the head give the key of a generator. A number of it has the draws of four weights,
    of two queries and two keys that are 8 apart: a lane has all four of them, whether queries or
    keys are the rows of an accumulator.
    """
    down, across = query & 8, key & 8
    # the compiler knows `down` and `across` of each register, and then that the draws are the same
    number, seed = (query * 0 + head).astype(np.uint32), (query * 0 + seeds[0]).astype(np.uint32)
    i, j = (query - down).astype(np.uint32), (key - across).astype(np.uint32)
    even, odd = philox_2x32(mullo(number, HEADS) + seed, (i, j))
    word = np.where(down == 0, even, odd) >> (across * 2).astype(np.uint32)
    return (word & 0xFFFF).astype(np.int32) >= dropped


@function
def nth(blocks, b, h, i, n):
    """Return the n-th visible block of a row of `blocks`."""
    parts = blocks[b, h, i, 0]
    return blocks[b, h, i, 2 + n if n < parts else blocks.shape[3] - 2 - n + parts]


@functools.cache
def classify(mask: Function, count: int, rows: int, columns: int, by_keys: bool = False) -> Kernel:
    """Return the kernel of the flags of all blocks of `rows` queries and `columns` keys, or with
    `by_keys` of their transpose, which `sharing` heads have in common."""
    seen = caller("mask", mask, count)

    @numpipe_kernel(
        grid=lambda flags: (flags.shape[3], flags.shape[2], flags.shape[0] * flags.shape[1]),
        warp_specialized=False,
        without=of_function("mask")[count:],
        compiler_params=CompilerParams(ctas_per_sm=4),
    )
    def attention_mask_flags(mask_0, mask_1, mask_2, flags, *, queries, keys, sharing):
        column, row, head = program_id(0), program_id(1), program_id(2)
        b, first = head // flags.shape[1], head % flags.shape[1] * sharing
        i, j = (column, row) if by_keys else (row, column)
        key = np.minimum(iota(columns) + j * columns, keys - 1)[None, :]
        ones = full((64, columns), 1.0, np.float32)
        total = full((64, 8), 0.0, np.float32)
        for h in range(first, first + sharing):
            for part in static_range(rows // 64):
                query = np.minimum(iota(64) + (i * rows + part * 64), queries - 1)[:, None]
                visible = seen(b, h, query, key, mask_0, mask_1, mask_2)
                total = total + partial_sum(np.where(visible, ones, 0.0))
        found = total.sum()
        inside = (j + 1) * columns <= keys and (not by_keys or (i + 1) * rows <= queries)
        whole = inside and found == float(rows * columns) * sharing
        flags[b, head % flags.shape[1], row, column] = (
            ALL if whole else PART if found > 0.0 else NOTHING
        )

    return attention_mask_flags  # type: ignore[no-any-return]


@numpipe_kernel(
    grid=lambda flags: (flags.shape[2], flags.shape[0] * flags.shape[1]), warp_specialized=False
)
def attention_mask_lists(flags, lists, *, counts: Static):
    """Store, for each row of flags, how many blocks are visible in part and how many as a whole,
    the first ones in order, and the others from the end of the list back.

    With `counts`, all of them are the first ones, each as ``earlier << 16 | block << 1 | part``: in
    how many earlier rows it is visible, and whether it is visible in part only."""
    i, b, h = program_id(0), program_id(1) // flags.shape[1], program_id(1) % flags.shape[1]
    n = flags.shape[3]
    fronts, backs = 0, 0
    for first in range(0, n, CHUNK):
        here, entry = ds(first, CHUNK), iota(CHUNK) + first
        flag = flags[b, h, i, here]
        seen, part = flag != NOTHING, flag == PART
        if counts:
            earlier = full(CHUNK, 0, np.int32)
            for row in range(i):
                earlier = earlier + (flags[b, h, row, here] != NOTHING).astype(np.int32)
            entry = earlier * 65536 + entry * 2 + part.astype(np.int32)
        front = (seen if counts else part).astype(np.int32)
        back = seen.astype(np.int32) - front
        place = np.where(front > 0, np.cumsum(front) + (fronts + 1), -1)
        place = np.where(back > 0, (n + 2 - backs) - np.cumsum(back), place)
        lists[b, h, i, index(place, "zero")] = entry
        fronts, backs = fronts + front.sum(), backs + back.sum()
    lists[b, h, i, 0] = fronts
    lists[b, h, i, 1] = backs


@function
def places(sizes, rows):
    """Return the places of this CTA's 64 rows, of `rows` in all, when the rows are sorted by size,
    the largest first; -1 from row `rows` on. ``sizes(index)`` returns sizes, which are at least
    0."""

    def order(first):
        return sizes(ds(first, 64)) * rows - (iota(64) + first)

    own = program_id(0) * 64
    mine, before = order(own)[:, None], full((64, 64), 0, np.int32)
    for first in range(0, rows, 64):
        before = before + (order(first)[None, :] > mine).astype(np.int32)
    return index(np.where(iota(64) + own < rows, before.sum(axis=1), -1), "zero")


@numpipe_kernel(
    grid=lambda lists: (cdiv(lists.shape[2], 64), lists.shape[0] * lists.shape[1]),
    warp_specialized=False,
)
def attention_mask_order(lists):
    """Store the number of the row with the most blocks at the end of row 0, of that with the second
    most at the end of row 1, and so on: the longest tiles are computed first."""
    b, h = program_id(1) // lists.shape[1], program_id(1) % lists.shape[1]
    at = places(lambda rows: lists[b, h, rows, 0] + lists[b, h, rows, 1], lists.shape[2])
    lists[b, h, at, lists.shape[3] - 1] = iota(64) + program_id(0) * 64


def reads(of: Function, name: str) -> bool:
    """Return whether a function reads one of its first parameters, named as in `LEAD`."""
    code = of.function.__code__
    own = code.co_varnames[LEAD["mask"].index(name)]
    return any(
        own in as_tuple(found.argval)
        for found in dis.get_instructions(code)
        if "LOAD" in found.opname
    )


def shape_of(
    q: Any, k: Any, mask: Function, rows: int, columns: int, layout: str, by_keys: bool = False
) -> tuple[tuple, int]:
    """Return the shape of the flags, and the number of heads that have each flag in common. There
    is one list for all batches, or heads, if the mask does not read them."""
    (queries, keys), (heads, shared) = ([x.shape[layout.index(at)] for x in (q, k)] for at in "sh")
    blocks, sharing = (cdiv(queries, rows), cdiv(keys, columns)), 1
    if not reads(mask, "head"):
        heads = 1
    elif by_keys:
        heads, sharing = shared, heads // shared
    batches = q.shape[0] if reads(mask, "batch") else 1
    return (batches, heads, *(blocks[::-1] if by_keys else blocks)), sharing


def visible_blocks(
    q: ArrayInfo,
    k: ArrayInfo,
    form: Form,
    arrays: Sequence[ArrayInfo],
    rows: int,
    columns: int,
    place: Place,
    by_keys: bool = False,
    lists: ArrayInfo | None = None,
) -> list[ArrayInfo]:
    """Return the lists of visible blocks of `columns` keys for each block of `rows` queries, or
    with `by_keys` of blocks of queries for each block of keys; nothing if the form has no mask.
    `arrays` are those of the form's functions."""
    if form.mask is None:
        return []
    queries, keys = (x.shape[form.positions] for x in (q, k))
    mask = form.mask
    shape, sharing = shape_of(q, k, mask, rows, columns, form.layout, by_keys)
    if by_keys and max(shape[2:]) > MOST:
        raise SpecError(
            f"attention: gradients with a mask take up to {MOST * rows} queries and "
            f"{MOST * columns} keys, got {queries} and {keys}; fix: use shorter sequences, or "
            "causal=True if the mask is causal"
        )
    flags = allocated(q, shape, place, np.int32)
    made = classify(mask, form.arrays[1], rows, columns, by_keys)
    own = arrays[form.arrays[0] : sum(form.arrays)]
    made(*own, flags, queries=queries, keys=keys, sharing=sharing, **place)
    lists = lists or allocated(q, (*shape[:3], shape[3] + 3), place, np.int32)
    attention_mask_lists(flags, lists, counts=by_keys, **place)
    if by_keys:
        return [lists]
    attention_mask_order(lists, **place)
    if isinstance(lists.owner, np.ndarray) and keys and not lists.owner[..., :2].any():
        raise SpecError(
            f"attention: mask {mask.__name__} leaves no key for any query; fix: return True where "
            "a query sees a key"
        )
    return [lists]


def blocks_of(q: Any, k: Any, mask: Function, layout: str) -> ArrayType:
    """Return the shape and type of the result of `attention_blocks`."""
    config = with_functions(q.shape[3])
    (*rows, count), _ = shape_of(q, k, mask, config.rows, config.keys, layout)
    return ArrayType((*rows, count + 3), np.int32)


def check_function(name: str, given: tuple | None) -> None:
    """Raise SpecError if a function does not take what it is called with: see `LEAD`, and then the
    arrays that follow it in a tuple."""
    if given is None:
        return
    of, *arrays = given
    takes = tuple(inspect.signature(of.function).parameters)
    values = [*LEAD[name], *(f"array {i}" for i in range(len(arrays)))]
    if len(takes) != len(values):
        raise SpecError(
            f"{name} {of.__name__}({', '.join(takes)}) is called with "
            f"({', '.join(values)}); fix: pass {name}=({of.__name__}, *arrays) with one array for "
            f"each parameter after {LEAD[name][-1]}"
        )
