"""Rewriting of operations that combine the elements of a register tile: ``x.sum(axis=1)``,
``np.any(mask)``, ``np.cumsum(x)``.

An operation that needs the context and is a method of tiles takes a tile, then options, which have
defaults and are compile-time constants.

The memory role has no value of a reduction to a number, of a vote, or of a warpgroup's number. It
skips an `if` that depends on one of them (`language.tiles.branches`). That is correct only if
nothing in the `if` loads anything, which is checked here.
"""

from __future__ import annotations

import ast
import inspect
from typing import Any

from ...language.grid import tile_scheduler
from ...language.memory import semaphores
from ...language.pipeline import body_form, pipelines
from ...language.tiles import branches
from .arithmetic import Arithmetic
from .constants import MISSING, truth
from .nodes import Block, assign, load, located, names, running, walk
from .rewriter import NOT_MINE
from .subset import spelled
from .turn_placement import leaves

_LOADS = (
    pipelines.steps,
    pipelines.make_pipeline,
    body_form.emitted,
    semaphores.wait,
    tile_scheduler.scheduler,
)
"""What the memory role takes part in."""


class Reductions(Arithmetic):
    """Methods and functions of NumPy that combine the elements of a tile."""

    def of_tile(self, node: ast.Call, function: Any) -> Any:
        operation = self.meant(node, function)
        if operation is None or not operation.context:
            return NOT_MINE
        method, written = function is MISSING, ast.unparse(node.func)
        args = (
            [node.func.value, *node.args]
            if method and isinstance(node.func, ast.Attribute)
            else list(node.args)
        )
        signature = inspect.signature(operation)
        _, *options = signature.parameters.values()
        keywords = {str(k.arg): k.value for k in node.keywords}
        if len(args) == 2 and options[0].name not in keywords:
            keywords[options[0].name] = args.pop()
        if len(args) != 1 or set(keywords) - {option.name for option in options}:
            takes = spelled(signature.replace(parameters=options) if method else signature)
            self.error(f"{written}{takes} in a kernel, got {ast.unparse(node)}")
        known = {name: self.value(value) for name, value in keywords.items()}
        for name, value in known.items():
            if value is MISSING:
                self.error(f"{written}: {name} must be a compile-time constant", keywords[name])
        constants = []
        for option in options:
            value = known.get(option.name, option.default)
            flag = isinstance(option.default, bool) and truth(value) is not MISSING
            constants.append(int(truth(value)) if flag else value)
        return self.call(operation, [self.visit(args[0]), *constants])

    # ---- branches
    def branch(self, node: ast.If) -> Any:
        """Rewrite an `if` so that the memory role skips it where the condition has no value."""
        test, name = node.test, self.temporary("test")
        if isinstance(test, ast.BoolOp) and self._changed(node):
            # one operand at a time: what the `if` changes has no value where one of them has none
            new: Block = []
            for part in reversed(test.values):
                met: Block = [assign(name, ast.Constant(True))]
                arms = (met, new) if isinstance(test.op, ast.Or) else (new or met, [])
                new = [ast.If(part, *arms)]
            new = [assign(name, ast.Constant(False)), *new]
            self.scopes[-1][1][name] = [*new]
            node.test = load(name)
            return self._block([located(s, test) for s in (*new, node)])
        test = self.visit(test)
        node.body, node.orelse = self._block(node.body), self._block(node.orelse)
        if isinstance(test, ast.BoolOp):
            node.test = self._chosen(node, test)
            return node
        node.test = self._chosen(node, load(name))
        after = [
            assign(each, self.call(branches.after_branch, [load(name), load(each)]))
            for each in self._changed(node)
        ]
        return [located(statement, node) for statement in (assign(name, test), node, *after)]

    def _chosen(self, node: ast.If, test: ast.expr) -> ast.expr:
        """Return a condition of a rewritten `if`, False in a role where it has no value, and so is
        each operand of ``and`` and ``or``."""
        if isinstance(test, ast.BoolOp):
            test.values = [self._chosen(node, part) for part in test.values]
            return test
        return self.call(
            branches.chosen,
            [test, *self._not_skipped(node)],
            node.test,
        )

    def _not_skipped(self, node: ast.If) -> tuple[str, int]:
        """Return what in a rewritten `if` the memory role cannot skip, "" for nothing, and whether
        it may store to an array."""
        arms = [*node.body, *node.orelse]
        for part in running(_LOADS, "pipelines", *arms):
            return f"what is loaded at line {part.lineno}", 1  # type: ignore[attr-defined]
        for word, left in leaves(arms, ast.Break, ast.Continue):
            return f"the '{word}' of line {left.lineno}", 1
        return "", any(
            getattr(part, "facts", None)
            or (isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store))
            for part in walk(*arms)
        )

    def _changed(self, new: ast.If) -> list[str]:
        """Return the names that both arms bind, or that one arm and an earlier statement bind."""
        one, other = names(ast.Store, *new.body), names(ast.Store, *new.orelse)
        before = {
            name
            for name, places in self.scopes[-1][1].items()
            if any(_position(place) <= _position(new) for place in places)
        }
        return sorted((one & other) | ((one | other) & before))


def _position(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
