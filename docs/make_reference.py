"""Write the reference pages: ``python docs/make_reference.py``.

A page of docs/reference is written by hand down to the line ``<!-- the rest is made of docstrings:
PACKAGE … -->``. What follows is made here from the docstrings of the packages' public names, as
Markdown that reads the same as a file and on the site. A test holds that the files are current
(`stale`).
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "reference"
MARK = re.compile(r"^<!-- the rest is made of docstrings: (.*) -->\n", re.MULTILINE)
INHERITED = ("Kernel", "Trace")
"""classes that lie in several files: their pages show what they inherit, too"""


def stale() -> list[str]:
    """The pages that do not say what the docstrings say."""
    return [
        page.name
        for page in sorted(FOLDER.glob("*.md"))
        if page.read_text(encoding="utf8") != made(page)
    ]


def made(page: Path) -> str:
    """The text of a page as it should be."""
    text = page.read_text(encoding="utf8")
    mark = MARK.search(text)
    if mark is None:
        return text
    packages = mark[1].split()
    parts = [part for package in packages for part in _package(package, alone=len(packages) == 1)]
    return text[: mark.end()] + "\n" + "\n\n".join(parts) + "\n"


# ---- which names
def _package(name: str, alone: bool) -> Iterator[str]:
    package = importlib.import_module(name)
    if not alone:
        yield f"## {name}"
        yield markdown((package.__doc__ or "").split("\n\n")[0])
    if name == "numpipe.intrinsics":
        for family in package.__all__:
            module = importlib.import_module(f"{name}.{family}")
            yield f"## {family}"
            yield markdown(module.__doc__)
            yield from _names(module, _defined(module))
        return
    left = list(getattr(package, "__all__", None) or _defined(package))
    if alone:
        for title, names in _groups(package.__doc__ or ""):
            chosen = [each for each in names if each in left]
            left = [each for each in left if each not in chosen]
            if chosen:
                yield f"## {title[0].upper()}{title[1:]}"
                yield from _names(package, chosen)
        if left and len(left) < len(package.__all__):
            yield "## More"
    yield from _names(package, left)


def _groups(doc: str) -> Iterator[tuple[str, list[str]]]:
    """(title, names) of the table in a package's docstring: a title, columns of spaces, names in
    backquotes."""
    for row in re.finditer(r"^(\w+(?: \w+)*) {2,}(\S.*(?:\n {10,}.*)*)", doc, re.MULTILINE):
        yield row[1], re.findall(r"`(\w+)`", row[2])


def _defined(module: Any) -> list[str]:
    """The public functions and classes that a module defines, in its order."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", None) == module.__name__
    ]


def _names(package: Any, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        value = getattr(package, name)
        yield f"### {name}"
        if inspect.isclass(value):
            yield from _class(name, value)
        elif callable(value):
            yield _code(_signature(name, value))
            yield markdown(inspect.getdoc(value))
        else:
            yield _code(f"{name} = {value!r}" if len(repr(value)) < 100 else name)


def _class(name: str, cls: type) -> Iterator[str]:
    by_base = issubclass(cls, (BaseException, enum.Enum)) and cls.__base__
    yield _code(
        f"class {name}({by_base.__name__})" if by_base else f"class {_signature(name, cls)}"
    )
    yield markdown(inspect.getdoc(cls))
    rows = list(_members(cls))
    if rows:
        yield "\n".join(rows)


def _members(cls: type) -> Iterator[str]:
    """A line of a list for each public attribute and method that has a docstring."""
    shown: set[str] = set()
    for base in cls.__mro__ if cls.__name__ in INHERITED else [cls]:
        if not base.__module__.startswith("numpipe"):
            continue
        described = _attributes(base)
        for member, value in [*((each, None) for each in described), *vars(base).items()]:
            if member.startswith("_") or member in shown:
                continue
            function = inspect.unwrap(
                value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
            )
            method = isinstance(value, property) or inspect.isroutine(function)
            doc = described.get(member) or (inspect.getdoc(value) if method else None)
            if doc:
                shown.add(member)
                head = (
                    f"`{_signature(member, function)}`"
                    if inspect.isroutine(function)
                    else f"`{member}`"
                )
                yield f"- {head}: " + textwrap.indent(markdown(doc), "  ").strip()


def _attributes(cls: type) -> dict[str, str]:
    """The docstrings that stand below the fields of a class."""
    try:
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, ValueError):
        return {}
    body = getattr(tree, "body", [])
    return {
        before.target.id: inspect.cleandoc(after.value.value)
        for before, after in itertools.pairwise(body)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }


def _signature(name: str, function: Any) -> str:
    """``name(parameters) -> type``, with annotations as they stand in the source."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return name
    parts, kinds = [], inspect.Parameter
    star = False
    for parameter in signature.parameters.values():
        if parameter.name == "self" or parameter.name.startswith("_"):
            continue
        star = star or parameter.kind is kinds.VAR_POSITIONAL
        if parameter.kind is kinds.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        text = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(
            parameter.kind, ""
        ) + parameter.name
        if parameter.annotation is not kinds.empty:
            text += f": {_annotation(parameter.annotation)}"
        if parameter.default is not kinds.empty:
            text += (" = " if ":" in text else "=") + _default(parameter.default)
        parts.append(text)
    returned = signature.return_annotation
    arrow = (
        ""
        if returned is inspect.Signature.empty or inspect.isclass(function)
        else f" -> {_annotation(returned)}"
    )
    return f"{name}({', '.join(parts)}){arrow}"


def _annotation(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    # the names of `arch.dimensions` are for the source
    text = re.sub(r"\bInts\b", "tuple[int, ...]", text)
    text = re.sub(r"\bDim3\b", "tuple[int, int, int]", text)
    return text.strip("'").replace("typing.", "")


def _default(value: Any) -> str:
    text = getattr(value, "__name__", None) or repr(value)
    if len(text) > 60:
        return f"{type(value).__name__}(...)"
    return "…" if " at 0x" in text else text


def _code(text: str) -> str:
    """A fence of a signature or value, broken after parameters at 88 columns."""
    if len(text) > 88 and "(" in text:
        head, _, rest = text.partition("(")
        inner, close, tail = rest.rpartition(")")
        lines = [f"{head}("]
        for parameter in _parameters(inner):
            if len(lines[-1]) + len(parameter) > 87:
                lines.append(" " * len(head))
            lines[-1] += f" {parameter}" if lines[-1] != f"{head}(" else parameter
        if len(lines[-1] + close + tail) > 88:
            lines.append("")
        text = "\n".join(lines) + close + tail
    return f"```py\n{text}\n```"


def _parameters(text: str) -> Iterator[str]:
    """The parameters of a signature, with the comma after each but the last."""
    start = depth = 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield text[start : place + 1].strip()
            start = place + 1
    yield text[start:].strip()


# ---- what they say
_ROW = re.compile(r"(?P<term>\S+(?: \S+){0,6}?) {2,}(?P<text>\S.*)$")
_NO_TERM = (" ", ">>>", "..", "=", "-", "|", "*", "#", "`")


def markdown(doc: str | None) -> str:
    """A docstring as Markdown: aligned columns become a list, what is indented or a session becomes
    a block of code.

    >>> print(markdown("What it does.\\n\\nsize   elements\\n       of a side\\n\\n    f(3)"))
    What it does.
    <BLANKLINE>
    - `size`: elements of a side
    <BLANKLINE>
    ```py
    f(3)
    ```
    """
    lines = inspect.cleandoc(doc or "").split("\n")
    blocks: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.strip() in ("", "::"):
            at += 1
            continue
        column = _column(lines[at:])
        if re.match(r"=+( +=+)+$", line):
            end = _while(lines, at, lambda each: bool(each.strip()))
            blocks.append(_table(lines[at:end]))
        elif line.startswith(">>>"):
            end = _while(lines, at, lambda each: bool(each.strip()))
            blocks.append("```pycon\n" + "\n".join(lines[at:end]) + "\n```")
        elif line.startswith(" "):
            end = _while(lines, at, lambda each: each.startswith(" ") or not each)
            blocks.append(_block(lines[at:end]))
        elif column:
            end = at + 1
            while end < len(lines) and _goes_on(lines, end, column):
                end += 1
            blocks.append(_list(lines[at:end], column))
        else:
            end = _while(
                lines, at + 1, lambda each: bool(each.strip()) and not each.startswith(" ")
            )
            blocks.append(re.sub(r"(?<!`)::$", ":", "\n".join(lines[at:end])))
        at = end
    return "\n\n".join(blocks)


def _while(lines: list[str], at: int, holds: Callable[[str], bool]) -> int:
    while at < len(lines) and holds(lines[at]):
        at += 1
    return at


def _block(lines: list[str]) -> str:
    code = textwrap.dedent("\n".join(lines)).strip("\n")
    try:
        ast.parse(code)
        return f"```py\n{code}\n```"
    except SyntaxError:
        return f"```text\n{code}\n```"


def _column(lines: list[str]) -> int:
    """Where the text begins in a list of ``term   text`` in aligned columns that begins here; 0:
    none does."""
    if lines[0].startswith(_NO_TERM):
        return 0
    row = _ROW.match(lines[0])
    if row:
        return row.start("text")
    below = lines[1] if len(lines) > 1 else ""
    indent = len(below) - len(below.lstrip())
    return indent if indent >= 6 and not lines[0].endswith((".", ":")) else 0


def _goes_on(lines: list[str], at: int, column: int) -> bool:
    """Whether a line belongs to the list, of which the line before is a part."""
    line = lines[at]
    if not line.strip():
        after = next((each for each in lines[at:] if each.strip()), "")
        return after.startswith(" " * column)
    return line.startswith(" " * column) or (
        not line.startswith(" ") and bool(lines[at - 1].strip())
    )


def _list(lines: list[str], column: int) -> str:
    """Each term with its text, which may itself be several blocks."""
    items: list[tuple[str, list[str]]] = []
    for line in lines:
        row = None if line.startswith(" ") else _ROW.match(line)
        if not line.strip() or line.startswith(" " * column):
            items[-1][1].append(line[column:])
        elif line[column - 1 : column] == " " and line[column:].strip():
            items.append((line[:column].strip(), [line[column:]]))
        elif row:
            items.append((row["term"], [row["text"]]))
        # a term that is wider than its column
        elif len(line) > column and not re.fullmatch(r"\w+(, \w+)+", line):
            term, _, text = line.partition(" ")
            items.append((term, [text]))
        else:
            items.append((line.strip(), []))
    return "\n".join(
        f"- `{term}`: {textwrap.indent(_flowing(markdown(chr(10).join(text))), '  ').strip()}"
        for term, text in items
    )


def _flowing(text: str) -> str:
    """The first paragraph in one line: that of an item of a list."""
    first, blank, rest = text.partition("\n\n")
    return (
        (first if first.startswith(("```", "|", "-")) else first.replace("\n", " ")) + blank + rest
    )


def _table(lines: list[str]) -> str:
    """A table whose columns are marked by lines of "=" as one of Markdown."""
    starts = [found.start() for found in re.finditer(r"=+", lines[0])]
    rules = [number for number, line in enumerate(lines) if line.startswith("==")]
    rows: list[list[str]] = []
    for number, line in enumerate(lines):
        if number in rules:
            continue
        ends = [*(start - 1 for start in starts[1:]), None]
        cells = [
            line[start:end].strip().replace("|", "\\|")
            for start, end in zip(starts, ends, strict=True)
        ]
        if cells[0] or not rows:
            rows.append(cells)
        else:
            rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1], cells, strict=True)]
    if len(rules) < 3:
        rows.insert(0, [""] * len(starts))
    written = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([written[0], "|" + "---|" * len(starts), *written[1:]])


if __name__ == "__main__":
    for each in stale():
        (FOLDER / each).write_text(made(FOLDER / each), encoding="utf8")
        print(f"wrote {FOLDER / each}", file=sys.stderr)
