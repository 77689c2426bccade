"""The body form: emit_pipeline_warp_specialized with nested functions and carries, on the same ring
as the loop form."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams, PipelineRace, cdiv, ds
from tests.kernels.emitted_kernels import HALF, KERNELS, Config, gemm_loop, product
from tests.misuse.bodies import a_pipeline_that_only_the_compute_role_reaches

emit = numpipe.emit_pipeline_warp_specialized
SHAPES = [(128, 128, 64), (200, 136, 200), (64, 8, 8), (300, 264, 1), (256, 256, 512), (128, 64, 0)]


def arrays(shape: tuple[int, int, int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    m, n, k = shape
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((n, k)).astype(
        np.float16
    )


@pytest.mark.variants(6)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_product(kernel: Any, shape: tuple[int, int, int]) -> None:
    a, b = arrays(shape)
    np.testing.assert_allclose(
        kernel.simulate(a, b).astype(np.float64),
        product(a, b),
        atol=2e-3 * max(1, shape[2]) ** 0.5,
        rtol=2e-3,
    )


@pytest.mark.variants(6)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_any_schedule(kernel: Any, seed: int) -> None:
    a, b = arrays((200, 136, 200))
    expected = kernel.simulate(a, b)
    assert (kernel.simulate(a, b, seed=seed) == expected).all()


@pytest.mark.variants(0, thorough=2)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_passes_the_build_gate(kernel: Any) -> None:
    half = ArrayType((8, 8), HALF)
    assert kernel.inspect("gate", half, half) == ()
    assert kernel.inspect("resources", half, half).spill_bytes == 0


SYNCHRONISES = re.compile(
    r"\b(SYNCS\S*|UTMALDG\S*|UTMASTG\S*|UTMACMDFLUSH|HGMMA\S*|WARPGROUP\S*|BAR\S*|USETMAXREG\S*|CALL\S*|FENCE\S*|MEMBAR\S*|ELECT\S*|DEPBAR\S*)"
)


def synchronisation(kernel: Any, *args: Any, **statics: Any) -> list[str]:
    """Return the instructions of the machine code that synchronize, copy or multiply, in order."""
    return SYNCHRONISES.findall(kernel.inspect("sass", *args, **statics))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "cfg",
    [pytest.param(Config(128, 256, 64, 3), marks=pytest.mark.soak), Config(64, 64, 32, 2)],
    ids=str,
)
def test_both_forms_compile_to_the_same_ring(cfg: Config) -> None:
    half = ArrayType((8, 8), HALF)
    loop, body = (synchronisation(k, half, half, cfg=cfg) for k in (gemm_loop, KERNELS[0]))
    assert loop == body
    assert sum("HGMMA" in i for i in loop) == cfg.tk // 16 * (cfg.tm // 128 or 1)
    assert not any("CALL" in i for i in loop)


@pytest.mark.thorough
def test_the_ring_of_a_delayed_release_differs() -> None:
    """Shows that the comparison above can fail."""
    half = ArrayType((8, 8), HALF)
    delayed = numpipe.kernel(
        gemm_loop.function,
        out_type=lambda a, b, cfg: ArrayType((a.shape[0], b.shape[0]), a.dtype),
        grid=numpipe.persistent(),
        num_compute_wgs=2,
        compiler_params=CompilerParams(delay_release=1),
    )
    assert synchronisation(delayed, half, half) != synchronisation(gemm_loop, half, half)


# ---- carries -------------------------------------------------------------------------------------
class Sums(NamedTuple):
    left: Any
    right: Any
    steps: Any


@numpipe.kernel
def paired(a, b, c):
    def body(indices, a_tile, b_tile, carry):
        left, right, n = carry
        left = numpipe.wgmma(left, a_tile.at[:, 0:64], b_tile.at[:, 0:64].T)
        right = numpipe.wgmma(right, a_tile.at[:, 64:128], b_tile.at[:, 64:128].T)
        return Sums(left, right, n + 1)

    def compute(pipeline):
        zero = numpipe.zeros((64, 64), np.float32)
        final = pipeline(Sums(zero, zero, 0))
        c[ds(0, 64), ds(0, 64)] = final.left + final.right + final.steps

    spec = BlockSpec((64, 128), lambda k: (0, k))
    emit(body, grid=(cdiv(a.shape[1], 128),), compute_context=compute, in_specs=(spec, spec))(a, b)


@pytest.mark.thorough
def test_a_carry_of_tiles_and_numbers() -> None:
    a, b = arrays((64, 64, 300))
    c = np.empty((64, 64), np.float32)
    paired.simulate(a, b, c)
    np.testing.assert_allclose(c, product(a, b) + 3, atol=0.05, rtol=2e-3)
    assert paired.inspect("gate", a, b, c) == ()


def test_no_steps_give_back_the_initial_carry() -> None:
    c = np.full((64, 64), np.nan, np.float32)
    paired.simulate(np.zeros((64, 0), np.float16), np.zeros((64, 0), np.float16), c)
    assert (c == 0).all()


def test_the_final_carry_may_be_read_and_the_carry_in_flight_may_not() -> None:
    @numpipe.kernel
    def reads(a, b, c):
        def body(indices, a_tile, b_tile, acc):
            return numpipe.wgmma(acc, a_tile, b_tile.T) * 0.5

        def compute(pipeline):
            c[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        emit(
            body,
            grid=(2,),
            compute_context=compute,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
        )(a, b)

    a, b = arrays((64, 64, 128))
    c = np.empty((64, 64), np.float32)
    with pytest.raises(PipelineRace, match="in flight|wgmma"):
        reads.simulate(a, b, c)
    with pytest.raises(numpipe.CompileError, match="in flight"):
        reads.compiled(a, b, c)


@numpipe.function
def run_it(pipe: numpipe.WarpSpecializedPipeline, a: Any, o: Any) -> None:
    pipe(a, o)


@pytest.mark.thorough
def test_a_coroutine_with_outputs_and_the_names_of_what_is_passed_on() -> None:
    @numpipe.kernel
    def both(a, o, c):
        def body(indices, x, y, acc):
            y[...] = x[...]
            return numpipe.wgmma(acc, x, x.T)

        def coroutine():
            acc = yield numpipe.zeros((64, 64), np.float32)
            c[ds(0, 64), ds(0, 64)] = acc

        def context(pipeline: Any) -> None:
            c[ds(64, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        specs = (BlockSpec((64, 64), lambda k: (0, k)),)
        emit(
            body,
            grid=(cdiv(a.shape[1], 64),),
            carry_coroutine=coroutine,
            in_specs=specs,
            out_specs=specs,
        )(a, o)
        named: numpipe.ComputeContext = context
        pipe: numpipe.WarpSpecializedPipeline = emit(
            body,
            grid=(cdiv(a.shape[1], 64),),
            compute_context=named,
            in_specs=specs,
            out_specs=specs,
        )
        numpipe.wait_smem_to_gmem(0)  # both store o
        run_it(pipe, a, o)

    for k in (0, 64, 200):
        a, _ = arrays((64, 64, k))
        for seed in (None, 1, 2):
            o, c = np.full_like(a, 7), np.empty((128, 64), np.float32)
            both.simulate(a, o, c, seed=seed)
            np.testing.assert_array_equal(o, a)
            np.testing.assert_allclose(c, np.concatenate([product(a, a)] * 2), atol=0.05)
    assert both.inspect("gate", a, o, c) == ()


# ---- grids, options, forms -----------------------------------------------------------------------
@pytest.mark.thorough
def test_a_pipeline_may_have_a_name() -> None:
    @numpipe.kernel
    def twice(a, b, c):
        def body(indices, a_tile, b_tile, acc):
            return numpipe.wgmma(acc, a_tile, b_tile.T)

        def compute(pipeline):
            c[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))
            numpipe.wait_smem_to_gmem(0)

        products = emit(
            body,
            grid=(cdiv(a.shape[1], 64),),
            compute_context=compute,
            max_concurrent_steps=3,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
        )
        products(a, b)
        products(a, b)
        products(b, a)

    a, b = arrays((64, 64, 320))
    c = np.empty((64, 64), np.float32)
    trace = numpipe.Trace()
    twice.simulate(a, b, c, trace=trace)
    np.testing.assert_allclose(c, product(b, a), atol=0.05)
    assert twice.inspect("gate", a, b, c) == ()


@pytest.mark.thorough
def test_products_of_the_body_are_counted_for_the_delay() -> None:
    """With delay_release=1, the products of one step may stay in flight.

    Without the count every wait would drain all of them.
    """
    half = ArrayType((8, 8), HALF)
    delayed = numpipe.kernel(
        KERNELS[0].function,
        out_type=lambda a, b, cfg: ArrayType((a.shape[0], b.shape[0]), a.dtype),
        grid=numpipe.persistent(),
        num_compute_wgs=2,
        compiler_params=CompilerParams(delay_release=1),
    )
    assert "wgmma.wait_group.sync.aligned 1" in delayed.inspect("ptx", half, half)
    assert "wgmma.wait_group.sync.aligned 1" not in KERNELS[0].inspect("ptx", half, half)


# ---- arrays without elements ---------------------------------------------------------------------
EMPTY = [
    ((64, 0), (64, 64), (64, 64)),
    ((64, 128), (64, 64), (0, 64)),
    ((64, 128), (64, 0), (64, 64)),
    ((0, 0), (0, 0), (3, 5)),
]


def check_sum_of_squares(shapes: tuple[tuple[int, int], ...], **named: Any) -> None:
    """The pipeline has two steps whatever the arrays hold, and two outputs."""

    @numpipe.kernel
    def squares(a, c, d):
        acc = numpipe.zeros((64, 64), np.float32)
        for (_,), (x,) in numpipe.pipeline(
            grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )(a):
            acc = numpipe.wgmma(acc, x, x.T)
        c[ds(0, 64), ds(0, 64)] = acc
        d[ds(0, 64), ds(0, 64)] = acc + 1

    a = np.ones(shapes[0], np.float16)
    c, d = (np.full(shape, np.nan, np.float32) for shape in shapes[1:])
    squares(a, c, d, **named)
    for found, exact in ((c, a.shape[1]), (d, a.shape[1] + 1)):
        assert (found == exact).all()


@pytest.mark.parametrize("shapes", EMPTY, ids=str)
def test_arrays_without_elements_are_zeros_and_written_nowhere(
    shapes: tuple[tuple[int, int], ...], target: str, again: range
) -> None:
    for _ in again:  # stale data of a store that did nothing must not read as zero
        check_sum_of_squares(shapes, target=target)


# ---- pipelines in bodies -------------------------------------------------------------------------
def nested_kernel(form: str) -> Any:
    """Loop over row blocks outside, and over steps of the product inside."""

    def sums(a, b, c):
        def inner(i, acc):
            if form == "loop":
                pipe = numpipe.pipeline(
                    grid=(cdiv(a.shape[1], 64),),
                    in_specs=(
                        BlockSpec((64, 64), lambda k: (i, k)),
                        BlockSpec((64, 64), lambda k: (0, k)),
                    ),
                )
                for (_,), (a_tile, b_tile) in pipe(a, b):
                    acc = numpipe.wgmma(acc, a_tile, b_tile.T)
                c[ds(i * 64, 64), ds(0, 64)] = acc
            else:

                def step(indices, a_tile, b_tile, acc):
                    return numpipe.wgmma(acc, a_tile, b_tile.T)

                def compute(pipeline):
                    c[ds(i * 64, 64), ds(0, 64)] = pipeline(acc)

                emit(
                    step,
                    grid=(cdiv(a.shape[1], 64),),
                    compute_context=compute,
                    in_specs=(
                        BlockSpec((64, 64), lambda k: (i, k)),
                        BlockSpec((64, 64), lambda k: (0, k)),
                    ),
                )(a, b)

        def outer(indices, b_tile):
            inner(indices[0], numpipe.zeros((64, 64), np.float32))

        emit(
            outer, grid=(cdiv(a.shape[0], 64),), in_specs=(BlockSpec((64, 64), lambda i: (0, 0)),)
        )(b)

    return numpipe.kernel(sums)


@pytest.mark.variants(1)
@pytest.mark.parametrize("form", ["loop", "body"])
@pytest.mark.parametrize("seed", [None, 1, 2, 3, 4])
def test_a_pipeline_in_a_body_is_filled_in_program_order(form: str, seed: int | None) -> None:
    kernel = nested_kernel(form)
    a, b = arrays((300, 64, 200))
    c = np.empty((300, 64), np.float32)
    kernel.simulate(a, b, c, seed=seed)
    np.testing.assert_allclose(c, product(a, b), atol=0.05)
    if seed is None:
        assert kernel.inspect("resources", a, b, c).spill_bytes == 0


@pytest.mark.thorough
def test_a_prologue_with_a_pipeline_in_the_compute_context() -> None:
    @numpipe.kernel
    def starts(a, b, c):
        specs = BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))

        def body(indices, a_tile, b_tile, acc):
            return numpipe.wgmma(acc, a_tile, b_tile.T)

        def compute(pipeline):
            acc = numpipe.zeros((64, 64), np.float32)
            for (_,), (x, y) in numpipe.pipeline(grid=(1,), in_specs=specs)(b, a):
                acc = numpipe.wgmma(acc, x, y.T)
            c[ds(0, 64), ds(0, 64)] = pipeline(acc)

        emit(body, grid=(cdiv(a.shape[1], 64),), compute_context=compute, in_specs=specs)(a, b)

    a, b = arrays((64, 64, 128))
    c = np.empty((64, 64), np.float32)
    for seed in (None, 1, 2, 3):
        starts.simulate(a, b, c, seed=seed)
        np.testing.assert_allclose(c, product(a, b) + product(b[:, :64], a[:, :64]), atol=0.05)
    assert starts.inspect("gate", a, b, c) == ()


def test_a_body_may_steer_with_values_of_the_compute_role() -> None:
    """The memory role does not run the branch."""

    @numpipe.kernel(num_compute_wgs=2)
    def first_only(a, b, c):
        wg = numpipe.axis_index("wg")

        def body(indices, a_tile, b_tile, acc):
            if wg == 0:
                acc = numpipe.wgmma(acc, a_tile, b_tile.T)
            return acc

        def compute(pipeline):
            c[ds(wg * 64, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        emit(
            body,
            grid=(2,),
            compute_context=compute,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
        )(a, b)

    a, b = arrays((64, 64, 128))
    c = np.empty((128, 64), np.float32)
    first_only.simulate(a, b, c)
    np.testing.assert_allclose(c[:64], product(a, b), atol=0.05)
    assert (c[64:] == 0).all()
    first_only.compiled(a, b, c)


def test_a_pipeline_that_nobody_fills_does_not_compile() -> None:
    """The simulated run is rejected too: see misuse/bodies.py."""
    with pytest.raises(numpipe.CompileError, match=r">:\d+: .*nobody issues its loads"):
        a_pipeline_that_only_the_compute_role_reaches.compiled(
            *arrays((64, 64, 64)), np.empty((64, 64), np.float32)
        )


# ---- the kernel's split into roles, set by the pipeline -------------------------------------
def test_the_pipeline_may_say_what_the_kernel_does_not() -> None:
    @numpipe.kernel
    def three(a, b, c):
        part = numpipe.axis_index("part")

        def body(indices, a_tile, b_tile, acc):
            return numpipe.wgmma(acc, a_tile.at[ds(part * 64, 64), :], b_tile.T)

        def compute(pipeline):
            c[ds(part * 64, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        emit(
            body,
            grid=(2,),
            compute_context=compute,
            num_compute_wgs=3,
            wg_axis="part",
            memory_registers=32,
            in_specs=(
                BlockSpec((192, 64), lambda k: (0, k)),
                BlockSpec((64, 64), lambda k: (0, k)),
            ),
        )(a, b)

    a, b = arrays((192, 64, 128))
    c = np.empty((192, 64), np.float32)
    three.simulate(a, b, c)
    np.testing.assert_allclose(c, product(a, b), atol=0.05)
    resources = three.inspect("resources", a, b, c)
    assert (resources.threads, resources.memory_registers) == (512, 32)
