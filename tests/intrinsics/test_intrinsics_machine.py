"""Each intrinsic, called in CPython, sends a request to the simulated SM, recorded here by a fake
machine."""

from __future__ import annotations

import contextvars
import doctest
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from numpipe import intrinsics
from numpipe.core import machine as _machine
from numpipe.core.machine import Machine, Mma, TensorMap
from numpipe.errors import SimulationError, SpecError
from numpipe.intrinsics import (
    barrier,
    cluster,
    convert,
    cp_async_bulk,
    elect,
    fence,
    griddep,
    ldmatrix,
    mbarrier,
    memory,
    setmaxnreg,
    special,
    stmatrix,
    wgmma,
)
from numpipe.plan.roles import COMPUTE
from numpipe.sim import simulate


class InFlightValue:
    """The result of the fake machine's wgmma."""

    def __init__(self) -> None:
        self.array = np.full((64, 8), 5, np.float32)

    def read(self) -> np.ndarray:
        return self.array


class Recorder:
    """A warpgroup that records its requests, which must be methods of `Machine` with its
    parameters."""

    warpgroup, role, cta, grid, rank, unit = 1, COMPUTE, (3, 2, 1), (10, 5, 2), 6, None

    def __init__(self, lanes: str = "all") -> None:
        self.lanes = lanes
        self.requests: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {}

    def collective(self, operation: str) -> None:
        if self.lanes != "all":
            raise SimulationError(f"{operation} with lanes={self.lanes!r}")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        signature = inspect.signature(getattr(Machine, name))

        def request(*args: Any, **kwargs: Any) -> Any:
            self.requests.append(
                (name, *signature.bind(self, *args, **kwargs).args[1:], *kwargs.values())
            )
            return self.answers.get(name)

        return request


@pytest.fixture
def machine() -> Iterator[Recorder]:
    recorder = Recorder()
    token = _machine._current.set(recorder)  # type: ignore[arg-type]
    yield recorder
    _machine._current.reset(token)


A = TensorMap(np.zeros((256, 128), np.float16), (64, 64), 128, "a")
MMA = Mma(8, np.dtype(np.float16), "k", "mn", (((64, 128),),))

