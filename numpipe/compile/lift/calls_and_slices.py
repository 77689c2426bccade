"""Rewriting of calls and subscripts: keywords become positions, the hidden context is passed on,
slices become views.

A call of an operation is rewritten as the operation declares (`core.op`). Rules before `operation`
handle operations that need more than that.
"""

from __future__ import annotations

import ast
import inspect
import types
from typing import Any, NoReturn

import numpy as np

from ...core.op import Helper, Op, does, plain_signature
from ...diagnostics.argument_checks import as_tuple
from ...language.grid import partials, tile_loop
from ...language.memory import copies
from ...language.pipeline import body_form, operand_barriers, pipelines
from ...language.tiles import refs, tile
from ...plan import context, specs
from ...plan.kernel_shape import GPU_AXIS
from ...plan.plans import ArrayArg
from .constants import MISSING, OPERATIONS, literal_node, named_tuple, one_of
from .loops import PIPELINE, Loops
from .nodes import argument, located, names, parameters_of, reads, tuple_of
from .rewriter import NOT_MINE
from .subset import host_only, mismatch, spelled

PREDICATED = operand_barriers.barrier_arrive, copies.async_prefetch
"""Operations whose `predicate` is a branch around them. A copy's predicate is not: the copy arrives
on its barrier in either case."""


def plain(function: Any) -> str:
    """Return the error for a Python function of the user that kernels cannot call."""
    return (
        f"'{function.__name__}' is a plain Python function: a kernel calls functions that are "
        "nested in it or decorated with @numpipe.function; put @numpipe.function above 'def "
        f"{function.__name__}'"
        if function.__name__ != "<lambda>"
        else (
            "a lambda of the module is a plain Python function: write a 'def' with "
            "@numpipe.function above it, or nest it in the kernel"
        )
    )


