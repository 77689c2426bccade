"""Arithmetic of kernels: the same type rules in both executions, exact integers, IEEE floats, and
errors at the user's line.

tests/gpu/test_arithmetic_on_gpu.py compares the GPU's values; this file checks types and
instructions.
"""
# ruff: noqa: F841 (kernels that must be refused)

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import numpipe
from numpipe import CompileError, SimulationError, SpecError, ds
from numpipe.compile.build import toolchain
from numpipe.core import arith, numbers
from tests.kernels.compilers import compiles
from tests.kernels.covering import examples
from tests.kernels.expressions import (
    SCALARS,
    WIDTH,
    Uncertain,
    Undefined,
    agrees,
    drawn,
    load,
    result,
    scalars,
    source,
    worth,
)
from tests.kernels.refusals import EXECUTIONS, marked

both = pytest.mark.parametrize("execution", EXECUTIONS)
MIN, MAX = -(2**31), 2**31 - 1
I32, F32 = np.int32, np.float32


@pytest.fixture(autouse=True)
def _each_execution_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


# ---- type rules -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "kinds, expected",
    [
        ((int, int), "int32"),
        ((bool, bool), "int32"),
        ((int, float), "float32"),
        ((bool, float), "float32"),
        ((I32, int), "int32"),
        ((I32, bool), "int32"),
        ((I32, I32), "int32"),
        ((I32, float), "float32"),
        ((I32, F32), "float32"),
        ((F32, float), "float32"),
        ((F32, int), "float32"),
        ((F32, bool), "float32"),
        ((I32, np.float64), "float64"),
        ((I32, np.float16), "float16"),
        ((np.float16, int), "float16"),
        ((np.float16, float), "float16"),
        ((np.float16, F32), "float32"),
        ((np.float64, float), "float64"),
        ((np.int64, I32), "int64"),
        ((np.int64, int), "int64"),
        ((np.int64, float), "float64"),
        ((np.int64, F32), "float64"),
        ((np.uint32, I32), "int64"),
        ((np.uint32, int), "uint32"),
        ((np.uint8, np.int8), "int16"),
        ((np.uint64, np.int64), "float64"),
        ((I32, F32, np.float64), "float64"),
    ],
)
def test_what_operands_are_computed_in(kinds: tuple[Any, ...], expected: str) -> None:
    for order in itertools.permutations(kinds):
        assert arith.common(
            *(k if k in (int, float, bool) else np.dtype(k) for k in order)
        ) == np.dtype(expected)


OPERANDS: dict[str, Any] = {
    "literal int": 1,
    "literal float": 1.5,
    "bool": True,
    "int32": I32(1),
    "float32": F32(1.5),
    "int64": np.int64(1),
    "uint32": np.uint32(1),
    "uint8": np.uint8(1),
    "float16": np.float16(1.5),
    "float64": np.float64(1.5),
}
BINARY = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "and_",
    "or_",
    "xor",
    "lshift",
    "rshift",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
)
UNARY = ("negative", "positive", "absolute", "invert", "rounded")


def simulated_type(operation: Any, *values: Any) -> str:
    """Return the type of an operation's value in CPython, or the error."""
    try:
        value = operation(*values)
    except SpecError as error:
        return str(error)
    return "bool" if type(value) is bool else np.dtype(type(value)).name


def compiled_type(operation: Any, names: tuple[str, ...], *before: Any) -> str:
    """Return the type of the operation on the GPU, or the error."""
    from numpipe.core import numba as nb

    types = [
        nb.types.literal(1)
        if name == "literal int"
        else nb.types.float64
        if name == "literal float"
        else nb.types.boolean
        if name == "bool"
        else getattr(nb.types, name)
        for name in names
    ]
    mask = sum(1 << i for i, name in enumerate(names) if name == "literal float")
    try:
        told = nb.returns(
            operation,
            (*types, *([nb.types.literal(mask)] if mask else [])),
        )
    except SpecError as error:
        return str(error)
    return str(told)


