"""Events of a simulated run, and the text timeline."""

from __future__ import annotations

import itertools
import re

import pytest

from numpipe.sim import Costs, Trace
from tests.kernels.sim_pipelines import Gemm


@pytest.fixture(scope="module")
def traced():
    gemm, trace = Gemm(n=256, k=640, slots=4), Trace()
    gemm.run(trace=trace)
    return trace


def test_the_timeline_has_a_row_for_each_warpgroup_and_unit(traced):
    head, *rows, legend = traced.timeline(width=80).splitlines()
    assert re.fullmatch(r"CTA \(0, 0, 0\): \d+ cycles, \d+ a column", head)
    names = [row.split("|")[0].strip() for row in rows]
    assert names == [
        "wg0 compute",
        "wg1 compute",
        "wg2 memory",
        "copy in",
        "copy out",
        "tensor core",
    ]
    assert all(len(row) <= 80 + len("wg0 compute |") for row in rows)
    wg0, _, wg2, copy_in, copy_out, tensor = (row.split("|")[1] for row in rows)
    assert wg0.startswith("-") and "." in wg0[:20], "compute waits for the first tiles"
    assert "#" in wg0 and "S" in wg0.rstrip("- ")[-3:], "then computes, and stores at the end"
    assert "#" not in wg2 and "L" in wg2 and "." in wg2, (
        "the memory role loads and waits for free slots"
    )
    assert set(copy_in) <= set("L ") and set(copy_out) <= set("S ")
    assert {"0", "1"} <= set(tensor), "both warpgroups share the tensor core"
    assert "L load" in legend and "# compute" in legend


def test_every_cta_has_a_timeline_of_its_own(traced):
    assert traced.timeline(cta=(1, 0, 0)).startswith("CTA (1, 0, 0)")
    with pytest.raises(ValueError, match=r"no events of CTA \(7, 0, 0\)"):
        traced.timeline(cta=(7, 0, 0))
    assert Trace().timeline() == "no events"


def test_waits_name_their_barrier_phase_and_step(traced):
    wait = traced.of("wait", cta=(0, 0, 0))[0]
    assert wait.end > wait.start and wait.details == {
        "mbar": "ready[0] of a, b @ gemm.py:41",
        "phase": 0,
        "step": 0,
        "statement": wait.details["statement"],
    }
    assert wait.details["statement"].endswith("machine.mbar_wait(self.ready(slot), phase, step)")


def test_units_serve_one_at_a_time_and_take_what_the_model_says(traced):
    costs = Costs()
    products = traced.of("mma", cta=(0, 0, 0))
    assert len(products) == 2 * 10
    assert all(e.end - e.start == 4 * 128 // 2 for e in products), "m64n128k16 takes 64 cycles"
    loads = traced.of("load", cta=(0, 0, 0))
    assert len(loads) == 2 * 10
    assert all(e.details["port_until"] - e.start == 16384 // costs.tma_bytes for e in loads)
    for events, end in ((products, lambda e: e.end), (loads, lambda e: e.details["port_until"])):
        ordered = sorted(events, key=lambda e: e.start)
        assert all(end(a) <= b.start for a, b in itertools.pairwise(ordered))


def test_no_product_starts_before_its_operands_have_landed(traced):
    landed = [e.end for e in traced.of("load", cta=(0, 0, 0))][1::2]
    for warpgroup in (0, 1):
        starts = [e.start for e in traced.of("mma", cta=(0, 0, 0)) if e.warpgroup == warpgroup]
        assert all(start >= land for start, land in zip(starts, landed, strict=True))


def test_more_slots_take_fewer_cycles():
    def cycles(slots):
        trace = Trace()
        Gemm(k=1024, slots=slots).run(trace=trace)
        return max(e.end for e in trace.events)

    assert cycles(1) > 1.3 * cycles(2) > 1.3 * cycles(4)
