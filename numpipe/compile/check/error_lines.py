"""The user's line of an error: errors of the simulator and of a compile are stamped ``file:line:
kernel name: …``, with the line underlined below.

Operations know what is wrong, but not where: they raise SpecError and CompileError from below the
user's statement. This module finds the statement, for a simulation in the traceback, for a compile
in what Numba was typing. Errors from Python and Numba are reduced to one line (Numba's can be 40 kB
long and rarely name the user's file); the original is the error's ``__context__``.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from collections.abc import Callable
from itertools import islice
from types import FunctionType, TracebackType
from typing import Any, TypeVar

from ...core.inert import REASON
from ...diagnostics.errors import CompileError, NumpipeError, Position, SimulationError
from ...diagnostics.reports import Line
from ...language.tiles.layouts import ACCUMULATOR, cast_for, said
from ...plan.unit import Unit
from ..lift.lift import Lifted
from ..lift.nodes import names, walk
from ..lift.positions import FIRST, Source

TUPLES = (
    "; a step's indices and its tiles are tuples, one of each too: for (k,), (tile,) in pipe(a)"
)
SCHEDULES = re.compile(r"numpipe.kernels.row_\w+\.py$")
"""matches the files that define the functions of row schedules"""
LONGEST = 300
"""The maximum number of characters of a reason from Numba or Python that are shown."""
_Error = TypeVar("_Error", bound=NumpipeError)


def call_position(lifted: Lifted, pattern: str) -> Position:
    """Return the position of the first call in a kernel's functions whose text matches `pattern`,
    or of the kernel's definition."""
    for source in lifted.sources:
        found = [
            node
            for node in walk(source.tree)
            if isinstance(node, ast.Call) and re.search(pattern, ast.unparse(node))
        ]
        if found:
            return source.position(min(found, key=lambda node: node.lineno))
    return lifted.definition


def stamp(error: _Error, unit: Unit, lifted: Lifted, places: list[Position]) -> _Error:
    """Prefix an error's message, once, with the innermost of `places` and the kernel, and append
    the calls on the way there."""
    message = str(error)
    files = "|".join(re.escape(source.filename) for source in lifted.sources)
    # a position that the message has is the better one: a report names the access, not the wait
    # that found it
    stamped = re.match(rf"({files}|[^ ,]+):(\d+): ", message)
    if stamped is not None:
        place = _position(lifted, stamped[1], int(stamped[2]), places)
        if place is not None and place.snippet() not in message:
            error.args = (place.stamp(message[stamped.end() :]),)
        return error
    for source in lifted.sources if places[1:] else ():
        ours = str(source.namespace.get("__name__")).startswith("numpipe.language.")
        if ours and source.covers(places[-1].filename, places[-1].line):
            # a function of numpipe that was called with wrong arguments: the error is at the call
            rows = re.findall(r"\n  ( +\w+  .*)", source.namespace.get(source.name).__doc__ or "")
            reason = f"{source.name}(…): {message.partition('; fix:')[0]}"
            message, places = "\n".join((f"{reason}; fix: pass what it takes", *rows)), places[:-1]
    while places[1:] and SCHEDULES.search(places[-1].filename):
        places = places[:-1]  # the mistake is in the arguments that the user's kernel passes
    if not message.startswith(f"kernel {unit.kernel}"):
        message = f"kernel {unit.kernel}: {message}"
    if places:
        *outer, inner = places
        calls = dict.fromkeys(f"{place.filename}:{place.line}" for place in reversed(outer))
        calls.pop(f"{inner.filename}:{inner.line}", None)
        message = "\n".join([inner.stamp(message), *(f"  called at {call}" for call in calls)])
    error.args = (message,)
    return error


def _position(lifted: Lifted, filename: str, line: int, places: list[Position]) -> Position | None:
    """Return what to underline on a line of which only the number is known."""
    if places and (places[-1].filename, places[-1].line) == (filename, line):
        return places[-1]
    return next(
        (source.statement(line) for source in lifted.sources if source.covers(filename, line)), None
    )


# ---- simulated -----------------------------------------------------------------------------------
def frames(error: Exception, lifted: Lifted) -> list[tuple[TracebackType, Source]]:
    """Return the frames of an error's traceback that run functions of the kernel, outermost
    first."""
    found, traceback = [], error.__traceback__
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        found += [
            (traceback, source)
            for source in lifted.sources
            if source.covers(filename, traceback.tb_lineno)
        ][:1]
        traceback = traceback.tb_next
    return found


