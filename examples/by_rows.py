"""Memory-bound kernels in a few lines each: a softmax with one warp per row, a stencil, and a
histogram of bytes.

    python examples/by_rows.py                on the GPU if there is one, else simulated; compares
                                              with NumPy
    python examples/by_rows.py --target sim

To compare their speed with a copy, run
``benchmarks/bandwidth.py --kernels softmax,softmax_ring,stencil,histogram``.
"""

from __future__ import annotations

import argparse
from typing import Any

import ml_dtypes
import numpy as np

import numpipe
from numpipe import SMEM, ArrayType, BlockSpec, CompilerParams, Element, cdiv, ds

FAST = CompilerParams(approx_math=True)


@numpipe.kernel(
    out_type=lambda x: ArrayType(x.shape, x.dtype),
    grid=lambda x: (cdiv(x.shape[0], 8),),
    warp_specialized=False,
    compiler_params=FAST,
)
def softmax(x, y):
    """Softmax of rows of 1024: a CTA holds 8 rows in registers, one per warp at a time."""
    first = numpipe.program_id(0) * 8
    tile = x[ds(first, 8), ds(0, 1024)].astype(np.float32)
    e = np.exp(tile - tile.max(axis=1)[:, None])
    y[ds(first, 8), ds(0, 1024)] = e * (1.0 / e.sum(axis=1))[:, None]


@numpipe.kernel(
    out_type=lambda x: ArrayType(x.shape, x.dtype),
    grid=numpipe.persistent(),
    num_compute_wgs=2,
    wg_axis="wg",
    memory_registers=40,
    compiler_params=FAST,
)
def softmax_ring(x, y):
    """The same softmax, on tiles that a ring loads ahead."""
    wg, cta, ctas = numpipe.axis_index("wg"), numpipe.program_id(0), numpipe.num_programs(0)
    steps = cdiv(cdiv(x.shape[0], 16) - cta, ctas)
    pipe = numpipe.pipeline(
        grid=(steps,),
        max_concurrent_steps=6,
        in_specs=(
            BlockSpec((16, 1024), lambda k: (k * ctas + cta, 0), eviction_policy="evict_first"),
        ),
    )
    for (k,), (rows,) in pipe(x):
        tile = rows[ds(wg * 8, 8), :].astype(np.float32)
        e = np.exp(tile - tile.max(axis=1)[:, None])
        y[ds((k * ctas + cta) * 16 + wg * 8, 8), ds(0, 1024)] = e * (1.0 / e.sum(axis=1))[:, None]


@numpipe.kernel(
    out_type=lambda x: ArrayType(x.shape, x.dtype),
    grid=numpipe.persistent(),
    num_compute_wgs=2,
    wg_axis="wg",
    memory_registers=40,
)
def stencil(x, y):
    """Half of each element plus an eighth of its four neighbors, with zeros outside the array: five
    views of one block with a halo."""
    wg, cta, ctas = numpipe.axis_index("wg"), numpipe.program_id(0), numpipe.num_programs(0)
    wide = cdiv(x.shape[1], 256)
    steps = cdiv(cdiv(x.shape[0], 64) * wide - cta, ctas)
    pipe = numpipe.pipeline(
        grid=(steps,),
        max_concurrent_steps=2,
        in_specs=(
            BlockSpec(
                (Element(72), Element(288)),
                lambda k: ((k * ctas + cta) // wide * 64 - 1, (k * ctas + cta) % wide * 256 - 4),
            ),
        ),
    )
    for (k,), (t,) in pipe(x):
        top, i, j = wg * 32, (k * ctas + cta) // wide * 64, (k * ctas + cta) % wide * 256
        near = t[ds(top, 32), ds(4, 256)] + t[ds(top + 2, 32), ds(4, 256)]
        near = near + t[ds(top + 1, 32), ds(3, 256)] + t[ds(top + 1, 32), ds(5, 256)]
        y[ds(i + top, 32), ds(j, 256)] = 0.5 * t[ds(top + 1, 32), ds(4, 256)] + 0.125 * near


@numpipe.kernel(grid=numpipe.persistent(), num_compute_wgs=3, wg_axis="wg", memory_registers=40)
def histogram(x, counts):
    """Histogram of the bytes of a matrix of 256 columns: each warpgroup counts in its own bins,
    which are then added. The number of rows must be a multiple of 192."""
    wg, cta, ctas = numpipe.axis_index("wg"), numpipe.program_id(0), numpipe.num_programs(0)

    def count(bins):
        bins[...] = numpipe.full(256, 0, np.int32)
        pipe = numpipe.pipeline(
            grid=(cdiv(x.shape[0] // 192 - cta, ctas),),
            max_concurrent_steps=3,
            in_specs=(BlockSpec((192, 256), lambda k: (k * ctas + cta, 0)),),
        )
        for _, (tile,) in pipe(x):
            numpipe.atomic_add(bins.at[tile[ds(wg * 64, 64), :].astype(np.int32)], 1)
        numpipe.atomic_add(counts.at[ds(0, 256)], bins[...])

    numpipe.run_scoped(count, SMEM((256,), np.int32))


# ---- the same in NumPy
def softmax_of(x: Any) -> np.ndarray:
    e: np.ndarray = np.exp(x.astype(np.float32) - x.astype(np.float32).max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def stencil_of(x: np.ndarray) -> np.ndarray:
    p = np.pad(x, 1)
    found: np.ndarray = np.float32(0.5) * x + np.float32(0.125) * (
        p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="auto", choices=("auto", "gpu", "sim"))
    target = parser.parse_args().target
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 1024)).astype(ml_dtypes.bfloat16)
    for kernel in (softmax, softmax_ring):
        np.testing.assert_allclose(
            kernel(rows, target=target).astype(np.float32), softmax_of(rows), rtol=0.02
        )
    field = rng.random((130, 520), np.float32)
    np.testing.assert_allclose(stencil(field, target=target), stencil_of(field), rtol=1e-5)
    data, counts = rng.integers(0, 256, (576, 256)).astype(np.uint8), np.zeros(256, np.int32)
    histogram(data, counts, target=target)
    np.testing.assert_array_equal(counts, np.bincount(data.reshape(-1), minlength=256))
    print("softmax, stencil, histogram: right")


if __name__ == "__main__":
    main()
