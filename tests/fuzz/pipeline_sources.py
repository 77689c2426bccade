"""A `pipeline_plans.Plan` as a kernel's file, and its arguments.

Numbers are small integers, so sums are exact in float32 and float16. Arrays that are written are
filled with `POISON` first, and are larger than what a kernel writes unless blocks are clipped:
elements that must not be written are compared as well. Arrays that are read are larger too, with
numbers where nothing may be read.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from typing import Any

from numpipe.plan.protocol import BARRIERS
from tests.fuzz.case import Case
from tests.fuzz.pipeline_plans import Plan
from tests.fuzz.sources import indented

POISON = -77.0


@dataclass(frozen=True)
class Operand:
    """A BlockSpec and its array.

    `index` has expressions of the grid's indices and the kernel's variables; None for no index map.
    """

    name: str
    sides: tuple[int | None, ...]
    index: tuple[str, ...] | None
    elements: bool = False
    dtype: str = "float16"
    fill: str = "zeros"
    options: str = ""

    def spec(self, variables: str) -> str:
        sides = ", ".join(f"Element({side})" if self.elements else str(side) for side in self.sides)
        index = f", lambda {variables}: ({', '.join(self.index)})" if self.index is not None else ""
        fill = f', oob_fill="{self.fill}"' if self.fill != "zeros" else ""
        return f"BlockSpec(({sides}){index}{fill}{self.options})"

    def ends(self, variables: dict[str, int]) -> list[int]:
        """Return where a block ends, in each dimension."""
        starts = [eval(at, {}, variables) for at in self.index or ["0"] * len(self.sides)]
        blocks = [1 if side is None else side for side in self.sides]
        return [
            start + size if self.elements else start * size + size
            for start, size in zip(starts, blocks, strict=True)
        ]


def may_be_serialized(plan: Plan) -> bool:
    """Return whether ptxas may serialize the products of a plan (C7515), which are right
    nevertheless.

    If the compiler knows the number of steps of each link of a chain, ptxas may take the zeros of
    the next link's accumulator for writes to registers of products in flight.
    """
    return plan.static and plan.chain > 1 and plan.carry != "none" and plan.delay > 0


class Writer:
    """The text of a plan's kernel."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.index = ["i", "j", "k"][: plan.rank]
        self.indices = ", ".join(self.index)
        self.scalars = [] if plan.static else ["p", "q", "r"][: plan.rank]
        self.extents = self.scalars or [str(n) for n in plan.extent[: plan.rank]]
        self.number = f"{self.linear()} + 1"  # of the step
        self.zeros = f"numpipe.zeros((64, {plan.tn}), np.float32)"
        self.carried = {"none": "", "tile": "acc", "tuple": "acc, h"}[plan.carry]
        # this warpgroup's rows of a block that has a part for each
        self.mine = "ds(wg * 64, 64)" if plan.builder == "ws" else "ds(0, 64)"
        self.manual = [kind for kind in ("ready", "consumed") if getattr(plan, kind)]
        self.emitter = "numpipe.emit_pipeline" + "_warp_specialized" * (plan.builder == "ws")
        own = f"t * {plan.wgs} + wg" if plan.wgs > 1 else "t"
        self.row = own if plan.alone else "t"
        self.inputs = [self.input(name) for name in plan.names]
        self.outputs = [
            self.operand(name, (plan.rows, plan.tn), self.row, how, (3, 8), dtype=dtype)
            for name, how, dtype in (("o", plan.writes, "float32"), ("u", "all", "float16"))
        ][: plan.outputs]
        self.outer = Operand("e", (64, plan.tk), ("t", "0"))  # of a nested pipeline
        sides: tuple[int | None, ...] = 64, plan.tn
        index: tuple[str, ...] = own, "0" if self.carried else self.linear()
        if plan.dims == "squeezed" and not self.carried:
            sides, index = (None, *sides), (index[1], own, "0")
        self.stored = Operand("c", sides, index, dtype="float32")
        nested = [self.outer] * (plan.chained == "nested")
        self.arrays = [*self.inputs, *nested, *self.outputs, *[self.stored] * plan.stores]

    # ---- operands
    def depends(self, how: str = "all") -> int:
        """Return the number of grid dimensions that a block depends on."""
        return {"all": self.plan.rank, "some": self.plan.rank - 1}.get(how, 0)

    def linear(self, how: str = "all") -> str:
        """Return the expression for the linear number of a step in these dimensions."""
        dimensions = self.depends(how)
        text = "i" if dimensions else "0"
        for name, size in list(zip(self.index, self.extents, strict=True))[1:dimensions]:
            before = f"({text})" if "+" in text else text
            text = f"{before} * {size} + {name}"
        return text

    def operand(
        self,
        name: str,
        sides: tuple[int | None, ...],
        row: str,
        how: str,
        shift: tuple[int, int],
        **more: Any,
    ) -> Operand:
        index: tuple[str, ...] = row, self.linear(how)
        elements = self.plan.dims == "element"
        if elements:
            starts = zip(index, sides, shift, strict=True)
            index = tuple(f"({at}) * {side} + {start}" for at, side, start in starts)
        elif self.plan.dims == "squeezed":
            sides, index = (None, *sides), (index[1], row, "0")
        return Operand(name, sides, None if how == "origin" else index, elements, **more)

    def input(self, name: str) -> Operand:
        plan, fill, how, options = self.plan, "zeros", "all", ""
        tall = name == "a" or plan.use == "load"
        if name == plan.names[-1]:
            how = plan.reads
            if plan.own != "none":
                own = {"slots": ("buffer_count", plan.last_slots)}
                key, value = own.get(plan.own, ("delay_release", plan.last_delay))
                options = f", {key}={value}"
            if plan.layout != "inferred":
                narrow = plan.layout == "narrow"
                transform = "SwizzleTransform(32)" if narrow else "TransposeTransform()"
                options += f", transforms=(numpipe.{transform},)"
            fill = "nan" if plan.edges == "nan" else "zeros"
        options += ', mode="zero"' * (plan.dims != "plain")
        sides = plan.rows if tall else plan.tn, plan.tk
        row = self.row if tall else "t"
        return self.operand(name, sides, row, how, (3, -8), options=options, fill=fill)

    def tree(self, parts: list[str]) -> str:
        """Return one part for each input (and more), in the tree that specs and arrays use."""
        if self.plan.tree != "flat":
            two = f"({parts[0]}, {parts[1]})"
            parts = ["Two" * (self.plan.tree == "named") + two, *parts[2:]]
        return f"({', '.join(parts)},)" if parts else "()"

    # ---- the file
    def source(self) -> str:
        plan = self.plan
        head = "from typing import NamedTuple\n\nimport numpy as np\n\nimport numpipe\n"
        head += "from numpipe import BlockSpec, Element, ds\n\n\n"
        if plan.tree == "named":
            head += "class Two(NamedTuple):\n    x: object\n    y: object\n\n\n"
        single = ", warp_specialized=False" * (plan.builder == "single")
        options = ["drain=True"] * plan.drain
        options += ["allow_serialized_wgmma=True"] * may_be_serialized(plan)
        params = (
            f", compiler_params=numpipe.CompilerParams({', '.join(options)})" if options else ""
        )
        lines = [
            f'@numpipe.kernel(num_compute_wgs={plan.wgs}, wg_axis="wg"{single}{params})',
            f"def kernel({', '.join([*(x.name for x in self.arrays), *self.scalars])}):",
            '    wg = numpipe.axis_index("wg")',
            *indented(self.links()),
            "",
        ]
        return head + "\n".join(lines)

    def links(self) -> list[str]:
        plan = self.plan
        if plan.chained == "range":
            return [f"for t in range({plan.chain}):", *indented(self.link())]
        if plan.chained == "nested":
            spec = self.outer.spec("t")
            how = f"grid=({plan.chain},), max_concurrent_steps=2, in_specs=({spec},)"
            if plan.form == "loop":
                head = f"for (t,), (e_tile,) in numpipe.pipeline({how})(e):"
                return [head, *indented(self.link())]
            body = ["def outer(outer_indices, e_tile):", "    t, = outer_indices"]
            return [*body, *indented(self.link()), "", f"{self.emitter}(outer, {how})(e)"]
        sites = [line for t in range(plan.chain) for line in at_link(self.link(str(t)), t)]
        if plan.chained == "sites":
            return sites
        functions, pipeline = self.emitted("")
        given = self.given()
        return [
            *at_link([*functions, f"first = {pipeline}"], 0),
            "",
            "def whole(shared):",
            *indented(sites),
            "",
            f'numpipe.run_scoped(whole, first.get_allocations({given}), collective_axes="wg")',
        ]

    def link(self, name: str = "") -> list[str]:
        """Return one pipeline, with what precedes and follows it; `name` is its number, if it has
        one."""
        plan, given = self.plan, self.given()
        if plan.form == "loop":
            lines = [
                f"pipe = {self.made(name)}",
                f"for ({self.indices},), ({self.tiles()}) in pipe({given}):",
                *indented(self.step()),
            ]
            if not self.carried:
                return lines
            start = [f"acc = {self.zeros}", *["h = 0"] * (plan.carry == "tuple")]
            return [*start, *lines, *self.store()]
        lines, pipeline = self.emitted(name)
        shared = ["allocations=shared"] * (plan.chained == "shared")
        call = f"{pipeline}({', '.join([*[given] * bool(given), *shared])})"
        if not self.carried or not plan.alone:
            return [*lines, call]
        return [*lines, f"{self.carried} = {call}", *self.store()]

    def emitted(self, name: str) -> tuple[list[str], str]:
        """Return the functions of a body form, and the expression for the pipeline."""
        plan, lines, more = self.plan, self.body(name), ""
        start = self.zeros if plan.carry == "tile" else f"({self.zeros}, 0)"
        if self.carried and plan.alone:
            more = f", init_carry={start}"
        elif self.carried:
            coroutine = plan.context == "coroutine"
            more = f", {'carry_coroutine' if coroutine else 'compute_context'}=compute{name}"
            begin = f"yield {start}" if coroutine else f"pipeline({start})"
            head = f"def compute{name}({'' if coroutine else 'pipeline'}):"
            lines += [head, f"    {self.carried} = {begin}", *indented(self.store()), ""]
        return lines, self.made(name, more)

    def made(self, name: str, more: str = "") -> str:
        """Return the expression that makes the pipeline."""
        plan = self.plan
        specs = [x.spec(self.indices) for x in self.inputs]
        specs += ["BlockSpec(memory_space=numpipe.GMEM)"] * plan.gmem
        outputs = ", ".join(x.spec(self.indices) for x in self.outputs)
        options = [
            f"grid=({', '.join(self.extents)},)",
            f"max_concurrent_steps={plan.slots}",
            f"delay_release={plan.delay}",
            f"in_specs={self.tree(specs)}",
            *[f"out_specs=({outputs},)"] * bool(outputs),
            *(f"{BARRIERS[kind].option}=True" for kind in self.manual),
            *["steps_of=lambda wg: 2 * wg + 1"] * (plan.steps == "unequal"),
            *["memory_thread_idx=0"] * (plan.memory == "first"),
        ]
        if plan.chained == "shared" and name:
            states = {"0": "START", str(plan.chain - 1): "STOP"}
            options.append(f"pipeline_state=numpipe.PipelineState.{states.get(name, 'STEADY')}")
        function, body = self.emitter, f"body{name}, "
        if plan.form == "loop":
            function, body = "numpipe.pipeline", ""
        return f"{function}({body}{', '.join(options)}{more})"

    def given(self) -> str:
        """Return the arrays that a pipeline is called with."""
        names = self.tree([*self.plan.names, *["c"] * self.plan.gmem])[1:-1].rstrip(",")
        return ", ".join([*[names] * bool(names), *(x.name for x in self.outputs)])

    # ---- a step
    def tiles(self) -> str:
        """Return names for the tiles of a step; the first two inputs may be one tree."""
        plan = self.plan
        names = [f"{name}_tile" for name in plan.names]
        if plan.layout == "turned":
            names[-1] = f"{plan.names[-1]}_turned"
        names = names if plan.tree == "flat" else ["two", *names[2:]]
        names += [*["c_ref"] * plan.gmem, *(f"{x.name}_tile" for x in self.outputs)]
        return ", ".join(names) + "," * (len(names) == 1)

    def unpacked(self) -> list[str]:
        plan, lines = self.plan, []
        turned = [f"{x}_tile = {x}_turned.T" for x in plan.names[-1:] * (plan.layout == "turned")]
        if plan.tree != "flat":
            second = "b_turned" if turned and plan.inputs == 2 else "b_tile"
            for names, two in (
                (f"a_tile, {second}", "two"),
                *((f"a_{kind}, b_{kind}", f"two_{kind}") for kind in self.manual),
            ):
                parts = f"{two}.x, {two}.y" if plan.tree == "named" else two
                lines.append(f"{names} = {parts}")
        return lines + turned

    def body(self, name: str) -> list[str]:
        plan = self.plan
        given = plan.names if plan.tree == "flat" else ["two", *plan.names[2:]]
        barriers = [f"{name}_{kind}" for kind in self.manual for name in given]
        names = ["indices", self.tiles().rstrip(","), *barriers, "carry" * bool(self.carried)]
        lines = [f"{self.indices}, = indices", *self.step()]
        if self.carried:
            lines.insert(1, f"{self.carried} = carry")
            lines.append(f"return {self.carried}")
        return [f"def body{name}({', '.join(filter(None, names))}):", *indented(lines), ""]

    def products(self) -> list[str]:
        """Return arguments of the products of a step: rows, and rows that are columns of the
        product."""
        plan, e = self.plan, self.plan.chained == "nested"
        left = f"a_tile.at[{self.mine}, :]" if plan.inputs else "e_tile"
        tall = ["a_tile"] * (plan.inputs == 1) + ["e_tile"] * e
        right = [f"{name}_tile.T" for name in plan.names[1:]]
        right += [f"{name}.at[ds(0, {plan.tn}), :].T" for name in tall]
        return [f"{left}, {x}" for x in right]

    def value(self, acc: str) -> list[str]:
        """Return statements that add a step's value to a tile."""
        plan = self.plan
        if plan.use == "product":
            none = [f"{acc} = {acc} + float({self.number})"]
            return [f"{acc} = numpipe.wgmma({acc}, {both})" for both in self.products()] or none
        rows = f"[{self.mine}, :]"
        tiles = [f"{2**n} * {name}_tile{rows}" for n, name in enumerate(plan.names)]
        tiles += ["8 * e_tile[...]"] * (plan.chained == "nested")
        return [f"{acc} = {acc} + {tile}.astype(np.float32)" for tile in tiles]

    def step(self) -> list[str]:
        """Return the statements of a step."""
        plan, lines = self.plan, self.unpacked()
        if plan.ready:
            lines += [f"numpipe.barrier_wait({name}_ready)" for name in plan.names]
        flying = len(self.products()) if plan.use == "product" else 0
        direct = self.carried and not plan.outputs
        acc = "acc" if direct else "value"
        if not direct:
            lines.append(f"value = {self.zeros}")
        lines += self.value(acc)
        if flying and (plan.consumed or not direct):
            left = min(7, flying * min(plan.delay, plan.last_delay)) if direct else 0
            lines.append(f"{acc} = numpipe.wgmma_wait({acc}, {left})")
        if plan.consumed:
            lines += [f"numpipe.barrier_arrive({name}_consumed)" for name in plan.names]
        lines += ["acc = acc + value"] * bool(self.carried and plan.outputs)
        lines += [f"h = h * 2 + {self.number}"] * (plan.carry == "tuple")
        for out in self.outputs:
            lines += self.written(out)
        return lines if self.carried or plan.outputs else [*lines, *self.store()]

    def written(self, out: Operand) -> list[str]:
        """Return statements that store the value to an output's block, or add it if several steps
        share one."""
        place = f"{out.name}_tile[{self.mine}, :]"
        if out.name == "u":
            return [f"{place} = (value * 2).astype(np.float16)"]
        again = self.index[self.depends(self.plan.writes) :]
        if not again:
            return [f"{place} = value"]
        begins = " and ".join(f"{name} == 0" for name in again)
        more = f"    {place} = {place} + value"
        return [f"if {begins}:", f"    {place} = value", "else:", more]

    def store(self) -> list[str]:
        """Return statements that store a tile of a link or step to c."""
        tile = {"none": "value", "tile": "acc", "tuple": "acc + h"}[self.plan.carry]
        blocks = zip(self.stored.index or (), self.stored.sides, strict=True)
        parts = [at if side is None else f"ds(({at}) * {side}, {side})" for at, side in blocks]
        return [f"{'c_ref' if self.plan.gmem else 'c'}[{', '.join(parts)}] = {tile}"]


