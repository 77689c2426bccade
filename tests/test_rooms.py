"""Structure of the source tree: rooms on floors, imports from lower floors only, no import cycles,
and Numba in one folder."""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from numpipe.compile.build import SIBLINGS

ROOT = Path(__file__).parent.parent
WITHIN = {"language": ("tiles", "memory", "pipeline", "grid")}
"""folders of a room that import only from folders before them"""
MOST_ROOMS, MOST_FLOORS = 15, 12
BY_NAME = {
    "numpipe.__init__": "public names and paths, when they are first used",
    "numpipe.__main__": "the module of a kernel that a command line exports",
    "numpipe.intrinsics.__init__": "families of instructions, when they are first used",
    "numpipe.core.lazy": "names of packages, when they are first used",
    "numpipe.core.op": "an operation's CUDA sibling",
    "numpipe.compile.build": "the CUDA siblings that hold meanings of types",
}
"""modules that import others by name, and which ones"""


@dataclass(frozen=True)
class Import:
    source: str
    target: str
    typing: bool = False
    """for type checkers only"""


def floors() -> dict[str, int]:
    """Return the floor of each room, as declared in docs/architecture.md."""
    page = (
        (ROOT / "docs" / "architecture.md")
        .read_text(encoding="utf8")
        .partition("## Rooms")[2]
        .partition("\n## ")[0]
    )
    return {room: int(floor) for floor, room in re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.M)}


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Return the files of numpipe by import name, packages as ``name.__init__``."""
    found = {
        ".".join(file.relative_to(root).with_suffix("").parts): file
        for file in (root / "numpipe").rglob("*.py")
    }
    return found | {
        f"numpipe.intrinsics.{file.stem}": file for file in (root / "intrinsics").glob("*.py")
    }


def is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(node: ast.AST, typing: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yield all nodes below one, and whether only a type checker sees them."""
    for child in ast.iter_child_nodes(node):
        below = typing or (is_typing(node) and child in getattr(node, "body", ()))
        yield child, below
        yield from statements(child, below)