@compiles
@pytest.mark.parametrize("name", BINARY)
def test_an_operator_has_one_type_in_both_executions(name: str) -> None:
    operation = getattr(arith, name)
    for pair in itertools.product(OPERANDS, repeat=2):
        values = [OPERANDS[p] for p in pair]
        assert simulated_type(operation, *values) == compiled_type(operation, pair), pair


@compiles
@pytest.mark.parametrize("name", UNARY)
def test_an_operation_on_one_number_has_one_type_in_both_executions(name: str) -> None:
    operation = getattr(arith, name, None) or getattr(numbers, name)
    for operand in OPERANDS:
        if operand != "literal float":  # on a literal it is a constant, which is folded earlier
            value = type(OPERANDS[operand])(0)
            assert simulated_type(operation, value) == compiled_type(operation, (operand,)), operand


@pytest.mark.parametrize(
    "a, b", list(itertools.product([MIN, MIN + 1, -100, -7, -1, 0, 1, 3, 64, 12345, MAX], repeat=2))
)
def test_operators_on_int32_are_pythons_or_raise(a: int, b: int) -> None:
    for name, python in {
        "add": int.__add__,
        "sub": int.__sub__,
        "mul": int.__mul__,
        "and_": int.__and__,
        "or_": int.__or__,
        "xor": int.__xor__,
        "floordiv": int.__floordiv__,
        "mod": int.__mod__,
        "lshift": int.__lshift__,
        "rshift": int.__rshift__,
    }.items():
        legal = 0 <= b < 32 if "shift" in name else b != 0 if name in ("floordiv", "mod") else True
        exact = python(a, b) if legal else None
        for operands in ((I32(a), I32(b)), (a, I32(b)), (I32(a), b)):
            if exact is not None and MIN <= exact <= MAX:
                found = getattr(arith, name)(*operands)
                assert type(found) is I32 and found == exact
            else:
                with pytest.raises(SimulationError):
                    getattr(arith, name)(*operands)


@pytest.mark.parametrize(
    "a, b",
    list(
        itertools.product(
            [0.0, -0.0, 1.0, -2.5, 0.1, 1e30, math.inf, -math.inf, math.nan], repeat=2
        )
    ),
)
def test_operators_on_float32_are_ieee(a: float, b: float) -> None:
    with np.errstate(all="ignore"):
        exact = {
            "add": F32(a) + F32(b),
            "sub": F32(a) - F32(b),
            "mul": F32(a) * F32(b),
            "truediv": F32(a) / F32(b),
            "floordiv": np.floor_divide(F32(a), F32(b)),
            "mod": np.remainder(F32(a), F32(b)),
        }
    with np.errstate(all="raise"):
        for name, expected in exact.items():
            for operands in ((F32(a), F32(b)), (a, F32(b)), (F32(a), b)):
                found = getattr(arith, name)(*operands)
                assert type(found) is F32
                np.testing.assert_array_equal(found, expected)


def test_other_integers_raise_at_the_ends_of_their_own_range() -> None:
    assert arith.add(np.int64(2**40), 1) == 2**40 + 1
    assert type(arith.mul(np.uint8(51), 5)) is np.uint8
    for operation, values, said in (
        (arith.mul, (np.uint8(52), 5), r"52 \* 5 = 260 overflows uint8"),
        (arith.sub, (np.uint32(1), 2), "1 - 2 = -1 overflows uint32"),
        (arith.negative, (np.uint32(1),), r"-\(1\) = -1 overflows uint32"),
        (arith.add, (np.int64(2**63 - 1), 1), "overflows int64"),
        (arith.lshift, (np.int64(1), 64), "outside 0 … 63"),
    ):
        with pytest.raises(SimulationError, match=said):
            operation(*values)


def test_ceiling_division_of_python_ints_is_exact_so_that_no_address_overflows() -> None:
    made = numpipe.cdiv(1 << 44, 3)
    assert made == 5864062014806 and type(made) is int
    assert type(numpipe.cdiv(np.int32(130), 64)) is np.int32


