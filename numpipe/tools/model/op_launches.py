"""What a call of an op of `numpipe.ops` launches: its kernels, those that copy an operand first
among them, and why these run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import launch
from ...diagnostics.errors import SpecError
from ...kernels.noted_calls import imagined, noting
from ...plan.specs import ArrayType

LINE = 128
"""bytes of a line of memory; the places of arrays in theirs are what TMA asks for"""


@dataclass(frozen=True)
class OpExplanation:
    """What a call of an op launches; ``print`` shows it, the last kernel as `numpipe.explain` of a
    kernel does.

    op          its name
    copied      why, for each operand that is copied first
    kernels     the `Explanation` of each kernel, in order
    nbytes      bytes of the operands and results, each counted once; on several GPUs those of one
    operations  multiplications and additions that the op's declaration counts
    """

    op: str
    copied: tuple[str, ...]
    kernels: tuple[Any, ...]
    nbytes: int
    operations: float

    @property
    def predicted_seconds(self) -> float:
        """The seconds of all kernels, one after another."""
        return float(sum(kernel.predicted_seconds for kernel in self.kernels))

    def as_dict(self) -> dict[str, Any]:
        """Return all figures in dicts, lists, strings and numbers."""
        return dataclasses.asdict(self) | {
            "copied": list(self.copied),
            "kernels": [kernel.as_dict() for kernel in self.kernels],
            "predicted_seconds": self.predicted_seconds,
        }

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
    args: tuple[Any, ...],
    named: dict[str, Any],
    explain: Callable[..., Any],
) -> OpExplanation:
    """Explain a call of an op, by `explain` of each kernel. Raises SpecError for a call that names
    a target or a stream."""
    if wrong := {"target", "stream"} & named.keys():
        raise SpecError(
            f"explain: {op.name}: {wrong.pop()}= is of calls that run, and this one does not: "
            "leave it out"
        )
    several = op.sharded
    if several and "mesh" not in named:
        raise SpecError(
            f"explain: {op.name} is an op of several GPUs: pass mesh=, "
            "numpipe.Mesh.simulated(2) for two of them"
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
    """Return an argument as an array on a GPU that is not there, with the strides that it has;
    others as they are.

    Of an op of `several` GPUs a list stands for its first array, and integers keep their values:
    they may say how much there is to do.
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
