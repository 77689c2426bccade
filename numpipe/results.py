"""What a call returns: outputs that it allocates as `out_type` says, or that it is given as ``out=``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from . import launch
from .arguments import SCALAR
from .errors import SpecError
from .launch.arrays import ArrayInfo
from .options import Options
from .specs import ArrayType

_REMEMBERED = 512


class Results:
    """The outputs of one kernel: its trailing parameters, as far as a call does not pass them."""

    def __init__(self, kernel: str, parameters: list[str], options: Options) -> None:
        self.kernel, self.parameters, self.options = kernel, parameters, options
        self._types: dict[tuple[Any, ...], tuple[ArrayType, ...]] = {}

    def given(self, out: Any, passed: int) -> Any:
        """The arrays of out=, one for each parameter that was not passed."""
        results = out if isinstance(out, (tuple, list)) else (out,)
        if len(results) != len(self.parameters) - passed:
            missing = self.parameters[passed:]
            raise SpecError(f"kernel {self.kernel}: out= holds {len(results)} arrays, but the call leaves {len(missing)} "
                            f"parameters for it ({', '.join(missing)})")
        return results

    def nowhere(self) -> SpecError:
        """out= in a call that passes every parameter."""
        return SpecError(f"kernel {self.kernel}: out= was given, but all {len(self.parameters)} parameters "
                         f"({', '.join(self.parameters)}) were passed too: give the outputs once")

    def types(self, args: tuple[Any, ...], infos: list[ArrayInfo], scalars: list[Any], statics: Any) -> tuple[ArrayType, ...]:
        """Shapes and dtypes of the outputs that the call does not pass; remembered."""
        missing = self.parameters[len(args):]
        if self.options.out_type is None:
            raise SpecError(f"kernel {self.kernel}: takes {len(self.parameters)} arguments ({', '.join(self.parameters)}), got "
                            f"{len(args)}: pass {', '.join(missing)}, or give the kernel an out_type")
        key = (tuple([(i.shape, i.dtype) for i in infos]), statics, tuple(scalars))
        types = self._types.get(key)
        if types is None:
            types = self.asked_types(args, statics)
            self.check_signature(args, infos)
            if len(self._types) >= _REMEMBERED:
                self._types.clear()
            self._types[key] = types
        return types

    def asked_types(self, args: tuple[Any, ...], statics: Any) -> tuple[ArrayType, ...]:
        """What out_type says of these arguments."""
        missing = self.parameters[len(args):]
        answer = self.ask(self.options.out_type, "out_type", args, statics)
        types = tuple(answer) if isinstance(answer, (tuple, list)) else (answer,)
        if not all(isinstance(t, ArrayType) for t in types) or len(types) != len(missing):
            raise SpecError(f"kernel {self.kernel}: out_type must return {len(missing)} ArrayType for {', '.join(missing)}, got "
                            f"{answer!r} (arguments passed: {', '.join(self.parameters[:len(args)]) or 'none'})")
        return types

    def allocate(self, args: tuple[Any, ...], infos: list[ArrayInfo], scalars: list[Any], statics: Any, stream: Any) -> list[Any]:
        """New outputs, in the kind of the first array argument."""
        types = self.types(args, infos, scalars, statics)
        if not infos:
            raise SpecError(f"kernel {self.kernel}: with no array arguments outputs must be passed with out=")
        handle = None if stream is None else launch.as_stream(stream)
        return [launch.empty_like_kind(infos[0], t.shape, t.dtype, handle) for t in types]

    def check(self, args: tuple[Any, ...], infos: list[ArrayInfo], scalars: list[Any], statics: Any, out: Any) -> None:
        """The arrays given as out= have the shapes and types of out_type."""
        if self.options.out_type is None:
            return
        missing = self.parameters[len(args):]
        inputs, outputs = infos[:len(infos) - len(missing)], infos[len(infos) - len(missing):]
        types = self.types(args, inputs, scalars, statics)
        for info, expected, name in zip(outputs, types, missing, strict=True):
            if info.shape != expected.shape or info.dtype != expected.dtype:
                raise SpecError(f"kernel {self.kernel}: out= for '{name}' must be {expected.shape} {expected.dtype}, got "
                                f"{info.shape} {info.dtype}")

    def ask(self, function: Callable[..., Any], what: str, args: tuple[Any, ...], statics: Any) -> Any:
        """Call a user's function of the kernel's arguments by parameter name."""
        known = dict(zip(self.parameters, args, strict=False)) | dict(statics)
        known = {name: _HostView(launch.describe(value, name, self.kernel)) if is_array(value) else value
                 for name, value in known.items()}
        wanted = list(inspect.signature(function).parameters)
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise SpecError(f"kernel {self.kernel}: {what} takes {', '.join(unknown)}, but the call knows {', '.join(known)}")
        return function(**{name: known[name] for name in wanted})

    def array_names(self, args: tuple[Any, ...]) -> list[str]:
        """The parameters that are arrays: given ones, and outputs that are not given."""
        given = [p for p, a in zip(self.parameters, args, strict=False) if not isinstance(a, SCALAR)]
        return given + self.parameters[len(args):]

    def check_signature(self, args: tuple[Any, ...], infos: list[ArrayInfo]) -> None:
        """The shapes of the arrays agree with `signature=`."""
        if self.options.signature is not None:
            self.options.signature.check(self.kernel, self.array_names(args), [i.shape for i in infos])


class _HostView:
    """An array as out_type and grid functions see it: shape and dtype, nothing else."""

    def __init__(self, info: ArrayInfo) -> None:
        self.shape, self.dtype, self.ndim = info.shape, info.dtype, len(info.shape)


def is_array(value: Any) -> bool:
    return not isinstance(value, (*SCALAR, ArrayType)) and (hasattr(value, "shape") or hasattr(value, "__cuda_array_interface__"))