def at_link(lines: list[str], t: int) -> list[str]:
    """Return the lines for one link, whose number is a constant if links are written one by one."""
    return [re.sub(r"\bt\b", str(t), line) for line in lines]


def source(plan: Plan) -> str:
    """Return the kernel's file."""
    return Writer(plan).source()


# ---- arguments
def shape(plan: Plan, x: Operand, grid: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of an array: a bit more than blocks need, or less if they are clipped."""
    steps = list(itertools.product(*map(range, grid)))
    steps = steps[: 2 * plan.wgs - 1 if plan.steps == "unequal" else None]
    names = {"t": 0, "wg": 0, "i": 0, "j": 0, "k": 0, **dict(zip("pqr", grid, strict=False))}
    if steps:  # the last block, which has the largest index in each dimension
        names |= {
            "t": plan.chain - 1,
            "wg": plan.wgs - 1,
            **dict(zip("ijk", steps[-1], strict=False)),
        }
    rows, columns = 5, 8
    if plan.edges == "zeros" and x.name != "e":
        rows, columns = -5, -3
    elif x.fill == "nan":
        rows, columns = -5, 0
    *first, m, n = x.ends(names)
    return *first, max(0, m + rows), max(0, n + columns)


def case(plan: Plan, grid: tuple[int, ...]) -> Case:
    """Return the kernel of a plan, called with a grid of these sizes."""
    writer = Writer(plan)
    arguments = []
    for x in writer.arrays:
        sides = shape(plan, x, grid)
        numbers = f"rng.integers(-2, 3, {sides}).astype(np.{x.dtype})"
        poison = f"np.full({sides}, {POISON}, np.{x.dtype})"
        written = x in writer.outputs or x is writer.stored
        arguments.append((x.name, poison if written else numbers))
    arguments += zip(writer.scalars, map(str, grid), strict=False)
    # little is left of a loop that never runs, or of its waits
    empty = plan.static and not math.prod(grid)
    excused = [r"\(C7515\)"] * may_be_serialized(plan) + ["^no |^waits that leave"] * empty
    return Case(
        writer.source(), tuple(arguments), plan.features, wgs=plan.wgs, excused=tuple(excused)
    )
