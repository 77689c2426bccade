"""Positions in errors: the line, the underlined part, in any file, and the table that maps Numba's
lines back."""
# ruff: noqa: F841 (kernels that are wrong on purpose)

from __future__ import annotations

import ast
import importlib.util
import inspect
import linecache
import textwrap
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, CompileError, NumpipeError, PipelineRace, SpecError, ds
from numpipe.compile.check import error_lines
from numpipe.compile.lift.constants import StaticArray
from numpipe.compile.lift.lift import Lifted, lift, read
from numpipe.compile.lift.positions import FIRST, Positions, Source
from numpipe.errors import Position
from numpipe.plan.unit import Unit
from tests.kernels import kernels_for_tests
from tests.kernels.refusals import EXECUTIONS, A, B, C, needs_columns
from tests.misuse import language as misuse_language

both = pytest.mark.parametrize("execution", EXECUTIONS.values(), ids=EXECUTIONS)
exactly = pytest.mark.parametrize(
    "execution",
    [
        pytest.param(execution, id=name, marks=needs_columns if name == "simulated" else ())
        for name, execution in EXECUTIONS.items()
    ],
)


@pytest.fixture(autouse=True)
def _each_execution_for_itself(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    before = dict(linecache.cache)
    yield
    linecache.cache.clear()
    linecache.cache.update(before)


# ---- underlining -----------------------------------------------------------------------------
def drawn(text: str, column: int, end_column: int, end_line: int = 1) -> list[str]:
    return Position("k.py", 1, column, end_line, end_column, text).snippet().split("\n")


def test_indentation_is_taken_off() -> None:
    assert drawn("        x = first + 1", 12, 17) == ["    x = first + 1", "        ^^^^^"]


def test_a_tab_ahead_stays_a_tab() -> None:
    assert drawn("\tif x:\ty = first", 11, 16) == ["    if x:\ty = first", "         \t    ^^^^^"]


def test_a_wide_character_takes_two_columns_and_a_combining_one_none() -> None:
    assert drawn("名 = e\u0301 + first", 9, 14) == [
        "    名 = e\u0301 + first",
        "    " + " " * 9 + "^^^^^",
    ]
    assert drawn("x = 名前", 4, 6) == ["    x = 名前", "        ^^^^"]


@pytest.mark.parametrize(
    "line, code",
    [
        ("x = f(1,", "f(1,"),
        ("x = f('#', # why", "f('#',"),
        ("x = f(1)  + \\", "f(1)  +"),
        ("x = '''one", "'''one"),
        ("x = f(1,  # ^^ <-", "f(1,"),
    ],
)
def test_what_goes_on_below_is_underlined_to_the_end_of_its_code(line: str, code: str) -> None:
    assert drawn(line, 4, 3, end_line=2) == ["    " + line, "        " + "^" * len(code)]


def test_without_the_text_there_is_the_line() -> None:
    assert Position("k.py", 7).stamp("wrong\nand more") == "k.py:7: wrong\nand more"


def test_a_report_goes_on_below_the_carets() -> None:
    assert (
        Position("k.py", 7, 4, 7, 5, "x = y").stamp("wrong\nand more")
        == "k.py:7: wrong\n    x = y\n        ^\nand more"
    )


# ---- positions of nodes ----------------------------------------------------------------------
def functions(module: Any) -> Iterator[Callable[..., Any]]:
    for value in vars(module).values():
        function = getattr(value, "function", value)
        if (
            inspect.isfunction(function)
            and function.__module__ == module.__name__
            and function.__name__ != "<lambda>"
        ):
            yield function


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "module", [kernels_for_tests, misuse_language], ids=lambda module: module.__name__
)
def test_the_underlined_text_of_an_expression_is_its_source(module: Any) -> None:
    seen = 0
    misused = [case.kernel.function for case in getattr(module, "refused", [])]
    for function in misused or functions(module):
        source = read(function)
        text = "".join(linecache.getlines(function.__code__.co_filename))
        for node in ast.walk(source.parse()):
            if isinstance(node, ast.expr) and node.lineno == node.end_lineno:
                position = source.position(node)
                assert position.text[slice(*position.columns)] == ast.get_source_segment(text, node)
                seen += 1
    assert seen > 100