def test_truncation_rounding_and_the_values_they_have_no_integer_for() -> None:
    assert [numbers.cast(F32(x), "int32") for x in (2.9, -2.9, -0.5)] == [2, -2, 0]
    assert [numbers.rounded(F32(x)) for x in (2.5, 3.5, -2.5, 2.4)] == [2, 4, -2, 2]
    assert (
        numbers.cast(np.float64(2**31 - 1), "int32") == MAX and numbers.cast(True, "float32") == 1
    )
    assert (
        numbers.cast(F32(1e30), "float16") == math.inf
        and numbers.cast(F32(math.nan), "bool") is True
    )
    for value, dtype in (
        (F32(2**31), "int32"),
        (F32(math.nan), "int32"),
        (F32(math.inf), "int64"),
        (F32(-1), "uint8"),
    ):
        with pytest.raises(SimulationError, match="undefined value"):
            numbers.cast(value, dtype)
    with pytest.raises(SimulationError, match="300 does not fit uint8: the GPU would wrap it"):
        numbers.cast(I32(300), "uint8")


# ---- kernels that both executions accept, and their results ---------------------------------
class Case(NamedTuple):
    """A kernel that stores a number, the number, and the arguments of the call."""

    kernel: Any
    args: tuple[Any, ...]
    expected: float


CASES: list[Case] = []


def gives(expected: float, *args: Any) -> Callable[[Any], Any]:
    """Decorate a kernel function ``f(c, *args)`` that stores `expected`."""

    def add(function: Any) -> Any:
        CASES.append(Case(numpipe.kernel(function), args, expected))
        return CASES[-1].kernel

    return add


def zeros64() -> np.ndarray:
    return np.full((64, 64), np.nan, F32)


@gives(-1 + 2 - 4 + 1, -7, 4)
def division_rounds_down(c, a, b):
    v = a // 7 + a % 3 + (a // 2) + a % b
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + v


@gives(0.5 + 3.5 + 1.0, 7, 2, 0.5)
def division_of_integers_is_a_float(c, a, b, x):
    v = 1 / b + a / b + x / 0.5
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + v


@gives(16777217 - 16777216, 16777216)
def integers_are_not_rounded(c, a):
    v = (a + 1) - 16777216
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + v


@gives(math.inf, 0.0, 0)
def division_by_zero_of_floats(c, x, n):
    v = (1.0 / x + 1 / n) if x != x / x else x
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + v


@gives(0 + 1 + 2 + 3 + (10 + 7 + 4 + 1) + (2 + 3), 4)
def ranges(c, n):
    s = 0
    for i in range(n):
        s += i
    for i in range(10, 0, -3):
        s = s + i
    for i in range(2, n):
        s += i
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + s


@gives(0.5 * (0 + 1 + 2) + 6, 3, 0.5)
def variables_that_start_as_literals(c, n, x):
    s, count, left = 0.0, 0, 5
    while left > 2:
        s = s + x * count
        count += 1
        left -= 1
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + (s + 2 * count)


@gives(3 + 100, 3)
def choices_with_literal_arms(c, n):
    v = (n if n < 5 else 7) + (100 if n > 2 else 200)
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + v


@gives(1 + 4 + 2.0 + 11, 4, 0.5)
def functions_with_literals(c, n, x):
    def pair(i):
        return 1, i

    def half(y):
        y = y * 2
        return y if y > 0.25 else 0.0

    one, same = pair(n)
    count = lambda k: k + 1
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + (
        one + same + half(x) + half(0.5) + count(10)
    )


class State(NamedTuple):
    total: Any
    scale: Any


@gives((4 + 0 + 1 + 2) + 0.5, 4)
def tuples_of_literals(c, n):
    t = (n, 0.5, 2)
    s = t[0]
    for k in (0, 1, 2):
        s = s + k
    fixed = (n, t)
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + (
        s + fixed[1][1] + t[2] - len(t) + 1
    )


@gives(4 + 3 + (0 + 1 + 2 + 3) * 0.5, 4, 0.5)
def named_tuples_of_literals(c, n, x):
    state = State(0, 0.0)
    for i in range(n):
        state = State(state.total + 1, state.scale + x * i)
    last = State(n, 3)
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + (
        state.total + state.scale + last.scale
    )


