"""wgmma in the simulator: operands in shared memory, described by matrix descriptors; accumulators
in flight; groups, which complete in order.

A descriptor gives the start of an operand and two strides; the major order and the swizzle
determine which bytes hold which element (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared
Memory Layout"). With w = swizzle bytes, W = w / 2 elements (of 16 bits: others are K-major), r a
row of A (a column of B), c the 16-byte chunk of a step of 32 bytes:

==================  ============================================================================
K-major, swizzled   start + (r // 8) SBO + (r % 8) w + 16 c
K-major             start + (r // 8) SBO + (r % 8) 16 + c LBO
MN-major, swizzled  start + (mn // W) LBO + (k // 8) SBO + (k % 8) w + 2 (mn % W)
MN-major            start + (mn // 8) SBO + (k // 8) LBO + (k % 8) 16 + 2 (mn % 8)
==================  ============================================================================

The swizzle is then applied to the absolute address. Operands are gathered 16 bytes at a time,
through cached tables that depend only on the relative geometry.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..arch.dimensions import Ints
from ..arch.dtypes import FLOAT16, FLOAT32
from ..arch.products import WGMMA, Product
from ..core.machine import InFlight, Mma
from ..diagnostics.reports import Party
from . import race_report, sites
from .boxes import Intervals, intervals, swizzled
from .clocks import DRAINED
from .footprints import ARRIVE, AWAIT
from .state import Access, WaitReason, Warpgroup

_SWIZZLE = (0, 128, 64, 32)
_FIELD = 0x3FFF
_OF_HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
"""The float32 value of each 16-bit pattern: a lookup takes half the time of a conversion by
NumPy."""
_UNSIGNED = (1 << 64) - 1
Chunks = npt.NDArray[np.int64]


# ---- operands ------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=1024)
def _step(major: str, rows: int, start: int, fields: int) -> Chunks:
    """Return the chunk numbers (address / 16) of one step along K: (rows, 2) if K-major, (16, rows
    / 8) if MN-major."""
    lbo, sbo = (fields >> 16 & _FIELD) << 4, (fields >> 32 & _FIELD) << 4
    width = _SWIZZLE[fields >> 62 & 3]
    if major == "k":
        r, c = np.ogrid[:rows, :2]
        at = r // 8 * sbo + (r % 8 * width + 16 * c if width else r % 8 * 16 + c * lbo)
    else:
        k, j = np.ogrid[:16, : rows // 8]
        if width:
            per = width // 16
            at = j // per * lbo + k // 8 * sbo + k % 8 * width + j % per * 16
        else:
            at = j * sbo + k // 8 * lbo + k % 8 * 16
    return swizzled((start + at) >> 4, width)


@dataclass(frozen=True)
class Operand:
    """The positions of the elements of one operand of a batch: `chunks` indexes shared memory in
    16-byte units."""

    chunks: Chunks
    touched: Intervals

    def matrix(self, memory: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Return the operand as (rows, K) if K-major, (K, rows) if MN-major, in float32, or for
        integers in float64, in which their sums are exact."""
        bits = memory.take(self.chunks)
        if dtype == FLOAT16:
            return _OF_HALVES.take(bits.view(np.uint16))
        return WGMMA.computed(bits.view(dtype))


@functools.lru_cache(maxsize=256)
def _relative(major: str, rows: int, within: int, first: int, steps: tuple[Ints, ...]) -> Operand:
    """Return the operand of [block][step along K] descriptors as if it started in 1024-byte line 0,
    `within` bytes in.

    `first` contains the fields of the first descriptor without its address, `steps` the differences
    from it.
    """
    blocks = []
    for block in steps:
        tables = [
            _step(major, rows, within + ((d & _FIELD) << 4), (first + (d & ~_FIELD)) & _UNSIGNED)
            for d in block
        ]
        blocks.append(np.concatenate(tables, axis=1 if major == "k" else 0))
    table = np.concatenate(blocks, axis=0 if major == "k" else 1)
    return Operand(table, intervals(16 * table, 16))


