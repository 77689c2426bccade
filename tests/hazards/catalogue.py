"""The catalogue of hazards: broken kernels, each next to a fixed twin with as few differences as
possible.

An entry is one function with a flag, `fixed`. Most are kernels as users write them. If the language
prevents a mistake, because the ring, the entry or an automatic barrier takes care of it, the entry
is instead a body that calls `numpipe.intrinsics`, run by every warpgroup of a simulated CTA.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import numpipe
from numpipe import CompilerParams, PipelineRace, SimulationError
from numpipe.core.machine import TensorMap
from numpipe.sim import simulate

BARE = CompilerParams(unsafe_no_auto_barriers=True)
F16, F32 = np.dtype(np.float16), np.dtype(np.float32)


@dataclass(frozen=True)
class Entry:
    """A broken kernel and its twin.

    hazard    its name in `numpipe.hazards`
    says      a regular expression that matches the report: what conflicts, and the fix
    error     the exception's type
    function  the function with the mistake
    run       ``run(fixed, seed)`` simulates it and returns its result; the seed may be a Guide
    gives     the expected result
    machine   whether it is a body on intrinsics
    verified  whether `numpipe.verify` reports it, not a single run
    """

    hazard: str
    says: str
    error: type[SimulationError]
    function: Callable[..., Any]
    run: Callable[[bool, int | None], np.ndarray]
    gives: Any
    machine: bool = False
    verified: bool = False


ENTRIES: dict[str, Entry] = {}


def _add(entry: Entry) -> None:
    name = entry.function.__name__
    assert name not in ENTRIES, f"two entries are called {name}"
    ENTRIES[name] = entry


def kernel(
    *given: np.ndarray,
    hazard: str,
    says: str,
    gives: Any,
    error: type[SimulationError] = PipelineRace,
    fix: dict[str, Any] | None = None,
    alias: int | None = None,
    verify: bool = False,
    gpus: int = 0,
    **options: Any,
) -> Callable[..., Any]:
    """Register a kernel of the arrays `given`, of which the last is its result unless the call
    allocates one (`out_type`).

    `fix`: options that only the twin has. `alias`: the array that the broken kernel gets for its
    result, too. `verify`: `numpipe.verify` reports it, not a single run. `gpus`: it has semaphores
    and runs on this many GPUs, each of which has arrays like `given`, with r added on GPU r. Its
    result is the stacked results of all GPUs.
    """
    options = {
        "grid": numpipe.persistent(1) if gpus else 1,
        **({"semaphores": 4} if gpus else {}),
        **options,
    }

    def attach(function: Callable[..., Any]) -> Callable[..., Any]:
        built = {
            fixed: numpipe.kernel(**{**options, **(fix or {} if fixed else {})})(function)
            for fixed in (False, True)
        }

        def run(fixed: bool, seed: int | None) -> np.ndarray:
            if gpus:
                lists = [
                    [(array + gpu).astype(array.dtype) for gpu in range(gpus)] for array in given
                ]
                built[fixed].simulate(
                    *lists, mesh=numpipe.Mesh.simulated(gpus), seed=seed, fixed=fixed
                )
                return np.stack(lists[-1])
            arrays = [array.copy(order="K") for array in given]
            arrays[-1] = arrays[-1] if alias is None or fixed else arrays[alias]
            if verify and (seed is None or isinstance(seed, int)):  # an exploration runs it once
                numpipe.verify(
                    built[fixed], *arrays, schedules=2, seed=seed or 0, fixed=fixed
                ).raise_if_failed()
            made = built[fixed].simulate(*arrays, seed=seed, fixed=fixed)
            made = arrays if made is None else made if isinstance(made, tuple) else (made,)
            return np.asarray(made[-1])

        _add(Entry(hazard, says, error, function, run, gives, verified=verify))
        return function

    return attach


def machine(
    hazard: str,
    says: str,
    *given: np.ndarray,
    gives: Any,
    error: type[SimulationError] = PipelineRace,
    warpgroups: int = 1,
    grid: tuple[int, int, int] = (1, 1, 1),
    box: tuple[int, int] = (64, 64),
    cluster: tuple[int, int, int] = (1, 1, 1),
) -> Callable[..., Any]:
    """Register a body on intrinsics: ``function(fixed, *maps, out)``.

    The maps are tensor maps of the arrays `given`, `out` is an array for the result. Each warpgroup
    of CTAs with 64 KiB of shared memory runs the body.
    """

    def attach(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(fixed: bool, seed: int | None) -> np.ndarray:
            out = np.zeros_like(gives)
            maps = [TensorMap(array, box, 128, "xyz"[number]) for number, array in enumerate(given)]
            stored = TensorMap(out, box, 128, "out") if out.ndim == 2 else out
            simulate(
                lambda _: function(fixed, *maps, stored),
                grid=grid,
                warpgroups=warpgroups,
                smem_bytes=65536,
                seed=seed,
                cluster=cluster,
            )
            return out

        _add(Entry(hazard, says, error, function, run, gives, True))
        return function

    return attach


def integers(*shape: int, dtype: Any = F16) -> np.ndarray:
    """Return small integers: sums and products are exact."""
    return np.random.default_rng(0).integers(-3, 4, shape).astype(dtype)


def zeros(*shape: int, dtype: Any = F16) -> np.ndarray:
    return np.zeros(shape, dtype)
