"""A function of shapes as data, which a file can hold: `recording` makes it of a user's out_type, grid or workspace.

An `Expression` is a list of instructions. An instruction is a tuple ``(operation, references, constants…)``; a reference is the
index of an earlier instruction. ``lambda a, b: ArrayType((a.shape[0], max(b.shape[0], 8)), a.dtype)`` of float16 becomes ::

    0  ["axis", [], "a", 0]
    1  ["axis", [], "b", 0]
    2  ["const", [], "int", 8]
    3  ["gt", [2, 1]]             max asks whether 8 > b.shape[0]
    4  ["if", [3], 7]             go on with 5, or with 7 where it is not
    5  ["array", [0, 2], "float16"]
    6  ["return", [5]]
    7  ["array", [0, 1], "float16"]
    8  ["return", [7]]

Jumps lead forward only, so every program ends. Instructions run in the order in which the function computed, so that errors of
Python's, such as a division by zero, come as they would from the function. The operations are a closed set: a file can make
numbers, texts, tuples, `ArrayType` and `Workspace`, and nothing else.
"""

from __future__ import annotations

import builtins
import inspect
import keyword
import math
import operator
import re
from collections.abc import Callable, Mapping
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
"""of an integer: no shape needs more, and a damaged file cannot compute for hours"""

UNARY: dict[str, Callable[..., Any]] = {
    "neg": operator.neg, "pos": operator.pos, "abs": operator.abs, "invert": operator.invert, "round": round,
    "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "bit_length": lambda value: value.bit_length(),
    "int": lambda value: converted(value, int), "int32": lambda value: converted(value, np.int32)}
BINARY: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor",
                                               "lshift", "rshift", "lt", "le", "gt", "ge", "eq", "ne")} | {"round_to": round}
OPERATIONS = UNARY | BINARY
"""the operations on numbers; the others are those of `_FORMS`"""
_NUMBER, _TEXT, _NONE, _OBJECT, _TUPLE = "number", "text", "None", "an ArrayType or Workspace", "tuple"
_FORMS: dict[str, tuple[str, ...]] = {
    "axis": (), "scalar": (), "const": (), "none": (), "text": (_NUMBER,), "array": (_NUMBER,),
    "workspace": (_NUMBER, _TEXT, _NONE),
    "tuple": (_NUMBER, _TEXT, _NONE, _OBJECT), "list": (_NUMBER, _TEXT, _NONE, _OBJECT)}
"""the other operations that have a value, and what they may refer to"""
_ENDS = {"return": (_NUMBER, _TEXT, _NONE, _OBJECT, _TUPLE), "raise": (_NUMBER, _TEXT, _NONE)}

ERRORS: dict[str, type[Exception]] = {name: getattr(builtins, name) for name in (
    "ArithmeticError", "AssertionError", "AttributeError", "Exception", "IndexError", "KeyError", "LookupError",
    "NotImplementedError", "OverflowError", "RuntimeError", "TypeError", "ValueError", "ZeroDivisionError")} | {
    name: getattr(errors, name) for name in errors.__all__}
"""the exceptions that an expression raises, by name"""
KINDS: dict[str, Any] = {"bool": bool, "int": int, "float": float} | {f"np.{np.dtype(kind).name}": kind for kind in (
    np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.float16, np.float32, np.float64)}
"""the classes of numbers, by name"""
_FORMAT = re.compile(r"([^\d{}]?[<>=^])?[-+ ]?#?0?\d{0,2}[,_]?(\.\d{1,2})?[a-zA-Z%]?")
"""a format of a number in a message, of a width of at most 99"""


def constant(value: Any) -> Instruction | None:
    """Return the instruction that makes a number; None for what is no number that a file holds.

    >>> constant(3), constant(float("inf")), constant(np.int32(3)), constant("3")
    (('const', (), 'int', 3), ('const', (), 'float', 'inf'), ('const', (), 'np.int32', 3), None)
    """
    name = next((name for name, kind in KINDS.items() if kind is type(value)), None)
    if name is None or (name == "int" and value.bit_length() > MOST_BITS):
        return None
    plain = value.item() if isinstance(value, np.generic) else value
    return "const", (), name, plain.hex() if isinstance(plain, float) else plain


def number(name: str, plain: Any) -> Any:
    """Return the number of a `constant`'s last two fields. Raises ValueError for fields that no constant has."""
    kind = KINDS.get(name)
    if kind is None:
        raise ValueError(f"{name[:40]!r} is no kind of number")
    stored: Any = bool if kind in (bool, np.bool_) else int if issubclass(kind, (int, np.integer)) else str
    if type(plain) is not stored or (stored is int and plain.bit_length() > MOST_BITS):
        raise ValueError(f"{str(plain)[:40]!r} is no {name}")
    try:
        return kind(float.fromhex(plain) if stored is str else plain)
    except OverflowError:
        raise ValueError(f"{str(plain)[:40]!r} is no {name}") from None


def is_format(text: str) -> bool:
    """Whether a text may show a number so: "s" is str(), "r" is repr(), "f:>8" would be format() with ":>8"."""
    return text in ("s", "r") or (text[:1] == "f" and _FORMAT.fullmatch(text, 1) is not None)


