"""@numpipe.function: helpers of any module, in both executions and every role; functions as
values."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, CompileError, CompilerParams, SpecError, cdiv, ds
from tests.kernels.emitted_kernels import Config, product, share
from tests.kernels.other_module import add_bias, index_of, recursive, store_rows, tripled, unfit
from tests.kernels.refusals import needs_columns

emit = numpipe.emit_pipeline_warp_specialized
A = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float16)
B = np.random.default_rng(1).standard_normal((64, 128)).astype(np.float16)


def both(kernel: Any, *args: Any, **named: Any) -> Any:
    """Simulate, which compiles too; then check that the machine code passes the gate."""
    result = kernel.simulate(*args, **named)
    assert kernel.inspect("gate", *args, **named) == ()
    return result


# ---- on the host ---------------------------------------------------------------------------------
def test_on_the_host_it_is_the_python_function() -> None:
    assert share(Config(tm=64), parts=2) == 32
    assert share.__name__ == "share" and "rows of a tile" in share.__doc__
    assert repr(share) == "<numpipe function tests.kernels.emitted_kernels.share>"


def test_out_type_and_grid_may_use_it() -> None:
    @numpipe.kernel(
        out_type=lambda a: numpipe.ArrayType((share(Config(), 2), 64), np.float32),
        grid=lambda a: (share(Config(), 128),),
    )
    def zero(a, c):
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    assert (both(zero, A) == 0).all()


@pytest.mark.parametrize(
    "wrong, said",
    [
        (len, "decorates a Python function, got <built-in"),
        (3, "got 3"),
        (lambda x: x, "decorates a `def`"),
        (lambda *x: x, "decorates a `def`"),
    ],
)
def test_it_decorates_a_def(wrong: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        numpipe.function(wrong)


def test_its_parameters_are_written_out() -> None:
    def rest(first, *others):
        return first

    def named(**options):
        return 1

    for function, name in ((rest, "others"), (named, "options")):
        with pytest.raises(
            SpecError,
            match=rf"test_functions.py:\d+: function {function.__name__}: \*{name} is not "
            r"supported",
        ):
            numpipe.function(function)


# ---- constants -----------------------------------------------------------------------------------
def test_a_call_with_constants_is_a_constant() -> None:
    @numpipe.kernel(num_compute_wgs=2)
    def shapes(c, *, cfg: numpipe.Static = Config()):
        rows = share(cfg, numpipe.axis_size("wg"))
        c[ds(numpipe.axis_index("wg") * rows, rows), ds(0, share(cfg, parts=2))] = numpipe.zeros(
            (rows, 64), np.float32
        )

    c = np.ones((128, 64), np.float32)
    both(shapes, c)
    assert (c == 0).all()
    assert "c[numpipe.ds(" not in shapes.inspect("source", c) and "share" not in shapes.inspect(
        "source", c
    )


@pytest.mark.thorough
def test_known_arguments_are_constants_inside() -> None:
    """Static, dtype and axis size determine shapes in another module, next to run-time values."""

    @numpipe.kernel(num_compute_wgs=2)
    def stores(a, c, n, *, cfg: numpipe.Static = Config()):
        acc = numpipe.zeros((share(cfg, 2), 64), np.float32)
        store_rows(c, add_bias(acc, n, scale=2.0), cfg=cfg)

    for dtype in (np.float32, np.float16):
        c = np.full((128, 64), np.nan, dtype)
        both(stores, A, c, 5)
        assert (c == 10).all()


@pytest.mark.thorough
def test_1_and_true_are_different_arguments() -> None:
    @numpipe.kernel
    def kinds(c):
        acc = numpipe.zeros((64, 64), np.float32)
        store_rows(c, acc + index_of(True) * 100 + index_of(1), cfg=Config(64))

    c = np.empty((64, 64), np.float32)
    both(kinds, c)
    assert (c == 107).all()


# ---- every role, both forms ----------------------------------------------------------------------
@numpipe.function
def block(i, k):
    return i, k


@numpipe.function
def step(indices, a_tile, b_tile, acc):
    return numpipe.wgmma(acc, a_tile, b_tile.T)


@numpipe.function
def loop_product(a, b, acc, steps, first=0):
    """Return a pipeline's product; called twice it continues its ring."""
    pipe = numpipe.pipeline(
        grid=(1, steps),
        in_specs=(BlockSpec((64, 64), block), BlockSpec((64, 64), lambda i, k: (0, k + first))),
    )
    for (_, _), (x, y) in pipe(a, b):
        acc = numpipe.wgmma(acc, x, y.T)
    return acc


@pytest.mark.thorough
def test_a_body_and_index_maps_of_the_module() -> None:
    @numpipe.kernel
    def uses(a, b, c):
        def compute(pipeline):
            c[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        emit(
            step,
            grid=(1, cdiv(a.shape[1], 64)),
            compute_context=compute,
            in_specs=(BlockSpec((64, 64), block), BlockSpec((64, 64), index_map=block)),
        )(a, b)

    c = np.empty((64, 64), np.float32)
    both(uses, A, B, c)
    np.testing.assert_allclose(c, product(A[:64], B), atol=0.05)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [None, 1])
