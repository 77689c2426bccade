"""`numpipe.verify` reports nothing for any kernel of numpipe.ops and of the examples."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ops
from tests.kernels import attention_function_cases, attention_gradient_cases
from tests.kernels.attention_cases import CASES
from tests.kernels.op_calls import run_ops_over_rows
from tests.kernels.product_configs import KINDS
from tests.kernels.recorded_calls import recorded
from tests.ops import test_attention_varlen

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "examples" / "benchmarks")]
SOURCES = [
    *(ROOT / "numpipe" / "ops").glob("*.py"),
    # tests of their own verify exhibits and puzzles
    *(
        path
        for path in (ROOT / "examples").glob("**/*.py")
        if path.parent.name not in ("exhibits", "gallery", "puzzles")
    ),
]
LEFT_OUT = {"more": "of examples/benchmarks/jax_calls.py, in a function that needs JAX on a GPU"}


def halves(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float16)


def example(name: str) -> Any:
    return importlib.import_module(name)


def steered() -> None:
    module = example("steered")
    cfg, shape = module.Config(tm=128, tn=64, tk=64, slots=2), (256, 128, 192)
    for name, table in module.steering(shape, cfg).items():
        module.KERNELS[name](halves(256, 192), halves(128, 192), table, target="sim", cfg=cfg)


def store_role() -> None:
    module = example("store_role")
    for stores in (False, True):
        module.product(stores)(
            halves(128, 136), halves(256, 136), np.zeros((128, 256), np.float32), target="sim"
        )
        module.reductions(stores)(
            halves(256, 128), halves(128, 128), np.zeros((256, 128), np.float32), target="sim"
        )
        module.copy(stores)(halves(200, 136), np.zeros((200, 136), np.float16), target="sim")


def explained() -> None:
    module, a, b = example("explained"), halves(130, 136), halves(72, 136)
    module.gated(a, b, b, target="sim", cfg=module.GatedConfig(128, 64, 64, 2))
    module.one_tile(a, b, target="sim", cfg=module.GatedConfig(128, 64, 64, 2))


def by_rows() -> None:
    module, rng = example("by_rows"), np.random.default_rng(0)
    for kernel in (module.softmax, module.softmax_ring):
        kernel(rng.standard_normal((20, 1024)).astype(np.float16), target="sim")
    module.stencil(rng.random((130, 264), np.float32), target="sim")
    module.histogram(
        rng.integers(0, 256, (576, 256)).astype(np.uint8), np.zeros(256, np.int32), target="sim"
    )


def gemm() -> None:
    config = example("gemm").Config(128, 64, 64, 2)
    for kernel in example("gemm_body").FORMS.values():
        kernel(halves(136, 136), halves(120, 136), cfg=config, target="sim")
    single = example("gemm_single")
    single.matmul(halves(64, 200), halves(136, 200), cfg=single.Config(64, 64, 64, 3), target="sim")
    batched = example("batched_gemm")
    batched.batched_matmul(
        halves(3, 128, 72), halves(3, 64, 72), cfg=batched.Config(128, 64, 64, 2), target="sim"
    )


def ladders() -> None:
    module = example("gemm_ladder")
    for rung in module.RUNGS.values():
        module.kernel(rung)(halves(200, 136), halves(264, 136), target="sim")
    module, (q, k, v) = example("attention_ladder"), (halves(1, 1, 72, 64) for _ in range(3))
    for rung in module.RUNGS.values():
        if isinstance(rung, module.Config):
            module.kernel(replace(rung, keys=32), 64, True)(
                q, k, v, np.zeros_like(q), scale=0.2, target="sim"
            )


def attention() -> None:
    from numpipe.ops.attention import Config

    for name, config in (
        ("causal", Config(64)),
        ("ragged", Config(64)),
        ("causal", Config(64, 1, alone=True)),
        ("causal", Config(64, lazy=True)),
        ("causal", Config(80, 3, turns=False, dynamic=False)),
    ):
        CASES[name].run("sim", config)
    attention_function_cases.CASES["documents"].wrong_gradients("sim", False)
    attention_function_cases.CASES["dropout"].wrong_gradients("sim", False)


def attention_gradients() -> None:
    for case in (CASES["causal"], CASES["depth 128"], CASES["depth 256"]):
        for deterministic in (False, True):
            attention_gradient_cases.run(case, "sim", deterministic)


def attention_varlen() -> None:
    test_attention_varlen.check("fewer keys", "sim")
    test_attention_varlen.check_gradients("depth 128", "sim")
    test_attention_varlen.check_gradients("depth 256", "sim")


def products() -> None:
    for config in KINDS:
        ops.matmul(halves(130, 328), halves(328, 200), config=config, target="sim")


def weights() -> None:
    module = example("w4a16")
    w, scales = module.quantized(np.random.default_rng(0).standard_normal((128, 512), np.float32))
    for config in (module.Config(), module.Config(slots=4, groups=2)):
        module.kernel(config)(w, scales, halves(16, 512), target="sim")


def copies() -> None:
    x = halves(40, 40)
    for array in (x, x[:, :32], x.T, x[:17, :32].T, x[:16, :17], x[:3, :17], halves(16, 33).T):
        ops.copy(array, target="sim")
    copy = importlib.import_module("numpipe.ops.copy")
    sizes = {"matrices": 1, "n": 33, "m": 3, "wide": 1, "columns": 7, "pitch_a": 3, "pitch_o": 33}
    sizes |= dict.fromkeys(("first_a", "next_a", "first_o", "next_o"), 0)
    x, out = (halves(33 * 3).view(np.uint16) for _ in range(2))
    copy.sectors(64, 4, 2)(x, out, **sizes, target="sim")
    copy.columns(33, 128)(halves(33 * 3), halves(33 * 3), 3, 3, target="sim")
    x, out = halves(1, 1, 1, 8, 17), halves(8, 17)  # the operands of a product, by one launch
    copy.lanes(2, 8, 64, 1, True)(x, x, out, out, pitch=17, pitch_b=17, target="sim")


def over_rows() -> None:
    run_ops_over_rows()


def many_gpus() -> None:
    mesh, rng = numpipe.Mesh.simulated(2), np.random.default_rng(0)
    rows, depths = [halves(130, 72)] * 2, [halves(72, 136)] * 2
    ops.all_gather_matmul(rows, depths, mesh=mesh)
    ops.matmul_reduce_scatter(rows, depths, mesh=mesh)
    ops.matmul_all_reduce([halves(260, 72)] * 2, depths, mesh=mesh)
    ops.all_reduce(rows, mesh=mesh)
    ops.all_gather(rows, mesh=mesh)
    ops.reduce_scatter(rows, mesh=mesh)
    ops.all_to_all(rows, [rng.integers(0, 65, 2).astype(np.int32) for _ in range(2)], mesh=mesh)


CALLS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "gemm": (gemm, {"matmul", "batched_matmul"}),
    "ladders": (ladders, {"single", "specialized", "serial", "overlapped"}),
    "by_rows": (by_rows, {"softmax", "softmax_ring", "stencil", "histogram"}),
    "copy_pipeline": (
        lambda: example("copy_pipeline").copy(halves(200, 600), target="sim"),
        {"copy"},
    ),
    "steered": (steered, {"ordered", "looked_up", "counted"}),
    "w4a16": (weights, {"w4a16"}),
    "store_role": (store_role, {"matmul", "added", "copied"}),
    "explained": (explained, {"gated", "one_tile"}),
    "ops.attention": (
        attention,
        {
            "attend",
            "attend_short",
            "attention_gradient_converted",
            "attention_gradient_sums",
            "attention_gradients",
            "attention_mask_flags",
            "attention_mask_lists",
            "attention_mask_order",
        },
    ),
    "gradients of ops.attention": (
        attention_gradients,
        {
            "attention_gradient_converted",
            "attention_gradient_sums",
            "attention_gradients",
            "wide_attention_gradients",
        },
    ),
    "ops.attention_varlen": (
        attention_varlen,
        {
            "attend",
            "attention_gradient_converted",
            "attention_gradient_sums",
            "attention_gradients",
            "attention_tiles",
            "attention_tiles_in_order",
            "wide_attention_gradients",
        },
    ),
    "ops.matmul": (products, {"matmul"}),
    "ops.copy": (
        copies,
        {
            "copy_tma",
            "copy_lanes",
            "copy_blocks",
            "copy_turned",
            "copy_sectors",
            "copy_columns",
            "copy_line",
        },
    ),
    "ops over rows": (
        over_rows,
        {
            "cumsum_aligned",
            "cumsum_long",
            "cumsum_parts",
            "gated",
            "gated_gradient",
            "quantize_tile",
            "reduce_axis",
            "rotate",
            "rotate_rows",
            "select",
            "sort_chosen",
        },
    ),
    "ops of many GPUs": (
        many_gpus,
        {
            "all_gather_matmul",
            "matmul_reduce_scatter",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
        },
    ),
}
"""calls -> the functions of the kernels that they run"""


def written() -> set[str]:
    """Return the functions that are kernels, by their decorators."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(of).partition("(")[0]
                in ("numpipe.kernel", "numpipe_kernel", "tile.kernel")
                for of in node.decorator_list
            ):
                found.add(node.name)
    return found


