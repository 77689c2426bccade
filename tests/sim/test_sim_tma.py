"""TMA copies on the simulated SM: boxes, edges, swizzles, bulk groups, and address rules."""

from __future__ import annotations

import numpy as np
import pytest

from numpipe.core.machine import TensorMap
from numpipe.errors import PipelineRace, SimulationError
from numpipe.sim import simulate
from tests.kernels.sim_pipelines import BF16, F16

BAR = 64 * 1024


def run(body, seed=None):
    """Run `body(machine)` by the elected lane of a CTA with one warpgroup."""
    simulate(
        lambda machine: machine.scoped("one", body, (machine,)),
        grid=(1, 1, 1),
        warpgroups=1,
        smem_bytes=BAR + 1024,
        seed=seed,
    )


def fill(machine, copies, phase=0, wait=True):
    if phase == 0:
        machine.mbar_init(BAR, 1, "ready")
        machine.fence_mbarrier_init()
    machine.mbar_arrive_expect_tx(BAR, sum(tensor.nbytes for _, tensor, _ in copies))
    for address, tensor, coords in copies:
        machine.tma_load(address, tensor, coords, BAR)
    if wait:
        machine.mbar_wait(BAR, phase)


def loaded(tensor, coords, address=0):
    """Return the bytes of shared memory after one load, as 16-byte chunks."""
    got = []

    def body(machine):
        fill(machine, [(address, tensor, coords)])
        chunks = (np.arange(tensor.nbytes // 16) * 16 + address)[None, :]
        got.append(machine.smem_read(chunks, "look")[0])

    run(body)
    return got[0]


def box_of(array, box, coords, outside=0):
    """Return the contents of a box, computed element by element."""
    result = np.full(box, outside, array.dtype)
    for index in np.ndindex(*box):
        where = tuple(c + i for c, i in zip(coords, index, strict=True))
        if all(0 <= w < size for w, size in zip(where, array.shape, strict=True)):
            result[index] = array[where]
    return result


@pytest.mark.parametrize(
    ("shape", "box", "coords"),
    [
        ((100,), (16,), (88,)),
        ((20, 40), (8, 8), (16, -8)),
        ((20, 44), (8, 16), (16, -8)),
        ((20, 36), (8, 8), (-5, 32)),
        ((5, 6, 20), (2, 4, 8), (4, 3, 16)),
        ((3, 4, 5, 16), (2, 2, 3, 8), (1, -1, 3, 8)),
        ((2, 3, 4, 5, 16), (1, 2, 3, 2, 8), (1, 2, 2, 4, 8)),
        ((8, 8), (8, 8), (100, 104)),
    ],
)
def test_boxes_of_every_rank_read_zeros_outside_the_array(shape, box, coords):
    array = np.arange(1, np.prod(shape) + 1).reshape(shape).astype(F16)
    got = loaded(TensorMap(array, box, 0, "x"), coords).reshape(-1).view(F16).reshape(box)
    np.testing.assert_array_equal(got, box_of(array, box, coords))


@pytest.mark.parametrize("dtype", [F16, BF16, np.dtype(np.float32)])
def test_fill_nan_reads_nan_outside(dtype):
    array = np.ones((4, 16), dtype)
    got = (
        loaded(TensorMap(array, (8, 16), 0, "x", fill="nan"), (0, 0))
        .reshape(-1)
        .view(dtype)
        .reshape(8, 16)
    )
    assert (got[:4] == 1).all() and np.isnan(got[4:].astype(np.float32)).all()


@pytest.mark.parametrize("address", [0, 128, 384, 1024])
@pytest.mark.parametrize(
    ("swizzle", "row_bytes"), [(32, 32), (64, 32), (64, 64), (128, 32), (128, 64), (128, 128)]
)
def test_swizzles_permute_chunks_by_absolute_address(swizzle, row_bytes, address):
    rows = 32
    array = np.arange(rows * row_bytes // 2, dtype=np.uint16).reshape(rows, -1)
    got = loaded(TensorMap(array, array.shape, swizzle, "x"), (0, 0), address)
    chunks = array.reshape(-1, 8)
    bits = {32: 1, 64: 3, 128: 7}[swizzle]
    for number, chunk in enumerate(chunks):
        at = address + 16 * number
        at ^= (at >> 7 & bits) << 4  # address bits [4, 4+b) ^= bits [7, 7+b)
        assert (got[(at - address) // 16].view(np.uint16) == chunk).all()


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_a_store_undoes_what_a_load_did_and_leaves_the_outside_alone(swizzle, seed):
    source = np.arange(24 * 64).reshape(24, 64).astype(F16)
    target = np.full((40, 40), -1, F16)
    width = swizzle // 2 or 32
    into = TensorMap(source, (16, width), swizzle, "x")
    out = TensorMap(target, (16, width), swizzle, "y")

    def body(machine):
        fill(machine, [(0, into, (4, 0))])
        machine.tma_store(out, (30, 24), 0)
        machine.bulk_commit()
        machine.bulk_wait(0, read=False)

    run(body, seed)
    expected = np.full((40, 40), -1, F16)
    columns = min(16, width)
    expected[30:, 24 : 24 + columns] = source[4:14, :columns]
    np.testing.assert_array_equal(target, expected)


X = TensorMap(np.ones((64, 64), F16), (64, 64), 128, "x")


@pytest.mark.parametrize(
    ("tensor", "address", "coords", "message"),
    [
        (X, 64, (0, 0), r"SMEM\[64\]; the TMA needs a multiple of 128"),
        (X, BAR - 7168, (0, 0), r"where mbarrier \(ready\) is in use"),
        (X, BAR + 4096, (0, 0), "but the CTA has 66560 bytes"),
        (X, 0, (0, 4), "the innermost is 8 bytes into a row; it must be a multiple of 16"),
        (X, 0, (0, -2), "the innermost is -4 bytes into a row"),
    ],
)
def test_a_copy_the_tma_cannot_make_is_refused(tensor, address, coords, message):
    def body(machine):
        machine.mbar_init(BAR, 1, "ready")
        machine.fence_mbarrier_init()
        machine.tma_load(address, tensor, coords, BAR)

    with pytest.raises(SimulationError, match=message):
        run(body)


@pytest.mark.parametrize("operation", ["tma_load", "tma_store"])
def test_a_copy_by_many_lanes_is_refused(operation):
    def body(machine):
        machine.tma_load(0, X, (0, 0), BAR) if operation == "tma_load" else machine.tma_store(
            X, (0, 0), 0
        )

    with pytest.raises(SimulationError, match=f"{operation} is executed by 128 lanes .* one_lane"):
        simulate(body, grid=(1, 1, 1), warpgroups=1, smem_bytes=1024)


def test_a_load_over_bytes_generic_code_wrote_needs_the_proxy_fence():
    def body(machine, fence):
        machine.smem_write(np.array([[0]]), np.zeros((1, 1, 16), np.uint8), "clear")
        if fence:
            machine.fence_proxy_async()
        fill(machine, [(0, X, (0, 0))])

    run(lambda machine: body(machine, True))
    with pytest.raises(PipelineRace, match="did not fence"):
        run(lambda machine: body(machine, False))


@pytest.mark.parametrize(
    ("pending", "read", "fine"), [(1, True, True), (1, False, True), (2, True, False)]
)
def test_a_slot_may_be_refilled_once_its_bulk_group_has_been_read(pending, read, fine):
    target = np.zeros((128, 64), F16)
    out = TensorMap(target, (64, 64), 128, "y")

    def body(machine):
        fill(machine, [(0, X, (0, 0)), (8192, X, (0, 0))])
        for slot in range(2):
            machine.tma_store(out, (64 * slot, 0), 8192 * slot)
            machine.bulk_commit()
        machine.bulk_wait(pending, read=read)
        fill(machine, [(0, X, (0, 0))], phase=1)
        machine.bulk_wait(0, read=False)

    for seed in range(10):
        if fine:
            run(body, seed)
        else:
            with pytest.raises(
                PipelineRace, match=r"TMA load \(x\) fills SMEM\[0:8192\) while TMA store"
            ):
                run(body, seed)


def test_stores_land_late():
    """Between bulk_wait(read=True) and bulk_wait(read=False) the array may hold either value."""
    seen = set()
    for seed in range(30):
        target = np.zeros((64, 64), F16)
        out = TensorMap(target, (64, 64), 128, "y")

        def body(machine, target=target, out=out):
            fill(machine, [(0, X, (0, 0))])
            machine.tma_store(out, (0, 0), 0)
            machine.bulk_commit()
            machine.bulk_wait(0, read=True)
            seen.add(float(target[0, 0]))
            machine.bulk_wait(0, read=False)
            assert target[0, 0] == 1

        run(body, seed)
    assert seen == {0.0, 1.0}


@pytest.mark.parametrize("padded", [False, True])
def test_a_store_past_the_end_of_odd_rows_overwrites_what_follows_unless_they_are_padded(padded):
    # observed on an H200: TMA stores whole 16-byte chunks, here columns 777 to 783 of the next row
    out = TensorMap(np.zeros((16, 777), F16), (16, 8), 0, "y", padded=padded)

    def body(machine, column):
        fill(machine, [(0, TensorMap(np.ones((16, 8), F16), (16, 8), 0, "x"), (0, 0))])
        machine.tma_store(out, (0, column), 0)
        machine.bulk_commit()
        machine.bulk_wait(0, read=False)

    run(lambda machine: body(machine, 768), None)
    if padded:
        run(lambda machine: body(machine, 776), None)
        assert out.array[:, 768:].all()
    else:
        with pytest.raises(
            SimulationError,
            match=r"\(0, 776\) passes the end of rows of 1554 bytes; .*whole 16-byte chunks",
        ):
            run(lambda machine: body(machine, 776), None)
