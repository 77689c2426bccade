"""Arrays of other GPUs: a kernel with semaphores runs on each GPU of a mesh, and may load from and
store to the memory of its peers.

::

    me, gpus = numpipe.axis_index("gpu"), numpipe.axis_size("gpu")
    numpipe.peer(y, (me + 1) % gpus)[ds(i * 64, 64), :] = tile           # the next GPU's y
    for (k,), (a_tile, b_tile) in pipe(numpipe.peer(a, rank), b): …      # tiles of another GPU's a

An array parameter has the same shape, type and layout on all GPUs, so a peer's array is a reference
of the same type with another address and other tensor maps: the kernel's packed parameter holds a
set for each GPU (`Unit.peers_at`). Semaphores (`semaphores`) order the accesses of different GPUs.

Until a peer's launch has begun, its memory belongs to other kernels. So before its first access to
a peer's memory, each warpgroup waits until the launches of all peers have begun; the first CTA of
each GPU signals them (`peer_arrays_cuda.launch_begins`).
"""

from __future__ import annotations

from typing import Any

from ...core.arith import is_integer
from ...core.machine import current
from ...core.op import called, context_op, op
from ...diagnostics.errors import SpecError
from ...plan.context import Context
from ...plan.plans import BEGUN
from ..tiles.refs import GmemRef

__all__ = ["peer"]


@context_op
def peer(np_: Context, array: GmemRef, rank: Any) -> GmemRef:
    """Return the same array of another GPU of the mesh: ``numpipe.peer(y, rank)`` can be used
    wherever ``y`` can.

    array  an array parameter of a kernel with semaphores (``@numpipe.kernel(semaphores=…)``)
    rank   the GPU, 0 … ``axis_size("gpu") - 1``, a run-time integer that both roles know; this
           GPU's own rank gives the array itself

    Pipelines and copies can load from it, tiles and copies can be stored to it, and elements of it
    can be read. It has the shape of `array`. The first call in a warpgroup waits until the launches
    of all GPUs have begun. To read what another GPU writes, wait for a semaphore first (`signal`,
    `wait`). A kernel does not end while a peer may still access its memory: it waits until the
    peers have signaled that they are done.

    Reductions (`atomic_add`) are atomic among the CTAs of one GPU only: two GPUs may not update the
    same elements at the same time.

    Raises SpecError if `array` is not an array parameter, and in a kernel without semaphores. On
    the simulated SM it raises SimulationError for a rank that the mesh does not have, and
    PipelineRace for accesses that no semaphore orders.
    """
    check_peer(np_, array, rank)
    np_.unit.peered.add(array.index)
    gpu = current().gpu_of(rank, f"numpipe.peer({array.arg.name}, rank)")
    await_launches(np_)
    return array.of(gpu)


def check_peer(np_: Any, array: Any, rank: Any) -> None:
    """Raise SpecError unless the kernel has the array on other GPUs. Takes values or Numba
    types."""
    arg = getattr(array, "arg", None)
    if arg is None:
        raise SpecError(
            "numpipe.peer(array, rank): array must be an array parameter of the kernel, got "
            f"{called(array)}"
        )
    if not np_.unit.gpus:
        raise SpecError(
            f"numpipe.peer({arg.name}, rank) in a kernel that runs on one GPU; fix: declare it "
            "with @numpipe.kernel(semaphores=…), and call it with mesh="
        )
    if arg.semaphores:
        raise SpecError(
            f"numpipe.peer({arg.name}, rank): semaphores of another GPU can only be signaled; "
            f"fix: numpipe.signal({arg.name}.at[i], rank)"
        )
    check_integer(f"numpipe.peer({arg.name}, rank)", "rank", rank)


def check_integer(what: str, name: str, value: Any) -> None:
    """Raise SpecError unless an argument, or its type, is an integer that both roles know."""
    if not is_integer(value):
        raise SpecError(
            f"{what}: {name} must be an integer that both roles know, got {called(value)}"
        )


@op
def await_launches(np_: Context) -> None:
    """Wait, once per warpgroup, until the launches of all GPUs have begun."""
    if not np_.state[BEGUN]:
        current().gpu_await_begin()
        np_.state[BEGUN] = 1


@op
def begin_launch(np_: Context) -> None:
    """Signal all peers that the launch of this GPU has begun, from a lane of its first CTA. (On the
    GPU the entry does this.)"""
    current().gpu_begin()
