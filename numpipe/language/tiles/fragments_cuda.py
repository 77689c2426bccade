"""Products of warps on the GPU: fragments are loaded some instructions ahead, and multiplied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...arch.products import Product
from ...arch.register_layouts import LANES
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
"""loads of B that are issued before the first of them is used"""


class _Loads:
    """The loads of an operand in shared memory; `layout` has rows along M or N, columns along K."""

    def __init__(
        self, builder: Any, product: Product, side: source.Side, layout: Layout, address: Any
    ) -> None:
        self.builder, self.product, self.side, self.layout = builder, product, side, layout
        thread = Value(builder, builder.and_(nb.thread_index(builder), nb.const(LANES - 1)))
        self.start = builder.add(address, source.start(layout, side, product.loads, thread).value)
        self.step = product.k_bytes // layout.itemsize
        self.bases: dict[int, Any] = {0: self.start}

    def _at(self, row: int, column: int) -> Any:
        xor, add = source.moved(self.layout, row, column)
        if xor not in self.bases:
            self.bases[xor] = self.builder.xor(self.start, nb.const(xor))
        return self.builder.add(self.bases[xor], nb.const(add)) if add else self.bases[xor]

    def load(self, row: int, step: int, rows: int) -> list[list[Any]]:
        """Return the registers of 16 rows of A, or of groups of 8 columns of B, in a step along
        K."""
        column = step * self.step
        if self.product.loads == "ldmatrix":
            found = ldmatrix(self.builder, rows // 4, self.layout.inner == 0, self._at(row, column))
            return (
                [found] if self.side == "a" else [found[i : i + 2] for i in range(0, len(found), 2)]
            )
        groups = [
            [
                word
                for half in (0, 2)
                for word in load_words(
                    self.builder, nb.f64, "f64", self._at(row + down, column + half), 2
                )
            ]
            for down in range(0, rows, GROUP)
        ]
        # row g and row g + 8 of a step of 4 along K are neighbors
        if self.side == "a":
            return [[word for pair in zip(*groups, strict=True) for word in pair]]
        return groups


def multiplied(
    builder: Any,
    product: Product,
    result: TileType,
    sums: list[Any],
    a: SmemType | TileType,
    b: SmemType,
    values: tuple[Any, Any],
) -> list[Any]:
    """Return the registers of ``sums + a @ b``, for `sums` in the order of an accumulator."""
    rows, columns = result.shape
    blocks, steps = rows // product.rows, b.layout.shape[0] * b.dtype.itemsize // product.k_bytes
    together = 2 * GROUP if product.loads == "ldmatrix" else GROUP
    right = _Loads(builder, product, "b", b.layout.T, values[1])
    left = _Loads(builder, product, "a", a.layout, values[0]) if isinstance(a, SmemType) else None
    held = registers(builder, a, values[0]) if isinstance(a, TileType) else []

    def rows_of(step: int) -> list[list[Any]]:
        if left is not None:
            return [left.load(product.rows * i, step, 16)[0] for i in range(blocks)]
        each = len(held) // blocks
        return [held[i * each + 4 * step :][:4] for i in range(blocks)]

    def loads() -> Iterator[tuple[int, list[list[Any]], list[list[Any]]]]:
        for step in range(steps):
            mine = rows_of(step)
            for first in range(0, columns, together):
                size = min(together, columns - first)
                yield first // GROUP, mine, right.load(first, step, size)

    statement, code = _statement(product, a, b)
    kind = result.machine.element
    register = {"f32": "f", "f64": "d", "s32": "r"}[code]
    operand = "d" if code == "f64" else "r"

    def multiply(first: int, mine: list[list[Any]], groups: list[list[Any]]) -> None:
        for number, group in enumerate(groups, first):
            for block, row in enumerate(mine):
                at = (block * columns // GROUP + number) * 4
                own = range(at, at + 4)
                names = iter(range(4 + len(row) + len(group)))
                text = ", ".join(
                    "{" + ", ".join(f"${next(names)}" for _ in range(count)) + "}"
                    for count in (4, len(row), len(group))
                )
                found = nb.emit_asm(
                    builder,
                    nb.ir.LiteralStructType([kind] * 4),
                    [*row, *group, *(sums[i] for i in own)],
                    f"{statement} {text}, {{$0, $1, $2, $3}};",
                    ",".join(
                        [f"={register}"] * 4 + [operand] * (len(row) + len(group)) + list("0123")
                    ),
                )
                for i, place in enumerate(own):
                    sums[place] = builder.extract_value(found, i)

    waiting: list[Any] = []
    for loaded in loads():
        waiting.append(loaded)
        if len(waiting) > AHEAD:
            multiply(*waiting.pop(0))
    for loaded in waiting:
        multiply(*loaded)
    return sums


def _statement(product: Product, a: Any, b: Any) -> tuple[str, str]:
    """Return (the instruction, its type of sums) for two types of operands."""
    left, right = product.operand(a.dtype), product.operand(b.dtype)
    assert left is not None and right is not None and product.tile is not None
    sums = {"i": "s32"}.get(left.sums.kind, f"f{8 * left.sums.itemsize}")
    m, n = product.tile
    shape = f"m{m}n{n}k{product.k(a.dtype)}"
    return (
        f"{product.statement}.{shape}{product.order}.{sums}.{left.name}.{right.name}.{sums}",
        sums,
    )
