"""`numpipe.testing.mutate`: leave out or weaken each synchronization of a kernel, and check that
this is noticed.

All synchronization, whichever operation causes it, ends in a method of the simulated machine
(`SYNCHRONISES`). A *place* is the operation and the line that calls it. If that line is in a helper
that only passes a synchronization on (`PASSED_ON`), the place includes the line that calls the
helper, so the one barrier in `outputs.meet` is a separate place for each of its callers. Places are
found by simulating the kernel; then the kernel runs again for each place, with that operation left
out or changed (`CHANGES`).

A mutant survives if no schedule reports it and the result is the same. Either a sentence of the PTX
ISA explains why the operation is not needed there (`REDUNDANT`), or the inputs do not exercise it:
fewer steps than slots, or a single tile per CTA. (Mutation testing: DeMillo, Lipton, Sayward,
"Hints on Test Data Selection", IEEE Computer 11 (4), 1978.)
"""

from __future__ import annotations

import functools
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ... import intrinsics
from ...diagnostics.argument_checks import require, whole
from ...diagnostics.errors import SimulationError, printable
from ...intrinsics import barrier
from ...sim.warpgroup import Warpgroup
from .argument_copies import Arguments, Arrays, first_seed

if TYPE_CHECKING:
    from ...kernels.kernel import Kernel
    from ...launch.mesh import Mesh

ROOT = Path(__file__).parents[2]
SYNCHRONISES = (
    "mbar_arrive",
    "mbar_arrive_expect_tx",
    "mbar_wait",
    "fence_mbarrier_init",
    "fence_proxy_async",
    "bar_sync",
    "bar_arrive",
    "grid_dependency_wait",
    "setmaxnreg",
    "bulk_commit",
    "bulk_wait",
    "wgmma_fence",
    "wgmma_commit",
    "wgmma_wait",
    "mbar_arrive_remote",
    "mbar_arrive_expect_tx_remote",
    "mbar_arrive_cluster",
    "cluster_arrive",
    "cluster_wait",
    "gmem_signal",
    "gmem_await",
    "gpu_begin",
    "gpu_await_begin",
    "semaphore_signal",
    "semaphore_wait",
    "fence_proxy_async_global",
)
"""Methods of `Machine` that synchronize. Excluded are `mbar_test`, a query whose answer cannot be
left out and which a wait follows; `bar_red`, the barrier of a vote, whose result cannot be left out
either (on the GPU too, one instruction does both); and griddepcontrol.launch_dependents, which
orders nothing: without it the next kernel only starts later."""
COUNTED = ("mbar_init_at_entry",)
"""the method that sets how many arrivals complete a phase of a barrier"""
PASSED_ON = (
    "pipeline.operand_barriers.await_step",
    "pipeline.operand_barriers.barrier_arrive",
    "pipeline.operand_barriers.barrier_wait",
    "memory.copies.commit_smem",
    "memory.copies.commit_smem_to_gmem_group",
    "memory.copies.fence_and_meet",
    "memory.copies.wait_smem_to_gmem",
    "tiles.exchange.exchange",
    "tiles.mma.wgmma_wait",
    "tiles.fence_order.before_access",
    "tiles.fence_order.before_async",
    "tiles.products_in_flight.commit_to",
    "pipeline.warpgroup_order.await_token",
    "pipeline.warpgroup_order.enter_turn",
    "pipeline.warpgroup_order.leave_turn",
    "pipeline.warpgroup_order.pass_token",
    "pipeline.pipeline_outputs.await_slot",
    "pipeline.pipeline_outputs.meet",
    "grid.cta_turns.allow",
    "grid.cta_turns.await_turn",
    "grid.cta_turns.pass_turn",
    "grid.cta_turns.end_turn",
    "grid.cta_turns.finish",
    "grid.cta_turns.poll",
    "grid.cta_turns.release",
    "grid.partials.await_signals",
    "grid.partials.signal",
    "memory.peer_arrays.await_launches",
    "memory.peer_arrays.begin_launch",
    "memory.semaphores.add_to",
    "memory.semaphores.await_together",
    "memory.semaphores.await_value",
    "memory.semaphores.complete_and_add",
    "memory.semaphores.complete_stores",
    "memory.semaphores.poll",
    "memory.semaphores.signal",
    "memory.semaphores.wait",
    "memory.phases.arrive",
    "memory.phases.arrive_at_peers",
    "memory.phases.await_narrow",
    "memory.phases.await_wide",
    "memory.phases.wait",
    "memory.registers.set_max_registers",
    "pipeline.ring.await_consumed",
    "pipeline.ring.await_ready",
    "pipeline.ring.release",
    "pipeline.ring.release_delayed",
    "pipeline.ring.release_used",
    "pipeline.steps.await_empty",
    "pipeline.steps.await_products",
    "pipeline.steps.await_released",
    "tiles.store_ring.await_staging",
    "tiles.store_ring.drain_stores",
)
"""Helpers that synchronize and otherwise only move the data that they order."""
APPLIES = (
    "tiles.mma.<listcomp>",
    "tiles.fence_order.meet",
    "pipeline.operand_barriers.apply",
    "plan.context.only_if",
    "plan.context.over",
    "pipeline.warpgroup_order.over_tokens",
    "pipeline.pipeline_outputs.first_lane",
    "pipeline.ring.each",
)
"""Functions that only call the function passed to them."""
ELSEWHERE = "compile", "frameworks", "intrinsics", "launch", "sim", "tools"
"""packages of numpipe that contain no synchronization protocol"""
LOOP = "the end of a loop (lift.loops)"
"""the wait that the AST pass inserts after a pipeline's loop"""

