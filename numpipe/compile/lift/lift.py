"""The AST pass, which rewrites a kernel's source for the simulator and the GPU.

The original source cannot be compiled as a kernel: Numba does not support closures over run-time
values, a loop over a pipeline means different things to the two roles, and shapes must be literals.
The pass keeps file names and line numbers, and rewrites

* constants: names and arithmetic known before compilation become literals, and branches on them
  are pruned (`rewriter`, `constants`);
* operators, comparisons and builtins on run-time values: they become operations with one meaning
  in the simulator and on the GPU (`arithmetic`);
* calls of numpipe functions: keywords become positions, and the hidden context ``__np`` is passed
  on (`calls_and_slices`);
* ``for (k,), (a_tile, b_tile) in pipe(a, b)``: it becomes a loop over the ring's iterator, then a
  wait for accumulators carried out (`loops`);
* loops over constants: they become a copy of their body for each value (`unrolled_loops`);
* ``for m, n in numpipe.tiles(…)``: it becomes a counted loop over this CTA's tiles (`tile_loops`);
* nested functions and lambdas: they become module-level functions bound to what they captured
  (`nested`, `core.closure`);

and rejects what only the simulator or only the GPU would accept (`subset`).

The pass is a list of rules, each a method of one of its parts, in the tables of `_Lift`. A rule
returns a node's replacement, or leaves the node to later rules (NOT_MINE). Each operation declares
what a call of it needs (`core.op`).

The simulated SM also runs the rewritten source, so the verified code is the compiled code.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ...core.closure import binder
from ...core.functions import Function, namespace_of
from ...diagnostics import source as _source
from ...diagnostics.errors import CompileError, Position
from ...language.memory import copies  # noqa: F401  # atomics of tiles in shared memory
from ...language.pipeline import warpgroup_order
from ...language.tiles import (  # noqa: F401  # they give tiles and references their methods
    array_views,
    concatenate,
    elementwise,
    load,
    shared_tiles,
    store,
    tile_slices,
)
from ...plan.unit import Unit
from . import simulated_source
from .arithmetic import Arithmetic
from .bodies import Bodies
from .calls_and_slices import Calls
from .constants import Constants, StaticArray, stores
from .function_calls import Bound, Functions
from .lane_code import LaneCode
from .loops import Loops
from .nested import ENVIRONMENT, Nested
from .nodes import located, own, parameters_of, parsed
from .nodes import parameters as plain_parameters
from .positions import Positions, Source
from .reductions import Reductions
from .rewriter import CONTEXT, Rewriter, Session
from .statements import Statements
from .unrolled_loops import UnrolledLoops


@dataclass(frozen=True)
class Lifted:
    """A rewritten kernel: ``f(__np, *parameters)`` for the simulator and for the GPU, and the
    information that errors need."""

    simulated: Callable
    """Runs in CPython, with the line numbers of the user's file."""
    compiled: Callable
    """Compiled by Numba. Each of its expressions has its own line number, which `positions` maps to
    the source."""
    text: str
    """The rewritten source."""
    positions: Positions
    sources: tuple[Source, ...]
    """The kernel's function, then the functions that it calls, from any module."""
    sites: dict[str, Position]
    """The positions of its pipelines."""
    seconds: float = 0.0
    """The time that rewriting took."""

    @property
    def definition(self) -> Position:
        """The position of the kernel's `def`."""
        return self.sources[0].definition


def _no_source(function: Callable) -> CompileError:
    return CompileError(
        f"kernel {function.__name__}: its source is not available "
        f"({function.__code__.co_filename}), and numpipe rewrites kernels from their source: "
        f"{_source.missing(function)}"
    )


def read(function: Callable) -> Source:
    """Return the source of a kernel function, with the line numbers of its file. Raises
    CompileError if there is none."""
    if hasattr(function, "__wrapped__"):
        raise CompileError(
            f"kernel {function.__name__}: a decorator below @numpipe.kernel wraps it, but kernels "
            "are compiled from their source, without that decorator; fix: put @numpipe.kernel "
            "next to the 'def'"
        )
    try:
        lines, first = _source.lines(function)
    except (OSError, TypeError):
        raise _no_source(function) from None
    filename = inspect.getsourcefile(function) or function.__code__.co_filename
    source = Source(
        function.__code__.co_name,
        filename,
        max(first, 1),
        tuple(lines),
        namespace_of(function),
    )
    try:
        node = source.tree
    except (SyntaxError, IndexError):
        raise _no_source(function) from None
    if isinstance(node, ast.AsyncFunctionDef):
        raise CompileError(source.position(node).stamp("a kernel must be a plain `def`"))
    # another "<string>", or a file that changed
    if not isinstance(node, ast.FunctionDef) or node.name != source.name:
        raise _no_source(function)
    return source


def lift(source: Source, parameters: list[str], known: dict[str, Any], unit: Unit) -> Lifted:
    """Rewrite a kernel function, given the `known` values of its Statics and arrays, and the
    options of `unit`."""
    begin = time.perf_counter()
    constants = Constants(source.namespace, known, unit.wg_axis, unit.sizes)
    lifted = _Lift(source, constants, Session(unit)).kernel(parameters)
    return dataclasses.replace(lifted, seconds=time.perf_counter() - begin)


