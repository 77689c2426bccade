"""Numbers whose values are not known yet: `recording` passes them to a function of shapes, and notes what it computes of them.

A `Number` claims to be of the class that its value will have: ``isinstance(n, int)`` holds for a size, so that checks of types go
the way that they go in a call. The class of a result is that of the same operation on samples: ``1 / 1`` is a float, and
``1.0 << 1`` Python's TypeError. Where the class depends on a value, or whether there is a result at all, as for divisors and
exponents, the recorder asks, like the function itself: is it zero, is it negative?
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from .expressions import MOST_BITS, MOST_INSTRUCTIONS, OPERATIONS, Instruction, constant, is_format, number

MOST_PATHS = 64
"""ways through a function, and questions on one of them"""

_UFUNCS = {np.add: "add", np.subtract: "sub", np.multiply: "mul", np.true_divide: "truediv", np.floor_divide: "floordiv",
           np.remainder: "mod", np.power: "pow", np.less: "lt", np.less_equal: "le", np.greater: "gt", np.greater_equal: "ge",
           np.equal: "eq", np.not_equal: "ne", np.bitwise_and: "and_", np.bitwise_or: "or_", np.bitwise_xor: "xor",
           np.left_shift: "lshift", np.right_shift: "rshift"}
"""what an operator of a NumPy scalar, on the left of a Number, is to NumPy"""
_BEGIN, _END = "\U00012400", "\U00012401"
"""around a Number in a text: cuneiform, which messages hardly have, and which repr() leaves as it is"""
_SHOWN = re.compile(f"{_BEGIN}(\\d+) ([^{_END}]*){_END}")
"""a Number in a text: its node, and how it is shown"""


class Refused(BaseException):  # a user's `except Exception` is not to catch it
    """The function did something that no expression can say.

    what, mend  what it did, and what to write instead, for the message
    """

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(what)
        self.what, self.mend = what, mend


class Recorder:
    """The notes of one function: its operations, each once, and the way through it that is being recorded.

    nodes   operations, as instructions whose references are indices of nodes
    kinds   the class of each node's value
    steps   of the way: nodes in the order in which they were computed, and questions, ("if", node, answer)
    """

    def __init__(self) -> None:
        self.nodes: list[Instruction] = []
        self.kinds: list[Any] = []
        self._bounds: list[tuple[float, float]] = []
        self._index: dict[tuple[Instruction, type], int] = {}
        self.begin([])

    def begin(self, answers: list[tuple[int, bool]]) -> None:
        """Begin another way, on which the first questions get these answers."""
        self.steps: list[int | tuple[str, int, bool]] = []
        self.answers = answers
        self.asked = 0
        self._known: dict[tuple[Any, ...], bool] = {}
        self.refused: Refused | None = None

    def refuse(self, what: str, mend: str) -> NoReturn:
        """Give up the function. The recorder remembers that, should the function catch the exception."""
        self.refused = self.refused or Refused(what, mend)
        raise self.refused

    def changes(self) -> NoReturn:
        """Give up a function that does not do the same each time."""
        self.refuse("it does something else each time that it is called", "what it returns must depend on its arguments only")

    # ---- what is computed
    def note(self, instruction: Instruction, kind: type = object, bounds: tuple[float, float] = (-math.inf, math.inf)) -> int:
        """Return the node of an instruction, a new one where it is none yet."""
        node = self._index.get((instruction, kind))  # 2 ** n is an int on one way and a float on another
        if node is None:
            node = self._index[instruction, kind] = len(self.nodes)
            self.nodes.append(instruction)
            self.kinds.append(kind)
            self._bounds.append(bounds)
        if len(self.steps) >= MOST_INSTRUCTIONS or len(self.nodes) >= MOST_INSTRUCTIONS:
            self.refuse(f"it computes more than {MOST_INSTRUCTIONS} numbers", "compute fewer numbers of sizes")
        self.steps.append(node)
        return node

    def number(self, instruction: Instruction, kind: type, bounds: tuple[float, float] = (-math.inf, math.inf)) -> Number:
        return Number(self, self.note(instruction, kind, bounds))

    def operand(self, value: Any) -> int | None:
        """Return the node of a Number or of a constant; None for what is neither."""
        if type(value) is Number:
            return value.node
        instruction = constant(value)
        if instruction is None:
            return None
        exact = isinstance(value, (int, np.integer)) and int(value).bit_length() < _EXACT
        return self.note(instruction, type(value), (int(value), int(value)) if exact else (-math.inf, math.inf))

    def text(self, text: str) -> int:
        """Return the node of a text, which may show Numbers."""
        pieces = _SHOWN.split(text)
        if any(_BEGIN in piece or _END in piece for piece in pieces[::3]):
            self.refuse("it cuts or changes a text that shows a size", "show sizes in messages of errors only")
        return self.note(("text", tuple(int(node) for node in pieces[1::3]), tuple(pieces[::3]), tuple(pieces[2::3])))

    def apply(self, name: str, *values: Any) -> Any:
        """Note an operation on Numbers and constants; returns NotImplemented where an operand is no number."""
        operands = [self.operand(value) for value in values]
        if None in operands:
            return NotImplemented
        nodes: list[int] = operands  # type: ignore[assignment]
        samples = [self._sample(node) for node in nodes]
        right = nodes[-1]
        if len(nodes) == 2 and self.nodes[right][0] != "const":
            kind = self.kinds[right]
            if name in ("truediv", "floordiv", "mod") and self.ask("eq", right, 0):
                samples[1] = kind(0)
            if name in ("lshift", "rshift", "pow") and not issubclass(kind, _UNSIGNED) and self.ask("lt", right, 0):
                samples[1] = kind(-1)
        if name == "pow":
            samples = self._power(nodes, samples)
        if name == "lshift" and samples[1] > MOST_BITS:
            self.refuse(f"<< by {samples[1]}", "no shape has so many bits")
        if name == "round_to" and self.nodes[right][0] != "const":
            self.refuse("round(…) to a number of digits that depends on a shape", "give round a constant")
        with np.errstate(all="ignore"):
            kind = type(OPERATIONS[name](*samples))  # raises what the function raises
        if kind is complex or constant(kind(1)) is None:
            self.refuse(f"{name} makes a {kind.__name__}", "compute with ints and floats")
        if (name == "int" and kind is self.kinds[right]) or (name == "int32" and self.kinds[right] is np.int32):
            return Number(self, right)
        return self.number((name, tuple(nodes)), kind, self._bounds_of(name, nodes))

    def _sample(self, node: int) -> Any:
        name, _, *rest = self.nodes[node]
        return number(*rest) if name == "const" else self.kinds[node](1)

    def _power(self, nodes: list[int], samples: list[Any]) -> list[Any]:
        """Return samples of a power's operands that are zero and negative where the operands are, as far as it matters."""
        base, exponent = samples
        whole = not isinstance(exponent, (float, np.floating)) or (self.nodes[nodes[1]][0] == "const" and exponent % 1 == 0)
        if self.nodes[nodes[0]][0] == "const":
            return samples if whole or base >= 0 else [base, 0.5]
        if exponent < 0 and self.ask("eq", nodes[0], 0):
            return [self.kinds[nodes[0]](0), exponent]
        if not whole and self.ask("lt", nodes[0], 0):
            return [-1.0, 0.5]
        return samples

    def _bounds_of(self, name: str, nodes: list[int]) -> tuple[float, float]:
        if name in ("int", "int32"):
            return self._bounds[nodes[0]] if issubclass(self.kinds[nodes[0]], (int, np.integer)) else (-math.inf, math.inf)
        exact = all(issubclass(self.kinds[node], int) for node in nodes)  # NumPy's scalars wrap
        return _bounds(name, *(self._bounds[node] for node in nodes)) if exact else (-math.inf, math.inf)

    # ---- questions
    def ask(self, name: str, left: int, right: int) -> bool:
        """Whether a Number compares so with an int."""
        return self.is_true(self.number((name, (left, self.operand(right))), bool))

    def is_true(self, value: Number) -> bool:
        """Whether a Number is true, on this way."""
        key, negated = self._question(value.node)
        if key in self._known:
            return self._known[key] is not negated
        answer = self._settled(value.node)
        if answer is None:
            if self.asked == MOST_PATHS:
                self.refuse(f"it decides more than {MOST_PATHS} times", "a loop's rounds, and what is decided one by one, must "
                                                                       "depend on ranks and Statics, not on sizes")
            if self.asked < len(self.answers):
                node, answer = self.answers[self.asked]
                if node != value.node:
                    self.changes()
            else:
                answer = True
                self.answers.append((value.node, answer))
            self.asked += 1
            self.steps.append(("if", value.node, answer))
            self._known[key] = answer is not negated
        return answer

    def _question(self, node: int) -> tuple[tuple[Any, ...], bool]:
        """Return one key for questions that have the same answer, and whether this one has the opposite answer."""
        name, operands, *_ = self.nodes[node]
        if name not in _QUESTIONS or not all(issubclass(self.kinds[n], (int, np.integer)) for n in operands):
            return (node,), False
        same, swapped, negated = _QUESTIONS[name]
        return (same, *(operands[::-1] if swapped else sorted(operands) if same == "eq" else operands)), negated

    def _settled(self, node: int) -> bool | None:
        """Return the answer that all shapes have; None where they differ, as far as is known."""
        (name, *operands), negated = self._question(node)
        if not operands:
            return None
        (low, high), (least, most) = (self._bounds[n] for n in operands)
        if name == "lt":
            answer = True if high < least else False if low >= most or operands[0] == operands[1] else None
        else:
            answer = True if low == high == least == most or operands[0] == operands[1] else (
                False if high < least or most < low else None)
        return None if answer is None else answer is not negated


