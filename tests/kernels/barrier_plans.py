"""Pipelines that wait for operands and release them one by one, generated as source text from a
plan, with NumPy's results.

Plans cover both forms. Each tile of 64 rows per warpgroup is a link of a chain: the ring's counter
runs on from one tile to the next. With a carry, a tile is the sum over its steps; without one,
every step stores its own product. Numbers are small integers, so sums are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.fuzz.case import module_of

TK = 16


@dataclass(frozen=True)
class Plan:
    """A kernel: c = the sum of a @ b.T, plus a @ d.T with three operands."""

    ready: bool = True
    consumed: bool = True
    slots: int = 2
    delay: int = 0
    wgs: int = 1
    carry: bool = True
    operands: int = 2
    skip: bool = False
    """leave out the first `delay` releases; otherwise they are written and have no effect"""
    backwards: bool = False
    """wait for and release the operands in reverse order"""
    loop: bool = False
    """use the loop form instead of the body form"""

    @property
    def arrays(self) -> list[str]:
        return ["a", "b", "d"][: self.operands]

    @property
    def kinds(self) -> list[str]:
        return ["ready"] * self.ready + ["consumed"] * self.consumed

    @property
    def tm(self) -> int:
        return 64 * self.wgs


def releases(plan: Plan, names: list[str]) -> list[str]:
    lines = [f"numpipe.barrier_arrive({name}_consumed)" for name in names]
    return [f"if k >= {plan.delay}:", *(f"    {line}" for line in lines)] if plan.skip else lines


def body(plan: Plan) -> list[str]:
    """Return the body's lines: each operand is waited for at its first use and released at its
    last."""
    names = plan.arrays
    lines = ["k, = indices"] * (not plan.loop)
    if not plan.carry:
        lines.append("acc = numpipe.zeros((64, 64), np.float32)")
    waited: list[str] = []
    for name in names[1:]:
        fresh = [n for n in ("a", name) if n not in waited]
        waited += fresh
        if plan.ready:
            lines += [
                f"numpipe.barrier_wait({n}_ready)"
                for n in (reversed(fresh) if plan.backwards else fresh)
            ]
        lines.append(f"acc = numpipe.wgmma(acc, a_tile.at[ds(wg * 64, 64), :], {name}_tile.T)")
    if plan.consumed:
        left = plan.delay * (len(names) - 1) if plan.carry else 0
        # products complete in the order they began, so b is free before d
        if left == 0 and len(names) == 3:
            lines += ["acc = numpipe.wgmma_wait(acc, 1)", *releases(plan, ["b"])]
            names = ["a", "d"]
        lines.append(f"acc = numpipe.wgmma_wait(acc, {left})")
        lines += releases(plan, names[::-1] if plan.backwards else names)
    if plan.carry:
        return [*lines, *["return acc"] * (not plan.loop)]
    return [
        *lines,
        "acc = numpipe.wgmma_wait(acc, 0)",
        f"c[ds((m * steps + k) * {plan.tm} + wg * 64, 64), ds(0, 64)] = acc",
    ]


def source(plan: Plan) -> str:
    """Return the source of the kernel's file."""
    names = plan.arrays
    options = (
        f"grid=(steps,), max_concurrent_steps={plan.slots}, delay_release={plan.delay}, "
        f"in_specs=({{}}),"
    )
    barriers = f"manual_produced_barriers={plan.ready}, manual_consumed_barriers={plan.consumed}"
    store = f"c[ds(m * {plan.tm} + wg * 64, 64), ds(0, 64)] ="
    parameters = [
        "indices",
        *[f"{n}_tile" for n in names],
        *[f"{n}_{kind}" for kind in plan.kinds for n in names],
        *["acc"] * plan.carry,
    ]
    specs = ", ".join(
        f"BlockSpec(({plan.tm if n == 'a' else 64}, {TK}), lambda k: ({'m' if n == 'a' else 0}, k))"
        for n in names
    )
    context = [
        "        def compute(pipeline):",
        f"            {store} pipeline(numpipe.zeros((64, 64), np.float32))",
        "",
    ]
    in_loop = [
        *["        acc = numpipe.zeros((64, 64), np.float32)"] * plan.carry,
        f"        pipe = numpipe.pipeline({options.format(specs)}",
        f"            {barriers})",
        f"        for (k,), {', '.join(groups(plan))} in pipe({', '.join(names)}):",
        *(f"            {line}" for line in body(plan)),
        *[f"        {store} acc"] * plan.carry,
    ]
    in_functions = [
        f"        def body({', '.join(parameters)}):",
        *(f"            {line}" for line in body(plan)),
        "",
        *(context if plan.carry else []),
        f"        numpipe.emit_pipeline_warp_specialized(body, {options.format(specs)}",
        "            "
        f"{'compute_context=compute, ' if plan.carry else ''}{barriers})({', '.join(names)})",
    ]
    return "\n".join(
        [
            "import numpy as np",
            "",
            "import numpipe",
            "from numpipe import BlockSpec, cdiv, ds",
            "",
            "",
            f"@numpipe.kernel(grid=numpipe.persistent(1), num_compute_wgs={plan.wgs}, "
            'wg_axis="wg")',
            f"def kernel({', '.join([*names, 'c'])}):",
            '    wg = numpipe.axis_index("wg")',
            f"    steps = cdiv(a.shape[1], {TK})",
            f"    for m, _ in numpipe.tiles(cdiv(a.shape[0], {plan.tm}), 1):",
            *(in_loop if plan.loop else in_functions),
            "",
        ]
    )


