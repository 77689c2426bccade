"""The body form and @numpipe.function on the GPU: the same bits as the loop form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, CompilerParams, cdiv, ds
from tests.kernels.emitted_kernels import KERNELS, Config, gemm_loop, product
from tests.language.pipeline.test_emit import (  # noqa: F401
    SHAPES,
    arrays,
    nested_kernel,
    paired,
    test_arrays_without_elements_are_zeros_and_written_nowhere,
)

emit = numpipe.emit_pipeline_warp_specialized
REPEATS = 10


@pytest.mark.parametrize("shape", [*SHAPES, (1000, 904, 520), (2048, 2048, 2048)], ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_both_forms_give_the_same_bits(kernel: Any, shape: tuple[int, int, int]) -> None:
    a, b = arrays(shape)
    expected = gemm_loop(a, b, target="gpu")
    np.testing.assert_allclose(
        expected.astype(np.float64), product(a, b), atol=2e-3 * max(1, shape[2]) ** 0.5, rtol=2e-3
    )
    for _ in range(REPEATS):
        assert (kernel(a, b, target="gpu") == expected).all()


def test_a_carry_of_tiles_and_numbers() -> None:
    for steps in (0, 1, 3, 7):
        a, b = arrays((64, 64, 128 * steps))
        c = np.full((64, 64), np.nan, np.float32)
        paired(a, b, c, target="gpu")
        np.testing.assert_allclose(c, product(a, b) + steps, atol=0.1, rtol=2e-3)


@pytest.mark.parametrize("form", ["loop", "body"])
def test_a_pipeline_in_a_body_is_filled_in_program_order(form: str) -> None:
    kernel = nested_kernel(form)
    for rows, depth in ((300, 200), (64, 64), (640, 1024), (64, 0), (0, 64)):
        a, b = arrays((rows, 64, depth))
        for _ in range(REPEATS):
            c = np.full((rows, 64), np.nan, np.float32)
            kernel(a, b, c, target="gpu")
            np.testing.assert_allclose(c, product(a, b), atol=0.2)


@pytest.mark.parametrize("slots, delay", [(1, 0), (2, 1), (3, 2), (4, 0), (4, 3)])
def test_slots_and_delays(slots: int, delay: int) -> None:
    @numpipe.kernel(num_compute_wgs=2, compiler_params=CompilerParams(delay_release=delay))
    def delayed(a, b, c):
        wg = numpipe.axis_index("wg")

        def body(indices, a_tile, b_tile, acc):
            return numpipe.wgmma(acc, a_tile.at[ds(wg * 64, 64), :], b_tile.T)

        def compute(pipeline):
            c[ds(wg * 64, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        emit(
            body,
            grid=(cdiv(a.shape[1], 64),),
            compute_context=compute,
            max_concurrent_steps=slots,
            in_specs=(
                BlockSpec((128, 64), lambda k: (0, k)),
                BlockSpec((64, 64), lambda k: (0, k)),
            ),
        )(a, b)

    for depth in range(0, 6 * 64 + 1, 32):
        a, b = arrays((128, 64, depth))
        for _ in range(REPEATS):
            c = np.full((128, 64), np.nan, np.float32)
            delayed(a, b, c, target="gpu")
            np.testing.assert_allclose(c, product(a, b), atol=0.05)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_functions_of_another_module(dtype: Any) -> None:
    from tests.kernels.other_module import add_bias, store_rows

    @numpipe.kernel(num_compute_wgs=2)
    def stores(a, c, n, *, cfg: numpipe.Static = Config()):
        store_rows(c, add_bias(numpipe.zeros((64, 64), np.float32), n, scale=2.0), cfg=cfg)

    c = np.full((128, 64), np.nan, dtype)
    stores(np.zeros((64, 64), np.float16), c, 5, target="gpu")
    assert (c == 10).all()