class _Lift(UnrolledLoops, LaneCode, Statements, Reductions, Bodies):
    """The pass over one function, with all of its parts."""

    of_every_node = (
        # before `constant`: functions, and tuples of them, are constants too
        Functions.function_value,
        Rewriter.constant,
        Rewriter.refused,  # after it, because a constant may be written in any Python
    )
    of_calls = (
        # before the rules that reject other libraries' functions, for objects of numba.cuda
        LaneCode.lane_call,
        Arithmetic.builtin,
        # before `operation`: its operations have a parameter for the literals
        Arithmetic.elementwise,
        Statements.debug_call,
        Reductions.of_tile,
        Functions.function_call,
        # each of these knows more of its operation than the operation says, so they come before
        # `operation`
        Bodies.allocation,
        Bodies.emits,
        Calls.axis,
        Calls.program,
        Calls.misplaced_loop,
        Calls.pipeline_made,
        Calls.block_spec,
        Calls.operation,
        Calls.refused_call,
        Calls.allocations_of,
        Calls.value_call,  # all remaining calls
    )
    of_type: ClassVar = {
        ast.Call: (Rewriter.called,),
        ast.Name: (LaneCode.lane_value, Rewriter.name),
        ast.Attribute: (LaneCode.lane_value, Rewriter.missing_attribute),
        # slices first: their parts are visited by the second
        ast.Subscript: (Calls.view, Arithmetic.subscript),
        ast.Tuple: (Arithmetic.tuple_of,),
        ast.BinOp: (Arithmetic.binary_operator,),
        ast.UnaryOp: (Arithmetic.unary_operator,),
        ast.Compare: (Arithmetic.comparison,),
        # a known test drops an arm unseen; so do the next rules
        ast.IfExp: (Rewriter.known_choice, Arithmetic.choice),
        ast.BoolOp: (Rewriter.known_operands, Arithmetic.condition),
        ast.If: (Rewriter.known_branch, Reductions.branch),
        ast.Assign: (Rewriter.known_names, Arithmetic.assignment),
        ast.AnnAssign: (Rewriter.annotated,),
        ast.AugAssign: (Arithmetic.in_place,),
        ast.Return: (Arithmetic.returned,),
        ast.Expr: (Bodies.not_called, Calls.unused_product, Calls.predicated),
        ast.Assert: (Statements.assertion,),
        ast.With: (Statements.with_block,),
        ast.For: (Loops.own_loop, UnrolledLoops.unrolled_loop, Loops.plain_loop),
        ast.FunctionDef: (Nested.nested_function,),
        ast.Lambda: (Nested.nested_lambda,),
    }

    def kernel(self, parameters: list[str]) -> Lifted:
        node = self.tree
        for inner in reversed(list(own(node.body))):
            if isinstance(inner, ast.Return) and inner.value is not None:
                self.error(
                    "a kernel must not return a value; fix: store results through its output "
                    "references",
                    inner,
                )
        for name, where in stores(node):
            if name in self.constants.known and not isinstance(where, ast.arg):
                self.error(
                    f"'{name}' is a parameter of the kernel and cannot be reassigned; fix: use "
                    "another name",
                    where,
                )
        self._signature([CONTEXT, *parameters])
        self.lifts_kernel = True
        self.lift_body(node)
        self.check_turns(node)
        if self.session.tokens:
            tokens = tuple(self.session.tokens)
            node.body.insert(0, self.statement(warpgroup_order.begin_tokens, [tokens]))
        simulated, compiled = self._both(node.name)
        session = self.session
        return Lifted(
            simulated,
            compiled,
            "\n\n".join(session.texts),
            session.positions,
            tuple(reversed(session.sources)),
            session.sites,
        )

    def lift_function(self, function: Function, known: dict[str, Any]) -> Bound:
        source = read(function.function)
        rebound = {name for name, where in stores(source.tree) if not isinstance(where, ast.arg)}  # type: ignore[arg-type]
        known = {name: value for name, value in known.items() if name not in rebound}
        constants = Constants(source.namespace, known, self.unit.wg_axis, self.unit.sizes)
        return _Lift(source, constants, self.session).function()

    def function(self) -> Bound:
        """Rewrite a `@numpipe.function`; return it as the value that callers bind to the
        context."""
        node, known = self.tree, self.constants.known
        parameters = [
            name
            for name in parameters_of(node)
            if name not in known or isinstance(known[name], StaticArray)
        ]
        self._signature(parameters)
        coroutine = self._coroutine(node, always=True)
        self.lift_body(node)
        facts = self._facts(node, node.name, coroutine)
        node.args.args.insert(0, ast.arg(ENVIRONMENT))
        node.body[:0] = parsed(f"{CONTEXT} = {ENVIRONMENT}[0]", node)
        self.binders[node.name] = facts
        simulated, compiled = self._both(node.name)
        bind = binder(simulated, compiled)
        bind.__name__ = f"bind_{node.name}_{len(self.session.functions)}"  # type: ignore[attr-defined]
        return Bound(bind, tuple(parameters), facts)

    def _signature(self, parameters: list[str]) -> None:
        """Give the function plain parameters, without annotations, defaults and decorators."""
        node = self.tree
        node.args = located(plain_parameters(parameters), node)
        node.decorator_list, node.returns = [], None

    def _both(self, name: str) -> tuple[Callable, Callable]:
        """Return the rewritten function for the simulator and for the GPU."""
        module = ast.Module([*self.out, self.tree], [])
        ast.fix_missing_locations(module)
        self.session.texts.append(ast.unparse(module))
        self.session.sources.append(self.source)
        simulated = self._run(simulated_source.for_simulation(module), name)
        return simulated, self._run(self.session.positions.renumber(module, self.source), name)

    def _run(self, module: ast.Module, name: str) -> Callable:
        """Run the rewritten module; return its function `name`."""
        namespace = (
            self.source.namespace
            | self.added
            | {simulated_source.NAME: simulated_source.begin_round}
        )
        exec(compile(module, self.source.filename, "exec"), namespace)
        for lifted, facts in self.binders.items():
            namespace[lifted].__facts__ = facts
            namespace[f"__np_bind_{lifted}"] = binder(namespace[lifted])
        function: Callable = namespace[name]
        return function
