"""Run GPU tests in several processes at once.

Compiling takes most of their time, and a kernel that fails takes its CUDA context with it. A file
of tests/gpu that uses this module is also a program: ``python test_x_on_gpu.py N`` runs shard N and
prints what fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

SHARDS = 14
LIMIT = 270
"""seconds that a shard may run, less than the limit of a GPU file"""


def run(file: str, shard: int) -> str:
    """Return the output of a shard; AssertionError unless it exits normally."""
    root = Path(__file__).parents[2]
    paths = [str(root), str(root / "examples"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        child = subprocess.Popen(
            [sys.executable, file, str(shard)],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        try:
            status: int | str = child.wait(LIMIT)
        except subprocess.TimeoutExpired:
            child.kill()
            status = f"killed after {LIMIT} s"
        log.seek(0)
        output = log.read()
    assert status == 0, f"shard {shard} ended with {status}\n{output}"
    return output


@contextmanager
def started(file: str) -> Iterator[list[Future[str]]]:
    """Start all shards of a file, at most one per core at a time."""
    with ThreadPoolExecutor(min(SHARDS, os.cpu_count() or 1)) as pool:
        yield [pool.submit(run, file, shard) for shard in range(SHARDS)]
