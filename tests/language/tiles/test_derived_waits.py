"""``wgmma_wait(acc)``: the number of groups that may stay in flight is counted in the source, and
is never too large."""

from __future__ import annotations

import ast
import textwrap

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, PipelineRace, ds
from numpipe.compile.lift.wait_counts import pending
from numpipe.language.tiles import mma

SOURCES = [
    (0, "s = wgmma(); s = wait(s)"),
    (1, "s = wgmma()\no = wgmma()\ns = wait(s)"),
    (2, "s = wgmma()\no, u = wgmma(), wgmma()\ns = wait(s)"),
    (7, "s = wgmma()\n" + "o = wgmma()\n" * 9 + "s = wait(s)"),
    (0, "s = wgmma()\nif c:\n    o = wgmma()\ns = wait(s)"),
    (
        1,
        "s = wgmma()\nif c:\n    o = wgmma()\nelse:\n    o = wgmma()\n    u = wgmma()\ns = wait(s)",
    ),
    (1, "s = wgmma()\nif c:\n    s = wgmma()\no = wgmma()\ns = wait(s)"),
    (0, "s = wgmma()\no = wgmma() if c else u\ns = wait(s)"),
    (0, "s = wgmma()\nfor i in r:\n    o = wgmma()\ns = wait(s)"),
    (1, "o = wgmma()\nfor i in r:\n    s = wgmma()\n    o = wait(o)\n    o = wgmma()"),
    # a parameter: s was issued after it at least
    (1, "for i in r:\n    s = wgmma()\n    t = wait(t)\n    t = wgmma()"),
    (1, "o = wgmma()\nfor i in r:\n    s = wgmma()\n    o = wgmma()\n    s = wait(s)\n    o = 1"),
    (
        0,
        "o = wgmma()\nfor i in r:\n    if c:\n        continue\n    s = wgmma()\n    o = wait(o)\n"
        "    o = wgmma()",
    ),
    (
        1,
        "o = wgmma()\nfor i in r:\n    s = wgmma()\n    if c:\n        o = wait(o)\n    o = "
        "wgmma()",
    ),
    (0, "o = wgmma()\nwhile c:\n    s = wgmma()\n    o = wait(o)"),
    (0, "s = f()\ns = wait(s)"),
    (0, "s = t\ns = wait(s)"),
    (1, "s = t\no = wgmma()\ns = wait(s)"),
    (0, "wait(s)"),
    (1, "s = wgmma()\nif True:\n    o = wgmma()\ns = wait(s)"),
    (0, "s = wgmma()\nif False:\n    o = wgmma()\nelse:\n    pass\ns = wait(s)"),
    (
        2,
        "s = wgmma()\nif True:\n    if False:\n        s = wgmma()\n    else:\n        o = "
        "wgmma()\no = wgmma()\ns = wait(s)",
    ),
]


@pytest.mark.parametrize("groups, source", SOURCES, ids=range(len(SOURCES)))
def test_groups_are_counted_on_every_way_to_the_wait(groups: int, source: str) -> None:
    function = ast.parse("def f(c, r, t):\n" + textwrap.indent(source, "    ")).body[0]
    assert isinstance(function, ast.FunctionDef)

    def calls(node: ast.AST, name: str) -> bool:
        return (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
        )

    def arm(test: ast.expr) -> bool | None:
        return test.value if isinstance(test, ast.Constant) else None  # type: ignore[return-value]

    wait = next(node for node in ast.walk(function) if calls(node, "wait"))
    assert pending(function, [wait], lambda node: calls(node, "wgmma"), arm) == {wait: groups}


@numpipe.kernel
def two_products(a, c, d):
    """Keep two products in flight, and wait for each by itself."""
    first, second = numpipe.zeros((64, 64), np.float32), numpipe.zeros((64, 64), np.float32)
    for (_,), (x,) in numpipe.pipeline(
        grid=(a.shape[1] // 64,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
    )(a):
        first = numpipe.wgmma(first, x, x.T)
        second = numpipe.wgmma(second, x, x)
        first = numpipe.wgmma_wait(first) * 0.5
        second = numpipe.wgmma_wait(second) * 0.25
    c[ds(0, 64), ds(0, 64)] = first
    d[ds(0, 64), ds(0, 64)] = second


def run(seed: int | None) -> None:
    a = np.random.default_rng(0).integers(-2, 3, (64, 128)).astype(np.float16)
    c, d = np.zeros((2, 64, 64), np.float32)
    two_products.simulate(a, c, d, seed=seed)
    x, y = a[:, :64].astype(np.float32), a[:, 64:].astype(np.float32)
    np.testing.assert_array_equal(c, (x @ x.T) / 4 + (y @ y.T) / 2)
    np.testing.assert_array_equal(d, (x @ x) / 16 + (y @ y) / 4)


def test_the_first_of_two_products_is_read_while_the_second_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    left = []
    wait = mma.wait_for.function
    monkeypatch.setattr(mma.wait_for, "function", lambda acc, n: (left.append(n), wait(acc, n))[1])
    run(None)
    assert left == [1, 0, 1, 0]
    for seed in range(4):
        run(seed)
    monkeypatch.setattr(mma.wait_for, "function", lambda acc, n: wait(acc, n + 1))  # one too many
    with pytest.raises(PipelineRace, match="read before wgmma_wait has covered it"):
        run(None)
