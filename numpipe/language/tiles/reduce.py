"""Reductions of register tiles: ``x.sum(axis=1)``, ``x.max()``, ``x.argmax(axis=0)``, ``np.any(mask)``.

Lane 4 g + t of a warp holds columns 2 t, 2 t + 1 of each 8, of rows g and g + 8 of each 16. What a reduction costs depends on
where the elements are that it brings together:

=====================  =========================  ==============================================================================
reduction              result                     who has the elements
=====================  =========================  ==============================================================================
axis 1 of (M, N)       vector (M,), along rows    the four lanes of a quad: 2 shuffles for each row a lane has
axis 0 of (M, N)       vector (N,), along         8 quads of each of 4 warps: 3 shuffles for each column a lane has, then 16 N
                       columns                    bytes of shared memory and two barriers of the warpgroup
all of a tile          number                     5 shuffles, 16 bytes of shared memory, two barriers
a vector along         number                     2 shuffles
columns
a vector along rows    number                     3 shuffles, 16 bytes of shared memory, two barriers
any, all of a mask     bool                       one barrier, which votes (PTX ISA, "barrier.red")
`partial_sum` …        tile (M, 8)                the lane itself: every eighth column, nothing is moved
=====================  =========================  ==============================================================================

`argmin` and `argmax` exchange 8 bytes where the others exchange 4. They give the int32 index of the first such element, in a whole
tile that of its rows one after another; of NaN, as NumPy's, the first one. `mean` is the sum, divided, of float32; of 16 bits it is
rounded once.

In a loop over blocks of columns it pays to keep `partial_sum`s, and to reduce these once behind the loop. Sums are in another order
than NumPy's, in the same one each time and in both executions: the elements of a lane, of a quad, of the quads and of the warps,
each in pairs of neighbours, pairs of pairs and so on. (`partial_sum` is NumPy's simulated.) The results,
but those of `partial_sum`, are the same in all lanes that hold them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...arch.dtypes import BFLOAT16, BOOL, FLOAT32, HALVES, INT32
from ...core.inert import Inert
from ...core.machine import current
from ...core.op import Op, op
from ...diagnostics.errors import SpecError
from .elementwise import form_of, int32
from .exchange import each_to_all, exchange
from .layouts import ACCUMULATOR, COLUMN, EITHER, ROW, Form, only_accumulator
from .tile import Tile

__all__ = ["partial_max", "partial_min", "partial_sum"]

REDUCED = "a reduction of a register tile"
VOTES = "any", "all"
INDICES = "argmax", "argmin"
FUNCTIONS: dict[str, Callable[..., Any]] = {name: getattr(np, name) for name in ("sum", "mean", "max", "min", *INDICES, *VOTES)}


def check(operation: str, form: Any, axis: int | None, keepdims: bool, given: str) -> Form | None:
    """What a reduction gives: the form of a tile, or None for a number. SpecError for what has none."""
    if not isinstance(form, Form):
        raise SpecError(f"{operation}(…) of register tiles: got {given}")
    if (form.dtype == BOOL) != (operation in VOTES):
        if form.dtype == BOOL:
            raise SpecError(f"{operation} of a mask: count with mask.astype(np.int32).sum(), or ask np.any(mask)")
        raise SpecError(f"{operation} takes a mask, as x < y gives it, got {form.dtype}")
    if form.dtype in HALVES and operation == "sum":
        raise SpecError(f"{operation}: a {form.dtype} tile would be rounded at each step: use .astype(np.float32) first")
    if form.dtype not in (FLOAT32, *HALVES, INT32, BOOL):
        raise SpecError(f"{operation}: reductions are of float32 and int32 tiles, got {form.dtype}: use .astype(np.float32) first")
    only_accumulator(form, operation)
    rank = len(form.shape)
    if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank):
        raise SpecError(f"{operation}: axis must be None or an int from {-rank} to {rank - 1} for shape {form.shape}, got {axis!r}")
    if form.layout != ACCUMULATOR or axis is None:
        if keepdims or (rank == 2 and axis is not None):
            raise SpecError(f"{operation}: of a tile {form.shape} there is a number, without axis= and keepdims=")
        return None
    if operation in VOTES:
        instead = f"mask.astype(np.int32).{'max' if operation == 'any' else 'min'}(axis={axis})"
        raise SpecError(f"{operation} along an axis: {instead} is 1 where {operation} is true")
    axis %= 2
    size = form.shape[1 - axis]
    shape: tuple[int, ...] = ((1, size) if axis == 0 else (size, 1)) if keepdims else (size,)
    return Form(shape, result_type(operation, form.dtype), ROW if axis == 0 else COLUMN)


def result_type(operation: str, dtype: np.dtype) -> np.dtype:
    """The type of what a reduction of elements of `dtype` gives."""
    return INT32 if operation in INDICES else FLOAT32 if operation == "mean" and dtype == INT32 else dtype


def elements(form: Form, axis: int | None) -> int:
    """How many elements are brought together in one."""
    return form.shape[axis] if axis is not None else int(np.prod(form.shape))


def number_type(dtype: np.dtype) -> np.dtype:
    """The type of a number that is an element of a tile: there are none of bfloat16."""
    return FLOAT32 if dtype == BFLOAT16 else dtype


def exchanged(operation: str, form: Form, axis: int | None) -> int:
    """Bytes of shared memory that a warpgroup's warps exchange; 0: none."""
    if form.dtype == BOOL or form.layout in (ROW, EITHER):
        return 0
    along = None if form.layout != ACCUMULATOR or axis is None else axis % 2
    return 0 if along == 1 else 4 * (1 if along is None else form.shape[1]) * (8 if operation in INDICES else 4)


