"""The split of a CTA into roles, and the part of a grid that is one: what a kernel says before its
source is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..diagnostics.errors import SpecError

STEPS = "np__steps_{}"
"""the name of a dimension's size that is a run-time value"""


class Split(NamedTuple):
    """The warpgroups and registers of a CTA."""

    num_compute_wgs: int = 1
    wg_axis: str = "wg"
    memory_registers: int = 40
    memory_thread_idx: int = -1
    """the memory role's warpgroup; -1: the last one"""

    def given(self, said: SplitOptions) -> Split:
        """Return this split with the options that `said` sets in place of its own."""
        return self._replace(
            **{name: value for name, value in said._asdict().items() if value is not None}
        )


class SplitOptions(NamedTuple):
    """The options of a split that one place in the source, or the kernel, says; None for the
    others."""

    num_compute_wgs: int | None = None
    wg_axis: str | None = None
    memory_registers: int | None = None
    memory_thread_idx: int | None = None

    def check(self, kernel: str) -> None:
        """Raise SpecError for a value of another type than the option has."""
        for name, value, default in zip(self._fields, self, Split(), strict=True):
            kind = type(default)
            if value is not None and type(value) is not kind:
                raise SpecError(
                    f"kernel {kernel}: {name} must be {'an int' if kind is int else 'a string'}, "
                    f"got {value!r}"
                )


@dataclass(frozen=True)
class Grid:
    """A grid whose first `parallel` dimensions are CTAs and whose others are steps; `sizes` of all
    are None until the call."""

    rank: int
    parallel: int
    sizes: tuple[int, ...] | None

    @property
    def semantics(self) -> tuple[str, ...]:
        """Return a word for each dimension, as in `CompilerParams.dimension_semantics`."""
        return ("parallel",) * self.parallel + ("sequential",) * len(self.sequential)

    @property
    def sequential(self) -> range:
        return range(self.parallel, self.rank)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Return the names of the run-time scalars that say how many steps there are."""
        return () if self.sizes is not None else tuple(STEPS.format(d) for d in self.sequential)
