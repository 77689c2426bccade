"""Scans, largest elements, floor division, builtins and stores of tiles: results against NumPy, and
code that passes the build gate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ds
from numpipe.compile.build import toolchain
from tests.kernels.covering import Rule, pairwise
from tests.kernels.scan_kernels import (
    FUNCTIONS,
    SHAPES,
    STORED,
    Shape,
    arrays_of_divided,
    arrays_of_largest,
    arrays_of_scan,
    arrays_of_stored,
    arrays_of_vectors,
    arrays_of_voted,
    divided,
    is_largest,
    is_scan,
    largest,
    of_builtins,
    of_number,
    scanned,
    scans_of_vectors,
    stored,
    stored_to_blocks,
    voted_along,
    wanted_of_builtins,
    wanted_of_divided,
    wanted_of_stored,
    wanted_of_vectors,
    wanted_of_voted,
)
from tests.kernels.tile_function_kernels import TYPES, drawn, matched, same_bits, same_values

SAME = {"sim": same_bits, "gpu": same_values}
compiles = pytest.mark.skipif(toolchain() is not None, reason="no compiler")


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


# ---- scans
@pytest.mark.variants(12)
@pairwise(
    Rule(lambda name, dtype: (name, dtype) != ("linear", "int32")),
    name=FUNCTIONS,
    dtype=("float32", "int32"),
    shape=SHAPES,
    axis=(0, 1),
)
def test_scans_are_numpys(name: str, dtype: str, shape: Shape, axis: int) -> None:
    x, y = arrays_of_scan(name, dtype, shape)
    scanned(name, shape, axis).simulate(x, y)
    assert is_scan(name, x, y, axis)
    y[1, 1] = -y[1, 1] + 3
    assert not is_scan(name, x, y, axis)


def test_a_function_that_does_not_commute_is_called_in_the_order_of_the_elements() -> None:
    @numpipe.kernel
    def last(x, y):
        tile = x[ds(0, 128), ds(0, 64)]
        y[ds(0, 128), ds(0, 64)] = numpipe.scan(lambda a, b: b, tile, axis=0)
        y[ds(0, 128), ds(64, 64)] = numpipe.scan(lambda a, b: a, tile, axis=1)

    x, y = drawn((128, 64), "float32", special=False), np.zeros((128, 128), np.float32)
    last.simulate(x, y)
    assert (y[:, :64] == x).all()
    assert (y[:, 64:] == x[:, :1]).all()


def test_vectors_are_scanned_in_each_layout(target: str) -> None:
    x, y = arrays_of_vectors()
    matched(scans_of_vectors, x, y, target=target)
    for found, wanted in zip(y, wanted_of_vectors(x), strict=True):
        np.testing.assert_allclose(found[: len(wanted)], wanted, rtol=1e-4)


def test_a_scan_reaches_functions_of_a_module_and_what_the_kernel_knows() -> None:
    @numpipe.function
    def clipped(a: Any, b: Any) -> Any:
        return np.minimum(a + b, 5.0)

    @numpipe.kernel
    def saturated(x, y, limit):
        tile = abs(x[ds(0, 64), ds(0, 64)])
        y[ds(0, 64), ds(0, 64)] = numpipe.scan(clipped, tile, axis=1)
        y[ds(0, 64), ds(64, 64)] = numpipe.scan(lambda a, b: np.minimum(a + b, limit), tile, axis=1)

    x, y = np.ones((64, 64), np.float32), np.zeros((64, 128), np.float32)
    saturated.simulate(x, y, np.float32(9))
    assert (y == np.concatenate([np.minimum(np.arange(1, 65), top) for top in (5, 9)])).all()


@pytest.mark.parametrize("name", ["maximum", "product"])
def test_barriers_order_the_exchange_between_warps(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = arrays_of_scan(name, "float32", (64, 40))
    monkeypatch.setattr(
        "numpipe.sim.warpgroup.Warpgroup.bar_sync", lambda self, barrier, threads: None
    )
    with pytest.raises(numpipe.SimulationError, match="of a register tile"):
        scanned(name, (64, 40), 0).simulate(x, y)


# ---- the largest elements
@pytest.mark.variants(8)
@pairwise(
    Rule(lambda k, shape: k <= shape[1]), k=(1, 2, 8, 13, 32), dtype=tuple(TYPES), shape=SHAPES
)
def test_the_largest_of_rows_are_those_of_a_sort(k: int, dtype: str, shape: Shape) -> None:
    x, values, indices = arrays_of_largest(k, dtype, shape)
    largest(k, shape).simulate(x, values, indices)
    assert is_largest(k, x, values, indices)
    indices[0, 0] += 1
    assert not is_largest(k, x, values, indices)


def test_as_many_columns_as_an_array_has_are_stored(target: str) -> None:
    x, values, indices = arrays_of_largest(2, "float32", (64, 40), 2)
    largest(2, (64, 40))(x, values, indices, target=target)
    assert is_largest(2, x, values, indices)


# ---- quotients, builtins, masks
@pytest.mark.parametrize("dtype", TYPES)
def test_quotients_and_remainders_are_numpys(dtype: str, target: str) -> None:
    x, z, y = arrays_of_divided(dtype)
    divided(x, z, y, target=target)
    assert same_bits(y, wanted_of_divided(x, z))


def test_float16_quotients_match_numpys_float16() -> None:
    x, z, y = arrays_of_divided("float16")
    divided.simulate(x, z, y)
    with np.errstate(all="ignore"):
        assert same_bits(y[:128], np.concatenate([x // z, x % z]))


def test_a_division_of_int32_by_zero_is_an_error_simulated() -> None:
    x, z, y = arrays_of_divided("int32")
    z[5, 5] = 0
    with pytest.raises(
        numpipe.SimulationError,
        match="integer division by zero in an integer tile // or %: the result is undefined",
    ):
        divided.simulate(x, z, y)
    z[5, 5], x[5, 5] = -1, -(2**31)
    with pytest.raises(
        numpipe.SimulationError, match="'//': an element 2147483648 overflows int32"
    ):
        divided.simulate(x, z, y)


@pytest.mark.parametrize("dtype", TYPES)
def test_builtins_of_tiles_are_element_by_element(dtype: str, target: str) -> None:
    x = drawn((64, 64), dtype)
    z = drawn((64, 64), dtype, seed=3)
    y = np.zeros((256, 64), TYPES[dtype])
    of_builtins(x, z, y, target=target)
    assert SAME[target](y, wanted_of_builtins(x, z))


def test_masks_are_reduced_along_an_axis(target: str) -> None:
    x, y = arrays_of_voted()
    matched(voted_along, x, y, target=target)
    assert (y == wanted_of_voted(x)).all()
    assert (wanted_of_voted(x)[:, ::2] != wanted_of_voted(-x)[:, ::2]).any()


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_numbers_have_the_sine_of_tiles(name: str) -> None:
    for value in (0.5, -0.0, 65537.25, 3e38, np.inf, np.nan):
        y = np.full((2, 64), 7, np.float32)
        of_number(name).simulate(np.full(64, value, np.float32), y, np.float32(value))
        with np.errstate(all="ignore"):
            wanted = getattr(np, name)(np.float64(np.float32(value))).astype(np.float32)
        assert same_bits(y, np.full((2, 64), wanted))


# ---- stores
@pytest.mark.parametrize("have, want", STORED)
def test_stores_convert_as_numpys_assignment(have: str, want: str, target: str) -> None:
    arrays = arrays_of_stored(have, want)
    stored(*arrays, target=target)
    for found, wanted in zip(arrays[1:], wanted_of_stored(arrays), strict=True):
        assert SAME[target](found, wanted)


@pytest.mark.parametrize("have, want", STORED[:4])
def test_blocks_of_a_pipeline_are_stored_in_their_arrays_type(
    have: str, want: str, target: str
) -> None:
    x = (np.arange(64 * 128).reshape(64, 128) % 251).astype(TYPES[have])
    y = np.zeros((64, 128), TYPES[want])
    stored_to_blocks(x, y, target=target)
    assert (y.astype(np.float32) == 2 * x.astype(np.float32)).all()


# ---- compiled code
@pytest.mark.variants(0, thorough=3)
@compiles
@pairwise(name=FUNCTIONS, dtype=("float32", "int32"), shape=SHAPES, axis=(0, 1))
def test_scans_compile_with_a_clean_gate(name: str, dtype: str, shape: Shape, axis: int) -> None:
    kernel, arrays = scanned(name, shape, axis), arrays_of_scan(name, dtype, shape)
    assert not kernel.inspect("gate", *arrays)
    assert kernel.inspect("resources", *arrays).spill_bytes == 0
    assert "VIMNMX3" not in kernel.inspect("sass", *arrays), (
        "numpipe.core.arith_cuda.chosen says what is wrong with it"
    )


@pytest.mark.variants(0, thorough=3)
@compiles
@pairwise(Rule(lambda k, shape: k <= shape[1]), k=(1, 13, 32), dtype=tuple(TYPES), shape=SHAPES)
def test_the_largest_of_rows_compile_with_a_clean_gate(k: int, dtype: str, shape: Shape) -> None:
    kernel, arrays = largest(k, shape), arrays_of_largest(k, dtype, shape)
    assert not kernel.inspect("gate", *arrays)
    assert kernel.inspect("resources", *arrays).spill_bytes == 0


@pytest.mark.variants(0, thorough=1)
@compiles
@pytest.mark.parametrize("dtype", ["int32", "bfloat16", "float16", "float32"])
def test_quotients_builtins_and_stores_compile_with_a_clean_gate(dtype: str) -> None:
    x, z, y = arrays_of_divided(dtype)
    kernels: list[tuple[Any, tuple[Any, ...]]] = [(divided, (x, z, y)), (of_builtins, (x, z, y))]
    if dtype == "int32":
        kernels += [(voted_along, arrays_of_voted()), (scans_of_vectors, arrays_of_vectors())]
    if dtype == "float32":
        kernels += [
            (
                of_number("tan"),
                (np.zeros(64, np.float32), np.zeros((2, 64), np.float32), np.float32(0)),
            )
        ]
    kernels += [(stored, arrays_of_stored(*types)) for types in STORED if types[0] == dtype]
    for kernel, arrays in kernels:
        assert not kernel.inspect("gate", *arrays)


@compiles
def test_a_store_that_converts_is_the_code_of_a_conversion() -> None:
    @numpipe.kernel
    def plain(x, y):
        y[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]

    @numpipe.kernel
    def asked(x, y):
        y[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)].astype(np.float16)

    arrays = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float16)
    code = [
        kernel.inspect("ptx", *arrays).partition("ld.param")[2].replace(kernel.name, "")
        for kernel in (plain, asked)
    ]
    assert code[0] == code[1]
    assert "cvt.rn.f16x2.f32" in code[0]
