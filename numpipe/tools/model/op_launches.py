"""Explanation of a call of an op: the kernels that it launches, including copies of operands, and
why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import launch
from ...diagnostics.errors import SpecError, printable
from ...kernels.noted_calls import imagined, noting
from ...plan.specs import ArrayType

LINE = 128
"""bytes of a line of memory; TMA's requirements depend on where in its line an array starts"""


@dataclass(frozen=True)
class OpExplanation:
    """What a call of an op launches. ``print`` shows a summary, and the last kernel as
    `numpipe.explain` of a kernel does.

    op          name of the op
    copied      the reason, for each operand that is copied first
    kernels     the `Explanation` of each kernel, in order
    nbytes      bytes of the operands and results, each counted once; for several GPUs, of one GPU
    operations  multiplications and additions, as counted by the op's declaration
    """

    op: str
    copied: tuple[str, ...]
    kernels: tuple
    nbytes: int
    operations: float

    @property
    def predicted_seconds(self) -> float:
        """The predicted seconds of all kernels, one after another."""
        return float(sum(kernel.predicted_seconds for kernel in self.kernels))

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as dicts, lists, strings and numbers."""
        return dataclasses.asdict(self) | {
            "copied": list(self.copied),
            "kernels": [kernel.as_dict() for kernel in self.kernels],
            "predicted_seconds": self.predicted_seconds,
        }

    @printable
    def __str__(self) -> str:
        lines = [
            f"op {self.op}: {len(self.kernels)} kernel{'s' * (len(self.kernels) != 1)}, predicted "
            f"{1e6 * self.predicted_seconds:.1f} us",
            f"    operands and results have {1e-6 * self.nbytes:.1f} MB"
            + (f", {1e-9 * self.operations:.1f} GFLOP" if self.operations else ""),
        ]
        lines += [f"    {why}" for why in self.copied]
        lines += [
            f"    {1e6 * kernel.predicted_seconds:8.1f} us  {kernel.kernel}"
            for kernel in self.kernels
        ]
        return "\n".join([*lines, *(["", str(self.kernels[-1])] if self.kernels else [])])


def explain_op(
    op: Any,
    args: tuple,
    named: dict[str, Any],
    explain: Callable,
) -> OpExplanation:
    """Explain a call of an op, using `explain` for each kernel. Raises SpecError if the call passes
    a target or a stream."""
    if wrong := {"target", "stream"} & named.keys():
        raise SpecError(
            f"explain: {op.name}: {wrong.pop()}= is for calls that run, and explain runs nothing; "
            "fix: leave it out"
        )
    several = op.sharded
    if several and "mesh" not in named:
        raise SpecError(
            f"explain: {op.name} is an op of several GPUs; fix: pass "
            "mesh=numpipe.Mesh.simulated(2) for two of them"
        )
    names = [*(f"argument {i}" for i in range(len(args))), *named]
    given = [
        _described(value, name, op.name, several)
        for name, value in zip(names, (*args, *named.values()), strict=True)
    ]
    positional, by_name = given[: len(args)], dict(zip(named, given[len(args) :], strict=True))
    with noting() as notes:
        op(*positional, **by_name, **({} if several else {"target": "sim"}))
    kernels = [explain(call.kernel, *call.args, out=call.out, **call.named) for call in notes.calls]
    with noting():
        work = op.work(*positional, **by_name)
    return OpExplanation(op.name, tuple(notes.copied), tuple(kernels), *work)


def _described(value: Any, name: str, op: str, several: bool) -> Any:
    """Replace an array argument by an imagined array on a GPU with the same strides; return others
    unchanged.

    For an op on `several` GPUs, the first array of a list represents all, and integer arrays keep
    their contents, which may determine the amount of work.
    """
    if several and type(value) in (list, tuple) and value:
        value = value[0]
    if isinstance(value, ArrayType):
        return imagined(value.shape, value.dtype)
    if isinstance(value, np.ndarray):
        info = imagined(
            value.shape, value.dtype, value.strides, value.__array_interface__["data"][0] % LINE
        )
        return info._replace(array=value) if several and value.dtype.kind == "i" else info
    if any(hasattr(type(value), name) for name in ("__cuda_array_interface__", "__dlpack__")):
        info = launch.describe(value, name, op)
        return imagined(info.shape, info.dtype, info.strides, info.ptr % LINE)
    return value
