"""Rewriting of arithmetic: operators and builtins on run-time values become operations of `arith`,
the same in the simulator and on the GPU.

A constant operand stays a literal, which the operation converts to the type of its other operands;
so do arguments of operations (shapes, sizes). A constant becomes a run-time value, an int32 or a
float32, if it is bound to a name that is bound again, is an arm of a conditional expression, or is
the result of a nested function.
"""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
from collections import Counter
from typing import Any

import numpy as np

from ...core import arith, numbers
from ...core.op import BY_METHOD, BY_NUMPY, Op

# they register the meaning of NumPy's functions for tiles
from ...language.tiles import (  # noqa: F401
    elementwise,
    mathematics,
    nan_checks,
    reduce,
    scan,
)
from ...plan import context
from .constants import MISSING, OPERATIONS, lookup, stores
from .nodes import assign, load, located, operation, tuple_of, walk
from .rewriter import NOT_MINE, Rewriter

_CASTS: dict[Any, str] = {builtins.int: "int32", builtins.float: "float32", builtins.bool: "bool"}
# the operation, and the minimum and maximum number of its arguments
_BUILTINS: dict[Any, tuple[Op, int, int | None]] = {
    builtins.abs: (arith.absolute, 1, 1),
    builtins.round: (numbers.rounded, 1, 1),
    builtins.len: (numbers.length, 1, 1),
    builtins.pow: (arith.power, 2, 2),
    builtins.divmod: (arith.quotient_remainder, 2, 2),
    builtins.range: (numbers.counting, 1, 3),
    builtins.min: (numbers.least, 1, None),
    builtins.max: (numbers.greatest, 1, None),
    **dict.fromkeys(_CASTS, (numbers.cast, 1, 1)),
}


