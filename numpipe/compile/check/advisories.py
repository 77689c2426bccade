"""The notes of ptxas about products that it serializes, C7509 … C7519 of its log, by name and at
the user's line.

wgmma is asynchronous only as long as ptxas can prove that no instruction accesses the registers of
a product in flight. If it cannot, or if it has too few registers, it waits for each product before
the next one begins and prints a note; the kernel then runs at half its speed, with correct results.
Here such a note is an error, `SerializedWgmma`, because a kernel is written to overlap products.
With ``CompilerParams(allow_serialized_wgmma=True)`` only the build gate reports the notes.

The log names a function, and at best a line of PTX, which users do not see. The user's statement is
found from the source: from the statements between a product and its wait (`tile_flow`), or from the
registers that are live there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...arch.target import Target
from ...diagnostics.errors import Position, SerializedWgmma, SpecError
from ...plan import resources
from ...plan.unit import Unit
from ..lift.lift import Lifted
from . import error_lines, register_budget
from .register_budget import Products

COST = "each product would be waited for before the next one begins, at about half of the speed"
ALLOWED = "; CompilerParams(allow_serialized_wgmma=True) takes the kernel as it is"
_PRINTS = r"\b(debug_print|device_assert)\("


@dataclass(frozen=True)
class Advisory:
    """A note of ptxas: its `code`, our `name` for it, what it `means`, the kind of `place` in the
    source, and the `fix`."""

    code: str
    name: str
    means: str
    place: str
    fix: str


_CALL = "a function is called while products are in flight, and its code may use their registers"
_NO_CALL = (
    "move the call (debug_print, device_assert) out of the loop of products, or compile without it"
)
_NO_ROOM = "a lane has too few registers for the products that are in flight at the same time"
_LESS = (
    "use tiles of fewer columns or rows, fewer compute warpgroups (num_compute_wgs), a smaller "
    "memory_registers, or a wait before the next product is issued"
)
_PATHS = "a product is issued, or waited for, only on some paths through a branch"
_ALL_PATHS = (
    "put the wgmma and its wgmma_wait on the same side of an 'if', with a condition that is the "
    "same in all lanes of the warpgroup"
)
ADVISORIES = {
    advisory.code: advisory
    for advisory in (
        Advisory("C7509", "extern-call", _CALL, "print", _NO_CALL),
        Advisory("C7510", "function-call", _CALL, "print", _NO_CALL),
        Advisory("C7511", "register-pressure", _NO_ROOM, "widest", _LESS),
        Advisory("C7512", "register-pressure", _NO_ROOM, "widest", _LESS),
        Advisory(
            code="C7513",
            name="operand-redefined",
            means="an A operand gets its next value in the registers that a product in flight "
            "reads",
            place="packed",
            fix="write acc = numpipe.wgmma_wait(acc) before; the values that the operand is made "
            "from may be computed while the product runs",
        ),
        Advisory(
            code="C7514",
            name="accumulator-read",
            means="an accumulator is read while its product is in flight",
            place="widest",
            fix="write acc = numpipe.wgmma_wait(acc) before; a wait that ends several products "
            "names all of their accumulators, a, b = numpipe.wgmma_wait((a, b))",
        ),
        Advisory(
            code="C7515",
            name="accumulator-redefined",
            means="the registers of an accumulator are written while products are in flight",
            place="begun",
            fix="make the accumulator before the first of them is issued, or let the product "
            "begin with None; if the number of steps of a loop is a compile-time constant, "
            "use delay_release=0 or take the number from an array's shape",
        ),
        Advisory(
            code="C7516",
            name="ill-formed-stage",
            means="ptxas cannot determine which wait belongs to a product",
            place="product",
            fix="wait for each product in the function, and in the loop, that issues it",
        ),
        Advisory("C7518", "divergent-wait", _PATHS, "product", _ALL_PATHS),
        Advisory("C7519", "divergent-product", _PATHS, "product", _ALL_PATHS),
    )
}
"""By code. C7503 … C7508 (setmaxnreg was ignored) and C7517 (ptxas added a wait) are left to the
gate."""


def advisories_of(log: str, target: Target) -> list[Advisory]:
    """Return the notes of a log about serialized products, each once; an unknown code is quoted
    from ptxas."""
    lines = [line for line in resources.notes(log, target) if "serialized" in line]
    codes = dict.fromkeys(
        (code[0] if (code := re.search(target.advisories, line)) else "C75xx", _words(line))
        for line in lines
    )
    return [
        ADVISORIES.get(code)
        or Advisory(code, "serialized", words, "product", "see the code in ptxas' documentation")
        for code, words in codes
    ]


def _words(line: str) -> str:
    """Return the text of a note without the function's name."""
    return re.sub(r" (in|for) the function .*", "", line.partition("serialized due to ")[2]) or line


