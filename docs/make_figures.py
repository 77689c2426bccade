"""Draw the pictures of docs: ``python docs/make_figures.py``, or those of some pages:
``python docs/make_figures.py gallery/softmax``.

Most are drawn from traces that the code of a page recorded on the simulated SM. Each file contains
a digest of what was drawn, so that a test can tell whether a picture still shows what its page does
(`stale`). Pictures of register tiles come from `numpipe.show_layout`, and the picture of the
architecture from the table of rooms in docs/architecture.md (`architecture`).
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import html
import io
import json
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pages

import numpipe
from numpipe.plan.protocol import COMPUTING
from numpipe.plan.roles import ROLES

sys.path.append(str(pages.ROOT))  # pages of the gallery import examples
FIGURES = pages.ROOT / "docs" / "figures"
ROWS = (*map(str, ROLES), "copy in", "copy out", "tensor core")
Titled = Sequence[tuple[str, numpipe.Trace]]
_FRACTION = re.compile(r"(\d+\.\d\d)\d+(?=[ \"\n]|$)")  # of a point: a third of the file
DIGEST = re.compile(r"<!-- drawn from ([0-9a-f]{16}) -->")


def slots_and_barriers(traces: Titled, path: Path) -> None:
    """What each slot of a ring goes through: filled, full, in use; a line where a barrier completes
    a phase."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    [(title, trace)] = traces
    rows = slot_spans(trace)
    colors = {"filled": "#56b4e9", "full": "#f7ef9a", "in use": "#0072b2"}
    figure = Figure(figsize=(10, 2.6), layout="constrained")
    axes = figure.subplots()
    for slot, what, step, start, end in rows:
        axes.barh(slot, end - start, left=start, height=0.55, color=colors[what], edgecolor="none")
        if what == "filled":
            axes.text((start + end) / 2, slot, f"step {step}", ha="center", va="center", fontsize=8)
            axes.plot([end, end], [slot - 0.38, slot + 0.38], color="black", lw=1.4)
        if what == "in use":
            axes.plot(
                [end, end], [slot - 0.38, slot + 0.38], color="#d55e00", lw=1.4, ls=(0, (2, 1))
            )
    axes.set_yticks(
        sorted({row[0] for row in rows}),
        [f"slot {slot}" for slot in sorted({row[0] for row in rows})],
    )
    axes.invert_yaxis()
    axes.set_xlabel("cycles of the simulated SM")
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        handles=[
            Patch(color=colors["filled"], label="being filled: a copy is on its way"),
            Patch(color=colors["full"], label="full"),
            Patch(color=colors["in use"], label="in use: products read it"),
            axes.plot([], [], color="black", label="ready completes a phase")[0],
            axes.plot([], [], color="#d55e00", ls=(0, (2, 1)), label="consumed completes a phase")[
                0
            ],
        ],
        ncols=5,
        fontsize=7.5,
        frameon=False,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.28),
    )
    figure.savefig(path, metadata={"Date": None})


def slot_spans(trace: numpipe.Trace) -> list[tuple[int, str, int, int, int]]:
    """(slot, "filled" | "full" | "in use", step, start, end), in cycles, of a kernel with one
    ring."""
    issued: dict[int, int] = {}
    landed: dict[int, int] = {}
    begun: dict[int, int] = {}
    slots: dict[int, int] = {}
    spans = []
    for event in trace.events:
        details = event.details
        if event.kind == "load":
            step = details["step"]
            issued[step] = min(issued.get(step, event.start), event.start)
            landed[step] = max(landed.get(step, 0), event.end)
        elif event.kind == "note" and details["event"] in (COMPUTING, "release"):
            step = details["step"]
            slots[step] = details["slot"]
            if details["event"] == COMPUTING:
                begun[step] = event.start
            else:
                spans.append((details["slot"], "in use", step, begun[step], event.start))
    spans += [(slot, "filled", step, issued[step], landed[step]) for step, slot in slots.items()]
    spans += [(slot, "full", step, landed[step], begun[step]) for step, slot in slots.items()]
    return sorted(spans)


