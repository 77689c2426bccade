"""A worker process: Hypothesis draws kernels from a seed, and shrinks one that fails."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import hypothesis
from hypothesis import strategies as st

from numpipe.diagnostics.errors import LaunchError
from tests.fuzz.case import Case
from tests.fuzz.checks import CHECKS, Found
from tests.fuzz.drawing import kernels

KERNELS = 300
"""kernels drawn by a worker; the process frees the memory that they leave behind"""
SHRINKING = 60.0
"""seconds after the end in which a failure may still be shrunk"""


class Over(KeyboardInterrupt):
    """The time is up; Hypothesis does not catch a KeyboardInterrupt."""


def keep(failures: Path, title: str, kind: str, digest: str, text: str, message: str) -> None:
    """Print a failure and keep its program, unless a failure with the same first line is kept."""
    if title not in titles(failures):
        failures.mkdir(parents=True, exist_ok=True)
        path = failures / f"{kind.replace(' ', '_')}_{digest}.py"
        path.write_text(f"# {title}\n{text}", encoding="utf8")
        print(f"\n{message}\npython -m tests.fuzz {path}\n\n{text}", file=sys.stderr, flush=True)


def titles(failures: Path) -> set[str]:
    """Return the first lines of the failures that are kept."""
    files = failures.glob("*.py")
    return {file.read_text(encoding="utf8").partition("\n")[0].removeprefix("# ") for file in files}


def work(folder: Path, number: int, targets: Sequence[str], until: float, failures: Path) -> None:
    """Check kernels; `folder`/`number`.now is the running kernel, and .log lists results."""
    known = titles(failures)
    failed: dict[str, tuple[Found, str]] = {}

    def log(line: str) -> None:
        with (folder / f"{number}.log").open("a") as file:
            print(line, file=file)

    def report(found: Found, digest: str, text: str) -> None:
        log(f"{found.kind}:")
        keep(failures, found.title, found.kind, digest, text, str(found))

    def check(case: Case, seed: int, target: str) -> None:
        now = folder / f"{number}.now"
        text = case.source(seed)
        try:
            if target == "gpu":  # a compile may take long, a run may not
                now.write_text(f"compile {case.digest}\n{text}", encoding="utf8")
                case.kernel.compiled(*case.given(seed).values())
            now.write_text(f"{target} {case.digest}\n{text}", encoding="utf8")
            CHECKS[target](case, seed)
        except Exception as error:
            found = (
                error
                if isinstance(error, Found)
                else Found("crashed", f"{error!r}\n{traceback.format_exc()}")
            )
            if isinstance(error, LaunchError) or isinstance(error.__cause__, LaunchError):
                report(found, case.digest, text)
                os._exit(0)  # the CUDA context is lost
            if found.title not in known:
                failed[case.digest] = found, text
            raise found from error
        log(f"{target} {case.digest}")

    @hypothesis.seed(number)
    @hypothesis.settings(
        max_examples=KERNELS,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        print_blob=False,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        verbosity=hypothesis.Verbosity.quiet,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(kernels(), st.integers(0, 2**16))
    def any_kernel(case: Case, seed: int) -> None:
        if case.digest in failed:
            raise failed[case.digest][0]
        if time.time() > until + SHRINKING * bool(failed):
            raise Over
        try:
            for target in targets:
                check(case, seed, target)
        except Found as found:
            if case.digest in failed:
                raise
            log(f"{found.kind}:")

    try:
        any_kernel()
    except (Over, Exception):
        if not failed and time.time() < until:
            raise
    if failed:
        digest, (found, text) = min(failed.items(), key=lambda item: len(item[1][1]))
        report(found, digest, text)
