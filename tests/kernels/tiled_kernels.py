"""Kernels over tiles with in_specs and out_specs of their own, and their results, for the simulator
and the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import GMEM, ArrayType, BlockSpec, CompilerParams, Element, cdiv, ds

SEMANTICS = [
    ("parallel", "parallel", "sequential"),
    ("parallel", "sequential", "sequential"),
    ("sequential",) * 3,
]


def operands(rows: int, columns: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(rows + columns + depth)
    return (
        random.standard_normal((rows, depth)).astype(np.float16),
        random.standard_normal((columns, depth)).astype(np.float16),
    )


def product(
    roles: bool,
    semantics: tuple[str, ...],
    warpgroups: int,
    slots: int = 2,
    static: tuple[int, ...] | None = None,
) -> Any:
    """Compute c = a @ b.T; the block of c is revisited in every step of k."""
    rows = 64 * warpgroups

    @numpipe.kernel(
        grid=static
        or (lambda a, b: (cdiv(a.shape[0], rows), cdiv(b.shape[0], 64), cdiv(a.shape[1], 64))),
        in_specs=(
            BlockSpec((rows, 64), lambda i, j, k: (i, k)),
            BlockSpec((64, 64), lambda i, j, k: (j, k)),
        ),
        out_specs=BlockSpec((rows, 64), lambda i, j, k: (i, j)),
        warp_specialized=roles,
        num_compute_wgs=warpgroups,
        out_type=lambda a, b: ArrayType((a.shape[0], b.shape[0]), np.float32),
        compiler_params=CompilerParams(dimension_semantics=semantics, max_concurrent_steps=slots),
    )
    def product(a, b, c):
        part = ds(numpipe.axis_index("wg") * 64, 64)
        acc = numpipe.wgmma_wait(
            numpipe.wgmma(numpipe.zeros((64, 64), np.float32), a.at[part, :], b.T), 0
        )
        if numpipe.program_id(2) == 0:
            c[part, :] = acc
        else:
            c[part, :] = c[part, :] + acc

    return product


def check_product(
    kernel: Any, shapes: Any = ((256, 128, 200), (70, 40, 64), (300, 72, 130)), **target: Any
) -> None:
    for rows, columns, depth in shapes:
        a, b = operands(rows, columns, depth)
        np.testing.assert_allclose(
            kernel(a, b, **target), a.astype(np.float64) @ b.astype(np.float64).T, atol=1e-3
        )


@numpipe.function
def transposed(i, j):
    """Swap indices, in an index map defined at module level."""
    return j, i


@numpipe.kernel(
    grid=lambda a: (cdiv(a.shape[1], 64), cdiv(a.shape[0], 64)),
    warp_specialized=False,
    in_specs=BlockSpec((64, 64), transposed),
    out_specs=(BlockSpec((64, 64), lambda i, j: (j, i)), BlockSpec(memory_space=GMEM)),
    out_type=lambda a, alpha: (ArrayType(a.shape, np.float16), ArrayType((64, 64), np.float32)),
)
def scaled(a, c, last, *, alpha):
    """Compute c = alpha * a with all tiles in parallel, and store the grid from one CTA to an
    untiled array."""
    c[...] = (a[...].astype(np.float32) * alpha).astype(np.float16)
    if numpipe.program_id(0) + numpipe.program_id(1) == 0:
        last[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + (
            numpipe.num_programs(0) * 10 + numpipe.num_programs(1)
        )


def check_scaled(**target: Any) -> None:
    a = operands(200, 8, 136)[0]
    c, last = scaled(a, alpha=2.0, **target)
    assert (c == a * 2).all() and (last == 34).all()


START = 16


@numpipe.kernel(
    grid=(3, 2),
    in_specs=BlockSpec((Element(64), 64), lambda i, j: (i * START, max(j, 0))),
    out_specs=BlockSpec((None, 64, 64), lambda i, j: (i, 0, 0)),
    out_type=lambda a: ArrayType((3, 64, 64), np.float32),
    compiler_params=CompilerParams(dimension_semantics=("parallel", "sequential")),
)
def sums(a, c):
    """Compute c[i] = the sum over j of (step + steps) * a[16 i : 16 i + 64, 64 j : 64 j + 64]."""
    j, steps = numpipe.program_id(1), numpipe.num_programs(1)
    tile = a[...].astype(np.float32) * (j + steps)
    if j == 0:
        c[...] = tile
    else:
        c[...] = c[...] + tile


def check_sums(**target: Any) -> None:
    a = operands(96, 8, 128)[0]
    c = sums(a, **target)
    for i in range(3):
        wanted = sum(
            (j + 2) * a[16 * i : 16 * i + 64, 64 * j : 64 * j + 64].astype(np.float32)
            for j in range(2)
        )
        np.testing.assert_allclose(c[i], wanted, atol=1e-3)
