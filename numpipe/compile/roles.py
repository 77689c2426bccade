"""What the memory role may do, checked on the LLVM IR of its instance of the kernel.

The memory role is one lane running the kernel's control flow to issue copies. A CTA barrier, a shuffle, a vote, an atomic
or a plain store that reaches it would hang, or be executed once too often, or in the wrong role; Numba compiles all of
these silently. Names in the source are not enough (a helper can hide them), so the check reads the code itself, and uses
the source only to find the line to blame.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from .._unit import Unit
from ..errors import CompileError, at

_FORBIDDEN = (
    ("a CTA or warp barrier", r"llvm\.nvvm\.(barrier|bar\.)|\bbar(rier)?\.(sync|red|arrive|warp|cta|cluster)", "sync"),
    ("a warp shuffle", r"llvm\.nvvm\.shfl|\bshfl\.sync", "shfl"),
    ("a warp vote", r"llvm\.nvvm\.(vote|match)|\b(vote|match)\.(sync|all|any|ballot)", "(vote|all_sync|any_sync|ballot|match)"),
    ("an atomic", r"\batomicrmw\b|\bcmpxchg\b|llvm\.nvvm\.atomic|\b(atom|red)\.(global|shared|add|cas)|numba_cuda_atomic|atomic",
     "atomic"),
    ("a store", r"\bst\.(global|shared|volatile|relaxed)", "="),
)
_DEFINE = re.compile(r'^define [^@]*@(?:"([^"]+)"|([\w.$]+))\(')
_CALLED = re.compile(r'@(?:"([^"]+)"|([\w.$]+))\(')
_SSA = re.compile(r'^\s*(%(?:"[^"]+"|[\w.]+)) = (.*)$')
_NAME = r'%(?:"[^"]+"|[\w.]+)'


def functions(library: Any) -> dict[str, list[str]]:
    """Bodies of all functions in a library's IR."""
    found: dict[str, list[str]] = {}
    for module in library.llvm_strs:
        body: list[str] | None = None
        for line in module.splitlines():
            start = _DEFINE.match(line)
            if start:
                body = found.setdefault(start[1] or start[2], [])
                body.clear()
            elif body is not None and line.startswith("}"):
                body = None
            if body is not None:
                body.append(line)
    return found


def reachable(bodies: dict[str, list[str]], root: str) -> Iterator[str]:
    """Names of the functions that `root` can call, itself included."""
    todo, seen = [root], {root}
    while todo:
        name = todo.pop()
        yield name
        for line in bodies[name]:
            for match in _CALLED.finditer(line):
                called = match[1] or match[2]
                if called in bodies and called not in seen:
                    seen.add(called)
                    todo.append(called)


def violation(body: list[str]) -> tuple[str, str] | None:
    """(what, pattern of the source) of the first thing in a function that the memory role must not do."""
    definitions = {m[1]: m[2] for line in body if (m := _SSA.match(line))}

    def private(pointer: str, depth: int = 0) -> bool:
        """Whether a pointer is to the lane's own stack, or one that numpipe named."""
        if pointer.strip('%"').startswith("numpipe."):
            return True
        made = definitions.get(pointer, "")
        if not made:  # a parameter: Numba returns values through .ret and .excinfo
            return pointer.strip('%"') in (".ret", ".excinfo", "retptr", "excinfo") or pointer.startswith('%".ret')
        if made.startswith("alloca"):
            return True
        base = re.search(_NAME, made)
        return bool(base) and depth < 30 and made.startswith(("getelementptr", "bitcast", "addrspacecast")) and private(
            base[0], depth + 1)

    for line in body[1:]:
        for what, pattern, source in _FORBIDDEN:
            if re.search(pattern, line) and not line.lstrip().startswith(";"):
                return what, source
        store = re.match(rf"\s*store (?:volatile )?.*, [^,]*?({_NAME})(?:, .*)?$", line)
        if store and not private(store[1]):
            return "a store", "="
    return None


def check(unit: Unit, library: Any) -> None:
    """Raise CompileError when something forbidden reaches the memory role."""
    bodies = functions(library)
    roots = [name for name in bodies if re.search(r"memory", name) and "run_memory" not in name and _is_root(name)]
    for root in roots:
        for name in reachable(bodies, root):
            found = violation(bodies[name])
            if found:
                raise CompileError(_blame(unit, *found))


def _is_root(name: str) -> bool:
    """Numba mangles the entry's inner function `memory` as …6memory…."""
    return bool(re.search(r"6memoryB", name))


def _blame(unit: Unit, what: str, pattern: str) -> str:
    message = (f"kernel {unit.kernel}: {what} reaches the memory role, where one lane runs the kernel's control flow to issue "
               "copies: use numpipe's own operations (barriers, c[…] = tile), which know their role")
    tree, filename = unit.source
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and pattern != "=" and re.search(pattern, ast.unparse(node.func)):
            return at(filename, node.lineno, message)
        if pattern == "=" and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            return at(filename, node.lineno, message)
    return message if tree is None else at(filename, tree.lineno, message)
