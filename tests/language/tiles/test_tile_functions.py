"""Functions of register tiles: NumPy's elements, means and indices, sums in the GPU's order, and
code that passes the build gate."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ds
from numpipe.core.op import BY_METHOD, BY_NUMPY, op
from numpipe.language.tiles import reduce
from numpipe.language.tiles.layout_names import COLUMN, EITHER, ROW
from numpipe.language.tiles.layouts import ACCUMULATOR, Form, places
from tests.kernels.compilers import compiles
from tests.kernels.covering import Rule, pairwise
from tests.kernels.tile_function_kernels import (
    EXACT,
    LIMITS,
    REDUCTIONS,
    RUNNING,
    SHAPES,
    TYPES,
    Case,
    arrays_of,
    arrays_of_exact,
    difference,
    drawn,
    every_exact,
    exactly,
    is_numpys,
    matched,
    of_numbers,
    of_vectors,
    reduction,
    running,
    running_of_vectors,
    same_bits,
    wanted_of_exact,
)


# ---- lookup of operations ---------------------------------------------------------------------
def test_an_operation_is_found_by_numpys_function_and_by_its_method() -> None:
    for name in ("sum", "mean", "max", "argmin"):
        assert BY_NUMPY[getattr(np, name)] is BY_METHOD[name]
    assert BY_NUMPY[np.clip].method == ""


def test_users_see_an_operation_without_its_hidden_parameters() -> None:
    shown = {
        name: str(inspect.signature(getattr(numpipe, name))).replace("'", "")
        for name in ("layout_cast", "wait_smem_to_gmem")
    }
    assert shown == {
        "layout_cast": "(tile: Any, layout: str) -> Tile",
        "wait_smem_to_gmem": "(n: int, wait_read_only: bool = False) -> None",
    }


def test_an_operation_outside_of_a_kernel_raises_an_error_that_says_so() -> None:
    @op(context=True)
    def sorted_tile(np_: Any, tile: Any) -> Any:
        raise AssertionError("not reached")

    with pytest.raises(
        RuntimeError,
        match="^numpipe.sorted_tile only works inside a kernel: call it from a @numpipe.kernel f",
    ):
        sorted_tile(np.zeros(3))


# ---- means and indices ---------------------------------------------------------------------------
@pytest.mark.variants(42)
@pytest.mark.parametrize("case", REDUCTIONS, ids=str)
def test_means_and_indices_are_numpys(case: Case, target: str, again: range) -> None:
    for seed in again:
        x, y = arrays_of(case, seed)
        matched(reduction(case), x, y, target=target)
        assert is_numpys(case, x, y)
    if case[0] in ("var", "std"):
        x *= x.dtype.type(2)  # they hardly depend on one element of many
    else:
        x[np.unravel_index(np.argmax(np.abs(x.astype(np.float64))), x.shape)] = 0
    # the comparison detects a single element
    assert case[0].startswith("arg") or not is_numpys(case, x, y)


def test_of_equal_elements_the_first_one_is_found_and_of_nan_too() -> None:
    x = np.zeros((128, 40), np.float32)
    x[3, [7, 9]], x[5, [30, 31]], x[6, [1, 39]] = 2, np.nan, -np.inf
    for name, wanted in (("argmax", [7, 30, 0]), ("argmin", [0, 30, 1])):
        y = np.zeros((2, 64), np.int32)
        reduction((name, "float32", (64, 40), 1)).simulate(x, y)
        assert y[0, [3, 5, 6]].tolist() == wanted


def test_vectors_have_means_and_indices_in_each_layout(target: str) -> None:
    x = drawn((64, 64), "float32", special=False)
    floats, ints = np.zeros((4, 64), np.float32), np.zeros((4, 64), np.int32)
    matched(of_vectors, x, floats, ints, target=target)
    vectors = x.sum(axis=0), x.sum(axis=1), x[0]
    for number, vector in enumerate(vectors):
        np.testing.assert_allclose(floats[number], vector.astype(np.float64).mean(), atol=1e-5)
        assert (ints[number] == vector.argmax() + 100 * vector.argmin()).all()
    assert (ints[3] == x.argmin(axis=1)).all()


def in_pairs(values: list[np.float32]) -> np.float32:
    while len(values) > 1:
        values = [
            values[i] + values[i + 1] if i + 1 < len(values) else values[i]
            for i in range(0, len(values), 2)
        ]
    return values[0]


def by_each_lane(value: np.ndarray, layout: str, axis: int | None) -> dict[Any, np.float32]:
    """Sum a tile as its lanes do: each its own elements in register order, then with each other."""
    grid = value.reshape(
        *((1, -1) if layout in (ROW, EITHER) else (-1, 1) if layout == COLUMN else value.shape)
    )
    shape, of = value.shape, ROW if layout == EITHER else layout
    own: dict[Any, dict[tuple[int, int, int], np.float32]] = {}
    for warp, quad, lane in np.ndindex(4, 8, 4):
        elements: dict[Any, list[np.float32]] = {}
        for r, c in places(shape, of):
            row = None if r is None else 16 * warp + quad + r
            column = None if c is None else 2 * lane + c
            key = None if axis is None else (r if axis else c)
            elements.setdefault(key, []).append(grid[row or 0, column or 0])
        for key, mine in elements.items():
            own.setdefault(key, {})[warp, quad, lane] = in_pairs(mine)
    found = {}
    for key, lanes in own.items():
        along_columns, along_rows = of != COLUMN and axis != 0, of != ROW and axis != 1

        def of_quad(
            warp: int, quad: int, lane: int, lanes: Any = lanes, along: bool = along_columns
        ) -> np.float32:
            return (
                in_pairs([lanes[warp, quad, t] for t in range(4)])
                if along
                else lanes[warp, quad, lane]
            )

        for warp, quad, lane in np.ndindex(4, 8, 4):
            place = None if axis is None else 16 * warp + quad + key if axis else 2 * lane + key
            if along_rows:
                found[place] = in_pairs(
                    [in_pairs([of_quad(w, g, lane) for g in range(8)]) for w in range(4)]
                )
            else:
                found[place] = of_quad(warp, quad, lane)
    return found


@pytest.mark.parametrize(
    "shape, layout, axis",
    [
        *(((64, 24), ACCUMULATOR, axis) for axis in (0, 1, None)),
        *(((192, 8), ACCUMULATOR, axis) for axis in (0, 1, None)),
        ((40,), ROW, None),
        ((192,), COLUMN, None),
        ((64,), EITHER, None),
    ],
)
def test_sums_match_those_of_the_lanes_to_the_last_bit(
    shape: tuple[int, ...], layout: str, axis: int | None
) -> None:
    value = (10.0 ** np.random.default_rng(3).uniform(-3, 3, shape)).astype(np.float32)
    found = np.atleast_1d(reduce._added(value, Form(shape, value.dtype, layout), axis))
    wanted = by_each_lane(value, layout, axis)
    assert found.tolist() == [
        wanted[place] for place in sorted(wanted, key=lambda place: place or 0)
    ]
    # NumPy's order is another one
    assert shape != (64, 24) or axis is None or (found != value.sum(axis=axis)).any()


# ---- running sums --------------------------------------------------------------------------------
@pytest.mark.parametrize("case", RUNNING, ids=str)
def test_running_sums_are_numpys(case: Case, target: str) -> None:
    _, dtype, (rows, columns), axis = case
    x = drawn((2 * rows, columns), dtype, special=False)
    y = np.zeros_like(x)
    matched(running(case), x, y, target=target)
    wanted = np.concatenate(
        [np.cumsum(half, axis=axis, dtype=np.float64) for half in (x[:rows], x[rows:])]
    )
    np.testing.assert_allclose(
        y, wanted, rtol=0, atol=0 if dtype == "int32" else 2e-6 * np.abs(x).sum(axis=axis).max()
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_infinities_and_nan_agree_with_numpy_and_a_zero_keeps_its_sign(
    axis: int,
) -> None:
    x = drawn((128, 64), "float32")
    x[0], x[:, 0] = -0.0, -0.0
    y = np.zeros_like(x)
    running(("cumsum", "float32", (64, 64), axis)).simulate(x, y)
    with np.errstate(invalid="ignore"):
        wanted = np.concatenate([np.cumsum(half, axis=axis) for half in (x[:64], x[64:])])
    assert np.isnan(wanted).any() and np.isinf(wanted).any()
    np.testing.assert_array_equal(
        np.where(np.isfinite(y), 0, y), np.where(np.isfinite(wanted), 0, wanted)
    )
    assert np.signbit(y[0]).all() if axis == 0 else np.signbit(y[:, 0]).all()


def running_by_each_lane(row: np.ndarray, axis: int) -> list[np.float32]:
    """Compute the running sums of one row, or of one column, as its lanes do."""

    def along(sums: list[np.float32]) -> list[np.float32]:
        for distance in (1, 2, 4)[: 2 if axis else 3]:
            sums = [
                value + sums[i - distance] if i >= distance else value
                for i, value in enumerate(sums)
            ]
        return sums

    found: list[np.float32] = []
    base = np.float32(-0.0)
    if axis:
        for first in range(0, len(row), 8):
            pairs = [row[first + 2 * t] + row[first + 2 * t + 1] for t in range(4)]
            sums = along(pairs)
            for t in range(4):
                one = row[first + 2 * t]
                before = base + sums[t - 1] if t else base
                found += [before + one, base + sums[t]]
            base = base + sums[-1]
        return found
    for first in range(0, len(row), 16):
        upper, lower = along(list(row[first : first + 8])), along(list(row[first + 8 : first + 16]))
        found += [base + value for value in upper] + [(base + upper[-1]) + value for value in lower]
        base = base + (upper[-1] + lower[-1])
    return found


@pytest.mark.parametrize("shape, axis", [((64, 40), 1), ((192, 8), 0)])
def test_running_sums_match_those_of_the_lanes_to_the_last_bit(
    shape: tuple[int, int], axis: int
) -> None:
    x = (10.0 ** np.random.default_rng(5).uniform(-3, 3, (2 * shape[0], shape[1]))).astype(
        np.float32
    )
    y = np.zeros_like(x)
    running(("cumsum", "float32", shape, axis)).simulate(x, y)
    lines = (x if axis else x[: shape[0]].T, y if axis else y[: shape[0]].T)
    for given, found in zip(*lines, strict=True):
        assert found.tolist() == running_by_each_lane(given, axis)
    # NumPy's order is another one
    assert (y[: shape[0]] != np.cumsum(x[: shape[0]], axis=axis)).any()


def test_vectors_have_running_sums_in_each_layout(target: str) -> None:
    x, y = drawn((192, 64), "float32", special=False), np.zeros((4, 192), np.float32)
    matched(running_of_vectors, x, y, target=target)
    wide, top = x.astype(np.float64), x.max(axis=0)
    for found, wanted in zip(
        y,
        (
            wide.sum(axis=1).cumsum(),
            wide.sum(axis=0).cumsum(),
            wide[0].cumsum(),
            top + top.cumsum(),
        ),
        strict=True,
    ):
        np.testing.assert_allclose(found[: len(wanted)], wanted, atol=2e-3)


def test_a_running_sum_that_int32_cannot_hold_is_an_error_simulated() -> None:
    x = np.full((128, 8), 1 << 29, np.int32)
    with pytest.raises(
        numpipe.SimulationError, match="'cumsum': an element 2147483648 overflows int32"
    ):
        running(("cumsum", "int32", (64, 8), 1)).simulate(x, np.zeros_like(x))


def test_barriers_order_the_exchange_of_a_running_sum_between_warps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case: Case = ("cumsum", "int32", (64, 40), 0)
    x = drawn((128, 40), "int32")
    monkeypatch.setattr(
        "numpipe.sim.warpgroup.Warpgroup.bar_sync", lambda self, barrier, threads: None
    )
    with pytest.raises(numpipe.SimulationError, match="cumsum of a register tile"):
        running(case).simulate(x, np.zeros_like(x))


# ---- element by element --------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", EXACT)
def test_exact_functions_give_numpys_bits(name: str, dtype: str, target: str) -> None:
    x, y = arrays_of_exact(name, dtype)
    exactly(name, dtype)(x, y, target=target)
    assert same_bits(y, wanted_of_exact(name, x))
    assert not same_bits(y, wanted_of_exact(name, x) + 1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_bits_differ_in_either_half_of_a_register(dtype: str, target: str) -> None:
    x = drawn((64, 128), dtype)
    z, y = x.copy(), np.zeros((64, 128), np.int32)
    bits = z.view(f"u{x.itemsize}")
    bits[::3, 1::5] ^= 1
    bits[1::4, ::7] ^= 1 << 8 * x.itemsize - 1  # also 0 and -0
    difference(x, z, y, target=target)
    of_row = x.view(bits.dtype) != bits[0]
    np.testing.assert_array_equal(y, (x.view(bits.dtype) != bits) + 2 * of_row)
    assert {0, 1, 2, 3} == set(y.ravel().tolist())


@pytest.mark.parametrize("dtype", TYPES)
def test_clipping_is_numpys_with_one_bound_and_two(dtype: str, target: str) -> None:
    for limits in LIMITS["int32" if dtype == "int32" else "float"]:
        x, y = arrays_of_exact("clip", dtype)
        exactly("clip", dtype, limits)(x, y, target=target)
        np.testing.assert_array_equal(
            y.astype(np.float32), wanted_of_exact("clip", x, limits).astype(np.float32)
        )


def test_numbers_are_computed_as_tiles_are(target: str) -> None:
    x, y = drawn((64, 64), "float32", special=False), np.zeros((64, 64), np.float32)
    of_numbers(x, y, np.float32(-1.5), np.int32(3), target=target)
    wanted = -2 - 10 - 100 + 2250 - 0.25 + 20 + 100 + 3000 + min(np.floor(x.max()), 2)
    assert (y == wanted).all()
    of_numbers(x, y, np.float32(0), np.int32(-3), target=target)
    assert (y == -30 - 100 - 3000 + 1 + min(np.floor(x.max()), 2)).all()


def test_a_square_that_int32_cannot_hold_is_an_error_simulated() -> None:
    x = np.full((64, 128), 1 << 16, np.int32)
    with pytest.raises(
        numpipe.SimulationError, match="'np.square': an element 4294967296 overflows int32"
    ):
        exactly("square", "int32").simulate(x, np.zeros_like(x))


# ---- compiled code ---------------------------------------------------------------------------
@pytest.mark.variants(0, thorough=2)
@compiles
@pytest.mark.parametrize("dtype", TYPES)
def test_exact_functions_compile_with_a_clean_gate(dtype: str) -> None:
    """All of them, one after the other in one kernel."""
    x, y = np.zeros((64, 64), TYPES[dtype]), np.zeros((7 * 64, 64), TYPES[dtype])
    arrays = x, y, np.zeros((64, 64), np.int32)
    kernel = every_exact(LIMITS["int32" if dtype == "int32" else "float"][0])
    assert not kernel.inspect("gate", *arrays)
    assert kernel.inspect("resources", *arrays).spill_bytes == 0
    if dtype == "float16":
        # of np.square: two elements per instruction
        assert kernel.inspect("ptx", *arrays).count("mul.rn.f16x2") == 16


@pytest.mark.variants(1, thorough=3)
@compiles
@pairwise(
    Rule(lambda dtype, shape: ("mean", dtype, shape, 0) in REDUCTIONS),
    name=("mean", "var", "argmax", "argmin"),
    dtype=tuple(TYPES),
    shape=(SHAPES[1], SHAPES[2]),
    axis=(0, 1, None),
)
def test_means_and_indices_compile_with_a_clean_gate(
    name: str, dtype: str, shape: tuple[int, int], axis: int | None
) -> None:
    case, (rows, columns) = (name, dtype, shape, axis), shape
    kernel, arrays = reduction(case), arrays_of(case)
    assert not kernel.inspect("gate", *arrays)
    assert kernel.inspect("resources", *arrays).spill_bytes == 0
    words = 1 if name == "mean" else 2  # of var: two sums
    each = {0: 3 * columns // 4, 1: 2 * rows // 32, None: 5}[axis]
    assert kernel.inspect("ptx", *arrays).count("shfl.sync.bfly.b32") == words * each


@pytest.mark.variants(0, thorough=2)
@compiles
@pairwise(dtype=("float32", "int32"), shape=SHAPES, axis=(0, 1))
def test_running_sums_compile_with_a_clean_gate(
    dtype: str, shape: tuple[int, int], axis: int
) -> None:
    rows, columns = shape
    x = np.zeros((2 * rows, columns), TYPES[dtype])
    kernel = running(("cumsum", dtype, shape, axis))
    assert not kernel.inspect("gate", x, x)
    assert kernel.inspect("resources", x, x).spill_bytes == 0
    assert kernel.inspect("ptx", x, x).count("shfl.sync.up") == 3 * rows * columns // 128 // (
        2 if axis else 1
    )


@compiles
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kernel", "args"),
    [
        (
            of_vectors,
            (
                np.zeros((64, 64), np.float32),
                np.zeros((4, 64), np.float32),
                np.zeros((4, 64), np.int32),
            ),
        ),
        (
            of_numbers,
            (
                np.zeros((64, 64), np.float32),
                np.zeros((64, 64), np.float32),
                np.float32(0),
                np.int32(0),
            ),
        ),
        (running_of_vectors, (np.zeros((192, 64), np.float32), np.zeros((4, 192), np.float32))),
    ],
    ids=["vectors", "numbers", "running"],
)
def test_functions_of_vectors_and_numbers_compile(kernel: Any, args: tuple[Any, ...]) -> None:
    assert not kernel.inspect("gate", *args)


def test_a_condition_that_an_index_decides_is_passed_by_by_the_memory_role() -> None:
    @numpipe.kernel
    def flipped(x, y):
        tile = x[ds(0, 64), ds(0, 64)]
        if tile.argmax() > 7:
            tile = -tile
        y[ds(0, 64), ds(0, 64)] = tile

    x, y = drawn((64, 64), "float32", special=False), np.zeros((64, 64), np.float32)
    x[0, 9], x[0, 3] = 100, -100
    flipped.simulate(x, y)
    assert (y == -x).all()
    flipped.simulate(-x, y)
    assert (y == -x).all()