def _operand(major: str, rows: int, descriptors: tuple[Ints, ...]) -> Operand:
    first = descriptors[0][0]
    start = min(d & _FIELD for block in descriptors for d in block)  # in chunks
    line = start & ~63
    fields = first & ~_FIELD
    steps = tuple(
        tuple((d & ~_FIELD) - fields + ((d & _FIELD) - start) for d in block)
        for block in descriptors
    )
    relative = _relative(major, rows, (start - line) << 4, fields, steps)
    return Operand(
        relative.chunks + line,
        tuple((lo + 16 * line, hi + 16 * line) for lo, hi in relative.touched),
    )


class Plan:
    """A batch, ready to run: A and B for each range of accumulator rows. A is None if it is in
    registers."""

    def __init__(self, mma: Mma, from_registers: bool = False) -> None:
        self.parts: list[tuple[slice, Operand | None, Operand]] = []
        steps = [
            tuple((int(a) & _UNSIGNED, int(b) & _UNSIGNED) for a, b in block) for block in mma.steps
        ]
        first = 0
        while first < len(steps):  # consecutive 64-row blocks with the same B are one product
            right = tuple(b for _, b in steps[first])
            last = first
            while last < len(steps) and tuple(b for _, b in steps[last]) == right:
                last += 1
            left = tuple(tuple(a for a, _ in block) for block in steps[first:last])
            operands = (
                None if from_registers else _operand(mma.a_major, WGMMA.rows, left),
                _operand(mma.b_major, mma.n, (right,)),
            )
            self.parts.append((slice(WGMMA.rows * first, WGMMA.rows * last), *operands))
            first = last
        self.rows = WGMMA.rows * len(steps)
        self.touched = sorted(
            {t for _, a, b in self.parts for t in (a.touched if a else ()) + b.touched}
        )
        self.extent = self.touched[0][0], max(hi for _, hi in self.touched)
        self.majors = mma.a_major, mma.b_major
        self.products = sum(len(block) for block in steps)
        kind = WGMMA.operand(mma.dtype)
        assert kind is not None
        self.sums = kind.sums
        self.dtypes = mma.dtype, mma.b_dtype or mma.dtype


_plan = functools.lru_cache(maxsize=512)(Plan)


# ---- accumulators --------------------------------------------------------------------------------
class Accumulator:
    """An accumulator in flight. Its value exists once the batch has run, and may be read after
    `wgmma_wait`."""

    def __init__(self, products: Products, batch: int) -> None:
        self.products = products
        self.batch = batch
        """Number of the batch that writes it, counted from 1 in the order of issue."""
        self.note = products.who.last_note
        """The ring, slot and step it was issued in."""
        self.value: np.ndarray | None = None
        self.successor: sites.Site | Literal[False] = False
        self.read_at_fence = -1
        self.site = sites.user_site()

    def party(self) -> Party:
        return race_report.party(
            self.products.who, f"wgmma (batch {self.batch})", self.site, note=self.note
        )

    def read(self) -> np.ndarray:
        wrong = fix = ""
        if self.batch > self.products.drained:
            wrong = (
                f"before wgmma_wait has covered it: batch {self.batch}, drained up to "
                f"{self.products.drained}"
            )
            fix = (
                "commit, then wgmma_wait with few enough groups "
                f"pending{self.products.enough(self.batch)}"
            )
        elif self.successor is not False:
            wrong = (
                f"after a later wgmma, at {sites.place(self.successor)}, took over its registers"
            )
            fix = "read the newest one"
        if wrong:
            raise race_report.race(
                self.products.who,
                f"the accumulator of the wgmma at {sites.place(self.site)} is read {wrong}; {fix}",
                hazard="accumulator-in-flight",
                before=self.party(),
            )
        self.read_at_fence = self.products.fences
        assert self.value is not None
        return self.value.copy()


