"""Which grid dimensions an operand depends on, how many slots it gets, and other forms of a
pipeline's specs."""

from __future__ import annotations

import linecache
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, PipelineState, SpecError, ds

emit = numpipe.emit_pipeline_warp_specialized


def halves(rows: int, columns: int = 64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-2, 3, (rows, columns)).astype(np.float16)


def wide(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64)


def output(rows: int = 64) -> np.ndarray:
    return np.full((rows, 64), np.nan, np.float32)


def loads(kernel: Any, *arrays: Any, seed: int | None = None) -> Counter[str]:
    trace = numpipe.Trace()
    kernel.simulate(*arrays, trace=trace, seed=seed)
    return Counter(event.details["tensor"] for event in trace.of("load"))


# ---- analysis of index maps
@numpipe.function
def first(i, k):
    return i, 0


def kernel_with(maps: str) -> Any:
    """Return a kernel that loads x and y in a grid (2, 3), by maps of different kinds."""

    @numpipe.kernel
    def nested(x, y, c):
        def origin(i, k):
            return 0, 0

        def row(i, k):
            start = i + 0
            return start, 0

        def both(i, k):
            return row(i, k)

        offset = x.shape[0] - 128
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(2, 3),
            in_specs=(
                BlockSpec(
                    (64, 64),
                    origin
                    if maps == "nested"
                    else lambda i, k: (offset, 0) if maps == "lambda" else (0, 0),
                ),
                BlockSpec((64, 64), row)
                if maps == "nested"
                else BlockSpec((64, 64), both)
                if maps == "calls"
                else BlockSpec((64, 64), first)
                if maps == "function"
                else BlockSpec((64, 64), lambda i, k: (i, 0)),
            ),
        )
        for _, (xt, yt) in pipe(x, y):
            acc = numpipe.wgmma(acc, xt, yt.T)
        c[ds(0, 64), ds(0, 64)] = acc

    return nested


@pytest.mark.parametrize(
    "maps, slow", [("nested", 2), ("lambda", 2), ("calls", 6), ("function", 6)]
)
def test_dependence_is_seen_in_lambdas_and_nested_functions(maps: str, slow: int) -> None:
    """`both` passes on all its indices, so it uses them; a module-level function is assumed to use
    them."""
    x, y, c = halves(128), halves(128, seed=1), output()
    assert loads(kernel_with(maps), x, y, c) == {"x": 1, "y": slow}
    assert (c == 3 * wide(x[:64]) @ (wide(y[:64]) + wide(y[64:])).T).all()


