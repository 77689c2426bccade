"""Functions of shapes recorded as expressions: what they give, what a file may hold, and what is refused."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import math
import random
import re
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numpipe import ArrayType, SpecError, Workspace, cdiv
from numpipe.errors import ImageError
from numpipe.kernels.expressions import ERRORS, MOST_BITS, OPERATIONS, Expression
from numpipe.kernels.recorded_numbers import MOST_PATHS
from numpipe.kernels.recording import record
from numpipe.kernels.results import HostView
from tests.kernels.covering import examples

HALF = np.dtype(np.float16)
ARRAYS = {"a": (HALF, 2), "b": (HALF, 3)}
SCALARS = {"n": np.dtype(np.int32), "x": np.dtype(np.float32), "h": np.dtype(np.float16), "flag": np.dtype(np.bool_)}
STATICS = {"tile": (64, 128)}


class OfTheUser(LookupError):
    """An exception that no file holds."""


def recorded(function: Any) -> Expression:
    """The expression of a function, out of a file."""
    expression = record(function, "grid", "k", ARRAYS, SCALARS, STATICS)
    assert Expression.from_json(json.loads(json.dumps(expression.to_json()))) == expression
    return expression


def outcome(function: Any, known: dict[str, Any]) -> Any:
    """What a function returns, with its type, or the exception that it raises, as far as a file holds it."""
    try:
        with np.errstate(all="ignore"):
            value = function(**known)
    except Exception as error:
        return next(base for base in type(error).__mro__ if base in ERRORS.values()), str(error)
    return type(value), repr(value)


def arguments(expression: Expression, a: Any, b: Any, **scalars: Any) -> dict[str, Any]:
    known = {"a": HostView(ArrayType(a, HALF)), "b": HostView(ArrayType(b, HALF)), **scalars}
    return {name: known[name] for name, _ in (*expression.arrays, *expression.scalars)}


# ---- what they give
NAMES = ("a.shape[0]", "a.shape[1]", "b.shape[2]", "b.ndim", "tile[0]", "n", "m")
CONDITIONS = ("{} < {}", "{} >= {}", "{} == {}", "not {} != {}", "flag and {} > {}", "{} in (1, {})", "isinstance({}, int) or {}")
INTEGERS = ("{} + {}", "{} - {}", "{} * {}", "{} // {}", "{} % {}", "min({}, {})", "max({}, 7, {})", "cdiv({}, {})", "abs({} - {})",
            "-{} | {}", "divmod({}, {})[1]", "math.ceil({} / {})", "round({} / 3, 0) // {}", "sum((*a.shape, {})) ^ {}",
            "{} ** 2 & {}", "math.prod(b.shape) + {} - {}", "({}).bit_length() << {} % 5", "({} >> 1) + ~{}", "int(x) * {} + {}")
ENDS = ("return {}, {}, x * 2", "return ArrayType(({}, {}), a.dtype)", "return [ArrayType((1, abs({})), np.float32), max({}, x)]",
        "return Workspace((64, {}), slots={})", "return Workspace(tile, 'stream', slots=max({}, {}, 1))",
        "raise ValueError(f'{{a.shape}} of {{{}}} and {{{}:>5}}: {{x!r}}, {{h}}')", "raise KeyError({}, {})",
        "raise OfTheUser(f'{{{}}}', {})", "return {}, {} * h")


@st.composite
def sources(draw: Any) -> str:
    """The source of a function of shapes, of run-time scalars and of a Static."""
    def number(depth: int) -> str:
        if depth == 0 or draw(st.integers(0, 3)) == 0:
            return draw(st.sampled_from(NAMES) | st.integers(0, 130).map(str))
        form = draw(st.sampled_from([form for form in INTEGERS if "int(" not in form]))
        return f"({form.format(number(depth - 1), number(depth - 1))})"

    def condition() -> str:
        return draw(st.sampled_from(CONDITIONS)).format(number(1), number(0))

    lines = ["def function(a, b, n, x, h, flag, tile):", f"    m = {number(0).replace('m', 'n')}"]
    for _ in range(draw(st.integers(0, 3))):
        lines += draw(st.sampled_from([
            [f"    m = {number(2)}"], [f"    if {condition()}:", f"        m = {number(2)}"],
            [f"    m = {number(1)} if {condition()} else {number(1)}"],
            [f"    if {condition()}:", f"        {draw(st.sampled_from(ENDS)).format(number(1), number(1))}"],
            ["    try:", f"        m = {number(2)}", "    except ZeroDivisionError as error:", "        m = len(error.args)"]]))
    return "\n".join([*lines, f"    {draw(st.sampled_from(ENDS)).format(number(2), number(2))}"])


SIZES = st.integers(0, 9) | st.sampled_from([63, 64, 65, 1000, 1 << 20])


@settings(max_examples=examples(100))
@given(sources(), st.lists(st.tuples(st.tuples(SIZES, SIZES), st.tuples(SIZES, SIZES, SIZES), st.integers(-70, 70), st.booleans(),
                                     st.floats(-100, 100, width=16)), min_size=4, max_size=4))
def test_an_expression_gives_what_the_function_gives(source: str, calls: list[Any]) -> None:
    names: dict[str, Any] = {}
    exec(source, globals(), names)
    function = names["function"]
    try:
        expression = recorded(function)
    except SpecError as refusal:  # of few functions: those that divide by what they divided
        assert re.search("ways through it|decides more than|more than 8192 bits", str(refusal)), str(refusal)
        return
    for a, b, n, flag, h in calls:
        known = arguments(expression, a, b, n=n, x=n / 8, h=np.float16(h), flag=flag)
        assert outcome(expression, known) == outcome(function, {**known, **STATICS})


OPERANDS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "and_": "&", "or_": "|",
            "xor": "^", "lshift": "<<", "rshift": ">>", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
CALLS = {"neg": "-({})", "pos": "+({})", "abs": "abs({})", "invert": "~({})", "round": "round({})", "floor": "math.floor({})",
         "ceil": "math.ceil({})", "trunc": "math.trunc({})", "bit_length": "({}).bit_length()", "int32": "cdiv({}, 3)",
         "round_to": "round({}, -1)", "int": "cdiv({}, 3)"}


def test_the_operators_below_are_all() -> None:
    assert OPERANDS.keys() | CALLS.keys() == OPERATIONS.keys()


@pytest.mark.variants(45)
@pytest.mark.filterwarnings("ignore:Bitwise inversion:DeprecationWarning")
@pytest.mark.parametrize("kind, values", [
    ("int", (0, 1, -1, 5, -64)), ("float", (0.0, 1.5, -2.5, 1e30, math.inf, math.nan)), ("float16", (0.0, 1.5, -2.5, 60000)),
    ("int64", (0, 1, -7, 1 << 62)), ("uint8", (0, 1, 200)), ("bool", (False, True))])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operator_gives_what_python_gives(name: str, kind: str, values: tuple[Any, ...]) -> None:
    scalar = np.dtype({"int": "int32", "float": "float32"}.get(kind, kind))
    of_kind = {"int": int, "float": float, "bool": bool}.get(kind) or scalar.type
    constants = [3, 0, -2, 0.5, np.int32(5), np.float32(2)] if name in OPERANDS else [None]
    forms = [CALLS[name].format("p")] if name in CALLS else [
        f"{left} {OPERANDS[name]} {right}" for left, right in ("pc", "cp", "pq")]
    for form, constant in itertools.product(forms, constants):
        function = eval(f"lambda p{', q' * ('q' in form)}: ({form},)", {"math": math, "c": constant, "cdiv": cdiv})
        try:
            expression = record(function, "grid", "k", {}, {"p": scalar, "q": scalar}, {})
        except SpecError as refusal:
            assert name == "pow" and "pow makes a complex" in str(refusal)
            continue
        for p, q in zip(values, values[1:] + values[:1], strict=True):
            known = {name: of_kind(value) for name, value in (("p", p), ("q", q)) if name in dict(expression.scalars)}
            assert outcome(expression, known) == outcome(function, known), (form, constant, known)


def test_scalars_of_int32_and_float32_are_pythons() -> None:
    expression = record(lambda n, x: (n // 2, x / 3), "grid", "k", {}, SCALARS, {})
    assert expression(n=np.int32(7), x=np.float32(1.5)) == (3, 0.5)


def test_what_is_no_number_is_the_same() -> None:
    for function in (lambda a: None, lambda a: "stream", lambda a: [a.shape[0], None, "x"], lambda a: (),
                     lambda a: ArrayType((), np.int8), lambda a: Workspace((a.shape[0], 8), None), lambda a: np.float16(a.ndim)):
        expression = recorded(function)
        known = arguments(expression, (5, 6), (1, 1, 1))
        assert outcome(expression, known) == outcome(function, known)


def test_an_array_of_another_rank_is_refused() -> None:
    with pytest.raises(SpecError, match=r"kernel k: grid was recorded for 'a' of 2 dimensions, got shape \(3,\)"):
        recorded(lambda a: a.shape[0])(a=np.empty(3))


def test_questions_that_all_shapes_answer_alike_are_not_asked() -> None:
    def function(a: Any) -> Any:
        if a.shape[0] < 0 or a.shape[0] // 8 < 0 or cdiv(a.shape[1], 64) < 0:
            raise ValueError("no such shape")
        return a.shape[0] % 8 < 8, ArrayType(a.shape, a.dtype).shape[0]

    assert not any(instruction[0] == "if" for instruction in recorded(function).code)


# ---- refusals
def twice(a: Any) -> int:
    return int(a.shape[0])


def caught(a: Any) -> Any:
    try:
        return math.sqrt(a.shape[0])
    except BaseException:
        return 3


def many(a: Any) -> int:
    return sum(1 for step in range(MOST_PATHS + 1) if a.shape[0] == 3 * step)


def bits(a: Any) -> int:
    return sum(1 for step in range(7) if a.shape[0] % (step + 2) == 0)


class Called:
    """An object that is called."""

    def __call__(self, a: Any) -> Any:
        return object()


REFUSED = {
    "int": (twice, "int(…) of a.shape[0]: leave int() out", "int(a.shape[0])"),
    "sqrt": (caught, "function of math or NumPy, of a.shape[0]: compute with operators", "math.sqrt(a.shape[0])"),
    "range": (lambda a: (1, len(range(a.shape[0] + 1))), "range(…), an index", "range(a.shape[0] + 1)"),
    "index": (lambda a: (8, 16)[a.shape[0]], "an index, a repetition", "(8, 16)[a.shape[0]]"),
    "key": (lambda a: {1: 2}[a.shape[0]], "a key of a dict", "{1: 2}[a.shape[0]]"),
    "float": (lambda x: float(x), "float(…)", "float(x)"),
    "ufunc": (lambda a: np.ceil(a.shape[0] / 3), "np.ceil(…) of a number made of a.shape[0]", "np.ceil(a.shape[0] / 3)"),
    "ufunc of NumPy's own": (lambda a: np.clip(a.shape[0], 1, 8), "np.clip(…) of a.shape[0]", "np.clip(a.shape[0], 1, 8)"),
    "multibyte": (lambda a: ("ππ", int(a.shape[0])), "int(…)", "int(a.shape[0])"),
    "attribute": (lambda a: a.shape[0].real, ".real of a.shape[0]: it is a number", "a.shape[0].real"),
    "modulus": (lambda a: pow(a.shape[0], 2, 5), "write % behind the power", "pow(a.shape[0], 2, 5)"),
    "digits": (lambda a, x: round(x, a.shape[0]), "give round a constant", "round(x, a.shape[0])"),
    "complex": (lambda n: (n ** 0.5,), "pow makes a complex", "n ** 0.5"),
    "format": (lambda a: f"{a.shape[0]:>100}", "the format '>100' of a.shape[0]", None),
    "shift": (lambda a: a.shape[0] << 9000, "<< by 9000", "a.shape[0] << 9000"),
    "global": (lambda a: textwrap, "it returns a value of class module", None),
    "nested": (lambda a: (1, (2, 3)), "it returns a value of class tuple in a tuple", None),
    "object": (Called(), "it returns a value of class object", None),
    "partial": (functools.partial(lambda a: [object()]), "it returns a value of class object in a list", None),
    "text": (lambda a: str(a.shape[0])[1:], "it cuts or changes a text", None),
    "dtype": (lambda a: ArrayType(a.shape, np.complex64), "an ArrayType of complex64", None),
    "questions": (many, f"it decides more than {MOST_PATHS} times", "a.shape[0] == 3 * step"),
    "ways": (bits, f"there are more than {MOST_PATHS} ways through it", None),
    "random": (lambda a: a.shape[0] + random.random(), "let it depend on its arguments only", None),
    "type": (lambda a: type(a.shape[0]) is int, "isinstance(n, int) instead of type(n)", None),
    "length": (lambda a: len(f"{a.shape[0]}"), "for a of shape", None)}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_expression_can_say_is_refused(name: str) -> None:
    function, message, piece = REFUSED[name]
    with pytest.raises(SpecError) as refusal:
        recorded(function)
    said = str(refusal.value)
    assert re.match(rf"{re.escape(__file__)}:\d+: kernel k: grid cannot be kept in a file", said) and message in said
    if piece is not None:
        _, line, carets = said.split("\n")
        begin, end = carets.index("^"), len(carets)
        assert line[begin:end] == piece or (sys.version_info < (3, 11) and piece in line[begin:end])


# ---- damaged files
def rich(a: Any, b: Any, n: Any, x: Any, tile: Any) -> Any:
    """A function whose expression has every form of instruction."""
    if a.shape[0] % 8 or n > 3:
        raise ValueError(f"{a.shape[0]:>8} of {n!r}, {x}", a.shape[1], None)
    if b.shape[2] == a.shape[1]:
        return [1.5 * x, Workspace(tile, "stream"), "text"]
    return ArrayType((2 ** (n + 3) << b.shape[0], round(x * 3)), np.float32), a.shape[0] ** 2, cdiv(a.shape[1], n), None


GOOD = recorded(rich).to_json()
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 40), st.sampled_from([1 << 70, 1 << MOST_BITS + 1, -1 << 20000, 9999]), st.floats(),
    st.sampled_from([*OPERATIONS, *(instruction[0] for instruction in GOOD["code"]), "if", "list", "int", "np.int8", "exec"]),
    st.text(max_size=3), st.dictionaries(st.text(max_size=1), st.integers(), max_size=2),
    st.integers(1, 400).map(lambda depth: functools.reduce(lambda inner, _: [inner], range(depth), [])),
    st.sampled_from(GOOD["code"]).map(copy.deepcopy), st.lists(st.integers(0, 30), max_size=4))


def nodes(value: Any) -> Any:
    """All lists and dicts in a value, with the keys of what they hold."""
    if isinstance(value, (list, dict)):
        for key in range(len(value)) if isinstance(value, list) else value:
            yield value, key
            yield from nodes(value[key])


@settings(max_examples=examples(500))
@given(st.data())
def test_a_damaged_file_is_refused_or_computes_something(data: st.DataObject) -> None:
    value = copy.deepcopy(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(list(nodes(value))))
        match data.draw(st.sampled_from(["change", "change", "insert", "delete"])):
            case "change":
                holder[key] = data.draw(ANYTHING)
            case "insert" if isinstance(holder, list):
                holder.insert(key, data.draw(ANYTHING))
            case _:
                del holder[key]
    try:
        expression = Expression.from_json(value, "the file")
    except ImageError as error:
        assert re.fullmatch(r"the file cannot be used: [^\n]{1,200}; export the kernel again", str(error))
        return
    known = {name: HostView(ArrayType((8, 64, 3, 1)[:rank], HALF)) for name, rank in expression.arrays}
    known |= {name: 3 for name, _ in expression.scalars}
    try:
        with np.errstate(all="ignore"):
            expression(**known)
    except Exception as error:
        assert type(error) in ERRORS.values()


@pytest.mark.parametrize("field, damaged, message", [
    ("code", [], "it has no code"), ("code", "text", "code has 'text' where code has none"),
    ("code", [[[[[[]]]]]], "nested too deeply"),
    ("code", [["axis", [], "a", 2]], "instruction 0 is no instruction: 'axis' of 0 values"),
    ("code", [["axis", [], "c", 0]], "no instruction"), ("code", [["scalar", [], "a"]], "no instruction"),
    ("code", [["return", [0]]], "instruction 0 refers to what it does not see"), ("code", [["none", []]], "cut off"),
    ("code", [["none", []], ["return", [0]], ["none", []]], "instruction 1 is the end, but 1 more instructions follow"),
    ("code", [["axis", [], "a", 0], ["if", [0], 2], ["none", []], ["return", [2]], ["return", [0]]], "a jump leads to 2"),
    ("code", [["axis", [], "a", 0], ["if", [0], 4], ["none", []], ["return", [2]], ["return", [2]]], "what it does not see"),
    ("code", [["const", [], "int", 1 << MOST_BITS]], "is no int"), ("code", [["const", [], "float", "1"], 3], "no operation"),
    ("code", [["const", [], "complex", 1]], "'complex' is no kind of number"), ("code", [["const", [], "int", True]], "is no int"),
    ("code", [["none", []], ["tuple", [0]], ["tuple", [1]], ["return", [2]]], "'tuple' of 1 values"),
    ("code", [["none", []], ["add", [0, 0]], ["return", [1]]], "'add' of 2 values"),
    ("code", [["none", []], ["raise", [0], "SystemExit"]], "'raise' of 1 values"),
    ("code", [["none", []]] * 10001, "10001 entries"),
    ("code", [["axis", [], "a", 0], ["text", [0], ["", ""], ["f>999"]], ["return", [1]]], "'text' of 1 values"),
    ("arrays", [["a"]], "no pair"), ("arrays", [["a", 2], ["a", 2]], "one name"), ("arrays", [["a", -1]], "has -1 dimensions"),
    ("arrays", [["a b", 2]], "'a b' is no name"), ("arrays", [["class", 2]], "'class' is no name"),
    ("scalars", [["n", "str"]], "'str', no class of numbers"), ("kernel", 3, "3 is no name")])
def test_a_damaged_file_is_refused(field: str, damaged: Any, message: str) -> None:
    good = recorded(lambda a: (a.shape[0],)).to_json()
    with pytest.raises(ImageError, match=re.escape(message)):
        Expression.from_json({**good, field: damaged})
    with pytest.raises(ImageError, match="no object of kernel, option, arrays, scalars and code"):
        Expression.from_json({name: value for name, value in good.items() if name != field})


@pytest.mark.parametrize("code, message", [
    ([["const", [], "int", 1 << 8000], ["mul", [0, 0]], ["return", [1]]], "an integer of more than 8192 bits"),
    ([["const", [], "int", 1 << 8000], ["pow", [0, 0]], ["return", [1]]], "an integer of more than 8192 bits"),
    ([["const", [], "int", 1 << 8000], ["lshift", [0, 0]], ["return", [1]]], "an integer of more than 8192 bits"),
    ([["const", [], "int", 1 << 8000], ["neg", [0]], ["round_to", [0, 1]], ["return", [1]]], "an integer of more than 8192 bits")])
def test_no_file_computes_for_hours(code: Any, message: str) -> None:
    expression = Expression.from_json({"kernel": "k", "option": "grid", "arrays": [], "scalars": [], "code": code})
    with pytest.raises(SpecError, match=message):
        expression()
