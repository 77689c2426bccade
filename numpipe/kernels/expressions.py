"""Functions of shapes as data: what `recording` makes of a user's out_type, grid or workspace, and a file holds.

An `Expression` is a program of a closed set of operations, one instruction after the other. An instruction is a tuple
``(operation, references, constants…)``; a reference is the index of an earlier instruction. ``lambda a, b: ArrayType((a.shape[0],
max(b.shape[0], 8)), a.dtype)`` of float16 becomes ::

    0  ["axis", [], "a", 0]
    1  ["axis", [], "b", 0]
    2  ["const", [], "int", 8]
    3  ["gt", [2, 1]]             max asks whether 8 > b.shape[0]
    4  ["if", [3], 7]             go on with 5, or with 7 where it is not
    5  ["array", [0, 2], "float16"]
    6  ["return", [5]]
    7  ["array", [0, 1], "float16"]
    8  ["return", [7]]

Jumps lead forward only, so a program ends, and its instructions run in the order in which the user's function computed: an error of
Python's, a division by zero say, comes from the same place. Values are Python's own and NumPy's scalars, as in the function, and no
operation makes anything of a file but numbers, texts, tuples, `ArrayType` and `Workspace`.
"""

from __future__ import annotations

import builtins
import inspect
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arch.dtypes import ELEMENTS
from ..core.arith import converted
from ..diagnostics import errors
from ..diagnostics.errors import ImageError, SpecError
from ..plan.specs import ArrayType, Workspace

Instruction = tuple[Any, ...]

MOST_INSTRUCTIONS = 10_000
MOST_BITS = 1 << 13
"""of an integer: no shape needs more, and a damaged file does not compute for hours"""
MOST_DEPTH = 4
"""of tuples in tuples that a function returns"""

UNARY: dict[str, Callable[..., Any]] = {
    "neg": operator.neg, "pos": operator.pos, "abs": operator.abs, "invert": operator.invert, "round": round, "floor": math.floor,
    "ceil": math.ceil, "trunc": math.trunc, "bit_length": lambda value: value.bit_length(),
    "int": lambda value: converted(value, int), "int32": lambda value: converted(value, np.int32)}
BINARY: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor",
                                               "lshift", "rshift", "lt", "le", "gt", "ge", "eq", "ne")} | {"round_to": round}
OPERATIONS = UNARY | BINARY
"""the operations on numbers; the others are those of `_FORMS`"""
_NUMBER, _TEXT, _NONE, _OBJECT, _TUPLE = "number", "text", "None", "an ArrayType or Workspace", "tuple"
_FORMS: dict[str, tuple[str, ...]] = {
    "axis": (), "scalar": (), "const": (), "none": (), "text": (_NUMBER,), "array": (_NUMBER,), "workspace": (_NUMBER, _TEXT, _NONE),
    "tuple": (_NUMBER, _TEXT, _NONE, _OBJECT, _TUPLE), "list": (_NUMBER, _TEXT, _NONE, _OBJECT, _TUPLE)}
"""what references of the operations that are not on numbers may be to"""
_ENDS = {"return": (_NUMBER, _TEXT, _NONE, _OBJECT, _TUPLE), "raise": (_NUMBER, _TEXT, _NONE)}

ERRORS: dict[str, type[Exception]] = {name: getattr(builtins, name) for name in (
    "ArithmeticError", "AssertionError", "AttributeError", "Exception", "IndexError", "KeyError", "LookupError",
    "NotImplementedError", "OverflowError", "RuntimeError", "TypeError", "ValueError", "ZeroDivisionError")} | {
    name: getattr(errors, name) for name in errors.__all__}
"""the exceptions that a recorded function may raise, by name"""
SCALARS: dict[str, type] = {"bool": bool, "int": int, "float": float}
"""the kinds of run-time scalars"""
_NUMPY = {f"np.{np.dtype(kind).name}": kind for kind in (
    np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.float16, np.float32, np.float64)}
_FORMAT = re.compile(r"([^\d{}]?[<>=^])?[-+ ]?#?0?\d{0,2}[,_]?(\.\d{1,2})?[a-zA-Z%]?")
"""a format of a number in a message; wider ones would only make a message long"""