@pytest.mark.thorough
def test_without_an_index_map_it_is_the_first_block() -> None:
    @numpipe.kernel
    def corner(x, y, c):
        acc = numpipe.zeros((64, 64), np.float32)
        for _, (xt, yt) in numpipe.pipeline(
            grid=(y.shape[1] // 64,),
            in_specs=(BlockSpec((64, 64)), BlockSpec((64, 64), lambda k: (0, k))),
        )(x, y):
            acc = numpipe.wgmma(acc, xt, yt.T)
        c[ds(0, 64), ds(0, 64)] = acc

    x, y, c = halves(128, 128), halves(64, 256, 1), output()
    assert loads(corner, x, y, c) == {"x": 1, "y": 4}
    assert (c == wide(x[:64, :64]) @ sum(wide(y[:, k : k + 64]) for k in range(0, 256, 64)).T).all()
    assert corner.inspect("gate", x, y, c) == ()


# ---- slots
def rings(kernel: Any, *arguments: Any) -> list[tuple[int, int]]:
    """Return (slots, delay) of the rings of a compiled kernel."""
    return [(ring.slots, ring.delay) for ring in kernel.compiled(*arguments).unit.rings.values()]


@pytest.mark.variants(1)
@pytest.mark.parametrize("steps, slots", [(1, 1), (2, 2), (7, 4), (0, 1)])
def test_slots_shrink_to_the_steps_of_a_constant_grid(steps: int, slots: int) -> None:
    @numpipe.kernel
    def product(a, c, *, n: numpipe.Static = 1):
        acc = numpipe.zeros((64, 64), np.float32)
        for _ in range(3):
            for _, (x,) in numpipe.pipeline(
                grid=(n,),
                max_concurrent_steps=4,
                delay_release=2,
                in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
            )(a):
                acc = numpipe.wgmma(acc, x, x.T)
        c[ds(0, 64), ds(0, 64)] = acc

    a, c = halves(64, 64 * max(steps, 1)), output()
    for seed in (None, 0, 1):
        product.simulate(a, c, n=steps, seed=seed)
        assert (c == 3 * wide(a) @ wide(a).T * (steps > 0)).all()
    unit = product.compiled(a, c, n=steps).unit
    assert [ring.slots for ring in unit.rings.values()] == [slots]


@dataclass(frozen=True)
class Sizes:
    rows: int = 2
    columns: int = 3


@numpipe.function
def looped(a, acc, n):
    for _, (x,) in numpipe.pipeline(
        grid=(n * 2, 1),
        max_concurrent_steps=8,
        in_specs=(BlockSpec((64, 64), lambda i, k: (0, k)),),
    )(a):
        acc = numpipe.wgmma(acc, x, x.T)
    return acc


@pytest.mark.thorough
def test_slots_shrink_to_a_grid_of_expressions_of_statics() -> None:
    """Products and quotients, through a local name, and in a function that gets a field of a
    Static."""

    @numpipe.kernel
    def grids(a, c, *, cfg: numpipe.Static = Sizes()):
        def add(indices, x, acc):
            return numpipe.wgmma(acc, x, x.T)

        acc = numpipe.zeros((64, 64), np.float32)
        for _, (x,) in numpipe.pipeline(
            grid=(cfg.rows * cfg.columns,),
            max_concurrent_steps=8,
            in_specs=(BlockSpec((64, 64), lambda k: (0, 0 * k)),),
        )(a):
            acc = numpipe.wgmma(acc, x, x.T)
        n = cfg.rows * cfg.columns
        grid = (n // 3, cfg.columns - 1)
        for _, (x, y) in numpipe.pipeline(
            grid=grid,
            max_concurrent_steps=8,
            in_specs=(
                BlockSpec((64, 64), lambda i, k: (0, k)),
                BlockSpec((64, 64), lambda i, k: (0, i)),
            ),
        )(a, a):
            acc = numpipe.wgmma(acc, x, y.T)
        acc = looped(a, acc, cfg.columns)
        acc = numpipe.emit_pipeline(
            add,
            grid=(cfg.rows, cfg.rows),
            max_concurrent_steps=8,
            init_carry=acc,
            in_specs=(BlockSpec((64, 64), lambda i, k: (0, k)),),
        )(a)
        c[ds(0, 64), ds(0, 64)] = acc

    a, c = halves(64, 192), output()
    grids.simulate(a, c)
    blocks = [wide(a[:, k : k + 64]) for k in (0, 64, 128)]
    square = [x @ x.T for x in blocks]
    both = (blocks[0] + blocks[1]) @ (blocks[0] + blocks[1]).T
    assert (c == 6 * square[0] + both + 6 * square[0] + 2 * (square[0] + square[1])).all()
    assert [(ring.slots, ring.dims) for ring in grids.compiled(a, c).unit.rings.values()] == [
        (6, None),
        (4, None),
        (2, 1),
        (6, None),
        (4, None),
    ]


@pytest.mark.thorough
def test_a_buffer_count_does_not_shrink() -> None:
    @numpipe.kernel
    def product(a, b, c):
        for m, _ in numpipe.tiles(c.shape[0] // 64, 1):
            acc = numpipe.zeros((64, 64), np.float32)
            for _, (x, y) in numpipe.pipeline(
                grid=(2,),
                max_concurrent_steps=4,
                in_specs=(
                    BlockSpec((64, 64), lambda k: (m, 0), buffer_count=2),
                    BlockSpec((64, 64), lambda k: (k, 0), buffer_count=3),
                ),
            )(a, b):
                acc = numpipe.wgmma(acc, x, y.T)
            c[ds(m * 64, 64), ds(0, 64)] = acc

    a, b, c = halves(256), halves(128, seed=1), output(256)
    for seed in (None, 0, 1):
        product.simulate(a, b, c, seed=seed)
        assert (c == wide(a) @ (wide(b[:64]) + wide(b[64:])).T).all()
    assert rings(product, a, b, c) == [(2, 0), (3, 0)]


def test_shared_memory_is_counted_by_operand() -> None:
    @numpipe.kernel
    def large(a, b):
        for _, _ in numpipe.pipeline(
            grid=(a.shape[0], a.shape[1]),
            max_concurrent_steps=6,
            in_specs=(
                BlockSpec((256, 64), lambda i, k: (0, k)),
                BlockSpec((256, 64), lambda i, k: (i, 0)),
            ),
        )(a, b):
            pass

    with pytest.raises(
        SpecError,
        match=r"394240 B, but[\s\S]* for 'a': 6 slots x 32768 B[\s\S]* for 'b': 6 slots x 32768 B",
    ):
        large.simulate(halves(64), halves(64))


# ---- arrays passed on; no inputs
@pytest.mark.thorough
def test_an_array_in_global_memory_is_passed_to_the_body() -> None:
    @numpipe.kernel
    def stored(a, c):
        def body(indices, x, out, ready):
            (k,) = indices
            numpipe.barrier_wait(ready)
            acc = numpipe.wgmma_wait(numpipe.wgmma(numpipe.zeros((64, 64), np.float32), x, x.T), 0)
            if out.shape[0] > k * 64:
                c[ds(k * 64, 64), ds(0, 64)] = acc

        emit(
            body,
            grid=(a.shape[0] // 64,),
            manual_produced_barriers=True,
            in_specs=(BlockSpec((64, 64), lambda k: (k, 0)), BlockSpec(memory_space=numpipe.GMEM)),
        )(a, c)

    a, c = halves(192), output(192)
    assert loads(stored, a, c) == {"a": 3}
    assert (
        c == np.concatenate([wide(a[k : k + 64]) @ wide(a[k : k + 64]).T for k in (0, 64, 128)])
    ).all()
    assert stored.inspect("gate", a, c) == ()


def test_a_pipeline_without_inputs_is_a_loop() -> None:
    @numpipe.kernel(num_compute_wgs=2)
    def filled(c):
        wg = numpipe.axis_index("wg")
        for (i, j), () in numpipe.pipeline(grid=(c.shape[0] // 128, 2))():
            c[ds(i * 128 + wg * 64, 64), ds(j * 64, 64)] = numpipe.zeros((64, 64), np.float32)

    c = np.ones((256, 128), np.float32)
    filled.simulate(c)
    assert (c == 0).all()
    filled.inspect("ptx", c)


# ---- trees
class Weights(NamedTuple):
    left: Any
    right: Any


@numpipe.kernel
def in_tuples(a, b, d, c):
    def body(indices, x, weights):
        y, (z,) = weights
        acc = numpipe.wgmma(numpipe.wgmma(numpipe.zeros((64, 64), np.float32), x, y.T), x, z.T)
        c[ds(0, 64), ds(0, 64)] = numpipe.wgmma_wait(acc, 0)

    spec = BlockSpec((64, 64), lambda k: (0, k))
    emit(body, grid=(1,), in_specs=(spec, (spec, (spec,))))(a, (b, (d,)))


@numpipe.kernel
def in_named_tuples(a, b, d, c):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(a.shape[1] // 64,),
        in_specs=(
            BlockSpec((64, 64), lambda k: (0, k)),
            Weights(left=BlockSpec((64, 64)), right=BlockSpec((64, 64), lambda k: (0, k))),
        ),
    )
    for _, (x, weights) in pipe(a, Weights(b, d)):
        acc = numpipe.wgmma(numpipe.wgmma(acc, x, weights.left.T), x, weights.right.T)
    c[ds(0, 64), ds(0, 64)] = acc


@numpipe.kernel
def by_name(a, b, d, c):
    """Use a NamedTuple as in_specs: arrays and tiles are its fields."""
    acc = numpipe.zeros((64, 64), np.float32)
    specs = Weights(
        left=BlockSpec((64, 64), lambda k: (0, k)),
        right=(BlockSpec((64, 64)), BlockSpec((64, 64), lambda k: (0, k))),
    )
    for _, (x, (y, z)) in numpipe.pipeline(grid=(a.shape[1] // 64,), in_specs=specs)(a, (b, d)):
        acc = numpipe.wgmma(numpipe.wgmma(acc, x, y.T), x, z.T)
    c[ds(0, 64), ds(0, 64)] = acc


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", [in_tuples, in_named_tuples, by_name], ids=lambda k: k.name)
def test_specs_arrays_and_tiles_in_tuples(kernel: Any) -> None:
    a, b, d, c = halves(64), halves(64, seed=1), halves(64, seed=2), output()
    kernel.simulate(a, b, d, c)
    assert (c == wide(a) @ (wide(b) + wide(d)).T).all()
    assert kernel.inspect("gate", a, b, d, c) == ()


# ---- shared allocations
@numpipe.kernel
def chained(a, b, c, state):
    n = a.shape[1] // 64

    def body(indices, x, y, acc):
        return numpipe.wgmma(acc, x, y.T)

    def compute(pipeline):
        c[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

    def compute_after(pipeline):
        c[ds(64, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

    one = emit(
        body,
        grid=(n,),
        compute_context=compute,
        pipeline_state=PipelineState.START,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
    )

    def run(shared):
        one(a, b, allocations=shared)
        emit(
            body,
            grid=(n,),
            compute_context=compute_after,
            pipeline_state=state,
            in_specs=(BlockSpec((64, 64), lambda k: (1, k)), BlockSpec((64, 64), lambda k: (0, k))),
        )(b, a, allocations=shared)

    numpipe.run_scoped(run, one.get_allocations(a, b), collective_axes="wg")


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_chain_of_pipelines_shares_slots_barriers_and_counters(
    steps: int, seed: int | None
) -> None:
    a, b, c = halves(128, 64 * steps), halves(128, 64 * steps, 1), output(128)
    trace = numpipe.Trace()
    chained.simulate(a, b, c, 2, seed=seed, trace=trace)
    assert (
        c == np.concatenate([wide(a[:64]) @ wide(b[:64]).T, wide(b[64:]) @ wide(a[:64]).T])
    ).all()
    fills = [
        event.details["step"] for event in trace.of("note") if event.details["event"] == "fill"
    ]
    assert fills == list(range(2 * steps))  # one counter


@pytest.mark.parametrize("state", [3, -1, True, 1.0, "START"])
@pytest.mark.parametrize("execution", ["simulate", "compiled"])
def test_an_invalid_pipeline_state(execution: str, state: Any) -> None:
    @numpipe.kernel
    def wrong(a, *, state: numpipe.Static = 0):
        emit(
            lambda k, x: None,
            grid=(1,),
            pipeline_state=state,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        )(a)

    given = "float64" if execution == "compiled" and isinstance(state, float) else repr(state)
    with pytest.raises(
        SpecError, match=f"pipeline_state must be None, .* or an integer 0…2, got {given}"
    ):
        getattr(wrong, execution)(halves(64), state=state)


@pytest.mark.variants(1, thorough=2)
@pytest.mark.parametrize("state", ["PipelineState.STOP", "1", "state", "state - 1", "wg"])
def test_a_pipeline_state_may_be_a_constant_or_a_run_time_value_and_changes_nothing(
    state: str,
) -> None:
    """Also a value that the memory role does not know."""
    text = f"""
@numpipe.kernel(num_compute_wgs=2)
def kernel(a, c, state):
    wg = numpipe.axis_index("wg")

    def body(indices, x, acc):
        return numpipe.wgmma(acc, x, x.T)

    def compute(pipeline):
        c[ds(wg * 64, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

    emit(body, grid=(a.shape[1] // 64,), compute_context=compute, pipeline_state={state},
         in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a)
"""
    linecache.cache[f"<state {state}>"] = (
        len(text),
        None,
        text.splitlines(keepends=True),
        f"<state {state}>",
    )
    scope: dict[str, Any] = dict(globals())
    exec(compile(text, f"<state {state}>", "exec"), scope)
    for steps in (0, 1, 3):
        a, c = halves(64, 64 * steps), output(128)
        scope["kernel"].simulate(a, c, 1)
        assert (c == np.concatenate([wide(a) @ wide(a).T] * 2)).all()
    assert rings(scope["kernel"], a, c, 1) == [(2, 0)]


@numpipe.kernel(grid=numpipe.persistent(1))
def shared_in_a_loop_nest(a, b, c, n, m):
    """Run two pipelines alternately on one ring, over grids of one and two dimensions.

    Their blocks depend on the surrounding loops.
    """

    def square(indices, x, acc):
        return numpipe.wgmma(acc, x, x.T)

    for i, _ in numpipe.tiles(3, 1):
        for j in range(2):
            row = (i * 2 + j) * 128

            def first(pipeline):
                c[ds(row, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

            def second(pipeline):
                c[ds(row + 64, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

            one = emit(
                square,
                grid=(n,),
                max_concurrent_steps=3,
                compute_context=first,
                in_specs=(BlockSpec((64, 64), lambda k: (k + j, 0)),),
            )

            def run(shared):
                one(a, allocations=shared)
                emit(
                    square,
                    grid=(m, 2),
                    max_concurrent_steps=3,
                    delay_release=1,
                    compute_context=second,
                    in_specs=(BlockSpec((64, 64), lambda p, q: (i + p + q, 0)),),
                )(b, allocations=shared)

            numpipe.run_scoped(run, one.get_allocations(a), collective_axes="wg")


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_a_chain_in_a_loop_nest_goes_on_with_one_ring(seed: int | None) -> None:
    a, b = halves(320), halves(384, seed=1)
    square_a, square_b = (
        [wide(x[r : r + 64]) @ wide(x[r : r + 64]).T for r in range(0, len(x), 64)] for x in (a, b)
    )
    for n, m in ((3, 2), (0, 1), (1, 0), (4, 3)):
        c = output(768)
        trace = numpipe.Trace()
        shared_in_a_loop_nest.simulate(a, b, c, n, m, seed=seed, trace=trace)
        for i in range(3):
            for j in range(2):
                first, second = c[(i * 2 + j) * 128 :][:64], c[(i * 2 + j) * 128 + 64 :][:64]
                assert (first == sum(square_a[j : j + n], np.zeros((64, 64)))).all()
                assert (
                    second
                    == sum(
                        (square_b[i + p + q] for p in range(m) for q in range(2)),
                        np.zeros((64, 64)),
                    )
                ).all()
        fills = [
            event.details["step"] for event in trace.of("note") if event.details["event"] == "fill"
        ]
        assert fills == list(range(6 * (n + 2 * m)))
    assert rings(shared_in_a_loop_nest, a, b, c, 1, 1) == [(3, 0)]


@pytest.mark.thorough
def test_a_chain_has_one_ring() -> None:
    a, c = halves(128, 128), output(128)
    assert rings(chained, a, a, c, 1) == [(2, 0)]
    assert chained.inspect("gate", a, a, c, 1) == ()
    assert chained.inspect("ptx", a, a, c, 1).count("mbarrier.init") == 4
