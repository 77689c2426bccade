"""`numpipe.Trace`: the events of a run, simulated or on a GPU, which can be drawn, summarized and
saved.

>>> from numpipe import Trace
>>> trace = Trace()  # kernel.simulate(..., trace=trace), or numpipe.last_profile()
>>> print(trace.timeline())
no events
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from ..diagnostics.reports import Report
from . import page, text, trace_files
from .events import UNITS, Event, Place, Recording
from .summary import Summary, summarise

__all__ = ["Trace"]


class Trace(Recording):
    """The events of a run: what its warpgroups did, and when.

    `kernel.simulate(…, trace=trace)` fills a trace with times in cycles of the simulated SM's
    model, which start at 0 for every CTA. `numpipe.last_profile()` returns the trace of a GPU, in
    nanoseconds from the beginning of the first CTA.
    """

    def timeline(
        self,
        width: int = 100,
        cta: Place | int | None = None,
        start: float | None = None,
        end: float | None = None,
        wanted: Callable[[str], bool] = lambda row: True,
    ) -> str:
        """Return the run of one CTA (by default the first) as text, from `start` to `end` (by
        default the whole run).

        There is one row per warpgroup, followed by the copy port and the tensor core. Each of
        `width` columns shows what took most of its time, or the issue of a load::

            wg0 compute |---.....####..####..####SSS
            wg2 memory  |-LL.....L.....L.....
            copy in     |  LLLLLLLLLLLLLLLL
            tensor core |        0000  0000  0000

        For a run on several GPUs it shows the same CTA on each, ``GPU 0 wg0 compute``, below one
        another, or only one if `cta` is (gpu, x, y, z). A trace of a GPU has no rows of the units.
        `wanted` returns whether to show a row with a given name. For pictures, see
        `numpipe.timeline`.
        """
        return text.timeline(self, width, cta, start, end, wanted)

    def summary(self, cta: Place | int | None = None) -> Summary:
        """Return where each warpgroup's time went, in one CTA or on average over all; it prints as
        a table (see `Summary`).

        >>> print(Trace().summary())
        no events
        """
        return summarise(self, cta)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the events to a file, in the format that its suffix selects.

        ``.html``  a page that zooms and searches the timeline, in a browser; it is one file
        ``.json``  the Trace Event Format, for ui.perfetto.dev (see `numpipe.traces.chrome`); a
                   microsecond is a cycle, or a microsecond on a GPU
        ``.txt``   the timeline of every CTA

        Raises SpecError for any other suffix.
        """
        trace_files.save(self, trace_files.file_of(path))

    def show(self, *others: Trace) -> page.Page:
        """Return the page of ``.html`` files, for a notebook; other traces are shown below this
        one."""
        return page.Page([page.panel(trace) for trace in (self, *others)])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read the whole trace that `save` wrote to a ``.json`` file.

        Raises SpecError, which names the place, if the file is damaged or something else.
        """
        trace_files.load(trace := cls(), path)
        return trace


def mark(events: list[Event], report: Report) -> None:
    """Record in events what a report says about them: in the last event of each warpgroup that it
    names or, for an earlier access, in the last event at its line and step."""
    named = [("now", report.now), ("before", report.before)]
    for when, party in (*named, *(("waits", party) for party in report.waiting)):
        if party is None:
            continue
        place = party.gpu, party.cta, party.warpgroup
        line = "".join(map(str, party.lines[:1])) if when == "before" else ""
        by_unit = bool(line) and party.did.startswith(("TMA", "wgmma"))
        for event in reversed(events):
            details = event.details
            if (
                (event.gpu, event.cta, event.warpgroup) == place
                and (event.kind in UNITS) == by_unit
                and (not line or details.get("step", party.step) == party.step)
                and details.get("statement", "").startswith(line)
            ):
                details[when] = f"{party.name} of {party.where}: {party.did}"
                break


@contextlib.contextmanager
def collecting(trace: Trace | str | os.PathLike[str] | None) -> Iterator[Trace | None]:
    """Yield the Trace that a run fills: the given one, or one that is saved to the file with this
    name, even if the run fails."""
    file = None if trace is None or isinstance(trace, Trace) else trace_files.file_of(trace)
    filled: Any = trace if file is None else Trace()
    try:
        yield filled
    except BaseException as error:
        if filled is not None:
            filled.failure = f"{type(error).__name__}: {error}"
            if report := getattr(error, "report", None):
                mark(filled.events, report)
        try:
            if file is not None:
                filled.save(file)
        except OSError as unwritten:  # it must not hide why the run failed
            note = f"the trace of this run was not written: {unwritten}"
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(note)
            else:
                warnings.warn(note, RuntimeWarning, stacklevel=2)
        raise
    if file is not None:
        filled.save(file)
