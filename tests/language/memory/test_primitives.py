"""Pipelines written by hand: results of the primitives, and reports of the simulator if one of them
is left out."""

from __future__ import annotations

import inspect
import itertools
import re
import textwrap
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numpipe
from numpipe import (
    ArrayType,
    PipelineDeadlock,
    PipelineRace,
    SimulationError,
    SwizzleTransform,
    planar_snake,
)
from numpipe.arch.dtypes import REDUCTIONS
from tests.kernels import primitive_kernels
from tests.kernels.covering import examples
from tests.kernels.primitive_kernels import (
    column_major,
    copied,
    moved,
    places,
    polled,
    product,
    reduced,
    roles_by_hand,
    shared_tiles,
    single_stream,
    squared,
    tall,
    united,
)

SEEDS = (None, *range(6))
HALF = ArrayType((8, 8), np.float16)


def matrices(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(m + n + k)
    a, b = (random.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    return a, b


# ---- results
@pytest.mark.variants(1, thorough=4)
@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize(
    "kernel", [single_stream, shared_tiles, roles_by_hand], ids=lambda kernel: kernel.name
)
def test_a_product_by_hand(kernel: Any, slots: int) -> None:
    for m, n, k in ((128, 64, 64), (256, 128, 320), (100, 72, 200)):
        a, b = matrices(m, n, k)
        for seed in SEEDS[:3]:
            c = kernel.simulate(a, b, slots=slots, seed=seed)
            np.testing.assert_allclose(c, product(a, b), rtol=1e-3, atol=1e-4)


@pytest.mark.variants(2)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64, np.uint8])
def test_tiles_are_copied_through_slots_of_each_warpgroup(
    dtype: type, runs: Any, target: str
) -> None:
    x = (
        np.random.default_rng(1)
        .integers(0, 100, {"sim": (300, 400), "gpu": (1300, 1424)}[target])
        .astype(dtype)
    )
    for run in runs:
        y = np.zeros_like(x)
        run(copied, x, y)
        np.testing.assert_array_equal(y, x)


def test_register_tiles_go_out_through_slots(runs: Any, target: str) -> None:
    x = (
        np.random.default_rng(7)
        .standard_normal({"sim": (200, 100), "gpu": (2000, 1300)}[target])
        .astype(np.float32)
    )
    for run in runs:
        y = np.zeros_like(x)
        run(squared, x, y)
        np.testing.assert_array_equal(y, x * x)


COMBINED: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda old, new: np.where(old >= new, 0, old + 1),
    "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - 1),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_copies_that_reduce(name: str) -> None:
    random, combine = np.random.default_rng(2), COMBINED[name]
    for dtype in REDUCTIONS[name]:
        x, y = (
            random.integers(0, 7, (130, 32)).astype(
                ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
            )
            for _ in range(2)
        )
        expected = combine(combine(y, x), x).astype(x.dtype)  # two CTAs
        reduced(name).simulate(x, y, seed=3)
        np.testing.assert_array_equal(y, expected, err_msg=dtype)


def test_a_test_of_a_barrier_steers_a_loop(runs: Any) -> None:
    x = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float16)
    for run in runs:
        y = np.zeros((2, 64, 64), np.float16)
        run(polled, x, y)
        np.testing.assert_array_equal(y, [x, x])


def test_members_of_a_union_are_the_same_bytes(target: str) -> None:
    x = np.random.default_rng(4).standard_normal((128, 64)).astype(np.float16)
    y = np.zeros_like(x)
    united(x, y, target=target)
    np.testing.assert_array_equal(y, x)


def test_tall_tiles_views_of_slots_and_arrays_of_three_dimensions(target: str) -> None:
    x = np.random.default_rng(5).standard_normal((2, 320, 64)).astype(np.float32)
    y = np.zeros((320, 2, 32), np.float32)
    tall(x, y, target=target)
    np.testing.assert_array_equal(y[:, 0], x[1, :, 32:])
    np.testing.assert_array_equal(y[:160, 1], x[1, 160:, 32:])


def test_a_column_major_source(target: str) -> None:
    x = np.asfortranarray(np.random.default_rng(6).standard_normal((128, 32)).astype(np.float16))
    y = np.zeros((32, 64), np.float16)
    column_major(x, y, target=target)
    np.testing.assert_array_equal(y, x[64:].T)


