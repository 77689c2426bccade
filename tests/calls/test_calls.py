"""Defaults, arguments by name and run-time scalars: all four ways to use a kernel bind arguments
alike."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, SpecError, ds, launch
from numpipe.launch import driver
from tests.kernels.launch_fakes import CudaArray, FakeDriver
from tests.kernels.launch_kernels import compiled_as

A = np.zeros((64, 64), np.float32)
B = np.zeros((64, 64), np.float32)
S = numpipe.Static


@pytest.fixture(autouse=True)
def _no_disk_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_CACHE", "0")  # compiles are counted, or faked


@pytest.fixture(autouse=True)
def _no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@dataclass(frozen=True)
class Config:
    rows: int = 64


def result(a: Any) -> ArrayType:
    return ArrayType((64, 64), np.float32)


def body(a, b, c, alpha=1.0, n=3, *, beta=0.0, cfg: S = Config()):
    """Compute c = alpha + 10 n + 100 beta."""
    c[ds(0, cfg.rows), ds(0, 64)] = (
        (numpipe.zeros((cfg.rows, 64), np.float32) + 1.0) * alpha + n * 10 + beta * 100.0
    )


allocating = numpipe.kernel(out_type=result)(body)
given = numpipe.kernel(body)

CALLS: dict[str, Callable[..., Any]] = {
    "called": lambda kernel, *args, **named: kernel(*args, target="sim", **named),
    "simulated": lambda kernel, *args, **named: kernel.simulate(*args, **named),
    "compiled": lambda kernel, *args, **named: kernel.compiled(*args, **named),
    "inspected": lambda kernel, *args, **named: kernel.inspect("source", *args, **named),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
every_run = pytest.mark.parametrize(
    "call", [CALLS["called"], CALLS["simulated"]], ids=["called", "simulated"]
)


def new() -> Any:
    return np.full((64, 64), np.nan, np.float32)


# ---- ways to write a call
WRITTEN: dict[str, tuple[Callable[[Any, Any], Any], float]] = {
    "k(a, b)": (lambda k, c: k(allocating, A, B), 31),
    "k(a, b, alpha=2.0)": (lambda k, c: k(allocating, A, B, alpha=2.0), 32),
    "k(a, b, n=5, alpha=2.0)": (lambda k, c: k(allocating, A, B, n=5, alpha=2.0), 52),
    "k(b=b, a=a, beta=1.0)": (lambda k, c: k(allocating, b=B, a=A, beta=1.0), 131),
    "k(a, b, out=c)": (lambda k, c: k(allocating, A, B, out=c), 31),
    "k(a, b, out=c, n=0)": (lambda k, c: k(allocating, A, B, out=c, n=0), 1),
    "k(a, b, c) with an out_type": (lambda k, c: k(allocating, A, B, c), 31),
    "k(a, b, c, 2.0) with an out_type": (lambda k, c: k(allocating, A, B, c, 2.0), 32),
    "k(a, b, c)": (lambda k, c: k(given, A, B, c), 31),
    "k(a, b, c, 2.0)": (lambda k, c: k(given, A, B, c, 2.0), 32),
    "k(a, b, c, 2.0, 4)": (lambda k, c: k(given, A, B, c, 2.0, 4), 42),
    "k(a, b, c, 2.0, n=4, beta=1.0)": (lambda k, c: k(given, A, B, c, 2.0, n=4, beta=1.0), 142),
    "k(a=a, b=b, c=c)": (lambda k, c: k(given, a=A, b=B, c=c), 31),
    "k(a, n=4, c=c, b=b)": (lambda k, c: k(given, A, n=4, c=c, b=B), 41),
    "k(a, b, out=c) without an out_type": (lambda k, c: k(given, A, B, out=c), 31),
    "k(a, b, alpha=2.0, cfg=…)": (lambda k, c: k(allocating, A, B, alpha=2.0, cfg=Config(64)), 32),
}


@every_run
@pytest.mark.parametrize("written", WRITTEN)
def test_a_call_computes_with_its_arguments(call: Any, written: str) -> None:
    write, expected = WRITTEN[written]
    c = new()
    returned = write(call, c)
    assert ((c if returned is None else returned) == expected).all()


def test_every_way_to_write_a_call_compiles_the_same_kernel() -> None:
    """With and without an out_type are two kernels, each compiled once."""
    c = new()
    made = {id(write(CALLS["compiled"], c)) for write, _ in WRITTEN.values()}
    assert made == {id(allocating.compiled(A, B)), id(given.compiled(A, B, c))}
    assert given.inspect("source", A, B, c, alpha=2.0) == given.inspect("source", A, B, out=c)


def test_array_types_replace_arrays_with_scalars_by_name() -> None:
    kind = ArrayType((64, 64), np.float32)
    built = given.compiled(kind, kind, kind, n=np.int64(3))
    assert (
        built
        is given.compiled(a=kind, c=kind, b=kind, n=np.int64(7))
        is not given.compiled(kind, kind, kind)
    )


# ---- keyword-only run-time scalars
@numpipe.kernel
def named_only(c, *, n, cfg: S = Config()):
    c[ds(0, cfg.rows), ds(0, 64)] = numpipe.zeros((cfg.rows, 64), np.float32) + n


@every_run
def test_a_keyword_only_scalar_without_a_default(call: Any) -> None:
    for n in (3, 4):
        c = new()
        call(named_only, c, n=n)
        assert (c == n).all()


@every_call
def test_it_must_be_passed_by_name(call: Any) -> None:
    with pytest.raises(
        SpecError, match="^kernel named_only: the scalar 'n' has no default: pass n=…$"
    ):
        call(named_only, new())
    with pytest.raises(SpecError, match=r"^kernel named_only: takes 1 arguments \(c\), got 2$"):
        call(named_only, new(), 3)


# ---- mismatches
NO_SCALAR = "pass a bool, an int, a float or a NumPy scalar"


@every_call
@pytest.mark.parametrize(
    "args, named, told",
    [
        (
            (A, B, 2.0),
            {},
            "argument 'c' is an output and must be an array, got 2.0: leave it out, its type is "
            "known from out_type; pass scalars after the outputs by name, e.g. alpha=2.0",
        ),
        ((A, B, A, 2.0, 3, 4), {}, "takes 5 arguments (a, b, c, alpha, n), got 6"),
        (
            (A, B, A, 2.0),
            {"alpha": 3.0},
            "argument 'alpha' is given by position and by name: pass it once",
        ),
        (
            (A,),
            {"alpha": 3.0, "c": A},
            "argument 'b' is missing, but 'c' after it is given: a call may leave out the last "
            "arrays only, which it allocates; fix: pass b= too, or put 'c' before it in "
            "def body(…)",
        ),
        (
            (A, B),
            {"gamma": 3.0},
            "unexpected argument 'gamma'; its arguments are a, b, c, alpha, n, beta, cfg, out, "
            "target, stream",
        ),
        (
            (A, B),
            {"alpha": A},
            f"'alpha' is a run-time scalar (its default is 1.0), got a ndarray: {NO_SCALAR}",
        ),
        (
            (A, B),
            {"n": None},
            f"'n' is a run-time scalar (its default is 3), got a NoneType: {NO_SCALAR}",
        ),
        (
            (A, B, A, A),
            {},
            f"'alpha' is a run-time scalar (its default is 1.0), got a ndarray: {NO_SCALAR}",
        ),
        (
            (A, B, A),
            {"out": A},
            "out= was given, but all 3 parameters (a, b, c) were passed too: give the outputs once",
        ),
        (
            (A, B),
            {"n": np.complex64(1)},
            "the scalar 'n' must be a bool, an int, a float or a NumPy scalar of such a type, got "
            "complex64",
        ),
    ],
)
def test_arguments_that_do_not_fit(call: Any, args: Any, named: Any, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        call(allocating, *args, **named)
    assert str(caught.value) == f"kernel body: {told}"


@every_call
def test_a_scalar_for_an_output_without_out_type(call: Any) -> None:
    @numpipe.kernel
    def k(a, c):
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    with pytest.raises(
        SpecError, match=r"^kernel k: argument 'c' is an output and must be an array, got 2.0$"
    ):
        call(k, A, 2.0)


# ---- types of scalars
@numpipe.kernel
def typed(c, *, x=1, y=1.0):
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + y * 3 + (x - 1)


class Level(enum.IntEnum):
    LOW = 1


@pytest.mark.parametrize(
    "value, kind",
    [
        (1, "int32"),
        (True, "bool"),
        (np.bool_(True), "bool"),
        (1.0, "float32"),
        (np.int64(1), "int64"),
        (np.int32(1), "int32"),
        (np.uint8(1), "uint8"),
        (np.float64(1), "float64"),
        (np.float16(1), "float16"),
        (Level.LOW, "int32"),
    ],
)
def test_a_scalar_is_compiled_with_its_type(value: Any, kind: str) -> None:
    c = new()
    typed.simulate(c, x=value)
    typed(c, x=value, target="sim")
    variants = [
        variant
        for variant in typed._calls.variants.values()
        if variant.scalars == (np.dtype(kind), np.dtype(np.float32))
    ]
    assert variants and all(
        [name for name, _ in variant._typed] == ["x", "y"] for variant in variants
    )


@pytest.mark.parametrize("value", [2, np.int64(2), 2.0])
def test_an_int_where_the_default_is_a_float_is_a_float(value: Any) -> None:
    c = new()
    typed.simulate(c, y=value)
    assert (c == 6).all()
    wanted = np.dtype(np.int64 if isinstance(value, np.int64) else np.float32)
    assert any(
        variant.scalars == (np.dtype(np.int32), wanted)
        for variant in typed._calls.variants.values()
    )


@pytest.mark.variants(1)
@pytest.mark.parametrize("value", [True, np.bool_(True), False])
def test_bools_choose(value: Any) -> None:
    @numpipe.kernel
    def k(c, flag=False):
        out = numpipe.zeros((64, 64), np.float32)
        if flag:
            out = out + 1.0
        c[ds(0, 64), ds(0, 64)] = out

    c = new()
    k.simulate(c, value)
    assert (c == bool(value)).all()
    assert ".pred" in k.inspect("ptx", c, value)


# ---- functions of the arguments
def test_out_type_and_grid_get_scalars_with_defaults_by_name() -> None:
    """A plan is kept per value of the scalars that decide the grid, and for any value of the
    others."""
    seen: list[Any] = []

    def grid(a: Any, blocks: int, cfg: Any) -> tuple[int]:
        seen.append((a.shape, blocks, cfg.rows))
        return (blocks,)

    @numpipe.kernel(
        grid=grid,
        grid_names="i",
        out_type=lambda blocks, wide: ArrayType((64 * blocks, 64 * wide), np.float32),
    )
    def k(a, c, blocks=1, *, wide=1, alpha=1.0, cfg: S = Config()):
        i = numpipe.axis_index("i")
        c[ds(i * 64, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + alpha

    for blocks, alpha in ((1, 1.0), (3, 2.0), (1, 3.0), (3, 4.0)):
        c = k(A, blocks=blocks, alpha=alpha, target="sim")
        assert c.shape == (64 * blocks, 64) and (c == alpha).all()
    assert seen == [((64, 64), 1, 64), ((64, 64), 3, 64)]
    assert k.simulate(A, wide=2).shape == (64, 128)
    with pytest.raises(
        SpecError, match=r"out= for 'c' must be \(192, 64\) float32, got \(64, 64\)"
    ):
        k.simulate(A, blocks=3, out=new())


def test_a_positional_scalar_decides_the_grid_anew() -> None:
    @numpipe.kernel(grid=lambda n: (n,), grid_names="i")
    def k(c, n):
        c[ds(numpipe.axis_index("i") * 64, 64), ds(0, 64)] = (
            numpipe.zeros((64, 64), np.float32) + 1.0
        )

    for n in (1, 3, 2):
        c = np.zeros((192, 64), np.float32)
        k.simulate(c, n)
        assert (c[: 64 * n] == 1).all() and (c[64 * n :] == 0).all()


def test_which_parameter_is_the_scalar_is_part_of_a_plan() -> None:
    @numpipe.kernel
    def k(a, b, c):
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0

    k.simulate(A, 2.0, new())
    with pytest.raises(SpecError, match="argument 'c' is an output"):
        k.simulate(A, new(), 2.0)
    assert {
        tuple(name for name, _ in variant._typed) for variant in k._calls.variants.values()
    } == {("b",)}


def test_outputs_that_a_simulated_call_allocates_hold_no_zeros() -> None:
    """Elements that a kernel does not store are poisoned."""

    @numpipe.kernel(out_type=result)
    def forgets(a, c):
        if a.shape[0] > 64:
            c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    assert np.isnan(forgets(A, target="sim")).all() and np.isnan(forgets.simulate(A)).all()


# ---- launched
@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(driver, "_opened", fake)
    choice = launch.Choice(
        "gpu", "a fake", launch.Device(0, "NVIDIA H200", (9, 0), 132, 13000, 232448)
    )
    monkeypatch.setattr(launch, "choose_target", lambda *_: choice)
    return fake


def test_scalars_are_launched_in_the_order_of_the_parameters(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scalars without a default come first, wherever they are, and each call launches its own
    values."""
    seen: list[Any] = []

    class Recorder:
        def __init__(self, built: Any, infos: Any, kinds: Any, *options: Any) -> None:
            self.kinds = [np.dtype(k).name for k in kinds]

        def __call__(self, grid: Any, infos: Any, values: Any, stream: int) -> None:
            seen.append((self.kinds, list(values), stream))

    monkeypatch.setattr(launch, "Prepared", Recorder)

    @numpipe.kernel
    def k(scale, a, c, n=3, *, beta, flag=True):
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    compiled_as(k, lambda *args: object())
    a, c = CudaArray(4096, (64, 64), "<f4"), CudaArray(1 << 20, (64, 64), "<f4")
    k(2.0, a, c, beta=0.5, stream=7)
    k(3.0, a, c, 4, beta=np.float64(0.25), stream=7)
    k(a=a, scale=5.0, c=c, flag=False, beta=1, stream=7)
    types = ["float32", "int32", "float32", "bool"]
    assert seen == [
        (types, [2.0, 3, 0.5, True], 7),
        (["float32", "int32", "float64", "bool"], [3.0, 4, 0.25, True], 7),
        (["float32", "int32", "int32", "bool"], [5.0, 3, 1, False], 7),
    ]