class Calls(Loops):
    """Calls of numpipe's operations, and the indices of tiles and arrays."""

    def unused_product(self, node: ast.Expr) -> Any:
        called: Any = self.callee(node.value)
        if does(called, "issues") or does(called, "waits"):
            self.error(
                f"{called.__name__} returns the accumulator and changes nothing in place; fix: "
                f"acc = {ast.unparse(node.value)}",
            )
        return NOT_MINE

    def predicated(self, node: ast.Expr) -> Any:
        """Rewrite ``operation(…, predicate=p)`` to ``if p: operation(…)``."""
        call = node.value
        called = self.callee(call)
        if not isinstance(call, ast.Call) or not one_of(called, PREDICATED):
            return NOT_MINE
        *call.args, predicate = self.bind(called, call)
        call.keywords = []
        if self.value(predicate) is True:
            return NOT_MINE
        return self.visit(located(ast.If(predicate, [node], []), node))

    # ---- calls that need more than the operation says of itself
    def axis(self, node: ast.Call, function: Any) -> Any:
        """Rewrite `axis_index` and `axis_size` of an axis, or of several, the last one fastest.

        ``axis_index((a, b))`` is ``axis_index(a) * axis_size(b) + axis_index(b)``.
        """
        if function is not context.axis_index and function is not context.axis_size:
            return NOT_MINE
        (argument,) = self.bind(function, node)
        known = self.value(argument)
        axes = as_tuple(known)
        if not all(isinstance(name, str) for name in axes):
            self.error(
                "the name of an axis must be a compile-time string, or a tuple of them, got "
                f"{ast.unparse(argument)}",
            )
        if len(set(axes)) < len(axes):
            self.error(f"each axis may be named only once, got {axes}")
        for axis in axes:
            self._axis_exists(axis)

        def index(axis: str) -> ast.expr:
            if axis == self.constants.wg_axis:
                return self.call(context.warpgroup_part)
            if axis == GPU_AXIS and self.unit.gpus:
                return self.call(context.gpu_index)
            return self.call(context.axis_index, [axis])

        def size(axis: str) -> ast.expr:
            size = self.unit.sizes.get(axis)
            if size is not None:
                return literal_node(size, node)
            return self.call(context.axis_size, [axis])

        of = index if function is context.axis_index else size
        if not axes:
            return literal_node(int(of is size), node)
        whole = of(axes[0])
        for axis in axes[1:]:
            whole = self._compute(OPERATIONS[ast.Mult], [whole, size(axis)])
            if of is index:
                whole = self._compute(OPERATIONS[ast.Add], [whole, index(axis)])
        return whole

    def _axis_exists(self, axis: str) -> None:
        if axis not in (
            self.constants.wg_axis,
            *self.unit.axes,
            *self.unit.cluster_axes,
            *[GPU_AXIS] * bool(self.unit.gpus),
        ):
            if axis == GPU_AXIS:
                self.error(
                    f"the axis {axis!r} is the axis of a mesh's GPUs, but this kernel runs on one "
                    "GPU; fix: @numpipe.kernel(semaphores=…), and call it with mesh=",
                )
            named = (
                f"named {', '.join(map(repr, self.unit.axes))}"
                if self.unit.axes
                else "not named (grid_names=)"
            )
            if self.unit.cluster_axes:
                named += f", the cluster's {', '.join(map(repr, self.unit.cluster_axes))}"
            self.error(
                f"unknown axis {axis!r}: the grid's axes are {named}, and the warpgroup axis is "
                f"{self.constants.wg_axis!r}",
            )

    def program(self, node: ast.Call, function: Any) -> Any:
        """Rewrite `program_id` and `num_programs` for a dimension that the launch flattens
        (`plan.folded_grids`)."""
        if not self.unit.folded or (
            function is not context.program_id and function is not context.num_programs
        ):
            return NOT_MINE
        dimension = self.value(self.bind(function, node)[0])
        if not isinstance(dimension, int) or isinstance(dimension, bool) or dimension in (1, 2):
            return NOT_MINE
        name, of = (
            ("program_id", context.folded_index)
            if function is context.program_id
            else ("num_programs", context.folded_size)
        )
        context.check_ctas(self.unit, name, dimension)
        if dimension not in self.unit.folded:
            self.error(
                f"{name}({dimension}): the grid has {self.unit.grid_rank} dimensions, "
                f"0…{self.unit.grid_rank - 1}",
            )
        return self.call(of, [dimension])

    def misplaced_loop(self, node: ast.Call, function: Any) -> Any:
        if function is tile_loop.tiles or function is tile_loop.nd_loop:
            self.error(
                f"numpipe.{function.__name__}(…) is only allowed in a `for`; fix: for m, n in "
                f"numpipe.{function.__name__}(…):",
            )
        if self._pipeline_call(node):
            self.error(
                "a pipeline may only be called in a `for`; fix: for (indices), (tiles) in "
                "pipe(arrays):",
            )
        return NOT_MINE

    def pipeline_made(self, node: ast.Call, function: Any) -> Any:
        return (
            self.loop_form(node, self.bind(function, node), False)
            if function is pipelines.pipeline
            else NOT_MINE
        )

    def loop_form(self, node: ast.Call, args: list[ast.expr], alone: bool) -> ast.Call:
        """Return the pipeline with these arguments of `pipeline`, the constants in its grid and its
        place; `alone`: each compute warpgroup runs it on its own."""
        self._index_maps_fit(*args[:3])
        whole = self.value(args[0])
        sizes: Any = (
            whole
            if isinstance(whole, tuple)
            else map(self.value, args[0].elts)
            if isinstance(args[0], ast.Tuple)
            else ()
        )
        grid = tuple(int(n) if isinstance(n, (int, np.integer)) else None for n in sizes)
        facts = int(alone), grid, self.session.site(self.source, node)
        return self.call(
            pipelines.make_pipeline,
            [*map(self.visit, args), *facts],
        )

    def block_spec(self, node: ast.Call, function: Any) -> Any:
        """Add to a BlockSpec what its index map returns and reads; its parts, transforms and
        `Element`, become records."""
        if function is specs.BlockSpec:
            args = self.bind(function, node)
            space = specs.space_of(self.value(args[2]))
            if space is None:
                self.error(
                    "BlockSpec: memory_space must be numpipe.SMEM or numpipe.GMEM, a "
                    f"compile-time constant, got {ast.unparse(args[2])}",
                    args[2],
                )
            args[2] = literal_node(space, args[2])
            facts = self._known_indices(args[1]), self._depends(args[1])
            return self.call(specs.block_spec, [*map(self.visit, args), *facts])
        if isinstance(function, type) and function in specs.RECORDS:
            args = self.bind(function, node)
            return self.call(specs.RECORDS[function], map(self.visit, args))
        return NOT_MINE

    def allocations_of(self, node: ast.Call, function: Any) -> Any:
        """Rewrite ``pipe.get_allocations(arrays)``, a method of a pipeline, as a call of the
        operation."""
        if not (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "get_allocations"
            and function is MISSING
        ):
            return NOT_MINE
        if node.keywords:
            self.error("get_allocations takes the pipeline's arrays by position")
        return self.call(
            body_form.get_allocations,
            [self.visit(part) for part in (node.func.value, *node.args)],
        )

    # ---- all others
    def operation(self, node: ast.Call, function: Any) -> Any:
        """Rewrite a call of an operation: all arguments become positional, after the hidden ones
        that the operation requests."""
        if not isinstance(function, Op) or (isinstance(function, Helper) and not function.context):
            return NOT_MINE
        args = self.bind(function, node)
        if function is partials.combine:
            if (within := self.combination(args[0], *args[2:])) is not None:
                return within
            args.pop()
        if function is tile.zeros:
            self._fits_registers(args[0])
        if function.context:
            return self.call(function, map(self.visit, args))
        if isinstance(node.func, ast.Name):
            node.func = self.by_type(node.func)
        node.args, node.keywords = [self.visit(a) for a in args], []
        return node

    def refused_call(self, node: ast.Call, function: Any) -> Any:
        """Reject calls that kernels cannot make: of a kernel, a Python or NumPy function, or a
        user's function that is not compiled."""
        if type(function).__name__ == "Kernel" and hasattr(function, "simulate"):
            self.error(
                f"'{function.name}' is a kernel, which can be called from the host but not from a "
                "kernel",
            )
        if function is MISSING or named_tuple(function):
            return NOT_MINE
        if (why := host_only(function, ast.unparse(node.func))) is not None:
            for argument in node.args:
                self.visit(argument)  # its own errors come first
            self.error(why)
        if isinstance(function, (types.FunctionType, types.MethodType)) and not str(
            function.__module__
        ).startswith(("numpy", "numba")):
            self.error(plain(function))
        return NOT_MINE

    def value_call(self, node: ast.Call, function: Any) -> Any:
        """Rewrite a call of a nested function, an emitted pipeline or another value of the kernel;
        or of a NamedTuple or a helper."""
        tuples = isinstance(function, type) and issubclass(function, tuple)
        if named_tuple(function):
            node.args, node.keywords = self.bind(function, node), []
        if function is MISSING:
            node.func = self.visit(node.func)
        elif isinstance(node.func, ast.Name):
            node.func = self.by_type(node.func)
        node.args = [self.visit(a) for a in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        emitted = self._emitted_facts(node.func)
        if emitted is not None:
            self._with_allocations(node, emitted is PIPELINE)
            node.facts = emitted  # type: ignore[attr-defined]
        elif isinstance(node.func, ast.Name) and node.func.id in self.local:
            node.facts = self._nested_facts(node.func.id)  # type: ignore[attr-defined]
            self._by_position(node.func.id, node)
        elif node.keywords and isinstance(node.func, (ast.Subscript, ast.Call, ast.IfExp)):
            self._no_keywords(node)
        # a call that the pass itself inserted
        ours = isinstance(node.func, ast.Name) and node.func.id.startswith("__np_")
        if (function is MISSING or tuples) and not ours:
            node.args = [self._settled(arg, ints=tuples) for arg in node.args]
        return node

    def _with_allocations(self, node: ast.Call, may: bool) -> None:
        """Put the allocations that an emitted pipeline shares with another one after its arrays."""
        given = [k.value for k in node.keywords if k.arg == "allocations" and may]
        if len(given) != len(node.keywords):
            self.error("an emitted pipeline is called on its arrays by position")
        node.args += [
            value
            for value in given
            if not (isinstance(value, ast.Constant) and value.value is None)
        ]
        node.keywords = []

    def _no_keywords(self, node: ast.Call) -> NoReturn:
        self.error(
            f"'{ast.unparse(node.func)}' is called with keywords, but parameter names are known "
            "only for functions that are called by their own name; fix: pass the arguments by "
            "position",
        )

    def _by_position(self, name: str, node: ast.Call) -> None:
        """Turn the keywords of a call of a nested function into positions."""
        places, facts = self._binds(name), self._nested_facts(name)
        if len(places) != 1 or not isinstance(places[0], ast.FunctionDef) or not facts:
            if node.keywords:
                self._no_keywords(node)
            return
        parameters = parameters_of(places[0])
        if facts.rest:
            fixed = parameters[: facts.parameters]
            if node.keywords or len(node.args) < len(fixed):
                self.error(
                    f"{name}({', '.join([*fixed, f'*{parameters[-1]}'])}): is called by position, "
                    f"with {len(fixed)} arguments at least",
                )
            node.args = [*facts.packed(tuple(node.args), lambda more: tuple_of([*more], node))]
            return
        node.args, node.keywords = self._in_order(name, plain_signature(parameters), node), []

    def _fits_registers(self, of: ast.expr) -> None:
        """Reject an accumulator that leaves no registers to compute with: ptxas would put it into
        local memory."""
        shape, unit = self.value(of), self.unit
        if isinstance(shape, tuple) and len(shape) == 2 and all(isinstance(n, int) for n in shape):
            registers = shape[0] * shape[1] // 128
            if registers >= unit.compute_registers:
                has = (
                    f"({unit.register_pool} - {unit.memory_registers} of the memory role) / "
                    f"{unit.compute_wgs}, at most 256"
                    if unit.warp_specialized
                    else f"{unit.target.registers} / {unit.threads} threads in "
                    f"steps of 8, at most {unit.target.lane_registers}"
                )
                # the other registers are needed for computations
                elements = 128 * unit.compute_registers * 3 // 4
                rows = max(elements // shape[1] // 64 * 64, 64)
                fits = rows, min(elements // rows // 8 * 8, shape[1])
                self.error(
                    f"register budget: zeros {shape} takes {shape[0]} x {shape[1]} / 128 = "
                    f"{registers} registers per lane, but each of {unit.compute_wgs} compute "
                    f"warpgroups has {unit.compute_registers}: {has}; fix: use a smaller tile, "
                    f"such as {fits}, and more CTAs or warpgroups",
                )

    def _index_maps_fit(self, grid: ast.expr, in_specs: ast.expr, out_specs: ast.expr) -> None:
        """Reject a lambda, written in place, whose number of indices differs from the grid's."""
        if not isinstance(grid, ast.Tuple):
            return
        for label, spec in [
            (f"{name}[{number}]", spec)
            for name, given in (("in_specs", in_specs), ("out_specs", out_specs))
            if isinstance(given, ast.Tuple)
            for number, spec in enumerate(given.elts)
        ]:
            if isinstance(spec, ast.Call) and self.value(spec.func) is specs.BlockSpec:
                index_map = argument(spec, "index_map", 1)
                if isinstance(index_map, ast.Lambda) and len(index_map.args.args) != len(grid.elts):
                    self.error(
                        f"{label}: index_map takes {len(index_map.args.args)} indices, but the "
                        f"pipeline's grid has {len(grid.elts)}",
                        index_map,
                    )

    def _known_indices(self, index_map: ast.expr) -> tuple[int | None, ...]:
        """Return the constants among the indices that a lambda, written in place, returns; None for
        the other indices."""
        if not isinstance(index_map, ast.Lambda) or not isinstance(index_map.body, ast.Tuple):
            return ()
        parameters = set(parameters_of(index_map))
        values = [
            None if parameters & names(ast.Load, part) else self.value(part)
            for part in index_map.body.elts
        ]
        return tuple(value if isinstance(value, int) else None for value in values)

    def _depends(self, index_map: ast.expr) -> tuple[bool, ...] | None:
        """Return which of its arguments a nested function, or a lambda written in place, reads;
        None for other functions."""
        while (
            isinstance(index_map, ast.IfExp) and (test := self.value(index_map.test)) is not MISSING
        ):
            index_map = index_map.body if test else index_map.orelse
        function = self._function_of(index_map)
        return None if function is None else reads(function)

    def bind(self, function: Any, node: ast.Call) -> list[ast.expr]:
        """Return the arguments of a call in the order of the function's parameters, with defaults
        filled in."""
        if any(isinstance(a, ast.Starred) for a in node.args) or any(
            k.arg is None for k in node.keywords
        ):
            self.error(
                f"{function.__name__}: * and ** are not supported in a kernel's calls; fix: write "
                "the arguments out",
                node,
            )
        for keyword in node.keywords:
            keyword.arg = operand_barriers.RENAMED.get(str(keyword.arg), keyword.arg)
        return self._in_order(function.__name__, inspect.signature(function), node)

    def _in_order(self, name: str, signature: inspect.Signature, node: ast.Call) -> list[ast.expr]:
        """Return the arguments of a call of `name` in the order of a signature's parameters."""
        keywords = {str(k.arg): k.value for k in node.keywords}
        wrong = mismatch(signature, len(node.args), [str(k.arg) for k in node.keywords])
        if wrong is not None:
            self.error(f"{name}{spelled(signature)}: {wrong}", node)
        bound = signature.bind(*node.args, **keywords)
        result: list[ast.expr] = []
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                result.extend(bound.arguments.get(name, ()))
            elif name in bound.arguments:
                result.append(bound.arguments[name])
            else:
                result.append(literal_node(parameter.default, node))
        return result

    def view(self, node: ast.Subscript) -> Any:
        """Rewrite the slices of an index, and ``array[...]``, as views.

        A single slice stays Python's where the value may be a tuple.
        """
        array = self._parameter(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        sliced = any(isinstance(part, ast.Slice) for part in parts)
        if array is not None and [getattr(part, "value", None) for part in parts] == [...]:
            parts = [located(ast.Slice(), node.slice) for _ in range(array.ndim)]
        elif not (
            (isinstance(node.value, ast.Attribute) and node.value.attr == "at")
            or (
                sliced
                and (
                    isinstance(node.slice, ast.Tuple)
                    or array is not None
                    or isinstance(node.ctx, ast.Store)
                )
            )
        ):
            return NOT_MINE
        new = [self._index(part) if isinstance(part, ast.Slice) else part for part in parts]
        node.slice = tuple_of(new, node) if len(new) > 1 else new[0]
        return NOT_MINE

    def _parameter(self, node: ast.expr) -> ArrayArg | None:
        """Return the array that a name of the kernel's source means; None for all else."""
        if not self.lifts_kernel or not isinstance(node, ast.Name):
            return None
        if any(node.id in names for _, names in self.scopes[1:]):  # of a nested function
            return None
        return next((array for array in self.unit.arrays if array.name == node.id), None)

    def _index(self, part: ast.Slice) -> ast.expr:
        if part.lower is None and part.upper is None and part.step is None:
            return self.call(refs.whole, [], part)
        low: Any = 0 if part.lower is None else self.value(part.lower)
        high: Any = None if part.upper is None else self.value(part.upper)
        if low is MISSING or high is MISSING or part.step is not None:
            self.error(
                "a slice of a tile or array must have compile-time bounds and no step; fix: for "
                "a run-time start, write ds(start, size)",
                part,
            )
        # the type of what is sliced is known only when it is typed
        if high is None or min(low, high) < 0:
            return self.call(refs.span, [low, high], part)
        return self.call(refs.ds, [low, high - low], part)
