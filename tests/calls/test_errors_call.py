"""Errors for bad options, arguments and targets, raised before anything is compiled or launched."""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, CompilerParams, SpecError, TargetError, ds, launch
from numpipe.compile import build
from numpipe.kernels import run_target
from numpipe.launch import driver
from tests.kernels.launch_fakes import CudaArray, FakeDriver, pretended, raising

A = np.ones((128, 64), np.float16)
B = np.ones((64, 64), np.float16)


@pytest.fixture(autouse=True)
def _no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@dataclass(frozen=True)
class Config:
    rows: int = 64


@numpipe.kernel(
    out_type=lambda a, b, cfg: ArrayType((a.shape[0], b.shape[0]), np.float32),
    signature="(m,k),(n,k)->(m,n)",
)
def product(a, b, c, *, cfg: numpipe.Static = Config()):
    c[ds(0, cfg.rows), ds(0, 64)] = numpipe.zeros((cfg.rows, 64), np.float32)


@numpipe.kernel
def scaled(a, c, scale):
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) * scale


@numpipe.kernel
def sized(a, c, *, rows: numpipe.Static):
    c[ds(0, rows), ds(0, 64)] = numpipe.zeros((rows, 64), np.float32)


CALLS: dict[str, Callable[..., Any]] = {
    "called": lambda kernel, *args, **named: kernel(*args, target="sim", **named),
    "simulated": lambda kernel, *args, **named: kernel.simulate(*args, **named),
    "compiled": lambda kernel, *args, **named: kernel.compiled(*args, **named),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
every_run = pytest.mark.parametrize(
    "call", [CALLS["called"], CALLS["simulated"]], ids=["called", "simulated"]
)


def said(kind: type[Exception], call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, numpipe.NumpipeError) and len(str(caught.value)) < 1500
    return str(caught.value)


# ---- which arguments -----------------------------------------------------------------------------
@every_call
def test_a_missing_argument_is_named(call: Any) -> None:
    told = said(SpecError, lambda: call(scaled, A))
    assert "kernel scaled" in told and "c, scale" in told


@every_call
def test_a_number_passed_for_an_array_is_named(call: Any) -> None:
    """The fix: an array."""

    @numpipe.kernel
    def chosen(table, c):
        c[ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), 1.0, np.float32) * float(table[0])

    c = np.zeros((64, 64), np.float32)
    told = said(numpipe.CompileError, lambda: call(chosen, 3, c))
    assert "'table' is a number" in told and "fix: pass an array as table" in told
    assert "float(table[0])\n" in told
    call(chosen, np.full(8, 3, np.int32), c)


@every_call
def test_a_static_without_a_default_must_be_passed(call: Any) -> None:
    told = said(SpecError, lambda: call(sized, A, np.zeros((64, 64), np.float32)))
    assert "the Static 'rows' has no default: pass rows=" in told


@every_call
def test_a_static_must_be_hashable(call: Any) -> None:
    told = said(SpecError, lambda: call(sized, A, np.zeros((64, 64), np.float32), rows=[64]))
    assert (
        "the Static 'rows' must be hashable" in told
        and "frozen dataclass" in told
        and "[64], a list" in told
    )


def test_the_default_of_a_static_must_be_hashable() -> None:
    with pytest.raises(SpecError, match="kernel k: the Static 'cfg' must be hashable"):

        @numpipe.kernel
        def k(a, *, cfg: numpipe.Static = {}):  # noqa: B006
            pass


def test_a_static_is_keyword_only() -> None:
    with pytest.raises(
        SpecError, match=r"kernel k: 'cfg' is Static and must be keyword-only: put it after '\*'"
    ):

        @numpipe.kernel
        def k(a, cfg: numpipe.Static):
            pass


@pytest.mark.parametrize(
    "default, said_of_it",
    [
        (None, "None"),
        ("fast", "'fast'"),
        ((1, 2), "(1, 2)"),
        (np.ones(3), "a ndarray"),
        (np.complex64(1), "complex64"),
        (1 << 31, "2147483648"),
        (1e39, "1e+39"),
    ],
)
def test_a_default_is_a_scalar(default: Any, said_of_it: str) -> None:
    def k(a, n=default):
        pass

    told = said(SpecError, lambda: numpipe.kernel(k))
    assert told.startswith("kernel k: ") and "'n'" in told and said_of_it in told
    if not isinstance(default, (float, int, np.generic)):
        assert "write '*, n: numpipe.Static = …', for an array drop the default" in told


