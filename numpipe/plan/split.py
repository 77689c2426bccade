"""The split of a CTA into roles, and the parallel part of a grid, as the kernel's options give them
before its source is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..arch.dimensions import Ints, Names
from ..diagnostics.errors import SpecError

STEPS = "np__steps_{}"
"""The name of a dimension's size that is a run-time value."""


class Split(NamedTuple):
    """The warpgroups and registers of a CTA."""

    num_compute_wgs: int = 1
    wg_axis: str = "wg"
    memory_registers: int = 40
    memory_thread_idx: int = -1
    """The memory role's warpgroup; -1 for the last one."""

    def given(self, said: SplitOptions) -> Split:
        """Return this split, with the options that `said` sets replaced."""
        return self._replace(
            **{name: value for name, value in said._asdict().items() if value is not None}
        )


class SplitOptions(NamedTuple):
    """The options of a split that one place in the source, or the kernel, sets; None for the
    others."""

    num_compute_wgs: int | None = None
    wg_axis: str | None = None
    memory_registers: int | None = None
    memory_thread_idx: int | None = None

    def check(self, kernel: str) -> None:
        """Raise SpecError for a value of the wrong type for its option."""
        for name, value, default in zip(self._fields, self, Split(), strict=True):
            kind = type(default)
            if value is not None and type(value) is not kind:
                raise SpecError(
                    f"kernel {kernel}: {name} must be {'an int' if kind is int else 'a string'}, "
                    f"got {value!r}"
                )


@dataclass(frozen=True)
class Grid:
    """A grid whose first `parallel` dimensions are CTAs and whose others are steps. `sizes` are
    None until the call."""

    rank: int
    parallel: int
    sizes: Ints | None

    @property
    def semantics(self) -> Names:
        """Return a word for each dimension, as in `CompilerParams.dimension_semantics`."""
        return ("parallel",) * self.parallel + ("sequential",) * len(self.sequential)

    @property
    def sequential(self) -> range:
        return range(self.parallel, self.rank)

    @property
    def hidden(self) -> Names:
        """Return the names of the run-time scalars that hold the numbers of steps."""
        return () if self.sizes is not None else tuple(STEPS.format(d) for d in self.sequential)
