"""Scans of register tiles by any function on the GPU: the shuffles and the shared memory of running sums."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...core import numba as nb
from ...core.op import cuda_meaning
from ...plan import trees_cuda as trees
from . import scan as source
from .layouts import ACCUMULATOR, places
from .mathematics_cuda import extreme
from .reduce_cuda import of_warps
from .scans_cuda import QUAD, WARP, of_before, of_last
from .tile_cuda import TileType, assembled, registers, undefined

Line = list[Any]
"""registers: of a column, or of a row, those that a lane has, of one tile after the other"""
Combine = Callable[[Line, Line], Line]


class _Lines:
    """The lines of tiles that are scanned together, and how two of them are combined."""

    def __init__(self, builder: Any, tiles: list[TileType], parts: list[list[Any]], along: int, combine: Combine) -> None:
        self.builder, self.combine = builder, combine
        self.where = places(tiles[0].shape, tiles[0].layout)
        self.columns = tiles[0].layout == ACCUMULATOR
        lines: dict[Any, list[int]] = {}  # the registers of a line, by its place along the axis
        for number, place in enumerate(self.where):
            lines.setdefault(place[along], []).append(number)
        self.numbers = lines
        self.lines = {at: [part[number] for part in parts for number in of] for at, of in lines.items()}

    def tiles(self, found: dict[Any, Line]) -> list[list[Any]]:
        """Return the registers of each tile."""
        width = {at: len(of) for at, of in self.numbers.items()}
        count = len(next(iter(found.values()))) // next(iter(width.values()))
        result: list[list[Any]] = [[None] * len(self.where) for _ in range(count)]
        for at, line in found.items():
            for i, register in enumerate(line):
                result[i // width[at]][self.numbers[at][i % width[at]]] = register
        return result

    def chosen(self, test: Any, one: Line, other: Line) -> Line:
        return [self.builder.select(test, *each) for each in zip(one, other, strict=True)]

    def lane(self, within: int) -> Any:
        """Return a lane's number in its quad, or in its warp."""
        return self.builder.and_(nb.thread_index(self.builder), nb.const(3 if within == QUAD else 31))

    def earlier(self, line: Line, distance: int, within: int) -> Line:
        return [of_before(self.builder, register, distance, within) for register in line]

    def running(self, line: Line, within: int) -> Line:
        """Return what lanes have when all have been combined with those before, in the quad or in the same place of the quads."""
        lane = self.lane(within)
        for distance in (1, 2) if within == QUAD else (4, 8, 16):
            there = self.builder.icmp_unsigned(">=", lane, nb.const(distance))
            line = self.chosen(there, self.combine(self.earlier(line, distance, within), line), line)
        return line

    def last(self, line: Line, within: int) -> Line:
        return [of_last(self.builder, register, within) for register in line]

    def along_rows(self) -> dict[Any, Line]:
        found: dict[Any, Line] = {}
        base: Line = []
        first_lane = self.builder.icmp_unsigned("==", self.lane(QUAD), nb.const(0))
        for column in [column for column in self.lines if column % 2 == 0]:
            first, second = self.lines[column], self.lines[column + 1]
            quad = self.running(self.combine(first, second), QUAD)
            first = self.chosen(first_lane, first, self.combine(self.earlier(quad, 1, QUAD), first))
            here = [self.combine(base, line) if base else line for line in (first, quad)]
            base = self.last(here[1], QUAD)
            found[column], found[column + 1] = here
        return found

    def along_columns(self) -> dict[Any, Line]:
        builder, found = self.builder, {}
        running = {row: self.running(line, WARP) for row, line in self.lines.items()}
        totals = {row: self.last(line, WARP) for row, line in running.items()}
        blocks = [row for row in self.lines if row % 64 == 0]
        own = [register for row in blocks for register in self.combine(totals[row], totals[row + 8])]
        shared = of_warps(builder, [builder.bitcast(register, nb.i32) for register in own], self.columns)
        warp = builder.and_(builder.lshr(nb.thread_index(builder), nb.const(5)), nb.const(3))
        first_warp = builder.icmp_unsigned("==", warp, nb.const(0))
        base: Line = []
        for row in blocks:
            each = [[builder.bitcast(part, like.type) for part in next(shared)] for like in self.lines[row]]
            ahead = [base]  # of each warp, and of the next block
            for number in range(4):
                total = [parts[number] for parts in each]
                ahead.append(self.combine(ahead[-1], total) if ahead[-1] else total)
            mine = base or ahead[1]
            for number in range(1, 4):
                mine = self.chosen(builder.icmp_unsigned("==", warp, nb.const(number)), ahead[number], mine)

            def behind(line: Line, mine: Line = mine, alone: bool = not base) -> Line:
                whole = self.combine(mine, line)
                return self.chosen(first_warp, line, whole) if alone else whole

            found[row] = behind(running[row])
            found[row + 8] = self.combine(behind(totals[row]), running[row + 8])
            base = ahead[4]
        return found


