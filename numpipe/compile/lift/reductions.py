"""Reductions of register tiles, rewritten: ``x.sum(axis=1)`` and ``np.any(mask)`` are told the kernel and its role.

A reduction to a number, and a vote, have no value in the memory role. An `if` that one decides is passed by there, which is right
where nothing in it loads anything: that is checked here. A number that it may have changed has no value there either.
"""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from ...language.tiles import reduce
from .fold import MISSING, literal_node
from .functions import Functions
from .nodes import walk

_OF_NUMPY: dict[Any, str] = {getattr(np, name): name for name in reduce.FUNCTIONS}
_LOADS = ("__np_steps", "__np_make_pipeline", "__np_emitted", "__np_emitted_alone", "__np_copy_in", "__np_copy_out", "__np_commit",
          "__np_commit_group", "__np_wait_stores", "__np_prefetch", "__np_barrier_arrive", "__np_barrier_wait")


class Reductions(Functions):
    """Methods and functions of NumPy that bring the elements of a tile together."""

    def visit_Call(self, node: ast.Call) -> Any:
        found = self._reduces(node)
        return super().visit_Call(node) if found is None else self._reduction(found, node)

    def _reduces(self, node: ast.Call) -> str | None:
        """The reduction that a call is, of a tile or of something that has to be one."""
        function = self.value(node.func)
        try:
            name = _OF_NUMPY.get(function)
        except TypeError:
            return None
        if name is None and function is MISSING and isinstance(node.func, ast.Attribute) and node.func.attr in reduce.FUNCTIONS:
            return node.func.attr
        return name

    def _reduction(self, name: str, node: ast.Call) -> ast.Call:
        method = self.value(node.func) is MISSING
        given = [node.func.value, *node.args] if method and isinstance(node.func, ast.Attribute) else list(node.args)
        written = ast.unparse(node.func)
        options = {str(k.arg): k.value for k in node.keywords}
        if len(given) == 2 and "axis" not in options:
            options["axis"] = given.pop()
        if len(given) != 1 or set(options) - {"axis", "keepdims"}:
            takes = f"{written}({'' if method else 'tile, '}axis=None, keepdims=False)"
            self.error(node, f"{takes} in a kernel, got {ast.unparse(node)}")
        known = {option: self.value(value) for option, value in options.items()}
        for option, value in known.items():
            if value is MISSING:
                self.error(options[option], f"{written}: {option} must be a compile-time constant")
        return self.call(reduce.reduced, [
            self.context_name(node), self.visit(given[0]), ast.copy_location(ast.Constant(name), node),
            literal_node(known.get("axis"), node), literal_node(int(bool(known.get("keepdims", False))), node)], node)

    # ---- what a vote decides
    def visit_If(self, node: ast.If) -> Any:
        votes, written = self._voted(node.test), ast.unparse(node.test)
        new = super().visit_If(node)
        if not votes or not isinstance(new, ast.If):
            return new
        self._loads_nothing(written, new)
        new.test = self.call(reduce.chosen, [self.context_name(node), new.test], node)
        return [new, *[ast.copy_location(ast.Assign([ast.copy_location(ast.Name(name, ast.Store()), node)], self.call(
            reduce.behind_choice, [self.context_name(node), ast.copy_location(ast.Name(name, ast.Load()), node)], node)), node)
            for name in self._changed(new)]]

    def _voted(self, test: ast.expr) -> bool:
        """Whether an expression, not rewritten yet, is made of a vote or of a reduction to a number."""
        voted: set[str] = set()
        scope = self.scopes[-1][0]

        def made(node: ast.AST) -> bool:
            return any((isinstance(part, ast.Name) and (part.id in voted or part.id == "__np_reduced")) or (
                isinstance(part, ast.Call) and self._reduces(part) is not None) for part in walk(node))

        while True:  # names that are bound to such, through others
            more = {target.id for node in walk(scope) if isinstance(node, ast.Assign) and made(node.value)
                    for target in node.targets if isinstance(target, ast.Name)} - voted
            if not more:
                return made(test)
            voted |= more

    def _loads_nothing(self, written: str, new: ast.If) -> None:
        """CompileError for loads and copies, and for barriers, under a condition that the memory role does not know."""
        for part in (part for statement in (*new.body, *new.orelse) for part in walk(statement)):
            facts = getattr(part, "facts", None)
            called = part.func.id if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) else ""
            if called in _LOADS or (facts is not None and facts.pipelines):
                self.error(new.test, f"'{written}' steers loads: what a tile holds decides whether something is loaded or copied, "
                                     "and the memory role has no such value; take the pipeline, or the copy, out of the 'if'")

    def _changed(self, new: ast.If) -> list[str]:
        """Names that both arms bind, or one of them and something before it."""
        def bound(body: list[ast.stmt]) -> set[str]:
            return {part.id for statement in body for part in walk(statement)
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store) and not part.id.startswith("__np")}

        arms, names = (bound(new.body), bound(new.orelse)), self.scopes[-1][1]
        inside = {id(part) for statement in (*new.body, *new.orelse) for part in walk(statement)}
        before = {name for name, places in names.items()
                  if any(id(place) not in inside and getattr(place, "lineno", 0) <= new.lineno for place in places)}
        return sorted((arms[0] & arms[1]) | ((arms[0] | arms[1]) & before))
