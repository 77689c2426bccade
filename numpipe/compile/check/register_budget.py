"""The registers of tiles that are live while products are in flight, as found by `tile_flow`.

They are added up before machine code is generated. ptxas pipelines products only if it has 32
registers in addition to the ones that accumulators and A operands hold: measured at 104, 160, 232,
240 and 256 registers per lane, where 32 fewer is just enough and 8 more is too many (C7511, C7512).
Other tiles in a loop of products may take 24 of these; with one more, a lane spills. Tiles that
could be created later, used up earlier, or recomputed are not counted: a kernel that is rejected
cannot fit, but one that passes may still spill.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ...diagnostics.errors import Position, SpecError
from ...plan.unit import Unit
from ..lift.lift import Lifted
from . import error_lines

RESERVE = 32
"""Registers of a lane that products cannot use: ptxas needs them for addresses, counters and other
computations."""
LEAST = 8
"""Registers of a lane that no tile can use."""


@dataclass(frozen=True)
class LiveTile:
    """A tile that is live during products; its `role` is "accumulator", "operand" or ""."""

    name: str
    what: str
    """Its dtype and shape."""
    role: str
    registers: int
    position: Position | None


@dataclass
class Products:
    """The products in the functions of one kernel, and the tiles that are live during them."""

    products: list[Position] = field(default_factory=list)
    """The wgmmas."""
    from_registers: list[Position] = field(default_factory=list)
    """The wgmmas whose A operand is a register tile."""
    redefined: list[tuple[str, Position, Position]] = field(default_factory=list)
    """(name, definition, product) of operands that get a new value while the product reads the old
    one."""
    overwritten: list[tuple[Position, Position]] = field(default_factory=list)
    """(definition, product) of operands that a step creates while the product of an earlier step
    reads them."""
    packed: list[tuple[Position, Position]] = field(default_factory=list)
    """(definition, product) of all operands that are created while a product is in flight."""
    begun: list[tuple[Position, Position]] = field(default_factory=list)
    """(definition, product) of accumulators that an operation other than a wgmma creates while a
    product is in flight."""
    unnamed: list[tuple[Position, list[str]]] = field(default_factory=list)
    """(wait, accumulators) of the waits that also end products whose accumulators they do not
    name, all accumulators included."""
    widest: tuple[tuple[LiveTile, ...], Position | None] = ((), None)
    """The tiles that are live at the widest point, and the product there."""


def needed(held: Iterable[LiveTile]) -> int:
    """Return the registers of tiles that are live together."""
    return sum(part.registers for part in held)


def excess(limit: int, held: Collection[LiveTile]) -> str:
    """Return why tiles do not fit in `limit` registers per lane, with the numbers; "" if they
    fit."""
    products, total = needed(part for part in held if part.role), needed(held)
    if products > limit - RESERVE:
        return (
            f"products in flight hold {products} registers per lane, but only {limit - RESERVE} "
            f"are available ({limit} of a compute lane, less {RESERVE} that ptxas keeps): it "
            "would serialize wgmma, register-pressure (C7512)"
        )
    if total > limit - LEAST:
        return (
            f"tiles hold {total} registers per lane while products are in flight, but "
            f"only {limit - LEAST} are available ({limit} of a compute lane, less {LEAST} for "
            "addresses): the rest would be spilled"
        )
    return ""


def check(unit: Unit, lifted: Lifted, seen: Products) -> None:
    """Raise SpecError if tiles need more registers than a compute lane has."""
    held, where = seen.widest
    reason = "" if unit.params.allow_serialized_wgmma else excess(unit.compute_registers, held)
    if not reason:
        return
    fixes = ["tiles of fewer columns"]
    if any(
        int(rows) > 64
        for part in held
        if (rows := part.what.partition("(")[2].partition(",")[0]).isdigit()
    ):
        fixes.append("tiles of 64 rows")
    if unit.compute_wgs > 1:
        fixes.append(f"fewer compute warpgroups than num_compute_wgs={unit.compute_wgs}")
    if unit.warp_specialized and unit.memory_registers > 24:
        fixes.append(f"a smaller memory_registers than {unit.memory_registers}")
    text = (
        f"register budget: {reason}; fix: use {', '.join(fixes)} or a wait before the next "
        "product is issued"
    )
    raise error_lines.stamp(
        SpecError("\n".join([text, *table(seen, lifted)])),
        unit,
        lifted,
        [where or lifted.definition],
    )


def table(seen: Products, lifted: Lifted) -> list[str]:
    """Return the tiles that are live together, one per line: registers per lane, name, role, dtype
    and shape, line; where an accumulator is first read."""
    rows, nowhere = [], lifted.definition
    for part in seen.widest[0]:
        row = f"  {part.registers:>4}  {part.name}: {part.role or 'live as well'}, {part.what}"
        if part.position:
            row += f", line {part.position.line}"
        if part.role == "accumulator":
            # not the product that adds to it
            pattern = rf"^(?!\S*mma\().*\b{re.escape(part.name)}\b"
            if (read := error_lines.call_position(lifted, pattern)) != nowhere:
                row += f", read at {read.filename}:{read.line}: `{read.text.strip()}`"
        rows.append(row)
    return rows
