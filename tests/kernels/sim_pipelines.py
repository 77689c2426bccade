"""Small pipelines written directly against the Machine interface, each with the bugs that people
write."""

from __future__ import annotations

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from numpipe.core.machine import Machine, Mma, TensorMap
from numpipe.plan.roles import MEMORY
from numpipe.sim import Trace, simulate

F16 = np.dtype(np.float16)
BF16 = np.dtype(ml_dtypes.bfloat16)
BYTES_OFF = {"bytes short": -4096, "bytes long": 4096, "one load forgotten in the bytes": -16384}
MODE = {0: 0, 128: 1, 64: 2, 32: 3}


def descriptor(start: int, lbo: int, sbo: int, swizzle: int) -> int:
    return start >> 4 | (lbo >> 4) << 16 | (sbo >> 4) << 32 | MODE[swizzle] << 62


def one(machine: Machine, function, *args, **kwargs):
    """Return one elected lane."""
    return machine.scoped("one", lambda: function(*args, **kwargs), ())


def each_warp(machine: Machine, function, *args):
    return machine.scoped("warps", function, args)


def panel_chunks(base: int) -> np.ndarray:
    """Return chunk addresses of a 64 x 64 panel of 16-bit elements with the 128-byte swizzle.

    Warp w writes rows [16 w, 16 w + 16).
    """
    row, chunk = np.mgrid[:64, :8]
    return (base + row * 128 + (chunk ^ row % 8) * 16).reshape(4, 128)


