"""Common code of the scripts: options, JSON files, processes that print JSON, and exit status."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from numpipe import bench
from numpipe.errors import NumpipeError


def run(main: Callable[[], int]) -> None:
    """Exit with the status that a script's function returns, or with the text of numpipe's
    error."""
    try:
        sys.exit(main())
    except NumpipeError as error:
        sys.exit(f"error: {error}")


def write(path: Path | None, record: object) -> None:
    """Write a JSON file, if there is a path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf8")


def answer(command: Sequence[str], **environment: str) -> Any:
    """Run a process and return the last line that it prints, parsed as JSON; print the other
    lines."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | environment
    )
    *lines, last = done.stdout.splitlines()
    for line in lines:
        print(line)
    return json.loads(last)


# ---- options


def listed(text: str) -> list[str]:
    """Return ["a", "b"] for "a,b", and [] for ""."""
    return [part for part in text.split(",") if part]


def script(docstring: str | None) -> argparse.ArgumentParser:
    """Return the parser of a benchmark, whose docstring is its help."""
    return argparse.ArgumentParser(
        description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def checked(
    parser: argparse.ArgumentParser, options: argparse.Namespace, **known: Collection[str]
) -> argparse.Namespace:
    """Return the options, after checking that the lists named in `known` contain only known
    values."""
    for name, choices in known.items():
        if unknown := set(getattr(options, name)) - set(choices):
            parser.error(f"--{name} {sorted(unknown)}: choose from {sorted(choices)}")
    return options


def add_processes(parser: argparse.ArgumentParser, processes: int = 3, gpus: bool = True) -> None:
    parser.add_argument("--processes", type=int, default=processes)
    if gpus:
        parser.add_argument(
            "--gpus", type=int, default=1, help="GPUs that share the processes (default: 1)"
        )
    parser.add_argument("--out", type=Path, help="the result file")


def parse(
    parser: argparse.ArgumentParser, arguments: list[str] | None, **known: Collection[str]
) -> argparse.Namespace:
    """Return the options of `parser` and of the three protocols, with a `plan`."""
    add_processes(parser)
    parser.add_argument("--protocols", default=list(bench.PROTOCOLS), type=listed)
    for option, default, what in (
        ("--load", bench.Plan.load, "s of load before interleaved timing"),
        ("--alone-load", bench.Plan.alone_load, "s of load of each alone"),
        ("--idle", bench.Plan.idle, "s without work before a burst"),
    ):
        parser.add_argument(option, type=float, default=default, help=what)
    options = parser.parse_args(arguments)
    options.plan = bench.Plan(idle=options.idle, load=options.load, alone_load=options.alone_load)
    return checked(parser, options, protocols=bench.PROTOCOLS, **known)


def main_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `parse` that `main` takes."""
    names = ("processes", "gpus", "out")
    return {name: getattr(options, name) for name in names} | {"method": vars(options.plan)}


def compare_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `parse` that `bench.compare` takes, and the sensors of this GPU."""
    protocols = tuple(options.protocols)
    return {"protocols": protocols, "plan": options.plan, "sensors": bench.sensors()}


def parse_sweep(
    parser: argparse.ArgumentParser, arguments: list[str] | None, **known: Collection[str]
) -> argparse.Namespace:
    """Return the options of `parser` and of a sweep over the rows of a seed."""
    add_processes(parser)
    parser.add_argument(
        "--seed", type=int, help="seed of the rows (default: drawn from the system)"
    )
    parser.add_argument(
        "--seconds", type=float, help="limit of the whole run, after which no more rows start"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue --out, starting with the rows that have the fewest runs",
    )
    parser.add_argument("--picture", type=Path, help="an .svg or .png file of the ratios")
    parser.add_argument("--read", type=Path, help="a file to summarize instead of measuring")
    options = checked(parser, parser.parse_args(arguments), **known)
    if options.seed is None:
        options.seed = int.from_bytes(os.urandom(4), "little")
        if arguments is None:  # for the processes that measure, and for the command in the file
            sys.argv += ["--seed", str(options.seed)]
    return options