_HINT = (
    "setmaxnreg is a hint to change the maximum number of registers that a warp owns "
    "(Miscellaneous Instructions: setmaxnreg). Without the increase, a warp keeps the number of "
    "the launch, and ptxas compiles for it"
)
_WAITED = (
    "wgmma.wait_group waits until at most N of the newest groups are pending "
    "(wgmma.wait_group). The end of the loop has waited with N = 0, and no product was issued "
    "since. This wait is there for ptxas, which needs one on each path to a read of the registers"
)
REDUNDANT = {
    "setmaxnreg.inc < kernels.simulate.run_role": _HINT,
    "setmaxnreg.inc < memory.registers.set_max_registers": _HINT,
    f"wgmma_wait < tiles.mma.wgmma_wait < {LOOP}": _WAITED,
    "wgmma_wait < tiles.mma.wgmma_wait < pipeline.body_form.run_carry": _WAITED,
    "warp_sync < memory.phases.arrive < pipeline.operand_barriers.barrier_arrive": (
        "bar.warp.sync orders memory accesses among the threads that take part (bar.warp.sync). "
        "Each access to a tile, and each loop over lanes, ends with one of its own, so this one "
        "has nothing left to order"
    ),
}
"""Start of a place's name -> why the operation is not needed there, from a sentence of the PTX
ISA."""

_NO_PRODUCTS = (
    "wgmma.wait_group waits for groups of products (wgmma.wait_group), and the kernel has none"
)

Edit = Callable[[tuple], "tuple | None"]
"""Arguments -> the arguments to pass instead, or None to leave the operation out."""
LEFT_OUT = "left out"
CHANGES: dict[str, dict[str, Edit]] = {
    "mbar_wait": {"for the phase before": lambda args: (args[0], args[1] - 1, *args[2:])},
    "mbar_arrive": {"twice": lambda args: (args[0], 2 * (args[1] if len(args) > 1 else 1))},
    "mbar_arrive_expect_tx": {
        "16 bytes too few": lambda args: (args[0], args[1] - 16),
        "16 bytes too many": lambda args: (args[0], args[1] + 16),
    },
    "wgmma_wait": {"leaves one more in flight": lambda args: (args[0] + 1,)},
    "bulk_wait": {"leaves one more in flight": lambda args: (args[0] + 1, *args[1:])},
    "semaphore_wait": {"for one less": lambda args: (*args[:2], args[2] - 1, *args[3:])},
    "mbar_init_at_entry": {
        "one arrival more": lambda args: (args[0], args[1] + 1, *args[2:]),
        "one arrival fewer": lambda args: (args[0], max(1, args[1] - 1), *args[2:]),
    },
}
"""Operation -> the changes made to it, in addition to leaving it out."""


# ---- places
@dataclass(frozen=True)
class Place:
    """An operation and the lines that led to it, as ``module.function:line``, innermost first;
    modules of `language` are named without the package."""

    operation: str
    calls: tuple[str, ...]

    @printable
    def __str__(self) -> str:
        return " < ".join((self.operation, *self.calls))

    @property
    def name(self) -> str:
        """The place without line numbers."""
        return " < ".join((self.operation, *(call.partition(":")[0] for call in self.calls)))


@functools.cache
def is_users(file: Path) -> bool:
    """Return whether a file is not numpipe's own. Kernels of `numpipe.ops` count as users'
    kernels."""
    own = file.is_relative_to(ROOT) and not file.is_relative_to(ROOT / "ops")
    return not own and not any(file.is_relative_to(folder) for folder in intrinsics.__path__)


def called_by_users(file: Path, line: int) -> str:
    """Return how a place names a line of the user's code."""
    return (
        LOOP
        if linecache.getline(str(file), line).strip().startswith("for ")
        else f"{file.name}:{line}"
    )


