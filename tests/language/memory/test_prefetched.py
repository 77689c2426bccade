"""Integer arrays prefetched to shared memory: every role reads the array's values, after the one
copy of the CTA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import CompileError, PipelineRace, SpecError, ds
from tests.hazards.removal import places_of, without
from tests.kernels import steered_kernels
from tests.kernels.prefetched_kernels import KERNELS, TABLES, numbers

SEEDS = (None, 0, 1)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_steered_through_the_copy_as_by_the_array(name: str) -> None:
    for seed, dtype, size in ((None, np.int32, 1024), (0, np.int64, 7), (1, np.int32, 1)):
        a, table, counts, c = steered_kernels.arrays(np.random.default_rng(3), dtype)
        KERNELS[name].simulate(a, table, counts, c, size=size, seed=seed)
        np.testing.assert_array_equal(
            c, steered_kernels.wanted(name, a, table, counts, np.zeros_like(c))
        )


def test_verify_finds_nothing() -> None:
    given = steered_kernels.arrays(np.random.default_rng(4), np.int32)
    for name in ("walks", "tiles_of_each_warpgroup"):
        numpipe.verify(KERNELS[name], *given, schedules=4, size=9).raise_if_failed()


@pytest.mark.variants(1, thorough=3)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("name", KERNELS)
def test_the_copy_is_one_bulk_copy_and_reads_of_it_are_loads_from_shared_memory(
    name: str, dtype: Any
) -> None:
    given = [
        numpipe.ArrayType(array.shape, array.dtype)
        for array in steered_kernels.arrays(np.random.default_rng(0), dtype)
    ]
    kernel = KERNELS[name]
    assert kernel.inspect("gate", *given, size=16) == ()
    text = kernel.inspect("ptx", *given, size=16)
    assert text.count("cp.async.bulk.shared::cluster.global.mbarrier") == (
        2 if name in ("tiles_of_a_table", "walks") else 1
    )
    assert f"ld.shared.b{64 if dtype is np.int64 else 32}" in text


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_any_array_is_read_as_it_is(table: np.ndarray) -> None:
    y = np.full(table.shape, -1, table.dtype)
    numbers.simulate(table, y)
    np.testing.assert_array_equal(y, table)


def test_all_but_the_first_elements_are_read_from_the_array() -> None:
    trace, table = numpipe.Trace(), np.arange(24, dtype=np.int32).reshape(8, 3)
    numbers.simulate(table, np.zeros_like(table), trace=trace)
    read = [event for event in trace.of("read") if event.details["what"] == "load from table"]
    assert len(trace.of("load")) == 1 and len(read) == 12  # of 24 numbers, by two warpgroups


@pytest.mark.parametrize("name", KERNELS)
def test_without_its_wait_a_role_may_read_before_the_copy_has_landed(name: str) -> None:
    given = steered_kernels.arrays(np.random.default_rng(3), np.int32)

    def run(seed: int | None) -> None:
        KERNELS[name].simulate(*(array.copy() for array in given), size=16, seed=seed)

    places = [
        place
        for place in places_of(lambda: run(None))[0]
        if any("prefetched.begin" in call for call in place.calls)
    ]
    assert {place.operation for place in places} == {"mbar_wait"}
    for place in places:
        for seed in SEEDS:
            with without(place), pytest.raises(PipelineRace) as caught:
                run(seed)
            hazard = caught.value.report and caught.value.report.hazard
            # the copy may not even have been issued
            assert hazard in ("read-before-ready", "uninitialised-read")


def test_explain_takes_the_numbers_of_the_array() -> None:
    a, table, counts, c = steered_kernels.arrays(np.random.default_rng(3), np.int32)
    through, plain = (
        numpipe.explain(kernel, a, table, counts, c, **options)
        for kernel, options in (
            (KERNELS["tiles_of_a_table"], {"size": 16}),
            (steered_kernels.tiles_of_a_table, {"slots": 2, "delay": 0}),
        )
    )
    assert through.given == plain.given and (through.flop, through.steps, through.tiles) == (
        plain.flop,
        plain.steps,
        plain.tiles,
    )


def one(body: Any) -> numpipe.Kernel:
    made: numpipe.Kernel = numpipe.kernel(body, grid=1)
    return made


def test_a_bad_table_is_refused() -> None:
    def floats(x, y):
        y[0] = numpipe.prefetched(x)[0]

    def output(x, y):
        y[0] = numpipe.prefetched(y)[0]

    def tile(x, y):
        y[0] = numpipe.prefetched(x[ds(0, 64)])[0]

    def large(x, y):
        y[0] = numpipe.prefetched(x, size=1 << 20)[0]

    def block(x, y):
        y[ds(0, 64)] = numpipe.prefetched(x)[ds(0, 64)]

    def whole(x, y):
        if numpipe.prefetched(x):
            y[0] = 1

    x, y = np.zeros(64, np.int32), np.zeros(64, np.int32)
    for body, given, says in (
        (
            floats,
            x.astype(np.float32),
            r"prefetched\(table\): an element of array 'x' \(of float32: those of int32 and int64",
        ),
        (output, x, r"prefetched\(table\): an element of array 'y' \(an output of the call"),
        (tile, x, r"prefetched\(table\): table must be an array of the kernel, got "),
        (
            large,
            x,
            r"prefetched\(x\): size must be an int of 1…16384, got 1048576",
        ),
        (
            block,
            x,
            r"prefetched\(x\)\[…\] must be indexed by an integer for each of the array's 1 "
            r"dimension; fix: .*, x\[…\]",
        ),
        (whole, x, r"prefetched\(x\) has no value: its elements have, prefetched\(x\)\[i\]"),
    ):
        kernel = one(body)
        with pytest.raises((SpecError, CompileError), match=says):
            kernel.simulate(given, y)
        with pytest.raises((SpecError, CompileError), match=says):
            kernel.inspect(
                "ptx", *(numpipe.ArrayType(array.shape, array.dtype) for array in (given, y))
            )


def test_where_only_compute_warpgroups_come_nobody_would_issue_the_copy() -> None:
    @numpipe.kernel(grid=1)
    def hidden(x, table, y):
        def body(indices, tile):
            y[ds(0, 64), ds(0, 64)] = tile[...] + numpipe.prefetched(table)[0]

        numpipe.emit_pipeline_warp_specialized(
            body, grid=(1,), in_specs=(numpipe.BlockSpec((64, 64)),)
        )(x)

    x, table = np.zeros((64, 64), np.float32), np.zeros(64, np.int32)
    says = r"numpipe.prefetched at .*: only compute warpgroups come here, so nobody issues the copy"
    with pytest.raises(CompileError, match=says):
        hidden.simulate(x, table, x.copy())
    with pytest.raises(CompileError, match=says):
        hidden.inspect(
            "ptx", *(numpipe.ArrayType(array.shape, array.dtype) for array in (x, table, x))
        )
