"""Handlers of XLA's custom calls: their structures, what they launch and when, and errors that
cross C as text."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, SpecError, launch
from numpipe.kernels.calls import Calls
from numpipe.kernels.variants import Variant
from numpipe.ops.matmul import Config
from numpipe.plan.specs import FLAGS, Workspace
from tests.kernels.launch_fakes import FakeDriver, opened
from tests.kernels.launch_kernels import SIZES, compiled_as, doubled, image

jax = pytest.importorskip("jax")
ffi: Any = pytest.importorskip("numpipe.frameworks.jax.ffi")
targets = pytest.importorskip("numpipe.frameworks.jax.custom_calls")
FakeXla = pytest.importorskip("tests.kernels.xla_fakes").FakeXla

A, B, C, D = 1 << 20, 1 << 21, 1 << 22, 1 << 23
OUT = {"grid": (1,), "out_type": lambda a: ArrayType(a.shape, a.dtype)}
IN = jax.ShapeDtypeStruct((64, 64), np.float32)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Return a fake GPU, JAX's default device, that records the array addresses of each launch."""
    fake = FakeDriver()
    fake.sizes, fake.seen = SIZES, []  # type: ignore[attr-defined]
    fake.kernel = lambda p: fake.seen.append(
        tuple(
            ctypes.c_int64.from_address(p[1 + 5 * i]).value  # type: ignore[attr-defined]
            for i in range((len(fake.sizes) - 1) // 5)
        )
    )
    monkeypatch.setattr(targets, "default_gpu", lambda: 0)
    jax.clear_caches()  # a program is traced once per default device
    with opened(monkeypatch, fake):
        yield fake
    jax.clear_caches()


def handler(kernel: Any, **named: Any) -> Any:
    """Return the CUDA handler of a call that is traced now."""
    before = set(targets._targets)
    jax.eval_shape(lambda x: numpipe.jax.call(kernel)(x, **named), IN)
    (key,) = targets._targets.keys() - before
    return targets._targets[key]._handlers["CUDA"]


# ---- the interface
def test_the_structures_lie_as_in_the_header_that_jax_has(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    fields = {
        "XLA_FFI_CallFrame": (
            ffi.Frame,
            {
                "extension_start": "extension_start",
                "api": "api",
                "context": "ctx",
                "stage": "stage",
                "operands": "args",
                "results": "rets",
            },
        ),
        "XLA_FFI_Args": (ffi.Buffers, {"size": "size", "items": "args"}),
        "XLA_FFI_Rets": (ffi.Buffers, {"size": "size", "items": "rets"}),
        "XLA_FFI_Buffer": (
            ffi.Buffer,
            {"dtype": "dtype", "data": "data", "rank": "rank", "dims": "dims"},
        ),
        "XLA_FFI_Api": (
            ffi.Api,
            {
                "version": "api_version",
                "error_create": "XLA_FFI_Error_Create",
                "stream_get": "XLA_FFI_Stream_Get",
            },
        ),
        "XLA_FFI_Api_Version": (ffi.Version, {"major": "major_version", "minor": "minor_version"}),
        "XLA_FFI_Metadata": (ffi.Metadata, {"version": "api_version", "traits": "traits"}),
        "XLA_FFI_Metadata_Extension": (
            ffi.Extension,
            {"type": "extension_base.type", "metadata": "metadata"},
        ),
        "XLA_FFI_Error_Create_Args": (ffi._ErrorArguments, {"message": "message", "code": "errc"}),
        "XLA_FFI_Stream_Get_Args": (ffi._StreamArguments, {"context": "ctx", "stream": "stream"}),
    }
    asked = [
        (struct, theirs, getattr(ours, mine).offset)
        for struct, (ours, names) in fields.items()
        for mine, theirs in names.items()
    ]
    lines = "".join(
        f'printf("%zu\\n", offsetof({struct}, {theirs}));' for struct, theirs, _ in asked
    )
    source = tmp_path / "offsets.c"
    header = Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h"
    # in C a structure has a name of its own only where a typedef gives it one
    text = header.read_text(encoding="utf8")
    declared = "".join(
        f"typedef struct {name} {name};" for name in fields if f"}} {name};" not in text
    )
    source.write_text(
        f'#include <stdio.h>\n#include "{header}"\n{declared}int main() {{ {lines} }}',
        encoding="utf8",
    )
    subprocess.run([compiler, "-w", "-o", tmp_path / "offsets", source], check=True)
    found = subprocess.run(
        [tmp_path / "offsets"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [(s, f, int(n)) for (s, f, _), n in zip(asked, found, strict=True)] == asked


@pytest.mark.parametrize("theirs, told", [((0, 1), (0, 1)), ((0, 3), (0, 3)), ((0, 9), (0, 4))])
def test_a_handler_reports_a_common_version_and_that_it_can_be_captured(
    theirs: Any, told: Any
) -> None:
    metadata = FakeXla(theirs).ask(ffi.Handler(lambda stream, pointers: None, 1, 1, streams=True))
    assert (metadata.version.major, metadata.version.minor) == told
    assert metadata.traits == ffi.COMMAND_BUFFER


@pytest.mark.parametrize(
    "error, code",
    [
        (SpecError("argument 'x': schön"), 3),
        (KeyboardInterrupt("stop"), 13),
        (ValueError("\0"), 13),
    ],
)
def test_whatever_is_raised_comes_back_as_text(error: BaseException, code: int) -> None:
    def fails(stream: int, pointers: Any) -> None:
        raise error

    xla = FakeXla()
    assert xla.call(ffi.Handler(fails, 1, 1, streams=False), [A], [B]) == 0xE0
    assert xla.error == (
        f"{type(error).__module__}.{type(error).__qualname__}: {error}".replace("\0", " "),
        code,
    )


def test_buffers_of_another_call_are_refused() -> None:
    xla = FakeXla()
    assert (
        xla.call(ffi.Handler(lambda stream, pointers: None, 1, 1, streams=False), [A, B], [C])
        == 0xE0
    )
    assert "2 operands and 1 results" in xla.error[0]


# ---- on a GPU
def test_tracing_compiles_and_launches_nothing(fake: FakeDriver) -> None:
    compiled: list[Any] = []
    handler(doubled(lambda *key: compiled.append(key) or image(), **OUT))
    assert len(compiled) == 1 and not fake.named("launch")


def test_a_call_launches_on_the_stream_and_addresses_of_its_frame(fake: FakeDriver) -> None:
    xla, called = FakeXla(), handler(doubled(**OUT))
    for stream, pointers in ((7, (A, B)), (7, (A, B)), (8, (A, B)), (7, (C, D))):
        assert xla.call(called, pointers[:1], pointers[1:], stream) is None
    assert [c[1] for c in fake.named("launch")] == [7, 7, 8, 7]
    assert fake.seen == [(A, B), (A, B), (A, B), (C, D)]  # type: ignore[attr-defined]


def test_a_repeated_call_only_launches(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    xla, called = FakeXla(), handler(doubled(**OUT))
    xla.call(called, [A], [B], 7)
    monkeypatch.setattr(Calls, "resolve", lambda *_: pytest.fail("it is resolved again"))
    fake.calls.clear()
    xla.call(called, [A], [B], 7)
    assert [call[0] for call in fake.calls] == ["launch"]


def test_the_first_call_can_be_captured(fake: FakeDriver) -> None:
    """XLA may record a command buffer before anything has run: the machine code is loaded outside
    of the capture."""
    xla, called = FakeXla(), handler(doubled(**OUT))
    fake.captured = {9}
    assert xla.call(called, [A], [B], 9) is None
    assert [c[1] for c in fake.named("launch")] == [9] and not fake.named("allocate")


def test_what_the_driver_refuses_is_an_error_of_xla(fake: FakeDriver) -> None:
    xla, called = FakeXla(), handler(doubled(**OUT))
    fake.code = 700
    assert xla.call(called, [A], [B], 7) == 0xE0
    assert (
        xla.error[0].startswith("numpipe.errors.LaunchError: kernel 'doubled'")
        and "CUDA_ERROR_ILLEGAL_ADDRESS" in xla.error[0]
    )


def test_a_workspace_is_memory_of_xla_and_its_flags_are_cleared_for_each_launch(
    fake: FakeDriver,
) -> None:
    @numpipe.kernel(workspace=Workspace((64, 64), 2), **OUT)
    def split(a, c, work):
        c[numpipe.ds(0, 64), numpipe.ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    compiled_as(split, lambda *_: image((), ("a", "c", "work"), name="split"))
    fake.sizes = [128] + [8] * 15
    called = handler(split)
    nbytes = next(reversed(targets._targets.values()))._work
    assert nbytes > 4 * 64 * 64
    memory = (ctypes.c_uint32 * (nbytes // 4))(*[7] * (nbytes // 4))
    address = ctypes.addressof(memory)
    flags: list[bool] = []
    note = fake.kernel

    def kernel(parameters: list[int]) -> None:
        note(parameters)
        slots, words = (ctypes.c_int64.from_address(p).value for p in parameters[-4:-2])
        rows = np.frombuffer(memory, np.uint32)[: slots * words].reshape(slots, words)
        flags.append(not rows[:, words - FLAGS :].any() and bool(rows[:, : words - FLAGS].any()))
        rows[:] = 9

    fake.kernel = kernel
    xla = FakeXla()
    for _ in range(2):
        assert xla.call(called, [A], [B, address], 7) is None
    assert fake.seen == [(A, B, address)] * 2 and flags == [True, True]  # type: ignore[attr-defined]
    assert not fake.named("allocate"), "nor is there one of numpipe's"


def test_scalars_of_calls_in_one_program_are_kept_apart(fake: FakeDriver) -> None:
    @numpipe.kernel(**OUT)
    def scaled(a, c, *, by):
        c[numpipe.ds(0, 64), numpipe.ds(0, 64)] = numpipe.full((64, 64), by, np.float32)

    compiled_as(scaled, lambda *_: image(name="scaled"))
    fake.sizes = [*SIZES, 4]
    values: list[float] = []
    fake.kernel = lambda p: values.append(ctypes.c_float.from_address(p[-1]).value)
    xla, calls = FakeXla(), [handler(scaled, by=number) for number in (2.0, 3.0)]
    for called in (*calls, *calls):
        xla.call(called, [A], [B], 7)
    assert values == [2, 3, 2, 3]


@pytest.mark.thorough
def test_a_product_cut_along_k_is_one_launch_with_its_workspace(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real kernel is compiled when it is traced."""
    config = Config(64, 64, split="stream", slots=4, wgs=1)
    traced = jax.eval_shape(
        lambda a, b: numpipe.jax.matmul(a, b, config=config, bias=b[0, :256]),
        jax.ShapeDtypeStruct((100, 264), np.float16),
        jax.ShapeDtypeStruct((264, 256), np.float16),
    )
    assert traced.shape == (100, 256)
    target = next(reversed(targets._targets.values()))
    assert [t.shape for t in target._ins] == [(100, 264), (264, 256), (256,)] and target._work > 0
    fake.sizes, xla = [], FakeXla()
    work = (ctypes.c_uint8 * (target._work + 64))()
    monkeypatch.setattr(launch.Prepared, "_load", lambda self, device: None)
    assert xla.call(target._handlers["CUDA"], [A, B, C], [D, ctypes.addressof(work)], 7) is None, (
        xla.error
    )
    assert [call[0] for call in fake.calls if call[0] in ("clear", "launch", "allocate")] == [
        "clear",
        "launch",
    ]


@pytest.mark.parametrize(
    "a, b, c, bias",
    [
        ((5, 13), (13, 7), None, (7,)),
        ((1, 13), (13, 1), None, (1, 1)),
        ((3,), (2, 3, 5), None, None),
        ((2, 4, 3), (3,), None, None),
        ((2, 1, 5, 9), (3, 9, 11), (5, 11), (5, 1)),
        ((5, 9), (2, 9, 11), (1,), (11,)),
        ((130, 64), (64, 65), (130, 1), None),
    ],
    ids=str,
)
@pytest.mark.parametrize("differentiated", [False, True])
def test_what_a_product_copies_lies_in_memory_of_xla(
    fake: FakeDriver,
    monkeypatch: pytest.MonkeyPatch,
    a: Any,
    b: Any,
    c: Any,
    bias: Any,
    differentiated: bool,
) -> None:
    """A command buffer could not capture an allocation."""
    assert "matmul" in traced(monkeypatch, a, b, c, bias, differentiated)
    assert not fake.named("allocate")


def test_arrays_of_a_call_lie_apart_in_the_lent_memory(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of two operands whose rows TMA cannot address, and a workspace."""
    traced(monkeypatch, (5, 37), (37, 11), None, (11,), False, workspace=(3, 100))
    target = next(reversed(targets._targets.values()))
    memory, lent = 1 << 20, target._work
    spans: list[tuple[int, int]] = []
    allocate = launch.Collected.allocate

    def note(self: Any, *what: Any) -> Any:
        made = allocate(self, *what)
        spans.append((made.ptr, made.ptr + made.shape[0] * made.strides[0]))
        return made

    monkeypatch.setattr(launch.Collected, "allocate", note)
    monkeypatch.setattr(launch.Collected, "_keep", lambda self, run: None)
    target._on_gpu(7, (1 << 24, 1 << 25, 1 << 26, 1 << 27, memory))
    assert len(spans) == 2 and not fake.named("allocate")
    assert all(first % 128 == 0 for first, _ in spans)
    ends = sorted([*spans, (memory, memory + 3 * 100 * 4), (memory + lent, memory + lent)])
    assert all(end <= first for (_, end), (first, _) in itertools.pairwise(ends))


def test_without_it_numpipe_would_allocate(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch.Collected, "allocate", lambda *_: None)
    assert "copy_lanes" in traced(monkeypatch, (5, 29), (29, 7), None, None, False)
    assert fake.named("allocate")


def traced(
    monkeypatch: pytest.MonkeyPatch,
    a: Any,
    b: Any,
    c: Any,
    bias: Any,
    differentiated: bool,
    workspace: tuple[int, int] | None = None,
) -> set[str]:
    """Trace a product of arrays of these shapes, and return the names of its kernels.

    `workspace` is the shape of the workspace that each of them requests.
    """
    ready = types.SimpleNamespace(
        workspace_shape=lambda grid, infos: workspace,
        fitting=lambda grid, device: grid,
        alone=lambda *_: None,
    )
    launched: set[str] = set()
    monkeypatch.setattr(
        Variant,
        "prepared",
        lambda self, infos, table: launched.add(self.definition.name) or ready,
    )
    arrays = [
        None if shape is None else jax.ShapeDtypeStruct(shape, np.float16)
        for shape in (a, b, c, bias)
    ]

    def product(a: Any, b: Any, c: Any, bias: Any) -> Any:
        return numpipe.jax.matmul(a, b, c, bias=bias)

    if differentiated:
        jax.eval_shape(
            jax.grad(lambda a, b, c, bias: product(a, b, c, bias).astype(np.float32).sum(), (0, 1)),
            *arrays,
        )
    else:
        jax.eval_shape(product, *arrays)
    return launched
