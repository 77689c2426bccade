"""Kernels wherever Python allows a function: in files, classes, notebook cells, prompts, doctests;
and errors without source."""

from __future__ import annotations

import doctest
import importlib.util
import linecache
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import CompileError, SpecError

HEADER = """\
import functools
from typing import Any
import numpy as np
import numpipe
from numpipe import ArrayType, ds, zeros

def result(a: Any) -> ArrayType:
    return ArrayType((64, 64), np.float32)

"""
A = np.zeros((8, 8), np.float16)
VALUE = 5.0


@pytest.fixture(autouse=True)
def _each_execution_for_itself(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    before = dict(linecache.cache)
    yield
    linecache.cache.clear()
    linecache.cache.update(before)


def module(path: Path, text: str, name: str = "a_module_of_kernels") -> ModuleType:
    """Return a module made from a file with this text."""
    path.write_text(HEADER + text, encoding="utf8")
    return imported(path, name)


def imported(path: Path, name: str = "a_module_of_kernels") -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def cell(
    filename: str, text: str, namespace: dict[str, Any] | None = None, header: str = HEADER
) -> dict[str, Any]:
    """Run an input as IPython does, and Python's own prompt since 3.13.

    Its text is kept in linecache under a generated name.
    """
    text = header + text
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    namespace = {"__name__": "__main__"} if namespace is None else namespace
    exec(compile(text, filename, "exec"), namespace)
    return namespace


def value(kernel: Any) -> float:
    """Return the value that a kernel without further arguments stores to all elements, in both
    executions."""
    c = kernel.simulate(A)
    assert (c == c[0, 0]).all()
    assert ".visible .entry" in kernel.inspect("ptx", A)
    return float(c[0, 0])


# ---- in files
WAYS = {
    "a function of a module": """
@numpipe.kernel(out_type=result)
def kernel(a, c):
    c[ds(0, 64), ds(0, 64)] = zeros((64, 64), np.float32) + 5.0
""",
    "a closure": """
def make(value):
    rows = 64
    @numpipe.kernel(out_type=result)
    def kernel(a, c):
        c[ds(0, rows), ds(0, 64)] = zeros((rows, 64), np.float32) + value
    return kernel
kernel = make(5.0)
""",
    "a function of a method": """
class Maker:
    def __init__(self, value):
        self.value = value
    def make(self):
        @numpipe.kernel(out_type=result)
        def kernel(a, c):
            c[ds(0, 64), ds(0, 64)] = zeros((64, 64), np.float32) + self.value
        return kernel
kernel = Maker(5.0).make()
""",
    "a static method": """
class Kernels:
    @staticmethod
    @numpipe.kernel(out_type=result)
    def kernel(a, c):
        c[ds(0, 64), ds(0, 64)] = zeros((64, 64), np.float32) + 5.0
kernel = Kernels.kernel
""",
    "a static method of a nested class, without decorator syntax": """
class Outer:
    class Kernels:
        def plain(a, c):
            c[ds(0, 64), ds(0, 64)] = zeros((64, 64), np.float32) + 5.0
        kernel = staticmethod(numpipe.kernel(plain, out_type=result))
kernel = Outer.Kernels.kernel
""",
    "decorators on top and between lines": """
def remembered(kernel):
    return kernel
@remembered

@numpipe.kernel(
    out_type=result,
)
# a comment
def kernel(
    a,
    c,
):
    c[ds(0, 64), ds(0, 64)] = zeros((64, 64), np.float32) + 5.0
""",
    "annotations": """
S = numpipe.Static
@numpipe.kernel(out_type=result)
def kernel(
    a: np.ndarray, c: "np.ndarray", n: int = 3, *, rows: S = 64, value: "numpipe.Static" = 2.0
) -> None:
    x: Any = zeros((rows, 64), np.float32)
    c[ds(0, rows), ds(0, 64)] = x + value + n
""",
    "annotations that name what is imported for checkers only": """
@numpipe.kernel(out_type=result)
def kernel(a: "torch.Tensor", c: "nowhere.Array", *, rows: "numpipe.Static" = 64) -> "Nothing":
    c[ds(0, rows), ds(0, 64)] = zeros((rows, 64), np.float32) + 5.0
""",
    "a docstring, comments, line continuations": '''
@numpipe.kernel(out_type=result)
def kernel(a, c):
    """What it does:

  less indented than the code
    def kernel(a, c):  # not this one
    """
    # a comment
  # one at another depth
    c[ds(0, 64), \\
      ds(0, 64)] = zeros((64, 64), np.float32) \\
        + 5.0; pass
''',
    "strings at column 0 in a block": '''
if True:
    def make():
        @numpipe.kernel(out_type=result)
        def kernel(a, c):
            """
first column
"""
            text = """\\
first column again
"""
            c[ds(0, 64), ds(0, 64)] = zeros((64, 64), np.float32) + len(text) - 14.0
        return kernel
    kernel = make()
''',
    "a line of its own": """
@numpipe.kernel(out_type=result)
def kernel(a, c): c[ds(0, 64), ds(0, 64)] = zeros((64, 64), np.float32) + 5.0
""",
    "two of the same name": """
@numpipe.kernel(out_type=result)
def kernel(a, c):
    c[ds(0, 64), ds(0, 64)] = zeros((64, 64), np.float32) + 4.0
FOUR = float(kernel.simulate(np.zeros((8, 8), np.float16))[0, 0])
@numpipe.kernel(out_type=result)
def kernel(a, c):
    c[ds(0, 64), ds(0, 64)] = zeros((64, 64), np.float32) + FOUR + 1.0
""",
    "a branch": """
if numpipe.__version__ == "none":
    @numpipe.kernel(out_type=result)
    def kernel(a, c):
        c[ds(0, 64), ds(0, 64)] = zeros((64, 64), np.float32) + 4.0
else:
    try:
        @numpipe.kernel(out_type=result)
        def kernel(a, c):
            c[ds(0, 64), ds(0, 64)] = zeros((64, 64), np.float32) + 5.0
    finally:
        pass
""",
    "tabs": """
@numpipe.kernel(out_type=result)
def kernel(a, c):
\tif a.shape[0] > 0:
\t\tc[ds(0, 64), ds(0, 64)] = zeros((64, 64), np.float32) + 5.0
""",
    "other letters": """
@numpipe.kernel(out_type=result)
def kernel(a, c):
    größe, текст = 64, "日本語"
    c[ds(0, größe), ds(0, 64)] = zeros((größe, 64), np.float32) + 2.0 + len(текст)
""",
}


@pytest.mark.variants(2)
@pytest.mark.parametrize("way", WAYS)
def test_a_kernel_is(tmp_path: Path, way: str) -> None:
    assert value(module(tmp_path / "kernels.py", WAYS[way]).kernel) == VALUE


@pytest.mark.variants(2)
@pytest.mark.parametrize("way", WAYS)
def test_an_input_of_a_prompt_may_hold(way: str) -> None:
    assert value(cell("<python-input-0>", WAYS[way])["kernel"]) == VALUE


@pytest.mark.parametrize("way", ["a function of a module", "annotations", "a closure"])
def test_annotations_may_be_strings_everywhere(tmp_path: Path, way: str) -> None:
    path = tmp_path / "kernels.py"
    path.write_text("from __future__ import annotations\n" + HEADER + WAYS[way], encoding="utf8")
    assert value(imported(path).kernel) == VALUE


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: ("# coding: latin-1\n" + text.replace("value", "gr\u00f6\u00dfe")).encode(
            "latin-1"
        ),
        lambda text: text.replace("\ndef make", "\n\x0cdef make").encode(),
        lambda text: text.rstrip("\n").encode(),
    ],
    ids=["CRLF", "a byte order mark", "latin-1", "a form feed", "no newline at the end"],
)
def test_a_file_may_be_encoded_as_python_allows(
    tmp_path: Path, change: Callable[[str], bytes]
) -> None:
    path = tmp_path / "kernels.py"
    path.write_bytes(change(HEADER + WAYS["a closure"]))
    assert value(imported(path).kernel) == VALUE


