"""Run a torch.distributed program in one process per rank."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 60
"""seconds that a process may run"""


def started(
    arguments: Sequence[Sequence[str]], ends: Sequence[int] = (0, 0), limit: float = LIMIT
) -> list[str]:
    """Run ``python`` with the arguments of each rank, and return the output of each.

    Asserts that the processes exit with these codes, and kills them before it returns.
    """
    running = [
        subprocess.Popen(
            [sys.executable, *each],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for each in arguments
    ]
    found = []
    try:
        for rank, process in enumerate(running):
            out, err = process.communicate(timeout=limit)
            assert process.returncode == ends[rank], (
                f"rank {rank} ended with {process.returncode}:\n{out}\n{err}"
            )
            found.append(out)
    finally:
        for process in running:
            process.kill()
    return found
