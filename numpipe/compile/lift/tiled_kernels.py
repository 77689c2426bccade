"""A kernel over tiles, rewritten as the kernel over arrays that it stands for.

A kernel with BlockSpecs of its own gets tiles. Its function becomes the body of a pipeline::

    semantics = CompilerParams(dimension_semantics=("parallel", "parallel", "sequential"))
    @numpipe.kernel(
        grid=(m, n, k), in_specs=(A, B), out_specs=C, compiler_params=semantics
    )
    def product(a, b, c): …                       # tiles

    # arrays, and the number of steps, known only at the call
    def product(a, b, c, steps_2):
        i0, i1 = program_id(0), program_id(1)
        def product(indices, a, b, c): …          # program_id(2) in it is indices[0]
        pipe = emit_pipeline_warp_specialized(
            product, grid=(steps_2,), in_specs=(A', B'), out_specs=(C',)
        )
        pipe(a, b, c)

where A' is A with the index map ``lambda i2: A.index_map(i0, i1, i2)``, whose source is put in
place, so that the pass sees which of the pipeline's dimensions a block depends on.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from ...core.functions import Function, namespace_of
from ...diagnostics.errors import CompileError, SpecError
from ...language.pipeline.body_form import emit_pipeline, emit_pipeline_warp_specialized
from ...plan import context
from ...plan.specs import BlockSpec
from ...plan.split import STEPS, Grid
from .constants import Constants, stores
from .function_nodes import node_of
from .lift import read
from .nodes import definition, located, own, parameters, parsed, reads, walk
from .positions import Source

INDICES = "np__indices"
INDEX = "np__i{}"


@dataclass(frozen=True)
class Wrapped(Source):
    """The source of a kernel over tiles, which parses as the kernel over arrays; lines and columns
    are the user's."""

    wrap: Callable[[ast.FunctionDef], ast.FunctionDef] = field(default=lambda node: node)

    def parse(self) -> ast.stmt:
        node = super().parse()
        assert isinstance(node, ast.FunctionDef)
        return self.wrap(node)


def wrapped(
    source: Source,
    arrays: Sequence[str],
    ins: Sequence[BlockSpec],
    outs: Sequence[BlockSpec],
    grid: Grid,
    roles: bool,
) -> Wrapped:
    """Return the kernel over `arrays` that a kernel over their tiles stands for; `roles`: with a
    memory role.

    Raises SpecError for index maps that have no source, or do not take an index for each dimension
    of the grid.
    """
    names: dict[str, Any] = {
        "np__emit": emit_pipeline_warp_specialized if roles else emit_pipeline,
        "np__BlockSpec": BlockSpec,
        "np__program_id": context.program_id,
        "np__num_programs": context.num_programs,
    }
    made = [
        [
            _spec(spec, f"kernel {source.name}: {kind}[{number}]", grid, names, f"{kind}_{number}")
            for number, spec in enumerate(given)
            if spec.loaded
        ]
        for kind, given in (("in_specs", ins), ("out_specs", outs))
    ]
    # other arrays are captured
    tiles = [name for name, spec in zip(arrays, (*ins, *outs), strict=True) if spec.loaded]
    constants = Constants(source.namespace, {})

    def wrap(node: ast.FunctionDef) -> ast.FunctionDef:
        for part in own(node.body):
            if isinstance(part, ast.Return) and part.value is not None:
                raise CompileError(
                    source.position(part).stamp(
                        f"kernel {source.name}: a kernel must not return a value; fix: store "
                        "results to its output tiles"
                    )
                )
        given = {part.arg for part in walk(node.args) if isinstance(part, ast.arg)}
        name = f"{node.name}_" if node.name in given else node.name
        body = definition(
            name,
            parameters([INDICES, *tiles]),
            [_Programs(constants, node, grid).visit(s) for s in node.body],
        )
        places = [f"{INDEX.format(d)} = np__program_id({d})" for d in range(grid.parallel)]
        steps = [_size(grid, d) for d in grid.sequential] or ["1"]
        in_specs, out_specs = map(_tuple, made)
        run = (
            f"np__emit({name}, grid={_tuple(steps)}, in_specs={in_specs}, out_specs={out_specs})"
            f"({', '.join(tiles)})"
        )
        node.body = [
            *parsed("\n".join(places), node),
            located(body, node),
            *parsed(run, node),
        ]
        return node

    return Wrapped(
        source.name, source.filename, source.first, source.lines, source.namespace | names, wrap
    )


