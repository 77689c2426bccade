"""Kernels with single-stream pipelines and their results, for the simulator and the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, cdiv, ds

emit = numpipe.emit_pipeline
emit_ws = numpipe.emit_pipeline_warp_specialized
WIDTH = 64


class Sum(NamedTuple):
    acc: Any
    steps: Any


def product(a: np.ndarray, b: np.ndarray) -> Any:
    return a.astype(np.float64) @ b.astype(np.float64).T


def operands(rows: int, depth: int, columns: int = WIDTH) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(rows + 7 * depth)
    return (
        random.standard_normal((rows, depth)).astype(np.float16),
        random.standard_normal((columns, depth)).astype(np.float16),
    )


def gemm(form: str, roles: bool, slots: int, delay: int, warpgroups: int) -> Any:
    """Compute c = a @ b.T + steps in the body form; each warpgroup has a tile of 64 rows and all
    columns."""

    def body_form(a, b, c):
        wg = numpipe.axis_index("wg")

        def body(indices, x, y, carry):
            acc, steps = carry
            return Sum(numpipe.wgmma(acc, x, y.T), steps + 1)

        for (m,) in numpipe.tiles(cdiv(a.shape[0], 64 * warpgroups)):
            row = m * warpgroups + wg
            acc, steps = emit(
                body,
                grid=(cdiv(a.shape[1], 64),),
                max_concurrent_steps=slots,
                delay_release=delay,
                init_carry=Sum(numpipe.zeros((64, WIDTH), np.float32), 0),
                in_specs=(
                    BlockSpec((64, 64), lambda k: (row, k)),
                    BlockSpec((WIDTH, 64), lambda k: (0, k)),
                ),
            )(a, b)
            c[ds(row * 64, 64), ds(0, WIDTH)] = acc + steps

    def loop_form(a, b, c):
        wg = numpipe.axis_index("wg")
        for (m,) in numpipe.tiles(cdiv(a.shape[0], 64 * warpgroups)):
            row, acc, steps = m * warpgroups + wg, numpipe.zeros((64, WIDTH), np.float32), 0
            pipe = numpipe.pipeline(
                grid=(cdiv(a.shape[1], 64),),
                max_concurrent_steps=slots,
                delay_release=delay,
                in_specs=(
                    BlockSpec((64, 64), lambda k: (row, k)),
                    BlockSpec((WIDTH, 64), lambda k: (0, k)),
                ),
            )
            for (_,), (x, y) in pipe(a, b):
                acc = numpipe.wgmma(acc, x, y.T)
                steps = steps + 1
            c[ds(row * 64, 64), ds(0, WIDTH)] = acc + steps

    return numpipe.kernel(
        body_form if form == "body" else loop_form,
        warp_specialized=roles,
        num_compute_wgs=warpgroups,
        grid=numpipe.persistent(ctas=2),
        out_type=lambda a, b: ArrayType((a.shape[0], b.shape[0]), np.float32),
    )


def check_gemm(
    kernel: Any, call: Callable[..., np.ndarray], rows: int = 200, depths: Any = range(0, 450, 64)
) -> None:
    """Check every number of steps from 0 on, with partial tiles."""
    for depth in depths:
        a, b = operands(rows, max(0, depth - 8))
        np.testing.assert_allclose(
            call(kernel, a, b), product(a, b) + cdiv(a.shape[1], 64), atol=2e-2
        )


# ---- only possible in a single-stream pipeline
def unequal(roles: bool) -> Any:
    """Sum w + n steps in warpgroup w, and none in the last one.

    The grid and the index maps depend on the warpgroup.
    """

    def unequal(a, b, c, n):
        wg = numpipe.axis_index("wg")
        acc = numpipe.zeros((64, WIDTH), np.float32)

        def body(indices, x, y, acc):
            return numpipe.wgmma(acc, x, y.T)

        # the memory role cannot branch on the warpgroup, so here the last warpgroup's grid is empty
        if roles:
            acc = emit(
                body,
                grid=((wg + n) * (wg < 2),),
                max_concurrent_steps=2,
                init_carry=acc,
                in_specs=(
                    BlockSpec((64, 64), lambda k: (wg, k)),
                    BlockSpec((WIDTH, 64), lambda k: (0, k + wg)),
                ),
            )(a, b)
        elif wg < 2:
            acc = emit(
                body,
                grid=(wg + n,),
                max_concurrent_steps=2,
                init_carry=acc,
                in_specs=(
                    BlockSpec((64, 64), lambda k: (wg, k)),
                    BlockSpec((WIDTH, 64), lambda k: (0, k + wg)),
                ),
            )(a, b)
        c[ds(wg * 64, 64), ds(0, WIDTH)] = acc

    return numpipe.kernel(unequal, warp_specialized=roles, num_compute_wgs=3)


def check_unequal(kernel: Any, **target: Any) -> None:
    a, b = operands(192, 320)
    for n in range(4):
        c = np.full((192, WIDTH), np.nan, np.float32)
        kernel(a, b, c, n, **target)
        for wg, steps in enumerate((n, n + 1, 0)):
            wanted = product(
                a[64 * wg : 64 * wg + 64, : 64 * steps], b[:, 64 * wg : 64 * (wg + steps)]
            )
            np.testing.assert_allclose(c[64 * wg : 64 * wg + 64], wanted, atol=2e-2)


@numpipe.kernel(num_compute_wgs=2)
def in_a_role_loop(a, b, c):
    """Run a single-stream pipeline in each step of one that the memory role loads.

    Its length differs between warpgroups.
    """
    wg = numpipe.axis_index("wg")

    def inner(indices, x, y, acc):
        return numpipe.wgmma(acc, x, y.T)

    def body(indices, x, y, acc):
        acc = numpipe.wgmma(acc, x, y.T)
        return emit(
            inner,
            grid=(1 + wg,),
            init_carry=acc,
            in_specs=(
                BlockSpec((64, 64), lambda j: (0, j)),
                BlockSpec((WIDTH, 64), lambda j: (0, j + wg)),
            ),
        )(a, b)

    def compute(pipeline):
        c[ds(wg * 64, 64), ds(0, WIDTH)] = pipeline(numpipe.zeros((64, WIDTH), np.float32))

    emit_ws(
        body,
        grid=(cdiv(a.shape[1], 64),),
        compute_context=compute,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((WIDTH, 64), lambda k: (0, k))),
    )(a, b)


def check_in_a_role_loop(**target: Any) -> None:
    a, b = operands(128, 192)
    c = np.full((128, WIDTH), np.nan, np.float32)
    in_a_role_loop(a, b, c, **target)
    for wg in (0, 1):
        inner = product(a[:64, : 64 * (1 + wg)], b[:, 64 * wg : 64 * (1 + 2 * wg)])
        np.testing.assert_allclose(
            c[64 * wg : 64 * wg + 64], product(a[:64], b) + 3 * inner, atol=5e-2
        )


@numpipe.function
def rows_by_rows(a, b, row, steps, acc):
    """Return acc + the product of `steps` blocks, by a single-stream pipeline in a function."""

    def body(indices, x, y, acc):
        return numpipe.wgmma(acc, x, y.T)

    return emit(
        body,
        grid=(steps,),
        max_concurrent_steps=2,
        init_carry=acc,
        in_specs=(
            BlockSpec((64, 64), lambda k: (row, k)),
            BlockSpec((WIDTH, 64), lambda k: (0, k)),
        ),
    )(a, b)


@numpipe.kernel(num_compute_wgs=2)
def around_a_role_loop(a, b, c):
    """Run a memory-role pipeline of i + 1 steps inside the body of a single-stream one, with inert
    tiles."""
    wg = numpipe.axis_index("wg")

    def body(indices, x, acc):
        (i,) = indices
        pipe = numpipe.pipeline(grid=(i + 1,), in_specs=(BlockSpec((WIDTH, 64), lambda j: (0, j)),))
        for (_,), (y,) in pipe(b):
            acc = numpipe.wgmma(acc, x, y.T)
        return acc

    sums = emit(
        body,
        grid=(2,),
        max_concurrent_steps=2,
        init_carry=numpipe.zeros((64, WIDTH), np.float32),
        in_specs=(BlockSpec((64, 64), lambda k: (wg, k)),),
    )
    acc = sums(a)
    for _ in range(2):  # a function called twice continues with its rings
        acc = rows_by_rows(a, b, wg, cdiv(a.shape[1], 64), acc)
    c[ds(wg * 64, 64), ds(0, WIDTH)] = acc


def check_around_a_role_loop(**target: Any) -> None:
    a, b = operands(128, 192)
    c = np.full((128, WIDTH), np.nan, np.float32)
    around_a_role_loop(a, b, c, **target)
    wanted = 2 * product(a, b)
    for i in range(2):
        for j in range(i + 1):
            wanted += product(a[:, 64 * i : 64 * i + 64], b[:, 64 * j : 64 * j + 64])
    np.testing.assert_allclose(c, wanted, atol=5e-2)


@numpipe.kernel(warp_specialized=False, num_compute_wgs=2)
def in_a_single_loop(a, b, c):
    """Nest loops without a memory role over a 2-D grid: sums of 3 blocks of a times all of b."""
    wg = numpipe.axis_index("wg")
    acc = numpipe.zeros((64, WIDTH), np.float32)
    outer = numpipe.pipeline(
        grid=(1, 3),
        max_concurrent_steps=2,
        delay_release=1,
        in_specs=(BlockSpec((64, 64), lambda i, j: (wg + i, j)),),
    )
    inner = numpipe.pipeline(
        grid=(cdiv(b.shape[1], 64),),
        max_concurrent_steps=3,
        in_specs=(BlockSpec((WIDTH, 64), lambda j: (0, j)),),
    )
    for (_, _), (x,) in outer(a):
        for (_,), (y,) in inner(b):
            acc = numpipe.wgmma(acc, x, y.T)
    c[ds(wg * 64, 64), ds(0, WIDTH)] = acc


def check_in_a_single_loop(**target: Any) -> None:
    a, b = operands(128, 192)
    for steps in (0, 1, 3):
        c = np.full((128, WIDTH), np.nan, np.float32)
        in_a_single_loop(a, b[:, : 64 * steps].copy(), c, **target)
        wanted = sum(
            (
                product(a[:, 64 * i : 64 * i + 64], b[:, 64 * j : 64 * j + 64])
                for i in range(3)
                for j in range(steps)
            ),
            np.zeros(c.shape),
        )
        np.testing.assert_allclose(c, wanted, atol=5e-2)