# fmt: off
class Indented:
    @staticmethod
    def kernel(a, c):
        """A string that goes on
at column 0, and code that does:"""
        x = "é" + \
a.shape
        return (a
                .first
                .second(x))
# fmt: on


def test_columns_match_the_file_whatever_the_indentation() -> None:
    source = read(Indented.kernel)
    found = {
        ast.unparse(node).partition("\n")[0]: source.position(node)
        for node in ast.walk(source.parse())
        if isinstance(node, (ast.expr, ast.stmt))
    }
    file = Path(__file__).read_text(encoding="utf8").splitlines()
    for code, part in (
        ("a.shape", "a.shape"),
        ("'é' + a.shape", '"é" +'),
        ("a.first", "first"),
        ("a.first.second(x)", "second(x)"),
        ("@staticmethod", "def kernel(a, c):"),
    ):
        position = found[code]
        assert position.text == file[position.line - 1]
        assert position.text[slice(*position.columns)] == part, code


def test_of_a_compound_statement_the_header_is_underlined() -> None:
    def kernel(a):
        # fmt: off
        for i in range(
                3):
            if i > 1: x = i  # noqa: E701
            while x < 3:
                pass
        # fmt: on

    source = read(kernel)
    texts = [
        position.text[slice(*position.columns)]
        for node in ast.walk(source.parse())
        if isinstance(node, (ast.For, ast.If, ast.While)) and (position := source.position(node))
    ]
    assert texts == ["for i in range(", "if i > 1", "while x < 3"]


# ---- the table -----------------------------------------------------------------------------------
def lifted(function: Callable[..., Any]) -> Lifted:
    names = list(inspect.signature(function).parameters)
    unit = Unit(function.__name__, (), (), "wg", 1, 40)
    return lift(read(function), names, {n: StaticArray(np.dtype("f2"), 2) for n in names}, unit)


def codes(function: Callable[..., Any]) -> list[Any]:
    return [
        function.__code__,
        *(
            value.__code__
            for name, value in function.__globals__.items()
            if "__" in name
            and inspect.isfunction(value)
            and value.__module__ == function.__module__
        ),
    ]


def test_numba_gets_a_line_for_each_expression_and_the_simulator_the_lines_of_the_file() -> None:
    def kernel(a, c):
        def rows(n):
            return n + a.shape[0]

        x = rows(1) + rows(2)

    result, (lines, first) = lifted(kernel), inspect.getsourcelines(kernel)
    true = {
        line for code in codes(result.simulated) for *_, line in code.co_lines() if line is not None
    }
    fake = {
        line for code in codes(result.compiled) for *_, line in code.co_lines() if line is not None
    }
    assert true <= set(range(first, first + len(lines)))
    assert fake and min(fake) >= FIRST
    underlined = {
        position.text[slice(*position.columns)]
        for line in fake
        if (position := result.positions.find(line))
    }
    assert {"rows(1)", "rows(2)", "rows(1) + rows(2)", "n + a.shape[0]", "a.shape"} <= underlined
    assert all(result.positions.find(line) is None for line in (*true, FIRST - 1, FIRST + 100_000))


def test_one_table_holds_functions_of_several_files() -> None:
    positions = Positions()
    text = "x = y.z(1)"
    modules = [ast.parse(text) for _ in range(2)]
    for name, module in zip(("one.py", "two.py"), modules, strict=True):
        positions.renumber(module, Source("x", name, 1, (text,), {}))
    found = [
        {positions.find(node.lineno) for node in ast.walk(module) if hasattr(node, "lineno")}
        for module in modules
    ]
    parts = [(0, 10), (0, 1), (4, 10), (4, 7), (4, 5), (8, 9)]
    assert found == [
        {Position(name, 1, begin, 1, end, text) for begin, end in parts}
        for name in ("one.py", "two.py")
    ]
    for module in modules:
        compile(module, "x.py", "exec")


