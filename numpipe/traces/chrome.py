"""Export of a trace to the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing
open.

A process is a CTA. Its threads are the warpgroups and the SM's asynchronous units; a microsecond is
a cycle of the model.

==================  ================================================================================
thread              complete events (``"ph": "X"``)
==================  ================================================================================
``wg2 memory``      ``fill`` of a slot, which contains the wait for it and the issue of its copies
``wg0 compute``     ``compute`` from a slot's tiles, which contains the waits for products;
                    ``release``; ``read``; ``write``; waits
``copy in``         TMA loads while they have the copy port; ``args.landed`` is the time when the
                    last byte has landed
``copy out``        TMA stores, likewise; ``args.written``
``tensor core``     wgmma batches
==================  ================================================================================

``args`` contains the ring, slot and step. Events of a thread follow each other or are nested, as
the format requires. If a warpgroup was waiting when the run failed, the wait is an event that ends
with the run and has ``args.unfinished``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..core.records import plain
from ..plan.protocol import KINDS, MOMENTS
from . import spans
from .events import UNITS, Event, Recording, cta_name, of_ctas, of_warpgroups, place_of

Json = dict[str, Any]

REGIONS = 1000
"""offset of the thread number of a warpgroup's regions and tiles from the warpgroup's number"""


def trace_events(trace: Recording) -> Json:
    """Return the JSON object of a trace, ready for ``json.dump``."""
    ctas = of_ctas(trace.events)
    shown: list[Json] = []
    for pid, (cta, own) in enumerate(ctas.items()):
        shown += _cta(
            pid,
            cta_name(cta),
            own,
            f" on SM {trace.sms[own[0].cta]}" if own[0].cta in trace.sms else "",
        )
    if trace.failure is not None:
        last = max(
            (e["ts"] + e["dur"] for e in shown if e["ph"] == "X" and e["pid"] == len(ctas) - 1),
            default=0,
        )
        shown.append(
            {
                "ph": "i",
                "s": "g",
                "name": trace.failure.partition("\n")[0],
                "cat": "failure",
                "ts": last,
                "pid": max(len(ctas) - 1, 0),
                "tid": 0,
                "args": {"message": trace.failure},
            }
        )
    if trace.clock == "cycles":
        return {
            "traceEvents": shown,
            "displayTimeUnit": "ms",
            "otherData": {
                "source": "numpipe, simulated SM",
                "time": "1 us is one cycle of the virtual-time model",
            },
        }
    # in microseconds
    scaled = [
        {**each, **{key: each[key] / 1000 for key in ("ts", "dur") if key in each}}
        for each in shown
    ]
    return {
        "traceEvents": scaled,
        "displayTimeUnit": "ns",
        "otherData": {
            "source": "numpipe, GPU",
            "time": "of %globaltimer",
            "lost events": trace.lost,
        },
    }


def _cta(pid: int, cta: str, events: list[Event], where: str) -> Iterator[Json]:
    warpgroups = of_warpgroups(events)
    yield _about("process_name", pid, 0, name=f"{cta}{where}")
    yield _about("process_sort_index", pid, 0, sort_index=pid)
    last = max(e.end for e in events)
    for number, own in warpgroups.items():
        done = _warpgroup([event for event in own if not event.aside], last)
        yield from _thread(f"wg{number} {own[-1].role}", pid, number, done)
        regions = [
            _span(f"tile {span.name}", "tile", span.start, span.end, {"tile": int(span.name)})
            for span in spans.tiles(own, last)
        ]
        regions += [
            _span(
                span.name,
                "region",
                span.start,
                span.end,
                {"unfinished": True} if span.unfinished else {},
            )
            for span in spans.regions(own, last)
        ]
        if regions:  # a thread of their own: they need not lie inside a step, or a step inside them
            yield from _thread(f"wg{number} regions", pid, REGIONS + number, regions)
    for tid, (kind, title) in enumerate(UNITS.items(), max(warpgroups, default=0) + 1):
        if own := [event for event in events if event.kind == kind]:
            yield from _thread(title, pid, tid, map(_unit, own))


def _about(what: str, pid: int, tid: int, **args: Any) -> Json:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _thread(name: str, pid: int, tid: int, events: Iterable[Json]) -> Iterator[Json]:
    """Yield a thread's name and its events, sorted by start, longer ones first, so that an event
    precedes those nested in it."""
    yield _about("thread_name", pid, tid, name=name)
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        yield {**event, "pid": pid, "tid": tid}


def _span(name: str, kind: str, start: int, end: int, args: Json) -> Json:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "ts": int(start),
        "dur": int(end - start),
        "args": plain({key: value for key, value in args.items() if value is not None}),
    }


def _unit(event: Event) -> Json:
    details = dict(event.details)
    name = details.get("tensor", "wgmma")
    end = details.pop("port_until", event.end)
    if event.kind != "mma":
        details["landed" if event.kind == "load" else "written"] = event.end
    return _span(
        name,
        event.kind,
        event.start,
        end,
        {"warpgroup": event.warpgroup, **place_of(details.get("mbar", "")), **details},
    )


def _warpgroup(events: list[Event], last: int) -> Iterator[Json]:
    """Yield the events of one warpgroup, in order."""
    note = {}
    name = ""
    lasting = None
    for event in events:
        details, kind = dict(event.details), event.kind
        if kind in ("note", "end") and lasting is not None:
            yield _span(lasting[0], lasting[0], lasting[1], event.start, lasting[2])
            lasting = None
        if kind == "note":
            name = details.pop("event")
            note = details
            if name in MOMENTS and MOMENTS[name].lasts:
                lasting = name, event.start, note
        elif kind in KINDS and KINDS[kind].title:
            mbar = details.get("mbar", "")
            shown = f"wait for {mbar.partition(' of ')[0]}" if mbar else KINDS[kind].title
            yield _span(shown, kind, event.start, event.end, {**place_of(mbar), **details})
        elif kind == "arrive":
            mbar = details["mbar"]
            releases = place_of(mbar).get("ring") == note.get("ring", "")
            title = name if releases else kind
            yield _span(
                title, title, event.start, event.end, {**(note if releases else {}), **details}
            )
        elif kind == "signal":
            yield _span(f"signal {details['semaphore']}", kind, event.start, event.end, details)
        elif kind == "issue":
            yield _span(
                f"issue {details['tensor']}", kind, event.start, event.end, {**note, **details}
            )
        elif kind in ("read", "write"):
            yield _span(f"{kind} {details['what']}", kind, event.start, event.end, details)
    if lasting is not None:  # the run failed
        yield _span(
            lasting[0],
            lasting[0],
            lasting[1],
            max(last, lasting[1]),
            {**lasting[2], "unfinished": True},
        )
