"""Work counts of one CTA: its control flow runs, but nothing is moved or multiplied.

`Counter` is a `numpipe.core.machine.Machine` on which every wait succeeds at once. So warpgroups
run to their ends alone, one after another, and their loads, stores and products are added up. Only
some of a pipeline's steps run, and the others are inferred from them (`inferred`). Tiles are zeros.
A single number that a kernel reads from a host array is the real one, or 0 if there is no data;
`Numbers` records that it was read.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import io
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arch.dimensions import Dim3, Ints
from ..arch.products import Product
from ..core import machine as _machine
from ..core.machine import InFlight, Lanes, Mma, TensorMap
from ..plan.cluster_ranks import place_of, rank_of
from ..plan.protocol import COMPUTING
from ..plan.roles import COMPUTE
from ..plan.unit import Unit
from .inferred import Loop, Work, inferred, places
from .schedule import WorkCounter

_NAMED = re.compile(r"(\w+)(?: of GPU (\d+))?$")
"""An array's name and its GPU, at the end of the name of an access."""


class Numbers(np.ndarray):
    """An array, or zeros in place of an array without data.

    read     whether a kernel took a number from it, which may control the kernel
    strides  the strides of the array, also of one that zeros replace
    """

    read = False
    _strides: Ints | None = None

    @property
    def strides(self) -> Any:
        return self._strides or np.ndarray.strides.__get__(self)

    @strides.setter
    def strides(self, of: Any) -> None:
        self._strides = of

    def __getitem__(self, index: Any) -> Any:
        self.read = True
        return super().__getitem__(index)


class Accumulator:
    """Registers that a product writes. `taken`: whether a later product has taken them over."""

    def __init__(self, machine: Counter, shape: tuple[int, int], dtype: np.dtype) -> None:
        self.machine, self.shape, self.dtype, self.taken = machine, shape, dtype, False
        self.registers = shape[0] * shape[1] // 128

    def read(self) -> np.ndarray:
        return np.broadcast_to(np.zeros((), self.dtype), self.shape)

    def __del__(self) -> None:
        if not self.taken:
            self.machine.live -= self.registers


