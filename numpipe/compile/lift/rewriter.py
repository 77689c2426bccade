"""The base class of the parts of the AST pass: scopes, names, constants, errors at the user's line,
and the dispatcher of the rules."""

from __future__ import annotations

import ast
import dataclasses
import os
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NoReturn

import numpy as np

from ...core.functions import Facts
from ...core.op import Op
from ...diagnostics.errors import CompileError, Position, SpecError
from ...plan import specs
from ...plan.unit import Unit
from .constants import (
    MISSING,
    Constants,
    StaticArray,
    is_literal,
    literal_node,
    named_tuple,
    stores,
    truth,
)
from .nodes import Block, load, located, tuple_of, walk
from .positions import Positions, Source
from .subset import refusal

CONTEXT = "__np"
NOT_MINE: Any = object()
"""Returned by a rule that leaves a node to later rules."""
Rule = Callable[[Any, Any], Any]
"""(pass, node) -> the node's replacement, as `ast.NodeTransformer.visit` returns it, or NOT_MINE"""
CallRule = Callable[[Any, Any, Any], Any]
"""(pass, call, the function that it calls or MISSING) -> the same"""


class Session:
    """The rewriting of one kernel for one set of types and Statics: the state that its function and
    every `@numpipe.function` it reaches share."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.positions = Positions()
        self.sources: list[Source] = []
        self.texts: list[str] = []
        self.functions: dict = {}
        """rewritten functions, by function and known arguments"""
        self.calls: dict = {}
        """the position of the first call of each function"""
        self.active: list = []
        """functions that are being rewritten, outermost first"""
        self.sites: dict[str, Position] = {}
        self.tokens: dict[str, int] = {}
        """order tokens, with their numbers"""

    def site(self, source: Source, node: ast.Call) -> str:
        """Return the place of a pipeline in the source, which identifies its ring: a line, and as
        much more as makes it unique."""
        position = source.position(node)
        line = f"{os.path.basename(source.filename)}:{node.lineno}"
        column = f":{node.col_offset + 1}"
        spellings = (line, line + column, f"{source.filename}:{node.lineno}{column}")
        site = next(s for s in spellings if self.sites.get(s, position) == position)
        self.sites[site] = position
        return site


class Known(ast.NodeTransformer):
    """A pass over a function that knows which names and branches are constant.

    The methods of a pass are rules. Its three tables list the rules in the order in which they are
    tried.
    """

    of_every_node: ClassVar[tuple[Rule, ...]] = ()
    of_type: ClassVar[dict[type[ast.AST], tuple[Rule, ...]]] = {}
    of_calls: ClassVar[tuple[CallRule, ...]] = ()

    def __init__(self, source: Source, constants: Constants) -> None:
        self.source, self.constants = source, constants
        self.tree: ast.FunctionDef = source.parse()  # type: ignore[assignment]  # `read` has looked at it
        self.scopes: list[tuple[ast.FunctionDef | ast.Lambda, dict[str, list[ast.AST]]]] = []
        self.once: dict[ast.AST, bool] = {}
        """of the names that a round of an unrolled loop binds: whether that is the only place"""

    @property
    def local(self) -> set[str]:
        return {name for _, names in self.scopes for name in names}

    def value(self, node: ast.AST) -> Any:
        return self.constants.evaluate(node, self.local)

    def visit(self, node: ast.AST) -> Any:
        """Apply the first rule that accepts a node; otherwise return the node with its parts
        visited."""
        for rule in self.of_every_node:
            if (new := rule(self, node)) is not NOT_MINE:
                return new
        return self.by_type(node)

    def by_type(self, node: ast.AST) -> Any:
        for rule in self.of_type.get(type(node), ()):
            if (new := rule(self, node)) is not NOT_MINE:
                return new
        visited: Any = self.generic_visit(node)
        # a loop or a branch that held nothing but what a constant left out
        if getattr(visited, "body", None) == []:
            visited.body.append(ast.copy_location(ast.Pass(), node))
        return visited

    def called(self, node: ast.Call) -> Any:
        function = self.value(node.func)
        for rule in self.of_calls:
            if (new := rule(self, node, function)) is not NOT_MINE:
                return new
        return NOT_MINE

    def rewrite_body(self, node: ast.FunctionDef) -> None:
        """Apply the rules to a function's statements, with its names in scope."""
        names: dict[str, list[ast.AST]] = {}
        for name, where in stores(node):
            names.setdefault(name, []).append(where)
        outer = self.constants.known
        if self.scopes:  # names of a nested function hide those outside
            self.constants.known = {
                name: value for name, value in outer.items() if name not in names
            }
        self.scopes.append((node, names))
        node.body = self._block(node.body)
        self.scopes.pop()
        self.constants.known = outer

    def _block(self, body: Block) -> Block:
        result: Block = []
        for statement in body:
            new = self.visit(statement)
            result.extend(new if isinstance(new, list) else [] if new is None else [new])
        return result or [ast.copy_location(ast.Pass(), statement) for statement in body[:1]]

    def known_choice(self, node: ast.IfExp) -> Any:
        test = truth(self.value(node.test))
        return NOT_MINE if test is MISSING else self.visit(node.body if test else node.orelse)

    def known_names(self, node: ast.Assign) -> Any:
        """Record the names of constants; drop an assignment whose constant is not a literal."""
        target, value = node.targets[0], self.value(node.value)
        for part in walk(*node.targets):
            if part in self.once:  # it may have been a constant in the round before
                self.constants.known.pop(part.id, None)  # type: ignore[attr-defined]
        if len(node.targets) == 1:
            if self._known(target, value):
                return NOT_MINE if is_literal(value) else None
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for name, part in zip(target.elts, node.value.elts, strict=False):
                    self._known(name, self.value(part))
        return NOT_MINE

    def _known(self, target: ast.expr, value: Any) -> bool:
        """Record the constants that names stand for, if they are bound nowhere else; return whether
        all were recorded."""
        if isinstance(target, ast.Tuple) and isinstance(value, tuple):
            pairs = zip(target.elts, value, strict=False)
            return len(target.elts) == len(value) and all([self._known(*pair) for pair in pairs])
        if not isinstance(target, ast.Name) or value is MISSING or isinstance(value, StaticArray):
            return False
        once = self.once.get(target, len(self.scopes[-1][1].get(target.id, [])) == 1)
        if once:
            self.constants.known[target.id] = value
        return once

    def known_branch(self, node: ast.If) -> Any:
        test = truth(self.value(node.test))
        if test is MISSING:
            return NOT_MINE
        return self._block(node.body if test else node.orelse)


