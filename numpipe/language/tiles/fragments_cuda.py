"""Warp-level products (mma.sync) on the GPU: fragments are loaded a few instructions before they
are multiplied."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from ...arch.products import Product
from ...core import numba as nb
from ...core.formula_cuda import Value
from ...intrinsics.ldmatrix_cuda import emit as ldmatrix
from ...plan.layout import Layout
from . import fragments as source
from .layouts import GROUP
from .refs_cuda import SmemType
from .tile_cuda import TileType, registers
from .words_cuda import load_words

AHEAD = 3
"""number of loads of B that are issued before the first of them is used"""


class _Loads:
    """The loads of an operand in shared memory; `layout` has rows along M or N, columns along K."""

    def __init__(
        self, builder: Any, product: Product, side: source.Side, layout: Layout, address: Any
    ) -> None:
        self.builder, self.product, self.layout = builder, product, layout
        thread = Value(builder, builder.lane_index())
        start = builder.add(address, source.start(layout, side, product.loads, thread).value)
        self.bases = {0: start}

    def _at(self, row: int, column: int) -> Any:
        xor, add = source.moved(self.layout, row, column)
        base = self.bases.setdefault(xor, self.builder.xor(self.bases[0], xor))
        return self.builder.add(base, add)

    def load(self, row: int, step: int, rows: int) -> list:
        """Return the registers of one step along K: 16 rows of A, or 8 or 16 columns of B."""
        column = step * self.product.k_bytes // self.layout.itemsize
        if self.product.loads == "ldmatrix":
            transposed = self.layout.inner == 0
            words: list = ldmatrix(self.builder, rows // 4, transposed, self._at(row, column))
            return words
        # for A: rows g and g + 8 alternate
        groups = [
            [
                word
                for right in (0, 2)
                for word in load_words(
                    self.builder, nb.f64, "f64", self._at(row + down, column + right), 2
                )
            ]
            for down in range(0, rows, GROUP)
        ]
        return [word for words in zip(*groups, strict=True) for word in words]


def multiplied(
    builder: Any,
    product: Product,
    result: TileType,
    sums: list,
    a: SmemType | TileType,
    b: SmemType,
    values: tuple[Any, Any],
) -> list:
    """Return the registers of ``sums + a @ b``; `sums` are in accumulator order."""
    rows, columns = result.shape
    blocks, steps = rows // product.rows, b.layout.shape[0] * b.dtype.itemsize // product.k_bytes
    together = 2 * GROUP if product.loads == "ldmatrix" else GROUP
    right = _Loads(builder, product, "b", b.layout.T, values[1])
    left = _Loads(builder, product, "a", a.layout, values[0]) if isinstance(a, SmemType) else None
    held = registers(builder, a, values[0]) if isinstance(a, TileType) else []
    kind = result.machine.element
    text = _statement(product, a, b)

    def loads() -> Iterator[tuple[int, list[list], list]]:
        for step in range(steps):
            own = [
                left.load(product.rows * i, step, 16)
                if left
                else held[4 * (i * steps + step) :][:4]
                for i in range(blocks)
            ]
            for first in range(0, columns, together):
                yield first, own, right.load(first, step, min(together, columns - first))

    def multiply(first: int, own: list[list], words: list) -> None:
        each = len(own[0]) // 2
        for n, block in itertools.product(range(0, len(words), each), range(blocks)):
            at = (block * columns + first) // 2 + 4 * (n // each)
            operands = [*own[block], *words[n : n + each]]
            sums[at : at + 4] = builder.emit_asm(
                [kind] * 4, [*operands, *sums[at : at + 4]], text, tied=len(operands), memory=False
            )

    waiting: list[tuple[int, list[list], list]] = []
    for loaded in loads():
        waiting.append(loaded)
        if len(waiting) > AHEAD:
            multiply(*waiting.pop(0))
    for loaded in waiting:
        multiply(*loaded)
    return sums


def _statement(product: Product, a: Any, b: Any) -> str:
    """Return the instruction for two operand types; its registers are sums, A, B, and the sums as
    inputs."""
    left, right = product.operand(a.dtype), product.operand(b.dtype)
    assert left is not None and right is not None and product.tile is not None
    sums, count = {"float32": ("f32", 4), "float64": ("f64", 8), "int32": ("s32", 4)}[
        left.sums.name
    ]
    names = [f"${i}" for i in range(4 + count + count // 2)]
    parts = names[:4], names[4 : 4 + count], names[4 + count :], names[:4]
    shape = "m{}n{}k{}".format(*product.tile, product.k(a.dtype))
    return (
        f"{product.statement}.{shape}{product.order}.{sums}.{left.name}.{right.name}.{sums} "
        + ", ".join("{" + ", ".join(part) + "}" for part in parts)
        + ";"
    )
