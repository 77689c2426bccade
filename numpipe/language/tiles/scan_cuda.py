"""Scans of register tiles on the GPU: shuffles within a quad or among the quads, and shared memory
between the warps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...core import numba as nb
from ...core.op import cuda_meaning
from ...plan import nested_tuples_cuda as trees
from . import scan as source
from .layout_names import ROW
from .layouts import Form
from .reduce_cuda import combination, of_warps
from .scan import Lines, alone, in_lane, lines_of, plan
from .tile_cuda import TileType, assembled, registers, undefined


def of_before(builder: Any, value: Any, distance: int, among: int) -> Any:
    """Return the value of the lane `distance` before, of the `among` lanes that exchange values, or
    the lane's own value if there is none (PTX ISA, "shfl.sync")."""
    text = f"shfl.sync.up.b32 $0, $1, {distance}, {32 - among << 8}, 0xffffffff;"
    return builder.emit_asm(value.type, [value], text, memory=False)


def of_last(builder: Any, value: Any, lines: Lines) -> Any:
    """Return the value of the last lane that shares the row, or of the last one that shares the
    column."""
    first = lines.among - lines.lanes
    lane = (
        nb.const(lines.among - 1)
        if not lines.step
        else builder.or_(builder.and_(builder.thread_index(), lines.lanes - 1), first)
    )
    return builder.emit_asm(
        value.type,
        [value, lane],
        f"shfl.sync.idx.b32 $0, $1, $2, {32 - lines.among << 8 | 31}, 0xffffffff;",
        memory=False,
    )


Line = list
"""The registers of one or two adjacent columns, or rows, that a lane holds, for one tile after the
other."""
ByPlace = dict[Any, Line]
"""lines by their column or row"""
Combine = Callable[[Line, Line], Line]


@dataclass(eq=False)
class _Scan:
    """A scan of all lines of tiles; adjacent lines are independent of each other."""

    builder: Any
    lines: Lines
    combine: Combine

    def chosen(self, test: Any, one: Line, other: Line) -> Line:
        return [self.builder.select(test, *each) for each in zip(one, other, strict=True)]

    def lane(self) -> Any:
        """Return a lane's number among those that exchange values."""
        return self.builder.and_(self.builder.thread_index(), self.lines.among - 1)

    def earlier(self, line: Line, distance: int) -> Line:
        return [of_before(self.builder, register, distance, self.lines.among) for register in line]

    def running(self, line: Line) -> Line:
        """Return what lanes have after combining with all previous lanes of the row, or of the
        column."""
        lane = self.lane()
        for distance in self.lines.distances:
            there = self.builder.icmp_unsigned(">=", lane, distance)
            line = self.chosen(there, self.combine(self.earlier(line, distance), line), line)
        return line

    def last(self, line: Line) -> Line:
        return [of_last(self.builder, register, self.lines) for register in line]

    def after(self, base: Line, line: Line) -> Line:
        """Combine a line with `base`, which is empty at the beginning."""
        return self.combine(base, line) if base else line

    def behind(self, start: Line, lines: list[Line], first: Any) -> list[Line]:
        """Combine lines with `start`, except in the lanes for which `first` is true; if it is None,
        in all lanes."""
        found = [self.combine(start, line) for line in lines]
        if first is None:
            return found
        return [self.chosen(first, *both) for both in zip(lines, found, strict=True)]

    def along_rows(self, lines: ByPlace) -> ByPlace:
        """Return the elements of rows, by column."""
        found: ByPlace = {}
        base: Line = []
        first_lane = self.builder.icmp_unsigned("==", self.lane(), 0)
        every, run = list(lines), self.lines.run
        for at in range(0, len(every), run):
            columns = every[at : at + run]
            *own, last = in_lane(self.combine, [lines[column] for column in columns])
            last = self.running(last)
            before = self.earlier(last, 1)
            # the running total is combined with the lane's start once, not with each column
            start = self.chosen(first_lane, base, self.combine(base, before)) if base else before
            behind = self.behind(start, own, None if base else first_lane)
            found.update(zip(columns, [*behind, self.after(base, last)], strict=True))
            # not the last lane's element, which would make each step wait for a shuffle
            base = self.after(base, self.last(last))
        return found

    def along_columns(self, each: list[ByPlace], columns: bool) -> list[ByPlace]:
        """Return the elements of columns, by row. `columns` is True for a tile, False for a vector
        along its rows."""
        builder, of = self.builder, self.lines
        running = [{row: self.running(line) for row, line in lines.items()} for lines in each]
        firsts = [
            {row: self.last(line) for row, line in lines.items() if row % of.step == 0}
            for lines in running
        ]
        totals = [
            functools.reduce(
                self.combine, [line, *(self.last(lines[row + half]) for half in of.halves[1:])]
            )
            for lines, first in zip(running, firsts, strict=True)
            for row, line in first.items()
        ]
        values = [builder.bitcast(part, nb.i32) for total in totals for part in total]
        shared = (
            iter([[value] for value in values])
            if of.warps == 1
            else of_warps(builder, values, of.lanes if columns else 1)
        )
        return [
            self._after_earlier_warps(lines, first, shared)
            for lines, first in zip(running, firsts, strict=True)
        ]

    def _after_earlier_warps(
        self, running: ByPlace, firsts: ByPlace, shared: Iterator[list]
    ) -> ByPlace:
        builder, found = self.builder, ByPlace()
        warps, halves = self.lines.warps, self.lines.halves
        warp = builder.and_(builder.lshr(builder.thread_index(), 5), warps - 1)
        first_warp = builder.icmp_unsigned("==", warp, 0)
        base: Line = []
        for row, first in firsts.items():
            each = [[builder.bitcast(part, like.type) for part in next(shared)] for like in first]
            ahead = [base]  # of each warp, and of the next block
            for number in range(warps):
                ahead.append(self.after(ahead[-1], [parts[number] for parts in each]))
            mine = base or ahead[1]
            for number in range(1, warps):
                mine = self.chosen(builder.icmp_unsigned("==", warp, number), ahead[number], mine)
            behind = self.behind(mine, [running[row], first], None if base else first_warp)
            found[row] = behind[0]
            for half in halves[1:]:
                found[row + half] = self.combine(behind[1], running[row + half])
            base = ahead[-1]
        return found