def running(traceback: TracebackType, source: Source) -> Position:
    """Return the position of the expression that a frame evaluates; of its statement where Python
    (3.10) knows lines only."""
    if sys.version_info >= (3, 11):
        positions = traceback.tb_frame.f_code.co_positions()
        line, end_line, column, end_column = next(islice(positions, traceback.tb_lasti // 2, None))
        if line is not None and column is not None:
            return source.span(line, column, end_line or 0, end_column or 0)
    return source.statement(traceback.tb_lineno)


def simulated(error: Exception, unit: Unit, lifted: Lifted) -> NumpipeError:
    """Return the user's error for what a simulated kernel raised."""
    found = frames(error, lifted)
    places = [running(*frame) for frame in found]
    if isinstance(error, SimulationError):
        # The kernel's definition, for an error that is found after the kernel has ended.
        places = places or [lifted.definition]
        stamp(error, unit, lifted, places)
        # The report gets the message's present text; a party without a line gets the message's
        # line.
        if (report := error.report) is not None:
            now = report.now
            # all warpgroups wait at the end of the kernel
            if now is None and not any(party.lines for party in report.waiting):
                now = next(iter(report.waiting), None)
            if now is not None and not now.lines:
                now = dataclasses.replace(
                    now, lines=tuple(Line(p.filename, p.line, unit.kernel) for p in places[-1:])
                )
            error.report = dataclasses.replace(
                report, text=str(error), kernel=report.kernel or unit.kernel, now=now
            )
        return error
    if isinstance(error, NumpipeError):
        text = re.sub(
            r"^.+?(?= is an operation of the whole warpgroup)",
            lambda _: _code(places[-1]) if places else "it",
            spoken(str(error)),
        )
        error.args = (hinted(text, unit, places),)
        return stamp(error, unit, lifted, places)
    what = hinted(f"{type(error).__name__}: {_sentence(spoken(str(error)))}", unit, places)
    raised: NumpipeError
    if found and (
        foreign := numba_call(
            found[-1][1].tree, found[-1][0].tb_lineno, found[-1][0].tb_frame.f_globals
        )
    ):
        raised = CompileError(
            f"{foreign}(…) is a Numba function, which runs only on a GPU and not on the simulated "
            f"SM; fix: use numpipe's operations ({what})"
        )
    elif isinstance(error, FloatingPointError):
        raised = SimulationError(
            f"{error}: a kernel's integers are int32, which wrap silently on the GPU"
        )
    else:
        raised = SimulationError(what) if isinstance(error, ArithmeticError) else CompileError(what)
    return stamp(raised, unit, lifted, places)


_BUILTIN = re.compile(r"\b(int|float)\(")
_NOT_FOR_TILES = re.compile(
    rf"a (register tile|mask)\b.* {re.escape(REASON)}|\w+\(…\) converts a number, got a register "
    r"tile"
)
_INDEXED = re.compile(
    r"invalid index to scalar variable|'(int|float|bool)' object is not subscriptable|"
    r"'\[\]' is not defined for (bool|b?float\d+|u?int\d+) and"
)
_OF_TILES = {"int": "x.astype(np.int32)", "float": "x.astype(np.float32)"}


def hinted(message: str, unit: Unit, places: list[Position]) -> str:
    """Return the message of an error, with a fix if the error is a common mistake with tiles or
    shapes."""
    code = _code(places[-1]) if places else ""
    if _NOT_FOR_TILES.match(message) and (builtin := _BUILTIN.search(code)):
        return (
            f"{builtin[1]}(…) takes numbers, but one of its arguments is a tile; fix: to convert "
            f"the elements of a tile, write {_OF_TILES[builtin[1]]}"
        )
    if _INDEXED.search(message) and (name := re.match(r"`(\w+)\[", code)):
        return (
            f"'{name[1]}' is a number, and only arrays and tiles can be indexed; fix: pass an "
            f"array as {name[1]}, or use {name[1]} without an index"
        )
    if message.endswith("tuple index out of range"):
        for read, name, axis in _SIZE.findall(code):
            dims = next((array.ndim for array in unit.arrays if array.name == name), int(axis) + 1)
            if int(axis) >= dims:
                return f"{read}: '{name}' has {dims} dimension{'s' * (dims != 1)}"
    return message + next((hint for pattern, hint in _HINTS if pattern.search(message)), "")


def _code(place: Position) -> str:
    """Return the code at a position as quoted in a message."""
    start, end = place.columns
    more = " …" if place.end_line > place.line or end - start > LONGEST else ""
    return f"`{place.text[start : min(end, start + LONGEST)]}{more}`" if end > start else "it"


def numba_call(tree: ast.AST, line: int, namespace: dict[str, Any]) -> str | None:
    """Return the Numba function that the source calls on `line`, as written there."""
    for node in walk(tree):
        if not isinstance(node, ast.Call) or not node.lineno <= line <= (
            node.end_lineno or node.lineno
        ):
            continue
        written = ast.unparse(node.func)
        value, *attributes = written.split(".")
        found = namespace.get(value)
        for attribute in attributes:
            found = getattr(found, attribute, None)
        home = (
            getattr(found, "__module__", None)
            if isinstance(found, (type, FunctionType))
            else type(found).__module__
        )
        if found is not None and str(home).startswith("numba."):
            return written
    return None


# ---- compiled ------------------------------------------------------------------------------------
def compiled(error: Exception, unit: Unit, lifted: Lifted) -> NumpipeError:
    """Return the user-facing error for an exception that Numba raised, or an operation while it was
    typed."""
    from ...core import numba as nb

    reason, lines = nb.explain(error, FIRST)
    places = [place for line in lines if (place := lifted.positions.find(line)) is not None]
    if isinstance(error, NumpipeError):
        error.args = (hinted(readable(str(error), unit), unit, places),)
        return stamp(error, unit, lifted, places)
    places = places or [lifted.definition]
    reason = _sentence(readable(reason, unit))
    if missing := re.search(r"has no attribute '(\w+)'$", reason):
        places[-1] = _attribute(places[-1], missing[1])
    if laid := re.match(r"'(\w+)' has two layouts here", reason):
        places[-1] = _bound(places[-1], laid[1], lifted)
    elif reason.startswith("it returns two layouts"):
        places[-1] = _returned(places[-1], lifted)
    message = hinted(reason, unit, places)
    if message.startswith(reason):
        message = f"{_code(places[-1])} cannot be compiled: {message}"
    return stamp(CompileError(message), unit, lifted, places)


def _bound(place: Position, name: str, lifted: Lifted) -> Position:
    """Return the position where a variable gets a type that does not fit: the last binding before
    `place` at which its types meet, or the binding in the loop at whose head they meet."""
    source = next(
        (source for source in lifted.sources if source.covers(place.filename, place.line)), None
    )
    if source is None:
        return place
    nodes = list(walk(source.tree))
    loops = [
        node
        for node in nodes
        if isinstance(node, (ast.For, ast.While)) and node.lineno == place.line
    ]
    binds = [
        node
        for node in nodes
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr))
        and name in names(ast.Store, node)
    ]
    inside = [
        node
        for loop in loops
        for node in binds
        if loop.lineno < node.lineno <= (loop.end_lineno or 0)
    ]
    before = inside or [node for node in binds if node.lineno <= place.line]
    return source.position(max(before, key=lambda node: node.lineno)) if before else place


