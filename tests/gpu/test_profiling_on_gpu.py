"""Profiles of kernels on the GPU contain every step of every pipeline, in an order that the
protocol allows."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import copy_pipeline
import gemm_single
import numpy as np
import pytest

import numpipe
from gemm import Config, matmul
from numpipe import BlockSpec, CompilerParams, Trace, ds
from tests.traces.legal import check_legal

STEPS = 6


def recording(kernel: Any, tmp_path: Path, room: int = 2000) -> Any:
    params = CompilerParams(profile_space=room, profile_dir=str(tmp_path))
    return numpipe.Kernel(
        kernel.function, dataclasses.replace(kernel.options, compiler_params=params)
    )


def product(rows: int = 600, columns: int = 700, depth: int = 320) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return tuple(
        rng.standard_normal((n, depth), np.float32).astype(np.float16) for n in (rows, columns)
    )  # type: ignore[return-value]


def notes(trace: Trace, cta: tuple[int, int, int], warpgroup: int) -> list[tuple[str, Any]]:
    return [
        (e.details["event"], e.details.get("step"))
        for e in trace.of("note", cta)
        if e.warpgroup == warpgroup and e.details["event"] in ("fill", "compute", "release")
    ]


def test_every_step_is_there_as_the_simulator_has_it(tmp_path: Path) -> None:
    a, b = product()
    kernel = recording(matmul, tmp_path)
    np.testing.assert_array_equal(
        kernel(a, b, target="gpu", cfg=Config()), matmul(a, b, target="gpu")
    )
    trace = numpipe.last_profile()
    assert (
        trace is not None
        and trace.lost == 0
        and len(trace.sms) == 8 == len({e.cta for e in trace.events})
    )
    simulated = Trace()
    # two tiles: one for each simulated CTA
    matmul.simulate(*product(256, 256, 320), trace=simulated)
    for cta in ((0, 0, 0), (1, 0, 0)):
        for warpgroup in range(3):
            assert notes(trace, cta, warpgroup) == notes(simulated, cta, warpgroup), (
                cta,
                warpgroup,
            )
    for cta in trace.sms:  # one SM, one clock
        filled = {e.details["step"]: e.start for e in trace.of("issue", cta)}
        for e in trace.of("note", cta):
            if e.details["event"] == "compute":
                assert filled[e.details["step"]] <= e.start
    assert all(event.start <= event.end for event in trace.events)


def test_the_schedule_is_a_legal_one_and_what_the_simulator_did(tmp_path: Path) -> None:
    """Check the events against the protocol, also for kernels without a memory role and with
    outputs."""
    # two tiles: one for each simulated CTA
    kernel, small = recording(matmul, tmp_path), product(256, 256, 320)
    for operands in (product(1500, 1600, 640), small):
        kernel(*operands, target="gpu")
        trace = numpipe.last_profile()
        assert trace is not None and trace.lost == 0
        check_legal(trace)
    simulated = Trace()
    matmul.simulate(*small, trace=simulated)
    check_legal(trace, simulated)
    for made, args in ((gemm_single.matmul, product()), (copy_pipeline.copy, product()[:1])):
        recording(made, tmp_path)(*args, target="gpu")
        trace = numpipe.last_profile()
        assert trace is not None and trace.of("note")
        check_legal(trace)


def test_the_file_is_there_after_a_call_on_host_arrays(tmp_path: Path) -> None:
    a, b = product()
    kernel = recording(matmul, tmp_path)
    for number in range(2):
        kernel(a, b, target="gpu")
        events = json.loads((tmp_path / f"matmul_{number}.json").read_text())["traceEvents"]
        names = {e["name"] for e in events if e["ph"] == "X"}
        assert {"fill", "compute", "release", "write store", "tile 0"} <= names


def test_device_arrays_are_recorded_too_and_fetched_when_asked(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    a, b = (torch.from_numpy(array).cuda() for array in product())
    kernel = recording(matmul, tmp_path)
    first, second = kernel(a, b), kernel(a, b)
    assert not list(tmp_path.iterdir())
    trace = numpipe.last_profile()
    assert (
        trace is not None
        and [path.name for path in tmp_path.iterdir()] == ["matmul_1.json"]
        and torch.equal(first, second)
    )
    assert numpipe.last_profile() is trace


@numpipe.kernel
def regions(a, c):
    with numpipe.region("all"):
        pipe = numpipe.pipeline(
            grid=(a.shape[1] // 64,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )
        for (k,), (tile,) in pipe(a):
            with numpipe.region("step"):
                value = tile[...]
                c[ds(0, 64), ds(k * 64, 64)] = value + value


def test_regions_nest_and_events_without_room_are_counted(tmp_path: Path) -> None:
    a = np.random.default_rng(0).standard_normal((64, 64 * STEPS), np.float32)
    for room, lost in ((1000, False), (8, True)):
        c = np.zeros_like(a)
        recording(regions, tmp_path, room)(a, c, target="gpu")
        np.testing.assert_array_equal(c, 2 * a)
        trace = numpipe.last_profile()
        assert trace is not None and (trace.lost > 0) == lost
        found = [
            e.details["region"]
            for e in trace.of("note")
            if e.warpgroup == 0 and e.details["event"] == "region begin"
        ]
        assert found[:2] == ["all", "step"] and (lost or found == ["all"] + ["step"] * STEPS)
