"""The calls that are timed: every candidate in turn, each call on other buffers than those that L2 still holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import launch
from ...diagnostics.errors import LaunchError, NumpipeError, SpecError
from ...kernels.kernels import Kernel
from ...kernels.results import is_array
from .. import bench
from ..model import H200
from .candidates import Candidate, refusal

Competitors = Mapping[str, Callable[[int], Any]]
Measure = Callable[[Competitors], Mapping[str, float]]
"""Takes calls by candidate, whose argument counts them and rotates buffers; returns seconds by candidate."""

MOST_SETS = 64
"""sets of buffers, where a call moves few bytes"""


def interleaved(competitors: Competitors, plan: bench.Plan | None = None) -> dict[str, float]:
    """Return the median seconds of each, in turn under load (`numpipe.bench`), so that all of them run at the same clock."""
    [sample] = bench.compare(dict(competitors), reference=next(iter(competitors)), protocols=("interleaved",),
                             plan=plan or bench.Plan(load=0.3, rounds=20))
    return {name: sample.seconds(name) for name in competitors}


@dataclass
class Buffers:
    """Several sets of a call's arguments, and for each the outputs that the first candidate's call returned."""

    sets: list[tuple[tuple[Any, ...], dict[str, Any]]]
    outs: list[Any]

    def call(self, kernel: Kernel, number: int) -> Any:
        """Call a kernel on the set whose turn it is."""
        at = number % len(self.sets)
        args, named = self.sets[at]
        if self.outs[at] is not None:
            return kernel(*args, out=self.outs[at], **named)
        self.outs[at] = kernel(*args, **named)
        return self.outs[at]


def buffers(args: tuple[Any, ...], named: Mapping[str, Any], on_gpu: bool) -> Buffers:
    """Return the caller's arguments where calls are simulated; on a GPU so many copies that two L2 lie between two uses of one."""
    if not on_gpu:
        return Buffers([(args, dict(named))], [None])
    arrays = [arg for arg in (*args, *named.values()) if is_array(arg)]
    moved = sum(int(np.prod(info.shape, dtype=np.int64)) * info.dtype.itemsize
                for info in (launch.describe(array, "array", "autotune") for array in arrays))
    count = min(MOST_SETS, bench.rotation_sets(max(1, moved), H200.l2_bytes))
    sets = [(tuple(map(_copy, args)), {name: _copy(arg) for name, arg in named.items()}) for _ in range(count)]
    return Buffers(sets, [None] * count)


def _copy(arg: Any) -> Any:
    """Return a copy of an array on the GPU, of the same kind; of a host array a `DeviceArray`; anything else as it is."""
    if not is_array(arg):
        return arg
    if isinstance(arg, launch.DeviceArray):
        return launch.DeviceArray.from_host(arg.copy_to_host(), device=arg.device)
    if launch.describe(arg, "array", "autotune").kind == "host":
        return launch.to_device(arg, target="gpu")
    for method in ("clone", "copy"):  # PyTorch's name, CuPy's and JAX's
        if hasattr(arg, method):
            return getattr(arg, method)()
    raise SpecError(f"autotune: a {type(arg).__name__} on the GPU has neither clone() nor copy(), and copies are measured: "
                    "pass a NumPy array, or one of PyTorch, CuPy or JAX")


def tried(candidates: list[Candidate], given: Buffers) -> tuple[list[Candidate], dict[str, str]]:
    """Call each candidate once on every set; returns those that can run, and why others cannot. Raises LaunchError."""
    good, refused = [], {}
    for one in candidates:
        try:
            for number in range(len(given.sets)):
                given.call(one.kernel, number)
            good.append(one)
        except LaunchError:
            raise
        except NumpipeError as error:
            refused[one.name] = refusal(error)
    return good, refused
