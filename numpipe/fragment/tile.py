"""Register tiles: 2-D values held by a warpgroup, one part per lane.

A float32 tile is laid out as the accumulator of ``wgmma.mma_async.m64nN`` (PTX ISA, "Register Fragments for wgmma"): its
rows come in blocks of 64, warp w of the warpgroup has rows 16 w … 16 w + 15 of each. On the simulated SM a tile is one
NumPy array.
"""

from __future__ import annotations

from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from .._machine import InFlight, current
from .._op import constant, op
from ..errors import CompileError, SpecError
from ..inert import REASON

FLOAT16 = np.dtype(np.float16)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)


def check_shape(shape: Any, dtype: np.dtype, what: str) -> tuple[int, int]:
    """A legal tile shape, or a SpecError saying what is."""
    pair = isinstance(shape, tuple) and len(shape) == 2
    if not pair or shape[0] % 64 or shape[1] % 8 or shape[0] < 64 or not 8 <= shape[1] <= 256:
        raise SpecError(f"{what}: a tile's shape is (64 x j, 8 x i) with at most 256 columns (wgmma m64nN), got {shape}")
    if dtype not in (FLOAT32, FLOAT16, BFLOAT16):
        raise SpecError(f"{what}: a tile's dtype is float32, float16 or bfloat16, got {dtype}: convert an array before the call")
    return int(shape[0]), int(shape[1])


def check_conversion(have: np.dtype, want: np.dtype) -> None:
    """SpecError unless tiles convert so in one step."""
    halves = (FLOAT16, BFLOAT16)
    if not (have == FLOAT32 and want in halves) and not (want == FLOAT32 and have in halves):
        raise SpecError(f"astype: float32 tiles convert to float16 and bfloat16, and back, got {have} -> {want}" +
                        (": go through float32" if have in halves and want in halves else ""))


class Tile:
    """A register tile on the simulated SM. In the memory role it has no value (None)."""

    def __init__(self, value: np.ndarray | InFlight | None, shape: tuple[int, int], dtype: np.dtype) -> None:
        self._value, self.shape, self.dtype = value, shape, dtype

    @property
    def value(self) -> np.ndarray:
        """The elements; a PipelineRace while a wgmma may still be writing them."""
        if isinstance(self._value, np.ndarray):
            return self._value
        if self._value is None:
            raise RuntimeError("a register tile has no value in the memory role")
        return self._value.read()

    @property
    def inert(self) -> bool:
        return self._value is None

    def astype(self, dtype: Any) -> Tile:
        """Rounded to float16 or bfloat16 (to nearest even), or back to float32."""
        return astype(self, dtype)

    def _binary(self, other: Any, function: np.ufunc, swap: bool = False) -> Tile:
        if isinstance(other, Tile) and other.shape != self.shape:
            raise SpecError(f"tiles of shapes {self.shape} and {other.shape} do not combine")
        if self.dtype != FLOAT32 or (isinstance(other, Tile) and other.dtype != FLOAT32):
            raise SpecError(f"arithmetic is on float32 tiles, got {self.dtype}: use .astype(np.float32) first")
        if self.inert:
            return self
        operand = other.value if isinstance(other, Tile) else np.float32(other)
        pair = (operand, self.value) if swap else (self.value, operand)
        with np.errstate(all="ignore"):  # floats overflow to inf and NaN, as on the GPU; only integers raise
            return Tile(function(*pair, dtype=np.float32), self.shape, FLOAT32)

    def __add__(self, other: Any) -> Tile:
        return self._binary(other, np.add)

    def __sub__(self, other: Any) -> Tile:
        return self._binary(other, np.subtract)

    def __mul__(self, other: Any) -> Tile:
        return self._binary(other, np.multiply)

    def __truediv__(self, other: Any) -> Tile:
        return self._binary(other, np.divide)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> Tile:
        return self._binary(other, np.subtract, swap=True)

    def __rtruediv__(self, other: Any) -> Tile:
        return self._binary(other, np.divide, swap=True)

    def __neg__(self) -> Tile:
        return self._binary(-1.0, np.multiply)

    def _steers(self, *_: Any) -> NoReturn:
        raise CompileError(f"a register tile {REASON}")

    __bool__ = __int__ = __index__ = __float__ = _steers


@op
def zeros(shape: tuple[int, int], dtype: Any) -> Tile:
    """A tile of zeros: ``zeros((64, 256), np.float32)``, shape in elements.

    float32 only: it is where sums are kept. Costs no instruction of its own beyond zeroing ``shape[0] * shape[1] / 128``
    registers a lane.
    """
    dtype = np.dtype(dtype)
    constant("zeros", "shape", shape)
    legal = check_shape(shape, dtype, "zeros")
    if dtype != FLOAT32:
        raise SpecError(f"zeros: accumulators are float32, got {dtype}: use .astype afterwards")
    return Tile(None if current().role == "memory" else np.zeros(legal, np.float32), legal, dtype)


@op
def astype(tile: Tile, dtype: Any) -> Tile:
    """``tile.astype(dtype)``: float32 to float16 or bfloat16 (round to nearest even), back (exactly), or no change."""
    dtype = np.dtype(dtype)
    if dtype == tile.dtype:
        return tile
    check_conversion(tile.dtype, dtype)
    with np.errstate(all="ignore"):
        return Tile(None if tile.inert else tile.value.astype(dtype), tile.shape, dtype)
