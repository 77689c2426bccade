"""The source of a lambda that was made on the host, e.g. the index map of a kernel's own BlockSpec.

A lambda has no text of its own: its code names a line, on which may be several. The one that is meant is found by compiling
each of them: it is the one, or one of those, whose code is the same.
"""

from __future__ import annotations

import ast
import functools
import linecache
from types import CodeType, FunctionType
from typing import Any

from ...diagnostics.errors import SpecError
from .nodes import definition, parameters, walk


def find(function: FunctionType, what: str) -> ast.Lambda:
    """The AST of a lambda; SpecError where its source is not there, or could be one of several."""
    code = function.__code__
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    try:
        found = [node for node in _lambdas(text) if node.lineno == code.co_firstlineno and _same(_compiled(node, code), code)]
    except SyntaxError:
        found = []
    if len({ast.dump(node) for node in found}) != 1:
        raise SpecError(f"{what}: the source of the lambda on line {code.co_firstlineno} of {code.co_filename} "
                        f"{'could be one of several' if found else 'is not there'}: write a 'def' with @numpipe.function above it")
    return found[0]


@functools.lru_cache(maxsize=16)
def _lambdas(text: str) -> tuple[ast.Lambda, ...]:
    return tuple(node for node in walk(ast.parse(text)) if isinstance(node, ast.Lambda))


def _compiled(node: ast.Lambda, like: CodeType) -> CodeType:
    """The code of a lambda that finds its free variables where `like` does: in a function around it, or not."""
    outer = definition("outer", parameters(like.co_freevars), [ast.Return(node)])
    module = ast.fix_missing_locations(ast.Module([ast.copy_location(outer, node)], []))
    code = compile(module, like.co_filename, "exec")
    made: list[CodeType] = [part for part in code.co_consts if isinstance(part, CodeType)]
    return next(part for part in made[0].co_consts if isinstance(part, CodeType))


def _same(one: CodeType, other: CodeType) -> bool:
    def parts(code: CodeType) -> tuple[Any, ...]:
        constants = tuple(parts(c) if isinstance(c, CodeType) else (type(c), c) for c in code.co_consts)
        return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars

    return parts(one) == parts(other)