def timelines(traces: Titled, path: Path, rows: Sequence[str] = ROWS) -> None:
    """One below the other, from cycle 0 on one scale of time."""
    last = max(event.end for _, trace in traces for event in trace.events)
    titles = [title for title, _ in traces]
    numpipe.timeline(
        *(trace for _, trace in traces), titles=titles, path=path, rows=rows, start=0, end=last
    )


def cta_by_cta(traces: Titled, path: Path) -> None:
    """Timelines with one of the compute warpgroups, which do the same."""
    timelines(traces, path, ("wg0", *ROWS[1:]))


def of_cta(trace: numpipe.Trace, number: int) -> numpipe.Trace:
    """The events of one CTA, of each GPU."""
    found = copy.copy(trace)
    found.events = [event for event in trace.events if event.cta[0] == number]
    return found


Draw = Callable[[Titled, Path], None]
CATALOGUE: dict[str, tuple[str, Draw, Callable[[ModuleType], Titled]]] = {
    "slots_1_2_3": (
        "guide/why",
        timelines,
        lambda page: [
            (f"{slots} slot{'s' * (slots > 1)}", page.traces[slots]) for slots in (1, 2, 3)
        ],
    ),
    "slots_and_barriers": (
        "guide/why",
        slots_and_barriers,
        lambda page: [("a ring of 3 slots", page.traces[3])],
    ),
    "roles": (
        "guide/matmul",
        timelines,
        lambda page: [
            ("one instruction stream: each warpgroup loads for itself", page.single),
            ("a memory warpgroup", page.specialized),
        ],
    ),
    "delay_release": (
        "guide/tuning",
        timelines,
        lambda page: [(f"delay_release={delay}", trace) for delay, trace in page.delays.items()],
    ),
    "chained": (
        "guide/tuning",
        timelines,
        lambda page: [("chained", page.chains[False]), ("drained", page.chains[True])],
    ),
    "limits": (
        "guide/reading",
        timelines,
        lambda page: [
            ("2 slots: short of slots", page.short_of_slots),
            ("5 slots: bound by copies", page.bound_by_copies),
        ],
    ),
    "many_gpus": (
        "many_gpus",
        cta_by_cta,
        lambda page: [
            ("sends, then multiplies:", of_cta(page.trace, 0)),
            ("multiplies:", of_cta(page.trace, 1)),
        ],
    ),
}
"""name -> page of docs, how it is drawn, the page's traces with their titles"""
CATALOGUE |= {
    f"gallery/{path.stem}": (
        f"gallery/{path.stem}",
        lambda traces, path: numpipe.timeline(
            *(trace for _, trace in traces), titles=[title for title, _ in traces], path=path
        ),
        lambda page: list(page.traces.items()),
    )
    for path in sorted((pages.ROOT / "docs" / "gallery").glob("*.md"))
    if path.stem != "index"
}


LAYOUTS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "layout_accumulator": ((64, 8), {}),
    "layout_a_operand": ((64, 16), {"dtype": "float16"}),
}
"""name -> shape, and options, of the register tiles that are drawn"""


ROOM = re.compile(r"^\| (\d+) \| `(\w+)` \| (.*) \|$", re.MULTILINE)
SHADES = ("#dbeafe", "#e0f2fe", "#dcfce7", "#fef9c3", "#ffedd5")
"""fills of boxes, from the top floor down; their text is dark on a light and on a dark page"""


