"""Pipelines over a grid (i, j, k) whose operands depend on some of its dimensions, generated as
source text from a plan.

Each step computes a product x @ y.T of 64 x 64 numbers per warpgroup (a sum of products with more
operands), which is stored in rows of its own or carried to the end. An operand's block is ``36 i +
6 j + k`` without the dimensions that it does not depend on. Numbers are small integers, so sums are
exact.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.kernels.barrier_plans import load

TK = 16
STRIDES = {"i": 36, "j": 6, "k": 1}


@dataclass(frozen=True)
class Operand:
    """An operand: the dimensions of the grid that it depends on, and its BlockSpec arguments."""

    dims: str = "ijk"
    buffer_count: int | None = None
    delay_release: int | None = None

    @property
    def index_map(self) -> str:
        block = " + ".join(f"{dim} * {STRIDES[dim]}" for dim in self.dims) or "0"
        return f"lambda i, j, k: ({block}, 0)"

    def block(self, at: dict[str, int]) -> int:
        return sum(at[dim] * STRIDES[dim] for dim in self.dims)

    def loads(self, grid: tuple[int, int, int]) -> int:
        """Return the number of blocks that a pipeline over `grid` loads.

        There is one for each change of a dimension up to the last one that the operand depends on.
        """
        depth = max(("ijk".index(dim) + 1 for dim in self.dims), default=0)
        return int(np.prod(grid[:depth])) if np.prod(grid) else 0


@dataclass(frozen=True)
class Plan:
    operands: tuple[Operand, ...] = (Operand("i"), Operand("ijk"))
    slots: int = 2
    delay: int = 0
    wgs: int = 1
    carry: bool = False
    form: str = "loop"
    ready: bool = False
    consumed: bool = False
    tiles: int = 2
    steps_of: str = ""
    """an expression of wg"""
    skip: bool = False
    """release in the body only in the last step that uses a tile"""

    @property
    def names(self) -> list[str]:
        return [f"x{n}" for n in range(len(self.operands))]


def products(plan: Plan) -> list[str]:
    """Return the expression for acc plus the products of neighboring operands."""
    last = plan.names[-1]
    return [
        f"acc = numpipe.wgmma(acc, {name}_tile.at[ds(wg * 64, 64), :], {last}_tile.at[ds(0, 64), "
        ":].T)"
        for name in plan.names[:-1] or [last]
    ]


def specs(plan: Plan) -> list[str]:
    found = []
    for operand in plan.operands:
        said = "".join(
            f", {name}={value}"
            for name in ("buffer_count", "delay_release")
            if (value := getattr(operand, name)) is not None
        )
        found.append(f"BlockSpec(({64 * plan.wgs}, {TK}), {operand.index_map}{said})")
    return found


def last_use(operand: Operand, delay: int) -> str:
    """Return the condition that the step `delay` before was the last use of its block."""
    inner = [n for n in "ijk" if not operand.dims or n > max(operand.dims)]
    assert delay == 0, "written for no delay"
    return " and ".join(f"{dim} == n{dim} - 1" for dim in inner) or "True"


def releases(plan: Plan) -> list[str]:
    lines = []
    for name, operand in zip(plan.names, plan.operands, strict=True):
        line = f"numpipe.barrier_arrive({name}_consumed)"
        lines += [f"if {last_use(operand, plan.delay)}:", f"    {line}"] if plan.skip else [line]
    return lines


def store(plan: Plan) -> str:
    return (
        f"c[ds((((m * ni + i) * nj + j) * nk + k) * {64 * plan.wgs} + wg * 64, 64), ds(0, 64)] = "
        "acc"
    )


ZEROS = "acc = numpipe.zeros((64, 64), np.float32)"


def source(plan: Plan) -> str:
    """Return the source of the kernel's file."""
    names, arrays = plan.names, ", ".join(plan.names)
    tiles = [f"{n}_tile" for n in names]
    steps_of = f", steps_of=lambda wg: {plan.steps_of}" * bool(plan.steps_of)
    options = (
        f"grid=(ni, nj, nk), max_concurrent_steps={plan.slots}, "
        f"delay_release={plan.delay}{steps_of}"
    )
    total = f"c[ds((m * {plan.wgs} + wg) * 64, 64), ds(0, 64)] = acc"
    lines = []
    if plan.form == "loop":
        body = (
            products(plan)
            if plan.carry
            else [ZEROS, *products(plan), "acc = numpipe.wgmma_wait(acc, 0)", store(plan)]
        )
        lines += (
            [ZEROS] * plan.carry
            + [
                f"pipe = numpipe.pipeline({options}, in_specs=({', '.join(specs(plan))},))",
                f"for (i, j, k), ({', '.join(tiles)},) in pipe({arrays}):",
                *(f"    {line}" for line in body),
            ]
            + [total] * plan.carry
        )
    else:
        barriers = [
            f"{n}_{kind}"
            for kind, asked in (("ready", plan.ready), ("consumed", plan.consumed))
            if asked
            for n in names
        ]
        waits = [f"numpipe.barrier_wait({n}_ready)" for n in names] * plan.ready
        wait = (
            "acc = numpipe.wgmma_wait(acc, "
            f"{min(7, plan.delay * (len(names) - 1 or 1)) if plan.carry else 0})"
        )
        body = ["i, j, k = indices", *[ZEROS] * (not plan.carry), *waits, *products(plan)]
        if plan.consumed:
            body += [wait, *releases(plan)]
        body += ["return acc"] if plan.carry else ["acc = numpipe.wgmma_wait(acc, 0)", store(plan)]
        parameters = ["indices", *tiles, *barriers, *["acc"] * plan.carry]
        lines += [f"def body({', '.join(parameters)}):", *(f"    {line}" for line in body)]
        if plan.carry:
            lines += [
                "def compute(pipeline):",
                "    acc = pipeline(numpipe.zeros((64, 64), np.float32))",
                f"    {total}",
            ]
        lines += [
            f"numpipe.emit_pipeline_warp_specialized(body, {options}, "
            f"in_specs=({', '.join(specs(plan))},),{' compute_context=compute,' * plan.carry}",
            f"    manual_produced_barriers={plan.ready}, "
            f"manual_consumed_barriers={plan.consumed})({arrays})",
        ]
    return "\n".join(
        [
            "import numpy as np",
            "",
            "import numpipe",
            "from numpipe import BlockSpec, ds",
            "",
            "",
            f"@numpipe.kernel(grid=numpipe.persistent(1), num_compute_wgs={plan.wgs})",
            f"def kernel({arrays}, c, ni, nj, nk):",
            '    wg = numpipe.axis_index("wg")',
            f"    for m, _ in numpipe.tiles({plan.tiles}, 1):",
            *(f"        {line}" for line in lines),
            "",
        ]
    )


