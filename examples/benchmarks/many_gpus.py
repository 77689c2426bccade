"""Compare the ops on several GPUs with PyTorch's symmetric memory, NCCL, and the product alone,
with one process per GPU.

    python examples/benchmarks/many_gpus.py --gpus 2 --out result.json
    python examples/benchmarks/many_gpus.py --gpus 2 --ops all_gather,reduce_scatter --processes 1

torch.distributed starts the ranks, --processes times. All competitors of a row run in turn
("interleaved") on two sets of buffers, after some load; each time is that of the slowest rank. For
products, the reference is torch.mm of the whole product without any communication ("local"), so a
ratio is a fraction of its speed. For collectives, it is NCCL's. Rates are in TFLOPS, or in GB/s
over the link.

The errors of products and sums are relative, in the Frobenius norm, of 64 sampled rows against
float64. They may not exceed the error of a single rounding or, with partial sums in bfloat16,
NCCL's, by more than 5 %. Copies are compared bit by bit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness

import numpipe
from numpipe import bench, ops

OURS, LOCAL, NCCL, FUSED = "numpipe", "local", "NCCL", "symmetric memory"
ANY, ROUNDED = f"{OURS}, any output", f"{OURS}, parts in bf16"
PRODUCTS = {
    "all_gather_matmul": ("8192,8192,8192", "4096,14336,4096", "16384,8192,4096"),
    "matmul_reduce_scatter": ("8192,8192,8192", "4096,14336,4096"),
    "matmul_all_reduce": ("64,8192,8192", "512,8192,8192", "8192,8192,8192"),
}
"""M,N,K of the whole product: N is split if rows are gathered, K if products are summed"""
SIZES, TOKENS = ("64", "256", "1024"), "8192,4096"
"""MiB of collectives, of all GPUs together; rows and columns of all_to_all"""
OPS = (*PRODUCTS, "all_gather", "reduce_scatter", "all_reduce", "all_to_all")
SETS, ROUNDS, SAMPLED_ROWS, ERROR = 2, 11, 64, 1.05
Calls = dict[str, Callable[[int], object]]


class Ranks:
    """This process as one of the ranks."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as distributed
        from torch.distributed import _symmetric_memory as symmetric

        self.rank = int(os.environ["RANK"])
        torch.cuda.set_device(self.rank)
        distributed.init_process_group("nccl", device_id=torch.device("cuda", self.rank))
        self.size, self.group = distributed.get_world_size(), distributed.group.WORLD.group_name
        symmetric.enable_symm_mem_for_group(self.group)
        self.mesh = numpipe.Mesh.torch()
        torch.manual_seed(self.rank + 10 * int(os.environ[harness.PROCESS]))

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        """Return each time of the slowest rank."""
        import torch
        import torch.distributed as distributed

        times = torch.tensor(seconds, dtype=torch.float64, device="cuda")
        distributed.all_reduce(times, op=distributed.ReduceOp.MAX)
        return times.tolist()  # type: ignore[no-any-return]

    def sampled_sum(
        self, of_rank: Callable[[Any], Any], rows: int, shared: bool
    ) -> tuple[Any, Any]:
        """Return sampled rows of a result and their sums over all ranks, in float64. A rank has
        `rows` of the result, its share if `shared`; `of_rank` returns its rows of the sum."""
        import torch
        import torch.distributed as distributed

        chosen = torch.randperm(rows, device="cuda")[:SAMPLED_ROWS]
        distributed.broadcast(chosen, 0)
        sums = [of_rank(chosen + r * rows) for r in (range(self.size) if shared else [0])]
        for each in sums:
            distributed.all_reduce(each)
        return chosen, sums[self.rank if shared else 0]