@dataclass
class Gemm:
    """C = A B^T in tiles of 128 x `tn` with a ring of `slots`.

    Two compute warpgroups share a tile by rows, and each stages C in a 64 x 64 panel; warpgroup 2
    is the memory warpgroup. `bug` selects a mistake.
    """

    m: int = 128
    n: int = 128
    k: int = 320
    tn: int = 128
    slots: int = 2
    dtype: np.dtype = F16
    bug: str = ""
    a: np.ndarray = field(init=False)
    b: np.ndarray = field(init=False)
    c: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        self.a = rng.integers(-3, 4, (self.m, self.k)).astype(self.dtype)
        self.b = rng.integers(-3, 4, (self.n, self.k)).astype(self.dtype)
        self.c = np.full((self.m, self.n), np.nan, self.dtype)
        self.a_map = TensorMap(self.a, (128, 64), 128, "a")
        self.b_map = TensorMap(self.b, (self.tn, 64), 128, "b")
        self.c_map = TensorMap(self.c, (64, 64), 128, "c")
        self.a_bytes, self.stage_bytes = 128 * 128, (128 + self.tn) * 128
        self.staging = self.slots * self.stage_bytes
        self.bars = self.staging + 2 * 8192
        self.smem_bytes = self.bars + 1024

    def ready(self, slot: int) -> int:
        return self.bars + 16 * slot

    def consumed(self, slot: int) -> int:
        return self.bars + 16 * slot + 8

    def run(self, seed: int | None = None, trace: Trace | None = None) -> None:
        grid = (-(-self.n // self.tn), -(-self.m // 128), 1)
        simulate(
            self.body, grid=grid, warpgroups=3, smem_bytes=self.smem_bytes, seed=seed, trace=trace
        )

    def expected(self) -> np.ndarray:
        return (self.a.astype(np.float32) @ self.b.astype(np.float32).T).astype(self.dtype)

    # ---- the kernel
    def body(self, machine: Machine) -> None:
        if machine.warpgroup == 0:
            one(machine, self.initialise, machine)
        if self.bug != "barriers not synchronised":
            machine.bar_sync(0, 384)
        if machine.warpgroup == 2:
            machine.role = MEMORY
            machine.setmaxnreg("dec", 40)
            machine.scoped("one", self.produce, (machine,))
        else:
            machine.setmaxnreg("inc", 232)
            self.consume(machine)

    def initialise(self, machine: Machine) -> None:
        for slot in range(self.slots):
            machine.mbar_init(self.ready(slot), 1, f"ready[{slot}] of a, b @ gemm.py:41")
            machine.mbar_init(self.consumed(slot), 8, f"consumed[{slot}] of a, b @ gemm.py:41")
        if self.bug != "barriers not fenced":
            machine.fence_mbarrier_init()

    def produce(self, machine: Machine) -> None:
        x, y, _ = machine.cta
        nbytes = self.stage_bytes + BYTES_OFF.get(self.bug, 0)
        for step in range(self.k // 64):
            slot, phase = step % self.slots, step // self.slots
            machine.note("issue", ring="a, b", slot=slot, step=step)
            if self.bug != "free wait skipped":
                machine.mbar_wait(
                    self.consumed(slot), phase - (3 if self.bug == "stale phase" else 1), step
                )
            machine.mbar_arrive_expect_tx(self.ready(slot), nbytes)
            base = slot * self.stage_bytes
            machine.tma_load(base, self.a_map, (128 * y, 64 * step), self.ready(slot))
            machine.tma_load(
                base + self.a_bytes, self.b_map, (self.tn * x, 64 * step), self.ready(slot)
            )

    def consume(self, machine: Machine) -> None:
        acc: object = np.zeros((64, self.tn), np.float32)
        for step in range(self.k // 64):
            slot, phase = step % self.slots, step // self.slots
            machine.note("compute", ring="a, b", slot=slot, step=step)
            phase = {"phase one too far": phase + 1, "phase never advances": 0}.get(self.bug, phase)
            if self.bug == "ready wait by one lane":
                one(machine, machine.mbar_wait, self.ready(slot), phase, step)
            elif self.bug != "ready wait skipped":
                machine.mbar_wait(self.ready(slot), phase, step)
            if self.bug != "mma not fenced":
                machine.wgmma_fence()
            base = slot * self.stage_bytes
            pairs = tuple(
                (
                    descriptor(base + machine.warpgroup * 8192 + 32 * i, 16, 1024, 128),
                    descriptor(base + self.a_bytes + 32 * i, 16, 1024, 128),
                )
                for i in range(4)
            )
            acc = machine.wgmma(acc, Mma(self.tn, self.dtype, "k", "k", (pairs,)))
            machine.wgmma_commit()
            if self.bug == "release before drain":
                each_warp(machine, machine.mbar_arrive, self.consumed(slot))
            machine.wgmma_wait(1 if self.bug == "one group too many pending" else 0)
            if self.bug != "release before drain":
                self.release(machine, slot, step)
        value = acc.read()
        x, y, _ = machine.cta
        for panel in range(self.tn // 64):
            columns = slice(64 * panel, 64 * panel + 64)
            self.put(
                machine,
                value[:, columns],
                128 * y + 64 * machine.warpgroup,
                self.tn * x + 64 * panel,
            )
        if self.bug != "stores not drained":
            one(machine, machine.bulk_wait, 0, read=self.bug == "stores drained of reads only")

    def release(self, machine: Machine, slot: int, step: int) -> None:
        address = self.consumed(slot)
        if self.bug == "release dropped" and machine.warpgroup == 1 and step == 1:
            return
        if self.bug == "release by one warp":
            one(machine, machine.mbar_arrive, address, 4)
            return
        each_warp(machine, machine.mbar_arrive, address)
        if self.bug == "release doubled" and machine.warpgroup == 1:
            each_warp(machine, machine.mbar_arrive, address)

    def put(self, machine: Machine, tile: np.ndarray, row: int, column: int) -> None:
        at = self.staging + machine.warpgroup * 8192
        if self.bug != "staging not awaited":
            one(machine, machine.bulk_wait, 0, read=True)
        if self.bug != "no barrier before the panel":
            machine.bar_sync(1 + machine.warpgroup, 128)
        values = tile.astype(self.dtype).view(np.uint8).reshape(4, 128, 16)
        machine.smem_write(panel_chunks(at), values, "stmatrix")
        if self.bug != "stores not fenced":
            machine.fence_proxy_async()
        if self.bug != "no barrier before the store":
            machine.bar_sync(1 + machine.warpgroup, 128)
        machine.note("store", ring="c", slot=0, tile=(row, column))
        one(machine, machine.tma_store, self.c_map, (row, column), at)
        one(machine, machine.bulk_commit)
