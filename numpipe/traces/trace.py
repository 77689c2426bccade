"""The events of a run, simulated or on a GPU, and what can be asked of them.

>>> from numpipe import Trace
>>> trace = Trace()          # kernel.simulate(..., trace=trace), or numpipe.last_profile()
>>> print(trace.timeline())
no events
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Protocol

from . import files, legal, text
from .events import Event, Ring
from .summary import Summary, summarise

__all__ = ["Trace"]


class Who(Protocol):
    """A warpgroup of a CTA."""

    @property
    def cta(self) -> tuple[int, int, int]: ...

    @property
    def warpgroup(self) -> int: ...

    @property
    def role(self) -> str: ...


class Trace:
    """What the warpgroups of a run did when.

    `kernel.simulate(…, trace=trace)` fills a given one, its times cycles of the simulated SM's model, which start at 0 with every
    CTA. `numpipe.last_profile()` returns one of a GPU, in nanoseconds from the beginning of the first CTA.
    """

    def __init__(self, clock: Literal["cycles", "ns"] = "cycles") -> None:
        """`clock`: of its times, cycles of the virtual-time model, or nanoseconds on a GPU (`numpipe.last_profile`)."""
        self.clock = clock
        self.events: list[Event] = []
        self.failure: str | None = None
        """the error that ended the run"""
        self.lost = 0
        """events that a GPU had no room for"""
        self.rings: list[Ring] = []
        """rings of the kernel"""
        self.sms: dict[tuple[int, int, int], int] = {}
        """which SM of the GPU ran a CTA"""

    def add(self, who: Who, start: int, end: int, kind: str, /, **details: Any) -> None:
        """One more event of `who`; called by the simulated SM."""
        self.events.append(Event(who.cta, who.warpgroup, who.role, start, end, kind, details))

    def of(self, kind: str, cta: tuple[int, int, int] | None = None) -> list[Event]:
        """The events of one kind, of one CTA or of all."""
        return [e for e in self.events if e.kind == kind and (cta is None or e.cta == cta)]

    def tell_rings(self, rings: Iterable[Ring]) -> None:
        """Which rings the kernel has (`Unit.traced`)."""
        self.rings += [ring for ring in rings if ring not in self.rings]

    @property
    def ctas(self) -> list[tuple[int, int, int]]:
        """The CTAs that the trace has events of, in their order."""
        return list(dict.fromkeys(e.cta for e in self.events))

    def events_of(self, cta: tuple[int, int, int] | int | None = None) -> list[Event]:
        """The events of one CTA, by default the first; an int is its number in x. Raises ValueError if there are none."""
        if cta is None and not self.events:
            return []
        wanted = self.events[0].cta if cta is None else (cta, 0, 0) if isinstance(cta, int) else tuple(cta)
        found = [e for e in self.events if e.cta == wanted]
        if not found:
            raise ValueError(f"no events of CTA {wanted}; there are {sorted(self.ctas)}")
        return found

    def timeline(self, width: int = 100, cta: tuple[int, int, int] | int | None = None, start: float | None = None,
                 end: float | None = None, wanted: Callable[[str], bool] = lambda row: True) -> str:
        """The run of one CTA (the first one by default) as text, from `start` to `end` (all of it by default).

        One row a warpgroup, then the copy port and the tensor core; each of `width` columns shows what took most of its
        time, or the issue of a load::

            wg0 compute |---.....####..####..####SSS
            wg2 memory  |-LL.....L.....L.....
            copy in     |  LLLLLLLLLLLLLLLL
            tensor core |        0000  0000  0000

        A trace of a GPU has no rows of the units. `wanted` says of a row's name whether to show it. Pictures: `numpipe.timeline`.
        """
        return text.timeline(self, width, cta, start, end, wanted)

    def summary(self, cta: tuple[int, int, int] | int | None = None) -> Summary:
        """Where each warpgroup's time went, of one CTA, or on average over all: prints as a table; see `Summary`.

        >>> print(Trace().summary())
        no events
        """
        return summarise(self, cta)

    def check_legal(self, simulated: Trace | None = None, *, slack: float = 0) -> None:
        """Check that the trace is a legal schedule of the pipeline's protocol, and the one `simulated` is another of.

        Slots are filled again only after all their readers' releases, tiles are used after the issue of their copies, steps come
        in order (`numpipe.traces.legal` has the rules). `simulated` is a trace of the same kernel and arguments on the simulated
        SM: each warpgroup must then do the same to the same steps, slots, tiles and regions, in the same order. `slack`: how much
        too early, in the trace's clock, an event may seem to one of another warpgroup.

        Raises PipelineRace, or SimulationError where nothing raced, naming the two events; its `report` holds them.
        """
        legal.check(self, slack)
        if simulated is not None:
            legal.compare(self, simulated)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the events to a file, in the format that its name ends in.

        ``.json``  the Trace Event Format: open it in ui.perfetto.dev (see `numpipe.traces.chrome`); a microsecond is a cycle, or
                   a microsecond on a GPU
        ``.txt``   the timeline of every CTA

        Raises SpecError for another ending.
        """
        files.save(self, files.file_of(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """The trace that `save` wrote to a ``.json`` file: all of it.

        Raises SpecError where the file is something else.
        """
        return files.load(cls(), path)


@contextlib.contextmanager
def collecting(trace: Any) -> Iterator[Trace | None]:
    """The Trace of a run: a given one, or one that is saved to the file of this name, also when the run fails."""
    file = None if trace is None or isinstance(trace, Trace) else files.file_of(trace)
    kept = trace if file is None else Trace()
    try:
        yield kept
    except Exception as error:
        if kept is not None:
            kept.failure = f"{type(error).__name__}: {error}"
        raise
    finally:
        if file is not None:
            kept.save(file)
