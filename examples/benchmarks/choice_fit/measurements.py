"""Measured times of configs, to which a GPU's constants and networks are fitted.

A file has lines of JSON and may be gzip-compressed. The first line names the GPU, with its memory
bandwidth in bytes per second (0 if unknown) and, optionally, `Gpu.at_once`::

    {"gpu": "NVIDIA H200", "sms": 132, "bandwidth": 4.9e12}

Each other line is a time::

    {
        "shape": [m, n, k],
        "config": "Config(tm=64)",
        "seconds": 1e-5,
        "run": "1",
        "protocol": "sweep",
    }

Times of a shape are compared within the same run and protocol. Lines with a "skip" are ignored, and
so are competitors, which have no config.
"""

from __future__ import annotations

import ast
import functools
import gzip
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numpipe.arch.target import LINE
from numpipe.errors import SpecError
from numpipe.launch.current_gpu import Device
from numpipe.ops.choice.cost import Product
from numpipe.ops.choice.gpu import Gpu, gpu_of
from numpipe.ops.choice.ways import Config, Ways, ways_of

__all__ = ["Group", "Rows", "arrays", "read"]

CLOCK = 1.7e9
"""approximate cycles per second; the constants of a GPU with another clock scale accordingly"""
LEAST = 4
"""least configs of a group"""
BURST = 4.0
"""weight of times that were measured after a pause, at the boost clock. Three times as many large
products were measured under load, and the choice is made for both"""


class Group(NamedTuple):
    """Times that are compared with each other: of one shape, in one run, with one protocol."""

    shape: tuple[int, int, int]
    weight: float
    configs: list[Config]
    seconds: list[float]


class Rows(NamedTuple):
    """The times of all groups as arrays, with one element per time unless noted."""

    ways: Ways
    product: Product
    cycles: Any
    longer: Any
    """cycles relative to the group's fastest config"""
    number: Any
    """index of the group"""
    starts: Any
    """per group: index of its first time"""
    weight: Any
    """per group"""


def read(paths: Iterable[Path]) -> dict[str, tuple[Gpu, list[Group]]]:
    """Return, by GPU name, the data of each GPU and its groups of times. Raises SpecError for a
    file whose first line does not describe the GPU."""
    found: dict[str, tuple[Gpu, dict[Any, Group]]] = {}
    for path in paths:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf8") as lines:
            head, *rows = map(json.loads, lines)
        if not {"gpu", "sms", "bandwidth"} <= head.keys():
            raise SpecError(
                f"{path}: the first line must have 'gpu', 'sms' and 'bandwidth', got "
                f"{sorted(head)}; fix: write the file with random_products.py --fit"
            )
        device = Device(0, head["gpu"], (9, 0), head["sms"], 0, 0, head["bandwidth"])
        near = gpu_of(device)
        gpu = replace(
            near,
            name=device.name,
            bandwidth=device.bandwidth,
            at_once=np.array(head.get("at_once", near.at_once)),
        )
        groups = found.setdefault(gpu.name, (gpu, {}))[1]
        for row in rows:
            if "skip" in row or (config := _config(row["config"])) is None:
                continue
            protocol = row.get("protocol")
            key = *row["shape"], row.get("dtype"), row.get("stored"), path, row.get("run"), protocol
            empty = Group(tuple(row["shape"]), BURST if protocol == "burst" else 1.0, [], [])
            group = groups.setdefault(key, empty)
            group.configs.append(config)
            group.seconds.append(row["seconds"])
    return {
        name: (gpu, [group for group in groups.values() if len(group.seconds) >= LEAST])
        for name, (gpu, groups) in found.items()
    }


def arrays(groups: list[Group]) -> Rows:
    """Return the times of groups as arrays."""
    configs = [config for group in groups for config in group.configs]
    cycles = np.array([each for group in groups for each in group.seconds]) * CLOCK
    counts = [len(group.seconds) for group in groups]
    starts = np.cumsum([0, *counts[:-1]])
    number = np.repeat(np.arange(len(groups)), counts)
    m, n, k = np.array([group.shape for group in groups], np.float32)[number].T
    turned = np.array([config.turned for config in configs])
    aligned = np.gcd(2 * k.astype(int), LINE)
    return Rows(
        ways_of(configs),
        Product(np.where(turned, n, m), np.where(turned, m, n), k, turned, aligned),
        cycles,
        cycles / np.minimum.reduceat(cycles, starts)[number],
        number,
        starts,
        np.array([group.weight for group in groups]),
    )


@functools.cache
def _config(name: str) -> Config | None:
    """Return the config of a line, or None for a competitor."""
    if not name.startswith("Config("):
        return None
    call = ast.parse(name, mode="eval").body
    return Config(**{each.arg: ast.literal_eval(each.value) for each in call.keywords})  # type: ignore[attr-defined]
