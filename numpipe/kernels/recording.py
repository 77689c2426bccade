"""Functions of shapes are recorded: a user's out_type, grid or workspace becomes an `Expression`, which a file can hold.

`record` calls the function as a call of the kernel would, but with a `Number` for each size of an array and for each run-time scalar.
What is computed of Numbers are Numbers again, and the recorder notes the operation. Where Python asks whether a Number is true
(``if``, ``and``, ``max``, a comparison of shapes) the recorder answers yes, notes the question, and calls the function once more for
the other answer, until no answer is left: dtypes, ranks and Statics are constants, so few questions are asked. A way on which the
function raises ends with that exception, and its message may name the sizes.

What a Number cannot follow is refused, with the user's line: where Python wants a number of its own (``int``, ``range``, an index, a
key of a dict), functions of ``math`` and NumPy, loops whose rounds depend on a size. What it cannot notice, a function that asks for
``type(n)`` or answers differently each time, is found by comparing function and expression on some shapes. What a function reads
besides its arguments, a global variable say, is recorded as it is when the function is recorded.
"""

from __future__ import annotations

import inspect
import math
import random
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..arch.dtypes import BY_DTYPE
from ..diagnostics.errors import Position, SpecError
from ..plan.specs import ArrayType, Workspace
from .expressions import ERRORS, MOST_DEPTH, MOST_INSTRUCTIONS, OPERATIONS, Expression, Instruction
from .options import parameter_names
from .recorded_numbers import MOST_PATHS, Recorder, Refused, split_text
from .results import HostView

COMPARED = 32
"""shapes on which function and expression are compared"""
_SIZES = (0, 1, 2, 3, 7, 8, 16, 60, 63, 64, 65, 100, 127, 128, 129, 256, 1000, 1024, 4096, 5000, 65536, 1 << 20)
_VALUES: dict[str, tuple[Any, ...]] = {
    "bool": (False, True), "int": (0, 1, -1, 2, 7, 100, -64), "float": (0.0, 1.0, -1.5, 0.5, 3.0, 1e30)}
_PURE = {"neg", "pos", "abs", "invert", "add", "sub", "mul", "and_", "or_", "xor", "lt", "le", "gt", "ge", "eq", "ne", "int"}
"""operations that raise nothing, if their operands are Python's integers: nobody misses them where the result is not used"""


class _Info(NamedTuple):
    """What a `HostView` shows of an array."""

    shape: tuple[Any, ...]
    dtype: Any


class _Way(NamedTuple):
    """A way through the function: what was computed and asked, and the nodes of the end, ("return", …) or ("raise", …)."""

    steps: list[Any]
    end: Instruction


