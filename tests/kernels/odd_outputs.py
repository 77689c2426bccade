"""Outputs whose rows TMA cannot write, as arrays of other libraries may have them.

Simulated calls can pretend to have such outputs, too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

import numpipe
from numpipe import BlockSpec, ds
from numpipe.kernels import definition
from numpipe.plan.plans import ArrayArg

F16, F32, I32, BF16 = (np.dtype(t) for t in (np.float16, np.float32, np.int32, ml_dtypes.bfloat16))


@contextmanager
def odd_outputs() -> Iterator[None]:
    """Make calls treat every output as one that TMA cannot write, within this context."""

    def described(*given: Any, **named: Any) -> ArrayArg:
        array = ArrayArg(*given, **named)
        return array if array.workspace or not array.output else replace(array, tma=False)

    with mock.patch.object(definition, "ArrayArg", described):
        yield


class Odd:
    """A matrix on a GPU, for compiles, whose rows TMA cannot address: they have an odd number of
    elements.

    With `order` "F" it is the columns.
    """

    def __init__(self, shape: tuple[int, int], dtype: np.dtype, order: str = "C") -> None:
        size = dtype.itemsize
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (1 << 20, False),
            "version": 3,
            "strides": (size * shape[1], size) if order == "C" else (size, size * shape[0]),
        }


def values(*shape: int, dtype: Any = F32) -> np.ndarray:
    """Return small integers that differ from their neighbors in all directions."""
    return (np.arange(np.prod(shape)).reshape(shape) % 251 - 125).astype(dtype)


@functools.cache
def copied(rows: int, columns: int, limited: bool = False) -> Any:
    """Compute c[row:, column:] = a, for a tile a of (rows, columns).

    If `limited`, only elements of c before (row_end, column_end) are stored.
    """

    @numpipe.kernel(grid=1)
    def copies(a, c, row, column, row_end, column_end):
        tile = a[ds(0, rows), ds(0, columns)]
        if limited:
            c[ds(row, rows, stop=row_end), ds(column, columns, stop=column_end)] = tile
        else:
            c[ds(row, rows), ds(column, columns)] = tile

    return copies


def expected(
    a: np.ndarray, c: np.ndarray, row: int, column: int, ends: tuple[int, int] | None = None
) -> np.ndarray:
    """Return c after `copied`."""
    made, stop = c.copy(), np.minimum(c.shape, ends or c.shape)
    part = made[row : stop[0], column : stop[1]][: a.shape[0], : a.shape[1]]
    part[...] = a[: part.shape[0], : part.shape[1]]
    return made


@numpipe.kernel(grid=1, num_compute_wgs=2, wg_axis="wg")
def behind_a_reduction(x, y):
    """Exchange sums between warps, store through the same bytes, then exchange sums again."""
    wg = numpipe.axis_index("wg")
    wide = x[ds(wg * 64, 64), ds(0, 72)].astype(np.float32)
    y[ds(wg * 64, 64), ds(0, 72)] = wide - wide.sum(axis=0)
    y[ds(wg * 64, 64), ds(72, 72)] = wide - wide.max(axis=0)


@numpipe.kernel(grid=1)
def in_batches(x, y, i):
    """Compute y[i] = x."""
    y[i, ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]


@functools.cache
def between_rings(memory_role: bool) -> Any:
    """Store before a second ring, which takes all of the shared memory that the first one
    leaves."""

    @numpipe.kernel(grid=1, warp_specialized=memory_role)
    def rings(a, c):
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(16,), max_concurrent_steps=14, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )
        for _, (x,) in pipe(a):
            acc = acc + x[...].astype(np.float32)
        c[ds(0, 64), ds(0, 64)] = acc.astype(c.dtype)
        pipe = numpipe.pipeline(
            grid=(16,), max_concurrent_steps=14, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )
        for _, (x,) in pipe(a):
            acc = acc + x[...].astype(np.float32)
        c[ds(64, 64), ds(0, 64)] = acc.astype(c.dtype)

    return rings
