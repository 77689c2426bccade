"""A `pipeline_plans.Plan` as a kernel's file, and its arguments.

Numbers are small integers, so that sums are exact in float32 and float16. Arrays that are written are filled with `POISON` before,
and are larger than what a kernel writes unless blocks pass their ends: elements that must not be written are compared as well.
Arrays that are read are larger too, with numbers in what must not be read.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.fuzz.case import Case
from tests.fuzz.pipeline_plans import Plan
from tests.fuzz.sources import indented

POISON = -77.0
Env = dict[str, int]


@dataclass(frozen=True)
class Operand:
    """A BlockSpec and its array. `index` are expressions of the grid's indices and the kernel's variables; None: no index map."""

    name: str
    sides: tuple[int | None, ...]
    index: tuple[str, ...] | None
    elements: bool = False
    dtype: str = "float16"
    fill: str = "zeros"
    options: str = ""

    @property
    def block(self) -> tuple[int, ...]:
        return tuple(1 if side is None else side for side in self.sides)

    def spec(self, variables: str) -> str:
        sides = ", ".join(f"Element({side})" if self.elements else str(side) for side in self.sides)
        index = f", lambda {variables}: ({', '.join(self.index)})" if self.index is not None else ""
        fill = f', oob_fill="{self.fill}"' if self.fill != "zeros" else ""
        return f"BlockSpec(({sides}){index}{fill}{self.options})"

    def start(self, env: Env) -> tuple[int, ...]:
        found = eval(f"({', '.join(self.index)},)", {}, env) if self.index is not None else (0,) * len(self.sides)
        return tuple(n if self.elements or side is None else n * side for n, side in zip(found, self.sides, strict=True))


# ---- operands
def linear(plan: Plan, dimensions: int) -> str:
    """The number of a step among those of the first dimensions of the grid."""
    names, sizes = ["i", "j", "k"], extents(plan)
    text = names[0] if dimensions else "0"
    for name, size in zip(names[1:dimensions], sizes[1:], strict=False):
        text = f"({text}) * {size} + {name}" if "+" in text else f"{text} * {size} + {name}"
    return text


def extents(plan: Plan) -> list[str]:
    """Of the grid, as the kernel writes them."""
    return [str(n) for n in plan.extent[:plan.rank]] if plan.static else ["p", "q", "r"][:plan.rank]


def depends(plan: Plan, how: str) -> int:
    """Grid dimensions that a block depends on."""
    return {"all": plan.rank, "some": plan.rank - 1}.get(how, 0)


def operand(plan: Plan, name: str, rows: int, columns: int, row: str, how: str, shift: tuple[int, int], **more: Any) -> Operand:
    step = linear(plan, depends(plan, how))
    if plan.dims == "squeezed":
        sides: tuple[int | None, ...] = (None, rows, columns)
        index: tuple[str, ...] = (step, row, "0")
    elif plan.dims == "element":
        sides, index = (rows, columns), (f"({row}) * {rows} + {shift[0]}", f"({step}) * {columns} + {shift[1]}")
    else:
        sides, index = (rows, columns), (row, step)
    return Operand(name, sides, None if how == "origin" else index, plan.dims == "element", **more)


def own_rows(plan: Plan) -> str:
    """The row of blocks that a warpgroup's block is in."""
    return f"t * {plan.wgs} + wg" if plan.alone and plan.wgs > 1 else "t"


def operands(plan: Plan) -> list[Operand]:
    found = []
    for number, name in enumerate(plan.names):
        last = number == plan.inputs - 1
        tall = name == "a" or plan.use == "load"
        options = ""
        if last and plan.own != "none":
            options = f", buffer_count={plan.last_slots}" if plan.own == "slots" else f", delay_release={plan.last_delay}"
        if last and plan.layout != "inferred":
            transform = "SwizzleTransform(32)" if plan.layout == "narrow" else "TransposeTransform()"
            options += f", transforms=(numpipe.{transform},)"
        found.append(operand(plan, name, plan.rows if tall else plan.tn, plan.tk, own_rows(plan) if tall else "t",
                             plan.reads if last else "all", (3, -8), options=options + ', mode="zero"' * (plan.dims != "plain"),
                             fill="nan" if last and plan.edges == "nan" else "zeros"))
    return found