def _returned(place: Position, lifted: Lifted) -> Position:
    """Return the last `return` of the function around `place`: Numba names one of several, in an
    arbitrary order."""
    for source in lifted.sources:
        around = (
            [
                node
                for node in walk(source.tree)
                if isinstance(node, ast.FunctionDef)
                and node.lineno <= place.line <= (node.end_lineno or 0)
            ]
            if source.covers(place.filename, place.line)
            else []
        )
        if around:
            returns = [
                node
                for node in walk(max(around, key=lambda node: node.lineno))
                if isinstance(node, ast.Return)
            ]
            return source.position(max(returns, key=lambda node: node.lineno))
    return place


def _attribute(called: Position, name: str) -> Position:
    """Return the part of a method call up to its name, if the method is what is wrong: a single
    line number in Numba covers both."""
    start, end = called.columns
    found = re.search(rf"\b{name}\s*\(", called.text[start:end])
    if found is None:
        return called
    return dataclasses.replace(
        called, end_line=called.line, end_column=start + found.start() + len(name)
    )


_TYPES = {
    "gmem": "array",
    "smem": "shared-memory tile",
    "in flight": "tile in flight",
    "pipeline": "pipeline",
    "bound": "nested function",
    "BlockSpec": "BlockSpec",
    "context": "context",
    "steps": "pipeline loop",
    "ring": "ring",
    "at": "view",
    "slots": "slots of a tile",
    "barriers": "barrier",
    "view": "view of an array",
    "omitted": "default",
}
_TWO = r"tile\((\([\d, ]+\)), (\w+)(?:, ([\w ]+))?\)%stile\(\1, \2(?:, ([\w ]+))?\)"
"""A pattern of two tile types that differ in their layouts."""


