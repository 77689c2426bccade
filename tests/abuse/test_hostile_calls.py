"""Hostile calls of each op: drawn combinations of good and bad operands, options and outputs. A
call may run or be refused; it never raises a raw exception, takes long, or dies."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import ops
from numpipe.errors import NumpipeError, SpecError, TargetError
from numpipe.launch import current_gpu
from tests.abuse.arguments import HUGE, NAN, Odd
from tests.abuse.rule import LIMIT
from tests.kernels.attention_function_cases import causal

H, X = np.ones((64, 64), np.float16), np.ones((64, 64), np.float32)
Q = np.ones((1, 2, 64, 64), np.float16)
PACKED, BEGINS = np.ones((64, 2, 64), np.float16), np.array([0, 30, 64], np.int32)
MESH = numpipe.Mesh.simulated(2)
GOOD: dict[str, Mapping[str, Any]] = {
    "matmul": {"a": H, "b": H},
    "attention": {"q": Q, "k": Q, "v": Q, "mask": causal},
    "attention_blocks": {"q": Q, "k": Q, "mask": causal},
    "attention_varlen": {
        **dict.fromkeys("qkv", PACKED),
        **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), BEGINS),
    },
    "copy": {"a": H},
    "softmax": {"x": X},
    "log_softmax": {"x": H},
    "layer_norm": {"x": H, "weight": H[0], "bias": X[0], "residual": H},
    "rms_norm": {"x": X, "weight": H[0]},
    "cross_entropy": {"logits": H, "labels": np.zeros(64, np.int32)},
    "fused_linear_cross_entropy": {"x": H, "weight": H, "labels": np.zeros(64, np.int64)},
    "cumsum": {"x": X},
    "matvec": {"a": H, "x": H[0]},
    "topk": {"x": X, "k": 3},
    "transpose": {"x": H},
    "swiglu": {"gate": H, "up": H},
    "geglu": {"gate": H, "up": H},
    "rotary": {"x": H, "cos": H[:, :32], "sin": X[:, :32]},
    "sum": {"x": H},
    "mean": {"x": X},
    "max": {"x": H},
    "argmax": {"x": X},
    "quantize": {"x": H},
    "all_gather": {"x": [H, H], "mesh": MESH},
    "all_gather_matmul": {"a": [H, H], "b": [H, H], "mesh": MESH},
    "all_to_all": {
        "x": [H, H],
        "counts": [np.full(2, 32, np.int32)] * 2,
        "out": [H.copy(), H.copy()],
        "mesh": MESH,
    },
    "all_reduce": {"x": [H, H], "mesh": MESH},
    "matmul_all_reduce": {"a": [H, H], "b": [H, H], "parts": "input", "mesh": MESH},
    "matmul_reduce_scatter": {"a": [H, H], "b": [H, H], "parts": "float32", "mesh": MESH},
    "reduce_scatter": {"x": [H, H], "mesh": MESH},
}
CALLS = 200
"""of each op"""


class Lying:
    """An exporter of DLPack that raises."""

    shape, dtype, ndim = (64, 64), np.dtype(np.float16), 2

    def __dlpack_device__(self) -> Any:
        raise KeyError("no device")

    def __dlpack__(self, **_: Any) -> Any:
        raise IndexError("no memory")


class Interface:
    """An array on a GPU with whatever interface."""

    def __init__(self, **wrong: Any) -> None:
        good = {"data": (1 << 40, False), "shape": (64, 64), "typestr": "<f2", "version": 3}
        self.__cuda_array_interface__ = good | wrong


def repeated(*shape: int) -> np.ndarray[Any, Any]:
    """Return an array whose elements are all at one address."""
    return np.lib.stride_tricks.as_strided(np.ones(1, np.float16), shape, (0,) * len(shape))


def read_only() -> np.ndarray[Any, Any]:
    array = H.copy()
    array.flags.writeable = False
    return array


ARRAYS: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: np.ndarray,
    lambda: np.float16,
    lambda: 3,
    lambda: "x",
    lambda: Odd(),
    Lying,
    lambda: Lying,
    mock.MagicMock,
    lambda: Interface(),
    lambda: Interface(shape=(64, "x")),
    lambda: Interface(data=("here", False)),
    lambda: Interface(typestr="<f9"),
    lambda: Interface(strides=(2, None)),
    lambda: [[1.0]],
    lambda: [H],
    lambda: [H, H],
    lambda: [H, X],
    lambda: (H, None),
    lambda: np.float16(3),
    lambda: np.ones((), np.float16),
    lambda: np.ones(64, np.float16),
    lambda: np.ones((0, 64), np.float16),
    lambda: np.ones((64, 0), np.float16),
    lambda: np.ones((1,) * 9, np.float16),
    lambda: np.ones((63, 65), np.float16),
    lambda: H[::-1, ::-2],
    lambda: H.T,
    lambda: repeated(64, 64),
    lambda: repeated(2**31, 64),
    lambda: repeated(64, 2**40),
    lambda: repeated(1, 2**16, 2**16, 64),
    lambda: np.full((64, 64), NAN, np.float16),
    lambda: H.astype(complex),
    lambda: H.astype(">f2"),
    lambda: H.astype(ml_dtypes.bfloat16),
    lambda: H.astype(np.float64),
    lambda: H.astype(object),
    lambda: np.ma.masked_array(H),
    lambda: np.rec.array(np.zeros(4, "i4,f4")),
    lambda: memoryview(H),
    read_only,
    lambda: H,
    lambda: X,
    lambda: Q,
    lambda: numpipe.ArrayType((64, 64), np.float16),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 2**31, 2**63, HUGE, 10**400, -(10**400), 1.5, -0.0),
    *(NAN, float("inf"), 1e308, 1e-320, 1j, "", "x", "relu", "bhsd", "\ud800", "\0", b"x", [], {}),
    *((), (1, 2), Odd(), Odd, int, np.float16(3), np.int64(3), np.bool_(True), np.nan, X, H),
    *(len, lambda: None, ..., NotImplemented, range(3), object()),
)
PLACES: dict[str, tuple[Any, ...]] = {
    "target": ("sim", "gpu", "auto", "cpu", "", None, 3, b"sim", [], Odd()),
    "stream": (None, 0, 1, -1, 2**64, "x", 1.5, [], Odd(), True),
    "mesh": (MESH, None, 2, "x", numpipe.Mesh, [], Odd(), numpipe.Mesh.simulated(1)),
}


def hostile(op: str, number: int) -> dict[str, Any]:
    """Return the arguments of a hostile call: one to three of a good call's are replaced."""
    draw, declared = random.Random(f"{op} {number}"), getattr(ops, op)
    named = {**GOOD[op]} | ({} if declared.sharded else {"target": "sim"})
    arrays = [name for name in declared.operands if name in declared.signature.parameters]
    arrays.append("out")
    for name in draw.choices(
        [*arrays, *arrays, *declared.options, *declared.place], k=draw.randint(1, 3)
    ):
        if name in PLACES:
            named[name] = draw.choice(PLACES[name])
        elif name not in arrays:
            named[name] = draw.choice(VALUES)
        elif declared.sharded and draw.random() < 0.7:
            named[name] = [draw.choice(ARRAYS)(), draw.choice((draw.choice(ARRAYS)(), H))]
        else:
            named[name] = draw.choice(ARRAYS)()
    return named


