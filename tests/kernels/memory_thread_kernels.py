"""Kernels whose memory role is any of the CTA's warpgroups, for the simulator and the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import BlockSpec, cdiv, ds

emit, emit_ws = numpipe.emit_pipeline, numpipe.emit_pipeline_warp_specialized


def kernel(index: int | None) -> Any:
    """Return a kernel with everything that depends on a warpgroup's number.

    That is its part of tiles, its stores, outputs, and rings of its own.
    """

    @numpipe.kernel(num_compute_wgs=2, grid=(2,), grid_names="m")
    def anywhere(a, b, c, d):
        wg, m = numpipe.axis_index("wg"), numpipe.axis_index("m")

        def inner(indices, y, acc):
            return numpipe.wgmma(acc, y, y.T)

        def body(indices, x, y, o, acc):
            acc = numpipe.wgmma_wait(numpipe.wgmma(acc, x.at[ds(wg * 64, 64), :], y.T), 0)
            o[ds(wg * 64, 64), :] = acc
            return emit(
                inner,
                grid=(1 + wg,),
                init_carry=acc,
                in_specs=(BlockSpec((64, 64), lambda j: (0, j + wg)),),
            )(b)

        def compute(pipeline):
            c[ds((m * 2 + wg) * 64, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        emit_ws(
            body,
            grid=(cdiv(a.shape[1], 64),),
            compute_context=compute,
            memory_thread_idx=index,
            in_specs=(
                BlockSpec((128, 64), lambda k: (m, k)),
                BlockSpec((64, 64), lambda k: (0, k)),
            ),
            out_specs=(BlockSpec((128, 64), lambda k: (m, k)),),
        )(a, b, d)

    return anywhere


def results(index: int | None, **target: Any) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((rows, 192)).astype(np.float16) for rows in (256, 64))
    c, d = np.full((256, 64), np.nan, np.float32), np.full((256, 192), np.nan, np.float32)
    kernel(index)(a, b, c, d, **target)
    first = a[:, :64].astype(np.float64) @ b[:, :64].astype(np.float64).T
    np.testing.assert_allclose(d[:, :64], first, atol=1e-3)
    return c, d
