"""Functions shared by kernels use the axes, options and rings of the calling kernel, whichever
kernel is compiled first.

A shared function is the same object in both kernels, and Numba remembers what it compiled for an
object. What was compiled for the first kernel must never serve the second, whose axis "m" is
another dimension of the grid: it would run and give wrong results.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams, cdiv, ds
from tests.kernels.kernels_for_tests import operands

TM, TN, TK = 128, 64, 64


@pytest.fixture(autouse=True)
def _each_execution_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@numpipe.function
def rows_of_this_cta():
    return numpipe.axis_index("m") * TM


@numpipe.function
def place():
    """Return the CTA's place on the grid, directly and through another function."""
    return rows_of_this_cta(), numpipe.axis_index("n") * TN


@numpipe.function
def product(a, b):
    """Return this warpgroup's share of the CTA's tile, with a pipeline in the calling kernel."""
    rows = TM // numpipe.axis_size("wg")
    wg = numpipe.axis_index("wg")
    m, n = numpipe.axis_index("m"), numpipe.axis_index("n")
    acc = numpipe.zeros((rows, TN), np.float32)
    pipe = numpipe.pipeline(
        grid=(cdiv(a.shape[1], TK),),
        max_concurrent_steps=3,
        in_specs=(BlockSpec((TM, TK), lambda k: (m, k)), BlockSpec((TN, TK), lambda k: (n, k))),
    )
    for (k,), (x, y) in pipe(a, b):
        acc = numpipe.wgmma(acc, x.at[ds(wg * rows, rows), :], y.T)
    return acc


OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("m", "n"): {
        "num_compute_wgs": 1,
        "compiler_params": CompilerParams(delay_release=0),
        "memory_registers": 40,
    },
    ("n", "m"): {
        "num_compute_wgs": 2,
        "compiler_params": CompilerParams(delay_release=1),
        "memory_registers": 56,
    },
}


def output(a: Any, b: Any) -> ArrayType:
    return ArrayType((a.shape[0], b.shape[0]), np.float32)


