"""What the TMA can address, and where a copy begins: checks of tensor maps, coordinates and addresses."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..arch.dtypes import BY_DTYPE, REDUCTIONS
from ..core.machine import TensorMap
from . import report
from .boxes import Box
from .state import Warpgroup

MODES = (0, 32, 64, 128)


def checked(who: Warpgroup, tensor: TensorMap) -> Box:
    """The geometry of `tensor`; SimulationError if the TMA cannot address it."""
    box = who.sm.boxes.get(tensor)
    if box is not None:
        return box
    array, shape = tensor.array, tensor.box
    if not 1 <= array.ndim <= 5 or len(shape) != array.ndim:
        raise report.illegal(who, f"tensor map {tensor.name}: box {shape} of an array {array.shape}; both need the same rank, 1 … "
                             "5")
    if any(not 1 <= extent <= 256 for extent in shape):
        raise report.illegal(who, f"tensor map {tensor.name}: box {shape}; each dimension has 1 … 256 elements")
    row = shape[-1] * array.dtype.itemsize
    if row % 16:
        raise report.illegal(who, f"tensor map {tensor.name}: a box row of {shape[-1]} {array.dtype} is {row} bytes; it must be a "
                             "multiple of 16")
    if tensor.swizzle not in MODES or 0 < tensor.swizzle < row:
        raise report.illegal(who, f"tensor map {tensor.name}: a box row of {row} bytes with swizzle={tensor.swizzle}; the swizzles "
                             f"are {MODES}, and a row may be at most as wide (0: any)")
    if tensor.fill == "nan" and not BY_DTYPE[array.dtype].fills_nan:
        raise report.illegal(who, f"tensor map {tensor.name}: fill='nan' for {array.dtype}, which has no NaN; fill with zeros")
    box = who.sm.boxes[tensor] = Box(tensor, int(np.prod(shape)) * array.dtype.itemsize)
    return box


def reducible(who: Warpgroup, box: Box, reduction: str) -> None:
    """SimulationError for a reduction that the TMA has not for the elements of the array."""
    dtype = box.tensor.array.dtype
    if dtype.name not in REDUCTIONS.get(reduction, ()):
        raise report.illegal(who, f"tma_store of {box.tensor.name} with reduction={reduction!r}", mend=f"for {dtype} there are "
                             f"{', '.join(name for name, types in REDUCTIONS.items() if dtype.name in types) or 'none'}")


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
        raise report.illegal(who, f"{operation} of {name}: coordinates {tuple(coords)} for {len(box.tensor.box)} dimensions; one "
                             "for each")
    if address % 128:
        raise report.illegal(who, f"{operation} of {name} at SMEM[{address}]; the TMA needs a multiple of 128, and a swizzled tile "
                             "that wgmma reads one of 8 x swizzle")
    inner = int(coords[-1]) * box.tensor.array.dtype.itemsize
    if inner % 16:  # an H200 answers with CUDA_ERROR_ILLEGAL_INSTRUCTION, swizzled or not
        raise report.illegal(who, f"{operation} of {name} at coordinates {tuple(map(int, coords))}: the innermost is {inner} bytes "
                             "into a row; it must be a multiple of 16")
    index, touched = box.footprint(address)
    who.sm.memory.check_range(who, touched[0][0], touched[-1][1], f"{operation} of {name}")
    return tuple(map(int, coords)), index, touched
