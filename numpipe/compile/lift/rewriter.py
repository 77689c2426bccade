"""What the parts of the AST pass share: scopes, names, constants, errors at the user's line, and the dispatcher of its rules."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import numpy as np

from ...core.facts import Facts
from ...core.op import Op
from ...diagnostics.errors import CompileError
from ...plan import specs
from .fold import MISSING, Constants, StaticArray, is_literal, literal_node, named_tuple, stores
from .nodes import load, located
from .positions import Source
from .session import Session
from .subset import refusal

CONTEXT = "__np"
NOT_MINE: Any = object()
"""what a rule gives for a node that it leaves to the rules behind it"""
Rule = Callable[[Any, Any], Any]
"""(pass, node) -> what stands in the node's place, as of `ast.NodeTransformer.visit`, or NOT_MINE"""
CallRule = Callable[[Any, Any, Any], Any]
"""(pass, call, the function that it calls, or MISSING) -> the same"""


def with_records(value: Any) -> bool:
    """Whether a constant is an `Element` or a transform, or a tuple that holds one and literals."""
    parts = value if type(value) is tuple else (value,)
    return any(type(p) in specs.RECORDS for p in parts) and all(type(p) in specs.RECORDS or is_literal(p) for p in parts)


class Known(ast.NodeTransformer):
    """Goes through a function by rules, and knows on the way which names and branches are constant.

    A pass is a class whose methods are rules. Which there are, and in which order they are asked, stands in its three tables.
    """

    of_every_node: ClassVar[tuple[Rule, ...]] = ()
    of_type: ClassVar[dict[type[ast.AST], tuple[Rule, ...]]] = {}
    of_calls: ClassVar[tuple[CallRule, ...]] = ()

    def __init__(self, source: Source, constants: Constants) -> None:
        self.source, self.constants = source, constants
        self.tree: ast.FunctionDef = source.parse()  # type: ignore[assignment]  # `read` has looked at it
        self.scopes: list[tuple[ast.FunctionDef | ast.Lambda, dict[str, list[ast.AST]]]] = []

    @property
    def local(self) -> set[str]:
        return {name for _, names in self.scopes for name in names}

    def value(self, node: ast.AST) -> Any:
        return self.constants.evaluate(node, self.local)

    def visit(self, node: ast.AST) -> Any:
        """What the first rule that a node belongs to makes of it; else the node, with its parts visited."""
        for rule in self.of_every_node:
            if (new := rule(self, node)) is not NOT_MINE:
                return new
        return self.by_type(node)

    def by_type(self, node: ast.AST) -> Any:
        for rule in self.of_type.get(type(node), ()):
            if (new := rule(self, node)) is not NOT_MINE:
                return new
        return self.generic_visit(node)

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
        return result or [ast.copy_location(ast.Pass(), statement) for statement in body[:1]]

    def known_choice(self, node: ast.IfExp) -> Any:
        test = self.value(node.test)
        return NOT_MINE if test is MISSING else self.visit(node.body if test else node.orelse)

    def known_names(self, node: ast.Assign) -> Any:
        """Names of constants are noted; of one that is no literal nothing is left at run time."""
        target = node.targets[0]
        if len(node.targets) == 1 and isinstance(target, ast.Name):
            if self._known(target, self.value(node.value)) and not is_literal(self.constants.known[target.id]):
                return None
        elif len(node.targets) == 1 and isinstance(target, ast.Tuple):
            value = self.value(node.value)
            parts = ([self.value(part) for part in node.value.elts] if isinstance(node.value, ast.Tuple) else
                     value if isinstance(value, tuple) else ())
            if len(parts) == len(target.elts):
                for name, part in zip(target.elts, parts, strict=True):
                    self._known(name, part)
        return NOT_MINE

    def _known(self, target: ast.expr, value: Any) -> bool:
        """Note what a name stands for, if that is a constant and the name is bound nowhere else."""
        if not isinstance(target, ast.Name) or value is MISSING or isinstance(value, StaticArray):
            return False
        once = len(self.scopes[-1][1].get(target.id, [])) == 1
        if once:
            self.constants.known[target.id] = value
        return once

    def known_branch(self, node: ast.If) -> Any:
        test = self.value(node.test)
        if test is MISSING:
            return NOT_MINE
        return self._block(node.body if test else node.orelse)


