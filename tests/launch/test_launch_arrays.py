"""Attributes of arrays that a launch reads, and arrays that it rejects."""

from __future__ import annotations

import array as arrays_of_python
import re
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from numpipe import launch
from numpipe.errors import SpecError
from numpipe.launch import array_info, driver
from tests.kernels.launch_fakes import CudaArray, FakeDriver, TorchTensor


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise driver.DriverMissing("libcuda was not found")

    monkeypatch.setattr(driver, "_open", missing)
    monkeypatch.setattr(driver, "_opened", None)


def device_array(
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    ptr: int = 4096,
    typestr: str = "<f2",
) -> launch.ArrayInfo:
    return launch.describe(CudaArray(ptr, shape, typestr, strides), "a")


def test_importing_the_package_loads_no_cuda_module() -> None:
    code = (
        "import sys, numpipe.launch; print({m.split('.')[0] for m in sys.modules} & {'cuda', "
        "'numba', 'torch'})"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert found.strip() == "set()"


# ---- describe
def test_a_numpy_array_is_a_host_array() -> None:
    array = np.zeros((3, 5), np.float16)[:, ::2]
    info = launch.describe(array, "a")
    assert info[:6] == ("host", 0, (3, 3), (10, 4), np.float16, -1)
    assert info.writable and info.owner is array and info.array is array


def test_a_read_only_numpy_array_is_not_writable() -> None:
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    info = launch.describe(array, "c")
    assert not info.writable
    with pytest.raises(
        SpecError, match="argument 'c' of kernel 'matmul'.*read-only.*writable array"
    ):
        launch.check_writable(info, "c", "matmul")


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int8, np.bool_])
def test_element_types_keep_their_dtype(dtype: Any) -> None:
    assert launch.describe(np.zeros(4, dtype), "a").dtype == np.dtype(dtype)


def test_an_interface_without_strides_is_c_contiguous() -> None:
    info = device_array((2, 3, 5), None, typestr="<f4")
    assert info[:6] == ("cuda", 4096, (2, 3, 5), (60, 20, 4), np.float32, 0)


def test_an_interface_says_whether_it_may_be_written() -> None:
    assert not launch.describe(CudaArray(64, (4,), "<f4", readonly=True), "a").writable
    assert launch.describe(CudaArray(64, (4,), "<f4"), "a").writable


def test_an_interface_without_elements_may_have_a_null_pointer() -> None:
    assert launch.describe(CudaArray(None, (0, 4), "<f4"), "a").ptr == 0  # type: ignore[arg-type]


def test_bfloat16_in_an_interface_takes_the_objects_own_dtype() -> None:
    array = CudaArray(64, (4,), "<V2")
    with pytest.raises(SpecError, match="not supported"):
        launch.describe(array, "a")
    array.dtype = ml_dtypes.bfloat16  # type: ignore[attr-defined]
    assert launch.describe(array, "a").dtype == ml_dtypes.bfloat16


def test_a_type_that_numpy_cannot_name_is_the_objects_own() -> None:
    """ml_dtypes uses ``<f1`` for float8_e5m2."""
    array = CudaArray(64, (4,), "<f1")
    with pytest.raises(
        SpecError,
        match="argument 'a' of kernel 'k': element type '<f1' of an object without a dtype "
        "attribute is not supported; fix: .*float8_e5m2",
    ):
        launch.describe(array, "a", "k")
    array.dtype = ml_dtypes.float8_e5m2  # type: ignore[attr-defined]
    assert launch.describe(array, "a").dtype == ml_dtypes.float8_e5m2
    array.dtype = object()  # type: ignore[attr-defined]
    with pytest.raises(
        SpecError, match="CudaArray.__cuda_array_interface__ cannot be read.*object"
    ):
        launch.describe(array, "a")


@pytest.mark.parametrize("typestr", [None, "<V2", "<f1"])
def test_an_interface_or_an_object_without_a_type_is_not_float64(typestr: Any) -> None:
    array = CudaArray(64, (4,), typestr)
    array.dtype = None  # type: ignore[attr-defined]
    with pytest.raises(SpecError, match=f"element type .*{(typestr or 'None')[1:]}.*not supported"):
        launch.describe(array, "a")


def test_the_gpu_of_an_interface_is_asked_for_only_where_there_are_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for count, device, asked in ((1, 0, []), (2, 1, [(4096,)])):
        fake = FakeDriver(count)
        monkeypatch.setattr(driver, "_opened", fake)
        assert device_array((4,)).device == device
        assert fake.named("pointer_device") == asked


@pytest.mark.parametrize(
    "name, expected", [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)]
)
def test_a_cuda_tensor_is_read_by_its_pointer_with_strides_in_bytes(
    name: str, expected: Any
) -> None:
    info = launch.describe(TorchTensor(512, (4, 6), name, (8, 1), device=1), "a")
    assert info[:6] == ("torch", 512, (4, 6), (16, 2), np.dtype(expected), 1)


