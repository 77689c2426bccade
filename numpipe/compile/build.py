"""Compilation of a kernel function and the types of its arguments to a cubin.

::

    AST pass -> Numba front end (LLVM IR) -> role check -> NVVM (LTO-IR)
             -> nvJitLink (whole program) -> cubin

No GPU is needed. PTX is never linked: nvJitLink would assemble it as relocatable code, which
ignores setmaxnreg and serializes wgmma.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.instrumentation import Instrumentation
from ..core.process_guards import uncollected, uninterrupted
from ..core.symbols import axis_of
from ..diagnostics import log as _log
from ..diagnostics.errors import CompileError, NumpipeError, SpecError, TargetError
from ..language.grid import tile_scheduler
from ..language.memory import prefetched
from ..language.pipeline import pipelines
from ..language.tiles.mma import refused
from ..plan import resources, wait_records
from ..plan.image import Image
from ..plan.roles import COMPUTE
from ..plan.unit import Unit
from .built import Built
from .check import advisories, error_lines, register_budget
from .check.register_budget import Products
from .entry_name import entry_name
from .lift.lift import Lifted

SIBLINGS = (
    "core.inert_cuda",
    "plan.specs_cuda",
    "plan.context_cuda",
    "language.tiles.refs_cuda",
    "language.tiles.tile_cuda",
    "language.tiles.elementwise_cuda",
    "language.tiles.tile_slices_cuda",
    "language.tiles.mma_cuda",
    "language.pipeline.ring_cuda",
    "language.tiles.store_cuda",
    "language.tiles.load_cuda",
    "language.tiles.shared_tiles_cuda",
    "language.memory.scratch_cuda",
    "language.tiles.array_views_cuda",
    "language.pipeline.operand_barriers_cuda",
    "language.pipeline.pipelines_cuda",
    "language.grid.tile_loop_cuda",
    "language.grid.tile_scheduler_cuda",
    "core.lanes_cuda",
    "core.arith_cuda",
    "language.memory.per_lane_cuda",
    "language.grid.partials_cuda",
)
"""The modules that define the CUDA meanings of types. The first compile imports them; operations
import their own."""


PARAMETER_BYTES = 32_764
"""Maximum bytes of a kernel's parameters (PTX ISA, "Kernel Function Parameters", compute capability
7.0 and later)."""
_INSTALL = "install numba-cuda[cu13] (Linux x86_64 or aarch64)"


def toolchain() -> str | None:
    """Return why this process cannot compile kernels, or None if it can."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") != "0":
        return "NUMBA_ENABLE_CUDASIM puts a simulator in the place of Numba's compiler; unset it"
    for module in ("numba.cuda", "cuda.bindings.nvjitlink"):
        try:
            with uninterrupted():  # keep an interrupt from leaving the package half imported
                found = importlib.util.find_spec(module)
            if found is None:
                return f"{module} is not installed; {_INSTALL}"
        except ModuleNotFoundError as error:
            return f"{error.name} is not installed; {_INSTALL}"
    return None


@uncollected()
def front_end(
    unit: Unit, lifted: Lifted, scalars: Sequence[tuple[str, np.dtype]]
) -> tuple[Any, Products]:
    """Return the Numba kernel object of a rewritten function, which contains its checked LLVM IR,
    and the tiles that are live during its products."""
    missing = toolchain()
    if missing:
        raise TargetError(
            f"kernel {unit.kernel}: kernels cannot be compiled in this process: {missing}, or use "
            "target='sim'"
        )
    with uninterrupted():  # an interrupted import would register only some of a module's meanings
        from ..core import numba as nb

        for sibling in SIBLINGS:
            importlib.import_module(f"..{sibling}", __package__)
        from ..plan import context_cuda
        from . import entry_cuda
        from .check import inert_roles, tile_flow

    def place(filename: str, line: int) -> tuple[str, int] | None:
        return (
            lifted.definition.place
            if filename == entry_cuda.ENTRY
            else lifted.positions.place(line)
        )

    if unit.params.debug and not unit.places:
        unit.places += _waits(unit, lifted)
    seen, anew = Products(), unit.anew()
    entry, argtypes = entry_cuda.build(
        unit,
        lifted.compiled,
        [
            getattr(nb.types, {"bool": "boolean"}.get(dtype.name, dtype.name))
            for _, dtype in scalars
        ],
    )
    try:
        kernel = nb.compile_kernel(
            entry,
            argtypes,
            threads=unit.threads,
            ctas=unit.params.ctas_per_sm,
            target=unit.target,
            typed=tile_flow.watcher(lifted.positions, seen),
            few_meanings=True,
            place=place if unit.params.lineinfo else None,
            added=Instrumentation(unit.params.debug, unit.params.jitter),
        )
    except Exception as error:
        # the store ring left too little room for rings that were planned after it
        crowded = unit.row_stores and unit.smem_bytes > unit.target.smem_bytes
        # the error may only mean that numpipe's reduced Numba contexts lack a function: retry once
        # with Numba's own
        if nb.learn_all() or crowded:
            anew()
            unit.may_store_rows = not crowded
            return front_end(unit, lifted, scalars)
        # the traceback would be a screen of Numba's frames
        expected = isinstance(error, (nb.NumbaError, NumpipeError))
        raise error_lines.compiled(error, unit, lifted).with_traceback(None) from (
            None if expected else error
        )
    everywhere = set.intersection(*(unit.rings_of[role] for role in unit.roles))
    for name in unit.rings_of[COMPUTE] - everywhere:
        site = name.rsplit(" @ ", 1)[1]
        whose = (
            prefetched
            if name.startswith(prefetched.NAME)
            else tile_scheduler
            if unit.rings.get(name) is unit.work_ring is not None
            else pipelines
        )
        raise CompileError(lifted.sites[site].stamp(whose.unreachable(unit.kernel, site)))
    for symbol in nb.undefined_symbols(kernel._codelibrary, "np_axis_"):
        unit.axis(axis_of(symbol))
    try:
        context_cuda.check_ctas(unit, kernel._codelibrary)
    except SpecError as error:
        # the call as written, such as program_id(1)
        written = re.escape(str(error).partition(":")[0])
        places = [lifted.definition, error_lines.call_position(lifted, rf"\b{written}$")]
        raise error_lines.stamp(error, unit, lifted, places) from None
    inert_roles.check(unit, kernel._codelibrary, lifted)
    _fits(unit)
    if seen.products and (why := refused(unit)):
        raise error_lines.stamp(SpecError(why), unit, lifted, [seen.products[0]])
    if seen.redefined and not unit.params.allow_serialized_wgmma:
        raise advisories.redefined(unit, lifted, seen)
    if seen.overwritten:
        raise advisories.overwritten(unit, lifted, seen)
    register_budget.check(unit, lifted, seen)
    nb.rename(kernel, entry_name(unit))
    return kernel, seen


