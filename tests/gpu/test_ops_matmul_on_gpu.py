"""numpipe.ops.matmul on the GPU: NumPy's shapes, views with any strides, repeated and captured
calls, every array library."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from numpipe import launch, ops
from tests.ops.test_matmul import SHAPES

torch = pytest.importorskip("torch")
PROCESSES = 4


def integers(*shape: int, seed: int = 0) -> Any:
    """Return small integers: sums of their products are exact in float16."""
    return (
        torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed))
        .to(torch.float16)
        .cuda()
    )


def exact(a: Any, b: Any) -> Any:
    return (a.double() @ b.double()).half()


@pytest.mark.parametrize(
    ("left", "right"), [*SHAPES, ((300, 1000), (1000, 520)), ((4, 129, 65), (65, 77))], ids=str
)
def test_it_multiplies_every_shape_that_numpy_does(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    a, b = integers(*left), integers(*right, seed=1)
    found = ops.matmul(a, b)
    assert (
        found.is_cuda
        and found.shape == (a.double() @ b.double()).shape
        and torch.equal(found, exact(a, b))
    )


def window(shape: tuple[int, ...], rng: np.random.Generator, seed: int) -> Any:
    """Return a tensor of this shape that is a view of another one.

    Its dimensions may be permuted, spaced, repeated, or offset by some elements.
    """
    steps = [int(rng.choice([1, 1, 1, 2, 0])) if size > 1 else 1 for size in shape]
    order = rng.permutation(len(shape)) if rng.random() < 0.5 else np.arange(len(shape))
    sizes = [1 if step == 0 else size * step for size, step in zip(shape, steps, strict=True)]
    off = [int(rng.integers(0, 4)) for _ in shape]
    whole = integers(*[sizes[axis] + off[axis] for axis in order], seed=seed).permute(
        *np.argsort(order).tolist()
    )
    cut = whole[
        tuple(
            slice(skip, skip + size, step or None)
            for skip, size, step in zip(off, sizes, steps, strict=True)
        )
    ]
    return cut.expand(shape)


@pytest.mark.parametrize("seed", range(40))
def test_any_window_is_an_operand_and_an_output(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n, k = (int(rng.integers(1, 400)) for _ in range(3))
    batches = [((), ()), ((2,), ()), ((2,), (2,)), ((2, 1), (3,))][seed % 4]
    a, b = window((*batches[0], m, k), rng, seed), window((*batches[1], k, n), rng, seed + 1)
    wanted = exact(a, b)
    whole = torch.full(
        [2 * size for size in wanted.shape], float("nan"), dtype=torch.float16, device="cuda"
    )
    out = whole[
        tuple(
            slice(int(rng.integers(0, 2)), None, 2) if rng.random() < 0.5 else slice(0, size)
            for size in wanted.shape
        )
    ]
    assert ops.matmul(a, b, out=out) is out and torch.equal(out, wanted)
    assert torch.equal(ops.matmul(a, b), wanted)
    out.fill_(float("nan"))
    assert bool(whole.isnan().all()), "nothing else was written"


def test_repeated_calls_give_the_same_bits_in_new_tensors() -> None:
    a, b = (torch.randn(1000, 1000, device="cuda").bfloat16() for _ in range(2))
    first, kept = ops.matmul(a, b), []
    for _ in range(20):
        kept.append(ops.matmul(a, b))
        assert torch.equal(kept[-1], first)
    assert len({tensor.data_ptr() for tensor in kept}) == 20
    a.zero_()
    assert not ops.matmul(a, b).any()


@pytest.mark.parametrize("odd", [False, True], ids=["addressed by TMA", "copied"])
def test_it_may_be_captured_into_a_graph(odd: bool) -> None:
    a, b = integers(200, 137 if odd else 136), integers(137 if odd else 136, 264, seed=1)
    ops.matmul(a, b)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = ops.matmul(a, b)
    for seed in (2, 3):
        a.copy_(integers(*a.shape, seed=seed))
        graph.replay()
        assert torch.equal(c, exact(a, b))


def test_it_runs_on_the_stream_that_is_asked_for_and_its_memory_is_that_streams() -> None:
    stream, a, b = torch.cuda.Stream(), integers(512, 136), integers(136, 512, seed=1)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        c = ops.matmul(a, b[:, ::1])
    d = ops.matmul(a, b, stream=stream)
    stream.synchronize()
    assert torch.equal(c, exact(a, b)) and torch.equal(c, d)


def test_a_row_has_the_same_bits_whatever_the_number_of_rows_is() -> None:
    for n, k in ((4096, 4096), (264, 8192), (6144, 520)):
        a = torch.randn(4097, k, device="cuda").bfloat16()
        b = torch.randn(k, n, device="cuda").bfloat16()
        whole = ops.matmul(a, b, batch_invariant=True)
        for rows in (1, 8, 200, 1000):
            assert torch.equal(ops.matmul(a[:rows], b, batch_invariant=True), whole[:rows])


def test_arrays_of_every_library_give_one_of_theirs() -> None:
    a, b = (
        np.random.default_rng(seed).integers(-3, 4, (200, 200)).astype(ml_dtypes.bfloat16)
        for seed in (0, 1)
    )
    wanted = (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype)
    found = ops.matmul(a, b, target="gpu")
    assert isinstance(found, np.ndarray) and (found == wanted).all()
    on_gpu = ops.matmul(*(launch.DeviceArray.from_host(x) for x in (a, b)))
    assert isinstance(on_gpu, launch.DeviceArray) and (on_gpu.copy_to_host() == wanted).all()
    cupy = pytest.importorskip("cupy")
    x, y = (cupy.asarray(array.astype(np.float16)) for array in (a, b))
    assert isinstance(ops.matmul(x, y[:, ::-1]), cupy.ndarray)
    assert (cupy.asnumpy(ops.matmul(x, y[:, ::-1])) == wanted[:, ::-1].astype(np.float16)).all()
    jax = pytest.importorskip("jax")
    p, q = (jax.device_put(array) for array in (a, b))
    assert (
        isinstance(ops.matmul(p, q), jax.Array) and (np.asarray(ops.matmul(p, q)) == wanted).all()
    )
