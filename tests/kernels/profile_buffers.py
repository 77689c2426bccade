"""Profiler buffers, byte by byte as a GPU would record them, made from the trace events of a
simulated run."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any
from unittest import mock

from numpipe import Trace
from numpipe.kernels.variants import Variant
from numpipe.launch.profiles import trace_of
from numpipe.plan import profiling as profile
from numpipe.plan import resources
from numpipe.plan.image import Image
from numpipe.traces.events import Event

Moment = tuple[str, int, int, int, int]
"""(kind, ring, operand, step, time)"""


def traced(kernel: Any, *args: Any, seed: int | None = None, **named: Any) -> tuple[Trace, Any]:
    """Return the trace of a simulated run, and its Unit."""
    units: list[Any] = []
    made = Variant.unit

    def unit(self: Any, *given: Any, **options: Any) -> Any:
        units.append(made(self, *given, **options))
        return units[-1]

    trace = Trace()
    with mock.patch.object(Variant, "unit", unit):
        kernel.simulate(*args, seed=seed, trace=trace, **named)
    return trace, next(unit for unit in units if unit.rings or unit.outputs)


def as_recorded(
    trace: Trace, unit: Any, grid: tuple[int, int, int], room: int = 4096, tick: int = 1000
) -> Trace:
    """Return the trace that the host decodes from a recording of such a run.

    %globaltimer steps by `tick` nanoseconds, and the buffer has room for `room` events.
    """
    unit = dataclasses.replace(
        unit, params=unit.params.replace(profile_space=room, profile_dir=".")
    )
    recorded = buffer(trace, unit, grid, room, tick)  # numbers the regions
    return trace_of(image_of(unit), recorded, grid)


def image_of(unit: Any) -> Image:
    """Return the image of a unit without machine code."""
    return Image.of(unit, b"", "", resources.of(unit, "", 0, {}))


def buffer(trace: Trace, unit: Any, grid: tuple[int, int, int], room: int, tick: int) -> bytes:
    ctas = [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])][
        : profile.SAMPLED
    ]
    memory = bytearray(profile.buffer_bytes(unit.warpgroups, room, len(ctas)))
    stride = profile.PART_BYTES + profile.EVENT_BYTES * room
    for number, cta in enumerate(ctas):
        for warpgroup in range(unit.warpgroups):
            own = [e for e in trace.events if (e.cta, e.warpgroup) == (cta, warpgroup)]
            # every SM has its own clock
            at, clock = (number * unit.warpgroups + warpgroup) * stride, 10_000_000 * (number + 1)
            found = moments(own, unit)
            ended = own[-1].end

            def timer(time: int) -> int:
                return 5_000_000 + time // tick * tick

            struct.pack_into(
                "<IIQQQQ",
                memory,
                at,
                len(found),
                7 + number,
                timer(0),
                clock,
                timer(ended),
                clock + ended,
            )
            for index, (kind, ring, operand, step, time) in enumerate(found[:room]):
                word = profile.KINDS.index(kind) | ring << 8 | operand << 16
                struct.pack_into(
                    "<IIQ",
                    memory,
                    at + profile.PART_BYTES + index * profile.EVENT_BYTES,
                    word,
                    step,
                    clock + time,
                )
    return bytes(memory)


def moments(events: list[Event], unit: Any) -> list[Moment]:
    """Return what `ring.note`, `profiling.mark` and the others record on a GPU."""
    plans = {
        plan.name: plan for plan in (*unit.rings.values(), *unit.outputs.values(), *unit.sharing)
    }
    found: list[Moment] = []
    filling: tuple[int, int, int] | None = None
    issued = 0
    for event in [*events, Event((0, 0, 0), 0, "", 0, 0, "none")]:
        if filling is not None and event.kind == "issue":
            if not issued:
                found.append(("issue", *filling, event.start))
            issued = event.end
            continue
        if filling is not None and issued:
            found.append(("issued", *filling, issued))
            filling, issued = None, 0
        match event.note or event.kind:
            case "tile begin":
                found.append(("tile begin", 0, 0, event.details["number"], event.start))
            case "region begin" | "region end" as kind:
                found.append((kind, 0, 0, unit.region(event.details["region"]), event.start))
            case "fill" | "wait" | "compute" | "release" | "store" | "begin" as kind if (
                event.kind == "note"
            ):
                place = (
                    plans[event.details["ring"]].index,
                    event.details.get("operand", 0),
                    event.details["step"],
                )
                found.append((kind, *place, event.start))
                filling = place if kind == "fill" else None
            case "write":
                found += [("store begin", 0, 0, 0, event.start), ("store end", 0, 0, 0, event.end)]
    return found
