"""The candidates' kernels, compiled in worker processes: each compile keeps some 4 MiB, which ends with the worker."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pickle
from collections.abc import Callable, Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from ...diagnostics.errors import CompileError, SpecError
from ...kernels.arguments import Call
from ...kernels.kernels import Kernel
from ...kernels.variants import Key, Variant
from ...launch.image import Image
from .space import Factory


@dataclass(frozen=True)
class Candidate:
    """A config, its kernel, and what the call would compile."""

    name: str
    config: Any
    kernel: Kernel
    asked: Call


@dataclass(frozen=True)
class Refused:
    """Why a candidate cannot run: the error's kind and its text."""

    kind: str
    text: str

    @classmethod
    def by(cls, error: Exception) -> Refused:
        return cls(type(error).__name__, str(error))

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def describe(factory: Factory, space: Mapping[str, Any], args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[
        list[Candidate], dict[str, Refused]]:
    """The candidates that take such a call, and the others."""
    found, refused = [], {}
    for name, config in space.items():
        try:
            kernel = factory(config)
            if not isinstance(kernel, Kernel):
                raise TypeError(f"autotune: {factory.__name__}({config!r}) returned a {type(kernel).__name__}: a factory returns a "
                                "kernel, as @numpipe.kernel makes it")
            params = kernel.options.compiler_params
            if params.debug or params.profile_space:
                raise SpecError(f"kernel {kernel.name}: built with debug=True or profile_space, it has another speed")
            found.append(Candidate(name, config, kernel, kernel.described(args, dict(named), whole=True)))
        except (SpecError, CompileError) as error:
            refused[name] = Refused.by(error)
    return found, refused


def compiled(factory: Factory, candidates: list[Candidate], workers: int | None, told: Callable[[str], None]) -> tuple[
        dict[str, Image], dict[str, Refused]]:
    """Machine code of the candidates, and why others have none; `told` hears of each that is done.

    workers  processes; None: as many as there are CPUs; 0: this process compiles
    """
    images: dict[str, Image] = {}
    refused: dict[str, Refused] = {}

    def done(name: str, result: Image | Refused) -> None:
        if isinstance(result, Image):
            images[name] = result
        else:
            refused[name] = result
        told(name)

    if workers == 0:
        for candidate in candidates:
            done(candidate.name, _image(candidate.asked.variant))
        return images, refused
    for one in candidates:
        try:
            pickle.dumps((factory, one.config, one.asked.variant.key))
        except Exception as error:
            raise SpecError(f"autotune: candidate {one.name!r} cannot be sent to a worker process: {error}: use configs of a class "
                            "at module level, or workers=0") from error
    most = min(workers or os.cpu_count() or 1, max(1, len(candidates)))
    with concurrent.futures.ProcessPoolExecutor(most, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(_compile, factory, one.config, one.asked.variant.key, one.asked.variant.obstacles): one.name
                   for one in candidates}
        try:
            for future in concurrent.futures.as_completed(waiting):
                done(waiting[future], future.result())
        except BrokenProcessPool as error:
            raise CompileError(
                f"autotune: a process that compiles candidates of {factory.__name__} died: can {factory.__module__} be imported by "
                "another process, and does a script start its work under 'if __name__ == \"__main__\":'? workers=0 compiles in "
                "this one") from error
        finally:
            pool.shutdown(cancel_futures=True)
    return images, refused


def _compile(factory: Factory, config: Any, key: Key, obstacles: dict[int, str]) -> Image | Refused:
    """One candidate, in a worker."""
    return _image(Variant(factory(config).definition, key, obstacles))


def _image(variant: Variant) -> Image | Refused:
    try:
        return variant.image
    except (SpecError, CompileError) as error:
        return Refused.by(error)
