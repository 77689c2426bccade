"""A kernel as it is written: a Python function, its parameters, its options, and what its source stores to."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ..compile.lift.lift import read
from ..compile.lift.positions import Source
from ..compile.lift.stored import stored
from ..diagnostics.errors import SpecError
from ..diagnostics.source import remember
from ..launch.info import ArrayInfo
from ..plan.plans import ArrayArg
from .arguments import SCALAR, Call, Parameters
from .options import Options
from .results import Results
from .tiled import Tiled, tiled


class Definition:
    """What is known of a kernel before it is called. A `Kernel` is one, with variants (`Variants`) and calls (`Calls`)."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        options = options.without_workspace(function)
        self._arguments = Parameters(function, options.without)
        self.function, self.options = function, options
        remember(function)
        self.name = self._arguments.kernel
        self.parameters, self.statics = self._arguments.names, self._arguments.statics
        self._tiled = tiled(self.name, self.parameters, options.in_specs, options.out_specs, options.grid, options.compiler_params,
                            options.warp_specialized)
        if self._tiled is not None:
            self._all_dims = options.grid
            options = self.options = dataclasses.replace(
                options, grid=self._tiled.ctas(options.grid),
                compiler_params=options.compiler_params.replace(dimension_semantics=self._tiled.grid.semantics))
            self._arguments.hide(self._tiled.grid.hidden)
        self._workspace = None if options.workspace is None else self._arguments.reserve_last()
        """the parameter that is the workspace"""
        self._own_scalars = 0 if self._tiled is None else len(self._tiled.grid.hidden)
        """how many scalars it passes itself"""
        options.check(self.name, len(self.parameters))
        self._results = Results(self._arguments, options)

    def __repr__(self) -> str:
        return f"<numpipe kernel {self.name}({', '.join(self.parameters)})>"

    # ---- its source
    @functools.cached_property
    def source(self) -> Source:
        return self._read()

    def _read(self) -> Source:
        """The function's source, with the values that its module's names have now."""
        source = read(self.function)
        return source if self._tiled is None else self._tiled.source(source, self.parameters)

    @functools.cached_property
    def stored(self) -> set[str]:
        """The names that the kernel stores to."""
        if self._tiled is not None:
            return set(self.parameters[len(self._tiled.ins):])
        return stored(self.source)

    @functools.cached_property
    def first_output(self) -> int:
        """Index of the first parameter that the kernel stores to; from there on parameters are outputs."""
        return next((i for i, name in enumerate(self.parameters) if name in self.stored), len(self.parameters))

    # ---- its parameters
    def takes(self, name: str) -> bool:
        """Whether a parameter has this name."""
        return name in self.parameters or name in self.statics or name in self._arguments.scalars

    def outputs(self, /, *args: Any, **named: Any) -> list[str]:
        """The parameters that a call with these arguments returns or stores to."""
        passed = len(self._arguments.bind(args, named).args)
        return self.parameters[min(passed, self.first_output):]

    def array_names(self, call: Call) -> list[str]:
        """The parameters that are arrays in a call."""
        return self._results.array_names(call)

    def ask(self, function: Callable[..., Any], what: str, view: Callable[[ArrayInfo], Any], /, *args: Any, **named: Any) -> Any:
        """Call a function with the arguments of a call that its parameters name, arrays as `view` shows them."""
        return self._results.ask(function, what, self._arguments.bind(args, named), view)

    def _output(self, name: str) -> bool:
        return name in self.parameters[self.first_output:]

    def _check_outputs(self, call: Call) -> None:
        """No scalar stands where an output belongs."""
        scalars = {name: value for name, value in zip(self.parameters, call.args, strict=False) if isinstance(value, SCALAR)}
        for name in scalars and scalars.keys() & stored(self.source, surely=True):
            value, scalar = scalars[name], next(iter(self._arguments.scalars), None)
            raise SpecError(f"kernel {self.name}: argument '{name}' is an output, which needs an array, got {value!r}"
                            + ("" if self.options.out_type is None else ": leave it out, out_type says what it is")
                            + ("" if scalar is None else f"; pass scalars behind the outputs by name, e.g. {scalar}={value!r}"))

    def _scalar_names(self, arrays: Collection[str]) -> list[str]:
        """The run-time scalars' names when these parameters are arrays, in the order of both executions."""
        return [*(p for p in self.parameters if p not in arrays), *self._arguments.scalars]

    def _scalars(self, unit_key: tuple[Any, ...]) -> list[tuple[str, Any]]:
        """Names and types of the run-time scalars."""
        return list(zip(self._scalar_names([a.name for a in unit_key[0]]), unit_key[1], strict=True))

    def _with_steps(self, of: Tiled, call: Call) -> Call:
        """The call with the sizes of a kernel over tiles' sequential dimensions, which it passes itself."""
        steps = of.steps(self._results.ask(self._all_dims, "grid", call))
        return call._replace(scalars=(*call.scalars[:len(call.scalars) - len(steps)], *steps))

    # ---- its workspace
    def _with_workspace(self, arrays: list[ArrayArg]) -> tuple[ArrayArg, ...]:
        """All arrays of the kernel: those of a call, and the workspace."""
        own = [] if self._workspace is None else [ArrayArg(self._workspace, np.dtype(np.float32), 2, workspace=True)]
        return (*arrays, *own)

    def workspace_of(self, unit_key: tuple[Any, ...]) -> Callable[[tuple[int, int, int], Sequence[ArrayInfo]], Any] | None:
        """The shape of the workspace, of a grid and the arrays of a call; None: the kernel has none."""
        if self._workspace is None:
            return None
        arrays, _, statics = unit_key
        return functools.partial(self._results.workspace, [array.name for array in arrays[:-1]], dict(statics))
