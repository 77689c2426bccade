"""What names of a kernel are bound to: pipelines, and the allocations that a loop uses."""

from __future__ import annotations

import ast
from typing import Any

from ...core.op import Op
from .dynamic import DynamicTiles
from .nodes import children, operation, walk
from .splits import SplitLoops


class PipelineNames(SplitLoops, DynamicTiles):
    """Which call a name stands for, and whose slots a loop uses."""

    def _binds(self, name: str) -> list[ast.AST]:
        """What binds a name, in the innermost function that does."""
        return next((names[name] for _, names in reversed(self.scopes) if name in names), [])

    def _made_by(self, made: ast.expr, function: Any, rewritten: Op[..., Any]) -> ast.Call | None:
        """The call of `function`, or of the operation it was `rewritten` to, that a value is: in place or bound to a name."""
        calls = [self._bound_to([place]) for place in self._binds(made.id)] if isinstance(made, ast.Name) else [made]
        return next((call for call in calls if isinstance(call, ast.Call) and (
            self.value(call.func) is function or operation(call) is rewritten)), None)

    def _bound_to(self, places: list[ast.AST]) -> ast.Call | None:
        """The call that a name is bound to, by one assignment."""
        for scope, _ in self.scopes:
            for node in walk(scope):
                if isinstance(node, ast.Assign) and len(places) == 1 and places[0] in node.targets and isinstance(
                        node.value, ast.Call):
                    return node.value
        return None

    def _not_itself(self, node: ast.For) -> None:
        """Inside a pipeline's loop another loop over it, and over the same arrays, would use the same slots; so would one with
        its allocations, or one that has the same ones."""
        assert isinstance(node.iter, ast.Call)
        made, own, slots, keywords = node.iter.func, ast.dump(node.iter), self._slots(node.iter), node.iter.keywords
        if not isinstance(made, ast.Name) or len(self._binds(made.id)) != 1:
            return

        def visit(parent: ast.AST) -> None:
            for child in children(parent):
                if isinstance(child, ast.For) and ast.dump(child.iter) == own:
                    self.error(child.iter, f"{ast.unparse(child.iter)} runs inside its own loop of line {node.lineno}, on the same "
                                           "slots, which are in use until that one ends: make a second pipeline for it")
                if isinstance(child, ast.For) and isinstance(child.iter, ast.Call) and slots is not None and (
                        slots == self._slots(child.iter) and (child.iter.keywords or keywords)):
                    self.error(child.iter, f"{ast.unparse(child.iter)} runs inside the loop of line {node.lineno}, whose slots it "
                                           "has: they are in use until that one ends; let it have its own")
                if not isinstance(child, (ast.FunctionDef, ast.Lambda)):
                    visit(child)

        visit(ast.Module(node.body, []))

    def _slots(self, call: ast.Call) -> str | None:
        """The name of the pipeline whose slots a loop uses: its own, or that whose ``get_allocations`` it is given."""
        shared = next((k.value for k in call.keywords if k.arg == "allocations"), None)
        given = self._bound_to(self._binds(shared.id)) if isinstance(shared, ast.Name) else shared
        source: ast.AST | None = call.func if shared is None else None
        if isinstance(given, ast.Call):  # as it is written, or as an operation
            source = given.func.value if isinstance(given.func, ast.Attribute) else next(iter(given.args), None)
        return source.id if isinstance(source, ast.Name) else None