@functools.cache
def named(
    file: Path, function: str, line: int, users: Callable[[Path, int], str]
) -> tuple[str, bool]:
    """Return how a place names a frame ("" for internal machinery), and whether it is numpipe's."""
    if is_users(file):
        return users(file, line), False
    if not file.is_relative_to(ROOT):
        return "", True
    inside = file.relative_to(ROOT)
    machinery = inside.parts[0] in ELSEWHERE or inside.name in ("op.py", "lanes.py")
    module = ".".join(inside.with_suffix("").parts).removeprefix("language.")
    return "" if machinery else f"{module}.{function}:{line}", True


_path = functools.cache(Path)


def place_of(
    operation: str, frame: FrameType | None, users: Callable[[Path, int], str] = called_by_users
) -> Place:
    """Return the place of an operation called by this frame. `users` names lines that are not
    numpipe's."""
    calls: list[str] = []
    while frame is not None:
        code = frame.f_code
        name, own = named(_path(code.co_filename), code.co_name, frame.f_lineno, users)
        function = name.partition(":")[0]
        # list a recursive function once
        if (
            name
            and function not in APPLIES
            and not (calls and calls[-1].startswith(f"{function}:"))
        ):
            calls.append(name)
            if not own or function not in PASSED_ON:
                break
        frame = frame.f_back
    return Place(operation, tuple(calls))


def line_of(frame: FrameType | None) -> str:
    """Return the user's line that led to a frame, as ``file.py:line``, or "" if there is none."""
    while frame is not None and not is_users(_path(frame.f_code.co_filename)):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


@contextmanager
def watched(
    seen: Callable[[str, FrameType], Edit | None], operations: tuple[str, ...] = SYNCHRONISES
) -> Iterator[None]:
    """Call ``seen(operation, caller's frame)`` before each of these operations, and apply the edit
    that it returns."""

    def patched(name: str, original: Any) -> Any:
        first = int(name != "warp_sync")  # skip the machine, the first argument of methods

        def call(*args: Any, **named: Any) -> Any:
            edit = seen(f"{name}.{args[1]}" if name == "setmaxnreg" else name, sys._getframe(1))
            if edit is not None:
                changed = edit(args[first:])
                if changed is None:
                    return None
                args = (*args[:first], *changed)
            return original(*args, **named)

        return call

    methods = {name: getattr(Warpgroup, name) for name in operations}
    meet = barrier.warp_sync
    function = meet.function
    for name, method in methods.items():
        setattr(Warpgroup, name, patched(name, method))
    meet.function = patched("warp_sync", function)
    try:
        yield
    finally:
        meet.function = function
        for name, method in methods.items():
            setattr(Warpgroup, name, method)


# ---- mutants
@dataclass(frozen=True)
class Mutant:
    """A kernel with one synchronization left out or changed.

    place   which one
    line    the user's line that led to it, "file.py:12"
    change  "left out", or what it does instead (`CHANGES`)
    by      the hazard that was reported, "other result", or "" if nothing noticed it
    rule    for a mutant that nothing noticed: why the operation is not needed there, or ""
    """

    place: Place
    line: str
    change: str
    by: str = ""
    rule: str = ""

    @property
    def survived(self) -> bool:
        return not self.by

    @printable
    def __str__(self) -> str:
        outcome = self.by or (
            f"survived; redundant: {self.rule}"
            if self.rule
            else (
                "survived: the operation is not needed, or the inputs do not exercise it (use more "
                "steps than slots, and a second tile for a CTA)"
            )
        )
        return (
            f"{self.line or self.place.calls[-1]}: {self.place.operation}, {self.change}: "
            f"{outcome}\n"
            f"    in {self.place}"
        )


@dataclass(frozen=True)
class Mutation:
    """The result of `mutate`, which is true if no mutant survived except those that a rule
    explains."""

    kernel: str
    mutants: tuple[Mutant, ...]

    @property
    def survivors(self) -> tuple[Mutant, ...]:
        """Mutants that nothing noticed and no rule explains."""
        return tuple(mutant for mutant in self.mutants if mutant.survived and not mutant.rule)

    @property
    def redundant(self) -> tuple[Mutant, ...]:
        """Mutants that nothing noticed for a reason given by a rule."""
        return tuple(mutant for mutant in self.mutants if mutant.survived and mutant.rule)

    def __bool__(self) -> bool:
        return not self.survivors

    @printable
    def __str__(self) -> str:
        reported = len(self.mutants) - len(self.survivors) - len(self.redundant)
        return "\n".join(
            [
                f"kernel {self.kernel}: {len(self.mutants)} mutants: {reported} reported, "
                f"{len(self.redundant)} redundant by a rule, {len(self.survivors)} survived",
                *map(str, self.survivors),
            ]
        )

    def raise_if_survived(self) -> None:
        """Raise AssertionError with the survivors, if there are any, for a test in one line."""
        __tracebackhide__ = True
        if self.survivors:
            raise AssertionError(str(self))