@pytest.mark.parametrize(
    "source, name",
    [
        ("def k(a, target): pass", "target"),
        ("def k(a, stream=3): pass", "stream"),
        ("def k(a, *, trace: S = 3): pass", "trace"),
        ("def k(a, trace): pass", "trace"),
        ("def k(a, out=3): pass", "out"),
    ],
)
def test_a_parameter_may_not_have_the_name_of_a_call_option(source: str, name: str) -> None:
    namespace: dict[str, Any] = {"S": numpipe.Static}
    exec(source, namespace)
    told = said(SpecError, lambda: numpipe.kernel(namespace["k"]))
    assert told == (
        f"kernel k: a parameter cannot be called '{name}', because calls take {name}= themselves; "
        "use another name"
    )


@pytest.mark.parametrize(
    "source, name", [("def k(a, *more): pass", "more"), ("def k(a, **named): pass", "named")]
)
def test_parameters_are_written_out(source: str, name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    with pytest.raises(SpecError, match=rf"kernel k: \*{name} is not supported"):
        numpipe.kernel(namespace["k"])


def test_a_kernel_has_parameters() -> None:
    with pytest.raises(SpecError, match="kernel k: it has no array parameters"):

        @numpipe.kernel
        def k(*, cfg: numpipe.Static = 1):
            pass


# ---- arrays and scalars --------------------------------------------------------------------------
@every_call
@pytest.mark.parametrize(
    "value, part",
    [
        ([[1.0]], "a list is not an array; fix: pass np.asarray(b)"),
        (None, "a NoneType is not an array"),
        ("text", "a str is not an array"),
        (np.zeros((64, 64), object), "element type object"),
        (np.zeros((64, 64), np.complex64), "element type complex64"),
        (np.zeros((64, 64), ">f2"), "native byte order"),
    ],
)
def test_an_argument_that_is_not_an_array_is_named_with_accepted_ones(
    call: Any, value: Any, part: str
) -> None:
    told = said(SpecError, lambda: call(product, A, value))
    assert "argument 'b' of kernel 'product'" in told and part in told


@every_run
@pytest.mark.parametrize(
    "b, part",
    [
        (
            np.zeros((64, 32), np.float16),
            "argument 'b' has shape (64, 32), but k = 64 (from 'a'.shape[1]) was expected in "
            "dimension 1",
        ),
        (np.zeros(64, np.float16), "argument 'b' must have 2 dimensions (n, k), got shape (64,)"),
    ],
)
def test_shapes_that_do_not_belong_together(call: Any, b: Any, part: str) -> None:
    assert part in said(SpecError, lambda: call(product, A, b))


@every_run
def test_an_output_of_another_shape_than_the_signature_says(call: Any) -> None:
    told = said(SpecError, lambda: call(product, A, B, np.zeros((128, 32), np.float32)))
    assert "argument 'c' has shape (128, 32), but n = 64 (from 'b'.shape[0])" in told


@every_run
@pytest.mark.parametrize(
    "out, part",
    [
        (
            np.zeros((64, 64), np.float32),
            "out= for 'c' must be (128, 64) float32, got (64, 64) float32",
        ),
        (
            np.zeros((128, 64), np.float64),
            "out= for 'c' must be (128, 64) float32, got (128, 64) float64",
        ),
        ((A, B), "out= holds 2 arrays, but the call leaves 1 parameters for it (c)"),
    ],
)
def test_out_that_does_not_fit(call: Any, out: Any, part: str) -> None:
    assert part in said(SpecError, lambda: call(product, A, B, out=out))


@every_run
def test_out_of_another_count_is_refused_after_a_good_call_too(call: Any) -> None:
    c = np.zeros((128, 64), np.float32)
    call(product, A, B, out=c)
    assert "out= holds 2 arrays" in said(SpecError, lambda: call(product, A, B, out=(c, c)))


@every_run
def test_a_read_only_output_is_refused_after_a_good_call_too(call: Any) -> None:
    c = np.zeros((128, 64), np.float32)
    call(product, A, B, out=c)
    c.setflags(write=False)
    told = said(SpecError, lambda: call(product, A, B, out=c))
    assert "argument 'c' of kernel 'product'" in told and "read-only; pass a writable array" in told


@every_run
@pytest.mark.parametrize("value", [1 << 31, -(1 << 31) - 1])
def test_an_int_beyond_int32(call: Any, value: int) -> None:
    told = said(SpecError, lambda: call(scaled, A, np.zeros((64, 64), np.float32), value))
    assert told == (
        f"kernel scaled: the scalar 'scale' = {value} does not fit int32, the type of Python ints "
        f"in kernels: pass np.int64({value})"
    )


@every_run
def test_a_float_beyond_float32(call: Any) -> None:
    told = said(SpecError, lambda: call(scaled, A, np.zeros((64, 64), np.float32), -1e300))
    assert (
        "kernel scaled: the scalar 'scale' = -1e+300 does not fit float32" in told
        and "pass np.float64(-1e+300)" in told
    )
    call(scaled, A, np.zeros((64, 64), np.float32), float("inf"))


# ---- options -------------------------------------------------------------------------------------
def decorated(**options: Any) -> Any:
    @numpipe.kernel(**options)
    def k(a, c):
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    return k


@pytest.mark.parametrize(
    "options, parts",
    [
        ({"num_compute_wgs": 0}, ["num_compute_wgs must be 1…7", "got 0"]),
        ({"num_compute_wgs": 8}, ["num_compute_wgs must be 1…7", "1024 threads", "got 8"]),
        ({"num_compute_wgs": 2.0}, ["num_compute_wgs must be an int, got 2.0"]),
        ({"memory_registers": 25}, ["memory_registers must be a multiple of 8 in 24…256, got 25"]),
        ({"memory_registers": 16}, ["memory_registers must be a multiple of 8 in 24…256, got 16"]),
        (
            {"grid_names": ("m",), "wg_axis": "m"},
            ["wg_axis='m' is also the name of a grid axis, ('m',); fix: give wg_axis another name"],
        ),
        ({"wg_axis": 3}, ["wg_axis must be a string, got 3"]),
        (
            {"grid": (1, 2), "grid_names": ("x",)},
            ["grid_names ('x',) name 1 dimensions, but the grid (1, 2) has 2"],
        ),
        (
            {"grid": numpipe.persistent(), "grid_names": ("x", "y")},
            ["('x', 'y') name 2 dimensions, but the grid (1,) has 1"],
        ),
        (
            {"grid": (1, 1), "grid_names": ("x", "x")},
            ["grid_names must be different strings, got ('x', 'x')"],
        ),
        (
            {"grid_names": None},
            [
                "grid_names must be different strings, got None: give a tuple of names, or leave "
                "grid_names out"
            ],
        ),
        (
            {"cluster_names": None},
            ["cluster_names must be different strings, got None", "or leave cluster_names out"],
        ),
        (
            {"without": None},
            ["without must be different strings, got None", "or leave without out"],
        ),
        ({"grid": (-1,)}, ["grid must be a tuple of non-negative ints, got (-1,)"]),
        ({"grid": 1.5}, ["grid must be a tuple of non-negative ints, got 1.5"]),
        ({"grid": (1, 1 << 16)}, ["65536 CTAs along dimension 1, at most 65535", "persistent"]),
        (
            {"out_type": ArrayType((1,), np.float32)},
            ["out_type must be a function of the arguments"],
        ),
        (
            {"compiler_params": {"store_slots": 2}},
            ["compiler_params must be numpipe.CompilerParams(…), got {'store_slots': 2}"],
        ),
        ({"target": "cpu"}, ["target must be None, 'auto', 'gpu' or 'sim', got 'cpu'"]),
        (
            {"signature": "(m,k),(n,k)->(m,n)"},
            ["signature '(m,k),(n,k)->(m,n)' describes 3 arrays, the kernel has 2 parameters"],
        ),
    ],
)
def test_options_are_checked_at_decoration(options: dict[str, Any], parts: list[str]) -> None:
    told = said(SpecError, lambda: decorated(**options))
    assert told.startswith("kernel k: ")
    for part in parts:
        assert part in told


def test_an_option_for_names_may_be_left_out_as_the_error_says() -> None:
    assert decorated(grid_names=(), cluster_names=(), without=()).options == decorated().options


def test_outputs_of_a_call_without_arrays_are_passed_as_the_error_says() -> None:
    """No argument tells the library or the device, so the message suggests NumPy's function."""

    @numpipe.kernel(
        out_type=lambda: (ArrayType((64, 64), np.float32), ArrayType((128, 64), np.int32))
    )
    def ones(x, y):
        x[ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), 1.0, np.float32)

    told = said(SpecError, lambda: ones(target="sim"))
    assert told.startswith("kernel ones: the call passes no array") and "its outputs (x, y)" in told
    fix = told.partition("e.g. out=")[2]
    assert fix == "(np.empty((64, 64), 'float32'), np.empty((128, 64), 'int32'))"
    x, _ = ones(out=eval(fix), target="sim")
    assert (x == 1).all()