# ---- the rows
def product_row(ranks: Ranks, op: str, shape: str) -> tuple[Calls, float, dict[str, float]]:
    import torch
    import torch.distributed as distributed

    n, mesh = ranks.size, ranks.mesh
    gathers, shared = op == "all_gather_matmul", op == "matmul_reduce_scatter"
    rows, columns, depth = (int(size) for size in shape.split(","))
    if gathers:
        left, right, out = (rows // n, depth), (columns // n, depth), (rows, columns // n)
    else:
        left, right = (rows, depth // n), (columns, depth // n)
        out = (rows // n if shared else rows, columns)
    a, b = (
        [torch.randn(size, device="cuda").bfloat16() for _ in range(SETS)] for size in (left, right)
    )
    kinds = [OURS, NCCL, *[ROUNDED] * (not gathers), *[ANY] * (op == "matmul_all_reduce")]
    results = {
        name: [torch.empty(out, device="cuda", dtype=torch.bfloat16) for _ in range(SETS)]
        for name in kinds
    }
    if ANY in kinds:
        for name in (OURS, ROUNDED):
            results[name] = [mesh.empty(out, torch.bfloat16) for _ in range(SETS)]
    for each in results.values():
        for result in each:
            result.fill_(torch.nan)
    whole = [torch.empty((rows, depth), device="cuda", dtype=torch.bfloat16) for _ in range(SETS)]
    product = [
        torch.empty(
            (rows, columns // n if gathers else columns), device="cuda", dtype=torch.bfloat16
        )
        for _ in range(SETS)
    ]
    ours = getattr(ops, op)

    def nccl(i: int) -> object:
        if gathers:
            distributed.all_gather_into_tensor(whole[i % SETS], a[i % SETS])
            return torch.mm(whole[i % SETS], b[i % SETS].T, out=results[NCCL][i % SETS])
        if shared:
            torch.mm(a[i % SETS], b[i % SETS].T, out=product[i % SETS])
            return distributed.reduce_scatter_tensor(results[NCCL][i % SETS], product[i % SETS])
        torch.mm(a[i % SETS], b[i % SETS].T, out=results[NCCL][i % SETS])
        return distributed.all_reduce(results[NCCL][i % SETS])

    def fused(i: int) -> Any:
        if gathers:
            return torch.ops.symm_mem.fused_all_gather_matmul(
                a[i % SETS], [b[i % SETS].T], 0, ranks.group
            )[1][0]
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(
            a[i % SETS], b[i % SETS].T, "sum", 0, ranks.group
        )

    def of(name: str) -> Callable[[int], object]:
        options = {"parts": "input"} if name == ROUNDED else {}
        return lambda i: ours(
            a[i % SETS], b[i % SETS].T, mesh=mesh, out=results[name][i % SETS], **options
        )

    calls: Calls = {
        **{name: of(name) for name in kinds if name != NCCL},
        LOCAL: lambda i: torch.mm(
            (whole if gathers else a)[i % SETS], b[i % SETS].T, out=product[i % SETS]
        ),
        NCCL: nccl,
    }
    for i in range(SETS):
        for name in kinds:
            calls[name](i)
    found = {name: results[name][0] for name in kinds}
    if op != "matmul_all_reduce":  # PyTorch has no such op
        calls[FUSED] = fused
        found[FUSED] = fused(0)
    torch.cuda.synchronize()
    if gathers:
        chosen = torch.randperm(out[0], device="cuda")[:SAMPLED_ROWS]
        exact = whole[0][chosen].double() @ b[0].double().T
    else:
        chosen, exact = ranks.sampled_sum(
            lambda picked: a[0][picked].double() @ b[0].double().T, out[0], shared
        )
    errors = {name: harness.relative_error(c[chosen], exact) for name, c in found.items()}
    return calls, 2e-12 * rows * columns * depth / n, checked(f"{op} {shape}", errors, exact)


def checked(of: str, errors: dict[str, float], exact: Any) -> dict[str, float]:
    """Return the errors and that of a single rounding. Raises AssertionError if numpipe's are
    larger than they must be."""
    once = harness.relative_error(exact.bfloat16(), exact)
    for name, error in errors.items():
        most = errors[NCCL] if name == ROUNDED else once
        if name.startswith(OURS) and not error <= ERROR * most:
            raise AssertionError(f"{of}: relative errors {errors}, and {once} if rounded once")
    return {**errors, "rounded once": once}


def collective_row(ranks: Ranks, op: str, size: str) -> tuple[Calls, float, dict[str, float]]:
    import torch
    import torch.distributed as distributed

    n, mesh = ranks.size, ranks.mesh
    elements = int(size) * 2**20 // 2 // 1024
    gathers, shared = op == "all_gather", op == "reduce_scatter"
    x = [
        torch.randn((elements // (n if gathers else 1), 1024), device="cuda").bfloat16()
        for _ in range(SETS)
    ]
    shape = (elements // n if shared else elements, 1024)
    direct = [mesh.empty(shape, torch.bfloat16) for _ in range(SETS)]
    plain, theirs = (
        [torch.empty(shape, device="cuda", dtype=torch.bfloat16) for _ in range(SETS)]
        for _ in range(2)
    )
    ours = getattr(ops, op)

    def nccl(i: int) -> object:
        if gathers:
            return distributed.all_gather_into_tensor(theirs[i % SETS], x[i % SETS])
        if shared:
            return distributed.reduce_scatter_tensor(theirs[i % SETS], x[i % SETS])
        # in place, so repeated sums would overflow
        return distributed.all_reduce(theirs[i % SETS], op=distributed.ReduceOp.AVG)

    calls: Calls = {
        OURS: lambda i: ours(x[i % SETS], mesh=mesh, out=(plain if shared else direct)[i % SETS]),
        NCCL: nccl,
    }
    if not shared:
        calls[ANY] = lambda i: ours(x[i % SETS], mesh=mesh, out=plain[i % SETS])
    mean, errors = 1 if gathers or shared else n, dict[str, float]()
    apart = 0 if gathers else n * 2**-7  # NCCL may round to bfloat16 after each addition
    for i in range(SETS):
        for each in (direct[i], plain[i]):
            each.fill_(torch.nan)
        if mean > 1:
            theirs[i].copy_(x[i])
        for call in calls.values():
            call(i)
        torch.cuda.synchronize()
        results = {OURS: plain[i]} if shared else {OURS: direct[i], ANY: plain[i]}
        for each in results.values():
            near = torch.isclose(each, theirs[i] * mean, rtol=apart, atol=apart)
            if not near.all():
                raise AssertionError(
                    f"{op} of {size} MiB: {int((~near).sum())} elements differ from NCCL's"
                )
        if not gathers:
            chosen, exact = ranks.sampled_sum(
                lambda rows, i=i: x[i][rows].double(), shape[0], shared
            )
            found = {**results, NCCL: theirs[i] * mean}
            errors = {name: harness.relative_error(c[chosen], exact) for name, c in found.items()}
            errors = checked(f"{op} of {size} MiB", errors, exact)
    sent = 1e-9 * int(size) * 2**20 * (n - 1) / n
    return calls, sent if gathers or shared else 2 * sent, errors


def exchange_row(ranks: Ranks, op: str, shape: str) -> tuple[Calls, float, dict[str, float]]:
    import torch
    import torch.distributed as distributed

    n, mesh = ranks.size, ranks.mesh
    rows, columns = (int(size) for size in shape.split(","))
    x = [mesh.empty((rows, columns), torch.bfloat16) for _ in range(SETS)]
    counts = mesh.empty((n,), torch.int32)
    sent = [
        rows // n + (37 if r == (ranks.rank + 1) % n else 0) - (37 if r == ranks.rank else 0)
        for r in range(n)
    ]
    counts.copy_(torch.tensor(sent, dtype=torch.int32))
    for each in x:
        each.normal_()
    torch.cuda.synchronize()
    every = [torch.empty((n,), device="cuda", dtype=torch.int32) for _ in range(n)]
    distributed.all_gather(every, counts.clone())
    got = [int(each[ranks.rank]) for each in every]
    plain = [each.clone() for each in x]
    out = [
        torch.zeros((n * rows, columns), device="cuda", dtype=torch.bfloat16) for _ in range(SETS)
    ]
    theirs = [
        torch.empty((sum(got), columns), device="cuda", dtype=torch.bfloat16) for _ in range(SETS)
    ]
    calls: Calls = {
        OURS: lambda i: ops.all_to_all(x[i % SETS], counts, mesh=mesh, out=out[i % SETS]),
        NCCL: lambda i: distributed.all_to_all_single(theirs[i % SETS], plain[i % SETS], got, sent),
    }
    for i in range(SETS):
        received: Any = calls[OURS](i)
        calls[NCCL](i)
        torch.cuda.synchronize()
        if received[1].tolist() != got or not torch.equal(out[i][: sum(got)], theirs[i]):
            raise AssertionError(
                f"all_to_all: {received[1].tolist()} rows, expected {got}, or other rows than "
                "NCCL's"
            )
    return calls, 1e-9 * 2 * columns * (rows - sent[ranks.rank]), {}


# ---- a measurement
def measure(ranks: Ranks, load: float, process: int, case: harness.Case) -> dict[str, Any]:
    """Measure one row on this rank; return its entry of the result file, with the slowest rank's
    times."""
    import torch
    import torch.distributed as distributed

    op = case["op"]
    make = product_row if op in PRODUCTS else exchange_row if op == "all_to_all" else collective_row
    calls, work, errors = make(ranks, op, case["of"])
    reference = LOCAL if op in PRODUCTS else NCCL

    def timed(call: Callable[[int], object], count: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        call(0)
        begin.record()
        for i in range(count):
            call(i + 1)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3 / count

    for call in calls.values():
        timed(call, 4)
    (one,) = ranks.slowest([timed(calls[reference], 8)])
    for i in range(int(load / one)):
        calls[reference](i)
    distributed.barrier()
    turns = [*calls, reference]
    count = max(4, int(4e-3 / one))
    rounds = [ranks.slowest([timed(calls[name], count) for name in turns]) for _ in range(ROUNDS)]
    names = [*calls, f"{reference} again"]
    times = {name: [each[i] for each in rounds] for i, name in enumerate(names)}
    sample = bench.Sample("interleaved", reference, count, times)
    torch.cuda.empty_cache()
    return bench.run_entry(process, case, work, [sample], errors=errors)


def told(rows: Sequence[bench.Row]) -> str:
    """Return the ratios of products to the better of PyTorch's two methods, as text."""
    lines = []
    for row in rows:
        if row.name == OURS and row.case["op"] in PRODUCTS:
            others = [each for each in rows if each.case == row.case and each.name in (NCCL, FUSED)]
            best = max(others, key=lambda each: each.ratio.median)
            lines.append(
                f"{row.case['op']} {row.case['of']}: {row.ratio.median / best.ratio.median:.3f} "
                f"of {best.name}, {row.ratio.median:.3f} of the local product"
            )
    return "\n".join(lines)


def main() -> int:
    parser = harness.script(__doc__)
    parser.add_argument(
        "--ops",
        type=harness.listed,
        default=list(OPS),
        help="comma-separated, of: " + ", ".join(OPS),
    )
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--processes", type=int, default=3, help="how often the ranks are started")
    parser.add_argument("--load", type=float, default=1.0, help="s of load before a row's rounds")
    parser.add_argument("--out", type=Path)
    options = harness.checked(parser, parser.parse_args(), ops=OPS)
    cases = [
        {"op": op, "of": of}
        for op in options.ops
        for of in PRODUCTS.get(op) or ((TOKENS,) if op == "all_to_all" else SIZES)
    ]
    ranks = Ranks() if harness.PROCESS in os.environ else None
    if ranks is not None and ranks.rank:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the first rank reports
    start = ["-m", "torch.distributed.run", "--nproc-per-node", str(options.gpus)]
    return harness.main(
        "many_gpus",
        cases,
        lambda process, case: measure(ranks, options.load, process, case),
        processes=options.processes,
        out=None if ranks else options.out,
        method={"sets": SETS, "rounds": ROUNDS, "load": options.load, "gpus": options.gpus},
        unit="TFLOPS | GB/s",
        tell=told,
        command=[sys.executable, *start, *sys.argv],
    )


if __name__ == "__main__":
    harness.run(main)