def with_functions(names: tuple[str, str]) -> Any:
    """Return a GEMM made of `numpipe.function`s, for a grid with dimensions `names`."""

    @numpipe.kernel(
        out_type=output,
        grid_names=names,
        grid=lambda a, b: tuple(
            {"m": cdiv(a.shape[0], TM), "n": cdiv(b.shape[0], TN)}[name] for name in names
        ),
        **OPTIONS[names],
    )
    def gemm(a, b, c):
        acc = product(a, b)
        row, column = place()
        c[
            ds(
                row + numpipe.axis_index("wg") * (TM // numpipe.axis_size("wg")),
                TM // numpipe.axis_size("wg"),
            ),
            ds(column, TN),
        ] = acc

    return gemm


def with_nested_functions(names: tuple[str, str]) -> Any:
    """Return the same GEMM made of nested functions and lambdas.

    Every kernel of this factory has its own functions, which share a code object.
    """

    @numpipe.kernel(
        out_type=output,
        grid_names=names,
        grid=lambda a, b: tuple(
            {"m": cdiv(a.shape[0], TM), "n": cdiv(b.shape[0], TN)}[name] for name in names
        ),
        **OPTIONS[names],
    )
    def gemm(a, b, c):
        share = TM // numpipe.axis_size("wg")
        here = lambda: (numpipe.axis_index("m"), numpipe.axis_index("n"))

        def multiply():
            wg = numpipe.axis_index("wg")
            m, n = here()
            acc = numpipe.zeros((share, TN), np.float32)
            pipe = numpipe.pipeline(
                grid=(cdiv(a.shape[1], TK),),
                max_concurrent_steps=3,
                in_specs=(
                    BlockSpec((TM, TK), lambda k: (m, k)),
                    BlockSpec((TN, TK), lambda k: (n, k)),
                ),
            )
            for (k,), (x, y) in pipe(a, b):
                acc = numpipe.wgmma(acc, x.at[ds(wg * share, share), :], y.T)
            return acc

        acc = multiply()
        m, n = here()
        c[ds(m * TM + numpipe.axis_index("wg") * share, share), ds(n * TN, TN)] = acc

    return gemm


FACTORIES = {"functions": with_functions, "nested functions": with_nested_functions}
every_factory = pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
every_order = pytest.mark.parametrize(
    "order",
    [
        pytest.param([("m", "n"), ("n", "m")], id="m n first"),
        pytest.param([("n", "m"), ("m", "n")], id="n m first", marks=pytest.mark.soak),
    ],
)
A, B = operands(256, 192, 128)


@every_factory
@every_order
def test_each_kernel_computes_with_its_own_axes(factory: Any, order: list[tuple[str, str]]) -> None:
    expected = A.astype(np.float32) @ B.astype(np.float32).T
    for names in order:
        for seed in (None, 1):
            assert np.array_equal(factory(names).simulate(A, B, seed=seed), expected), names


@every_order
def test_each_kernel_reads_its_own_dimension_of_the_grid(order: list[tuple[str, str]]) -> None:
    """Only "m" is used, through two functions; the other dimension must not be read at all."""

    def kernel(names: tuple[str, str]) -> Any:
        @numpipe.kernel(grid=(2, 3), grid_names=names)
        def rows_only(c):
            c[ds(rows_of_this_cta(), 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

        return rows_only

    for names in order:
        ptx = kernel(names).inspect("ptx", ArrayType((256, 64), np.float32))
        assert set(re.findall(r"%ctaid\.(\w)", ptx)) == {"xy"[names.index("m")]}


@pytest.mark.thorough
@every_factory
@every_order
def test_each_kernel_has_its_own_options_in_the_helpers(
    factory: Any, order: list[tuple[str, str]]
) -> None:
    for names in order:
        built = factory(names).compiled(A, B)
        ptx, options = built.ptx, OPTIONS[names]
        wgs, delay = options["num_compute_wgs"], options["compiler_params"].delay_release
        (plan,) = built.unit.rings.values()
        assert plan.delay == delay
        assert {int(n) for n in re.findall(r"setmaxnreg\.dec\.sync\.aligned\.u32 (\d+)", ptx)} == {
            options["memory_registers"]
        }
        assert int(re.findall(r"\.maxntid (\d+)", ptx)[0]) == 128 * (1 + wgs)
        assert f"wgmma.wait_group.sync.aligned {delay};" in ptx
        assert len(re.findall(r"wgmma\.mma_async", ptx)) == 128 // wgs // 64 * (TK // 16)
        constants = dict(re.findall(r"mov\.[ub]32\s+(%r\d+), (\d+);", ptx))
        arrivals = [
            constants[register]
            for register in re.findall(r"mbarrier\.init\S* \[%r\d+\], (%r\d+);", ptx)
        ]
        assert arrivals == ["1"] * 3 + [str(4 * wgs)] * 3  # ready, consumed


@pytest.mark.thorough
@every_order
def test_a_helper_in_the_body_form_has_its_own_axes(order: list[tuple[str, str]]) -> None:
    def kernel(names: tuple[str, str]) -> Any:
        wgs = 1 + names.index("m")

        @numpipe.kernel(
            out_type=output,
            grid_names=names,
            grid=lambda a, b: tuple(
                {"m": cdiv(a.shape[0], TM), "n": cdiv(b.shape[0], TN)}[name] for name in names
            ),
        )
        def emitted(a, b, c):
            share = TM // numpipe.axis_size("wg")
            wg = numpipe.axis_index("wg")
            m, n = numpipe.axis_index("m"), numpipe.axis_index("n")

            def step(indices, x, y, acc):
                return numpipe.wgmma(acc, x.at[ds(wg * share, share), :], y.T)

            def compute(pipeline):
                acc = pipeline(numpipe.zeros((share, TN), np.float32))
                row, column = place()
                c[ds(row + wg * share, share), ds(column, TN)] = acc

            numpipe.emit_pipeline_warp_specialized(
                step,
                grid=(cdiv(a.shape[1], TK),),
                compute_context=compute,
                num_compute_wgs=wgs,
                in_specs=(
                    BlockSpec((TM, TK), lambda k: (m, k)),
                    BlockSpec((TN, TK), lambda k: (n, k)),
                ),
            )(a, b)

        return emitted

    expected = A.astype(np.float32) @ B.astype(np.float32).T
    for names in order:
        made = kernel(names)
        assert np.array_equal(made.simulate(A, B), expected), names
        assert made.compiled(A, B).image.threads == 128 * (2 + names.index("m"))
