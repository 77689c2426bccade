"""The resources of a compiled kernel: `kernel.inspect("resources", *args)`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..arch.dimensions import Names
from ..arch.target import Target

if TYPE_CHECKING:
    from .unit import Unit


@dataclass(frozen=True)
class Resources:
    """The resources of a compiled kernel, from nvJitLink's log and numpipe's memory layout. Print
    it for a table.

    registers          of a lane at entry; setmaxnreg then redistributes them:
                       `compute_registers`, `memory_registers` (0 without that role)
    spill_bytes        register spills of a lane, to local memory
    stack_bytes        of a lane's local memory
    smem_bytes         shared memory of a CTA
    threads            of a CTA
    notes              the remarks of ptxas, C75xx
    smem               (purpose, bytes) of the shared memory, without the gaps
    layout_casts       (line, conversion, bytes of a warpgroup's shared memory) of the casts that
                       move data (`numpipe.layout_cast`)
    barriers           mbarriers in shared memory
    tensor_maps        each takes 128 bytes of parameters
    cubin_bytes        of machine code, with its tables
    seconds            (part, seconds) of the compile: "lift" (the AST), "numba" (types and LLVM
                       IR), "nvvm" (LTO-IR), "link" (nvJitLink)

    >>> print(matmul.inspect("resources", a, b))
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    smem_bytes: int
    threads: int
    memory_registers: int
    compute_registers: int
    notes: Names
    smem: tuple[tuple[str, int], ...] = ()
    layout_casts: tuple[tuple[str, str, int], ...] = ()
    barriers: int = 0
    tensor_maps: int = 0
    cubin_bytes: int = 0
    seconds: tuple[tuple[str, float], ...] = field(default=(), compare=False)

    @property
    def clean(self) -> bool:
        """Whether there are no spills, no stack and no C75xx note (serialized wgmma, ignored
        setmaxnreg): the first rule of `gate`."""
        return not (self.spill_bytes or self.stack_bytes or self.notes)

    @property
    def compile_seconds(self) -> float:
        """The compile time of all parts, in seconds."""
        return sum(seconds for _, seconds in self.seconds)

    def __str__(self) -> str:
        return "\n".join(f"{what:<18}{value}" for what, value in self._rows())

    def _rows(self) -> Iterator[tuple[str, str]]:
        # setmaxnreg takes 256, but an instruction cannot name more than 255 registers
        compute = min(self.compute_registers, 255)
        roles = ""
        if self.memory_registers:
            roles = f", then {compute} (compute) and {self.memory_registers} (memory)"
        yield "threads", f"{self.threads} a CTA"
        yield "registers", f"{self.registers} a lane at entry{roles}"
        yield "spills, stack", f"{self.spill_bytes} B, {self.stack_bytes} B a lane"
        yield "shared memory", f"{self.smem_bytes} B a CTA"
        for what, nbytes in self.smem:
            yield "", f"{nbytes:>6} B  {what}"
        for site, what, nbytes in self.layout_casts:
            yield "layout cast", f"{site}: {what}, through {nbytes} B of shared memory"
        yield "mbarriers", str(self.barriers)
        yield "tensor maps", str(self.tensor_maps)
        yield "machine code", f"{self.cubin_bytes} B"
        parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in self.seconds)
        yield "compiled in", f"{self.compile_seconds:.2f} s ({parts})"
        for note in self.notes:
            yield "note", note


def notes(log: str, target: Target) -> Names:
    """Return the lines of nvJitLink's log about lost performance: C75xx."""
    return tuple(
        line.strip()
        for line in log.splitlines()
        if re.search(f"{target.advisories}|Potential Performance", line)
    )


def of(unit: Unit, log: str, cubin_bytes: int, seconds: Mapping[str, float]) -> Resources:
    """Return the resources of a kernel, from nvJitLink's log and its unit."""

    def numbers(pattern: str) -> list[int]:
        return [int(n) for n in re.findall(pattern, log)]

    return Resources(
        registers=max(numbers(r"Used (\d+) registers"), default=0),
        spill_bytes=sum(numbers(r"(\d+) bytes spill")),
        stack_bytes=sum(numbers(r"(\d+) bytes stack")),
        smem_bytes=unit.smem_bytes,
        threads=unit.threads,
        memory_registers=unit.memory_registers,
        compute_registers=unit.compute_registers,
        notes=notes(log, unit.target),
        smem=unit.shares,
        layout_casts=tuple((*cast, nbytes) for cast, nbytes in unit.casts.items()),
        barriers=sum(1 for _ in unit.all_barriers()),
        tensor_maps=len(unit.maps),
        cubin_bytes=cubin_bytes,
        seconds=tuple(seconds.items()),
    )