@dataclass(frozen=True)
class Expression:
    """A function of the user, recorded for certain dtypes and ranks of arrays and for certain Statics.

    kernel, option  what the function is of which kernel, for messages: "matmul", "out_type"
    arrays          name and rank of each array that it takes
    scalars         name of each run-time scalar that it takes, and its class in `KINDS`
    code            its instructions

    It stands wherever the function stood: `inspect.signature` tells its parameters, all keyword-only, and anything that has a
    ``shape`` is an array. It returns what the function returns, or raises what the function raises, for an exception that
    `ERRORS` lacks its nearest base class there. SpecError: an array has another rank.

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
            if len(known[name].shape) != rank:
                raise SpecError(f"{what} was recorded for '{name}' of {rank} dimensions, got shape {tuple(known[name].shape)}: "
                                "export the kernel with such an array too")
        known |= {name: KINDS[kind](known[name]) for name, kind in self.scalars}
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
            values[at] = _run(name, operands, rest, known, what)
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
            arrays, scalars, code = (_frozen(value[name], name) for name in ("arrays", "scalars", "code"))
            _check_header(value["kernel"], value["option"], arrays, scalars)
            expression = cls(value["kernel"], value["option"], arrays, scalars, code)
            _check_code(expression)
        except ValueError as error:
            raise ImageError(f"{what} cannot be used: {error}; export the kernel again") from None
        return expression


def _run(name: str, operands: list[Any], rest: list[Any], known: Mapping[str, Any], what: str) -> Any:
    """Return the value of an instruction."""
    if name in OPERATIONS:
        return _calculated(name, operands, what)
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


def _calculated(name: str, operands: list[Any], what: str) -> Any:
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
    """Return a list of lists as tuples. Raises ValueError for other values in it, and for lists that are nested more deeply."""
    if isinstance(value, list):
        if depth < 0:
            raise ValueError(f"{where} is nested too deeply")
        if len(value) > MOST_INSTRUCTIONS:
            raise ValueError(f"{where} has {len(value)} entries, at most {MOST_INSTRUCTIONS} are possible")
        return tuple([_frozen(part, where, depth - 1) for part in value])
    if type(value) not in (str, int, bool) or depth == 3:
        raise ValueError(f"{where} has {_brief(value)} where code has none")
    return value


def _brief(value: Any) -> str:
    """Return how a message shows what a file holds: briefly."""
    if isinstance(value, int) and value.bit_length() > 64:
        return "a large int"
    return f"a {type(value).__name__}" if isinstance(value, (dict, list)) else repr(value)[:60]


def _check_header(kernel: Any, option: Any, *fields: tuple[Any, ...]) -> None:
    """Raise ValueError for names, arrays and scalars that no function has."""
    parameters = [parameter for field in fields for parameter in field]
    if not all(isinstance(parameter, tuple) and len(parameter) == 2 for parameter in parameters):
        raise ValueError("a parameter is no pair")
    names = [name for name, _ in parameters]
    for name in (kernel, option, *names):
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"{_brief(name)} is no name")
    if len(set(names)) < len(names):
        raise ValueError("two parameters have one name")
    arrays, scalars = fields
    for name, rank in arrays:
        if type(rank) is not int or not 0 <= rank <= 64:
            raise ValueError(f"array {name!r} has {_brief(rank)} dimensions")
    for name, kind in scalars:
        if not isinstance(kind, str) or kind not in KINDS:
            raise ValueError(f"scalar {name!r} is {_brief(kind)}, no class of numbers")


def _check_code(expression: Expression) -> None:
    """Raise ValueError for a program that no recording has: `Expression.__call__` trusts it.

    Behind an ``if`` comes the branch that is taken, up to its end, then the other one, where the jump leads. An instruction sees
    what was computed before it on its own way.
    """
    ranks, scalars = dict(expression.arrays), dict(expression.scalars)
    kinds: dict[int, str] = {}  # of the values that an instruction sees, by index
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
            raise ValueError(f"{where} refers to what it does not see")
        operands = [kinds[r] for r in references]
        if not isinstance(name, str) or not _fits(name, operands, rest, ranks, scalars):
            raise ValueError(f"{where} is no instruction: {_brief(name)} of {len(operands)} values")
        if name == "if":
            branches.append((rest[0], len(seen)))
        elif name in _ENDS:
            if branches:
                target, length = branches.pop()
                for gone in seen[length:]:
                    del kinds[gone]
                del seen[length:]
                if target != index + 1:
                    raise ValueError(f"{where}: a jump leads to {_brief(target)} and not behind it")
            elif index + 1 < len(expression.code):
                raise ValueError(f"{where} is the end, but {len(expression.code) - index - 1} more instructions follow")
        else:
            kinds[index] = _kind(name)
            seen.append(index)
    if branches or expression.code[-1][0] not in _ENDS:
        raise ValueError("its code is cut off")


def _kind(name: str) -> str:
    """Return what an operation makes."""
    return {"text": _TEXT, "none": _NONE, "array": _OBJECT, "workspace": _OBJECT, "tuple": _TUPLE,
            "list": _TUPLE}.get(name, _NUMBER)


def _fits(name: str, operands: list[str], rest: list[Any], ranks: Mapping[str, int], scalars: Mapping[str, str]) -> bool:
    """Whether an operation takes such operands and constants."""
    if name in OPERATIONS:
        return operands == [_NUMBER] * (1 if name in UNARY else 2) and not rest
    if name == "if":
        return operands == [_NUMBER] and len(rest) == 1 and type(rest[0]) is int
    allowed = _FORMS.get(name, _ENDS.get(name))
    if allowed is None or not all(kind in allowed for kind in operands):
        return False
    match name, rest:
        case "axis", [str(array), int(axis)]:
            return not operands and type(axis) is int and 0 <= axis < ranks.get(array, 0)
        case "scalar", [str(scalar)]:
            return not operands and scalar in scalars
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
