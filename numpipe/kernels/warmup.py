"""`numpipe.warmup`: compile kernels before they are called, in worker processes.

`numpipe.autotune` compiles its candidates in the same way. A worker is a new process. It imports
the module of a kernel, or of the factory that creates it, compiles the kernel, stores the image on
disk and sends it back with the digest of what it compiled. The parent process uses the image only
if the digest matches its own kernel, because a module's globals may differ in another process. What
a worker cannot import, or reads differently, is compiled in the parent."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from ..diagnostics.argument_checks import FLAG, NONE, SERIES, require, whole
from ..diagnostics.errors import CompileError, NumpipeError, SpecError
from ..diagnostics.frames import brief
from ..diagnostics.progress_bar import progress_bar
from ..launch.copy_threads import cores
from ..plan.image import Image
from ..plan.resources import Resources
from .kernel import Kernel
from .variants import Variant

__all__ = ["warmup"]

Entry = tuple[Kernel, Sequence] | tuple[Kernel, Sequence, Mapping[str, Any]]


@brief
def warmup(
    calls: Iterable[Entry], *, workers: int | None = None, progress: bool | None = None
) -> list[Resources]:
    """Compile kernels for future calls, in parallel, and keep them in memory and in the disk cache.
    Nothing is run.

    calls     each ``(kernel, args)`` or ``(kernel, args, named)``: a tuple of a call's positional
              arguments and a dictionary of its named ones, including Statics and ``out``, as
              `Kernel.inspect` takes them. Scalars may have any value of their type. An ArrayType
              can be passed for an array whose last dimension is contiguous and whose rows TMA can
              address; for other arrays pass one with the same layout
    workers   number of worker processes; default: one per CPU that this process may use, or none
              for a single kernel; 0: compile in this process
    progress  whether to show a progress bar on stderr, if tqdm is installed; default: only if
              stderr is a terminal

    Returns the `Resources` of each call's kernel, in order. Kernels that are in memory or in the
    cache are not compiled again, and calls that need the same machine code share one compile.
    Workers import kernels by name, so a script that defines kernels must start its work under
    ``if __name__ == "__main__":``. Kernels that cannot be imported, such as those returned by a
    function or defined in a notebook, are compiled in this process, one at a time. No GPU is
    needed.

    Raises SpecError for invalid arguments, before anything is compiled. Raises CompileError if a
    worker dies, and, after all other kernels are compiled, with the errors of all kernels that
    cannot be compiled, by name.

    >>> used = numpipe.warmup([(matmul, (a, b)), (matmul, (a, b), {"cfg": Config(slots=3)})])
    """
    require("warmup", locals(), calls=SERIES, workers=whole(0) | NONE, progress=FLAG | NONE)
    requests = [_variant(number, entry) for number, entry in enumerate(calls)]
    jobs = {variant: Job(kernel.name, kernel, variant) for kernel, variant in requests}
    with progress_bar("warmup: compile", progress, total=len(jobs)) as bar:
        images = compiled(list(jobs.values()), workers, bar.update, "warmup")
    found = dict(zip(jobs, images, strict=True))
    failed = {variant: image for variant, image in found.items() if isinstance(image, NumpipeError)}
    if failed:
        raise CompileError(
            f"warmup: {len(failed)} of {len(jobs)} kernels cannot be compiled:\n"
            + "\n".join(
                f"kernel {jobs[variant].name}: {type(error).__name__}: {error}"
                for variant, error in failed.items()
            )
        ) from next(iter(failed.values()))
    return [variant.adopt(found[variant]).resources for _, variant in requests]  # type: ignore[arg-type]


def _variant(number: int, entry: Any) -> tuple[Kernel, Variant]:
    """Return the kernel and the variant of an entry of `warmup`. Raises SpecError for an invalid
    entry."""
    kernel, args, named = (
        (*entry, {})[:3]
        if isinstance(entry, tuple) and len(entry) in (2, 3)
        else (None, None, None)
    )
    if (
        not isinstance(kernel, Kernel)
        or not isinstance(args, tuple | list)
        or not isinstance(named, Mapping)
    ):
        got = type(entry).__name__
        if isinstance(entry, tuple):
            got = f"({', '.join(type(part).__name__ for part in entry)})"
        raise SpecError(
            f"warmup: entry {number} of the list must be (kernel, args) or (kernel, args, named), "
            "with a tuple of positional arguments, (x,) for a single one, and a dictionary; got "
            f"{got}"
        )
    given = dict(named)
    return kernel, kernel.variant(
        tuple(args), given, given.pop("out", None), mesh=given.pop("mesh", None)
    )


# ---- the processes
@dataclass(frozen=True)
class Job:
    """A variant to compile, and its name in reports."""

    name: str
    source: Kernel | tuple[Callable[[Any], Kernel], Any]
    """the kernel, or a pair (factory, config) that a worker creates it from"""
    variant: Variant

    def packed(self) -> bytes:
        """Return the bytes to send to a worker. Raises what pickle raises if the kernel, factory,
        config or a Static cannot be pickled."""
        return pickle.dumps((self.source, self.variant.key, self.variant.obstacles))


def compiled(
    jobs: Sequence[Job], workers: int | None, report: Callable[[], object], asker: str
) -> list[Image | NumpipeError]:
    """Return the machine code of each job, or the error of its compile. `report` is called after
    each job.

    workers  number of processes; None: one per CPU, or none for a single compile; 0: compile in
             this process

    Raises CompileError if a process dies; its message names the function `asker`.
    """
    done = {}

    def keep(number: int, result: Image | NumpipeError) -> None:
        done[number] = result
        report()

    missing = []
    for number, job in enumerate(jobs):
        try:
            found = job.variant.find()
        except NumpipeError as error:  # the source cannot be rewritten
            keep(number, error)
            continue
        if found is None:
            missing.append(number)
        else:
            keep(number, found)
    sent = {}
    if _in_worker:
        workers = 0
    for number in missing if workers or (workers is None and len(missing) > 1) else ():
        with contextlib.suppress(Exception):  # a value's own pickling may raise anything
            if jobs[number].variant.digest is not None:
                sent[number] = jobs[number].packed()
    here = [number for number in missing if number not in sent]
    if sent:
        most = min(workers or cores(), len(sent))
        with concurrent.futures.ProcessPoolExecutor(
            most, multiprocessing.get_context("spawn"), _begin
        ) as pool:
            try:
                waiting = {pool.submit(_compile, data): number for number, data in sent.items()}
                for number in here:
                    keep(number, _image(jobs[number].variant))
                here = []
                for future in concurrent.futures.as_completed(waiting):
                    number, (digest, result) = waiting[future], future.result()
                    if digest == jobs[number].variant.digest:
                        keep(number, result)
                    else:
                        here.append(number)
            except BrokenProcessPool as error:
                modules = sorted({_module(jobs[number].source) for number in sent})
                raise CompileError(
                    f"{asker}: a worker process died: can {', '.join(modules)} be imported by "
                    "another process, and does the script start its work under 'if __name__ == "
                    '"__main__":\'? Pass workers=0 to compile in this process'
                ) from error
            finally:
                pool.shutdown(cancel_futures=True)
    for number in here:
        keep(number, _image(jobs[number].variant))
    return [done[number] for number in range(len(jobs))]


_in_worker = False
"""whether this process is a worker; it then starts no workers of its own, because a module that it
imports may call `warmup` again"""


def _begin() -> None:
    global _in_worker
    _in_worker = True


def _module(source: Any) -> str:
    return str((source if isinstance(source, Kernel) else source[0]).__module__)


def _compile(data: bytes) -> tuple[str | None, Any]:
    """Compile in a worker. Return the digest of what is compiled (None if it cannot be imported),
    and the image or the error."""
    try:
        source, key, obstacles = pickle.loads(data)
        variant = Variant(
            (source if isinstance(source, Kernel) else source[0](source[1])).definition,
            key,
            obstacles,
        )
        digest = variant.digest
    except Exception:  # the parent process compiles it, and reports the error
        return None, None
    return digest, _image(variant)


def _image(variant: Variant) -> Image | NumpipeError:
    try:
        return variant.image
    except NumpipeError as error:
        return error