REQUESTS = [
    (lambda: mbarrier.init(64, 4), ("mbar_init", 64, 4)),
    (lambda: mbarrier.inval(64), ("mbar_inval", 64)),
    (lambda: mbarrier.arrive(64), ("mbar_arrive", 64)),
    (lambda: mbarrier.arrive_remote(64), ("mbar_arrive_remote", 64)),
    (lambda: mbarrier.arrive_expect_tx_remote(64, 512), ("mbar_arrive_expect_tx_remote", 64, 512)),
    (lambda: cluster.map_shared(64, 1), ("map_shared", 64, 1)),
    (lambda: cluster.arrive(), ("cluster_arrive",)),
    (lambda: cluster.wait(), ("cluster_wait",)),
    (
        lambda: cp_async_bulk.multicast(1024, A, (np.int32(64), 0), 64, 3),
        ("tma_load", 1024, A, (64, 0), 64, 3),
    ),
    (lambda: mbarrier.arrive_count(64, 3), ("mbar_arrive", 64, 3)),
    (lambda: mbarrier.arrive_expect_tx(64, 8192), ("mbar_arrive_expect_tx", 64, 8192)),
    (lambda: mbarrier.wait(64, 5, 21), ("mbar_wait", 64, 5, 21)),
    (lambda: fence.proxy_async(), ("fence_proxy_async",)),
    (lambda: fence.proxy_async_global(), ("fence_proxy_async_global",)),
    (lambda: fence.mbarrier_init(), ("fence_mbarrier_init",)),
    (lambda: barrier.sync(1, 128), ("bar_sync", 1, 128)),
    (lambda: barrier.arrive(2, 256), ("bar_arrive", 2, 256)),
    (
        lambda: cp_async_bulk.load(1024, A, (np.int32(64), 0), 64),
        ("tma_load", 1024, A, (64, 0), 64),
    ),
    (lambda: cp_async_bulk.store(A, (64, 0), 1024), ("tma_store", A, (64, 0), 1024)),
    (
        lambda: cp_async_bulk.load(1024, A, (64, 0), 64, "evict_last"),
        ("tma_load", 1024, A, (64, 0), 64),
    ),
    (
        lambda: cp_async_bulk.store(A, (64, 0), 1024, eviction_policy="evict_first"),
        ("tma_store", A, (64, 0), 1024),
    ),
    (lambda: cp_async_bulk.reduce(A, (64, 0), 1024, "max"), ("tma_store", A, (64, 0), 1024, "max")),
    (lambda: cp_async_bulk.prefetch(A, (64, 0)), ("note", "prefetch", A.name, (64, 0))),
    (lambda: cp_async_bulk.commit_group(), ("bulk_commit",)),
    (lambda: cp_async_bulk.wait_group(0), ("bulk_wait", 0, False)),
    (lambda: cp_async_bulk.wait_group_read(2), ("bulk_wait", 2, True)),
    (lambda: cp_async_bulk.prefetch_tensormap(A), ("note", "prefetch.tensormap", A)),
    (lambda: wgmma.fence(), ("wgmma_fence",)),
    (lambda: wgmma.fence_accumulators(None), ("wgmma_fence",)),
    (lambda: wgmma.commit_group(), ("wgmma_commit",)),
    (lambda: wgmma.wait_group(1), ("wgmma_wait", 1)),
    (lambda: setmaxnreg.inc(232), ("setmaxnreg", "inc", 232)),
    (lambda: setmaxnreg.dec(40), ("setmaxnreg", "dec", 40)),
    (lambda: memory.store_word(16, 7), ("store_word", 16, 7)),
    (lambda: griddep.wait(), ("grid_dependency_wait",)),
    (lambda: griddep.launch_dependents(), ("note", "griddepcontrol.launch_dependents")),
]


@pytest.mark.parametrize(("call", "request_"), REQUESTS, ids=[r[0] for _, r in REQUESTS])
def test_operation_asks_the_machine(
    machine: Recorder, call: Callable[[], Any], request_: tuple[Any, ...]
) -> None:
    call()
    assert machine.requests == [request_]


@pytest.mark.parametrize("call", [call for call, _ in REQUESTS], ids=[r[0] for _, r in REQUESTS])
def test_operation_outside_a_kernel_says_so(call: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match="only works inside a kernel"):
        contextvars.Context().run(call)


@pytest.mark.parametrize("wait", [mbarrier.try_wait, mbarrier.test_wait])
def test_wait_that_may_fail_is_a_test_of_the_parity(
    machine: Recorder, wait: Callable[[int, int], bool]
) -> None:
    for answer in (False, True):
        machine.answers["mbar_test"] = answer
        assert wait(64, 1) is answer
    assert machine.requests == [("mbar_test", 64, 1)] * 2


def test_load_word_returns_what_the_machine_holds(machine: Recorder) -> None:
    machine.answers["load_word"] = 11
    assert memory.load_word(16) == 11


# ---- wgmma ---------------------------------------------------------------------------------------
def test_mma_is_one_k16_step_on_the_machine(machine: Recorder) -> None:
    machine.answers["wgmma"] = value = InFlightValue()
    zero = wgmma.accumulators(8)
    acc = wgmma.mma_async(zero, 64, 128, "f16", "k", "mn")
    ((name, given, mma),) = machine.requests
    assert (name, mma) == ("wgmma", MMA)
    assert given is zero
    assert acc.read() is value.array


def test_mma_continues_an_accumulator_in_flight(machine: Recorder) -> None:
    machine.answers["wgmma"] = value = InFlightValue()
    acc = wgmma.mma_async(wgmma.accumulators(8), 64, 128, dtype="bf16", a_major="k", b_major="mn")
    wgmma.mma_async(acc, 66, 130, dtype="bf16", a_major="k", b_major="mn")
    _, given, mma = machine.requests[-1]
    assert given is value
    assert (mma.n, mma.dtype, mma.steps) == (8, ml_dtypes.bfloat16, (((66, 130),),))


