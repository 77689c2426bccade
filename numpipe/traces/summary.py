"""A summary of where the time of a run went: what each warpgroup spent its time on, and the bubbles
between tiles."""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.records import plain
from ..diagnostics.errors import printable
from ..plan.protocol import COMPUTING
from .events import Event, Place, Recording, cta_name, of_ctas, of_warpgroups
from .spans import MEANS, Span, regions, spans, tiles


@dataclass(frozen=True)
class Bubbles:
    """The times between a warpgroup's last product of a tile and its first product of the next:
    their `count` and total `time`.

    parts  kind of span -> its share of `time`
    """

    count: int = 0
    time: float = 0.0
    longest: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return self.time / self.count if self.count else 0.0


@dataclass(frozen=True)
class Row:
    """A warpgroup's time, from the beginning of its CTA to its own end; a mean if there are several
    CTAs.

    spent     kind of span (`numpipe.traces.spans.MEANS`) -> time; the times add up to `total`
    regions   name -> time inside the region, including nested regions
    """

    warpgroup: int
    role: str
    total: float
    spent: dict[str, float]
    regions: dict[str, float]
    bubbles: Bubbles

    def fraction(self, kind: str) -> float:
        """Return the fraction of the total spent on a kind, 0 … 1."""
        return self.spent[kind] / self.total if self.total else 0.0


@dataclass(frozen=True)
class Summary:
    """The time of each warpgroup by activity, in `clock` ("cycles" or "ns"); it prints as a table.

    total              from the first event of the CTA to the last one of its warpgroups; a mean if
                       there are several CTAs
    tensor_core_idle   the fraction of it without a running product (0 … 1); None on a GPU, which
                       does not record this
    lost               number of events that there was no room for; what happened after them counts
                       as other instructions
    banks              bank conflicts of the whole run, (line, access, ways, count), the most
                       expensive first: `count` times the lanes of a warp wait for each other, and
                       the access takes `ways` passes; simulated, a hint (see `numpipe.sim.banks`)
    """

    clock: str
    ctas: tuple[Place, ...]
    total: float
    rows: tuple[Row, ...]
    tensor_core_idle: float | None
    lost: int
    banks: tuple[tuple[str, str, int, int], ...] = ()

    def __getitem__(self, warpgroup: int) -> Row:
        """Return the row of a warpgroup. Raises KeyError."""
        return {row.warpgroup: row for row in self.rows}[warpgroup]

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as dicts, lists, strings and numbers, with fractions in addition to
        times."""
        rows = [
            {
                **dataclasses.asdict(row),
                "fractions": {kind: row.fraction(kind) for kind in row.spent},
                "bubbles": {**vars(row.bubbles), "mean": row.bubbles.mean},
            }
            for row in self.rows
        ]
        return {**plain(vars(self)), "rows": rows}

    @printable
    def __str__(self) -> str:
        if not self.rows:
            return "no events"
        which = cta_name(self.ctas[0]) if len(self.ctas) == 1 else f"mean of {len(self.ctas)} CTAs"
        names = [f"wg{row.warpgroup} {row.role}" for row in self.rows]
        table = [["", *names], [self.clock, *(f"{row.total:.0f}" for row in self.rows)]]
        table += [
            [means, *(f"{100 * row.fraction(kind):.1f} %" for row in self.rows)]
            for kind, means in MEANS.items()
            if any(row.spent[kind] for row in self.rows)
        ]
        for name in dict.fromkeys(name for row in self.rows for name in row.regions):
            table.append(
                [
                    f"in region {name}",
                    *(f"{100 * row.regions.get(name, 0) / row.total:.1f} %" for row in self.rows),
                ]
            )
        table += _bubble_lines([row.bubbles for row in self.rows])
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            f"{line[0]:<{widths[0]}}"
            + "".join(
                f"  {cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True)
            )
            for line in table
        ]
        lines.insert(0, f"{which}: {self.total:.0f} {self.clock}")
        if self.tensor_core_idle is not None:
            lines.append(f"tensor core idle: {100 * self.tensor_core_idle:.1f} %")
        lines += [
            f"bank conflicts: {line}: {access}: {ways} ways, {count} times"
            for line, access, ways, count in self.banks
        ]
        if self.lost:
            lines.append(f"{self.lost} events were lost: raise profile_space")
        return "\n".join(map(str.rstrip, lines))


def _bubble_lines(columns: Sequence[Bubbles]) -> list[list[str]]:
    if not any(each.count for each in columns):
        return []

    def line(title: str, cell: Callable[[Bubbles], str]) -> list[str]:
        return [title, *(cell(each) if each.count else "" for each in columns)]

    def part(kind: str) -> list[str]:
        return line(
            f"  {MEANS[kind]}",
            lambda each: f"{100 * each.parts.get(kind, 0) / (each.time or 1):.1f} %",
        )

    return [
        line("bubble between tiles", lambda each: f"{each.mean:.0f}"),
        line("  longest", lambda each: f"{each.longest:.0f}"),
        *(part(kind) for kind in MEANS if any(each.parts.get(kind) for each in columns)),
    ]


def summarise(trace: Recording, cta: Place | int | None) -> Summary:
    """Return the `Summary` of a trace, which shows where each warpgroup's time went."""
    ctas = of_ctas(trace.events if cta is None else trace.events_of(cta))
    rows: dict[int, list[Row]] = {}
    totals, idle = [], []
    for events in ctas.values():
        begin, warpgroups = min(e.start for e in events), of_warpgroups(events)
        totals.append(
            max((e.end for own in warpgroups.values() for e in own), default=begin) - begin
        )
        busy, until = 0, begin
        for start, end in (products := sorted((e.start, e.end) for e in events if e.kind == "mma")):
            busy += max(0, end - max(start, until))
            until = max(until, end)
        if products and totals[-1]:
            idle.append(1 - busy / totals[-1])
        for number, own in warpgroups.items():
            rows.setdefault(number, []).append(_row(number, own, begin))
    means = tuple(_mean(rows[number]) for number in sorted(rows))
    return Summary(
        trace.clock,
        tuple(ctas),
        sum(totals) / max(len(totals), 1),
        means,
        sum(idle) / len(idle) if idle else None,
        trace.lost,
        tuple(
            sorted(
                ((*key, count) for key, count in trace.banks.items() if key[2] > 1),
                key=lambda row: -(row[2] - 1) * row[3],
            )
        ),
    )


