"""Timelines as text and as pictures, from Python and from the command line."""

from __future__ import annotations

import dataclasses
import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, SpecError, Trace, ds, timeline
from numpipe import __main__ as command
from numpipe.traces.events import Event
from numpipe.traces.looks import LOOKS, PRODUCTS, look
from numpipe.traces.rows import rows_of
from tests.docs.test_docs import ROOT, run
from tests.kernels.kernels_for_tests import Config, operands
from tests.kernels.kernels_for_tests import gemm as tiled
from tests.kernels.profile_buffers import as_recorded, traced

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True, scope="module")
def simulated_only() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMPIPE_COMPILE_CHECK", "0")
        yield


@pytest.fixture(scope="module")
def traces() -> tuple[Trace, Trace]:
    """Return traces of a simulated run and of what a GPU would have recorded of it."""
    trace, unit = traced(
        tiled(ctas=2), *operands(256, 128, 256), cfg=Config(tm=128, tn=64, tk=64, slots=2)
    )
    return trace, as_recorded(trace, unit, (2, 1, 1), tick=32)


def words(file: Path) -> list[str]:
    """Return the texts in a picture."""
    return [
        "".join(text.itertext()).strip()
        for text in ElementTree.parse(file).getroot().iter(f"{SVG}text")
    ]


def test_a_wait_at_a_barrier_outside_of_pipelines_has_no_step() -> None:
    @numpipe.kernel(warp_specialized=False)
    def copied(x: Any, y: Any) -> None:
        tile, landed = numpipe.scratch((numpipe.SMEM((64, 64), x.dtype), numpipe.Barrier()))
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
        numpipe.barrier_wait(landed)
        y[ds(0, 64), ds(0, 64)] = tile[...]

    trace, x = Trace(), np.ones((64, 64), np.float32)
    copied.simulate(x, np.zeros_like(x), trace=trace)
    assert "step" not in trace.of("wait")[0].details
    [row] = rows_of(trace.events, lambda name: "compute" in name)
    assert not any(bar.label for bar in row.bars)


# ---- text
def test_text_is_the_timeline_of_the_trace(traces: tuple[Trace, Trace]) -> None:
    simulated, gpu = traces
    assert timeline(simulated) == simulated.timeline()
    assert timeline(simulated, cta=1, width=60) == simulated.timeline(60, (1, 0, 0))
    both = timeline(simulated, gpu, titles=["here", "there"])
    assert both == f"here: {simulated.timeline()}\n\nthere: {gpu.timeline()}"


def test_the_text_of_a_gpu_shows_what_its_warpgroups_computed(traces: tuple[Trace, Trace]) -> None:
    simulated, gpu = traces
    rows = dict(line.split("|") for line in gpu.timeline().splitlines() if "|" in line)
    assert [name.strip() for name in rows] == ["wg0 compute", "wg1 compute", "wg2 memory"]
    wg0, _, wg2 = rows.values()
    assert (
        wg0.count("#") > 18 and "S" in wg0 and "." in wg0 and "#" not in wg2 and wg2.count("L") >= 4
    )
    same = dict(line.split(" |") for line in simulated.timeline().splitlines() if "|" in line)[
        "wg0 compute"
    ]
    assert sum(a == b for a, b in zip(wg0, same, strict=False)) > 70, (
        "as simulated, where it is made from other events"
    )


@numpipe.kernel(out_type=lambda x: numpipe.ArrayType((x.shape[0],), np.float32))
def row_sums(x, y, *, slots: numpipe.Static):
    """Sum rows without products: the compute role runs ordinary instructions."""
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(x.shape[1] // 64,),
        max_concurrent_steps=slots,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
    )
    for _, (tile,) in pipe(x):
        acc = acc + tile[...]
    y[ds(0, 64)] = acc.sum(axis=1)


@pytest.mark.parametrize("slots", [1, 3])
def test_the_text_and_the_summary_agree(slots: int) -> None:
    trace = Trace()
    row_sums.simulate(np.ones((64, 512), np.float32), slots=slots, trace=trace)
    summary, width = trace.summary(0), 400
    head, *rows = trace.timeline(width).splitlines()
    assert head.startswith(f"CTA (0, 0, 0): {summary.total:.0f} cycles,"), (
        "both from the first event of the CTA"
    )
    for number, letter, kind in ((0, "#", "compute"), (0, ".", "data"), (1, ".", "slot")):
        shown = rows[number].split("|")[1].count(letter) / width
        assert shown == pytest.approx(summary[number].spent[kind] / summary.total, abs=0.04), (
            kind,
            rows[number],
        )
    assert summary[0].fraction("compute") > 0.1 and summary[1].fraction("slot") > 0.7


