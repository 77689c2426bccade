"""The layout of a block in shared memory: panels of swizzled rows, and the wgmma descriptors that
read them.

A block is cut along its contiguous dimension into *panels* whose rows are `width` bytes: 128 if
that divides the block's row, else 64, 32 or 16, unless its transforms specify another width. One
TMA copy writes one panel. Row r of panel p starts at ``p * panel_stride + r * width``, and within
aligned groups of 8 rows the 16-byte chunks are XOR-swizzled by the row (PTX ISA, "Tensor swizzling
modes")::

      block (128, 128) of float16              panel 0           panel 1
      row 0  | 0 … 63 | 64 … 127 |     ->   row 0 | 128 B |   row 0 | 128 B |
      row 1  |        |          |          row 1 | 128 B |   row 1 | 128 B |
      …                                     …      (16 KB)    …      (16 KB)
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..arch.dimensions import Ints
from ..arch.dtypes import BY_DTYPE
from ..arch.products import WGMMA
from ..diagnostics.errors import SpecError
from .transforms import Transform, panel_bytes, row_width, transposes

__all__ = [
    "ATOM",
    "Layout",
    "Operand",
    "block_layout",
    "flat_layout",
    "operand",
    "row_width",
    "swizzled",
]

ATOM = 1024  # bytes after which the swizzle pattern repeats; every block starts at a multiple of it


@dataclass(frozen=True)
class Layout:
    """The layout of a 2-D block, or of a view of one, in shared memory. All offsets are before
    swizzling.

    shape         rows and columns in elements, in the order the user sees; a one-dimensional block
                  is a single row without gaps (`flat`), and `offset` puts further rows after it
    itemsize      bytes of an element
    inner         which axis is contiguous: 1 row-major, 0 column-major (an array whose first
                  dimension is contiguous)
    width         bytes of a panel's row
    panel_stride  bytes from one panel to the next
    """

    shape: tuple[int, int]
    itemsize: int
    inner: int
    width: int
    panel_stride: int

    @property
    def flat(self) -> bool:
        """Whether the block has one dimension."""
        return self.shape[0] == 1

    @property
    def sides(self) -> Ints:
        """The shape as the user sees it."""
        return self.shape[1:] if self.flat else self.shape

    @property
    def per_panel(self) -> int:
        """Elements along the contiguous axis in one panel."""
        return self.width // self.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole block (for views: of the part they show)."""
        return self.shape[0] * self.shape[1] * self.itemsize

    @property
    def swizzle(self) -> int:
        """Swizzle span in bytes as TMA and wgmma name it (0: none)."""
        return 0 if self.width == 16 else self.width

    @property
    def panels(self) -> int:
        return -(-self.shape[self.inner] // self.per_panel)

    @property
    def T(self) -> Layout:
        return (
            self
            if self.flat
            else dataclasses.replace(self, shape=self.shape[::-1], inner=1 - self.inner)
        )

    def offset(self, row: Any, column: Any) -> Any:
        """Return the byte offset of element (row, column), given as ints, arrays or LLVM values
        with Python's operators."""
        at = (row, column)
        inside = at[self.inner] * self.itemsize
        if self.flat:
            return row * self.nbytes + inside
        shift = self.width.bit_length() - 1
        return (
            (inside >> shift) * self.panel_stride
            + at[1 - self.inner] * self.width
            + (inside & (self.width - 1))
        )

    def sliced(self, axis: int, size: int) -> tuple[Layout, int]:
        """Return the layout of a view of `size` elements along `axis`, and the bytes that the view
        moves per element of its start.

        Starts must be multiples of 8 rows, or of a panel along the contiguous axis, so that the
        swizzle stays aligned.
        """
        unit = self.per_panel if axis == self.inner else 1
        if size % unit or size > self.shape[axis]:
            raise SpecError(
                f"tile.at[…]: ds(start, {size}) along axis {axis} of a tile {self.shape} must "
                f"have a size that is at most {self.shape[axis]}, in steps of {unit} (the "
                f"shared-memory layout has {self.width}-byte rows)"
            )
        shape = (size, self.shape[1]) if axis == 0 else (self.shape[0], size)
        return dataclasses.replace(self, shape=shape), (
            self.panel_stride // self.per_panel if axis == self.inner else self.width
        )


def block_layout(
    shape: tuple[int, int],
    inner: int,
    dtype: np.dtype,
    what: str,
    transforms: tuple[Transform, ...] = (),
) -> Layout:
    """Return the layout of a block whose axis `inner` is contiguous. Raises SpecError if TMA or
    wgmma cannot use it.

    `shape` and `inner` describe the block in the array: with a TransposeTransform the layout is the
    transposed view of the block. `what` is the text that messages begin with, such as "in_specs[0]
    for 'a': block (128, 64)".
    """
    element = BY_DTYPE[dtype]
    nbytes = element.nbytes(shape[inner])
    if nbytes % 16:
        raise SpecError(
            f"{what} of {dtype} is {nbytes} B along its contiguous dimension {inner}, but TMA "
            f"moves multiples of 16 B; fix: make that side a multiple of {element.count(16)} "
            "elements"
        )
    rows = shape[1 - inner]
    if rows % 8:
        raise SpecError(
            f"{what} has {rows} rows along the dimension that is not contiguous, but "
            "rows in shared memory are swizzled in groups of 8; fix: make that side a multiple "
            "of 8" + (", or None, which makes the row a vector" if rows == 1 else "")
        )
    width = panel_bytes(transforms, nbytes, dtype.itemsize, f"{what} of {dtype}")
    layout = Layout((shape[0], shape[1]), dtype.itemsize, inner, width, rows * width)
    return layout.T if transposes(transforms) else layout


def flat_layout(size: int, dtype: np.dtype, what: str, transforms: tuple[Transform, ...]) -> Layout:
    """Return the layout of a one-dimensional block, its elements one after another. Raises
    SpecError if TMA cannot move it."""
    element = BY_DTYPE[dtype]
    nbytes = element.nbytes(size)
    if nbytes % 16:
        raise SpecError(
            f"{what} of {dtype} is {nbytes} B, but TMA moves multiples of 16 B; fix: make it a "
            f"multiple of {element.count(16)} elements"
        )
    if transforms:
        raise SpecError(
            f"{what} has one dimension, whose elements are contiguous; fix: leave out transforms="
        )
    return Layout((1, size), dtype.itemsize, 1, 16, 16)


@dataclass(frozen=True)
class Operand:
    """A tile as a wgmma operand: descriptor fields, and byte offsets of the pieces that
    instructions read.

    `offsets[i][j]` is the offset of the piece at (64 i along M or all of N, 32 j bytes along K).
    """

    major: Literal["k", "mn"]
    leading: int
    stride: int
    swizzle: int
    offsets: tuple[Ints, ...]


@functools.lru_cache(maxsize=1024)
def operand(layout: Layout, k_axis: int) -> Operand:
    """Return the operand for a tile whose axis `k_axis` is K (1 for A, 0 for B), in the canonical
    layouts of PTX ISA "wgmma"."""
    by_k = layout if k_axis == 1 else layout.T  # rows along M or N, columns along K
    major: Literal["k", "mn"] = "k" if by_k.inner == 1 else "mn"
    leading, stride = layout.panel_stride, 8 * layout.width
    if layout.swizzle:
        leading = 16 if major == "k" else leading
    elif major == "mn":
        leading, stride = stride, leading
    rows = range(0, by_k.shape[0], WGMMA.rows) if k_axis == 1 else (0,)
    steps = range(0, by_k.shape[1], WGMMA.k_bytes // layout.itemsize)
    return Operand(
        major,
        leading,
        stride,
        layout.swizzle,
        tuple(tuple(by_k.offset(r, c) for c in steps) for r in rows),
    )


def swizzled(offset: Any, width: int) -> Any:
    """Return offsets in panels, or addresses, after the XOR swizzle of 8 rows of `width` bytes.
    They are ints, arrays or LLVM values."""
    mask = width // 16 - 1
    return offset ^ (((offset >> 7) & mask) << 4) if mask else offset
