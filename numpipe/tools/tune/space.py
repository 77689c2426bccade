"""What is asked of a tuner: candidates by name; and, as text, all that the answer depends on."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ... import launch
from ...diagnostics.errors import SpecError
from ...kernels.results import is_array
from ...plan.specs import ArrayType
from ..bench.device import versions

Factory = Callable[[Any], Any]
_MAKERS = ("numpipe", "numba-cuda", "numba", "nvidia-nvvm", "nvidia-nvjitlink")
"""packages that decide what machine code a kernel becomes"""


def named(space: Mapping[str, Any] | Iterable[Any]) -> dict[str, Any]:
    """The candidates by name: a mapping's keys, or what each one's repr is. SpecError for none, and for two that look the same."""
    found = dict(space) if isinstance(space, Mapping) else {}
    for config in () if isinstance(space, Mapping) else space:
        if repr(config) in found:
            raise SpecError(f"autotune: the space has {config!r} twice: leave one out, or give names: {{name: config}}")
        found[repr(config)] = config
    if not found:
        raise SpecError("autotune: the space has no candidates: pass a list of configs, or {name: config}")
    for name, config in found.items():
        if not isinstance(name, str):
            raise SpecError(f"autotune: the space's names are strings, got {name!r}")
        if re.search(r" at 0x[0-9a-fA-F]+", repr(config)):
            raise SpecError(f"autotune: candidate {name!r}: its repr is {config!r}, another one in each process, so a winner could "
                            "not be found again: use a frozen dataclass, a tuple or a number")
    return found


def origin(factory: Factory) -> str:
    """``module:name`` of a factory. SpecError for what a worker process could not import."""
    function = inspect.unwrap(factory)
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not callable(factory) or not module or not name or not name.isidentifier():
        raise SpecError(f"autotune: the factory {factory!r} is compiled in worker processes, which import it by its name: write it "
                        "at module level as ``def kernel(cfg): …``, which returns a numpipe kernel")
    if not _file(module):
        raise SpecError(f"autotune: the factory {name} is of {module}, which is no file that worker processes could import "
                        "(a prompt, a notebook, 'python -c'): move it to a module")
    return f"{module}:{name}"


def _file(module: str) -> str | None:
    return getattr(sys.modules.get(module), "__file__", None)


def identity(factory: Factory, space: Mapping[str, Any], key: Any, args: tuple[Any, ...], named: Mapping[str, Any],
             measure: Callable[..., Any] | None, device: launch.Device | None) -> dict[str, Any]:
    """All that the fastest candidate depends on, for JSON: another value of any of these is another question.

    `device`: the GPU, None where calls are simulated.
    """
    place = origin(factory)
    file = _file(place.partition(":")[0])
    assert file is not None
    return {
        "factory": place.replace("__main__", Path(file).stem), "source": hashlib.sha256(Path(file).read_bytes()).hexdigest(),
        "space": {name: repr(config) for name, config in space.items()},
        "arguments": _key(key, args, named),
        "device": device.name if device else "none", "sms": device.sm_count if device else 0,
        "driver": device.driver_version if device else 0,
        "versions": {name: version for name, version in versions().items() if name in _MAKERS},
        "measure": "interleaved" if measure is None else f"{measure.__module__}.{getattr(measure, '__qualname__', '?')}",
    }


def _key(key: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> str:
    """The bucket that a call falls into; without a `key` its shapes, types and scalars."""
    if key is None:
        return ", ".join([*(_spelled(arg) for arg in args), *(f"{name}={_spelled(arg)}" for name, arg in named.items())])
    value = key(*args, **named) if callable(key) else key
    if re.search(r" at 0x[0-9a-fA-F]+", repr(value)):
        raise SpecError(f"autotune: key is {value!r}, another one in each process: use a string, numbers, or a tuple of them")
    return repr(value)


def _spelled(arg: Any) -> str:
    if isinstance(arg, ArrayType):
        raise SpecError(f"autotune: {arg!r} cannot be measured: pass an array; numpipe.explain and numpipe.model.product predict "
                        "times of shapes alone")
    if not is_array(arg):
        return repr(arg)
    info = launch.describe(arg, "array", "autotune")
    return f"{info.dtype.name}{list(info.shape)}{'' if launch.major_order(info) == 'row' else ' column-major'}"