def _waits(unit: Unit, lifted: Lifted) -> list[str]:
    """Return names, with their lines, of the waits of a debugged kernel that are not waits for
    mbarriers.

    First come the flags of other CTAs (`wait_records.FLAG_PLACE`), then the waits without a time
    limit.
    """

    def named(what: str, pattern: str) -> str | None:
        position = error_lines.call_position(lifted, pattern)
        found = position != lifted.definition
        return f"{what} @ {os.path.basename(position.filename)}:{position.line}" if found else None

    workspace = next((f" of '{array.name}'" for array in unit.arrays if array.workspace), "")
    flag = f"the flag of another part{workspace}"
    unbounded = (
        named(wait_records.REGISTERS, r"set_max_registers.*increase"),
        named(wait_records.MEETING, r"\bturn\(|\bsync\("),
    )
    return [named(flag, r"\bcombine\(") or flag, *filter(None, unbounded)]


def _fits(unit: Unit) -> None:
    """Raise SpecError if the packed parameter of a kernel of several GPUs exceeds the limit of a
    launch's parameters."""
    sizes = 8 * sum(1 + 2 * array.ndim for array in unit.arrays)
    if unit.gpus and unit.table_bytes + sizes > PARAMETER_BYTES:
        raise SpecError(
            f"kernel {unit.kernel}: the {len(unit.maps)} tensor maps of each of {unit.gpus} GPUs "
            f"take {unit.table_bytes} B, but the parameters of a launch can have at most "
            f"{PARAMETER_BYTES} B; fix: use a mesh of fewer GPUs, or fewer arrays and block "
            "shapes that the TMA moves"
        )


def build(unit: Unit, lifted: Lifted, scalars: Sequence[tuple[str, np.dtype]]) -> Built:
    """Compile a kernel for its target. Raises CompileError or SpecError naming the user's line or
    spec."""
    log_on = _log.on("compile")
    begin = time.perf_counter()
    kernel, seen = front_end(unit, lifted, scalars)
    from ..core import numba as nb

    numba = time.perf_counter()
    try:
        ltoir = nb.to_ltoir(kernel._codelibrary, unit.target)
        nvvm = time.perf_counter()
        cubin, log = nb.link(ltoir, unit.kernel, unit.target)
    except RuntimeError as error:
        if (refused := _too_few_registers(unit, str(error))) is None:
            raise CompileError(
                f"kernel {unit.kernel}: its code cannot be compiled: {error}"
            ) from error
        raise error_lines.stamp(refused, unit, lifted, [lifted.definition]) from error
    end = time.perf_counter()
    advisories.check(
        unit, lifted, seen, log, calls=nb.calls(kernel._codelibrary, "vprintf", "__assertfail")
    )
    used = resources.of(
        unit,
        log,
        len(cubin),
        {"lift": lifted.seconds, "numba": numba - begin, "nvvm": nvvm - numba, "link": end - nvvm},
    )
    if log_on:
        parts = ", ".join(f"{part} {_log.spell(seconds)}" for part, seconds in used.seconds)
        arrays = ", ".join(
            f"{array.name} {array.dtype.name} {array.ndim}d {array.order}" for array in unit.arrays
        )
        _log.say(
            "compile",
            f"{unit.kernel} ({arrays}): {parts}; {used.registers} registers, {used.spill_bytes} B "
            f"spilled, {used.smem_bytes} B of shared memory, {used.cubin_bytes} B of machine code",
        )
    return Built(Image.of(unit, cubin, kernel.entry_name, used), unit, kernel, lifted.text, log)


def _too_few_registers(unit: Unit, log: str) -> SpecError | None:
    """Return the error for nvJitLink's note that one instruction has more operands than a lane has
    registers, or None if the log does not contain it."""
    found = re.search(r"\(C7602\) Insufficient registers \((\d+)\)", log)
    if found is None:
        return None
    return SpecError(
        f"kernel {unit.kernel}: register budget: its {unit.threads} threads start with {found[1]} "
        "registers each, too few for the accumulator of its largest wgmma and for addresses: a "
        "64 x N float32 tile takes N / 2 registers per lane of a warpgroup; fix: use fewer "
        "columns or a smaller num_compute_wgs"
    )
