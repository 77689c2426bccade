"""The parameter bytes that a kernel gets, through a driver whose kernels are Python functions."""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
import threading
import types
from typing import Any

import numpy as np
import pytest

from numpipe import launch
from numpipe.errors import LaunchError, SpecError
from numpipe.launch import driver
from numpipe.launch.table import MOST
from tests.kernels.launch_fakes import CudaArray, FakeDriver, TorchTensor, view
from tests.kernels.launch_kernels import doubled, image
from tests.kernels.threads import in_threads

Kernel = functools.partial(image, name="scale")
"""the compiler's output for a kernel with these maps and arrays"""


def device(
    ptr: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None
) -> launch.ArrayInfo:
    return launch.describe(CudaArray(ptr, shape, "<f2", strides), "a")


def words(parameters: list[int]) -> list[int]:
    """Return the int64 parameters after the table of tensor maps."""
    return [ctypes.c_int64.from_address(p).value for p in parameters[1:]]


A, C = device(4096, (3, 8)), device(8192, (8,))
SIZES = [128, 8, 8, 8]
"""bytes of the parameters of a kernel with one vector"""
A_WORDS, C_WORDS = [4096, 3, 8, 8, 1], [8192, 8, 1]


def of_one_array(*kinds: Any) -> launch.Prepared:
    return launch.Prepared(Kernel(arrays=("c",), majors=("row",)), [C], kinds)


def test_parameters_are_the_table_then_pointers_shapes_and_strides_in_elements(
    fake: FakeDriver,
) -> None:
    seen: list[Any] = []
    fake.sizes = [128] + [8] * 8
    fake.kernel = lambda p: seen.append((p[0] % 64, ctypes.string_at(p[0], 128), words(p)))
    launch.Prepared(Kernel(), [A, C])((132, 1, 1), [A, C], stream=77)
    assert seen == [(0, bytes(128), A_WORDS + C_WORDS)]
    assert fake.named("launch") == [((132, 1, 1), 77, 0)]


def test_maps_are_in_the_tables_order_each_over_memory_order(fake: FakeDriver) -> None:
    a, b = device(4096, (64, 8), (2, 128)), device(65536, (8, 64))
    kernel = Kernel(
        (launch.MapRequest(1, (8, 64), 128), launch.MapRequest(0, (4, 32), 64, "nan")),
        ("a", "b"),
        ("col", "row"),
    )
    seen: list[Any] = []
    fake.sizes = [256] + [8] * 10
    fake.kernel = lambda p: seen.append((p[0] % 64, ctypes.string_at(p[0], 256), words(p)))
    launch.Prepared(kernel, [a, b])((1, 1, 1), [a, b])
    assert fake.maps == [
        ("FLOAT16", 65536, [64, 8], (128,), (64, 8), 128, False),
        ("FLOAT16", 4096, [64, 8], (128,), (32, 4), 64, True),
    ]
    table = (1).to_bytes(128, "little") + (2).to_bytes(128, "little")
    assert seen == [(0, table, [4096, 64, 8, 1, 64, 65536, 8, 64, 64, 1])]


SCALARS = [
    (np.int32, -7, "<i"),
    (np.float32, 0.5, "<f"),
    (np.int64, -(2**40), "<q"),
    (np.float16, 1.5, "<e"),
    (np.bool_, True, "<?"),
    (np.uint8, 200, "<B"),
    (np.float64, 1e300, "<d"),
]


def test_scalars_have_their_own_size_each(fake: FakeDriver) -> None:
    types_, values = [s[0] for s in SCALARS], [s[1] for s in SCALARS]
    seen: list[Any] = []
    fake.sizes = [128] + [8] * 3 + [np.dtype(t).itemsize for t in types_]
    fake.kernel = lambda p: seen.append(
        [
            struct.unpack(code, ctypes.string_at(address, struct.calcsize(code)))[0]
            for address, (_, _, code) in zip(p[4:], SCALARS, strict=True)
        ]
    )
    prepared = of_one_array(*types_)
    prepared((1, 1, 1), [C], values)
    prepared((1, 1, 1), [C], [np.int32(8), *values[1:]])
    assert seen == [values, [8, *values[1:]]]


@pytest.mark.parametrize("scalars", [(2**31,), (1.5,), ("x",), (), (1, 2)])
def test_scalars_that_do_not_fit_are_refused(fake: FakeDriver, scalars: tuple[Any, ...]) -> None:
    fake.sizes = [128, 8, 8, 8, 4]
    prepared = of_one_array(np.int32)
    with pytest.raises(SpecError, match=r"kernel 'scale': scalars .* do not fit \(int32\)"):
        prepared((1, 1, 1), [C], scalars)
    assert not fake.named("launch")


