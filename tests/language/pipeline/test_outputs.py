"""Outputs of pipelines on the simulated SM, and their compiled code."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, CompileError, SpecError
from numpipe.compile.build import toolchain
from numpipe.compile.lift.lift import read
from numpipe.compile.lift.stored_parameters import stored
from tests.kernels.compilers import compiles
from tests.kernels.kernels_for_tests import F16, F32
from tests.kernels.output_kernels import (
    CHECKS,
    Config,
    check_copy,
    check_in_tiles,
    check_nested,
    check_sums,
    copy,
    doubled,
    integers,
    sums,
)

emit = numpipe.emit_pipeline_warp_specialized


def simulated(seed: int | None = None) -> Any:
    return lambda kernel, *args, **statics: kernel.simulate(*args, seed=seed, **statics)


@pytest.mark.variants(15)
@pytest.mark.parametrize("name", CHECKS)
def test_the_contents_of_blocks_are_stored(name: str, runs: Any) -> None:
    for run in runs:
        CHECKS[name](run)


@pytest.mark.variants(9, thorough=20)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "name",
    [
        "copy, 1 slots",
        "copy, 2 slots",
        "copy, 3 slots",
        "sums",
        "sums, 1 slot",
        "in tiles",
        "in tiles, 1 slot",
        "nested",
        "one by one",
    ],
)
def test_in_any_schedule(name: str, seed: int) -> None:
    CHECKS[name](simulated(seed))


@pytest.mark.parametrize("shape", [(1, 8), (64, 64), (128, 1000), (1000, 64), (129, 72)], ids=str)
def test_blocks_are_clipped_at_the_edges(shape: tuple[int, int]) -> None:
    check_copy(simulated(), copy(), F16, shape)
    check_sums(simulated(), shape)
    check_in_tiles(simulated(), shape)


@pytest.mark.parametrize("shape", [(0, 64), (64, 0)], ids=str)
def test_a_loop_of_no_steps_stores_nothing(shape: tuple[int, int]) -> None:
    a, o = np.zeros(shape, F16), np.zeros(shape, F16)
    rows, total = np.full((shape[0], 64), 5, F32), np.full((128, 64), 5, F32)
    sums.simulate(a, rows, total, o)
    assert (rows == 5).all() and (total == 5).all()
    check_nested(simulated(), 64, 0)


def test_an_output_needs_no_other_mention_and_is_allocated() -> None:
    assert stored(read(doubled.function)) == {"o"}
    a = integers((200, 136))
    np.testing.assert_array_equal(doubled.simulate(a), 2 * a)


def test_rows_of_a_host_array_may_have_any_length() -> None:
    check_copy(simulated(), copy(), F16, (131, 77))


def test_the_counter_of_output_slots_runs_on() -> None:
    """Each tile has one block less than slots, so every tile begins in another slot."""
    check_in_tiles(simulated(), (1200, 192), 4)


# ---- what is rejected ------------------------------------------------------------------------
def test_the_budget_shows_output_slots() -> None:
    a = np.zeros((128, 64), F16)
    with pytest.raises(SpecError, match="246784 B, but a CTA has 232448 B") as caught:
        copy().simulate(a, a.copy(), cfg=Config(outs=12))
    rows = [
        row.partition(", pipeline")[0] for row in str(caught.value).splitlines() if " B  " in row
    ]
    assert rows == [
        "    1024 B  barriers",
        "   49152 B  in_specs[0] for 'a': 3 slots x 16384 B",
        "  196608 B  out_specs[0] for 'o': 12 output slots x 16384 B",
    ]


def test_an_array_that_the_source_does_not_show_as_an_output() -> None:
    @numpipe.kernel
    def hides(a, o):
        def body(indices, x, y):
            y[...] = x[...]

        both = (a, o)
        emit(
            body,
            grid=(1,),
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
            out_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        )(both[0], both[1])

    with pytest.raises(
        SpecError,
        match=r"out_specs\[0\] for 'o': the call treats 'o' as an input, because the kernel's "
        r"source does not show that it is an output",
    ):
        hides.simulate(np.zeros((64, 64), F16), np.zeros((64, 64), F16))


SPECS = (BlockSpec((64, 64), lambda k: (0, k)),)


class Pair(NamedTuple):
    one: Any
    other: Any


def by_a_name(a, o, p):
    specs = (BlockSpec((64, 64), lambda k: (0, k)),)
    pipe = numpipe.pipeline(grid=(1,), in_specs=specs, out_specs=specs)
    for _, (x, y) in pipe(a, o):
        y[...] = x[...]


def by_a_name_of_the_module(a, o, p):
    for _, (x, y) in numpipe.pipeline(grid=(1,), in_specs=SPECS, out_specs=SPECS)(a, o):
        y[...] = x[...]


def in_a_tuple(a, o, p):
    block = BlockSpec((64, 64), lambda k: (0, k))
    for _, (x, (y, z)) in numpipe.pipeline(
        grid=(1,), in_specs=(block,), out_specs=((block, block),)
    )(a, (o, p)):
        y[...] = x[...]


def in_a_named_tuple(a, o, p):
    block = BlockSpec((64, 64), lambda k: (0, k))
    for _, (x, both) in numpipe.pipeline(
        grid=(1,), in_specs=(block,), out_specs=(Pair(block, block),)
    )(a, Pair(o, other=p)):
        both.one[...] = x[...]


def by_several_names_at_once(a, o, p):
    there, begin = numpipe.peer(o, 1), 64
    other = again = p
    for _, (tile,) in numpipe.pipeline(
        grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),)
    )(a):
        numpipe.copy_smem_to_gmem(tile, there.at[begin : begin + 64, 0:64])
        again[...] = other[...] + tile[...]


def by_an_alias(a, o, p):
    target = o if a.shape[0] > 3 else p
    emitted = emit(lambda i, x, y: None, grid=(1,), in_specs=SPECS, out_specs=SPECS)
    emitted(a, target)


def behind_allocations(a, o, p):
    emit(lambda i, x, y: None, grid=(1,), in_specs=SPECS, out_specs=SPECS)(a, o, p)


def single_stream(a, o, p):
    numpipe.emit_pipeline(lambda i, x, y: None, grid=(1,), in_specs=SPECS, out_specs=SPECS)(a, o)


def no_outputs(a, o, p):
    emit(lambda i, x, y: None, grid=(1,), in_specs=(*SPECS, *SPECS))(a, o)


def unseen(a, o, p, specs):
    emit(lambda i, x, y: None, grid=(1,), in_specs=SPECS, out_specs=specs)(a, o)


@pytest.mark.parametrize(
    "function, names, surely",
    [
        (by_a_name, {"o"}, {"o"}),
        (by_a_name_of_the_module, {"o"}, {"o"}),
        (in_a_tuple, {"o", "p"}, {"o", "p"}),
        (in_a_named_tuple, {"o", "p"}, {"o", "p"}),
        (by_an_alias, {"o", "p"}, {"o", "p"}),
        (by_several_names_at_once, {"o", "p"}, {"o", "p"}),
        (behind_allocations, {"o"}, {"o"}),
        (single_stream, {"o"}, {"o"}),
        (no_outputs, set(), set()),
        (unseen, {"a", "o"}, set()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_outputs_are_seen_in_the_source(function: Any, names: set[str], surely: set[str]) -> None:
    arrays = {"a", "o", "p"}
    assert stored(read(function)) & arrays == names
    assert stored(read(function), surely=True) & arrays == surely


class Device:
    """An array on a GPU: rows of `columns` float16 that are `stride` bytes apart."""

    def __init__(self, columns: int, stride: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (128, columns),
            "typestr": "<f2",
            "data": (1 << 20, False),
            "strides": (stride, 2),
            "version": 3,
        }


@pytest.mark.variants(1)
@compiles
@pytest.mark.parametrize(
    "columns, stride, message",
    [
        (
            10,
            32,
            r"out_specs\[0\] for 'o': its rows are not a multiple of 16 B, and TMA writes whole "
            r"16-byte chunks, past their ends",
        ),
        (64, 130, r"out_specs\[0\] for 'o'.*16"),
    ],
)
def test_device_arrays_whose_rows_tma_cannot_write(columns: int, stride: int, message: str) -> None:
    half = np.zeros((128, 64), F16)
    assert copy().inspect("ptx", half, Device(64, 128))
    with pytest.raises(SpecError, match=message):
        copy().inspect("ptx", half, Device(columns, stride))


def test_allocations_of_as_many_rings_that_load_what_this_one_stores() -> None:
    @numpipe.kernel
    def other_way(a, o):
        def reads(indices, x, y):
            pass

        def writes(indices, x):
            x[...] = numpipe.zeros((64, 64), np.float32)

        block = BlockSpec((64, 64), lambda k: (0, k))
        shared = emit(reads, grid=(2,), in_specs=(block, block)).get_allocations(a, a)
        emit(writes, grid=(2,), out_specs=(block,))(o, allocations=shared)

    with pytest.raises(SpecError, match="have 0 output rings, but this pipeline has 1"):
        other_way.simulate(np.zeros((64, 128), F16), np.zeros((64, 128), F32))


def test_where_a_tile_is_stored_depends_on_no_warpgroup() -> None:
    @numpipe.kernel(num_compute_wgs=2)
    def by_warpgroup(o):
        wg = numpipe.axis_index("wg")
        pipe = numpipe.pipeline(grid=(1,), out_specs=(BlockSpec((64, 64), lambda k: (wg, k)),))
        for (_,), (y,) in pipe(o):
            y[...] = numpipe.zeros((64, 64), np.float32)

    for run in (
        (by_warpgroup.simulate, by_warpgroup.compiled)
        if toolchain() is None
        else (by_warpgroup.simulate,)
    ):
        with pytest.raises(CompileError, match="the warpgroup axis steers"):
            run(np.zeros((128, 64), F32))