def reduced(np_: Any, tile: Any, operation: str, axis: Any, keepdims: Any) -> Any:
    """``tile.sum(axis=…, keepdims=…)`` and its like, in a kernel of which `np_` is the context."""
    axis = None if axis is None else int(axis)
    made = check(operation, form_of(tile), axis, bool(keepdims), type(tile).__name__)
    if np_.memory:
        return Inert(REDUCED) if made is None else Tile(None, made.shape, made.dtype, made.layout)
    nbytes = exchanged(operation, tile.form, axis)
    if nbytes:
        np_.unit.plan_exchange(nbytes)
        exchange(np_, *each_to_all(nbytes // 4), f"{operation} of a register tile")
    if operation in VOTES:
        machine = current()
        return machine.bar_red(1 + machine.warpgroup, 128, operation, tile.value)
    value = tile.value.astype(FLOAT32) if tile.dtype in HALVES or operation == "mean" else tile.value
    with np.errstate(all="ignore"):
        if operation == "sum" and tile.dtype == INT32:
            found = int32("sum", np.sum(value, axis=axis, dtype=np.int64))
        elif operation in ("sum", "mean"):
            found = _added(value, tile.form, axis)
            found = found if operation == "sum" else found / FLOAT32.type(elements(tile.form, axis))
        else:
            found = FUNCTIONS[operation](value, axis=axis)
        if made is None:
            return number_type(result_type(operation, tile.dtype)).type(np.asarray(found).item())
        return Tile(np.asarray(found).reshape(made.shape).astype(made.dtype), made.shape, made.dtype, made.layout)


def by_lanes(value: np.ndarray, layout: str) -> np.ndarray:
    """The elements by who has them: blocks of 64 rows, warps, halves, quads; blocks of 8 columns, lanes of a quad, two of each."""
    rows, columns = (1, value.size) if layout in (ROW, EITHER) else (value.size, 1) if layout == COLUMN else value.shape
    return value.reshape(*((rows // 64, 4, 2, 8) if rows > 1 else (1,) * 4), *((columns // 8, 4, 2) if columns > 1 else (1,) * 3))


def _added(value: np.ndarray, form: Form, axis: int | None) -> Any:
    """The sum of float32 elements in the order of the GPU."""
    block, warp, half, quad, step, lane, odd = range(7)
    along = None if axis is None or len(form.shape) == 1 else axis % 2
    groups = {0: ((block, half), (quad,), (warp,)), 1: ((step, odd), (lane,)),
              None: ((block, step, half, odd), (lane,), (quad,), (warp,))}[along]
    parts = by_lanes(value, form.layout)
    summed = [part for group in groups for part in group]
    kept = [part for part in range(7) if part not in summed]
    sizes = [int(np.prod([parts.shape[part] for part in group])) for group in reversed(groups)]
    parts = parts.transpose(kept + [part for group in reversed(groups) for part in group]).reshape(-1, *sizes)
    for _ in groups:
        while (count := parts.shape[-1]) > 1:
            even = count // 2 * 2
            parts = np.concatenate([parts[..., 0:even:2] + parts[..., 1:even:2], parts[..., even:]], axis=-1)
        parts = parts[..., 0]
    return parts


def _reduction(name: str) -> Op[..., Any]:
    def operation(np_: Any, tile: Any, axis: Any = None, keepdims: Any = False) -> Any:
        return reduced(np_, tile, name, axis, keepdims)

    operation.__name__ = operation.__qualname__ = name
    return op(context=True, numpy=getattr(np, name), method=name)(operation)


REDUCTIONS = {name: _reduction(name) for name in FUNCTIONS}


def partial_form(form: Any, name: str, given: str) -> Form:
    """What `partial_sum` and its like make of a tile."""
    if not isinstance(form, Form) or form.layout != ACCUMULATOR or form.dtype not in (FLOAT32, INT32):
        raise SpecError(f"{name}(tile) takes a float32 or int32 tile (M, N), got {form if isinstance(form, Form) else given}")
    return Form((form.shape[0], 8), form.dtype)


def _partial(name: str, function: Callable[..., Any], doc: str) -> Any:
    def operation(tile: Any) -> Any:
        made = partial_form(form_of(tile), name, type(tile).__name__)
        if tile.inert:
            return Tile(None, made.shape, made.dtype)
        with np.errstate(all="ignore"):
            parts = function(tile.value.reshape(made.shape[0], -1, 8), axis=1)
        return Tile(np.asarray(parts).astype(made.dtype), made.shape, made.dtype)

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = doc + """

    A tile (M, 8) of a tile (M, N) of float32 or int32, made by each lane of its own elements: 4 registers for each 64 rows. Reduce
    it along axis 1 for what the whole row gives. Raises SpecError for other tiles.
    """
    return op(operation)


partial_sum = _partial("partial_sum", np.sum, "Sums of every eighth column: element (i, j) is that of columns j, j + 8, … of "
                                              "row i.")
partial_max = _partial("partial_max", np.max, "Maxima of every eighth column; NaN where one is NaN.")
partial_min = _partial("partial_min", np.min, "Minima of every eighth column; NaN where one is NaN.")


# ---- a vote in an `if`
@op(context=True)
def chosen(np_: Any, test: Any) -> Any:
    """The test of an `if` that a vote decides, which the memory role passes by: nothing in it loads anything."""
    return False if np_.memory and isinstance(test, Inert) else bool(test)


@op(context=True)
def behind_choice(np_: Any, value: Any) -> Any:
    """A value that such an `if` may have changed: a number has none in the memory role."""
    if isinstance(value, tuple):
        parts = [behind_choice.function(np_, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return Inert("a number that a vote decides") if np_.memory and not isinstance(value, Tile) else value
