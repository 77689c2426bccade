"""Register tiles while products are in flight: what was seen of them in a kernel's functions (`tile_flow` looks)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...diagnostics.errors import Position


@dataclass(frozen=True)
class Held:
    """A tile that is live beside products: `role` says whether it is an accumulator, an operand or neither."""

    name: str
    what: str
    """dtype and shape"""
    role: str
    registers: int
    position: Position | None


@dataclass
class Seen:
    """What was seen in the functions of one kernel."""

    products: list[Position] = field(default_factory=list)
    """its wgmmas"""
    from_registers: list[Position] = field(default_factory=list)
    """those whose A operand is a register tile"""
    redefined: list[tuple[str, Position, Position]] = field(default_factory=list)
    """(name, definition, product) of operands that are defined anew while the product reads the old value"""
    packed: list[tuple[Position, Position]] = field(default_factory=list)
    """(definition, product) of all operands that are made while a product is in flight"""
    begun: list[tuple[Position, Position]] = field(default_factory=list)
    """(definition, product) of accumulators that something else than a wgmma makes while a product is in flight"""
    widest: tuple[tuple[Held, ...], Position | None] = ((), None)
    """the tiles that are live at the widest point, and the product there"""


def needed(held: Iterable[Held]) -> tuple[int, int]:
    """Registers of (accumulators and operands, what else is live)."""
    parts = tuple(held)
    total = sum(part.registers for part in parts)
    products = sum(part.registers for part in parts if part.role)
    return products, total - products
