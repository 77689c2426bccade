"""The events of a run, simulated or on a GPU, and what can be asked of them.

>>> from numpipe import Trace
>>> trace = Trace()          # kernel.simulate(..., trace=trace), or numpipe.last_profile()
>>> print(trace.timeline())
no events
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from . import files, legal, text
from .events import Recording
from .summary import Summary, summarise

__all__ = ["Trace"]


class Trace(Recording):
    """What the warpgroups of a run did when.

    `kernel.simulate(…, trace=trace)` fills a given one, its times cycles of the simulated SM's model, which start at 0 with every
    CTA. `numpipe.last_profile()` returns one of a GPU, in nanoseconds from the beginning of the first CTA.
    """

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
