"""Measured times of configs, which a GPU's constants and networks are fitted to.

A file has lines of JSON, compressed or not. The first names the GPU, with the bandwidth of its
memory in bytes a second (0: not known), and, if it is known, `Gpu.at_once`::

    {"gpu": "NVIDIA H200", "sms": 132, "bandwidth": 4.9e12}

Each of the others is a time::

    {
        "shape": [m, n, k],
        "config": "Config(tm=64)",
        "seconds": 1e-5,
        "run": "1",
        "protocol": "sweep",
    }

Times of a shape are compared within a run and a protocol. A line with a "skip" is left out, and so
are competitors that are no configs.
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

from ...arch.target import LINE
from ...diagnostics.errors import SpecError
from ...launch.current_gpu import Device
from .cost import Product
from .gpu import Gpu, gpu_of
from .ways import Config, Ways, ways_of

__all__ = ["Group", "Rows", "arrays", "read"]

CLOCK = 1.7e9
"""cycles a second, about: constants of a GPU with another clock are as much larger or smaller"""
LEAST = 4
"""configs of a group, at least"""
BURST = 4.0
"""weight of times that were measured after a pause, at the boost clock. Three times as many large
products were measured under load, and the choice is made for both"""


class Group(NamedTuple):
    """Times that are compared: of one shape, in one run, by one protocol."""

    shape: tuple[int, int, int]
    weight: float
    configs: list[Config]
    seconds: list[float]


class Rows(NamedTuple):
    """The times of groups as arrays, an element for each time unless said otherwise."""

    ways: Ways
    product: Product
    cycles: Any
    longer: Any
    """cycles over those of the group's fastest config"""
    number: Any
    """of the group"""
    starts: Any
    """for each group: its first time"""
    weight: Any
    """for each group"""


def read(paths: Iterable[Path]) -> dict[str, tuple[Gpu, list[Group]]]:
    """Return the groups of files for each GPU, by its name, and what is known about it. Raises
    SpecError for a file that does not begin with the GPU's line."""
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
    """Return the config of a line; None for a competitor that is none."""
    if not name.startswith("Config("):
        return None
    call = ast.parse(name, mode="eval").body
    return Config(**{each.arg: ast.literal_eval(each.value) for each in call.keywords})  # type: ignore[attr-defined]
