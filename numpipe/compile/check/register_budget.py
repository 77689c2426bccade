"""Registers of tiles beside products, added up before anything is compiled.

ptxas pipelines products only where it has 32 registers besides those that they hold, accumulators and A operands: measured at 104,
160, 232, 240 and 256 registers a lane, where 32 less is just enough and 8 more too many (C7511, C7512). Other tiles that go through
a loop of products may take 24 of these; one more and a lane spills. Tiles that could be made later, used up before, or made again
are not counted: what is refused cannot fit, and what passes may still spill.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...diagnostics.errors import SpecError
from ...plan.unit import Unit
from ..lift.lift import Lifted
from . import blame
from .in_flight import Held, Seen, needed

RESERVE = 32
"""registers of a lane that products cannot have: ptxas wants them for addresses, counters and what is computed beside"""
LEAST = 8
"""registers of a lane that no tile can have"""


def excess(limit: int, held: Iterable[Held]) -> str:
    """What is too much for lanes of `limit` registers, with the numbers; "" where nothing is."""
    products, others = needed(held)
    if products > limit - RESERVE:
        return (f"products in flight hold {products} registers a lane, {limit - RESERVE} are there ({limit} of a compute lane, "
                f"less {RESERVE} that ptxas keeps): it would serialise wgmma, register-pressure (C7512)")
    if products + others > limit - LEAST:
        return (f"tiles hold {products + others} registers a lane while products are in flight, {limit - LEAST} are there "
                f"({limit} of a compute lane, less {LEAST} for addresses): the rest would be spilled")
    return ""


def check(unit: Unit, lifted: Lifted, seen: Seen) -> None:
    """Raise SpecError where tiles need more registers than a compute lane has."""
    held, where = seen.widest
    said = "" if unit.params.allow_serialized_wgmma else excess(unit.compute_registers, held)
    if not said:
        return
    *mends, last = _mends(unit, seen)
    text = f"register budget: {said}; use {', '.join(mends)} or {last}"
    raise blame.stamp(SpecError("\n".join([text, *table(seen)])), unit, lifted, [where or lifted.sources[0].definition])


def _mends(unit: Unit, seen: Seen) -> list[str]:
    """What would leave more registers."""
    mends = ["tiles of fewer columns"]
    if any(int(rows) > 64 for part in seen.widest[0] if (rows := part.what.partition("(")[2].partition(",")[0]).isdigit()):
        mends.append("tiles of 64 rows")
    if unit.compute_wgs > 1:
        mends.append(f"fewer compute warpgroups than num_compute_wgs={unit.compute_wgs}")
    if unit.warp_specialized and unit.memory_registers > 24:
        mends.append(f"a smaller memory_registers than {unit.memory_registers}")
    return [*mends, "a wait before the next product is issued"]


def table(seen: Seen) -> list[str]:
    """The tiles that are live together, a line each: registers a lane, dtype and shape, what for, its name and line."""
    return [f"  {part.registers:>4}  {part.name}: {part.role or 'live beside'}, {part.what}"
            + (f", line {part.position.line}" if part.position else "") for part in seen.widest[0]]
