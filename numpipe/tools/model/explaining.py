"""`numpipe.explain`: compute the bytes, FLOP, shared memory, registers, slots, waves and time of a
call, from its source and arguments alone."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from ... import launch
from ...arch.dimensions import Dim3
from ...compile.build import toolchain
from ...compile.check import error_lines
from ...core.records import plain
from ...diagnostics.argument_checks import FLAG, NONE, a, finite, require
from ...diagnostics.errors import SpecError, printable
from ...diagnostics.frames import brief
from ...kernels import noted_calls, run_target
from ...kernels.arguments import scalar_values
from ...kernels.call_records import Described
from ...kernels.kernel import Kernel, check_kernel
from ...kernels.simulate import run_role
from ...kernels.variants import Variant
from ...language.tiles.load import without_value
from ...launch.mesh import Mesh
from ...plan.resources import Resources
from ...plan.specs import Persistent
from ...plan.unit import Unit
from ...sim.work_count import Numbers
from .gpu_figures import H200, Clock, DeviceModel
from .limits import ADVICE, ROOFLINES, Facts, predict
from .op_launches import OpExplanation, explain_op
from .work import KernelWork, count

__all__ = ["explain"]

OTHERS = 32
"""registers that a lane of a compute warpgroup needs in addition to its accumulators, for
addresses, counters and values being stored"""
NEXT = 0.04
"""fraction of the time that removing a cost must save for the advice to mention it at a roofline"""


@dataclass(frozen=True)
class Slots:
    """A pipeline's ring: its arrays and line, its slots, the bytes of a slot, and how often one is
    filled. `kind` is "load" or "store"."""

    ring: str
    slots: int
    slot_bytes: int
    fills: int
    kind: str = "load"


@dataclass(frozen=True)
class Registers:
    """32-bit registers per lane: at the kernel's entry, and after setmaxnreg in both roles (memory
    is 0 if there is no memory role).

    accumulators  registers of a compute warpgroup that hold sums of wgmma at the same time
    spill_bytes   bytes per lane that the compiler spills to memory, or an estimate of them
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
    """A measured run: its seconds, and the rates that follow from the kernel's work."""

    seconds: float
    tflops: float
    tbytes_per_second: float
    over_predicted: float


