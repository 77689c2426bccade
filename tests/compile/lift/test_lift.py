"""The AST pass: constant folding, captures, line numbers, and the forms in which a kernel may be
written."""
# ruff: noqa: F841, RUF059 (kernels of which only the rewritten source is looked at)

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, BlockSpec, CompileError, SpecError, Static, cdiv, ds
from numpipe.compile.lift import nodes
from numpipe.compile.lift.constants import StaticArray
from numpipe.compile.lift.lift import _Lift, lift, read
from numpipe.compile.lift.positions import Source
from numpipe.plan.unit import Unit
from tests.kernels.refusals import EXECUTIONS, marked

ROWS = 64
SHAPE = (ROWS, 2 * ROWS)
NOTHING = None
HALF = np.float16
S = numpipe.Static
both = pytest.mark.parametrize("execution", EXECUTIONS)


@pytest.fixture(autouse=True)
def _each_execution_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@dataclass(frozen=True)
class Config:
    tm: int = 128
    sizes: tuple[int, ...] = (8, 16)
    bias: float | None = None
    count: int = 0


def lifted(function: Callable[..., Any], dtype: Any = np.float16, **statics: Any) -> Any:
    """Return the rewritten function of a kernel for 2-D arrays of `dtype` and Statics.

    It has two compute warpgroups.
    """
    names = [n for n in inspect.signature(function).parameters if n not in statics]
    unit = Unit(function.__name__, (), ("x",), "wg", 2, 40)
    return lift(
        read(function), names, statics | {n: StaticArray(np.dtype(dtype), 2) for n in names}, unit
    )


def body(function: Callable[..., Any], dtype: Any = np.float16, **statics: Any) -> list[str]:
    """Return the statements of the rewritten function, without indentation."""
    source = lifted(function, dtype, **statics).text
    return [line.strip() for line in source.splitlines() if not line.startswith("def ")]


# ---- folding -------------------------------------------------------------------------------------
def test_fields_of_a_static_are_literals() -> None:
    def kernel(a, *, cfg):
        x = cfg.tm // 2 + cfg.sizes[1]

    assert body(kernel, cfg=Config()) == ["x = 80"]


def test_the_size_of_the_warpgroup_axis_is_a_literal() -> None:
    def kernel(a):
        rows = 128 // numpipe.axis_size("wg")
        n = numpipe.axis_size("x")

    assert body(kernel) == ["rows = 64", "n = __np_axis_size('x')"]


def test_constants_of_the_module_and_of_the_enclosing_function_are_literals() -> None:
    width = 32

    def kernel(a):
        x = (ROWS * width, -width, SHAPE, SHAPE[1], NOTHING)

    assert body(kernel) == ["x = (2048, -32, (64, 128), 128, None)"]


def test_functions_of_constants_are_literals() -> None:
    def kernel(a):
        x = (cdiv(ROWS, 48), max(ROWS, 100), len(SHAPE), abs(-3))

    assert body(kernel) == ["x = (2, 100, 2, 3)"]


def test_a_local_bound_once_to_a_constant_is_a_literal_where_it_is_used() -> None:
    def kernel(a):
        n = ROWS // 2
        m = n + a.shape[0]
        k = n * 2

    assert body(kernel) == ["n = 32", "m = __np_add(32, a.shape[0])", "k = 64"]


def test_a_local_bound_twice_is_a_variable() -> None:
    def kernel(a):
        n = 0
        for i in range(3):
            n = n + 1
        m = n

    assert body(kernel)[-1] == "m = n"


def test_branches_on_the_dtype_are_decided() -> None:
    def kernel(a):
        if a.dtype == np.float16 and a.ndim == 2:
            x = 1
        elif a.dtype == np.float32:
            x = 2
        else:
            x = a.shape[0]

    assert body(kernel) == ["x = 1"]
    assert body(kernel, np.float32) == ["x = 2"]
    assert body(kernel, np.int8) == ["x = a.shape[0]"]


def test_dtypes_travel_as_their_names() -> None:
    def kernel(a):
        kind = np.float32
        x = numpipe.zeros((64, 64), kind)
        y = x.astype(a.dtype)
        z = x.astype(HALF)

    assert body(kernel) == [
        "x = numpipe.zeros((64, 64), 'float32')",
        "y = x.astype('float16')",
        "z = x.astype('float16')",
    ]


@pytest.mark.parametrize(
    "cfg, expected",
    [
        (Config(), ["x = 0", "y = 2", "z = 1"]),
        (Config(bias=1.5), ["x = __np_number(1.5, 1)", "z = 1"]),
    ],
)
def test_a_branch_on_a_static_is_decided(cfg: Config, expected: list[str]) -> None:
    def kernel(a, *, cfg):
        if cfg.bias is None:
            x = 0
            y = 2
        else:
            x = cfg.bias
        z = 1

    assert body(kernel, cfg=cfg) == expected


