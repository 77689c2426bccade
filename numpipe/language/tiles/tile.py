"""Register tiles: values that a warpgroup holds, each lane a part.

A two-dimensional tile has the layout of the accumulator of ``wgmma.mma_async.m64nN`` (PTX ISA,
"Register Fragments for wgmma"): in each block of 64 rows, warp w of the warpgroup has rows 16 w …
16 w + 15. Vectors, and tiles of one row or column, are distributed so that they can be broadcast to
it without data movement (`layouts`). On the simulated SM, a tile is one NumPy array.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from ...arch.dimensions import Ints
from ...arch.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    HALVES,
    INT32,
    INTEGERS,
    TILES,
    listed,
    packed_fix,
    packing,
)
from ...core.inert import REASON
from ...core.machine import InFlight, current
from ...core.op import called, constant, op
from ...diagnostics.argument_checks import is_int, told
from ...diagnostics.errors import CompileError, SpecError
from .layouts import MOST, Form, deferred, natural, ways

__all__ = ["bitcast", "zeros"]

FLOATS = FLOAT32, *HALVES
MASK = "a mask, of whose elements np.any(mask) or np.all(mask) make one bool,"


def check_dtype(dtype: np.dtype, what: str) -> None:
    """Raise SpecError for a type that tiles do not support."""
    if dtype not in TILES:
        raise SpecError(
            f"{what}: a tile's dtype must be {listed(TILES, 'or')}, got {dtype}: convert an array "
            f"before the call{packed_fix(dtype)}"
        )


def check_form(shape: Any, dtype: np.dtype, what: str) -> Form:
    """Return the form of a tile of this shape: two-dimensional, or a vector. Raises SpecError for
    unsupported shapes."""
    shape = (shape,) if isinstance(shape, (int, np.integer)) else shape
    if not isinstance(shape, tuple) or not all(is_int(n) and abs(n) <= MOST for n in shape):
        raise SpecError(f"{what}: a shape must be a tuple of ints up to {MOST}, got {told(shape)}")
    if dtype != BOOL:
        check_dtype(dtype, what)
    whole = tuple(map(int, shape))
    if len(whole) not in (1, 2) or min(whole) < 1 or math.prod(whole) > MOST:
        raise SpecError(
            f"{what}: a tile must have one or two dimensions, and 1 to {MOST} elements (all "
            f"registers of a warpgroup), got {shape}"
        )
    if len(whole) == 2 and 1 not in whole:
        return Form(whole, dtype, natural(whole))
    if not ways(whole):
        raise SpecError(
            f"{what}: a column must have a multiple of 64 rows, or at most {MOST // 8}, got {shape}"
        )
    return Form(whole, dtype, deferred(whole))


class TileLike:
    """The attributes that a register tile has in common with its Numba type."""

    form: Form
    inert = False
    steps: Ints = ()

    @property
    def shape(self) -> Ints:
        return self.form.shape

    @property
    def dtype(self) -> np.dtype:
        return self.form.dtype

    @property
    def layout(self) -> str:
        return self.form.layout

    def settled(self, what: str) -> Any:
        """Return the tile if `what` may read it. Raises CompileError for an accumulator in
        flight."""
        return self


def form_of(operand: Any, what: str) -> Form | None:
    """Return the form of a register tile that `what` reads; None for other operands."""
    return operand.settled(what).form if isinstance(operand, TileLike) else None


def tile_form(operand: Any, operation: str, name: str = "tile") -> Form:
    """Return the form of a register tile that an operation reads. Raises SpecError for other
    operands."""
    form = form_of(operand, f"'{operation}'")
    if form is None:
        raise SpecError(f"{operation}: {name} must be a register tile, got {called(operand)}")
    return form


class Tile(TileLike):
    """A register tile on the simulated SM. In the memory role it has no value (None)."""

    __array_ufunc__ = None  # NumPy scalars then leave arithmetic to the tile

    def __init__(self, value: np.ndarray | InFlight | None, form: Form) -> None:
        self._value, self.form = value, form

    @property
    def value(self) -> np.ndarray:
        """The elements. Raises PipelineRace if a wgmma may still be writing them."""
        if isinstance(self._value, np.ndarray):
            return self._value
        if self._value is None:
            raise RuntimeError("a register tile has no value in the memory role")
        return self._value.read()

    @property
    def inert(self) -> bool:  # type: ignore[override]
        return self._value is None

    def astype(self, dtype: Any) -> Tile:
        """Return the tile converted to another type; see `numpipe.language.tiles.tile.astype`."""
        return astype(self, dtype)

    def view(self, dtype: Any) -> Tile:
        """Return the tile's bits as another type; see `bitcast`."""
        return bitcast(self, dtype)

    def _steers(self, *_: Any) -> NoReturn:
        raise CompileError(f"{MASK if self.dtype == BOOL else 'a register tile'} {REASON}")

    __bool__ = __int__ = __index__ = __float__ = _steers


