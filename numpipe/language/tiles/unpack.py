"""``numpipe.unpack(tile, "uint4", np.float16)``: bytes in shared memory that hold several elements
each, as a register tile of 16-bit floats.

Packed arrays are arrays of uint8, as in PyTorch: two 4-bit elements that are neighbors along the
last dimension share a byte, the first of them in its low half. TMA loads them as bytes.

Lane 4 g + t of a warp needs elements 8 j + 2 t and the next one of a row: byte t of each 32-bit
word. So the four lanes of a quad load the same 16 bytes by one instruction, which shared memory
broadcasts, and each selects its byte of the four words::

    word j       byte 0   byte 1   byte 2   byte 3
    elements     0 1      2 3      4 5      6 7      of 8 j + …
    lane t       0        1        2        3

Swizzling keeps the chunks of 8 neighboring rows in different banks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...arch.dtypes import ELEMENTS, PACKED, Element, listed
from ...core.op import called, op
from ...diagnostics.errors import SpecError
from ...plan.layout import Layout, swizzled
from .addresses import Access
from .fence_order import before_access
from .layouts import BLOCK, GROUP, WIDEST, Form, fits
from .refs import SmemLike, SmemTile
from .shared_tiles import read
from .tile import Tile, dtype_of, form_of

__all__ = ["unpack"]

WHAT = "numpipe.unpack(tile, element, dtype)"
BYTES = ELEMENTS["uint8"].dtype
CHUNK = 16
"""bytes that a lane loads at once"""


def plan(tile: Any, element: Any, dtype: Any) -> tuple[Element, Form]:
    """Return (the packed type, the form of the unpacked tile). Raises SpecError for unsupported
    tiles and types."""
    if not isinstance(tile, SmemLike):
        form = form_of(tile, WHAT)
        got = called(tile) if form is None else f"a register tile of {form}"
        raise SpecError(
            f"{WHAT}: tile must be a tile in shared memory, as a pipeline gives it, got {got}; "
            "fix: pass the tile itself, not tile[...]"
        )
    packed = PACKED.get(_name(element))
    if packed is None:
        raise SpecError(
            f"{WHAT}: element must be {listed(map(repr, PACKED), 'or')}, got {_name(element)!r}"
        )
    wanted = _name(dtype)
    if wanted not in packed.unpack:
        raise SpecError(
            f"{WHAT}: {packed.name} is unpacked to {listed(packed.unpack, 'or')}, got {wanted}; "
            f"fix: numpipe.unpack(tile, {packed.name!r}, np.float16), then astype"
        )
    if tile.dtype != BYTES:
        raise SpecError(
            f"{WHAT}: a tile of {packed.name} is a tile of uint8, which holds {packed.per_byte} "
            f"elements a byte, got {tile.dtype}; fix: pass array.view(np.uint8)"
        )
    if tile.layout.flat or tile.layout.inner != 1:
        raise SpecError(
            f"{WHAT}: elements of a byte are neighbors along the last dimension, so the rows of a "
            f"tile (M, K) must be contiguous, got {tile.layout.sides}"
            f"{'' if tile.layout.flat else ' with contiguous columns'}; fix: pack along K, and "
            "pass a C-contiguous array"
        )
    rows, nbytes = tile.layout.shape
    shape = rows, packed.count(nbytes)
    if not fits(shape):
        raise SpecError(
            f"{WHAT}: a tile {tile.layout.shape} of uint8 has {shape} elements of {packed.name}, "
            f"but an operand in registers has a multiple of {BLOCK} rows and at most {WIDEST} "
            f"columns; fix: unpack a part, tile.at[ds(row, {BLOCK}), :], of a block of at most "
            f"{packed.nbytes(WIDEST)} bytes a row"
        )
    return packed, Form(shape, ELEMENTS[wanted].dtype)


def _name(dtype: Any) -> str:
    try:
        return dtype_of(dtype).name
    except TypeError:
        return str(dtype)


def lane_start(layout: Layout, lane: Any) -> Any:
    """Return the offset of the first chunk of a lane's first row; `lane` is its number in the
    warpgroup, an int or an LLVM value."""
    row = (lane >> 5) * 16 + ((lane & 31) >> 2)
    return swizzled(row * layout.width, layout.width)


def accesses(layout: Layout) -> Iterator[Access]:
    """Yield the loads of a lane, relative to `lane_start`. The `count` words of each go to
    registers from `first` on; the registers between them are for the row 8 below (`layouts`)."""
    words = layout.shape[1] // 4
    for row in range(0, layout.shape[0], BLOCK):
        for half in (0, 1):
            for start in range(0, layout.shape[1], CHUNK):
                yield Access(
                    (row // BLOCK * words + start // 4) * 2 + half,
                    CHUNK // 4,
                    start % layout.width,
                    start // layout.width * layout.panel_stride
                    + (row + half * GROUP) * layout.width,
                )


@op
def unpack(tile: SmemTile, element: Any, dtype: Any) -> Tile:
    """Load a packed tile as a register tile of 16-bit floats, inside a kernel: an A operand of
    `wgmma`, without storing unpacked elements.

    tile     a tile (M, K / 2) of uint8 in shared memory, with contiguous rows, M a multiple of 64;
             elements that share a byte are neighbors along K, the first of them in the low bits
    element  "uint4", 0 … 15, or "int4", -8 … 7 in two's complement
    dtype    np.float16, or "bfloat16": all values are exact

    The kernel applies a weight's scale and zero point::

        w = numpipe.unpack(w_tile, "uint4", np.float16) - 8.0
        acc = numpipe.wgmma(acc, w, x_tile.T)

    A 128-bit load serves 32 elements of a row; each pair of elements takes 3 more instructions for
    float16, 4 for bfloat16. On the host, ``w[:, ::2] | w[:, 1::2] << 4`` packs an array of uint8.

    Raises SpecError for other types, for tiles whose columns are contiguous, and for sizes that an
    A operand does not support: a multiple of 64 rows, at most 256 elements in each.
    """
    packed, form = plan(tile, element, dtype)
    if not tile.role.computes:
        return Tile(None, form)
    before_access(tile)
    found = read(tile.layout, tile.address, BYTES, WHAT)
    shifts = np.arange(0, 8, packed.bits, dtype=np.uint8)
    parts = found[..., None] >> shifts & np.uint8((1 << packed.bits) - 1)
    return Tile(parts.reshape(form.shape).view(packed.dtype).astype(form.dtype), form)
