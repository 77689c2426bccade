"""The outputs that a call returns: it allocates them as `out_type` says, or gets them as
``out=``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import launch
from ..diagnostics.argument_checks import is_int, told
from ..diagnostics.errors import SpecError
from ..launch.array_info import ArrayInfo
from ..plan.specs import ArrayType, Workspace
from .arguments import SCALAR, Call, Parameters
from .options import MOST_SEMAPHORES, Options, parameter_names


class Results:
    """The outputs of one kernel, its trailing parameters, and the functions of the user that say
    what they are."""

    def __init__(self, arguments: Parameters, options: Options) -> None:
        self.kernel = arguments.kernel
        self.parameters = arguments.names
        self.scalars = list(arguments.scalars)
        self.options = options

    def missing(self, call: Call) -> list[str]:
        """Return the parameters that the call leaves out: outputs."""
        rest = self.parameters[len(call.args) :]
        return [name for name in rest if name not in call.behind] if call.behind else rest

    def elsewhere(self, out: Any, call: Call) -> Any:
        """Return the arrays of out=, one for each parameter that was not passed; none in a call
        that passes all of them."""
        missing = self.missing(call)
        if out is not None and not missing:
            raise SpecError(
                f"kernel {self.kernel}: out= was given, but all {len(self.parameters)} parameters "
                f"({', '.join(self.parameters)}) were passed too: give the outputs once"
            )
        results = (
            ()
            if out is None
            else out
            if isinstance(out, (tuple, list)) and not isinstance(out, ArrayInfo)
            else (out,)
        )
        if len(results) != len(missing):
            raise SpecError(
                f"kernel {self.kernel}: out= holds {len(results)} arrays, but the call leaves "
                f"{len(missing)} parameters for it ({', '.join(missing)})"
            )
        return results

    def types(self, call: Call) -> tuple[ArrayType, ...]:
        """Return shapes and dtypes of the outputs that the call does not pass, as out_type says."""
        missing = self.missing(call)
        if self.options.out_type is None:
            raise SpecError(
                f"kernel {self.kernel}: takes {len(self.parameters)} arguments "
                f"({', '.join(self.parameters)}), got {len(call.args)}: pass "
                f"{', '.join(missing)}, or give the kernel an out_type"
            )
        answer = self.ask(self.options.out_type, "out_type", call)
        types = tuple(answer) if isinstance(answer, (tuple, list)) else (answer,)
        if not all(isinstance(t, ArrayType) for t in types) or len(types) != len(missing):
            raise SpecError(
                f"kernel {self.kernel}: out_type must return {len(missing)} ArrayType for "
                f"{', '.join(missing)}, got {answer!r} (arguments passed: "
                f"{', '.join(self.parameters[: len(call.args)]) or 'none'})"
            )
        return types

    def allocate(self, call: Call, types: Sequence[ArrayType], stream: Any) -> list[Any]:
        """Allocate outputs of these types, in the kind of the first array argument."""
        if not call.infos:
            arrays = ", ".join(f"np.empty({t.shape}, {t.dtype.name!r})" for t in types)
            raise SpecError(
                f"kernel {self.kernel}: the call passes no array, so nothing says of which "
                f"library, on which device, its outputs ({', '.join(self.missing(call))}) are to "
                f"be: pass them, e.g. out={arrays if len(types) == 1 else f'({arrays})'}"
            )
        handle = None if stream is None else launch.as_stream(stream)
        return [launch.empty_like_kind(call.infos[0], t.shape, t.dtype, handle) for t in types]

    def check(self, call: Call) -> None:
        """Raise SpecError for arrays given as out= that have not the shapes and types of
        out_type."""
        missing = self.missing(call)
        if self.options.out_type is None or not missing:
            return
        for info, expected, name in zip(
            call.infos[-len(missing) :], self.types(call), missing, strict=True
        ):
            if info.shape != expected.shape or info.dtype != expected.dtype:
                raise SpecError(
                    f"kernel {self.kernel}: out= for '{name}' must be {expected.shape} "
                    f"{expected.dtype}, got {info.shape} {info.dtype}"
                )

    def workspace(
        self,
        names: list[str],
        statics: dict[str, Any],
        grid: tuple[int, int, int],
        infos: Sequence[ArrayInfo],
    ) -> tuple[int, ...]:
        """Return the shape of the workspace that the kernel's option asks for, for a grid and the
        arrays of these names."""
        workspace = self.options.workspace
        if callable(workspace):
            known = {
                name: HostView(info) for name, info in zip(names, infos, strict=True)
            } | statics
            workspace = self._call(
                workspace,
                "workspace",
                known,
                "is given arrays and Statics by the names of the kernel's "
                f"parameters: {', '.join(known)}",
            )
            if not isinstance(workspace, Workspace):
                raise SpecError(
                    f"kernel {self.kernel}: workspace must return a numpipe.Workspace, got "
                    f"{workspace!r}"
                )
        # CTAs that go through the same tiles
        together = self.options.attributes.size if self.options.cluster_names else 1
        return workspace.array(math.prod(grid), infos[-1].shape, together).shape  # type: ignore[no-any-return]

    def semaphores(self, call: Call) -> int:
        """Return how many semaphores each GPU has in a call of a kernel of several GPUs."""
        option = self.options.semaphores
        count = self.ask(option, "semaphores", call) if callable(option) else option
        if not is_int(count) or not 0 <= count <= MOST_SEMAPHORES:
            raise SpecError(
                f"kernel {self.kernel}: semaphores must return an int of 0…{MOST_SEMAPHORES}, got "
                f"{told(count)}"
            )
        return max(1, int(count))

    def ask(
        self,
        function: Callable[..., Any],
        what: str,
        call: Call,
        view: Callable[[ArrayInfo], Any] | None = None,
    ) -> Any:
        """Call a user's function with the call's arguments, by parameter name; it gets arrays as
        `view` shows them."""
        view = view or HostView

        def seen(name: str, value: Any) -> Any:
            if type(value) in (list, tuple):  # of a kernel of several GPUs
                return [seen(name, each) for each in value]
            if isinstance(value, ArrayType):
                return (
                    HostView(value)
                    if view is HostView
                    else view(launch.info_of_zeros(value.shape, value.dtype))
                )
            return view(launch.describe(value, name, self.kernel)) if is_array(value) else value

        given = {
            **dict(zip(self.parameters, call.args, strict=False)),
            **call.behind,
            **dict(zip(self.scalars, call.scalars, strict=True)),
        }
        known = {name: seen(name, value) for name, value in given.items()} | dict(call.statics)
        # numpipe itself passes these
        shown = ", ".join(name for name in known if not name.startswith("np__"))
        return self._call(
            function,
            what,
            known,
            f"the call knows {shown}: it is given the arguments by the names of the kernel's "
            "parameters",
        )

    def _call(
        self, function: Callable[..., Any], what: str, known: dict[str, Any], has: str
    ) -> Any:
        """Call a user's function with those of the `known` arguments that it takes."""
        wanted = parameter_names(function, what)
        if unknown := [name for name in wanted if name not in known]:
            raise SpecError(f"kernel {self.kernel}: {what} takes {', '.join(unknown)}, but {has}")
        try:
            return function(**{name: known[name] for name in wanted})
        except (IndexError, ValueError) as error:
            if re.search("tuple index out of range|values to unpack", str(error)) is None:
                raise
            shapes = [
                f"{name} is {known[name].shape}, {known[name].ndim}-D"
                for name in wanted
                if hasattr(known[name], "ndim")
            ]
            raise SpecError(
                f"kernel {self.kernel}: {what}: {error}: {', '.join(shapes)}"
            ) from error

    def array_names(self, call: Call) -> list[str]:
        """Return the parameters that are arrays in this call, with outputs that it does not
        pass."""
        passed = [
            p for p, a in zip(self.parameters, call.args, strict=False) if not isinstance(a, SCALAR)
        ]
        return passed + self.missing(call)

    def check_signature(self, call: Call) -> None:
        """Raise SpecError for arrays whose shapes do not agree with `signature=`."""
        if self.options.signature is not None:
            self.options.signature.check(
                self.kernel, self.array_names(call), [i.shape for i in call.infos]
            )


@dataclass(init=False, unsafe_hash=True)
class HostView:
    """An array as functions of the user see it: shape and dtype, nothing else."""

    shape: tuple[int, ...]
    dtype: np.dtype
    ndim: int

    def __init__(self, info: ArrayInfo | ArrayType) -> None:
        self.shape, self.dtype, self.ndim = info.shape, info.dtype, len(info.shape)


def is_array(value: Any) -> bool:
    """Whether an argument is an array; a type such as np.float16, which may be a Static, has the
    attributes of its instances."""
    return not isinstance(value, (*SCALAR, type)) and any(
        hasattr(value, name) for name in ("shape", "__cuda_array_interface__", "__dlpack__")
    )
