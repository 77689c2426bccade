"""Every form of loads, stores and signals of a multi-GPU kernel, on two Hopper GPUs and on one, in
many runs.

Launches on a mesh (streams, graphs, processes, a peer that fails) are tested in `test_mesh_on_gpu`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe.launch import driver
from tests.kernels.gpu_kernels import CASES, Case

ALONE = True
REPEATS = 30


def needs(gpus: int) -> None:
    if driver.get().count < gpus:
        pytest.skip(f"{driver.get().count} GPU, and this test needs {gpus} that reach each other")


def on(mesh: numpipe.Mesh, arrays: list[np.ndarray]) -> list[Any]:
    """Return the arrays on the mesh's GPUs."""
    found = mesh.empty(arrays[0].shape, arrays[0].dtype)
    for array, each in zip(arrays, found, strict=True):
        driver.get().copy_in(each.ptr, 0, array.ctypes.data, 0, array.nbytes, 1, 0, each.device)
        driver.get().synchronize(0, each.device)
    return found


def computes(case: Case, gpus: int, repeats: int = REPEATS) -> None:
    """Check each of many launches to the bit; they run one after another without a pause."""
    mesh, inputs = numpipe.Mesh.local(list(range(gpus))), case.inputs(gpus)
    arrays = [on(mesh, each) for each in inputs]
    results = [case.kernel(*arrays, mesh=mesh, **case.options(gpus)) for _ in range(repeats)]
    mesh.check()
    for number, got in enumerate(results):
        for made, wanted in zip(
            [got] if isinstance(got, list) else got, case.results(*inputs), strict=True
        ):
            for gpu in range(gpus):
                np.testing.assert_array_equal(
                    np.asarray(made[gpu]), wanted[gpu], err_msg=f"launch {number}, GPU {gpu}"
                )


@pytest.mark.parametrize("name", CASES)
def test_two_gpus_compute_what_simulated_ones_do(name: str) -> None:
    needs(2)
    computes(CASES[name], 2)


@pytest.mark.parametrize("name", ["shift", "around_the_ctas", "reduce_scatter"])
def test_one_gpu_is_its_own_peer(name: str) -> None:
    computes(CASES[name], 1)


def test_semaphores_begin_at_zero_in_each_of_a_thousand_launches() -> None:
    needs(2)
    computes(CASES["exchanged"], 2, 1000)


@pytest.mark.parametrize("name", ["shift", "gather_matmul", "copied_by_hand"])
def test_four_gpus_compute_what_simulated_ones_do(name: str) -> None:
    needs(4)
    computes(CASES[name], 4)
