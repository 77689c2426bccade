"""A torch.distributed rank with a GPU, which runs scenarios of the multi-GPU ops and prints
failures as JSON.

``python -m tests.kernels.many_gpu_ops_ranks RANK RANKS FILE``; the ranks rendezvous through the
file. A rank ends at its first exception, because after it the ranks would not meet again.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as distributed

import numpipe
from numpipe import ops
from tests.kernels.many_gpus_in_torch import EXPECTED, differs, in_full, shards

several, all_reduce = (
    importlib.import_module(f"numpipe.ops.{name}") for name in ("sharded_calls", "all_reduce")
)
DEVICE = "cuda"
F16, BF16 = torch.float16, torch.bfloat16
CASES = (
    (131, 72, 100, BF16, True),
    (300, 264, 520, BF16, False),
    (136, 77, 91, F16, False),
    (520, 136, 328, F16, True),
    (33, 264, 520, BF16, False),
)
"""(rows of a GPU, K, N, type, whether b is stored by columns)"""
TOLERANCES = {F16: 1e-3, BF16: 5e-3}
SMALL = CASES[0]
SCENARIOS: dict[str, Callable[[numpipe.Mesh], Iterator[str]]] = {}


def scenario(
    function: Callable[[numpipe.Mesh], Iterator[str]],
) -> Callable[[numpipe.Mesh], Iterator[str]]:
    """Register a scenario: a generator that yields failures as text, empty where nothing failed."""
    SCENARIOS[function.__name__] = function
    return function


def operands(
    name: str, case: tuple[Any, ...], gpus: int, seed: int = 0
) -> tuple[list[Any], list[Any]]:
    """Return a and b of all GPUs for a product."""
    rows, depth, columns, dtype, by_columns = case
    height = rows if name == "all_gather_matmul" else rows * gpus
    a, b = shards(
        (height, depth),
        (columns, depth) if by_columns else (depth, columns),
        dtype=dtype,
        gpus=gpus,
        device=DEVICE,
        seed=seed,
    )
    return a, [each.mT for each in b] if by_columns else b


def told(what: str, failure: str) -> str:
    return f"{what}: {failure}" if failure else ""


PRODUCTS = ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce")


@scenario
def products(mesh: numpipe.Mesh) -> Iterator[str]:
    """Check products of odd sizes, b by rows and by columns, against float64."""
    for case in CASES:
        for name in PRODUCTS:
            a, b = operands(name, case, mesh.size)
            got = getattr(ops, name)(a[mesh.rank], b[mesh.rank], mesh=mesh)
            wanted = EXPECTED[name]([each.double() for each in a], [each.double() for each in b])[
                mesh.rank
            ]
            yield told(f"{name} {case}", differs(got, wanted, TOLERANCES[case[3]]))
            if name == "all_gather_matmul":
                continue
            out = mesh.empty(tuple(got.shape), got.dtype)
            getattr(ops, name)(a[mesh.rank], b[mesh.rank], mesh=mesh, parts="input", out=out)
            yield told(f"{name} {case}, parts", differs(out, wanted, 2 * TOLERANCES[case[3]]))


@scenario
def collectives(mesh: numpipe.Mesh) -> Iterator[str]:
    """Check that copies are exact and sums equal float64; all_gather to ordinary and to symmetric
    memory."""
    gpus, me = mesh.size, mesh.rank
    for shape, dtype in (((37, 24), BF16), ((9, 40), F16)):
        (x,) = shards(shape, dtype=dtype, gpus=gpus, device=DEVICE)
        yield told(
            f"all_gather {shape}", differs(ops.all_gather(x[me], mesh=mesh), torch.cat(x), 0)
        )
        out = mesh.empty((gpus * shape[0], *shape[1:]), dtype)
        yield told(
            f"all_gather {shape}, symmetric",
            differs(ops.all_gather(x[me], mesh=mesh, out=out), torch.cat(x), 0),
        )
        (x,) = shards((gpus * shape[0], *shape[1:]), dtype=dtype, gpus=gpus, device=DEVICE)
        wanted = EXPECTED["reduce_scatter"]([each.double() for each in x])[me]
        yield told(
            f"reduce_scatter {shape}",
            differs(ops.reduce_scatter(x[me], mesh=mesh), wanted, TOLERANCES[dtype]),
        )
        for launch_bytes in (-1, 0):  # two GPUs take two launches with -1 only
            with mock.patch.object(all_reduce, "LAUNCH", launch_bytes):
                got = ops.all_reduce(x[me], mesh=mesh)
            wanted = EXPECTED["all_reduce"]([each.double() for each in x])[me]
            yield told(f"all_reduce {shape}", differs(got, wanted, TOLERANCES[dtype]))
    for numbers in ([[70, 30], [1, 99]], [[0, 100], [13, 0]], [[0, 0], [64, 36]]):
        (x,) = shards((100, 72), dtype=BF16, gpus=gpus, device=DEVICE)
        counts = [torch.tensor(each, dtype=torch.int32, device=DEVICE) for each in numbers]
        got, received = ops.all_to_all(x[me], counts[me], mesh=mesh)
        wanted = EXPECTED["all_to_all"](x, counts)[me]
        yield told(
            f"all_to_all {numbers}, counts", differs(received, torch.stack(counts)[:, me], 0)
        )
        yield told(f"all_to_all {numbers}", differs(got[: len(wanted)], wanted, 0))


@scenario
def repeats(mesh: numpipe.Mesh) -> Iterator[str]:
    """Check that results have the same bits 20 times, and that repeated calls are found by their
    arrays.

    Calls that PyTorch would record for gradients are not reused.
    """
    me = mesh.rank
    (x,) = shards((2 * 37, 24), dtype=BF16, gpus=mesh.size, device=DEVICE)
    counts = torch.tensor([41, 33], dtype=torch.int32, device=DEVICE)
    calls: dict[str, Callable[[], Any]] = {
        "all_gather": lambda: ops.all_gather(x[me], mesh=mesh),
        "reduce_scatter": lambda: ops.reduce_scatter(x[me], mesh=mesh),
        "all_reduce": lambda: ops.all_reduce(x[me], mesh=mesh),
        "all_to_all": lambda: ops.all_to_all(x[me], counts, mesh=mesh)[0][: (41, 33)[me or 0] * 2],
    }
    for name in PRODUCTS:
        for case in (CASES[1], CASES[-1]):
            a, b = operands(name, case, mesh.size)
            calls[f"{name} {case}"] = lambda name=name, a=a[me], b=b[me]: getattr(ops, name)(
                a, b, mesh=mesh
            )
    for name, call in calls.items():
        first = call()
        for i in range(20):
            yield told(name, "" if torch.equal(call(), first) else f"repeat {i} has other bits")
    rows, numbers = mesh.empty((74, 24), BF16), mesh.empty((2,), torch.int32)
    rows.copy_(x[me])
    numbers.copy_(counts)
    calls["all_to_all"] = lambda: ops.all_to_all(rows, numbers, mesh=mesh)[0]  # neither is copied
    for name, call in calls.items():
        for _ in range(4):  # at the addresses that the allocator returns alternately
            call()
        with mock.patch.object(several, "Shards", wraps=several.Shards) as anew:
            for _ in range(8):
                call()
        yield told(name, f"{anew.call_count} of 8 calls were made anew" if anew.call_count else "")
    x[me].requires_grad_()
    with contextlib.suppress(numpipe.SpecError):
        calls["all_gather"]()
        yield "all_gather took a tensor that PyTorch would record"


@scenario
def thousand(mesh: numpipe.Mesh) -> Iterator[str]:
    """Launch each op 1,000 times in a row, alternating between two inputs: data of the previous
    launch would show, and so would sums in another order."""
    me = mesh.rank
    counts = torch.tensor([41, 33], dtype=torch.int32, device=DEVICE)
    rows = [shards((74, 24), dtype=BF16, gpus=mesh.size, device=DEVICE, seed=i)[0] for i in (0, 1)]
    calls: dict[str, Callable[[int, Any], Any]] = {
        "all_gather": lambda i, out: ops.all_gather(rows[i][me], mesh=mesh, out=out),
        "reduce_scatter": lambda i, out: ops.reduce_scatter(rows[i][me], mesh=mesh, out=out),
        "all_reduce": lambda i, out: ops.all_reduce(rows[i][me], mesh=mesh, out=out),
        "all_to_all": lambda i, out: ops.all_to_all(rows[i][me], counts, mesh=mesh, out=out)[0],
    }
    for name in PRODUCTS:
        both = [[each[me] for each in operands(name, SMALL, mesh.size, i)] for i in range(2)]
        calls[name] = lambda i, out, name=name, both=both: getattr(ops, name)(
            *both[i], mesh=mesh, out=out
        )
    for name, call in calls.items():
        right = [call(i, None) for i in range(2)]
        out, wrong = torch.zeros_like(right[0]), torch.zeros(1, dtype=torch.int32, device=DEVICE)
        if name == "all_to_all":  # rows after the last one are not changed
            right = [call(i, torch.zeros_like(out)) for i in range(2)]
        for i in range(1000):
            call(i % 2, out)
            wrong += (out != right[i % 2]).any()
        yield told(name, f"{int(wrong)} of 1,000 results are wrong" if int(wrong) else "")
    yield from products(mesh)


@scenario
def graphs(mesh: numpipe.Mesh) -> Iterator[str]:
    """Replay both products and a collective in one graph, on 10 inputs."""
    _, _, columns, dtype, _ = SMALL
    a, b = operands("all_gather_matmul", SMALL, mesh.size)
    (down,) = shards((columns, 64), dtype=dtype, gpus=mesh.size, device=DEVICE)
    x, up = a[mesh.rank].clone(), b[mesh.rank]

    def run() -> tuple[Any, ...]:
        hidden = ops.all_gather_matmul(x, up, mesh=mesh)
        y = ops.matmul_reduce_scatter(hidden, down[mesh.rank], mesh=mesh)
        return hidden, y, ops.all_gather(y, mesh=mesh), ops.all_reduce(hidden, mesh=mesh)

    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()  # compile, and allocate what the stream's launches share
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=stream, capture_error_mode="thread_local"):
        results = run()
    distributed.barrier()
    for i in range(10):
        new, _ = operands("all_gather_matmul", SMALL, mesh.size, 10 + i)
        with torch.cuda.stream(stream):
            x.copy_(new[mesh.rank])
            captured.replay()
        stream.synchronize()
        hidden = EXPECTED["all_gather_matmul"](
            [each.double() for each in new], [each.double() for each in b]
        )
        wanted = EXPECTED["matmul_reduce_scatter"](hidden, [each.double() for each in down])
        for name, got, other in zip(
            ("hidden", "y", "all y", "sum of hidden"),
            results,
            (hidden[mesh.rank], wanted[mesh.rank], torch.cat(wanted), sum(hidden)),
            strict=True,
        ):
            yield told(f"{name} of replay {i}", differs(got, other, 2e-2))


@scenario
def gradients(mesh: numpipe.Mesh) -> Iterator[str]:
    """Check the gradients of both products by numpipe.torch, for padded and for large sizes."""
    import numpipe.torch

    me = mesh.rank
    for case in ((33, 77, 91, BF16, True), CASES[1]):
        for name in PRODUCTS:
            every = operands(name, case, mesh.size)
            mine = [
                tensors[me].detach().clone(memory_format=torch.preserve_format).requires_grad_()
                for tensors in every
            ]
            wide = [in_full(tensors) for tensors in every]
            got, wanted = getattr(numpipe.torch, name)(*mine, mesh=mesh), EXPECTED[name](*wide)
            (grads,) = shards(
                tuple(got.shape), dtype=got.dtype, gpus=mesh.size, device=DEVICE, seed=1
            )
            got.backward(grads[me])
            torch.autograd.backward(wanted, [grad.double() for grad in grads])
            for array, tensor, tensors in zip("ab", mine, wide, strict=True):
                yield told(
                    f"{name} {case}, gradient of {array}",
                    differs(tensor.grad, tensors[me].grad, 5e-3),
                )


def main(rank: int, ranks: int, file: str) -> None:
    torch.cuda.set_device(rank)
    distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=ranks
    )
    mesh, found = numpipe.Mesh.torch(), dict[str, Any]()
    for name, run in SCENARIOS.items():
        try:
            found[name] = [failure for failure in run(mesh) if failure]
            mesh.check()
        except Exception:
            found[name] = [traceback.format_exc()]
            break
    print(json.dumps(found), flush=True)
    if any("Traceback" in failure for failures in found.values() for failure in failures):
        os._exit(0)  # torch.distributed does not shut down cleanly without the other rank
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
