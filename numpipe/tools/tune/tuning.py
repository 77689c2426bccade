"""`numpipe.autotune`: a question, its candidates compiled and measured, and the answer kept."""

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
from ...diagnostics.errors import SpecError, TargetError
from ...diagnostics.frames import brief
from ...diagnostics.progress_bar import progress_bar
from ...kernels.kernel import Kernel
from .. import bench
from . import candidates, winners
from .candidates import Factory

__all__ = ["autotune"]


@dataclass(frozen=True)
class Tuned:
    """The fastest candidate: call `kernel` as often as you like. Times are seconds a call.

    name, config  of the winner
    kernel        ``factory(config)``
    seconds       of all that were measured, by name
    skipped       why others cannot run, by name
    file          where the winner is kept; None: the file could not be written
    measured      whether this call measured; if not, the winner was in the file
    """

    name: str
    config: Any
    kernel: Kernel
    seconds: dict[str, float]
    skipped: dict[str, str]
    file: Path | None
    measured: bool

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
    space: Mapping[str, Any] | Iterable[Any],
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
    """Find the fastest of a kernel's configurations for a call, by measuring, once: the winner is
    kept on disk.

    factory      a function at module level, ``config -> kernel``; it may be wrapped by
                 functools.cache
    space        candidates: ``{name: config}``, or configs, whose names are their repr
    args, named  of the call, arrays included. They are copied: the kernel's outputs go elsewhere
    key          the bucket that the answer is for: a string, numbers, a tuple, or a function of the
                 arguments that returns one (``lambda a, b: (a.shape[1], a.dtype.name)``); default:
                 all shapes, types and scalars. A later call in the same bucket takes the winner
                 without measuring
    measure      what times the candidates: a function from calls by name to seconds by name.
                 Default: `numpipe.bench`, all in turn under load, on buffers that L2 does not hold.
                 With one of your own no GPU is needed; then candidates are compiled where the
                 toolchain is installed, unless NUMPIPE_COMPILE_CHECK is 0
    plan         durations of the default measurement (`numpipe.bench.Plan`)
    workers      processes that compile; default: a CPU each; 0: none, this process compiles
    again        measure even where the winner is known
    progress     whether stderr shows how far it is (by tqdm where that is installed) and what was
                 skipped

    ::

        tuned = numpipe.autotune(kernel, CONFIGS, a, b)
        c = tuned.kernel(a, b)

    A candidate that cannot be (too much shared memory, no such wgmma shape, a source that does not
    compile) is skipped; how many, and why, is printed and in the result. An answer holds for one
    GPU model, driver, version of numpipe and numba-cuda, source file of the factory, and space;
    ``NUMPIPE_CACHE_DIR`` says where answers are kept. A corrupt file is measured again, with a
    RuntimeWarning.

    Raises TargetError where there is no GPU and no `measure`, SpecError for a factory that cannot
    be imported and where all candidates are refused, CompileError where a worker dies, LaunchError
    where a candidate's launch fails: after that the CUDA context cannot be used.
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
            f"autotune measures on a Hopper GPU, and kernels are simulated here: {choice.why}. "
            "Without one numpipe.explain predicts the time of a candidate; or pass measure="
        )
    question = winners.identity(factory, configs, key, args, named, measure, choice.device)
    file = winners.path(winners.directory(), question)
    known = None if again else winners.load(file, question)
    if known is not None:
        name = known.winner
        return Tuned(
            name,
            configs[name],
            factory(configs[name]),
            known.seconds,
            known.skipped,
            file,
            measured=False,
        )

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
            f"autotune: measure= returned {dict(times)!r}: a positive number of seconds for each "
            f"of {list(calls)} is expected"
        )
    seconds = {name: float(times[name]) for name in calls}
    name = min(seconds, key=lambda candidate: seconds[candidate])
    answer = winners.Answer("numpipe-tune/1", question, name, seconds, skipped)
    kept = winners.save(file, answer)
    tuned = Tuned(
        name,
        configs[name],
        factory(configs[name]),
        seconds,
        skipped,
        file if kept else None,
        measured=True,
    )
    if progress:
        print(f"numpipe autotune: {tuned}", file=sys.stderr, flush=True)
    return tuned