def _row(number: int, events: list[Event], begin: int) -> Row:
    end = max(e.end for e in events)
    done = spans(events)
    spent = dict.fromkeys(MEANS, 0.0)
    for span in done:
        spent[span.kind] += span.end - span.start
    spent["other"] += (end - begin) - sum(spent.values())  # before its first event
    inside: dict[str, float] = {}
    for region in regions(events, end):
        inside[region.name] = inside.get(region.name, 0.0) + region.end - region.start
    return Row(
        number,
        events[-1].role,
        end - begin,
        spent,
        inside,
        _bubbles(done, list(tiles(events, end))),
    )


def _bubbles(done: list[Span], tiles_: list[Span]) -> Bubbles:
    """Return the bubbles between the tiles in which a warpgroup computed something."""
    starts = [span.start for span in done]

    def between(start: float, end: float) -> list[Span]:
        """Return the spans that begin in [start, end), and the one before them."""
        return done[max(bisect_left(starts, start) - 1, 0) : bisect_left(starts, end)]

    products = [
        (computed[0].start, computed[-1].end)
        for tile in tiles_
        if (
            computed := [
                s
                for s in between(tile.start, tile.end)
                if s.kind == COMPUTING and s.start >= tile.start
            ]
        )
    ]
    gaps = [(last, first) for (_, last), (first, _) in itertools.pairwise(products)]
    parts: dict[str, float] = {}
    for start, end in gaps:
        for span in between(start, end):
            if (inside := min(span.end, end) - max(span.start, start)) > 0:
                parts[span.kind] = parts.get(span.kind, 0.0) + inside
    lengths = [end - start for start, end in gaps]
    return Bubbles(len(gaps), sum(lengths), max(lengths, default=0), parts)


def _mean(rows: list[Row]) -> Row:
    """Return the mean of one warpgroup's rows in several CTAs; bubbles are added up."""
    count, bubbles = len(rows), [row.bubbles for row in rows]
    names = dict.fromkeys(name for row in rows for name in row.regions)
    parts = {
        kind: sum(each.parts.get(kind, 0.0) for each in bubbles)
        for kind in MEANS
        if any(kind in each.parts for each in bubbles)
    }
    return Row(
        rows[0].warpgroup,
        rows[0].role,
        sum(row.total for row in rows) / count,
        {kind: sum(row.spent[kind] for row in rows) / count for kind in MEANS},
        {name: sum(row.regions.get(name, 0.0) for row in rows) / count for name in names},
        Bubbles(
            sum(each.count for each in bubbles),
            sum(each.time for each in bubbles),
            max(each.longest for each in bubbles),
            parts,
        ),
    )
