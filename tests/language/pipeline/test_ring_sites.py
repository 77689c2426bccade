"""Identity of rings: pipelines on the same line, over other arrays, and in files with the same
name."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, ds
from numpipe.plan.plans import ArrayArg
from numpipe.plan.unit import Unit


def f32(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32)


def randoms(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal((64, 128)).astype(np.float16) for _ in range(count)]


def test_two_pipelines_on_one_line_have_rings_of_their_own() -> None:
    @numpipe.kernel
    def squeezed(a, b, c):
        acc = numpipe.zeros((64, 64), np.float32)
        p = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
        q = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
        for (i,), (x,) in p(a):
            for (j,), (y,) in q(a):
                acc = numpipe.wgmma(acc, x, y.T)
        c[ds(0, 64), ds(0, 64)] = acc

    a, b = randoms(2)
    c = np.zeros((64, 64), np.float32)
    squeezed.simulate(a, b, c)
    blocks = f32(a[:, :64]) + f32(a[:, 64:])
    assert np.allclose(c, blocks @ blocks.T, atol=1e-2)
    assert len(squeezed.compiled(a, b, c).unit.rings) == 2


@pytest.mark.thorough
def test_a_pipeline_over_other_arrays_has_a_ring_of_its_own() -> None:
    @numpipe.kernel
    def twice(a, b, d, c):
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(2,),
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
        )
        for (k,), (x, y) in pipe(a, b):
            acc = numpipe.wgmma(acc, x, y.T)
        for (k,), (x, y) in pipe(a, d):
            acc = numpipe.wgmma(acc, x, y.T)
        for (k,), (x, y) in pipe(a, b):
            acc = numpipe.wgmma(acc, x, y.T)
        c[ds(0, 64), ds(0, 64)] = acc

    a, b, d = randoms(3)
    c = np.zeros((64, 64), np.float32)
    twice.simulate(a, b, d, c)
    assert np.allclose(c, f32(a) @ (2 * f32(b) + f32(d)).T, atol=1e-2)
    built = twice.compiled(a, b, d, c)
    assert len(built.unit.rings) == 2  # the third loop continues the first one's
    assert {m.arg for m in built.image.maps} == {0, 1, 2, 3}


def test_a_nested_function_called_twice_goes_on_with_its_ring() -> None:
    @numpipe.kernel
    def helped(a, b, c):
        def product(acc):
            pipe = numpipe.pipeline(
                grid=(2,),
                in_specs=(
                    BlockSpec((64, 64), lambda k: (0, k)),
                    BlockSpec((64, 64), lambda k: (0, k)),
                ),
            )
            for (k,), (x, y) in pipe(a, b):
                acc = numpipe.wgmma(acc, x, y.T)
            return acc

        acc = product(numpipe.zeros((64, 64), np.float32))
        acc = product(acc)
        c[ds(0, 64), ds(0, 64)] = acc

    a, b = randoms(2)
    c = np.zeros((64, 64), np.float32)
    helped.simulate(a, b, c)
    assert np.allclose(c, 2 * f32(a) @ f32(b).T, atol=1e-2)
    assert len(helped.compiled(a, b, c).unit.rings) == 1


@pytest.mark.thorough
def test_files_of_one_name_with_pipelines_on_one_line(tmp_path: Path) -> None:
    source = inspect.cleandoc("""
        import numpy as np
        import numpipe
        from numpipe import BlockSpec, ds

        @numpipe.kernel
        def product(a, b, c):
            acc = numpipe.zeros((64, 64), np.float32)
            spec = BlockSpec((64, WIDTH), lambda k: (0, k))
            pipe = numpipe.pipeline(grid=(STEPS,), in_specs=(spec, spec))
            for (k,), (x, y) in pipe(a, b):
                acc = numpipe.wgmma(acc, x, y.T)
            c[ds(0, 64), ds(0, 64)] = acc
    """)
    a, b = randoms(2)
    for folder, width in (("one", 64), ("two", 32)):
        file = tmp_path / folder / "same.py"
        file.parent.mkdir()
        file.write_text(source + f"\n\nSTEPS, WIDTH = {128 // width}, {width}\n")
        spec = importlib.util.spec_from_file_location("same", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        c = np.zeros((64, 64), np.float32)
        module.product.simulate(a, b, c)
        assert np.allclose(c, f32(a) @ f32(b).T, atol=1e-2)
        (plan,) = module.product.compiled(a, b, c).unit.rings.values()
        assert plan.stage_bytes == 2 * 64 * width * 2


def test_staging_is_allocated_once_however_many_rings_follow_it() -> None:
    """A store between two pipelines comes before the second one's rings are known."""
    unit = Unit("k", (ArrayArg("a", np.dtype(np.float16), 2),), (), "wg", 2, 40)
    block = (0, *BlockSpec((64, 64), lambda k: (0, k)).block)
    unit.plan_ring("f:1", (block,), 2, 0)
    unit.plan_staging(1)
    staging = (unit.staging_base, unit.staging_base + 2 * 8192)
    rings = [unit.plan_ring(f"f:{line}", (block,), 2, 0) for line in (2, 3, 4)]
    assert unit.smem_bytes == 1024 + 4 * 2 * 8192 + 2 * 8192
    assert all(ring.memory.end <= staging[0] or ring.base >= staging[1] for ring in rings)
