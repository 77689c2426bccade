"""Timelines as pages: their data, and what a browser makes of them."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, PipelineRace, Trace, ds, timeline
from numpipe.traces import page
from numpipe.traces.events import Event
from numpipe.traces.rows import rows_of
from tests.kernels.kernels_for_tests import SMALL, gemm, operands
from tests.kernels.profile_buffers import as_recorded, traced
from tests.traces.browser import CHROMIUM, Browser, browser

ANYTHING = "</script><script>hacked = 1</script><!--<script> {{data}} &amp; \ud800 \u2028 `${x}`"


@pytest.fixture(autouse=True, scope="module")
def simulated_only() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMPIPE_COMPILE_CHECK", "0")
        yield


@pytest.fixture(scope="module")
def both() -> tuple[Trace, Trace]:
    """Return traces of a simulated run of two CTAs, and of what a GPU would have recorded."""
    trace, unit = traced(gemm(ctas=2), *operands(256, 128, 256), cfg=SMALL)
    return trace, as_recorded(trace, unit, (2, 1, 1), tick=32)


@numpipe.kernel(out_type=lambda x: numpipe.ArrayType(x.shape, x.dtype))
def releases_early(x, y):
    """Double x; each slot is released before its tile is read."""
    pipe = numpipe.pipeline(
        grid=(x.shape[0] // 64,),
        max_concurrent_steps=2,
        manual_consumed_barriers=True,
        in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),),
    )
    for (k,), (tile,), (consumed,) in pipe(x):
        numpipe.barrier_arrive(consumed)
        y[ds(k * 64, 64), ds(0, 64)] = tile[...] * 2


def raced(path: Path) -> None:
    """Save the trace of a run that ends in a race."""
    with pytest.raises(PipelineRace):
        releases_early.simulate(np.ones((512, 64), np.float16), trace=path)


def data(text: str) -> Any:
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def bars(found: Any) -> list[Any]:
    """Return the bars of a page's first trace."""
    return [bar for cta in found["traces"][0]["ctas"] for row in cta["rows"] for bar in row["bars"]]