def test_a_tensor_of_an_unsupported_type_is_refused() -> None:
    with pytest.raises(SpecError, match="argument 'x'.*torch.complex64.*not supported.*bfloat16"):
        launch.describe(TorchTensor(512, (4,), "complex64", (1,)), "x")


def test_a_class_is_refused() -> None:
    for kind in (np.ndarray, CudaArray):
        text = f"the class {kind.__name__} is not an array; fix: pass an instance"
        with pytest.raises(SpecError, match=text):
            launch.describe(kind, "x")


def test_a_tensor_whose_memory_is_negated_is_refused() -> None:
    torch = pytest.importorskip("torch")
    x = torch.view_as_complex(torch.ones(4, 8, 2)).conj().imag
    with pytest.raises(SpecError, match=r"argument 'x': .* fix: pass x.resolve_neg\(\)"):
        launch.describe(x, "x")
    assert launch.describe(x.resolve_neg(), "x").array.tolist() == x.tolist()


def test_a_tensor_without_memory_is_refused() -> None:
    with pytest.raises(SpecError, match="device 'meta'; move it to 'cuda' or 'cpu'"):
        launch.describe(TorchTensor(0, (4,), "float32", (1,), device=-1), "x")


def test_a_value_that_is_not_an_array_is_refused_with_a_fix() -> None:
    with pytest.raises(
        SpecError, match="'a' of kernel 'matmul': a str is not an array; fix: pass a NumPy array"
    ):
        launch.describe("[1, 2]", "a", "matmul")


@pytest.mark.parametrize(
    "buffer, called",
    [
        (arrays_of_python.array("f", [1, 2]), "array"),
        (memoryview(b"ab"), "memoryview"),
        ([1, 2], "list"),
    ],
)
def test_a_buffer_is_refused_and_numpy_makes_an_array_of_it(buffer: Any, called: str) -> None:
    with pytest.raises(
        SpecError,
        match=f"'a' of .* 'matmul': a {called} is not an array; fix: pass np.asarray\\(a\\)",
    ):
        launch.describe(buffer, "a", "matmul")
    assert launch.describe(np.asarray(buffer), "a", "matmul").shape == (2,)


