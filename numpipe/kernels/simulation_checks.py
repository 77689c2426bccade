"""What is asked of a simulated run beside its result: `numpipe.verify` judges a kernel by many of
them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..diagnostics.errors import SimulationError

Arrays = Mapping[str, np.ndarray[Any, Any]]


def of_gpu(name: str, gpu: int, gpus: int) -> str:
    """Return the name of an array of one of several GPUs; of a kernel of one GPU (`gpus` 0) it is
    the parameter's.

    >>> of_gpu("x", 1, 2), of_gpu("x", 0, 0)
    ('x of GPU 1', 'x')
    """
    return f"{name} of GPU {gpu}" if gpus else name


class Judge:
    """It looks at the run when all CTAs have ended.

    ctas      CTAs of a persistent grid (None: as in a call)
    before    what arrays hold that are passed, by name; None: nothing is asked of outputs
    partial   outputs of which the kernel means to write a part
    limit     seconds that the run may take; None: an hour
    """

    def __init__(
        self,
        ctas: int | None = None,
        before: Arrays | None = None,
        partial: tuple[str, ...] = (),
        limit: float | None = None,
    ) -> None:
        self.ctas, self.partial, self.limit = ctas, partial, limit
        self._before = before
        self.unwritten: dict[str, SimulationError] = {}
        """by output that the call has allocated, the report of elements that nobody wrote"""
        self.kept: dict[str, SimulationError] = {}
        """the same by output that was passed"""

    def end(self, memory: Any, fresh: Arrays, passed: Arrays) -> None:
        """Look at the outputs of a launch, those that the call has allocated and those that were
        passed.

        `memory` is its `sim.gmem.GlobalMemory`.
        """
        from ..sim.unwritten_outputs import unwritten

        if self._before is None:
            return
        for name, array in {**fresh, **passed}.items():
            if name.partition(" ")[0] not in self.partial and (
                name in fresh or name in self._before
            ):
                error = unwritten(
                    memory, name, array, None if name in fresh else self._before[name]
                )
                if error is not None:
                    (self.unwritten if name in fresh else self.kept)[name] = error