def test_and_or_give_values_as_in_python() -> None:
    def kernel(a, *, cfg):
        x = cfg.count or 128
        y = cfg.count and 3
        z = cfg.tm and cfg.sizes

    assert body(kernel, cfg=Config()) == ["x = 128", "y = 0", "z = (8, 16)"]


def test_known_operands_of_and_or_are_dropped() -> None:
    def kernel(a, *, cfg):
        x = cfg.tm and a.shape[0]
        y = cfg.count and a.shape[0]
        z = a.shape[0] and cfg.tm and a.shape[1]

    assert body(kernel, cfg=Config()) == [
        "x = a.shape[0]",
        "y = 0",
        "z = a.shape[0] and a.shape[1]",
    ]


def test_a_branch_dropped_at_compile_time_may_be_wrong() -> None:
    def kernel(a, *, cfg):
        x = 64 // cfg.count if cfg.count else a.shape[0]
        if cfg.count:
            raise ValueError
        y = cfg.count and 64 // cfg.count
        z = a.shape[0] > 3 if cfg.count == 0 else nowhere  # noqa: F821

    assert body(kernel, cfg=Config()) == ["x = a.shape[0]", "y = 0", "z = __np_gt(a.shape[0], 3)"]


def test_an_assert_on_constants_is_decided_before_anything_runs() -> None:
    def kernel(a, *, cfg):
        assert cfg.tm % 64 == 0, "tm"
        x = 1

    assert body(kernel, cfg=Config()) == ["x = 1"]
    with pytest.raises(CompileError, match="kernel kernel: 'assert cfg.tm % 64 == 0' failed: tm"):
        lifted(kernel, cfg=Config(tm=96))


def test_a_constant_that_fails_is_an_error_at_its_line() -> None:
    def kernel(a, *, cfg):
        x = cfg.sizes[2]

    with pytest.raises(
        CompileError, match=r"test_lift.py:\d+: kernel kernel: cfg.sizes\[2\]: IndexError"
    ):
        lifted(kernel, cfg=Config())


def test_annotations_of_locals_are_dropped() -> None:
    def kernel(a):
        x: int = ROWS
        y: Nowhere  # noqa: F821, F842

    assert body(kernel) == ["x = 64"]


def test_an_operation_under_another_name_is_the_operation() -> None:
    def kernel(a, *, cfg):
        make = numpipe.zeros
        conf = cfg
        x = make((conf.tm, 64), dtype=np.float32)

    assert body(kernel, cfg=Config()) == ["x = __np_known_make((128, 64), 'float32')"]


def test_names_of_a_nested_function_shadow_outer_ones() -> None:
    def kernel(a, *, cfg):
        k = 3
        f = lambda k, cfg: k + cfg
        x = k

    assert body(kernel, cfg=Config())[-1] == "x = 3"
    assert "return __np_add(k, cfg)" in lifted(kernel, cfg=Config()).text


# ---- captures ------------------------------------------------------------------------------------
@numpipe.kernel(num_compute_wgs=2, out_type=lambda a: ArrayType((256, 64), np.float32))
def captured(a, c):
    """Store rows 64 wg + 128, through a nested function, a lambda in it, and what both capture."""
    wg = numpipe.axis_index("wg")
    base = a.shape[0]

    def place(i):
        shift = lambda j: j * ROWS + base
        return shift(wg + i)

    acc = numpipe.zeros((ROWS, 64), np.float32)
    c[ds(place(0), ROWS), ds(0, 64)] = acc + 1.0


def test_captures_reach_nested_functions_and_lambdas_in_them() -> None:
    c = np.full((256, 64), 7, np.float32)
    captured.simulate(np.zeros((128, 8), np.float16), out=c)
    assert (c[:128] == 7).all() and (c[128:] == 1).all()
    captured.compiled(np.zeros((128, 8), np.float16))


