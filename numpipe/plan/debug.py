"""`debug_print` and assertions, which work the same on the GPU and in the simulator.

>>> numpipe.debug_print("k={} x={:.2f}", k, x)  # doctest: +SKIP
[matmul cta (0, 0, 0) compute 1] k=3 x=0.50
>>> numpipe.device_assert(k < 4, "too many steps")  # doctest: +SKIP

`breakpoint()` stops in a simulated kernel as it does in any function; compiling it raises
CompileError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from ..core.inert import NoValue
from ..core.machine import current
from ..core.op import context_op, op, outside
from ..diagnostics.errors import CompileError, SimulationError, SpecError
from ..diagnostics.format import Field, Kind, fields, kind_of, missing, parse, render
from .context import Context
from .roles import Role

__all__ = ["debug_print", "device_assert"]

BREAKPOINT = (
    "breakpoint() stops in the simulator only: run the kernel with kernel.simulate(…) or "
    "target='sim', or use numpipe.debug_print on the GPU"
)


class SimulatedOnly(CompileError):
    """The kernel has a breakpoint, so it can only be simulated."""


@context_op
def debug_print(np_: Context, format: str, *values: Any) -> None:
    """Print one line per warpgroup: ``[kernel cta (x, y, z) compute 1] k=3``, or ``… memory]`` from
    the memory role.

    format   a compile-time string with a field for each value: ``{}``, or ``{:[<>][+
             ][0][width][.precision][type]}`` with type d, x, X, f, e, E, g or G. Without a format,
             floats print 6 digits (``%g``).
    values   bool, integer and float scalars, run-time or constant; constant strings. At most 28.

    In the simulator, the line goes to sys.stdout at once. On the GPU one lane of the warpgroup
    calls vprintf (CUDA C++ Programming Guide, "Formatted Output"): lines reach the C library's
    stdout when the host synchronizes with the kernel, in no order between warpgroups, and the
    oldest are lost if a launch prints more than 1 MiB. Values that only the compute role has (the
    warpgroup axis) print as ``-`` in the memory role. The body of an innermost pipeline loop runs,
    and prints, in the compute role only.

    Use it for debugging, not in fast kernels: around the call ptxas serializes wgmma (note C7510 of
    ``kernel.inspect("gate", …)``) and may use stack; the results stay correct.

    Raises SpecError for a format that the simulator and the GPU would print differently, and for
    tiles: to look at a tile, simulate the kernel and stop in it with `breakpoint()`.
    """
    machine = current()
    text = [
        part if isinstance(part, str) else render(*part)
        for part in line(format, values, kind_of, described)
    ]
    if getattr(machine, "lane", 0) == 0:  # in per-lane bodies, lane 0 prints
        print(
            prefix(np_.unit.kernel, np_.role, machine.cta, np_.unit.number(machine.warpgroup))
            + "".join(text)
        )


def device_assert(condition: Any, message: str = "") -> NoReturn:
    """Stop the kernel if `condition`, a run-time scalar, is false. `message` is a compile-time
    string.

    In the simulator it raises SimulationError at the line, with the kernel, role and CTA. On the
    GPU a line with them appears on stderr, one for each warpgroup in which the condition is false;
    the launch fails (LaunchError, CUDA_ERROR_ASSERT) at the next synchronization, and the process'
    CUDA context is lost. Conditions on values that only the compute role has (the warpgroup axis)
    are not checked in the memory role.

    The check is always compiled in; ``assert condition, "message"`` only with
    ``CompilerParams(asserts=True)``. The simulator checks both.
    """
    raise outside("device_assert")


def prefix(kernel: str, role: Role, cta: tuple[Any, Any, Any], warpgroup: Any) -> str:
    """Return the beginning of a line, which names its origin. Arguments may be printf
    conversions."""
    who = f"{role} {warpgroup}" if role.computes else role
    return f"[{kernel} cta ({cta[0]}, {cta[1]}, {cta[2]}) {who}] "


def line(
    format: str,
    values: tuple,
    kind_of: Callable[[Any], Kind | None],
    described: Callable[[Any], str],
) -> Iterator[str | tuple[Field, Any]]:
    """Yield the texts of a line, and (field, value) for each value that it prints, given values or
    their Numba types.

    Raises SpecError for values that are not scalars; `described` returns the name of one for
    messages.
    """
    parts = parse(format)
    fields(parts, len(values))
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(value := values[part.number - 1], NoValue):
            yield missing(part)
        elif kind_of(value) is None:
            raise SpecError(
                f"debug_print: value {part.number} is {described(value)}, and only bool, integer "
                "and float scalars are printed: to look at tiles and arrays, simulate the kernel "
                "and stop in it with breakpoint(), where tile.value and array.array are NumPy "
                "arrays"
            )
        else:
            yield part, value


def check_condition(kind: Kind | None, what: str) -> None:
    """Raise SpecError for a condition that is not a scalar."""
    if kind in (None, "text"):
        raise SpecError(f"an assertion tests a bool, integer or float scalar, got {what}")


@op
def simulated_only(function: Any) -> Any:
    """Replace `breakpoint` in the rewritten source, ``simulated_only(breakpoint)()``: compiling it
    raises CompileError.

    Numba would compile it to a trap, which ends the kernel if no debugger runs.
    """
    return function


@context_op
def check(
    np_: Context, condition: Any, message: str, statement: str, file: str, line: int, always: bool
) -> None:
    """Implement `device_assert` (`always`) and `assert`; the AST pass adds the source's text, file
    and line."""
    if isinstance(condition, NoValue):
        return
    check_condition(kind_of(condition), described(condition))
    if not condition:
        machine = current()
        who = (
            f"{np_.role} warpgroup {np_.unit.number(machine.warpgroup)}"
            if np_.computes
            else f"the {np_.role} role"
        )
        who = who if getattr(machine, "lane", None) is None else f"lane {machine.lane} of {who}"  # type: ignore[attr-defined]
        raise SimulationError(
            f"'{statement}' failed in {who} of CTA {machine.cta}"
            + (f": {message}" if message else "")
        )


def described(value: Any) -> str:
    name = {
        "Tile": "a register tile",
        "SmemTile": "a shared-memory tile",
        "GmemRef": "an array",
    }.get(type(value).__name__)
    return name or f"a {type(value).__name__}"
