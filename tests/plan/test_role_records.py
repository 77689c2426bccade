"""Roles are records: code asks a record what the role does, and only `plan` spells its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, ds
from numpipe.plan.kernel_shape import KernelShape
from numpipe.plan.roles import COMPUTE, MEMORY, ROLES, Role

IDLE = Role("idle", lanes="one", loads=False, computes=False)
ROOT = Path(numpipe.__file__).parent
NAMES = {role.name for role in ROLES}


def spelled(source: str) -> Iterator[int]:
    """Yield the lines of a source that compare with a role's name, or look up by it."""
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            parts = node.keys
        elif isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        inner = [*parts, *(e for p in parts if isinstance(p, (ast.Tuple, ast.Set)) for e in p.elts)]
        if any(isinstance(part, ast.Constant) and part.value in NAMES for part in inner):
            yield node.lineno


def test_only_plan_compares_with_the_name_of_a_role() -> None:
    assert {"memory", "compute"} == NAMES
    assert {
        (str(file.relative_to(ROOT)), line)
        for file in ROOT.rglob("*.py")
        if file.parent.name != "plan"
        for line in spelled(file.read_text(encoding="utf8"))
    } == set()


@pytest.mark.parametrize(
    "source",
    [
        'role == "memory"',
        'who in ("compute", other)',
        'rings["memory"]',
        '{"compute": 1}',
        'match role:\n    case "memory": pass',
    ],
)
def test_a_comparison_with_the_name_of_a_role_is_seen(source: str) -> None:
    assert len(list(spelled(source))) == 1
    assert not list(spelled(source.replace("memory", "load").replace("compute", "load")))


@numpipe.kernel(grid=(2,), grid_names="cta")
def product(a, b, c):
    m = numpipe.axis_index("cta")
    pipe = numpipe.pipeline(
        grid=(numpipe.cdiv(a.shape[1], 64),),
        in_specs=(
            BlockSpec((64, 64), lambda k: (m, k)),
            BlockSpec((64, 64), lambda k: (0, k)),
        ),
        max_concurrent_steps=2,
    )
    acc = numpipe.zeros((64, 64), np.float32)
    for (_,), (a_tile, b_tile) in pipe(a, b):
        acc = numpipe.wgmma(acc, a_tile, b_tile.T)
    c[ds(m * 64, 64), ds(0, 64)] = acc


def test_a_role_that_neither_loads_nor_computes_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All three run the kernel function; a role does what its record says."""
    monkeypatch.setattr(KernelShape, "warpgroups", 3)
    monkeypatch.setattr(KernelShape, "role", lambda _, number: (COMPUTE, MEMORY, IDLE)[number])
    a = np.arange(128 * 256, dtype=np.int32).reshape(128, 256) % 7
    b = np.arange(64 * 256, dtype=np.int32).reshape(64, 256) % 5
    c, trace = np.zeros((128, 64), np.float32), numpipe.Trace()
    product.simulate(a.astype(np.float16), b.astype(np.float16), c, trace=trace)
    np.testing.assert_array_equal(c, a @ b.T)
    trace.check_legal()
    of = {role: {e.kind for e in trace.events if e.role == role} for role in ("memory", "idle")}
    assert of["idle"] == {"end"} and {"issue", "load"} <= of["memory"]
    assert "wg2 idle" in trace.timeline()
