"""numpipe.explain: its counts equal what the simulator moves, and its predictions agree with
measurements on an H200."""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import copy_pipeline
import gemm_single
import ml_dtypes
import numpy as np
import pytest
from batched_gemm import batched_matmul

import gemm
import gemm_body
import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams, SpecError, ds
from numpipe.bench import read
from numpipe.kernels.kernel import Kernel
from numpipe.model import H200
from numpipe.sim import work_count
from numpipe.sim.warpgroup import Warpgroup
from numpipe.tools.model import limits
from tests.kernels.lane_kernels import arrays_handed_out, column_sums, handed_out
from tests.kernels.primitive_kernels import copied
from tests.kernels.tiled_kernels import product, scaled

ROOT = Path(__file__).parents[3]
BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype(np.float16)
TWO_SMS = dataclasses.replace(H200, sms=2)  # as many CTAs as a simulated persistent grid has
explain = functools.partial(numpipe.explain, compiled=False)


def explained() -> Any:
    """Return the module examples/benchmarks/explained.py."""
    file = ROOT / "examples" / "benchmarks" / "explained.py"
    spec = importlib.util.spec_from_file_location("explained", file)
    assert spec is not None and spec.loader is not None
    sys.modules["explained"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CASES = explained().CASES


# ---- counts
def zeros(*shapes: tuple[int, ...], dtype: Any = F16) -> list[np.ndarray]:
    return [np.zeros(shape, dtype) for shape in shapes]


SMALL = gemm.Config(tm=128, tn=64, tk=64, slots=2)
CALLS: dict[str, tuple[Any, list[np.ndarray], dict[str, Any]]] = {
    "loop form": (gemm.matmul, zeros((384, 128), (128, 128)), {"cfg": SMALL}),
    "body form": (gemm_body.matmul, zeros((384, 128), (128, 128)), {"cfg": SMALL}),
    "single stream": (
        gemm_single.matmul,
        zeros((384, 128), (128, 128)),
        {"cfg": dataclasses.replace(gemm_single.Config(), tn=64)},
    ),
    "three dimensions": (batched_matmul, zeros((2, 128, 64), (2, 256, 64)), {}),
    "outputs": (copy_pipeline.copy, zeros((320, 512)), {}),
    "tiles": (
        product(True, ("parallel", "parallel", "sequential"), 1),
        zeros((128, 128), (128, 128)),
        {},
    ),
    "tiles without roles": (
        product(False, ("parallel", "parallel", "sequential"), 1),
        zeros((128, 128), (128, 128)),
        {},
    ),
    "primitives, the second CTA idle": (copied, zeros((128, 128), (128, 128)), {}),
    "lanes": (
        column_sums,
        [*zeros((64, 64), dtype=np.float32), *zeros((64, 64), dtype=np.float32)],
        {},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_counts_are_what_the_simulator_moves_and_multiplies(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, arrays, named = CALLS[name]
    moved: collections.Counter[Any] = collections.Counter()

    def watch(method: str, what: Any) -> None:
        plain = getattr(Warpgroup, method)

        def watched(self: Warpgroup, *args: Any, **options: Any) -> Any:
            what(*args)
            return plain(self, *args, **options)

        monkeypatch.setattr(Warpgroup, method, watched)

    watch("tma_load", lambda dst, tensor, *_: moved.update({("load", tensor.name): tensor.nbytes}))
    watch("tma_store", lambda tensor, *_: moved.update({("store", tensor.name): tensor.nbytes}))
    watch("wgmma", lambda _, mma: moved.update(flop=2 * 64 * 16 * mma.n * sum(map(len, mma.steps))))
    kernel.simulate(*arrays, **named)
    told = explain(kernel, *arrays, device=TWO_SMS, **named)
    assert told.flop == moved.pop("flop", 0)
    loads, stores = (
        {(kind, array): n for array, n in of.items()}
        for kind, of in (("load", told.loaded), ("store", told.stored))
    )
    assert loads | stores == moved


def test_blocks_that_reach_over_an_end_count_what_lies_inside() -> None:
    """200 x 136 x 72 in tiles of 128 x 64 x 64 has two by three tiles of two steps each.

    Rows of a are loaded for each of three columns of tiles, rows of b for each of two rows of
    tiles.
    """
    told = explain(gemm.matmul, ArrayType((200, 72), F16), ArrayType((136, 72), F16), cfg=SMALL)
    assert (told.tiles, told.steps) == (6, 12)
    assert told.loaded == {"a": 3 * 200 * 72 * 2, "b": 2 * 136 * 72 * 2}
    assert told.stored == {"c": 200 * 136 * 2}
    assert told.copied_bytes == 12 * (128 + 64) * 64 * 2
    assert told.flop == 6 * 2 * 128 * 64 * 128


def test_ctas_between_counted_ones_are_inferred_from_them() -> None:
    """1023 tiles on 132 SMs: 99 have 8 tiles, and 33 have 7.

    The last tile of each column of tiles is partial.
    """
    told = explain(
        gemm.matmul, ArrayType((33 * 128, 64), F16), ArrayType((31 * 64, 64), F16), cfg=SMALL
    )
    assert told.tiles == 1023
    assert told.stored == {"c": 33 * 128 * 31 * 64 * 2}


def test_a_host_table_is_read() -> None:
    @numpipe.kernel(grid=numpipe.persistent())
    def diagonal(a, table, c):
        for m, n in numpipe.tiles(table.shape[0], order=table):
            pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (m, n)),))
            for _, (tile,) in pipe(a):
                c[ds(m * 64, 64), ds(n * 64, 64)] = tile[...]

    # of 4 x 3 blocks: the last one is out of bounds
    table = np.array([[0, 0], [1, 1], [3, 3]], np.int32)
    told = explain(diagonal, ArrayType((256, 192), F16), table, ArrayType((256, 192), F16))
    assert told.loaded == {"a": 2 * 64 * 64 * 2}


@numpipe.kernel(
    grid=lambda a, lengths, c: (a.shape[0] // 64,), grid_names="m", warp_specialized=False
)
def of_lengths(a, lengths, c):
    m = numpipe.axis_index("m")
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(lengths[m],),
        max_concurrent_steps=2,
        in_specs=(BlockSpec((64, 64), lambda k: (m, k)), BlockSpec((64, 64), lambda k: (m, k))),
    )
    for _, (x, y) in pipe(a, a):
        acc = numpipe.wgmma(acc, x, y.T)
    c[ds(m * 64, 64), ds(0, 64)] = acc


def test_work_that_depends_on_data_is_counted_given_the_data_and_reported_as_such_without() -> None:
    a = ArrayType((256, 512), F16)
    lengths = np.array([1, 2, 3, 8], np.int32)
    c = ArrayType((256, 64), np.float32)
    told = explain(of_lengths, a, lengths, c)
    assert (
        told.flop == 2 * 64 * 64 * 64 * lengths.sum()
        and told.data == ()
        and told.given == ("lengths",)
    )
    assert re.search(
        r"work .*\n +depends on data, as given: lengths\n", str(told)
    ) and told.as_dict()["given"] == ["lengths"]
    blank = explain(of_lengths, a, ArrayType(lengths.shape, np.int32), c)
    assert blank.given == () and "as given" not in str(blank)
    assert blank.flop == 0 and blank.data == ("lengths",) and blank.as_dict()["data"] == ["lengths"]
    assert re.search(
        r"work +no products, .*\n +depends on data, zeros here: lengths; numbers of NumPy arrays "
        r"are read",
        str(blank),
    )


@pytest.mark.thorough
def test_ctas_that_data_steers_are_not_inferred_from_their_neighbors() -> None:
    """All CTAs have 4 steps except for a few, which the sampled CTAs may not include."""
    lengths = np.full(450, 4, np.int32)
    lengths[np.random.default_rng(0).choice(np.arange(1, 449), 20, replace=False)] = 0
    told = explain(
        of_lengths,
        ArrayType((28800, 512), F16),
        lengths,
        ArrayType((28800, 64), np.float32),
        compiled=False,
    )
    assert told.flop == 2 * 64 * 64 * 64 * lengths.sum()


@numpipe.kernel(grid=lambda a, pages, scale, c: (pages.shape[0],), grid_names="s")
def of_pages(a, pages, scale, c):
    s = numpipe.axis_index("s")
    acc = numpipe.zeros((64, 64), np.float32)
    for _, (tile,) in numpipe.pipeline(
        grid=(pages.shape[1],),
        max_concurrent_steps=2,
        in_specs=(BlockSpec((64, 64), lambda k: (pages[s, k], 0)),),
    )(a):
        acc += tile[...].astype(np.float32)
    c[ds(s * 64, 64), ds(0, 64)] = acc * scale[0]


@pytest.mark.thorough
def test_an_index_map_that_reads_an_array_depends_on_data_and_a_mere_factor_does_not() -> None:
    """All CTAs load the same pages, or each its own: the table decides what HBM transfers."""
    a = ArrayType((64 * 1024, 64), F16)
    c = ArrayType((64 * 256, 64), np.float32)
    scale = np.ones(1, np.float32)
    shared, own = (np.arange(1024).reshape(256, 4) % pages for pages in (4, 1024))
    few, many = (explain(of_pages, a, pages, scale, c, compiled=False) for pages in (shared, own))
    assert few.given == many.given == ("pages",) and few.data == ()
    assert few.loaded["a"] == many.loaded["a"] and many.l2_bytes > few.l2_bytes
    assert explain(
        of_pages, a, ArrayType((256, 4), np.int64), ArrayType((1,), np.float32), c, compiled=False
    ).data == ("pages",)


def test_a_table_without_data_that_may_not_be_zeros_is_refused_with_the_fix() -> None:
    @numpipe.kernel(grid=numpipe.persistent())
    def by_table(table, c):
        for m, n in numpipe.tiles(4, 3, order=table):
            c[ds(m * 64, 64), ds(n * 64, 64)] = numpipe.zeros((64, 64), np.float32)

    c = ArrayType((256, 192), np.float32)
    with pytest.raises(
        SpecError,
        match="kernel by_table: .*12 times(.*\n)+.*no data of table, which counts as zeros; "
        "fix: pass a",
    ):
        explain(by_table, ArrayType((12, 2), np.int32), c)
    told = explain(by_table, numpipe.orders.Row().table((4, 3)), c)
    assert (
        told.stored == {"c": 256 * 192 * 4}
        and told.given == ("table",)
        and "depends on data, as given: table\n" in str(told)
    )


def test_a_block_that_is_loaded_twice_in_a_step_comes_from_hbm_once() -> None:
    """From L2 it comes twice. The array does not fit there."""
    a, c = ArrayType((64 * 4000, 512), F16), ArrayType((64 * 4000, 64), np.float32)
    told = explain(of_lengths, a, np.full(4000, 8, np.int32), c)
    loaded, stored = 64 * 4000 * 512 * 2, 64 * 4000 * 64 * 4
    assert told.loaded["a"] == 2 * loaded
    assert told.hbm_bytes == pytest.approx(loaded + stored, rel=1e-3)
    assert told.l2_bytes == pytest.approx(2 * loaded + stored, rel=1e-3)


def test_a_kernel_prints_nothing_and_stops_nowhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[object] = []
    monkeypatch.setattr(sys, "breakpointhook", stops.append)

    @numpipe.kernel(grid=(1,), num_compute_wgs=2)
    def loud(c):
        numpipe.debug_print("here {}", 1)
        breakpoint()
        c[ds(numpipe.axis_index("wg") * 64, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    assert explain(loud, ArrayType((128, 64), np.float32)).stored == {"c": 128 * 64 * 4}
    assert capsys.readouterr().out == "" and not stops
    assert sys.breakpointhook == stops.append


def test_neighbours_share_what_they_load_at_a_time() -> None:
    """In groups of 16 rows of tiles, two neighboring SMs share a block of b and none of a.

    All SMs of a wave share 16 and 9 blocks.
    """
    told = explain(gemm.matmul, ArrayType((4096, 512), F16), ArrayType((4096, 512), F16))
    loads = told.loaded["a"] + told.loaded["b"] / 2
    assert told.l2_bytes == pytest.approx(loads + told.stored["c"], rel=0.01)
    # all inputs fit into L2, so they are read once
    assert told.hbm_bytes == 3 * 4096 * 512 * 2 + told.stored["c"] - 4096 * 512 * 2


# ---- shared memory, registers, waves
def test_registers_and_shared_memory_are_the_compiled_kernels() -> None:
    x = ArrayType((320, 512), F16)
    built = copy_pipeline.copy.compiled(x)
    told = numpipe.explain(copy_pipeline.copy, x, compiled=True)
    used = built.image.resources
    assert told.registers == numpipe.model.Registers(
        used.registers, used.memory_registers, used.compute_registers, 0, 0, True
    )
    assert told.smem_bytes == built.image.smem_bytes
    budgeted = explain(copy_pipeline.copy, x)
    assert budgeted.smem == told.smem and not budgeted.registers.compiled
    assert dataclasses.replace(budgeted.registers, compiled=True) == told.registers


def test_slots_and_the_rows_of_shared_memory_name_their_owner() -> None:
    told = explain(gemm.matmul, ArrayType((512, 256), F16), ArrayType((512, 256), F16))
    [ring] = told.slots
    assert (ring.slots, ring.slot_bytes, ring.fills) == (3, 49152, 8 * 4)
    assert [size for size, _ in told.smem] == [1024, 3 * 16384, 3 * 32768, 65536]
    assert "'b': 3 slots x 32768 B" in told.smem[2][1]


@pytest.mark.variants(1)
@pytest.mark.parametrize("depth, resident", [(64, 8), (192, 6)])
def test_as_many_ctas_share_an_sm_as_fit(depth: int, resident: int) -> None:
    """With four times an H200's registers, 8 CTAs of 128 threads fit with 255 registers per lane.

    With three slots, shared memory limits them to 6.
    """

    @numpipe.kernel(grid=lambda a: (a.shape[0] // 64,), grid_names="m", warp_specialized=False)
    def copied(a, c, *, depth: numpipe.Static = 64):
        m = numpipe.axis_index("m")
        pipe = numpipe.pipeline(
            grid=(a.shape[1] // 64,),
            max_concurrent_steps=depth // 64,
            in_specs=(BlockSpec((64, 64), lambda k: (m, k)),),
        )
        for (k,), (tile,) in pipe(a):
            c[ds(m * 64, 64), ds(k * 64, 64)] = tile[...]

    x = ArrayType((64 * 2000, 256), F16)
    told = explain(copied, x, x, depth=depth, device=dataclasses.replace(H200, registers=65536 * 4))
    smem = told.smem_bytes + 1024
    assert told.ctas_per_sm == min(H200.smem_bytes // smem, 65536 * 4 // (128 * 255)) == resident
    assert told.waves == pytest.approx(2000 / (132 * told.ctas_per_sm)) and not told.persistent


# ---- time
def measured() -> dict[Any, list[float]]:
    """Return seconds measured on an H200 by kernel, shape, configuration and clock, from
    docs/results."""
    found: dict[Any, list[float]] = {}
    for file in sorted((ROOT / "docs" / "results").glob("gemm_*h200*.json")):
        if file.name.startswith(("gemm_suite", "gemm_configs")):
            continue  # of examples/gemm_tuned.py
        result = read(file)
        for row in result.rows:
            shape = tuple(map(int, row.case["shape"].split(",")))
            config = row.case.get("config")
            clock = {"burst": "burst", "interleaved": "settled"}.get(row.protocol)
            for name, rate in ((row.name, row.rate), (row.reference, row.reference_rate)):
                if clock and name in ("numpipe", "chained", "drained", "loop form", "body form"):
                    key = (
                        name if name in ("drained", "body form") else "chained",
                        shape,
                        config,
                        clock,
                    )
                    found.setdefault(key, []).append(
                        2e-12 * np.prod([float(n) for n in shape]) / rate
                    )
    return found


DRAINED = Kernel(
    gemm.matmul.function,
    dataclasses.replace(gemm.matmul.options, compiler_params=CompilerParams(drain=True)),
)
KERNELS = {"chained": gemm.matmul, "drained": DRAINED}


SETTLED = {(4096, 4096, 4096)}
"""shapes whose times are compared at both clocks"""


@pytest.mark.variants(1, thorough=3)
@pytest.mark.parametrize(
    "key",
    [
        key
        for key in measured()
        if key[0] != "body form" and (key[3] == "burst" or key[1] in SETTLED)
    ],
    ids=str,
)
def test_the_predicted_time_of_a_product_is_the_measured_one(key: Any) -> None:
    name, shape, config, clock = key
    chosen = gemm.Config(*map(int, config.split(","))) if config else gemm.Config()
    m, n, k = shape
    told = explain(
        KERNELS[name], ArrayType((m, k), BF16), ArrayType((n, k), BF16), cfg=chosen, clock=clock
    )
    assert told.flop == 2 * -(-m // chosen.tm) * chosen.tm * -(-n // chosen.tn) * chosen.tn * k
    for seconds in measured()[key]:
        assert abs(told.predicted_seconds / seconds - 1) < 0.15, (told.predicted_seconds, seconds)
    assert told.limiter == "tensor cores" or name == "drained"


def test_the_must_shapes_were_measured() -> None:
    burst = {
        key[1] for key in measured() if key[0] == "chained" and key[2] is None and key[3] == "burst"
    }
    assert {(4096, 4096, 4096), (8192, 8192, 8192), (8192, 8192, 512)} <= burst


@pytest.mark.thorough
def test_the_predicted_time_of_a_copy_is_the_measured_one() -> None:
    [row] = [
        row
        for row in read(ROOT / "docs" / "results" / "bandwidth_h200_2026-11-21_1.json").rows
        if row.protocol == "burst" and row.case["dtype"] == "bf16"
    ]
    rows, columns = map(int, row.case["shape"].split(","))
    told = _slow("copy")
    assert told.loaded == {"a": 2 * rows * columns} and told.stored == {"o": 2 * rows * columns}
    assert told.hbm_bytes / told.predicted_seconds == pytest.approx(1e12 * row.rate, rel=0.15)


@functools.cache
def _slow(name: str) -> Any:
    return next(case for case in CASES if case.name == name).slow.explain(compiled=False)


@pytest.mark.variants(1, thorough=4)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_limiter_of_a_case_is_named(case: Any) -> None:
    told = _slow(case.name)
    assert told.limiter == case.limiter and told.advice.startswith(limits.ADVICE[case.limiter]), (
        str(told)
    )
    if case.fixed is None:
        return
    fixed = case.fixed.explain(compiled=False)
    assert fixed.limiter != case.limiter
    assert fixed.predicted_seconds / fixed.flop < told.predicted_seconds / told.flop / 1.15


def test_every_limiter_that_a_case_can_have_has_one() -> None:
    # test_explain_gpus.py
    assert {case.limiter for case in CASES} == limits.ADVICE.keys() - {
        "compute role",
        "launch",
        "link",
        "peer order",
    }


def rows_summed(grid: Any, slots: int = 3) -> Kernel:
    """Compute y[i] = sum(x[i, :]), 64 rows per CTA or tile."""

    @numpipe.kernel(grid=grid)
    def summed(x, y):
        for (m,) in numpipe.tiles(x.shape[0] // 64):
            acc = numpipe.zeros((64, 64), np.float32)
            pipe = numpipe.pipeline(
                grid=(x.shape[1] // 64,),
                max_concurrent_steps=slots,
                in_specs=(BlockSpec((64, 64), lambda k: (m, k)),),
            )
            for _, (tile,) in pipe(x):
                acc = acc + tile[...].astype(np.float32)
            y[ds(m * 64, 64)] = acc.sum(axis=1)

    return summed


A_TILE_A_CTA, PERSISTENT = (lambda x, y: (x.shape[0] // 64,)), numpipe.persistent()


def sums(kernel: Kernel, rows: int, columns: int) -> Any:
    return explain(kernel, ArrayType((rows, columns), F16), ArrayType((rows,), np.float32))


def test_many_short_ctas_are_limited_by_their_start_and_a_persistent_grid_fixes_it() -> None:
    short, fixed = (sums(rows_summed(grid), 64 * 1584, 64) for grid in (A_TILE_A_CTA, PERSISTENT))
    assert (
        short.waves == 12
        and short.limiter == "CTA start"
        and "numpipe.persistent()" in short.advice
    )
    assert (
        short.limits["memory bandwidth"] < 0.2 * short.predicted_seconds < short.limits["CTA start"]
    )
    saved = short.predicted_seconds - fixed.predicted_seconds
    assert (
        short.losses["CTA start"] == pytest.approx(saved, rel=0.1)
        and saved > 0.5 * short.predicted_seconds
    )
    assert fixed.losses["CTA start"] == 0 and "CTA start" in str(fixed)


@pytest.mark.parametrize("slots", [3, 4, 6])
def test_memory_bandwidth_is_named_where_it_takes_nearly_all_of_the_time(slots: int) -> None:
    told = sums(rows_summed(A_TILE_A_CTA, slots), 8192, 8192)
    share = told.limits["memory bandwidth"] / told.predicted_seconds
    assert (share > 0.9, told.limiter) == (
        (False, "slots") if slots == 3 else (True, "memory bandwidth")
    ), str(told)
    if slots > 3:
        assert str(told).endswith(
            f"\nlimited by memory bandwidth ({share:.0%} of the time): at the roofline of HBM: "
            "move fewer bytes; next launch (1.9 us): more work in one call"
        )


@pytest.mark.variants(0)
@pytest.mark.parametrize("slots, limiter", [(4, "slots"), (5, "compute role")])
def test_parts_that_hide_each_other_are_not_memory_bandwidth(slots: int, limiter: str) -> None:
    """Slots become free about as slowly as the compute role adds up their tiles.

    Removing either alone saves little.
    """

    @numpipe.kernel(grid=(132,), grid_names="m")
    def twice(x, y):  # all CTAs load the same blocks, so HBM transfers little
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(x.shape[1] // 64,),
            max_concurrent_steps=slots,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        )
        for _, (tile,) in pipe(x):
            acc = acc + tile[...].astype(np.float32)
            acc = acc + tile[...].astype(np.float32)
        y[ds(numpipe.axis_index("m") * 64, 64)] = acc.sum(axis=1)

    told = explain(twice, ArrayType((64, 65536), F16), ArrayType((132 * 64,), np.float32))
    assert max(told.losses.values()) < limits.LOSS * told.predicted_seconds, str(told)
    assert (
        told.limits["memory bandwidth"] < 0.1 * told.predicted_seconds and told.limiter == limiter
    ), str(told)


@pytest.mark.variants(1)
@pytest.mark.parametrize("grid, what", [(A_TILE_A_CTA, "CTAs"), (PERSISTENT, "tiles")])
def test_fewer_ctas_than_sms_are_to_divide_their_work(grid: Any, what: str) -> None:
    told = sums(rows_summed(grid), 1024, 65536)
    assert told.limiter == "wave tail" and told.sms == told.as_dict()["sms"] == 132
    assert (
        told.advice.startswith(f"16 {what} for 132 SMs: divide the work among more CTAs")
        and "atomic_add" in told.advice
    )


def test_of_a_kernel_without_products_the_table_has_no_rates_of_them() -> None:
    text = str(sums(rows_summed(PERSISTENT), 1024, 1024))
    assert "no products, " in text and "FLOP" not in text and "tensor cores" not in text


def test_a_small_product_is_a_launch() -> None:
    told = explain(
        gemm.matmul,
        ArrayType((64, 64), F16),
        ArrayType((64, 64), F16),
        device=dataclasses.replace(H200, sms=1),
    )
    assert told.limiter == "launch"


def test_more_slots_are_never_slower_and_nothing_saves_more_than_all() -> None:
    times = []
    for slots in (1, 2, 3):
        told = explain(
            gemm.matmul,
            ArrayType((2048, 512), F16),
            ArrayType((2048, 512), F16),
            cfg=gemm.Config(slots=slots),
        )
        times.append(told.predicted_seconds)
        assert all(0 <= loss < told.predicted_seconds for loss in told.losses.values())
        assert max(told.limits.values()) <= told.predicted_seconds
    assert times == sorted(times, reverse=True) and times[0] > times[2]


def test_the_longest_cta_determines_the_time() -> None:
    """133 tiles take as long as 264."""

    def seconds(tiles: int) -> float:
        return explain(
            gemm.matmul, ArrayType((128 * tiles, 1024), F16), ArrayType((256, 1024), F16)
        ).predicted_seconds

    assert seconds(132) < 0.65 * seconds(133) and seconds(133) == pytest.approx(
        seconds(264), rel=0.1
    )


# ---- measured times
def test_measured_seconds_are_shown_next_to_the_prediction() -> None:
    told = explain(
        gemm.matmul, ArrayType((512, 512), F16), ArrayType((512, 512), F16), measured=1e-4
    )
    assert told.measured is not None
    assert told.measured.tflops == pytest.approx(2 * 512**3 / 1e-4 * 1e-12)
    assert told.measured.over_predicted == pytest.approx(1e-4 / told.predicted_seconds)
    assert re.search(r"predicted .*TFLOPS.*\nmeasured +100\.0 us.* x predicted", str(told))


@pytest.mark.parametrize("seconds", [0.0, -1.0, True, "1 ms", float("nan")])
def test_a_bad_measurement_is_refused(seconds: Any) -> None:
    with pytest.raises(SpecError, match="explain: measured must be a finite number > 0"):
        explain(gemm.matmul, ArrayType((64, 64), F16), ArrayType((64, 64), F16), measured=seconds)


# ---- output as text and data
def test_all_figures_are_json_and_in_the_table() -> None:
    told = explain(gemm.matmul, ArrayType((512, 512), F16), ArrayType((512, 512), F16))
    data = told.as_dict()
    assert json.loads(json.dumps(data)) == data
    assert (
        data["limiter"] == told.limiter
        and data["slots"][0]["slots"] == 3
        and data["smem_bytes"] == told.smem_bytes
    )
    text = str(told)
    for part in (
        "kernel matmul on one H200 SXM",
        "268.4 MFLOP",
        "232 compute role",
        "3 slots x 16384 B",
        "limited by",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) <= 132


def test_the_page_shows_the_table() -> None:
    page = (ROOT / "docs" / "explain.md").read_text(encoding="utf8")
    shown = re.search(r"^    kernel matmul.*?^(?=Every figure)", page, re.MULTILINE | re.DOTALL)
    assert shown is not None
    x = ArrayType((4096, 1024), F16)
    told = [("    " + line).rstrip() for line in str(explain(gemm.matmul, x, x)).splitlines()]
    assert shown[0].replace("(compiled)", "(from the budget)").rstrip().splitlines() == told


# ---- what is rejected
@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: explain(len, 1), "kernel must be a kernel.*got <built-in function len>"),
        (
            lambda: explain(gemm.matmul, ArrayType((64, 64), F16), ArrayType((64, 128), F16)),
            "k = 64 .* was expected",
        ),
        (lambda: explain(gemm.matmul, ArrayType((64, 64), F16)), "out_type takes b"),
        (
            lambda: explain(gemm.matmul, *zeros((64, 64), (64, 64)), clock="fast"),
            "clock must be 'burst', 'settled' or a positive number",
        ),
        (
            lambda: explain(gemm.matmul, *zeros((64, 64), (64, 64)), clock=0),
            "clock must be 'burst'",
        ),
        (
            lambda: explain(scaled, ArrayType((0, 64), F16), alpha=1.0),
            "has no CTAs for these arguments",
        ),
    ],
)
def test_an_invalid_call_of_explain_is_refused(call: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call()


def test_a_mistake_in_a_kernel_is_reported_with_its_line() -> None:
    @numpipe.kernel(grid=(1,))
    def outside(a, c):
        pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0,)),))
        for _, (tile,) in pipe(a):
            c[ds(0, 64), ds(0, 64)] = tile[...]

    with pytest.raises(SpecError, match="index_map"):
        explain(outside, ArrayType((64, 64), F16), ArrayType((64, 64), F16))


def test_a_fixed_clock_is_taken_as_it_is() -> None:
    told = explain(gemm.matmul, ArrayType((512, 512), F16), ArrayType((512, 512), F16), clock=1000)
    assert told.clock_mhz == 1000
    assert (
        H200.tensor_clock
        < explain(gemm.matmul, ArrayType((512, 512), F16), ArrayType((512, 512), F16)).clock_mhz
        <= H200.clock
    )


def test_elements_that_lanes_load_store_and_add_to_are_counted() -> None:
    given = arrays_handed_out()
    told = explain(handed_out, *given.values(), compiled=False)
    assert told.stored == {"y": 2 * 24 * 64 * 4, "counts": 24 * 64 * 4, "last": 24 * 64 * 4}
    assert told.loaded == {"x": 24 * 64 * 4, "y": 24 * 64 * 4, "places": 3 * 24 * 64 * 4}


def test_a_lane_of_a_counted_body_has_numbers_of_its_types() -> None:
    lane = work_count.Lane(
        work_count.Counter(
            work_count.Work(), SimpleNamespace(cluster=(1, 1, 1)), 0, (0, 0, 0), (1, 1, 1)
        )
    )
    found = lane.load(0, np.dtype(np.float32), "x")
    assert type(found) is np.float32 and lane.shuffle("shfl_sync", 1, found, 0) is found
    assert lane.who.work["read", 0] == 128 * 4
