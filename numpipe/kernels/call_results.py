"""The outputs of a call, which are allocated according to `out_type` or passed as ``out=``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import launch
from ..arch.dimensions import Dim3, Ints
from ..diagnostics.argument_checks import a, as_tuple, require, whole
from ..diagnostics.errors import OfKernel
from ..launch.array_info import ArrayInfo
from ..plan.specs import ArrayType, Workspace
from .arguments import SCALAR, Parameters
from .call_records import Described
from .options import MOST_SEMAPHORES, Options, bound_defaults, parameter_names


class Results(OfKernel):
    """The outputs of one kernel, which are its trailing parameters, and the user's functions that
    describe them."""

    def __init__(
        self, arguments: Parameters, options: Options, stored: Callable[[], set[str]]
    ) -> None:
        self.kernel, self.stored = arguments.kernel, stored
        self.parameters = arguments.names
        self.options = options

    def elsewhere(self, out: Any, missing: Sequence[str]) -> Sequence:
        """Return the arrays passed as ``out=``, one for each of the `missing` parameters."""
        if not missing:
            raise self.refused(
                f"out= was given, but all {len(self.parameters)} parameters "
                f"({', '.join(self.parameters)}) were passed too: give the outputs once"
            )
        several = isinstance(out, (tuple, list)) and not isinstance(out, ArrayInfo)
        results = out if several else (out,)
        if len(results) != len(missing):
            raise self.refused(
                f"out= holds {len(results)} arrays, but the call leaves "
                f"{len(missing)} parameters for it ({', '.join(missing)}): pass one array for each"
            )
        return results

    def types(self, missing: Sequence[str], known: Mapping[str, Any]) -> tuple[ArrayType, ...]:
        """Return the ArrayTypes of the outputs that a call leaves out, by calling out_type with the
        `known` arguments."""
        passed, stored = self.parameters[: self.parameters.index(missing[0])], self.stored()
        out_type = self.options.out_type
        answer = () if out_type is None else self.ask(out_type, "out_type", known)
        types = as_tuple(answer)
        fits = len(types) == len(missing) and all(isinstance(t, ArrayType) for t in types)
        inputs = [name for name in missing if name not in stored]
        if out_type is None or (inputs and not (fits and stored.isdisjoint(passed))):
            fix = f"pass {', '.join(missing)}, or give the kernel an out_type"
            if inputs:
                fix = (
                    f"argument '{inputs[0]}' is missing: the kernel does not store to it, and a "
                    f"call may leave out outputs only; fix: pass {inputs[0]}=…"
                )
            raise self.refused(
                f"takes {len(self.parameters)} arguments "
                f"({', '.join(self.parameters)}), got {len(passed)} (for {', '.join(passed)}): "
                f"{fix}"
            )
        if not fits:
            raise self.refused(
                f"out_type must return {len(missing)} ArrayType for "
                f"{', '.join(missing)}, got {answer!r} (arguments passed: "
                f"{', '.join(passed) or 'none'})"
            )
        return types

    def complete(self, call: Described, runs: bool) -> Described:
        """Describe the outputs that a call leaves out; they will be allocated like its first array.

        Raises SpecError if the call `runs` but passes no array to allocate them like."""
        types = self.types(call.missing, call.known)
        first = next(iter(call.arrays.values()), None)
        if first is None and runs:
            suggestions = ", ".join(f"np.empty({t.shape}, {t.dtype.name!r})" for t in types)
            raise self.refused(
                f"the call passes no array, so the library and device of its "
                f"outputs ({', '.join(call.missing)}) are unknown: pass them, e.g. "
                f"out={suggestions if len(types) == 1 else f'({suggestions})'}"
            )
        arrays = dict(call.arrays)
        for name, each in zip(call.missing, types, strict=True):
            info = launch.info_of_zeros(each.shape, each.dtype, each.order)
            arrays[name] = (
                info if first is None else info._replace(kind=first.kind, device=first.device)
            )
        return call._replace(arrays=arrays)

    def check(self, call: Described) -> None:
        """Raise SpecError if arrays passed as out= differ from out_type in shape or type."""
        if self.options.out_type is None:
            return
        for name, expected in zip(call.missing, self.types(call.missing, call.known), strict=True):
            info = call.arrays[name]
            if info.shape != expected.shape or info.dtype != expected.dtype:
                raise self.refused(
                    f"out= for '{name}' must be {expected.shape} "
                    f"{expected.dtype}, got {info.shape} {info.dtype}"
                )

    def workspace(
        self,
        names: list[str],
        statics: dict[str, Any],
        grid: Dim3,
        infos: Sequence[ArrayInfo],
    ) -> Ints:
        """Return the shape of the workspace that the kernel's option asks for, given the grid and
        the arrays with these names."""
        workspace = self.options.workspace
        if callable(workspace):
            known = dict(zip(names, infos, strict=True)) | statics
            workspace = self.ask(
                workspace,
                "workspace",
                known,
                "is called with arrays and Statics by the names of the kernel's "
                f"parameters: {', '.join(known)}",
            )
            rule = a(Workspace, text="a numpipe.Workspace, or a function that returns one")
            require(f"kernel {self.kernel}", locals(), workspace=rule)
        # the CTAs of a cluster with named axes process the same tiles
        together = self.options.attributes.size if self.options.cluster_names else 1
        return workspace.array(math.prod(grid), infos[-1].shape, together).shape  # type: ignore[no-any-return]

    def semaphores(self, call: Described) -> int:
        """Return the number of semaphores per GPU in a call of a kernel of several GPUs."""
        option = self.options.semaphores
        count = self.ask(option, "semaphores", call.known) if callable(option) else option
        rules = {"semaphores": whole(0, MOST_SEMAPHORES)}
        require(f"kernel {self.kernel}", {"semaphores": count}, **rules)
        return max(1, int(count))

    def ask(self, function: Callable, what: str, known: Mapping[str, Any], has: str = "") -> Any:
        """Call a user's function with the `known` arguments that it takes, passing arrays as
        `HostView`. `has` replaces the end of the error for unknown parameters."""
        names = parameter_names(function, what)
        wanted = [name for name in names if name not in bound_defaults(function, known)]
        if unknown := [name for name in wanted if name not in known]:
            # parameters that start with np__ are internal
            shown = ", ".join(name for name in known if not name.startswith("np__"))
            has = has or (
                f"the call knows {shown}; fix: pass {unknown[0]}, or take only arguments of the "
                "call, by the names of the kernel's parameters"
            )
            raise self.refused(f"{what} takes {', '.join(unknown)}, but {has}")
        given = {name: known[name] for name in wanted}
        for name, value in given.items():
            if isinstance(value, ArrayInfo):
                given[name] = HostView(value)
        try:
            return function(**given)
        except (IndexError, ValueError) as error:
            if re.search("tuple index out of range|values to unpack", str(error)) is None:
                raise
            shapes = [
                f"{name} is {value.shape}, {value.ndim}-D"
                for name, value in given.items()
                if hasattr(value, "ndim")
            ]
            raise self.refused(f"{what}: {error}: {', '.join(shapes)}") from error

    def check_signature(self, arrays: Mapping[str, ArrayInfo]) -> None:
        """Raise SpecError if the arrays' shapes do not agree with `signature=`."""
        if self.options.signature is not None:
            self.options.signature.check(
                self.kernel, list(arrays), [info.shape for info in arrays.values()]
            )


@dataclass(init=False, unsafe_hash=True)
class HostView:
    """An array as user functions see it: only shape, dtype and ndim."""

    shape: Ints
    dtype: np.dtype
    ndim: int

    def __init__(self, info: ArrayInfo | ArrayType) -> None:
        self.shape, self.dtype, self.ndim = info.shape, info.dtype, len(info.shape)


def is_array(value: Any) -> bool:
    """Return whether an argument is an array. A type such as np.float16 is not, although it has the
    attributes of its instances."""
    return not isinstance(value, (*SCALAR, type)) and any(
        hasattr(value, name) for name in ("shape", "__cuda_array_interface__", "__dlpack__")
    )
