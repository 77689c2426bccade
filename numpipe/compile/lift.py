"""The AST pass: a kernel's source, rewritten for both executions.

CPython's original cannot run as a kernel: Numba knows no closures over run-time values, a loop over a pipeline means
different things to the two roles, and shapes must be literals. The pass keeps file names and line numbers, and rewrites

* constants: names and arithmetic known before compilation become literals, branches on them are pruned (`fold`);
* calls of numpipe functions: keywords become positions, the hidden context ``__np`` is passed on;
* ``for (k,), (a_tile, b_tile) in pipe(a, b)``: the ring's iterator, then a wait for the accumulators carried out of it;
* ``for m, n in numpipe.tiles(…)``: a `range` over this CTA's tiles;
* nested functions and lambdas: module-level functions bound to what they captured (`closure`).

The simulated SM runs the rewritten source too: what is verified is what compiles.
"""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from .. import arith, context, pipelines, refs, tile_loop
from .. import specs as specs_module
from .._op import Helper, Op
from .._unit import Unit
from ..errors import CompileError, at
from ..fragment import mma, tile
from .closure import binder
from .fold import MISSING, Constants, StaticArray, is_literal, literal_node, stores
from .subset import mismatch, refusal, spelled

CONTEXT = "__np"


@dataclass(frozen=True)
class Source:
    """A function's parsed source and where it stands."""

    tree: ast.FunctionDef
    filename: str
    namespace: dict[str, Any]


def read(function: Callable[..., Any]) -> Source:
    """Source of a kernel function, line numbers those of its file; CompileError where there is none."""
    if hasattr(function, "__wrapped__"):
        raise CompileError(f"kernel {function.__name__}: a decorator below @numpipe.kernel wraps it, but kernels are compiled from "
                           "their source, without it: put @numpipe.kernel next to the 'def'")
    try:
        lines, first = inspect.getsourcelines(function)
        filename = inspect.getsourcefile(function) or "<unknown>"
    except (OSError, TypeError):
        raise CompileError(f"kernel {function.__name__}: its source is not available ({function.__code__.co_filename}): numpipe "
                           "rewrites kernels from their source; define it in a file or a notebook cell, not in exec() or at a "
                           "prompt that keeps no source") from None
    try:
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except SyntaxError:
        raise CompileError(at(filename, first, "a kernel must be a `def`; a lambda cannot be one")) from None
    ast.increment_lineno(tree, first - 1)
    node = tree.body[0]
    if not isinstance(node, ast.FunctionDef):
        raise CompileError(at(filename, first, "a kernel must be a plain `def`"))
    namespace = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            namespace[name] = cell.cell_contents
        except ValueError:  # not assigned yet: an error only if the kernel uses it
            namespace.pop(name, None)
    return Source(node, filename, namespace)


def lift(source: Source, parameters: list[str], statics: dict[str, Any], arrays: dict[str, StaticArray],
         unit: Unit) -> Callable[..., Any]:
    """The rewritten kernel function, ``f(__np, *parameters)``, for these Statics and array types and the options of `unit`."""
    constants = Constants(source.namespace, {**statics, **arrays}, unit.wg_axis, unit.compute_wgs)
    return _Lift(source, constants, unit).kernel(parameters)


_REWRITTEN: dict[Any, tuple[Op[..., Any], str]] = {  # public name -> operation, what is added: c(ontext), s(ite)
    pipelines.pipeline: (pipelines.make_pipeline, "cs"),
    specs_module.BlockSpec: (specs_module.block_spec, ""),
}