def test_a_window_and_some_rows(traces: tuple[Trace, Trace]) -> None:
    simulated, _ = traces
    head, *rows, _ = timeline(
        simulated, start=1000, end=2000, width=50, rows=["compute", "tensor core"]
    ).splitlines()
    assert head == "CTA (0, 0, 0): 1000 cycles from 1000 to 2000, 20 a column"
    assert [row.split("|")[0].strip() for row in rows] == [
        "wg0 compute",
        "wg1 compute",
        "tensor core",
    ]
    whole = simulated.timeline(width=simulated.events_of(0)[-1].end // 20, start=0)
    tensor = next(line for line in whole.splitlines() if line.startswith("tensor core")).split("|")[
        1
    ]
    assert sum(a == b for a, b in zip(rows[-1].split("|")[1], tensor[50:100], strict=False)) > 40


# ---- pictures
def test_a_picture_has_the_rows_the_steps_the_tiles_and_a_legend(
    traces: tuple[Trace, Trace], tmp_path: Path
) -> None:
    simulated, gpu = traces
    assert timeline(simulated, gpu, path=tmp_path / "two.svg") == str(tmp_path / "two.svg")
    found = words(tmp_path / "two.svg")
    assert found.count("wg0 compute") == found.count("wg2 memory") == 2, (
        "two traces under each other"
    )
    assert found.count("tensor core") == found.count("copy in") == 1, (
        "which only the simulated SM tells of"
    )
    assert {
        "simulated    CTA (0, 0, 0)",
        "GPU    CTA (0, 0, 0), SM 7",
        "cycles of the simulated SM",
        "ns",
    } <= set(found)
    legend = {
        "computing",
        "storing",
        "issuing copies",
        "waiting for data",
        "waiting for free slots",
        "products of wg0",
    }
    assert legend <= set(found)
    assert {"tile 0", "tile 2", "0·0", "3·1"} <= set(found), "tiles, and step·slot"
    timeline(simulated, gpu, path=tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "two.svg").read_bytes(), (
        "drawn again it is the same file"
    )


@pytest.mark.thorough
def test_the_longest_name_of_a_row_fits_next_to_the_rows(
    traces: tuple[Trace, Trace], tmp_path: Path
) -> None:
    from matplotlib.textpath import TextPath

    simulated, together = traces[0], Trace()
    together.events = [
        dataclasses.replace(event, gpu=gpu) for gpu in range(2) for event in simulated.events
    ]
    for trace, longest in ((simulated, "wg2 memory"), (together, "GPU 1 wg0 compute")):
        timeline(trace, path=tmp_path / "names.svg")
        assert longest in words(tmp_path / "names.svg")
        rows = re.search(r'<rect x="([\d.]+)"', (tmp_path / "names.svg").read_text(encoding="utf8"))
        assert (
            rows is not None
            and TextPath((0, 0), longest, size=8).get_extents().width < float(rows[1]) - 6
        )


def test_a_window_and_rows_of_a_picture(traces: tuple[Trace, Trace], tmp_path: Path) -> None:
    simulated, gpu = traces
    timeline(
        simulated,
        gpu,
        path=tmp_path / "part.svg",
        start=[1000, 1500],
        end=[1500, None],
        rows=["wg1", "memory"],
        cta=(1, 0, 0),
        titles=["A", "B"],
    )
    found = words(tmp_path / "part.svg")
    assert {
        "A    CTA (1, 0, 0)",
        "B    CTA (1, 0, 0), SM 8",
        "wg1 compute",
        "wg2 memory",
        "1200",
    } <= set(found)
    assert not {"wg0 compute", "tensor core", "copy in"} & set(found)
    assert not any(word.startswith("tile") for word in found), "bands are rows that may be left out"


def test_a_png_is_one(traces: tuple[Trace, Trace], tmp_path: Path) -> None:
    timeline(traces[1], path=tmp_path / "a.png", rows=["compute"], end=500)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_regions_are_bands_one_for_each_depth() -> None:
    def note(time: int, event: str, **details: Any) -> Event:
        return Event((0, 0, 0), 0, "compute", time, time, "note", {"event": event, **details})

    events = [
        note(0, "region begin", region="all"),
        note(5, "tile begin", number=3),
        note(10, "region begin", region="in"),
        note(20, "region end", region="in"),
        note(30, "region begin", region="in"),
        note(40, "region end", region="in"),
        note(50, "region end", region="all"),
        Event((0, 0, 0), 0, "compute", 60, 60, "end"),
    ]
    (row,) = rows_of(events, lambda name: True)
    assert [[(s.name, s.start, s.end) for s in band] for band in row.bands] == [
        [("3", 5, 50)],
        [("all", 0, 50)],
        [("in", 10, 20), ("in", 30, 40)],
    ]


def test_neighboring_bars_differ_in_grey_or_are_hatched() -> None:
    """Bars of a warpgroup, and products of neighbors on the tensor core, by CIE 1976 lightness (L*
    of 0 … 100)."""

    def lightness(face: str) -> float:
        red, green, blue = (
            ((int(face[n : n + 2], 16) / 255 + 0.055) / 1.055) ** 2.4 for n in (1, 3, 5)
        )
        return float(116 * np.cbrt(0.2126 * red + 0.7152 * green + 0.0722 * blue) - 16)

    kinds = [
        LOOKS[name] for name in ("compute", "load", "store", "issue", "data", "slot", "barrier")
    ]
    for number, (face, hatch, _) in enumerate(kinds):
        for other, hatched, _ in kinds[:number]:
            assert abs(lightness(face) - lightness(other)) > 15 or hatch != hatched
    faces = [look(f"wg{number}")[0] for number in range(len(PRODUCTS) + 1)]
    assert all(abs(lightness(a) - lightness(b)) > 15 for a, b in itertools.pairwise(faces))


def test_the_picture_in_the_docs_is_the_one_that_its_page_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(ROOT / "docs" / "timeline.md", tmp_path, gpu=False)
    assert words(tmp_path / "timeline.svg") == words(ROOT / "docs" / "timeline.svg"), (
        "draw it again: run the page's blocks, and move timeline.svg to docs"
    )


# ---- what is rejected
@pytest.mark.parametrize(
    "options, message",
    [
        ({"path": "x.pdf"}, r"timeline: path='x.pdf' ends in none of .html, .svg and .png"),
        (
            {"rows": ["tensorcore"]},
            "timeline: rows: 'tensorcore' is not one of compute, memory, storing, copy in",
        ),
        (
            {"titles": "one"},
            "timeline: titles must be a tuple or list, each a string or None, got 'one'",
        ),
        (
            {"start": [1, 2]},
            r"timeline: start=\[1, 2\]; one number, or one for each of the 1 traces",
        ),
        (
            {"path": "x.svg", "start": 900, "end": 800},
            "timeline: start=900 is not before end=800 cycles",
        ),
        ({"path": "x.svg", "rows": ["wg7"]}, "timeline: nothing to draw of simulated"),
        ({"cta": 5}, r"no events of CTA \(5, 0, 0\); there are \[\(0, 0, 0\), \(1, 0, 0\)\]"),
        ({"start": 900, "end": 800}, "start=900 is not before end=800 cycles"),
    ],
)
def test_an_invalid_drawing_is_refused(
    traces: tuple[Trace, Trace],
    options: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        timeline(traces[0], **options)
    with pytest.raises(SpecError, match="timeline: no trace given"):
        timeline(**options)


def test_without_matplotlib_the_error_names_the_extra(
    traces: tuple[Trace, Trace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SpecError, match=r"pip install 'numpipe\[plot\]'"):
        timeline(traces[0], path=tmp_path / "x.svg")
    assert timeline(traces[0]).startswith("CTA (0, 0, 0)"), "text needs none"


# ---- command line
@pytest.mark.thorough
def test_the_command_draws_files(
    traces: tuple[Trace, Trace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / name) for name in ("simulated.json", "gpu.json")]
    for trace, file in zip(traces, files, strict=True):
        trace.save(file)
    assert command.main(["timeline", *files, "--cta", "1", "--summary"]) == 0
    said = capsys.readouterr().out
    assert (
        said.startswith(timeline(*traces, cta=1)) and f"{files[1]}: {traces[1].summary(1)}" in said
    )
    out = str(tmp_path / "both.svg")
    assert (
        command.main(
            [
                "timeline",
                *files,
                "--out",
                out,
                "--start",
                "100",
                "--end",
                "900",
                "1000",
                "--rows",
                "compute",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out == out + "\n" and words(Path(out)).count("wg0 compute") == 2
    assert command.main(["timeline", files[0], "--cta", "0", "9", "0"]) == 1
    assert "no events of CTA (0, 9, 0)" in capsys.readouterr().err
    assert command.main(["timeline", str(tmp_path / "none.json")]) == 1
    assert re.search(r"none.json' cannot be read", capsys.readouterr().err)


def test_a_trace_is_read_and_drawn_as_text_without_heavy_packages(
    traces: tuple[Trace, Trace], tmp_path: Path
) -> None:
    traces[1].save(tmp_path / "gpu.json")
    code = (
        f"import sys, numpipe; numpipe.timeline({str(tmp_path / 'gpu.json')!r}); "
        "print({'greenlet', 'numba', 'matplotlib'} & {*sys.modules})"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "set()\n"
    )
    assert numpipe.timeline is timeline


def test_rows_end_where_a_run_failed_and_a_deadlock_shows_who_waits() -> None:
    @numpipe.kernel(num_compute_wgs=2, warp_specialized=False)
    def waits(x: Any, y: Any) -> None:
        full, free = numpipe.scratch((numpipe.Barrier(), numpipe.Barrier()))
        if numpipe.axis_index("wg") == 1:
            numpipe.barrier_wait(free)
        else:
            numpipe.barrier_wait(full)

    @numpipe.kernel(num_compute_wgs=2, warp_specialized=False)
    def races(x: Any, y: Any) -> None:
        tile, full = numpipe.scratch((numpipe.SMEM((64, 64), x.dtype), numpipe.Barrier()))
        if numpipe.axis_index("wg") == 1:
            numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, full)
            y[ds(0, 64), ds(0, 64)] = tile[...]

    x = np.zeros((64, 64), np.float32)
    for kernel, row in ((waits, r"\.{72}"), (races, r"[-L]{1,9}")):
        trace = Trace()
        with pytest.raises(numpipe.SimulationError):
            kernel.simulate(x, x.copy(), trace=trace)
        assert re.search(rf"^wg1 compute \|{row}$", trace.timeline(72), re.MULTILINE), (
            trace.timeline(72)
        )
