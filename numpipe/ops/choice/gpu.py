"""Data about a GPU that the choice of a config uses, read from a file in `gpus/`.

A file has the name that the driver reports, the number of SMs, the memory bandwidth, the constants
of the cycle count (`cost`) and the weights of the networks that correct it (`network`).
examples/benchmarks/choice_fit writes one.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...launch.current_gpu import Device

FOLDER = Path(__file__).with_name("gpus")
SIMULATED = "NVIDIA H200"
"""the GPU whose configs are used if there is no GPU"""


class Constants(NamedTuple):
    """Constants of the cycle count (`cost.cycles`), in cycles unless noted, fitted to
    measurements."""

    multiply: float
    """per multiply-add of a CTA"""
    least_columns: float
    """columns; a narrower tile takes as long as one of this width"""
    latency: float
    """from the issue of a load to its data; the slots of a ring share it"""
    l2: float
    """of one SM, per byte from L2"""
    unaligned: float
    """factor on `l2` if rows do not start at an L2 sector"""
    memory: float
    """per byte from or to memory"""
    step: float
    """additional time per step"""
    meeting: float
    """per step, if the CTAs of a cluster share its loads"""
    store: float
    """per stored element of a tile"""
    exchange: float
    """per element whose partial sums the CTAs of a cluster exchange"""
    hand: float
    """per exchange of partial sums through global memory"""
    hand_element: float
    """per element of such an exchange"""
    cluster: float
    """start and end of a cluster"""
    launch: float
    """launch, first loads and last stores"""


@dataclass(frozen=True, eq=False)
class Gpu:
    """Data about a GPU.

    name       as the driver reports it
    sms        number of SMs
    bandwidth  memory bandwidth in bytes per second
    at_once    CTAs that run at the same time in clusters of 1 to 8 (element 0 is for clusters of
               1), with one CTA per SM (cuOccupancyMaxActiveClusters)
    constants  constants of the cycle count
    layers     weights of the networks (`network.correction`)
    """

    name: str
    sms: int
    bandwidth: float
    at_once: Any
    constants: Constants
    layers: tuple

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
    """Return the data of a GPU by its name; None returns the H200's, for simulated targets.

    A GPU without a file gets the data of the most similar one, by the sum of the differences in the
    logarithms of SMs and bandwidth. The number of SMs, and of CTAs that run at the same time, is
    always the GPU's own, because part of a GPU (MIG) has fewer.
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