class Counter:
    """A warpgroup of a CTA (see `numpipe.core.machine.Machine` for the operations)."""

    gpu = 0
    """the warpgroup's GPU, if there are several"""
    moves = False
    every_tile = False
    """whether all tiles of loops run, because data may make them differ"""
    rate = 1.0
    """multiply-adds of its products per cycle, divided by those of the target's fastest product"""

    def __init__(
        self,
        work: Work,
        unit: Unit,
        warpgroup: int,
        cta: Dim3,
        grid: Dim3,
    ) -> None:
        self.work, self.unit, self.warpgroup, self.cta, self.grid = work, unit, warpgroup, cta, grid
        self.rank = rank_of(place_of(cta, unit.cluster), unit.cluster)
        self.role = COMPUTE
        self.lanes: Lanes = "all"
        self._loops: dict[Dim3, Iterator[int]] = {}
        """by current tile, stride and end"""
        self._asked: Ints = ()
        self.tile = 0
        self.dealt: dict[str, Work] = {}
        """a CTA's share of the tiles of loops that take them from a counter"""
        self._dealt: Iterator[int] | None = None
        self._begun = Work()
        """the work before the first tile of such a loop"""
        self._counts: dict[int, int] = {}
        """the numbers of tiles of the last loop, by dimension"""
        self.loops: dict[Any, Loop] = {}
        """the last loop of each pipeline"""
        self.events = 4
        """events that were counted one by one, each in 0.1 to 0.3 ms; entering a kernel takes as
        long as four of them"""
        self.fills = 0
        """slots that were filled in the steps that ran"""
        self.live = self.accumulators = 0
        """Accumulator registers per lane, now and at most."""
        self.deal, self._tickets = (WorkCounter(math.prod(grid)) for _ in range(2))

    def scoped(self, lanes: Lanes, function: Callable, args: Sequence) -> Any:
        outer, self.lanes = self.lanes, lanes
        try:
            return function(*args)
        finally:
            self.lanes = outer

    # ---- operations that return something and cost nothing; operations that return nothing are
    # defined after this class
    def map_shared(self, address: int, rank: int) -> int:
        return address

    def gpu_of(self, rank: int, what: str) -> int:
        return min(max(int(rank), 0), self.unit.gpus - 1)

    def mbar_test(self, *_: Any) -> bool:
        return True

    def bar_red(self, barrier: int, threads: int, operation: str, values: np.ndarray) -> bool:
        self.work["votes",] += 1
        return bool(getattr(values, operation)())

    def steps(self, count: int, site: Any) -> Iterator[int]:
        """Run those steps of a loop that determine the others' work, and infer it."""
        yield from inferred(self.work, count, loops=self.loops, site=site)
        yield count

    def next_tile(self, tile: int, stride: int, end: int) -> int:
        """Run those tiles of a loop that determine the others' work, and infer it."""
        asked, self._asked = self._asked, ()
        if asked[:3] == (tile, stride, end):  # asked again
            return asked[3]
        if self.every_tile:
            return tile + stride
        tiles = range(tile + stride, end, stride)
        # tiles of several GPUs change with the GPU that they are for
        most = 3 * len(tiles).bit_length() if self.unit.gpus else 0
        loop = self._loops.pop((tile, stride, end), None) or map(
            tiles.__getitem__, inferred(self.work, len(tiles), most)
        )
        following = next(loop, end)
        self._loops[following, stride, end] = loop
        self._asked = (tile, stride, end, following)
        return following

    def dealt_tile(self, site: str, end: int) -> int:
        """Return the tile to run next in a loop that takes `end` tiles from a counter, whose first
        tile has run. Each CTA counts as having the same share of all tiles."""
        stride = math.prod(self.grid) * (self.unit.turns if self.role.computes else 1)
        if self.every_tile:
            return self.tile + stride
        self._dealt = self._dealt or self._deal(site, end, stride)
        tile = next(self._dealt, end)
        if tile == end:
            self._dealt = None
        return tile

    def _deal(self, site: str, end: int, shares: int) -> Iterator[int]:
        start = self._begun
        self.work.clear()
        if site not in self.dealt:
            counts = tuple(self._counts.values())
            yield from places(self.work, counts if math.prod(counts) == end else (end,))
            self.dealt[site] = Work({key: n / shares for key, n in self.work.items()})
            self.work.clear()
        self.work.update(start)
        self.work.update(self.dealt[site])

    # ---- operations that are counted
    def _moved(self, kind: str, what: str, nbytes: int, place: Any) -> bool:
        """Count a "load", a "store" or a "reduce" of an array, this GPU's or a peer's, whose name
        ends `what`, and return whether it is a peer's. Accesses of the same bytes have equal
        places."""
        self.events += 1
        found = _NAMED.search(what)
        array, gpu = found.groups() if found else (what, None)
        far = gpu is not None and int(gpu) != self.gpu
        self.work[("fetch" if kind == "load" else "send") if far else kind, array] += nbytes
        return far

    def _inside(self, tensor: TensorMap, coords: Ints) -> int:
        """Return the bytes of a box that lie inside its array."""
        places = zip(coords, tensor.box, tensor.array.shape, strict=True)
        size = tensor.array.dtype.itemsize
        return int(size * math.prod(max(0, min(at + box, n) - max(at, 0)) for at, box, n in places))

    def tma_load(self, dst: int, tensor: TensorMap, coords: Ints, mbar: int, ctas: int = 0) -> None:
        """Count a load; in a multicast, this CTA receives as much as it sends."""
        self._moved("load", tensor.name, self._inside(tensor, coords), (*map(int, coords),))
        self.work["copied",] += tensor.nbytes * max(1, bin(ctas).count("1"))

    def tma_store(
        self, tensor: TensorMap, coords: Ints, src: int, reduction: str = "", *_: Any
    ) -> None:
        kind, place = "reduce" if reduction else "store", (*map(int, coords),)
        nbytes = self._inside(tensor, coords)
        if self._moved(kind, tensor.name, nbytes, place) and self.unit.slot_at(src):
            self.work["relayed",] += nbytes

    def wgmma(self, accumulator: np.ndarray | InFlight, mma: Mma, *_: Any) -> Accumulator:
        count = len(mma.steps) * len(mma.steps[0])
        product = self.unit.target.product
        kind = product.operand(mma.dtype)
        assert kind is not None
        self.work["flop",] += 2 * product.rows * mma.n * product.k(mma.dtype) * count
        self.work["tensor", self.warpgroup] += round(count * product.cycles(mma.n))
        self.work["products", self.warpgroup] += count
        result = Accumulator(self, (product.rows * len(mma.steps), mma.n), kind.sums)
        if isinstance(accumulator, Accumulator):
            accumulator.taken = True
        else:
            self.live += result.registers
            self.accumulators = max(self.accumulators, self.live)
        return result

    def product_cycles(self, adds: int, dtype: np.dtype, product: Product) -> None:
        self.events += 1
        self.rate = product.multiply_adds / self.unit.target.product.multiply_adds
        self.work["flop",] += 2 * adds
        self.work["tensor", self.warpgroup] += adds * dtype.itemsize // 2 // product.multiply_adds

    def smem_write(self, chunks: np.ndarray, values: np.ndarray, *_: Any) -> None:
        self.work["written", self.warpgroup] += values.nbytes

    def smem_read(self, chunks: np.ndarray, *_: Any) -> np.ndarray:
        self.work["read", self.warpgroup] += 16 * chunks.size
        return np.zeros((*chunks.shape, 16), np.uint8)

    def smem_load(self, addresses: np.ndarray, nbytes: int, *_: Any) -> np.ndarray:
        self.work["read", self.warpgroup] += nbytes * addresses.size
        return np.zeros((*addresses.shape, nbytes), np.uint8)

    smem_fetch, smem_store = smem_load, smem_write

    def smem_update(self, addresses: np.ndarray, values: np.ndarray, *_: Any) -> None:
        self.work["written", self.warpgroup] += 2 * values.nbytes

    def smem_send(self, chunks: np.ndarray, values: np.ndarray, *_: Any) -> None:
        self.smem_write(chunks, values)
        self.work["sent", self.warpgroup] += 1

    def load_word(self, address: int) -> int:
        """Return the CTA's next work index if `address` holds one, as if CTAs were equally fast;
        else 0."""
        plan = self.unit.work_ring
        number = self.cta[0] + self.grid[0] * (self.cta[1] + self.grid[1] * self.cta[2])
        return self._tickets.draw(number) if plan is not None and address in plan.memory else 0

    def gmem_write(
        self,
        array: np.ndarray,
        index: tuple,
        values: np.ndarray,
        what: str,
        reduction: str = "",
    ) -> None:
        if not self._in_l2(what):
            self._moved("reduce" if reduction else "store", what, values.nbytes, repr(index))
        self.work["written", self.warpgroup] += values.nbytes

    def gmem_scatter(
        self,
        array: np.ndarray,
        index: tuple,
        axis: int,
        places: np.ndarray,
        values: np.ndarray,
        what: str,
    ) -> None:
        self.gmem_write(array, index, values, what)

    def gmem_read(self, array: np.ndarray, index: tuple[slice, ...], what: str) -> np.ndarray:
        read = np.asarray(array)[index]
        if self._in_l2(what):
            self.work["read", self.warpgroup] += read.nbytes
        else:
            self._moved("load", what, read.nbytes, repr(index))
        return array[index] if read.size == 1 else np.zeros(read.shape, read.dtype)

    def gmem_signal(self, *_: Any, **__: Any) -> None:
        self.work["handed",] += 1

    gmem_await = gmem_signal

    def _in_l2(self, what: str) -> bool:
        """Return whether `what` names the workspace, whose lines are written and read again before
        they leave L2."""
        return any(array.workspace and array.name == what for array in self.unit.arrays)

    def each_lane(self, function: Callable, arguments: Sequence[tuple]) -> list:
        """Run lane 0, which represents all lanes."""
        enter: Callable[[Any], None] = _machine.enter
        enter(Lane(self))
        try:
            return [function(*arguments[0])] * len(arguments)
        finally:
            enter(self)

    def round(self) -> None:
        """Begin an iteration of a `while` loop."""

    def note(self, event: str, **details: Any) -> None:
        self.events += 1
        if event == COMPUTING:
            self.work["steps", self.warpgroup] += 1
        elif event == "tiles":
            if not details["dimension"]:
                self._counts.clear()
            self._counts[details["dimension"]] = details["count"]
        elif event == "fill":
            self.fills += 1
            self.work["fills", details["ring"]] += 1
        elif event == "tile begin":
            self.tile = details["number"]
            if not self._dealt:
                self._begun = Work(self.work)
            self.work["tiles",] += (
                self.role.computes
                if self.unit.turns > 1
                else self.warpgroup == self.unit.first_compute
            )


