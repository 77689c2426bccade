"""Rewriting of operations that combine the elements of a register tile: ``x.sum(axis=1)``,
``np.any(mask)``, ``np.cumsum(x)``.

An operation that needs the context and is a method of tiles takes a tile, then options, which have
defaults and are compile-time constants.

A reduction to a number, and a vote, have no value in the memory role. The memory role skips an `if`
that depends on one of them. That is correct only if nothing in the `if` loads anything, which is
checked here. A number that the `if` may have changed has no value in the memory role either.
"""

from __future__ import annotations

import ast
import inspect
from typing import Any

from ...core.op import Op
from ...language.memory import copies
from ...language.pipeline import body_form, operand_barriers, pipelines
from ...language.tiles import reduce
from .arithmetic import Arithmetic
from .constants import MISSING, literal_node, truth
from .nodes import assign, load, located, names, operation, walk
from .rewriter import NOT_MINE
from .subset import spelled

_LOADS = (
    pipelines.steps,
    pipelines.make_pipeline,
    body_form.emitted,
    copies.copy_gmem_to_smem,
    copies.copy_smem_to_gmem,
    copies.commit_smem,
    copies.commit_smem_to_gmem_group,
    copies.wait_smem_to_gmem,
    copies.async_prefetch,
    operand_barriers.barrier_arrive,
    operand_barriers.barrier_wait,
)


def _of_tiles(operation: object) -> bool:
    return isinstance(operation, Op) and operation.context and bool(operation.method)


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
            self.error(node, f"{written}{takes} in a kernel, got {ast.unparse(node)}")
        known = {name: self.value(value) for name, value in keywords.items()}
        for name, value in known.items():
            if value is MISSING:
                self.error(keywords[name], f"{written}: {name} must be a compile-time constant")
        constants: list[ast.expr] = []
        for option in options:
            value = known.get(option.name, option.default)
            flag = isinstance(option.default, bool) and truth(value) is not MISSING
            constants.append(literal_node(int(truth(value)) if flag else value, node))
        return self.call(operation, [self.visit(args[0]), *constants], node)

    # ---- branches that a vote decides
    def voted_branch(self, node: ast.If) -> Any:
        votes, written = self._voted(node.test), ast.unparse(node.test)
        node.test = self.visit(node.test)
        node.body, node.orelse = self._block(node.body), self._block(node.orelse)
        if not votes:
            return node
        # nothing may be loaded under a condition that the memory role does not know
        for part in walk(*node.body, *node.orelse):
            facts = getattr(part, "facts", None)
            if operation(part) in _LOADS or (facts is not None and facts.pipelines):
                self.error(
                    node.test,
                    f"'{written}' steers loads: the contents of a tile decide whether something "
                    "is loaded or copied, but tiles have no values in the memory role; fix: move "
                    "the pipeline, or the copy, out of the 'if'",
                )
        node.test = self.call(reduce.chosen, [node.test], node)
        return [
            node,
            *[
                located(assign(name, self.call(reduce.behind_choice, [load(name)], node)), node)
                for name in self._changed(node)
            ],
        ]

    def _voted(self, test: ast.expr) -> bool:
        """Return whether an expression that is not rewritten yet depends on a vote or on a
        reduction to a number."""
        voted: set[str] = set()
        scope = self.scopes[-1][0]

        def made(node: ast.AST) -> bool:
            return any(
                (isinstance(part, ast.Name) and part.id in voted)
                or _of_tiles(operation(part))
                or (
                    isinstance(part, ast.Call)
                    and _of_tiles(self.meant(part, self.value(part.func)))
                )
                for part in walk(node)
            )

        while True:  # names that are bound to one, through others
            more = {
                target.id
                for node in walk(scope)
                if isinstance(node, ast.Assign) and made(node.value)
                for target in node.targets
                if isinstance(target, ast.Name)
            } - voted
            if not more:
                return made(test)
            voted |= more

    def _changed(self, new: ast.If) -> list[str]:
        """Return the names that both arms bind, or that one arm and an earlier statement bind."""
        one, other = names(ast.Store, *new.body), names(ast.Store, *new.orelse)
        inside = {id(part) for part in walk(*new.body, *new.orelse)}
        before = {
            name
            for name, places in self.scopes[-1][1].items()
            if any(
                id(place) not in inside and getattr(place, "lineno", 0) <= new.lineno
                for place in places
            )
        }
        return sorted(
            name for name in (one & other) | ((one | other) & before) if not name.startswith("__np")
        )
