"""Functions of shapes are recorded: a user's out_type, grid or workspace becomes an `Expression`, which a file can hold.

`record` calls the function as a call of the kernel would, but with a `Number` for each size of an array and each run-time scalar.
What is computed of Numbers is a Number again, and the recorder notes the operation. Where Python asks whether a Number is true
(``if``, ``and``, ``max``, a comparison of shapes) the recorder notes the question and answers yes; then it calls the function once
more for the other answer, until no answer is left. dtypes, ranks and Statics are constants, so few questions are asked. Where the
function raises, the expression raises, and the message may show sizes.

What a Number cannot follow is refused, with the user's line: where Python wants a number of its own (``int``, ``range``, an index,
the key of a dict), functions of ``math`` and NumPy, and loops whose rounds depend on a size. What it cannot notice, a function that
asks for ``type(n)`` or answers differently each time, is found by comparing function and expression on some shapes. What the
function reads besides its arguments, such as a global variable, is recorded as it is then.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import math
import random
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from ..arch.dtypes import BY_DTYPE
from ..diagnostics.errors import Position, SpecError
from ..plan.specs import ArrayType, Workspace
from .expressions import ERRORS, KINDS, MOST_INSTRUCTIONS, OPERATIONS, Expression, Instruction
from .options import parameter_names
from .recorded_numbers import MOST_PATHS, Recorder, Refused
from .results import HostView

COMPARED = 32
"""shapes on which function and expression are compared"""
_SIZES = (0, 1, 2, 3, 7, 8, 16, 60, 63, 64, 65, 100, 127, 128, 129, 256, 1000, 1024, 4096, 5000, 65536, 1 << 20)
_VALUES = {"b": (0, 1), "i": (0, 1, -1, 2, 7, 100, -64), "u": (0, 1, 2, 7, 100), "f": (0.0, 1.0, -1.5, 0.5, 3.0, 1e4)}
"""of run-time scalars, by the kind of their dtype"""
_PURE = {"neg", "pos", "abs", "invert", "add", "sub", "mul", "and_", "or_", "xor", "lt", "le", "gt", "ge", "eq", "ne", "int"}
"""operations on Python's integers that raise nothing: the program leaves them out where nothing uses the result"""
_PYTHON = {"bool": "bool", "int32": "int", "float32": "float"}
"""the dtypes of run-time scalars that Python's numbers have"""


class _Way(NamedTuple):
    """A way through the function: the recorder's steps, and its end, ("return", …) or ("raise", …) of nodes."""

    steps: list[Any]
    end: Instruction


def record(function: Callable[..., Any], option: str, kernel: str, arrays: Mapping[str, tuple[Any, int]],
           scalars: Mapping[str, Any], statics: Mapping[str, Any]) -> Expression:
    """Record a function of the user as an expression.

    option, kernel  what the function is of which kernel, for messages: "out_type", "matmul"
    arrays          dtype and rank of the arrays that the function may take, by name
    scalars         dtypes of the run-time scalars that it may take, by name; int32 is Python's int, float32 Python's float
    statics         values of the Statics, by name: constants of the expression

    Raises SpecError, with the user's line, for a function that no expression can say, or that takes another parameter.

    >>> square = record(lambda a: (a.shape[0] ** 2,), "grid", "k", {"a": (np.dtype(np.float16), 2)}, {}, {})
    >>> square(a=np.zeros((3, 64)))
    (9,)
    """
    wanted = parameter_names(function, option)
    if unknown := [name for name in wanted if name not in {*arrays, *scalars, *statics}]:
        raise SpecError(f"kernel {kernel}: {option} takes {', '.join(unknown)}, but an export knows "
                        f"{', '.join([*arrays, *scalars, *statics])}")
    taken = {name: arrays[name] for name in wanted if name in arrays}
    numbers = {name: _PYTHON.get(np.dtype(scalars[name]).name, f"np.{np.dtype(scalars[name]).name}")
               for name in wanted if name in scalars}
    constants = {name: statics[name] for name in wanted if name in statics}
    recorder = Recorder()
    try:
        ways = list(_ways(recorder, function, taken, numbers, constants))
        expression = Expression(kernel, option, tuple((name, rank) for name, (_, rank) in taken.items()), tuple(numbers.items()),
                                _code(recorder, ways))
    except Refused as refused:
        raise SpecError(_stamped(f"kernel {kernel}: {option} cannot be kept in a file, which holds expressions of sizes, Statics "
                                 f"and scalars: {refused.what}: {refused.mend}", function, refused.__traceback__)) from None
    _compare(expression, function, taken, numbers, constants)
    return expression


