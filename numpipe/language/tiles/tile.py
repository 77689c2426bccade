"""Register tiles: values held by a warpgroup, one part per lane.

A tile of two dimensions is laid out as the accumulator of ``wgmma.mma_async.m64nN`` (PTX ISA,
"Register Fragments for wgmma"): its rows come in blocks of 64, warp w of the warpgroup has rows 16
w … 16 w + 15 of each. Vectors, and tiles with one row or column, have what broadcasts to that
(`layouts`). On the simulated SM a tile is one NumPy array.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from ...arch.dtypes import (
    BFLOAT16,
    BOOL,
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
    """Raise SpecError for a type that no tile of an array's elements has."""
    if dtype not in TILES:
        raise SpecError(
            f"{what}: a tile's dtype is {listed(TILES, 'or')}, got {dtype}: convert an array "
            f"before the call{packed_fix(dtype)}"
        )


def check_form(shape: Any, dtype: np.dtype, what: str) -> Form:
    """Return the form of a tile: of two dimensions, either of which may be 1, or a vector; raise
    SpecError for other shapes."""
    shape = (shape,) if isinstance(shape, (int, np.integer)) else shape
    if not isinstance(shape, tuple) or not all(is_int(n) and abs(n) <= MOST for n in shape):
        raise SpecError(f"{what}: a shape is a tuple of ints up to {MOST}, got {told(shape)}")
    if dtype != BOOL:
        check_dtype(dtype, what)
    whole = tuple(map(int, shape))
    if len(whole) not in (1, 2) or min(whole) < 1 or math.prod(whole) > MOST:
        raise SpecError(
            f"{what}: a tile has one or two dimensions, and 1 to {MOST} elements, all registers of "
            f"a warpgroup, got {shape}"
        )
    if len(whole) == 2 and 1 not in whole:
        return Form(whole, dtype, natural(whole))
    if not ways(whole):
        raise SpecError(f"{what}: a column has 64 x j rows, or at most {MOST // 8}, got {shape}")
    return Form(whole, dtype, deferred(whole))


class TileLike:
    """The attributes of a register tile that its Numba type has too."""

    form: Form
    inert = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.form.shape

    @property
    def dtype(self) -> np.dtype:
        return self.form.dtype

    @property
    def layout(self) -> str:
        return self.form.layout

    def settled(self, what: str) -> Any:
        """Return the tile where `what` may read it; raise CompileError for accumulators in
        flight."""
        return self


def form_of(operand: Any, what: str) -> Form | None:
    """Return the form of a register tile that `what` reads; None for other operands."""
    return operand.settled(what).form if isinstance(operand, TileLike) else None


class Tile(TileLike):
    """A register tile on the simulated SM. In the memory role it has no value (None)."""

    __array_ufunc__ = None  # NumPy's scalars leave arithmetic with tiles to the tiles

    def __init__(self, value: np.ndarray | InFlight | None, form: Form) -> None:
        self._value, self.form = value, form

    @property
    def value(self) -> np.ndarray:
        """The elements; raises PipelineRace while a wgmma may still be writing them."""
        if isinstance(self._value, np.ndarray):
            return self._value
        if self._value is None:
            raise RuntimeError("a register tile has no value in the memory role")
        return self._value.read()

    @property
    def inert(self) -> bool:  # type: ignore[override]
        return self._value is None

    def astype(self, dtype: Any) -> Tile:
        """Return the tile converted to another type: `numpipe.language.tiles.tile.astype`."""
        return astype(self, dtype)

    def view(self, dtype: Any) -> Tile:
        """Return the tile's bits as another type: `bitcast`."""
        return bitcast(self, dtype)

    def _steers(self, *_: Any) -> NoReturn:
        raise CompileError(f"{MASK if self.dtype == BOOL else 'a register tile'} {REASON}")

    __bool__ = __int__ = __index__ = __float__ = _steers


