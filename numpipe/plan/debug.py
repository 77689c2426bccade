"""`debug_print` and assertions: lines of text from a running kernel, and conditions that must hold,
alike in both executions.

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
from ..core.op import op, outside
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
    """The kernel has a breakpoint: it is for the simulator, and nothing is wrong with it there."""


@op(context=True)
def debug_print(np_: Context, format: str, *values: Any) -> None:
    """Print a line a warpgroup: ``[kernel cta (x, y, z) compute 1] k=3``, or ``… memory]`` by the
    memory role.

    format   a compile-time string with a field for each value: ``{}``, or ``{:[<>][+
             ][0][width][.precision][type]}`` with type d, x, X, f, e, E, g or G. Without one,
             floats print 6 digits (``%g``).
    values   bool, integer and float scalars, run-time or constant; constant strings. At most 28.

    Simulated, the line goes to sys.stdout at once. On the GPU one lane of the warpgroup calls
    vprintf (CUDA C++ Programming Guide, "Formatted Output"): lines reach the C library's stdout
    when the kernel is synchronised with, in no order between warpgroups, and the oldest are lost
    where a launch prints more than 1 MiB. What only the compute role has (the warpgroup axis)
    prints as ``-`` in the memory role; the body of an innermost pipeline loop runs in the compute
    role only, and so does what is printed there.

    It is an aid and not for fast kernels: around the call ptxas serialises wgmma (note C7510 of
    ``kernel.inspect("gate", …)``) and may use stack; the results stay right.

    Raises SpecError for a format that the two executions would print differently, and for tiles:
    simulate the kernel and stop in it with `breakpoint()` to look at those.
    """
    machine = current()
    text = [
        part if isinstance(part, str) else render(*part)
        for part in line(format, values, kind_of, described)
    ]
    if getattr(machine, "lane", 0) == 0:  # of a body that is code for each lane, lane 0 prints
        print(
            prefix(np_.unit.kernel, np_.role, machine.cta, np_.unit.number(machine.warpgroup))
            + "".join(text)
        )


def device_assert(condition: Any, message: str = "") -> NoReturn:
    """Stop the kernel where `condition`, a run-time scalar, is false. `message` is a compile-time
    string.

    Simulated, it raises SimulationError at the line, with the kernel, role and CTA. On the GPU a
    line with them appears on stderr, one for each warpgroup that saw it; the launch fails
    (LaunchError, CUDA_ERROR_ASSERT) at the next synchronisation, and the process' CUDA context is
    lost. Conditions on what only the compute role has (the warpgroup axis) are not checked in the
    memory role.

    The check is always compiled in; ``assert condition, "message"`` only with
    ``CompilerParams(asserts=True)``. The simulator checks both.
    """
    raise outside("device_assert")


def prefix(kernel: str, role: Role, cta: tuple[Any, Any, Any], warpgroup: Any) -> str:
    """Return the beginning of a line, which says whose it is; arguments may be printf's
    conversions."""
    who = f"{role} {warpgroup}" if role.computes else role
    return f"[{kernel} cta ({cta[0]}, {cta[1]}, {cta[2]}) {who}] "


def line(
    format: str,
    values: tuple[Any, ...],
    kind_of: Callable[[Any], Kind | None],
    described: Callable[[Any], str],
) -> Iterator[str | tuple[Field, Any]]:
    """Yield the texts of a line, and (field, value) for what it prints, of values or of their Numba
    types.

    SpecError for values that are no scalars; `described` says what a message calls one.
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
    """Raise SpecError for a condition that is no scalar."""
    if kind in (None, "text"):
        raise SpecError(f"an assertion tests a bool, integer or float scalar, got {what}")


@op
def simulated_only(function: Any) -> Any:
    """`breakpoint` as the AST pass writes it, ``simulated_only(breakpoint)()``: compiling it raises
    CompileError.

    Numba would compile a trap, which ends the kernel where no debugger runs.
    """
    return function


@op(context=True)
def check(
    np_: Context, condition: Any, message: str, statement: str, file: str, line: int, always: bool
) -> None:
    """`device_assert` (`always`) and `assert` as the AST pass writes them: with the source's text,
    file and line."""
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