def test_a_kernel_in_a_zip_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "kernels.zip", "w") as archive:
        archive.writestr("zipped_kernels.py", HEADER + WAYS["a function of a module"])
    monkeypatch.syspath_prepend(tmp_path / "kernels.zip")
    assert value(importlib.import_module("zipped_kernels").kernel) == VALUE


@pytest.mark.thorough
def test_a_script_in_another_folder_by_a_relative_path(tmp_path: Path) -> None:
    """The file is not found under that name after the script changes its folder."""
    (tmp_path / "script.py").write_text(
        HEADER
        + WAYS["a function of a module"]
        + """
import os
os.chdir("/")
print(kernel.simulate(np.zeros((8, 8), np.float16))[0, 0])
""",
        encoding="utf8",
    )
    assert (
        subprocess.run(
            [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        == "5.0\n"
    )


# ---- files that change
def test_a_file_edited_after_the_import_is_compiled_as_it_was_imported(tmp_path: Path) -> None:
    path, text = tmp_path / "kernels.py", WAYS["a function of a module"]
    kernel = module(path, text).kernel
    path.write_text("\n\n" + HEADER + text.replace("5.0", "6.0"), encoding="utf8")
    assert value(kernel) == VALUE
    assert value(imported(path, "imported_again").kernel) == 6


def test_a_file_removed_after_the_import_was_imported_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    kernel = module(path, WAYS["a static method"]).kernel
    path.unlink()
    assert value(kernel) == VALUE


def test_an_error_after_an_edit_shows_the_line_that_was_imported(tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    kernel = module(
        path, "@numpipe.kernel(out_type=result)\ndef kernel(a, c):\n    c[0, 0] = nowhere\n"
    ).kernel
    line = len(HEADER.splitlines()) + 3
    path.write_text("# something else\n" * 40, encoding="utf8")
    with pytest.raises(CompileError) as caught:
        kernel.simulate(A)
    told = str(caught.value)
    assert (
        told.startswith(f"{path}:{line}: kernel kernel: name 'nowhere' is not defined")
        and "c[0, 0] = nowhere" in told
    )


def test_what_a_kernel_calls_is_remembered_too(tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    text = """
@numpipe.function
def plus(x):
    return x + 5.0
@numpipe.kernel(out_type=result)
def kernel(a, c):
    c[ds(0, 64), ds(0, 64)] = plus(zeros((64, 64), np.float32))
"""
    kernel = module(path, text).kernel
    path.write_text(HEADER + text.replace("5.0", "6.0"), encoding="utf8")
    assert value(kernel) == VALUE


def test_a_function_that_is_given_other_code_has_the_source_of_that_code() -> None:
    """Tools that reload modules replace the code of existing functions."""
    text = "def kernel(a, c):\n    c[ds(0, 64), ds(0, 64)] = zeros((64, 64), np.float32) + 5.0\n"
    old = cell("<old>", text.replace("5.0", "4.0"))
    numpipe.kernel(old["kernel"])
    old["kernel"].__code__ = cell("<new>", text)["kernel"].__code__
    assert value(numpipe.kernel(old["kernel"], out_type=old["result"])) == VALUE


# ---- notebooks and prompts
@pytest.mark.variants(2)
@pytest.mark.parametrize(
    "names",
    [
        ("<ipython-input-1-0a1b2c>", "<ipython-input-2-0a1b2d>"),
        ("/tmp/ipykernel_77/1234.py", "/tmp/ipykernel_77/1235.py"),
        ("<python-input-0>", "<python-input-1>"),
        ("Cell 1", "Cell 1"),
    ],
)
def test_a_cell_that_is_run_again_wins(names: tuple[str, str]) -> None:
    text = WAYS["a function of a module"]
    namespace = cell(names[0], text)
    old = namespace["kernel"]
    assert value(old) == VALUE
    cell(names[1], text.replace("5.0", "6.0"), namespace)
    assert value(namespace["kernel"]) == 6
    # types that it was not compiled for before
    assert (old.simulate(np.zeros((8, 8), np.float32)) == VALUE).all()


def test_a_kernel_sees_what_other_cells_bind_when_it_is_first_compiled() -> None:
    namespace = cell(
        "<python-input-0>",
        """
@numpipe.kernel(out_type=result)
def kernel(a, c):
    c[ds(0, 64), ds(0, 64)] = zeros((64, 64), np.float32) + LATER
""",
    )
    exec(compile("LATER = 5.0", "<python-input-1>", "exec"), namespace)
    assert value(namespace["kernel"]) == VALUE


def test_an_error_in_a_cell_names_the_cell_and_shows_the_line() -> None:
    namespace = cell(
        "<ipython-input-3-77>", "@numpipe.kernel\ndef kernel(a, c):\n    c[0, 0] = nowhere\n"
    )
    linecache.cache.pop("<ipython-input-3-77>")
    with pytest.raises(CompileError) as caught:
        namespace["kernel"].compiled(A, A)
    line = len(HEADER.splitlines()) + 3
    assert str(caught.value).splitlines()[:2] == [
        f"<ipython-input-3-77>:{line}: kernel kernel: name 'nowhere' is not defined",
        "    c[0, 0] = nowhere",
    ]


def test_a_doctest() -> None:
    text = """
    >>> @numpipe.kernel(out_type=result)
    ... def kernel(a, c):
    ...     c[ds(0, 64), ds(0, 64)] = zeros((64, 64), np.float32) + 5.0
    >>> kernel.simulate(np.zeros((8, 8), np.float16))[0, 0].item()
    5.0
    >>> '.entry' in kernel.inspect("ptx", np.zeros((8, 8), np.float16))
    True
    """
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(HEADER, namespace)
    test = doctest.DocTestParser().get_doctest(text, namespace, "a_doctest", __file__, 0)
    failed, ran = doctest.DocTestRunner(verbose=False).run(test)
    assert (failed, ran) == (0, 3)


# ---- without source
def said(*command: str, stdin: str | None = None) -> str:
    """Return the last line that a Python program prints when its kernel is first used."""
    ran = subprocess.run([sys.executable, *command], input=stdin, capture_output=True, text=True)
    return (ran.stdout + ran.stderr).strip().splitlines()[-1]


USED = (
    HEADER
    + WAYS["a function of a module"]
    + "print(kernel.simulate(np.zeros((8, 8), np.float16))[0, 0])\n"
)
NO_SOURCE = (
    "numpipe.errors.CompileError: kernel kernel: its source is not available ({}), and numpipe "
    "rewrites kernels from their source: {}"
)


def test_a_program_piped_into_python_has_none() -> None:
    assert said("-", stdin=USED) == NO_SOURCE.format(
        "<stdin>",
        "it was typed at a prompt that keeps no source (Python's before 3.13), or piped into "
        "python: write it to a file, or use a notebook or IPython",
    )


def test_a_program_on_the_command_line_has_none_before_python_3_13() -> None:
    assert said("-c", USED) == (
        "5.0"
        if sys.version_info >= (3, 13)
        else NO_SOURCE.format(
            "<string>", "it was made by exec() or 'python -c': write it to a file"
        )
    )


@pytest.mark.parametrize(
    "filename, fix",
    [
        ("<string>", "it was made by exec() or 'python -c': write it to a file"),
        (
            "<made 1>",
            "Python's linecache has no entry <made 1>: write it to a file, or set "
            "linecache.cache['<made 1>'] = (len(text), None, text.splitlines(True), '<made 1>') "
            "before running generated source",
        ),
        (
            "<timed exec>",
            "IPython keeps no source of a cell with %%time: define it in an earlier cell, without "
            "the magic",
        ),
        (
            "/nowhere/kernels.py",
            "the file cannot be read, or is not the one that was compiled: run python in the "
            "folder of the file, and import it again",
        ),
    ],
)
@pytest.mark.parametrize("execution", ["simulate", "compiled"])
def test_exec_without_linecache_says_what_is_missing(
    filename: str, fix: str, execution: str
) -> None:
    namespace: dict[str, Any] = {"__name__": "made"}
    exec(compile(HEADER + WAYS["a function of a module"], filename, "exec"), namespace)
    with pytest.raises(CompileError) as caught:
        getattr(namespace["kernel"], execution)(A)
    assert str(caught.value) == NO_SOURCE.format(filename, fix).partition(": ")[2]


def test_the_fix_for_generated_source_works() -> None:
    text, filename = HEADER + WAYS["a function of a module"], "<made 2>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    namespace: dict[str, Any] = {"__name__": "made"}
    exec(compile(text, filename, "exec"), namespace)
    assert value(namespace["kernel"]) == VALUE


def test_source_of_another_function_is_not_used() -> None:
    """linecache may have other text under a generic name."""
    text = HEADER + WAYS["a function of a module"]
    linecache.cache["<string>"] = (9, None, [f"x = {i}\n" for i in range(40)], "<string>")
    namespace: dict[str, Any] = {"__name__": "made"}
    exec(compile(text, "<string>", "exec"), namespace)
    with pytest.raises(CompileError, match="kernel kernel: its source is not available"):
        namespace["kernel"].simulate(A)


def test_a_function_without_a_def_is_refused(tmp_path: Path) -> None:
    made = module(
        tmp_path / "kernels.py", "async def later(a, c):\n    pass\nlambda_ = lambda a, c: None\n"
    )
    with pytest.raises(CompileError, match=r"kernels.py:\d+: a kernel must be a plain `def`"):
        numpipe.kernel(made.later).simulate(A, A)
    with pytest.raises(
        SpecError, match=r"kernels.py:\d+: a kernel must be a `def`: the source of a lambda"
    ):
        numpipe.kernel(made.lambda_)
