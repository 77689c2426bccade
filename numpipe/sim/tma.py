"""What a TMA copy moves: a box of an array in GMEM, and where its bytes lie in shared memory.

Rows of the box (its innermost dimension) follow each other without gaps. With a swizzle, the 16-byte chunk index is
XORed with the row: address bits [4, 4+b) ^= bits [7, 7+b), b = log2(swizzle / 16). The bits are those of the absolute
address, so the pattern of a box depends on where it starts modulo 1024.

PTX ISA, "Tensors" (tensor dimension, box, interleave and swizzle modes).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..arch.dtypes import BY_DTYPE, REDUCTIONS
from ..core.machine import TensorMap
from . import report
from .memory import intervals

if TYPE_CHECKING:
    from .memory import SharedMemory
    from .port import Warpgroup

MODES = (0, 32, 64, 128)
_REDUCED: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, new: old + new, "min": np.minimum, "max": np.maximum,
    "inc": lambda old, new: np.where(old >= new, 0, old + np.ones_like(old)),
    "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - np.ones_like(old)),
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}


def combined(reduction: str, old: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What becomes of elements that a reduction changes: of TMA copies, and of lanes."""
    with np.errstate(all="ignore"):  # floats overflow to inf, integers wrap
        found: npt.NDArray[Any] = _REDUCED[reduction](old, new)
        return found