class Products:
    """The wgmma batches of a warpgroup: issued, run in order by the SM's tensor core, and waited
    for by `wgmma_wait`."""

    def __init__(self, who: Warpgroup) -> None:
        self.who = who
        self.issued = self.ran = self.drained = 0
        self.left = -1
        """Groups that the newest wait leaves in flight, for reports; -1: there was no wait."""
        self.fences = 0
        self.fenced = False
        """Whether a fence came after the last commit, so that new accumulators may be used."""
        self.groups: list[int] = []
        """Number of the last batch of each committed group that has not been waited for."""
        self.queue: list[
            tuple[
                Accumulator,
                np.ndarray | Accumulator,
                Plan,
                np.ndarray | None,
                int,
            ]
        ] = []
        self.registers: list[tuple[Accumulator, np.ndarray, bytes]] = []
        """For each product in flight with A in registers: these registers, and their bytes when it
        was issued."""
        self.last: Access | None = None
        self.until = 0
        self._finished = 0

    def check_accumulator(self, accumulator: np.ndarray | InFlight) -> np.ndarray | Accumulator:
        who = self.who
        if isinstance(accumulator, Accumulator):
            if accumulator.successor is not False:
                raise race_report.violation(
                    who,
                    f"wgmma on the accumulator of {sites.place(accumulator.site)}, which a later "
                    f"wgmma at {sites.place(accumulator.successor)} has already taken over; use "
                    "what that one returned",
                    hazard="accumulator-in-flight",
                    before=accumulator.party(),
                )
            if accumulator.read_at_fence == self.fences:
                raise race_report.race(
                    who,
                    "wgmma on an accumulator that was read since the last wgmma_fence; call "
                    "wgmma_fence again, which orders register accesses before the wgmma that "
                    "writes them",
                    hazard="missing-wgmma-fence",
                    before=accumulator.party(),
                )
            return accumulator
        if not self.fenced:
            raise race_report.race(
                who,
                "wgmma on registers that something else has written, without a wgmma_fence in "
                "between (the hardware does not report this, and the result is wrong); "
                "wgmma_fence before the first wgmma of a group",
                hazard="missing-wgmma-fence",
            )
        return np.array(accumulator)

    def schedule(self, time: int) -> None:
        """Give the tensor core to the oldest batch as soon as it is free."""
        sm = self.who.sm
        start, end = sm.occupy("tensor core", time, sm.scheduler.takes(self.queue[0][-1]))
        product = self.queue[0][0]
        self.who.record(start, end, "mma", batch=product.batch, **product.note[1])
        self._finished = end
        sm.scheduler.push(end, self._run, "wgmma")

    def _run(self, _: int) -> None:
        result, before, plan, registers, _cycles = self.queue.pop(0)
        memory = self.who.sm.memory.chunks
        if isinstance(before, Accumulator):
            assert before.value is not None
            value, before.value = before.value, None
        else:
            value = before
        major = plan.majors
        for rows, left, right in plan.parts:
            b = right.matrix(memory, plan.dtypes[1])
            if left is None:
                assert registers is not None
                a = registers[rows]
            else:
                a = left.matrix(memory, plan.dtypes[0])
                a = a if major[0] == "k" else a.T
            product = a @ (b.T if major[1] == "k" else b)
            if plan.sums != FLOAT32:
                # the sums are exact; wrap them like 32-bit sums
                product = product.astype(np.int64).astype(plan.sums)
            if len(plan.parts) == 1:
                value = value + product
            else:
                value[rows] += product
        result.value = value
        self.ran += 1
        self.who.scheduler.touch(("issued", self.who.first_warp, self.ran), AWAIT)
        self.who.scheduler.touch(("ran", self.who.first_warp, self.ran), ARRIVE)
        self.who.sm.progress += 1
        now = self._finished  # the end of the next batch, once that is scheduled
        if self.queue:
            self.schedule(now)
        if (
            self.who.blocked is not None
            and self.who.blocked.kind == "drain"
            and self.ran >= self.until
        ):
            self.who.wake(now)

    def check_operands(self) -> None:
        """Raise PipelineRace if registers that a product in flight reads, or has just finished
        reading, were overwritten."""
        for product, registers, held in self.registers:
            if registers.tobytes() != held:
                raise race_report.race(
                    self.who,
                    f"registers that the wgmma at {sites.place(product.site)} takes as its A "
                    "operand were overwritten before wgmma_wait has covered it: batch "
                    f"{product.batch}; wgmma_wait with few enough groups pending before they are "
                    "used again, or other registers",
                    hazard="operand-in-flight",
                    before=product.party(),
                )
        self.registers = [one for one in self.registers if one[0].batch > self.drained]

    def enough(self, batch: int) -> str:
        """Describe, for a report, how many groups a wait for a batch may leave."""
        newer = sum(last >= batch for last in self.groups) - 1
        if newer < 0:
            return f": batch {batch} is not in a committed group yet"
        return f", {newer} at most: " + (
            f"wgmma_wait({self.left}) leaves it in flight"
            if self.left > newer
            else "no wgmma_wait has followed its commit"
        )

    def at_exit(self) -> None:
        """Raise PipelineRace if there are wgmmas that have not been waited for."""
        if self.issued > self.drained:
            raise race_report.race(
                self.last or self.who,
                f"the warpgroup ends with {self.issued - self.drained} of its {self.issued} "
                "wgmma batches not waited for; wgmma_commit and wgmma_wait(0) before it ends",
                hazard="exit-in-flight",
            )


