"""Simulation of per-lane code: 128 greenlets for each call; the lanes of a warp meet at shuffles
and `syncwarp`.

The lanes of a warp run one after another, each until it must meet others. When all lanes of a mask
are at the same line, they continue. A lane is reported if others wait for it and it has exited or
waits elsewhere, or if it loads an element repeatedly, waiting for a store that nothing orders
before the loads. Accesses count as accesses of the warp. But until the lanes of a warp meet at a
`syncwarp`, no lane may access bytes that another of them has stored, in shared memory or in an
array; and no lane may access an array element that a lane of another warp has stored, until a
barrier of the warpgroup orders both. (A shuffle does not order memory. PTX ISA, "shfl.sync",
"bar.warp.sync".)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from greenlet import getcurrent, greenlet

from ..core import machine as _machine
from ..diagnostics.errors import SpecError
from . import generic_proxy, livelocks, race_report, sites
from .banks import OfLanes
from .boxes import combined
from .gmem_accesses import LOAD, STORE
from .state import Access, Warpgroup

WARP = 32
SPINS = 50_000
"""Consecutive loads of one address after which a lane counts as waiting."""
_SHARED = ("warpgroup", "role", "cta", "grid", "unit", "name", "title", "last_note", "last_wait")
"""Attributes that a lane takes from its warpgroup."""
_PUBLIC_WORDS = {
    "mbar": "a pipeline or a barrier",
    "gmem": "an access to an array",
    "smem": "an access to a whole tile",
    "tma": "a copy",
    "bulk": "a wait for copies",
    "wgmma": "a product",
    "bar": "commit_smem, a reduction or a turn",
    "fence": "commit_smem",
    "setmaxnreg": "set_max_registers",
    "scoped": "an operation by one of the lanes",
}
"""How messages name an operation of the `Machine`, by the beginning of its name."""
_DONE = {"write": "stored", "read": "loaded", "atomic": "updated"}


class _Stop:
    """A call at which a lane waits for others of its warp."""

    def __init__(self, operation: str, mask: int, value: Any, amount: int) -> None:
        self.operation, self.mask, self.value, self.amount = operation, mask, value, amount
        self.site = sites.user_site()

    @property
    def key(self) -> tuple:
        return self.operation, self.mask, self.site

    def __str__(self) -> str:
        return f"cuda.{self.operation} at {sites.place(self.site)}"


class Lane:
    """The `Lane` protocol of `core.machine`."""

    def __init__(self, warp: _Warp, lane: int) -> None:
        self.lane = lane
        self._warp, self._who = warp, warp.who
        self._address, self._again = -1, 0
        self._rounds = 0

    def round(self) -> None:
        self._rounds += 1
        if self._rounds > livelocks.MOST:
            raise livelocks.endless(
                self._who,
                f"lane {self.lane % WARP} of warp {self._warp.number} has run {livelocks.MOST} "
                "iterations of its loops and has not ended",
            )

    def __getattr__(self, name: str) -> Any:
        if name in _SHARED:
            return getattr(self._who, name)
        operation = _PUBLIC_WORDS.get(name.partition("_")[0], f"'{name}'")
        raise SpecError(
            f"{operation} is an operation of the whole warpgroup, but this body runs in each lane ("
            "lowering_semantics=LoweringSemantics.Lane): it may use elements of tiles and arrays, "
            "shuffles and syncwarp"
        )

    def load(self, address: int, dtype: np.dtype, what: str) -> Any:
        self._again = self._again + 1 if address == self._address else 0
        self._address = address
        if self._again > SPINS:
            raise race_report.violation(
                self._who,
                (
                    f"lane {self.lane % WARP} of warp {self._warp.number} has loaded {what} at "
                    f"SMEM[{address}] {SPINS} times, and done nothing else: it waits for a store "
                    "that nothing orders before its loads; lanes of a warp wait for each other "
                    "at cuda.syncwarp(), warpgroups at barriers, outside the body"
                ),
                hazard="deadlock",
            )
        self._warp.touch(self, address, dtype.itemsize, what, "read")
        return self._who.sm.memory.bytes[address : address + dtype.itemsize].view(dtype)[0]

    def store(self, address: int, value: Any, what: str) -> None:
        self._address = -1
        self._warp.touch(self, address, value.itemsize, what, "write")
        self._who.sm.memory.bytes[address : address + value.itemsize].view(value.dtype)[0] = value

    def update(self, address: int, value: Any, reduction: str, what: str) -> None:
        self._address = -1
        self._warp.touch(self, address, value.itemsize, what, "atomic")
        generic_proxy.combine(self._who, np.array([address]), np.array([value]), reduction)

    def gmem_read(self, array: np.ndarray, index: tuple[slice, ...], what: str) -> np.ndarray:
        if any(part.stop - part.start != 1 for part in index):
            self.__getattr__("gmem_read")  # raises: a block of an array belongs to the warpgroup
        who, found = self._who, array[index].copy()
        known = who.known()
        if any(arg.output for arg in who.unit.arrays if arg.name == what):
            known = self._warp.touch_array(self, array, index, f"load from {what}", "read")
        who.gmem.read(Access(who, LOAD, what, who.needs()), array, index, known)
        self._warp.moved += found.nbytes
        return found

    def gmem_write(
        self,
        array: np.ndarray,
        index: tuple,
        values: np.ndarray,
        what: str,
        reduction: str = "",
    ) -> None:
        if values.size != 1:
            self.__getattr__("gmem_write")
        who, self._address = self._who, -1
        known = self._warp.touch_array(
            self,
            array,
            index,
            f"{reduction or 'store'} to {what}",
            "atomic" if reduction else "write",
        )
        who.gmem.write(Access(who, STORE, what, who.needs()), array, index, known, reduction)
        array[index] = combined(reduction, array[index], values)
        self._warp.moved += values.nbytes

    def shuffle(self, operation: str, mask: int, value: Any, amount: int) -> Any:
        return self._meet(_Stop(operation, mask, value, amount))

    def syncwarp(self, mask: int) -> None:
        self._meet(_Stop("syncwarp", mask, None, 0))

    def _meet(self, stop: _Stop) -> Any:
        self._address = -1
        if not stop.mask >> self.lane % WARP & 1:
            raise race_report.violation(
                self._who,
                f"lane {self.lane % WARP} executes {stop} with the mask {stop.mask:#x}, which "
                "it is not in",
                hazard="divergent-aligned",
                fix="pass the mask of all lanes that reach the call",
            )
        return self._warp.hub.switch(stop)


class _Warp:
    """Warp `number` of a warpgroup while its lanes run code of their own."""

    def __init__(self, who: Warpgroup, number: int) -> None:
        self.who, self.number = who, number
        self.hub = getcurrent()
        self.known = who.vectors[number].tolist()
        self.touched: dict[tuple[int, str], set[int]] = {}
        """By byte and kind of access, the lanes that have made one since the lanes last met."""
        self.moved = 0
        self.banks = OfLanes()

    def touch(self, lane: Lane, address: int, nbytes: int, what: str, kind: str) -> None:
        """Record a lane's access to shared memory. Raises PipelineRace if it is not ordered with an
        access of another lane of the warp."""
        span = address, address + nbytes
        self._among_lanes(
            lane,
            *span,
            f"{what} by lane {lane.lane % WARP} touches SMEM[{span[0]}:{span[1]})",
            kind,
            span,
        )
        if self.who.sm.trace is not None:
            self.banks.add(lane.lane % WARP, address, nbytes, what, kind)
        self.moved += nbytes
        generic_proxy.note(self.who, what, kind, self.number, self.known, address, ((0, nbytes),))

    def touch_array(
        self, lane: Lane, array: np.ndarray, index: tuple, what: str, kind: str
    ) -> list[int]:
        """Record a lane's access to an element of an array that the kernel writes.

        Returns the accesses that it comes after: if lanes wrote, everything that they did. Raises
        PipelineRace if it is not ordered with an access of another lane of the warpgroup.
        """
        who = self.who
        first = array[index].ctypes.data
        place = ", ".join(str(part.start) for part in index)
        told = f"{what} by lane {lane.lane % WARP} touches element [{place}]"
        known = who.known()
        for address in range(first, first + array.itemsize, 2):  # words overlap 16-bit elements
            self._among_lanes(lane, address, address + 1, told, kind)
            touches = who.gmem.of_lanes.setdefault((who.cta, who.warpgroup, address), {})
            for (warp, did), (other, (counter, epoch)) in touches.items():
                apart = warp != self.number and not kind == did != "write"
                if apart and self.known[counter] < epoch:
                    raise race_report.race(
                        who,
                        f"warp {self.number}: {told} that lane {other} of warp {warp} has "
                        f"{_DONE[did]}, and nothing orders them",
                        fix="give each lane its own element, or use numpipe.atomic_add or another "
                        "atomic; or put a barrier of the warpgroup, numpipe.commit_smem(), between "
                        "two bodies",
                        hazard="unordered-accesses",
                    )
                for own, now in who.needs() if did != "read" else ():
                    known[own] = now
            touches[self.number, kind] = lane.lane % WARP, who.needs()[self.number]
        return known

    def _among_lanes(
        self,
        lane: Lane,
        first: int,
        end: int,
        told: str,
        kind: str,
        span: tuple[int, int] | None = None,
    ) -> None:
        """Record an access among the lanes of the warp. Raises PipelineRace if another lane
        accessed the bytes without an ordering."""
        number = lane.lane % WARP
        for byte in range(first, end):
            for did in _DONE:
                if did == kind != "write":  # two loads, or two atomics, do not conflict
                    continue
                for other in self.touched.get((byte, did), ()):
                    if other != number:
                        raise race_report.race(
                            self.who,
                            f"warp {self.number}: {told} that lane {other} has {_DONE[did]}, "
                            "and nothing orders them",
                            fix="put cuda.syncwarp() between",
                            hazard="unordered-accesses",
                            span=span,
                        )
            self.touched.setdefault((byte, kind), set()).add(number)

    def run(self, function: Callable, arguments: Sequence[tuple]) -> list:
        results = {}
        lanes = [self._start(number, function, own) for number, own in enumerate(arguments)]
        stops = {}

        def go_on(number: int, value: Any = None) -> None:
            stopped = lanes[number].switch(value)
            if lanes[number].dead:
                results[number] = stopped
            else:
                stops[number] = stopped

        try:
            for number in range(len(lanes)):
                go_on(number)
            while stops:
                for number, value in self._meeting(stops, results).items():
                    del stops[number]
                    go_on(number, value)
        finally:
            self.banks.end(self.who)
            for lane in lanes:
                if not lane.dead:
                    with contextlib.suppress(Exception):
                        lane.throw()
        return [results[number] for number in range(len(lanes))]

    def _start(self, number: int, function: Callable, arguments: tuple) -> greenlet:
        machine = Lane(self, WARP * self.number + number)

        def start(_: Any) -> Any:
            _machine.enter(machine)
            return function(*arguments)

        lane = greenlet(start)
        lane.gr_context = self.who.sm.context.copy()
        return lane

    def _meeting(self, stops: dict[int, _Stop], results: dict[int, Any]) -> dict[int, Any]:
        """Return the lanes that can continue, and the values that their calls return."""
        groups: dict[tuple, list[int]] = {}
        for number, stop in stops.items():
            groups.setdefault(stop.key, []).append(number)
        for numbers in groups.values():
            stop = stops[numbers[0]]
            if sum(1 << number for number in numbers) == stop.mask:
                if stop.operation == "syncwarp":
                    # what the lanes have done comes before what they do next
                    for key, lanes in list(self.touched.items()):
                        self.touched[key] = {lane for lane in lanes if not stop.mask >> lane & 1}
                    return dict.fromkeys(numbers)
                return {number: self._shuffled(number, stops[number], stops) for number in numbers}
        self._stuck(stops, results)

    def _shuffled(self, number: int, stop: _Stop, stops: dict[int, _Stop]) -> Any:
        amount = stop.amount % WARP  # the low five bits count (PTX ISA, "shfl.sync")
        source = {
            "shfl_sync": amount,
            "shfl_up_sync": number - amount,
            "shfl_down_sync": number + amount,
            "shfl_xor_sync": number ^ amount,
        }[stop.operation]
        if not 0 <= source < WARP:
            source = number
        if not stop.mask >> source & 1:
            raise race_report.violation(
                self.who,
                f"lane {number} of warp {self.number} takes the value of lane {source} in {stop}, "
                f"which is not in the mask {stop.mask:#x}: undefined on the GPU",
                stop.site,
                hazard="divergent-aligned",
                fix="read from a lane that is in the mask",
            )
        return stops[source].value

    def _stuck(self, stops: dict[int, _Stop], results: dict[int, Any]) -> NoReturn:
        number, stop = min(stops.items())
        missing = [
            n
            for n in range(WARP)
            if stop.mask >> n & 1 and not (n in stops and stops[n].key == stop.key)
        ]
        first = missing[0]
        if first in results:
            where = "has left the body" + (
                "" if results[first] is None else f" with {results[first]!r}"
            )
        else:
            where = f"is at {stops[first]}"
        raise race_report.violation(
            self.who,
            f"warp {self.number}: lane {number} waits in {stop} for the lanes of the mask "
            f"{stop.mask:#x}, but lane {first} {where}",
            stop.site,
            hazard="divergent-aligned",
            fix="all of them must reach the same call",
        )


def each(who: Warpgroup, function: Callable, arguments: Sequence[tuple]) -> list:
    """Run ``function(*arguments[i])`` as lane i of 128, warp after warp; return their results."""
    race_report.collective(who, "a body of lowering_semantics=Lane")
    results = []
    for number in range(4):
        who.breathe()
        warp = _Warp(who, number)
        results += warp.run(function, arguments[WARP * number : WARP * (number + 1)])
        who.elapse_moving(warp.moved)
    return results
