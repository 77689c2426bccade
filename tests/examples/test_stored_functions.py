"""The functions of shapes of all kernels in examples/ can be exported to a file, and give the same
results when loaded."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import attention_ladder
import batched_gemm
import copy_pipeline
import gemm_ladder
import gemm_single
import ml_dtypes
import numpy as np
import pytest

import gemm
import gemm_body
import gemm_tuned
import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams, cdiv
from numpipe.kernels.call_results import HostView
from numpipe.kernels.expressions import Expression
from numpipe.kernels.sources import text_of
from numpipe.ops.attention import Config, Form
from numpipe.ops.attention import kernel as attention
from numpipe.ops.attention_functions import (
    attention_mask_lists,
    attention_mask_order,
    attention_mask_steps,
    classify,
)
from numpipe.ops.attention_gradients import convert, of_keys, prepare
from numpipe.ops.attention_varlen import plan as tiles
from tests.kernels.attention_function_cases import alibi, documents
from tests.kernels.product_configs import fuses
from tests.kernels.tuned_cases import FORMS

EXAMPLES, OPS = Path(gemm.__file__).parent, Path(str(numpipe.ops.__file__)).parent
DTYPES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def benchmark(name: str) -> ModuleType:
    """Import a module of examples/benchmarks, apart from modules of examples/ with the same
    name."""
    spec = importlib.util.spec_from_file_location(
        f"benchmark_{name}", EXAMPLES / "benchmarks" / f"{name}.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


explained, steered = benchmark("explained"), benchmark("steered")
store_role = benchmark("store_role")
LADDERS = [(gemm_ladder.kernel(cfg), {}) for cfg in gemm_ladder.RUNGS.values()] + [
    (attention_ladder.kernel(cfg, 64, causal), {})
    for cfg in attention_ladder.RUNGS.values()
    for causal in (False, True)
    if isinstance(cfg, attention_ladder.Config)
]
TUNED = [
    (gemm_tuned.kernel(cfg, form), {})
    for cfg in gemm_tuned.CONFIGS.values()
    for form in FORMS.values()
    if fuses(cfg) or not (form.source or form.bias)
]
ATTENTION = [
    (attention(cfg, Form(64, causal, layout, sums)), {})
    for cfg, causal, layout, sums in itertools.product(
        (Config(), Config(64, 1, alone=True)), (False, True), ("bhsd", "bshd"), (False, True)
    )
] + [
    (attention(Config(), Form(64, layout="bshd", ranges=True)), {}),
    (tiles(128, 128, True, True), {}),
]
OF_FUNCTIONS = Form(64, score=alibi, slope=alibi, mask=documents, arrays=(1, 1), dropout=0.125)
ATTENTION += [
    (kernel, {})
    for kernel in (
        attention(Config(), OF_FUNCTIONS),
        classify(documents, 1, 128, 128),
        attention_mask_lists,
        attention_mask_order,
        attention_mask_steps,
        of_keys(OF_FUNCTIONS, True),
    )
]
GRADIENTS = [
    (kernel, {})
    for form in (Form(64, True, "bshd"), Form(256), Form(128, layout="bshd", ranges=True))
    for kernel in (
        prepare(form),
        convert(form),
        of_keys(form),
    )
]
MODULES = (batched_gemm, copy_pipeline, gemm, gemm_body, gemm_single, explained, steered)
OF_MODULES = [
    (
        kernel,
        {
            "cfg": getattr(module, "Config", gemm.Config)()
            if module is not explained
            else explained.GatedConfig()
        },
    )
    for module in MODULES
    for kernel in vars(module).values()
    if isinstance(kernel, numpipe.Kernel)
]


@numpipe.kernel(
    grid=lambda x: (cdiv(x.shape[0], 64), cdiv(x.shape[1], 64)),
    in_specs=BlockSpec((64, 64), lambda i, k: (i, k)),
    out_specs=BlockSpec((64, 64), lambda i, k: (i, k)),
    out_type=lambda x: ArrayType(x.shape, np.float32),
    compiler_params=CompilerParams(dimension_semantics=("parallel", "sequential")),
)
def over_tiles(x, y):  # type: ignore[no-untyped-def]
    y[...] = x[...] + x[...]


def functions(kernel: numpipe.Kernel, statics: dict[str, Any]) -> Iterator[Expression]:
    """Compare the functions of a kernel as files store them with the originals, on drawn shapes."""
    options, choose = kernel.options, random.Random(0)
    for option in ("out_type", "grid", "workspace"):
        function = kernel.definition.grid if option == "grid" else getattr(options, option)
        if not callable(function):
            continue
        names = [name for name in inspect.signature(function).parameters if name not in statics]
        parameters = inspect.signature(function).parameters
        constants = {name: value for name, value in statics.items() if name in parameters}
        text = text_of(function, constants, f"kernel {kernel.name}: {option}")
        expression = Expression(text, "a file")
        for dtype, ranks in itertools.product(
            DTYPES, itertools.product(range(1, 5), repeat=len(names))
        ):
            arrays = {name: (dtype, rank) for name, rank in zip(names, ranks, strict=True)}
            if kernel.options.signature is not None and ranks != tuple(
                map(len, kernel.options.signature.inputs[: len(ranks)])
            ):
                continue
            for _ in range(10):
                known = {
                    name: HostView(
                        ArrayType(tuple(choose.choices((0, 1, 8, 100, 4096), k=rank)), dtype)
                    )
                    for name, (_, rank) in arrays.items()
                }
                try:
                    expected = function(**known, **constants)
                except Exception as error:
                    with pytest.raises(type(error), match=re.escape(str(error))):
                        expression(**known, **constants)
                else:
                    found = expression(**known, **constants)
                    assert found == expected and repr(found) == repr(expected)
        yield expression


STORES = [(store_role.reductions(True), {})]


@pytest.mark.parametrize(
    "kernels",
    [LADDERS, TUNED, ATTENTION, GRADIENTS, OF_MODULES, [(over_tiles, {})], STORES],
    ids=["ladders", "tuned", "attention", "gradients", "modules", "tiles", "stores"],
)
def test_a_file_can_hold_all_functions_of_shapes(
    kernels: list[tuple[numpipe.Kernel, dict[str, Any]]],
) -> None:
    for kernel, statics in kernels:
        assert list(functions(kernel, statics)), kernel.name


CHOSEN = {"cumsum", "gated", "matvec", "quantize", "reduce_axis", "rotary", "topk"}


def test_all_kernels_are_among_them() -> None:
    """Except for kernels of several GPUs, which no file can hold, of ops that choose one for each
    call, and of exhibits and puzzles."""
    of_files = {
        path.name
        for path in (*EXAMPLES.rglob("*.py"), *OPS.glob("*.py"))
        if re.search(r"^ *@numpipe[._](kernel|jit)\b", text := path.read_text("utf8"), re.MULTILINE)
        and "semaphores=" not in text
        and path.stem not in CHOSEN
        and path.parent.name not in ("exhibits", "gallery", "puzzles")
    }
    tested = {
        Path(str(module.__file__)).name
        for module in (*MODULES, gemm_ladder, attention_ladder, store_role)
    }
    tested |= {
        "jax_calls.py",
        "matmul.py",
        "attention.py",
        "attention_functions.py",
        "attention_gradients.py",
        "attention_short.py",
        "attention_varlen.py",
        "copy.py",
        "by_rows.py",
        "w4a16.py",
    }
    assert of_files == tested
