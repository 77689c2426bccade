"""Exploration of all schedules, compared with every order of small programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, reject, settings

from numpipe.core.machine import TensorMap
from numpipe.sim import exploration, footprints
from numpipe.sim.chosen_schedules import Directed
from tests.kernels.covering import examples
from tests.kernels.every_order import EveryOrder, class_of, explored, outcome
from tests.kernels.sim_pipelines import one

X = np.arange(64 * 8, dtype=np.float16).reshape(64, 8)
Program = tuple[tuple[tuple[Any, ...], ...], ...]
OPERATIONS = (
    [("arrive", b) for b in range(2)]
    + [("wait", b, phase) for b in range(2) for phase in range(2)]
    + [("test", 0), ("test", 1)]
    + [
        ("sync", 1),
        ("pass", 1),
        ("store", 0),
        ("store", 1),
        ("load", 0),
        ("load", 1),
        ("add", 0),
        ("max", 0),
        ("copy", 0),
        ("out", 0),
        ("drain", 0),
        ("dec", 96),
        ("inc", 200),
    ]
)


def made(
    program: Program, counts: tuple[int, ...]
) -> Callable[[], tuple[Callable[[Any], None], Any]]:
    """Return a function that makes a body with a row of operations per warpgroup, and their
    results."""

    def make() -> tuple[Callable[[Any], None], Any]:
        answers: dict[int, list[int]] = {number: [] for number in range(len(program))}
        y = np.zeros_like(X)
        words = np.zeros(2, np.int32)

        def body(machine: Any) -> None:
            for number, count in enumerate(counts):
                machine.mbar_init_at_entry(8 * number, count, f"bar{number}")
            for operation, which, *more in program[machine.warpgroup]:
                if operation == "arrive":
                    one(machine, machine.mbar_arrive, 8 * which)
                elif operation == "wait":
                    machine.mbar_wait(8 * which, *more)
                elif operation == "test":
                    answers[machine.warpgroup].append(int(machine.mbar_test(8 * which, 0)))
                elif operation == "sync":
                    machine.bar_sync(which, 256)
                elif operation == "pass":
                    machine.bar_arrive(which, 256)
                elif operation == "store":
                    one(machine, machine.store_word, 128 + 4 * which, machine.warpgroup)
                elif operation == "load":
                    answers[machine.warpgroup].append(machine.load_word(128 + 4 * which))
                elif operation in ("add", "max"):
                    machine.gmem_write(
                        words, (slice(0, 1),), np.int32(3 + machine.warpgroup), "words", operation
                    )
                elif operation == "copy":

                    def load() -> None:
                        machine.mbar_arrive_expect_tx(8, X.nbytes)
                        machine.tma_load(1024, TensorMap(X, X.shape, 0, "x"), (0, 0), 8)

                    one(machine, load)
                elif operation == "out":

                    def store() -> None:
                        machine.tma_store(TensorMap(y, y.shape, 0, "y"), (0, 0), 1024)
                        machine.bulk_commit()

                    one(machine, store)
                elif operation == "drain":
                    one(machine, lambda: machine.bulk_wait(0, read=False))
                else:
                    machine.setmaxnreg(operation, which)

        return body, lambda: (str(answers), y.tobytes(), words.tobytes())

    return make


def compare(make: Any, **options: Any) -> None:
    options |= {"smem_bytes": 4096, "registers": 128}
    every = explored(make, EveryOrder, 600, **options)
    if every is None:
        reject()
    once = explored(make, **options)
    assert once is not None
    assert {outcome(each) for each in once} == {outcome(each) for each in every}
    ended = [
        class_of(each)
        for each in once
        if each.error is None or each.error.report.hazard in ("deadlock", "too-few-arrivals")
    ]
    assert len(set(ended)) == len(ended), "no class twice"
    classes = {class_of(each) for each in every if each.error is None}
    assert {class_of(each) for each in once if each.error is None} == classes


REMOTE = (
    [("send", b) for b in range(2)]
    + [("wait", b, phase) for b in range(2) for phase in range(2)]
    + [("test", 0), ("meet", 0), ("here", 0), ("there", 0), ("arrive", 0)]
)


def made_of_ctas(program: Program, counts: tuple[int, ...]) -> Callable[[], tuple[Any, Any]]:
    """The same for a warpgroup of each CTA of a cluster."""

    def make() -> tuple[Callable[[Any], None], Any]:
        answers: dict[int, list[int]] = {rank: [] for rank in range(len(program))}

        def body(machine: Any) -> None:
            rank = machine.rank
            for number, count in enumerate(counts):
                machine.mbar_init_at_entry(8 * number, count, f"bar{number}")
            for operation, which, *more in program[rank]:
                if operation == "send":
                    one(
                        machine, machine.mbar_arrive_remote, machine.map_shared(8 * which, 1 - rank)
                    )
                elif operation == "arrive":
                    one(machine, machine.mbar_arrive, 8 * which)
                elif operation == "wait":
                    machine.mbar_wait(8 * which, *more)
                elif operation == "test":
                    answers[rank].append(int(machine.mbar_test(8 * which, 0)))
                else:
                    if operation in ("meet", "here"):
                        machine.cluster_arrive()
                    if operation in ("meet", "there"):
                        machine.cluster_wait()

        return body, lambda: str(answers)

    return make


programs = st.lists(
    st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=4).map(tuple), min_size=2, max_size=3
).map(tuple)


@settings(max_examples=examples(100), deadline=None)
@given(programs, st.tuples(st.integers(1, 3), st.integers(1, 3)))
# the other's reduction is not the newest, and of another kind
@example(((("add", 0), ("max", 0)), (("add", 0),)), (1, 1))
@example(((("add", 0),), (("add", 0), ("max", 0))), (1, 1))
# the second arrival fails after the wait, and the wait after the second arrival
@example(((("arrive", 0), ("test", 0), ("arrive", 0)), (("wait", 0, 0),)), (1, 1))
# two waits for one phase may be missed: the report is of the same one in every order
@example(
    (
        (("arrive", 0), ("wait", 0, 0), ("test", 0), ("arrive", 0)),
        (("wait", 0, 0), ("wait", 0, 1)),
    ),
    (1, 1),
)
# tests that fail, and then an arrival, although everybody else waits
@example(
    ((("test", 0), ("test", 0), ("arrive", 0)), (("arrive", 0), ("arrive", 0), ("wait", 0, 0))),
    (3, 1),
)
def test_it_finds_what_every_order_finds_and_no_class_twice(
    program: Any, counts: tuple[int, ...]
) -> None:
    compare(made(program, counts), grid=(1, 1, 1), warpgroups=len(program))


@settings(max_examples=examples(100), deadline=None)
@given(
    st.tuples(*[st.lists(st.sampled_from(REMOTE), min_size=1, max_size=5).map(tuple)] * 2),
    st.tuples(*[st.integers(1, 2)] * 2),
)
def test_the_same_of_clusters(program: Any, counts: tuple[int, ...]) -> None:
    compare(made_of_ctas(program, counts), grid=(2, 1, 1), warpgroups=1, cluster=(2, 1, 1))


CONFLICTS = {  # which operations are dependent, and how many classes there are
    "a test and an arrival": ((("arrive", 0),), (("test", 0),), 2),
    "a test and two arrivals": ((("arrive", 0),), (("arrive", 0),), (("test", 0),), 4),
    "arrivals of one phase": ((("arrive", 0), ("wait", 0, 0)), (("arrive", 0), ("wait", 0, 0)), 1),
    "reductions of one kind": ((("add", 0),), (("add", 0),), 1),
    "a copy that others wait for": ((("copy", 0), ("wait", 1, 0)), (("wait", 1, 0),), 1),
    "registers that are given back": ((("dec", 56),), (("inc", 200),), 1),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_equivalent_schedules_are_of_one_class(name: str) -> None:
    *program, classes = CONFLICTS[name]
    count = sum(operations[0][0] == "arrive" for operations in program) or 1
    found = explored(
        made(tuple(program), (count, 1)),
        grid=(1, 1, 1),
        warpgroups=len(program),
        smem_bytes=4096,
        registers=128,
    )
    assert found is not None and len(found) == classes


def conflict_without_tests(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return footprints.TEST not in (a[0], b[0])


@pytest.mark.parametrize(
    ("module", "name", "less", "program"),
    [
        (footprints, "_conflict", conflict_without_tests, ((("test", 0),), (("arrive", 0),))),
        (footprints, "_overlap", lambda a, b: False, ((("store", 0),), (("store", 0),))),
        (exploration, "wakes", footprints.dependent, ((("arrive", 0),), (("arrive", 0),))),
        (
            exploration,
            "enables",
            lambda first, later: True,
            ((("arrive", 0), ("test", 0)), (("arrive", 1), ("test", 0))),
        ),
    ],
)
def test_a_relation_that_lacks_a_dependence_is_found_out(
    module: Any, name: str, less: Any, program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, less)
    with pytest.raises(AssertionError):
        compare(made(program, (1, 1)), grid=(1, 1, 1), warpgroups=len(program))


def test_a_second_arrival_that_comes_before_the_first_is_not_forgotten_at_the_ctas_end() -> None:
    make = made_of_ctas(((("wait", 0, 0),), (("send", 0), ("send", 1))), (1, 1))
    found = explored(
        make, grid=(2, 1, 1), warpgroups=1, cluster=(2, 1, 1), smem_bytes=4096, registers=128
    )
    assert found is not None
    assert {one.error and one.error.report and one.error.report.hazard for one in found} == {
        "exit-in-flight"
    }


def test_words_that_begin_before_an_array_belong_to_it() -> None:
    memory = np.zeros(16, np.int16)
    memory = memory[memory.ctypes.data // 2 % 2 :][:12]  # whole words
    scheduler = Directed(lambda step, enabled, usual: usual)
    scheduler.arrays([memory[1:]])
    scheduler.touch_array(memory[1:], (slice(0, 1),), "w")
    scheduler.touch_array(memory.view(np.int32), (slice(0, 1),), "w")
    assert list(scheduler._now.footprint.memory) == [("array", 0)]
