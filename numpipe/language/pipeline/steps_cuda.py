"""A pipeline's loop as a Numba value: its rings, arrays and step counts."""

from __future__ import annotations

from typing import Any

from ...arch.dimensions import Ints
from ...core import numba as nb
from ...core.numba import I32
from ...core.op import cuda_meaning
from ...plan.nested_tuples_cuda import build_value, made
from ..tiles.refs_cuda import SmemType
from . import steps as source
from .ring import slot_of, step_of, tiles_of
from .ring_cuda import RingType
from .warpgroup_order import skip_turn


class LoopType(source.LoopFacts, nb.Type):  # type: ignore[misc]
    """The type of `steps.Loop`, with everything that its role uses and that is known at compile
    time. Loops with equal types are compiled once."""

    def __init__(
        self,
        pipe: Any,
        rings: list[RingType],
        arrays: list,
        groups: int,
        last: int,
        turns: Ints,
    ) -> None:
        source.LoopFacts.__init__(self, pipe, rings, arrays, groups, last, turns)
        nb.Type.__init__(
            self,
            name=(
                f"loop({self.np}, {self.rings}, {self.arrays}, {self.tree}, {self.places}, "
                f"{self.manual}, {self.rank}, {self.unequal}, {self.pending}, {self.outs}, "
                f"{self.passes_turn}, {self.tokens})"
            ),
        )

    @property
    def passed(self) -> list:
        """The types of the arrays that a body receives unchanged; for the others, a loop uses only
        the type."""
        return [
            array for array, place in zip(self.arrays, self.places, strict=True) if place is None
        ]

    @property
    def grid(self) -> Any:
        return nb.UniTuple(I32, self.rank)

    @property
    def tiles(self) -> Any:
        """The type that `steps.tiles` returns."""
        given = []
        for array, place in zip(self.arrays, self.places, strict=True):
            if place is None:
                given.append(array)
            else:
                plan = (*self.rings, *self.outs)[place.ring].plan
                layout, unit = plan.layouts[place.operand], self.np.unit
                given.append(
                    SmemType(layout, array.arg.dtype, unit.debugged, self.np.role, plan.written)
                )
        return self.tree.build(iter(given), made)


nb.struct_model(
    LoopType,
    lambda ty: [
        ("np", ty.np),
        ("rings", nb.Tuple(ty.rings)),
        ("passed", nb.Tuple(ty.passed)),
        ("grid", ty.grid),
        ("total", I32),
        ("steps", I32),
        ("outs", nb.Tuple(ty.outs)),
    ],
    *("np", "grid", "total", "rings", "outs"),
)
nb.constant_attributes(LoopType, None, pending=lambda loop: loop.pending)


@cuda_meaning(source.pass_tokens)
def _pass_tokens(loop: Any) -> Any:
    tokens = [nb.immediate(number) for number in loop.tokens]
    for kind, _ in tokens:
        nb.returns(skip_turn, (loop.np, kind))
    builder, args = yield
    for kind, number in tokens:
        builder.apply(
            skip_turn,
            (loop.np, kind),
            (builder.fields(loop, args[0]).np, number),
        )


@cuda_meaning(source.tiles)
def _tiles(loop: Any, k: Any) -> Any:
    builder, args = yield loop.tiles(loop, I32)
    value = builder.fields(loop, args[0])
    values = *builder.unpack_tuple(value.rings), *builder.unpack_tuple(value.outs)
    rings = list(zip((*loop.rings, *loop.outs), values, strict=True))
    steps = [
        builder.apply(step_of, (ring, I32, I32), (loaded, args[1], nb.const(0)))
        for ring, loaded in rings
    ]
    slots = []
    for (ring, loaded), step in zip(rings, steps, strict=True):
        slot = builder.apply(slot_of, (ring, I32), (loaded, step))
        slots.append(builder.apply(tiles_of, (ring, I32), (loaded, slot)))
    passed = iter(builder.unpack_tuple(value.passed))
    operands = [
        next(passed) if place is None else builder.extract_value(slots[place.ring], place.operand)
        for place in loop.places
    ]
    return build_value(builder, loop.tiles, iter(operands))