def _scanned(builder: Any, tiles: list[TileType], values: list[Any], along: int, combine: Combine) -> list[Any]:
    parts = [registers(builder, tile, value)[:len(places(tile.shape, tile.layout))] for tile, value in zip(tiles, values, strict=True)]
    if not source.alone(tiles[0].form, along):
        lines = _Lines(builder, tiles, parts, along, combine)
        parts = lines.tiles(lines.along_rows() if along else lines.along_columns())
    return [assembled(builder, tile, part) for tile, part in zip(tiles, parts, strict=True)]


def _accumulate(name: str, _context: Any, np_: Any, tile: Any, axis: Any) -> Any:
    form, along, _ = source.plan(np_, tile, axis, f"np.{name}imum.accumulate")
    result = TileType(form)
    _, builder, args = yield result(np_, tile, axis)
    if np_.role == "memory":
        return undefined(result)

    def combine(one: Line, other: Line) -> Line:
        return [extreme(name)(builder, form.dtype, *each) for each in zip(one, other, strict=True)]

    return _scanned(builder, [result], [args[1]], along, combine)[0]


for _name, _operation in source.ACCUMULATED.items():
    cuda_meaning(_operation)(functools.partial(_accumulate, _name))


@cuda_meaning(source.scan)
def _scan(typing_context: Any, np_: Any, function: Any, tile: Any, axis: Any) -> Any:
    forms, along, _ = source.plan_scan(np_, tile, axis)
    tree, given = trees.tree_of(tile), [TileType(source.line_form(form, along)) for form in forms]
    line = tree.build(iter(given), trees.made)
    source.check_line([part.form for part in given], tile, nb.returns(typing_context, function, (line, line)))
    tiles = [TileType(form) for form in forms]
    result = tree.build(iter(tiles), trees.made)
    context, builder, args = yield result(np_, function, tile, axis)

    def combine(one: Line, other: Line) -> Line:
        width = len(one) // len(given)  # 1 where a line is one element, which a vector has twice

        def value(registers: Line) -> Any:
            parts = (registers[i * width:][:width] for i in range(len(given)))
            return trees.build_value(context, builder, line, (
                assembled(builder, kind, (part * 2)[:kind.registers]) for kind, part in zip(given, parts, strict=True)))

        found = nb.call_value(context, builder, function, args[1], (line, line), (value(one), value(other)))[1]
        return [register for kind, part in zip(given, trees.leaf_values(builder, line, found), strict=True)
                for register in registers(builder, kind, part)[:width]]

    if np_.role == "memory":
        scanned = [undefined(tile) for tile in tiles]
    else:
        scanned = _scanned(builder, tiles, trees.leaf_values(builder, tile, args[2]), along, combine)
    return trees.build_value(context, builder, result, iter(scanned))
