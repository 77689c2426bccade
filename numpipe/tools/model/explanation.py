"""The result of `numpipe.explain`: figures with units, as fields, as a dict, as a table."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from .limits import ADVICE


@dataclass(frozen=True)
class Slots:
    """A ring of a pipeline: its arrays and line, its slots, the bytes of one, how often one is filled. `kind`: "load", "store"."""

    ring: str
    slots: int
    slot_bytes: int
    fills: int
    kind: str = "load"


@dataclass(frozen=True)
class Registers:
    """32-bit registers a lane: at the kernel's entry, and after setmaxnreg in both roles (memory 0: there is none).

    accumulators  registers of a compute warpgroup that hold sums of wgmma at the same time
    spill_bytes   bytes a lane that the compiler stores to memory and loads again, or an estimate of them
    compiled      whether the figures are read from the compiled kernel
    """

    entry: int
    memory: int
    compute: int
    accumulators: int
    spill_bytes: int
    compiled: bool


@dataclass(frozen=True)
class Measured:
    """A run: its seconds, and the rates that follow for the kernel's work. waiting: the share of each role's time, from a trace."""

    seconds: float
    tflops: float
    tbytes_per_second: float
    over_predicted: float
    waiting: dict[str, float]


@dataclass(frozen=True)
class Explanation:
    """Why a kernel takes the time it takes. Bytes, seconds and MHz; ``print`` shows it as a table.

    flop                of wgmma, blocks that reach over the ends of arrays included
    copied_bytes        that TMA brings to shared memory
    l2_bytes            that L2 gives and takes: SMs side by side fetch a box once
    hbm_bytes           that HBM gives and takes
    loaded, stored      bytes by array
    smem                (bytes, what) of a CTA's shared memory, of smem_limit
    grid, ctas_per_sm, persistent
    waves               how often the GPU's SMs are filled with CTAs, or with a persistent CTA's tiles
    tiles               of the tile loop, or of a grid with one a CTA
    steps               of pipelines, in all CTAs
    limits              seconds of each unit if it alone worked
    losses              seconds that the prediction falls by if a thing costs nothing
    limiter, advice     what the time depends on most (`numpipe.model.limits`)
    data                what the work depends on and was not there: arrays whose numbers the kernel reads, counted as zeros
    """

    kernel: str
    device: str
    clock_mhz: float
    flop: int
    copied_bytes: int
    l2_bytes: int
    hbm_bytes: int
    loaded: dict[str, int]
    stored: dict[str, int]
    smem: tuple[tuple[int, str], ...]
    smem_limit: int
    registers: Registers
    slots: tuple[Slots, ...]
    threads: int
    grid: tuple[int, int, int]
    ctas_per_sm: int
    persistent: bool
    waves: float
    tiles: int
    steps: int
    predicted_seconds: float
    limits: dict[str, float]
    losses: dict[str, float]
    limiter: str
    measured: Measured | None = None
    data: tuple[str, ...] = ()

    @property
    def advice(self) -> str:
        """What to do about the limiter."""
        return ADVICE[self.limiter]

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a CTA."""
        return sum(size for size, _ in self.smem)

    @property
    def predicted_tflops(self) -> float:
        """10^12 FLOP a second, as predicted."""
        return 1e-12 * self.flop / self.predicted_seconds

    @property
    def predicted_tbytes_per_second(self) -> float:
        """10^12 bytes of HBM a second, as predicted."""
        return 1e-12 * self.hbm_bytes / self.predicted_seconds

    def as_dict(self) -> dict[str, Any]:
        """Return all figures in dicts, lists, strings and numbers."""
        figures = dataclasses.asdict(self) | {"smem": [list(row) for row in self.smem], "grid": list(self.grid),
                                              "slots": [vars(slots) for slots in self.slots], "data": list(self.data)}
        return figures | {"advice": self.advice, "smem_bytes": self.smem_bytes, "predicted_tflops": self.predicted_tflops,
                          "predicted_tbytes_per_second": self.predicted_tbytes_per_second}

    def __str__(self) -> str:
        return "\n".join(_table(self))


def _table(of: Explanation) -> list[str]:
    registers = of.registers
    roles = f"{registers.entry} at entry" + (f", {registers.memory} memory role, {registers.compute} compute role"
                                             if registers.memory else "")
    per_byte = of.flop / of.hbm_bytes if of.hbm_bytes else 0.0
    rows = [
        ("work", f"{_number(of.flop, 'FLOP')}, {_number(of.hbm_bytes, 'B')} of HBM ({per_byte:.0f} FLOP a byte), "
                 f"{_number(of.l2_bytes, 'B')} of L2, {_number(of.copied_bytes, 'B')} copied to shared memory"),
        *([("", f"depends on data: {', '.join(of.data)} counted as zeros; a NumPy array is read")] if of.data else []),
        *((name, ", ".join(f"{array} {_number(n, 'B')}" for array, n in nbytes.items()) or "none")
          for name, nbytes in (("loads", of.loaded), ("stores", of.stored))),
        ("grid", f"{' x '.join(map(str, of.grid))} CTAs of {of.threads} threads, {of.ctas_per_sm} an SM"
                 + ", persistent" * of.persistent + f"; {of.tiles} tiles, {of.steps} steps, {of.waves:.2f} waves"),
        ("registers", f"{roles}; {registers.accumulators} of accumulators"
                      + (f"; {registers.spill_bytes} B a lane spilled" if registers.spill_bytes else "")
                      + f" ({'compiled' if registers.compiled else 'from the budget'})"),
        ("shared memory", f"{of.smem_bytes} of {of.smem_limit} B"),
        *(("", f"{size:>8} B  {what}") for size, what in of.smem),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"kernel {of.kernel} on one {of.device} at {of.clock_mhz:.0f} MHz", ""]
    lines += [f"{name:<{width}}  {text}".rstrip() for name, text in rows if text or name]
    lines += ["", f"{'alone':>28}" + f"{'of the time':>16}"]
    lines += [f"{name:<18}{_time(seconds):>10}{seconds / of.predicted_seconds:>15.0%}" for name, seconds in of.limits.items()]
    lines += ["", f"{'would be saved':>28}"]
    lines += [f"{name:<18}{_time(seconds):>10}{seconds / of.predicted_seconds:>15.0%}" for name, seconds in
              sorted(of.losses.items(), key=lambda item: -item[1]) if seconds >= 0.005 * of.predicted_seconds]
    lines += ["", f"{'predicted':<18}{_time(of.predicted_seconds):>10}{_rates(of, of.predicted_seconds)}"]
    if of.measured is not None:
        lines.append(f"{'measured':<18}{_time(of.measured.seconds):>10}{_rates(of, of.measured.seconds)}   "
                     f"{of.measured.over_predicted:.2f} x predicted")
        lines += [f"  {role:<16}{share:>10.0%} of its time waiting" for role, share in of.measured.waiting.items()]
    return [*lines, "", f"limited by {of.limiter}: {of.advice}"]


def _rates(of: Explanation, seconds: float) -> str:
    return f"{1e-12 * of.flop / seconds:>9.0f} TFLOPS{1e-12 * of.hbm_bytes / seconds:>8.2f} TB/s"


def _number(value: float, unit: str) -> str:
    for power, letter in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10 ** power:
            return f"{value / 10 ** power:.4g} {letter}{unit}"
    return f"{value:.4g} {unit}"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.1f} us"
