"""Functions of shapes serialized as text: their results, what a file may contain, and errors."""

from __future__ import annotations

import ast
import dataclasses
import enum
import itertools
import linecache
import math
import random
import re
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numpipe import ArrayType, SpecError, Workspace, cdiv  # noqa: F401  (drawn sources use them)
from numpipe.errors import ImageError
from numpipe.kernels.call_results import HostView
from numpipe.kernels.evaluation import ERRORS
from numpipe.kernels.expressions import Expression, constant_of, described
from numpipe.kernels.sources import text_of
from tests.kernels.covering import examples

HALF = np.dtype(np.float16)
STATICS = {"tile": (64, 128)}
NUMBERS = itertools.count()


def stored(function: Any, **statics: Any) -> Expression:
    """Return the expression of a function, read back from a file."""
    return Expression(text_of(function, statics, "kernel k: grid"), "k.numpipe: grid")


def outcome(function: Any, known: dict[str, Any]) -> Any:
    """Return a function's result with its type, or the exception that it raises."""
    try:
        with np.errstate(all="ignore"):
            value = function(**known)
    except Exception as raised:
        # an expression names the failed operation's error as the cause of its own
        error = raised.__cause__ if isinstance(raised, SpecError) and raised.__cause__ else raised
        kind = next(base for base in type(error).__mro__ if base in ERRORS.values())
        # Python 3.14 adds the number of values that it got
        return kind, str(error).partition(", got")[0].rstrip(")")
    return type(value), repr(value)


def array(*shape: int, dtype: Any = HALF) -> HostView:
    return HostView(ArrayType(shape, dtype))


# ---- results
class OfTheUser(LookupError):
    """An exception that no file can contain; its nearest builtin base is raised instead."""


NAMES = ("a.shape[0]", "a.shape[1]", "b.shape[2]", "b.ndim", "tile[0]", "n", "m")
CONDITIONS = (
    *("{} < {}", "{} >= {} > 2", "{} == {}", "not {} != {}", "flag and {} > {}", "{} in (1, {})"),
    *("isinstance({}, int) or {}", "all(n > {} for n in a.shape[:{}])"),
)
INTEGERS = (
    *("{} + {}", "{} - {}", "{} * {}", "{} // {}", "{} % {}", "min({}, {})", "max({}, 7, {})"),
    *("cdiv({}, {})", "abs({} - {})", "-{} | {}", "divmod({}, {})[1]", "math.ceil({} / {})"),
    *("round({} / 3, 0) // {}", "sum((*a.shape, {})) ^ {}", "{} ** 2 & {}", "len(range({})) + {}"),
    *("math.prod(b.shape) + {} - {}", "({}).bit_length() << {} % 5", "({} >> 1) + ~{}"),
    *(
        "int(x) * {} + {}",
        "sum(n * {} for n in b.shape if n != {})",
        "sorted(b.shape)[{} % 3] - {}",
    ),
)
ENDS = (
    *("return {}, {}, x * 2", "return ArrayType(({}, {}), a.dtype)", "return {}, {} * h"),
    "return [ArrayType((1, abs({})), np.float32), max({}, x)]",
    *(
        "return Workspace((64, {}), slots={})",
        "return Workspace(tile, 'stream', slots=max({}, {}, 1))",
    ),
    "raise ValueError(f'{{a.shape}} of {{{}}} and {{{}:>5}}: {{x!r}}, {{h}}')",
    *("raise KeyError({}, {})", "raise OfTheUser(f'{{{}}}', {})"),
)


def made(source: str) -> Any:
    """Return the function of a source, registered so that inspect finds the source."""
    name = f"<drawn {next(NUMBERS)}>"
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    names = dict(globals())
    exec(compile(source, name, "exec", dont_inherit=True), names)
    return names["function"]


