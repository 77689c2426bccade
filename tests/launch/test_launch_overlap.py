"""Outputs that overlap other arrays are rejected at the first launch with these arrays; views that
share no byte are accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import numpipe
from numpipe import launch
from numpipe.errors import SpecError
from tests.kernels.launch_fakes import CudaArray, FakeDriver
from tests.launch.test_launch_launcher import Kernel

BASE = np.zeros((8, 8, 16), np.float16)


def on_host(array: np.ndarray[Any, Any]) -> launch.ArrayInfo:
    return launch.describe(array, "a")


def on_gpu(array: np.ndarray[Any, Any]) -> launch.ArrayInfo:
    """Return the same view of memory that cannot be read."""
    there = (1 << 40) + array.ctypes.data - BASE.ctypes.data
    return launch.describe(CudaArray(there, array.shape, array.dtype.str, array.strides), "a")


def refused(one: launch.ArrayInfo, other: launch.ArrayInfo) -> bool:
    try:
        launch.check_overlap([one, other], ["x", "c"], 1, "k")
    except SpecError:
        return True
    return False


X = BASE.reshape(64, 16)
LEGAL = {
    "the same array": (X, X),
    "the same view": (X[:, ::2], X[:, ::2]),
    "a row, whose stride says nothing": (X[:1], X[:1:2]),
    "even and odd columns": (X[:, ::2], X[:, 1::2]),
    "even and odd rows": (X[::2], X[1::2]),
    "left and right halves": (X[:, :8], X[:, 8:]),
    "one before the other": (X[:32], X[32:]),
    "backwards, one before the other": (X[31::-1], X[32:]),
    "slices of three dimensions": (BASE[:, :4], BASE[:, 4:]),
    "nothing": (X[:0], X),
    "nothing in the middle": (X, X[3:5, 4:4]),
}
WRONG = {
    "rows moved by one": (X[1:], X[:-1]),
    "columns moved by one": (X[:, 1:], X[:, :-1]),
    "transposed": (X[:16], X[:16].T),
    "backwards": (X, X[::-1]),
    "a part": (X, X[3:5, 4:7]),
    "in another shape": (X, BASE),
    "as another type": (X, X.view(np.int16)),
    "every second and every third column": (X[:, ::2], X[:, ::3]),
    "overlapping column ranges": (X[:, :9], X[:, 8:]),
    "slices of three dimensions": (BASE[:, :5], BASE[:, 4:]),
}


@pytest.mark.parametrize("place", [on_host, on_gpu])
@pytest.mark.parametrize("what", LEGAL)
def test_no_byte_in_common_or_the_same_view_is_legal(what: str, place: Any) -> None:
    assert not refused(*map(place, LEGAL[what])) and not refused(*map(place, reversed(LEGAL[what])))


@pytest.mark.parametrize("place", [on_host, on_gpu])
@pytest.mark.parametrize("what", WRONG)
def test_an_output_that_overlaps_is_refused(what: str, place: Any) -> None:
    assert refused(*map(place, WRONG[what])) and refused(*map(place, reversed(WRONG[what])))


@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 8), st.sampled_from([1, 2, 3, -1, -2])),
        min_size=6,
        max_size=6,
    )
)
def test_the_answer_equals_counting_bytes(cuts: list[tuple[int, int, int]]) -> None:
    base = np.arange(512, dtype=np.int16).reshape(8, 8, 8)
    one, other = (
        base[tuple(slice(a, b, c) if c > 0 else slice(b, a, c) for a, b, c in half)]
        for half in (cuts[:3], cuts[3:])
    )
    same = one.shape == other.shape and (one.size == 0 or bool((one == other).all()))
    shared = bool(np.intersect1d(one, other).size)
    assert refused(on_host(one), on_host(other)) == (shared and not same)


def test_the_error_names_both_where_they_are_and_the_fix() -> None:
    with pytest.raises(
        SpecError,
        match=r"argument 'c' of kernel 'shift': it is an output and overlaps argument 'x': it "
        r"begins 32 "
        r"bytes after it, with shape \(63, 16\) and strides \(32, 2\) bytes, compared with \(63, "
        r"16\) and \(32, 2\).*"
        "fix: pass a copy of 'x'",
    ):
        launch.check_overlap([on_gpu(X[:-1]), on_gpu(X[1:])], ["x", "c"], 1, "shift")


def test_inputs_may_overlap_and_outputs_may_not() -> None:
    x, y, c = on_host(X[1:]), on_host(X[:-1]), on_host(np.zeros(4))
    launch.check_overlap([x, y, c], ["x", "y", "c"], 1)
    launch.check_overlap([c, x, x], ["x", "c", "d"], 2)
    for outs, distinct in (((x, y), False), ((x, x), True)):
        with pytest.raises(SpecError, match="'d': .* overlaps .* 'c'.*pass another array as 'd'"):
            launch.check_overlap([c, *outs], ["x", "c", "d"], 2, distinct=distinct)


def test_elements_that_a_stride_repeats_are_compared_once() -> None:
    x = on_gpu(X[:1])._replace(shape=(2**31, 2**31), strides=(0, 0))
    launch.check_overlap([x, on_gpu(np.zeros(4))], ["x", "c"], 1)


# ---- when it is checked
def test_a_launch_asks_once_for_each_list_of_arrays(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    real = launch.launcher.check_overlap
    monkeypatch.setattr(
        launch.launcher, "check_overlap", lambda *args: (asked.append(args), real(*args))
    )
    fake.sizes = [128] + [8] * 10
    good, bad = [on_gpu(X[:32]), on_gpu(X[32:])], [on_gpu(X[:32]), on_gpu(X[31:63])]
    prepared = launch.Prepared(Kernel(), good, outputs=1)
    for _ in range(3):
        prepared((1, 1, 1), good)
    assert len(asked) == 1 and len(fake.named("launch")) == 3
    for _ in range(2):
        with pytest.raises(
            SpecError, match="argument 'c' of kernel 'scale'.*overlaps argument 'a'"
        ):
            prepared((1, 1, 1), bad)
    assert len(fake.named("launch")) == 3


def test_host_arrays_are_asked_about_before_they_are_copied(fake: FakeDriver) -> None:
    infos = [on_host(X[:32]), on_host(X[31:63])]
    with pytest.raises(SpecError, match="argument 'c' of kernel 'scale'.*overlaps"):
        launch.run(launch.Prepared(Kernel(), infos), (1, 1, 1), infos, outputs=1)
    assert not fake.calls


@numpipe.kernel
def adds_one(x, c):
    for _, (tile,) in numpipe.pipeline(
        grid=(1,), in_specs=(numpipe.BlockSpec((64, 32), lambda k: (0, 0)),)
    )(x):
        c[numpipe.ds(0, 64), numpipe.ds(0, 32)] = tile[:, :] + 1.0


def test_a_simulated_call_refuses_what_the_gpu_does_and_works_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    x = np.zeros((65, 32), np.float32)
    adds_one(x[:64], x[:64], target="sim")
    assert (x[:64] == 1).all() and not x[64].any()
    with pytest.raises(
        SpecError, match="argument 'c' of kernel 'adds_one'.*begins 128 bytes after it"
    ):
        adds_one(x[:64], x[1:], target="sim")
    assert (x[:64] == 1).all()
    adds_one.simulate(x[:64], x[1:])  # runs, and would report a race with a second CTA
    assert (x[1:] == 2).all()
