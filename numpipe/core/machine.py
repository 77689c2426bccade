"""The interface of the machine that a kernel runs on in CPython: what one warpgroup of a Hopper SM
can do.

Operations (`op`) call methods of ``current()``. The simulated SM implements `Machine`, with one
object per warpgroup, and code below the simulator uses only this interface. Addresses are byte
offsets in the CTA's dynamic shared memory.

A thread of control is a warpgroup of four warps, or 128 lanes. `lanes` determines which of them
execute the next operations:

========  ==========================================================  ===================
lanes     executed by                                                 entered by
========  ==========================================================  ===================
"all"     all 128 lanes of the warpgroup                              the compute role
"warps"   lane 0 of each of the four warps                            ``each_warp(f, …)``
"one"     one elected lane of the warpgroup's first warp              ``one_lane(f, …)``, the memory
                                                                      role
========  ==========================================================  ===================
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from ..arch.dimensions import Dim3, Ints
from ..arch.products import Product
from ..diagnostics.argument_checks import NONE, word
from ..diagnostics.errors import SimulationError, reported
from ..diagnostics.reports import Party, Report

Lanes = Literal["all", "warps", "one"]
EVICTION_POLICIES = word("evict_first", "evict_last")
EVICTION_POLICY = EVICTION_POLICIES | NONE
"""What L2 may do with the lines of a TMA copy (PTX ISA, "createpolicy")."""


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A CUtensorMap: an array in GMEM, the box that one copy moves, and the layout of the box in
    SMEM.

    `array` and `box` are in NumPy order (innermost, contiguous dimension last). Coordinates are in
    elements, also outermost first. A row of the box (the innermost dimension, `box[-1]` elements)
    is `row_bytes` wide, and rows follow each other without gaps. If `swizzle` is 32, 64 or 128, the
    16-byte chunk index is XORed with the row index as in the hardware: address bits [4, 4+b) ^=
    bits [7, 7+b), b = log2(swizzle / 16). Elements outside the array are read as zeros
    (`fill="nan"`: NaN) and never written, but their bytes still count towards the barrier. A store
    writes whole 16-byte chunks, so at the end of a row that is not a multiple of 16 bytes it
    overwrites what follows, unless the rows are `padded`. `flipped` means that `array` is the
    transpose of the kernel's array, for reports.
    """

    array: np.ndarray
    box: Ints
    swizzle: int
    name: str
    fill: Literal["zeros", "nan"] = "zeros"
    padded: bool = False
    flipped: bool = False

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes that one copy moves into SMEM, including out-of-bounds elements."""
        return int(np.prod(self.box)) * self.array.dtype.itemsize


@dataclass(frozen=True)
class Mma:
    """A batch of ``wgmma.mma_async`` of one type that update one accumulator.

    `steps[i]` lists the (A descriptor, B descriptor) pairs of accumulator rows [64 i, 64 i + 64),
    one per 32 bytes of K, as 64-bit matrix descriptors (PTX ISA, "wgmma matrix descriptor").
    `a_major` and `b_major` are "k" or "mn". `b_dtype` is the type of B if it differs from A's.
    """

    n: int
    dtype: np.dtype
    a_major: Literal["k", "mn"]
    b_major: Literal["k", "mn"]
    steps: tuple[tuple[tuple[int, int], ...], ...]
    b_dtype: np.dtype | None = None


class InFlight(Protocol):
    """An accumulator that a wgmma may still be writing."""

    def read(self) -> np.ndarray:
        """Return a float32 or int32 array. Raises PipelineRace unless `wgmma_wait` has covered the
        group."""


class WorkCounter(Protocol):
    """The counter from which the CTAs of a launch draw work indices (`tile_scheduler`); `cta` is a
    CTA's number in the grid."""

    def draw(self, cta: int) -> int:
        """Add 1 atomically for a CTA, and return a work index of the launch that no other CTA
        gets."""

    def ended(self, cta: int, what: str) -> str | None:
        """Record that a CTA has ended a loop or, for "", that the CTA itself has ended. Return how
        that differs from what another CTA did, or None."""


class Executing(Protocol):
    """What a warpgroup and a lane with code of its own have in common."""

    warpgroup: int
    """index in the CTA"""
    role: Any
    """what it does with the kernel function (numpipe.plan.roles.Role)"""
    cta: Dim3
    """blockIdx (x, y, z)"""
    grid: Dim3
    """gridDim (x, y, z)"""
    unit: Any
    """the kernel's axes, rings, slots and staging memory (numpipe.plan.unit.Unit)"""

    def round(self) -> None:
        """Begin an iteration of a `while` loop. A loop that never ends is an error."""

    def gmem_read(self, array: np.ndarray, index: tuple[slice, ...], what: str) -> np.ndarray:
        """Load directly (ld.global) from the array called `what`: ``array[index]``, which must be
        inside the array; a lane loads a single element."""

    def gmem_write(
        self,
        array: np.ndarray,
        index: tuple,
        values: np.ndarray,
        what: str,
        reduction: str = "",
    ) -> None:
        """Store directly (st.global) to the array called `what`: ``array[index] = values``, where
        the index consists of ints and slices; a lane stores a single element.

        `reduction`: combine each element with its value atomically (``red.global``), as in
        `Machine.tma_store`."""


