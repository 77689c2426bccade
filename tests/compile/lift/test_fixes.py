"""Fixes in errors of the AST pass and of both executions, applied: the kernel is rejected, and its
fixed twin runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import numpipe
from numpipe import BlockSpec, CompilerParams, LoweringSemantics, ds
from numpipe.errors import NumpipeError
from tests.kernels.compilers import compiles

A = np.arange(-2048, 2048, dtype=np.float32).reshape(64, 64) / 4
BY_LANE = CompilerParams(lowering_semantics=LoweringSemantics.Lane)
EXECUTIONS = ["simulated", pytest.param("compiled", marks=compiles)]


def run(kernel: Any, execution: str, *arrays: np.ndarray) -> None:
    (kernel.simulate if execution == "simulated" else kernel.compiled)(*arrays)


def of_a_tile(written: str) -> Any:
    """Return a kernel that stores an expression of the tile x, given as source text."""
    source = f"""
def stores(a, c):
    spec = numpipe.BlockSpec((64, 64), lambda i: (0, 0))
    for (i,), (t,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
        x = t[...]
        c[ds(0, 64), ds(0, 64)] = {written}
"""
    return numpipe.kernel(named_source(source, "stores"), grid=(1,))


def named_source(source: str, name: str) -> Any:
    import linecache

    filename = f"<fixes {abs(hash(source))}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"numpipe": numpipe, "np": np, "ds": ds}
    exec(compile(source, filename, "exec"), namespace)
    return namespace[name]


# ---- builtins for numbers, called on tiles
@pytest.mark.variants(1)
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(
    ("wrong", "builtin", "fix"), [("float(int(x))", "int", "x.astype(np.int32).astype(np.float32)")]
)
def test_the_error_for_a_builtin_on_a_tile_names_the_tile_function(
    wrong: str, builtin: str, fix: str, execution: str
) -> None:
    c = np.zeros((64, 64), np.float32)
    with pytest.raises(
        NumpipeError,
        match=rf"kernel stores: {builtin}\(…\) takes numbers, but one of its arguments is a "
        r"tile; fix: to convert the elements of a tile, write (np|x)\.",
    ) as caught:
        run(of_a_tile(wrong), execution, A, c)
    assert fix.partition("(")[0] in str(caught.value) and "steers" not in str(caught.value)
    run(of_a_tile(fix), execution, A, c)
    if execution == "simulated":
        np.testing.assert_array_equal(c, np.trunc(A))


# ---- indices of numba.cuda
@pytest.mark.variants(1)
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_the_error_for_an_index_of_numba_cuda_names_numpipes(execution: str) -> None:
    def stored(row: Any) -> Any:
        @numpipe.kernel(grid=(2,))
        def rows(a, c):
            for (i,), (t,) in numpipe.pipeline(
                grid=(1,), in_specs=(BlockSpec((64, 64), lambda i: (0, 0)),)
            )(a):
                c[ds(row() * 64, 64), ds(0, 64)] = t[...]

        return rows

    @numpipe.function
    def of_cuda():
        return cuda.blockIdx.x

    @numpipe.function
    def fixed():
        return numpipe.program_id(0)

    c = np.zeros((128, 64), np.float32)
    with pytest.raises(
        NumpipeError,
        match=r"kernel rows: cuda\.blockIdx\.x is not supported in a kernel: .*; here "
        r"numpipe\.program_id\(axis\) is the index of the CTA",
    ):
        run(stored(of_cuda), execution, A, c)
    run(stored(fixed), execution, A, c)
    assert execution == "compiled" or (c == np.concatenate([A, A])).all()


# ---- builders by a local name
@pytest.mark.variants(1)
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_outputs_of_builders_and_copies_with_a_local_name_are_seen(execution: str) -> None:
    @numpipe.kernel(grid=(1,))
    def renamed(a, c, total):
        emit = numpipe.emit_pipeline
        add = numpipe.atomic_add

        def body(indices, x, out):
            out[...] = x[...]

        emit(
            body,
            grid=(1,),
            in_specs=(BlockSpec((64, 64), lambda i: (0, 0)),),
            out_specs=(BlockSpec((64, 64), lambda i: (0, 0)),),
        )(a, c)
        for (i,), (t,) in numpipe.pipeline(
            grid=(1,), in_specs=(BlockSpec((64, 64), lambda i: (0, 0)),)
        )(a):
            add(total.at[ds(0, 64), ds(0, 64)], t[...])

    c, total = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    run(renamed, execution, A, c, total)
    assert execution == "compiled" or ((c == A).all() and (total == A).all())


# ---- the gate
@pytest.mark.thorough
@compiles
def test_a_kernel_whose_only_output_is_a_reduction_passes_the_gate() -> None:
    @numpipe.kernel(grid=(1,))
    def adds(a, c):
        for (i,), (t,) in numpipe.pipeline(
            grid=(1,), in_specs=(BlockSpec((64, 64), lambda i: (0, 0)),)
        )(a):
            numpipe.atomic_add(c.at[ds(0, 64), ds(0, 64)], t[...])

    assert adds.inspect("gate", A, A.copy()) == ()


# ---- per-lane code
def test_an_operation_of_the_warpgroup_in_code_for_lanes_is_shown_as_it_is_written() -> None:
    @numpipe.kernel(grid=(1,), compiler_params=BY_LANE)
    def reads(a, c):
        def body(indices, x):
            value = c[ds(0, 64), ds(0, 64)]  # noqa: F841

        numpipe.emit_pipeline_warp_specialized(
            body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda i: (0, 0)),)
        )(a)

    with pytest.raises(
        NumpipeError,
        match=r"kernel reads: `.*c\[ds\(0, 64\), ds\(0, 64\)\]` is an operation of the whole "
        "warpgroup, but this body runs in each lane",
    ) as caught:
        reads.simulate(A, A.copy())
    assert "gmem_read" not in str(caught.value)
