"""The options that benchmarks of the three protocols share: how it is measured, and lists with commas between."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path

from numpipe import bench


def listed(text: str) -> list[str]:
    """"a,b" -> ["a", "b"]; "" -> []."""
    return [part for part in text.split(",") if part]


def parse(parser: argparse.ArgumentParser, arguments: list[str] | None, **known: Collection[str]) -> argparse.Namespace:
    """The options of `parser` and those of every measurement, with a `plan`; `known`: what the lists of these names may hold."""
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of this machine that share the processes out (default: 1)")
    parser.add_argument("--protocols", default=list(bench.PROTOCOLS), type=listed)
    parser.add_argument("--load", type=float, default=bench.Plan.load, help="s of load before interleaved timing")
    parser.add_argument("--alone-load", type=float, default=bench.Plan.alone_load, help="s of load of each alone")
    parser.add_argument("--idle", type=float, default=bench.Plan.idle, help="s without work before a burst")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    options.plan = bench.Plan(idle=options.idle, load=options.load, alone_load=options.alone_load)
    for name, choices in (known | {"protocols": bench.PROTOCOLS}).items():
        if unknown := set(getattr(options, name)) - set(choices):
            parser.error(f"--{name} {sorted(unknown)}: choose from {sorted(choices)}")
    return options
