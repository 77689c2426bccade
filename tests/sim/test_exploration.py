"""Exploration of all schedules: compared with every order of small programs, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings

from numpipe.core.machine import TensorMap
from numpipe.sim import simulate
from tests.kernels.covering import examples
from tests.kernels.every_order import EveryOrder, class_of, explored, outcome
from tests.kernels.sim_pipelines import one

X = np.arange(64 * 8, dtype=np.float16).reshape(64, 8)
OPERATIONS = (
    [("arrive", b) for b in range(2)] + [("wait", b, phase) for b in range(2) for phase in range(2)] + [("test", b) for b in range(2)]
    + [("sync", 1), ("pass", 1), ("store", 0), ("store", 1), ("load", 0), ("load", 1), ("add", 0), ("max", 0), ("copy", 0),
       ("out", 0), ("drain", 0), ("dec", 96), ("inc", 200)])


def made(program: tuple[tuple[tuple[Any, ...], ...], ...], counts: tuple[int, ...]) -> Callable[[], tuple[Callable[[Any], None], Any]]:
    """Return what makes a body that runs a row of operations in each warpgroup, and the answers that they got."""
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
                    machine.gmem_write(words, (slice(0, 1),), np.int32(3 + machine.warpgroup), "words", operation)
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


def compare(program: Any, counts: tuple[int, ...]) -> None:
    options = {"grid": (1, 1, 1), "warpgroups": len(program), "smem_bytes": 4096, "registers": 128}
    every = explored(made(program, counts), EveryOrder, 1500, **options)
    assume(every is not None)
    assert every is not None
    once = explored(made(program, counts), **options)
    assert once is not None
    assert {outcome(each) for each in once} == {outcome(each) for each in every}
    ended = [class_of(each) for each in once if each.error is None or each.error.report.hazard in ("deadlock", "too-few-arrivals")]
    assert len(set(ended)) == len(ended), "no class twice"
    classes = {class_of(each) for each in every if each.error is None}
    assert {class_of(each) for each in once if each.error is None} == classes


programs = st.lists(st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=4).map(tuple), min_size=2, max_size=3).map(tuple)


@settings(max_examples=examples(300), deadline=None)
@given(programs, st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_it_finds_what_every_order_finds_and_no_class_twice(program: Any, counts: tuple[int, ...]) -> None:
    compare(program, counts)
