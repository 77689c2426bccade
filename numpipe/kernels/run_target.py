"""Choice of the target of a call, GPU or simulated SM, and of its grid."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from .. import launch
from ..arch.dimensions import Dim3, Ints, round_up
from ..diagnostics.argument_checks import POSITIVE, require, told
from ..diagnostics.errors import SpecError, TargetError
from ..diagnostics.frames import warn
from ..launch.array_info import ArrayInfo
from ..plan.folded_grids import launched
from ..plan.specs import Persistent
from .call_records import Described
from .definition import Definition
from .options import grid_dims

SIMULATED_CTAS = 2
"""CTAs of a persistent grid without a GPU; clusters, if tiles are assigned to clusters"""
MAX_SIMULATED_ELEMENTS = 1 << 23
"""array elements that a call simulates if no target is named: about ten seconds of a GEMM"""


def choose(what: str, target: str | None, infos: Sequence[ArrayInfo], place: str) -> launch.Choice:
    """Choose the GPU or the simulator for a call of `what` on these arrays, which are all at
    `place`.

    Raises TargetError if the target cannot run the call, or if no target is named and the
    simulation would take too long."""
    if target is None and place != "host":
        target = "gpu"
    try:
        choice = launch.choose_target(
            target, None if place == "host" or target == "sim" else infos[0].device
        )
    except TargetError as error:
        raise TargetError(f"{what}: {error}") from None
    if choice.fallback:
        _warn_once(choice.why)
    if choice.target == "sim" and place != "host":
        raise TargetError(
            f"{what}: target='sim' runs on host arrays, got arrays on the GPU: pass NumPy arrays"
        )
    elements = sum(int(np.prod(i.shape, dtype=np.int64)) for i in infos)
    if choice.fallback and elements > MAX_SIMULATED_ELEMENTS:
        raise TargetError(
            f"{what}: {choice.why}, and {elements} array elements are too many to "
            f"simulate by default (at most {MAX_SIMULATED_ELEMENTS}): pass target='sim' to "
            "simulate them anyway, or pass smaller arrays"
        )
    return choice


def ctas(definition: Definition, choice: launch.Choice, call: Described) -> Dim3:
    """Return the grid of a call."""
    kernel, options = definition.name, definition.options
    grid = options.grid
    if isinstance(grid, Persistent):
        size, device = options.attributes.size, choice.device
        each = options.compiler_params.ctas_per_sm
        # with named cluster axes, tiles are assigned to clusters
        several = SIMULATED_CTAS * (size if options.cluster_names else 1)
        whole = max(size, (several if device is None else device.sm_count * each) // size * size)
        dims = _persistent(definition, grid.ctas or whole, f"persistent({grid.ctas})")
    else:
        dims = grid_dims(
            definition.results.ask(grid, "grid", call.known) if callable(grid) else grid,
            kernel,
            options.grid_names,
        )
        options.check_names(dims, kernel)
        definition.check_rank(dims)
    options.attributes.check_grid(dims, kernel)
    return launched(dims)


def on(definition: Definition, number: int) -> Dim3:
    """Return the grid of a call that is simulated on `number` CTAs. Raises SpecError if the
    kernel's grid is not persistent."""
    kernel, options = definition.name, definition.options
    if not isinstance(options.grid, Persistent):
        raise SpecError(
            f"kernel {kernel}: ctas={told(number)} requires grid=numpipe.persistent(), but this "
            "kernel's grid sets the number of CTAs: leave ctas= out"
        )
    require(f"kernel {kernel}", {"ctas": number}, ctas=POSITIVE)
    dims = _persistent(definition, number, f"ctas={number}")
    options.attributes.check_grid(dims, kernel)
    return launched(dims)


def _persistent(definition: Definition, number: int, option: str) -> Ints:
    """Return a persistent grid with `number` CTAs."""
    cluster, size = definition.options.attributes.cluster, definition.options.attributes.size
    if number % size:
        raise SpecError(
            f"kernel {definition.name}: {option} is not a multiple of the {size} CTAs of a cluster "
            f"{cluster}: round it up to {round_up(number, size)}"
        )
    return (number // math.prod(cluster[1:]), *cluster[1:])


@functools.lru_cache(maxsize=8)
def _warn_once(why: str) -> None:
    warn(
        f"numpipe: {why}; kernels run on the simulated SM (pass target='sim' or set "
        "NUMPIPE_TARGET=sim to silence this warning)"
    )
