"""cuBLAS as the reference of a GEMM, called without the package that installed it.

PyTorch, CuPy and nvmath all install libcublas; it is loaded from there (or from a CUDA toolkit) and called directly, so
that every array that numpipe takes can be compared, bfloat16 included, and nothing but the one C function is timed.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ...diagnostics.errors import LaunchError, SpecError
from ...launch.arrays import describe
from ...launch.info import ArrayInfo

_CUDA_R = {"float16": 2, "bfloat16": 14, "float32": 0}
_COMPUTE_32F, _DEFAULT_ALGORITHM = 68, -1
_N, _T = 0, 1
_ONE, _ZERO = ctypes.c_float(1), ctypes.c_float(0)
_INT, _POINTER = ctypes.c_int, ctypes.c_void_p


class Cublas:
    """``c = a @ b.T`` by cublasGemmEx with float32 sums, on the legacy default stream of the current GPU."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._gemm = library.cublasGemmEx
        self._gemm.argtypes = [_POINTER, _INT, _INT, _INT, _INT, _INT, _POINTER, _POINTER, _INT, _INT, _POINTER, _INT, _INT,
                               _POINTER, _POINTER, _INT, _INT, _INT, _INT]
        handle = _POINTER()
        _check("cublasCreate", library.cublasCreate_v2(ctypes.byref(handle)))
        self._handle = handle

    def __call__(self, a: Any, b: Any, c: Any) -> None:
        """Queue the product of arrays on the GPU with contiguous rows: a (M, K), b (N, K), c (M, N).

        Raises SpecError for other arrays, LaunchError where cuBLAS refuses.
        """
        infos = [_rows(describe(array, name, "cuBLAS"), name) for name, array in (("a", a), ("b", b), ("c", c))]
        left, right, out = infos
        (m, k), (n, _) = left.shape, right.shape
        if right.shape[1] != k or out.shape != (m, n):
            raise SpecError(f"cuBLAS: a {left.shape}, b {right.shape} and c {out.shape} are not (M, K), (N, K) and (M, N)")
        pa, pb, pc = ((info.ptr, _CUDA_R[info.dtype.name], info.strides[0] // info.dtype.itemsize) for info in infos)
        # cuBLAS counts columns first: in its eyes a is K x M, b is K x N, and c.T = b.T @ a is N x M
        _check("cublasGemmEx", self._gemm(self._handle, _T, _N, n, m, k, ctypes.byref(_ONE), *pb, *pa, ctypes.byref(_ZERO), *pc,
                                          _COMPUTE_32F, _DEFAULT_ALGORITHM))


def cublas() -> Cublas | None:
    """Return cuBLAS of this environment on the current GPU, or None where no installed package brings it."""
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        return None
    try:
        return Cublas(ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path))
    except DynamicLibNotFoundError:
        return None


def _rows(info: ArrayInfo, name: str) -> ArrayInfo:
    size = info.dtype.itemsize
    if info.kind == "host" or info.dtype.name not in _CUDA_R or len(info.shape) != 2 or info.strides[1] != size:
        raise SpecError(f"cuBLAS: '{name}' must be a row-major matrix on the GPU of one of {', '.join(_CUDA_R)}, got a "
                        f"{info.kind} array of shape {info.shape}, strides {info.strides} bytes, {info.dtype}")
    return info


def _check(call: str, status: int) -> None:
    if status:
        raise LaunchError(f"{call} returned status {status} (cublasStatus_t): is the installed cuBLAS for this driver?")