def _ways(recorder: Recorder, function: Callable[..., Any], arrays: Mapping[str, tuple[Any, int]], scalars: Mapping[str, str],
          statics: Mapping[str, Any]) -> Iterator[_Way]:
    """Go all ways through the function, those with the answer yes first."""
    answers: list[tuple[int, bool]] = []
    for _ in range(MOST_PATHS):
        recorder.begin(answers)
        known: dict[str, Any] = dict(statics)
        for name, (dtype, rank) in arrays.items():
            shape: Any = tuple(recorder.number(("axis", (), name, axis), int, (0, math.inf)) for axis in range(rank))
            known[name] = HostView(ArrayType(shape, dtype))
        for name, kind in scalars.items():
            known[name] = recorder.number(("scalar", (), name), KINDS[kind])
        try:
            with np.errstate(all="ignore"):
                end: Instruction = "return", (_node(recorder, function(**known)),)
        except Exception as error:
            end = _raised(recorder, error)
        if recorder.refused is not None:
            raise recorder.refused
        if recorder.asked < len(answers):
            recorder.changes()
        yield _Way(recorder.steps, end)
        while answers and not answers[-1][1]:
            answers.pop()
        if not answers:
            return
        answers[-1] = (answers[-1][0], False)
    recorder.refuse(f"there are more than {MOST_PATHS} ways through it", "decide less often, e.g. with one condition for all sizes")


def _node(recorder: Recorder, value: Any, inside: str = "") -> int:
    """Return the node of what a function returned, or of a part of that, which is `inside` a tuple or list."""
    node = recorder.operand(value)
    if node is not None:
        return node
    if value is None:
        return recorder.note(("none", ()))
    if isinstance(value, str):
        return recorder.text(value)
    name = type(value).__name__
    if type(value) in (tuple, list) and not inside:
        return recorder.note((name, tuple(_node(recorder, part, f" in a {name}") for part in value)))
    if type(value) is ArrayType:
        if value.dtype not in BY_DTYPE:
            recorder.refuse(f"it returns an ArrayType of {value.dtype}", f"kernels take {', '.join(map(str, BY_DTYPE))}")
        return recorder.note(("array", tuple(_node(recorder, size) for size in value.shape), BY_DTYPE[value.dtype].name))
    if type(value) is Workspace:
        return recorder.note(("workspace", tuple(_node(recorder, part) for part in (*value.tile, value.split, value.slots))))
    recorder.refuse(f"it returns a value of class {name}{inside}", "return numbers, ArrayType, Workspace, or a tuple of them")


def _raised(recorder: Recorder, error: Exception) -> Instruction:
    """Return the end of a way on which the function raises."""
    known = _known(error)
    whole = type(error) is known and all(
        part is None or isinstance(part, str) or recorder.operand(part) is not None for part in error.args)
    return "raise", tuple(_node(recorder, part) for part in (error.args if whole else (str(error),))), known.__name__


def _known(error: Exception) -> type[Exception]:
    """Return the nearest base class of an exception that a file holds."""
    return next(base for base in type(error).__mro__ if ERRORS.get(base.__name__) is base)


# ---- the program ----------------------------------------------------------------------------------------------------
def _code(recorder: Recorder, ways: list[_Way]) -> tuple[Instruction, ...]:
    """Return the ways as one program: those that go together share what comes before they part."""
    code: list[Instruction] = []

    def emit(ways: list[_Way], at: int, places: dict[int, int]) -> None:
        """Emit ways that are the same up to step `at`; `places` are the indices of the nodes that were computed on them."""
        steps = ways[0].steps
        while at < len(steps):
            step = steps[at]
            same = step[:2] if isinstance(step, tuple) else step
            if any((there[:2] if isinstance(there := way.steps[at] if at < len(way.steps) else None, tuple) else there) != same
                   for way in ways):
                recorder.changes()
            at += 1
            if isinstance(step, tuple):
                _, node, _ = step
                index = len(code)
                code.append(())
                for answer in (True, False):
                    emit([way for way in ways if way.steps[at - 1][2] is answer], at, dict(places))
                    if answer:
                        code[index] = ("if", (places[node],), len(code))
                return
            if step not in places:
                name, operands, *rest = recorder.nodes[step]
                places[step] = len(code)
                code.append((name, tuple(places[operand] for operand in operands), *rest))
        name, operands, *rest = ways[0].end
        code.append((name, tuple(places[operand] for operand in operands), *rest))
        if len(code) > MOST_INSTRUCTIONS:
            recorder.refuse(f"its ways have more than {MOST_INSTRUCTIONS} instructions", "compute and decide less of sizes")

    emit(ways, 0, {})
    return _without_unused(code, recorder)