@st.composite
def sources(draw: Any) -> str:
    """Draw the source of a function of shapes, run-time scalars and a Static."""

    def number(depth: int) -> str:
        if depth == 0 or draw(st.integers(0, 3)) == 0:
            return draw(st.sampled_from(NAMES) | st.integers(0, 130).map(str))
        form = draw(st.sampled_from(INTEGERS))
        return f"({form.format(number(depth - 1), number(depth - 1))})"

    def condition() -> str:
        return draw(st.sampled_from(CONDITIONS)).format(number(1), number(0))

    first = re.sub(r"\bm\b", "n", number(0))
    lines = ["def function(a, b, n, x, h, flag, tile):", f"    m = {first}"]
    for _ in range(draw(st.integers(0, 3))):
        end = draw(st.sampled_from(ENDS)).format(number(1), number(1))
        choices = [
            [f"    m {draw(st.sampled_from(['', '+', '-']))}= {number(2)}"],
            [
                f"    if {condition()}:",
                f"        m = {number(2)}",
                "    else:",
                f"        m = {number(1)}",
            ],
            [f"    m = {number(1)} if {condition()} else {number(1)}"],
            [f"    if {condition()}:", f"        {end}"],
            [f"    assert {condition()}, f'{{m}}'"],
            [f"    m, n = n, {number(1)}"],
        ]
        lines += draw(st.sampled_from(choices))
    return "\n".join([*lines, f"    {draw(st.sampled_from(ENDS)).format(number(2), number(2))}"])


SIZES = st.integers(0, 9) | st.sampled_from([63, 64, 65, 1000, 1 << 20])
CALLS = st.tuples(
    *(st.tuples(SIZES, SIZES), st.tuples(SIZES, SIZES, SIZES), st.integers(-70, 70)),
    *(st.booleans(), st.floats(-100, 100, width=16)),
)


@settings(max_examples=examples(100))
@given(sources(), st.lists(CALLS, min_size=4, max_size=4))
def test_a_text_gives_what_the_function_gives(source: str, calls: list[Any]) -> None:
    function = made(source)
    expression = stored(function, **STATICS)
    for a, b, n, flag, h in calls:
        known = {
            "a": array(*a),
            "b": array(*b),
            "n": n,
            "x": n / 8,
            "h": np.float16(h),
            "flag": flag,
        }
        found = outcome(expression, {**known, **STATICS})
        if found[0] is not ImageError:  # range(1 << 20)
            assert found == outcome(function, {**known, **STATICS})


class Mode(enum.IntEnum):
    FAST = 1
    EXACT = 2


@dataclasses.dataclass(frozen=True)
class Config:
    tm: int = 64
    sides: tuple[int, ...] = (8, 16)
    mode: Mode = Mode.FAST
    more: Any = None

    @property
    def rows(self) -> int:
        return 2 * self.tm

    def tiles(self, n: Any, side: int = 0) -> Any:
        """Return the number of blocks of n."""
        return cdiv(n, side or self.tm)

    def grid(self, a: Any) -> Any:
        return self.tiles(a.shape[0]), self.tiles(a.shape[1], side=self.sides[0])


CONFIG, SIDES, TYPES = Config(), {"small": Config(32)}, (np.float16, np.dtype("int8"))


def bounded(n: Any, most: int = 64, *, least: int = 1) -> Any:
    most = max(most, least)
    return min(n, most)


def of_the_config(a: Any) -> Any:
    c = CONFIG
    if c.mode is Mode.EXACT or c.more is not None:
        return c.more.shape
    sides: tuple[int, ...] = tuple(cdiv(n, side) for n, side in zip(a.shape, c.sides, strict=True))
    return (
        *sides,
        SIDES["small"].tm * a.shape[0],
        c.mode * a.shape[1],
        bounded(a.shape[0], c.rows),
    )


