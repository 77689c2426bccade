"""Sphinx: ``pip install -e '.[docs]' && sphinx-build -W docs build/docs``.

The reference pages are made of docstrings. Which names there are is asked of the packages (`reference`), so that no list has to be
kept; docstrings are plain text with aligned columns, which become definition lists here, and indented code (`plain_text`).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpipe

project = "numpipe"
copyright = "the numpipe authors"
release = version = numpipe.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "results/*_*.md"]  # tables, which pages include
html_theme = "furo"
html_title = f"numpipe {release}"
default_role = "code"
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures say them


# ---- which names
def reference(app: Any, docname: str, source: list[str]) -> None:
    """Put the directives where a page says ``{numpipe-reference} package``."""
    source[0] = re.sub(r"^\{numpipe-reference\} (\S+)$", lambda found: "\n".join(_package(found[1])), source[0], flags=re.MULTILINE)


def _package(name: str) -> Iterator[str]:
    if importlib.util.find_spec(name) is None:  # a part that this version does not have
        return
    package = importlib.import_module(name)
    if not hasattr(package, "__all__"):  # a module among the others of its page
        yield f"## {name}\n"
        yield from _rst(f".. automodule:: {name}")
        yield from _names(name, _public(package))
        return
    if name == "numpipe.intrinsics":
        for family in package.__all__:
            module = importlib.import_module(f"{name}.{family}")
            yield f"## {family}\n"
            yield from _rst(f".. automodule:: {module.__name__}")
            yield from _names(module.__name__, _public(module))
        return
    left = list(package.__all__)
    for title, names in _groups(package.__doc__ or ""):
        chosen = [each for each in names if each in left]
        left = [each for each in left if each not in chosen]
        if chosen:
            yield f"## {title[0].upper()}{title[1:]}\n"
            yield from _names(name, chosen)
    if left:
        yield from [f"## {'More' if len(left) < len(package.__all__) else 'Names'}\n", *_names(name, left)]


def _groups(doc: str) -> list[tuple[str, list[str]]]:
    """(title, names) of the table in a package's docstring: a title, columns of spaces, names in backquotes."""
    groups: list[tuple[str, list[str]]] = []
    for line in doc.splitlines():
        row = re.match(r"(\w+(?: \w+)*)?\s{2,}(.*`.*)$", line)
        if row and row[1]:
            groups.append((row[1], []))
        if row and groups:
            groups[-1][1].extend(re.findall(r"`(\w+)`", row[2]))
    return groups


def _public(module: Any) -> list[str]:
    """What a module of intrinsics defines for others, in its order."""
    def own(name: str, value: Any) -> bool:
        home = getattr(value, "__module__", None)
        return not name.startswith("_") and callable(value) and home == module.__name__

    return [name for name, value in vars(module).items() if own(name, value)]


def _names(package: str, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        value = getattr(importlib.import_module(package), name)
        home = getattr(value, "__module__", package)
        elsewhere = package != "numpipe" and (name in numpipe.__all__ or not f"{home}.".startswith(f"{package}."))
        options = [":no-index:"] if elsewhere else []  # its own page has the entry of the index
        if inspect.isclass(value):
            bases = [":show-inheritance:"] if issubclass(value, BaseException) else []
            parts = [":inherited-members:"] if name in ("Kernel", "Trace") else []  # which are in several files
            yield from _rst(f".. autoclass:: {package}.{name}", ":members:", *parts, *bases, *options)
        elif callable(value):
            yield from _rst(f".. autofunction:: {package}.{name}", *options)
        else:
            yield from _rst(f".. py:data:: {package}.{name}", *([f":value: {value!r}"] if len(repr(value)) < 100 else []), *options)


def _rst(directive: str, *options: str) -> list[str]:
    return ["```{eval-rst}", directive, *(f"   {option}" for option in options), "```\n"]


# ---- what they say
_ROW = re.compile(r"(?P<term>\S+(?: \S+){0,6}?) {2,}(?P<text>\S.*)$")
_OWN_BLOCK = (" ", "..", ":", "-", "*", "=", "#")
_NO_ROW = (" ", ">>>", "..", "=", "-", "|", "*")


def plain_text(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """``term   what it is`` in aligned columns, line below line, becomes a definition list; what is indented is code."""
    made: list[str] = []
    column = 0  # where the text of the list that we are in begins
    fenced = literal = False
    for number, line in enumerate(lines):
        after = lines[number + 1:]
        following = next((each for each in after if each.strip()), "")
        starts = number == 0 or not lines[number - 1].strip()
        if re.match(r"=+( +=+)+$", line):  # a table's lines begin and end a blank line apart
            fenced = bool(after and after[0].strip())
        if line.strip() and not line.startswith(" "):
            literal = False
        row = None if fenced or literal or line.startswith(_NO_ROW) else _ROW.match(line)
        if column and line.strip() and not line.startswith(" "):
            if len(line) > column and line[column - 1] == " " and line[column] != " ":
                made += [_term(line[:column]), "    " + line[column:]]
            elif row:
                made += [_term(row["term"]), "    " + row["text"]]
            elif after and after[0].startswith(" " * column):
                made.append(_term(line))
            else:
                column = 0
                made += ["", line]
        elif column and line.strip():
            made.append("    " + (line[column:] if line[:column].isspace() else line.strip()))
        elif column:
            made.append("")
            if not following.startswith(" "):
                column = 0
        elif row and starts:
            column = row.start("text")
            made += [_term(row["term"]), "    " + row["text"]]
        else:
            if line.startswith(" ") and starts and not (literal or fenced) and made and not _before(made).startswith(_OWN_BLOCK):
                made += ["::", ""]
                literal = True
            made.append(line)
        literal = literal or (not column and line.rstrip().endswith("::"))
    lines[:] = made


def _before(made: list[str]) -> str:
    return next((line for line in reversed(made) if line.strip()), "..")


def _term(text: str) -> str:
    return text.strip().replace("*", "\\*")


def setup(app: Any) -> None:
    app.connect("source-read", reference)
    app.connect("autodoc-process-docstring", plain_text)
