"""What ptxas says of products that it serialises: the notes C7509 … C7519 of its log, by name, at the user's line.

wgmma is asynchronous only as long as ptxas can prove that nobody touches the registers of a product on its way. Where it cannot,
or has too few registers, it waits for each product before the next one begins, says so in a note, and the kernel runs at half of
its speed, with right results. Here such a note is an error, `SerializedWgmma`: a kernel that was written to overlap products has no
use for one that does not. ``CompilerParams(allow_serialized_wgmma=True)`` leaves the notes to the build gate.

The log names a function, and at best a line of PTX that nobody has seen. Whose statement it is follows from the source: what stands
between a product and its wait (`tile_flow`), or how many registers are live there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...arch.target import Target
from ...arch.targets import DEFAULT
from ...diagnostics.errors import Position, SerializedWgmma
from ...plan import resources
from ...plan.unit import Unit
from ..lift.lift import Lifted
from . import blame, register_budget
from .in_flight import Seen

COST = "each product would be waited for before the next one begins, at about half of the speed"
ALLOWED = "; CompilerParams(allow_serialized_wgmma=True) takes the kernel as it is"
_PRINTS = r"\b(debug_print|device_assert)\("


@dataclass(frozen=True)
class Advisory:
    """A note of ptxas': `code`, our `name` for it, what it `means`, what `place` of the source it speaks of, and the `mend`."""

    code: str
    name: str
    means: str
    place: str
    mend: str


def _place(of: str, seen: Seen, lifted: Lifted) -> Position | None:
    """Where a note speaks of: of a print, else the first such, or the first product."""
    if of == "print":
        return blame.written(lifted, _PRINTS)
    places: dict[str, list[Position | None]] = {
        "widest": [seen.widest[1]], "begun": [place for place, _ in seen.begun],
        "packed": [*(place for place, _ in seen.packed), *seen.from_registers]}
    return next((place for place in (*places.get(of, ()), *seen.products) if place is not None), None)


_CALL = "a function is called while products are in flight, and its code may use their registers"
_NO_CALL = "take the call out of the loop of products (debug_print, device_assert), or compile without it"
_NO_ROOM = "a lane has too few registers for the products that are in flight together"
_LESS = ("use tiles of fewer columns or rows, fewer compute warpgroups (num_compute_wgs), a smaller memory_registers, or a wait "
         "before the next product is issued")
_PATHS = "a product is issued, or waited for, on some of the ways through a branch only"
_ALL_PATHS = ("put the wgmma and its wgmma_wait on the same side of an 'if', with a condition that is the same in all lanes of the "
              "warpgroup")
ADVISORIES = {advisory.code: advisory for advisory in (
    Advisory("C7509", "extern-call", _CALL, "print", _NO_CALL),
    Advisory("C7510", "function-call", _CALL, "print", _NO_CALL),
    Advisory("C7511", "register-pressure", _NO_ROOM, "widest", _LESS),
    Advisory("C7512", "register-pressure", _NO_ROOM, "widest", _LESS),
    Advisory("C7513", "operand-redefined", "an A operand gets its next value in the registers that a product in flight reads",
             "packed",
             "write acc = numpipe.wgmma_wait(acc) before; what the operand is made of may be computed while the product runs"),
    Advisory("C7514", "accumulator-read", "an accumulator is read while its product is in flight", "product",
             "write acc = numpipe.wgmma_wait(acc) before"),
    Advisory("C7515", "accumulator-redefined", "registers of an accumulator are written while products are in flight", "begun",
             "make the accumulator before the first of them is issued, or let the product begin with None"),
    Advisory("C7516", "ill-formed-stage", "ptxas does not find which wait belongs to a product", "product",
             "wait for each product in the function, and in the loop, that issues it"),
    Advisory("C7518", "divergent-wait", _PATHS, "product", _ALL_PATHS),
    Advisory("C7519", "divergent-product", _PATHS, "product", _ALL_PATHS),
)}
"""By code. C7503 … C7508 say that setmaxnreg was ignored, C7517 that ptxas added a wait: the gate tells of these."""


def found(log: str, target: Target = DEFAULT) -> list[Advisory]:
    """What a log says of serialised products, each once; a code that nobody knows is told in ptxas' own words."""
    lines = [line for line in resources.notes(log, target) if "serialized" in line]
    codes = dict.fromkeys((code[0] if (code := re.search(target.advisories, line)) else "C75xx", _words(line)) for line in lines)
    return [ADVISORIES.get(code) or Advisory(code, "serialized", words, "product", "see the code in ptxas' documentation")
            for code, words in codes]


def _words(line: str) -> str:
    """What a note says, without the function's name."""
    return re.sub(r" (in|for) the function .*", "", line.partition("serialized due to ")[2]) or line


def check(unit: Unit, lifted: Lifted, seen: Seen, log: str, calls: bool) -> None:
    """Raise SerializedWgmma for the first of a log's notes; `calls`: the kernel prints, or asserts, which is its user's choice."""
    params = unit.params
    if params.allow_serialized_wgmma or params.debug:
        return
    for advisory in found(log, unit.target):
        if calls and advisory.code in ("C7509", "C7510"):
            continue
        raise error(unit, lifted, seen, advisory)


def redefined(unit: Unit, lifted: Lifted, seen: Seen) -> SerializedWgmma:
    """The error for an operand that is defined anew while a product reads it, known before ptxas is asked."""
    name, definition, product = seen.redefined[0]
    mend = ADVISORIES["C7513"].mend
    text = (f"'{name}' gets its next value in the registers that a product in flight reads: ptxas would serialise wgmma, "
            f"operand-redefined (C7513): {COST}; {mend}{ALLOWED}\n  in flight since {product.filename}:{product.line}")
    return blame.stamp(SerializedWgmma(text), unit, lifted, [definition])


def error(unit: Unit, lifted: Lifted, seen: Seen, advisory: Advisory) -> SerializedWgmma:
    """The error for a note, at the statement that it speaks of."""
    where = _place(advisory.place, seen, lifted) or lifted.sources[0].definition
    rows = [f"  in flight since {since.filename}:{since.line}" for made, since in (*seen.packed, *seen.begun) if made == where][:1]
    if advisory.name == "register-pressure":
        rows = register_budget.table(seen)
    text = f"ptxas serialises wgmma, {advisory.name} ({advisory.code}): {advisory.means}: {COST}; {advisory.mend}{ALLOWED}"
    return blame.stamp(SerializedWgmma("\n".join([text, *rows])), unit, lifted, [where])
