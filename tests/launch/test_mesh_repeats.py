"""Repeated calls on meshes: which are found, and when an allocated output is one of a kept call.

No GPU is needed.
"""

from __future__ import annotations

import contextlib
import types
from typing import Any

import numpy as np
import pytest

from numpipe.launch import repeats as module
from numpipe.launch.array_info import ArrayInfo
from numpipe.launch.repeats import MARKS, Repeats
from numpipe.launch.table import Table

STREAM = 7


class Array:
    def __init__(self, ptr: int, shape: tuple[int, ...] = (4, 8)) -> None:
        self.ptr, self.shape = ptr, shape


class Mesh:
    """A mesh whose process has `gpus` GPUs, or is a rank."""

    def __init__(self, gpus: int | None) -> None:
        self.rank = None if gpus else 0


class Together:
    def __init__(self, stream: int = STREAM) -> None:
        self.prepared = types.SimpleNamespace(observers=())
        self.stream, self.stale = (stream,), False


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MARKS, Array, lambda array: (array.ptr, array.shape))
    monkeypatch.setattr(module, "follow", lambda infos: lambda: STREAM)
    monkeypatch.setattr(module, "as_stream", lambda stream: stream)


def info(array: Any) -> ArrayInfo:
    return ArrayInfo("cuda", array.ptr, array.shape, (32, 4), np.dtype(np.float32), 0, True, array)


def learnt(
    repeats: Repeats,
    mesh: Any,
    arrays: list[Any],
    out: Any,
    constants: Any = None,
    fresh: int = 0,
    stream: int = STREAM,
) -> Any:
    launched = Together(stream)
    repeats.learn(
        (mesh, constants), arrays, [out], [[info(each) for each in (*arrays, out)]], fresh, launched
    )
    return launched


def test_a_call_is_found_by_its_arrays_its_constants_and_its_stream() -> None:
    repeats, mesh = Repeats(Table()), Mesh(None)
    x, y = Array(100), Array(200)
    launched = learnt(repeats, mesh, [x], y, constants="config")
    find = repeats.find_on
    assert find(mesh, "config", (x,), y, None) == (launched, y)
    assert find(mesh, "config", (Array(100),), Array(200), STREAM)[0] is launched
    for args, constants, stream in (
        ((Array(101),), "config", None),
        ((x,), "other", None),
        ((x,), "config", STREAM + 1),
        ((Array(100, (8, 4)),), "config", None),
        ((x, x), "config", None),
    ):
        assert find(mesh, constants, args, y, stream)[0] is None
    assert find(Mesh(None), "config", (x,), y, None)[0] is None
    other = learnt(repeats, mesh, [x], y, constants="config", stream=STREAM + 1)
    assert (
        find(mesh, "config", (x,), y, STREAM + 1)[0] is other
        and find(mesh, "config", (x,), y, None)[0] is launched
    )
    launched.stale = True
    assert find(mesh, "config", (x,), y, None)[0] is None


def test_outputs_are_allocated_as_the_first_call_did_and_looked_up_where_they_lie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repeats, mesh, places = Repeats(Table()), Mesh(None), iter((300, 200, 300))
    monkeypatch.setattr(module, "maker", lambda _: lambda: Array(next(places)))
    x = Array(100)
    launched = learnt(repeats, mesh, [x], Array(200), fresh=1)
    assert repeats.find_on(mesh, None, (x,), None, None)[0] is None, "no call was kept for 300"
    found, out = repeats.find_on(mesh, None, (x,), None, None)
    assert found is launched and out.ptr == 200
    again = learnt(repeats, mesh, [x], Array(300), fresh=1)
    assert repeats.find_on(mesh, None, (x,), None, None)[0] is again


@pytest.mark.parametrize("first", ["a kernel of one GPU", "a kernel of all GPUs"])
def test_several_launches_are_repeated_in_order(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    class Whole(Together):
        controls = types.SimpleNamespace(launching=contextlib.nullcontext())

        def __call__(self) -> None:
            ran.append("a kernel of all GPUs")

    class Alone:
        prepared, stream = types.SimpleNamespace(observers=()), STREAM

        def __call__(self) -> None:
            ran.append("a kernel of one GPU")

    monkeypatch.setattr(module, "Together", Whole)
    whole, alone = Whole(), Alone()
    launches: list[Any] = [alone, whole] if first == "a kernel of one GPU" else [whole, alone]
    repeats, mesh, x = Repeats(Table()), Mesh(None), Array(100)
    series = module.MeshSeries(launches)
    repeats.learn((mesh, None), [x], [], [[info(x)]], 0, series)
    found, _ = repeats.find_on(mesh, None, (x,), None, None)
    assert found is series
    found()
    assert ran[0] == first and len(ran) == 2
    whole.stale = True
    assert repeats.find_on(mesh, None, (x,), None, None)[0] is None


def test_arrays_of_a_type_that_comes_for_the_first_time_are_found_too() -> None:
    class Tensor(Array):
        dtype = "bfloat16"

        def data_ptr(self) -> int:
            return self.ptr

        def stride(self) -> tuple[int, ...]:
            return 8, 1

    repeats, mesh, launched, x = Repeats(Table()), Mesh(None), Together(), Tensor(100)
    repeats.learn((mesh, None), [x], [], [[info(x)._replace(kind="torch")]], 0, launched)
    try:
        assert repeats.find_on(mesh, None, (Tensor(100),), None, None)[0] is launched
    finally:
        MARKS.pop(Tensor, None)


@pytest.mark.parametrize("obstacle", ["observer", "no marks", "no hash"])
def test_calls_that_their_arrays_do_not_determine_are_not_kept(obstacle: str) -> None:
    repeats, mesh, launched = Repeats(Table()), Mesh(None), Together()
    x: Any = np.zeros((4, 8), np.float32) if obstacle == "no marks" else Array(100)
    if obstacle == "observer":
        launched.prepared.observers = (print,)
    infos = [
        ArrayInfo("host", 0, (4, 8), (32, 4), np.dtype(np.float32), -1, True, x)
        if obstacle == "no marks"
        else info(x)
    ]
    repeats.learn((mesh, [] if obstacle == "no hash" else None), [x], [], [infos], 0, launched)
    assert not repeats.any