def constant(value: Any) -> Instruction | None:
    """Return the instruction that makes a number; None for what is no number that a file holds.

    >>> constant(3), constant(float("inf")), constant(np.int32(3)), constant("3")
    (('const', (), 'int', 3), ('const', (), 'float', 'inf'), ('const', (), 'np.int32', 3), None)
    """
    kind = type(value)
    name = f"np.{value.dtype.name}" if isinstance(value, np.generic) else kind.__name__
    if (SCALARS.get(name) or _NUMPY.get(name)) is not kind or (name == "int" and value.bit_length() > MOST_BITS):
        return None
    plain = value.item() if isinstance(value, np.generic) else value
    return "const", (), name, plain.hex() if isinstance(plain, float) else plain


def number(name: str, plain: Any) -> Any:
    """Return the number of a `constant`'s last two fields. Raises ValueError for fields that no constant has."""
    kind = SCALARS.get(name) or _NUMPY.get(name)
    if kind is None:
        raise ValueError(f"{name!r} is no kind of number")
    stored: type = bool if kind in (bool, np.bool_) else int if issubclass(kind, (int, np.integer)) else str
    if type(plain) is not stored or (stored is int and plain.bit_length() > MOST_BITS):
        raise ValueError(f"{str(plain)[:40]!r} is no {name}")
    try:
        return kind(float.fromhex(plain) if stored is str else plain)
    except OverflowError:
        raise ValueError(f"{str(plain)[:40]!r} is no {name}") from None


def is_format(text: str) -> bool:
    """Whether a message may show a number so: "s" and "r" are str() and repr(), "f" and a format of a few characters format()."""
    return text in ("s", "r") or (text[:1] == "f" and _FORMAT.fullmatch(text, 1) is not None)


def check_view(view: Any, name: str, rank: int, what: str) -> None:
    """Raise SpecError for an array of another rank than the function was recorded for."""
    if len(view.shape) != rank:
        raise SpecError(f"{what} was recorded for '{name}' of {rank} dimensions, got shape {tuple(view.shape)}: export the kernel "
                        "with such an array too")


@dataclass(frozen=True)
class Expression:
    """A function of the user, recorded for arrays of certain dtypes and ranks, and for certain Statics.

    kernel, option  whose it is, for messages: "matmul", "out_type"
    arrays          the arrays that it is given: name and rank
    scalars         the run-time scalars that it is given: name, and "bool", "int" or "float"
    code            its instructions

    It stands wherever the function stood: it is called by the names of its parameters, which `inspect.signature` tells, with
    anything that has a ``shape`` for an array. NumPy's scalars count as the Python numbers that they hold. It returns what the
    function would, or raises an exception of the same class with the same message. SpecError: an array has another rank.

    >>> half = Expression("k", "grid", (("a", 1),), (), (("axis", (), "a", 0), ("const", (), "int", 2), ("floordiv", (0, 1)),
    ...                                                 ("tuple", (2,)), ("return", (3,))))
    >>> half(a=np.zeros(10))
    (5,)
    """

    kernel: str
    option: str
    arrays: tuple[tuple[str, int], ...]
    scalars: tuple[tuple[str, str], ...]
    code: tuple[Instruction, ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in (*self.arrays, *self.scalars)]
        object.__setattr__(self, "__signature__", inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]))

    def __call__(self, **known: Any) -> Any:
        what, code = f"kernel {self.kernel}: {self.option}", self.code
        for name, rank in self.arrays:
            check_view(known[name], name, rank, what)
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in known.items()}
        values: list[Any] = [None] * len(code)
        at = 0
        while True:
            name, references, *rest = code[at]
            operands = [values[reference] for reference in references]
            if name == "return":
                return operands[0]
            if name == "raise":
                raise ERRORS[rest[0]](*operands)
            if name == "if":
                at = at + 1 if operands[0] else rest[0]
                continue
            values[at] = _run(name, operands, rest, plain, what)
            at += 1

    # ---- in a file
    def to_json(self) -> dict[str, Any]:
        """Return the expression as lists, dicts, strings, ints and bools; `from_json` undoes it."""
        return {"kernel": self.kernel, "option": self.option, "arrays": _listed(self.arrays), "scalars": _listed(self.scalars),
                "code": _listed(self.code)}

    @classmethod
    def from_json(cls, value: Any, what: str = "a function of shapes") -> Expression:
        """Return the expression that `to_json` wrote. Nothing of the value is executed.

        Raises ImageError, which begins with `what` and names the first instruction that no recorded function has.
        """
        try:
            if not isinstance(value, dict) or value.keys() != {"kernel", "option", "arrays", "scalars", "code"}:
                raise ValueError("it is no object of kernel, option, arrays, scalars and code")
            fields = {name: _frozen(value[name], name) for name in ("arrays", "scalars", "code")}
            expression = cls(value["kernel"], value["option"], **fields)  # type: ignore[arg-type]
            _check_header(expression)
            _check_code(expression)
        except ValueError as error:
            raise ImageError(f"{what} cannot be used: {error}; export the kernel again") from None
        return expression


