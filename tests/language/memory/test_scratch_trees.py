"""Allocations in nested tuples and NamedTuples, including barriers, and types passed to
`run_scoped` by name."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pytest

import numpipe
from numpipe import SMEM, Barrier, CompileError, PipelineRace, ds

SEEDS = None, 1, 2
X = np.random.default_rng(0).integers(-3, 4, (64, 128)).astype(np.float16)
HALF = SMEM((64, 64), np.float16)


class Landing(NamedTuple):
    tile: Any
    landed: Any


class Pair(NamedTuple):
    left: Any
    right: Any


PAIR = Pair(Landing(HALF, Barrier()), Landing(HALF, Barrier()))


@pytest.fixture(autouse=True)
def simulated_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip compiling what is simulated, except in tests whose name mentions compiling; saves a
    second each."""
    if "compile" not in request.node.name:
        monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@numpipe.function
def load(x, column, landing):
    """Load, in a function that gets tile and barrier together."""
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(column, 64)], landing.tile, landing.landed)


@numpipe.kernel
def of_a_constant(x, y):
    pair = numpipe.scratch(PAIR)
    load(x, 0, pair.left)
    load(x, 64, pair.right)
    numpipe.barrier_wait(pair.left.landed)
    numpipe.barrier_wait(pair.right.landed)
    y[ds(0, 64), ds(0, 64)] = pair.left.tile[...].astype(np.float32) + pair.right.tile[...].astype(
        np.float32
    )


@numpipe.kernel
def written_in_place(x, y):
    (left, both), (right, _) = numpipe.scratch(
        (Landing(tile=HALF, landed=Barrier(num_barriers=2)), (HALF, Barrier()))
    )
    load(x, 0, Landing(left, both.at[0]))
    load(x, 64, Landing(right, both.at[1]))
    numpipe.barrier_wait(both.at[0])
    numpipe.barrier_wait(both.at[1])
    y[ds(0, 64), ds(0, 64)] = left[...].astype(np.float32) + right[...].astype(np.float32)


@numpipe.kernel
def scoped(x, y):
    def scope(first, second, total):
        load(x, 0, first.left)
        load(x, 64, second)
        numpipe.barrier_wait(first.left.landed)
        numpipe.barrier_wait(second.landed)
        total[...] = first.left.tile[...].astype(np.float32) + second.tile[...].astype(np.float32)
        numpipe.commit_smem()
        y[ds(0, 64), ds(0, 64)] = total[...]

    numpipe.run_scoped(
        scope,
        PAIR,
        total=SMEM((64, 64), np.float32),
        second=Landing(HALF, Barrier()),
        collective_axes="wg",
    )


@pytest.mark.variants(3)
@pytest.mark.parametrize(
    "kernel", [of_a_constant, written_in_place, scoped], ids=lambda kernel: kernel.name
)
def test_references_have_the_shape_of_their_types(kernel: Any, runs: Any) -> None:
    for run in runs:
        y = np.zeros((64, 64), np.float32)
        run(kernel, X, y)
        np.testing.assert_array_equal(y, X[:, :64].astype(np.float32) + X[:, 64:])


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "kernel", [scoped, of_a_constant, written_in_place], ids=lambda kernel: kernel.name
)
def test_they_compile(kernel: Any) -> None:
    kernel.simulate(X, np.zeros((64, 64), np.float32))


def test_a_barrier_of_a_named_tuple_is_waited_for_like_any_other() -> None:
    @numpipe.kernel
    def unawaited(x, y):
        pair = numpipe.scratch(PAIR)
        load(x, 0, pair.left)
        load(x, 64, pair.right)
        numpipe.barrier_wait(pair.left.landed)
        y[ds(0, 64), ds(0, 64)] = pair.left.tile[...].astype(np.float32) + pair.right.tile[
            ...
        ].astype(np.float32)
        numpipe.barrier_wait(pair.right.landed)

    with pytest.raises(PipelineRace):
        unawaited.simulate(X, np.zeros((64, 64), np.float32))


@numpipe.kernel
def a_dictionary(x, y):
    _ = numpipe.scratch({"tile": HALF, "landed": Barrier()})


@numpipe.kernel
def another_name(x, y):
    def scope(tile, landed):
        pass

    numpipe.run_scoped(scope, HALF, barrier=Barrier())


@numpipe.kernel
def a_missing_name(x, y):
    def scope(tile, landed):
        pass

    numpipe.run_scoped(scope, landed=Barrier())


@numpipe.kernel
def a_part_of_another_type(x, y):
    _ = numpipe.scratch(Landing(HALF, 3))


@pytest.mark.parametrize(
    "kernel, text",
    [
        (
            a_dictionary,
            "numpipe.scratch: dictionaries are not supported in a kernel; fix: use a NamedTuple, "
            "whose parts have names too",
        ),
        (
            another_name,
            r"run_scoped: scope\(tile, landed\) is called with a reference for each type: it has "
            r"no argument 'barrier'",
        ),
        (
            a_missing_name,
            r"run_scoped: scope\(tile, landed\) is called with a reference for each type: "
            r"argument 'tile' missing",
        ),
        (a_part_of_another_type, r"numpipe.scratch takes a type, .*, got Landing\(HALF, 3\)"),
    ],
    ids=lambda part: getattr(part, "name", ""),
)
def test_a_bad_tree_of_types_is_refused_at_its_line(kernel: Any, text: str) -> None:
    for run in (kernel.simulate, kernel.compiled):
        with pytest.raises(CompileError, match=r"test_scratch_trees.py:\d+") as caught:
            run(X, np.zeros((64, 64), np.float32))
        assert re.search(text, str(caught.value))


@numpipe.function
def kept(v):
    """Keep a vector in shared memory of its own."""
    part = numpipe.scratch(SMEM((512,), np.float32), of=v)
    part[...] = v[ds(0, 512)]
    return part


@numpipe.kernel(static_dims=-1)
def difference(x, y, z):
    one, other = kept(x), kept(y)
    z[ds(0, 512)] = one[...] - other[...]


def test_a_call_has_an_allocation_for_each_array_compiled() -> None:
    x, y, z = np.arange(3 * 512, dtype=np.float32).reshape(3, 512)
    difference(x, y, z, target="sim")
    np.testing.assert_array_equal(z, np.full(512, -512))
    report = str(difference.inspect("resources", x, y, z))
    assert re.findall(r"for ([xy])", report) == ["x", "y"], report