@pytest.mark.parametrize("text", ["(m,k),(n,k)", "m,k->n", "(m,k)->", "(m k)->(m)x", 3])
def test_a_signature_that_cannot_be_read(text: Any) -> None:
    told = said(SpecError, lambda: decorated(signature=text))
    assert told.endswith(f", got {text!r}") and "'(m,k),(n,k)->(m,n)'" in told


def test_a_signature_of_fewer_arrays_than_the_call_has() -> None:
    told = said(
        SpecError,
        lambda: decorated(signature="(m)->()").simulate(A, np.zeros((64, 64), np.float32)),
    )
    assert "argument 'a' must have 1 dimensions (m), got shape (128, 64)" in told


@pytest.mark.parametrize(
    "make, part",
    [
        (
            lambda: CompilerParams(delay_release=-1),
            "delay_release must be None or an int >= 0, got -1",
        ),
        (lambda: CompilerParams(store_slots=9), "store_slots must be 1…8 (0: chosen), got 9"),
        (
            lambda: ArrayType(3, np.float32),
            "ArrayType: shape must be a tuple of non-negative ints, got 3",
        ),
        (
            lambda: ArrayType((-1,), np.float32),
            "ArrayType: shape must be a tuple of non-negative ints, got (-1,)",
        ),
        (
            lambda: ArrayType((1,), "float17"),
            "ArrayType: dtype must be an element type, got 'float17'",
        ),
        (lambda: numpipe.persistent(0), "ctas must be an int >= 1 or None, got 0"),
        (
            lambda: numpipe.BlockSpec((64, 64.0), lambda k: (0, k)),
            "block_shape must be a tuple of ints, None (squeezed) and "
            "numpipe.Element(size), got (64, 64.0)",
        ),
        (lambda: numpipe.Element(0), "Element: size must be an int of 1…65536"),
        (
            lambda: numpipe.BlockSpec((1 << 17,), lambda k: (k,)),
            "a side outside 1…65536 elements: split the block",
        ),
        (
            lambda: numpipe.BlockSpec((1, 64, 64), lambda k: (0, 0, k)),
            "(1, 64, 64) leaves a tile of 3 dimensions",
        ),
        (
            lambda: numpipe.BlockSpec((None,) * 4 + (64, 64), lambda k: (0, 0, 0, 0, 0, k)),
            "6 dimensions, and TMA addresses at most 5",
        ),
        (
            lambda: numpipe.BlockSpec((64, 64), 3),
            "index_map must be a function of the grid indices or None, got 3",
        ),
        (
            lambda: numpipe.BlockSpec((64, 64), lambda k: (0, k), delay_release=-1),
            "delay_release must be an int >= 0 or None, got -1",
        ),
    ],
)
def test_specs_are_checked_where_they_are_built(make: Callable[[], Any], part: str) -> None:
    assert part in said(SpecError, make)