_QUESTIONS = {"lt": ("lt", False, False), "ge": ("lt", False, True), "gt": ("lt", True, False), "le": ("lt", True, True),
              "eq": ("eq", False, False), "ne": ("eq", False, True)}
"""comparisons of integers: the one that says the same, whether of swapped operands, and whether of the opposite answer"""
_UNSIGNED = (bool, np.bool_, np.unsignedinteger)
_EXACT = 256
"""bits of a bound that is kept"""


def _bounds(name: str, left: tuple[float, float], right: tuple[float, float] = (0, 0)) -> tuple[float, float]:
    """Return between which numbers the result of an operation on integers lies."""
    (a, b), (c, d) = left, right
    low, high = -math.inf, math.inf
    if name == "neg":
        low, high = -b, -a
    elif name == "add":
        low, high = a + c, b + d
    elif name == "sub":
        low, high = a - d, b - c
    elif name == "mul" and a >= 0 and c >= 0:
        low, high = a * c if a and c else 0, b * d if b and d else 0
    elif name == "floordiv" and c >= 1:
        low = a if a == low else a // c if a < 0 else 0 if d == high else a // d
        high = b if b == high else b // c if b >= 0 else -1 if d == high else b // d
    elif name == "mod" and c >= 1:
        low, high = 0, d - 1
    small = 1 << _EXACT
    return low if abs(low) < small else -math.inf, high if abs(high) < small else math.inf