def _run(name: str, operands: list[Any], rest: list[Any], known: Mapping[str, Any], what: str) -> Any:
    """Return the value of an instruction that is no jump and no end."""
    if name in OPERATIONS:
        return calculated(name, operands, what)
    match name:
        case "axis":
            return int(known[rest[0]].shape[rest[1]])
        case "scalar":
            return known[rest[0]]
        case "const":
            return number(*rest)
        case "tuple":
            return tuple(operands)
        case "list":
            return operands
        case "text":
            shown = [repr(value) if form == "r" else format(value, form[1:] if form[0] == "f" else "")
                     for value, form in zip(operands, rest[1], strict=True)]
            return "".join(part for pair in zip(rest[0], [*shown, ""], strict=True) for part in pair)
        case "array":
            return ArrayType(tuple(operands), ELEMENTS[rest[0]].dtype)
        case "workspace":
            return Workspace((operands[0], operands[1]), operands[2], slots=operands[3])
    return None  # "none"


def calculated(name: str, operands: list[Any], what: str) -> Any:
    """Return what an operation makes of numbers. Raises SpecError for an integer of more than `MOST_BITS` bits."""
    ints = all(isinstance(value, int) for value in operands)
    bits = operands[0].bit_length() if ints else 0
    if (bits > 1 and name == "pow" and bits * operands[1] > 4 * MOST_BITS) or (
            bits and name == "lshift" and operands[1] > MOST_BITS) or (name == "round_to" and abs(operands[1]) > MOST_BITS):
        raise _too_large(what)
    result = OPERATIONS[name](*operands)
    if type(result) is int and result.bit_length() > MOST_BITS:
        raise _too_large(what)
    return result


def _too_large(what: str) -> SpecError:
    return SpecError(f"{what} computes an integer of more than {MOST_BITS} bits: no shape is so large")


def _listed(value: Any) -> Any:
    return [_listed(part) for part in value] if isinstance(value, tuple) else value


def _frozen(value: Any, where: str, depth: int = 3) -> Any:
    """Return a list of lists as tuples. Raises ValueError for what has other values, or is nested more deeply than code is."""
    if isinstance(value, list):
        if depth < 0 or len(value) > MOST_INSTRUCTIONS:
            raise ValueError(f"{where} is nested too deeply" if depth < 0 else f"{where} has {len(value)} entries, at most "
                                                                              f"{MOST_INSTRUCTIONS} are possible")
        return tuple([_frozen(part, where, depth - 1) for part in value])
    if type(value) not in (str, int, bool) or depth == 3:
        raise ValueError(f"{where} has {'an object' if isinstance(value, dict) else repr(value)[:60]} where code has none")
    return value


def _check_header(expression: Expression) -> None:
    """Raise ValueError for names, arrays and scalars that no function has."""
    for name in (expression.kernel, expression.option, *_names(expression)):
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{str(name)[:60]!r} is no name")
    if len(set(_names(expression))) < len(expression.arrays) + len(expression.scalars):
        raise ValueError("two parameters have one name")
    for name, rank in expression.arrays:
        if type(rank) is not int or not 0 <= rank <= 64:
            raise ValueError(f"array {name!r} has {str(rank)[:60]!r} dimensions")
    for name, kind in expression.scalars:
        if not isinstance(kind, str) or kind not in SCALARS:
            raise ValueError(f"scalar {name!r} is {str(kind)[:60]!r}, no kind of number")


