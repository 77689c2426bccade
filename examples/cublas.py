"""cuBLAS as the reference for a matrix product, whichever package installed it.

PyTorch, CuPy and nvmath all install libcublas. It is loaded from there, or from a CUDA toolkit, and
called directly: on every array that numpipe takes, so that nothing else is timed.
"""

from __future__ import annotations

import ctypes
from typing import Any

from numpipe import launch
from numpipe.errors import LaunchError, SpecError

_CUDA_R = {"float16": 2, "bfloat16": 14, "float32": 0}
_COMPUTE_32F, _DEFAULT_ALGORITHM = 68, -1
_N, _T = 0, 1
_ONE, _ZERO = ctypes.c_float(1), ctypes.c_float(0)
_INT, _POINTER = ctypes.c_int, ctypes.c_void_p
_MATRIX = [_POINTER, _INT, _INT]


class Cublas:
    """Compute ``c = a @ b.T`` with cublasGemmEx and float32 sums, on the legacy default stream."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._gemm = library.cublasGemmEx
        scalar = [_POINTER]
        self._gemm.argtypes = [
            *(_POINTER, _INT, _INT, _INT, _INT, _INT),
            *(scalar + _MATRIX + _MATRIX + scalar + _MATRIX),
            *(_INT, _INT),
        ]
        handle = _POINTER()
        _check("cublasCreate", library.cublasCreate_v2(ctypes.byref(handle)))
        self._handle = handle

    def __call__(self, a: Any, b: Any, c: Any) -> None:
        """Queue the product of row-major arrays on the GPU: a (M, K), b (N, K), c (M, N).

        Raises SpecError for other arrays, LaunchError if cuBLAS refuses.
        """
        left, right, out = (_rows(*each) for each in ((a, "a"), (b, "b"), (c, "c")))
        (m, k), (n, _) = left.shape, right.shape
        if right.shape[1] != k or out.shape != (m, n):
            raise SpecError(
                f"cuBLAS: a {left.shape}, b {right.shape} and c {out.shape} are not (M, K), (N, K) "
                "and (M, N)"
            )
        pa, pb, pc = (
            (info.ptr, _CUDA_R[info.dtype.name], info.strides[0] // info.dtype.itemsize)
            for info in (left, right, out)
        )
        # cuBLAS is column-major: it sees a as K x M and b as K x N, and c.T = b.T @ a is N x M
        one, zero = ctypes.byref(_ONE), ctypes.byref(_ZERO)
        how = _COMPUTE_32F, _DEFAULT_ALGORITHM
        status = self._gemm(self._handle, _T, _N, n, m, k, one, *pb, *pa, zero, *pc, *how)
        _check("cublasGemmEx", status)


def load_cublas() -> Cublas | None:
    """Return this environment's cuBLAS on the current GPU, or None if no package provides it."""
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        return None
    try:
        return Cublas(ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path))
    except DynamicLibNotFoundError:
        return None


def _rows(array: Any, name: str) -> Any:
    """Describe a row-major matrix on the GPU. Raises SpecError for other arrays."""
    info = launch.describe(array, name, "cuBLAS")
    matrix = len(info.shape) == 2 and info.strides[1] == info.dtype.itemsize
    if info.kind == "host" or info.dtype.name not in _CUDA_R or not matrix:
        raise SpecError(
            f"cuBLAS: '{name}' must be a row-major matrix on the GPU of one of "
            f"{', '.join(_CUDA_R)}, got a {info.kind} array of shape {info.shape}, strides "
            f"{info.strides} bytes, {info.dtype}"
        )
    return info


def _check(call: str, status: int) -> None:
    if status:
        raise LaunchError(
            f"{call} returned status {status} (cublasStatus_t): is the installed cuBLAS for this "
            "driver?"
        )