def test_wait_for_all_groups_returns_the_values_and_for_some_does_not(machine: Recorder) -> None:
    machine.answers["wgmma"] = value = InFlightValue()
    acc = wgmma.mma_async(wgmma.accumulators(8), 64, 128, "f16", "k", "k")
    assert wgmma.wait(acc, 1) is acc
    assert wgmma.wait(acc, n=0) is value.array
    assert machine.requests[1:] == [("wgmma_wait", 1), ("wgmma_wait", 0)]


def test_accumulators_are_zero_in_float32() -> None:
    acc = wgmma.accumulators(24)
    assert (acc.shape, acc.dtype, acc.any()) == ((64, 24), np.float32, False)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_legal_n_are_the_multiples_of_eight_up_to_256(dtype: str) -> None:
    assert wgmma.legal_n(dtype) == tuple(8 * i for i in range(1, 33))


@pytest.mark.parametrize(("swizzle", "mode"), [(0, 0), (128, 1), (64, 2), (32, 3)])
def test_descriptor_fields_are_where_the_hardware_reads_them(swizzle: int, mode: int) -> None:
    word = wgmma.descriptor(np.int32(0x12340), 4096, 1024, swizzle)
    assert -(2**63) <= word < 2**63, "must fit the int64 that the GPU holds"
    fields = [
        word >> low & (1 << bits) - 1
        for low, bits in ((0, 14), (16, 14), (32, 14), (49, 3), (62, 2))
    ]
    assert fields == [0x1234, 256, 64, 0, mode]


def test_k_step_of_a_descriptor_is_an_addition() -> None:
    assert wgmma.descriptor(0x2020, 16, 1024, 128) == wgmma.descriptor(0x2000, 16, 1024, 128) + 2


def test_statement_with_a_in_registers_has_no_flag_for_a() -> None:
    text = wgmma.statement(
        8, "f16", "k", "mn", ["%f0", "%f1", "%f2", "%f3"], "{%r0, %r1, %r2, %r3}", "%rd0", "p"
    )
    assert text == (
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, "
        "{%r0, %r1, %r2, %r3}, %rd0, p, 1, 1, 1;"
    )


# ---- stmatrix ------------------------------------------------------------------------------------
def stored(machine: Recorder) -> np.ndarray:
    """Return shared memory after the one recorded write, as 16-bit elements."""
    ((_, chunks, values, _),) = machine.requests
    assert values.dtype == np.uint8
    assert values.shape == (*chunks.shape, 16)
    smem = np.zeros(16384, np.uint8)
    for address, row in zip(chunks.reshape(-1), values.reshape(-1, 16), strict=True):
        smem[address : address + 16] = row
    return smem.view(np.uint16)


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_puts_each_element_where_the_isa_says(
    machine: Recorder, count: int, transposed: bool
) -> None:
    # warp, matrix, row, column
    matrices = np.arange(1, 4 * count * 64 + 1, dtype=np.uint16).reshape(4, count, 8, 8)
    # no two rows follow a pattern
    where = np.random.default_rng(0).permutation(1024)[:128].astype(np.int32) * 16
    registers = np.zeros((count, 128), np.uint32)
    for warp in range(4):
        for matrix in range(count):
            for lane in range(32):
                for half in range(2):
                    at = lane // 4, 2 * (lane % 4) + half
                    element = matrices[(warp, matrix, *(at[::-1] if transposed else at))]
                    registers[matrix, 32 * warp + lane] |= np.uint32(element) << np.uint32(
                        16 * half
                    )
    getattr(stmatrix, f"store_x{count}{'_trans' if transposed else ''}")(where, *registers)
    smem = stored(machine)
    for warp in range(4):
        for matrix in range(count):
            for row in range(8):
                address = where[32 * warp + 8 * matrix + row] // 2
                assert smem[address : address + 8].tolist() == matrices[warp, matrix, row].tolist()


