"""`Gpu`: what the choice of a config knows about one GPU, read from a file in `gpus/`.

A file has the name that the driver reports, the number of SMs, the bandwidth of the memory, the
constants of the count of cycles (`cost`) and the weights of the network that corrects it
(`network`). ``python -m numpipe.ops.choice fit`` writes one.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...launch.current_gpu import Device

__all__ = ["Constants", "Gpu", "gpu_of", "known"]

FOLDER = Path(__file__).with_name("gpus")
SIMULATED = "NVIDIA H200"
"""the GPU whose configs are chosen where there is none"""


class Constants(NamedTuple):
    """Cycles of the count (`cost.cycles`), fitted to measurements."""

    multiply: float
    """of a multiply-add of a CTA"""
    least_columns: float
    """a narrower tile takes as long as one of so many columns"""
    latency: float
    """from the issue of a load to its data, which the slots of a ring share"""
    l2: float
    """of an SM for a byte from the L2"""
    unaligned: float
    """times as many where rows do not begin at a sector of the L2"""
    memory: float
    """of a byte from memory, or to it"""
    step: float
    """of a step in addition"""
    meeting: float
    """of a step whose loads the CTAs of a cluster share"""
    store: float
    """of an element of a tile that is stored"""
    exchange: float
    """of an element whose partial sums the CTAs of a cluster exchange"""
    hand: float
    """of partial sums that CTAs hand over in global memory"""
    hand_element: float
    """of an element of these"""
    cluster: float
    """of a cluster's start and end"""
    launch: float
    """of a launch, of the first loads and of the last stores"""


@dataclass(frozen=True, eq=False)
class Gpu:
    """What is known about a GPU.

    name       as the driver reports it
    sms        number of SMs
    bandwidth  of its memory, in bytes a second
    at_once    CTAs that run at the same time in clusters of 1 to 8, one CTA on an SM
               (cuOccupancyMaxActiveClusters): element 0 is for clusters of 1
    constants  of the count of cycles
    layers     of the networks (`network.correction`)
    """

    name: str
    sms: int
    bandwidth: float
    at_once: Any
    constants: Constants
    layers: tuple[Any, ...]

    def save(self, path: Path) -> None:
        """Write a file that `known` reads."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)[:-1]}
        layers = {f"layer{number}": layer for number, layer in enumerate(self.layers)}
        np.savez_compressed(path, **arrays, **layers)

    @classmethod
    def load(cls, path: Path) -> Gpu:
        """Read a file that `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            return cls(
                str(file["name"]),
                int(file["sms"]),
                float(file["bandwidth"]),
                file["at_once"],
                Constants(*file["constants"].tolist()),
                tuple(file[name] for name in sorted(file) if name.startswith("layer")),
            )


@functools.cache
def known() -> dict[str, Gpu]:
    """Return the GPUs that have a file, by name."""
    return {gpu.name: gpu for gpu in map(Gpu.load, sorted(FOLDER.glob("*.npz")))}


@functools.cache
def gpu_of(device: Device | None = None) -> Gpu:
    """Return the file of a GPU, found by its name; None: the H200's, for simulated targets.

    For a GPU without a file it is that of the nearest: the one whose logarithms of SMs and of
    bandwidth differ least in sum. The number of SMs, and with it of CTAs that run at the same time,
    is always the GPU's own: a part of a GPU (MIG) has fewer.
    """
    gpus = known()
    if device is None:
        return gpus[SIMULATED]

    def distance(gpu: Gpu) -> float:
        far = abs(math.log(gpu.sms / device.sm_count))
        if device.bandwidth:
            far += abs(math.log(gpu.bandwidth / device.bandwidth))
        return far

    gpu = gpus.get(device.name) or min(gpus.values(), key=distance)
    if gpu.sms == device.sm_count:
        return gpu
    return replace(gpu, sms=device.sm_count, at_once=gpu.at_once * device.sm_count // gpu.sms)