def check(unit: Unit, lifted: Lifted, seen: Products, log: str, calls: bool) -> None:
    """Raise SerializedWgmma for the first note of a log. `calls`: the kernel prints or asserts, at
    the user's request."""
    params = unit.params
    if params.allow_serialized_wgmma or params.debug:
        return
    for advisory in advisories_of(log, unit.target):
        if calls and advisory.code in ("C7509", "C7510"):
            continue
        raise error(unit, lifted, seen, advisory)


def redefined(unit: Unit, lifted: Lifted, seen: Products) -> SerializedWgmma:
    """Return the error for an operand that gets a new value while a product reads it, detected
    before ptxas runs."""
    name, definition, product = seen.redefined[0]
    fix = ADVISORIES["C7513"].fix
    text = (
        f"'{name}' gets its next value in the registers that a product in flight reads: ptxas "
        f"would serialize wgmma, operand-redefined (C7513): {COST}; fix: {fix}{ALLOWED}\n  in "
        f"flight since {product.filename}:{product.line}"
    )
    return error_lines.stamp(SerializedWgmma(text), unit, lifted, [definition])


def overwritten(unit: Unit, lifted: Lifted, seen: Products) -> SpecError:
    """Return the error for an operand in registers that a step creates while a product of an
    earlier step reads it."""
    definition, product = seen.overwritten[0]
    text = (
        "wgmma(acc, a, b), a: a step writes the next value of this operand to the registers that "
        "a product of an earlier step may still read; fix: write acc = numpipe.wgmma_wait(acc, "
        "0) after the wgmma, use delay_release=0, or leave a in shared memory, a_tile.at[…]\n  "
        f"in flight since {product.filename}:{product.line}"
    )
    return error_lines.stamp(SpecError(text), unit, lifted, [definition])


def error(unit: Unit, lifted: Lifted, seen: Products, advisory: Advisory) -> SerializedWgmma:
    """Return the error for a note, at the statement that it concerns: a print, else the first tile
    of its kind, or a product."""
    places: dict[str, list[Position | None]] = {
        "print": [error_lines.call_position(lifted, _PRINTS)],
        "widest": [seen.widest[1]],
        "begun": [place for place, _ in seen.begun],
        "packed": [*(place for place, _ in seen.packed), *seen.from_registers],
    }
    where = next(
        (place for place in (*places.get(advisory.place, ()), *seen.products) if place is not None),
        lifted.definition,
    )
    rows = [
        f"  in flight since {since.filename}:{since.line}"
        for made, since in (*seen.packed, *seen.begun)
        if made == where
    ][:1]
    fix = advisory.fix
    if advisory.place == "widest":
        rows = register_budget.table(seen, lifted)
    if advisory.code == "C7514" and seen.unnamed:
        where, accumulators = seen.unnamed[0]
        names = ", ".join(accumulators)
        fix = f"name all products that this wait ends, {names} = numpipe.wgmma_wait(({names}))"
    text = (
        f"ptxas serializes wgmma, {advisory.name} ({advisory.code}): {advisory.means}: {COST}; "
        f"fix: {fix}{ALLOWED}"
    )
    return error_lines.stamp(SerializedWgmma("\n".join([text, *rows])), unit, lifted, [where])