def test_documented_stmatrix_undoes_the_accumulator_layout(machine: Recorder) -> None:
    """The example of store_x4 matches the register layout in wgmma's docstring."""
    tile = np.arange(64 * 16, dtype=np.float32).reshape(64, 16) % 256
    machine.warpgroup = 0  # type: ignore[misc]
    thread, lane = special.thread_index(), special.lane_index()
    d = []
    for i in range(8):
        rows = 16 * (thread // 32) + lane // 4 + 8 * (i // 2 % 2)
        d.append(tile[rows, 8 * (i // 4) + 2 * (lane % 4) + i % 2])
    row, column = lane % 16, lane // 16 * 8
    panel = 2048 * (thread // 32)
    stmatrix.store_x4(
        panel + 128 * row + 2 * column,
        convert.pack_bf16x2(d[0], d[1]),
        convert.pack_bf16x2(d[2], d[3]),
        convert.pack_bf16x2(d[4], d[5]),
        convert.pack_bf16x2(d[6], d[7]),
    )
    found = stored(machine).view(ml_dtypes.bfloat16).reshape(-1, 64)[:64, :16]
    assert (found.astype(np.float32) == tile).all()


def test_stmatrix_accepts_signed_words(machine: Recorder) -> None:
    words = np.full(128, 0xFFFF0001, np.uint32)
    stmatrix.store_x1(np.arange(128, dtype=np.int32) * 16, words.view(np.int32))
    assert stored(machine)[:8].tolist() == [1, 0xFFFF] * 4


# ---- ldmatrix ------------------------------------------------------------------------------------
@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_is_the_inverse_of_stmatrix(count: int, transposed: bool) -> None:
    where = np.random.default_rng(0).permutation(1024)[:128].astype(np.int32) * 16
    registers = np.random.default_rng(1).integers(0, 1 << 32, (count, 128), np.uint32)
    kind = f"x{count}{'_trans' if transposed else ''}"

    def body(_: object) -> None:
        getattr(stmatrix, f"store_{kind}")(where, *registers)
        found = getattr(ldmatrix, f"load_{kind}")(where)
        assert np.array_equal(np.reshape(found, (count, 128)), registers)

    simulate(body, grid=(1, 1, 1), warpgroups=1, smem_bytes=16384)


# ---- convert -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("pack", "dtype"),
    [(convert.pack_bf16x2, ml_dtypes.bfloat16), (convert.pack_f16x2, np.float16)],
    ids=["bf16", "f16"],
)
def test_pack_rounds_to_nearest(pack: Any, dtype: Any) -> None:
    x, y = np.random.default_rng(1).normal(size=(2, 128)).astype(np.float32)
    word = pack(x, y)
    assert word.dtype == np.uint32
    for shift, values in ((0, x), (16, y)):
        half = (word >> np.uint32(shift)).astype(np.uint16)
        assert (half == values.astype(dtype).view(np.uint16)).all()


@pytest.mark.parametrize(
    ("pack", "tie_down", "tie_up", "one"),
    [
        (convert.pack_bf16x2, 1 + 2**-8, 1 + 3 * 2**-8, 0x3F80),
        (convert.pack_f16x2, 1 + 2**-11, 1 + 3 * 2**-11, 0x3C00),
    ],
    ids=["bf16", "f16"],
)
def test_ties_go_to_the_even_neighbour(pack: Any, tie_down: float, tie_up: float, one: int) -> None:
    assert pack(tie_down, tie_up) == one | (one + 2) << 16


@pytest.mark.parametrize("pack", [convert.pack_bf16x2, convert.pack_f16x2], ids=["bf16", "f16"])
def test_special_values_survive_packing(pack: Any) -> None:
    assert pack(np.float32("nan"), -0.0) == 0x80007FFF
    infinities = pack(np.float32("inf"), 3.4e38)
    assert infinities & 0xFFFF == infinities >> 16, "too large rounds to infinity"


def test_packing_a_scalar_gives_a_scalar() -> None:
    assert isinstance(convert.pack_f16x2(1.0, 2.0), np.uint32)


# ---- special values ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("lanes", "threads"),
    [("all", list(range(128, 256))), ("warps", [128, 160, 192, 224]), ("one", 128)],
)
def test_thread_index_has_a_value_for_each_executing_lane(
    machine: Recorder, lanes: str, threads: Any
) -> None:
    machine.lanes = lanes
    index = special.thread_index()
    assert index.dtype == np.int32
    assert index.tolist() == threads
    assert (special.lane_index() == index % 32).all()


def test_special_values_come_from_the_machine(machine: Recorder) -> None:
    indices = [special.cta_index_x(), special.cta_index_y(), special.cta_index_z()]
    sizes = [special.grid_size_x(), special.grid_size_y(), special.grid_size_z()]
    assert (indices, sizes, special.warpgroup_index()) == ([3, 2, 1], [10, 5, 2], 1)
    assert special.sm_id() == 3 + 10 * (2 + 5 * 1), "a number for each CTA"
    assert (special.smem_base(), special.cluster_rank()) == (0, 6)
    assert {value.dtype for value in [*indices, *sizes, special.sm_id(), special.smem_base()]} == {
        np.dtype(np.int32)
    }


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("clock", [special.clock64, special.globaltimer])
def test_clocks_advance(clock: Callable[[], Any]) -> None:
    before = clock()
    time.sleep(0.001)
    assert clock() - before >= 1_000_000


def test_elected_lane_is_one_that_executes_alone(machine: Recorder) -> None:
    machine.lanes = "one"
    assert elect.elect_sync() is True


@pytest.mark.parametrize("lanes", ["all", "warps"])
def test_electing_among_many_points_to_one_lane(machine: Recorder, lanes: str) -> None:
    machine.lanes = lanes
    with pytest.raises(SimulationError, match=f"lanes='{lanes}'.*one_lane"):
        elect.elect_sync()


@pytest.mark.parametrize("value", [special.lane_index, special.thread_index])
@pytest.mark.parametrize("steers", [lambda value: bool(value % 2 == 0), range, int])
def test_code_that_lanes_steer_apart_is_refused(
    machine: Recorder, value: Callable[[], Any], steers: Any
) -> None:
    machine.lanes = "warps"
    with pytest.raises(
        SimulationError, match="a value that differs between 4 lanes controls .*one_lane"
    ) as caught:
        steers(value())
    assert caught.value.report is not None and caught.value.report.hazard == "divergent-aligned"
    machine.lanes = "one"
    assert value() % 32 == 0


# ---- errors --------------------------------------------------------------------------------------
PER_LANE = np.zeros(128, np.int32)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: setmaxnreg.inc(n=100), "multiple of 8 registers in 24 … 256, got 100: use 96"),
        (lambda: setmaxnreg.dec(264), "got 264: use 256"),
        (lambda: cp_async_bulk.wait_group_read(-1), "got -1"),
        (
            lambda: cp_async_bulk.reduce(A, (0, 0), 64, "mul"),
            "operation must be one of add, min, max.*, got 'mul'",
        ),
        (
            lambda: cp_async_bulk.load(0, A, (0, 0, 0), 64),
            "3 coordinates .* for a, an array of 2 dimensions",
        ),
        (
            lambda: cp_async_bulk.store(A, (0,), 64),
            "1 coordinates .* for a, an array of 2 dimensions",
        ),
        (lambda: cp_async_bulk.store(A, (), 64), "expected 1 … 5 coordinates, got 0"),
        (lambda: wgmma.wait_group(8), "in 0 … 7, .* got 8"),
        (lambda: wgmma.wait(None, -1), "in 0 … 7, .* got -1"),
        (lambda: wgmma.accumulators(12), "multiple of 8 in 8 … 256 for bf16, got 12"),
        (lambda: wgmma.legal_n("s16"), "element type must be .*, got 's16'"),
        (lambda: wgmma.mma_async(np.zeros((64, 8)), 0, 0, "s8", "k", "k"), "sums of s8 are int32"),
        (
            lambda: wgmma.mma_async(np.zeros((64, 8)), 0, 0, "f16", "k", "n"),
            "b_major must be .*, got 'n'",
        ),
        (
            lambda: wgmma.descriptor(8, 16, 1024, 128),
            "addr must be a multiple of 16 bytes .*, got 8",
        ),
        (lambda: wgmma.descriptor(0, 16, 1 << 18, 128), "stride_bytes .* 0 … 262128, got 262144"),
        (lambda: wgmma.descriptor(0, 16, 1024, 256), "got 256"),
        (
            lambda: wgmma.statement(16, "f16", "k", "k", ["d"], "a", "b"),
            "m64n16 needs 8 accumulator registers, got 1",
        ),
        (
            lambda: wgmma.statement(8, "f16", "mn", "k", ["d"] * 4, "{a}", "b"),
            "a_major='mn' of f16 with A in registers",
        ),
        (
            lambda: stmatrix.store_x1(0, PER_LANE),
            r"addr must be an integer for each of the 128 lanes .*, got int64\[\]",
        ),
        (
            lambda: stmatrix.store_x2(PER_LANE, PER_LANE, np.zeros(128)),
            r"r1 must be .*, got float64\[128\]",
        ),
        (
            lambda: ldmatrix.load_x2(0),
            r"addr must be an integer for each of the 128 lanes .*, got int64\[\]",
        ),
        (lambda: ldmatrix.load_x4(PER_LANE + 8), "row address 8 is not a multiple of 16"),
        (
            lambda: stmatrix.store_x1(PER_LANE + 8, PER_LANE),
            "row address 8 is not a multiple of 16",
        ),
    ],
)
def test_illegal_operand_is_an_error_in_cpython(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call()


@pytest.mark.parametrize(
    "call", [lambda: stmatrix.store_x1(PER_LANE, PER_LANE), lambda: ldmatrix.load_x2(PER_LANE)]
)
def test_stmatrix_and_ldmatrix_need_whole_warps(machine: Recorder, call: Callable[[], Any]) -> None:
    machine.lanes = "one"
    with pytest.raises(SimulationError, match="matrix with lanes='one'"):
        call()


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda: memory.store_global_b32(0, 0), "store a tile"),
        (lambda: memory.ld_acquire_gpu_b32(0), "numpipe.combine"),
        (lambda: memory.await_each_acquire_gpu_b32(0, 4, 0, 1), "numpipe.combine"),
        (lambda: memory.st_release_gpu_b32(0, 1), "numpipe.combine"),
        (lambda: memory.red_release_sys_add(0, 1), "numpipe.signal"),
    ],
)
def test_global_addresses_exist_on_the_gpu_only(call: Callable[[], Any], instead: str) -> None:
    with pytest.raises(NotImplementedError, match=instead):
        call()


