"""Write the reference pages: ``python docs/make_reference.py``.

A page of docs/reference is written by hand down to the line ``<!-- the rest is made of docstrings: PACKAGE … -->``. What follows is
made here from the docstrings of the packages' public names, as Markdown that reads the same as a file and on the site. A test holds
that the files are current (`stale`).
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "reference"
MARK = re.compile(r"^<!-- the rest is made of docstrings: (.*) -->\n", re.MULTILINE)
INHERITED = ("Kernel", "Trace")
"""classes that lie in several files: their pages show what they inherit, too"""


def stale() -> list[str]:
    """The pages that do not say what the docstrings say."""
    return [page.name for page in sorted(FOLDER.glob("*.md")) if page.read_text(encoding="utf8") != made(page)]


def made(page: Path) -> str:
    """The text of a page as it should be."""
    text = page.read_text(encoding="utf8")
    mark = MARK.search(text)
    if mark is None:
        return text
    packages = mark[1].split()
    parts = [part for package in packages for part in _package(package, alone=len(packages) == 1)]
    return text[:mark.end()] + "\n" + "\n\n".join(parts) + "\n"


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
    """(title, names) of the table in a package's docstring: a title, columns of spaces, names in backquotes."""
    for row in re.finditer(r"^(\w+(?: \w+)*) {2,}(\S.*(?:\n {10,}.*)*)", doc, re.MULTILINE):
        yield row[1], re.findall(r"`(\w+)`", row[2])


def _defined(module: Any) -> list[str]:
    """The public functions and classes that a module defines, in its order."""
    return [name for name, value in vars(module).items()
            if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__]


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
    yield _code(f"class {name}({by_base.__name__})" if by_base else f"class {_signature(name, cls)}")
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
            function = inspect.unwrap(value.__func__ if isinstance(value, (classmethod, staticmethod)) else value)
            method = isinstance(value, property) or inspect.isroutine(function)
            doc = described.get(member) or (inspect.getdoc(value) if method else None)
            if doc:
                shown.add(member)
                head = f"`{_signature(member, function)}`" if inspect.isroutine(function) else f"`{member}`"
                yield f"- {head}: " + textwrap.indent(markdown(doc), "  ").strip()


def _attributes(cls: type) -> dict[str, str]:
    """The docstrings that stand below the fields of a class."""
    try:
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, ValueError):
        return {}
    body = getattr(tree, "body", [])
    return {before.target.id: inspect.cleandoc(after.value.value) for before, after in zip(body, body[1:], strict=False)
            if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)
            and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)}


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
        text = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not kinds.empty:
            text += f": {_annotation(parameter.annotation)}"
        if parameter.default is not kinds.empty:
            text += (" = " if ":" in text else "=") + _default(parameter.default)
        parts.append(text)
    returned = signature.return_annotation
    arrow = "" if returned is inspect.Signature.empty or inspect.isclass(function) else f" -> {_annotation(returned)}"
    return f"{name}({', '.join(parts)}){arrow}"


def _annotation(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.strip("'").replace("typing.", "")


def _default(value: Any) -> str:
    text = getattr(value, "__name__", None) or repr(value)
    return "…" if " at 0x" in text else text


def _code(text: str) -> str:
    if len(text) > 110 and "(" in text:
        head, _, rest = text.partition("(")
        inner, close, tail = rest.rpartition(")")
        lines = textwrap.wrap(inner, 110 - len(head), break_long_words=False, break_on_hyphens=False)
        text = f"{head}(" + ("\n" + " " * (len(head) + 1)).join(lines) + close + tail
    return f"```py\n{text}\n```"


# ---- what they say
_ROW = re.compile(r"(?P<term>\S+(?: \S+){0,6}?) {2,}(?P<text>\S.*)$")
_NO_ROW = (" ", ">>>", "..", "=", "-", "|", "*", "#", "`")


def markdown(doc: str | None) -> str:
    """A docstring as Markdown: aligned columns become a list, what is indented or a session becomes a block of code.

    >>> print(markdown("What it does.\\n\\nsize   elements\\n       of a side\\n\\n    f(3)"))
    What it does.
    <BLANKLINE>
    - `size`: elements of a side
    <BLANKLINE>
    ```py
    f(3)
    ```
    """
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(doc or ""))
    return "\n\n".join(_joined([made for block in blocks if block.strip() for made in _block(block)]))


def _joined(blocks: list[str]) -> Iterator[str]:
    """Neighbouring blocks of one piece of code as one."""
    held: list[str] = []
    for block in [*blocks, ""]:
        if held and not (held[-1].startswith("```py\n") and block.startswith("```py\n")):
            yield held.pop()
        if held:
            block = held.pop().removesuffix("\n```") + "\n\n" + block.removeprefix("```py\n")
        held.append(block)


def _block(block: str) -> Iterator[str]:
    lines = block.split("\n")
    if re.match(r"=+( +=+)+$", lines[0]):
        yield _table(lines)
    elif lines[0].startswith(">>>"):
        yield "```pycon\n" + block + "\n```"
    elif lines[0].startswith(" "):
        yield "```py\n" + textwrap.dedent(block) + "\n```"
    elif _columns(lines):
        yield _list(lines, _columns(lines))
    else:
        indented = next((number for number, line in enumerate(lines) if line.startswith(" ")), len(lines))
        text, code = "\n".join(lines[:indented]), "\n".join(lines[indented:])
        yield re.sub(r"(?<!`)::$", ":", text)
        if code:
            yield "```py\n" + textwrap.dedent(code) + "\n```"


def _columns(lines: list[str]) -> int:
    """Where the text begins in ``term   text``, in aligned columns; 0: these lines are none."""
    if lines[0].startswith(_NO_ROW):
        return 0
    row = _ROW.match(lines[0])
    column = row.start("text") if row else len(lines[1]) - len(lines[1].lstrip()) if len(lines) > 1 else 0
    aligned = all(line[:column].isspace() or line[column - 1:column] == " " and line[column:column + 1].strip()
                  or len(line) <= column + 8 or _ROW.match(line) for line in lines)
    return column if column and (row or len(lines[0].split()) <= 3) and aligned else 0


def _list(lines: list[str], column: int) -> str:
    items: list[str] = []
    for line in lines:
        if line[:column].isspace() and items:
            items[-1] += (" " if "`: " in items[-1] else ": ") + line.strip()
        elif line[column - 1:column] == " " and line[column:].strip():
            items.append(f"- `{line[:column].strip()}`: {line[column:].strip()}")
        else:
            row = _ROW.match(line)
            items.append(f"- `{row['term']}`: {row['text']}" if row else f"- `{line.strip()}`")
    return "\n".join(items)


def _table(lines: list[str]) -> str:
    """A table whose columns are marked by lines of "=" as one of Markdown."""
    starts = [found.start() for found in re.finditer(r"=+", lines[0])]
    rules = [number for number, line in enumerate(lines) if line.startswith("==")]
    rows: list[list[str]] = []
    for number, line in enumerate(lines):
        if number in rules:
            continue
        ends = [*(start - 1 for start in starts[1:]), None]
        cells = [line[start:end].strip().replace("|", "\\|") for start, end in zip(starts, ends, strict=True)]
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
