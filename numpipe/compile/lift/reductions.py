"""Operations that bring the elements of a register tile together, rewritten: ``x.sum(axis=1)``, ``np.any(mask)``, ``np.cumsum(x)``.

An operation that wants the context and is a method of tiles takes a tile, then options, which have defaults and are compile-time
constants.

A reduction to a number, and a vote, have no value in the memory role. An `if` that one decides is passed by there, which is right
where nothing in it loads anything: that is checked here. A number that it may have changed has no value there either.
"""

from __future__ import annotations

import ast
import inspect
from typing import Any

from ...core.op import Op
from ...language.memory import copies
from ...language.pipeline import barriers, emit, pipelines
from ...language.tiles import reduce
from .fold import MISSING, literal_node
from .functions import Functions
from .nodes import assign, load, located, operation, walk
from .rewriter import NOT_MINE
from .subset import spelled

_LOADS = (pipelines.steps, pipelines.make_pipeline, emit.emitted, copies.copy_gmem_to_smem, copies.copy_smem_to_gmem,
          copies.commit_smem, copies.commit_smem_to_gmem_group, copies.wait_smem_to_gmem, copies.async_prefetch,
          barriers.barrier_arrive, barriers.barrier_wait)


def _of_tiles(operation: object) -> bool:
    return isinstance(operation, Op) and operation.context and bool(operation.method)


class Reductions(Functions):
    """Methods and functions of NumPy that bring the elements of a tile together."""

    def of_tile(self, node: ast.Call, function: Any) -> Any:
        operation = self.meant(node, function)
        if operation is None or not operation.context:
            return NOT_MINE
        method, written = function is MISSING, ast.unparse(node.func)
        given = [node.func.value, *node.args] if method and isinstance(node.func, ast.Attribute) else list(node.args)
        signature = inspect.signature(operation)
        _, *options = signature.parameters.values()
        said = {str(k.arg): k.value for k in node.keywords}
        if len(given) == 2 and options[0].name not in said:
            said[options[0].name] = given.pop()
        if len(given) != 1 or set(said) - {option.name for option in options}:
            takes = spelled(signature.replace(parameters=options) if method else signature)
            self.error(node, f"{written}{takes} in a kernel, got {ast.unparse(node)}")
        known = {name: self.value(value) for name, value in said.items()}
        for name, value in known.items():
            if value is MISSING:
                self.error(said[name], f"{written}: {name} must be a compile-time constant")
        values = [known.get(option.name, option.default) for option in options]
        flags = [isinstance(option.default, bool) for option in options]
        return self.call(operation, [self.visit(given[0]), *(literal_node(int(bool(value)) if flag else value, node)
                                                             for value, flag in zip(values, flags, strict=True))], node)

    # ---- what a vote decides
    def voted_branch(self, node: ast.If) -> Any:
        votes, written = self._voted(node.test), ast.unparse(node.test)
        new = self.branch(node)
        if not votes:
            return new
        self._loads_nothing(written, new)
        new.test = self.call(reduce.chosen, [new.test], node)
        return [new, *[located(assign(name, self.call(reduce.behind_choice, [load(name)], node)), node)
                       for name in self._changed(new)]]

    def _voted(self, test: ast.expr) -> bool:
        """Whether an expression, not rewritten yet, is made of a vote or of a reduction to a number."""
        voted: set[str] = set()
        scope = self.scopes[-1][0]

        def made(node: ast.AST) -> bool:
            return any((isinstance(part, ast.Name) and part.id in voted) or _of_tiles(operation(part)) or (
                isinstance(part, ast.Call) and _of_tiles(self.meant(part, self.value(part.func)))) for part in walk(node))

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
            if operation(part) in _LOADS or (facts is not None and facts.pipelines):
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
