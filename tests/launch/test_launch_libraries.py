"""JAX, Numba, CuPy and DLPack arrays: what is read of them, what calls return, and what keeps
memory alive meanwhile."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import launch
from numpipe.errors import SpecError
from numpipe.launch import stream_handover
from tests.kernels.array_fakes import (
    BFLOAT,
    FLOAT8_E4M3FN,
    GPU,
    ON_CPU,
    Exporter,
    JaxArray,
    NumbaArray,
    Sharding,
    Traced,
    jax_module,
    numba_module,
    numbers,
)
from tests.kernels.launch_fakes import CudaArray, FakeDriver, view
from tests.kernels.launch_kernels import compiled_as
from tests.launch.test_launch_launcher import Kernel, words

# numpipe.launch reads exports of DLPack with it
pytest.importorskip("cuda.core", reason="the CUDA wheels are not installed")


@pytest.fixture(autouse=True)
def _libraries(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_handover, "_kept", {})
    monkeypatch.setitem(sys.modules, "jax", jax_module())
    monkeypatch.setitem(sys.modules, "numba", numba_module())


# ---- JAX inputs
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_a_jax_array_is_read_in_place_when_it_is_ready(dtype: Any) -> None:
    x = JaxArray(numbers(3, 5, dtype=dtype))
    info = launch.describe(x, "x")
    size = np.dtype(dtype).itemsize
    assert info[:7] == (
        "jax",
        x.memory.ctypes.data,
        (3, 5),
        (5 * size, size),
        np.dtype(dtype),
        0,
        False,
    )
    assert x.waited == 1 and info.owner is x


def test_the_layout_of_a_jax_array_gives_its_strides() -> None:
    assert launch.describe(JaxArray(np.asfortranarray(numbers(3, 5))), "x").strides == (2, 6)


def test_the_error_of_a_failed_jax_computation_is_raised() -> None:
    class Failed(JaxArray):
        def block_until_ready(self) -> JaxArray:
            raise RuntimeError("RESOURCE_EXHAUSTED")

    Failed.__module__ = JaxArray.__module__
    for _ in range(2):
        with pytest.raises(RuntimeError, match="^RESOURCE_EXHAUSTED"):
            launch.describe(Failed(numbers(4)), "x")


def test_a_jax_array_on_the_cpu_is_a_host_array() -> None:
    x = JaxArray(numbers(3, 5), ON_CPU)
    info = launch.describe(x, "x")
    assert info.kind == "host" and info.array is not None and not info.writable
    assert info.array.ctypes.data == x.memory.ctypes.data


@pytest.mark.parametrize(
    "x, message",
    [
        (Traced(), "a Traced of JAX has no memory of its own; .* outside of jax.jit"),
        (
            JaxArray(numbers(4), Sharding(GPU, GPU)),
            r"on 2 devices; pass one of its shards, x.addressable_data\(i\)",
        ),
        (
            JaxArray(numbers(4), Sharding(type("Tpu", (), {"platform": "tpu"}))),
            "on platform 'tpu'; move it to a CUDA GPU",
        ),
        (
            JaxArray(numbers(4), Sharding(GPU, memory_kind="pinned_host")),
            "memory of kind 'pinned_host'; move it",
        ),
        (JaxArray(np.zeros(4, ml_dtypes.int4)), "element type int4 .* is not supported"),
    ],
)
def test_jax_arrays_that_no_kernel_takes_are_refused(x: Any, message: str) -> None:
    with pytest.raises(SpecError, match="argument 'x' of kernel 'k': .*" + message):
        launch.describe(x, "x", "k")


def test_a_donated_jax_array_is_refused() -> None:
    x = JaxArray(numbers(4))
    x.deleted = True
    with pytest.raises(SpecError, match="deleted or donated"):
        launch.describe(x, "x")


@pytest.mark.parametrize("x", [JaxArray(numbers(4)), JaxArray(numbers(4), ON_CPU)])
def test_a_jax_array_cannot_be_an_output(x: Any) -> None:
    with pytest.raises(
        SpecError,
        match="argument 'c' of kernel 'k': it is an output, and JAX arrays are immutable.*leave "
        "it out",
    ):
        launch.check_writable(launch.describe(x, "c"), "c", "k")


# ---- DLPack inputs
def test_an_exporter_on_a_gpu_is_read_in_place_and_its_view_is_held() -> None:
    info = launch.describe(Exporter(4096, (3, 5), (8, 1), code=BFLOAT, device=(2, 1)), "x")
    assert info[:7] == ("dlpack", 4096, (3, 5), (16, 2), np.dtype(ml_dtypes.bfloat16), 1, True)
    assert info.held.ptr == 4096
    assert launch.describe(Exporter(4096, (3, 5)), "x").strides == (10, 2)


def test_an_exporter_on_the_host_is_a_host_array() -> None:
    memory = numbers(3, 5)
    info = launch.describe(Exporter(memory.ctypes.data, (3, 5), device=(1, 0)), "x")
    assert info.kind == "host" and info.array is not None and info.writable
    np.testing.assert_array_equal(info.array, memory)


@pytest.mark.parametrize("device", [(1, 0), (2, 0)])
def test_a_read_only_export_is_not_an_output(device: tuple[int, int]) -> None:
    memory = numbers(4)
    info = launch.describe(Exporter(memory.ctypes.data, (4,), device=device, readonly=True), "c")
    with pytest.raises(SpecError, match="'c'.*this Exporter is read-only; pass a writable array"):
        launch.check_writable(info, "c")


@pytest.mark.parametrize(
    "x, message",
    [
        (
            Exporter(4096, (4,), device=(10, 0)),
            "a Exporter on DLPack device type 10; fix: move it to a CUDA GPU or to the CPU",
        ),
        (
            Exporter(4096, (4,), code=FLOAT8_E4M3FN, bits=8),
            "Exporter.__dlpack__ cannot be read .*fix: pass",
        ),
        (Exporter(4096, (4,), code=5, bits=64), "element type complex64"),
        (Exporter(4096, (4,), code=BFLOAT, device=(1, 0)), "Exporter.__dlpack__ cannot be read"),
    ],
)
def test_exports_that_no_kernel_takes_are_refused(x: Any, message: str) -> None:
    with pytest.raises(SpecError, match="argument 'x' of kernel 'k': " + message):
        launch.describe(x, "x", "k")


def test_without_cuda_core_an_export_of_a_gpu_is_refused_with_the_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any) -> Any:
        if name.startswith("cuda"):
            raise ImportError("no cuda-core")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(
        SpecError,
        match="'x': a Exporter on a GPU requires the package cuda-core.*torch.from_dlpack",
    ):
        launch.describe(Exporter(4096, (4,)), "x")


# ---- outputs of each library
def test_numba_gives_numba_on_its_own_stream() -> None:
    out = launch.empty_like_kind(
        launch.describe(NumbaArray((4,), (4,), np.float32, stream=7), "x"),
        (3, 5),
        ml_dtypes.bfloat16,
    )
    assert (
        type(out) is NumbaArray
        and out.stream == 7
        and launch.describe(out, "c").dtype == ml_dtypes.bfloat16
    )


@pytest.mark.parametrize("like", [JaxArray(numbers(4)), JaxArray(numbers(4), ON_CPU)])
def test_jax_makes_no_64_bits_unless_told_to(like: Any) -> None:
    with pytest.raises(
        SpecError, match="JAX cannot make a float64 output .* while jax_enable_x64 is off"
    ):
        launch.empty_like_kind(launch.describe(like, "x"), (4,), np.float64)
    sys.modules["jax"].config.jax_enable_x64 = True
    launch.empty_like_kind(launch.describe(like, "x"), (4,), np.float64)


@pytest.mark.parametrize(
    "like, name", [(JaxArray(numbers(4)), "JAX"), (NumbaArray((4,), (2,), np.float16), "Numba")]
)
def test_a_type_that_a_library_lacks_is_an_error(like: Any, name: str) -> None:
    with pytest.raises(SpecError, match=f"this {name} has no element type bool .*pass out="):
        launch.empty_like_kind(launch.describe(like, "x"), (4,), np.bool_)


def test_exports_give_numpy_on_the_host_and_device_arrays_on_a_gpu() -> None:
    memory = numbers(4)
    on_host, on_gpu = (
        launch.describe(Exporter(memory.ctypes.data, (4,), device=(device, 0)), "x")
        for device in (1, 2)
    )
    assert type(launch.empty_like_kind(on_host, (3,), np.float16)) is np.ndarray
    assert type(launch.empty_like_kind(on_gpu, (3,), np.float16)) is launch.DeviceArray


# ---- calls of a kernel that is a Python function
def copying(parameters: list[int]) -> None:
    """Copy a to c."""
    a, c = words(parameters)[:5], words(parameters)[5:]
    view(c[0], (c[1], c[2]), (2 * c[3], 2 * c[4]), np.uint16)[:] = view(
        a[0], (a[1], a[2]), (2 * a[3], 2 * a[4]), np.uint16
    )


@numpipe.kernel(out_type=lambda a: numpipe.ArrayType(a.shape, a.dtype))
def copy(a, c):
    for _, (tile,) in numpipe.pipeline(
        grid=(1,), in_specs=(numpipe.BlockSpec((64, 64), lambda k: (0, 0)),)
    )(a):
        c[numpipe.ds(0, 64), numpipe.ds(0, 64)] = tile[:, :]


@pytest.fixture
def launches(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    device = launch.Device(0, "NVIDIA H200", (9, 0), 132, 13000, 232448)
    monkeypatch.setattr(launch, "choose_target", lambda *_: launch.Choice("gpu", "a fake", device))
    compiled_as(copy, lambda key, obstacles: Kernel())
    copy._table.clear()
    fake.sizes, fake.kernel = [128] + [8] * 10, copying
    return fake


def test_a_call_on_a_jax_array_returns_a_new_one_when_the_kernel_is_done(
    launches: FakeDriver,
) -> None:
    x = JaxArray(numbers(3, 8))
    c = copy(x, stream=5)
    assert type(c) is JaxArray and c is not x
    np.testing.assert_array_equal(c.memory, x.memory)
    assert c.waited  # JAX zeroes it, which must not happen after the kernel
    calls = [call[0] for call in launches.calls]
    assert calls.index("synchronize") > calls.index("launch") and launches.named("synchronize") == [
        (5,)
    ]
    assert not stream_handover._kept


def test_a_call_on_a_jax_array_of_the_cpu_returns_one(launches: FakeDriver) -> None:
    x = JaxArray(numbers(3, 8), ON_CPU)
    c = copy(x)
    assert type(c) is JaxArray and c.sharding is ON_CPU
    np.testing.assert_array_equal(c.memory, x.memory)


def test_a_simulated_call_on_a_jax_array_returns_one() -> None:
    x = JaxArray(numbers(64, 64), ON_CPU)
    c = copy.simulate(x)
    assert type(c) is JaxArray
    np.testing.assert_array_equal(c.memory, x.memory)


def test_a_jax_array_is_refused_in_a_graph(launches: FakeDriver) -> None:
    """Nothing would order the replays after JAX's work, and numpipe's event would become part of
    the graph."""
    launches.captured, launches.relaxed = {7}, 1
    c = launch.DeviceArray((3, 8), np.float16)
    with pytest.raises(
        SpecError,
        match=r"kernel copy: an argument is a JAX array .* the stream \(0x7\) is being "
        r"captured",
    ):
        copy(JaxArray(numbers(3, 8)), out=c, stream=7)
    assert not launches.named("launch") and not launches.named("mark")


def test_a_jax_array_as_out_is_refused_before_the_launch(launches: FakeDriver) -> None:
    with pytest.raises(SpecError, match="argument 'c' of kernel 'copy'.*JAX arrays are immutable"):
        copy(JaxArray(numbers(3, 8)), out=JaxArray(numbers(3, 8)))
    assert not launches.named("launch")


def test_kinds_may_be_mixed_and_the_first_one_decides(launches: FakeDriver) -> None:
    memory = numbers(3, 8)
    there = memory.ctypes.data
    arrays = [
        JaxArray(memory),
        CudaArray(there, (3, 8), "<f2"),
        NumbaArray((3, 8), (16, 2), np.float16),
        Exporter(there, (3, 8)),
    ]
    kinds = (JaxArray, launch.DeviceArray, NumbaArray, launch.DeviceArray)
    for array, kind in zip(arrays, kinds, strict=True):
        assert type(copy(array)) is kind
        out = np.zeros((3, 8), np.float16)
        assert copy(array, out=(given := CudaArray(out.ctypes.data, (3, 8), "<f2"))) is given
        if kind is not NumbaArray:
            np.testing.assert_array_equal(out, memory)


def test_arrays_of_two_places_are_refused(launches: FakeDriver) -> None:
    with pytest.raises(
        SpecError, match="'c' of kernel 'copy': a ndarray on the host, but argument 'a' is on GPU 0"
    ):
        copy(JaxArray(numbers(3, 8)), out=numbers(3, 8))


def test_an_output_that_overlaps_on_the_gpu_is_refused_before_the_launch(
    launches: FakeDriver,
) -> None:
    there = numbers(4, 8).ctypes.data
    with pytest.raises(
        SpecError,
        match="argument 'c' of kernel 'scale'.*overlaps argument 'a': it begins 16 bytes after it",
    ):
        copy(CudaArray(there, (3, 8), "<f2"), out=CudaArray(there + 16, (3, 8), "<f2"))
    assert not launches.named("launch")


def test_inputs_of_jax_and_dlpack_are_held_until_the_kernel_is_done(launches: FakeDriver) -> None:
    memory = numbers(3, 8)
    out = numbers(3, 8)

    def call(array: Any) -> None:
        copy(array, out=CudaArray(out.ctypes.data, (3, 8), "<f2"), stream=9)

    def held() -> int:
        return sum(map(len, stream_handover._kept.values()))

    for count, array in enumerate([JaxArray(memory), Exporter(memory.ctypes.data, (3, 8))], 1):
        call(array)
        assert held() == count
    call(CudaArray(memory.ctypes.data, (3, 8), "<f2"))
    assert held() == 2  # an array that names its stream is not held
    assert launches.named("mark") == [(9,), (9,)]
    first, _ = events = list(launches.events)
    first.reached = True
    call(JaxArray(memory))
    # the first one is released, and its event reused
    assert held() == 2 and launches.events[-1] is first
    for event in events:
        event.reached = True
    call(JaxArray(memory))
    assert held() == 1


def test_an_exporter_gets_the_kernels_stream_before_the_launch(launches: FakeDriver) -> None:
    memory, told = numbers(3, 8), []
    x = Exporter(memory.ctypes.data, (3, 8))
    launches.kernel = lambda parameters: told.append(x.streams[-1])
    copy(x, stream=9)
    # on the legacy default stream, which DLPack calls 1
    copy(x, out=CudaArray(numbers(3, 8).ctypes.data, (3, 8), "<f2"))
    assert told == [9, 1]


# ---- bound calls
@pytest.mark.parametrize("x", [JaxArray(numbers(3, 8)), JaxArray(numbers(3, 8), ON_CPU)])
def test_a_bound_call_does_not_write_a_jax_array_that_was_seen(
    launches: FakeDriver, x: Any
) -> None:
    with pytest.raises(
        SpecError,
        match="kernel copy: a bound call writes the same output each time, and JAX arrays are "
        "immutable",
    ):
        copy.bind(x)


def test_a_bound_call_orders_and_holds_its_arrays_at_each_launch(launches: FakeDriver) -> None:
    memory, out = numbers(3, 8), numbers(3, 8)
    x = Exporter(memory.ctypes.data, (3, 8))
    bound = copy.bind(x, out=CudaArray(out.ctypes.data, (3, 8), "<f2"))
    before = len(x.streams)
    for _ in range(3):
        bound(stream=9)
    assert x.streams[before:] == [9, 9, 9] and launches.named("mark") == [(9,)] * 3


def test_an_array_of_a_bound_call_is_not_replaced_by_one_that_has_to_be_ordered(
    launches: FakeDriver,
) -> None:
    memory = numbers(3, 8)
    there = memory.ctypes.data
    bound = copy.bind(
        CudaArray(there, (3, 8), "<f2", readonly=True),
        out=CudaArray(numbers(3, 8).ctypes.data, (3, 8), "<f2"),
    )
    with pytest.raises(
        SpecError,
        match="update of 'a': the library of a JaxArray does not know the stream .*bind another "
        "call",
    ):
        bound.update(a=JaxArray(memory))