@pytest.mark.variants(1, thorough=3)
@pytest.mark.parametrize("first", range(0, CALLS, 10))
@pytest.mark.parametrize("op", GOOD)
def test_a_hostile_call_runs_or_is_refused(
    op: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    for number in range(first, first + 10):
        named, begun = hostile(op, number), time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                getattr(ops, op)(**named)
            except NumpipeError as error:
                assert str(error), number
            except Exception as error:
                raise AssertionError(f"call {number} of {op}: {named}") from error
        assert time.monotonic() - begun < LIMIT, f"call {number} of {op}: {named}"


def test_what_takes_long_to_simulate_is_refused_before_anything_is_copied() -> None:
    if current_gpu.gpu_state().status == "ok":
        pytest.skip("there is a GPU")
    begun = time.monotonic()
    with pytest.raises(TargetError, match="matmul: .* are too many to simulate by default"):
        ops.matmul(repeated(2**20, 2**12), repeated(2**12, 2**12), target="auto")
    assert time.monotonic() - begun < 5


def test_every_op_is_called() -> None:
    declared = {name for name in dir(ops) if hasattr(getattr(ops, name), "operands")}
    assert declared == GOOD.keys()
    with pytest.raises(SpecError, match="'out' of kernel 'matmul'.*at the same address"):
        ops.matmul(H, H, out=repeated(64, 64), target="sim")
