"""Ordinary shared-memory accesses on the simulated SM: races between warps, exact to the byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from numpipe.errors import PipelineRace, SimulationError
from numpipe.sim import simulate
from numpipe.sim.boxes import intervals
from tests.kernels.covering import examples
from tests.kernels.sim_pipelines import F16, each_warp, one

SEEDS = [None, *range(20)]
ROWS = np.arange(4)[:, None] * 256 + np.arange(16) * 16  # warp w: bytes [256 w, 256 w + 256)
VALUES = np.arange(1024, dtype=np.uint16).astype(np.uint8).reshape(4, 16, 16)


def run(*bodies, seed=None):
    simulate(
        lambda machine: bodies[machine.warpgroup](machine),
        grid=(1, 1, 1),
        warpgroups=len(bodies),
        smem_bytes=4096,
        seed=seed,
    )


def test_warps_read_what_they_wrote():
    def body(machine):
        machine.smem_write(ROWS, VALUES, "put")
        np.testing.assert_array_equal(machine.smem_read(ROWS, "get"), VALUES)
        machine.bar_sync(0, 128)
        np.testing.assert_array_equal(machine.smem_read(ROWS[::-1], "get"), VALUES[::-1])

    run(body)


@pytest.mark.parametrize("seed", SEEDS)
def test_warps_writing_the_same_bytes_race(seed):
    with pytest.raises(PipelineRace, match="write .put. writes .* while write .put."):
        run(
            lambda machine: machine.smem_write(
                np.zeros((4, 1), int), np.zeros((4, 1, 16), np.uint8), "put"
            ),
            seed=seed,
        )


def test_neighbouring_words_of_different_warpgroups_do_not_race():
    def body(machine):
        for value in range(3):
            one(machine, machine.store_word, 4 * machine.warpgroup, value)
            assert one(machine, machine.load_word, 4 * machine.warpgroup) == value

    for seed in range(10):
        run(body, body, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("release", ["warps", "one"])
def test_a_release_by_one_warp_does_not_speak_for_the_others(seed, release):
    def reader(machine):
        machine.mbar_init_at_entry(2048, 4, "consumed")
        machine.smem_write(ROWS, VALUES, "put")
        machine.smem_read(ROWS, "get")
        if release == "warps":
            each_warp(machine, machine.mbar_arrive, 2048)
        else:
            one(machine, machine.mbar_arrive, 2048, 4)

    def writer(machine):
        machine.mbar_init_at_entry(2048, 4, "consumed")
        machine.mbar_wait(2048, 0)
        one(machine, machine.smem_write, ROWS[3:], VALUES[3:], "overwrite")

    if release == "warps":
        run(reader, writer, seed=seed)
    else:
        with pytest.raises(PipelineRace, match=r"(?s)write \(overwrite\) .*warp 3 of warpgroup 0"):
            run(reader, writer, seed=seed)


@pytest.mark.parametrize(
    ("chunks", "values", "message"),
    [
        (ROWS + 4096, VALUES, r"SMEM\[4096:5120\), but the CTA has 4096 bytes"),
        (ROWS - 1024, VALUES, r"SMEM\[-1024:0\)"),
    ],
)
def test_accesses_outside_the_rules_are_refused(chunks, values, message):
    with pytest.raises(SimulationError, match=message):
        run(lambda machine: machine.smem_write(chunks, values, "put"))


def test_words_are_aligned_and_stored_by_one_lane():
    with pytest.raises(SimulationError, match="multiple of 4"):
        run(lambda machine: one(machine, machine.store_word, 2, 0))
    with pytest.raises(SimulationError, match="store_word is executed by 128 lanes"):
        run(lambda machine: machine.store_word(0, 0))


def test_direct_stores_reach_gmem():
    array = np.zeros((8, 8), F16)
    run(
        lambda machine: machine.gmem_write(
            array, (slice(2, 4), slice(0, 8)), np.ones((2, 8), F16), "direct"
        )
    )
    assert array.sum() == 16


# ---- the interval map against a byte-by-byte model -----------------------------------------------
ACCESS = st.tuples(st.sampled_from("rwb"), st.integers(0, 1), st.integers(0, 15), st.integers(1, 6))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(ACCESS, max_size=30))
@example([("w", 0, 0, 1), ("r", 0, 0, 2)])
def test_segments_agree_with_a_model_of_every_byte(accesses):
    """Two warpgroups access chunks; "b" is a barrier between them.

    A race in the model must be one in the simulator.
    """
    writer: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    expected = None
    for number, (kind, agent, first, length) in enumerate(accesses):
        words = range(first, min(first + length, 16))
        if kind == "b":
            writer = dict.fromkeys(writer, -1)
            readers = {}
        elif kind == "r":
            if any(w not in writer or writer[w] not in (-1, agent) for w in words):
                expected = number
                break
            for w in words:
                readers.setdefault(w, set()).add(agent)
        else:
            if any(
                writer.get(w, -1) not in (-1, agent) or readers.get(w, set()) - {agent}
                for w in words
            ):
                expected = number
                break
            for w in words:
                writer[w] = agent
                readers.pop(w, None)
    reached = []

    def body(machine):
        for number, (kind, agent, first, length) in enumerate(accesses):
            if kind == "b":
                machine.bar_sync(0, 256)
            elif agent == machine.warpgroup:
                reached.append(number)
                chunks = 16 * np.arange(first, min(first + length, 16))[None, :]
                if kind == "r":
                    one(machine, machine.smem_read, chunks, "r")
                else:
                    one(
                        machine,
                        machine.smem_write,
                        chunks,
                        np.zeros((*chunks.shape, 16), np.uint8),
                        "w",
                    )

    if expected is None:
        run(body, body)
    else:
        with pytest.raises(PipelineRace):
            run(body, body)


def test_touching_intervals_merge():
    assert intervals(np.array([[32, 0], [16, 100]]), 16) == ((0, 48), (100, 116))
    assert intervals(np.array([], int), 16) == ()