def _operator(name: str, swapped: bool = False) -> Callable[[Number, Any], Any]:
    def method(self: Number, other: Any) -> Any:
        return self._recorder.apply(name, other, self) if swapped else self._recorder.apply(name, self, other)

    return method


def _function(name: str) -> Callable[[Number], Any]:
    return lambda self: self._recorder.apply(name, self)


def _divmod(left: Any, right: Any) -> Any:
    try:
        return left // right, left % right
    except ZeroDivisionError:
        return divmod(left.__class__(1), right.__class__(0))  # raises too, with a text of its own


def _refusal(what: str, mend: str) -> Callable[..., Any]:
    def method(self: Number, *_: Any) -> NoReturn:
        self._recorder.refuse(f"{what} of {self.spelled()}", mend)

    return method


_FUNCTIONS = "compute with operators (n ** 0.5), abs, round, min, max, math.ceil, math.floor, math.trunc, math.prod or numpipe.cdiv"


class Number:
    """A size of an array, a run-time scalar, or a number computed of them; its value is not known."""

    __slots__ = ("_recorder", "node")

    def __init__(self, recorder: Recorder, node: int) -> None:
        self._recorder, self.node = recorder, node

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        kind: type = self._recorder.kinds[self.node]
        return kind

    def recorded_as(self, to: type) -> Number:
        """Return the number converted to int or to np.int32, as `core.arith.converted` asks for it."""
        return self._recorder.apply(to.__name__, self)  # type: ignore[no-any-return]

    def spelled(self) -> str:
        """Return which sizes and scalars it is made of, for messages."""
        leaves: dict[str, None] = {}
        nodes, seen = [self.node], {self.node}
        while nodes:
            name, operands, *rest = self._recorder.nodes[nodes.pop()]
            nodes += [node for node in reversed(operands) if node not in seen]
            seen.update(operands)
            if name in ("axis", "scalar"):
                leaves[f"{rest[0]}.shape[{rest[1]}]" if name == "axis" else rest[0]] = None
        first = self._recorder.nodes[self.node][0] in ("axis", "scalar")
        return f"{'' if first else 'a number made of '}{' and '.join(leaves) or 'constants'}"

    def __bool__(self) -> bool:
        return self._recorder.is_true(self)

    def __round__(self, digits: Any = None) -> Any:
        return self._recorder.apply("round", self) if digits is None else self._recorder.apply("round_to", self, digits)

    def __divmod__(self, other: Any) -> Any:
        return _divmod(self, other)

    def __rdivmod__(self, other: Any) -> Any:
        return _divmod(other, self)

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        if modulus is not None:
            self._recorder.refuse(f"pow(…) of three numbers, of {self.spelled()}", "write % behind the power")
        return self._recorder.apply("pow", self, other)

    def bit_length(self) -> Any:
        """Return the number of bits, as int has it."""
        return self._recorder.apply("bit_length", self)

    def __str__(self) -> str:
        return f"{_BEGIN}{self.node} s{_END}"

    def __repr__(self) -> str:
        return f"{_BEGIN}{self.node} r{_END}"

    def __format__(self, form: str) -> str:
        if not is_format(f"f{form}"):
            self._recorder.refuse(f"the format {form!r} of {self.spelled()}", "use a plain one, such as :d or :>8")
        return f"{_BEGIN}{self.node} f{form}{_END}"

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **options: Any) -> Any:
        left_and_right = [  # a comparison makes an array of the scalar
            value[()] if type(value) is np.ndarray and not value.ndim else value for value in operands]
        if ufunc is np.divmod and method == "__call__" and len(operands) == 2 and not options:
            return _divmod(*left_and_right)
        if ufunc not in _UFUNCS or method != "__call__" or len(operands) != 2 or options:
            self._recorder.refuse(f"np.{ufunc.__name__}(…) of {self.spelled()}", _FUNCTIONS)
        return self._recorder.apply(_UFUNCS[ufunc], *left_and_right)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what libraries look for, and do without
            raise AttributeError(name)
        self._recorder.refuse(f".{name} of {self.spelled()}", "it is a number: use operators, min, max, or math.ceil and the like")

    __int__ = _refusal("int(…)", "leave int() out, since sizes are ints; of a float take math.floor, math.ceil or //")
    __float__ = _refusal("float(…), or a function of math or NumPy,", _FUNCTIONS)
    __complex__ = _refusal("complex(…)", _FUNCTIONS)
    __index__ = _refusal("range(…), an index, a repetition or a function of whole numbers",
                         "what is done so often, or chosen so, must depend on ranks and Statics; " + _FUNCTIONS)
    __hash__ = _refusal("a key of a dict, an element of a set, or an argument of a function with a cache, made", (
        "compare with == or <, or call the function without its cache"))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    _operation = f"{_name}_" if _name in ("and", "or") else _name
    if _name != "pow":
        setattr(Number, f"__{_name}__", _operator(_operation))
    setattr(Number, f"__r{_name}__", _operator(_operation, swapped=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Number, f"__{_name}__", _operator(_name))
for _name in ("neg", "pos", "abs", "invert", "floor", "ceil", "trunc"):
    setattr(Number, f"__{_name}__", _function(_name))