def results(plan: Plan) -> list[Operand]:
    """Outputs: float32, and float16."""
    return [operand(plan, name, plan.rows, plan.tn, own_rows(plan), how, (3, 8), dtype=dtype) for name, how, dtype in
            (("o", plan.writes, "float32"), ("u", "all", "float16"))][:plan.outputs]


def outer(plan: Plan) -> Operand:
    """What the outer pipeline of a nested one loads."""
    return Operand("e", (64, plan.tk), ("t", "0"))


def stored(plan: Plan) -> Operand:
    """What is stored to c, of each warpgroup."""
    row = f"t * {plan.wgs} + wg" if plan.wgs > 1 else "t"
    if plan.carry != "none":
        return Operand("c", (64, plan.tn), (row, "0"), dtype="float32")
    step = linear(plan, plan.rank)
    if plan.dims == "squeezed":
        return Operand("c", (None, 64, plan.tn), (step, row, "0"), dtype="float32")
    return Operand("c", (64, plan.tn), (row, step), dtype="float32")


def arrays(plan: Plan) -> list[Operand]:
    """One for each array of the kernel, in the order of its parameters."""
    return [*operands(plan), *[outer(plan)] * (plan.chained == "nested"), *results(plan), *[stored(plan)] * plan.stores]


def scalars(plan: Plan) -> list[str]:
    return [] if plan.static else extents(plan)


# ---- as text ------------------------------------------------------------------------------------------------------------
def serialized(plan: Plan) -> bool:
    """Whether ptxas serialises the products of a plan (C7515), which are right all the same."""
    return plan.steps == "unequal" and bool(plan.ready) and bool(plan.consumed) and plan.delay > 1


def may_be_serialized(plan: Plan) -> bool:
    """Whether ptxas may do so: of links in a loop, all of as many steps as the compile knows, it takes an accumulator's zeros for
    writes in flight, but not in every plan."""
    known = plan.static and plan.chained == "range" and plan.chain > 1
    return serialized(plan) or (known and plan.carry != "none" and plan.delay > 0)


def source(plan: Plan) -> str:
    """The kernel's file."""
    head = ["from typing import NamedTuple", "", "import numpy as np", "", "import numpipe",
            "from numpipe import BlockSpec, Element, ds", "", ""]
    if plan.tree == "named":
        head += ["class Two(NamedTuple):", "    x: object", "    y: object", "", ""]
    single = ", warp_specialized=False" if plan.builder == "single" else ""
    parameters = ", ".join([*(x.name for x in arrays(plan)), *scalars(plan)])
    options = ["drain=True"] if plan.drain else []
    if may_be_serialized(plan):
        options.append("allow_serialized_wgmma=True")
    params = f", compiler_params=numpipe.CompilerParams({', '.join(options)})" if options else ""
    lines = [*head, f'@numpipe.kernel(num_compute_wgs={plan.wgs}, wg_axis="wg"{single}{params})', f"def kernel({parameters}):",
             '    wg = numpipe.axis_index("wg")', *indented(links(plan)), ""]
    return "\n".join(lines)


def links(plan: Plan) -> list[str]:
    if plan.chained == "range":
        return [f"for t in range({plan.chain}):", *indented(link(plan))]
    if plan.chained == "nested":
        spec = f"in_specs=({outer(plan).spec('t')},)"
        how = f"grid=({plan.chain},), max_concurrent_steps=2, {spec}"
        if plan.form == "loop":
            return [f"for (t,), (e_tile,) in numpipe.pipeline({how})(e):", *indented(link(plan))]
        return ["def outer(outer_indices, e_tile):", "    t, = outer_indices", *indented(link(plan)), "",
                f"{emitter(plan)}(outer, {how})(e)"]
    sites = [line for t in range(plan.chain) for line in at_link(link(plan, t), t)]
    if plan.chained == "sites":
        return sites
    functions, pipeline = emitted(plan, "")
    return [*at_link([*functions, f"first = {pipeline}"], 0), "", "def whole(shared):", *indented(sites), "",
            f'numpipe.run_scoped(whole, first.get_allocations({given(plan)}), collective_axes="wg")']


def at_link(lines: list[str], t: int) -> list[str]:
    """The lines for one link: its number is a constant where links are written one by one."""
    return [re.sub(r"\bt\b", str(t), line) for line in lines]


