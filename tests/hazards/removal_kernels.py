"""Kernels that together reach every place where numpipe and the examples synchronize; each is small
and has an expected result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import attention_ladder
import batched_gemm
import copy_pipeline
import gemm_single
import numpy as np
import w4a16

import gemm
import gemm_body
import numpipe
from numpipe import SMEM, Barrier, BlockSpec, CompilerParams, ds
from numpipe.kernels.row_kernels import Rows
from numpipe.kernels.row_schedules import Needs
from numpipe.ops.attention import Config, Form
from numpipe.ops.attention import kernel as attention_of
from numpipe.ops.attention_gradients import division, of_keys
from numpipe.ops.copy import sectors
from numpipe.ops.cumsum import long_rows, rows_of_parts
from numpipe.ops.norm_gradients import in_ring, of_short_rows
from numpipe.ops.reduce_axis import reducer
from numpipe.ops.rotary import rotated_rows
from numpipe.ops.softmax import backward, forward
from tests.kernels import (
    barrier_loop_kernels,
    barrier_plans,
    cluster_kernels,
    dynamic_kernels,
    emitted_kernels,
    gpu_kernels,
    odd_outputs,
    order_token_kernels,
    ordered_kernels,
    output_kernels,
    prefetched_kernels,
    primitive_kernels,
    single_kernels,
    split_kernels,
    steered_kernels,
    store_role_kernels,
    turn_kernels,
    wish_kernels,
)
from tests.kernels import kernels_for_tests as pipelines
from tests.kernels.attention_function_cases import documents, soft_cap
from tests.kernels.rows_of_kernels import in_steps, layer_norm, scaled, schedule_for, swapped
from tests.language.pipeline import test_drain

from . import accumulators, arrays, barriers, clusters, proxies, slots, stores, whole
from .catalogue import ENTRIES

Run = Callable[[int | None], Any]
F16, F32 = np.dtype(np.float16), np.dtype(np.float32)
SMALL = pipelines.SMALL
RUNS: dict[str, Run] = {}


def run(name: str, kernel: Any, *given: np.ndarray | int, **statics: Any) -> None:
    """Register a run of a kernel that stores to its last arrays, or returns its result."""

    def simulated(seed: int | None) -> Any:
        arrays = [array.copy() if isinstance(array, np.ndarray) else array for array in given]
        schedule = {"schedule_seed" if "seed" in statics else "seed": seed}
        made = kernel.simulate(*arrays, **schedule, **statics)
        return (
            made
            if made is not None
            else [array for array in arrays if isinstance(array, np.ndarray)]
        )

    RUNS[name] = simulated


def ints(*shape: int, dtype: Any = F16) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(dtype)


def out(*shape: int, dtype: Any = F16) -> np.ndarray:
    return np.zeros(shape, dtype)


def drained(result: np.ndarray, trace: numpipe.Trace) -> Any:
    """Return the result, and whether loads began after all releases of the previous pipeline.

    CompilerParams(drain=True) promises the latter.
    """
    return [result, np.array(test_drain.empty_between(trace))]


A, B = ints(256, 320), ints(64, 320)
run("a ring, two warpgroups", pipelines.gemm(2, 1, 1), A, B, cfg=SMALL)
run(
    "a ring with delay_release",
    pipelines.gemm(1, 1, 1),
    A[:128],
    B,
    cfg=replace(SMALL, tm=64, delay=1, slots=3),
)
run("rings in rings", pipelines.nested_gemm(1), A[:, :256], B[:, :256], cfg=SMALL)
run("outputs", output_kernels.copy(2), A, out(256, 320), cfg=output_kernels.Config(slots=2))
run(
    "outputs of one slot",
    output_kernels.copy(2),
    A,
    out(256, 320),
    cfg=output_kernels.Config(slots=2, outs=1),
)
run("outputs next to a tile", output_kernels.in_tiles, A, B, out(256, 320), out(256, 64, dtype=F32))
run(
    "outputs of several lengths",
    output_kernels.sums,
    A,
    out(256, 64, dtype=F32),
    out(128, 64, dtype=F32),
    out(256, 320),
)
run(
    "outputs and operands one by one",
    output_kernels.one_by_one,
    A[:128],
    ints(128, 320),
    out(128, 320, dtype=F32),
)
run("outputs of each warpgroup", output_kernels.alone, A[:128], out(128, 320))
run(
    "outputs without a memory role",
    output_kernels.without_memory_role,
    ints(192, 256),
    out(192, 128, dtype=F32),
)
run("chained", output_kernels.chained, A[:128], ints(128, 192), out(128, 320), out(128, 192))
run("a body", emitted_kernels.gemm_body, A, B, cfg=emitted_kernels.Config(tn=64))
for manual in ((True, True), (True, False), (False, True)):
    plan = barrier_plans.Plan(*manual, slots=2, wgs=2)
    run(
        f"a body's barriers {manual}",
        barrier_plans.load(barrier_plans.source(plan)),
        *barrier_plans.inputs(plan, 2, 5),
    )
loops = barrier_loop_kernels.cases()["rotated, fewer steps"]
run(
    "a loop's barriers", loops.kernel, *loops.inputs, out(128, 64, dtype=F32), **dict(loops.options)
)
for name, tokens in order_token_kernels.kernels().items():
    if name in ("two", "fewer steps"):
        run(
            f"order tokens, {name}",
            tokens.kernel,
            *tokens.inputs,
            out(*tokens.expected.shape, dtype=F32),
            **dict(tokens.options),
        )
for form in ("loop", "body"):
    for roles in (True, False) if form == "body" else (False,):
        run(
            f"single-stream {form} {roles}",
            single_kernels.gemm(form, roles, 2, 0, 2),
            *single_kernels.operands(256, 320),
        )
for name in test_drain.KERNELS:
    run(name, test_drain.made(name, CompilerParams()), *test_drain.inputs(), 5, 4)
    RUNS[f"{name}, drained"] = lambda seed, name=name: drained(
        *test_drain.run(name, test_drain.DRAINED, 5, 4, seed)
    )
for name in ("gemm", "barriers by hand, in place", "skips"):
    turns = turn_kernels.cases()[name]
    run(f"turns, {name}", turns.kernel, *turns.inputs, turns.output(), cfg=turns.cfg)
run(
    "tiles from a counter",
    dynamic_kernels.made(dynamic_kernels.gemm, warpgroups=1, ctas=1),
    ints(640, 64),
    ints(64, 64),
    out(640, 64),
    cfg=dynamic_kernels.STEP_A_TILE,
)
for name in ("tiles_of_a_table", "tiles_of_each_warpgroup"):
    run(
        f"a table in shared memory, {name}",
        prefetched_kernels.KERNELS[name],
        *steered_kernels.arrays(np.random.default_rng(3), np.int32),
        size=16,
    )
run("primitives", primitive_kernels.single_stream, A[:64], B)
run("shared tiles", primitive_kernels.shared_tiles, A[:128], B, slots=2)
run(
    "atomics on a shared vector",
    wish_kernels.histogram,
    ints(128, 128, dtype=np.uint8),
    out(256, dtype=np.int32),
)
run("copies", primitive_kernels.copied, A, out(256, 320))
run("copies of a union", primitive_kernels.united, A[:128, :64], out(128, 64))
run("a poll", primitive_kernels.polled, A[:64, :64], out(2, 64, 64))
run("copies out", primitive_kernels.squared, ints(128, 96, dtype=F32), out(128, 96, dtype=F32))
run("roles by hand", primitive_kernels.roles_by_hand, A[:128], B, slots=2)
run("outputs of one slot of each warpgroup", output_kernels.alone, A[:128], out(128, 320), slots=1)
for name in ("turned", "sent", "squared", "in_place", "turned_twice"):
    run(f"automatic barriers, {name}", ordered_kernels.SAFE[name], ints(128, 128), out(128, 128))
run("examples/gemm.py", gemm.matmul, A, ints(128, 320), cfg=gemm.Config(tm=128, tn=64, slots=2))
run(
    "examples/gemm_body.py",
    gemm_body.matmul,
    A,
    ints(128, 320),
    cfg=gemm.Config(tm=128, tn=64, slots=2),
)
run(
    "examples/gemm_single.py",
    gemm_single.matmul,
    A[:128],
    ints(256, 320),
    cfg=gemm_single.Config(tm=64, tn=64, slots=2),
)
run(
    "examples/batched_gemm.py",
    batched_gemm.batched_matmul,
    ints(2, 128, 320),
    ints(2, 64, 320),
    cfg=batched_gemm.Config(tn=64, slots=2),
)
# two tiles of one CTA, with two masked blocks
BLOCKS = np.array([[1, 1, 0, 0, 0, 1, 1], [2, 2, 2, 3, 1, 0, 0]], np.int32)[None, None]
for config, form, given in (
    (Config(64, dynamic=False), Form(64, causal=True), []),
    (
        Config(64, early=32, mixed=True, dynamic=False),
        Form(64, score=soft_cap, mask=documents, arrays=(0, 1)),
        [BLOCKS, np.arange(256, dtype=np.int32)[None] // 90],
    ),
):
    attend = attention_of(config, form)
    run(
        f"numpipe.ops.attention{', with functions' * form.functions}",
        numpipe.kernel(
            attend.function,
            out_type=lambda q: numpipe.ArrayType(q.shape, q.dtype),
            without=[*form.absent, *form.unlisted, "lse"],
            grid=numpipe.persistent(1),
            num_compute_wgs=2,
            wg_axis="wg",
            memory_registers=40,
        ),
        *[ints(1, 1, 256, 64)] * 3,
        *given,
        scale=np.float32(0.125),
        diagonal=0,
        group=1,
    )
run(
    "numpipe.ops.attention, short",
    attention_of(Config(64, 1, alone=True), Form(64, causal=True)),
    *[ints(1, 1, 128, 64)] * 3,
    scale=np.float32(0.125),
    diagonal=0,
    group=1,
)
FORM = Form(64, score=soft_cap, slope=soft_cap, mask=documents, arrays=(0, 1), dropout=0.125)
for name, form, queries, keys, ordered in (
    ("keys of depth 64", Form(64, causal=True), 384, 128, False),
    ("keys of depth 128", Form(128, causal=True), 256, 128, False),
    ("wide keys of depth 256", Form(256, causal=True), 256, 128, False),
    ("with functions", FORM, 256, 256, False),
    ("wide keys with functions", replace(FORM, depth=256), 256, 256, False),
    ("in turn, in parts", Form(128), 512, 256, True),
):
    steps = np.array([[[[2, 0, 3, 0, 0], [2, 3 + 65536, 5, 0, 0]]]], np.int32)
    of = steps, np.arange(256, dtype=np.int32)[None] // 90, np.array([5], np.int32)
    lines = queries * form.depth // 32
    q, k = (ints(1, 1, rows, form.depth) for rows in (queries, keys))
    of_whole, _, parts = division(form, ordered, q, k)
    run(
        f"gradients of numpipe.ops.attention, {name}",
        of_keys(form, ordered, parts > 1),
        *(q, k, k, q),
        *(ints(1, 1, queries, dtype=F32), ints(1, 1, queries, dtype=F32)),
        *of[: 3 * form.functions],
        *(out(lines, 32, dtype=F32), out(lines // 64, dtype=np.int32))[: 1 + ordered],
        *(out(1, 1, keys, form.depth), out(1, 1, keys, form.depth)),
        scale=np.float32(0.1),
        diagonal=0,
        group=1,
        whole=of_whole,
        parts=parts,
    )
for rung in (
    attention_ladder.Config(64),
    attention_ladder.Config(64, wgs=2, overlapped=True, turns=True),
):
    run(
        f"examples/attention_ladder.py {rung}",
        attention_ladder.kernel(rung, 64, True),
        *[ints(1, 1, 256, 64)] * 3,
        scale=np.float32(0.125),
    )
run(
    "examples/copy_pipeline.py", copy_pipeline.copy, ints(64, 1000), cfg=copy_pipeline.Config(run=2)
)


def on_gpus(name: str, case: gpu_kernels.Case, gpus: int = 2, ctas: int = 2) -> None:
    """Register a run of a kernel of several GPUs."""

    def simulated(seed: int | None) -> Any:
        made = case.kernel.simulate(
            *case.inputs(gpus),
            mesh=numpipe.Mesh.simulated(gpus),
            seed=seed,
            ctas=ctas,
            **case.options(gpus),
        )
        return [array for each in (made if isinstance(made, tuple) else (made,)) for array in each]

    RUNS[name] = simulated


on_gpus(
    "two GPUs, by the lanes",
    replace(gpu_kernels.CASES["exchanged"], inputs=lambda n: [gpu_kernels.blocks(n, 64, 64)]),
    ctas=1,
)
on_gpus(
    "two GPUs, tiles",
    replace(gpu_kernels.CASES["shift"], inputs=lambda n: [gpu_kernels.blocks(n, 128, 64)]),
    ctas=1,
)


@numpipe.kernel(
    grid=numpipe.persistent(1),
    semaphores=2,
    warp_specialized=False,
    out_type=lambda x: (numpipe.ArrayType((64,), F32), numpipe.ArrayType((64,), F32)),
)
def loaded_by_compute(x, sums, y, ready):
    other = 1 - numpipe.axis_index("gpu")
    tile = numpipe.scratch(SMEM((64,), F32))
    landed = numpipe.scratch(Barrier())
    numpipe.signal(ready.at[1], other)
    numpipe.peer(sums, other)[ds(0, 64)] = x[ds(0, 64), ds(0, 64)].astype(np.float32).sum(axis=1)
    numpipe.signal(ready.at[0], other)
    for i in range(2):
        numpipe.wait(ready.at[i], 1)
    numpipe.copy_gmem_to_smem(sums.at[ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    y[ds(0, 64)] = tile[...]


on_gpus(
    "two GPUs, without a memory role",
    gpu_kernels.Case(loaded_by_compute, lambda n: [gpu_kernels.blocks(n, 64, 64)], lambda x: []),
    ctas=1,
)


# ---- barriers that the other kernels leave to automatic barriers, or do not need
@numpipe.kernel(grid=1, compiler_params=CompilerParams(unsafe_no_auto_barriers=True))
def by_hand(y):
    """Store a tile three times, with each barrier written explicitly."""
    tile = numpipe.scratch(SMEM((64, 64), np.float32))
    for k in range(3):
        tile[...] = numpipe.zeros((64, 64), np.float32) + k
        numpipe.commit_smem()
        numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(k * 64, 64)])
        numpipe.wait_smem_to_gmem(0, wait_read_only=True)


@numpipe.kernel(grid=1)
def loaded_over(x, y):
    """Load over a tile that the warps have read, then over one that they have written."""
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    first = tile[...].astype(np.float32)
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(64, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    second = tile[...].astype(np.float32)
    tile[...] = first.astype(np.float16)
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(128, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    y[ds(0, 64), ds(0, 64)] = first + second + tile[...].astype(np.float32)


@numpipe.kernel(grid=1)
def unpacked(x, y):
    """Unpacks rows that other warps have stored."""
    tile = numpipe.scratch(SMEM((128, 64), np.uint8))
    tile[ds(0, 64), :] = x[ds(0, 64), ds(0, 64)]
    tile[ds(8, 64), :] = x[ds(0, 64), ds(0, 64)]
    y[ds(0, 64), ds(0, 128)] = numpipe.unpack(tile.at[ds(0, 64), :], "uint4", np.float16)


@numpipe.kernel(grid=1)
def loaded_by_rows(x, y):
    """Load rows that other warps have stored."""
    tile = numpipe.scratch(SMEM((64, 64), np.float16))
    tile[...] = x[ds(0, 64), ds(0, 64)]
    y[ds(0, 64), ds(0, 64)] = numpipe.load_tile(tile, "rows")


@numpipe.kernel(grid=1, compiler_params=CompilerParams(product="mma.sync"))
def multiplied_by_warps(x, y):
    """Each warp loads all of B, rows that other warps have stored."""
    tile = numpipe.scratch(SMEM((64, 64), np.float16))
    tile[...] = x[ds(0, 64), ds(0, 64)]
    y[ds(0, 64), ds(0, 64)] = numpipe.mma(None, tile, tile.T)


@numpipe.kernel(grid=1)
def of_registers(x, y):
    """Keep two products in flight: of a tile in registers, and of one that the warps have written.

    Also store the result of a reduction.
    """
    tile = numpipe.scratch(SMEM((64, 64), np.float16))
    first = x[ds(0, 64), ds(0, 64)]
    tile[...] = first
    one = numpipe.wgmma(None, first, tile)
    two = numpipe.wgmma(None, first, tile)
    y[ds(0, 64), ds(0, 64)] = numpipe.wgmma_wait(one)
    y[ds(0, 64), ds(64, 64)] = numpipe.wgmma_wait((two, 0))[0]
    # so that there is a memory role
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for _, (x_tile,) in pipe(x):
        wide = x_tile[...].astype(np.float32)
        y[ds(0, 64), ds(128, 64)] = wide - numpipe.layout_cast(wide.max(axis=0), "column")[:, None]


@numpipe.kernel(grid=1)
def sums_of_columns(x, y):
    wide = x[ds(0, 64), ds(0, 64)]
    y[ds(0, 64), ds(0, 64)] = wide - wide.sum(axis=0) - wide.max(axis=0)


@numpipe.kernel(grid=1)
def numbers_of_tiles(x, y):
    wide = x[ds(0, 64), ds(0, 64)]
    y[ds(0, 64), ds(0, 64)] = wide - wide.max() - wide.min(axis=1).sum()


@numpipe.kernel(grid=1)
def casts_to_rows(x, y):
    wide = x[ds(0, 64), ds(0, 64)]
    y[ds(0, 64), ds(0, 64)] = (
        wide
        - numpipe.layout_cast(wide.sum(axis=1), "row")
        - numpipe.layout_cast(wide.max(axis=1), "row")
    )


@numpipe.kernel(grid=1)
def casts_to_columns(x, y):
    wide = x[ds(0, 64), ds(0, 64)]
    first, second = wide.sum(axis=0), wide.max(axis=0)
    y[ds(0, 64), ds(0, 64)] = (
        wide
        - (numpipe.layout_cast(first, "column") + numpipe.layout_cast(second, "column"))[:, None]
    )


@numpipe.kernel(grid=1)
def casts_of_tiles(x, y):
    """Let each warp keep its rows of a panel; all warps have read the sums exchanged before."""
    wide = x[ds(0, 64), ds(0, 64)]
    total = wide.sum()
    again = numpipe.layout_cast(numpipe.layout_cast(wide, "coalesced"), "accumulator")
    y[ds(0, 64), ds(0, 64)] = again - total - again.max()


def odd_output(order: Any) -> Run:
    """Store to an array that TMA cannot write, through the bytes in which warps have exchanged
    sums."""

    def simulated(seed: int | None) -> Any:
        y = np.zeros((128, 143), F16, order=order)
        with odd_outputs.odd_outputs():
            odd_outputs.behind_a_reduction.simulate(ints(128, 72), y, seed=seed)
        return y

    return simulated


EXCHANGES = {
    "sums of columns": (sums_of_columns, 2),
    "numbers of tiles": (numbers_of_tiles, 2),
    "casts to rows": (casts_to_rows, 2),
    "casts to columns": (casts_to_columns, 4),
    "casts of tiles": (casts_of_tiles, 3),
}
"""kernels whose warps exchange values through shared memory, and how many lines of numpipe they use
for it"""


def unused(ready: bool, consumed: bool) -> Any:
    @numpipe.kernel
    def sums(a, b, y):
        """Ignore b in the body, without waiting for it."""

        def without_barriers(indices, x, y_, x_ready, y_ready, acc):
            numpipe.barrier_wait(x_ready)
            return acc + x[...].astype(np.float32)

        def with_barriers(indices, x, y_, x_ready, y_ready, x_free, y_free, acc):
            numpipe.barrier_wait(x_ready)
            acc = acc + x[...].astype(np.float32)
            numpipe.barrier_arrive(x_free)
            numpipe.barrier_arrive(y_free)
            return acc

        def compute(pipeline):
            y[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        numpipe.emit_pipeline_warp_specialized(
            with_barriers if consumed else without_barriers,
            grid=(5,),
            compute_context=compute,
            manual_produced_barriers=ready,
            manual_consumed_barriers=consumed,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
        )(a, b)

    return sums


alone = numpipe.kernel(
    output_kernels.alone.function,
    num_compute_wgs=2,
    compiler_params=CompilerParams(unsafe_no_auto_barriers=True),
)
run("outputs of one slot of each warpgroup, bare", alone, A[:128], out(128, 320), slots=1)
run("barriers by hand", by_hand, out(64, 192, dtype=F32))
run("products of registers", of_registers, A[:64], out(64, 192, dtype=F32))
run("sums of columns", sums_of_columns, ints(64, 64, dtype=F32), out(64, 64, dtype=F32))
for order in ("C", "F"):
    RUNS[f"an output that TMA cannot write, {order}"] = odd_output(order)
run("a product by warps", multiplied_by_warps, A[:64], out(64, 64, dtype=F32))
run("rows loaded by lanes", loaded_by_rows, A[:64], out(64, 64))
run("packed rows", unpacked, ints(64, 64, dtype=np.uint8), out(64, 128))
for groups in (1, 2):
    run(
        f"examples/w4a16.py, {groups}",
        w4a16.kernel(w4a16.Config(wgs=1, slots=2, groups=groups)),
        ints(64, 256, dtype=np.uint8),
        ints(4, 64),
        ints(16, 512),
    )
run("a tile loaded over", loaded_over, A[:64], out(64, 64, dtype=F32))
SHARED_ROW = Rows(1024, 1, 512, wgs=2, whole=512)
run(
    "a row that warpgroups share",
    forward(log=False).scheduled(SHARED_ROW),
    ints(1, 1024),
    out(1, 1024),
)
run(
    "the gradient of such a row",
    backward(log=False).scheduled(replace(SHARED_ROW, needs=Needs(2))),
    ints(1, 1024),
    ints(1, 1024),
    out(1, 1024),
)
run(
    "contiguous rows, which are loaded in blocks",
    swapped.scheduled(schedule_for(57, Needs(2), np.dtype(F16), False, True)),
    *(ints(140, 57), ints(141, 57)[:140], out(140, 57), out(140, 57)),
)
run(
    "sums of columns",
    reducer("argmax", True, 1, 256, 8, 8, False, False, 4, 2, 0, 0, False, None, "rest"),
    ints(1, 84, 256, dtype=F32),
    ints(1, 32, dtype=F32),
    out(1, 1, 32, dtype=np.int32),
    1,
    1.0,
)
run(
    "a running sum of a long row",
    rows_of_parts(2, 2, 1, 2, 4, 1),
    ints(3, 1011, dtype=F32),
    out(3, 1011, dtype=F32),
)
run(
    "running sums of tiles",
    long_rows(4, 64, False),
    ints(1, 640, 64, dtype=F32),
    ints(1, 16, dtype=F32),
    out(1, 640, 64, dtype=F32),
    out(1, 16, dtype=F32),
    300,
)
# more tiles of one warpgroup each, so that a total is missing in any schedule
run(
    "running sums of small tiles",
    long_rows(1, 64, False),
    ints(1, 320, 64, dtype=F32),
    ints(1, 16, dtype=F32),
    out(1, 320, 64, dtype=F32),
    out(1, 16, dtype=F32),
    300,
)
run(
    "rows rotated by the same angles",
    rotated_rows(13, False, 3, 8),
    *(ints(3 * 20 * 26), ints(20 * 13), ints(20 * 13), out(3 * 20 * 26)),
)
run(
    "a transpose that stores whole sectors",
    sectors(64, 4, 2),
    *(ints(3, 33, dtype=np.uint16), out(3, 33, dtype=np.uint16)),
    **{"matrices": 1, "n": 33, "m": 3, "wide": 1, "columns": 7, "first_a": 0, "next_a": 0},
    **{"pitch_a": 3, "first_o": 0, "next_o": 0, "pitch_o": 33},
)
for row in (SHARED_ROW, in_steps(1536, 1), in_steps(3072, 2, cluster=2)):
    run(
        f"two sums over a row that warpgroups share, in {row.steps} steps of {row.cluster}",
        scaled.scheduled(row),
        ints(1, row.n, dtype=F32),
        ints(1, dtype=F32),
        out(1, row.n),
    )
for cluster in (1, 2):
    row = Rows(1024 * cluster, 1, 1024, 1, 1024, slots=1, loops=True, cluster=cluster)
    run(
        f"rows that CTAs load while they compute others, in clusters of {cluster}",
        layer_norm.scheduled(row),
        ints(7, row.n, dtype=F32),
        *ints(2, row.n, dtype=F32),
        out(7, row.n, dtype=F32),
    )
for ctas, wgs, height in ((1, 1, 32), (2, 4, 12)):
    columns = 512 * ctas * wgs + 64
    run(
        f"gradients of a norm in a ring, by {wgs} warpgroups of {ctas} CTAs",
        in_ring(True, columns, 4, False, ctas, wgs, "grad_total", "dbias"),
        *(ints(height, columns, dtype=F32), ints(height, columns, dtype=F32)),
        *(ints(2 * height, dtype=F32), ints(columns, dtype=F32), ints(height, columns, dtype=F32)),
        *(out(height, columns, dtype=F32), out(1, columns, dtype=F32), out(1, columns, dtype=F32)),
    )
for n, length, layout in ((18, 2, "rows 4"), (16, 4, "rows 4 4")):
    run(
        f"gradients of a norm of rows of {n} columns",
        of_short_rows(layout, 64, 3, 2, length, True, 1, "weight", "dbias").scheduled(
            Rows(n, 64, n, ctas=2, whole=n, flat=True, loops=True, needs=Needs(2), layout=layout)
        ),
        *(ints(200, n), ints(200, n), ints(200, 2, dtype=F32), ints(n)),
        *(out(200, n), out(1, n, dtype=F32), out(1, n, dtype=F32)),
        dropout=0.0,
        scale=1.0,
        seed=0,
    )
for consumed in (False, True):
    run(
        f"an operand that is not used, {consumed}",
        unused(True, consumed),
        A[:64],
        B,
        out(64, 64, dtype=F32),
    )

# ---- stores by a warp next to the loading one
run(
    "outputs by a store role",
    store_role_kernels.by_store_role(output_kernels.copy(2)),
    A[:128],
    out(128, 320),
    cfg=output_kernels.Config(slots=2, outs=1),
)
run(
    "reductions by a store role",
    store_role_kernels.sums(True, 1),
    ints(256, 128),
    out(256, 64, dtype=F32),
)
run(
    "tiles by a store role",
    store_role_kernels.gemm(True, store_slots=2),
    ints(128, 128),
    ints(128, 128),
    out(128, 128, dtype=F32),
)
run(
    "tiles of turns by a store role",
    store_role_kernels.gemm(True, persistent=True, schedule="pingpong", store_slots=1),
    ints(256, 64),
    ints(128, 64),
    out(256, 128, dtype=F32),
)

# ---- clusters
run(
    "a cluster that shares blocks of b",
    cluster_kernels.product(replace(cluster_kernels.SMALL, along_m=2)),
    ints(512, 128),
    ints(64, 128),
)
run(
    "a cluster that exchanges sums",
    split_kernels.exchanged(split_kernels.InCluster()),
    ints(256, 256),
    ints(64, 256),
)
run(
    "a cluster that loads by hand",
    cluster_kernels.loaded_together,
    ints(64, 256),
    out(128, 64, dtype=F32),
)
run(
    "a cluster that passes tiles on",
    cluster_kernels.passed_round(2, np.float32, (64, 32)),
    ints(128, 32, dtype=F32),
    out(128, 32, dtype=F32),
)
run(
    "a cluster whose leader sends",
    cluster_kernels.sent_by_the_leader,
    ints(128, 96, dtype=F32),
    out(512, 32, dtype=F32),
)
run(
    "a cluster whose CTAs load from each other",
    cluster_kernels.read_by_all(2, np.float32, (64, 32)),
    ints(128, 64, dtype=F32),
    out(128, 64, dtype=F32),
)
run("a cluster whose CTAs meet", cluster_kernels.rounds, out(128, 32, dtype=F32))

# ---- the fixed twins of the catalogue
TOPICS = accumulators, arrays, barriers, clusters, proxies, slots, stores, whole
for name, entry in ((name, entry) for name, entry in ENTRIES.items() if not entry.machine):
    RUNS[f"{name}, fixed"] = lambda seed, entry=entry: entry.run(True, seed)
