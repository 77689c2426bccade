"""The errors numpipe raises: a small family, each saying what, where, the numbers that disagree, and the mend."""

from __future__ import annotations


class NumpipeError(Exception):
    """Base of every error numpipe raises on purpose."""


class SpecError(NumpipeError, ValueError):
    """An argument, spec or option is wrong; raised before anything is compiled or launched."""


class CompileError(NumpipeError):
    """The kernel's source cannot be compiled; the message starts with the user's ``file:line``."""


class TargetError(NumpipeError, RuntimeError):
    """The asked-for target cannot run here: no GPU, not sm_90, a broken driver, too much work to simulate."""


class LaunchError(NumpipeError, RuntimeError):
    """The driver refused a launch or reported a failure of an earlier one."""


class SimulationError(NumpipeError, RuntimeError):
    """A kernel broke a rule of the machine on the simulated SM."""


class PipelineRace(SimulationError):
    """Two accesses that nothing orders: a slot read too early, refilled too early, a stale phase, a missing fence."""


class PipelineDeadlock(SimulationError):
    """Every warpgroup waits and nothing is in flight."""


def at(filename: str, line: int, message: str) -> str:
    """``message`` stamped with the user's line, in the ``file:line:`` form editors understand."""
    return f"{filename}:{line}: {message}"