# ---- the package ---------------------------------------------------------------------------------
@pytest.mark.parametrize("module", [convert, wgmma], ids=["convert", "wgmma"])
def test_docstring_examples_hold(module: Any) -> None:
    examples = doctest.DocTestFinder()
    runner = doctest.DocTestRunner()
    for value in vars(module).values():
        function = getattr(value, "function", value)
        if inspect.isfunction(function) and function.__module__ == module.__name__:
            for example in examples.find(function, globs=vars(module)):
                runner.run(example)
    assert runner.tries > 0
    assert runner.failures == 0


@pytest.mark.parametrize("family", intrinsics.__all__)
def test_every_operation_says_who_executes_it_and_where_the_isa_describes_it(family: str) -> None:
    module = getattr(intrinsics, family)
    for name, value in vars(module).items():
        if hasattr(value, "function"):
            text = " ".join((value.__doc__ or "").split())
            scope = module.__doc__ if family == "special" else text
            assert "PTX ISA" in text or name == "smem_base", f"{family}.{name}"
            assert "Scope:" in scope or "read by a lane" in scope, f"{family}.{name}"


def test_an_unknown_family_gives_an_error_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no family 'tcgen05': use one of barrier, .*wgmma"):
        intrinsics.tcgen05  # noqa: B018