def _without_unused(code: list[Instruction], recorder: Recorder) -> tuple[Instruction, ...]:
    """Leave out what nobody uses, and what cannot raise an error either."""
    exact: list[bool] = []  # whether the value is Python's integer, for each instruction
    for name, operands, *rest in code:
        exact.append(name == "axis" or (name == "const" and rest[0] in ("int", "bool"))
                     or (name in _PURE and all(exact[operand] for operand in operands)))
    used: set[int] = set()
    for index in reversed(range(len(code))):
        name, operands, *_ = code[index]
        if index in used or name in ("if", "return", "raise") or (name in OPERATIONS and not exact[index]):
            used |= {index, *operands}
    places = {index: place for place, index in enumerate(sorted(used))}
    following: dict[int, int] = {}
    for index in reversed(range(len(code))):
        following[index] = places.get(index, following.get(index + 1, 0))
    return tuple((name, tuple(places[operand] for operand in operands), *([following[rest[0]]] if name == "if" else rest))
                 for name, operands, *rest in (code[index] for index in sorted(used)))


# ---- what is wrong --------------------------------------------------------------------------------------------------
def _stamped(message: str, function: Callable[..., Any], found: TracebackType | None = None) -> str:
    """Return a message with the user's line where an error was found, or else the function's first line."""
    frames = [(frame, summary) for (frame, _), summary in zip(traceback.walk_tb(found), traceback.extract_tb(found), strict=True)
              if str(frame.f_globals.get("__name__")).partition(".")[0] not in ("numpipe", "numpy")]
    if frames:
        frame, summary = frames[-1]
        line = linecache.getline(summary.filename, summary.lineno or 0, frame.f_globals).rstrip("\n")
        column, end, last = (getattr(summary, name, None) for name in ("colno", "end_colno", "end_lineno"))  # None in Python 3.10
        begin, end = (len(line.encode()[:byte].decode(errors="ignore")) for byte in (
            len(line) - len(line.lstrip()) if column is None else column, end or 0))
        return Position(summary.filename, summary.lineno or 0, begin, last or 0, end, line).stamp(message)
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return Position(code.co_filename, code.co_firstlineno).stamp(message) if code else message


def _compare(expression: Expression, function: Callable[..., Any], arrays: Mapping[str, tuple[Any, int]],
             scalars: Mapping[str, str], statics: Mapping[str, Any]) -> None:
    """Raise SpecError where the expression says something else than the function, for some shapes."""
    choose = random.Random(len(expression.code))
    for _ in range(COMPARED):
        sizes = choose.choices(_SIZES, k=choose.randint(1, 4))  # few different ones: functions compare them
        views = {name: HostView(ArrayType(tuple(choose.choices(sizes, k=rank)), dtype)) for name, (dtype, rank) in arrays.items()}
        known = views | {name: KINDS[kind](choose.choice(_VALUES[np.dtype(KINDS[kind]).kind])) for name, kind in scalars.items()}
        expected, got = _outcome(function, known | dict(statics)), _outcome(expression, known)
        if expected != got:
            shown = ", ".join(f"{name} of shape {value.shape}" if name in views else f"{name}={value}"
                              for name, value in known.items())
            raise SpecError(_stamped(
                f"kernel {expression.kernel}: {expression.option} cannot be kept in a file: for {shown} it gives {expected}, but "
                f"what was recorded of it gives {got}: let it depend on its arguments only, compute with operators, min and max, "
                "and ask isinstance(n, int) instead of type(n)", function))


def _outcome(function: Callable[..., Any], known: Mapping[str, Any]) -> str:
    """Return what a function returns or raises, as text that tells types apart; a number of NumPy is one of Python here."""
    try:
        with np.errstate(all="ignore"):
            return _shown(function(**known))
    except Exception as error:
        return f"{_known(error).__name__}: {error}"


def _shown(value: Any) -> str:
    if type(value) in (tuple, list):
        return f"{type(value).__name__}({', '.join(map(_shown, value))})"
    return repr(value.item() if isinstance(value, np.generic) else value)