def test_a_launch_as_numba_cuda_writes_it_says_how_to_call() -> None:
    kernel = decorated()
    assert "Call k(…) instead: set the grid and the warpgroups once" in said(
        SpecError, lambda: kernel[1, 128](A, A)
    )
    with pytest.raises(TypeError, match="not iterable"):
        iter(kernel)


@pytest.mark.parametrize("make", [numpipe.pipeline, numpipe.tiles])
def test_kernel_operations_outside_of_a_kernel_are_refused(make: Any) -> None:
    options = {"grid": (1,), "in_specs": ()} if make is numpipe.pipeline else {}
    with pytest.raises(
        RuntimeError, match=r"only works inside a kernel: call it from a @numpipe.kernel function"
    ):
        make(**options)


# ---- functions of the arguments ------------------------------------------------------------------
@every_call
@pytest.mark.parametrize(
    "out_type, part",
    [
        (lambda a: (a.shape[0], 64), "out_type must return 1 ArrayType for c, got (128, 64)"),
        (lambda a: None, "out_type must return 1 ArrayType for c, got None"),
        (lambda a: (ArrayType((1, 1), a.dtype),) * 2, "out_type must return 1 ArrayType for c"),
        (lambda a, cfg: None, "out_type takes cfg, but the call knows a"),
        (lambda c: None, "out_type takes c, but the call knows a"),
    ],
)
def test_an_out_type_that_does_not_fit(call: Any, out_type: Any, part: str) -> None:
    assert part in said(SpecError, lambda: call(decorated(out_type=out_type), A))