def _two_layouts(message: str) -> Callable[[re.Match[str]], str]:
    """Return the replacement of a match of `_TWO`: a message with BOTH types, the NAME of the
    variable, and its CAST."""

    def replacement(found: re.Match[str]) -> str:
        shape, dtype, *laid = found.groups()[:4]
        # Numba's order may be arbitrary
        one, other = sorted((layout or ACCUMULATOR for layout in laid), reverse=True)
        name = found[5] if found.re.groups > 4 else "x"
        both = " and ".join(f"tile {shape} {dtype} ({layout} layout)" for layout in (one, other))
        cast = f'numpipe.layout_cast({name}, "{cast_for(one, other)}")'
        return message.replace("NAME", name).replace("BOTH", both).replace("CAST", cast)

    return replacement


_NUMBA_SAYS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (
        rf"Cannot unify {_TWO % ' and '} for '\$[\w.]*'",
        _two_layouts("a conditional expression needs one layout, got BOTH; fix: cast one: CAST"),
    ),
    (
        rf"Cannot unify {_TWO % ' and '} for '([\w$]+)[\w.]*'",
        _two_layouts("'NAME' has two layouts here, BOTH; fix: cast one: CAST"),
    ),
    (
        rf"Can't unify return type from the following types: {_TWO % ', '}\s*Return of[\s\S]*",
        _two_layouts("it returns two layouts, BOTH; fix: cast one: CAST"),
    ),
    (r"\('wrong tuple length for .*?: ', '(.*?)'\)", r"wrong tuple length: \1"),
    (
        r"Cannot unify (.+) and (.+) for '\$[\w.]*'",
        r"a conditional expression needs one type, got \1 and \2; fix: convert one side, float(n) "
        "or int(x)",
    ),
    (
        r"Cannot unify (.+) and (.+) for '([\w$]+)[\w.]*'",
        r"'\3' has two types here (\1 and \2); "
        "fix: assign it in one place, or the same type everywhere",
    ),
    (r"Cannot resolve setattr: \((.+)\)\.(\w+) = .*", r"'\2' of \1 cannot be set"),
    (
        r"Can't unify return type from the following types: (.+?)\s*Return of[\s\S]*",
        r"it returns values of several types (\1); "
        "fix: convert them to one type",
    ),
    (
        r"Invalid use of getiter with parameters \((.*)\)[\s\S]*",
        r"a 'for' loop iterates over a range, or over a tuple of values of one type, "
        r"got \1",
    ),
    (r"Invalid use of (.+?) with parameters [\s\S]*", r"\1 is not a function"),
    (
        r"The compiler failed to analyze the bytecode\. Variable '(\w+)' is not defined[\s\S]*",
        r"'\1' may have no value here yet; fix: assign it before the loop",
    ),
    (r"Unknown attribute '(\w+)' of type (.+)", r"\2 has no attribute '\1'"),
    (
        r"\btile\((\([^()]*\)), (\w+)(?:, ([\w ]+))?\)",
        lambda found: said(found[1], found[2], found[3] or ACCUMULATOR),
    ),
    (r"a run-time inert\(([^()]*)\)|\binert\(([^()]*)\)", r"\1\2"),
    (r"Cannot bind .* to signature .* due to \"(.*)\"\.?", r"\1"),
)
_STILL_IN_TUPLE = re.compile(
    r"\(shared-memory tile \([^()]*\) \w+,\)|'[=!<>]=?' is not defined for \(int32,\)|and "
    r"\(int32,\)$"
)
_SIZE = re.compile(r"\b((\w+)\.shape\[(\d+)\])")
_HINTS = (
    (_STILL_IN_TUPLE, TUPLES),
    (
        re.compile(
            r"only integers, slices|array index type|'tile' does not support ufuncs|"
            r"'(Tensor|jax\S+)'|(and|modify) readonly array|, (ndarray|readonly array)\b"
        ),
        "; fix: pass an array from outside the kernel as an argument, and a function of attention "
        "as score=(f, array)",
    ),
    (
        re.compile("'tile' has no len"),
        "; fix: write x.shape[0] for the length of a tile x, and pass an array from outside the "
        "kernel as an argument",
    ),
    (
        re.compile(r"'functools.partial'|got partial|\b(for|and|got) nested function"),
        "; fix: call the function, such as value(j) for a value of a row",
    ),
    (
        re.compile(r"'tuple' object is not callable|\(nested function,.*\) is not a function"),
        "; fix: unpack the tuple, such as value, block = row.load(…) or p, total = row.softmax(…)",
    ),
    (
        re.compile(
            r"(operand type|supported between|not defined for|register tiles?\b[^()]*\bgot "
            r"(?!\()).*shared-memory tile|shared-memory tile.* has no attribute"
        ),
        "; tile[...] loads a shared-memory tile to registers",
    ),
)
_TYPE = re.compile(rf"\b({'|'.join(_TYPES)})\(")
_TILE = re.compile(r"Layout\(shape=(\([^)]*\)).*?\), (\w+), ")