@op
def zeros(shape: Any, dtype: Any) -> Tile:
    """Create a tile of zeros, for sums: ``zeros((64, 256), np.float32)``. The shape is in elements:
    (M, N), (M, 1), (1, N), or (n,) for a vector.

    The type is float32, or int32 for products of 8-bit integers. Zeroing takes ``shape[0] *
    shape[1] / 128`` registers per lane, and no instruction if a wgmma adds to the tile.
    """
    form = zeros_form(shape, dtype)
    return Tile(np.zeros(form.shape, form.dtype) if current().role.computes else None, form)


def zeros_form(shape: Any, dtype: Any) -> Form:
    kind = dtype_of(dtype)
    if kind == FLOAT64:
        return replace(zeros_form(shape, FLOAT32), dtype=kind)
    check_dtype(kind, "zeros")
    form = check_form(constant("zeros", "shape", shape), kind, "zeros")
    if kind not in (FLOAT32, INT32):
        raise SpecError(
            f"zeros: accumulators are float32 or int32, got {kind}; fix: create one of these, and "
            "convert it with .astype"
        )
    return form


@functools.singledispatch
def dtype_of(argument: Any) -> np.dtype:
    """Return the dtype that a compile-time argument, or its Numba type, names."""
    return np.dtype(argument)  # type: ignore[no-any-return]


@op
def astype(tile: Tile, dtype: Any) -> Tile:
    """Convert a tile to another type: ``tile.astype(dtype)``. All types of tiles are supported; a
    mask becomes 0 and 1.

    To floats, values are rounded to nearest, ties to even. To float8 types they saturate: values
    that are too large, including infinity, become the largest number with their sign; NaN stays NaN
    (PTX ISA, "cvt": ``.satfinite``). From floats to integers, values are truncated and saturate;
    NaN becomes 0 (``.rzi.s32``, ``.rzi.u32``, and ``cvt.pack.sat`` to 8 bits). From integers to
    integers of the same size or smaller, the low bits are kept, as in NumPy; use ``np.clip(x, -128,
    127)`` first to saturate. Conversions from integers to floats, and between floats of 8 and 16
    bits, go through float32.
    """
    form = astype_form(tile.form, dtype)
    return (
        tile
        if form == tile.form
        else Tile(None if tile.inert else _converted(tile.value, form.dtype), form)
    )


def astype_form(form: Form, dtype: Any) -> Form:
    kind = dtype_of(dtype)
    if kind != form.dtype and FLOAT64 in (kind, form.dtype):
        if {kind, form.dtype} - {FLOAT64} <= set(FLOATS):
            return Form(form.shape, kind, form.layout)
        raise SpecError(
            f"astype from a {form.dtype} tile to {kind}: float64 converts only from and to "
            f"{listed(FLOATS)}; fix: .astype(np.float32).astype(…)"
        )
    if kind != form.dtype:
        check_dtype(kind, "astype")
    return Form(form.shape, kind, form.layout)


