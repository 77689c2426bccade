"""Arithmetic, rewritten: operators and builtins on run-time values become the operations of `arith`, the same in both executions.

Constants that take part in an operation stay literals, which the operation gives the type of its other operands; so do arguments
of operations (shapes, sizes). A constant that becomes a run-time value is made an int32 or a float32: one bound to a name that is
bound again, an arm of a choice, a result of a nested function.
"""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
from typing import Any

import numpy as np

from ...core import arith, numbers
from ...core.op import BY_METHOD, BY_NUMPY, Op
from ...language.tiles import elementwise, mathematics, reduce, scans  # noqa: F401 - they say what of NumPy means them
from ...plan import context
from .fold import MISSING, OPERATIONS, literal_node, stores
from .nodes import assign, load, located, operation, walk
from .rewriter import NOT_MINE, Rewriter

_BUILTINS: dict[Any, tuple[Op[..., Any], int, int]] = {  # the operation, how many arguments it takes
    builtins.abs: (arith.absolute, 1, 1), builtins.round: (numbers.rounded, 1, 1), builtins.len: (numbers.length, 1, 1),
    builtins.pow: (arith.power, 2, 2), builtins.divmod: (arith.quotient_remainder, 2, 2), builtins.range: (numbers.counting, 1, 3),
}
_EXTREMES: dict[Any, Op[..., Any]] = {builtins.min: numbers.least, builtins.max: numbers.greatest}
_CASTS: dict[Any, str] = {builtins.int: "int32", builtins.float: "float32", builtins.bool: "bool"}