def test_a_repeated_call_encodes_nothing_and_other_arrays_get_their_own_maps(
    fake: FakeDriver,
) -> None:
    kernel = Kernel((launch.MapRequest(0, (1, 8), 0),))
    other = device(1 << 20, (5, 8))
    seen: list[Any] = []
    fake.sizes = [128] + [8] * 8
    fake.kernel = lambda p: seen.append((ctypes.string_at(p[0], 1)[0], words(p)[:2]))
    prepared = launch.Prepared(kernel, [A, C])
    for a in (A, A, other, A, other):
        prepared((1, 1, 1), [a, C])
    assert seen == [
        (1, [4096, 3]),
        (1, [4096, 3]),
        (2, [1 << 20, 5]),
        (1, [4096, 3]),
        (2, [1 << 20, 5]),
    ]
    assert len(fake.maps) == 2


def test_many_argument_lists_are_not_kept_for_ever(fake: FakeDriver) -> None:
    prepared = of_one_array()
    for i in range(1, 2 * MOST):
        prepared((1, 1, 1), [device(i * 64, (8,))])
    assert len(prepared.table) == MOST


def test_a_kernel_is_loaded_once_and_made_ready_once_a_gpu(fake: FakeDriver) -> None:
    prepared = of_one_array()
    for gpu in (0, 1, 0, 1):
        prepared((1, 1, 1), [C._replace(device=gpu)])
    assert fake.named("load") == [(b"cubin", "scale_entry")]
    assert fake.named("config") == [(384, 200_000)]
    assert fake.named("allow_shared") == [
        ("kernel scale_entry", 200_000, 0),
        ("kernel scale_entry", 200_000, 1),
    ]
    assert [gpu for *_, gpu in fake.named("launch")] == [0, 1, 0, 1]


def test_grid_and_stream_follow_the_call(fake: FakeDriver) -> None:
    prepared = of_one_array()
    calls = [((1, 1, 1), 5), ((2, 3, 4), 5), ((2, 3, 4), 0), ((1, 1, 1), 0)]
    for grid, stream in calls:
        prepared(grid, [C], stream=stream)
    assert [(grid, stream) for grid, stream, _ in fake.named("launch")] == calls


def test_a_grid_without_ctas_launches_nothing(fake: FakeDriver) -> None:
    of_one_array()((0, 1, 1), [C])
    assert not fake.named("launch")


@pytest.mark.parametrize("grid", [(-1, 1, 1), (1, 65536, 1), (2**31, 1, 1)])
def test_a_grid_the_gpu_does_not_have_is_refused(
    fake: FakeDriver, grid: tuple[int, int, int]
) -> None:
    with pytest.raises(LaunchError, match="kernel 'scale': grid [xy] = .* is outside 1 to"):
        of_one_array()(grid, [C])


def test_machine_code_that_is_damaged_is_made_again_by_a_new_process() -> None:
    """Machine code is not cached outside of the process."""
    assert "restart the process, which compiles" in str(
        driver.DriverError("cuLibraryLoadData", 200, "CUDA_ERROR_INVALID_IMAGE")
    )


def test_a_failed_launch_names_the_kernel_the_error_and_the_fix(fake: FakeDriver) -> None:
    fake.code = 700
    with pytest.raises(
        LaunchError,
        match="kernel 'scale'.*384 threads, 200000 bytes.*CUDA_ERROR_ILLEGAL_ADDRESS "
        r"\(700\).*target='sim'.*compute-sanitizer",
    ):
        of_one_array()((1, 1, 1), [C])


def test_an_input_tma_cannot_address_is_refused_by_name(fake: FakeDriver) -> None:
    a = device(4096, (3, 5))
    fake.sizes = [128] + [8] * 8
    with pytest.raises(SpecError, match="argument 'a' of kernel 'scale'.*rows are 10 bytes apart"):
        launch.Prepared(Kernel((launch.MapRequest(0, (1, 8), 0),)), [a, C])((1, 1, 1), [a, C])


def test_strides_between_elements_are_refused(fake: FakeDriver) -> None:
    a = device(4096, (3, 5), (11, 2))
    with pytest.raises(SpecError, match="argument 'a'.*not multiples of its 2-byte elements"):
        launch.Prepared(Kernel(), [a, C])((1, 1, 1), [a, C])


def test_a_scalar_type_without_a_parameter_form_is_refused() -> None:
    with pytest.raises(SpecError, match="a scalar of type complex64 is not supported"):
        launch.Prepared(Kernel(), [A, C], [np.complex64])


def test_calls_from_several_threads_do_not_mix_their_parameters(fake: FakeDriver) -> None:
    fake.sizes = [128, 8, 8, 8, 8]
    seen: list[tuple[int, int, int]] = []

    def kernel(parameters: list[int]) -> None:
        first = words(parameters)
        # lets other threads run, as the real launch does
        threading.Event().wait(0.0005)
        seen.append((first[0], words(parameters)[0], words(parameters)[3]))

    fake.kernel = kernel
    prepared = of_one_array(np.int64)

    in_threads(
        4,
        lambda i: [
            prepared((i + 1, 1, 1), [device(64 + i * 64, (8,))], [64 + i * 64]) for _ in range(20)
        ],
    )
    assert len(seen) == 80 and all(a == b == c for a, b, c in seen)