def _names(expression: Expression) -> Iterator[Any]:
    for field in (expression.arrays, expression.scalars):
        for parameter in field:
            if not isinstance(parameter, tuple) or len(parameter) != 2:
                raise ValueError("a parameter is no pair")
            yield parameter[0]


def _check_code(expression: Expression) -> None:
    """Raise ValueError for a program that no recording has: `Expression.__call__` trusts it.

    Behind an ``if`` comes the branch that is taken, up to its end, then the other one, where the jump leads. An instruction sees
    what was computed before it on its own way.
    """
    kinds: dict[int, tuple[str, int]] = {}  # of the instructions that are seen: the kind of their value, and its depth
    seen: list[int] = []
    branches: list[tuple[int, int]] = []  # where the other branch of an `if` begins, and how many of `seen` it sees
    if not expression.code:
        raise ValueError("it has no code")
    for index, instruction in enumerate(expression.code):
        where = f"instruction {index}"
        if not isinstance(instruction, tuple) or len(instruction) < 2 or not isinstance(instruction[1], tuple):
            raise ValueError(f"{where} is no operation with references")
        name, references, *rest = instruction
        if any(type(r) is not int or r not in kinds for r in references):
            raise ValueError(f"{where}: {str(references)[:60]} are no instructions that it sees")
        operands = [kinds[r] for r in references]
        if not isinstance(name, str) or not _fits(name, [kind for kind, _ in operands], rest, expression, index):
            raise ValueError(f"{where} is no instruction: {str(instruction)[:80]}")
        if name == "if":
            branches.append((rest[0], len(seen)))
        elif name in _ENDS:
            if branches:
                target, length = branches.pop()
                for gone in seen[length:]:
                    del kinds[gone]
                del seen[length:]
                if target != index + 1:
                    raise ValueError(f"{where}: a jump leads to {target} and not behind it")
            elif index + 1 < len(expression.code):
                raise ValueError(f"{where} is the end, but {len(expression.code) - index - 1} more instructions follow")
        else:
            depth = 1 + max((depth for _, depth in operands), default=0) if name in ("tuple", "list") else 0
            if depth > MOST_DEPTH:
                raise ValueError(f"{where}: tuples are nested too deeply")
            kinds[index] = _kind(name), depth
            seen.append(index)
    if branches or expression.code[-1][0] not in _ENDS:
        raise ValueError("its code is cut off")


def _kind(name: str) -> str:
    return {"text": _TEXT, "none": _NONE, "array": _OBJECT, "workspace": _OBJECT, "tuple": _TUPLE, "list": _TUPLE}.get(name, _NUMBER)


def _fits(name: str, operands: list[str], rest: list[Any], expression: Expression, index: int) -> bool:
    """Whether an operation takes such operands and constants."""
    if name in OPERATIONS:
        return operands == [_NUMBER] * (1 if name in UNARY else 2) and not rest
    if name == "if":
        return operands == [_NUMBER] and len(rest) == 1 and type(rest[0]) is int and index < rest[0] < len(expression.code)
    allowed = _FORMS.get(name, _ENDS.get(name))
    if allowed is None or not all(kind in allowed for kind in operands):
        return False
    match name, rest:
        case "axis", [str(array), int(axis)]:
            return not operands and type(axis) is int and 0 <= axis < dict(expression.arrays).get(array, 0)
        case "scalar", [str(scalar)]:
            return not operands and scalar in dict(expression.scalars)
        case "const", [str(kind), plain]:
            number(kind, plain)
            return not operands
        case "text", [tuple(parts), tuple(forms)]:
            return (all(isinstance(part, str) for part in (*parts, *forms)) and all(map(is_format, forms))
                    and len(parts) - 1 == len(forms) == len(operands))
        case "array", [str(dtype)]:
            return dtype in ELEMENTS
        case "workspace", []:
            return len(operands) == 4 and operands[:2] == [_NUMBER] * 2 and operands[3] != _TEXT
        case "return", []:
            return len(operands) == 1
        case "raise", [str(kind)]:
            return kind in ERRORS
        case ("tuple" | "list" | "none"), []:
            return name != "none" or not operands
    return False
