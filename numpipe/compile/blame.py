"""Whose line an error speaks of: errors of both executions, stamped ``file:line: kernel name: …``.

Operations know what is wrong, not where: they raise SpecError and CompileError from below the user's statement. Here, at the
boundary, the statement is found again: simulated, in the traceback; compiled, in what Numba was typing. Python's and Numba's
own errors become one line of ours (Numba's run to 40 kB and rarely name the user's file); the original is the error's
``__context__``.
"""

from __future__ import annotations

import ast
import linecache
import re
from types import FunctionType, TracebackType
from typing import Any

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
def innermost(error: Exception, filename: str) -> TracebackType | None:
    """The innermost part of an error's traceback that is in `filename`."""
    found, traceback = None, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == filename:
            found = traceback
        traceback = traceback.tb_next
    return found


def simulated(error: Exception, unit: Unit) -> NumpipeError:
    """What a simulated kernel raised, as the error the user gets."""
    tree, filename = unit.source
    frame = innermost(error, filename)
    place = None if frame is None else (filename, frame.tb_lineno)
    if isinstance(error, NumpipeError):
        return stamp(error, unit, place)
    what = f"{type(error).__name__}: {_first_line(str(error))}"
    foreign = None if frame is None or tree is None else numba_call(tree, frame.tb_lineno, frame.tb_frame.f_globals)
    if foreign is not None:
        return stamp(CompileError(f"{foreign}(…) is Numba's: it runs on a GPU only, and the simulated SM cannot run it; use "
                                  f"numpipe's operations ({what})"), unit, place)
    if isinstance(error, FloatingPointError):
        return stamp(SimulationError(f"{error}: a kernel's integers are int32, which wrap silently on the GPU"), unit, place)
    kind = SimulationError if isinstance(error, ArithmeticError) else CompileError
    return stamp(kind(what), unit, place)


def numba_call(tree: ast.AST, line: int, namespace: dict[str, Any]) -> str | None:
    """The function of Numba's that the source calls on `line`, as written there."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        written = ast.unparse(node.func)
        value, *attributes = written.split(".")
        found = namespace.get(value)
        for attribute in attributes:
            found = getattr(found, attribute, None)
        home = getattr(found, "__module__", None) if isinstance(found, (type, FunctionType)) else type(found).__module__
        if found is not None and str(home).startswith("numba."):
            return written
    return None


# ---- compiled -----------------------------------------------------------------------------------------------------
def compiled(error: Exception, unit: Unit) -> NumpipeError:
    """What Numba, or an operation while it was typed, raised, as the error the user gets."""
    from .. import _numba as nb

    reason, place = nb.explain(error, unit.source[1])
    if isinstance(error, NumpipeError):
        error.args = (readable(str(error), unit),)
        return stamp(error, unit, place)
    if place is None and unit.source[0] is not None:
        place = unit.source[1], unit.source[0].lineno
    written = "" if place is None else linecache.getline(*place).strip()
    what = f"`{written[:200]}`" if written else "it"
    return stamp(CompileError(f"{what} cannot be compiled: {_first_line(readable(reason, unit))}"), unit, place)


_SAID = {"gmem": "array", "smem": "shared-memory tile", "in flight": "tile in flight", "pipeline": "pipeline",
         "bound": "nested function", "BlockSpec": "BlockSpec", "context": "context", "steps": "pipeline loop", "ring": "ring",
         "at": "view", "omitted": "default"}
_TYPE = re.compile(rf"\b({'|'.join(_SAID)})\(")


def readable(text: str, unit: Unit) -> str:
    """Names of types, which tell Numba everything, as a user would say them."""
    text = re.sub(r",? ?defined at \S+ \(\d+\)|\.? Raised from .*|\s+During: .*", "", text)
    text = re.sub(r"Literal\[\w+\]\(([^()]*)\)", r"\1", text)
    text = re.sub(r"\('wrong tuple length for .*?: ', '(.*?)'\)", r"wrong tuple length: \1", text)
    parts, start = [], 0
    while (found := _TYPE.search(text, start)) is not None:
        end, depth = found.end(), 1
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        inside = text[found.end():end - 1]
        if found[1] == "gmem" and (array := re.search(r"#\d+, (\d+), \w+$", inside)):
            said = f"array '{unit.arrays[int(array[1])].name}'"
        elif found[1] == "smem" and (tile := re.match(r"Layout\(shape=(\([^)]*\)).*, (\w+), \w+$", inside)):
            said = f"shared-memory tile {tile[1]} {tile[2]}"
        else:
            internal = re.search(r"[#@]\d|Layout\(", inside) or found[1] in ("in flight", "omitted")
            said = _SAID[found[1]] if internal else f"{found[0]}{inside})"
        parts += [text[start:found.start()], said]
        start = end
    return "".join([*parts, text[start:]])


def _first_line(text: str) -> str:
    line = " ".join(text.strip().split("\n\n")[0].split())
    return line if len(line) <= LONGEST else line[:LONGEST] + " …"
