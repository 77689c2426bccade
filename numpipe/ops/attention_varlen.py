"""``attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k)``: attention for sequences of different
lengths, one after another in the same arrays, in one launch.

`plan` lists the tiles on the GPU, from the lengths there: for each block of queries of each
sequence, which queries and keys it has. `attention_tiles_in_order` sorts the list, and the kernel
of `ops.attention` takes its tiles from it, those with the most keys first.
"""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def, operator, arg-type, call-overload, assignment"

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..core.functions import function
from ..core.static_range import static_range
from ..diagnostics.argument_checks import FLAG, NONE, finite, whole, word
from ..diagnostics.errors import SpecError
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.tiles.elementwise import full, iota
from ..language.tiles.indices import index
from ..language.tiles.refs import ds
from ..launch.array_info import ArrayInfo
from ..launch.windows import strided
from ..plan.context import program_id
from ..plan.params import CompilerParams
from ..plan.specs import ArrayType
from .attention import (
    TYPES,
    check_heads,
    check_invariant,
    fitting,
    launch_kernel,
)
from .attention_configs import DEPTHS, Form
from .attention_functions import places
from .attention_gradients import BLOCK, keys_of, launch_gradients
from .declaration import Operand, op
from .op_outputs import Arrays, Place, allocated

LANES = 128
LARGEST = 2**31 - 1


