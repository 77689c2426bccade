"""One process of a campaign: draws kernels by Hypothesis, checks them, and tells what it does over a pipe.

Messages are tuples: ("case", digest, features, source), ("begin", stage), ("passed", stage, runs), ("again", kind, title),
("found", kind, title, message, source), ("bye",). The parent ends a process that says nothing for too long.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection

from ...diagnostics.errors import LaunchError, SpecError
from .case import Case
from .checks import CHECKS, Found
from .drawing import kernels

LIFE = 300
"""kernels a process draws; what they leave in memory goes with it"""
PATIENCE = 60.0
"""seconds in which a failure is made smaller"""


class Over(KeyboardInterrupt):
    """The time is over; Hypothesis lets it pass."""


class Worker:
    """The state of a process."""

    def __init__(self, pipe: Connection, stages: Sequence[str], until: float, told: Sequence[str]) -> None:
        self.pipe, self.stages, self.until, self.told = pipe, stages, until, set(told)
        self.failed: dict[str, tuple[Found, str]] = {}
        self.since = 0.0

    def stage(self, case: Case, stage: str, seed: int) -> None:
        """Check a case in a stage; Found if something is wrong."""
        try:
            if stage == "gpu":  # a compile may take long, a run may not
                self.pipe.send(("begin", "compiled"))
                case.kernel.compiled(*case.given(seed).values())
            self.pipe.send(("begin", stage))
            runs = CHECKS[stage](case, seed)
        except Exception as error:
            kind = error.kind if isinstance(error, Found) else "refused" if isinstance(error, SpecError) else "wrong"
            found = error if isinstance(error, Found) else Found(kind, traceback.format_exc(limit=-3))
            if isinstance(error.__cause__, LaunchError) or isinstance(error, LaunchError):  # the context is lost
                self.pipe.send(("found", found.kind, found.title, str(found), case.source(seed)))
                self.pipe.close()
                os._exit(1)
            raise found from error
        if not self.failed:
            self.pipe.send(("passed", stage, runs))

    def check(self, case: Case, seed: int) -> None:
        """All stages of a case; Found for what has not been told yet."""
        if case.digest in self.failed:
            raise self.failed[case.digest][0]
        if time.time() > (self.since + PATIENCE if self.failed else self.until):
            raise Over
        self.pipe.send(("case", case.digest, case.features, case.source(seed)))
        for stage in self.stages:
            try:
                self.stage(case, stage, seed)
            except Found as found:
                if found.title in self.told:
                    self.pipe.send(("again", found.kind, found.title))
                    return
                self.since = self.since if self.failed else time.time()
                self.failed[case.digest] = found, case.source(seed)
                raise

    def draw(self, number: int) -> None:
        """Draw a life's kernels; a failure is made smaller and told, and others follow."""
        import hypothesis
        from hypothesis import strategies

        @hypothesis.seed(number)
        @hypothesis.settings(max_examples=LIFE, database=None, deadline=None, report_multiple_bugs=False, print_blob=False,
                             phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink], verbosity=hypothesis.Verbosity.quiet,
                             suppress_health_check=list(hypothesis.HealthCheck))
        @hypothesis.given(kernels(), strategies.integers(0, 2**16))
        def any_kernel(case: Case, seed: int) -> None:
            self.check(case, seed)

        try:
            any_kernel()
        except (Exception, Over):
            if not self.failed:
                raise
        if self.failed:
            found, source = min(self.failed.values(), key=lambda one: len(one[1]))
            self.pipe.send(("found", found.kind, found.title, str(found), source))


def work(pipe: Connection, number: int, stages: Sequence[str], until: float, told: Sequence[str]) -> None:
    """The main function of a process."""
    worker = Worker(pipe, stages, until, told)
    with contextlib.suppress(Over):
        worker.draw(number)
    pipe.send(("bye",))
    pipe.close()
