"""The check that roles that do not compute do nothing forbidden, on the LLVM IR of their instances
of the kernel.

The memory role is one lane that runs the kernel's control flow to issue copies. A CTA barrier, a
shuffle, a vote, an atomic or a plain shared array in its code would hang, be executed once too
often, or run in the wrong role; Numba compiles all of these silently. Names in the source are not
sufficient (a helper can hide them), so the check reads the code itself, and uses the source only to
find the line to report.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from ...arch.dimensions import Names
from ...core.symbols import symbol
from ...diagnostics.errors import CompileError
from ...plan.roles import Role
from ...plan.unit import Unit
from ..lift.lift import Lifted
from ..lift.nodes import walk

SUFFIX = "_{}_role"
"""The end of the name of a role's instance of a kernel, if the role does not compute."""
_FORBIDDEN = (
    (
        "a grid, CTA or warp barrier",
        r"llvm\.nvvm\.(barrier|bar\.)|\bbar(rier)?\.(sync|red|arrive|warp|cta|cluster)|@\W?cudaCG",
        "sync",
    ),
    ("a warp shuffle", r"llvm\.nvvm\.shfl|\bshfl\.sync", "shfl"),
    (
        "a warp vote",
        r"llvm\.nvvm\.(vote|match)|\b(vote|match)\.(sync|all|any|ballot)",
        "(vote|all_sync|any_sync|ballot|match)",
    ),
    (
        "an atomic",
        r"^(atomicrmw|cmpxchg) "
        r"|@\W?llvm\.nvvm\.atomic|\b(atom|red)\.(global|shared|add|cas)|@\W?___numba_atomic",
        "atomic",
    ),
    ("a store", r"\bst\.(global|shared|volatile|relaxed)", "store"),
)
_OWN = re.compile("np_used|np_scheduler|np_outside|np_gpus|np_bounded")
"""Names in operations of numpipe that are allowed: events of a profile (`profiling_cuda`), work
indices (`tile_scheduler`), reports of indices (`outside_cuda`), of missing peers
(`peer_arrays_cuda`), and of waits that take too long (`bounded_cuda`)."""
# calls, including inline assembly, and LLVM's own atomics
_DOING = re.compile(r"(?:call |atomicrmw |cmpxchg ).*")
_DEFINED = re.compile(r'^define [^@]*@(?:"([^"]+)"|([\w.$]+))\(', re.MULTILINE)
_CALLED = re.compile(r'@(?:"([^"]+)"|([\w.$]+))\(')
_SHARED_ARRAY = re.compile(r"addrspace\(3\)\s*\* @")


def functions(library: Any) -> dict[str, str]:
    """Return the functions of a library's IR, as text."""
    return {
        m[1] or m[2]: module[m.start() : module.index("\n}", m.end()) + 2]
        for module in library.llvm_strs
        for m in _DEFINED.finditer(module)
    }


def reachable(bodies: dict[str, str], root: str) -> Iterator[Names]:
    """Yield the functions that `root` can call, itself included, each as the names on one path of
    calls to it."""
    todo: list[Names] = [(root,)]
    seen = {root}
    while todo:
        path = todo.pop()
        yield path
        for match in _CALLED.finditer(bodies[path[-1]]):
            called = match[1] or match[2]
            if called in bodies and called not in seen:
                seen.add(called)
                todo.append((*path, called))


def violation(function: str) -> tuple[str, str] | None:
    """Return (what, pattern of the source) of the first forbidden operation in a function, or
    None."""
    body = function.partition("\n")[2]
    doing = "\n".join(line for line in _DOING.findall(body) if not _OWN.search(line))
    for what, pattern, source in _FORBIDDEN:
        if re.search(pattern, doing, re.MULTILINE):
            return what, source
    if "addrspace(3)" in body and any(
        "numpipe_smem" not in line for line in body.splitlines() if _SHARED_ARRAY.search(line)
    ):
        return "shared memory of its own", "shared"
    return None


def check(unit: Unit, library: Any, lifted: Lifted) -> None:
    """Raise CompileError if something forbidden reaches a role that does not compute."""
    if not unit.warp_specialized:
        return
    bodies = functions(library)
    for role in (role for role in unit.roles if not role.computes):
        own = f"{symbol(unit.kernel)}{SUFFIX.format(role)}"
        for path in reachable(bodies, next(name for name in bodies if own in name)):
            found = violation(bodies[path[-1]])
            if found:
                raise CompileError(_blame(unit, role, lifted, path, *found))


def _blame(unit: Unit, role: Role, lifted: Lifted, path: Names, what: str, pattern: str) -> str:
    """Return the message, at the call in the source of the function that does it, or of a function
    on the path to it."""
    message = (
        f"kernel {unit.kernel}: {what}{{}} reaches the {role} role, where one lane runs the "
        "kernel's control flow to issue copies; fix: use numpipe's own operations (barriers, "
        "c[…] = tile), which depend on the role"
    )
    calls = [
        (source, node)
        for source in lifted.sources
        for node in walk(source.tree)
        if isinstance(node, ast.Call)
    ]
    for source, call in calls:
        if re.search(pattern, ast.unparse(call.func)):
            return source.position(call).stamp(message.format(""))
    for function in reversed(path[1:]):
        for source, call in calls:
            name = ast.unparse(call.func).rpartition(".")[2]
            if f"{len(symbol(name))}{symbol(name)}" in function:  # as a mangled name spells it
                return source.position(call).stamp(message.format(f" in '{name}'"))
    return lifted.definition.stamp(message.format(""))
