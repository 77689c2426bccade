"""``attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k)``: attention for sequences of different
lengths, one after another in the same arrays, in one launch.

`plan` makes a list of tiles on the GPU, from the lengths there: for each block of queries of each
sequence, which queries and keys it has, the tiles with the most steps first. The kernel of
`ops.attention` takes its tiles from this list.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from .. import launch
from ..arch.targets import DEFAULT
from ..core.arith import cdiv
from ..core.functions import function
from ..diagnostics.argument_checks import FLAG, NONE, finite, whole, word
from ..diagnostics.errors import SpecError
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.tiles.elementwise import full, iota
from ..language.tiles.indices import index
from ..launch.array_info import ArrayInfo
from ..launch.windows import strided
from ..plan.context import program_id
from ..plan.params import CompilerParams
from ..plan.specs import ArrayType
from .attention import TYPES, _loaded, _shared_heads, _turns, check_shapes, kernel
from .attention_configs import WIDTHS, Form, choose
from .declaration import Operand, op
from .op_outputs import Place, allocated

__all__ = ["attention_varlen"]

LANES = 128
LENGTHS = Operand("", ("int32",))


@functools.cache
def plan(rows: int, block: int, causal: bool, from_end: bool, debug: bool = False) -> Kernel:
    """Return the kernel of the list of tiles of `rows` queries, which attend to blocks of `block`
    keys.

    A row of the list is (first query, end of the queries, first key, number of keys, number of keys
    that the first query sees). Each lane has one tile, and stores it after all tiles that have more
    steps, and those of earlier sequences that have as many. Lengths that decrease or overrun are 0
    or end with the array; with `debug`, an assertion fails.
    """

    @function
    def between(position, least, most):
        """Return the position where a sequence begins or ends."""
        assert least <= position <= most, "lengths decrease, or exceed the array"
        return min(max(position, least), most)

    @function
    def sizes(cu_seqlens_q, cu_seqlens_k, s, q, k, total_q, total_k):
        """Return the lengths of sequence s, whose queries begin at q and whose keys begin at k."""
        end, end_k = between(cu_seqlens_q[s + 1], q, total_q), between(cu_seqlens_k[s + 1], k, total_k)
        return end - q, end_k - k

    @function
    def tiles_above(steps, queries, keys, offset):
        """Return how many tiles of a sequence have more than `steps` steps."""
        tiles = cdiv(queries, rows)
        hidden = np.clip((steps * block - offset) // rows, 0, tiles) if causal else 0
        found = np.where(keys > steps * block, tiles - hidden, 0)
        return np.where(steps < 0, tiles, found)

    @numpipe_kernel(
        warp_specialized=False,
        grid=lambda table: cdiv(table.shape[0], LANES),
        compiler_params=CompilerParams(asserts=debug),
    )
    def attention_tiles(cu_seqlens_q, cu_seqlens_k, table, count, *, diagonal, total_q, total_k):
        n, sequences = program_id(0) * LANES + iota(LANES), cu_seqlens_q.shape[0] - 1
        zero = full(LANES, 0, np.int32)
        number, tile, first, queries, first_key, keys = zero, zero, zero, zero, zero, zero
        begin, begin_k = between(cu_seqlens_q[0], 0, total_q), between(cu_seqlens_k[0], 0, total_k)
        q, k, total = begin, begin_k, 0
        for s in range(sequences):
            size, size_k = sizes(cu_seqlens_q, cu_seqlens_k, s, q, k, total_q, total_k)
            here = n >= total
            number, tile = np.where(here, s, number), np.where(here, n - total, tile)
            first, queries = np.where(here, q, first), np.where(here, size, queries)
            first_key, keys = np.where(here, k, first_key), np.where(here, size_k, keys)
            q, k, total = q + size, k + size_k, total + cdiv(size, rows)
        offset = diagonal + (keys - queries if from_end else 0)
        seen = tile * rows + offset + 1
        visible = np.minimum(keys, np.maximum(0, seen + rows - 1)) if causal else keys
        steps = (visible + (block - 1)) // block
        place, q, k = zero, begin, begin_k
        for s in range(sequences):
            size, size_k = sizes(cu_seqlens_q, cu_seqlens_k, s, q, k, total_q, total_k)
            of_s = diagonal + (size_k - size if from_end else 0)
            more = tiles_above(steps, size, size_k, of_s)
            as_many = tiles_above(steps - 1, size, size_k, of_s) - more
            # the tiles of its own sequence that have as many steps come in order
            before = np.where(number == s, tile - (cdiv(size, rows) - more - as_many), 0)
            place = place + more + np.where(number > s, as_many, before)
            q, k = q + size, k + size_k
        at = index(np.where(n < total, place, -1), "zero")
        table[at, 0] = first + tile * rows
        table[at, 1] = first + queries
        table[at, 2] = first_key
        table[at, 3] = keys
        table[at, 4] = seen
        if program_id(0) == 0:
            count[0] = total

    return attention_tiles  # type: ignore[no-any-return]


def _result(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> ArrayType:
    """Return the shape and type of the result. Raises SpecError if the operands do not match."""
    for name, info in (("q", q), ("k", k), ("v", v)):
        if len(info.shape) != 3:
            raise SpecError(
                f"attention_varlen: '{name}' must have 3 dimensions, (positions, heads, depth), "
                f"got shape {tuple(info.shape)}"
            )
    check_shapes((1, *q.shape), (1, *k.shape), (1, *v.shape), "bshd")
    for name, info in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if len(info.shape) != 1 or info.shape != cu_seqlens_q.shape or not info.shape[0]:
            raise SpecError(
                f"attention_varlen: '{name}' must have the shape (sequences + 1,), got "
                f"{tuple(info.shape)}; cu_seqlens_q has {tuple(cu_seqlens_q.shape)}"
            )
    return ArrayType(q.shape, q.dtype)


def _launch(
    q: ArrayInfo,
    k: ArrayInfo,
    v: ArrayInfo,
    cu_seqlens_q: ArrayInfo,
    cu_seqlens_k: ArrayInfo,
    out: ArrayInfo,
    lse: ArrayInfo | None,
    causal: bool,
    diagonal: int,
    scale: float | None,
    exact: bool,
    align: str,
    place: Place,
) -> None:
    (total_q, heads, depth), total_k = q.shape, k.shape[0]
    form = Form(next(each for each in WIDTHS if each >= depth), causal, "bshd", lse is not None, True)
    q, k, v, out = (strided(x, (1, *x.shape), (x.shape[0] * x.strides[0], *x.strides)) for x in (q, k, v, out))
    if lse is not None:
        lse = strided(lse, (1, *lse.shape), (lse.shape[0] * lse.strides[0], *lse.strides))
    k, v = _shared_heads(k, v, form)
    sequences = cu_seqlens_q.shape[0] - 1
    device = launch.gpu_state().device
    config = choose(
        form.depth,
        causal,
        exact,
        cdiv(total_q, max(1, sequences)),
        cdiv(total_k, max(1, sequences)),
        heads * sequences,
        device.sm_count if device else DEFAULT.sms,
        False,
    )
    tiles = total_q // config.rows + sequences
    table, count = (allocated(q, shape, place, np.int32) for shape in ((tiles, 5), (1,)))
    totals = {"diagonal": diagonal, "total_q": total_q, "total_k": total_k}
    make = plan(config.rows, config.keys, causal, align == "end")
    make(cu_seqlens_q, cu_seqlens_k, table, count, **totals, **place)
    arrays = [_loaded(name, info, place) for name, info in zip("qkv", (q, k, v), strict=True)]
    scale = depth**-0.5 if scale is None else float(scale)
    kernel(config, form)(
        *arrays,
        table,
        count,
        out=out if lse is None else (out, lse),
        scale=scale * math.log2(math.e),
        diagonal=0,
        group=_turns(heads, heads // k.shape[2], 4 * total_k * depth),
        **place,
    )


@op(
    operands={"q": "", "k": "", "v": "", "cu_seqlens_q": LENGTHS, "cu_seqlens_k": LENGTHS},
    results={
        "out": _result,
        "lse": lambda q, return_lse: ArrayType(q.shape[1::-1], np.float32) if return_lse else None,
    },
    types=TYPES,
    launch=_launch,
    checks={
        "causal": FLAG,
        "diagonal": whole(),
        "align": word("start", "end"),
        "scale": finite(above=0) | NONE,
        "exact": FLAG,
        "return_lse": FLAG,
    },
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
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return ``softmax(scale * q @ k.T) @ v`` for each head of each sequence, where sequences of
    different lengths follow one another in the same arrays.

    q           (positions, heads, depth) of float16 or bfloat16, depth up to 256
    k, v        (positions of keys, key heads, depth); the number of heads of q must be a multiple
                of the number of key heads
    cu_seqlens_q, cu_seqlens_k
                int32 (sequences + 1): queries of sequence s are at positions cu_seqlens_q[s] to
                cu_seqlens_q[s + 1], and so are its keys. The lengths stay on the GPU
    causal      query i of a sequence sees its keys 0…i + diagonal; with align="end", the last query
                sees the last key + diagonal
    align       "end" or "start": which end of the queries and keys of a sequence the causal mask
                aligns
    """