# ---- calls on host arrays
def doubling(fake: FakeDriver, rows: int, columns: int) -> None:
    """Compute c = 2 a on the arrays that the parameters name."""
    fake.sizes = [128] + [8] * 10

    def kernel(parameters: list[int]) -> None:
        w = words(parameters)
        a, c = (
            (w[i], tuple(w[i + 1 : i + 3]), tuple(2 * s for s in w[i + 3 : i + 5])) for i in (0, 5)
        )
        assert a[1] == c[1] == (rows, columns)
        view(*c, np.float16)[:] = 2 * view(*a, np.float16)

    fake.kernel = kernel


def test_a_host_call_copies_in_launches_and_returns_with_the_result(fake: FakeDriver) -> None:
    a, c = np.arange(15, dtype=np.float16).reshape(3, 5), np.empty((3, 5), np.float16)
    infos = [launch.describe(a, "a"), launch.describe(c, "c")]
    doubling(fake, 3, 5)
    launch.run(launch.Prepared(Kernel(), infos), (1, 1, 1), infos, stream=3, outputs=1, fresh=1)
    np.testing.assert_array_equal(c, 2 * a)
    order = [
        call[0]
        for call in fake.calls
        if call[0] in ("copy_in", "launch", "copy_out", "synchronize", "free")
    ]
    assert order == ["copy_in", "launch", "copy_out", "synchronize", "free", "free"]
    assert not fake.live


def test_an_output_the_caller_passed_is_copied_in_too(fake: FakeDriver) -> None:
    a, c = np.ones((2, 4), np.float16), np.full((2, 4), 7, np.float16)
    infos = [launch.describe(a, "a"), launch.describe(c, "c")]
    fake.sizes = [128] + [8] * 10
    # the kernel writes nothing
    launch.run(launch.Prepared(Kernel(), infos), (1, 1, 1), infos, outputs=1)
    np.testing.assert_array_equal(c, 7)


def test_a_read_only_output_is_refused_before_anything_runs(fake: FakeDriver) -> None:
    a, c = np.ones((64, 64), np.float32), np.zeros((64, 64), np.float32)
    c.flags.writeable = False
    with pytest.raises(SpecError, match="argument 'c' of kernel 'doubled'.*read-only"):
        doubled()(a, c, target="gpu")
    assert not fake.calls


def test_a_kernel_that_fails_on_host_arrays_says_so_in_the_call(fake: FakeDriver) -> None:
    a, c = np.ones((2, 4), np.float16), np.ones((2, 4), np.float16)
    infos = [launch.describe(a, "a"), launch.describe(c, "c")]
    fake.sizes = [128] + [8] * 10
    fake.failure_at_sync = driver.DriverError(
        "cuStreamSynchronize", 719, "CUDA_ERROR_LAUNCH_FAILED"
    )
    with pytest.raises(
        LaunchError, match="kernel 'scale': cuStreamSynchronize returned CUDA_ERROR_LAUNCH_FAILED"
    ):
        launch.run(launch.Prepared(Kernel(), infos), (1, 1, 1), infos, outputs=1)


def test_a_call_on_device_arrays_does_not_wait(fake: FakeDriver) -> None:
    fake.sizes = [128] + [8] * 8
    launch.Prepared(Kernel(), [A, C], outputs=1)((1, 1, 1), [A, C])
    assert not fake.named("synchronize") and not fake.named("copy_in")


# ---- streams
def test_pytorchs_current_stream_comes_first(
    monkeypatch: pytest.MonkeyPatch, fake: FakeDriver
) -> None:
    raw = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda gpu: 1000 + gpu)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(_C=raw))
    tensor = launch.describe(TorchTensor(512, (8,), "float16", (1,), device=1), "a")
    assert launch.current_stream([A, tensor]) == 1001


def test_an_interfaces_own_stream_is_used_and_else_the_default(fake: FakeDriver) -> None:
    own = launch.describe(CudaArray(64, (4,), "<f4", stream=7), "a")
    assert launch.current_stream([A, own]) == 7
    assert launch.current_stream([A]) == launch.current_stream([]) == 0


@pytest.mark.parametrize(
    "stream",
    [
        9,
        types.SimpleNamespace(cuda_stream=9),
        types.SimpleNamespace(ptr=9),
        types.SimpleNamespace(__cuda_stream__=(0, 9)),
        types.SimpleNamespace(__cuda_stream__=lambda: (0, 9)),
    ],
)
def test_streams_of_every_library(stream: Any) -> None:
    assert launch.as_stream(stream) == 9


@pytest.mark.parametrize("stream", ["main", True, 1.0, object()])
def test_a_bad_stream_is_refused(stream: Any) -> None:
    with pytest.raises(SpecError, match="is not a CUDA stream; pass its handle"):
        launch.as_stream(stream)