def test_an_error_that_is_nowhere_is_at_the_definition() -> None:
    def kernel(a, c):
        x = 1

    unit = Unit("kernel", (), (), "wg", 1, 40)
    told = str(error_lines.compiled(ValueError("what it is"), unit, lifted(kernel))).split("\n")
    assert told == [
        f"{__file__}:{inspect.getsourcelines(kernel)[1]}: kernel kernel: `def kernel(a, c):` "
        "cannot be compiled: ValueError: what it is",
        "    def kernel(a, c):",
        "    ^^^^^^^^^^^^^^^^^",
    ]


# ---- whole errors --------------------------------------------------------------------------------
def refused(execution: Callable[..., Any], kernel: Any, *args: Any) -> list[str]:
    with pytest.raises(NumpipeError) as caught:
        execution(kernel, *args)
    return str(caught.value).split("\n")


def made(path: Path, text: str) -> Any:
    """Return a module made from a file with this text."""
    path.write_text(text, encoding="utf8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@exactly
def test_a_helper_of_another_module_is_shown_with_the_call_that_led_there(
    execution: Any, tmp_path: Path
) -> None:
    helpers = made(
        tmp_path / "helpers_of_mine.py",
        textwrap.dedent("""\
        import numpipe

        @numpipe.function
        def part(tile, columns):
            return tile.at[:, numpipe.ds(0, columns)]
        """),
    )

    @numpipe.kernel
    def kernel(a, c):
        for (k,), (x,) in numpipe.pipeline(
            grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )(a):
            y = helpers.part(x, 12)

    first, line, carets, *calls = refused(execution, kernel, A, C)
    assert first.startswith(
        f"{helpers.__file__}:5: kernel kernel: tile.at[…]: ds(start, 12) along axis 1 of a tile "
        "(64, 64)"
    )
    assert (line, carets) == (
        "    return tile.at[:, numpipe.ds(0, columns)]",
        "           " + "^" * 34,
    )
    assert calls == [f"  called at {__file__}:{inspect.getsourcelines(kernel.function)[1] + 5}"]


WRONG = """\
import numpipe

@numpipe.kernel
def kernel(a, c):
    x = a.shape[0] + a.nothing
"""


@exactly
def test_a_file_that_changed_is_shown_as_it_ran(execution: Any, tmp_path: Path) -> None:
    path = tmp_path / "edited.py"
    module = made(path, WRONG)
    path.write_text("# nothing of this is what runs\n" * 9)
    linecache.checkcache(str(path))
    assert refused(execution, module.kernel, A, C)[1:] == [
        "    x = a.shape[0] + a.nothing",
        " " * 21 + "^" * 9,
    ]


@exactly
@pytest.mark.parametrize(
    "filename",
    [
        "<ipython-input-3-5bd1e4a1b0c2>",
        "/tmp/ipykernel_71/2346123412.py",
        "<python-input-0>",
        "<doctest a_page[2]>",
    ],
)
def test_cells_and_prompts_are_shown(execution: Any, filename: str) -> None:
    linecache.cache[filename] = (len(WRONG), None, WRONG.splitlines(True), filename)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(WRONG, filename, "exec"), namespace)
    first, *snippet = refused(execution, namespace["kernel"], A, C)
    assert first.startswith(f"{filename}:5: kernel kernel: ")
    assert snippet == ["    x = a.shape[0] + a.nothing", " " * 21 + "^" * 9]


@exactly
def test_letters_take_the_columns_they_take_on_a_terminal(execution: Any, tmp_path: Path) -> None:
    module = made(tmp_path / "wide.py", WRONG.replace("    x = ", "    π, 名 = 3,\t"))
    assert refused(execution, module.kernel, A, C)[1:] == [
        "    π, 名 = 3,\ta.shape[0] + a.nothing",
        " " * 14 + "\t" + " " * 13 + "^" * 9,
    ]