@functools.cache
def importing(file: Path) -> list[tuple[ast.AST, bool]]:
    """Yield the statements and calls of a file that import something, and whether only a type
    checker sees them."""
    return [
        (node, typing)
        for node, typing in statements(ast.parse(file.read_text(encoding="utf8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__")
        )
    ]


def imports(known: dict[str, Path]) -> list[Import]:
    """Return the imports of numpipe's own modules: at the top, inside functions, for types."""
    found = []

    def file_of(name: str) -> str | None:
        return (
            name if name in known else f"{name}.__init__" if f"{name}.__init__" in known else None
        )

    for source, file in known.items():
        for node, typing in importing(file):
            names: Iterable[str] = ()
            if isinstance(node, ast.ImportFrom):
                package = source.split(".")[: -node.level] if node.level else []
                base = ".".join([*package, *(node.module.split(".") if node.module else [])])
                names = [
                    f"{base}.{alias.name}" if file_of(f"{base}.{alias.name}") else base
                    for alias in node.names
                ]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                target = file_of(name)
                if target is not None and target != source:
                    found.append(Import(source, target, typing))
    return found


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 2 else parts[0]


def circles(edges: Iterable[tuple[str, str]]) -> list[set[str]]:
    """Return sets of nodes that all lead to each other (Tarjan 1972)."""
    graph: dict[str, set[str]] = defaultdict(set)
    for source, target in edges:
        graph[source].add(target)
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in number:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == number[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(set(stack[at:]))
            del stack[at:]

    for node in list(graph):
        if node not in number:
            visit(node)
    return found


def not_upwards(found: Iterable[Import], floor: dict[str, int]) -> list[str]:
    """Return imports from a floor that is not lower, and imports between a room's folders against
    their order."""
    wrong = []
    for one in found:
        source, target = room(one.source), room(one.target)
        if target == "numpipe" or source == "numpipe":
            if target == "numpipe" and source != "numpipe":
                wrong.append(f"{one.source} imports {one.target}")
        elif source != target and floor[target] >= floor[source]:
            wrong.append(
                f"{one.source} (floor {floor[source]}) imports {one.target} (floor {floor[target]})"
            )
        elif source == target and source in WITHIN:
            inner = [
                WITHIN[source].index(name.split(".")[2])
                for name in (one.source, one.target)
                if name.count(".") > 2
            ]
            if len(inner) == 2 and inner[1] > inner[0]:
                wrong.append(f"{one.source} imports {one.target}")
    return wrong


def by_name(known: dict[str, Path]) -> set[str]:
    """Return the modules that call ``importlib.import_module`` or ``__import__``."""
    return {
        name
        for name, file in known.items()
        for node, _ in importing(file)
        if isinstance(node, ast.Call)
    }


def height(edges: Iterable[tuple[str, str]]) -> int:
    """Return the number of nodes on the longest path."""
    graph: dict[str, set[str]] = defaultdict(set)
    for source, target in edges:
        graph[source].add(target)

    def of(node: str) -> int:
        return 1 + max(map(of, graph.get(node, ())), default=0)

    return max(map(of, list(graph)))


KNOWN = modules()


@functools.cache
def of_the_tree() -> list[Import]:
    return imports(KNOWN)


# ---- the source tree
def test_each_folder_is_a_room_with_a_floor_and_there_are_no_other_folders():
    assert {room(name) for name in KNOWN} == floors().keys()
    assert {name for name in KNOWN if name.count(".") == 1} == {
        "numpipe.__init__",
        "numpipe.__main__",
    }
    assert len(floors()) <= MOST_ROOMS
    parts = {part for name in KNOWN for part in name.split(".")}
    assert not [part for part in parts - {"__init__", "__main__"} if part.startswith("_")]


def test_imports_come_from_lower_floors_only():
    assert not_upwards(of_the_tree(), floors()) == []


def test_rooms_have_no_circle_and_few_floors():
    edges = {
        (room(one.source), room(one.target))
        for one in of_the_tree()
        if room(one.source) != room(one.target)
    }
    assert not circles(edges)
    assert height(edges) <= MOST_FLOORS


def test_no_module_needs_itself_to_be_imported():
    assert not circles({(one.source, one.target) for one in of_the_tree()})


def test_imports_by_name_are_the_known_ones():
    assert by_name(KNOWN) == BY_NAME.keys()
    assert all(f"numpipe.{sibling}" in KNOWN and sibling.endswith("_cuda") for sibling in SIBLINGS)


def test_a_cuda_meaning_is_imported_only_by_code_that_compiles():
    importers = {
        one.source
        for one in of_the_tree()
        if one.target.endswith("_cuda") and not one.source.endswith("_cuda")
    }
    assert {room(source) for source in importers - {"numpipe.core.closure", "numpipe.core.op"}} == {
        "compile"
    }


def test_numba_and_llvmlite_are_imported_by_one_folder():
    importers = set()
    for name, file in KNOWN.items():
        for node, _ in importing(file):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
            if any(found.split(".")[0] in ("numba", "llvmlite") for found in names):
                importers.add(name.rpartition(".")[0])
    assert importers == {"numpipe.core.numba"}


# ---- the checks detect violations
@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "numpipe/__init__.py": "",
        "numpipe/low/__init__.py": "",
        "numpipe/low/a.py": "def f():\n    from ..high.b import g\n",
        "numpipe/high/__init__.py": "",
        "numpipe/high/b.py": """
            from typing import TYPE_CHECKING
            import importlib
            if TYPE_CHECKING:
                from .c import C
            importlib.import_module("numpipe.low.a")
            """,
        "numpipe/high/c.py": "from . import b\nfrom ..low import a\n",
        "intrinsics/__init__.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    return tmp_path


def test_an_import_inside_a_function_is_seen_to_go_up(tree):
    assert not_upwards(imports(modules(tree)), {"low": 1, "high": 2, "numpipe": 9}) == [
        "numpipe.low.a (floor 1) imports numpipe.high.b (floor 2)"
    ]


def test_a_circle_through_an_import_for_types_is_seen(tree):
    found = imports(modules(tree))
    assert any(
        {"numpipe.high.b", "numpipe.high.c"} <= circle
        for circle in circles({(one.source, one.target) for one in found})
    )
    assert {"low", "high"} in circles({(room(one.source), room(one.target)) for one in found})


def test_an_import_by_name_is_seen(tree):
    assert by_name(modules(tree)) == {"numpipe.high.b"}