def mutate(
    kernel: Kernel,
    /,
    *args: Any,
    schedules: int = 3,
    seed: int | None = None,
    schedule_seed: int = 0,
    out: Any = None,
    mesh: Mesh | None = None,
    **named: Any,
) -> Mutation:
    """Leave out or weaken each synchronization of a kernel, one at a time, and report which of
    these mutants go unnoticed.

    args, out, named  arguments of a call of the kernel: host arrays, which are not changed
    schedules         most schedules to simulate for each mutant, at least 1: the usual one first,
                      then random ones
    seed, schedule_seed  as for `verify`: seed of the first random schedule
    mesh              a `numpipe.Mesh.simulated` for a kernel with semaphores; arguments are then
                      lists with one array per GPU

    Waits, arrivals, fences and commits are left out, both those in the kernel's source and those
    that the ring makes. They are also changed: a wait is for the previous phase, or leaves one more
    copy or product in flight; an arrival counts twice; the announced bytes are 16 too few or too
    many; a barrier counts one arrival more or fewer. A mutant is noticed if it causes a hazard or a
    result that differs from the kernel's. This takes about ten runs of the kernel for each of its
    lines, so use small arrays with a few more steps than slots.

    Raises SpecError if arguments do not match, and whatever the simulator raises if the kernel
    itself is wrong.

    >>> import numpy as np, numpipe
    >>> from numpipe import BlockSpec, ds
    >>> @numpipe.kernel
    ... def doubled(x, y):
    ...     for (k,), (tile,) in numpipe.pipeline(
    ...         grid=(4,), in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),)
    ...     )(x):
    ...         y[ds(k * 64, 64), ds(0, 64)] = tile[...] * 2
    >>> found = mutate(
    ...     doubled,
    ...     np.ones((256, 64), np.float32),
    ...     np.zeros((256, 64), np.float32),
    ...     schedules=2,
    ... )
    >>> {"read-before-ready", "too-few-arrivals", "store-source-reused"} <= {
    ...     mutant.by for mutant in found.mutants
    ... }
    True
    """
    seed = first_seed("mutate", kernel, named, seed, schedule_seed)
    arguments = Arguments("mutate", kernel, args, named, out, ("schedules",), mesh)
    require(f"kernel {kernel.name}: mutate", locals(), schedules=whole(1, 10**6), seed=whole(0))
    seeds = (None, *range(seed, seed + schedules - 1))
    places: dict[Place, str] = {}

    def seen(operation: str, frame: FrameType) -> None:
        places.setdefault(place_of(operation, frame), line_of(frame))

    with watched(seen, (*SYNCHRONISES, *COUNTED)):
        wanted = {s: arguments.run(kernel.simulate, schedule_seed=s) for s in seeds}
    products = any(place.operation == "wgmma_commit" for place in places)
    mutants, rules = [], REDUNDANT | ({} if products else {"wgmma_wait": _NO_PRODUCTS})
    for place, line in places.items():
        edits = {} if place.operation in COUNTED else {LEFT_OUT: lambda _: None}
        for change, edit in (edits | CHANGES.get(place.operation, {})).items():
            by = _told(kernel, arguments, place, edit, wanted)
            if by is None:
                continue
            rule = (
                ""
                if by
                else next((text for name, text in rules.items() if place.name.startswith(name)), "")
            )
            mutants.append(Mutant(place, line, change, by, rule))
    return Mutation(kernel.name, tuple(mutants))


def _told(
    kernel: Kernel, arguments: Arguments, place: Place, edit: Edit, wanted: dict[int | None, Arrays]
) -> str | None:
    """Return what notices a changed place: a hazard or "other result", "" if nothing does, or None
    if the change has no effect on the arguments."""
    changed = False

    def edited(args: tuple) -> tuple | None:
        nonlocal changed
        made = edit(args)
        changed |= made != args
        return made

    def seen(operation: str, frame: FrameType) -> Edit | None:
        return (
            edited if operation == place.operation and place_of(operation, frame) == place else None
        )

    for seed, arrays in wanted.items():
        try:
            with watched(seen, (*SYNCHRONISES, *COUNTED)):
                got = arguments.run(kernel.simulate, schedule_seed=seed)
        except SimulationError as error:
            return error.report.hazard if error.report else type(error).__name__
        if any(array.tobytes() != arrays[name].tobytes() for name, array in got.items()):
            return "other result"
    return "" if changed else None