def groups(plan: Plan) -> list[str]:
    """Return what a loop unpacks after the indices."""
    return [
        f"({', '.join(f'{name}_{kind}' for name in plan.arrays)})" for kind in ("tile", *plan.kinds)
    ]


def inputs(plan: Plan, tiles: int, steps: int, seed: int = 0) -> list[np.ndarray]:
    """Return the kernel's arguments, with a poisoned output."""
    rng = np.random.default_rng(seed)
    rows = {"a": tiles * plan.tm}
    arrays = [
        rng.integers(-2, 3, (rows.get(n, 64), steps * TK)).astype(np.float16) for n in plan.arrays
    ]
    return [
        *arrays,
        np.full((tiles * plan.tm * (1 if plan.carry else steps), 64), np.nan, np.float32),
    ]


def expected(plan: Plan, arrays: list[np.ndarray]) -> np.ndarray:
    """Return the expected output, computed in float64."""
    a, *others = (x.astype(np.float64) for x in arrays[:-1])
    if plan.carry:
        return np.asarray(sum(a @ b.T for b in others))
    steps = [slice(k, k + TK) for k in range(0, a.shape[1], TK)]
    tiles = [slice(m, m + plan.tm) for m in range(0, a.shape[0], plan.tm)]
    found = [sum(a[tile, step] @ b[:, step].T for b in others) for tile in tiles for step in steps]
    return np.concatenate(found) if found else np.zeros((0, 64))


def load(text: str) -> Any:
    """Return the kernel defined by a source."""
    return module_of(text, "barriers").kernel


def check(plan: Plan, tiles: int, steps: int, **how: Any) -> None:
    """Run a plan, simulated (`seed=`) or as `target=` says, and compare all elements."""
    kernel, arrays = load(source(plan)), inputs(plan, tiles, steps)
    (kernel if "target" in how else kernel.simulate)(*arrays, **how)
    np.testing.assert_array_equal(arrays[-1], expected(plan, arrays))


MANUAL = [(True, False), (False, True), (True, True)]
"""(ready, consumed): which barriers are explicit"""
RINGS = [(slots, delay) for slots in (1, 2, 3, 4) for delay in (0, 1, 2) if delay < slots]
