"""Roles are records: code asks a record what the role does, and only `plan` spells its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import (
    ArrayType,
    BlockSpec,
    CompileError,
    CompilerParams,
    LoweringSemantics,
    SpecError,
    ds,
)
from numpipe.plan.kernel_shape import KernelShape
from numpipe.plan.roles import COMPUTE, MEMORY, ROLES, STORE, Role, parts_of, warps_of
from tests.kernels.launch_kernels import image as compiled
from tests.traces.legal import check_legal

IDLE = Role("idle", lanes="one", warps=range(4))
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
    assert {"memory", "compute", "storing"} == NAMES
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
    monkeypatch.setattr(KernelShape, "parts", (COMPUTE, MEMORY, IDLE))
    a = np.arange(128 * 256, dtype=np.int32).reshape(128, 256) % 7
    b = np.arange(64 * 256, dtype=np.int32).reshape(64, 256) % 5
    c, trace = np.zeros((128, 64), np.float32), numpipe.Trace()
    product.simulate(a.astype(np.float16), b.astype(np.float16), c, trace=trace)
    np.testing.assert_array_equal(c, a @ b.T)
    check_legal(trace)
    of = {role: {e.kind for e in trace.events if e.role == role} for role in ("memory", "idle")}
    assert of["idle"] == {"end"} and {"issue", "load"} <= of["memory"]
    assert "wg2 idle" in trace.timeline()


def test_roles_next_to_the_loading_one_have_a_warp_for_each_compute_warpgroup() -> None:
    stores = CompilerParams(store_role=True)
    for memory in (0, 1, 2):
        parts = parts_of(3, memory, 2, stores)
        assert parts[memory] is MEMORY and parts[3:] == (STORE, STORE)
        assert parts_of(3, memory, 2, CompilerParams()) == parts[:3]
        first = 4 * memory + 1
        assert warps_of(parts)[3:] == [
            range(first, first + 1),
            range(first + 1, first + 2),
        ]


def test_a_warp_of_an_image_belongs_to_the_part_whose_role_it_has() -> None:
    image = compiled(arrays=("a",), parts=("compute", "memory", "storing"), threads=256)
    assert [image.part(warp) for warp in range(8)] == [0, 0, 0, 0, 1, 2, 1, 1]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no memory warpgroup": ({"warp_specialized": False}, "the role needs a warp of the memory"),
    "four compute warpgroups": (
        {"num_compute_wgs": 4},
        "the role needs one warp per compute warpgroup",
    ),
    "bodies by lanes": (
        {"compiler_params": CompilerParams(lowering_semantics=LoweringSemantics.Lane)},
        "bodies that are code for each lane",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_kernel_that_cannot_have_the_store_role_is_refused_at_its_line(name: str) -> None:
    options, why = REFUSED[name]
    params = options.get("compiler_params", CompilerParams()).replace(store_role=True)

    @numpipe.kernel(**{**options, "compiler_params": params})
    def kernel(y):
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    line = kernel.function.__code__.co_firstlineno + 1
    for run in (
        lambda: kernel.simulate(np.zeros((64, 64), np.float32)),
        lambda: kernel.inspect("ptx", ArrayType((64, 64), np.float32)),
    ):
        with pytest.raises(SpecError, match=rf"\.py:{line}: .*store_role=True\): {why}.*; fix: "):
            run()


def test_a_place_that_depends_on_tile_data_is_refused_at_its_line() -> None:
    """The store role has no tiles; without it the compute warpgroups know the place."""

    @numpipe.kernel(compiler_params=CompilerParams(store_role=True))
    def kernel(x, y):
        pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),))
        for (_,), (x_tile,) in pipe(x):
            tile = x_tile[...]
            y[ds(tile.max(), 64), ds(0, 64)] = tile

    with pytest.raises((SpecError, CompileError), match=r"\.py:\d+: .*storing role.*fix: "):
        kernel.simulate(np.zeros((64, 64), np.int32), np.zeros((64, 64), np.int32))


def test_tiles_of_a_counter_and_single_stream_pipelines_are_refused_at_their_lines() -> None:
    @numpipe.kernel(compiler_params=CompilerParams(store_role=True))
    def dynamic(y):
        for (t,) in numpipe.tiles(2, dynamic=True):
            y[ds(t * 64, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    with pytest.raises(SpecError, match=r"\.py:\d+: .*tiles of a counter.*; fix: store_role=False"):
        dynamic.simulate(np.zeros((128, 64), np.float32))
