"""Vectors in either layout that control flow merges with vectors in a fixed one: they take that
layout, at no cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import CompileError, ds
from numpipe.language.tiles.layout_names import COLUMN, EITHER, ROW
from numpipe.language.tiles.layouts import Form
from numpipe.language.tiles.layouts import joined as joined_form
from tests.kernels.compilers import compiles
from tests.kernels.layout_kernels import (
    ROW_SUMS,
    arrays_of_joined,
    arrays_of_row_sums,
    joined,
    wanted_of_joined,
    wanted_of_row_sums,
)

VECTORS = {layout: Form((64,), np.dtype(np.float32), layout) for layout in (EITHER, ROW, COLUMN)}


@pytest.mark.parametrize("layout", VECTORS)
def test_a_vector_in_either_layout_becomes_the_other_in_both_orders(layout: str) -> None:
    assert (
        joined_form(VECTORS[EITHER], VECTORS[layout])
        == joined_form(VECTORS[layout], VECTORS[EITHER])
        == VECTORS[layout]
    )


def test_no_others_do() -> None:
    assert joined_form(VECTORS[ROW], VECTORS[COLUMN]) is None
    assert joined_form(VECTORS[EITHER], Form((128,), np.dtype(np.float32), ROW)) is None
    assert joined_form(VECTORS[EITHER], Form((64,), np.dtype(np.int32), ROW)) is None


# ---- a loop over tiles ---------------------------------------------------------------------------
@pytest.mark.parametrize("kernel", ROW_SUMS, ids=lambda kernel: kernel.name)
def test_sums_of_rows_begin_with_a_vector_of_zeros(kernel: Any, target: str, again: range) -> None:
    x, y, scale = arrays_of_row_sums()
    for _ in again:
        y[...] = 7
        kernel(x, y, scale, target=target)
        np.testing.assert_array_equal(y, wanted_of_row_sums(x, scale))


@compiles
@pytest.mark.variants(0, thorough=1)
@pytest.mark.parametrize("kernel", ROW_SUMS, ids=lambda kernel: kernel.name)
def test_their_code_moves_nothing_between_layouts(kernel: Any) -> None:
    arguments = arrays_of_row_sums()
    assert not kernel.inspect("gate", *arguments)
    resources = kernel.inspect("resources", *arguments)
    assert (
        resources.spill_bytes == 0
        and "layout_cast" not in str(resources)
        and "to column layout" not in str(resources)
    )
    code = kernel.inspect("sass", *arguments)
    # quads sum rows; nothing is stored in shared memory
    assert code.count("SHFL") > 0 and "STS" not in code


# ---- an `if`, a choice, a function, tuples, other types ------------------------------------------
@pytest.mark.parametrize("n", [0, 5])
def test_vectors_are_joined_wherever_control_flow_is(n: int, target: str, again: range) -> None:
    x, bias, n_, y = arrays_of_joined(n)
    for _ in again:
        y[...] = 7
        joined(x, bias, n_, y, target=target)
        np.testing.assert_array_equal(y, wanted_of_joined(x, bias, n))


@pytest.mark.thorough
@compiles
def test_they_compile() -> None:
    assert not joined.inspect("gate", *arrays_of_joined(5))


# ---- carries of a body -----------------------------------------------------------------------
def carried(first: str, then: str) -> Any:
    """Return a kernel whose body gets a vector in one layout, and returns one in another."""

    @numpipe.function
    def vector(layout):
        if layout == EITHER:
            return numpipe.full(64, 1.0, np.float32)
        return numpipe.layout_cast(numpipe.iota(64), layout).astype(np.float32)

    @numpipe.kernel
    def stepped(x, y):
        def body(indices, tile, carry):
            return vector(then)

        def compute(pipeline):
            y[ds(0, 64)] = pipeline(vector(first))

        numpipe.emit_pipeline_warp_specialized(
            body,
            grid=(3,),
            compute_context=compute,
            in_specs=(numpipe.BlockSpec((64, 64), lambda k: (0, k)),),
        )(x)

    return stepped


@pytest.mark.variants(1, thorough=3)
@pytest.mark.parametrize(
    "first, then", [(EITHER, ROW), (EITHER, COLUMN), (ROW, EITHER), (COLUMN, EITHER)]
)
@pytest.mark.parametrize("execution", ["simulate", pytest.param("compiled", marks=compiles)])
def test_a_carry_in_either_layout_takes_the_other(execution: str, first: str, then: str) -> None:
    x, y = np.zeros((64, 192), np.float16), np.zeros(64, np.float32)
    getattr(carried(first, then), execution)(x, y)
    if execution == "simulate":
        np.testing.assert_array_equal(y, np.ones(64) if then == EITHER else np.arange(64))


@pytest.mark.variants(1)
@pytest.mark.parametrize("first, then", [(ROW, COLUMN), (COLUMN, ROW)])
@pytest.mark.parametrize("execution", ["simulate", pytest.param("compiled", marks=compiles)])
def test_a_carry_keeps_a_layout_that_it_has(execution: str, first: str, then: str) -> None:
    x, y = np.zeros((64, 192), np.float16), np.zeros(64, np.float32)
    with pytest.raises(
        CompileError,
        match=rf"\({first} layout\) and returned tile \(64,\) float32 \({then} layout\): a carry "
        rf'keeps its layout too: cast one: numpipe\.layout_cast\(x, "{then}"\)',
    ):
        getattr(carried(first, then), execution)(x, y)