def _constant(node: ast.AST, *kinds: type) -> bool:
    """Return whether a node is a literal number of one of these types."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) in kinds


class Arithmetic(Rewriter):
    """Operators, comparisons, and the builtins that compute."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.folded: set[ast.AST] = set()
        """Assignments of constants whose names are literals wherever they are used."""

    def _compute(self, operation: Op, args: list[ast.expr]) -> ast.Call:
        """Return a call that passes an operation which of its operands are float literals: Numba
        would type them as float64."""
        literals = _float_literals(args)
        args = [self._settled(arg, floats=isinstance(arg, ast.Tuple)) for arg in args]
        return self.call(operation, [*args, *([literals] if literals else [])])

    # ---- operators
    def binary_operator(self, node: ast.BinOp) -> Any:
        if isinstance(node.op, ast.MatMult):
            left, right = ast.unparse(node.left), ast.unparse(node.right)
            self.error(
                f"'{left} @ {right}': a product of tiles says where it adds to, and its right "
                f"operand is in shared memory; fix: acc = numpipe.wgmma(acc, {left}, {right}), "
                "with acc = numpipe.zeros((rows, columns), np.float32) before",
            )
        # of specs, for example
        if isinstance(node.left, ast.Tuple) and isinstance(count := self.value(node.right), int):
            parts = [copy.deepcopy(part) for _ in range(count) for part in node.left.elts]
            return self.visit(tuple_of(parts, node))
        self.generic_visit(node)
        return self._compute(OPERATIONS[type(node.op)], [node.left, node.right])

    def unary_operator(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        operation = OPERATIONS.get(type(node.op))
        return (
            node
            if operation is None or _constant(node, int, float)
            else self._compute(operation, [node.operand])
        )

    def in_place(self, node: ast.AugAssign) -> Any:
        """Rewrite ``x += y`` as ``x = x + y``: no value of a kernel changes in place."""
        if not isinstance(node.target, ast.Name):
            return self.generic_visit(node)
        value = ast.BinOp(located(load(node.target.id), node.target), node.op, node.value)
        return self.visit(located(ast.Assign([node.target], value), node))

    def comparison(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if not all(type(op) in OPERATIONS for op in node.ops):
            return node
        parts: list[ast.expr] = []
        left = node.left
        for position, (op, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
            between = position < len(node.ops) - 1
            if between and not self._repeatable(right):
                self.error(
                    f"'{ast.unparse(right)}' calls a function between two comparisons; fix: "
                    "assign its value to a name first",
                    right,
                )
            parts.append(self._compute(OPERATIONS[type(op)], [left, right]))
            left = copy.deepcopy(right)
        return (
            parts[0] if len(parts) == 1 else ast.copy_location(ast.BoolOp(ast.And(), parts), node)
        )

    def _repeatable(self, node: ast.expr) -> bool:
        """Return whether an expression has no side effects, so that it may be evaluated twice."""
        calls = [part for part in walk(node) if isinstance(part, ast.Call)]
        functions = [operation(c) or self.value(c.func) for c in calls]
        return all(
            isinstance(f, Op)
            and f.__module__ in (arith.__name__, numbers.__name__, context.__name__)
            for f in functions
        )

    # ---- builtins and NumPy's types
    def builtin(self, node: ast.Call, function: Any) -> Any:
        known = lookup(_BUILTINS, function)
        if (
            known is None
            and isinstance(function, type)
            and issubclass(function, (np.number, np.bool_))
        ):
            known = numbers.cast, 1, 1
        if known is None:
            return NOT_MINE
        name = ast.unparse(node.func)
        if node.keywords:
            self.error(
                f"{name}(…) takes no keyword arguments in a kernel, got {node.keywords[0].arg}=",
            )
        operation, least, most = known
        given, most = len(node.args), len(node.args) if most is None else most
        if not least <= given <= most:
            count = f"{least}" if least == most else f"{least} to {most}"
            self.error(
                f"{name}(…) takes {count} argument{'s' * (most > 1)} in a kernel, got {given}"
            )
        args = [self.visit(a) for a in node.args]
        if operation is numbers.least or operation is numbers.greatest:
            args.insert(0, _float_literals(args))
        elif operation is numbers.cast:
            args.append(_CASTS.get(function) or np.dtype(function).name)
        elif operation is not numbers.counting:
            return self._compute(operation, args)
        return self.call(operation, args)

    def meant(self, node: ast.Call, function: Any) -> Op | None:
        """Return the operation that a call of NumPy, or of a method of a kernel's value, means;
        None for other calls."""
        if function is MISSING:
            return BY_METHOD.get(node.func.attr) if isinstance(node.func, ast.Attribute) else None
        meant: Op | None = lookup(BY_NUMPY, function)
        return meant

    def elementwise(self, node: ast.Call, function: Any) -> Any:
        """Rewrite a call of a function of tiles and numbers: of NumPy, or of numpipe with a
        parameter `literals`."""
        operation = self.meant(node, function) or function
        if not isinstance(operation, Op) or operation.context:
            return NOT_MINE
        name, takes = ast.unparse(node.func), list(inspect.signature(operation).parameters)
        if operation is function and "literals" not in takes:
            return NOT_MINE
        takes.remove("literals") if "literals" in takes else None
        places = {keyword.arg: keyword.value for keyword in node.keywords}
        args = [
            *node.args,
            *(
                places.pop(parameter)
                for parameter in takes[len(node.args) :]
                if parameter in places
            ),
        ]
        if places or len(args) != len(takes) or any(isinstance(arg, ast.Starred) for arg in args):
            self.error(
                f"{name} takes {len(takes)} argument{'s' * (len(takes) > 1)} in a kernel, "
                f"({', '.join(takes)}), got {ast.unparse(node)}",
            )
        return self._compute(operation, [self.visit(arg) for arg in args])

    # ---- constants that become run-time values
    def _settled(self, node: ast.expr, *, ints: bool = False, floats: bool = True) -> ast.expr:
        """Make run-time values of a node's constants, including those in tuples; ints only on
        request, since Numba supports literal ints."""
        if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
            node.elts = [self._settled(part, ints=ints) for part in node.elts]
            return node
        if (ints and _constant(node, int)) or (floats and _constant(node, float)):
            mask = [1] if _constant(node, float) else []
            return self.call(numbers.number, [node, *mask], node)
        return node

    def tuple_of(self, node: ast.Tuple) -> Any:
        self.generic_visit(node)
        return self._settled(node)

    def subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        if isinstance(node.value, ast.Tuple) and not _constant(node.slice, int):
            node.value = self._settled(node.value, ints=True)
        return node

    def choice(self, node: ast.IfExp) -> Any:
        self.generic_visit(node)
        node.body = self._settled(node.body, ints=True)
        node.orelse = self._settled(node.orelse, ints=True)
        return node

    def condition(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        node.values = [self._settled(part, ints=True) for part in node.values]
        return node

    def returned(self, node: ast.Return) -> Any:
        self.generic_visit(node)
        if node.value is not None:
            node.value = self._settled(node.value, ints=True)
        return node

    def assignment(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        if isinstance(target := node.targets[0], ast.Name) and target.id in self.constants.known:
            self.folded.add(node)
        if self.unit.params.check_nan and isinstance(target, ast.Subscript):
            name = f"{ast.unparse(target.value)}[…]"
            node.value = self.call(nan_checks.no_nan, [name, node.value])
        return node

    def settle_bound(self, node: ast.FunctionDef) -> None:
        """Make run-time values of the constants that a rewritten function binds to names."""
        bound = Counter(name for name, _ in stores(node))  # in the branches that remain
        for statement in walk(node):
            if isinstance(statement, ast.Assign) and statement not in self.folded:
                for target in statement.targets:
                    statement.value = self._bound(target, statement.value, bound)
        again = [a.arg for a in node.args.args if bound[a.arg] > 1]
        node.body[:0] = [
            located(assign(name, self.call(numbers.number, [load(name)], node)), node)
            for name in again
        ]

    def _bound(self, target: ast.expr, value: ast.expr, bound: Counter[str]) -> ast.expr:
        """Return what is bound to a target: a constant becomes a run-time value if the name is
        bound again."""
        if isinstance(target, ast.Name):
            return self._settled(value, ints=bound[target.id] > 1)
        if (
            isinstance(target, ast.Tuple)
            and isinstance(value, ast.Tuple)
            and len(target.elts) == len(value.elts)
        ):
            value.elts = [
                self._bound(t, v, bound) for t, v in zip(target.elts, value.elts, strict=True)
            ]
        return value


def _float_literals(args: list[ast.expr]) -> int:
    """Return a mask whose bit i says that argument i is a float literal."""
    return sum(1 << i for i, arg in enumerate(args) if _constant(arg, float))
