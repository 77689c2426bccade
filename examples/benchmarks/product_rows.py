"""Further products by which numpipe.ops.matmul is judged, in addition to the suite, and the goals
for them.

=========  =========================================================================================
random     M log-uniform from 1 to 11000; N and K multiples of 8 up to 16384, log-uniform from 64 on
           or uniform
off-grid   the same, with N or K not a multiple of 8: rows that do not start at 16 bytes
layers     the linear layers of three language models, both fused as for inference and separate as
           in the models
           have them
squares    256, 256, 256 to 2048, 2048, 2048
columns    column-major operands with odd sides from 2049 to 8191, which TMA cannot address
=========  =========================================================================================

A row is a case of the harness: ``{"shape": "M,N,K", "dtype": "bf16", "of": "random"}``.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import harness

from numpipe import bench

Case = dict[str, Any]
MOST_ROWS, MOST_SIDE, LEAST_SIDE = 11_000, 16_384, 64
ROWS_OF_LAYERS = (1, 2, 8, 16, 64, 128, 256, 512, 1000, 4096)
COLUMNS = 16
"""number of rows with column-major operands"""
SQUARES = (256, 384, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048)
DISTRIBUTIONS = ("log", "uniform")


@dataclasses.dataclass(frozen=True)
class Model:
    """Sizes of a language model: its residual stream, its feed-forward layer, heads of queries and
    of keys, its vocabulary."""

    name: str
    hidden: int
    inner: int
    heads: int
    shared: int
    depth: int
    vocabulary: int

    @property
    def layers(self) -> dict[str, tuple[int, int]]:
        """(N, K) of each layer by name, with separate and with fused projections."""
        queries, keys = self.heads * self.depth, self.shared * self.depth
        return {
            "q": (queries, self.hidden),
            "k": (keys, self.hidden),
            "qkv": (queries + 2 * keys, self.hidden),
            "o": (self.hidden, queries),
            "up": (self.inner, self.hidden),
            "gate+up": (2 * self.inner, self.hidden),
            "down": (self.hidden, self.inner),
            "head": (self.vocabulary, self.hidden),
        }


MODELS = (
    Model("Llama-3.1-8B", 4096, 14_336, 32, 8, 128, 128_256),
    Model("Qwen2.5-7B", 3584, 18_944, 28, 4, 128, 152_064),
    Model("Mistral-Nemo-12B", 5120, 14_336, 32, 8, 128, 131_072),
)


@dataclasses.dataclass(frozen=True)
class Goal:
    """Goals for the rows of a kind, as ratios to cuBLAS; None means no goal.

    mean   geometric mean
    low    (ratio, fraction): at most this fraction of the rows may be below the ratio
    least  no row may be below
    error  no row's error may exceed cuBLAS' by this factor
    """

    mean: float | None = None
    low: tuple[float, float] | None = None
    least: float | None = None
    error: float | None = 1.05


MUST = {
    "random": Goal(1.00, (0.90, 0.04), 0.70),
    "off-grid": Goal(0.90),
    "layers": Goal(1.01, None, 0.93),
    "squares": Goal(None, None, 0.93),
    "columns": Goal(None, None, 0.90),
}
AIM = {"random": Goal(1.05, None, 0.90, None), "layers": Goal(1.04, None, 0.97, None)}


def dimensions(case: harness.Case | Case) -> tuple[int, int, int]:
    """Return M, N, K of a row.

    >>> dimensions({"shape": "1,96,11344"})
    (1, 96, 11344)
    """
    m, n, k = (int(size) for size in case["shape"].split(","))
    return m, n, k


def log_uniform(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def random_rows(count: int, seed: int, distribution: str = "log") -> list[tuple[int, int, int]]:
    """Return `count` products of a seed; a larger count starts with the same products."""
    draw = random.Random(f"{seed} {distribution}")

    def side() -> int:
        if distribution == "uniform":
            return 8 * draw.randint(1, MOST_SIDE // 8)
        return 8 * round(log_uniform(draw, LEAST_SIDE, MOST_SIDE) / 8)

    return [(round(log_uniform(draw, 1, MOST_ROWS)), side(), side()) for _ in range(count)]


def off_grid_rows(count: int, seed: int) -> list[tuple[int, int, int]]:
    """Return products in which N or K is not a multiple of 8."""
    draw, found = random.Random(f"{seed} off-grid"), []
    while len(found) < count:
        m, n, k = (
            round(log_uniform(draw, low, high))
            for low, high in ((1, MOST_ROWS), *[(LEAST_SIDE, MOST_SIDE)] * 2)
        )
        if n % 8 or k % 8:
            found.append((m, n, k))
    return found


def column_rows(seed: int) -> list[tuple[int, int, int]]:
    draw = random.Random(f"{seed} columns")
    m, n, k = ([2 * draw.randint(1024, 4095) + 1 for _ in range(COLUMNS)] for _ in range(3))
    return [(2049, 2049, 2049), *zip(m, n, k, strict=True)][:COLUMNS]


def layer_rows() -> dict[tuple[int, int, int], str]:
    """Return the layer of each product; if models share a product, the first one."""
    found: dict[tuple[int, int, int], str] = {}
    for model in MODELS:
        for layer, (n, k) in model.layers.items():
            for m in ROWS_OF_LAYERS:
                found.setdefault((m, n, k), f"{model.name} {layer}")
    return found


def cases(
    kinds: Sequence[str], dtypes: Sequence[str], *, count: int, seed: int, distribution: str = "log"
) -> list[Case]:
    """Return the rows of these kinds, in each type. Raises ValueError for an unknown kind."""
    if unknown := set(kinds) - set(MUST):
        raise ValueError(f"unknown rows {sorted(unknown)}: choose from {list(MUST)}")
    rows: list[tuple[tuple[int, int, int], dict[str, str]]] = []
    if "random" in kinds:
        rows += [(row, {"of": "random"}) for row in random_rows(count, seed, distribution)]
    if "off-grid" in kinds:
        rows += [(row, {"of": "off-grid"}) for row in off_grid_rows(count, seed)]
    if "layers" in kinds:
        rows += [(row, {"of": "layers", "layer": layer}) for row, layer in layer_rows().items()]
    if "squares" in kinds:
        rows += [((side,) * 3, {"of": "squares"}) for side in SQUARES]
    if "columns" in kinds:
        rows += [(row, {"of": "columns", "stored": "km,kn"}) for row in column_rows(seed)]
    found = [
        {"shape": ",".join(map(str, row)), "dtype": dtype, **more}
        for row, more in rows
        for dtype in dtypes
    ]
    return list({str(sorted(case.items())): case for case in found}.values())


def kind(row: bench.Row) -> str:
    """Return the key of a row by which rows are judged together."""
    return " ".join(str(row.case[key]) for key in ("of", "dtype", "stored") if key in row.case)


def verdict(
    rows: Sequence[bench.Row],
    name: str,
    musts: Mapping[str, Goal] = MUST,
    aims: Mapping[str, Goal] = AIM,
) -> str:
    """Return, as text, which goals the rows of each kind reached, for one competitor: rows are
    judged by the upper end of their interval, means by medians."""
    lines = [["rows of", "", "must", "", "aim", "", "found"]]
    for group in harness.groups([row for row in rows if row.name == name], kind):
        of = str(group.rows[0].case.get("of"))
        must, aim = musts.get(of, Goal()), aims.get(of, Goal(error=None))
        low = (must.low or (0.90, 0.0))[0]
        share = sum(not row.ratio.reaches(low) for row in group.rows) / len(group.rows)
        best = min(row.ratio.high or row.ratio.median for row in group.rows)
        met = "" if must.low is None else "met" if share <= must.low[1] else "missed"
        lines += [
            [
                f"{group.name} ({len(group.rows)})",
                "geometric mean",
                *_goal(must.mean, group.mean, ("met", "missed")),
                *_goal(aim.mean, group.mean, ("reached", "not reached")),
                f"{group.mean:.3f}",
            ],
            [
                "",
                f"share below {low:.2f}",
                "" if must.low is None else f"{100 * must.low[1]:.0f} %",
                met,
                "",
                "",
                f"{100 * share:.1f} %",
            ],
            [
                "",
                "least",
                *_goal(must.least, best, ("met", "missed")),
                *_goal(aim.least, best, ("reached", "not reached")),
                f"{group.least[0].ratio.median:.3f}",
            ],
        ]
        if group.error is not None and must.error is not None:
            lines.append(
                [
                    "",
                    "largest error / reference's",
                    f"{must.error:.2f}",
                    "met" if group.error <= must.error else "missed",
                    "",
                    "",
                    f"{group.error:.3f}",
                ]
            )
    return bench.aligned(lines) if len(lines) > 1 else f"no row of {name} was measured"


def _goal(goal: float | None, found: float, words: tuple[str, str]) -> list[str]:
    return ["", ""] if goal is None else [f"{goal:.2f}", words[found < goal]]
