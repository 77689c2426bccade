"""Whose line an error speaks of: errors of both executions, stamped ``file:line: kernel name: …``.

Operations know what is wrong, not where: they raise SpecError and CompileError from below the user's statement. Here, at the
boundary, the statement is found again: simulated, in the traceback; compiled, in what Numba was typing. Python's and Numba's
own errors become one line of ours (Numba's run to 40 kB and rarely name the user's file); the original is the error's
``__context__``.
"""

from __future__ import annotations

import re
from types import TracebackType

from .._unit import Unit
from ..errors import CompileError, NumpipeError, SimulationError, at

Place = tuple[str, int] | None
LONGEST = 600
"""characters of a reason that Numba or Python gave"""


def stamp(error: NumpipeError, unit: Unit, place: Place) -> NumpipeError:
    """Put the place and the kernel in front of an error's message, once."""
    message = str(error)
    if re.match(rf"({re.escape(unit.source[1])}|[^ ,]+):\d+: ", message):
        return error
    if not message.startswith(f"kernel {unit.kernel}"):
        message = f"kernel {unit.kernel}: {message}"
    error.args = (message if place is None else at(*place, message),)
    return error


# ---- simulated ----------------------------------------------------------------------------------------------------
def innermost(traceback: TracebackType | None, filename: str) -> Place:
    """The innermost line of `filename` in a traceback."""
    place: Place = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == filename:
            place = filename, traceback.tb_lineno
        traceback = traceback.tb_next
    return place


def simulated(error: Exception, unit: Unit) -> NumpipeError:
    """What a simulated kernel raised, as the error the user gets."""
    place = innermost(error.__traceback__, unit.source[1])
    if isinstance(error, NumpipeError):
        return stamp(error, unit, place)
    name = type(error).__name__
    if _raised_by_numba(error):
        return stamp(CompileError("this calls a function of numba.cuda, which the simulated SM cannot run: use numpipe's "
                                  f"operations ({name}: {_first_line(str(error))})"), unit, place)
    if isinstance(error, FloatingPointError):
        return stamp(SimulationError(f"{error}: a kernel's integers are int32, which wrap silently on the GPU"), unit, place)
    kind = SimulationError if isinstance(error, ArithmeticError) else CompileError
    return stamp(kind(f"{name}: {_first_line(str(error))}"), unit, place)


def _raised_by_numba(error: Exception) -> bool:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    where = "" if traceback is None else traceback.tb_frame.f_code.co_filename
    return "numba" in where.replace("\\", "/").split("site-packages/")[-1].split("/")[0] or "intrinsic" in str(error)


# ---- compiled -----------------------------------------------------------------------------------------------------
def compiled(error: Exception, unit: Unit) -> NumpipeError:
    """What Numba, or an operation while it was typed, raised, as the error the user gets."""
    from .. import _numba as nb

    reason, place = nb.explain(error, unit.source[1])
    if isinstance(error, NumpipeError):
        return stamp(error, unit, place)
    if place is None and unit.source[0] is not None:
        place = unit.source[1], unit.source[0].lineno
    return stamp(CompileError(f"this cannot be compiled: {readable(reason, unit)}"), unit, place)


def readable(text: str, unit: Unit) -> str:
    """Type names as a user would say them."""
    def array(match: re.Match[str]) -> str:
        return f"array '{unit.arrays[int(match[1])].name}'"

    text = re.sub(r",? ?defined at \S+ \(\d+\)|\.? Raised from .*", "", text)
    text = re.sub(rf"gmem\({re.escape(unit.kernel)}#\d+, (\d+), \w+\)", array, text)
    text = re.sub(r"smem\(Layout\(shape=(\([^)]*\))[^)]*\), (\w+), \w+\)", r"shared-memory tile \1 \2", text)
    text = re.sub(r"in flight\((tile\(\([^)]*\), \w+\)), \w+\)", r"\1 in flight", text)
    text = re.sub(r"Literal\[\w+\]\(([^()]*)\)", r"\1", text)
    return _first_line(text)


def _first_line(text: str) -> str:
    line = " ".join(text.strip().split("\n\n")[0].split())
    return line if len(line) <= LONGEST else line[:LONGEST] + " …"