# ---- the file
def test_a_page_has_the_rows_of_the_timeline(both: tuple[Trace, Trace], tmp_path: Path) -> None:
    simulated, gpu = both
    assert timeline(simulated, gpu, path=tmp_path / "run.html") == str(tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text(encoding="utf8")
    found = data(text)
    assert [trace["title"] for trace in found["traces"]] == ["simulated", "GPU"]
    for trace, shown in zip(both, found["traces"], strict=True):
        assert len(shown["ctas"]) == 2 and not shown["note"] and not shown["failure"]
        for number, cta in enumerate(shown["ctas"]):
            rows = rows_of(trace.events_of(number), lambda row: True)
            assert [row["name"] for row in cta["rows"]] == [row.name for row in rows]
            assert [bar[:4] for row in cta["rows"] for bar in row["bars"]] == [
                [bar.start, bar.end, bar.look, bar.label] for row in rows for bar in row.bars
            ]
    assert html.unescape(text).count("wg0 compute |") == 4, "as text, for a browser without scripts"
    timeline(gpu, path=tmp_path / "part.html", cta=1, start=1000, end=2000, rows=["wg0"])
    ((cta,),) = (t["ctas"] for t in data((tmp_path / "part.html").read_text("utf8"))["traces"])
    assert (cta["where"], cta["first"], cta["last"]) == ("CTA (1, 0, 0), SM 8", 1000, 2000)
    assert [row["name"] for row in cta["rows"]] == ["wg0 compute"]
    assert all(bar[1] >= 1000 and bar[0] <= 2000 for row in cta["rows"] for bar in row["bars"])


def test_a_wait_tells_its_reason_and_what_ended_it(both: tuple[Trace, Trace]) -> None:
    found = bars(data(str(both[0].show())))
    wait = next(bar for bar in found if bar[2] == "data")
    about, ended = wait[4:]
    landed = max(
        bar[4]["until"]
        for bar in found
        if bar[2] == "copy in" and bar[4]["step"] == bar[4]["slot"] == 0 and bar[1] <= wait[1]
    )
    assert about["step"] == about["slot"] == about["phase"] == 0 and landed <= wait[1]
    assert about["mbar"].startswith("ready[0] of a, b @ kernels_for_tests.py:")
    assert re.fullmatch(r"\w+\.py:\d+ in matmul: for .* in pipe\(a, b\):", about["statement"])
    assert ended[:2] == ["b landed, copy in", "copy in"]
    slot = next(bar for bar in found if bar[2] == "slot")
    assert slot[4]["mbar"].startswith("consumed[0]") and slot[5][0].startswith("arrival, wg")
    assert "numpipe.wgmma(" in next(bar for bar in found if bar[2] == "wg1")[4]["statement"]


def test_a_race_marks_the_events_of_both_accesses(tmp_path: Path) -> None:
    raced(tmp_path / "run.json")
    trace = Trace.load(tmp_path / "run.json")
    (now,) = (event for event in trace.events if "now" in event.details)
    (before,) = (event for event in trace.events if "before" in event.details)
    assert now.details["now"] == "warpgroup 1 (memory) of CTA (0, 0, 0): TMA load (x)"
    assert now.kind == "wait" and now.details["mbar"].startswith("consumed[0]"), "before the load"
    assert before.warpgroup == 0 and "tile[...] * 2" in before.details["statement"]
    (shown,) = data(str(trace.show()))["traces"]
    assert [row for _, row, *_ in shown["ctas"][0]["marks"]] == ["wg1 memory", "wg0 compute"]
    assert "may still be reading it" in shown["failure"]


def hostile(path: Path) -> Trace:
    """Return a trace from a file in which each text is `ANYTHING`."""
    raced(path)
    saved = json.loads(path.read_text(encoding="utf8"))
    inside = saved["numpipe"]
    keys = "mbar", "ring", "tensor", "what", "statement", "now", "before", "other"
    for event in inside["events"][::4]:
        event[4] |= dict.fromkeys(keys, ANYTHING)
    inside["who"] = [[cta, number, ANYTHING] for cta, number, _ in inside["who"]]
    inside["failure"] = f"{ANYTHING}\n{ANYTHING}"
    path.write_text(json.dumps(saved), encoding="utf8")
    return Trace.load(path)


def test_text_of_a_trace_stays_text(tmp_path: Path) -> None:
    hostile(tmp_path / "run.json").save(tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text(encoding="utf8")
    template = Path(page.__file__).with_name("timeline_page.html").read_text(encoding="utf8")
    for tag in ("<script", "</script", "<!--", "<pre", "</pre"):
        assert text.count(tag) == template.count(tag), tag
    assert data(text)["traces"][0]["failure"] == f"{ANYTHING}\n{ANYTHING}"
    assert "http://" not in text.replace("&", "<") and "https://" not in text


def test_a_notebook_shows_the_same_page(both: tuple[Trace, Trace], tmp_path: Path) -> None:
    shown = both[0].show(both[1])
    frame = shown._repr_html_()
    source = re.search(r'srcdoc="([^"]*)"', frame)
    assert source is not None and html.unescape(source[1]) == str(shown)
    assert 'sandbox="allow-scripts"' in frame
    assert data(str(Trace().show()))["traces"][0]["ctas"] == []


def test_a_long_trace_is_thinned_and_the_page_says_so(
    both: tuple[Trace, Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bars(data(str(both[0].show())))
    monkeypatch.setattr(page, "MOST_BARS", len(whole) - 1)
    (shown,) = data(str(both[0].show()))["traces"]
    assert len(shown["ctas"]) == 1 and shown["note"].startswith("1 of 2 CTAs are included")
    monkeypatch.setattr(page, "MOST_BARS", 20)
    text = str(both[0].show())
    kept = bars(data(text))
    assert 10 < len(kept) <= 20 and "bars are included, the longest" in html.unescape(text)
    wait = max(whole, key=lambda bar: bar[1] - bar[0])
    assert wait in kept


@pytest.mark.thorough
def test_a_page_of_a_million_events_is_small(tmp_path: Path) -> None:
    trace = Trace()
    trace.events = [
        Event((n // 500_000, 0, 0), 0, "compute", n * 10, n * 10 + n % 9, "wait", {"mbar": "own"})
        for n in range(1_000_000)
    ]
    trace.save(tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text(encoding="utf8")
    assert len(text) < 5e6 and len(bars(data(text))) <= page.MOST_BARS
    assert "bars are included" in text


# ---- in a browser
@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


def check_undisturbed(chromium: Browser, file: Path) -> None:
    """Check that the page requested nothing but itself, and that no script failed."""
    requests = [
        event["params"]["request"]["url"]
        for event in chromium.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    wrong = {"Log.entryAdded", "Runtime.exceptionThrown"}
    assert requests == [file.as_uri()]
    assert wrong.isdisjoint(event["method"] for event in chromium.events)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width, height", [(1280, 800), (390, 844)])
def test_a_browser_zooms_searches_and_tells(
    chromium: Browser,
    both: tuple[Trace, Trace],
    tmp_path: Path,
    width: int,
    height: int,
    scheme: str,
) -> None:
    file = tmp_path / "run.html"
    timeline(*both, path=file)
    chromium.open(file, width, height, scheme)
    value = chromium.value
    value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert value("document.documentElement.scrollWidth") == width, "nothing is wider"
    paper = value("getComputedStyle(document.body).backgroundColor")
    assert (int(re.findall(r"\d+", paper)[0]) > 128) == (scheme == "light")
    assert value(
        "panels.every(panel => new Set(panel.canvas.getContext('2d').getImageData("
        "0, 0, panel.canvas.width, panel.canvas.height).data).size > 50)"
    ), "timelines are drawn"

    # point at the first wait
    at = value(
        "(() => { const [panel] = panels, box = panel.canvas.getBoundingClientRect();"
        "const bar = panel.rows[0].bars[0];"
        "return [box.left + x(panel, (bar[0] + bar[1]) / 2), box.top + panel.rows[0].top + 9]; })()"
    )
    place = {"x": at[0], "y": at[1]}
    press = {**place, "button": "left", "clickCount": 1}
    if width > 600:
        chromium.call("Input.dispatchMouseEvent", type="mouseMoved", **place)
        assert "waiting for data" in value("get('card').innerText")
        chromium.call("Input.dispatchMouseEvent", type="mousePressed", **press)
        chromium.call("Input.dispatchMouseEvent", type="mouseReleased", **press)
    else:
        chromium.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[place])
        chromium.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    card = value("get('card').innerText")
    for word in ("waiting for data", "ready[0] of a, b", "phase", "slot", "in pipe(a, b):"):
        assert word in card
    assert value("selected.bar === panels[0].rows[0].bars[0]")
    value("document.querySelector('#card button').click()")
    assert value("selected.row.name") == "copy in", "what ended the wait"

    # search, and go to the second of what is found
    value("get('all').click(); get('search').value = 'step 1'; get('search').oninput()")
    steps = sum(
        bar[4].get("step") == 1
        for panel in data(file.read_text(encoding="utf8"))["traces"]
        for row in panel["ctas"][0]["rows"]
        for bar in row["bars"]
    )
    assert value("matches.length") == steps > 4
    value("get('next').click(); get('next').click()")
    assert value("get('found').textContent") == f"2 of {steps}"

    # zoom by keys or fingers, then pan
    value("get('search').value = ''; search(); panels[0].canvas.focus()")
    if width > 600:
        chromium.call("Input.dispatchKeyEvent", type="keyDown", key="+", text="+")
    else:
        for kind, apart in (("touchStart", 20), ("touchMove", 60), ("touchMove", 120)):
            fingers = [{"x": 230 + side * apart / 2, "y": at[1], "id": side} for side in (-1, 1)]
            chromium.call("Input.dispatchTouchEvent", type=kind, touchPoints=fingers)
        chromium.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    assert value("view.to - view.from") < 0.6
    before = value("view.from")
    for kind, by in (("mousePressed", 0), ("mouseMoved", 40), ("mouseReleased", 40)):
        drag = {"x": 250 + by, "y": at[1], "button": "left", "buttons": 1, "clickCount": 1}
        chromium.call("Input.dispatchMouseEvent", type=kind, **drag)
    assert value("view.from") < before

    # the other CTA
    value("get('cta').selectedIndex = 1; get('cta').onchange()")
    assert "CTA (1, 0, 0)" in value("document.querySelector('h2').innerText")
    check_undisturbed(chromium, file)


def test_a_browser_goes_from_a_report_to_both_accesses(chromium: Browser, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    raced(file)
    chromium.open(file, 1280, 800, "light")
    report = chromium.value("document.querySelector('summary').innerText")
    assert "may still be reading it" in report
    for number, row in enumerate(("wg1 memory", "wg0 compute")):
        chromium.value(f"document.querySelectorAll('.failure button')[{number}].click()")
        assert chromium.value("selected.row.name") == row
    assert "tile[...] * 2" in chromium.value("get('card').innerText")
    check_undisturbed(chromium, file)


def test_a_browser_runs_nothing_from_a_hostile_trace(chromium: Browser, tmp_path: Path) -> None:
    hostile(tmp_path / "run.json").save(tmp_path / "run.html")
    chromium.open(tmp_path / "run.html", 390, 844, "dark")
    chromium.value("for (const row of panels[0].rows) jump(panels[0], row.name, 0, 0)")
    assert chromium.value("typeof hacked") == "undefined"
    assert chromium.value("document.querySelectorAll('script').length") == 2
    assert chromium.value("document.documentElement.scrollWidth") == 390
    check_undisturbed(chromium, tmp_path / "run.html")


def test_a_browser_without_scripts_shows_the_text(
    chromium: Browser, both: tuple[Trace, Trace], tmp_path: Path
) -> None:
    both[0].save(tmp_path / "run.html")
    chromium.call("Emulation.setScriptExecutionDisabled", value=True)
    chromium.open(tmp_path / "run.html", 390, 844, "light")
    text = chromium.value("document.body.innerText")
    chromium.call("Emulation.setScriptExecutionDisabled", value=False)
    assert "JavaScript is off" in text and "wg1 compute |" in text and "Search" not in text
