"""Estimate how long the transfers between GPUs take, from the order in which each GPU accesses its
peers.

All peers of a GPU share its outgoing port, and its incoming one. GPUs that load from one peer at
the same time, or store to one, therefore take as many times as long, even if in the end each port
carries equally many bytes.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from ...arch.dimensions import Dim3
from ...plan.unit import Unit
from ...sim.inferred import Work
from ...sim.work_count import Transfer, TransferTracer, run

Queue = list[Transfer]
"""What one warpgroup transfers, in order."""


def queues(
    unit: Unit, body: Callable[[Any], None], ctas: list[Dim3], grid: Dim3, events: int
) -> list[list[Queue]]:
    """Return the transfers of some CTAs on each GPU: a list of queues per GPU.

    After a CTA has run on all GPUs, further ones run only while they count fewer than `events`.
    """
    found: list[list[Queue]] = [[] for _ in range(unit.gpus)]
    for cta in ctas:
        for gpu, of_gpu in enumerate(found):
            for warpgroup in range(len(unit.parts)):
                machine = TransferTracer(Work(), unit, warpgroup, cta, grid)
                machine.gpu = gpu
                run(machine, body)
                events -= machine.events
                of_gpu.append(machine.transfers())
        if events <= 0:
            break
    return found


def port_bytes(found: list[list[Queue]]) -> float:
    """Return the time of transfers, as the bytes that one port passes meanwhile.

    The first transfers of all queues are under way at the same time, and a port divides its rate
    among them equally.

    >>> port_bytes([[], [[(0, 1, 10.0)]], [[(0, 2, 10.0)]]])
    20.0
    >>> port_bytes([[], [[(0, 1, 10.0)]], [[(1, 2, 10.0)]]])
    10.0
    """
    waiting = [collections.deque(queue) for of_gpu in found for queue in of_gpu if queue]
    passed = 0.0
    while waiting:
        sharing = collections.Counter(port for queue in waiting for port in enumerate(queue[0][:2]))
        shares = [max(sharing[port] for port in enumerate(queue[0][:2])) for queue in waiting]
        step = min(queue[0][2] * share for queue, share in zip(waiting, shares, strict=True))
        passed += step
        for queue, share in zip(waiting, shares, strict=True):
            source, target, nbytes = queue.popleft()
            if nbytes * share > step * (1 + 1e-9):
                queue.appendleft((source, target, nbytes - step / share))
        waiting = [queue for queue in waiting if queue]
    return passed
