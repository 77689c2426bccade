"""examples/cublas.py without a GPU: a cublasGemmEx written in NumPy, column-major as documented by
cuBLAS, checks the arguments."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cublas import Cublas, load_cublas  # type: ignore[import-not-found]
from numpipe import launch
from numpipe.errors import LaunchError, SpecError
from numpipe.launch import driver
from tests.kernels.launch_fakes import FakeDriver

TYPES = {0: np.dtype(np.float32), 2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16)}


def matrix(address: int, kind: int, rows: int, columns: int, leading: int) -> Any:
    """Return a column-major matrix at an address, with `leading` elements from one column to the
    next."""
    dtype = TYPES[kind]
    storage = (ctypes.c_uint8 * (leading * columns * dtype.itemsize)).from_address(address)
    return np.frombuffer(storage, dtype).reshape(columns, leading)[:, :rows].T


class FakeLibrary:
    """A fake of libcublas with arrays in host memory."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        gemm = lambda *args: self.gemm(*args)
        self.cublasGemmEx = type(
            "Function", (), {"argtypes": None, "__call__": staticmethod(gemm)}
        )()

    def cublasCreate_v2(self, handle: Any) -> int:
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = 77
        return self.status

    def gemm(
        self,
        handle: Any,
        trans_a: int,
        trans_b: int,
        m: int,
        n: int,
        k: int,
        alpha: Any,
        a: int,
        a_type: int,
        lda: int,
        b: int,
        b_type: int,
        ldb: int,
        beta: Any,
        c: int,
        c_type: int,
        ldc: int,
        compute: int,
        algorithm: int,
    ) -> int:
        assert handle.value == 77 and compute == 68 and algorithm == -1
        left = matrix(a, a_type, k, m, lda).T if trans_a else matrix(a, a_type, m, k, lda)
        right = matrix(b, b_type, n, k, ldb).T if trans_b else matrix(b, b_type, k, n, ldb)
        scale, keep = (p._obj.value for p in (alpha, beta))
        out = matrix(c, c_type, m, n, ldc)
        out[...] = (
            scale * left.astype(np.float32) @ right.astype(np.float32) + (keep * out if keep else 0)
        ).astype(out.dtype)
        return self.status


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(driver, "get", lambda: fake)
    return fake


def arrays(dtype: Any, m: int = 3, n: int = 4, k: int = 5) -> list[launch.DeviceArray]:
    rng = np.random.default_rng(0)
    host = [rng.integers(-4, 5, shape).astype(dtype) for shape in ((m, k), (n, k), (m, n))]
    return [launch.DeviceArray.from_host(x) for x in host]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_the_arguments_make_cublas_compute_a_times_b_transposed(dtype: Any) -> None:
    a, b, c = arrays(dtype)
    Cublas(FakeLibrary())(a, b, c)
    expected = a.copy_to_host().astype(np.float64) @ b.copy_to_host().astype(np.float64).T
    np.testing.assert_array_equal(c.copy_to_host().astype(np.float64), expected)


def test_shapes_that_do_not_fit_are_an_error() -> None:
    a, b, c = arrays(np.float16)
    with pytest.raises(SpecError, match=r"a \(3, 5\), b \(3, 4\) and c \(4, 5\) are not \(M, K\)"):
        Cublas(FakeLibrary())(a, c, b)


def test_a_host_array_is_an_error() -> None:
    a, b, c = arrays(np.float16)
    with pytest.raises(
        SpecError, match="'b' must be a row-major matrix on the GPU.*got a host array"
    ):
        Cublas(FakeLibrary())(a, b.copy_to_host(), c)


def test_a_status_is_an_error() -> None:
    with pytest.raises(LaunchError, match="cublasCreate returned status 1"):
        Cublas(FakeLibrary(status=1))


def test_an_environment_without_cublas_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pathfinder = pytest.importorskip("cuda.pathfinder")

    def missing(name: str) -> None:
        raise pathfinder.DynamicLibNotFoundError(name)

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", missing)
    assert load_cublas() is None
