"""What a call returns: outputs that it allocates as `out_type` says, or that it is given as ``out=``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .. import launch
from ..diagnostics.errors import SpecError
from ..launch.info import ArrayInfo
from ..plan.specs import ArrayType, Workspace
from .arguments import SCALAR, Call, Parameters
from .options import Options, parameter_names


class Results:
    """The outputs of one kernel: its trailing parameters, as far as a call does not pass them."""

    def __init__(self, arguments: Parameters, options: Options) -> None:
        self.kernel, self.parameters, self.scalars = arguments.kernel, arguments.names, list(arguments.scalars)
        self.options = options

    def elsewhere(self, out: Any, call: Call) -> Any:
        """The arrays of out=, one for each parameter that was not passed; none in a call that passes all and has no out=."""
        missing = self.parameters[len(call.args):]
        if out is not None and not missing:
            raise SpecError(f"kernel {self.kernel}: out= was given, but all {len(self.parameters)} parameters "
                            f"({', '.join(self.parameters)}) were passed too: give the outputs once")
        results = out if isinstance(out, (tuple, list)) else () if out is None else (out,)
        if len(results) != len(missing):
            raise SpecError(f"kernel {self.kernel}: out= holds {len(results)} arrays, but the call leaves {len(missing)} "
                            f"parameters for it ({', '.join(missing)})")
        return results

    def types(self, call: Call) -> tuple[ArrayType, ...]:
        """Shapes and dtypes of the outputs that the call does not pass, as out_type says."""
        missing = self.parameters[len(call.args):]
        if self.options.out_type is None:
            raise SpecError(f"kernel {self.kernel}: takes {len(self.parameters)} arguments ({', '.join(self.parameters)}), got "
                            f"{len(call.args)}: pass {', '.join(missing)}, or give the kernel an out_type")
        answer = self.ask(self.options.out_type, "out_type", call)
        types = tuple(answer) if isinstance(answer, (tuple, list)) else (answer,)
        if not all(isinstance(t, ArrayType) for t in types) or len(types) != len(missing):
            raise SpecError(f"kernel {self.kernel}: out_type must return {len(missing)} ArrayType for {', '.join(missing)}, got "
                            f"{answer!r} (arguments passed: {', '.join(self.parameters[:len(call.args)]) or 'none'})")
        return types

    def allocate(self, call: Call, types: Sequence[ArrayType], stream: Any) -> list[Any]:
        """New outputs of these types, in the kind of the first array argument."""
        if not call.infos:
            raise SpecError(f"kernel {self.kernel}: with no array arguments outputs must be passed with out=")
        handle = None if stream is None else launch.as_stream(stream)
        return [launch.empty_like_kind(call.infos[0], t.shape, t.dtype, handle) for t in types]

    def check(self, call: Call) -> None:
        """The arrays given as out= have the shapes and types of out_type."""
        missing = self.parameters[len(call.args):]
        if self.options.out_type is None or not missing:
            return
        for info, expected, name in zip(call.infos[-len(missing):], self.types(call), missing, strict=True):
            if info.shape != expected.shape or info.dtype != expected.dtype:
                raise SpecError(f"kernel {self.kernel}: out= for '{name}' must be {expected.shape} {expected.dtype}, got "
                                f"{info.shape} {info.dtype}")

    def workspace(self, names: list[str], statics: dict[str, Any], grid: tuple[int, int, int],
                  infos: Sequence[ArrayInfo]) -> tuple[int, ...]:
        """The shape of the workspace that `workspace=` of the kernel says, for a grid and the arrays of these names."""
        said = self.options.workspace
        if callable(said):
            known = {name: _HostView(info) for name, info in zip(names, infos, strict=True)} | statics
            said = self._called(said, "workspace", known, "is given arrays and Statics by the names of the kernel's parameters: "
                                                          + ", ".join(known))
            if not isinstance(said, Workspace):
                raise SpecError(f"kernel {self.kernel}: workspace must return a numpipe.Workspace, got {said!r}")
        shape: tuple[int, ...] = said.array(math.prod(grid), infos[-1].shape).shape
        return shape

    def ask(self, function: Callable[..., Any], what: str, call: Call, view: Callable[[ArrayInfo], Any] | None = None) -> Any:
        """Call a user's function of the kernel's arguments by parameter name; it sees of an array what `view` shows."""
        view = view or _HostView
        known = dict(zip(self.parameters, call.args, strict=False)) | dict(zip(self.scalars, call.scalars, strict=True))
        known |= dict(call.statics)
        known = {name: view(launch.describe(value, name, self.kernel)) if is_array(value) else value
                 for name, value in known.items()}
        shown = [name for name in known if not name.startswith("np__")]  # what numpipe itself passes
        return self._called(function, what, known, f"the call knows {', '.join(shown)}: it is given the arguments by the names of "
                                                   "the kernel's parameters")

    def _called(self, function: Callable[..., Any], what: str, known: dict[str, Any], has: str) -> Any:
        """What a user's function returns for those of the `known` arguments that it takes."""
        wanted = parameter_names(function, what)
        if unknown := [name for name in wanted if name not in known]:
            raise SpecError(f"kernel {self.kernel}: {what} takes {', '.join(unknown)}, but {has}")
        return function(**{name: known[name] for name in wanted})

    def array_names(self, call: Call) -> list[str]:
        """The parameters that are arrays: given ones, and outputs that are not given."""
        given = [p for p, a in zip(self.parameters, call.args, strict=False) if not isinstance(a, SCALAR)]
        return given + self.parameters[len(call.args):]

    def check_signature(self, call: Call) -> None:
        """The shapes of the arrays agree with `signature=`."""
        if self.options.signature is not None:
            self.options.signature.check(self.kernel, self.array_names(call), [i.shape for i in call.infos])


class _HostView:
    """An array as out_type and grid functions see it: shape and dtype, nothing else."""

    def __init__(self, info: ArrayInfo) -> None:
        self.shape, self.dtype, self.ndim = info.shape, info.dtype, len(info.shape)


def is_array(value: Any) -> bool:
    """Whether an argument is one; a type such as np.float16, which may be a Static, has attributes of its instances."""
    if isinstance(value, (*SCALAR, ArrayType, type)):
        return False
    return hasattr(value, "shape") or hasattr(value, "__cuda_array_interface__") or hasattr(value, "__dlpack__")