@gives(4 + 7 + 2, 4)
def captured_literals(c, n):
    if n is None:  # noqa: SIM108
        step = 1
    else:
        step = 7
    pair = (n, 2)
    moved = lambda k: k + step + pair[1]
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + moved(n)


SIZES = (5, 6, 7)


@gives(6 + 7, 1)
def an_item_chosen_at_run_time(c, n):
    v = SIZES[n] + SIZES[n + 1]
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + v


@gives(1 + 1 + 0 + 2, 4)
def comparisons_in_a_row(c, n):
    v = int(0 < n <= 4) + (n > 3) + (1 < n + 1 < 4) + (3 < n < 5 < 6) * 2
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + v


@gives(9 - 3 + 8 + 4 + 2 + 1 + 81, 9, -3, 4.5)
def builtins_that_compute(c, a, b, x):
    low, high = min(a, b, 4), max((a, b))
    q, rest = divmod(a, 4)
    v = high + low + abs(b + 11) + round(x) + q + rest + pow(a, 2)
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + v


@gives(2 - 2 + 0.5 + 1 + 3 + 5, 2.9, 3)
def conversions(c, x, n):
    kind = np.int32
    v = int(x) + kind(-x) + np.float32(0.5) + bool(n) + float(n) + np.int64(5)
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + v


@gives((1 << 4) + (-9 >> 1) + (13 & 7) + (8 | 1) + (5 ^ 3) + ~4, 4, -9)
def bits(c, n, m):
    v = (1 << n) + (m >> 1) + (13 & (n + 3)) + (2 * n | 1) + (n + 1 ^ 3) + ~n
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + v


@gives(1 + 3.0 + 8 + 1 + 1, 2, 1.5, True)
def powers_and_bools(c, n, x, flag):
    v = n**0 + x**1 * 2 + n**3 + flag + flag * True
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + v


@gives(3.0, 2)
def a_tile_with_bools_and_integers(c, n):
    tile = numpipe.zeros((64, 64), np.float32) + True
    tile += n * True
    tile = tile * (n > 1)
    c[ds(0, 64), ds(0, 64)] = tile


@gives(2**40 // 2**30 + 1, np.int64(2**40))
def an_int64_stays_one(c, big):
    v = (big + 1) // np.int64(2**30) + (1 if big > 2**39 else 0)
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + v


@gives(float(np.float16(0.1) * np.float16(3)) + 1, np.float16(0.1))
def a_float16_stays_one(c, h):
    v = h * 3
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + (np.float32(v) + (v - v + 1))


@gives(2**32 - 1 - 5, np.uint32(2**32 - 1))
def a_uint32_stays_one(c, u):
    v = u // 1 - 5
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + v


@pytest.mark.variants(5, thorough=16)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel.name)
@both
def test_a_kernel_computes(case: Case, execution: str) -> None:
    c = zeros64()
    EXECUTIONS[execution](case.kernel, c, *case.args)
    if execution == "simulated":
        np.testing.assert_array_equal(c, F32(case.expected))


WIDE = {"an_int64_stays_one", "a_uint32_stays_one", "conversions"}


@pytest.mark.variants(3)
@compiles
@pytest.mark.parametrize(
    "case", [c for c in CASES if c.kernel.name not in WIDE], ids=lambda case: case.kernel.name
)
def test_nothing_is_computed_in_64_bits(case: Case) -> None:
    wide = wide_instructions(case.kernel.inspect("ptx", zeros64(), *case.args))
    assert not {
        text
        for text in wide
        if re.match(r"(div|rem|mul\.lo|mad\.lo|cvt\.rn\.f)", text) or "f64" in text
    }, wide


def wide_instructions(ptx: str) -> set[str]:
    """Return the instructions of 64-bit arithmetic, which includes address computations."""
    return set(
        re.findall(
            r"\b((?:add|sub|mul|mad|fma|div|rem|min|max|neg|abs|setp|shl|shr|cvt)\.[\w.]*[suf]64[\w.]*)",
            ptx,
        )
    )