def _tuple(parts: Sequence[str]) -> str:
    return f"({''.join(f'{part}, ' for part in parts)})"


def _size(grid: Grid, dimension: int) -> str:
    """Return the number of steps of a sequential dimension, as source."""
    return STEPS.format(dimension) if grid.sizes is None else str(grid.sizes[dimension])


# ---- blocks --------------------------------------------------------------------------------------
def _spec(spec: BlockSpec, what: str, grid: Grid, names: dict[str, Any], unique: str) -> str:
    """Return a BlockSpec as written in the kernel; add to `names` the variables that its index map
    uses from outside the kernel."""
    options = ""
    for option in (
        "block_shape",
        "transforms",
        "delay_release",
        "oob_fill",
        "buffer_count",
        "eviction_policy",
        "mode",
    ):
        names[f"np__{unique}_{option}"] = getattr(spec, option)
        options += f"{option}=np__{unique}_{option}, "
    index_map = _index_map(spec.index_map, f"{what}: index_map", grid, names, unique)
    return f"np__BlockSpec({options}index_map={index_map})"


def _index_map(function: Any, what: str, grid: Grid, names: dict[str, Any], unique: str) -> str:
    """Return the source of the pipeline's index map: over its own dimensions, at this CTA."""
    if function is None:
        return "None"
    plain = function.function if isinstance(function, Function) else function
    if not isinstance(plain, FunctionType):
        raise SpecError(
            f"{what} must be a lambda or a function, whose source is compiled with the kernel, "
            f"got {function!r}"
        )
    count = plain.__code__.co_argcount
    if count != grid.rank or plain.__defaults__ or plain.__code__.co_kwonlyargcount:
        defaults = ", some with defaults" if plain.__defaults__ else ""
        raise SpecError(
            f"{what} takes {count} indices{defaults}, but the kernel's grid has {grid.rank} "
            "dimensions: it takes one index of each"
        )
    steps = [INDEX.format(d) for d in grid.sequential] or ["np__step"]
    if plain.__name__ == "<lambda>":
        node = node_of(plain)
        if not isinstance(node, ast.Lambda):
            raise SpecError(
                f"{what}: the source of the lambda on line {plain.__code__.co_firstlineno} of "
                f"{plain.__code__.co_filename} is not available; fix: write a 'def' with "
                "@numpipe.function above it"
            )
        body = ast.unparse(_inlined(plain, node, names, unique))
    else:
        names[f"np__{unique}_map"] = function if isinstance(function, Function) else Function(plain)
        used = reads(read(names[f"np__{unique}_map"].function).tree)  # type: ignore[arg-type]  # `read` has looked at it
        indices = [INDEX.format(d) if needed else "0" for d, needed in enumerate(used)]
        body = f"np__{unique}_map({', '.join(indices)})"
    return f"lambda {', '.join(steps)}: {body}"


def _inlined(
    function: FunctionType, node: ast.Lambda, names: dict[str, Any], unique: str
) -> ast.expr:
    """Return the expression of a lambda over the indices; the variables that it captures get unique
    names."""
    arguments = {argument.arg: INDEX.format(d) for d, argument in enumerate(node.args.args)}
    known = namespace_of(function)
    body = copy.deepcopy(node.body)
    for part in walk(body):
        if isinstance(part, ast.Name):
            if part.id in arguments:
                part.id = arguments[part.id]
            elif part.id in known:
                value = known[part.id]
                part.id = f"np__{unique}_of_{part.id}"
                names[part.id] = value
    return body


# ---- indices of the grid -------------------------------------------------------------------------
class _Programs(ast.NodeTransformer):
    """Rewriter that replaces `program_id` and `num_programs` of sequential dimensions with the step
    index and the number of steps."""

    def __init__(self, constants: Constants, node: ast.FunctionDef, grid: Grid) -> None:
        self.constants, self.grid, self.local = constants, grid, {name for name, _ in stores(node)}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = self.constants.evaluate(node.func, self.local)
        if function is not context.program_id and function is not context.num_programs:
            return node
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        axis = self.constants.evaluate(given[0], self.local) if len(given) == 1 else None
        if not isinstance(axis, int) or not self.grid.parallel <= axis < self.grid.rank:
            return node  # a dimension of CTAs, or misused
        size = function is context.num_programs
        index = f"{INDICES}[{axis - self.grid.parallel}]"
        (new,) = parsed(_size(self.grid, axis) if size else index, node)
        return new.value  # type: ignore[no-any-return]