@op
def zeros(shape: Any, dtype: Any) -> Tile:
    """Make a tile of zeros: ``zeros((64, 256), np.float32)``, shape in elements: (M, N), (M, 1),
    (1, N), or (n,), a vector.

    float32, or int32 for products of 8-bit integers: it is where sums are kept. Costs no
    instruction of its own beyond zeroing ``shape[0] * shape[1] / 128`` registers a lane, and none
    where a wgmma adds to it.
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
            f"zeros: accumulators are float32 or int32, got {kind}: use .astype afterwards"
        )
    return form


@functools.singledispatch
def dtype_of(argument: Any) -> np.dtype:
    """Return the dtype that a compile-time argument, or its Numba type, names."""
    return np.dtype(argument)  # type: ignore[no-any-return]


@op
def astype(tile: Tile, dtype: Any) -> Tile:
    """Convert a tile among all types of tiles, ``tile.astype(dtype)``; a mask becomes 0 and 1.

    Floats are rounded to nearest, of two to the even one. To float8 types they saturate: what is
    too large, infinity too, becomes the largest number, with its sign; NaN stays NaN (PTX ISA,
    "cvt": ``.satfinite``). To integers they are truncated; what the type cannot hold becomes the
    nearest that it can, NaN becomes 0 (``.rzi.s32``, ``.rzi.u32``, and ``cvt.pack.sat`` to 8 bits).
    From integers to others of at most as many bits the low bits are kept, as NumPy keeps them:
    ``np.clip(x, -128, 127)`` before it saturates. From integers to floats, and between floats of 8
    and 16 bits, through float32.
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
            f"astype: a {form.dtype} tile to {kind}: float64 is converted from and to "
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
    """Return whether a store converts a tile's elements: floats of 16 and 32 bits, and int32 to
    these, by NumPy's "same_kind"."""
    return (
        have != want
        and want in FLOATS
        and have in (*FLOATS, INT32)
        and np.can_cast(have, want, "same_kind")
    )


def cast_to_store(value: Any, dtype: np.dtype) -> Any:
    """Return what is stored to elements of a type where a value is assigned: a tile that `casts` to
    it, converted."""
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
    """Return floats truncated to integers of a type, clipped to what it holds; 0 for NaN."""
    limits = np.iinfo(dtype)
    whole: np.ndarray = np.nan_to_num(np.trunc(value.astype(np.float64)), nan=0.0)
    return np.clip(whole, limits.min, limits.max).astype(dtype)  # type: ignore[no-any-return]


# ---- the same bits
@op
def bitcast(tile: Tile, dtype: Any) -> Tile:
    """Return the bits of a register tile as elements of another type of the same size, inside a
    kernel; costs nothing.

    tile   a tile or a vector, of any shape and layout
    dtype  of 32 bits float32, int32, uint32; of 16 float16, bfloat16; of 8 int8, uint8,
           float8_e4m3fn, float8_e5m2

    ``tile.view(np.int32)`` is the same, as of NumPy's arrays; JAX calls it
    ``jax.lax.bitcast_convert_type``. The exponents of a float32 tile::

        exponents = ((numpipe.bitcast(x, np.int32) >> 23) & 255) - 127

    Raises SpecError for masks, and for a type of another size.
    """
    form = bitcast_form(tile, dtype)
    return Tile(None if tile.inert else tile.value.view(form.dtype), form)


def bitcast_form(tile: Any, dtype: Any) -> Form:
    form, kind = form_of(tile, "'bitcast'"), dtype_of(dtype)
    if form is None:
        raise SpecError(f"bitcast(tile, dtype): tile must be a register tile, got {called(tile)}")
    sized = [known for known in TILES if known.itemsize == form.dtype.itemsize]
    if form.dtype == BOOL or kind not in sized:
        raise SpecError(
            f"bitcast of a {'mask' if form.dtype == BOOL else f'{form.dtype} tile'} to {kind}: "
            "the same bits are "
            + (
                "of no number: use .astype(np.int32)"
                if form.dtype == BOOL
                else (
                    f"another type of {8 * form.dtype.itemsize} bits, {listed(sized, 'or')}; "
                    "astype converts"
                )
            )
        )
    return Form(form.shape, kind, form.layout)