class _Lift(ast.NodeTransformer):
    def __init__(self, source: Source, constants: Constants, unit: Unit) -> None:
        self.source, self.constants, self.unit = source, constants, unit
        self.sites: set[str] = set()
        self.out: list[ast.FunctionDef] = []
        self.added: dict[str, Any] = {}
        self.binders: list[str] = []
        self.scopes: list[tuple[ast.FunctionDef | ast.Lambda, dict[str, list[ast.AST]]]] = []
        self.temporaries = 0

    # ---- helpers
    def error(self, node: ast.AST, message: str) -> NoReturn:
        raise CompileError(at(self.source.filename, getattr(node, "lineno", self.source.tree.lineno),
                              f"kernel {self.source.tree.name}: {message}"))

    @property
    def local(self) -> set[str]:
        return {name for _, names in self.scopes for name in names}

    def value(self, node: ast.AST) -> Any:
        return self.constants.evaluate(node, self.local)

    def named(self, name: str, value: Any, where: ast.AST) -> ast.Name:
        """A reference to an object the pass adds to the kernel's namespace."""
        self.added[f"__np_{name}"] = value
        return ast.copy_location(ast.Name(f"__np_{name}", ast.Load()), where)

    def call(self, operation: Op[..., Any], args: list[ast.expr], where: ast.AST) -> ast.Call:
        function = self.named(operation.__name__, operation, where)  # type: ignore[attr-defined]
        return ast.copy_location(ast.Call(function, args, []), where)

    def context_name(self, where: ast.AST) -> ast.Name:
        return ast.copy_location(ast.Name(CONTEXT, ast.Load()), where)

    def temporary(self, what: str) -> str:
        self.temporaries += 1
        return f"__np_{what}_{self.temporaries}"

    # ---- functions
    def kernel(self, parameters: list[str]) -> Callable[..., Any]:
        node = self.source.tree
        for inner in ast.walk(node):
            if isinstance(inner, ast.Return) and inner.value is not None and self._owner(node, inner) is node:
                self.error(inner, "a kernel returns nothing: store results through its output references")
        for name, where in stores(node):
            if name in self.constants.known and not isinstance(where, ast.arg):
                self.error(where, f"'{name}' is a parameter of the kernel and cannot be re-bound: use another name")
        node.args = ast.arguments([], [ast.arg(CONTEXT), *(ast.arg(p) for p in parameters)], None, [], [], None, [])
        node.decorator_list, node.returns = [], None
        self._body(node)
        module = ast.Module([*self.out, node], [])
        ast.fix_missing_locations(module)
        namespace = self.source.namespace | self.added
        exec(compile(module, self.source.filename, "exec"), namespace)
        for name in self.binders:
            namespace[f"__np_bind_{name}"] = binder(namespace[name])
        function: Callable[..., Any] = namespace[node.name]
        function.__lifted__ = ast.unparse(module)  # type: ignore[attr-defined]
        return function

    @staticmethod
    def _owner(root: ast.FunctionDef, target: ast.AST) -> ast.AST:
        """The function a statement belongs to."""
        owner: ast.AST = root
        todo: list[tuple[ast.AST, ast.AST]] = [(root, root)]
        while todo:
            node, function = todo.pop()
            if node is target:
                owner = function
            for child in ast.iter_child_nodes(node):
                inner = child if isinstance(child, (ast.FunctionDef, ast.Lambda)) else function
                todo.append((child, inner))
        return owner

    def _body(self, node: ast.FunctionDef) -> None:
        names: dict[str, list[ast.AST]] = {}
        for name, where in stores(node):
            names.setdefault(name, []).append(where)
        outer = self.constants.known
        if self.scopes:  # names of a nested function hide those outside
            self.constants.known = {name: value for name, value in outer.items() if name not in names}
        self.scopes.append((node, names))
        node.body = self._block(node.body)
        self.scopes.pop()
        self.constants.known = outer

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in body:
            new = self.visit(statement)
            result.extend(new if isinstance(new, list) else [] if new is None else [new])
        return result or [ast.copy_location(ast.Pass(), body[0])]

    # ---- constants
    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and not isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            value = self.value(node)
            if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
                return ast.copy_location(ast.Constant(np.dtype(value).name), node)  # a dtype travels as its name
            if value is not MISSING and is_literal(value) and not isinstance(node, ast.Constant):
                return literal_node(value, node)
            if value is MISSING and node in self.constants.failed:
                error = self.constants.failed[node]
                self.error(node, f"{ast.unparse(node)}: {type(error).__name__}: {error}")
        refused = refusal(node)
        if refused is not None:
            self.error(node, refused)
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        known = isinstance(node.ctx, ast.Store) or node.id.startswith("__np") or node.id in self.local
        if not known and self.constants.name(node.id, self.local) is MISSING:
            self.error(node, f"name '{node.id}' is not defined")
        value = self.constants.known.get(node.id, MISSING)
        if isinstance(node.ctx, ast.Load) and value is not MISSING and not isinstance(value, StaticArray):
            return self.named(f"known_{node.id}", value, node)  # a Static, a local bound to a function: no value at run time
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        base = self.value(node.value)
        if base is not MISSING and not isinstance(base, StaticArray) and not hasattr(base, node.attr):
            self.error(node, f"'{ast.unparse(node.value)}' ({type(base).__name__}) has no attribute '{node.attr}'")
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Annotations say nothing here: types follow from the values."""
        if node.value is None:
            return None
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Assert(self, node: ast.Assert) -> None:
        test = self.value(node.test)
        said = "" if node.msg is None else f": {ast.unparse(node.msg) if (told := self.value(node.msg)) is MISSING else told}"
        if test is MISSING:
            self.error(node, f"'assert {ast.unparse(node.test)}' depends on run-time values, and the GPU has no exceptions: check "
                             "arguments before the call")
        if not test:
            self.error(node, f"'assert {ast.unparse(node.test)}' failed{said}")

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        test = self.value(node.test)
        return self.generic_visit(node) if test is MISSING else self.visit(node.body if test else node.orelse)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """Known operands that decide nothing are dropped, those behind one that decides too."""
        kept: list[ast.expr] = []
        for part in node.values:
            value = self.value(part)
            if value is MISSING or bool(value) is isinstance(node.op, ast.Or) or part is node.values[-1]:
                kept.append(part)
            if value is not MISSING and bool(value) is isinstance(node.op, ast.Or):
                break
        node.values = kept
        return self.generic_visit(node) if len(kept) > 1 else self.visit(kept[0])

    def visit_Assign(self, node: ast.Assign) -> Any:
        target = node.targets[0]
        if len(node.targets) == 1 and isinstance(target, ast.Name):
            value = self.value(node.value)
            if value is not MISSING and not isinstance(value, StaticArray) and len(self.scopes[-1][1].get(target.id, [])) == 1:
                self.constants.known[target.id] = value
                if not is_literal(value):
                    return None
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> Any:
        test = self.value(node.test)
        if test is not MISSING:
            return self._block(node.body) if test else self._block(node.orelse) if node.orelse else None
        node.test = self.visit(node.test)
        node.body = self._block(node.body)
        node.orelse = self._block(node.orelse) if node.orelse else []
        return node

    # ---- calls and subscripts
    def visit_Call(self, node: ast.Call) -> Any:
        function = self.value(node.func)
        if function is context.axis_index or function is context.axis_size:
            axis = self._axis(node)
            if function is context.axis_index and axis == self.constants.wg_axis:
                return self.call(context.warpgroup_part, [self.context_name(node)], node)
        if function is tile_loop.tiles:
            self.error(node, "numpipe.tiles(…) stands in a `for` only: for m, n in numpipe.tiles(…):")
        if self._pipeline_call(node):
            self.error(node, "a pipeline is called in a `for` only: for (indices), (tiles) in pipe(arrays):")
        try:
            known = function is not MISSING and function in _REWRITTEN
        except TypeError:
            known = False
        if known:
            operation, extra = _REWRITTEN[function]
            args = self.bind(function, node)
            if function is pipelines.pipeline:
                self._index_maps_fit(args[0], args[1])
            args = [self.context_name(node)] * ("c" in extra) + args
            if "s" in extra:
                args.append(ast.copy_location(ast.Constant(self._site(node)), node))
            return self.call(operation, [self.visit(a) for a in args], node)
        if isinstance(function, Op) and not isinstance(function, Helper):
            node.args, node.keywords = self.bind(function, node), []
            if function is tile.zeros:
                self._fits_registers(node)
        elif type(function).__name__ == "Kernel" and hasattr(function, "simulate"):
            self.error(node, f"'{function.name}' is a kernel: a kernel is called from the host, not from a kernel")
        elif isinstance(function, (types.FunctionType, types.MethodType)) and not str(function.__module__).startswith(
                ("numpy", "numba")):
            self.error(node, f"'{function.__name__}' is a plain Python function; a kernel calls numpipe operations, NumPy "
                             "functions on tiles and functions nested in the kernel")
        if function is MISSING:
            node.func = self.visit(node.func)
        elif isinstance(node.func, ast.Name):
            node.func = self.visit_Name(node.func)
        node.args = [self.visit(a) for a in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return node

    def _fits_registers(self, node: ast.Call) -> None:
        """One accumulator alone must leave a register to compute with: what ptxas does with more is memory traffic."""
        shape, unit = self.value(node.args[0]), self.unit
        if isinstance(shape, tuple) and len(shape) == 2 and all(isinstance(n, int) for n in shape):
            registers = shape[0] * shape[1] // 128
            if registers >= unit.compute_registers:
                self.error(node, f"register budget: zeros {shape} takes {shape[0]} x {shape[1]} / 128 = {registers} registers a "
                                 f"lane, but each of {unit.compute_wgs} compute warpgroups has {unit.compute_registers}: "
                                 f"({unit.register_pool} - {unit.memory_registers} of the memory role) / {unit.compute_wgs}, at "
                                 "most 256; use a smaller tile, or share it between more warpgroups")

    def _index_maps_fit(self, grid: ast.expr, specs: ast.expr) -> None:
        """Lambdas written in place take as many indices as the grid has."""
        if not isinstance(grid, ast.Tuple) or not isinstance(specs, ast.Tuple):
            return
        for number, spec in enumerate(specs.elts):
            if isinstance(spec, ast.Call) and self.value(spec.func) is specs_module.BlockSpec:
                given = [*spec.args[1:2], *(k.value for k in spec.keywords if k.arg == "index_map")]
                for index_map in given:
                    if isinstance(index_map, ast.Lambda) and len(index_map.args.args) != len(grid.elts):
                        self.error(index_map, f"in_specs[{number}]: index_map takes {len(index_map.args.args)} indices, but the "
                                              f"pipeline's grid has {len(grid.elts)}")

    def _site(self, node: ast.Call) -> str:
        """Where a pipeline is written, by which its ring is known: a line, and the column where a line has several."""
        site = f"{os.path.basename(self.source.filename)}:{node.lineno}"
        if site in self.sites:
            site = f"{site}:{node.col_offset + 1}"
        self.sites.add(site)
        return site

    def _axis(self, node: ast.Call) -> str:
        """The axis that `axis_index` or `axis_size` is asked for."""
        argument, = self.bind(self.value(node.func), node)
        axis = self.value(argument)
        if not isinstance(axis, str):
            self.error(node, f"the name of an axis is a compile-time string, got {ast.unparse(argument)}")
        if axis != self.constants.wg_axis and axis not in self.unit.axes:
            named = f"named {', '.join(map(repr, self.unit.axes))}" if self.unit.axes else "not named (grid_names=)"
            self.error(node, f"unknown axis {axis!r}: the grid's axes are {named}, and the warpgroup axis is "
                             f"{self.constants.wg_axis!r}")
        return axis

    def bind(self, function: Any, node: ast.Call) -> list[ast.expr]:
        """Arguments of a call in the order of the function's parameters, defaults filled in."""
        if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
            self.error(node, f"{function.__name__}: no * or ** in a kernel's calls: write the arguments out")
        signature = inspect.signature(function)
        keywords = {str(k.arg): k.value for k in node.keywords}
        wrong = mismatch(signature, len(node.args), list(keywords))
        if wrong is not None:
            self.error(node, f"{function.__name__}{spelled(signature)}: {wrong}")
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

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        view = isinstance(node.value, ast.Attribute) and node.value.attr == "at"
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if view or (isinstance(node.slice, ast.Tuple) and any(isinstance(p, ast.Slice) for p in parts)):
            new = [self._index(part) if isinstance(part, ast.Slice) else part for part in parts]
            node.slice = ast.copy_location(ast.Tuple(new, ast.Load()), node) if len(new) > 1 else new[0]
        return self.generic_visit(node)

    def _index(self, part: ast.Slice) -> ast.expr:
        if part.lower is None and part.upper is None and part.step is None:
            return self.call(refs.whole, [], part)
        low: Any = 0 if part.lower is None else self.value(part.lower)
        high: Any = MISSING if part.upper is None else self.value(part.upper)
        if low is MISSING or high is MISSING or part.step is not None:
            self.error(part, "a slice of a tile or array has compile-time bounds and no step; for a run-time start write "
                             "ds(start, size)")
        return self.call(refs.ds, [literal_node(low, part), literal_node(high - low, part)], part)

    # ---- loops
    def _pipeline_call(self, node: ast.AST) -> bool:
        """Whether an expression is ``pipe(arrays)``: a call of a pipeline, made in place or bound to a name."""
        if not isinstance(node, ast.Call):
            return False
        made = node.func
        if isinstance(made, ast.Name) and made.id in self.local:
            for _, names in reversed(self.scopes):
                if made.id in names:
                    return any(self._binds_pipeline(where) for where in names[made.id])
        return isinstance(made, ast.Call) and self.value(made.func) is pipelines.pipeline

    def _binds_pipeline(self, target: ast.AST) -> bool:
        for function, _ in self.scopes:
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and target in node.targets and isinstance(node.value, ast.Call):
                    called = node.value.func
                    return self.value(called) is pipelines.pipeline or (
                        isinstance(called, ast.Name) and called.id == "__np_make_pipeline")
        return False

    def visit_For(self, node: ast.For) -> Any:
        if self._pipeline_call(node.iter):
            return self._pipeline_loop(node)
        if isinstance(node.iter, ast.Call) and self.value(node.iter.func) is tile_loop.tiles:
            return self._tiles_loop(node)
        if self._looks_like_a_pipeline(node):
            self.error(node, pipelines.IN_A_FOR)
        return self._plain_loop(node)

    @staticmethod
    def _looks_like_a_pipeline(node: ast.For) -> bool:
        pair = node.target.elts if isinstance(node.target, ast.Tuple) else []
        return isinstance(node.iter, ast.Call) and len(pair) == 2 and all(isinstance(p, ast.Tuple) for p in pair)

    def _plain_loop(self, node: ast.For) -> ast.For:
        node.iter = self.visit(node.iter)
        node.body = self._block(node.body)
        node.orelse = self._block(node.orelse) if node.orelse else []
        return node

    def _pipeline_loop(self, node: ast.For) -> list[ast.stmt]:
        assert isinstance(node.iter, ast.Call)
        self._stays_inside(node)
        nested = any(self._pipeline_call(inner.iter) for statement in node.body for inner in ast.walk(statement)
                     if isinstance(inner, ast.For))
        self._unpacks(node.target, len(node.iter.args))
        targets = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        carried = self._carried(node, targets)
        arrays = ast.copy_location(ast.Tuple(list(node.iter.args), ast.Load()), node.iter)
        if node.iter.keywords or any(isinstance(a, ast.Starred) for a in node.iter.args):
            self.error(node.iter, "a pipeline is called on its arrays by position")
        node.iter = self.call(pipelines.steps, [node.iter.func, arrays, literal_node(int(nested), node.iter),
                                                literal_node(self._groups(node.body), node.iter)], node.iter)
        loop = self._plain_loop(node)
        waits = [ast.copy_location(ast.Assign(
            [ast.Name(name, ast.Store())],
            self.call(mma.wgmma_wait, [ast.Name(name, ast.Load()), literal_node(0, node)], node)), node) for name in carried]
        return [loop, *waits]

    def _unpacks(self, target: ast.expr, arrays: int) -> None:
        """``for (indices), (tiles)``: a pair, with a tile for each array."""
        pair = target.elts if isinstance(target, ast.Tuple) else []
        if len(pair) != 2:
            self.error(target, "a pipeline loop is written `for (indices), (tiles) in pipe(arrays):`, got "
                               f"`for {ast.unparse(target)}`")
        tiles = pair[1]
        if isinstance(tiles, ast.Tuple) and len(tiles.elts) != arrays and not any(isinstance(t, ast.Starred) for t in tiles.elts):
            self.error(target, f"the pipeline is called on {arrays} arrays, but the loop unpacks {len(tiles.elts)} tiles: "
                               f"{ast.unparse(tiles)}")

    def _groups(self, body: list[ast.stmt]) -> int:
        """wgmma calls that every step executes: those under no branch, loop or nested function."""
        plain = [s for s in body if isinstance(s, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr))]
        return sum(isinstance(n, ast.Call) and self.value(n.func) is mma.wgmma for s in plain for n in ast.walk(s))

    def _stays_inside(self, node: ast.For) -> None:
        """`break` and `return` would leave slots that the memory role still fills."""
        def walk(parent: ast.AST, inner_loop: bool) -> None:
            for child in ast.iter_child_nodes(parent):
                if isinstance(child, (ast.FunctionDef, ast.Lambda)):
                    continue
                if isinstance(child, ast.Return) or (isinstance(child, ast.Break) and not inner_loop):
                    word = "return" if isinstance(child, ast.Return) else "break"
                    self.error(child, f"'{word}' leaves the pipeline loop of line {node.lineno}: the memory role would still load "
                                      "the remaining steps; run all steps, or make the grid smaller")
                walk(child, inner_loop or isinstance(child, (ast.For, ast.While)))

        for statement in node.body:
            walk(ast.Module([statement], []), False)
        if node.orelse:
            self.error(node.orelse[0], "a pipeline loop has no 'else'")

    def _carried(self, node: ast.For, targets: set[str]) -> list[str]:
        """Names re-bound in the loop and bound before it: among them the accumulators in flight at its end."""
        inside = {id(n) for statement in node.body for n in ast.walk(statement)}
        result, names = [], self.scopes[-1][1]
        for name, places in names.items():
            here = [p for p in places if id(p) in inside]
            if not here or name in targets:
                continue
            inner_targets = {n.id for s in node.body for f in ast.walk(s) if isinstance(f, ast.For)
                             for n in ast.walk(f.target) if isinstance(n, ast.Name)}
            before = [p for p in places if id(p) not in inside and getattr(p, "lineno", 0) <= node.lineno]
            if before and name not in inner_targets:
                result.append(name)
            elif not before and self._used_after(node, name):
                self.error(here[0], f"'{name}' is born in the pipeline loop of line {node.lineno} and used after it: with no "
                                    "steps it would have no value; bind it before the loop")
        return sorted(result)

    def _used_after(self, loop: ast.For, name: str) -> bool:
        end = loop.end_lineno or loop.lineno
        rebound = [getattr(p, "lineno", 0) for p in self.scopes[-1][1][name] if getattr(p, "lineno", 0) > end]
        return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) and n.lineno > end
                   and not any(line <= n.lineno for line in rebound) for n in ast.walk(self.scopes[-1][0]))

    def _divisor(self, value: ast.expr, setup: list[ast.stmt], node: ast.For) -> ast.expr:
        """A divisor made before the loop."""
        name = self.temporary("by")
        setup.append(ast.Assign([ast.Name(name, ast.Store())], self.call(arith.divisor, [value], node)))
        return ast.Name(name, ast.Load())

    def _tiles_loop(self, node: ast.For) -> list[ast.stmt]:
        assert isinstance(node.iter, ast.Call)
        counts = list(node.iter.args)
        options = {k.arg: k.value for k in node.iter.keywords}
        if set(options) - {"order", "group"} or any(isinstance(c, ast.Starred) for c in counts) or not counts:
            self.error(node, "numpipe.tiles takes the tile counts, order= and group=")
        if isinstance(node.target, ast.Tuple) and len(node.target.elts) != len(counts) and len(counts) > 1:
            self.error(node, f"numpipe.tiles of {len(counts)} counts gives {len(counts)} indices, the loop unpacks "
                             f"{len(node.target.elts)}: {ast.unparse(node.target)}")
        if not isinstance(node.target, ast.Tuple) and len(counts) == 1:
            self.error(node, "numpipe.tiles gives a tuple of indices, for one count too: write "
                             f"`for ({ast.unparse(node.target)},) in numpipe.tiles(…):`")
        order_node, group_node = options.get("order"), options.get("group", ast.Constant(16))
        order = "row" if order_node is None else self.value(order_node)
        names = [self.temporary("count") for _ in counts]
        setup: list[ast.stmt] = [ast.Assign([ast.Name(n, ast.Store())], self.visit(c)) for n, c in zip(names, counts, strict=True)]
        loads: list[ast.expr] = [ast.Name(n, ast.Load()) for n in names]
        t = self.temporary("tile")
        index = ast.Name(t, ast.Load())
        if order is MISSING or isinstance(order, StaticArray):
            if len(counts) != 1 or not isinstance(node.target, ast.Tuple):
                self.error(node, "a host table is walked by `for m, n in numpipe.tiles(rows, order=table)`: one count, a tuple "
                                 "target")
            assert order_node is not None
            columns = literal_node(len(node.target.elts), node)
            decode = self.call(tile_loop.table_row, [self.visit(order_node), index, columns], node)
        elif order == "row" and len(counts) <= 3:
            by = [self._divisor(count, setup, node) for count in loads[1:]]
            decode = self.call((tile_loop.row_1, tile_loop.row_2, tile_loop.row_3)[len(counts) - 1], [index, *by], node)
        elif order == "grouped" and len(counts) == 2:
            group = self.visit(group_node)
            by = [self._divisor(ast.BinOp(group, ast.Mult(), loads[1]), setup, node)]
            decode = self.call(tile_loop.grouped_2, [index, loads[0], group, *by], node)
        else:
            self.error(node, f"numpipe.tiles: order={order!r} with {len(counts)} counts: 'row' takes 1 to 3, 'grouped' takes 2")
        total = loads[0]
        for other in loads[1:]:
            total = ast.BinOp(total, ast.Mult(), other)
        stride, end = self.temporary("stride"), self.temporary("tiles")
        step = [index, ast.Name(stride, ast.Load())]
        # a `range` would cost a 64-bit division; the index moves at the top, so that `continue` works
        setup += [ast.Assign([ast.Name(stride, ast.Store())], self.call(tile_loop.tile_stride, [], node)),
                  ast.Assign([ast.Name(end, ast.Store())], total),
                  ast.Assign([ast.Name(t, ast.Store())], self.call(tile_loop.before_first_tile, [], node))]
        advance = [ast.Assign([ast.Name(t, ast.Store())], self.call(arith.add, list(step), node)),
                   ast.Assign([node.target], decode)]
        test = ast.Compare(self.call(arith.add, list(step), node), [ast.Lt()], [ast.Name(end, ast.Load())])
        loop = ast.copy_location(ast.While(test, [*advance, *self._block(node.body)],
                                           self._block(node.orelse) if node.orelse else []), node)
        for new in (*setup, test, *advance):
            for part in ast.walk(new):
                if not hasattr(part, "lineno"):
                    ast.copy_location(part, node)
        return [*setup, loop]

    # ---- nested functions
    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        if node.decorator_list:
            self.error(node.decorator_list[0], f"nested function '{node.name}': decorators are not supported in a kernel")
        bound = self._nested(node, node.name)
        return ast.copy_location(ast.Assign([ast.copy_location(ast.Name(node.name, ast.Store()), node)], bound), node)

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        returned = ast.copy_location(ast.Return(node.body), node)
        function = ast.copy_location(ast.FunctionDef("lambda_", node.args, [returned], [], None), node)
        return self._nested(function, "lambda_")

    def _nested(self, node: ast.FunctionDef, name: str) -> ast.expr:
        arguments = node.args
        if arguments.defaults or arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
            self.error(node, f"nested function '{name}': plain positional parameters only")
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Nonlocal, ast.Global)):
                self.error(inner, f"'{type(inner).__name__.lower()}' cannot be compiled: captures are by value; return the "
                                  "value instead")
        node.returns = None
        for argument in arguments.args:
            argument.annotation = None
        self.temporaries += 1
        lifted = f"{name}__{self.temporaries}"
        self._body(node)
        own = {n for n, _ in stores(node)}
        used = {n.id for s in node.body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        enclosing = self.local | {CONTEXT}
        captures = sorted(n for n in used - own if n in enclosing)
        self._by_value(node, name, captures)
        unpack: list[ast.stmt] = [ast.Assign([ast.Name(c, ast.Store())], ast.Subscript(
            ast.Name("__env", ast.Load()), ast.Constant(i), ast.Load())) for i, c in enumerate(captures)]
        for statement in unpack:
            for part in ast.walk(statement):
                ast.copy_location(part, node)
        function = ast.FunctionDef(lifted, ast.arguments([], [ast.arg("__env"), *arguments.args], None, [], [], None, []),
                                   [*unpack, *node.body], [], None)
        if hasattr(node, "type_params"):  # Python 3.12
            setattr(function, "type_params", [])  # noqa: B010
        self.out.append(ast.copy_location(function, node))
        self.binders.append(lifted)
        captured: list[ast.expr] = [ast.Name(c, ast.Load()) for c in captures] or [ast.Constant(0)]
        call = ast.Call(ast.Name(f"__np_bind_{lifted}", ast.Load()), [ast.Tuple(captured, ast.Load())], [])
        for part in ast.walk(call):
            ast.copy_location(part, node)
        return call

    def _by_value(self, node: ast.AST, name: str, captures: list[str]) -> None:
        line = getattr(node, "lineno", 0)
        if name in captures and name != "lambda_":
            self.error(node, f"nested function '{name}' calls itself: recursion cannot be compiled")
        for _, names in self.scopes:
            for capture in captures:
                for place in names.get(capture, []):
                    if getattr(place, "lineno", 0) > line:
                        self.error(place, f"'{capture}' is re-bound after '{name}' of line {line} captured it: captures are by "
                                          "value in a kernel; use another name")
