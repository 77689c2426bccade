"""numpipe.explain for kernels of several GPUs: bytes over the link, and when the link is the
limiter."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, BlockSpec, Mesh, SpecError, ds, ops
from numpipe.model import H200
from numpipe.tools.model import limits

GATHER, GATHERED = (
    importlib.import_module(f"numpipe.ops.{name}") for name in ("all_gather", "all_gather_matmul")
)
F32, WORDS = np.dtype(np.float32), np.dtype(np.int32)


@numpipe.kernel(grid=numpipe.persistent(1), semaphores=1)
def all_ways(x, y, ready, *, by: numpipe.Static = 1):
    """Load tiles of another GPU's x by a pipeline, and store to its y by TMA and by a lane.

    With by=0, everything is on the own GPU.
    """
    other = (numpipe.axis_index("gpu") + by) % numpipe.axis_size("gpu")
    there = numpipe.peer(y, other)
    for (k,), (tile,) in numpipe.pipeline(
        grid=(3,), in_specs=(BlockSpec((64, 32), lambda k: (k, 0)),)
    )(numpipe.peer(x, other)):
        there[ds(k * 64, 64), ds(0, 32)] = tile[...]
    there[200, 0] = 1.0
    numpipe.signal(ready.at[0], other)
    numpipe.wait(ready.at[0], 1)


def told(gpus: int = 2, **named: Any) -> Any:
    x = ArrayType((208, 32), F32)
    return numpipe.explain(all_ways, x, x, mesh=Mesh.simulated(gpus), compiled=False, **named)


@pytest.mark.variants(1)
@pytest.mark.parametrize("gpus", [2, 3])
def test_accesses_to_other_gpus_are_the_links_and_to_the_own_one_are_not(gpus: int) -> None:
    loaded, stored = {"x": 3 * 64 * 32 * 4}, {"y": 3 * 64 * 32 * 4 + 4}
    far, near = told(gpus), told(gpus, by=0)
    assert (far.fetched, far.sent, far.loaded, far.stored) == (loaded, stored, {}, {})
    assert (near.fetched, near.sent, near.loaded, near.stored) == ({}, {}, loaded, stored)
    assert (
        far.link_bytes == far.as_dict()["link_bytes"] == loaded["x"] + stored["y"]
        and near.link_bytes == 0
    )
    assert far.hbm_bytes == near.hbm_bytes, "other GPUs load here as much, and store here as much"
    assert "of the link" in str(far) and "fetches  " in str(far) and "sends  " in str(far)
    assert not {"fetches", "sends", "link"} & set(str(near).split())


@pytest.mark.variants(1)
@pytest.mark.parametrize("gpus", [2, 4])
def test_a_gather_sends_its_shard_to_all_others_and_the_link_limits_it(gpus: int) -> None:
    words = 1 << 23
    arrays = ArrayType((1, words), WORDS), *[ArrayType((gpus, words), WORDS)] * 2
    kernel = GATHER.kernel(GATHER.Config(near=12), True)
    found = numpipe.explain(kernel, *arrays, mesh=Mesh.simulated(gpus), compiled=False)
    assert found.sent == {"room": (gpus - 1) * words * 4} and not found.fetched
    assert (
        found.limits["link"] == pytest.approx(found.link_bytes / H200.link)
        and found.limiter == "link"
    )
    assert found.advice.startswith(limits.ADVICE["link"])
    quick = numpipe.explain(
        kernel,
        *arrays,
        mesh=Mesh.simulated(gpus),
        compiled=False,
        device=dataclasses.replace(H200, link=1e13),
    )
    assert quick.limiter != "link" and quick.predicted_seconds < 0.6 * found.predicted_seconds


@numpipe.kernel(grid=numpipe.persistent(2), semaphores=1)
def fetched(x, y, ready, *, order: numpipe.Static):
    """Load x of all peers, one after another; with order="one", of GPU 0 only."""
    me, gpus, half = numpipe.axis_index("gpu"), numpipe.axis_size("gpu"), numpipe.program_id(0)
    for i in range(1 if order == "one" else gpus):
        r = (me + i) % gpus if order == "rotated" else i
        for (k,), (tile,) in numpipe.pipeline(
            grid=(512 if r != me else 0,), in_specs=(BlockSpec((128, 64), lambda k: (k, half)),)
        )(numpipe.peer(x, r)):
            y[ds(k % 2 * 128, 128), ds(half * 64, 64)] = tile[...]
    for r in range(gpus):
        numpipe.signal(ready.at[0], r)
    numpipe.wait(ready.at[0], 2 * gpus)


def test_peers_that_share_a_port_take_longer() -> None:
    """On four GPUs, loads from peers 0, 1, 2, … take twice as long as loads from i + 1, i + 2, …:
    three GPUs share the port of GPU 0, then two that of GPU 1, and so on."""
    x, y = ArrayType((512 * 128, 128), F32), ArrayType((256, 128), F32)
    slow = dataclasses.replace(H200, link=1e10)  # slower than two CTAs
    rotated, ascending, one = (
        numpipe.explain(
            fetched, x, y, order=order, mesh=Mesh.simulated(4), compiled=False, device=slow
        )
        for order in ("rotated", "ascending", "one")
    )
    alone = 512 * 128 * 128 * 4 / slow.link
    assert rotated.limits["link"] == pytest.approx(3 * alone, rel=0.01)
    assert ascending.limits["link"] == pytest.approx(6 * alone, rel=0.01)
    assert one.limits["link"] == pytest.approx(3 * alone, rel=0.01)
    assert rotated.link_bytes == ascending.link_bytes and rotated.losses["peer order"] == 0
    assert ascending.limiter == "peer order" and "i + 1" in ascending.advice
    assert ascending.losses["peer order"] == pytest.approx(3 * alone, rel=0.1)


@pytest.mark.parametrize("gpus", [3, pytest.param(8, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "op, shapes",
    [
        ("all_gather", [(256, 64)]),
        ("reduce_scatter", [(48, 512)]),
        ("all_to_all", [(12288, 512)]),
        ("all_gather_matmul", [(256, 64), (64, 128)]),
        ("matmul_reduce_scatter", [(24 * 128, 64), (64, 192)]),
    ],
)
def test_no_op_lets_gpus_share_ports(op: str, shapes: list[tuple[int, int]], gpus: int) -> None:
    arrays: list[Any] = [ArrayType(shape, F16) for shape in shapes]
    arrays += [np.full(gpus, 12288 // gpus, np.int32)] * (op == "all_to_all")
    mesh, ports = Mesh.simulated(gpus), dataclasses.replace(H200, relay=0.0)
    (found,) = numpipe.explain(
        getattr(ops, op), *arrays, mesh=mesh, compiled=False, device=ports
    ).kernels
    assert found.link_bytes and found.limits["link"] < 1.05 * found.link_bytes / H200.link


@pytest.mark.variants(1)
@pytest.mark.parametrize("gpus", [2, 4])
def test_neighboring_ctas_that_take_turns_are_counted(gpus: int) -> None:
    """Of a scattered product's CTAs, one sends parts and the next one adds them."""
    a, b = ArrayType((8192, 64), F16), ArrayType((64, 2048), F16)
    found = numpipe.explain(
        ops.matmul_reduce_scatter, a, b, mesh=Mesh.simulated(gpus), compiled=False
    )
    parts = 8192 * 2048 * 4 * (gpus - 1) / gpus
    assert found.kernels[-1].sent["parts"] == pytest.approx(parts, rel=0.05)