for _operation in vars(_machine.Machine).keys() - vars(Counter).keys():
    if not _operation.startswith("_"):
        # waits, arrivals, fences and commits take no time and are not counted
        setattr(Counter, _operation, lambda *_, **__: None)


class Lane:
    """A lane with code of its own, which represents all 128: the tiles that it loads are zeros, and
    a shuffle returns its own value."""

    lane = 0

    def __init__(self, who: Counter) -> None:
        self.who = who

    def __getattr__(self, name: str) -> Any:
        return getattr(self.who, name)

    def load(self, address: int, dtype: np.dtype, *_: Any) -> Any:
        self.who.work["read", self.warpgroup] += 128 * dtype.itemsize
        return np.zeros((), dtype)[()]

    def store(self, address: int, value: Any, *_: Any) -> None:
        self.who.work["written", self.warpgroup] += 128 * value.itemsize

    def update(self, address: int, value: Any, *_: Any) -> None:
        self.who.work["written", self.warpgroup] += 2 * 128 * value.itemsize

    def gmem_read(self, array: np.ndarray, index: tuple[slice, ...], what: str) -> np.ndarray:
        """Count an element for each lane; neighboring lanes' elements are coalesced."""
        self.who._moved("load", what, 128 * array.dtype.itemsize, repr(index))
        return array[index]

    def gmem_write(
        self,
        array: np.ndarray,
        index: tuple,
        values: np.ndarray,
        what: str,
        reduction: str = "",
    ) -> None:
        kind = "reduce" if reduction else "store"
        self.who._moved(kind, what, 128 * values.nbytes, repr(index))

    def shuffle(self, operation: str, mask: int, value: Any, amount: int) -> Any:
        return value

    def syncwarp(self, *_: Any) -> None: ...


