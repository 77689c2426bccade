"""Tiles to arrays whose rows TMA cannot write, on the GPU."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...plan.layout import swizzled
from .reduce_cuda import EXCHANGE, barrier
from .shared_cuda import converge
from .store_ring import panels_of
from .store_ring_cuda import write_panel
from .store_rows import WARP_BYTES, apart
from .tile_cuda import TileType
from .views_cuda import Block
from .words_cuda import Value, load_words, store_words


def store_rows(builder: Any, tile: TileType, value: Any, to: Block) -> None:
    """Store a tile to a block of an array; two 16-bit elements a lane where all of them are aligned."""
    barrier(builder)
    with builder.if_then(to.inside):
        if tile.dtype.itemsize == 4:
            _Rows(builder, tile, to, 4).store(value)
        else:
            with builder.if_else(_pairs(builder, to)) as ways:
                for way, nbytes in zip(ways, (4, 2), strict=True):
                    with way:
                        _Rows(builder, tile, to, nbytes).store(value)
    nb.join(builder)


def _pairs(builder: Any, to: Block) -> Any:
    """Return whether each two 16-bit elements, from an even column on, are aligned, and inside the array both or neither."""
    columns = builder.or_(to.start[1], to.size[1])
    addresses = builder.or_(to.base, builder.shl(to.stride[0], nb.const(1, nb.i64)))
    bits = builder.or_(builder.shl(columns, nb.const(1)), builder.trunc(addresses, nb.i32))
    return builder.icmp_unsigned("==", builder.and_(bits, nb.const(3)), nb.const(0))


class _Rows:
    """A store whose lanes move words of `nbytes`: a warp 32 of them at a time, side by side, of its rows of a panel."""

    def __init__(self, builder: Any, tile: TileType, to: Block, nbytes: int) -> None:
        self.builder, self.tile, self.to, self.nbytes, self.size = builder, tile, to, nbytes, tile.dtype.itemsize
        thread = builder.and_(nb.thread_index(builder), nb.const(127))
        self.warp, self.own = builder.lshr(thread, nb.const(5)), builder.mul(builder.and_(thread, nb.const(31)), nb.const(nbytes))
        self.base = nb.external(builder, EXCHANGE, nb.i32)

    def store(self, value: Any) -> None:
        builder = self.builder
        for row, column, columns in panels_of(self.tile.shape, self.size):
            width = columns * self.size
            address = builder.add(self.base, builder.mul(self.warp, nb.const(apart(width))))
            write_panel(builder, self.tile, value, row, column, columns, address)
            converge(builder)
            self._write(row, column, width, self._load(width))
            converge(builder)

    def _load(self, width: int) -> list[Any]:
        """Return the words that a lane moves of its warp's 16 rows of `width` bytes."""
        builder, machine = self.builder, nb.i32 if self.nbytes == 4 else nb.i16
        rows = builder.add(self.base, builder.mul(self.warp, nb.const(WARP_BYTES)))
        own = builder.add(rows, swizzled(Value(builder, self.own), width).value)
        found = []
        for far in range(0, 16 * width, 32 * self.nbytes):
            moved = swizzled(far, width)  # it has no bit that a lane's own offset has: each is swizzled by itself
            at = builder.add(builder.xor(own, nb.const(moved & 127)), nb.const(moved & ~127))
            found += load_words(builder, machine, f"b{8 * self.nbytes}", at, 1)
        return found

    def _write(self, down: int, right: int, width: int, words: list[Any]) -> None:
        """Write words of a panel at (down, right) of the tile to the array: what lies inside."""
        builder, to = self.builder, self.to
        row = builder.add(builder.shl(self.warp, nb.const(4)), builder.lshr(self.own, nb.const(width.bit_length() - 1)))
        row = builder.add(builder.add(to.start[0], nb.const(down)), row)
        column = builder.udiv(builder.and_(self.own, nb.const(width - 1)), nb.const(self.size))
        column = builder.add(builder.add(to.start[1], nb.const(right)), column)
        line = to.moved(to.moved(to.base, row, to.stride[0]), column, nb.const(1, nb.i64))
        next_line = builder.mul(to.stride[0], nb.const(max(1, 32 * self.nbytes // width) * self.size, nb.i64))
        for number, word in enumerate(words):
            far, along = divmod(32 * self.nbytes * number, width)
            line = builder.add(line, next_line) if number and not along else line
            inside = builder.and_(
                builder.icmp_unsigned("<", builder.add(column, nb.const(along // self.size)), to.size[1]),
                builder.icmp_unsigned("<", builder.add(row, nb.const(far)), to.size[0]))
            store_words(builder, f"b{8 * self.nbytes}", builder.add(line, nb.const(along, nb.i64)), [word],
                        builder.zext(inside, nb.i32), "global")