def inputs(plan: Plan, grid: tuple[int, int, int], seed: int = 0) -> list[np.ndarray]:
    """Return the kernel's arrays, with a poisoned output."""
    rng = np.random.default_rng(seed)
    rows = 64 * plan.wgs
    blocks = (
        sum(
            (size - 1) * stride for size, stride in zip(grid, STRIDES.values(), strict=True) if size
        )
        + 1
    )
    arrays = [rng.integers(-2, 3, (blocks * rows, TK)).astype(np.float16) for _ in plan.operands]
    found = plan.tiles * rows * (1 if plan.carry else max(1, int(np.prod(grid))))
    return [*arrays, np.full((found, 64), np.nan, np.float32)]


def expected(plan: Plan, grid: tuple[int, int, int], arrays: list[np.ndarray]) -> np.ndarray:
    """Return the expected output, computed in float64."""
    rows, found = 64 * plan.wgs, np.full(arrays[-1].shape, np.nan)
    if plan.carry:
        found[:] = 0
    total = int(np.prod(grid))
    limits = [
        max(0, min(total, eval(plan.steps_of, {"wg": wg}))) if plan.steps_of else total
        for wg in range(plan.wgs)
    ]
    for step, at in enumerate(itertools.product(*map(range, grid))):
        tiles = [
            x[n * rows : n * rows + rows].astype(np.float64)
            for x, operand in zip(arrays[:-1], plan.operands, strict=True)
            for n in [operand.block(dict(zip("ijk", at, strict=True)))]
        ]
        value = np.asarray(sum(tile @ tiles[-1][:64].T for tile in tiles[:-1] or tiles))
        for wg, limit in enumerate(limits):
            if step < limit:
                for m in range(plan.tiles):
                    start = (
                        m * plan.wgs + wg if plan.carry else (m * total + step) * plan.wgs + wg
                    ) * 64
                    part = value[wg * 64 : wg * 64 + 64]
                    found[start : start + 64] = (
                        found[start : start + 64] + part if plan.carry else part
                    )
    return found


def check(plan: Plan, grid: tuple[int, int, int], **how: Any) -> None:
    """Run a plan, simulated (`seed=`, `trace=`) or as `target=` says, and compare all elements."""
    kernel, arrays = load(source(plan)), inputs(plan, grid)
    (kernel if "target" in how else kernel.simulate)(*arrays, *grid, **how)
    np.testing.assert_array_equal(arrays[-1], expected(plan, grid, arrays))


GRIDS = [(2, 3, 2), (1, 1, 1), (3, 1, 2), (1, 2, 3), (2, 2, 1), (0, 2, 2), (2, 0, 3), (2, 2, 0)]
"""every dimension is 0, 1 and more at least once"""
EACH = [Operand("".join(dims)) for size in range(4) for dims in itertools.combinations("ijk", size)]
"""every dependence"""