# ---- which parameters are outputs
@numpipe.function
def put(ref, x):
    ref[ds(0, 64), ds(0, 64)] = x


@numpipe.function
def put_by_name(x, *, to):
    put(to, x)


STORES = (put, put_by_name)


def stores_itself(a, c):
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


def stores_in_a_function(a, c):
    put(c, numpipe.zeros((64, 64), np.float32) + 1.0)


def stores_two_functions_deep(a, c):
    put_by_name(numpipe.zeros((64, 64), np.float32) + 1.0, to=c)


def stores_in_a_nested_function(a, c):
    def keep(value):
        c[ds(0, 64), ds(0, 64)] = value

    keep(numpipe.zeros((64, 64), np.float32) + 1.0)


def stores_in_a_nested_function_that_is_passed_it(a, c):
    def keep(a, value):
        a[ds(0, 64), ds(0, 64)] = value

    keep(c, numpipe.zeros((64, 64), np.float32) + 1.0)


def stores_through_another_name(a, c):
    other = c
    other[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1.0


def stores_through_a_tuple_of_functions(a, c):
    STORES[0](c, numpipe.zeros((64, 64), np.float32) + 1.0)


def stores_in_a_function_that_is_passed_on(a, c):
    def apply(f, ref):
        f(ref, numpipe.zeros((64, 64), np.float32) + 1.0)

    apply(put, c)


def stores_in_a_function_of_another_name(a, c):
    write = put
    write(c, numpipe.zeros((64, 64), np.float32) + 1.0)


STORING = {name: f for name, f in list(globals().items()) if name.startswith("stores_")}


@pytest.mark.variants(3)
@every_run
@pytest.mark.parametrize("function", STORING.values(), ids=STORING)
def test_an_output_is_found_wherever_it_is_stored_to(call: Any, function: Any) -> None:
    kernel = numpipe.kernel(function)
    a, c = A.copy(), new()
    a.setflags(write=False)  # an input may be read-only
    call(kernel, a, c)
    assert (c == 1).all() and kernel.definition.first_output == 1
    with pytest.raises(
        SpecError, match="argument 'c' of kernel .* read-only; pass a writable array"
    ):
        call(kernel, A, a)
    assert [arg.output for arg in kernel.compiled(a, c).unit.arrays] == [False, True]


@every_run
def test_a_store_that_the_source_does_not_show_is_refused(call: Any) -> None:
    """On the GPU the store would be lost: only outputs are copied back."""

    @numpipe.kernel
    def hidden(a, b, c):
        for i in range(1):
            pairs = ((put, a), (put, b))
            f, ref = pairs[0]
            f(ref, numpipe.zeros((64, 64), np.float32))
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    for way in (call, CALLS["compiled"]):
        with pytest.raises(
            SpecError, match=r"kernel hidden: 'a\[…\] = tile': the call treats 'a' as an input"
        ):
            way(hidden, A, B, new())


# ---- parameters that a kernel's factory fixes
def several(a, bias, c, alpha=1.0, *, beta, cfg: S = Config()):
    acc = numpipe.zeros((cfg.rows, 64), np.float32) + 2.0
    if alpha is not None:
        acc = acc * alpha
    if bias is not None:
        acc = acc + bias.shape[0] * 1.0
    c[ds(0, cfg.rows), ds(0, 64)] = acc if beta is None else acc + beta


def test_parameters_that_a_kernel_lacks_are_none_in_its_source() -> None:
    def made(*without: str) -> numpipe.Kernel:
        found: numpipe.Kernel = numpipe.kernel(several, out_type=result, without=without)
        return found

    assert (
        made()(A, np.zeros((5, 8), np.float32), alpha=3.0, beta=0.5, target="sim") == 11.5
    ).all()
    assert (made("bias")(A, alpha=3.0, beta=0.5, target="sim") == 6.5).all()
    assert (made("bias", "alpha")(A, beta=0.5, target="sim") == 2.5).all()
    assert (made("bias", "alpha", "beta")(A, target="sim") == 2).all()
    assert made("bias").parameters == ["a", "c"] and made("bias", "beta").outputs(A) == ["c"]


def test_a_parameter_left_out_that_is_not_there_or_is_passed_is_named() -> None:
    with pytest.raises(
        SpecError,
        match=r"kernel several: without=\('c', 'gamma'\): it has no parameter 'gamma'; its "
        r"parameters "
        "are a, bias, c, alpha, beta, cfg",
    ):
        numpipe.kernel(several, without=("c", "gamma"))
    kernel = numpipe.kernel(several, out_type=result, without="bias")
    with pytest.raises(
        SpecError, match="argument 'bias' is given, but the kernel was made without='bias'"
    ):
        kernel(A, bias=B, beta=1.0, target="sim")
