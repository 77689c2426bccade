"""Stores in whole rows, on the GPU, to arrays whose rows TMA cannot address."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.formula_cuda import Value
from ...plan.layout import swizzled
from .array_views_cuda import Block
from .layouts import BLOCK
from .reduce_cuda import EXCHANGE, barrier
from .shared_tiles_cuda import converge
from .store_ring import panels_of
from .store_ring_cuda import write_panel
from .store_rows import WARP_BYTES, apart
from .tile_cuda import TileType
from .words_cuda import load_words, store_words


def store_rows(builder: Any, tile: TileType, value: Any, to: Block, inner: int) -> None:
    """Store a tile to a block, in lines along the block's dimension `inner`; two 16-bit elements at
    once if they are an aligned word."""
    barrier(builder)
    with builder.if_then(to.inside):
        if tile.dtype.itemsize == 4:
            _Rows(builder, tile, to, inner, 4).store(value)
        else:
            with builder.if_else(_pairs(builder, to, inner)) as ways:
                for way, nbytes in zip(ways, (4, 2), strict=True):
                    with way:
                        _Rows(builder, tile, to, inner, nbytes).store(value)
    builder.join()


def _pairs(builder: Any, to: Block, inner: int) -> Any:
    """Return whether all pairs of 16-bit elements that start at an even place are aligned words,
    and are either inside the array or outside it."""
    places = builder.or_(to.start[inner], to.size[inner])
    addresses = builder.or_(to.base, builder.shl(to.stride[1 - inner], 1))
    bits = builder.or_(builder.shl(places, 1), builder.trunc(addresses, nb.i32))
    neighbours = builder.icmp_unsigned("==", to.stride[inner], 1)
    return builder.and_(neighbours, builder.icmp_unsigned("==", builder.and_(bits, 3), 0))


class _Rows:
    """A store of adjacent words of `nbytes` from panels: a warp moves 32 at a time, from its own 16
    rows. If columns are contiguous (`inner` is 0), the panel's lines are columns, and the four
    warps together move 128."""

    def __init__(self, builder: Any, tile: TileType, to: Block, inner: int, nbytes: int) -> None:
        self.builder, self.tile, self.to, self.inner, self.nbytes = builder, tile, to, inner, nbytes
        self.size, self.step = tile.dtype.itemsize, (32 if inner else 128) * nbytes
        thread = builder.lane_index()
        self.warp = builder.lshr(thread, 5) if inner else nb.const(0)
        self.own = builder.mul(builder.and_(thread, 31) if inner else thread, nbytes)
        self.base = builder.external(EXCHANGE, nb.i32)

    def store(self, value: Any) -> None:
        builder, inner = self.builder, self.inner
        for number, (row, column, columns) in enumerate(
            panels_of(self.tile.shape, self.size, inner)
        ):
            width = (columns if inner else BLOCK) * self.size
            if number and not inner:
                barrier(builder)
            address = builder.add(self.base, builder.mul(self.warp, apart(width)))
            write_panel(builder, self.tile, value, row, column, columns, address, inner)
            (converge if inner else barrier)(builder)
            self._write(row, column, width, self._load(width, 16 if inner else columns))
            converge(builder)

    def _load(self, width: int, lines: int) -> list:
        """Return the words that a lane loads from `lines` lines of a panel."""
        builder, machine = self.builder, nb.i32 if self.nbytes == 4 else nb.i16
        first = builder.add(self.base, builder.mul(self.warp, WARP_BYTES))
        own = builder.add(first, swizzled(Value(builder, self.own), width).value)
        found = []
        for far in range(0, lines * width, self.step):
            # `far` and the lane's offset have no bits in common, so they can be swizzled separately
            moved = swizzled(far, width)
            at = builder.add(builder.xor(own, moved & 127), moved & ~127)
            found += load_words(builder, machine, f"b{8 * self.nbytes}", at, 1)
        return found

    def _write(self, row: int, column: int, width: int, words: list) -> None:
        """Write words of the panel at (row, column) of the tile to the array, if they are inside
        it."""
        builder, to, inner = self.builder, self.to, self.inner
        line = builder.add(
            builder.shl(self.warp, 4),
            builder.lshr(self.own, width.bit_length() - 1),
        )
        line = builder.add(builder.add(to.start[1 - inner], (column, row)[inner]), line)
        place = builder.udiv(builder.and_(self.own, width - 1), self.size)
        place = builder.add(builder.add(to.start[inner], (row, column)[inner]), place)
        stride = nb.const(1, nb.i64) if self.nbytes > self.size else to.stride[inner]
        at = to.moved(to.moved(to.base, line, to.stride[1 - inner]), place, stride)
        next_line = builder.mul(to.stride[1 - inner], max(1, self.step // width) * self.size)
        for number, word in enumerate(words):
            far, along = divmod(self.step * number, width)
            at = builder.add(at, next_line) if number and not along else at
            inside = builder.and_(
                builder.icmp_unsigned("<", builder.add(place, along // self.size), to.size[inner]),
                builder.icmp_unsigned("<", builder.add(line, far), to.size[1 - inner]),
            )
            place_at = builder.add(at, builder.mul(stride, along))
            store_words(
                builder,
                f"b{8 * self.nbytes}",
                place_at,
                [word],
                builder.zext(inside, nb.i32),
                "st.global",
            )
