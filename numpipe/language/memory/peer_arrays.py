"""Arrays of other GPUs: a kernel with semaphores runs on each GPU of a mesh, and may load from and
store to its peers' memory.

::

    me, gpus = numpipe.axis_index("gpu"), numpipe.axis_size("gpu")
    numpipe.peer(y, (me + 1) % gpus)[ds(i * 64, 64), :] = tile           # the next GPU's y
    for (k,), (a_tile, b_tile) in pipe(numpipe.peer(a, rank), b): …      # tiles of another GPU's a

The same array parameter has one shape, type and layout on all GPUs, so a peer's is a reference of
the same type with another address, and other tensor maps: one for each GPU stands in the kernel's
packed parameter (`Unit.peers_at`). What orders accesses of different GPUs are semaphores
(`semaphores`).

A peer's memory belongs to other kernels until its launch has begun. So each warpgroup waits, before
its first access to a peer's memory, until the launches of all peers have begun; the first CTA of
each GPU tells them (`peers_cuda.begin`).
"""

from __future__ import annotations

from typing import Any

from ...core.arith import is_integer
from ...core.machine import current
from ...core.op import called, op
from ...diagnostics.errors import SpecError
from ...plan.context import Context
from ...plan.plans import BEGUN
from ..tiles.refs import GmemRef

__all__ = ["peer"]


@op(context=True)
def peer(np_: Context, array: GmemRef, rank: Any) -> GmemRef:
    """Return the same array of another GPU of the mesh: ``numpipe.peer(y, rank)`` is used wherever
    ``y`` is.

    array  an array parameter of a kernel with semaphores (``@numpipe.kernel(semaphores=…)``)
    rank   the GPU, 0 … ``axis_size("gpu") - 1``, a run-time integer that both roles know; the own
           GPU's gives the array itself

    Pipelines and copies load from it, tiles and copies are stored to it, and elements of it are
    read. It has the shape of `array`. The first call in a warpgroup waits until the launches of all
    GPUs have begun. Who reads what another GPU writes waits for a semaphore before (`signal`,
    `wait`), and a kernel does not end while a peer may still touch its memory: it waits until the
    peers have said that they are done.

    Reductions (`atomic_add`) are atomic among the CTAs of one GPU: in an array of a peer, those of
    two GPUs may not meet.

    Raises SpecError for what is no array parameter, and in a kernel without semaphores; on the
    simulated SM SimulationError for a rank that the mesh does not have, PipelineRace for accesses
    that no semaphore orders.
    """
    check_peer(np_, array, rank)
    np_.unit.peered.add(array.index)
    gpu = current().gpu_of(rank, f"numpipe.peer({array.arg.name}, rank)")
    await_launches(np_)
    return array.of(gpu)


def check_peer(np_: Any, array: Any, rank: Any) -> None:
    """Raise SpecError unless a kernel has the array on other GPUs, of values or of Numba types."""
    arg = getattr(array, "arg", None)
    if arg is None:
        raise SpecError(
            "numpipe.peer(array, rank): array is an array parameter of the kernel, got "
            f"{called(array)}"
        )
    if not np_.unit.gpus:
        raise SpecError(
            f"numpipe.peer({arg.name}, rank) in a kernel of one GPU: "
            "@numpipe.kernel(semaphores=…) makes it one of several, which is called with mesh="
        )
    if arg.semaphores:
        raise SpecError(
            f"numpipe.peer({arg.name}, rank): the semaphores of another GPU are signalled, "
            f"numpipe.signal({arg.name}.at[i], rank), and nothing else"
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
    """Wait, once a warpgroup, until the launches of all GPUs have begun."""
    if not np_.state[BEGUN]:
        current().gpu_await_begin()
        np_.state[BEGUN] = 1


@op
def begin_launch(np_: Context) -> None:
    """Tell all peers that the launch of this GPU has begun, by a lane of its first CTA. (On the GPU
    the entry does so.)"""
    current().gpu_begin()