def readable(text: str, unit: Unit) -> str:
    """Return a message of Numba with its type names rewritten in the user's terms."""
    text = re.sub(r",? ?defined at [^\n]*? \(\d+\)|\.? Raised from .*|\s+During: .*", "", text)
    text = re.sub(r"Literal\[\w+\]\(([^()]*)\)", r"\1", text)
    for pattern, instead in _NUMBA_SAYS:
        text = re.sub(pattern, instead, text)
    parts, start = [], 0
    while (found := _TYPE.search(text, start)) is not None:
        end, depth = found.end(), 1
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        inside = text[found.end() : end - 1]
        if found[1] == "gmem" and (array := re.search(r"#\d+, (\d+), \w+, \w+, \w*$", inside)):
            words = f"array '{unit.arrays[int(array[1])].name}'"
        elif found[1] == "smem" and (tile := _TILE.match(inside)):
            words = f"shared-memory tile {tile[1]} {tile[2]}"
        else:
            internal = re.search(r"[#@]\d|Layout\(|Plan\(", inside) or found[1] in (
                "in flight",
                "omitted",
            )
            words = _TYPES[found[1]] if internal else f"{found[0]}{inside})"
        parts += [text[start : found.start()], words]
        start = end
    return _tuples("".join([*parts, text[start:]]))


def _tuples(text: str) -> str:
    """Return a message with tuple types written like tuples."""
    text = re.sub(
        r"UniTuple\(((?:[^()]|\([^()]*\))+) x (\d+)\)",
        lambda m: f"({', '.join([m[1]] * int(m[2]))}{',' * (m[2] == '1')})",
        text,
    )
    return re.sub(r"\bTuple\(", "(", text)


_VALUE = re.compile(r"\bnp\.([a-z]+\d+)\([-+.e\d]*\)")
"""A run-time value of the simulator, as NumPy prints it."""
_CLASSES = {
    "GmemRef": "array",
    "SmemTile": "shared-memory tile",
    "LaneTile": "shared-memory tile",
    "Tile": "tile",
    "Slots": "slots of a tile",
    "BarrierRef": "barrier",
    "GmemView": "view of an array",
}


def spoken(text: str) -> str:
    """Return a message of a simulation with names of classes and functions written in the user's
    terms."""
    text = re.sub(rf"\b({'|'.join(_CLASSES)})\b", lambda name: _CLASSES[name[1]], text)
    # types instead of values, as in a compile
    text = re.sub(r"\bgot .*", lambda got: _VALUE.sub(r"\1", got[0]), text)
    text = re.sub(r"(?<=')numpy\.| at 0x\w+", "", text)
    text = re.sub(
        r"^('tuple' object has no attribute '\w+'|tuple indices must be integers or slices, not "
        r"ellipsis)$",
        rf"\1{TUPLES}",
        text,
    )
    # a nested function, numbered while it was lifted
    return re.sub(r"\b(\w+?)__\d+\(\)", r"\1()", text)


def _sentence(text: str) -> str:
    """Return the first sentence of a text, on one line."""
    line = " ".join(text.strip().split("\n\n")[0].split())
    line = re.split(r"(?<=[\w)\]'\"])\.(?: +(?=[A-Z])|$)", line)[0]
    return line if len(line) <= LONGEST else line[:LONGEST] + " …"
