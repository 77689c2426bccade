"""Calls with mesh= on simulated GPUs: one array per GPU, outputs as lists, and errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import Mesh, SpecError, cdiv, ds, launch
from numpipe.testing import check, mutate

TWO = Mesh.simulated(2)
ROWS = numpipe.ArrayType((64, 64), np.float32)


@numpipe.kernel(
    grid=numpipe.persistent(),
    semaphores=lambda x: cdiv(x.shape[0], 64),
    out_type=lambda x: numpipe.ArrayType(x.shape, x.dtype),
)
def shift(x, y, ready, *, plus: numpipe.Static = 1, times=1.0):
    """Store the array of the previous GPU, multiplied and offset."""
    other = (numpipe.axis_index("gpu") + 1) % numpipe.axis_size("gpu")
    for (i,) in numpipe.tiles(cdiv(x.shape[0], 64)):
        numpipe.peer(y, other)[ds(i * 64, 64), ds(0, 64)] = (
            x[ds(i * 64, 64), ds(0, 64)] * times + plus
        )
        numpipe.signal(ready.at[i], other)
        numpipe.wait(ready.at[i], 1)


@numpipe.kernel
def plain(x):
    x[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)


def inputs(gpus: int = 2, rows: int = 64) -> list[np.ndarray[Any, Any]]:
    return [np.full((rows, 64), gpu, np.float32) for gpu in range(gpus)]


def corners(arrays: Any) -> list[float]:
    return [float(each[0, 0]) for each in arrays]


# ---- arguments and results
@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_each_gpu_runs_on_its_own_array_and_outputs_are_a_list(gpus: int) -> None:
    assert corners(shift(inputs(gpus), mesh=Mesh.simulated(gpus))) == [
        (gpu - 1) % gpus + 1 for gpu in range(gpus)
    ]


def test_scalars_and_statics_are_one_for_all_and_outputs_may_be_passed() -> None:
    y = TWO.zeros((64, 64), np.float32)
    assert shift(tuple(inputs()), mesh=TWO, plus=5, times=2.0, out=y) is y and corners(y) == [7, 5]
    assert shift(inputs(), y, mesh=TWO) is None and corners(y) == [2, 1]
    assert shift(x=inputs(), mesh=TWO, out=y) is y


def test_rows_that_tma_cannot_address_are_refused_where_a_peers_are_loaded_or_stored() -> None:
    """On GPUs such an array is symmetric memory, which is never copied to padded rows.

    A simulated one is therefore rejected too.
    """

    @numpipe.kernel(grid=numpipe.persistent(1), semaphores=1)
    def turn(x, y, done):
        other = (numpipe.axis_index("gpu") + 1) % numpipe.axis_size("gpu")
        pipe = numpipe.pipeline(
            grid=(1,),
            in_specs=(numpipe.BlockSpec((64, 64), lambda k: (0, 0)),),
            max_concurrent_steps=1,
        )
        for _, (tile,) in pipe(numpipe.peer(x, other)):
            numpipe.copy_smem_to_gmem(tile, numpipe.peer(y, other).at[ds(0, 64), ds(0, 64)])
            numpipe.wait_smem_to_gmem(0)
        numpipe.signal(done.at[0], other)
        numpipe.wait(done.at[0], 1)

    wide, narrow = (
        [np.ones((64, columns), np.float32)[:, :63] for _ in range(2)] for columns in (64, 63)
    )
    for x, y, told in (
        (narrow, wide, "'x'.*its rows are 252 bytes apart.*a part of a wider array"),
        (wide, narrow, "rows of 'y' are not a multiple of 16 B"),
    ):
        with pytest.raises(SpecError, match=r"test_mesh_calls.py:\d+: .*" + told):
            turn(x, y, mesh=TWO)


def test_several_outputs_are_a_tuple_of_lists() -> None:
    @numpipe.kernel(grid=numpipe.persistent(), semaphores=1, out_type=lambda x: (ROWS, ROWS))
    def both(x, y, z, ready):
        if numpipe.program_id(0) == 0:
            y[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]
            z[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)] * 3
            numpipe.signal(ready.at[0], numpipe.axis_index("gpu"))
            numpipe.wait(ready.at[0], 1)

    y, z = both(inputs(), mesh=TWO)
    assert (corners(y), corners(z)) == ([0, 1], [0, 3])
    again = TWO.empty((64, 64), np.float32), TWO.empty((64, 64), np.float32)
    assert both(inputs(), mesh=TWO, out=again) is again and corners(again[1]) == [0, 3]


def test_memory_of_a_simulated_mesh_is_numpys() -> None:
    assert [each.shape for each in TWO.empty(3, "float16")] == [(3,), (3,)]
    assert [float(each.sum()) for each in TWO.zeros((2, 2), np.float32)] == [0, 0]
    assert [each.nbytes for each in TWO.workspace("w", (4, 4), np.float16)] == [32, 32]
    arrays = inputs()
    assert all(a is b for a, b in zip(TWO.to_device(arrays), arrays, strict=True))
    TWO.check()
    assert (TWO.size, TWO.rank, repr(TWO)) == (2, None, "Mesh.simulated(2)")


@pytest.mark.thorough
def test_the_mesh_goes_through_verify_check_and_mutate() -> None:
    assert numpipe.verify(shift, inputs(), mesh=TWO, schedules=3, ctas=1).ok
    errors = check(
        shift, inputs(), mesh=TWO, schedules=2, reference=lambda x: [x[1] + 1, x[0] + 1]
    ).errors
    assert errors == {"sim": {"y of GPU 0": 0.0, "y of GPU 1": 0.0}}
    found = mutate(shift, inputs(), mesh=TWO, schedules=1).mutants
    assert "exit-in-flight" in {mutant.by for mutant in found} and "for one less" in {
        mutant.change for mutant in found
    }


@pytest.mark.thorough
def test_verify_runs_as_many_ctas_as_two_gpus_have_whatever_the_mesh() -> None:
    assert [
        numpipe.verify(shift, inputs(gpus), mesh=Mesh.simulated(gpus), schedules=1).ctas
        for gpus in (1, 8)
    ] == [132, 33]


def test_a_wrong_result_names_the_gpu_and_leaves_the_arguments_as_they_are() -> None:
    x = inputs()
    with pytest.raises(
        AssertionError, match="y of GPU 1 differs from the reference in 4096 of 4096"
    ):
        check(shift, x, mesh=TWO, schedules=1, reference=lambda x: [x[1] + 1, x[0]])
    assert corners(x) == [0, 1]


def test_an_output_that_one_gpu_does_not_write_is_named() -> None:
    @numpipe.kernel(grid=numpipe.persistent(), semaphores=1, out_type=lambda x: ROWS)
    def first(x, y, ready):
        if (numpipe.axis_index("gpu") == 0) & (numpipe.program_id(0) == 0):
            y[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]

    (failure,) = numpipe.verify(first, inputs(), mesh=TWO, schedules=1).failures
    assert failure.hazard == "unwritten-output" and "y of GPU 1" in failure.text
    assert numpipe.verify(first, inputs(), mesh=TWO, schedules=1, partial="y").ok


def test_a_compile_needs_the_size_of_the_mesh_alone() -> None:
    block = numpipe.ArrayType((64, 64), np.float32)
    two, three = (shift.compiled(block, mesh=Mesh.simulated(gpus)).image for gpus in (2, 3))
    assert (two.gpus, three.gpus, two.peered) == (2, 3, (1,)) and two.cubin != three.cubin
    assert shift.compiled(inputs(), mesh=TWO).image is two
    # the launch packs exactly as many bytes as the code reads
    for gpus, image in ((2, two), (3, three)):
        size = re.search(
            r"\.param \.align \d+ \.b8 \w+\[(\d+)\]",
            shift.inspect("ptx", block, mesh=Mesh.simulated(gpus)),
        )
        infos = [launch.describe(array, "x") for array in (X[0], Y[0])]
        assert size is not None and launch.Prepared(
            image, infos, [np.dtype(np.float32)], 1
        ).offsets[1] == int(size[1])
    (used,) = numpipe.warmup([(shift, (block,), {"mesh": TWO})], workers=0)
    assert used == two.resources


# ---- what is rejected
def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(SpecError) as error:
        call()
    return str(error.value)


X, Y = inputs(), inputs()
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "no mesh": (
        lambda: shift(X),
        "it has semaphores, so it runs on the GPUs of a mesh: pass mesh=numpipe.Mesh.simulated(2)",
    ),
    "no mesh, inspected": (lambda: shift.inspect("ptx", X[0]), "it has semaphores"),
    "a kernel of one GPU": (
        lambda: plain(X[0], mesh=TWO),
        "this one has no semaphores: leave mesh= out, or define the kernel with",
    ),
    "no Mesh": (
        lambda: shift(X, mesh=2),
        "mesh must be a numpipe.Mesh (Mesh.simulated(2), Mesh.local() or Mesh.torch()), got 2",
    ),
    "one array": (
        lambda: shift(X[0], mesh=TWO),
        "'x' with Mesh.simulated(2) must be a list of 2 arrays, one for each GPU, got "
        "one of shape (64, 64)",
    ),
    "too few": (
        lambda: shift(X[:1], mesh=TWO),
        "must be a list of 2 arrays, one for each GPU, got 1 of them",
    ),
    "no arrays": (
        lambda: shift("x", mesh=TWO),
        "must be a list of 2 arrays, one for each GPU, got 'x'",
    ),
    "shapes": (
        lambda: shift([X[0], np.zeros((128, 64), np.float32)], mesh=TWO),
        "'x' of GPU 1 has shape (128, 64), but of GPU 0 (64, 64)",
    ),
    "types": (
        lambda: shift([X[0], X[1].astype(np.float16)], mesh=TWO),
        "'x' of GPU 1 has dtype float16, but of GPU 0 float32",
    ),
    "layouts": (
        lambda: shift([X[0], np.asfortranarray(X[1])], mesh=TWO),
        "'x' of GPU 1 has strides (4, 256), but of GPU 0 (256, 4)",
    ),
    "one output": (
        lambda: shift(X, mesh=TWO, out=Y[0]),
        "'out' with Mesh.simulated(2) must be a list of 2 arrays",
    ),
    "the GPU": (
        lambda: shift(X, mesh=TWO, target="gpu"),
        "target='gpu' with Mesh.simulated(2), whose GPUs are simulated",
    ),
    "a stream": (lambda: shift(X, mesh=TWO, stream=7), "simulated GPUs have no streams"),
    "bind": (lambda: shift.bind(X, mesh=TWO), "bind is only for kernels of one GPU"),
    "export": (lambda: shift.export("shift.numpipe", (X,)), "a file holds kernels of one GPU"),
    "check on a GPU": (
        lambda: check(shift, X, mesh=TWO, reference=list, gpu=True),
        "leave gpu= out",
    ),
    "no GPUs": (lambda: Mesh.simulated(0), "gpus must be an int of 1…62, got 0"),
    "too many GPUs": (lambda: Mesh.simulated(63), "gpus must be an int of 1…62, got 63"),
    "arrays to copy": (
        lambda: TWO.to_device(X[0]),
        "Mesh.to_device: arrays must be a list of 2 arrays, one for each GPU",
    ),
    "arrays to copy that differ": (
        lambda: TWO.to_device([X[0], X[1][:8]]),
        "one shape and type, got float32 (8, 64) and float32 (64, 64)",
    ),
    "shape of memory": (
        lambda: TWO.empty((2, -1), np.float32),
        "shape must be an int >= 0 or a tuple of ints >= 0",
    ),
    "type of memory": (
        lambda: TWO.empty(2, "float17"),
        "Mesh.empty: dtype must be an element type, got 'float17'",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_does_not_fit_is_said_with_the_fix(call: str) -> None:
    function, told = CALLS[call]
    assert told in refused(function)


def made(semaphores: Any = 1, **options: Any) -> Any:
    options = {
        "grid": numpipe.persistent(),
        "semaphores": semaphores,
        **options,
    }

    @numpipe.kernel(**options)
    def kernel(x, y, ready):
        x[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    return kernel


@pytest.mark.parametrize(
    "options, told",
    [
        ({"grid": (2,)}, "semaphores= needs grid=numpipe.persistent(), got (2,)"),
        ({"semaphores": 0}, "semaphores must be an int of 1…1048576 or a function, got 0"),
        (
            {"semaphores": "many"},
            "semaphores must be an int of 1…1048576 or a function, got 'many'",
        ),
        (
            {"workspace": numpipe.Workspace((64, 64), 2)},
            "semaphores= and workspace= both use the last array parameter",
        ),
    ],
)
def test_options_that_no_kernel_of_several_gpus_has(options: dict[str, Any], told: str) -> None:
    assert told in refused(lambda: made(**options))


def test_the_semaphores_are_a_parameter_behind_the_arrays_and_as_many_as_there_can_be() -> None:
    def alone(ready):
        pass

    assert "semaphores= is for the last array parameter" in refused(
        lambda: numpipe.kernel(alone, grid=numpipe.persistent(), semaphores=1)
    )
    assert "semaphores must be an int of 0…1048576, got -1" in refused(
        lambda: made(lambda x: -1)(X, Y, mesh=TWO)
    )
    assert "cannot be called 'mesh'" in refused(lambda: numpipe.kernel(with_mesh))


def with_mesh(mesh):
    pass
