"""`debug_print` and assertions on the GPU: one lane of the warpgroup calls vprintf or __assertfail,
since all lanes have the same values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ..core import numba as nb
from ..core.inert_cuda import InertType
from ..core.numba import F64, I64
from ..core.op import cuda_meaning, immediate
from ..diagnostics.format import Field, Kind, render
from .context_cuda import compute_warpgroup
from .debug import (
    BREAKPOINT,
    SimulatedOnly,
    check,
    check_condition,
    debug_print,
    line,
    prefix,
    simulated_only,
)
from .params import LoweringSemantics


def _kind(ty: Any) -> Kind | None:
    """Return the kind as which a value of this type is printed; None if it is not a scalar, and
    "text" for constant strings."""
    kinds: dict[type, Kind] = {
        nb.Boolean: "bool",
        nb.Integer: "int",
        nb.Float: "float",
        nb.types.StringLiteral: "text",
    }
    return next((kind for numba_type, kind in kinds.items() if isinstance(ty, numba_type)), None)


def _described(ty: Any) -> str:
    return getattr(ty, "what", None) or str(ty)


def _conversion(field: Field, ty: Any) -> str:
    """Return printf's conversion with its length modifier: integers are passed as 64 bits, floats
    as doubles."""
    kind = _kind(ty)
    assert kind is not None
    text = field.conversion(kind)
    letter = text[-1]
    if letter == "d" and kind == "int" and not ty.signed:
        letter = "u"
    return text[:-1] + ("ll" if letter in "duxX" else "") + letter


def _argument(builder: Any, field: Field, ty: Any, value: Any) -> Any:
    """Return a value in the form in which vprintf reads it from its argument buffer."""
    letter = _conversion(field, ty)[-1]
    if letter == "s":
        words = [builder.c_string(word) for word in ("True", "False")]
        return builder.select(builder.context.is_true(builder, ty, value), *words)
    if letter in "duxX":
        wide = nb.types.uint64 if _kind(ty) == "int" and not ty.signed else I64
        number = builder.cast(value, ty, wide)
        narrow = letter in "xX" and (_kind(ty) == "bool" or ty.bitwidth <= 32)
        return builder.and_(number, 0xFFFFFFFF) if narrow else number
    number = builder.cast(value, ty, F64)
    # a single NaN, because printf would print its sign
    nan = nb.ir.Constant(number.type, float("nan"))
    return builder.select(builder.fcmp_unordered("uno", number, number), nan, number)


@contextlib.contextmanager
def _speaker(builder: Any, np_: Any) -> Iterator[None]:
    """Return a context in which one lane of the warpgroup runs; the memory role is one lane
    already.

    The lane is chosen by its number: elect.sync would wait for lanes that are elsewhere, and no TMA
    follows.
    """
    if np_.role.lanes == "one":
        yield
        return
    lane = builder.lane_index()
    with builder.if_then(builder.icmp_unsigned("==", lane, 0), likely=False):
        yield


@cuda_meaning(debug_print)
def _debug_print(np_: Any, format: Any, *values: Any) -> Any:
    text = [prefix(np_.unit.kernel.replace("%", "%%"), np_.role, ("%d", "%d", "%d"), "%d")]
    printed = []
    for part in line(immediate("debug_print", "the format", format), values, _kind, _described):
        if isinstance(part, str):
            text.append(part.replace("%", "%%"))
        elif hasattr(part[1], "literal_value") and isinstance(
            part[1].literal_value, (bool, int, str)
        ):
            text.append(render(part[0], part[1].literal_value).replace("%", "%%"))
        else:
            text.append(_conversion(*part))
            printed.append(part)
    builder, args = yield
    with _speaker(builder, np_):
        given = list(builder.block_index())
        if np_.computes:
            given.append(compute_warpgroup(builder, np_.unit))
        given += [_argument(builder, field, ty, args[1 + field.number]) for field, ty in printed]
        builder.vprintf("".join(text) + "\n", given)


@cuda_meaning(check)
def _check(
    np_: Any,
    condition: Any,
    message: Any,
    statement: Any,
    file: Any,
    line: Any,
    always: Any,
) -> Any:
    text, place, number, words = map(nb.literal, (statement, file, line, message))
    inert = isinstance(condition, InertType)
    if not inert:
        check_condition(_kind(condition), _described(condition))
    builder, args = yield
    if not inert and (nb.literal(always) or np_.unit.params.asserts):
        holds = builder.context.is_true(builder, condition, args[1])
        # each lane has its own condition
        by_lane = np_.unit.params.lowering_semantics is LoweringSemantics.Lane
        speaker = contextlib.nullcontext() if by_lane else _speaker(builder, np_)
        with builder.if_then(builder.not_(holds), likely=False), speaker:
            builder.assert_fail(
                f"{text}: {words}" if words else text,
                place,
                number,
                f"kernel {np_.unit.kernel}, {np_.role} role",
            )


@cuda_meaning(simulated_only)
def _simulated_only(function: Any) -> Any:
    raise SimulatedOnly(BREAKPOINT)
