"""Winners on disk, in one JSON file per question, so that processes with different questions never
write the same file.

A question is everything that the fastest candidate depends on (`identity`).
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ... import launch
from ...compile.cache import VARIABLE, created, folder
from ...core.records import parsed, record
from ...diagnostics.errors import SpecError
from ...diagnostics.regular_files import content, put
from ...kernels.call_results import is_array
from ...plan.specs import ArrayType
from ..bench.environment import versions
from .candidates import Factory

_MOST_BYTES = 1 << 24
_MAKERS = ("numpipe", "numba-cuda", "numba", "nvidia-nvvm", "nvidia-nvjitlink")
"""packages that determine the machine code of a kernel"""


# ---- the question
def identity(
    factory: Factory,
    space: Mapping[str, Any],
    key: Any,
    args: tuple,
    named: Mapping[str, Any],
    measure: Callable | None,
    device: launch.Device | None,
) -> dict[str, Any]:
    """Return everything that the fastest candidate depends on, as JSON values; a different value of
    any of these is a different question.

    `device` is the GPU, or None if calls are simulated. Raises SpecError for a factory that a
    worker process cannot import.
    """
    function = inspect.unwrap(factory)
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not callable(factory) or not module or not name or not name.isidentifier():
        raise SpecError(
            f"autotune: the factory {factory!r} is compiled in worker processes, which import it "
            "by its name; fix: write it at module level as ``def kernel(cfg): …``, which returns a "
            "numpipe kernel"
        )
    file = getattr(sys.modules.get(module), "__file__", None)
    if not file:
        raise SpecError(
            f"autotune: the factory {name} is of {module}, which is not a file that worker "
            "processes can import (a prompt, a notebook, 'python -c'); fix: move it to one"
        )
    return {
        "factory": f"{Path(file).stem if module == '__main__' else module}:{name}",
        "source": hashlib.sha256(Path(file).read_bytes()).hexdigest(),
        "space": {name: repr(config) for name, config in space.items()},
        "arguments": _key(key, args, named),
        "device": device.name if device else "none",
        "sms": device.sm_count if device else 0,
        "driver": device.driver_version if device else 0,
        "versions": {name: version for name, version in versions().items() if name in _MAKERS},
        "measure": "interleaved"
        if measure is None
        else f"{measure.__module__}.{getattr(measure, '__qualname__', '?')}",
    }


def _key(key: Any, args: tuple, named: Mapping[str, Any]) -> str:
    """Return the key of a call; the default is its shapes, types and scalars."""
    if key is None:
        return ", ".join(
            [
                *(_spelled(arg) for arg in args),
                *(f"{name}={_spelled(arg)}" for name, arg in named.items()),
            ]
        )
    value = key(*args, **named) if callable(key) else key
    if re.search(r" at 0x[0-9a-fA-F]+", repr(value)):
        raise SpecError(
            f"autotune: key is {value!r}, which differs in each process; fix: use a string, "
            "numbers, or a tuple of them"
        )
    return repr(value)


def _spelled(arg: Any) -> str:
    if isinstance(arg, ArrayType):
        raise SpecError(
            f"autotune: {arg!r} cannot be measured; fix: pass an array. numpipe.explain "
            "predicts times from shapes alone"
        )
    if not is_array(arg):
        return repr(arg)
    info = launch.describe(arg, "array", "autotune")
    order = "" if launch.major_order(info) == "row" else " column-major"
    return f"{info.dtype.name}{list(info.shape)}{order}"


# ---- the answer
def directory() -> Path:
    """Return the folder of the winners, next to the images of compiled kernels
    (`compile.cache`)."""
    return folder() / "tuning"


def path(within: Path, identity: dict[str, Any]) -> Path:
    """Return the file of a question, named after the factory, for readers, and a digest of the
    whole question."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return within / f"{re.sub(r'[^A-Za-z0-9_.]', '.', identity['factory'])}-{digest[:20]}.json"


@dataclass(frozen=True)
class Answer:
    """The contents of a file: the winner of a question, the seconds of the measured candidates, and
    the reasons why others were not measured."""

    schema: Literal["numpipe-tune/1"]
    identity: dict[str, Any]
    winner: str
    seconds: dict[str, float]
    skipped: dict[str, str]


def load(file: Path, identity: dict[str, Any]) -> Answer | None:
    """Return the stored answer, or None if there is none. Warns about a file that does not answer
    this question."""
    try:
        kept = record(Answer, parsed(content(file, _MOST_BYTES, own=True)))
        if kept.identity != identity:
            raise ValueError("it does not answer the question in its name")
        if not {kept.winner} <= kept.seconds.keys() <= identity["space"].keys():
            raise ValueError(f"its winner is {kept.winner!r}, for which it has no time")
        if 0 in kept.seconds.values():
            raise ValueError("a candidate took no time")
        return kept
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warnings.warn(
            f"numpipe.autotune: {file} is corrupt: {error}; it is measured and written again",
            RuntimeWarning,
            stacklevel=4,
        )
        return None


def save(file: Path, answer: Answer) -> bool:
    """Write an answer atomically: readers find the whole old or the whole new file, whoever else
    writes it.

    Returns False, with a warning, if the folder is not writable.
    """
    try:
        if file.parent == directory():
            created("tuning")
        file.parent.mkdir(parents=True, exist_ok=True)
        put(file, json.dumps(asdict(answer), indent=1).encode() + b"\n", 0o600)
    except OSError as error:
        warnings.warn(
            f"numpipe.autotune: the winner cannot be kept in {file}: {error}; it will be measured "
            f"again; fix: set {VARIABLE} to a folder that can be written",
            RuntimeWarning,
            stacklevel=4,
        )
        return False
    return True