class Rewriter(Known):
    """Folds constants, prunes branches on them and refuses what a kernel cannot hold; the base of the other parts of the pass."""

    lifts_kernel = False
    """whether this is the kernel function, not one that it calls"""

    def __init__(self, source: Source, constants: Constants, session: Session) -> None:
        super().__init__(source, constants)
        self.session, self.unit = session, session.unit
        self.out: list[ast.FunctionDef] = []
        self.added: dict[str, Any] = {}
        self.binders: dict[str, Facts] = {}
        """functions lifted out of this one, by their new names"""
        self.facts: dict[int, Facts] = {}
        """of the nested functions, by id of their nodes"""
        self.temporaries = 0

    # ---- helpers
    def error(self, node: ast.AST, message: str) -> NoReturn:
        raise CompileError(self.source.position(node).stamp(f"kernel {self.unit.kernel}: {message}"))

    def named(self, name: str, value: Any, where: ast.AST) -> ast.Name:
        """A reference to an object the pass adds to the kernel's namespace."""
        self.added[f"__np_{name}"] = value
        return located(load(f"__np_{name}"), where)

    def call(self, operation: Op[..., Any], args: list[ast.expr], where: ast.AST) -> ast.Call:
        """A call of an operation, with the hidden arguments that it asks for."""
        return self.call_with(self.hidden(operation, where), operation, args, where)

    def call_with(self, hidden: list[ast.expr], operation: Op[..., Any], args: list[ast.expr], where: ast.AST) -> ast.Call:
        function = self.named(operation.__name__, operation, where)  # type: ignore[attr-defined]
        call = ast.copy_location(ast.Call(function, [*hidden, *args], []), where)
        call.operation = operation  # type: ignore[attr-defined]
        return call

    def hidden(self, operation: Op[..., Any], where: Any) -> list[ast.expr]:
        """The kernel's context, and the place of a call, as far as an operation asks for them."""
        context: list[ast.expr] = [self.context_name(where)] if operation.context else []
        return context + ([literal_node(self.session.site(self.source, where), where)] if operation.site else [])

    def context_name(self, where: ast.AST) -> ast.Name:
        return located(load(CONTEXT), where)

    def temporary(self, what: str) -> str:
        self.temporaries += 1
        return f"__np_{what}_{self.temporaries}"

    def lift_body(self, node: ast.FunctionDef) -> None:
        """Rewrite the body of a function, in place."""
        raise NotImplementedError

    # ---- constants
    def constant(self, node: ast.AST) -> Any:
        """An expression whose value is known: a literal."""
        if isinstance(node, ast.expr) and not isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            value = self.value(node)
            if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
                return ast.copy_location(ast.Constant(np.dtype(value).name), node)  # a dtype travels as its name
            if value is not MISSING and is_literal(value) and not isinstance(node, ast.Constant):
                return literal_node(value, node)
            if named_tuple(type(value)) and isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and is_literal(tuple(value)):
                make = self.named(type(value).__name__, type(value), node)
                return self.visit(ast.copy_location(ast.Call(make, [literal_node(v, node) for v in value], []), node))
            if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and with_records(value):
                return self._records(value, node)
            if value is MISSING and node in self.constants.failed:
                error = self.constants.failed[node]
                self.error(node, f"{ast.unparse(node)}: {type(error).__name__}: {error}")
        return NOT_MINE

    def refused(self, node: ast.AST) -> Any:
        """What no kernel can hold."""
        why = refusal(node)
        if why is not None:
            self.error(node, why)
        return NOT_MINE

    def _records(self, value: Any, where: ast.AST) -> ast.expr:
        """A constant that holds an `Element` or a transform, e.g. a block_shape of a Static: made again in the kernel."""
        if isinstance(value, tuple):
            return ast.copy_location(ast.Tuple([self._records(part, where) for part in value], ast.Load()), where)
        if type(value) in specs.RECORDS:
            field, = dataclasses.fields(value)
            return self.call(specs.RECORDS[type(value)], [literal_node(getattr(value, field.name), where)], where)
        return literal_node(value, where)

    def name(self, node: ast.Name) -> Any:
        known = isinstance(node.ctx, ast.Store) or node.id.startswith("__np") or node.id in self.local
        if not known and self.constants.name(node.id, self.local) is MISSING:
            self.error(node, f"name '{node.id}' is not defined")
        value = self.constants.known.get(node.id, MISSING)
        if isinstance(node.ctx, ast.Load) and value is not MISSING and not isinstance(value, StaticArray):
            return self.named(f"known_{node.id}", value, node)  # a Static, a local bound to a function: no value at run time
        return node

    def missing_attribute(self, node: ast.Attribute) -> Any:
        base = self.value(node.value)
        if base is not MISSING and not isinstance(base, StaticArray) and not hasattr(base, node.attr):
            self.error(node, f"'{ast.unparse(node.value)}' ({type(base).__name__}) has no attribute '{node.attr}'")
        return NOT_MINE

    def annotated(self, node: ast.AnnAssign) -> Any:
        """Annotations say nothing here: types follow from the values."""
        if node.value is None:
            return None
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def known_operands(self, node: ast.BoolOp) -> Any:
        """Known operands that decide nothing are dropped, those behind one that decides too."""
        kept: list[ast.expr] = []
        for part in node.values:
            value = self.value(part)
            if value is MISSING or bool(value) is isinstance(node.op, ast.Or) or part is node.values[-1]:
                kept.append(part)
            if value is not MISSING and bool(value) is isinstance(node.op, ast.Or):
                break
        node.values = kept
        return NOT_MINE if len(kept) > 1 else self.visit(kept[0])

    def branch(self, node: ast.If) -> ast.If:
        node.test = self.visit(node.test)
        node.body, node.orelse = self._block(node.body), self._block(node.orelse)
        return node