@pytest.mark.thorough
def test_a_product_hides_what_it_gathers() -> None:
    m, n, k = 2048, 4096, 4096
    kernel = GATHERED.kernel(GATHERED.choose(m, n, k, 2, False))
    shapes = (1, m, k), (k, n), (2, m, k), (2, m, n)
    found = numpipe.explain(
        kernel,
        *[ArrayType(shape, np.float16) for shape in shapes],
        mesh=Mesh.simulated(2),
        compiled=False,
    )
    assert (
        found.sent["gathered"] == pytest.approx(m * k * 2, rel=0.05)
        and found.limiter == "tensor cores"
    )


def gathered(m: int, n: int, k: int, gpus: int, **named: Any) -> Any:
    a, b = ArrayType((m // gpus, k), np.float16), ArrayType((k, n // gpus), np.float16)
    mesh = Mesh.simulated(gpus)
    return numpipe.explain(ops.all_gather_matmul, a, b, mesh=mesh, compiled=False, **named)


@pytest.mark.parametrize(
    "m, n, k, senders, parts",
    [
        (8192, 4096, 512, 8, 5),
        pytest.param(8192, 8192, 8192, 16, 8, marks=pytest.mark.thorough),
        pytest.param(4096, 4096, 8192, 16, 8, marks=pytest.mark.thorough),
    ],
)
def test_what_some_of_132_ctas_send_is_counted(
    m: int, n: int, k: int, senders: int, parts: int
) -> None:
    config = GATHERED.Config(senders=senders, parts=parts)
    assert gathered(m, n, k, 2, config=config).kernels[-1].sent == {"gathered": m // 2 * k * 2}


def test_few_senders_do_not_fill_the_link() -> None:
    """Slots that are on their way to a peer limit what a sender sends at a time."""
    eight, two = (
        gathered(8192, 4096, 512, 2, config=GATHERED.Config(senders=n, parts=8)).kernels[-1]
        for n in (8, 2)
    )
    assert two.link_bytes == eight.link_bytes
    assert two.limits["link"] == pytest.approx(4 * eight.limits["link"])
    assert eight.limits["link"] > 1.5 * eight.link_bytes / H200.link


FOUR_GPUS = {
    ("all_gather_matmul", 8192, 8192, 8192): 605,
    ("all_gather_matmul", 4096, 14336, 4096): 219,
    ("all_gather_matmul", 16384, 8192, 4096): 545,
    ("matmul_reduce_scatter", 8192, 8192, 8192): 663,
    ("matmul_reduce_scatter", 4096, 14336, 4096): 541,
}
"""us on four H100s, by op and M, N, K of the whole product"""


@pytest.mark.thorough
@pytest.mark.parametrize("case", FOUR_GPUS, ids=str)
def test_four_gpus_take_as_long_as_predicted(case: tuple[str, int, int, int]) -> None:
    op, m, n, k = case
    if op == "all_gather_matmul":  # it had eight senders for any number of GPUs
        parts = {(8192, 8192, 8192): 4, (4096, 14336, 4096): 5, (16384, 8192, 4096): 2}[m, n, k]
        found = gathered(m, n, k, 4, config=GATHERED.Config(senders=8, parts=parts))
    else:
        a, b = ArrayType((m, k // 4), F16), ArrayType((k // 4, n), F16)
        found = numpipe.explain(
            ops.matmul_reduce_scatter, a, b, mesh=Mesh.simulated(4), compiled=False
        )
    assert 1e6 * found.kernels[-1].predicted_seconds == pytest.approx(FOUR_GPUS[case], rel=0.15)


def test_a_kernel_of_several_gpus_needs_its_mesh_here_too() -> None:
    x = ArrayType((208, 32), F32)
    with pytest.raises(
        SpecError, match="it has semaphores, so it runs on the GPUs of a mesh: pass mesh="
    ):
        numpipe.explain(all_ways, x, x, compiled=False)


# ---- ops
F16 = np.dtype(np.float16)


@pytest.mark.variants(1)
@pytest.mark.parametrize("gpus", [2, 4])
def test_an_op_is_explained_as_its_kernels_on_each_gpu(gpus: int) -> None:
    """An array counts as one per GPU, and so does the first array of a list.

    Copies of operands are reported once.
    """
    a, b, mesh = ArrayType((256, 77), F16), ArrayType((77, 136), F16), Mesh.simulated(gpus)
    found = numpipe.explain(ops.all_gather_matmul, a, b, mesh=mesh, compiled=False)
    assert [each.kernel for each in found.kernels] == ["copy_lanes", "all_gather_matmul"] and len(
        found.copied
    ) == 1
    assert (
        "'a', float16 (256, 77), strides (154, 2) bytes, is copied: its rows are 154 bytes apart"
        in found.copied[0]
    )
    assert found.kernels[-1].sent == {"gathered": (gpus - 1) * 2 * 256 * 80}
    lists = numpipe.explain(
        ops.all_gather_matmul,
        [np.ones((256, 77), F16)] * gpus,
        [b] * gpus,
        mesh=mesh,
        compiled=False,
    )
    assert str(lists) == str(found)


def test_counts_say_what_an_exchange_moves() -> None:
    """The figures are for GPU 0, which reads what each GPU's counts have for it: the first
    number."""
    for counts, rows in (([0, 64], 0), ([64, 0], 64), ([17, 64], 64)):  # rows come in blocks of 64
        found = numpipe.explain(
            ops.all_to_all,
            ArrayType((128, 64), F16),
            np.array(counts, np.int32),
            mesh=Mesh.simulated(2),
            compiled=False,
        )
        assert found.kernels[0].fetched.get("x", 0) == 2 * rows * 64 and found.kernels[0].given == (
            "counts",
        )


def test_an_op_of_several_gpus_needs_its_mesh_here_too() -> None:
    with pytest.raises(
        SpecError,
        match=r"explain: all_gather is an op of several GPUs; fix: pass "
        r"mesh=numpipe.Mesh.simulated\(2\)",
    ):
        numpipe.explain(ops.all_gather, ArrayType((128, 64), F16))


def test_ops_report_copies_of_operands(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NUMPIPE_LOG", "launch")
    a = [np.ones((9, 16), F16)[:, ::2] for _ in range(2)]
    ops.all_gather_matmul(a, [np.ones((8, 16), F16)] * 2, mesh=Mesh.simulated(2))
    assert (
        "'a', float16 (9, 8), strides (32, 4) bytes, is copied: its rows are not contiguous"
        in capfd.readouterr().err
    )
