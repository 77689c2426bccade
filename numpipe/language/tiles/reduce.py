"""Reductions of register tiles: ``x.sum(axis=1)``, ``x.max()``, ``x.argmax(axis=0)``,
``np.var(x)``, ``np.any(mask)``.

Lane 4 g + t of a warp holds columns 2 t and 2 t + 1 of every 8, in rows g and g + 8 of every 16.
The cost of a reduction depends on which lanes hold the elements that it combines:

=====================  =========================  ==================================================
reduction              result                     lanes that hold the elements, and cost
=====================  =========================  ==================================================
axis 1 of (M, N)       vector (M,), along rows    the four lanes of a quad: 2 shuffles for each row
                                                  of a lane
axis 0 of (M, N)       vector (N,), along         8 quads of each of 4 warps: 3 shuffles for each
                       columns                    column of a lane, then 16 N bytes of shared memory
                                                  and two barriers of the warpgroup
all of a tile          number                     5 shuffles, 16 bytes of shared memory, two
                                                  barriers
a vector along         number                     2 shuffles
columns
a vector along rows    number                     3 shuffles, 16 bytes of shared memory, two
                                                  barriers
rows of tiles by row   vector "column L"          log2 L shuffles; axis 0 as above, where several
                                                  warps have rows
any, all of a mask     bool                       one barrier, which votes (PTX ISA, "barrier.red")
`partial_sum` …        tile (M, 8)                the lane itself: every eighth column, nothing is
                                                  moved
=====================  =========================  ==================================================

`any` and `all` along an axis give a mask, at the cost of a maximum or minimum of int32. `var` and
`std` reduce twice: to the mean, then the squared differences from it.

`argmin` and `argmax` reduce twice: to the extreme, then to the int32 index of the first element
that equals it, in a whole tile in row-major order; like NumPy, they return the first NaN if there
is one. `mean` is the sum divided by the count, in float32; a 16-bit mean is rounded once.
Variances and standard deviations have the same types as means.

In a loop over blocks of columns, accumulate `partial_sum`s, and reduce them once after the loop.
Sums are added in another order than NumPy's, but always in the same order, on the GPU and in the
simulator: the elements of a lane, of a quad, of the quads and of the warps, each as a tree of
neighboring pairs. (The simulator computes `partial_sum` in NumPy's order.) Results are
identical in all lanes that hold them, except results of `partial_sum`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...arch.dtypes import BFLOAT16, BOOL, FLOAT32, HALVES, INT32, INTEGERS, UINT32
from ...core.arith import named
from ...core.inert import Inert
from ...core.machine import current
from ...core.op import Op, called, constant, context_op
from ...diagnostics.errors import SpecError
from ...plan.context import Context, ContextFacts
from .conversions import moved
from .elementwise import check_axis, integers
from .exchange import ROOM, each_to_all, exchange
from .layout_names import COLUMN, ROW
from .layouts import GROUP, Form, deferred
from .row_layouts import lanes_for
from .tile import Tile, form_of, tile_form

__all__ = ["partial_max", "partial_min", "partial_sum"]

REDUCED = "a reduction of a register tile"
VOTES = "any", "all"
INDICES = "argmax", "argmin"
SPREADS = "var", "std"
TWICE = *INDICES, *SPREADS
"""reductions that compare elements with the result of a first reduction"""
FUNCTIONS: dict[str, Callable] = {
    name: getattr(np, name) for name in ("sum", "mean", "max", "min", *INDICES, *VOTES, *SPREADS)
}
DIVIDED = "mean", *SPREADS
"""Reductions that divide by the number of elements, in float32."""


@dataclass(frozen=True)
class Plan:
    """A plan of a reduction.

    form      in which layout the tile is reduced
    axis      the axis that is reduced; None for all elements
    whole     whether all elements are combined into one
    result    the form of the resulting tile; a form without dimensions for a number
    elements  how many elements are combined into one
    nbytes    bytes that the warps exchange, in turns of at most `ROOM`
    """

    form: Form
    axis: int | None
    whole: bool
    result: Form
    elements: int
    nbytes: int


def plan(np_: ContextFacts, operation: str, tile: Any, axis: Any, keepdims: Any) -> Plan:
    """Return how a tile is reduced. Raises SpecError for unsupported reductions."""
    form = tile_form(tile, operation)
    axis, keepdims = constant(operation, "axis", axis), constant(operation, "keepdims", keepdims)
    if (form.dtype == BOOL) != (operation in VOTES):
        if form.dtype == BOOL:
            raise SpecError(
                f"{operation} of a mask; fix: count with mask.astype(np.int32).sum(), or test "
                "np.any(mask)"
            )
        raise SpecError(f"{operation} expects a mask, such as x < y, got {form.dtype}")
    if form.dtype in HALVES and operation == "sum":
        raise SpecError(
            f"{operation}: a {form.dtype} tile would be rounded at each step; fix: use "
            ".astype(np.float32) first"
        )
    if form.dtype not in (FLOAT32, *HALVES, INT32, UINT32, BOOL):
        wide = INT32 if form.dtype in INTEGERS else FLOAT32
        raise SpecError(
            f"{operation} expects a float32, int32 or uint32 tile, got {form.dtype}; fix: use "
            f".astype(np.{wide}) first"
        )
    form = form.uncoalesced()
    along = None if axis is None else check_axis(form, axis, operation, "None or an int")
    line = form.record.axes if len(form.shape) == 2 else (0,)
    whole = along is None or line == (along,)
    dtype = (
        INT32
        if operation in INDICES
        else FLOAT32
        if operation in DIVIDED and form.dtype in INTEGERS
        else form.dtype
    )
    if along is None or whole:
        shape = (1,) * (
            len(form.shape) if keepdims else len(form.shape) - 1 if axis is not None else 0
        )
        # numbers cannot be bfloat16
        kind = FLOAT32 if dtype == BFLOAT16 and not shape else dtype
        result = Form(shape, kind, deferred(shape)) if shape else Form((), kind)
        alone = form.record.warps == 1 or form.single
        nbytes = 0 if (form.dtype == BOOL and not shape) or alone else 16
        elements = int(np.prod(form.shape))
    else:
        size, elements = form.shape[1 - along], form.shape[along]
        shape = ((1, size) if along == 0 else (size, 1)) if keepdims else (size,)
        alone = along == 1 or form.record.warps == 1
        layout = deferred(shape) if size == 1 else form.name.along((ROW, COLUMN)[along])
        result = Form(shape, dtype, layout)
        own = form.covered[1 - along]
        nbytes = 0 if alone or along not in form.record.axes else 16 * own
    if nbytes and np_.computes:
        np_.unit.plan_exchange(min(nbytes, ROOM))
    return Plan(form, along, whole, result, elements, nbytes)


def _added(value: np.ndarray, form: Form, axis: int | None) -> Any:
    """Return sums of float32 elements, added in the GPU's order: over the registers of a lane, over
    lanes, over warps."""
    every = form.record.parts(form.covered)
    beyond = [(0, more - size) for more, size in zip(form.covered, form.shape, strict=True)]
    value = np.pad(value, beyond, constant_values=-0.0)
    ordered = sorted(every, key=lambda part: (part.axis, -part.step))
    groups = [
        [ordered.index(part) for part in group]
        for _, group in itertools.groupby(
            (part for part in every if axis in (None, part.axis)),
            key=lambda part: (part.holder, part.holder == "lanes" and part.axis),
        )
    ]
    parts = value.reshape([part.count for part in ordered])
    summed = [part for group in groups for part in group]
    kept = [part for part in range(len(ordered)) if part not in summed]
    sizes = [int(np.prod([parts.shape[part] for part in group])) for group in reversed(groups)]
    parts = parts.transpose(kept + [part for group in reversed(groups) for part in group]).reshape(
        -1, *sizes
    )
    for _ in groups:
        while (count := parts.shape[-1]) > 1:
            even = count // 2 * 2
            parts = np.concatenate(
                [parts[..., 0:even:2] + parts[..., 1:even:2], parts[..., even:]], axis=-1
            )
        parts = parts[..., 0]
    return parts


def _mean(value: np.ndarray, form: Form, how: Plan) -> Any:
    return np.asarray(_added(value, form, how.axis) / FLOAT32.type(how.elements))


def _spread(name: str, value: np.ndarray, form: Form, how: Plan) -> Any:
    """Return variances or standard deviations of float32 elements, computed in the GPU's order."""
    means = _mean(value, form, how)
    if how.axis is not None and not how.whole:
        means = np.expand_dims(means.reshape(-1)[: form.shape[1 - how.axis]], how.axis)
    apart = value - means
    found = _mean(apart * apart, form, how)
    return np.sqrt(found) if name == "std" else found


