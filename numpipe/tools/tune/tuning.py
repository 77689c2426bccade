"""`numpipe.autotune`: compile and measure candidates, and keep the answer."""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ... import launch
from ...compile.build import toolchain
from ...diagnostics.argument_checks import FLAG, FUNCTION, NONE, a, require, whole
from ...diagnostics.errors import SpecError, TargetError, printable
from ...diagnostics.frames import brief
from ...diagnostics.progress_bar import progress_bar
from ...kernels.kernel import Kernel
from .. import bench
from . import candidates, winners
from .candidates import Factory

__all__ = ["autotune"]


@dataclass(frozen=True)
class Tuned:
    """The fastest candidate; call its `kernel` as often as you like. Times are seconds per call.

    name, config  the winner's
    kernel        ``factory(config)``
    seconds       times of all measured candidates, by name
    skipped       reasons why others cannot run, by name
    file          where the winner is kept; None if the file could not be written
    measured      whether this call measured; if not, the winner was read from the file
    """

    name: str
    config: Any
    kernel: Kernel
    seconds: dict[str, float]
    skipped: dict[str, str]
    file: Path | None
    measured: bool

    @printable
    def __str__(self) -> str:
        count = f"{len(self.seconds)} measured" + (
            f", {len(self.skipped)} skipped" if self.skipped else ""
        )
        lines = [
            f"kernel {self.kernel.name}: {self.name} is the fastest of "
            f"{len(self.seconds) + len(self.skipped)} candidates "
            f"({count}{'' if self.measured else '; remembered'})"
        ]
        best = self.seconds[self.name]
        width = max(map(len, [*self.seconds, *self.skipped]))
        for name, seconds in sorted(self.seconds.items(), key=lambda item: item[1]):
            lines.append(f"    {name:<{width}}  {1e6 * seconds:>10.1f} us  {best / seconds:>5.2f}")
        lines += [
            f"    {name:<{width}}  skipped: {why.splitlines()[0]}"
            for name, why in self.skipped.items()
        ]
        return "\n".join(lines)


@brief
def autotune(
    factory: Factory,
    space: Mapping[str, Any] | Iterable,
    /,
    *args: Any,
    key: Any = None,
    measure: candidates.Measure | None = None,
    plan: bench.Plan | None = None,
    workers: int | None = None,
    again: bool = False,
    progress: bool = True,
    **named: Any,
) -> Tuned:
    """Find the fastest of a kernel's configurations for a call by measuring once; the winner is
    kept on disk.

    factory      a function at module level, ``config -> kernel``, which may be wrapped by
                 functools.cache
    space        candidates: ``{name: config}``, or configs, which are named by their repr
    args, named  arguments of the call, including arrays, which are copied, so outputs are not
                 written
    key          what the answer is valid for: a string, numbers, a tuple, or a function of the
                 arguments that returns one (``lambda a, b: (a.shape[1], a.dtype.name)``); default:
                 all shapes, types and scalars. Later calls with the same key use the winner without
                 measuring
    measure      a function that times the candidates, from calls by name to seconds by name.
                 Default: `numpipe.bench`, with all in turn under load, on buffers that are not in
                 L2. With your own function no GPU is needed; candidates are then compiled if the
                 toolchain is installed, unless NUMPIPE_COMPILE_CHECK is 0
    plan         durations of the default measurement (`numpipe.bench.Plan`)
    workers      number of compiler processes; default: one per CPU; 0 compiles in this process
    again        measure even if the winner is known
    progress     show progress on stderr (with tqdm if installed), and what was skipped

    ::

        tuned = numpipe.autotune(kernel, CONFIGS, a, b)
        c = tuned.kernel(a, b)

    Candidates that cannot run (too much shared memory, no such wgmma shape, a source that does not
    compile) are skipped; how many, and why, is printed and in the result. An answer is valid for
    one GPU model, driver, version of numpipe and numba-cuda, source file of the factory, and space;
    it is kept in ``NUMPIPE_CACHE_DIR``. A corrupt file is measured again, with a RuntimeWarning.

    Raises TargetError if there is neither a GPU nor `measure`, SpecError for a factory that cannot
    be imported or if no candidate can run, CompileError if a worker dies, and LaunchError if a
    candidate's launch fails, after which the CUDA context is unusable.
    """
    configs = candidates.named(space)
    require(
        "autotune",
        locals(),
        measure=FUNCTION | NONE,
        plan=a(bench.Plan) | NONE,
        workers=whole(0) | NONE,
        again=FLAG,
        progress=FLAG,
    )
    choice = launch.choose_target()
    on_gpu = choice.target == "gpu"
    if measure is None and not on_gpu:
        raise TargetError(
            f"autotune measures on a Hopper GPU, and kernels are simulated here: {choice.why}; "
            "fix: pass measure=, or use numpipe.explain, which predicts the time of a candidate"
        )
    question = winners.identity(factory, configs, key, args, named, measure, choice.device)
    file = winners.path(winners.directory(), question)

    def tuned(answer: winners.Answer, file: Path | None, measured: bool) -> Tuned:
        config = configs[answer.winner]
        kernel = factory(config)
        return Tuned(answer.winner, config, kernel, answer.seconds, answer.skipped, file, measured)

    known = None if again else winners.load(file, question)
    if known is not None:
        return tuned(known, file, measured=False)

    buffers = candidates.buffers(args, named, on_gpu)
    chosen, refused = candidates.describe(factory, configs, *buffers.sets[0])
    if on_gpu or (toolchain() is None and os.environ.get("NUMPIPE_COMPILE_CHECK", "1") != "0"):
        with progress_bar("autotune: compile", progress, total=len(chosen)) as bar:
            images = candidates.compiled(factory, chosen, workers, bar.update)
        refused |= {name: image for name, image in images.items() if isinstance(image, str)}
        chosen = [one for one in chosen if one.name not in refused]
        for one in chosen if on_gpu else ():
            one.variant.adopt(cast("launch.Image", images[one.name]))
    if on_gpu:
        chosen, failed = candidates.tried(chosen, buffers)
        refused |= failed
    skipped = {name: refused[name] for name in configs if name in refused}
    if not chosen:
        raise SpecError(
            "autotune: none of the candidates can run:\n"
            + "\n".join(f"    {n}: {why}" for n, why in skipped.items())
        )

    calls = {one.name: functools.partial(buffers.call, one.kernel) for one in chosen}
    times = measure(calls) if measure is not None else candidates.interleaved(calls, plan)
    if set(times) != set(calls) or not all(math.isfinite(t) and t > 0 for t in times.values()):
        raise SpecError(
            f"autotune: measure= returned {dict(times)!r}, expected a positive number of seconds "
            f"for each of {list(calls)}"
        )
    seconds = {name: float(times[name]) for name in calls}
    name = min(seconds, key=seconds.__getitem__)
    answer = winners.Answer("numpipe-tune/1", question, name, seconds, skipped)
    kept = winners.save(file, answer)
    result = tuned(answer, file if kept else None, measured=True)
    if progress:
        print(f"numpipe autotune: {result}", file=sys.stderr, flush=True)
    return result