class Access(NamedTuple):
    """Accesses of an array at a place, which represents the places of some steps of a loop.

    `kind` and `array` are as in keys of `Work`; `place` is equal for accesses of the same bytes.
    """

    kind: str
    array: str
    place: Any
    nbytes: float
    """moved in total"""
    distinct: float


class Tracer(Counter):
    """A warpgroup that stops at its second tile, and records what it accesses. It runs only
    the first two and the last two steps of a loop."""

    every_tile = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.accesses: list[Access] = []
        self.tiles = 0

    def steps(self, count: int, site: Any) -> Iterator[int]:
        outer, self.accesses = self.accesses, []
        places = {0, 1, count - 2, count - 1} & {*range(count)}
        ran = len(places)
        yield from sorted(places)
        for access, times in collections.Counter(self.accesses).items():
            moves = 1 if times == ran else count / ran
            outer.append(
                access._replace(
                    nbytes=times * count / ran * access.nbytes, distinct=moves * access.distinct
                )
            )
        self.accesses = outer
        yield count

    def note(self, event: str, **details: Any) -> None:
        self.tiles += event == "tile begin"
        if self.tiles > 1:
            raise Enough

    def _moved(self, kind: str, what: str, nbytes: int, place: Any) -> bool:
        self.events += 1
        self.accesses.append(Access(kind, what, place, nbytes, nbytes))
        return False


class Enough(Exception):
    """Raised when a sample has been taken."""


def run(machine: Any, body: Callable[[Any], None]) -> None:
    """Run a warpgroup to its end, or until it raises `Enough`. It prints nothing and skips its
    breakpoints."""

    def inside() -> None:
        _machine.enter(machine)
        with (
            contextlib.suppress(Enough),
            contextlib.redirect_stdout(io.StringIO()),
            np.errstate(all="ignore"),
        ):
            body(machine)

    hook, sys.breakpointhook = sys.breakpointhook, lambda *_, **__: None
    try:
        contextvars.copy_context().run(inside)
    finally:
        sys.breakpointhook = hook
