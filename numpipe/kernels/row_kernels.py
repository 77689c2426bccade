"""`numpipe.rows`: kernels over the rows of matrices, with a schedule chosen for each call."""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..core.arith import cdiv
from ..diagnostics.argument_checks import require, whole
from ..diagnostics.errors import SpecError
from ..launch.array_info import (
    dense_strides,
    major_order,
    tma_addressable,
)
from ..plan.params import CompilerParams
from ..plan.specs import persistent
from .decorator import kernel
from .definition import described
from .row_registers import CLUSTER
from .row_schedules import Needs, Request, Rows, choose

if TYPE_CHECKING:
    from .kernel import Kernel

__all__ = ["Rows", "rows"]


MANY = 1 << 20
"""elements from which on short rows are loaded in blocks"""
SHORT = 512
"""bytes of a row from which on blocks are loaded only if some rows are not aligned to 4 bytes"""


@dataclass(eq=False, repr=False)
class RowKernel:
    """A kernel over rows, as `rows` makes it: one kernel for each schedule, chosen for each call by
    the length of the first array's rows."""

    body: Callable
    needs: Needs
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.body)
        parameters = inspect.signature(self.body).parameters
        if "row" not in parameters:
            raise SpecError(
                f"kernel {self.body.__name__}: a kernel over rows takes its schedule as a parameter"
                f" 'row', got {', '.join(parameters)}; fix: end the parameters with *, row: "
                "numpipe.Static"
            )
        self.parameters = parameters
        self.scheduled = functools.cache(self._scheduled)

    def _scheduled(self, row: Rows) -> Kernel:
        """Return the kernel for a schedule."""
        body = self.body
        function = types.FunctionType(
            body.__code__, body.__globals__, body.__name__, body.__defaults__, body.__closure__
        )
        functools.update_wrapper(function, body)
        del function.__wrapped__  # type: ignore[attr-defined]  # whose `row` has no value
        function.__kwdefaults__ = {**(body.__kwdefaults__ or {}), "row": row}

        def blocks(**arguments: Any) -> tuple[int]:
            (array,) = arguments.values()
            return (cdiv(array.shape[0], row.height) * row.cluster,)

        first = next(iter(self.parameters.values()))
        blocks.__signature__ = inspect.Signature([first])  # type: ignore[attr-defined]
        options = {
            "cluster": row.cluster,
            "cluster_names": CLUSTER,
            "grid": persistent() if row.loops else blocks,
            "num_compute_wgs": row.wgs,
            "compiler_params": CompilerParams(
                approx_math=True, ctas_per_sm=row.ctas, unsafe_no_auto_barriers=True
            ),
            **self.options,
        }
        return kernel(  # type: ignore[no-any-return]
            function, warp_specialized=False, static_dims=(-1,), **options
        )

    def kernel(self, *args: Any, **named: Any) -> Kernel:
        """Return the kernel that a call with these arguments, the first of which is a matrix x,
        runs, for `numpipe.verify`, ``inspect`` and others. Raises SpecError if x is not a
        matrix."""
        names = (*self.parameters, "out")
        given = [*args, *(named[name] for name in names if name in named)]
        x = described(args[0] if args else named.get(names[0]), names[0], self.body.__name__)
        if len(x.shape) != 2:
            raise SpecError(
                f"kernel {self.body.__name__}: '{names[0]}' must be a matrix, (rows, columns), got "
                f"shape {x.shape}; fix: pass {names[0]}.reshape(-1, {names[0]}.shape[-1])"
            )
        dtype, (count, n) = x.dtype, x.shape
        vectors = [array for array in given if getattr(array, "shape", ()) == (n,)]
        request = Request(n, self.needs, dtype, count=count, vectors=len(vectors))
        rows = choose(request)
        size, many = n * dtype.itemsize, rows.height > 1 and n * count >= MANY
        # lanes would load and store short rows, and odd ones of 16-bit elements, in small pieces
        odd = n % 2 and rows.height == 1
        if rows.steps or odd or (many and (size < SHORT or size % 4)):
            infos = [
                described(array, "", "")
                for array in given
                if getattr(array, "shape", ()) == x.shape
            ]
            same = all(info.dtype == dtype for info in infos[: self.needs.operands])
            aligned, flat = (same and fits for fits in loadable(*infos))
            wide = any(described(v, "", "").dtype.itemsize > dtype.itemsize for v in vectors)
            rows = choose(replace(request, aligned=aligned, flat=flat, wide=wide))
        return self.scheduled(rows)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"a kernel over rows has no attribute '{name}'; fix: .kernel(x, …) returns the kernel "
            "of a call, which has the attributes of kernels"
        )

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the kernel on a matrix and other arrays."""
        return self.kernel(*args, **named)(*args, **named)


def loadable(*infos: Any) -> tuple[bool, bool]:
    """Return whether TMA can load the rows of all of these matrices, and whether it can load parts
    of them as flat arrays: its int32 indices reach all elements. Rows of host arrays are padded on
    the GPU."""
    if None in infos:
        return False, False
    aligned = all(major_order(info) == "row" and not tma_addressable(info) for info in infos)
    return aligned, all(
        info.kind != "host"
        and info.strides == dense_strides(info.shape, info.dtype.itemsize)
        and info.ptr % 16 == 0
        and math.prod(info.shape) < 2**31 - 16
        for info in infos
    )


def rows(
    body: Callable | None = None,
    /,
    *,
    operands: int = 1,
    held: int = 0,
    once: bool = False,
    unit: int = 1,
    scans: bool = False,
    by_row: bool = False,
    **options: Any,
) -> Callable[[Callable], RowKernel]:
    """Turn a Python function over arrays into a kernel over the rows of matrices.

        @numpipe.rows(out_type=lambda x: ArrayType(x.shape, x.dtype))
        def layer_norm(x, gamma, beta, y, *, eps=1e-5, row: numpipe.Static):
            weight, bias = row.vector(gamma), row.vector(beta)
            for k in row.blocks(x):
                value, block = row.load(k, x)
                mean, variance = row.moments(value)
                scale = numpipe.rsqrt(variance + eps)
                row.store(block, y, lambda j: (value(j) - mean) * scale * weight(j) + bias(j))

        y = layer_norm(x, gamma, beta)

    operands  matrices whose rows the kernel loads, 1 or 2
    held      float32 matrices that it computes and has in registers at the same time; 0: only those
              that it loads. A row is in registers if they have room for so many
    once      whether it has one pass over a row: a single reduction, or a single store. If it
              stores what it computes, pass held=1, too: otherwise ptxas may spill
    unit      128 for a kernel that calls `row.each_group`
    scans     whether it scans rows: lanes have more adjacent columns of contiguous rows
    by_row    whether the kernel computes much for each row: then lanes have more columns of fewer
              rows
    options   options of `numpipe.kernel`, such as out_type

    The first parameter is a matrix; the length of its rows selects the schedule, which the function
    receives as `row` (see `Rows`). Each row length is a separate compile. The kernel for a call is
    ``layer_norm.kernel(x, gamma, beta)``, a `Kernel`.

    Functions of the schedule that exchange data run in all warpgroups that share a row, so they
    must not stand in an `if` on run-time values. Automatic barriers of shared memory are off: a
    kernel that uses shared memory itself needs its own.

    ``@numpipe.rows`` without parentheses is ``@numpipe.rows()``. Raises SpecError for a function
    without a parameter `row`, and for other values.
    """
    needs = Needs(operands, held, once, unit, scans, by_row)
    require("rows", locals(), operands=whole(1, 2), held=whole(0), unit=whole(1, 128))
    make = functools.partial(RowKernel, needs=needs, options=options)
    return make if body is None else make(body)