@compiles
def test_division_costs_what_it_must() -> None:
    @numpipe.kernel
    def divided(c, a, b, *, by: numpipe.Static = 0):
        v = (a // by) * 3 + a % by if by else (a // b) * 3 + a % b
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + v

    ptx = {by: divided.inspect("ptx", zeros64(), 1, 2, by=by) for by in (0, 64, 7)}
    assert len(re.findall(r"\b(?:div|rem)\.\w+", ptx[0])) == 1
    for by in (64, 7):
        assert not re.findall(r"\b(?:div|rem)\.", ptx[by])
    assert "mul.hi" in ptx[7] and "mul.hi" not in ptx[64]


# ---- whole expressions ---------------------------------------------------------------------------
REAL = [False] * 4 + [True] * 4


@given(
    texts=st.tuples(*(drawn(is_real) for is_real in REAL)),
    sets=st.lists(scalars(), min_size=3, max_size=3),
)
@settings(
    max_examples=examples(40),
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_expressions_are_worth_what_python_says(
    texts: tuple[str, ...], sets: list[dict[str, Any]]
) -> None:
    kernel = load(source(texts, REAL))
    for (i, (text, is_real)), values in itertools.product(
        enumerate(zip(texts, REAL, strict=True)), sets
    ):
        note(f"{text} with {values}")
        c = np.full((64, WIDTH * len(texts)), np.nan, F32)
        args = [values[name] for name in SCALARS]
        try:
            expected = worth(text, values)
        except Undefined:
            with pytest.raises(
                SimulationError, match=r"overflows int32|does not fit int32|by zero|shift"
            ):
                kernel.simulate(c, i, *args)
        except Uncertain:
            continue
        else:
            kernel.simulate(c, i, *args)
            found = result(c, i, is_real)
            assert agrees(found, expected, exactly=True), (text, values, found, expected)


@pytest.mark.thorough
@compiles
def test_expressions_compile_to_32_bits() -> None:
    texts: list[str] = []

    @given(pair=st.tuples(drawn(False), drawn(True)))
    @settings(
        max_examples=20,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def collect(pair: tuple[str, str]) -> None:
        texts.extend(pair)

    collect()
    texts += ["int(x)", "x / y"]
    kernel = load(source(texts, [False, True] * (len(texts) // 2)))
    ptx = kernel.inspect("ptx", np.zeros((64, WIDTH * len(texts)), F32), -1, 1, 2, 3, 0.5, 1.5)
    assert len(texts) > 30 and not {
        w for w in wide_instructions(ptx) if not w.startswith(("add.s64", "cvt.u32.u64"))
    }
    assert "div.rn.f32" in ptx and "cvt.rzi.s32.f32" in ptx


# ---- errors --------------------------------------------------------------------------------------
class Refused(NamedTuple):
    kernel: Any
    args: tuple[Any, ...]
    kind: type[Exception]
    said: str
    executions: tuple[str, ...]


REFUSED: list[Refused] = []


def refused(
    said: str,
    *args: Any,
    kind: type[Exception] = SpecError,
    executions: tuple[str, ...] = tuple(EXECUTIONS),
) -> Any:
    def add(function: Any) -> Any:
        REFUSED.append(Refused(numpipe.kernel(function), args, kind, said, executions))
        return function

    return add


SIMULATED = {"kind": SimulationError, "executions": ("simulated",)}


@refused(
    "2147483647 + 1 = 2147483648 overflows int32, which wraps silently on the GPU", MAX, **SIMULATED
)
def a_sum_too_large(c, n):
    v = n + 1  # <-


@refused("-2147483648 * -1 = 2147483648 overflows int32", MIN, **SIMULATED)
def a_product_too_large(c, n):
    v = n
    v *= -1  # <-


@refused("-(-2147483648) = 2147483648 overflows int32", MIN, **SIMULATED)
def a_negative_too_large(c, n):
    v = -n  # <-


@refused("65536 * 65536 = 4294967296 overflows int32", 256, **SIMULATED)
def a_power_too_large(c, n):
    v = n**4  # <-


@refused("1 << 31 = 2147483648 overflows int32", 31, **SIMULATED)
def a_shift_too_large(c, n):
    v = 1 << n  # <-


@refused(
    "1 >> 32: a shift of 32-bit integers by a count outside 0 … 31 is undefined on the GPU",
    32,
    **SIMULATED,
)
def a_shift_too_far(c, n):
    v = 1 >> n  # <-


@refused("1 << -1: a shift of 32-bit integers by a count outside 0 … 31", -1, **SIMULATED)
def a_shift_backwards(c, n):
    v = 1 << n  # <-


@refused("7 // 0: integer division by zero is undefined on the GPU", 0, **SIMULATED)
def a_quotient_by_zero(c, n):
    v = 7 // n  # <-


@refused("7 // 0: integer division by zero is undefined on the GPU", 0, **SIMULATED)
def a_remainder_by_zero(c, n):
    v = divmod(7, n)  # <-


@refused(
    "inf does not fit int32: the GPU would convert it to an undefined value", math.inf, **SIMULATED
)
def an_infinity_as_an_integer(c, x):
    v = int(x)  # <-


@refused("range(0, 4, 0): a step of zero is undefined on the GPU", 0, **SIMULATED)
def a_range_that_stands_still(c, n):
    for i in range(0, 4, n):  # <-
        pass


@refused(
    "the constant 4294967296 does not fit int32, the type it takes here: pass an np.int64 to",
    3,
)
def a_literal_too_large(c, n):
    v = n + 2**32  # <-


@refused("the constant -1 does not fit uint8", np.uint8(3))
def a_negative_literal_with_an_unsigned_number(c, n):
    v = n * -1  # <-


@refused("the constant 4294967296 does not fit int32", 3)
def a_variable_that_starts_too_large(c, n):
    v = 2**32  # <-
    v = v + n


@refused("'&' takes integers, got int32 and float32: int(x) truncates a float", 3, 0.5)
def bits_of_a_float(c, n, x):
    v = n & x  # <-


@refused("'~' of a bool is -1 or -2, which both count as true: write 'not'", 3)
def the_inverse_of_a_bool(c, n):
    v = ~(n > 3)  # <-


@refused(
    "'**' takes a compile-time exponent from 0 to 64, because it is expanded to products, got a "
    "run-time value",
    3,
)
def a_run_time_exponent(c, n):
    v = n**n  # <-


@refused(
    "'**' takes a compile-time exponent from 0 to 64, because it is expanded to products, got -1", 3
)
def a_negative_exponent(c, n):
    v = n**-1  # <-


@refused("range expects integers that fit in int64, got float32", 0.5)
def a_range_of_floats(c, x):
    for i in range(x):  # <-
        pass


@refused("int32(…) takes a number, got", 3)
def a_tuple_as_a_number(c, n):
    v = int((n, n))  # <-


@refused(
    "'f(n)' calls a function between two comparisons; fix: assign its value to a name first",
    3,
    kind=CompileError,
)
def a_call_between_comparisons(c, n):
    f = lambda k: k + 1
    v = 0 < f(n) < 3  # <-


@refused("round(…) takes 1 argument in a kernel, got 2", 0.5, kind=CompileError)
def rounding_to_digits(c, x):
    v = round(x, 2)  # <-


@refused("max(…) takes no keyword arguments in a kernel, got default=", 3, kind=CompileError)
def keywords_of_a_builtin(c, n):
    v = max(n, default=0)  # <-


@refused("int32 and float32", 3, kind=CompileError, executions=("compiled",))
def a_variable_of_two_types(c, n):
    v = 0
    for i in range(n):
        v = v + 0.5 * i  # <-
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + v


@pytest.mark.parametrize(
    "case, execution",
    [
        pytest.param(case, e, id=f"{case.kernel.name}-{e}")
        for case in REFUSED
        for e in case.executions
    ],
)
def test_it_is_refused_at_its_line(case: Refused, execution: str) -> None:
    if execution == "compiled" and toolchain():
        pytest.skip("the CUDA compiler is not installed")
    with pytest.raises(case.kind) as caught:
        EXECUTIONS[execution](case.kernel, zeros64(), *case.args)
    told = str(caught.value)
    assert case.said in told
    if case.kernel.name != "a_variable_of_two_types":  # detected where the two types merge
        assert told.startswith(f"{marked(case.kernel)}: kernel {case.kernel.name}: "), told