def record(function: Callable[..., Any], option: str, kernel: str, arrays: Mapping[str, tuple[Any, int]],
           scalars: Mapping[str, Any], statics: Mapping[str, Any]) -> Expression:
    """Record a function of the user as an expression.

    option, kernel  what the function is of which kernel, for messages: "out_type", "matmul"
    arrays          dtype and rank of the arrays that the function may take, by name
    scalars         dtypes of the run-time scalars that it may take, by name
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
    numbers = {name: {"b": "bool", "f": "float"}.get(np.dtype(scalars[name]).kind, "int") for name in wanted if name in scalars}
    constants = {name: statics[name] for name in wanted if name in statics}
    recorder = Recorder()
    try:
        ways = list(_ways(recorder, function, taken, numbers, constants))
        expression = Expression(kernel, option, tuple((name, rank) for name, (_, rank) in taken.items()), tuple(numbers.items()),
                                _code(recorder, ways))
    except Refused as refused:
        where = _place(refused, function)
        raise SpecError(where.stamp(f"kernel {kernel}: {option} cannot be kept in a file, which holds expressions of sizes, Statics "
                                    f"and scalars: {refused.what}: {refused.mend}")) from None
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
            shape = tuple(recorder.number(("axis", (), name, axis), int, (0, math.inf)) for axis in range(rank))
            known[name] = HostView(_Info(shape, dtype))  # type: ignore[arg-type]
        for name, kind in scalars.items():
            known[name] = recorder.number(("scalar", (), name), {"bool": bool, "int": int, "float": float}[kind])
        try:
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


def _node(recorder: Recorder, value: Any, depth: int = 0) -> int:
    """Return the node of what a function returned, or of a part of that."""
    node = recorder.operand(value)
    if node is not None:
        return node
    if value is None:
        return recorder.note(("none", ()))
    if isinstance(value, str):
        parts, nodes, forms = split_text(value)
        return recorder.note(("text", nodes, parts, forms))
    if type(value) in (tuple, list) and depth < MOST_DEPTH:
        return recorder.note((type(value).__name__, tuple(_node(recorder, part, depth + 1) for part in value)))
    if type(value) is ArrayType:
        if value.dtype not in BY_DTYPE:
            recorder.refuse(f"it returns an ArrayType of {value.dtype}", f"kernels take {', '.join(map(str, BY_DTYPE))}")
        return recorder.note(("array", tuple(_node(recorder, size) for size in value.shape), BY_DTYPE[value.dtype].name))
    if type(value) is Workspace:
        return recorder.note(("workspace", tuple(_node(recorder, part) for part in (*value.tile, value.split, value.slots))))
    recorder.refuse(f"it returns {f'a {type(value).__name__}' if depth < MOST_DEPTH else 'tuples in tuples in tuples'}",
                    "a file holds numbers, tuples of them, ArrayType and Workspace")


def _raised(recorder: Recorder, error: Exception) -> Instruction:
    """Return the end of a way on which the function raises."""
    name = type(error).__name__
    if ERRORS.get(name) is not type(error):
        refused = Refused(f"it raises {name}: {error}", "a file holds Python's own exceptions, such as ValueError, and numpipe's")
        raise refused.with_traceback(error.__traceback__)
    nodes = []
    for argument in error.args:
        if not isinstance(argument, str) and argument is not None and recorder.operand(argument) is None:
            refused = Refused(f"it raises {name} with a {type(argument).__name__}", "give the exception a text")
            raise refused.with_traceback(error.__traceback__)
        nodes.append(_node(recorder, argument))
    return "raise", tuple(nodes), name


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
            recorder.refuse(f"its ways have more than {MOST_INSTRUCTIONS} instructions", "compute less of shapes, decide less often")

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
    following = {}
    for index in reversed(range(len(code))):
        following[index] = places.get(index, following.get(index + 1, 0))
    return tuple((name, tuple(places[operand] for operand in operands), *([following[rest[0]]] if name == "if" else rest))
                 for name, operands, *rest in (code[index] for index in sorted(used)))


# ---- what is wrong --------------------------------------------------------------------------------------------------
def _place(error: BaseException, function: Callable[..., Any]) -> Position:
    """Return the user's line that an error comes from, the last one that is not numpipe's, or the function's."""
    frames = [part for part in traceback.walk_tb(error.__traceback__)
              if str(part[0].f_globals.get("__name__")).partition(".")[0] != __name__.partition(".")[0]]
    if frames:
        [summary] = traceback.StackSummary.extract(iter(frames[-1:]))
        return Position(summary.filename, summary.lineno or 0, text=summary.line or "")
    code = getattr(inspect.unwrap(function), "__code__", None)
    return Position(code.co_filename, code.co_firstlineno) if code else Position("<unknown>", 0)


def _compare(expression: Expression, function: Callable[..., Any], arrays: Mapping[str, tuple[Any, int]],
             scalars: Mapping[str, str], statics: Mapping[str, Any]) -> None:
    """Raise SpecError where the expression says something else than the function, for some shapes."""
    choose = random.Random(len(expression.code))
    for _ in range(COMPARED):
        sizes = choose.choices(_SIZES, k=choose.randint(1, 4))  # few different ones: functions compare them
        views = {name: HostView(_Info(tuple(choose.choices(sizes, k=rank)), dtype)) for name, (dtype, rank) in arrays.items()}
        known = {**views, **{name: choose.choice(_VALUES[kind]) for name, kind in scalars.items()}}
        expected, got = _outcome(function, known | dict(statics)), _outcome(expression, known)
        if expected != got:
            shown = ", ".join(f"{name} of shape {value.shape}" if name in views else f"{name}={value}" for name, value in known.items())
            where = _place(SystemError(), function)
            raise SpecError(where.stamp(
                f"kernel {expression.kernel}: {expression.option} cannot be kept in a file: for {shown} it gives {expected}, and "
                f"what was recorded of it {got}: it may depend on arguments only, use operators, min, max and functions of math on "
                "sizes, and ask isinstance instead of type"))


def _outcome(function: Callable[..., Any], known: Mapping[str, Any]) -> str:
    """Return what a function gives, as text that tells types apart; an integer of NumPy is one of Python here."""
    try:
        return _shown(function(**known))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _shown(value: Any) -> str:
    if type(value) in (tuple, list):
        return f"{type(value).__name__}({', '.join(map(_shown, value))})"
    return repr(value.item() if isinstance(value, np.generic) else value)