def _reduction(name: str) -> Op:
    def operation(np_: Context, tile: Any, axis: Any = None, keepdims: Any = False) -> Any:
        how = plan(np_, name, tile, axis, keepdims)
        form = how.result
        if not np_.computes:
            return Tile(None, form) if form.shape else Inert(REDUCED)
        tile = moved(tile, how.form)
        for _ in range(-(-how.nbytes // ROOM) * (1 + (name in TWICE))):
            exchange(np_, *each_to_all(min(how.nbytes, ROOM) // 4), f"{name} of a register tile")
        if name in VOTES and not form.shape:
            machine = current()
            return machine.bar_red(1 + machine.warpgroup, 128, name, tile.value)
        value = (
            tile.value.astype(FLOAT32) if tile.dtype in HALVES or name in DIVIDED else tile.value
        )
        with np.errstate(all="ignore"):
            if name == "sum" and tile.dtype in INTEGERS:
                found = integers("sum", np.sum(value, axis=how.axis, dtype=np.int64), tile.dtype)
            elif name in ("sum", "mean"):
                found = (
                    _added(value, tile.form, how.axis)
                    if name == "sum"
                    else _mean(value, tile.form, how)
                )
            elif name in SPREADS:
                found = _spread(name, value, tile.form, how)
            else:
                found = FUNCTIONS[name](value, axis=how.axis)
            if not form.shape:
                return form.dtype.type(np.asarray(found).item())
            own = np.asarray(found).reshape(-1)[: math.prod(form.shape)]
            return Tile(own.reshape(form.shape).astype(form.dtype), form)

    operation.__name__ = operation.__qualname__ = name
    return context_op(numpy=getattr(np, name), method=name)(operation)


REDUCTIONS = {name: _reduction(name) for name in FUNCTIONS}


def partial_form(tile: Any, name: str) -> tuple[Form, Form]:
    """Return (the form that a tile is moved to, the form of its partial results)."""
    form = form_of(tile, f"'{name}'")
    if (
        form is None
        or len(form.shape) != 2
        or form.shape[1] % GROUP
        or form.dtype not in (FLOAT32, INT32)
    ):
        raise SpecError(
            f"{name}(tile) expects a float32 or int32 tile (M, N), got {form or called(tile)}"
        )
    form = form.uncoalesced()
    if 1 in form.shape:
        form = replace(form, layout=f"{ROW} {lanes_for(form.shape[1])}")
    return form, replace(form, shape=(form.shape[0], GROUP))


def _partial(name: str, function: Callable, doc: str) -> Any:
    def operation(tile: Any) -> Any:
        source, form = partial_form(tile, name)
        if tile.inert:
            return Tile(None, form)
        moved(tile, source)
        with np.errstate(all="ignore"):
            return Tile(
                np.asarray(function(tile.value.reshape(form.shape[0], -1, GROUP), axis=1)).astype(
                    form.dtype
                ),
                form,
            )

    return named(
        operation,
        name,
        doc
        + """

    From a tile (M, N) of float32 or int32, each lane computes its part of a tile (M, 8) from its
    own elements: 4 registers for each 64 rows. Reduce the result along axis 1 for the value of the
    whole row. Where more than 4 lanes share a row, they combine their parts with up to 5 shuffles.
    Raises SpecError for other tiles.
    """,
    )


partial_sum = _partial(
    "partial_sum",
    np.sum,
    "Sums of every eighth column: element (i, j) is of columns j, j + 8, … of row i.",
)
partial_max = _partial(
    "partial_max", np.max, "Maxima of every eighth column; NaN where one is NaN."
)
partial_min = _partial(
    "partial_min", np.min, "Minima of every eighth column; NaN where one is NaN."
)
PARTIALS: dict[str, Op] = {"sum": partial_sum, "max": partial_max, "min": partial_min}