class Machine(Executing, Protocol):
    """One warpgroup of the running CTA."""

    lanes: Lanes
    rank: int
    """rank of the CTA in its cluster"""
    gpu: int | None
    """number of its GPU, in a kernel with semaphores"""
    moves: bool
    """whether copies move data, and shared memory holds it"""

    @property
    def deal(self) -> WorkCounter: ...

    def steps(self, count: int, site: Any) -> Iterable[int]:
        """Return the steps to run of a pipeline's loop of `count` steps, in any order, then
        `count`. `site` says which loop it is."""

    def next_tile(self, tile: int, stride: int, end: int) -> int:
        """Return the tile to run after `tile` in a loop that takes every `stride`-th, or one from
        `end` on. A loop asks twice, before it ends a tile and before it begins the next."""

    def scoped(self, lanes: Lanes, function: Callable, args: Sequence) -> Any:
        """Run ``function(*args)`` in these lanes, which must be a subset of the executing ones
        ("one" inside "all", not the reverse)."""

    def collective(self, operation: str) -> None:
        """Report an error unless all lanes execute, because `operation` is ``.aligned``."""

    # ---- mbarriers (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier")
    def mbar_init(self, address: int, count: int, name: str = "") -> None:
        """Initialize an mbarrier, in one lane. `name` is for reports, e.g.
        ``ready[2] of a, b @ gemm.py:41``. Reinitializing one that is in use is an error."""

    def mbar_init_at_entry(
        self, address: int, count: int, name: str = "", *, observed: bool = False
    ) -> None:
        """Declare an mbarrier that the kernel's entry initializes, fences and synchronizes before
        any warpgroup runs.

        Every warpgroup that uses it declares it, for all CTAs of the cluster; a different count at
        the same address is an error. If `observed`, two more things are errors: a phase that
        completes before anybody has waited for the previous one, and, at the end, a phase that has
        begun or that nobody has waited for.
        """

    def mbar_inval(self, address: int) -> None: ...

    def mbar_arrive(self, address: int, count: int = 1) -> None:
        """Arrive `count` times in every executing lane (128, 4 or 1 lanes). More arrivals than are
        pending are an error."""

    def mbar_arrive_remote(self, address: int, wide: bool = False) -> None:
        """Do what `mbar_arrive` does on an mbarrier of any CTA of the cluster, at an address from
        `map_shared`. The arrival takes effect some time later.

        `wide`: use cluster scope, so that waiters may load what was stored before (`smem_fetch`).
        """

    def mbar_arrive_expect_tx_remote(self, address: int, nbytes: int) -> None:
        """Do what `mbar_arrive_expect_tx` does on an mbarrier of any CTA of the cluster, at an
        address from `map_shared`, some time later."""

    def mbar_arrive_cluster(
        self, address: int, ranks: Sequence[int], alike: bool, wide: bool = False
    ) -> None:
        """Arrive simultaneously on the mbarriers at this address in several CTAs.

        `alike`: everyone who arrives on one of them arrives on all, so they complete their phases
        together.
        """

    def mbar_arrive_expect_tx(self, address: int, nbytes: int) -> None:
        """Add nbytes to the phase's expected bytes, then arrive once (per executing lane)."""

    def mbar_test(self, address: int, parity: int) -> bool:
        """Return whether the phase with this parity has completed (test_wait.parity). Never blocks;
        True acquires like a wait."""

    def mbar_wait(self, address: int, phase: int, step: int = -1) -> None:
        """Block until phase number `phase` (0, 1, …; -1 is complete from the start) has completed.

        Blocks by ``phase & 1`` alone, as the hardware does, then checks that the phase reached is
        the intended one. Another one is a stale (or missed) phase, and raises PipelineRace. The
        warps of all executing lanes acquire. `step` is the ring's step counter, for reports (-1:
        not a ring).
        """

    # ---- clusters
    def map_shared(self, address: int, rank: int) -> int:
        """Return the address in the cluster's window of the byte at `address` in the CTA with this
        rank."""

    def cluster_arrive(self) -> None: ...

    def cluster_wait(self) -> None:
        """Block until every warpgroup of the cluster has arrived or ended."""

    def agree(self, key: tuple, value: Any, parties: int, what: str) -> None:
        """Report an error unless all `parties` CTAs of the cluster that call this with the same key
        pass the same value; `what` names it."""

    # ---- fences and named barriers
    def fence_mbarrier_init(self) -> None: ...

    def fence_proxy_async(self) -> None:
        """Make the executing warps' earlier generic SMEM writes visible to the async proxy (TMA
        store, wgmma)."""

    def bar_sync(self, barrier: int, threads: int) -> None: ...

    def bar_arrive(self, barrier: int, threads: int) -> None: ...

    def bar_red(self, barrier: int, threads: int, operation: str, values: np.ndarray) -> bool:
        """Do what `bar_sync` does, and return whether "any", or "all", of the warpgroup's values
        are true (barrier.red)."""

    def grid_dependency_wait(self) -> None:
        """Execute griddepcontrol.wait in the executing lanes. Afterwards, arrays that earlier
        kernels of the stream use may be accessed."""

    def setmaxnreg(self, direction: Literal["inc", "dec"], registers: int) -> None:
        """Change the number of registers. `inc` blocks until the SM's pool has them; a budget that
        can never be granted is a deadlock."""

    # ---- TMA (cp.async.bulk.tensor)
    def tma_load(self, dst: int, tensor: TensorMap, coords: Ints, mbar: int, ctas: int = 0) -> None:
        """Start an asynchronous copy of a box from GMEM to SMEM, which completes `tensor.nbytes` on
        mbar. One lane.

        `ctas`: bit mask of the ranks of CTAs of the cluster to copy to, at the same addresses and
        mbarriers; 0: only this CTA."""

    def bulk_load(self, dst: int, source: TensorMap, nbytes: int, mbar: int) -> None:
        """Start an asynchronous copy of the first `nbytes` of a one-dimensional array to SMEM,
        which completes them on mbar. One lane."""

    def tma_store(
        self,
        tensor: TensorMap,
        coords: Ints,
        src: int,
        reduction: str = "",
        once: bool = False,
    ) -> None:
        """Start an asynchronous copy of a box from SMEM to GMEM, as part of the lane's open bulk
        group. One lane.

        `reduction` ("add", "min", "max", "inc", "dec", "and", "or", "xor") combines each element
        with the copied one, atomically. `once`: this is the last read of these bytes; another read
        before they are written again is an error."""

    def bulk_commit(self) -> None: ...

    def bulk_wait(self, pending: int, *, read: bool) -> None:
        """Block until at most `pending` of this lane's newest bulk groups are unfinished (`read`:
        still reading SMEM)."""

    # ---- wgmma
    def wgmma_fence(self) -> None: ...

    def wgmma(
        self, accumulator: np.ndarray | InFlight, mma: Mma, a: np.ndarray | None = None
    ) -> InFlight:
        """Issue the batch, which adds rows of A x B^T to the accumulator. It may read SMEM at any
        time until waited for.

        `a`: A from registers, (rows, K) of `mma.dtype`; the A descriptors are then unused."""

    def wgmma_commit(self) -> None: ...

    def wgmma_wait(self, pending: int) -> None:
        """Block until at most `pending` of this warpgroup's newest committed groups are in
        flight."""

    def product_cycles(self, adds: int, dtype: np.dtype, product: Product) -> None:
        """Let time pass as a product of warps takes it: of `adds` multiply-adds of elements of a
        type."""

    # ---- generic proxy accesses by the warps of the warpgroup
    def smem_write(self, chunks: np.ndarray, values: np.ndarray, what: str) -> None:
        """Write from each warp: `chunks` is an int array (4, n) of byte addresses of 16-byte
        chunks, `values` is uint8 (4, n, 16)."""

    def smem_read(self, chunks: np.ndarray, what: str) -> np.ndarray:
        """Return the bytes at `chunks` (warps, n) as uint8 (warps, n, 16)."""

    def smem_send(
        self, chunks: np.ndarray, values: np.ndarray, rank: int, mbar: int, what: str
    ) -> None:
        """Do what `smem_write` does in another CTA of the cluster (st.async). The data lands some
        time later, on the mbarrier at `mbar` there."""

    def smem_load(self, addresses: np.ndarray, nbytes: int, what: str) -> np.ndarray:
        """Return the `nbytes` at each of the byte addresses (warps, n), as uint8 (warps, n,
        nbytes)."""

    def smem_fetch(self, addresses: np.ndarray, nbytes: int, rank: int, what: str) -> np.ndarray:
        """Load like `smem_load` from the shared memory of another CTA of the cluster
        (ld.shared::cluster)."""

    def smem_store(self, addresses: np.ndarray, values: np.ndarray, what: str) -> None:
        """Write elements from each warp: uint8 (warps, n, bytes per element) to the byte addresses
        (warps, n)."""

    def smem_update(
        self, addresses: np.ndarray, values: np.ndarray, reduction: str, what: str
    ) -> None:
        """Combine values (warps, n) from each warp with the elements at these byte addresses,
        atomically (``red.shared``)."""

    def store_word(self, address: int, value: int) -> None:
        """Execute st.shared.b32 in the executing lane, for counters passed between warpgroups."""

    def load_word(self, address: int) -> int:
        """Execute ld.shared.b32 in the executing lanes."""

    def gmem_scatter(
        self,
        array: np.ndarray,
        index: tuple,
        axis: int,
        places: np.ndarray,
        values: np.ndarray,
        what: str,
    ) -> None:
        """Store directly to indexed places: item i of `values` along dimension `axis` goes to
        ``places[i]`` of that dimension.

        `values` has the array's dimensions; `index` has slices for the other dimensions, inside the
        array."""

    def gmem_signal(
        self, flags: np.ndarray, index: int, what: str, value: int = 1, stays: bool = False
    ) -> None:
        """Execute st.release.gpu of a value to ``flags[index]`` in one lane; reports call the flag
        `what`. `stays`: waits leave it set."""

    def gmem_await(self, flags: np.ndarray, index: int, what: str, value: int = 1) -> None:
        """Execute ld.acquire.gpu of ``flags[index]`` in one lane until it has a value, then set it
        to 0 unless it stays."""

    # ---- other GPUs
    def gpu_begin(self) -> None:
        """Tell all GPUs that the launch on this one has begun, in one lane of it."""

    def gpu_await_begin(self) -> None:
        """Wait until the launches on all GPUs have begun. After that, their memory may be
        accessed."""

    def gpu_of(self, rank: int, what: str) -> int:
        """Return the number of a GPU. If the mesh does not have it, this is an error whose message
        begins with `what`."""

    def semaphore_signal(
        self, semaphores: np.ndarray, index: int, rank: int, add: int, what: str
    ) -> None:
        """Execute red.release.sys.add on semaphore `index` of GPU `rank` in one lane; reports call
        the array `what`."""

    def semaphore_wait(self, semaphores: np.ndarray, index: int, value: int, what: str) -> None:
        """Execute ld.acquire.sys of this GPU's semaphore `index` in one lane, until `value` has
        been added to it in this launch."""

    def fence_proxy_async_global(self) -> None:
        """Make the ordinary stores to arrays that the executing lanes have seen visible to the
        async proxy."""

    def each_lane(self, function: Callable, arguments: Sequence[tuple]) -> list:
        """Call ``function(*arguments[i])`` as lane i of the 128, whose current machine is a `Lane`,
        and return the results."""

    # ---- observation
    def note(self, event: str, **details: Any) -> None:
        """Add an event to the trace: "wait ready", "issue", "release", "store", "tile" with ring,
        slot, step."""