def _scanned(
    builder: Any, tiles: list[TileType], values: list, along: int, combine: Combine
) -> list:
    where = tiles[0].form.places
    parts = [registers(builder, tile, value) for tile, value in zip(tiles, values, strict=True)]
    if not alone(tiles[0].form, along):
        # the registers of a row or a column, by their position along it
        beside: dict[Any, dict[Any, int]] = {}
        for number, place in enumerate(where):
            beside.setdefault(place[1 - along], {})[place[along]] = number
        every = list(beside.values())
        pairs = [every[i : i + 2] for i in range(0, len(every), 2)]
        each = [
            {at: [part[of[at]] for part in parts for of in pair] for at in pair[0]}
            for pair in pairs
        ]
        scan = _Scan(builder, lines_of(tiles[0].form, along), combine)
        found = (
            list(map(scan.along_rows, each))
            if along
            else scan.along_columns(each, len(tiles[0].form.record.axes) > 1)
        )
        for pair, lines in zip(pairs, found, strict=True):
            for at, line in lines.items():
                for i, register in enumerate(line):
                    parts[i // len(pair)][pair[i % len(pair)][at]] = register
    return [assembled(builder, tile, part) for tile, part in zip(tiles, parts, strict=True)]


def _accumulate(kind: str, name: str, np_: Any, tile: Any, axis: Any) -> Any:
    form, along, _ = plan(np_, tile, axis, name)
    result = TileType(form)
    builder, args = yield result(np_, result, axis)
    if not np_.computes:
        return undefined(result)
    of_two = combination(builder, kind, form.dtype)

    def combine(one: Line, other: Line) -> Line:
        return [of_two(*each) for each in zip(one, other, strict=True)]

    return _scanned(builder, [result], [args[1]], along, combine)[0]


for _kind, _operation in {"sum": source.cumsum, **source.ACCUMULATED}.items():
    cuda_meaning(_operation)(functools.partial(_accumulate, _kind, _operation.function.__name__))


@cuda_meaning(source.scan)
def _scan(np_: Any, function: Any, tile: Any, axis: Any) -> Any:
    forms, along, _ = source.plan_scan(np_, tile, axis)
    tree, given = trees.tree_of(tile), [TileType(Form((8,), form.dtype, ROW)) for form in forms]
    line = tree.build(iter(given), trees.made)
    source.check_line([part.form for part in given], tile, nb.returns(function, (line, line)))
    tiles = [TileType(form) for form in forms]
    result = tree.build(iter(tiles), trees.made)
    builder, args = yield result(np_, function, result, axis)

    def combine(one: Line, other: Line) -> Line:
        # 1 in a tile with a single row or column; a vector has it twice
        width = len(one) // len(given)

        def value(registers: Line) -> Any:
            parts = (registers[i * width :][:width] for i in range(len(given)))
            return trees.build_value(
                builder,
                line,
                (
                    assembled(builder, kind, (part * 2)[: kind.registers])
                    for kind, part in zip(given, parts, strict=True)
                ),
            )

        found = builder.apply_value(function, args[1], (line, line), (value(one), value(other)))
        return [
            register
            for kind, part in zip(given, trees.leaf_values(builder, line, found), strict=True)
            for register in registers(builder, kind, part)[:width]
        ]

    if not np_.computes:
        scanned = [undefined(tile) for tile in tiles]
    else:
        scanned = _scanned(
            builder, tiles, trees.leaf_values(builder, result, args[2]), along, combine
        )
    return trees.build_value(builder, result, iter(scanned))