def test_without_columns_the_statement_is_underlined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In Python 3.10 a traceback's frame has only its line."""
    module = made(tmp_path / "lines.py", WRONG)
    monkeypatch.setattr(error_lines.sys, "version_info", (3, 10))
    assert refused(EXECUTIONS["simulated"], module.kernel, A, C)[1:] == [
        "    x = a.shape[0] + a.nothing",
        "    " + "^" * 26,
    ]


@needs_columns
def test_a_race_is_reported_below_its_line() -> None:
    @numpipe.kernel
    def early(a, b, c):
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(2,),
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
        )
        for (k,), (x, y) in pipe(a, b):
            acc = numpipe.wgmma(acc, x, y.T)
            c[ds(0, 64), ds(0, 64)] = acc * 2.0

    with pytest.raises(PipelineRace) as caught:
        early.simulate(A, B, C)
    first, line, carets = str(caught.value).split("\n")
    assert "is read before wgmma_wait has covered it" in first
    assert (line, carets) == ("    c[ds(0, 64), ds(0, 64)] = acc * 2.0", " " * 30 + "^" * 9)


@pytest.mark.parametrize(
    "said, told",
    [
        (
            "Cannot unify int32 and float32 for 'x.2', defined at k.py (1000007)",
            "'x' has two types here (int32 and float32); fix: assign it in one place, or the "
            "same type everywhere",
        ),
        ("Unknown attribute 'foo' of type Literal[int](3)", "3 has no attribute 'foo'"),
        (
            "no luck with UniTuple(int64 x 2), UniTuple(int32 x 1) and Tuple(int32, float64)",
            "no luck with (int64, int64), (int32,) and (int32, float64)",
        ),
        ("It fails. That is\n a long story.\n\nAnd more", "It fails"),
        ("a run-time inert(the warpgroup axis)", "the warpgroup axis"),
    ],
)
def test_numbas_words_become_ours(said: str, told: str) -> None:
    def kernel(a, c):
        x = 1

    error = str(
        error_lines.compiled(
            CompileErrorOfNumba(said), Unit("kernel", (), (), "wg", 1, 40), lifted(kernel)
        )
    )
    assert error.split("\n")[0].endswith(f"cannot be compiled: {told}")


def CompileErrorOfNumba(text: str) -> Exception:
    from numpipe.core.numba import TypingError

    return TypingError(text)


def test_an_error_is_stamped_once() -> None:
    def kernel(a, c):
        x = 1

    unit, result = Unit("kernel", (), (), "wg", 1, 40), lifted(kernel)
    place = result.sources[0].definition
    error = error_lines.stamp(CompileError("wrong"), unit, result, [place])
    once = str(error)
    assert once.startswith(f"{__file__}:{place.line}: kernel kernel: wrong\n    def kernel")
    inner = result.sources[0].statement(place.line + 1)
    assert str(error_lines.stamp(error, unit, result, [place, inner])) == once


@pytest.mark.parametrize(
    "said, told",
    [
        (
            "index_map must return a tuple, got (np.int32(0), np.float32(-0.5))",
            "index_map must return a tuple, got (int32, float32)",
        ),
        (
            "5000000000 does not fit: write np.int64(5000000000)",
            "5000000000 does not fit: write np.int64(5000000000)",
        ),
        (
            "unsupported operand type(s) for +: 'GmemRef' and 'numpy.int32'",
            "unsupported operand type(s) for +: 'array' and 'int32'",
        ),
        ("rows__12() takes 1 positional argument", "rows() takes 1 positional argument"),
    ],
)
def test_pythons_words_become_ours(said: str, told: str) -> None:
    assert error_lines.spoken(said) == told


def test_a_traceback_shows_none_of_numbas_frames() -> None:
    """At a prompt the error must not follow three hundred lines of Numba."""

    @numpipe.kernel
    def kernel(a, c):
        def tile(rows):
            return numpipe.zeros((64, rows), np.float32)

        c[ds(0, 64), ds(0, 64)] = tile(a.shape[0])

    with pytest.raises(SpecError) as caught:
        kernel.compiled(np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float32))
    shown = "".join(traceback.format_exception(caught.value))
    assert "numba_cuda" not in shown and len(shown.splitlines()) < 40
