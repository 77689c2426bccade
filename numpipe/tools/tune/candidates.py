"""Candidates: configs by name, their kernels, compiled in worker processes, and the calls that are
timed.

Each compile leaves about 4 MiB allocated, which a worker releases when it exits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import launch
from ...diagnostics.errors import CompileError, LaunchError, NumpipeError, SpecError
from ...kernels import warmup
from ...kernels.call_results import is_array
from ...kernels.kernel import Kernel
from ...kernels.variants import Variant
from ...plan.image import Image
from .. import bench
from ..model import H200

Factory = Callable[[Any], Any]
Competitors = Mapping[str, Callable[[int], Any]]
Measure = Callable[[Competitors], Mapping[str, float]]
"""Takes calls by candidate, whose argument is a call count for rotating buffers; returns seconds by
candidate."""
MOST_SETS = 64
"""most sets of buffers, for calls that move few bytes"""


@dataclass(frozen=True)
class Candidate:
    """A config, its kernel, and the kernel's variant for the call."""

    name: str
    config: Any
    kernel: Kernel
    variant: Variant


def named(space: Mapping[str, Any] | Iterable) -> dict[str, Any]:
    """Return the configs by name: a mapping's keys, or each config's repr. Raises SpecError if
    there are none, or two with the same name."""
    configs = {}
    for name, config in (
        space.items()
        if isinstance(space, Mapping)
        else ((repr(config), config) for config in space)
    ):
        if name in configs:
            raise SpecError(
                f"autotune: the space has {config!r} twice; fix: leave one out, or pass {{name: "
                f"config}}"
            )
        if not isinstance(name, str):
            raise SpecError(f"autotune: the space's names must be strings, got {name!r}")
        if re.search(r" at 0x[0-9a-fA-F]+", repr(config)):
            raise SpecError(
                f"autotune: candidate {name!r}: its repr is {config!r}, which differs in each "
                "process, so that a winner could not be found again; fix: use a frozen dataclass, "
                "a tuple or a number"
            )
        configs[name] = config
    if not configs:
        raise SpecError(
            "autotune: the space has no candidates; fix: pass a list of configs, or {name: config}"
        )
    return configs


def refusal(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def describe(
    factory: Factory, space: Mapping[str, Any], args: tuple, named: Mapping[str, Any]
) -> tuple[list[Candidate], dict[str, str]]:
    """Return the candidates that accept the call, and the reasons why others do not."""
    candidates, refused = [], {}
    for name, config in space.items():
        try:
            kernel = factory(config)
            if not isinstance(kernel, Kernel):
                raise TypeError(
                    f"autotune: {factory.__name__}({config!r}) returned a "
                    f"{type(kernel).__name__}; fix: return a kernel, as @numpipe.kernel makes it"
                )
            params = kernel.options.compiler_params
            if params.debug or params.profile_space:
                raise SpecError(
                    f"kernel {kernel.name}: a kernel built with debug=True or profile_space runs "
                    "at another speed; fix: leave these out"
                )
            candidates.append(
                Candidate(name, config, kernel, kernel.variant(args, dict(named), whole=True))
            )
        except (SpecError, CompileError) as error:
            refused[name] = refusal(error)
    return candidates, refused


def compiled(
    factory: Factory,
    candidates: list[Candidate],
    workers: int | None,
    report: Callable[[], object],
) -> dict[str, Image | str]:
    """Compile with `kernels.warmup`, and return the machine code of each candidate by name, or the
    reason why it has none."""
    jobs = [warmup.Job(one.name, (factory, one.config), one.variant) for one in candidates]
    found = warmup.compiled(jobs, workers, report, "autotune")
    return {
        job.name: refusal(one) if isinstance(one, Exception) else one
        for job, one in zip(jobs, found, strict=True)
    }


# ---- the calls that are timed: candidates alternate, and each call uses buffers that are no longer
# in L2
def interleaved(competitors: Competitors, plan: bench.Plan | None = None) -> dict[str, float]:
    """Return the median seconds of each, measured in turn under load (`numpipe.bench`), so that all
    run at the same clock."""
    [sample] = bench.compare(
        dict(competitors),
        reference=next(iter(competitors)),
        protocols=("interleaved",),
        plan=plan or bench.Plan(load=0.3, rounds=20),
    )
    return {name: sample.seconds(name) for name in competitors}


@dataclass
class Buffers:
    """Several sets of a call's arguments, each with the outputs that the first candidate's call
    returned."""

    sets: list[tuple[tuple, dict[str, Any]]]
    outs: list

    def call(self, kernel: Kernel, number: int) -> Any:
        """Call a kernel on the next set of buffers."""
        at = number % len(self.sets)
        args, named = self.sets[at]
        if self.outs[at] is not None:
            return kernel(*args, out=self.outs[at], **named)
        self.outs[at] = kernel(*args, **named)
        return self.outs[at]


def buffers(args: tuple, named: Mapping[str, Any], on_gpu: bool) -> Buffers:
    """Return the caller's arguments if calls are simulated; on a GPU, enough copies that twice the
    size of L2 is accessed between two uses of one."""
    if not on_gpu:
        return Buffers([(args, dict(named))], [None])
    arrays = [arg for arg in (*args, *named.values()) if is_array(arg)]
    moved = sum(
        int(np.prod(info.shape, dtype=np.int64)) * info.dtype.itemsize
        for info in (launch.describe(array, "array", "autotune") for array in arrays)
    )
    count = min(MOST_SETS, bench.rotation_sets(max(1, moved), H200.l2_bytes))
    sets = [
        (tuple(map(_copy, args)), {name: _copy(arg) for name, arg in named.items()})
        for _ in range(count)
    ]
    return Buffers(sets, [None] * count)


def _copy(arg: Any) -> Any:
    """Return a GPU copy of an array in the same library, or a `DeviceArray` for a host array;
    return other arguments unchanged."""
    if not is_array(arg):
        return arg
    if isinstance(arg, launch.DeviceArray):
        return launch.DeviceArray.from_host(arg.copy_to_host(), device=arg.device)
    if launch.describe(arg, "array", "autotune").kind == "host":
        return launch.to_device(arg, target="gpu")
    for method in ("clone", "copy"):  # PyTorch's name, CuPy's and JAX's
        if hasattr(arg, method):
            return getattr(arg, method)()
    raise SpecError(
        f"autotune: arguments are copied, but a {type(arg).__name__} on the GPU has neither "
        "clone() nor copy(); fix: pass an array of NumPy, PyTorch, CuPy or JAX"
    )


def tried(candidates: list[Candidate], buffers: Buffers) -> tuple[list[Candidate], dict[str, str]]:
    """Call each candidate once on every set. Return those that can run, and the reasons why others
    cannot. Raises LaunchError."""
    good, refused = [], {}
    for one in candidates:
        try:
            for number in range(len(buffers.sets)):
                buffers.call(one.kernel, number)
            good.append(one)
        except LaunchError:
            raise
        except NumpipeError as error:
            refused[one.name] = refusal(error)
    return good, refused