@every_run
@pytest.mark.parametrize(
    "grid, part",
    [
        (lambda a: (a.shape[0] / 64,), "grid must be a tuple of non-negative ints, got (2.0,)"),
        (lambda n: (1,), "grid takes n, but the call knows a, c"),
        (lambda a: (1, 1), "grid_names ('x',) name 1 dimensions, but the grid (1, 1) has 2"),
    ],
)
def test_a_grid_that_does_not_fit(call: Any, grid: Any, part: str) -> None:
    kernel = decorated(grid=grid, grid_names=("x",))
    assert part in said(SpecError, lambda: call(kernel, A, np.zeros((64, 64), np.float32)))


# ---- targets -------------------------------------------------------------------------------------
MACHINES: dict[str, Callable[[], Any]] = {
    "no driver": raising(driver.DriverMissing("libcuda was not found (DynamicLibNotFoundError)")),
    "A100": lambda: FakeDriver(1, gpus=(("NVIDIA A100", (8, 0)),)),
    "broken": raising(driver.DriverError("cuInit", 999, "CUDA_ERROR_UNKNOWN")),
    "CUDA 12": lambda: FakeDriver(1, version=12080),
}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    with pretended(monkeypatch, MACHINES) as become:
        yield become


@pytest.mark.parametrize(
    "name, part",
    [
        ("no driver", "libcuda was not found"),
        ("A100", "found NVIDIA A100 (sm_80), but numpipe's kernels need Hopper"),
        ("broken", "CUDA_ERROR_UNKNOWN (999)"),
        ("CUDA 12", "the driver supports CUDA 12.8"),
    ],
)
def test_target_gpu_says_why_not_and_what_fixes_it(
    machine: Callable[[str], None], name: str, part: str
) -> None:
    machine(name)
    told = said(TargetError, lambda: product(A, B, target="gpu"))
    assert told.startswith("kernel product: target='gpu': the GPU cannot be used") and part in told
    assert "target='sim'" in told or "update the driver" in told


def test_gpu_arrays_without_a_driver_are_refused_before_an_output_is_allocated(
    machine: Callable[[str], None],
) -> None:
    machine("no driver")
    there = CudaArray(4096, (128, 64), "<f2"), CudaArray(8192, (64, 64), "<f2")
    assert "the GPU cannot be used: libcuda was not found" in said(
        TargetError, lambda: product(*there)
    )
    assert "got arrays on the GPU: pass NumPy arrays" in said(
        TargetError, lambda: product(*there, target="sim")
    )


@pytest.mark.parametrize("name", ["broken", "CUDA 12"])
def test_a_driver_that_ought_to_work_never_falls_back(
    machine: Callable[[str], None], name: str
) -> None:
    machine(name)
    said(TargetError, lambda: product(A, B))


