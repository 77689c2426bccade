"""Arguments of the primitives, one at a time: each changes the result, the compiled code, or the
simulator's reports."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import (
    SMEM,
    ArrayType,
    Barrier,
    BlockSpec,
    CompilerParams,
    PipelineDeadlock,
    PipelineRace,
    RefUnion,
    SwizzleTransform,
    cdiv,
    ds,
)
from tests.kernels.primitive_kernels import copied, roles_by_hand

SEEDS = (None, *range(12))
HALF = ArrayType((8, 8), np.float16)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


# ---- copies
@numpipe.kernel(grid=3)
def chosen(x, y):
    """Load ones in CTA i if i > 0, over zeros, and store them if i < 2."""
    i = numpipe.program_id(0)
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float32), Barrier()))
    tile[...] = numpipe.zeros((64, 64), np.float32)
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed, predicate=i > 0)
    numpipe.barrier_wait(landed)
    numpipe.copy_smem_to_gmem(tile, y.at[i, ds(0, 64), ds(0, 64)], predicate=i < 2)


def test_a_predicate_chooses_which_copies_are_made_and_a_load_arrives_all_the_same(
    runs: Any,
) -> None:
    for run in runs:
        y = 7 * ones(3, 64, 64)
        run(chosen, ones(64, 64), y)
        assert [set(part.flat) for part in y] == [{0}, {1}, {7}]


@numpipe.kernel(grid=1, num_compute_wgs=1)
def arrives_if(x, y, expected):
    """Copy a block; the second barrier needs an arrival of which `expected` decides."""
    tile, landed, met = numpipe.scratch((SMEM((64, 64), np.float32), Barrier(), Barrier()))
    numpipe.async_prefetch(x.at[ds(0, 64), ds(0, 64)], predicate=expected == 1)
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    numpipe.barrier_arrive(met, predicate=expected == 1)
    numpipe.barrier_wait(met)
    y[:, :] = tile[...]


def test_a_predicate_of_an_arrival_or_a_prefetch_is_a_branch_around_it(runs: Any) -> None:
    for run in runs:
        y = 7 * ones(64, 64)
        run(arrives_if, ones(64, 64), y, 1)
        assert set(y.flat) == {1}
    with pytest.raises(PipelineDeadlock, match="met"):
        arrives_if.simulate(ones(64, 64), ones(64, 64), 0)


@numpipe.kernel(grid=1, num_compute_wgs=1)
def read_through_an_alias(x, y, *, waits: numpipe.Static):
    """Read one member of a union while a copy into the other may still be on its way."""
    (one, other), landed = numpipe.scratch(
        (RefUnion(SMEM((64, 64), np.float32), SMEM((64, 64), np.float32)), Barrier())
    )
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], one, landed)
    if waits:
        numpipe.barrier_wait(landed)
    y[:, :] = other[...]
    if not waits:
        numpipe.barrier_wait(landed)


def test_members_of_a_union_are_the_same_bytes_to_the_detector_of_races() -> None:
    y = ones(64, 64)
    read_through_an_alias.simulate(2 * ones(64, 64), y, waits=True)
    assert set(y.flat) == {2}
    for seed in SEEDS:
        with pytest.raises(PipelineRace, match="landed"):
            read_through_an_alias.simulate(ones(64, 64), y, waits=False, seed=seed)


def once_more(commit_group: bool, wait_read_only: bool = True) -> Any:
    @numpipe.kernel(grid=1)
    def rewritten(y):
        """Store a tile of ones, then overwrite it."""
        tile = numpipe.scratch(SMEM((64, 64), np.float32))
        tile[...] = numpipe.zeros((64, 64), np.float32) + 1.0
        numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(0, 64)], commit_group=commit_group)
        numpipe.wait_smem_to_gmem(0, wait_read_only=wait_read_only)
        tile[...] = numpipe.zeros((64, 64), np.float32)

    return rewritten


def test_a_group_that_is_left_open_is_not_waited_for() -> None:
    for seed in SEEDS[:4]:
        y = np.zeros((64, 64), np.float32)
        once_more(True).simulate(y, seed=seed)
        assert (y == 1).all()
        with pytest.raises(
            PipelineRace,
            match=r"(?s)while TMA store \(y\).*wait_smem_to_gmem\(0, wait_read_only=True\) after",
        ):
            once_more(False).simulate(y, seed=seed)


def there_and_back(wait_read_only: bool) -> Any:
    @numpipe.kernel(grid=1)
    def loaded_again(y, z):
        """Copy y to z as soon as y has been stored."""
        tile, landed = numpipe.scratch((SMEM((64, 64), np.float32), Barrier()))
        tile[...] = numpipe.zeros((64, 64), np.float32) + 1.0
        numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(0, 64)])
        numpipe.wait_smem_to_gmem(0, wait_read_only=wait_read_only)
        numpipe.copy_gmem_to_smem(y.at[ds(0, 64), ds(0, 64)], tile, landed)
        numpipe.barrier_wait(landed)
        numpipe.copy_smem_to_gmem(tile, z.at[ds(0, 64), ds(0, 64)])

    return loaded_again


def test_a_store_that_has_been_read_is_not_yet_there() -> None:
    for seed in SEEDS:
        zeros, z = np.zeros((2, 64, 64), np.float32)
        there_and_back(False).simulate(zeros, z, seed=seed)
        assert (z == 1).all()
        with pytest.raises(
            PipelineRace,
            match=r"TMA load \(y\) reads the array at y\[0:64, 0:32\] while TMA store \(y\)",
        ):
            there_and_back(True).simulate(zeros, z, seed=seed)
    array = ArrayType((8, 8), np.float32)
    ptx = {read: once_more(True, read).inspect("ptx", array) for read in (True, False)}
    assert (
        "cp.async.bulk.wait_group.read 0;" in ptx[True]
        and "cp.async.bulk.wait_group.read 0;" not in ptx[False]
    )


def test_a_prefetch_is_one_instruction_a_box() -> None:
    assert (
        copied.inspect("ptx", HALF, HALF).count("cp.async.bulk.prefetch.tensor.2d.L2.global") == 1
    )


def test_the_transforms_of_an_allocation_are_those_of_its_copies() -> None:
    @numpipe.kernel(grid=1)
    def narrow(x, *, transforms: numpipe.Static):
        tile, landed = numpipe.scratch((SMEM((64, 64), np.float16, transforms), Barrier()))
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
        numpipe.barrier_wait(landed)

    for width in (32, 64, 128):
        (request,) = narrow.compiled(HALF, transforms=(SwizzleTransform(width),)).image.maps
        assert (request.box, request.swizzle) == ((64, width // 2), width)


# ---- automatic barriers
def around(unsafe: bool) -> Any:
    @numpipe.kernel(grid=1, compiler_params=CompilerParams(unsafe_no_auto_barriers=unsafe))
    def loads_and_stores(x, y):
        tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
        numpipe.barrier_wait(landed)
        numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(0, 64)])

    return loads_and_stores


def test_a_copy_begins_with_just_one_barrier_and_one_proxy_fence() -> None:
    safe, bare = (around(unsafe).inspect("ptx", HALF, HALF) for unsafe in (False, True))
    counts = [
        (len(re.findall(r"bar\.sync +%\w+, 128;", ptx)), ptx.count("fence.proxy.async"))
        for ptx in (safe, bare)
    ]
    assert (counts[0][0] - counts[1][0], counts[0][1] - counts[1][1]) == (2, 2), (
        "a load and a store"
    )


# ---- allocations and barriers
def scoped(collective_axes: Any) -> Any:
    @numpipe.kernel(grid=1, num_compute_wgs=2)
    def filled(y):
        wg = numpipe.axis_index("wg")

        def body(tile):
            tile[...] = numpipe.zeros((64, 64), np.float32) + wg
            numpipe.copy_smem_to_gmem(tile, y.at[wg, ds(0, 64), ds(0, 64)])

        numpipe.run_scoped(body, SMEM((64, 64), np.float32), collective_axes=collective_axes)

    return filled


def test_warpgroups_share_what_is_allocated_along_their_axis_and_nothing_else() -> None:
    for seed in SEEDS[:4]:
        y = -ones(2, 64, 64)
        scoped(None).simulate(y, seed=seed)
        assert [set(part.flat) for part in y] == [{0}, {1}]
        with pytest.raises(PipelineRace, match=r"write \(tile\[…\] = value\)"):
            scoped("wg").simulate(y, seed=seed)


@numpipe.kernel(grid=1, num_compute_wgs=2, warp_specialized=False)
def to_and_fro(x, y, rounds):
    """Take turns at a tile from two warpgroups, by barriers of two dimensions: y = 2 (x + 1),
    repeatedly."""
    wg = numpipe.axis_index("wg")
    tile, landed, turn = numpipe.scratch(
        (SMEM((64, 64), np.float32), Barrier(), Barrier(num_barriers=(2, 2)))
    )
    if wg == 0:
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
        numpipe.barrier_wait(landed)
        for _ in range(rounds):
            tile[...] = tile[...] + 1.0
            numpipe.barrier_arrive(turn.at[0, 1])
            numpipe.barrier_wait(turn.at[1, 0])
        numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(0, 64)])
    else:
        for _ in range(rounds):
            numpipe.barrier_wait(turn.at[0, 1])
            tile[...] = tile[...] * 2.0
            numpipe.commit_smem()
            numpipe.barrier_arrive(turn.at[1].at[0])


@pytest.mark.parametrize("rounds", [0, 1, 2, 9])
def test_barriers_of_two_dimensions_over_many_phases(rounds: int) -> None:
    expected = 3.0
    for _ in range(rounds):
        expected = 2 * (expected + 1)
    for seed in SEEDS[:5]:
        y = np.zeros((64, 64), np.float32)
        to_and_fro.simulate(3 * ones(64, 64), y, np.int32(rounds), seed=seed)
        assert (y == expected).all()


def test_registers_move_by_as_many_as_are_said() -> None:
    ptx = roles_by_hand.inspect("ptx", HALF, HALF)
    assert re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32 \d+", ptx) == [
        "setmaxnreg.dec.sync.aligned.u32 40",
        "setmaxnreg.inc.sync.aligned.u32 232",
    ]


@numpipe.kernel(grid=(2, 3, 4))
def numbered(y):
    x, z = numpipe.program_id(0), numpipe.program_id(2)
    place = (z * numpipe.num_programs(1) + numpipe.program_id(1)) * numpipe.num_programs(0) + x
    y[ds(64 * place, 64), ds(0, 8)] = numpipe.zeros((64, 8), np.float32) + place


def test_a_cta_knows_its_place_along_each_dimension_of_the_grid() -> None:
    y = -ones(64 * 24, 8)
    numbered.simulate(y)
    np.testing.assert_array_equal(y[:, 0], np.repeat(np.arange(24), 64))
    ptx = numbered.inspect("ptx", ArrayType((8, 8), np.float32))
    assert set(re.findall(r"%(n?ctaid\.[xyz])", ptx)) == {
        "ctaid.x",
        "ctaid.y",
        "ctaid.z",
        "nctaid.x",
        "nctaid.y",
    }


# ---- blocks
@numpipe.kernel
def whole(x, table, y, *, sides: numpipe.Static):
    """Compute y = x + table, whose one block is all of it."""
    for (i,), (x_tile, all_of_it) in numpipe.pipeline(
        grid=(cdiv(x.shape[0], 64),),
        in_specs=(BlockSpec((64, 32), lambda i: (i, 0)), BlockSpec(sides)),
    )(x, table):
        y[ds(i * 64, 64), ds(0, 32)] = x_tile[...] + all_of_it[...]


def test_a_block_with_the_sides_of_its_array_is_all_of_it_and_loaded_once() -> None:
    rng = np.random.default_rng(0)
    x, table = (rng.standard_normal((rows, 32)).astype(np.float32) for rows in (256, 64))
    for array, expected in (
        (table, np.tile(table, (4, 1))),
        (table[:40], np.tile(np.pad(table[:40], ((0, 24), (0, 0))), (4, 1))),
    ):
        y, trace = np.zeros_like(x), numpipe.Trace()
        whole.simulate(x, np.ascontiguousarray(array), y, sides=table.shape, trace=trace)
        np.testing.assert_array_equal(y, x + expected)
        assert [event.details["tensor"] for event in trace.of("issue")].count("table") == 1