def emitter(plan: Plan) -> str:
    return "numpipe.emit_pipeline" + ("_warp_specialized" if plan.builder == "ws" else "")


def link(plan: Plan, site: int | None = None) -> list[str]:
    """One pipeline, and what comes before and behind it; `site`: where it stands, if there are several."""
    name = "" if site is None else str(site)
    if plan.form == "loop":
        made_here = [f"pipe = {made(plan, name)}", f"for ({indices(plan)},), ({tiles(plan)}) in pipe({given(plan)}):"]
        if plan.carry == "none":
            return [*made_here, *indented(step(plan))]
        before = [f"acc = {zeros(plan)}", *["h = 0"] * (plan.carry == "tuple")]
        return [*before, *made_here, *indented(step(plan)), *store(plan)]
    lines, pipeline = emitted(plan, name)
    arguments = ", ".join([*[given(plan)] * bool(given(plan)), *["allocations=shared"] * (plan.chained == "shared")])
    if plan.carry == "none" or not plan.alone:
        return [*lines, f"{pipeline}({arguments})"]
    return [*lines, f"{carried(plan)} = {pipeline}({arguments})", *store(plan)]


def carried(plan: Plan) -> str:
    return "acc" if plan.carry == "tile" else "acc, h"


def emitted(plan: Plan, name: str) -> tuple[list[str], str]:
    """The functions of a body form, and the pipeline, not called yet."""
    lines = body_text(plan, name)
    start = zeros(plan) if plan.carry == "tile" else f"({zeros(plan)}, 0)"
    if plan.carry == "none":
        return lines, made(plan, name)
    if plan.alone:
        return lines, made(plan, name, f", init_carry={start}")
    if plan.context == "coroutine":
        lines += [f"def compute{name}():", f"    {carried(plan)} = yield {start}", *indented(store(plan)), ""]
        return lines, made(plan, name, f", carry_coroutine=compute{name}")
    lines += [f"def compute{name}(pipeline):", f"    {carried(plan)} = pipeline({start})", *indented(store(plan)), ""]
    return lines, made(plan, name, f", compute_context=compute{name}")


def indices(plan: Plan) -> str:
    return ", ".join(["i", "j", "k"][:plan.rank])


def made(plan: Plan, name: str, more: str = "") -> str:
    """The pipeline, not called yet."""
    specs = [x.spec(indices(plan)) for x in operands(plan)]
    if plan.gmem:
        specs.append("BlockSpec(memory_space=numpipe.GMEM)")
    outputs = [x.spec(indices(plan)) for x in results(plan)]
    options = [f"grid=({', '.join(extents(plan))},)", f"max_concurrent_steps={plan.slots}", f"delay_release={plan.delay}",
               f"in_specs={as_tree(plan, specs)}"]
    if plan.outputs:
        options.append(f"out_specs=({', '.join(outputs)},)")
    options += [f"manual_{kind}_barriers=True" for kind in manual(plan)]
    if plan.steps == "unequal":
        options.append("steps_of=lambda wg: 2 * wg + 1")
    if plan.memory == "first":
        options.append("memory_thread_idx=0")
    if plan.chained == "shared" and name:
        state = "START" if name == "0" else "STOP" if int(name) == plan.chain - 1 else "STEADY"
        options.append(f"pipeline_state=numpipe.PipelineState.{state}")
    function, body = ("numpipe.pipeline", "") if plan.form == "loop" else (emitter(plan), f"body{name}, ")
    return f"{function}({body}{', '.join(options)}{more})"


def as_tree(plan: Plan, parts: list[str]) -> str:
    """One part for each input (and more), as the tree that specs and arrays have."""
    if plan.tree != "flat":
        two = f"{'Two' if plan.tree == 'named' else ''}({parts[0]}, {parts[1]})"
        parts = [two, *parts[2:]]
    return f"({', '.join(parts)},)" if parts else "()"


def given(plan: Plan) -> str:
    """The arrays that a pipeline is called on."""
    names = as_tree(plan, [*plan.names, *["c"] * plan.gmem])[1:-1].rstrip(",")
    return ", ".join([*[names] * bool(names), *(x.name for x in results(plan))])


