"""Launches on several GPUs at once, which need the tensor maps and addresses of the other GPUs'
arrays.

They are in the first packed parameter of a launch. The tensor maps and the counter are followed by
the launch's words, and by one section per rank with its tensor maps and the addresses of its arrays
(`plan.control_block`). A tensor map contains an address, so a launch needs the maps of its peers'
arrays in addition to its own. The last array of the kernel is its semaphores, in the control block
of the launch.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..arch.dimensions import Ints
from ..plan.control_block import SEMAPHORES, section_bytes
from .array_info import ArrayInfo
from .attributes import Grid
from .controls import Controls
from .launcher import Launch, Prepared
from .overlapping_outputs import check_overlap

if TYPE_CHECKING:
    from .local_gpus import LocalGpus
    from .torch_gpus import TorchGpus

_INT = np.dtype(np.int32)


@dataclasses.dataclass(slots=True, eq=False)
class Together:
    """The launches of one call on the GPUs of this process. Call it to launch on all of them."""

    prepared: Prepared
    controls: Controls
    launches: Sequence[Launch]
    stream: Ints
    """stream on each GPU"""
    alive: Sequence
    """allocations that must still exist, which `stale` checks"""

    @property
    def stale(self) -> bool:
        """Whether memory that the launches use has been freed since."""
        return any(one.gone for one in self.alive)

    def __call__(self) -> None:
        """Queue the kernel on each GPU. Raises the errors of `Launch`, and PipelineDeadlock if an
        earlier launch waited too long for a peer."""
        controls = self.controls
        controls.check()
        with controls.launching:
            for launch in self.launches:
                launch()

    def run(self, scalars: Sequence) -> None:
        """Launch with these scalars."""
        self.controls.check()
        with self.controls.launching:
            self.prepared.together(self.launches, scalars)


def together(
    prepared: Prepared,
    grid: Grid,
    gpus: LocalGpus | TorchGpus,
    controls: Controls,
    arrays: Sequence[Sequence[ArrayInfo]],
    semaphores: int,
    streams: Sequence[int],
    outputs: int,
) -> Together:
    """Return the launches of a call; `arrays` are the arrays of each GPU of this process, without
    the semaphores."""
    image, name = prepared.compiled, prepared.name
    for infos in arrays:
        check_overlap(infos, image.arrays, outputs, name)
    reached = {
        arg: gpus.addresses([infos[arg] for infos in arrays], image.arrays[arg], name)
        for arg in image.peered
        if arg < len(image.arrays) - 1
    }
    known = controls.block(image, streams, semaphores)
    first = [address + 4 * SEMAPHORES for address in known.block]
    launches = []
    for own, (infos, stream) in enumerate(zip(arrays, streams, strict=True)):
        device, rank = gpus.devices[own], gpus.ranks[own]
        # the arrays at the addresses that this GPU uses to access them on each GPU, or its own
        # arrays if it does not access them there
        by_rank = [
            [
                *(
                    info._replace(ptr=reached[arg][other]) if arg in reached else info
                    for arg, info in enumerate(infos)
                ),
                ArrayInfo("cuda", first[other], (semaphores,), (4,), _INT, device, True, None),
            ]
            for other in range(gpus.size)
        ]
        sections = []
        for there in by_rank:
            addresses = [
                info.ptr if arg in reached or arg == len(infos) else 0
                for arg, info in enumerate(there)
            ]
            maps = prepared.maps_of(there)
            sections.append(
                (maps + struct.pack(f"<{len(addresses)}Q", *addresses)).ljust(
                    section_bytes(len(image.maps), len(image.arrays)), b"\0"
                )
            )
        here = by_rank[rank]
        table = prepared.table_of(here, stream) + controls.words(own, known) + b"".join(sections)
        launches.append(
            prepared.launch(
                table + prepared.words_of(here),
                grid,
                stream,
                device,
                controls.cleared(own, known),
            )
        )
    alive = [one for infos in arrays for one in gpus.alive(infos)]
    return Together(prepared, controls, launches, tuple(streams), alive)