def swizzled(chunks: npt.NDArray[np.int64], swizzle: int) -> npt.NDArray[np.int64]:
    """Where the hardware puts 16-byte chunk number `chunks` (address / 16).

    >>> swizzled(np.arange(8, 12), 128).tolist()
    [9, 8, 11, 10]
    """
    return chunks ^ (chunks >> 3 & (swizzle // 16 - 1)) if swizzle else chunks


@functools.lru_cache(maxsize=1024)
def _pattern(count: int, swizzle: int, start: int) -> tuple[npt.NDArray[np.int64], tuple[tuple[int, int], ...]]:
    """(chunk table, bytes touched), both relative to the 1024-byte line in which the box starts `start` bytes in."""
    table = swizzled(start // 16 + np.arange(count), swizzle)
    return table, intervals(16 * table, 16)


@dataclass(frozen=True)
class Box:
    """The checked geometry of a TensorMap."""

    tensor: TensorMap
    nbytes: int

    def footprint(self, address: int) -> tuple[npt.NDArray[np.int64] | slice, list[tuple[int, int]]]:
        """(index into the 16-byte chunks of shared memory, byte intervals) of the box at `address`."""
        if not self.tensor.swizzle:
            return slice(address // 16, (address + self.nbytes) // 16), [(address, address + self.nbytes)]
        line = address & ~1023
        table, touched = _pattern(self.nbytes // 16, self.tensor.swizzle, address - line)
        return table + line // 16, [(lo + line, hi + line) for lo, hi in touched]

    def elements(self, coords: tuple[int, ...]) -> tuple[slice, ...]:
        """The part of the array that the box at `coords` has, empty where it lies outside."""
        return tuple([slice(start if start > 0 else 0, max(min(start + extent, size), start, 0)) for start, extent, size in zip(
            coords, self.tensor.box, self.tensor.array.shape, strict=True)])

    def _inside(self, coords: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[slice, ...], bool]:
        """(slices of the array, slices of the box, is it the whole box) for the part that exists."""
        outer, inner, whole = [], [], True
        for start, extent, size in zip(coords, self.tensor.box, self.tensor.array.shape, strict=True):
            lo, hi = max(start, 0), min(start + extent, size)
            hi = max(hi, lo)
            whole = whole and hi - lo == extent
            outer.append(slice(lo, hi))
            inner.append(slice(lo - start, hi - start))
        return tuple(outer), tuple(inner), whole

    def fetch(self, coords: tuple[int, ...]) -> npt.NDArray[Any]:
        """The box at `coords` as contiguous 16-byte chunks; elements outside the array are zeros (or NaN)."""
        array = self.tensor.array
        outer, inner, whole = self._inside(coords)
        if whole:
            box = np.ascontiguousarray(array[outer])
        else:
            box = np.zeros(self.tensor.box, array.dtype)
            if self.tensor.fill == "nan":
                box[...] = np.nan
            if all(s.start < s.stop for s in outer):
                box[inner] = array[outer]
        return box.reshape(-1).view(np.complex128)

    def put(self, coords: tuple[int, ...], chunks: npt.NDArray[Any], reduction: str = "") -> None:
        """Write what exists of the box at `coords` to the array, or reduce it into the array."""
        array = self.tensor.array
        outer, inner, _ = self._inside(coords)
        if all(s.start < s.stop for s in outer):
            new = chunks.view(array.dtype).reshape(self.tensor.box)[inner]
            array[outer] = combined(reduction, array[outer], new) if reduction else new


def checked(who: Warpgroup, tensor: TensorMap) -> Box:
    """The geometry of `tensor`; SimulationError if the TMA cannot address it."""
    box = who.sm.boxes.get(tensor)
    if box is not None:
        return box
    array, shape = tensor.array, tensor.box
    if not 1 <= array.ndim <= 5 or len(shape) != array.ndim:
        raise report.violation(who, f"tensor map {tensor.name}: box {shape} of an array {array.shape}; both need the "
                                    "same rank, 1 … 5", hazard="illegal-instruction")
    if any(not 1 <= extent <= 256 for extent in shape):
        raise report.violation(who, f"tensor map {tensor.name}: box {shape}; each dimension has 1 … 256 elements",
                               hazard="illegal-instruction")
    row = shape[-1] * array.dtype.itemsize
    if row % 16:
        raise report.violation(who, f"tensor map {tensor.name}: a box row of {shape[-1]} {array.dtype} is {row} "
                                    "bytes; it must be a "
                               "multiple of 16", hazard="illegal-instruction")
    if tensor.swizzle not in MODES or 0 < tensor.swizzle < row:
        raise report.violation(who, f"tensor map {tensor.name}: a box row of {row} bytes with "
                                    f"swizzle={tensor.swizzle}; the swizzles are "
                               f"{MODES}, and a row may be at most as wide (0: any)", hazard="illegal-instruction")
    if tensor.fill == "nan" and not BY_DTYPE[array.dtype].fills_nan:
        raise report.violation(who, f"tensor map {tensor.name}: fill='nan' for {array.dtype}, which has no NaN; fill with zeros",
                               hazard="illegal-instruction")
    box = who.sm.boxes[tensor] = Box(tensor, int(np.prod(shape)) * array.dtype.itemsize)
    return box


def reducible(who: Warpgroup, box: Box, reduction: str) -> None:
    """SimulationError for a reduction that the TMA has not for the elements of the array."""
    dtype = box.tensor.array.dtype
    if dtype.name not in REDUCTIONS.get(reduction, ()):
        raise report.violation(who, f"tma_store of {box.tensor.name} with reduction={reduction!r}", mend=f"for {dtype} there are "
                               f"{', '.join(name for name, types in REDUCTIONS.items() if dtype.name in types) or 'none'}",
                               hazard="illegal-instruction")


def whole_chunks(who: Warpgroup, box: Box, coords: tuple[int, ...]) -> None:
    """SimulationError for a store that would write past the end of the array's rows."""
    tensor = box.tensor
    end = tensor.array.shape[-1] * tensor.array.dtype.itemsize
    if end % 16 and not tensor.padded and coords[-1] + tensor.box[-1] > tensor.array.shape[-1]:
        raise report.violation(who, f"tma_store of {tensor.name} at coordinates {coords} passes the end of rows of {end} bytes; "
                                    "the TMA writes whole 16-byte chunks, so it overwrites what follows: use rows of a multiple "
                                    "of 16 bytes, or store the edge with ordinary stores", hazard="out-of-bounds")


def place(who: Warpgroup, operation: str, box: Box, coords: tuple[int, ...], address: int) -> tuple[
        tuple[int, ...], npt.NDArray[np.int64] | slice, list[tuple[int, int]]]:
    """(coordinates as ints, chunk index, byte intervals); SimulationError for a wrong rank, alignment or range."""
    name = box.tensor.name
    if len(coords) != len(box.tensor.box):
        raise report.violation(who, f"{operation} of {name}: coordinates {tuple(coords)} for {len(box.tensor.box)} "
                                    "dimensions; one for each", hazard="illegal-instruction")
    if address % 128:
        raise report.violation(who, f"{operation} of {name} at SMEM[{address}]; the TMA needs a multiple of 128, and "
                               "a swizzled tile that wgmma reads one of 8 x swizzle", hazard="illegal-instruction")
    inner = int(coords[-1]) * box.tensor.array.dtype.itemsize
    if inner % 16:  # an H200 answers with CUDA_ERROR_ILLEGAL_INSTRUCTION, swizzled or not
        raise report.violation(who, f"{operation} of {name} at coordinates {tuple(map(int, coords))}: the innermost is {inner} "
                                    "bytes into a row; it must be a multiple of 16", hazard="illegal-instruction")
    index, touched = box.footprint(address)
    memory: SharedMemory = who.sm.memory
    memory.check_range(who, touched[0][0], touched[-1][1], f"{operation} of {name}")
    return tuple(map(int, coords)), index, touched
