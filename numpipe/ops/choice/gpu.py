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
    """Cycles, and bytes a cycle, of the count (`cost.cycles`), fitted to measurements. Defaults:
    an H200's, where a fit of another GPU begins."""

    port: float = 250.0
    l2: float = 90.0
    unaligned: float = 1.86
    unaligned_port: float = 1.32
    least_columns: float = 27.0
    alone: float = 1.25
    products: float = 0.943
    latency: float = 316.0
    step: float = 75.6
    meeting: float = 11.2
    norm: float = 1.59
    fill: float = 1330.0
    store: float = 100.0
    store_element: float = 0.106
    store_piece: float = 26.6
    store_turned: float = 0.399
    turn: float = 0.396
    exchange: float = 225.0
    exchange_element: float = 0.156
    hand: float = 1650.0
    hand_element: float = 0.204
    stream: float = 2060.0
    along: float = 75.0
    cluster: float = 478.0
    memory: float = 2700.0
    written: float = 2.31
    held: float = 80.0
    mix: float = 10.0
    launch: float = 1980.0


@dataclass(frozen=True, eq=False)
class Gpu:
    """What is known about a GPU.

    name       as the driver reports it
    sms        number of SMs
    bandwidth  of its memory, in bytes a second
    at_once    CTAs that run at the same time in clusters of 1 to 8, one CTA on an SM
               (cuOccupancyMaxActiveClusters): element 0 is for clusters of 1
    constants  of the count of cycles
    layers     of the network: (weights, bias) of each
    """

    name: str
    sms: int
    bandwidth: float
    at_once: Any
    constants: Constants
    layers: tuple[tuple[Any, Any], ...]

    def save(self, path: Path) -> None:
        """Write a file that `known` reads."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)[:-1]}
        for number, (weights, bias) in enumerate(self.layers):
            arrays |= {f"weights{number}": weights, f"bias{number}": bias}
        np.savez_compressed(path, **arrays)

    @classmethod
    def load(cls, path: Path) -> Gpu:
        """Read a file that `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            count = sum(name.startswith("weights") for name in file.files)
            return cls(
                str(file["name"]),
                int(file["sms"]),
                float(file["bandwidth"]),
                file["at_once"],
                Constants(*file["constants"].tolist()),
                tuple((file[f"weights{i}"], file[f"bias{i}"]) for i in range(count)),
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
