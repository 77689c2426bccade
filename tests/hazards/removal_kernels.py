"""Kernels that between them come to every place where numpipe and the examples synchronise; each small, each with its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import barrier_plans
import batched_gemm
import copy_pipeline
import emitted_kernels
import gemm
import gemm_body
import gemm_single
import kernels_for_tests as pipelines
import numpy as np
import ordered_kernels
import output_kernels
import primitive_kernels
import single_kernels
import test_drain

import numpipe
from numpipe import CompilerParams

Run = Callable[[int | None], Any]
F16, F32 = np.dtype(np.float16), np.dtype(np.float32)
SMALL = pipelines.SMALL
RUNS: dict[str, Run] = {}


def run(name: str, kernel: Any, *given: np.ndarray | int, **statics: Any) -> None:
    """A run of a kernel that stores to its last arrays, or returns what it computes."""
    def simulated(seed: int | None) -> Any:
        arrays = [array.copy() if isinstance(array, np.ndarray) else array for array in given]
        made = kernel.simulate(*arrays, seed=seed, **statics)
        return made if made is not None else [array for array in arrays if isinstance(array, np.ndarray)]

    RUNS[name] = simulated


def ints(*shape: int, dtype: Any = F16) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(dtype)


def out(*shape: int, dtype: Any = F16) -> np.ndarray:
    return np.zeros(shape, dtype)


A, B = ints(256, 320), ints(64, 320)
run("a ring, two warpgroups", pipelines.gemm(2, 1, 1), A, B, cfg=SMALL)
run("a ring with delay_release", pipelines.gemm(1, 1, 1), A[:128], B, cfg=replace(SMALL, tm=64, delay=1, slots=3))
run("rings in rings", pipelines.nested_gemm(1), A[:, :256], B[:, :256], cfg=SMALL)
run("outputs", output_kernels.copy(2), A, out(256, 320), cfg=output_kernels.Config(slots=2))
run("outputs of one slot", output_kernels.copy(2), A, out(256, 320), cfg=output_kernels.Config(slots=2, outs=1))
run("outputs beside a tile", output_kernels.in_tiles, A, B, out(256, 320), out(256, 64, dtype=F32))
run("outputs of several lengths", output_kernels.sums, A, out(256, 64, dtype=F32), out(128, 64, dtype=F32), out(256, 320))
run("outputs and operands one by one", output_kernels.one_by_one, A[:128], ints(128, 320), out(128, 320, dtype=F32))
run("outputs of each warpgroup", output_kernels.alone, A[:128], out(128, 320))
run("outputs without a memory role", output_kernels.without_memory_role, ints(192, 256), out(192, 128, dtype=F32))
run("chained", output_kernels.chained, A[:128], ints(128, 192), out(128, 320), out(128, 192))
run("a body", emitted_kernels.gemm_body, A, B, cfg=emitted_kernels.Config(tn=64))
for manual in ((True, True), (True, False), (False, True)):
    plan = barrier_plans.Plan(*manual, slots=2, wgs=2)
    run(f"a body's barriers {manual}", barrier_plans.load(barrier_plans.source(plan)), *barrier_plans.inputs(plan, 2, 5))
for form in ("loop", "body"):
    for roles in (True, False) if form == "body" else (False,):
        run(f"single-stream {form} {roles}", single_kernels.gemm(form, roles, 2, 0, 2), *single_kernels.operands(256, 320))
for drain in (False, True):
    for name in test_drain.KERNELS:
        run(f"{name}, drain={drain}", test_drain.made(name, CompilerParams(drain=drain)), *test_drain.inputs(), 5, 4)
run("primitives", primitive_kernels.single_stream, A[:64], B)
run("shared tiles", primitive_kernels.shared_tiles, A[:128], B, slots=2)
run("copies", primitive_kernels.copied, A, out(256, 320))
run("copies of a union", primitive_kernels.united, A[:128, :64], out(128, 64))
run("a poll", primitive_kernels.polled, A[:64, :64], out(2, 64, 64))
run("copies out", primitive_kernels.squared, ints(128, 96, dtype=F32), out(128, 96, dtype=F32))
run("roles by hand", primitive_kernels.roles_by_hand, A[:128], B, slots=2)
for name in ("turned", "sent", "squared", "in_place", "turned_twice"):
    run(f"automatic barriers, {name}", ordered_kernels.SAFE[name], ints(128, 128), out(128, 128))
run("examples/gemm.py", gemm.matmul, A, ints(128, 320), cfg=gemm.Config(tm=128, tn=64, slots=2))
run("examples/gemm_body.py", gemm_body.matmul, A, ints(128, 320), cfg=gemm.Config(tm=128, tn=64, slots=2))
run("examples/gemm_single.py", gemm_single.matmul, A[:128], ints(256, 320), cfg=gemm_single.Config(tm=64, tn=64, slots=2))
run("examples/batched_gemm.py", batched_gemm.batched_matmul, ints(2, 128, 320), ints(2, 64, 320),
    cfg=batched_gemm.Config(tn=64, slots=2))
run("examples/copy_pipeline.py", copy_pipeline.copy, ints(64, 1000), cfg=copy_pipeline.Config(run=2))