def test_a_ring_in_a_helper_continues(seed: int | None) -> None:
    @numpipe.kernel
    def twice(a, b, c):
        acc = loop_product(a, b, numpipe.zeros((64, 64), np.float32), 1)
        for _ in range(3):
            acc = loop_product(a, b, acc, steps=cdiv(a.shape[1], 64))
        c[ds(0, 64), ds(0, 64)] = acc

    c = np.empty((64, 64), np.float32)
    twice.simulate(A, B, c, seed=seed)
    np.testing.assert_allclose(
        c, 3 * product(A[:64], B) + product(A[:64, :64], B[:, :64]), atol=0.2
    )
    if seed is None:
        assert twice.inspect("gate", A, B, c) == ()


@pytest.mark.thorough
def test_rings_of_two_files_with_the_same_name_and_line_are_two(tmp_path: Path) -> None:
    """A ring is identified by the place where it is written, for which the name of a file is not
    enough."""
    text = """import numpipe
from numpipe import BlockSpec

@numpipe.function
def load(a, acc):
    spec = BlockSpec((64, 64), lambda k: (0, k))
    for (k,), (x,) in numpipe.pipeline(grid=(2,), in_specs=(spec,))(a):
        acc = numpipe.wgmma(acc, x, x.T)
    return acc
"""
    modules = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "loads.py").write_text(text)
        modules.append(_import(tmp_path / name / "loads.py", f"loads_{name}"))
    load_one, load_two = modules[0].load, modules[1].load

    @numpipe.kernel
    def uses(a, c):
        acc = numpipe.zeros((64, 64), np.float32)
        for _ in range(2):
            acc = load_two(a, load_one(a, acc))
        c[ds(0, 64), ds(0, 64)] = acc

    c = np.empty((64, 64), np.float32)
    for seed in (None, 1, 2):
        uses.simulate(A, c, seed=seed)
        np.testing.assert_allclose(c, 4 * product(A[:64], A[:64]), atol=0.5)
    assert len(uses.compiled(A, c).unit.rings) == 2


def _import(file: Path, name: str) -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# ---- one helper, two kernels ---------------------------------------------------------------------
def test_a_helper_asks_the_kernel_that_runs_it() -> None:
    @numpipe.function
    def first():
        return numpipe.axis_index("m")

    def make(names: tuple[str, str], delay: int) -> Any:
        @numpipe.kernel(
            grid=(2, 3), grid_names=names, compiler_params=CompilerParams(delay_release=delay)
        )
        def which(c):
            store_rows(
                c,
                numpipe.zeros((64, 64), np.float32) + first(),
                cfg=Config(64),
                at=numpipe.axis_index("n") * 3 + numpipe.axis_index("m"),
            )

        return which

    c = np.empty((512, 64), np.float32)
    for names in (("m", "n"), ("n", "m")):
        ptx = make(names, 0).inspect("ptx", c)
        assert ("%ctaid.x" in ptx) and ("%ctaid.y" in ptx)
        make(names, 1).simulate(c)


# ---- functions as values -------------------------------------------------------------------------
OPERATIONS = (tripled, share)


@numpipe.function
def apply(f, x):
    return f(x)


@pytest.mark.thorough
def test_functions_in_tuples_and_as_arguments() -> None:
    @numpipe.kernel
    def values(c, n):
        def twice(x):
            return x * 2

        def both(functions, x):
            first, second = functions
            return first(second(x))

        chosen = (twice, tripled)
        again = chosen[0]
        total = (
            chosen[0](n)
            + chosen[1](n) * 100
            + both((twice, lambda x: x + n), 1) * 1000
            + OPERATIONS[0](n) * 10000
        )
        total = total + apply(twice, n) + apply(tripled, n) + again(0)
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + total

    c = np.empty((64, 64), np.float32)
    both(values, c, 3)
    assert (c == 6 + 900 + 8000 + 90000 + 6 + 9).all()


# ---- errors --------------------------------------------------------------------------------------
@pytest.mark.parametrize("execution", [pytest.param("simulate", marks=needs_columns), "compiled"])
def test_an_error_in_a_helper_shows_its_line_and_who_called(execution: str) -> None:
    @numpipe.kernel
    def calls(c):
        store_rows(c, unfit(), cfg=Config(64))

    line = calls.function.__code__.co_firstlineno + 2
    with pytest.raises(SpecError) as caught:
        getattr(calls, execution)(np.empty((64, 64), np.float32))
    told = str(caught.value).split("\n")
    assert "other_module.py:" in told[0] and "zeros: a tile must have" in told[0]
    assert told[1:] == [
        "    return numpipe.zeros((0, 5), np.float32)",
        "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        f"  called at {__file__}:{line}",
    ]


def test_recursion_is_refused_where_it_closes() -> None:
    @numpipe.kernel
    def calls(c):
        x = recursive(c.shape[0])  # noqa: F841

    with pytest.raises(
        CompileError,
        match=r"other_module.py:\d+: kernel calls: function 'recursive' calls itself "
        r"\(recursive -> recursive\): recursion cannot be compiled",
    ):
        calls.simulate(np.empty((64, 64), np.float32))
