"""numpipe.explain of kernels of several GPUs: bytes over the link, and when it is what limits."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, BlockSpec, Mesh, SpecError, ds
from numpipe.model import H200
from numpipe.tools.model import limits

GATHER, GATHERED = (importlib.import_module(f"numpipe.ops.{name}") for name in ("all_gather", "all_gather_matmul"))
F32, WORDS = np.dtype(np.float32), np.dtype(np.int32)


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@numpipe.kernel(grid=numpipe.persistent(1), num_compute_wgs=1, semaphores=1)
def all_ways(x, y, ready, *, by: numpipe.Static = 1):
    """Tiles of another GPU's x by a pipeline, to its y by TMA, and a number to its y by a lane; by=0: all of the own GPU."""
    other = (numpipe.axis_index("gpu") + by) % numpipe.axis_size("gpu")
    there = numpipe.peer(y, other)
    for (k,), (tile,) in numpipe.pipeline(grid=(3,), in_specs=(BlockSpec((64, 32), lambda k: (k, 0)),))(numpipe.peer(x, other)):
        there[ds(k * 64, 64), ds(0, 32)] = tile[...]
    there[200, 0] = 1.0
    numpipe.signal(ready.at[0], other)
    numpipe.wait(ready.at[0], 1)


def told(gpus: int = 2, **named: Any) -> Any:
    x = ArrayType((208, 32), F32)
    return numpipe.explain(all_ways, x, x, mesh=Mesh.simulated(gpus), compiled=False, **named)


@pytest.mark.parametrize("gpus", [2, 3])
def test_accesses_to_other_gpus_are_the_links_and_to_the_own_one_are_not(gpus: int) -> None:
    loaded, stored = {"x": 3 * 64 * 32 * 4}, {"y": 3 * 64 * 32 * 4 + 4}
    far, near = told(gpus), told(gpus, by=0)
    assert (far.fetched, far.sent, far.loaded, far.stored) == (loaded, stored, {}, {})
    assert (near.fetched, near.sent, near.loaded, near.stored) == ({}, {}, loaded, stored)
    assert far.link_bytes == far.as_dict()["link_bytes"] == loaded["x"] + stored["y"] and near.link_bytes == 0
    assert far.hbm_bytes == near.hbm_bytes, "other GPUs load here as much, and store here as much"
    assert "of the link" in str(far) and "fetches  " in str(far) and "sends  " in str(far)
    assert not {"fetches", "sends", "link"} & set(str(near).split())


@pytest.mark.parametrize("gpus", [2, 4])
def test_a_gather_sends_its_shard_to_all_others_and_the_link_limits_it(gpus: int) -> None:
    words = 1 << 23
    arrays = ArrayType((1, words), WORDS), *[ArrayType((gpus, words), WORDS)] * 2
    kernel = GATHER.kernel(GATHER.Config(near=12), True)
    found = numpipe.explain(kernel, *arrays, mesh=Mesh.simulated(gpus), compiled=False)
    assert found.sent == {"room": (gpus - 1) * words * 4} and not found.fetched
    assert found.limits["link"] == pytest.approx(found.link_bytes / H200.link) and found.limiter == "link"
    assert found.advice.startswith(limits.ADVICE["link"])
    quick = numpipe.explain(kernel, *arrays, mesh=Mesh.simulated(gpus), compiled=False, device=dataclasses.replace(H200, link=1e13))
    assert quick.limiter != "link" and quick.predicted_seconds < 0.6 * found.predicted_seconds


def test_a_product_hides_what_it_gathers() -> None:
    m, n, k = 2048, 4096, 4096
    kernel = GATHERED.kernel(GATHERED.choose(m, n, k, 2, False))
    shapes = (1, m, k), (k, n), (2, m, k), (2, m, n)
    found = numpipe.explain(kernel, *[ArrayType(shape, np.float16) for shape in shapes], mesh=Mesh.simulated(2), compiled=False)
    assert found.sent["gathered"] == pytest.approx(m * k * 2, rel=0.05) and found.limiter == "tensor cores"


def test_a_kernel_of_several_gpus_needs_its_mesh_here_too() -> None:
    x = ArrayType((208, 32), F32)
    with pytest.raises(SpecError, match="it has semaphores, so it runs on the GPUs of a mesh: pass mesh="):
        numpipe.explain(all_ways, x, x, compiled=False)
