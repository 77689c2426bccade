"""``python -m tests.fuzz``: check drawn kernels in worker processes until the time is up.

Before each check a worker writes the kernel to a file. A worker that hangs is killed, because a
kernel that hangs on the GPU takes the CUDA context of its process with it, and that file is then
the failure. ``python -m tests.fuzz FILE`` checks the kernel of a failure again.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from numpipe.launch.current_gpu import gpu_state
from tests.fuzz.case import of_file
from tests.fuzz.checks import CHECKS
from tests.fuzz.worker import keep, work

LIMITS = {"sim": 120.0, "verify": 300.0, "compile": 240.0, "gpu": 40.0}
"""seconds that a check may take; the first one on a GPU creates a context, at the same time as
other processes"""


def fuzz(
    targets: Sequence[str], minutes: float, seed: int, failures: Path, processes: int
) -> Counter[str]:
    """Check kernels in processes; return how many passed, by target, and failed, by kind."""
    until = time.time() + 60 * minutes
    done = Counter[str]()
    running: list[tuple[BaseProcess, Path]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        while running or time.time() < until:
            while len(running) < processes and time.time() < until:
                now = folder / f"{seed}.now"
                now.touch()
                args = folder, seed, targets, until, failures
                process = get_context("spawn").Process(target=work, args=args, daemon=True)
                process.start()
                running.append((process, now))
                seed += 1
            time.sleep(0.2)
            for process, now in list(running):
                head, _, text = now.read_text(encoding="utf8").partition("\n")
                target, _, digest = head.partition(" ")
                hung = time.time() - now.stat().st_mtime > LIMITS.get(target, 120)
                if hung:
                    process.kill()
                    process.join()
                if not process.is_alive():
                    running.remove((process, now))
                    if process.exitcode:
                        kind = "hung" if hung else "died"
                        done[f"{kind}:"] += 1
                        message = f"{kind}: {target or 'start'} ended with {process.exitcode}"
                        keep(failures, f"{message} {digest}", kind, digest, text, message)
        lines = [line for file in folder.glob("*.log") for line in file.read_text().splitlines()]
    done.update(line.split()[0] for line in {*lines} if ":" not in line)
    done.update(line for line in lines if ":" in line)
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Check drawn kernels."
    )
    parser.add_argument("file", nargs="?", type=Path, help="check the kernel of a failure again")
    parser.add_argument("--target", nargs="+", choices=CHECKS, default=["sim"])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6) * 1000)
    parser.add_argument("--failures", type=Path, default=Path("build/fuzz"), metavar="DIR")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    if "gpu" in options.target and gpu_state().device is None:
        parser.error(f"--target gpu: {gpu_state().reason}")
    if options.file:
        case, seed = of_file(options.file)
        for target in options.target:
            CHECKS[target](case, seed)
            print(f"{target}: passed")
        return 0
    # one thread per process; no cache, because no kernel is drawn twice
    environment = {"NUMPIPE_CACHE": "0", "NUMPIPE_COMPILE_CHECK": "0", "OPENBLAS_NUM_THREADS": "1"}
    os.environ.update(environment)
    done = fuzz(options.target, options.minutes, options.seed, options.failures, options.processes)
    print(f"seed {options.seed}:", ", ".join(f"{n} {what}" for what, n in sorted(done.items())))
    return int(any(":" in what for what in done))


if __name__ == "__main__":
    sys.exit(main())