@dataclass(frozen=True)
class Explanation:
    """Why a kernel takes the time it takes, in bytes, seconds and MHz. ``print`` shows it as a
    table.

    flop                of wgmma, including the parts of blocks outside arrays
    copied_bytes        bytes that TMA copies to shared memory
    l2_bytes            bytes that L2 reads and writes; neighboring SMs fetch a box once
    hbm_bytes           bytes that HBM reads and writes; if arrays exceed half of L2, data that a
                        second pipeline reads again counts again
    loaded, stored      bytes by array
    fetched, sent       the same for other GPUs' arrays, over the link; `link_bytes` is their sum
    smem                (bytes, what) for each part of a CTA's shared memory, of smem_limit
    grid, ctas_per_sm, persistent
    sms                 SMs of the GPU
    waves               how often these SMs are filled with CTAs, or with a persistent CTA's tiles
    tiles               of the tile loop, or of the grid if each CTA has one tile
    steps               pipeline steps of all CTAs
    limits              seconds that each unit would take if it never waited
    losses              seconds by which the prediction falls if a cost is removed
    limiter, advice     what the time depends on most (`numpipe.model.limits`)
    data                arrays that may control the kernel but whose contents are not known, and
                        count as zeros
    given               NumPy arrays whose contents may control the kernel, and are used
    counted_ctas        CTAs that were run; the work of the others is inferred from theirs
    counted_steps       steps that were run in them, by the role that fills the slots. A step that
                        differs from all of these, such as one ``if k == 37:``, is missed
    sampled             whether these are a sample, because CTAs differ irregularly
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
    grid: Dim3
    ctas_per_sm: int
    persistent: bool
    sms: int
    waves: float
    tiles: int
    steps: int
    predicted_seconds: float
    limits: dict[str, float]
    losses: dict[str, float]
    limiter: str
    measured: Measured | None = None
    data: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    fetched: dict[str, int] = dataclasses.field(default_factory=dict)
    sent: dict[str, int] = dataclasses.field(default_factory=dict)
    counted_ctas: int = 0
    counted_steps: int = 0
    sampled: bool = False

    @property
    def advice(self) -> str:
        """Text on the `limiter`: how to make the kernel faster, or that it is at a roofline."""
        ctas = self.tiles if self.persistent else math.prod(self.grid)
        if self.limiter == "wave tail" and ctas < self.sms:
            return (
                f"{ctas} {'tiles' if self.persistent else 'CTAs'} for {self.sms} SMs: divide the "
                "work among more CTAs (smaller tiles, or several CTAs a row or column and "
                "numpipe.atomic_add)"
            )
        following, saved = max(self.losses.items(), key=lambda item: item[1])
        if (
            self.limiter not in (*ROOFLINES, "stores")
            or self.limiter == following
            or saved < NEXT * self.predicted_seconds
        ):
            return ADVICE[self.limiter]
        return f"{ADVICE[self.limiter]}; next {following} ({_time(saved)}): {ADVICE[following]}"

    @property
    def link_bytes(self) -> int:
        """Bytes that this GPU loads from other GPUs and stores to them."""
        return sum(self.fetched.values()) + sum(self.sent.values())

    @property
    def smem_bytes(self) -> int:
        """Bytes of shared memory that a CTA uses."""
        return sum(size for size, _ in self.smem)

    @property
    def predicted_tflops(self) -> float:
        """Predicted 10^12 FLOP per second."""
        return 1e-12 * self.flop / self.predicted_seconds

    @property
    def predicted_tbytes_per_second(self) -> float:
        """Predicted 10^12 bytes of HBM per second."""
        return 1e-12 * self.hbm_bytes / self.predicted_seconds

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as dicts, lists, strings and numbers."""
        derived = (
            "advice",
            "link_bytes",
            "smem_bytes",
            "predicted_tflops",
            "predicted_tbytes_per_second",
        )
        figures: dict[str, Any] = plain(dataclasses.asdict(self))
        return figures | {name: getattr(self, name) for name in derived}

    @printable
    def __str__(self) -> str:
        def rates(seconds: float) -> str:
            tflops = f"{1e-12 * self.flop / seconds:>9.0f} TFLOPS" if self.flop else ""
            return f"{tflops}{1e-12 * self.hbm_bytes / seconds:>8.2f} TB/s"

        registers = self.registers
        roles = f"{registers.entry} at entry" + (
            f", {registers.memory} memory role, {registers.compute} compute role"
            if registers.memory
            else ""
        )
        per_byte = (
            f" ({self.flop / self.hbm_bytes:.0f} FLOP a byte)"
            if self.flop and self.hbm_bytes
            else ""
        )
        rows = [
            (
                "work",
                f"{_number(self.flop, 'FLOP') if self.flop else 'no products'}, "
                f"{_number(self.hbm_bytes, 'B')} of HBM{per_byte}, "
                + f"{_number(self.link_bytes, 'B')} of the link, " * bool(self.link_bytes)
                + (
                    f"{_number(self.l2_bytes, 'B')} of L2, {_number(self.copied_bytes, 'B')} "
                    "copied to shared memory"
                ),
            ),
            ("", f"depends on data, as given: {', '.join(self.given)}" if self.given else ""),
            (
                "",
                f"depends on data, zeros here: {', '.join(self.data)}; numbers of NumPy arrays "
                "are read"
                if self.data
                else "",
            ),
            *(
                (
                    name,
                    ", ".join(f"{array} {_number(n, 'B')}" for array, n in nbytes.items())
                    or "none",
                )
                for name, nbytes in (
                    ("loads", self.loaded),
                    ("stores", self.stored),
                    ("fetches", self.fetched),
                    ("sends", self.sent),
                )
                if nbytes or name in ("loads", "stores")
            ),
            (
                "grid",
                f"{' x '.join(map(str, self.grid))} CTAs of {self.threads} threads, "
                f"{self.ctas_per_sm} an SM"
                + ", persistent" * self.persistent
                + f"; {self.tiles} tiles, {self.steps} steps, {self.waves:.2f} waves",
            ),
            (
                "",
                f"counted in {self.counted_ctas} CTAs and {self.counted_steps} steps; the others "
                + ("are estimated" if self.sampled else "do what lies between"),
            ),
            (
                "registers",
                f"{roles}; {registers.accumulators} of accumulators"
                + (f"; {registers.spill_bytes} B a lane spilled" if registers.spill_bytes else "")
                + f" ({'compiled' if registers.compiled else 'from the budget'})",
            ),
            ("shared memory", f"{self.smem_bytes} of {self.smem_limit} B"),
            *(("", f"{size:>8} B  {what}") for size, what in self.smem),
        ]
        width = max(len(name) for name, _ in rows)
        lines = [f"kernel {self.kernel} on one {self.device} at {self.clock_mhz:.0f} MHz", ""]
        lines += [f"{name:<{width}}  {text}".rstrip() for name, text in rows if text or name]
        losses = sorted(
            (
                (name, loss)
                for name, loss in self.losses.items()
                if loss >= 0.005 * self.predicted_seconds
            ),
            key=lambda item: -item[1],
        )
        alone = [(name, seconds) for name, seconds in self.limits.items() if seconds]
        for title, times in (
            (f"{'alone':>28}{'of the time':>16}", alone),
            (f"{'would be saved':>28}", losses),
        ):
            lines += ["", title]
            lines += [
                f"{name:<18}{_time(seconds):>10}{seconds / self.predicted_seconds:>15.0%}"
                for name, seconds in times
            ]
        lines += [
            "",
            f"{'predicted':<18}{_time(self.predicted_seconds):>10}{rates(self.predicted_seconds)}",
        ]
        if self.measured is not None:
            seconds = self.measured.seconds
            lines.append(
                f"{'measured':<18}{_time(seconds):>10}{rates(seconds)}   "
                f"{self.measured.over_predicted:.2f} x predicted"
            )
        share = (
            f" ({self.limits[self.limiter] / self.predicted_seconds:.0%} of the time)"
            if self.limiter in ROOFLINES
            else ""
        )
        verdict = textwrap.fill(
            f"limited by {self.limiter}{share}: {self.advice}", 132, subsequent_indent="  "
        )
        return "\n".join([*lines, "", verdict])


