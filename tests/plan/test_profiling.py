"""Profiles without a GPU: what is compiled in, how a buffer is decoded, and the same events in the
simulator."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams, Trace, ds
from numpipe.compile.check import gate
from numpipe.launch.profiles import trace_of
from numpipe.plan.profiling import EVENT_BYTES, KINDS, PART_BYTES, buffer_bytes, control, parts

ROOM = 6


@numpipe.kernel(grid=2, compiler_params=CompilerParams(profile_space=ROOM, profile_dir="unused"))
def doubled(a, c):
    """Compute c = 2 a for tiles of 64 x 128 with two steps each."""
    for (m,) in numpipe.tiles(a.shape[0] // 64):
        with numpipe.region("tile"):
            pipe = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (m, k)),))
            for (k,), (tile,) in pipe(a):
                with numpipe.region("step"):
                    value = tile[...]
                    c[ds(m * 64, 64), ds(k * 64, 64)] = value + value


def operand(rows: int = 256) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, 128), np.float32)


# ---- what is compiled in -------------------------------------------------------------------------
@pytest.mark.variants(1)
@pytest.mark.parametrize("example", ["gemm", "gemm_single"])
def test_a_profile_is_in_the_code_where_it_is_asked_for_and_nowhere_else(example: str) -> None:
    from importlib import import_module

    kernel = import_module(example).matmul
    args = [ArrayType((1024, 1024), np.dtype(np.float16))] * 2
    plain = kernel.inspect("ptx", *args)
    assert not re.search("np_profile|np_used|%clock|globaltimer", plain)
    recording = numpipe.Kernel(
        kernel.function,
        replace(
            kernel.options, compiler_params=CompilerParams(profile_space=100, profile_dir="unused")
        ),
    )
    built = recording.compiled(*args)
    assert built.image.resources.clean and recording.inspect("gate", *args) == ()
    ptx = built.ptx
    assert ptx.count("np_profile[") == 1
    stores = [line for line in ptx.splitlines() if "st.global.v4.u32 [at]" in line]
    assert len(stores) >= 4 and all("@np_used st.global.v4.u32 [at]" in line for line in stores)


# ---- decoding of a buffer --------------------------------------------------------------------
def event(kind: str, step: int, clock: int, ring: int = 0) -> tuple[int, int, int]:
    return KINDS.index(kind) | ring << 8, step, clock


def part(
    events: list[tuple[int, int, int]],
    happened: int | None = None,
    sm: int = 7,
    begin: int = 1000,
    end: int = 3000,
) -> bytes:
    """Return the part of a warpgroup whose clock ran from 50 000 to 54 000."""
    head = struct.pack(
        "<IIQQQQ24x", len(events) if happened is None else happened, sm, begin, 50_000, end, 54_000
    )
    body = b"".join(struct.pack("<IIQ", *each) for each in events)
    return head + body.ljust(ROOM * EVENT_BYTES, b"\xff")


EMPTY = bytes(PART_BYTES + ROOM * EVENT_BYTES)


def test_clocks_become_nanoseconds_of_the_timer() -> None:
    memory = (
        part([event("wait", 3, 50_000), event("compute", 3, 52_000)])
        + EMPTY
        + EMPTY
        + part([], begin=1100)
    )
    first, other = parts(memory, 2, ROOM, 8)
    assert (first.cta, first.warpgroup, first.sm, first.lost) == (0, 0, 7, 0)
    assert [(m.kind, m.step, m.time) for m in first.moments] == [
        ("wait", 3, 1000.0),
        ("compute", 3, 2000.0),
    ]
    assert (other.cta, other.warpgroup, other.moments) == (1, 1, ())
    # CTAs that were not launched write nothing
    assert parts(memory + b"\x7f" * len(memory), 2, ROOM, 2) == [first, other]


def test_what_has_no_room_is_counted() -> None:
    [found] = parts(
        part([event("release", k, 50_000) for k in range(ROOM)], happened=ROOM + 5), 1, ROOM, 8
    )
    assert (len(found.moments), found.lost) == (ROOM, 5)


def test_the_control_block_and_the_size_of_the_buffer() -> None:
    assert struct.unpack("<QII", control(0x7F0012345678, 8, 100)) == (0x7F0012345678, 8, 100)
    assert buffer_bytes(3, 100, ctas=2) == 6 * (64 + 1600)


def built() -> Any:
    a = operand()
    return doubled.compiled(a, a)


@pytest.mark.thorough
def test_a_buffer_becomes_the_events_of_the_simulated_sm() -> None:
    unit, image = built().unit, built().image
    ring = next(iter(unit.rings.values()))
    compute = part(
        [
            event("region begin", 0, 50_100),
            event("wait", 0, 50_200, ring.index),
            event("compute", 0, 50_600, ring.index),
            event("store begin", 0, 51_000),
            event("store end", 0, 51_400),
            event("release", 0, 52_000, ring.index),
        ],
        happened=ROOM + 1,
    )
    memory = part(
        [
            event("tile begin", 2, 50_000),
            event("fill", 0, 50_020, ring.index),
            event("issue", 0, 50_040, ring.index),
            event("issued", 0, 50_080, ring.index),
        ]
    )
    trace = trace_of(image, compute + memory + EMPTY * 2, (2, 1, 1))
    assert (trace.clock, trace.lost, trace.sms) == ("ns", 1, {(0, 0, 0): 7})
    seen = {
        (e.warpgroup, e.kind, e.start, e.end, e.details.get("mbar"))
        for e in trace.events
        if e.kind != "note"
    }
    assert seen == {
        (0, "wait", 100, 300, f"ready[0] of {ring.name}"),
        (0, "write", 500, 700, None),
        (0, "arrive", 1000, 1000, f"consumed[0] of {ring.name}"),
        (0, "end", 2000, 2000, None),
        (1, "wait", 10, 20, f"consumed[0] of {ring.name}"),
        (1, "issue", 20, 40, None),
        (1, "end", 2000, 2000, None),
    }
    notes = [
        (e.warpgroup, e.details["event"], e.details.get("region"), e.details.get("number"))
        for e in trace.of("note")
    ]
    assert (0, "region begin", unit.regions[0], None) in notes and (
        1,
        "tile begin",
        None,
        2,
    ) in notes
    assert trace_of(image, EMPTY * 4, (2, 1, 1)).events == []
    assert {e.cta for e in trace_of(image, EMPTY * 2 + compute + memory, (1, 2, 1)).events} == {
        (0, 1, 0)
    }
    assert trace_of(image, EMPTY * 2 + compute + memory, (1, 1, 1)).events == [], (
        "of an earlier launch with more CTAs"
    )


@numpipe.kernel(
    grid=numpipe.persistent(1),
    semaphores=4,
    compiler_params=CompilerParams(profile_space=ROOM, profile_dir="unused"),
)
def exchanged(x, y, ready):
    other = 1 - numpipe.axis_index("gpu")
    numpipe.peer(y, other)[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]
    numpipe.signal(ready.at[3], other)
    numpipe.wait(ready.at[3], 1)


@pytest.mark.variants(0, thorough=1)
@pytest.mark.parametrize("profiled", [True, False])
def test_a_wait_for_a_semaphore_is_recorded_in_both_roles(profiled: bool) -> None:
    block = ArrayType((64, 64), np.float32)
    kernel = (
        exchanged
        if profiled
        else numpipe.Kernel(
            exchanged.function, replace(exchanged.options, compiler_params=CompilerParams())
        )
    )
    compiled = kernel.compiled(block, block, mesh=numpipe.Mesh.simulated(2))
    assert gate.findings(compiled) == ()
    events = re.findall(
        r"st\.global\.v4\.u32 \[at\]|AGAIN: ld\.acquire\.sys\S+ seen, \[%", compiled.ptx
    )
    around = [
        events[at - 1 : at + 2] for at, event in enumerate(events) if event.startswith("AGAIN")
    ]
    assert len(around) == 2
    assert all(each[::2] == ["st.global.v4.u32 [at]"] * 2 for each in around) == profiled
    if not profiled:
        return
    memory = part([event("await", 3, 50_200), event("awaited", 3, 51_000)])
    trace = trace_of(compiled.image, memory + part([]), (1, 1, 1))
    assert [(e.warpgroup, e.start, e.end, e.details) for e in trace.of("semaphore")] == [
        (0, 100, 500, {"semaphore": "ready[3]"})
    ]
    assert trace.of("note") == []


# ---- the simulated SM ----------------------------------------------------------------------------
def test_regions_of_a_simulated_run_nest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    a = operand()
    c, trace = np.zeros_like(a), Trace()
    doubled.simulate(a, c, trace=trace)
    np.testing.assert_array_equal(c, 2 * a)
    trace.save(tmp_path / "run.json")
    import json

    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    own = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (0, 1000)]
    assert [e["name"] for e in own if e["cat"] == "tile"] == ["tile 0", "tile 2"]
    steps, tiles = ([e for e in own if e["name"] == name] for name in ("step", "tile"))
    assert (len(steps), len(tiles)) == (4, 2)
    for number, step in enumerate(steps):
        around = tiles[number // 2]
        assert (
            around["ts"] <= step["ts"] and step["ts"] + step["dur"] <= around["ts"] + around["dur"]
        )


def test_outside_of_a_kernel_a_region_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="region only works inside a kernel"):
        numpipe.region("x")


def test_without_a_profile_there_is_none() -> None:
    assert numpipe.last_profile() is None