def number_form(value: Any, dtype: Any) -> np.dtype:
    """Return the type that a number is converted to, ``x.astype(dtype)``; raise SpecError for types
    that no number has."""
    kind = dtype_of(dtype)
    if (kind.itemsize == 1 and kind.kind not in "iub") or kind == BFLOAT16:
        raise SpecError(
            f"astype: a number of a kernel is not {kind}: fix: store it to an array or a tile of "
            f"{kind}, which rounds it, or numpipe.full(shape, number, {kind.name!r})"
        )
    return kind


def casts(have: np.dtype, want: np.dtype) -> bool:
    """Return whether a store converts a tile's elements to another type: from 16-bit and 32-bit
    floats and int32 to 16-bit and 32-bit floats, but not from bfloat16 to float16. This was NumPy's
    "same_kind" rule until ml_dtypes 0.7 added the last conversion to it."""
    known = want in FLOATS and have in (*FLOATS, INT32)
    return known and have != want and (have, want) != (BFLOAT16, FLOAT16)


def cast_to_store(value: Any, dtype: np.dtype) -> Any:
    """Return the value to store to elements of a type: a tile that `casts` accepts is converted to
    it."""
    return value.astype(dtype) if isinstance(value, Tile) and casts(value.dtype, dtype) else value


def _converted(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    largest = packing(dtype).largest
    with np.errstate(all="ignore"):
        if dtype in INTEGERS:
            whole = value.dtype in (*INTEGERS, BOOL)
            return value.astype(dtype) if whole else _truncated(value, dtype)
        if dtype == FLOAT64:
            return value.astype(dtype)
        found = value.astype(FLOAT32)
        narrowed: np.ndarray = (
            found if largest is None else np.clip(found, -largest, largest)
        ).astype(dtype)
        return narrowed


def _truncated(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return floats truncated to integers of a type, clipped to its range; 0 for NaN."""
    limits = np.iinfo(dtype)
    whole: np.ndarray = np.nan_to_num(np.trunc(value.astype(np.float64)), nan=0.0)
    return np.clip(whole, limits.min, limits.max).astype(dtype)  # type: ignore[no-any-return]


# ---- the same bits
@op
def bitcast(tile: Tile, dtype: Any) -> Tile:
    """Reinterpret the bits of a register tile as another type of the same size, inside a kernel, at
    no cost.

    tile   a tile or a vector, of any shape and layout
    dtype  32 bits: float32, int32, uint32; 16 bits: float16, bfloat16; 8 bits: int8, uint8,
           float8_e4m3fn, float8_e5m2

    ``tile.view(np.int32)`` is the same, as for NumPy arrays; the counterpart in JAX is
    ``jax.lax.bitcast_convert_type``. The exponents of a float32 tile::

        exponents = ((numpipe.bitcast(x, np.int32) >> 23) & 255) - 127

    Raises SpecError for masks, and for a type of another size.
    """
    form = bitcast_form(tile, dtype)
    return Tile(None if tile.inert else tile.value.view(form.dtype), form)


def bitcast_form(tile: Any, dtype: Any) -> Form:
    form, kind = tile_form(tile, "bitcast"), dtype_of(dtype)
    sized = [known for known in TILES if known.itemsize == form.dtype.itemsize]
    if form.dtype == BOOL or kind not in sized:
        raise SpecError(
            f"bitcast of a {'mask' if form.dtype == BOOL else f'{form.dtype} tile'} to {kind}: "
            + (
                "a mask has no bits of its own; fix: use .astype(np.int32)"
                if form.dtype == BOOL
                else (
                    f"expected a type of {8 * form.dtype.itemsize} bits, {listed(sized, 'or')}; "
                    "fix: "
                    "use astype to convert"
                )
            )
        )
    return Form(form.shape, kind, form.layout)