def tiles(plan: Plan) -> str:
    """Names for the tiles of a step; the first two inputs may be one tree."""
    loaded = [f"{n}_tile" for n in plan.names]
    if plan.layout == "turned":
        loaded[-1] = f"{plan.names[-1]}_turned"
    names = loaded if plan.tree == "flat" else ["two", *loaded[2:]]
    names += [*["c_ref"] * plan.gmem, *(f"{x.name}_tile" for x in results(plan))]
    return ", ".join(names) + "," * (len(names) == 1)


def unpacked(plan: Plan) -> list[str]:
    turned = [f"{name}_tile = {name}_turned.T" for name in plan.names[-1:] * (plan.layout == "turned")]
    two = f"a_tile, {'b_turned' if turned and plan.inputs == 2 else 'b_tile'} = two"
    barriers = [f"a_{kind}, b_{kind} = " + {"tuple": f"two_{kind}", "named": f"two_{kind}.x, two_{kind}.y"}[plan.tree]
                for kind in manual(plan) if plan.tree != "flat"]
    return [*{"flat": [], "tuple": [two], "named": [f"{two}.x, two.y"]}[plan.tree], *barriers, *turned]


def manual(plan: Plan) -> list[str]:
    """The kinds of barriers that a step is given."""
    return [kind for kind in ("ready", "consumed") if getattr(plan, kind)]


def body_text(plan: Plan, name: str) -> list[str]:
    given = list(plan.names) if plan.tree == "flat" else ["two", *plan.names[2:]]
    names = [tiles(plan).rstrip(","), *[f"{name}_{kind}" for kind in manual(plan) for name in given],
             *["carry"] * (plan.carry != "none")]
    lines = [f"{indices(plan)}, = indices"]
    if plan.carry != "none":
        lines.append("acc = carry" if plan.carry == "tile" else "acc, h = carry")
    lines += step(plan)
    if plan.carry != "none":
        lines.append("return acc" if plan.carry == "tile" else "return acc, h")
    return [f"def body{name}({', '.join(['indices', *[n for n in names if n]])}):", *indented(lines), ""]


def zeros(plan: Plan) -> str:
    return f"numpipe.zeros((64, {plan.tn}), np.float32)"


def mine(plan: Plan) -> str:
    """The rows of this warpgroup, in a block that has some for each."""
    return "ds(wg * 64, 64)" if plan.builder == "ws" else "ds(0, 64)"


def products(plan: Plan) -> list[tuple[str, str]]:
    """Tiles that are multiplied: (rows, rows that are columns of the product)."""
    left = f"a_tile.at[{mine(plan)}, :]" if plan.inputs else "e_tile"
    right = [f"{name}_tile.T" for name in plan.names[1:]]
    if plan.inputs == 1:
        right.append(f"a_tile.at[ds(0, {plan.tn}), :].T")
    if plan.chained == "nested":
        right.append(f"e_tile.at[ds(0, {plan.tn}), :].T")
    return [(left, x) for x in right]


def number(plan: Plan) -> str:
    """Of the step, from 1 on."""
    return f"{linear(plan, plan.rank)} + 1"


def value(plan: Plan, acc: str) -> list[str]:
    """Statements that add a step's value to a tile."""
    if plan.use == "load":
        factors = [f"{2 ** n} * {name}_tile[{mine(plan)}, :].astype(np.float32)" for n, name in enumerate(plan.names)]
        if plan.chained == "nested":
            factors.append("8 * e_tile[...].astype(np.float32)")
        return [f"{acc} = {acc} + {term}" for term in factors]
    if not products(plan):
        return [f"{acc} = {acc} + float({number(plan)})"]
    return [f"{acc} = numpipe.wgmma({acc}, {left}, {right})" for left, right in products(plan)]