def of_types(a: Any) -> Any:
    kind = "half" if a.dtype == TYPES[0] else a.dtype.name
    if a.dtype.itemsize < 2:
        raise OfTheUser(f"{kind} of {CONFIG.mode!r}: {a.shape[0]:>4}")
    return ArrayType(a.shape[:1], TYPES[a.shape[1] % 2]), kind, {"n": a.shape[1]}["n"]


def closed(side: int) -> Any:
    return lambda a: (cdiv(a.shape[0], side), -side), lambda a: (
        a.shape[1] ** 2 % side,
        float("inf"),
    )


FIRST, SECOND = closed(48)


@pytest.mark.parametrize(
    "function",
    [FIRST, SECOND, CONFIG.grid, of_the_config, of_types, lambda a: None, lambda a: "stream"],
    ids=lambda function: function.__qualname__,
)
def test_captured_values_and_functions_of_the_user_are_part_of_the_text(function: Any) -> None:
    expression = stored(function)
    for shape in itertools.product((0, 1, 7, 64, 1000), repeat=2):
        for dtype in (HALF, np.dtype("float32"), np.dtype("int8")):
            known = {"a": array(*shape, dtype=dtype)}
            assert outcome(expression, known) == outcome(function, known)


def test_a_text_has_only_what_is_unknown_at_export() -> None:
    """Values of Statics and globals are folded, branches on them decided, and other functions
    inlined."""
    assert stored(of_the_config).text == (
        "def bounded(n):\n    most = 128\n    most = max(most, 1)\n    return min(n, most)\n"
        "def of_the_config(a):\n"
        "    sides = tuple((cdiv(n, side) for n, side in zip(a.shape, (8, 16), strict=True)))\n"
        "    return (*sides, 32 * a.shape[0], 1 * a.shape[1], bounded(a.shape[0]))"
    )
    static = stored(lambda a, cfg: (cfg.rows if cfg.tm else a.shape[0], a.ndim), cfg=CONFIG)
    assert static.text == "def function(a, cfg):\n    return (128, a.ndim)"


# ---- what export rejects
def looped(a: Any) -> Any:
    sizes = []
    for n in a.shape:
        sizes.append(n)
    return sizes


def caught(a: Any) -> Any:
    try:
        return 3 // a.shape[0]
    except ZeroDivisionError:
        return 3


def around(a: Any) -> Any:
    return around(a) if a.shape[0] else 0


def renamed(a: Any) -> Any:
    prod = a.shape[0]
    return prod, math.prod(a.shape)


