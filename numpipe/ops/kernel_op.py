"""A kernel wrapped as an op, for `numpipe.torch.register` and `numpipe.jax.call`.

In a declared op the declaration says which arrays are accepted. Here the kernel does: its specs
check the operands, its ``out_type`` gives the results' types, and its call allocates them.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any

import numpy as np

from ..kernels.kernel import Kernel
from ..plan.specs import ArrayType
from .declaration import Op


class KernelOp(Op):
    """The op of a kernel. Its results are the parameters that are neither operands nor options.

    operands   names of the arrays that a call passes
    options    scalars and Statics that a call passes; a value is converted to the type that the
               parameter is annotated with, if that is a NumPy type
    statics    values of the Statics that are the same in all calls
    mutates    the operands that the kernel writes in place
    gradients  as for `numpipe.op`; the gradients of results that they receive are contiguous
    """

    contiguous = True

    def __init__(
        self,
        kernel: Kernel,
        operands: Sequence[str],
        options: Sequence[Parameter],
        *,
        statics: Mapping[str, Any] | None = None,
        mutates: Sequence[str] = (),
        gradients: Mapping[str, Callable] | None = None,
    ) -> None:
        self.kernel, self.statics, self.mutates = kernel, dict(statics or {}), tuple(mutates)
        kinds = {each.name: each.annotation for each in options}
        self._numpy = {name: kind for name, kind in kinds.items() if issubclass(kind, np.generic)}
        self._leading = len([*itertools.takewhile(operands.__contains__, kernel.parameters)])
        self._named = [*operands[self._leading :], *kinds]

        arrays = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in operands]
        target = Parameter("target", Parameter.KEYWORD_ONLY, default=None)
        results = [name for name in kernel.parameters if name not in (*operands, *kinds)]
        super().__init__(
            kernel,
            dict.fromkeys(operands, ""),
            dict.fromkeys(results),
            (),
            kernel.__call__,
            {},
            gradients or {},
            signature=inspect.Signature([*arrays, *options, target]),
        )
        self.__module__ = getattr(kernel, "_place", None) or kernel.__module__

    def bound(self, arrays: Sequence, options: Sequence) -> tuple[Sequence, dict[str, Any]]:
        """Return the positional and the named arguments of the kernel's call."""
        if not self._named:
            return arrays, self.statics
        values = *arrays[self._leading :], *options
        named = {**dict(zip(self._named, values, strict=True)), **self.statics}
        for name, kind in self._numpy.items():
            named[name] = kind(named[name])
        return arrays[: self._leading], named

    def call(
        self,
        arrays: tuple,
        options: tuple,
        out: Any = None,
        target: str | None = None,
        stream: Any = None,
    ) -> Any:
        args, named = self.bound(arrays, options)
        return self.kernel(*args, out=out, target=target, stream=stream, **named)

    def check_types(self, infos: Mapping[str, Any], fix: str = "") -> None:
        """Accept all types: the kernel checks them."""

    def result_types(
        self, operands: Mapping[str, Any], options: Mapping[str, Any]
    ) -> dict[str, ArrayType]:
        definition = self.kernel.definition
        arrays = [ArrayType(tuple(each.shape), each.dtype) for each in operands.values()]
        args, named = self.bound(arrays, [options[name] for name in self.options])
        bound, results = definition.bind(tuple(args), named), [*self.results]
        types = definition.results.types(results, definition.known(bound)) if results else ()
        return dict(zip(results, types, strict=True))