@functools.cache
def plan(
    rows: int, causal: bool, from_end: bool, of_keys: bool = False, debug: bool = False
) -> Kernel:
    """Return the kernel that lists the tiles of `rows` queries of all sequences, one in each lane.

    A row of the list is (first query in the array, end of the queries there, first key there,
    number of keys, number of keys that the first query sees, number of the sequence, number of
    blocks of 64 keys that the tile sees). After the last tile, only the last number is set, to 0.
    Lengths that decrease or overrun are 0 or end with the array; with `debug`, an assertion fails.

    of_keys  exchange queries and keys: the tiles are of keys, and the fifth number is the first
             query that sees the first key
    """

    @function
    def between(position, least, most):
        """Return the position where a sequence begins or ends."""
        assert least <= position <= most, "lengths decrease, or exceed the array"
        return min(max(position, least), most)

    @numpipe_kernel(
        warp_specialized=False,
        grid=lambda table: cdiv(table.shape[0], LANES),
        compiler_params=CompilerParams(asserts=debug),
    )
    def attention_tiles(cu_seqlens_q, cu_seqlens_k, table, count, *, diagonal, total_q, total_k):
        n, zero = program_id(0) * LANES + iota(LANES), full(LANES, 0, np.int32)
        number, tile, first, queries, first_key, keys = zero, zero, zero, zero, zero, zero
        q, k = between(cu_seqlens_q[0], 0, total_q), between(cu_seqlens_k[0], 0, total_k)
        total = 0
        for s in range(cu_seqlens_q.shape[0] - 1):
            end = between(cu_seqlens_q[s + 1], q, total_q)
            end_k = between(cu_seqlens_k[s + 1], k, total_k)
            here = n >= total
            number, tile = np.where(here, s, number), np.where(here, n - total, tile)
            first, queries = np.where(here, q, first), np.where(here, end - q, queries)
            first_key, keys = np.where(here, k, first_key), np.where(here, end_k - k, keys)
            total = total + cdiv(end - q, rows)
            q, k = end, end_k
        offset = tile * rows + (keys - queries if from_end else 0)
        seen, size = offset - diagonal if of_keys else offset + diagonal + 1, keys
        if causal:
            hidden = np.minimum(keys, np.maximum(0, seen if of_keys else seen + (rows - 1)))
            size = keys - hidden if of_keys else hidden
        at = index(np.where(n < total, n, -1), "zero")
        row = first + tile * rows, first + queries, first_key, keys, seen, number
        for column in static_range(6):
            table[at, column] = row[column]
        # times the number of rows, as `places` sorts by it, it must be an int32
        most = LARGEST // table.shape[0]
        table[index(n, "zero"), 6] = np.minimum(np.where(n < total, size + 63, 0) // 64, most)
        if program_id(0) == 0:
            count[0] = total

    return attention_tiles  # type: ignore[no-any-return]


@numpipe_kernel(warp_specialized=False, grid=lambda table: cdiv(table.shape[0], 64))
def attention_tiles_in_order(found, table):
    """Sort a list of tiles: the largest ones are computed first."""
    at = places(lambda rows: found[rows, 6], table.shape[0])
    for column in static_range(6):
        table[at, column] = found[ds(program_id(0) * 64, 64), column]


def _result(
    q: Any,
    k: Any,
    cu_seqlens_q: Any,
    exact: bool = True,
    batch_invariant: bool = False,
) -> ArrayType:
    """Return the shape and type of the result. Raises SpecError if the operands do not match, and
    for options that contradict each other."""
    check_invariant("attention_varlen", exact, batch_invariant)
    check_heads(q, k, "shd")
    if not cu_seqlens_q.shape[0]:
        raise SpecError("attention_varlen: 'cu_seqlens_q' must have sequences + 1 elements, got 0")
    return ArrayType(q.shape, q.dtype)


def _batches(arrays: Arrays) -> Arrays:
    """Return each array as the only element of a batch."""
    return {
        name: x and strided(x, (1, *x.shape), (x.shape[0] * x.strides[0], *x.strides))
        for name, x in arrays.items()
    }


def _tiles(
    rows: int,
    of_keys: bool,
    arrays: Arrays,
    causal: bool,
    diagonal: int,
    align: str,
    debug: bool,
    place: Place,
) -> tuple[ArrayInfo, ArrayInfo]:
    """Return the list of tiles of queries or keys, and their number."""
    (starts, total), (starts_k, total_k) = (
        (arrays[f"cu_seqlens_{side}"], arrays[side].shape[0])
        for side in ("kq" if of_keys else "qk")
    )
    most = total // rows + starts.shape[0] - 1
    shapes = (most, 7), (most, 6), (1,)
    found, table, count = (allocated(starts, each, place, np.int32) for each in shapes)
    make = plan(rows, causal, align == "end", of_keys, debug)
    totals = {"diagonal": diagonal, "total_q": total, "total_k": total_k}
    make(starts, starts_k, found, count, **totals, **place)
    attention_tiles_in_order(found, table, **place)
    return table, count


def _launch(
    arrays: Arrays,
    q: ArrayInfo,
    k: ArrayInfo,
    cu_seqlens_q: ArrayInfo,
    causal: bool,
    diagonal: int,
    align: str,
    scale: float | None,
    exact: bool,
    batch_invariant: bool,
    debug: bool,
    place: Place,
) -> None:
    total, heads, depth = q.shape
    form, _ = Form.of(depth, causal, "bshd", arrays["lse"] is not None, ranges=True)
    sequences = max(1, cu_seqlens_q.shape[0] - 1)
    sizes = cdiv(total, sequences), cdiv(k.shape[0], sequences), heads * sequences
    config = fitting(form, exact, batch_invariant, *sizes)
    tiles = _tiles(config.rows, False, arrays, causal, diagonal, align, debug, place)
    launch_kernel(config, form, _batches(arrays), tiles, scale, 0, place)


OPTIONS = {
    "causal": FLAG,
    "diagonal": whole(),
    "align": word("start", "end"),
    "scale": finite(above=0) | NONE,
    "debug": FLAG,
}
OF_Q, OF_K = "positions heads depth", "keys key_heads depth"
LENGTHS, NUMBERS = Operand("n", ("int32",)), Operand("heads positions", ("float32",))
OPERANDS: dict[str, str | Operand] = {
    "q": OF_Q,
    "k": OF_K,
    "v": OF_K,
    "cu_seqlens_q": LENGTHS,
    "cu_seqlens_k": LENGTHS,
}


def _launch_backward(
    arrays: Arrays,
    q: ArrayInfo,
    causal: bool,
    diagonal: int,
    align: str,
    scale: float | None,
    debug: bool,
    place: Place,
) -> None:
    form, _ = Form.of(q.shape[2], causal, "bshd", depths=DEPTHS, ranges=True)
    how = arrays, causal, diagonal, align, debug, place
    of_k, of_q = _tiles(keys_of(form), True, *how), _tiles(BLOCK, False, *how)
    launch_gradients(_batches(arrays), form, 0, scale, False, place, of_k, of_q)


def _sums(q: Any, return_lse: bool) -> ArrayType | None:
    return ArrayType(q.shape[1::-1], np.float32) if return_lse else None


@op(
    operands={
        **OPERANDS,
        **{"o": OF_Q, "lse": NUMBERS, "grad_o": OF_Q, "grad_lse": NUMBERS},
    },
    results={"dq": _result, "dk": OF_K, "dv": OF_K},
    types=TYPES,
    launch=_launch_backward,
    checks=OPTIONS,
    batching="each",
)
def attention_varlen_backward(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    o: Any,
    lse: Any,
    grad_o: Any,
    grad_lse: Any = None,
    *,
    causal: bool = False,
    diagonal: int = 0,
    align: str = "end",
    scale: float | None = None,
    debug: bool = False,
) -> Any:
    """Return the gradients of q, k and v, given the results (o, lse) of attention_varlen with
    return_lse, and their gradients."""


@op(
    operands=OPERANDS,
    results={"o": _result, "lse": _sums},
    types=TYPES,
    launch=_launch,
    checks=OPTIONS | {"exact": FLAG, "return_lse": FLAG, "batch_invariant": FLAG},
    gradients={"q k v": attention_varlen_backward},
    composite="return_lse",
    batching="each",
)
def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    *,
    causal: bool = False,
    diagonal: int = 0,
    align: str = "end",
    scale: float | None = None,
    exact: bool = True,
    return_lse: bool = False,
    batch_invariant: bool = False,
    debug: bool = False,
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return ``softmax(scale * q @ k.T) @ v`` for each head of each sequence, where sequences of
    different lengths follow one another in the same arrays.

    q           (positions, heads, depth) of float16 or bfloat16, depth up to 256
    k, v        (positions, key heads, depth); the number of heads of q must be a multiple of the
                number of key heads
    cu_seqlens_q, cu_seqlens_k
                int32 (sequences + 1): sequence s has the queries from cu_seqlens_q[s] to
                cu_seqlens_q[s + 1], and its keys likewise. Only the GPU reads them. Nothing is
                written, nor are there gradients, before the first and after the last sequence
    causal      query i of a sequence sees its keys 0…j, where j is i + diagonal with align="start",
                and i + keys - queries + diagonal with align="end"
    diagonal    offset of the causal mask
    align       which end of the queries sees which end of the keys of its sequence: "start" or
                "end", as in FlashAttention
    scale       positive; None means depth ** -0.5
    exact       as for `attention`
    return_lse  return (result, lse) with the logarithms of the sums of exponentials, float32
                (heads, positions of queries); -inf where a query sees no key
    batch_invariant
                let the bits of a row depend on nothing but its query, keys and values, as for
                `attention`, whose rows then have the same bits
    debug       let lengths that decrease, or exceed the arrays, fail the launch on the GPU; without
                it, such a sequence has no position, or ends with the array. The simulator reports
                them always
    out         array for the result, or with return_lse a pair of arrays; allocated by default
    target, stream
                as for any kernel

    The launch covers all sequences: a small kernel first makes a list of the tiles of all sequences
    on the GPU, the longest first. A NaN or an infinity among the values of a sequence may also
    reach the previous sequence, if a block of keys reaches both. Gradients of q, k and v compute
    the scores again, and have no gradients themselves. There are no score and mask functions, nor
    gradients with the same bits in each run: `attention` has them, with a mask function that
    compares the documents of query and key. Raises SpecError if shapes do not match, for other
    element types, and for arrays of different types or on different devices.

    >>> q, at = np.ones((100, 8, 64), np.float16), np.array([0, 30, 100], np.int32)
    >>> attention_varlen(q, q[:, :2], q[:, :2], at, at, causal=True, target="sim").shape
    (100, 8, 64)
    """