class Rewriter(Known):
    """A pass that folds constants, prunes branches on them and rejects what a kernel cannot
    contain; the base of all other parts."""

    lifts_kernel = False
    """whether the function is the kernel's own, not one that it calls"""

    def __init__(self, source: Source, constants: Constants, session: Session) -> None:
        super().__init__(source, constants)
        self.session, self.unit = session, session.unit
        self.out: list[ast.FunctionDef] = []
        self.added: dict[str, Any] = {}
        self.binders: dict[str, Facts] = {}
        """functions lifted out of this one, by their new names"""
        self.facts: dict[int, Facts] = {}
        """facts of the nested functions, by id of their nodes"""
        self.temporaries = 0
        self.node: ast.AST = self.tree
        """the node that is being rewritten, whose position new nodes get"""

    # ---- helpers
    def visit(self, node: ast.AST) -> Any:
        outer, self.node = self.node, node
        try:
            return super().visit(node)
        except SpecError as error:
            if f"kernel {self.unit.kernel}" in str(error):  # it says where already
                raise
            self.error(str(error), node, SpecError)
        finally:
            self.node = outer

    def error(
        self, message: str, node: Any = None, kind: type[CompileError | SpecError] = CompileError
    ) -> NoReturn:
        """Raise an error at the user's line of `node`, by default the one that is being
        rewritten."""
        place = self.source.position(node or self.node)
        raise kind(place.stamp(f"kernel {self.unit.kernel}: {message}")) from None

    def named(self, name: str, value: Any, where: ast.AST) -> ast.Name:
        """Return a reference to an object that the pass adds to the kernel's namespace."""
        self.added[f"__np_{name}"] = value
        return located(load(f"__np_{name}"), where)

    def call(self, operation: Op, args: Iterable = (), where: Any = None) -> ast.Call:
        """Return a call of an operation on nodes and constants, with the hidden arguments that the
        operation asks for: the context, its place. It gets the position of `where`, by default of
        the node that is being rewritten."""
        where = where or self.node
        given: list[ast.expr] = [self.context_name(where)] if operation.context else []
        if operation.site:  # before `args`, whose pipelines may be of the same line
            given.append(literal_node(self.session.site(self.source, where), where))
        function = self.named(operation.__name__, operation, where)  # type: ignore[attr-defined]
        given += (
            each if isinstance(each, ast.expr) else literal_node(each, where) for each in args
        )
        call = ast.copy_location(ast.Call(function, given, []), where)
        call.operation = operation  # type: ignore[attr-defined]
        return call

    def statement(self, operation: Op, args: Iterable = (), where: Any = None) -> ast.Expr:
        """Return a `call` as a statement."""
        call = self.call(operation, args, where)
        return ast.copy_location(ast.Expr(call), call)

    def callee(self, node: Any) -> Any:
        """Return the function that a node calls, MISSING if it is not known, or None for a node
        that is not a call."""
        return self.value(node.func) if isinstance(node, ast.Call) else None

    def context_name(self, where: ast.AST) -> ast.Name:
        return located(load(CONTEXT), where)

    def temporary(self, what: str) -> str:
        self.temporaries += 1
        return f"__np_{what}_{self.temporaries}"

    # ---- constants
    def constant(self, node: ast.AST) -> Any:
        """Replace an expression with a literal if its value is known."""
        if isinstance(node, ast.expr) and not isinstance(
            getattr(node, "ctx", None), (ast.Store, ast.Del)
        ):
            value = self.value(node)
            if isinstance(value, np.dtype) or (
                isinstance(value, type) and issubclass(value, np.generic)
            ):
                # a dtype travels as its name
                return ast.copy_location(ast.Constant(np.dtype(value).name), node)
            if value is not MISSING and is_literal(value) and not isinstance(node, ast.Constant):
                return literal_node(value, node)
            named = isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))
            if named and named_tuple(type(value)) and is_literal(tuple(value)):
                make = self.named(type(value).__name__, type(value), node)
                return self.visit(
                    ast.copy_location(
                        ast.Call(make, [literal_node(v, node) for v in value], []), node
                    )
                )
            parts = value if type(value) is tuple else (value,)
            if (
                named
                and any(type(p) in specs.RECORDS for p in parts)
                and all(type(p) in specs.RECORDS or is_literal(p) for p in parts)
            ):
                return self._records(value, node)
            if value is MISSING and node in self.constants.failed:
                error = self.constants.failed[node]
                self.error(f"{ast.unparse(node)}: {type(error).__name__}: {error}")
        return NOT_MINE

    def refused(self, node: ast.AST) -> Any:
        """Reject what no kernel can contain."""
        if (why := refusal(node)) is not None:
            self.error(why)
        return NOT_MINE

    def _records(self, value: Any, where: ast.AST) -> ast.expr:
        """Build a constant that holds an `Element` or a transform, e.g. a block_shape of a Static,
        again in the kernel."""
        if isinstance(value, tuple):
            return tuple_of([self._records(part, where) for part in value], where)
        if type(value) in specs.RECORDS:
            (field,) = dataclasses.fields(value)
            return self.call(specs.RECORDS[type(value)], [getattr(value, field.name)], where)
        return literal_node(value, where)

    def name(self, node: ast.Name) -> Any:
        known = (
            isinstance(node.ctx, ast.Store) or node.id.startswith("__np") or node.id in self.local
        )
        if not known and self.constants.name(node.id, self.local) is MISSING:
            self.error(f"name '{node.id}' is not defined", node)
        value = self.constants.known.get(node.id, MISSING)
        if (
            isinstance(node.ctx, ast.Load)
            and value is not MISSING
            and not isinstance(value, StaticArray)
        ):
            # a Static, or a local bound to a function, has no value at run time
            return self.named(f"known_{node.id}", value, node)
        return node

    def missing_attribute(self, node: ast.Attribute) -> Any:
        base = self.value(node.value)
        if (
            base is not MISSING
            and not isinstance(base, StaticArray)
            and not hasattr(base, node.attr)
        ):
            self.error(
                f"'{ast.unparse(node.value)}' ({type(base).__name__}) has no attribute "
                f"'{node.attr}'",
                node,
            )
        return NOT_MINE

    def annotated(self, node: ast.AnnAssign) -> Any:
        """Drop an annotation: types follow from the values."""
        if node.value is None:
            return None
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def known_operands(self, node: ast.BoolOp) -> Any:
        """Shorten ``and`` and ``or``: drop constants that do not decide the result, and all
        operands after one that does."""
        kept: list[ast.expr] = []
        for part in node.values:
            value = self.value(part)
            decides = value is not MISSING and bool(value) is isinstance(node.op, ast.Or)
            if value is MISSING or decides or part is node.values[-1]:
                kept.append(part)
            if decides:
                break
        node.values = kept
        return NOT_MINE if len(kept) > 1 else self.visit(kept[0])