def factory(rows: int, value: float) -> Any:
    @numpipe.kernel(out_type=lambda a: ArrayType((128, 64), np.float32))
    def filled(a, c):
        for (m,) in numpipe.tiles(128 // rows):
            c[ds(m * rows, rows), ds(0, 64)] = numpipe.zeros((rows, 64), np.float32) + value

    return filled


@pytest.mark.variants(1)
@both
def test_kernels_of_one_factory_have_constants_of_their_own(execution: str) -> None:
    a = np.zeros((8, 8), np.float16)
    for rows, value in ((64, 1.0), (128, 2.0)):
        kernel = factory(rows, value)
        result = EXECUTIONS[execution](kernel, a)
        if execution == "simulated":
            assert (result == value).all()


def test_lambdas_that_return_lambdas() -> None:
    @numpipe.kernel
    def nested(a, c):
        row = a.shape[0] - 64
        along = lambda m: lambda k: (m, k)
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(2,),
            in_specs=(BlockSpec((64, 64), along(row)), BlockSpec((64, 64), lambda k: (row, k))),
        )
        for (k,), (x, y) in pipe(a, a):
            acc = numpipe.wgmma(acc, x, y.T)
        c[ds(0, 64), ds(0, 64)] = acc

    a = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float16)
    c = np.zeros((64, 64), np.float32)
    nested.simulate(a, c)
    assert np.allclose(c, a.astype(np.float32) @ a.astype(np.float32).T, atol=1e-3)
    nested.compiled(a, c)


def test_a_name_may_be_bound_outside_after_an_inner_one_was_captured() -> None:
    def kernel(a):
        def inner():
            m = a.shape[0]
            return (lambda k: (m, k))(1)

        x = inner()
        m, n = x

    # Python 3.10 writes the parentheses
    assert body(kernel)[-1].replace("(m, n)", "m, n") == "m, n = x"


# ---- lines ---------------------------------------------------------------------------------------
def test_statements_keep_their_file_and_line() -> None:
    def kernel(a, c, *, cfg):
        wg = numpipe.axis_index("wg")
        if cfg.bias is not None:
            wg = wg + 1

        def place(i):
            return i * ROWS

        for m, n in numpipe.tiles(a.shape[0], a.shape[1], order="grouped"):
            pipe = numpipe.pipeline(grid=(3,), in_specs=(BlockSpec((64, 64), lambda k: (m, k)),))
            acc = numpipe.zeros((64, 64), np.float32)
            for (k,), (x,) in pipe(a):
                acc = numpipe.wgmma(acc, x, x.T)
            c[ds(place(m), 64), ds(0, 64)] = acc

    function = lifted(kernel, cfg=Config()).simulated
    lines, first = inspect.getsourcelines(kernel)
    everything = [
        function.__code__,
        *(
            v.__code__
            for n, v in function.__globals__.items()
            if "__" in n and inspect.isfunction(v) and v.__module__ == __name__
        ),
    ]
    found = {line for code in everything for *_, line in code.co_lines() if line is not None}
    wanted = {
        first + i
        for i, line in enumerate(lines)
        if any(
            part in line
            for part in ("wg =", "return", "for m", "pipe =", "lambda", "acc =", "for (k", "c[ds")
        )
    } - {first + 3}
    assert wanted <= found
    assert found <= set(range(first, first + len(lines)))
    assert {code.co_filename for code in everything} == {__file__}


def test_an_error_below_rewritten_loops_is_at_its_line() -> None:
    @numpipe.kernel
    def deep(a, c):
        for m, n in numpipe.tiles(1, 1, order="grouped"):
            pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (m, k)),))
            for (k,), (x,) in pipe(a):
                y = x.at[  # <-
                    ds(0, 64), ds(0, 8)
                ]
            c[ds(m, 64), ds(n, 64)] = numpipe.zeros((64, 64), np.float32)

    a, c = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    for execution in EXECUTIONS.values():
        with pytest.raises(SpecError, match=r"ds\(start, 8\) along axis 1") as caught:
            execution(deep, a, c)
        assert str(caught.value).startswith(marked(deep))


# ---- forms of a kernel ----------------------------------------------------------------------
def remembered(kernel: Any) -> Any:
    """A decorator above @numpipe.kernel."""
    return functools.partial(kernel)


@remembered
@numpipe.kernel(out_type=lambda a: ArrayType((64, 64), np.float32))
def annotated(
    a: np.ndarray,
    c: np.ndarray,
    *,
    rows: S = 64,
    cols: "Static" = 64,  # noqa: UP037
    value: numpipe.Static = 2.0,
) -> None:
    """A kernel with annotations, which are strings in this file.

    It also has an alias of Static, and decorators over several lines.
    """
    acc: Any = numpipe.zeros((rows, cols), np.float32)
    c[ds(0, rows), ds(0, cols)] = acc + value


@both
def test_annotations_aliases_and_stacked_decorators(execution: str) -> None:
    assert set(annotated.func.statics) == {"rows", "cols", "value"}
    result = EXECUTIONS[execution](annotated.func, np.zeros((8, 8), np.float16))
    if execution == "simulated":
        assert (result == 2).all()


