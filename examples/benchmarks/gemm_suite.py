"""The products by which the matrix product is judged, the goals for each, and whether they were
reached.

A `Goal` is a ratio to cuBLAS in one process: `must` is met if the upper end of the 95 % interval
reaches it; `aim` is only reported.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from numpipe import bench


@dataclasses.dataclass(frozen=True)
class Goal:
    must: float
    aim: float | None = None


@dataclasses.dataclass(frozen=True)
class Product:
    """M,N,K, or BxM,N,K for a batch, with goals for measurements after a pause and under the
    competitor's own load."""

    shape: str
    burst: Goal
    alone: Goal
    bandwidth: float | None = None
    """fraction of the read bandwidth to aim at"""


SUITES: dict[str, tuple[Product, ...]] = {
    "square": (
        Product("4096,4096,4096", Goal(0.99, 1.02), Goal(0.97, 1.01)),
        Product("8192,8192,8192", Goal(1.02, 1.04), Goal(1.00, 1.04)),
        Product("16384,16384,16384", Goal(1.00, 1.03), Goal(1.00, 1.04)),
    ),
    "shallow": (
        Product("8192,8192,1024", Goal(1.07, 1.10), Goal(1.04, 1.08)),
        Product("8192,8192,512", Goal(1.10, 1.15), Goal(1.06, 1.12)),
    ),
    "short": (
        Product("1024,4096,4096", Goal(1.00, 1.03), Goal(0.97, 1.01)),
        Product("512,4096,4096", Goal(1.00, 1.03), Goal(0.97, 1.01)),
    ),
    "skinny": (
        Product("128,8192,8192", Goal(1.00), Goal(1.00), bandwidth=0.80),
        Product("16,8192,8192", Goal(1.00), Goal(1.00), bandwidth=0.80),
    ),
    "wide": (
        Product("4096,14336,4096", Goal(1.00, 1.03), Goal(0.98, 1.03)),
        Product("8192,28672,8192", Goal(1.00, 1.03), Goal(0.98, 1.03)),
        Product("8192,8192,28672", Goal(1.00, 1.03), Goal(0.98, 1.03)),
    ),
    "odd": (
        Product("4095,4097,4104", Goal(0.97, 1.00), Goal(0.97, 1.00)),
        Product("8192,8200,8184", Goal(0.97, 1.00), Goal(0.97, 1.00)),
    ),
    "batched": (Product("64x1024,1024,1024", Goal(1.00, 1.03), Goal(1.00, 1.03)),),
}
ALL = tuple(product for suite in SUITES.values() for product in suite)
MEAN = Product("geometric mean", Goal(1.02, 1.05), Goal(1.00, 1.05))
READ = 4.23e12
"""bytes per second of the fastest copy on an H200: numpipe/tools/model/gpu_figures.py"""
OURS, REFERENCE = "numpipe", "cuBLAS"


def dimensions(shape: str) -> tuple[int, int, int, int]:
    """Parse a shape into (batches, M, N, K), with 0 batches for a plain product. Raises ValueError
    for other texts.

    >>> dimensions("64x1024,512,256"), dimensions("4095,4097,4104")
    ((64, 1024, 512, 256), (0, 4095, 4097, 4104))
    """
    batches, cross, rest = shape.rpartition("x")
    sizes = tuple(int(size) for size in rest.split(","))
    if len(sizes) != 3 or min(sizes) < 1 or (cross and int(batches) < 1):
        raise ValueError(f"{shape!r} is not M,N,K or BxM,N,K")
    return int(batches) if cross else 0, *sizes


def flops(shape: str) -> int:
    batches, m, n, k = dimensions(shape)
    return 2 * max(batches, 1) * m * n * k


def nbytes(shape: str, itemsize: int = 2) -> int:
    """Return the bytes of both inputs and the output."""
    batches, m, n, k = dimensions(shape)
    return max(batches, 1) * (m * k + n * k + m * n) * itemsize


def read_rate(row: bench.Row) -> float:
    """Return the bytes of inputs read per second in `row`."""
    batches, m, n, k = dimensions(row.case["shape"])
    return row.rate * 1e12 / flops(row.case["shape"]) * max(batches, 1) * (m + n) * k * 2


def verdict(rows: Sequence[bench.Row]) -> str:
    """Return, as text, which goals of the suite were reached, one line for each product, type and
    protocol, and the mean of the measured products."""
    goals = {product.shape: product for product in ALL}
    lines = [
        ["product", "type", "protocol", "ratio [95 %]", "must", "", "aim", "", "over the others"]
    ]
    ratios: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        product = goals.get(row.case["shape"])
        if (
            row.name != OURS
            or row.reference != REFERENCE
            or product is None
            or row.protocol not in ("burst", "alone")
        ):
            continue
        goal: Goal = getattr(product, row.protocol)
        ratios.setdefault((row.case.get("dtype", ""), row.protocol), []).append(row.ratio.median)
        others = [
            f"{other.name} {row.ratio.median / other.ratio.median:.3f}"
            for other in rows
            if other.name != OURS and (other.case, other.protocol) == (row.case, row.protocol)
        ]
        if product.bandwidth:
            others.append(
                f"reads {read_rate(row) / READ:.2f} of {READ / 1e12:.2f} TB/s (aim "
                f"{product.bandwidth:.2f})"
            )
        lines.append(
            [
                product.shape,
                row.case.get("dtype", ""),
                row.protocol,
                str(row.ratio),
                f"{goal.must:.2f}",
                "met"
                if row.ratio.reaches(goal.must)
                else f"missed by {goal.must - _upper(row.ratio):.3f}",
                "" if goal.aim is None else f"{goal.aim:.2f}",
                ""
                if goal.aim is None
                else "reached"
                if row.ratio.reaches(goal.aim)
                else "not reached",
                ", ".join(others),
            ]
        )
    for (dtype, protocol), found in ratios.items():
        goal, mean = getattr(MEAN, protocol), math.exp(math.fsum(map(math.log, found)) / len(found))
        complete = len(found) == len(ALL)
        lines.append(
            [
                MEAN.shape if complete else f"geometric mean of {len(found)} of {len(ALL)}",
                dtype,
                protocol,
                f"{mean:.3f}",
                f"{goal.must:.2f}",
                ("met" if mean >= goal.must else f"missed by {goal.must - mean:.3f}")
                if complete
                else "",
                f"{goal.aim:.2f}",
                ("reached" if mean >= goal.aim else "not reached") if complete else "",
                "",
            ]
        )
    if len(lines) == 1:
        return "no product of the suite was measured"
    return bench.aligned(lines)


def _upper(ratio: bench.Figure) -> float:
    return ratio.median if ratio.high is None else ratio.high


def shapes_of(suites: Sequence[str]) -> list[str]:
    """Return the products of suites by name; "all" stands for all suites. Raises ValueError for an
    unknown name."""
    known: Mapping[str, tuple[Product, ...]] = {**SUITES, "all": ALL}
    if unknown := [name for name in suites if name not in known]:
        raise ValueError(f"unknown suites {unknown}: choose from {list(known)}")
    return list(dict.fromkeys(product.shape for name in suites for product in known[name]))