def _constant(node: ast.AST, *kinds: type) -> bool:
    """Whether a node is a literal number of one of these types."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) in kinds


class Arithmetic(Rewriter):
    """Operators, comparisons and the builtins that compute."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.folded: set[ast.AST] = set()
        """assignments of constants whose names are literals wherever they are used"""

    def _compute(self, operation: Op[..., Any], args: list[ast.expr], where: ast.AST) -> ast.Call:
        """A call of an operation, told which of its operands are float literals: Numba would take them for float64."""
        literals = _float_literals(args)
        args = [self._settled(arg, floats=isinstance(arg, ast.Tuple)) for arg in args]
        return self.call(operation, [*args, *([literal_node(literals, where)] if literals else [])], where)

    # ---- operators
    def binary_operator(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        operation = OPERATIONS.get(type(node.op))
        return node if operation is None else self._compute(operation, [node.left, node.right], node)

    def unary_operator(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        operation = OPERATIONS.get(type(node.op))
        return node if operation is None or _constant(node, int, float) else self._compute(operation, [node.operand], node)

    def in_place(self, node: ast.AugAssign) -> Any:
        """``x += y`` is ``x = x + y``: no value of a kernel changes in place."""
        if not isinstance(node.target, ast.Name) or type(node.op) not in OPERATIONS:
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
                self.error(right, f"'{ast.unparse(right)}' calls a function between two comparisons: bind its value to a name "
                                  "first")
            parts.append(self._compute(OPERATIONS[type(op)], [left, right], node))
            left = copy.deepcopy(right)
        return parts[0] if len(parts) == 1 else ast.copy_location(ast.BoolOp(ast.And(), parts), node)

    def _repeatable(self, node: ast.expr) -> bool:
        """Whether evaluating an expression twice is evaluating it once: it only computes."""
        calls = [part for part in walk(node) if isinstance(part, ast.Call)]
        functions = [operation(c) or self.value(c.func) for c in calls]
        return all(isinstance(f, Op) and f.__module__ in (arith.__name__, numbers.__name__, context.__name__) for f in functions)

    # ---- builtins and NumPy's types
    def builtin(self, node: ast.Call, function: Any) -> Any:
        try:
            known = function in _BUILTINS or function in _EXTREMES or function in _CASTS or (
                isinstance(function, type) and issubclass(function, (np.number, np.bool_)))
        except TypeError:
            return NOT_MINE
        if not known:
            return NOT_MINE
        name = ast.unparse(node.func)
        if node.keywords:
            self.error(node, f"{name}(…) takes no keyword arguments in a kernel, got {node.keywords[0].arg}=")
        given = len(node.args)
        least, most = _BUILTINS[function][1:] if function in _BUILTINS else (1, given) if function in _EXTREMES else (1, 1)
        if not least <= given <= most:
            count = f"{least}" if least == most else f"{least} to {most}"
            self.error(node, f"{name}(…) takes {count} argument{'s' * (most > 1)} in a kernel, got {given}")
        args = [self.visit(a) for a in node.args]
        if function in _EXTREMES:
            return self.call(_EXTREMES[function], [literal_node(_float_literals(args), node), *args], node)
        if function is range:
            return self.call(numbers.counting, args, node)
        if function in _BUILTINS:
            return self._compute(_BUILTINS[function][0], args, node)
        dtype = _CASTS[function] if function in _CASTS else np.dtype(function).name
        return self.call(numbers.cast, [*args, literal_node(dtype, node)], node)

    def meant(self, node: ast.Call, function: Any) -> Op[..., Any] | None:
        """The operation that a call of NumPy's, or of a method of a value of the kernel, means."""
        if function is MISSING:
            return BY_METHOD.get(node.func.attr) if isinstance(node.func, ast.Attribute) else None
        try:
            return BY_NUMPY.get(function)
        except TypeError:
            return None

    def elementwise(self, node: ast.Call, function: Any) -> Any:
        """A function of tiles and numbers, NumPy's or one of ours that is told which arguments are literals.

        NumPy's take their arguments by position, as most of its functions do.
        """
        operation = self.meant(node, function) or function
        if not isinstance(operation, Op) or operation.context:
            return NOT_MINE
        name, takes = ast.unparse(node.func), list(inspect.signature(operation).parameters)
        if operation is function and "literals" not in takes:
            return NOT_MINE
        takes.remove("literals") if "literals" in takes else None
        places = {keyword.arg: keyword.value for keyword in node.keywords}
        args = [*node.args, *(places.pop(parameter) for parameter in takes[len(node.args):] if parameter in places)]
        if places or len(args) != len(takes) or any(isinstance(arg, ast.Starred) for arg in args):
            self.error(node, f"{name} takes {len(takes)} argument{'s' * (len(takes) > 1)} in a kernel, ({', '.join(takes)}), got "
                             f"{ast.unparse(node)}")
        return self._compute(operation, [self.visit(arg) for arg in args], node)

    # ---- constants that become run-time values
    def _settled(self, node: ast.expr, *, ints: bool = False, floats: bool = True) -> ast.expr:
        """`node` with its constants, items of tuples included, made run-time values. Ints need not be: Numba knows literal ints."""
        if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
            node.elts = [self._settled(part, ints=ints) for part in node.elts]
            return node
        if (ints and _constant(node, int)) or (floats and _constant(node, float)):
            mask = [literal_node(1, node)] if _constant(node, float) else []
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
        node.body, node.orelse = self._settled(node.body, ints=True), self._settled(node.orelse, ints=True)
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
        return node

    def settle_bound(self, node: ast.FunctionDef) -> None:
        """Make run-time values of the constants that are bound to names of a function, which has been rewritten."""
        bound: dict[str, int] = {}
        for name, _ in stores(node):  # in the branches that are left
            bound[name] = bound.get(name, 0) + 1
        for statement in walk(node):
            if isinstance(statement, ast.Assign) and statement not in self.folded:
                for target in statement.targets:
                    statement.value = self._bound(target, statement.value, bound)
        again = [a.arg for a in node.args.args if bound.get(a.arg, 0) > 1]
        node.body[:0] = [located(assign(name, self.call(numbers.number, [load(name)], node)), node) for name in again]

    def _bound(self, target: ast.expr, value: ast.expr, bound: dict[str, int]) -> ast.expr:
        """What is bound to a target: a constant is a run-time value where the name is bound again."""
        if isinstance(target, ast.Name):
            return self._settled(value, ints=bound.get(target.id, 0) > 1)
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            value.elts = [self._bound(t, v, bound) for t, v in zip(target.elts, value.elts, strict=True)]
        return value


def _float_literals(args: list[ast.expr]) -> int:
    """Bit i is set where argument i is a float literal."""
    return sum(1 << i for i, arg in enumerate(args) if _constant(arg, float))


def added(function: ast.expr) -> bool:
    """Whether the pass itself wrote a call."""
    return isinstance(function, ast.Name) and function.id.startswith("__np_")