@overload
def explain(kernel: Kernel, /, *args: Any, **named: Any) -> Explanation: ...
@overload
def explain(kernel: Callable, /, *args: Any, **named: Any) -> OpExplanation: ...


@brief
def explain(
    kernel: Any,
    /,
    *args: Any,
    measured: float | None = None,
    device: DeviceModel = H200,
    clock: Clock | float = "burst",
    compiled: bool | None = None,
    out: Any = None,
    mesh: Mesh | None = None,
    **named: Any,
) -> Any:
    """Return what a call of a kernel moves and multiplies, how long it takes on a GPU, and what
    limits it. No GPU is needed.

    kernel             a kernel, or an op of `numpipe.ops`: then the result is an `OpExplanation`,
                       with an `Explanation` of each kernel that a call on GPU arrays with these
                       strides launches, and the reason for each operand that is copied first
    args, named, out   arguments of the call; a `numpipe.ArrayType` may replace an array, for which
                       nothing is then allocated
    measured           seconds of a run, shown next to the prediction
    device             the GPU (`numpipe.model.DeviceModel`)
    clock              clock of the SMs while the tensor cores are busy: "burst", as in the first
                       milliseconds after a pause; "settled", at the power cap after seconds of
                       load; or MHz
    compiled           whether to compile the kernel to get its registers; None: if the toolchain is
                       installed. Otherwise they are taken from the register budget
    mesh               for a kernel or op on several GPUs; only its size matters. The figures are
                       per GPU, and one array represents those of all GPUs

    ::

        x = numpipe.ArrayType((8192, 8192), np.float16)
        print(numpipe.explain(matmul, x, x))

    The kernel's control flow is executed for a few CTAs, in all their roles, on tiles of zeros
    (`numpipe.sim.work_count`). Numbers that a kernel reads (``lengths[i]``, a table of
    ``tiles(…, order=table)``) are taken from NumPy arrays; in other arrays they count as zeros.
    `Explanation.given` and `Explanation.data` name these arrays, and the table says "depends on
    data".

    Raises SpecError if `kernel`, `clock` or `measured` is not valid, and whatever a call with these
    arguments raises.
    """
    require(
        "explain",
        locals(),
        measured=finite(above=0) | NONE,
        device=a(DeviceModel),
        compiled=FLAG | NONE,
    )
    if any(kernel is op for op in noted_calls.OPS):
        keywords = {
            name: value for name, value in (("out", out), ("mesh", mesh)) if value is not None
        }
        return explain_op(
            kernel,
            args,
            named | keywords,
            functools.partial(explain, device=device, clock=clock, compiled=compiled),
        )
    check_kernel("explain", kernel)
    device.tensor_busy_clock(clock)
    call = kernel.described(args, named, out, mesh=mesh, whole=True)
    variant = kernel.variant(args, named, out, mesh=mesh)
    card = launch.Device(
        0, device.name, device.target.capability[:2], device.sms, 0, device.target.smem_bytes
    )
    grid = run_target.ctas(kernel.definition, launch.Choice("gpu", "asked for", card), call)
    if 0 in grid:
        raise SpecError(
            f"explain: kernel {kernel.name} has no CTAs for these arguments: grid {grid}"
        )
    if compiled is None:
        compiled = os.environ.get("NUMPIPE_COMPILE_CHECK", "1") != "0" and toolchain() is None
    used = kernel.inspect("resources", *args, out=out, mesh=mesh, **named) if compiled else None
    unit = variant.unit(simulated=True)
    entry = used.registers if used else min(255, unit.register_pool // unit.warpgroups)
    work = _count(
        unit,
        variant,
        call,
        grid,
        lambda: device.sms * _resident(used or unit, entry, device),
    )
    resident = _resident(used or unit, entry, device)
    memory, compute = (
        (unit.memory_registers, unit.compute_registers) if unit.warp_specialized else (0, entry)
    )
    spilled = (
        used.spill_bytes
        if used
        else 2 * 4 * max(0, work.accumulators + OTHERS - unit.compute_registers)
    )
    registers = Registers(entry, memory, compute, work.accumulators, spilled, used is not None)
    slots = [
        Slots(plan.name, plan.slots, plan.stage_bytes, work.total["fills", plan.name])
        for plan in unit.load_rings
    ]
    slots += [
        Slots(plan.name, plan.slots, plan.stage_bytes, 0, "store") for plan in unit.outputs.values()
    ]
    loaded, stored, added, fetched, sent = (
        collections.Counter({key[1]: n for key, n in work.total.items() if key[0] == kind})
        for kind in ("load", "store", "reduce", "fetch", "send")
    )
    persistent = isinstance(kernel.options.grid, Persistent)
    prediction = predict(
        work,
        Facts(
            tuple(unit.load_rings),
            resident,
            unit.params.drain,
            spilled,
            bool(used.notes if used else spilled),
            unit.turns > 1,
        ),
        device,
        clock,
    )
    tiles, flop = work.total["tiles",] or work.ctas, work.total["flop",]
    run = None
    if measured is not None:
        seconds = float(measured)
        tbytes = 1e-12 * prediction.hbm_bytes / seconds
        run = Measured(seconds, 1e-12 * flop / seconds, tbytes, seconds / prediction.seconds)
    return Explanation(
        kernel=kernel.name,
        device=device.name,
        clock_mhz=prediction.clock,
        flop=flop,
        copied_bytes=work.total["copied",],
        l2_bytes=prediction.l2_bytes,
        hbm_bytes=prediction.hbm_bytes,
        loaded=dict(loaded),
        stored=dict(stored + added),
        smem=tuple((size, what) for what, size in (used.smem if used else unit.shares)),
        smem_limit=unit.target.smem_bytes,
        registers=registers,
        slots=tuple(slots),
        threads=unit.threads,
        grid=grid,
        ctas_per_sm=resident,
        persistent=persistent,
        sms=device.sms,
        tiles=tiles,
        waves=(tiles if persistent else work.ctas) / (device.sms * resident),
        steps=sum(n for key, n in work.total.items() if key[0] == "fills"),
        predicted_seconds=prediction.seconds,
        limits=prediction.limits,
        losses=prediction.losses,
        limiter=prediction.limiter,
        data=work.data,
        given=work.given,
        fetched=dict(fetched),
        sent=dict(sent),
        measured=run,
        counted_ctas=len(work.counted),
        counted_steps=work.fills,
        sampled=work.sampled,
    )


def _count(
    unit: Unit,
    variant: Variant,
    call: Described,
    grid: Dim3,
    resident: Callable[[], int],
) -> KernelWork:
    """Count the kernel's work, with zeros for unknown data; for several GPUs, the work of the
    first, as if all GPUs had its arrays."""
    lifted, infos = variant.lifted, [*call.arrays.values()]
    if (workspace := variant.workspace) is not None:
        infos.append(launch.info_of_zeros(workspace(grid, infos), np.dtype(np.float32)))
    if unit.gpus:
        semaphores = variant.definition.results.semaphores(call)
        infos.append(launch.info_of_zeros((semaphores,), np.dtype(np.int32)))
    known = [
        info.array if info.array is not None and any(info.array.strides) else None for info in infos
    ]
    arrays = [
        (np.broadcast_to(np.zeros((), info.dtype), info.shape) if array is None else array).view(
            Numbers
        )
        for info, array in zip(infos, known, strict=True)
    ]
    for numbers, info in zip(arrays, infos, strict=True):
        numbers.strides = info.strides

    def read(given: bool) -> list[str]:
        """Return the names of the arrays, `given` or not, whose numbers were read; numbers that the
        memory role does not read control nothing."""
        return [
            arg.name
            for arg, array, data in zip(unit.arrays, arrays, known, strict=True)
            if array.read
            and (data is not None) == given
            and not (unit.warp_specialized and without_value(arg, ()))
        ]

    values = variant.typed(scalar_values(call.numbers, variant.definition.name))
    of_all = [arrays] * max(unit.gpus, 1)
    nbytes = {
        arg.name: math.prod(info.shape) * info.dtype.itemsize
        for arg, info in zip(unit.arrays, infos, strict=True)
    }
    try:
        work = count(
            unit,
            lambda machine: run_role(machine, unit, lifted.simulated, of_all, values),
            grid,
            resident,
            nbytes,
            lambda: bool(read(given=True)),
        )
    except Exception as error:
        located = error_lines.simulated(error, unit, lifted)
        if isinstance(located, SpecError) and (names := ", ".join(read(given=False))):
            raise SpecError(
                f"{located}\n  explain has no data of {names}, which counts as zeros; fix: pass a "
                "NumPy array"
            ) from error
        if located is error:
            raise
        raise located from error
    work.given = tuple(read(given=True))
    work.data = (*read(given=False), *(["any() or all() of tiles"] if work.total["votes",] else []))
    return work


def _resident(of: Unit | Resources, entry: int, device: DeviceModel) -> int:
    """Return how many CTAs fit on an SM, by shared memory, registers (`entry` per lane) and
    threads."""
    return max(
        1,
        min(
            device.smem_bytes // (of.smem_bytes + 1024),
            device.registers // (of.threads * entry),
            2048 // of.threads,
        ),
    )


def _number(value: float, unit: str) -> str:
    for power, letter in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:.4g} {letter}{unit}"
    return f"{value:.4g} {unit}"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.1f} us"