# ---- operations ----------------------------------------------------------------------------------
def fence(who: Warpgroup) -> None:
    race_report.collective(who, "wgmma_fence")
    products = who.products
    who.elapse_issue()
    products.fences += 1
    products.fenced = True


def issue(
    who: Warpgroup,
    accumulator: np.ndarray | InFlight,
    mma: Mma,
    a: np.ndarray | None = None,
) -> Accumulator:
    race_report.collective(who, "wgmma")
    products, sm = who.products, who.sm
    plan = _plan(mma, a is not None)
    rows = None if a is None else a.astype(np.float32)
    before = products.check_accumulator(accumulator)
    who.elapse(sm.costs.issue * plan.products)
    products.issued += 1
    needs = tuple((sm.clocks.index(DRAINED, who.first_warp + w), products.issued) for w in range(4))
    access = Access(who, "wgmma", f"batch {products.issued}", needs)
    access.epoch = who.epoch(3)
    products.last = access
    known = who.known()
    reader = "wgmma", who.warpgroup
    sm.memory.check_range(who, *plan.extent, "wgmma")
    for lo, hi in plan.touched:
        sm.memory.read(access, reader, lo, hi, known, True)
    result = Accumulator(products, products.issued)
    if a is not None:
        products.registers.append((result, a, a.tobytes()))
    if isinstance(before, Accumulator):
        before.successor = access.site
    cycles = (
        plan.products * WGMMA.rows * WGMMA.k_bytes * mma.n // (2 * sm.costs.fma)
    )  # the same for all types
    sm.scheduler.touch(("issued", who.first_warp, products.issued), ARRIVE)
    products.queue.append((result, before, plan, rows, cycles))
    if len(products.queue) == 1:
        products.schedule(who.time)
    who.breathe()
    return result


def synchronous(who: Warpgroup, adds: int, dtype: np.dtype, product: Product) -> None:
    """Run products of the warpgroup on the tensor cores while the warpgroup waits. `adds` is the
    number of multiply-adds of elements of `dtype`."""
    sm, halves = who.sm, adds * dtype.itemsize // 2
    end = sm.occupy("tensor core", who.time, sm.scheduler.takes(halves // product.multiply_adds))[1]
    who.elapse(end - who.time)


def commit(who: Warpgroup) -> None:
    race_report.collective(who, "wgmma_commit")
    products = who.products
    who.elapse_issue()
    products.groups.append(products.issued)
    products.fenced = False


def wait(who: Warpgroup, pending: int) -> None:
    race_report.collective(who, "wgmma_wait")
    products, pending = who.products, int(pending)
    covered = len(products.groups) - pending
    until = products.groups[covered - 1] if covered > 0 else 0
    who.breathe(lambda: products.ran >= until)
    products.left = pending
    if covered > 0:
        who.scheduler.touch(("ran", who.first_warp, until), AWAIT)
        products.until = until
        del products.groups[:covered]
        if products.ran < until:
            text = f"wgmma_wait({pending}): batch {until}, {products.ran} have run"
            who.block(WaitReason("drain", text), pending=pending)
        products.drained = max(products.drained, until)
        products.check_operands()
    who.elapse_wait()
    who.learn(DRAINED, products.drained)
