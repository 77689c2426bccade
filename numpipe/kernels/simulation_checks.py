"""Checks of a simulated run in addition to its result, used by `numpipe.verify`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..arch.dimensions import Names
from ..diagnostics.errors import SimulationError

Arrays = Mapping[str, np.ndarray]


def of_gpu(name: str, gpu: int, gpus: int) -> str:
    """Return the name of an array of one of several GPUs; for a kernel of one GPU (`gpus` 0), the
    name of the parameter.

    >>> of_gpu("x", 1, 2), of_gpu("x", 0, 0)
    ('x of GPU 1', 'x')
    """
    return f"{name} of GPU {gpu}" if gpus else name


@dataclass
class Judge:
    """How a call is simulated, and checks of the run after all CTAs have ended.

    ctas      CTAs of a persistent grid (None: as in a call)
    before    contents of the passed arrays before the run, by name; None: outputs are not checked
    partial   outputs that the kernel writes only partially, on purpose
    limit     seconds that the run may take; None: one hour
    seed      of a random schedule, or the schedule itself; None: virtual-time order
    trace     the Trace to which events are added
    """

    ctas: int | None = None
    before: Arrays | None = None
    partial: Names = ()
    limit: float | None = None
    seed: Any = None
    trace: Any = None
    unwritten: dict[str, SimulationError] = field(default_factory=dict)
    """report of unwritten elements by output, for outputs that the call allocated"""
    kept: dict[str, SimulationError] = field(default_factory=dict)
    """the same for outputs that were passed"""

    def end(self, memory: Any, fresh: Arrays, passed: Arrays) -> None:
        """Check the outputs of a launch, both the `fresh` ones that the call allocated and the
        `passed` ones.

        `memory` is the launch's `sim.gmem.GlobalMemory`.
        """
        from ..sim.unwritten_outputs import unwritten

        if self.before is None:
            return
        for name, array in {**fresh, **passed}.items():
            if name.partition(" ")[0] not in self.partial and (
                name in fresh or name in self.before
            ):
                error = unwritten(memory, name, array, None if name in fresh else self.before[name])
                if error is not None:
                    (self.unwritten if name in fresh else self.kept)[name] = error