@pytest.mark.parametrize(
    "array", [np.zeros(2, ">f4"), np.zeros(2, "c8"), np.zeros(2, object), np.zeros(2, "i4,f4")]
)
def test_element_types_no_kernel_takes_are_refused(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(
        SpecError, match="element type .* is not supported; fix: convert it to one of bool, int8"
    ):
        launch.describe(array, "a")


def test_an_array_of_a_packed_type_is_refused_with_how_it_is_packed() -> None:
    with pytest.raises(SpecError, match="fix: pack 2 of int4 into each element of a uint8 array"):
        launch.describe(np.zeros(2, ml_dtypes.int4), "a")


def test_masked_device_arrays_are_refused() -> None:
    with pytest.raises(SpecError, match="masked"):
        launch.describe(CudaArray(64, (4,), "<f4", mask=object()), "a")


def test_a_broken_interface_is_an_error_about_the_argument() -> None:
    broken = CudaArray(64, (4,), "<f4")
    del broken.__cuda_array_interface__["typestr"]
    with pytest.raises(
        SpecError, match="'a': CudaArray.__cuda_array_interface__ cannot be read.*typestr.*fix: "
    ):
        launch.describe(broken, "a")


# ---- major order
@pytest.mark.parametrize(
    "shape, strides, major",
    [
        ((4, 6), (12, 2), "row"),
        ((4, 6), (2, 8), "col"),
        ((4, 6), (64, 2), "row"),
        ((4, 6), (2, 64), "col"),
        ((4, 6), (4, 24), "row"),  # neither dimension is contiguous
        ((2, 3, 4), (2, 4, 12), "col"),
        ((7,), (2,), "row"),
        ((7,), (4,), "row"),
        ((), (), "row"),
        ((4, 1), (2, 2), "row"),  # ties
        ((1, 6), (2, 2), "row"),
        ((1, 6), (2, 64), "col"),  # a column of a matrix, transposed: rows are 64 bytes apart
        ((1, 1), (2, 2), "row"),
        ((0, 6), (2, 0), "row"),
        ((6, 0), (2, 12), "row"),
    ],
)
def test_major_order(shape: tuple[int, ...], strides: tuple[int, ...], major: str) -> None:
    assert launch.major_order(device_array(shape, strides)) == major


# ---- what TMA can address
@pytest.mark.parametrize(
    "shape, strides, ptr",
    [
        ((4, 8), (16, 2), 4096),
        ((4, 8), (2, 16), 4096),  # col: the tensor map describes the transpose
        ((4, 6), (16, 2), 4096),  # padded rows
        ((7,), (2,), 16),
        ((1, 6), (12, 2), 4096),  # the stride of a single row does not matter
        ((3, 1, 8), (16, 6, 2), 4096),
        ((0, 3), (6, 2), 0),  # nothing to read: any address, any stride
        ((3, 0), (2, 2), 3),
        ((2, 2, 2, 2, 2), (128, 64, 32, 16, 2), 4096),
        ((8, 4, 16), (32, 256, 2), 4096),  # permuted batch
        ((8, 64, 2), (2, 32, 2048), 4096),  # column-major
    ],
)
def test_addressable(shape: tuple[int, ...], strides: tuple[int, ...], ptr: int) -> None:
    assert launch.tma_addressable(device_array(shape, strides, ptr)) is None


@pytest.mark.parametrize(
    "shape, strides, ptr, reason",
    [
        ((4, 8), (16, 2), 4104, "8 bytes past a multiple of 16"),
        ((4, 6), (12, 2), 4096, "rows are 12 bytes apart"),
        ((6, 4), (2, 12), 4096, "rows are 12 bytes apart"),
        ((4, 8), (-16, 2), 4096, "rows are -16 bytes apart"),
        ((4, 8), (0, 2), 4096, "rows are 0 bytes apart"),
        ((4, 8), (32, 4), 4096, "inner stride is 4 bytes and an element has 2"),
        ((7,), (4,), 4096, "inner stride is 4 bytes"),
        (
            (2, 64, 32),
            (4096, 2, 128),
            4096,
            "neither the last dimension nor, in column-major order, the first is contiguous",
        ),
        (
            (1, 64, 32),
            (4096, 2, 128),
            4096,
            "neither the last dimension nor, in column-major order, the first is contiguous",
        ),
        ((2, 64, 60), (7680, 120, 2), 4096, "rows are 120 bytes apart"),
        ((8, 64, 2), (2, 24, 1536), 4096, "rows are 24 bytes apart"),
        ((4, 1), (2, 2), 4096, "rows are 2 bytes apart"),
        ((), (), 4096, "0 dimensions"),
        ((1,) * 6, (2,) * 6, 4096, "6 dimensions"),
        ((2**32, 8), (16, 2), 4096, "dimension of 4294967296"),
        ((2, 8), (2**40, 2), 4096, "limit is 2**40"),
    ],
)
def test_not_addressable(
    shape: tuple[int, ...], strides: tuple[int, ...], ptr: int, reason: str
) -> None:
    said = launch.tma_addressable(device_array(shape, strides, ptr))
    assert said is not None and reason in said


def test_host_arrays_are_addressable_whatever_their_rows() -> None:
    assert (
        launch.tma_addressable(launch.describe(np.zeros((5, 3), np.float16)[:, ::2], "a")) is None
    )
    assert "6 dimensions" in str(launch.tma_addressable(launch.describe(np.zeros((1,) * 6), "a")))


def test_strides_that_no_address_uses_become_ones_the_driver_takes() -> None:
    assert array_info.tma_strides((1, 6), (12, 2), 2) == (16, 2)
    assert array_info.tma_strides((3, 1, 1), (32, 5, 7), 2) == (32, 16, 2)
    assert array_info.tma_strides((0, 6), (12, 2), 2) == (16, 2)


@pytest.mark.parametrize(
    "shape, strides, fix",
    [
        (
            (100, 100),
            (200, 2),
            r"rows are 200 bytes apart .*; pass numpipe.ascontiguous\(a\), a copy on the same "
            r"device",
        ),
        (
            (4, 8),
            (-16, 2),
            r"rows are -16 bytes apart and TMA needs a positive multiple of 16; pass "
            r"numpipe.ascontiguous\(a\)",
        ),
        ((1,) * 6, (2,) * 6, "6 dimensions .*; reshape it"),
    ],
)
def test_the_error_for_an_array_names_the_stride_and_offers_a_copy_where_that_helps(
    shape: tuple[int, ...], strides: tuple[int, ...], fix: str
) -> None:
    info = device_array(shape, strides)
    reason = launch.tma_addressable(info)
    assert reason is not None
    start = (
        "argument 'a' of kernel 'matmul': TMA cannot address this float16 array of shape .*, "
        "strides .* bytes: .*"
    )
    assert re.match(start + fix, str(launch.not_addressable(info, reason, "a", "matmul")))


# ---- host and device
def test_arguments_on_host_and_gpu_are_refused_by_name() -> None:
    infos = [
        launch.describe(TorchTensor(512, (8,), "float16", (1,)), "a"),
        launch.describe(np.zeros(8), "b"),
    ]
    with pytest.raises(
        SpecError, match="'b' of kernel 'add': a ndarray on the host, but argument 'a' is on GPU 0"
    ):
        launch.same_place(infos, ("a", "b"), "add")


def test_arguments_on_two_gpus_are_refused() -> None:
    infos = [
        launch.describe(TorchTensor(512, (8,), "float16", (1,), device=d), "a") for d in (0, 1)
    ]
    with pytest.raises(SpecError, match="'b'.*on GPU 1, but argument 'a' is on GPU 0"):
        launch.same_place(infos, ("a", "b"))


def test_same_place_names_it() -> None:
    assert launch.same_place([launch.describe(np.zeros(8), "a")], ("a",)) == "host"
    assert launch.same_place([device_array((8,))], ("a",)) == "device"