def test_a_static_is_one_compile_a_value() -> None:
    kernel, a = annotated.func, np.zeros((8, 8), np.float16)
    assert (kernel.simulate(a, value=3.0) == 3).all() and (kernel.simulate(a, value=4.0) == 4).all()
    assert kernel.compiled(a) is kernel.compiled(a, value=2.0) is not kernel.compiled(a, value=3.0)


def test_equal_statics_of_different_types_are_compiled_apart() -> None:
    @numpipe.kernel
    def scaled(c, *, by: numpipe.Static):  # type: ignore[no-untyped-def]
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + (
            by // 2 if isinstance(by, float) else by + 1
        )

    def run(by: Any) -> float:
        c = np.full((64, 64), np.nan, np.float32)
        scaled.simulate(c, by=by)
        return float(c[0, 0])

    assert [run(1), run(1.0), run(1)] == [2.0, 0.0, 2.0]


def test_two_loops_may_use_one_name_for_what_each_step_makes_anew() -> None:
    """The second loop does not carry it out: in the memory role, and with no steps, it has no value
    before the loop."""

    @numpipe.kernel
    def twice(a, c, steps):
        for (k,), (x,) in numpipe.pipeline(
            grid=(steps,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )(a):
            part = numpipe.wgmma(numpipe.zeros((64, 64), np.float32), x, x.T)
            part = numpipe.wgmma_wait(part, 0)
            c[ds(0, 64), ds(64 * k, 64)] = part
        for (k,), (x,) in numpipe.pipeline(
            grid=(steps,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )(a):
            part = numpipe.wgmma(numpipe.zeros((64, 64), np.float32), x, x.T)
            part = numpipe.wgmma_wait(part, 0)
            c[ds(64, 64), ds(64 * k, 64)] = part

    a = np.ones((64, 128), np.float16)
    for steps, result in ((0, 7), (2, 64)):
        c = np.full((128, 128), 7, np.float32)
        twice.simulate(a, c, steps)
        assert (c == result).all()


@pytest.mark.parametrize(
    "module", ["compile/lift/loops.py", "sim/mbarriers.py", "launch/arrays.py"]
)
def test_the_nodes_of_a_tree_are_those_of_ast_in_its_order_but_for_operators_and_contexts(module):
    tree = ast.parse((Path(numpipe.__file__).parent / module).read_text(encoding="utf8"))
    left_out = ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop
    assert list(nodes.walk(tree)) == [
        node for node in ast.walk(tree) if not isinstance(node, left_out)
    ]
    for node in ast.walk(tree):
        assert nodes.children(node) == [
            child for child in ast.iter_child_nodes(node) if not isinstance(child, left_out)
        ]


@pytest.mark.parametrize("first", [1, 2, 700])
@pytest.mark.parametrize("indent", ["", "    "])
def test_a_source_is_parsed_with_the_lines_of_its_file(first, indent):
    lines = tuple(
        indent + line for line in ("def f(a):\n", "    return (a +\n", "            1)\n")
    )
    tree = Source("f", "file.py", first, lines, {}).parse()
    assert [(n.lineno, n.end_lineno) for n in (tree, tree.body[0], tree.body[0].value.right)] == [
        (first, first + 2),
        (first + 1, first + 2),
        (first + 2, first + 2),
    ]


def test_a_node_meets_the_rules_of_the_tables_and_no_others() -> None:
    """The tables alone decide which rules apply to a node: no part handles a node by a method's
    name, and none overrides a rule."""
    rules = [
        *_Lift.of_every_node,
        *_Lift.of_calls,
        *(rule for of in _Lift.of_type.values() for rule in of),
    ]
    parts = _Lift.__mro__[: _Lift.__mro__.index(ast.NodeTransformer)]
    assert not [name for part in parts for name in vars(part) if name.startswith("visit_")]
    for rule in rules:
        assert [part for part in parts if rule.__name__ in vars(part)] == [
            next(p for p in parts if rule in vars(p).values())
        ]
    assert len({rule.__qualname__ for rule in rules}) == len(set(rules))


class _NotANumber:
    pass


step = _NotANumber()
"""has the name of a loop's variable below"""


def test_a_variable_hides_the_global_of_its_name_in_an_index_of_a_method_s_operand() -> None:
    @numpipe.kernel(grid=1)
    def total(x: Any, y: Any) -> None:
        acc = numpipe.zeros((8, 64), np.float32)
        for step in range(x.shape[1] // 64):
            acc = acc + x[ds(0, 8), ds(step * 64, 64)].astype(np.float32)
        y[ds(0, 8), ds(0, 64)] = acc

    x, y = np.ones((8, 192), np.float16), np.zeros((8, 64), np.float32)
    total(x, y, target="sim")
    assert (y == 3).all()
