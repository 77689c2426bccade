"""Launches recorded while a function runs are kept and repeated, with the owner of their
workspace."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, launch
from numpipe.launch import buffers
from numpipe.plan.specs import FLAGS, Workspace
from tests.kernels.launch_fakes import FakeDriver
from tests.kernels.launch_kernels import compiled_as, doubled, image

A, B, C = 1 << 20, 1 << 21, 1 << 22


@pytest.fixture(autouse=True)
def _no_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_workspaces", {})


class Owner:
    """An owner of memory."""


def array(ptr: int, owner: Any = None) -> launch.ArrayInfo:
    return launch.info_of_zeros((64, 64), np.dtype(np.float32))._replace(
        kind="cuda", ptr=ptr, device=0, owner=owner, array=None
    )


def split() -> Any:
    @numpipe.kernel(
        grid=(1,), workspace=Workspace((64, 64), 2), out_type=lambda a: ArrayType(a.shape, a.dtype)
    )
    def split(a, c, work):
        c[numpipe.ds(0, 64), numpipe.ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    return compiled_as(split, lambda *_: image((), ("a", "c", "work"), name="split"))


def test_what_a_function_launches_is_launched_again_without_it(fake: FakeDriver) -> None:
    kernel = doubled(grid=(1,))
    with launch.collecting(launch.Collected()) as collected:
        kernel(array(A), array(B), stream=7)
        kernel(array(B), array(C), stream=8)
    fake.calls.clear()
    for again in collected.launches:
        again()
    assert fake.named("launch") == [((1, 1, 1), 7, 0), ((1, 1, 1), 8, 0)]
    kernel(array(A), array(B), stream=7)
    assert len(collected.launches) == 2, "it collects inside of the block only"


def test_a_dry_run_compiles_and_launches_nothing(fake: FakeDriver) -> None:
    compiled: list[Any] = []
    with launch.collecting(launch.Collected(dry=True)) as collected:
        doubled(lambda *key: compiled.append(key) or image(), grid=(1,))(
            array(0), array(0), stream=0
        )
    assert (
        compiled and not collected.launches and collected.nbytes == 0 and not fake.named("launch")
    )


def test_memory_that_a_function_allocated_lives_as_long_as_its_launches(fake: FakeDriver) -> None:
    owner = Owner()
    alive = weakref.ref(owner)
    with launch.collecting(launch.Collected()) as collected:
        doubled(grid=(1,))(array(A, owner), array(B), stream=7)
    del owner
    assert alive() is not None
    del collected
    assert alive() is None


def test_a_lent_workspace_is_used_where_it_suffices_and_its_flags_are_cleared_each_time(
    fake: FakeDriver,
) -> None:
    kernel = split()
    fake.sizes = [128, *[8] * 15]
    with launch.collecting(launch.Collected(dry=True)) as wanted:
        kernel(array(A), out=array(B), stream=7)
    nbytes = wanted.nbytes
    memory = np.full(nbytes // 4, 7, np.uint32)
    address, seen = memory.ctypes.data, []

    def note(parameters: list[int]) -> None:
        where, slots, words = (ctypes.c_int64.from_address(p).value for p in parameters[-5:-2])
        rows = memory[: slots * words].reshape(slots, words)
        seen.append(
            (where, bool(rows[:, words - FLAGS :].any()), bool(rows[:, : words - FLAGS].any()))
        )
        memory[:] = 9

    fake.kernel = note
    with launch.collecting(launch.Collected(memory=address, nbytes=nbytes)) as collected:
        kernel(array(A), out=array(B), stream=7)
    for again in collected.launches:
        again()
    assert seen == [(address, False, True)] * 2 and not fake.named("allocate")
    with launch.collecting(launch.Collected(memory=address, nbytes=nbytes - 4)):
        kernel(array(A), out=array(B), stream=7)
    assert seen[-1][0] != address and fake.named("allocate"), "too small: it has one of numpipe's"


def test_collections_nest_and_an_error_ends_them(fake: FakeDriver) -> None:
    kernel = doubled(grid=(1,))
    with launch.collecting(launch.Collected()) as outer:
        with pytest.raises(ZeroDivisionError), launch.collecting(launch.Collected()) as inner:
            kernel(array(A), array(B), stream=7)
            _ = 1 / 0
        kernel(array(A), array(B), stream=7)
    assert len(inner.launches) == len(outer.launches) == 1
    assert launch.COLLECTING.now is None