def test_work_too_large_is_not_simulated_unasked(machine: Callable[[str], None]) -> None:
    machine("no driver")
    large = np.zeros((4096, 4096), np.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = said(TargetError, lambda: product(large, B[:, :1].repeat(4096, 1)))
    assert (
        "kernel product: no usable GPU" in told
        and "array elements are too many to simulate by default (at most 8388608)" in told
    )
    assert "pass target='sim'" in told


def test_on_request_it_is_simulated_nevertheless() -> None:
    large = np.broadcast_to(np.float16(0), (64, 1 << 18))
    few = np.broadcast_to(np.float16(0), (64, 1 << 18))
    assert product(large, few, target="sim").shape == (64, 64)


@every_run
def test_the_simulator_takes_no_arrays_of_a_gpu(call: Any) -> None:
    there = CudaArray(4096, (128, 64), "<f2")
    c = np.zeros((128, 64), np.float32)
    assert "pass all arrays on the host or all on one GPU" in said(
        SpecError, lambda: call(product, there, B, c)
    )
    everything = (there, CudaArray(4096, (64, 64), "<f2"), CudaArray(4096, (128, 64), "<f4"))
    told = said(TargetError, lambda: call(product, *everything))
    assert "target='sim' runs on host arrays, got arrays on the GPU: pass NumPy arrays" in told


def test_arrays_here_and_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = launch.Choice(
        "gpu", "a fake", launch.Device(0, "NVIDIA H200", (9, 0), 132, 13000, 232448)
    )
    monkeypatch.setattr(launch, "choose_target", lambda *_: choice)
    told = said(
        SpecError,
        lambda: product(A, CudaArray(4096, (64, 64), "<f2"), np.zeros((128, 64), np.float32)),
    )
    assert (
        "argument 'b' of kernel 'product': a CudaArray on GPU 0, but argument 'a' is on the host"
        in told
    )


def test_a_read_only_array_on_a_gpu_is_not_an_output(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = launch.Choice(
        "gpu", "a fake", launch.Device(0, "NVIDIA H200", (9, 0), 132, 13000, 232448)
    )
    monkeypatch.setattr(launch, "choose_target", lambda *_: choice)
    arrays = (
        CudaArray(4096, (128, 64), "<f2"),
        CudaArray(4096, (64, 64), "<f2"),
        CudaArray(4096, (128, 64), "<f4", readonly=True),
    )
    told = said(SpecError, lambda: product(*arrays))
    assert (
        "argument 'c' of kernel 'product': it is an output and this CudaArray is read-only" in told
    )


def test_without_a_compiler_the_error_names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda module: None)
    told = said(TargetError, lambda: scaled.compiled(A, np.zeros((64, 64), np.float32), 1.0))
    assert (
        "kernel scaled: kernels cannot be compiled in this process: numba.cuda is not installed"
        in told
    )
    assert "install numba-cuda[cu13]" in told and "target='sim'" in told


def test_a_simulator_of_numbas_in_place_of_its_compiler_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    zeros = np.zeros((64, 64), np.float32)
    told = said(TargetError, lambda: scaled.compiled(A, zeros, 1.0))
    assert (
        "NUMBA_ENABLE_CUDASIM puts a simulator in the place of Numba's compiler; unset it, or use "
        "target='sim'" in told
    )
    scaled(A, zeros, 1.0, target="sim")  # which runs without wheels


def test_sizes_beyond_int32_are_refused() -> None:
    huge = np.broadcast_to(np.float16(0), (1 << 31, 64))
    for call in CALLS.values():
        told = said(
            SpecError, lambda call=call: call(scaled, huge, np.zeros((64, 64), np.float32), 1.0)
        )
        assert (
            "argument 'a' of kernel 'scaled': shape (2147483648, 64): sizes and indices in "
            "kernels are int32" in told
        )


def test_a_masked_array_is_refused() -> None:
    told = said(
        SpecError, lambda: scaled(np.ma.masked_array(A), np.zeros((64, 64), np.float32), 1.0)
    )
    assert (
        "argument 'a' of kernel 'scaled': masked arrays are not supported, because kernels do "
        "not read masks: pass "
        "a.filled(0)" in told
    )


def test_inspecting_something_else() -> None:
    told = said(SpecError, lambda: product.inspect("assembly", A, B))
    assert "inspect('assembly'): one of 'ptx', 'sass', 'llvm', 'source', 'resources'" in told


def test_numpys_bfloat16_is_an_element_type() -> None:
    """The list of rejected types must not contain it."""
    product.compiled(A.astype(ml_dtypes.bfloat16), B.astype(ml_dtypes.bfloat16))


def rows_of(x: Any) -> tuple[int]:
    rows, _ = x.shape
    return (rows,)


@pytest.mark.parametrize(
    "option, function, message",
    [
        ("grid", lambda x: (x.shape[1],), "tuple index out of range"),
        ("grid", rows_of, "not enough values to unpack (expected 2, got 1)"),
        ("out_type", lambda x: ArrayType((x.shape[1],), np.float32), "tuple index out of range"),
    ],
)
def test_the_error_of_a_function_that_reads_a_missing_dimension_has_the_shapes(
    option: str, function: Any, message: str
) -> None:
    def copied(x, y):
        y[ds(0, 64)] = x[ds(0, 64)]

    options = {"out_type": lambda x: ArrayType(x.shape, np.float32), option: function}
    told = said(
        SpecError,
        lambda: numpipe.kernel(**options)(copied).simulate(np.ones(64, np.float32)),
    )
    assert told == f"kernel copied: {option}: {message}: x is (64,), 1-D"


def test_the_warning_that_a_call_is_simulated_points_at_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        launch,
        "choose_target",
        lambda *_: launch.Choice("sim", "no usable GPU: a fake", fallback=True),
    )
    run_target._warn_once.cache_clear()
    with pytest.warns(UserWarning, match="a fake; kernels run on the simulated SM") as caught:
        scaled(A, np.zeros((64, 64), np.float32), 1.0)  # <-
    assert caught[0].filename == __file__
    assert linecache.getline(__file__, caught[0].lineno).endswith("# <-\n")