REFUSED = {
    "loop": (looped, "it has a node For", "for n in a.shape:"),
    "try": (caught, "it has a node Try", "try:"),
    "random": (lambda a: a.shape[0] + random.random(), "it calls random.random", "random.random()"),
    "numpy": (lambda a: np.clip(a.shape[0], 1, 8), "it calls np.clip", "np.clip(a.shape[0], 1, 8)"),
    "class": (lambda a: Config(a.shape[0]).rows, "it reads Config, a type", "Config"),
    "object": (lambda a: (CONFIG, a.ndim), "it reads CONFIG, a Config", "CONFIG"),
    "attribute": (lambda a: a.shape[0].real, "it has a.shape[0].real", "a.shape[0].real"),
    "method": (lambda a: str(a.ndim).upper(), "it calls str(a.ndim).upper", "str(a.ndim).upper()"),
    "name": (lambda a: a.shape[0] + nowhere, "nowhere is not defined", "nowhere"),  # type: ignore[name-defined]  # noqa: F821
    "lambda": (lambda a: (lambda n: n)(a.ndim), "it calls lambda n: n", "(lambda n: n)(a.ndim)"),
    "itself": (around, "it calls itself", None),
    "arguments": (lambda *a: a[0].shape, "it takes *args or **kwargs", None),
    "spread": (lambda a: bounded(*a.shape), "it passes *arguments", "bounded(*a.shape)"),
    "variable": (renamed, "a variable is called prod", "math.prod"),
    "matrices": (lambda a: a.shape @ a.shape, "it has a node MatMult", None),
    "pairs": (lambda a: {**{"n": a.ndim}}, "it has {**{'n': a.ndim}}", "{**{"),
    "multibyte": (lambda a: ("ππ", a.T), "it has a.T", "a.T"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_text_can_hold_is_refused_at_its_line(name: str) -> None:
    function, message, piece = REFUSED[name]
    with pytest.raises(SpecError) as refusal:
        stored(function)
    said = str(refusal.value)
    assert re.match(rf"{re.escape(__file__)}:\d+: kernel k: grid cannot be kept in a file: ", said)
    assert message in said.partition("\n")[0] and "; fix: " in said
    if piece is not None:
        _, line, carets = said.split("\n")
        assert line[carets.index("^") : len(carets)].startswith(piece[:10])


def test_a_function_without_the_source_that_was_compiled_is_refused() -> None:
    with pytest.raises(SpecError, match="has no source: write a lambda or a def"):
        stored(len)
    # edited after it was imported
    for source in ("def function(a):\n    return 2\n", "function = None\n"):
        function = made("def function(a):\n    return 1\n")
        name = function.__code__.co_filename
        linecache.cache[name] = len(source), None, source.splitlines(True), name
        with pytest.raises(SpecError, match="its source is not available"):
            stored(function)


# ---- texts in foreign files
@pytest.mark.parametrize(
    "text",
    [
        *("", "1", "import os", "def f(a):\n    import os", "def f(a):\n    return a.__class__"),
        *(
            "def f(a):\n    return eval('1')",
            "def f(a):\n    return open('x')",
            "def f(a): return b",
        ),
        *(
            "def f(a):\n    return (lambda: 1)()",
            "def f(a):\n    while 1: pass",
            "def f(a): yield 1",
        ),
        *("def f(a):\n    a.shape = 1", "def f(a):\n    a[0] = 1", "def f(a):\n    global b"),
        *(
            "def f(a): return f(a)",
            "def f(a): return g(a)\ndef g(a): return 1",
            "def len(a): return 1",
        ),
        *("def f(a): return a()", "def f(max): return max(1)", "def f(a):\n    def g(): return 1"),
        *(
            "class f: pass",
            "async def f(a): return 1",
            "def f(a): return (a := 1)",
            "def f(\0): pass",
            "def f(a, a): return 1",
        ),
        *(
            "def f(a): return int.__subclasses__()",
            "def f(a): return a.shape.count(1)",
            "def f(a):",
        ),
        *("def f(a): return {**a}", "def f(a): return [].append", "def f(a): return ().__class__"),
        *("def f(a): return " + "-" * 9000 + "1", "def f(a): return " + "[" * 90 + "1" + "]" * 90),
        *("def f(a): return " + "[" * 5000, "def f(a): return a" + ".shape" * 90, "#" * 20_000),
        "def f(a): return " + "+".join("1" * 100),
    ],
)
def test_a_text_beyond_the_part_of_python_is_refused(text: str) -> None:
    with pytest.raises(
        ImageError, match=r"^the file cannot be used: [^\n]{1,300}; export the kernel"
    ):
        _ = Expression(text, "the file").__signature__


@pytest.mark.parametrize(
    "body",
    [
        *("9 ** 9 ** 9", "1 << (1 << 60)", "(1 << 8000) ** int64(1 << 40)", "[0] * (1 << 40)"),
        *("'x' * (1 << 40)", "b'x' * (1 << 40)", "(1 << 40) * ((0,),)", "list(range(1 << 40))"),
        *("round(7, -(1 << 40))", "prod(range(1, 1 << 12))", "prod([1 << 4000] * 100)"),
        *("sum(1 for i in range(999) for j in range(999))", "pow(3, 1 << 30)", "10 ** 3000"),
        *("[x for x in [x for x in range(9999)]] == 1", "(1 << 4000) * (1 << 5000)"),
        "sorted([[i] * 99 for i in range(999)])",
    ],
)
def test_no_text_computes_for_long(body: str) -> None:
    begun = time.monotonic()
    with pytest.raises(ImageError, match="the file cannot be used: it exceeds the budget"):
        Expression(f"def f():\n    return {body}", "the file")()
    assert time.monotonic() - begun < 5


def test_only_bodies_of_functions_are_evaluated() -> None:
    head = "@list(range(1 << 40))\ndef f(a: 9 ** 9 ** 9, *b: 9 ** 9, c=9 ** 9 ** 9) -> open:\n"
    assert Expression(f"{head}    return a + 1", "the file")(a=1) == 2
    for name in ("__builtins__", "__import__", "__name__", "spent"):
        with pytest.raises(ImageError, match=f"it has {name}"):
            _ = Expression(f"def f(a):\n    return {name}", "the file").__signature__


@pytest.mark.parametrize("line", ["x = (x, x)", "x = [x, x]", "x = x + x", "x = b'aa' + x * 2"])
def test_no_text_makes_large_values_step_by_step(line: str) -> None:
    begin = "b'a'" if "b'" in line else "(1,)"
    text = "def f():\n    x = " + begin + f"\n    {line}" * 60 + "\n    return x == x"
    with pytest.raises(ImageError, match="it exceeds the budget"):
        Expression(text, "the file")()


@pytest.mark.parametrize(
    "body, error",
    [
        *(("'%9999999999d' % 1", TypeError), ("float32((1, 2))", TypeError), ("a[0]", TypeError)),
        *(
            ("f'{1:>999}'", ValueError),
            ("1 / 0", ZeroDivisionError),
            ("range(1 << 90)", OverflowError),
        ),
        *(("'a'.shape", AttributeError), ("(1).kind", AttributeError), ("int('x')", ValueError)),
    ],
)
def test_what_python_or_the_text_refuses_is_the_cause_of_the_error(body: str, error: Any) -> None:
    with pytest.raises((SpecError, ValueError)) as caught:
        Expression(f"def f(a):\n    return {body}", "the file")(a=array(3))
    assert isinstance(caught.value.__cause__ or caught.value, error)


GOOD = stored(of_the_config).text + "\n" + stored(of_types).text + "\n" + stored(CONFIG.grid).text
PIECES = [
    *re.findall(r"\w+|\W", GOOD),
    "(",
    ")",
    "[",
    "*",
    "**",
    "<<",
    "lambda",
    "for",
    "if",
    "__class__",
]


@settings(max_examples=examples(300))
@given(st.data())
def test_a_damaged_text_is_refused_or_computes_something(data: st.DataObject) -> None:
    pieces = re.findall(r"\w+|\W", GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(pieces) - 1))
        pieces[place : place + data.draw(st.integers(0, 2))] = data.draw(
            st.lists(st.sampled_from(PIECES), max_size=2)
        )
    expression = Expression("".join(pieces), "the file")
    try:
        names = expression.__signature__.parameters
        with np.errstate(all="ignore"):
            expression(**dict.fromkeys(names, array(8, 64)))
    except ImageError as error:
        assert re.match(r"the file cannot be used: ", str(error))
    except Exception as error:
        assert type(error) in ERRORS.values()


# ---- constants
@pytest.mark.parametrize(
    "value",
    [
        *(
            0,
            -3,
            True,
            None,
            1.5,
            -0.0,
            math.inf,
            "a'b",
            (),
            (1,),
            ("x", (2, None)),
            np.float32(0.1),
        ),
        *(np.int8(-5), np.bool_(True), 1 << 90),
    ],
    ids=repr,
)
def test_constants_come_back_from_their_texts(value: Any) -> None:
    text = described(value, "it")
    back = constant_of(text)
    assert type(back) is type(value) and back == value and described(back, "it") == text
    assert isinstance(ast.parse(text, mode="eval"), ast.Expression)