def test_nd_loop_walks_a_grid_of_any_rank_once_and_the_snake_a_plane(target: str) -> None:
    visits = np.zeros((8 + 8 * 48, 48), np.float32)
    visits[:8, :16] = 1
    places(visits, *map(np.int32, (3, 2, 2, 4)), target=target)
    np.testing.assert_array_equal(visits[8:, 16:32], 1)
    np.testing.assert_array_equal(visits[: 8 * 6, 32:], 1)


@given(
    st.tuples(st.integers(1, 12), st.integers(1, 12)), st.sampled_from([0, 1]), st.integers(1, 14)
)
def test_the_snake_is_a_bijection_whose_steps_are_short(
    shape: tuple[int, int], minor_dim: int, width: int
) -> None:
    order = [
        tuple(map(int, planar_snake(lin, shape, minor_dim, width)))
        for lin in range(shape[0] * shape[1])
    ]
    assert sorted(order) == [(i, j) for i in range(shape[0]) for j in range(shape[1])]
    strips = [place[minor_dim] // width for place in order]
    assert strips == sorted(strips)
    along = [place[1 - minor_dim] for place in order]
    assert all(abs(a - b) <= 1 for a, b in itertools.pairwise(along))


def test_the_snake_of_its_documentation() -> None:
    order = [tuple(map(int, planar_snake(lin, (4, 5), 1, 2))) for lin in range(20)]
    drawn = np.array([[0, 1, 14, 15, 16], [2, 3, 12, 13, 17], [4, 5, 10, 11, 18], [6, 7, 8, 9, 19]])
    assert [int(drawn[place]) for place in order] == list(range(20))


DTYPES = [np.dtype(t) for t in (np.uint8, np.float16, ml_dtypes.bfloat16, np.int32, np.float64)]


@st.composite
def moves(draw: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """An array, and tiles to move it in."""
    dtype = draw(st.sampled_from(DTYPES))
    chunk = 16 // dtype.itemsize
    rows, columns = 8 * draw(st.integers(1, 40)), chunk * draw(st.integers(1, 12))
    spans = [span for span in (32, 64, 128) if columns * dtype.itemsize % span == 0]
    transforms = (
        (SwizzleTransform(draw(st.sampled_from(spans))),) if spans and draw(st.booleans()) else ()
    )
    shape = draw(st.integers(1, 700)), chunk * draw(st.integers(1, 3 * columns // chunk))
    values = np.random.default_rng(draw(st.integers(0, 9))).integers(0, 100, shape).astype(dtype)
    return values, {
        "rows": rows,
        "columns": columns,
        "transforms": transforms,
        "slots": draw(st.integers(1, min(3, 110_000 // (rows * columns * dtype.itemsize + 1024)))),
    }


@settings(max_examples=examples(40), deadline=None)
@given(moves(), st.sampled_from(SEEDS))
def test_tiles_of_any_size_move_an_array(
    move: tuple[np.ndarray, dict[str, Any]], seed: int | None
) -> None:
    values, statics = move
    result = np.zeros_like(values)
    moved.simulate(values, result, seed=seed, **statics)
    assert (result == values).all()


# ---- bugs
def broken(kernel: Any, tmp_path: Path, *edits: tuple[str, str]) -> Any:
    """Return a kernel without automatic barriers, with pieces of its source replaced."""
    source = textwrap.dedent(inspect.getsource(kernel.function))
    manual = "compiler_params=numpipe.CompilerParams(unsafe_no_auto_barriers=True)"
    for old, new in (("@numpipe.kernel(", f"@numpipe.kernel({manual}, "), *edits):
        assert source.count(old) == 1, f"{old!r} is not once in {kernel.name}"
        source = source.replace(old, new)
    file = tmp_path / f"{kernel.name}.py"
    file.write_text(source, encoding="utf8")
    scope = dict(vars(primitive_kernels))
    exec(compile(source, str(file), "exec"), scope)
    return scope[kernel.name]


WAIT = "numpipe.barrier_wait(landed.at[slot])"
BUGS = {
    "a slot is loaded again while another warp's product reads it": (
        single_stream,
        [("numpipe.commit_smem()", "pass")],
        PipelineRace,
        r"TMA load \(a\) fills .* while wgmma",
    ),
    "a slot is loaded again while the product may run": (
        single_stream,
        [
            (
                "numpipe.wgmma(acc, a_slots.at[slot], b_slots.at[slot].T), 0)",
                "numpipe.wgmma(acc, a_slots.at[slot], b_slots.at[slot].T), 1)",
            )
        ],
        PipelineRace,
        "while wgmma",
    ),
    "a tile is used before it has landed": (
        single_stream,
        [(WAIT, "pass")],
        PipelineRace,
        r"wgmma .* reads .* while TMA load",
    ),
    "a copy too few for a phase": (
        single_stream,
        [("num_arrivals=2", "num_arrivals=3")],
        PipelineDeadlock,
        r"4 of 12 arrivals missing",
    ),
    "a copy too many for a phase": (
        single_stream,
        [("num_arrivals=2", "num_arrivals=1")],
        SimulationError,
        "nothing orders this after the end of phase 0|3 arrivals on barrier.* but phase 0 has "
        "only 0 of 4 pending",
    ),
    "the other warpgroup may still read": (
        shared_tiles,
        [("numpipe.barrier_wait(free.at[slot])", "pass")],
        PipelineRace,
        "while wgmma|no warpgroup has waited|while TMA load",
    ),
    "nobody hands the slot back": (
        shared_tiles,
        [("numpipe.barrier_arrive(free.at[slot])", "pass")],
        PipelineDeadlock,
        "free|barrier",
    ),
    "a store reads before the tile has landed": (
        copied,
        [("numpipe.barrier_wait(landed)", "pass")],
        PipelineRace,
        r"TMA store \(y\) reads .* while TMA load",
    ),
    "a tile is loaded while a store may read it": (
        copied,
        [("numpipe.wait_smem_to_gmem(0, wait_read_only=True)", "pass")],
        PipelineRace,
        r"TMA load \(x\) fills .* while TMA store",
    ),
    "a store of what the TMA does not see": (
        squared,
        [("numpipe.commit_smem()", "pass")],
        PipelineRace,
        "the writing warps did not fence|no barrier orders",
    ),
    "a tile is written while a store may read it": (
        squared,
        [("numpipe.wait_smem_to_gmem(1, wait_read_only=True)", "pass")],
        PipelineRace,
        r"writes .* while TMA store \(y\)",
    ),
    "one group of stores too many may be on its way": (
        squared,
        [("to_gmem(1, wait_read", "to_gmem(2, wait_read")],
        PipelineRace,
        r"writes .* while TMA store \(y\)",
    ),
    "a role made by hand loads without waiting": (
        roles_by_hand,
        [("numpipe.barrier_wait(free.at[slot])", "pass")],
        SimulationError,
        "while wgmma|no warpgroup has waited|nothing orders|handed over twice",
    ),
    "nobody gives registers back": (
        roles_by_hand,
        [('numpipe.set_max_registers(40, "decrease")', "pass")],
        PipelineDeadlock,
        "registers",
    ),
    "a group is never closed": (
        united,
        [("numpipe.commit_smem_to_gmem_group()", "pass")],
        PipelineRace,
        "2 TMA stores not waited for.*not committed",
    ),
    "a phase that nobody waits for": (
        tall,
        [
            (
                "numpipe.barrier_wait(landed.at[0])",
                "numpipe.barrier_arrive(numpipe.scratch(Barrier()))",
            )
        ],
        SimulationError,
        "while TMA load|never waited for|no warpgroup has waited",
    ),
}


@pytest.mark.variants(16)
@pytest.mark.parametrize("bug", BUGS)
def test_the_simulator_finds(bug: str, tmp_path: Path) -> None:
    kernel, edits, kind, message = BUGS[bug]
    wrong = broken(kernel, tmp_path, *edits)
    a, b = matrices(256, 64, 320)
    args = {
        "copied": (a, np.zeros_like(a)),
        "united": (a, np.zeros_like(a)),
        "squared": (np.float32(a), np.zeros(a.shape, np.float32)),
        "tall": (np.zeros((2, 320, 64), np.float32), np.zeros((320, 2, 32), np.float32)),
    }.get(kernel.name, (a, b))
    for seed in SEEDS:
        with pytest.raises(kind) as caught:
            wrong.simulate(*args, seed=seed)
        assert re.search(message, str(caught.value), re.DOTALL), str(caught.value)


@pytest.mark.parametrize("kernel", [single_stream, squared], ids=lambda kernel: kernel.name)
def test_copies_are_ordered_after_accesses_of_their_own_warpgroup(
    kernel: Any, tmp_path: Path
) -> None:
    """Without `commit_smem` too, unless automatic barriers are off; with it, then too."""
    a, b = matrices(128, 64, 320)
    left_out = numpipe.kernel(
        broken(kernel, tmp_path, ("numpipe.commit_smem()", "pass")).function, **OPTIONS[kernel.name]
    )
    by_hand = broken(kernel, tmp_path)
    for right in (left_out, by_hand):
        for seed in SEEDS:
            if kernel is single_stream:
                np.testing.assert_allclose(
                    right.simulate(a, b, seed=seed), product(a, b), rtol=1e-3, atol=1e-4
                )
            else:
                x, y = np.float32(a), np.zeros(a.shape, np.float32)
                right.simulate(x, y, seed=seed)
                np.testing.assert_array_equal(y, x * x)


OPTIONS: dict[str, Any] = {
    "single_stream": {
        "grid": (1, 2),
        "out_type": primitive_kernels.product_type,
    },
    "squared": {"grid": 1, "num_compute_wgs": 2},
}


def test_automatic_barriers_are_in_the_ptx() -> None:
    unsafe = numpipe.kernel(
        single_stream.function,
        compiler_params=numpipe.CompilerParams(unsafe_no_auto_barriers=True),
        **OPTIONS["single_stream"],
    )
    fences = [
        kernel.inspect("ptx", HALF, HALF).count("fence.proxy.async.shared::cta")
        for kernel in (single_stream, unsafe)
    ]
    assert fences[0] > fences[1] >= 1


@numpipe.kernel(grid=1, num_compute_wgs=2)
def unobserved(x):
    barrier = numpipe.scratch(numpipe.Barrier(num_arrivals=2))
    numpipe.barrier_arrive(barrier)


@numpipe.kernel(grid=1, num_compute_wgs=2)
def begun(x):
    barrier = numpipe.scratch(numpipe.Barrier(num_arrivals=3))
    numpipe.barrier_arrive(barrier)


@numpipe.kernel(grid=1)
def twice(x):
    barrier = numpipe.scratch(numpipe.Barrier())
    numpipe.barrier_arrive(barrier)
    numpipe.barrier_arrive(barrier)


@pytest.mark.parametrize(
    "kernel, message",
    [
        (
            unobserved,
            r"the CTA ends, but no warpgroup has waited for phase 0 of barrier @ "
            r"test_primitives\.py:\d+",
        ),
        (begun, r"the CTA ends in the middle of phase 0 of barrier @ .*: 4 of 12 arrivals missing"),
        (
            twice,
            r"arrives on barrier @ .* in phase 1, but nothing orders this after the end of phase 0",
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_contract_of_barriers(kernel: Any, message: str) -> None:
    for seed in SEEDS:
        with pytest.raises(PipelineRace, match=message):
            kernel.simulate(np.zeros((8, 8), np.float32), seed=seed)


# ---- compiled
@pytest.mark.variants(1, thorough=3)
@pytest.mark.parametrize(
    "kernel, args",
    [
        (single_stream, (HALF, HALF)),
        (shared_tiles, (HALF, HALF)),
        (roles_by_hand, (HALF, HALF)),
        (copied, (HALF, HALF)),
        (squared, (ArrayType((8, 8), np.float32), ArrayType((8, 8), np.float32))),
        (polled, (HALF, ArrayType((2, 8, 8), np.float16))),
        (united, (HALF, HALF)),
        (tall, (ArrayType((2, 8, 8), np.float32), ArrayType((8, 2, 8), np.float32))),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_compiled_kernels_keep_registers(kernel: Any, args: Any) -> None:
    built = kernel.compiled(*args)
    assert built.image.resources.clean, built.image.resources


def test_reductions_compile_to_their_instruction() -> None:
    for name in ("add", "xor", "inc"):
        x = ArrayType((8, 32), np.uint32)
        assert f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{name}.bulk_group" in reduced(
            name
        ).inspect("ptx", x, x)


def test_a_store_by_a_copy_makes_an_output() -> None:
    x, frozen = np.ones((64, 64), np.float16), np.ones((64, 64), np.float16)
    frozen.flags.writeable = False
    copied.simulate(frozen, x)
    with pytest.raises(numpipe.SpecError, match="y"):
        copied.simulate(x, frozen)