def architecture() -> str:
    """Return the SVG of the rooms of the source: a row for each floor of the table of rooms in
    docs/architecture.md, a box for each room with its name and what it contains."""
    page = (pages.ROOT / "docs" / "architecture.md").read_text(encoding="utf8")
    floors: dict[str, list[tuple[str, str]]] = {}
    for floor, room, contents in ROOM.findall(page):
        floors.setdefault(floor, []).append((room, contents.replace("`", "")))
    width, left, gap, line = 860, 34, 8, 15
    drawn: list[str] = []
    y = gap
    for number, (floor, rooms) in enumerate(floors.items()):
        box = (width - left - gap * len(rooms)) // len(rooms)
        texts = [textwrap.wrap(contents, int((box - 16) / 6.6)) for _, contents in rooms]
        height = line * (1 + max(map(len, texts))) + 14
        drawn.append(
            f'<text x="16" y="{y + height / 2 + 5:.0f}" fill="#808080" '
            f'text-anchor="middle">{floor}</text>'
        )
        fill = SHADES[number * len(SHADES) // len(floors)]
        for column, ((room, _), lines) in enumerate(zip(rooms, texts, strict=True)):
            x = left + column * (box + gap)
            drawn.append(
                f'<rect x="{x}" y="{y}" width="{box}" height="{height}" rx="5" fill="{fill}" '
                'stroke="#64748b"/>'
            )
            for row, text in enumerate([room, *lines]):
                bold = "" if row else ' font-weight="bold"'
                drawn.append(
                    f'<text x="{x + 8}" y="{y + 20 + row * line}" fill="#0f172a"{bold}>'
                    f"{html.escape(text)}</text>"
                )
        y += height + gap
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" '
            f'height="{y}" font-family="sans-serif" font-size="12">',
            "<title>Rooms of the source; a room imports only from floors below its own</title>",
            *drawn,
            "</svg>\n",
        ]
    )


def digest(traces: Titled) -> str:
    """Of what a picture shows: who did what, from when to when."""
    shown = [
        [
            title,
            sorted(
                [*map(int, e.place), e.warpgroup, e.role, e.kind, int(e.start), int(e.end)]
                for e in trace.events
                if e.end > e.start
            ),
        ]
        for title, trace in traces
    ]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]


def simulated(page: str) -> ModuleType:
    """A page of docs after its code has run, on the simulated SM."""
    os.environ.update(NUMPIPE_TARGET="sim", NUMPIPE_COMPILE_CHECK="0")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        return pages.run(pages.ROOT / "docs" / f"{page}.md", Path(folder), gpu=False)


def stale(page: str, module: ModuleType) -> list[str]:
    """Pictures of a page that show something else than what its code has just recorded."""
    found = []
    for name, (of, _, traces) in CATALOGUE.items():
        path = FIGURES / f"{name}.svg"
        drawn = DIGEST.search(path.read_text(encoding="utf8")) if path.exists() else None
        if of == page and (drawn is None or drawn[1] != digest(traces(module))):
            found.append(name)
    return found


def main() -> None:
    import matplotlib

    matplotlib.rcParams.update(
        {"svg.hashsalt": "numpipe", "svg.fonttype": "none", "font.family": "sans-serif"}
    )
    FIGURES.mkdir(exist_ok=True)
    modules = {
        page: simulated(page)
        for page in dict.fromkeys(of for of, _, _ in CATALOGUE.values())
        if page in sys.argv[1:] or len(sys.argv) == 1
    }
    for name, (page, draw, traces) in CATALOGUE.items():
        if page not in modules:
            continue
        shown = traces(modules[page])
        path = FIGURES / f"{name}.svg"
        path.parent.mkdir(exist_ok=True)
        draw(shown, path)
        lines = [
            _FRACTION.sub(r"\1", line.rstrip())
            for line in path.read_text(encoding="utf8").splitlines()
        ]
        path.write_text(
            "\n".join([*lines, f"<!-- drawn from {digest(shown)} -->\n"]), encoding="utf8"
        )
        print(path.relative_to(pages.ROOT), file=sys.stderr)
    for name, (shape, options) in LAYOUTS.items():
        (FIGURES / f"{name}.svg").write_text(
            f"{numpipe.show_layout(shape, **options)}\n", encoding="utf8"
        )
    (FIGURES / "architecture.svg").write_text(architecture(), encoding="utf8")


if __name__ == "__main__":
    main()
