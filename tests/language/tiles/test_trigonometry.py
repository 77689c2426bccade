"""Sine, cosine and tangent as the GPU computes them: their LLVM IR, compiled for the CPU, over the
range of float32."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from numpipe.compile.build import toolchain

if toolchain() is not None:
    pytest.skip("no compiler", allow_module_level=True)

from llvmlite import binding, ir

from numpipe.core import numba as nb
from numpipe.language.tiles import trigonometry_cuda

FUNCTIONS = {
    "sin": trigonometry_cuda.sine,
    "cos": trigonometry_cuda.cosine,
    "tan": trigonometry_cuda.tangent,
}
ULP = {"sin": 1.6, "cos": 1.6, "tan": 3.1}
"""tighter than what `mathematics` promises: 2 and 4"""


def on_the_cpu(emit: Callable[[Any, Any], Any]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function of float32 arrays, from one that emits LLVM IR for an element."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    module, array, i64 = ir.Module("trigonometry"), nb.f32.as_pointer(), nb.i64
    one = ir.Function(module, ir.FunctionType(nb.f32, [nb.f32]), "one")
    builder = nb.Builder(one.append_basic_block("entry"))
    builder.ret(emit(builder, one.args[0]))
    every = ir.Function(module, ir.FunctionType(ir.VoidType(), [array, array, i64]), "every")
    builder = nb.Builder(every.append_basic_block("entry"))
    with nb.cgutils.for_range(builder, every.args[2], intp=i64) as loop:
        given, result = (builder.gep(pointer, [loop.index]) for pointer in every.args[:2])
        builder.store(builder.call(one, [builder.load(given)]), result)
    builder.ret_void()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=2
    )
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(module)), machine)
    engine.finalize_object()
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
        engine.get_function_address("every")
    )

    def mapped(x: np.ndarray) -> np.ndarray:
        assert engine
        y = np.empty_like(x)
        run(x.ctypes.data, y.ctypes.data, x.size)
        return y

    return mapped


def arguments() -> np.ndarray:
    """Return numbers of every size, and neighbors of multiples of pi / 2, where most digits
    cancel."""
    rng = np.random.default_rng(2)
    drawn = rng.integers(0, 0x7F800000, 1 << 20).astype(np.int32).view(np.float32)
    near = (np.arange(1, 1 << 18) * (np.pi / 2)).astype(np.float32)
    # the second: the closest to k pi / 2
    hard = np.float32([0.0, 16367173 * 2.0**72, 1e-40, 65536.0, 65535.996, 3.4028235e38])
    return np.concatenate(
        [sign * part for part in (drawn, near, hard) for sign in (np.float32(1), np.float32(-1))]
    )


def error(name: str, x: np.ndarray, y: np.ndarray) -> float:
    """Return the largest error in ulp of float32."""
    true = getattr(np, name)(x.astype(np.float64))
    return float(
        (np.abs(y - true) / np.spacing(np.abs(true.astype(np.float32))).astype(np.float64)).max()
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_they_are_within_their_errors_for_every_size_of_argument(name: str) -> None:
    x = arguments()
    assert error(name, x, on_the_cpu(FUNCTIONS[name])(x)) <= ULP[name]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_infinities_and_nan_give_nan_and_zeros_keep_their_sign(name: str) -> None:
    x = np.float32([np.inf, -np.inf, np.nan, 0.0, -0.0])
    y = on_the_cpu(FUNCTIONS[name])(x)
    assert np.isnan(y[:3]).all()
    assert y[3:].tolist() == ([1, 1] if name == "cos" else [0, 0])
    assert np.signbit(y[3:]).tolist() == [False, name != "cos"]


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "broken",
    [
        {"PARTS": (*trigonometry_cuda.PARTS[:2], 0.0)},
        {"LARGE": 1e30},
        {"TWO_OVER_PI": (*trigonometry_cuda.TWO_OVER_PI[:5], 0, 0)},
    ],
    ids=lambda broken: next(iter(broken)),
)
def test_a_reduction_with_too_few_digits_is_seen(
    broken: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in broken.items():
        monkeypatch.setattr(trigonometry_cuda, name, value)
    x = arguments()
    assert error("sin", x, on_the_cpu(FUNCTIONS["sin"])(x)) > 2