def test_each_kernel_is_called() -> None:
    assert written() == set().union(*(names for _, names in CALLS.values())) | set(LEFT_OUT)


PARTS = {
    "all_gather_matmul": "gathered",
    "matmul_reduce_scatter": "parts",
    "all_gather": "room",
    "reduce_scatter": "room",
    "all_to_all": "out",
    "attention_gradient_converted": "x",
    "attention_gradient_sums": "delta dq stats turns",
    "attention_gradients": "dq turns",
    "wide_attention_gradients": "dq turns",
    "attention_mask_lists": "lists",
    "attention_mask_order": "lists",
    "attention_tiles": "table",
    "attention_tiles_in_order": "table",
    "select": "chosen",
}
"""outputs of which a part is not written: a GPU's own part, rows that nothing is sent to, the ends
of lists, positions outside of all sequences, and keys, which only the last selection of `topk`
stores"""


def verified(name: str, schedules: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = recorded(CALLS[name][0], monkeypatch)
    # kernels made by `numpipe.rows` run, too
    assert CALLS[name][1] <= {call.kernel.name for call in found}
    for call in found:
        parts = PARTS.get(call.kernel.name, "").split()
        partial = [part for part in parts if part in call.kernel.parameters]
        result = call.passed_to(numpipe.verify, schedules=schedules, partial=partial)
        assert result and not result.warnings, (
            f"{call.kernel.name}{list(map(np.shape, call.args))}{call.named}: {result}"
        )


@pytest.mark.parametrize("name", ["steered", "copy_pipeline"])
def test_verify_reports_nothing_in_some_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verified(name, 2, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("name", CALLS)
def test_verify_reports_nothing_in_any_kernel_of_ops_and_examples(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified(name, 12, monkeypatch)
