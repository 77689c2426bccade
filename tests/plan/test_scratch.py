"""Allocations: their addresses, sharing, limits, and use in functions and pipelines."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import (
    SMEM,
    ArrayType,
    Barrier,
    BlockSpec,
    ClusterBarrier,
    PipelineDeadlock,
    PipelineRace,
    RefUnion,
    SpecError,
    SwizzleTransform,
    ds,
)
from numpipe.kernels.variants import Variant
from numpipe.plan.allocations import parse

HALF = np.dtype(np.float16)
SEEDS = (None, *range(4))


def halves(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(HALF)


@pytest.mark.parametrize(
    "kind",
    [
        SMEM((64, 64), np.float16),
        SMEM((2, 3, 8, 16), np.int64),
        SMEM((64, 64), np.float16, (SwizzleTransform(32),)),
        Barrier(3, (2, 4)),
        Barrier(),
        ClusterBarrier(("x", "y"), (2, 4), 3),
        (SMEM((8, 16), np.uint8), (Barrier(), SMEM((8, 8), np.float32))),
        RefUnion(
            SMEM((64, 64), np.float32), (SMEM((64, 64), np.float16), SMEM((8, 8), np.float16))
        ),
    ],
    ids=str,
)
def test_a_type_survives_the_compiler(kind: Any) -> None:
    assert parse(repr(kind)) == kind


# ---- addresses
@numpipe.kernel(grid=1, num_compute_wgs=2)
def laid_out(x, y):
    def own(tile, barriers):
        pass

    numpipe.run_scoped(own, SMEM((3, 64, 32), np.float16), Barrier(num_barriers=(2, 2)))
    numpipe.run_scoped(own, SMEM((64, 64), np.float16), Barrier(), collective_axes="wg")
    numpipe.scratch(
        RefUnion(
            SMEM((64, 64), np.float32), (SMEM((64, 64), np.float16), SMEM((64, 64), np.float16))
        )
    )


@pytest.mark.parametrize("simulated", [False, True])
def test_allocations_do_not_overlap_in_both_executions(
    simulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = ArrayType((64, 64), np.float16)
    if simulated:
        units: list[Any] = []
        made = Variant.unit
        monkeypatch.setattr(
            Variant, "unit", lambda *args, **named: units.append(made(*args, **named)) or units[-1]
        )
        laid_out.simulate(np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16))
        unit = units[0]
    else:
        unit = laid_out.compiled(x, x).unit
    scratch = [part for part in unit.scratch.values()]
    spans = sorted((part.memory.base, part.memory.end) for part in scratch if part.memory.nbytes)
    assert all(low % 1024 == 0 and low >= 1024 for low, _ in spans)
    assert all(end <= low for (_, end), (low, _) in itertools.pairwise(spans))
    assert [part.memory.owners for part in scratch] == [2, 2, 0, 0, 0]
    assert sorted(part.memory.total for part in scratch) == [0, 0, 8192, 16384, 2 * 3 * 4096]
    addresses = [address for address, _, _ in unit.scratch_barriers()]
    assert len(set(addresses)) == len(addresses) == 2 * 4 + 1 and all(
        0 < a < 1024 and a % 8 == 0 for a in addresses
    )
    assert unit.smem_bytes == 1024 + 8192 + 16384 + 24576


def test_the_bytes_of_all_allocations_are_in_the_error() -> None:
    @numpipe.kernel(grid=1, num_compute_wgs=2)
    def large(x):
        numpipe.scratch(SMEM((4, 128, 64), np.float16))
        numpipe.run_scoped(lambda tile: 0, SMEM((6, 128, 64), np.float16))

    for run in (large.simulate, large.compiled):
        with pytest.raises(
            SpecError, match=r"263168 B, but a CTA has 232448 B.*RefUnion"
        ) as caught:
            run(np.zeros((8, 8), HALF))
        rows = [row.partition(" @ ")[0] for row in str(caught.value).splitlines() if " B  " in row]
        assert rows == [
            "    1024 B  barriers",
            "   65536 B  SMEM((4, 128, 64), float16)",
            "  196608 B  SMEM((6, 128, 64), float16)",
        ]


def test_barriers_have_a_limit_of_their_own() -> None:
    @numpipe.kernel(grid=1, num_compute_wgs=2)
    def many(x):
        numpipe.run_scoped(
            lambda a, b, c: 0,
            Barrier(num_barriers=32),
            Barrier(num_barriers=32),
            Barrier(num_barriers=(4, 4)),
        )

    for run in (many.simulate, many.compiled):
        with pytest.raises(
            SpecError,
            match=r"scratch at .*: the barriers of a CTA exceed the 1024 bytes that are available, "
            r"8 bytes each, by 32 barriers; fix: use fewer slots",
        ):
            run(np.zeros((8, 8), HALF))


# ---- functions
@numpipe.function
def copied_block(x, y, row):
    """Allocate in a function: each call gets the same tile and barrier."""
    tile, landed = numpipe.scratch((SMEM((64, 64), x.dtype), Barrier()))
    numpipe.wait_smem_to_gmem(0, wait_read_only=True)
    numpipe.copy_gmem_to_smem(x.at[ds(row, 64), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    numpipe.copy_smem_to_gmem(tile, y.at[ds(row, 64), ds(0, 64)])


@numpipe.kernel(grid=1)
def by_a_function(x, y):
    copied_block(x, y, 0)
    copied_block(x, y, 64)
    for row in range(128, 256, 64):
        copied_block(x, y, row)


def test_a_function_called_twice_has_the_same_allocation_and_goes_on_in_its_phases() -> None:
    x, y = halves(256, 64), np.zeros((256, 64), HALF)
    for seed in SEEDS:
        y[...] = 0
        by_a_function.simulate(x, y, seed=seed)
        np.testing.assert_array_equal(y, x)
    built = by_a_function.compiled(x, y)
    assert (
        built.image.smem_bytes == 1024 + 8192
        and len(built.unit.scratch) == 1
        and built.image.resources.clean
    )


@numpipe.function
def doubled_through(tile, block):
    tile[...] = block[...] * 2.0
    return tile[...]


@numpipe.kernel(grid=1, num_compute_wgs=2)
def with_a_pipeline(x, y):
    """Run a pipeline inside of a function passed to `run_scoped`: the memory role must get
    there."""
    wg = numpipe.axis_index("wg")

    def body(tile):
        total = numpipe.zeros((64, 64), np.float32)
        for _, (block,) in numpipe.pipeline(
            grid=(x.shape[0] // 128,), in_specs=(BlockSpec((128, 64), lambda k: (k, 0)),)
        )(x):
            total = total + doubled_through(tile, block.at[ds(wg * 64, 64), :])
        return total

    y[ds(wg * 64, 64), ds(0, 64)] = numpipe.run_scoped(body, SMEM((64, 64), np.float32))


def test_a_pipeline_in_a_scope() -> None:
    x, y = np.float32(halves(512, 64)), np.zeros((128, 64), np.float32)
    for seed in SEEDS:
        with_a_pipeline.simulate(x, y, seed=seed)
        np.testing.assert_allclose(y, 2 * x.reshape(4, 128, 64).sum(axis=0), rtol=1e-5, atol=1e-5)
    assert with_a_pipeline.compiled(x, y).image.resources.clean


@numpipe.kernel(grid=1)
def chosen(x, y, z):
    """Store through a name for a view, through a function, and to one of two arrays: all are
    outputs."""
    tile, landed = numpipe.scratch((SMEM((64, 64), x.dtype), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    place = y.at[ds(0, 64), ds(0, 64)]
    numpipe.copy_smem_to_gmem(tile, place)
    store_to(tile, z)


@numpipe.function
def store_to(tile, array):
    numpipe.copy_smem_to_gmem(dst=array.at[ds(0, 64), ds(0, 64)], src=tile)


def test_stores_by_copies_are_seen_through_names_and_functions() -> None:
    stored = {*chosen.definition.stores["all"]}
    assert "x" not in stored and {"y", "z"} < stored and chosen.definition.first_output == 1
    x, y, z = halves(64, 64), np.zeros((64, 64), HALF), np.zeros((64, 64), HALF)
    chosen.simulate(x, y, z)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(z, x)
    assert chosen.compiled(x, y, z).image.resources.clean


# ---- transforms and dimensions
@numpipe.kernel(grid=1)
def other_layouts(a, b, c):
    """Use operands of a product with narrower panels than the default."""
    slots, landed = numpipe.scratch(
        (SMEM((1, 2, 64, 64), np.float16, (SwizzleTransform(32),)), Barrier(1, (2, 1)))
    )
    numpipe.copy_gmem_to_smem(a.at[ds(0, 64), ds(0, 64)], slots.at[0, 0], landed.at[0, 0])
    numpipe.copy_gmem_to_smem(b.at[ds(0, 64), ds(0, 64)], slots.at[0, 1], landed.at[1].at[0])
    for i in range(2):
        numpipe.barrier_wait(landed.at[i, 0])
    acc = numpipe.wgmma_wait(
        numpipe.wgmma(numpipe.zeros((64, 64), np.float32), slots.at[0, 0], slots.at[0, 1].T), 0
    )
    c[ds(0, 64), ds(0, 64)] = acc


def test_transforms_of_slots_of_two_dimensions() -> None:
    a, b, c = halves(64, 64), halves(64, 64) * HALF.type(2), np.zeros((64, 64), np.float32)
    for seed in SEEDS:
        other_layouts.simulate(a, b, c, seed=seed)
        np.testing.assert_allclose(
            c, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-4, atol=1e-4
        )
    built = other_layouts.compiled(a, b, c)
    assert built.image.resources.clean and {
        request.swizzle for request in built.image.maps if not request.written
    } == {32}


# ---- errors
@numpipe.kernel(grid=1)
def overlapping(x, y):
    one, other = numpipe.scratch(RefUnion(SMEM((64, 64), x.dtype), SMEM((64, 64), x.dtype)))
    landed = numpipe.scratch(Barrier(num_barriers=2))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], one, landed.at[0])
    numpipe.barrier_wait(landed.at[0])
    numpipe.copy_smem_to_gmem(one, y.at[ds(0, 64), ds(0, 64)])
    numpipe.copy_gmem_to_smem(x.at[ds(64, 64), ds(0, 64)], other, landed.at[1])
    numpipe.barrier_wait(landed.at[1])


@numpipe.kernel(grid=1)
def never(x, y):
    barrier = numpipe.scratch(Barrier(num_arrivals=2))

    def compute(pipeline):
        numpipe.barrier_arrive(barrier)
        while not numpipe.barrier_test(barrier):
            pass
        pipeline(0)

    numpipe.emit_pipeline_warp_specialized(
        lambda i, tile, carry: carry,
        grid=(1,),
        compute_context=compute,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
    )(x)


@numpipe.kernel(grid=1, num_compute_wgs=2)
def missed(x, y):
    """Wait for both phases in warpgroup 0, and for the second one only in warpgroup 1."""
    barrier = numpipe.scratch(Barrier(num_arrivals=1))
    wg = numpipe.axis_index("wg")

    def body(tile, landed):
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
        numpipe.barrier_wait(landed)

    def compute(pipeline):
        if wg == 0:
            numpipe.barrier_arrive(barrier)
            numpipe.barrier_wait(barrier)
            numpipe.barrier_arrive(barrier)
            numpipe.barrier_wait(barrier)
        numpipe.run_scoped(body, SMEM((64, 64), x.dtype), Barrier())
        if wg == 1:
            numpipe.barrier_wait(barrier)
        pipeline(0)

    numpipe.emit_pipeline_warp_specialized(
        lambda i, tile, carry: carry,
        grid=(1,),
        compute_context=compute,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
    )(x)


@pytest.mark.parametrize(
    "kernel, kind, message",
    [
        (overlapping, PipelineRace, r"TMA load \(x\) fills .* while TMA store \(y\)"),
        (never, PipelineDeadlock, r"tests in a row failed while nothing else happened"),
        (
            missed,
            PipelineRace,
            r"waited for phase 0 of barrier @ .*, but the mbarrier has already reached phase 1",
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_simulator_finds(kernel: Any, kind: Any, message: str) -> None:
    x, y = halves(128, 64), np.zeros((128, 64), HALF)
    with pytest.raises(kind, match=message):
        kernel.simulate(x, y)