class Lane(Executing, Protocol):
    """One lane of a warpgroup that runs its own code (`Machine.each_lane`). It can only do what is
    defined here."""

    lane: int
    """index in the warpgroup"""

    def load(self, address: int, dtype: np.dtype, what: str) -> Any:
        """Return a number from shared memory (ld.shared)."""

    def store(self, address: int, value: Any, what: str) -> None:
        """Write a NumPy number to shared memory (st.shared)."""

    def update(self, address: int, value: Any, reduction: str, what: str) -> None:
        """Combine a NumPy number with one in shared memory, atomically (red.shared)."""

    def shuffle(self, operation: str, mask: int, value: Any, amount: int) -> Any:
        """Return the value of another lane of the warp; `operation` is shfl_sync, shfl_up_sync,
        shfl_down_sync or shfl_xor_sync."""

    def syncwarp(self, mask: int) -> None:
        """Wait for the lanes of `mask`."""


_current: contextvars.ContextVar[Machine] = contextvars.ContextVar("numpipe machine")


def current() -> Machine:
    """Return the executing warpgroup. Raises RuntimeError outside a simulated kernel."""
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError(
            "this operation only works inside a kernel: call it from a @numpipe.kernel function"
        ) from None


def failure(
    error: type[SimulationError], hazard: str, message: str, fix: str, did: str, **where: Any
) -> SimulationError:
    """Return an error of an operation above the simulator, with a report; `did` and `where` are
    fields of its `reports.Party`."""
    machine = current()
    now = Party(did, machine.warpgroup, machine.role.name, machine.cta, **where)
    return reported(error, Report(hazard, message, now, cause=message.partition("; ")[0], fix=fix))


def enter(machine: Machine) -> None:
    """Make `machine` current in this thread of control (each greenlet has its own context)."""
    _current.set(machine)