def step(plan: Plan) -> list[str]:
    """What a step does."""
    lines = unpacked(plan)
    if plan.ready:
        lines += [f"numpipe.barrier_wait({name}_ready)" for name in plan.names]
    flying = len(products(plan)) if plan.use == "product" else 0
    direct = plan.carry != "none" and not plan.outputs
    acc = "acc" if direct else "value"
    if not direct:
        lines.append(f"value = {zeros(plan)}")
    lines += value(plan, acc)
    if flying and (plan.consumed or not direct):
        left = min(7, flying * min(plan.delay, plan.last_delay)) if direct else 0
        lines.append(f"{acc} = numpipe.wgmma_wait({acc}, {left})")
    if plan.consumed:
        lines += [f"numpipe.barrier_arrive({name}_consumed)" for name in plan.names]
    if plan.carry != "none" and plan.outputs:
        lines.append("acc = acc + value")
    if plan.carry == "tuple":
        lines.append(f"h = h * 2 + {number(plan)}")
    for out in results(plan):
        lines += written(plan, out)
    return lines if plan.carry != "none" or plan.outputs else [*lines, *store(plan)]


def written(plan: Plan, out: Operand) -> list[str]:
    """An output's block: the value; sums, where it is the block of several steps."""
    place = f"{out.name}_tile[{mine(plan)}, :]"
    if out.name == "u":
        return [f"{place} = (value * 2).astype(np.float16)"]
    if plan.writes == "all":
        return [f"{place} = value"]
    begins = " and ".join(f"{name} == 0" for name in ["i", "j", "k"][depends(plan, plan.writes):plan.rank])
    return [f"if {begins}:", f"    {place} = value", "else:", f"    {place} = {place} + value"]


def store(plan: Plan) -> list[str]:
    """The tile that a link, or a step, leaves in c."""
    tile = {"none": "value", "tile": "acc", "tuple": "acc + h"}[plan.carry]
    out = stored(plan)
    assert out.index is not None
    parts = [place if side is None else f"ds(({place}) * {side}, {side})" for place, side in zip(out.index, out.sides, strict=True)]
    return [f"{'c_ref' if plan.gmem else 'c'}[{', '.join(parts)}] = {tile}"]


# ---- arguments, and what comes out --------------------------------------------------------------------------------------
def steps(plan: Plan, grid: tuple[int, ...]) -> Iterator[tuple[int, int, Env]]:
    """(link, warpgroup, variables) of all steps, in an order that each warpgroup could run them in."""
    sizes = dict(zip(("p", "q", "r"), grid, strict=False))
    for t, wg in itertools.product(range(plan.chain), range(plan.wgs)):
        for number, index in enumerate(itertools.product(*map(range, grid))):
            if plan.steps == "equal" or number < 2 * wg + 1:
                yield t, wg, {"t": t, "wg": wg, **sizes, **dict(zip("ijk", index, strict=False))}


def shape(plan: Plan, x: Operand, grid: tuple[int, ...]) -> tuple[int, ...]:
    """Of an array: somewhat more than blocks need, or less if they pass its ends."""
    first = {"t": 0, "wg": 0, "i": 0, "j": 0, "k": 0, **dict(zip("pqr", grid, strict=False))}
    ends = [1] * len(x.sides)
    for env in (first, *(env for _, _, env in steps(plan, grid))):
        ends = [max(end, start + size) for end, start, size in zip(ends, x.start(env), x.block, strict=True)]
    more = [0] * (len(ends) - 2) + [5, 8]
    if plan.edges == "zeros" and x.name != "e":
        more = [0] * (len(ends) - 2) + [-5, -3]
    elif plan.edges == "nan" and x.fill == "nan":
        more = [0] * (len(ends) - 2) + [-5, 0]
    return tuple(max(0, end + n) for end, n in zip(ends, more, strict=True))


def case(plan: Plan, grid: tuple[int, ...]) -> Case:
    """The kernel of a plan, called with a grid of these sizes."""
    written = {x.name for x in (*results(plan), stored(plan))}
    arguments = [(x.name, f"np.full({shape(plan, x, grid)}, {POISON}, np.{x.dtype})" if x.name in written else
                  f"rng.integers(-2, 3, {shape(plan, x, grid)}).astype(np.{x.dtype})") for x in arrays(plan)]
    scalars = [] if plan.static else [(name, str(n)) for name, n in zip("pqr", grid, strict=False)]
    empty = plan.static and not math.prod(grid)  # little is left of a loop that never runs, of its waits too
    excused = [r"\(C7515\)"] * may_be_serialized(plan) + ["^no |^waits that leave"] * empty
    return Case(source(plan), (*arguments, *scalars), plan.features, wgs=plan.wgs, excused=tuple(excused))
