"""The candidates' kernels, compiled in worker processes: each compile keeps some 4 MiB, which ends with the worker."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pickle
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from ...diagnostics.errors import CompileError, SpecError
from ...kernels.arguments import Call
from ...kernels.kernels import Kernel
from ...kernels.variants import Key, Variant
from ...launch.image import Image

Factory = Callable[[Any], Any]


@dataclass(frozen=True)
class Candidate:
    """A config, its kernel, and the call as that kernel takes it."""

    name: str
    config: Any
    kernel: Kernel
    asked: Call


def named(space: Mapping[str, Any] | Iterable[Any]) -> dict[str, Any]:
    """Return the configs by name: a mapping's keys, or each config's repr. Raises SpecError for none, and for two of one name."""
    pairs = list(space.items()) if isinstance(space, Mapping) else [(repr(config), config) for config in space]
    configs = dict(pairs)
    if len(configs) < len(pairs):
        twice = next(config for number, (name, config) in enumerate(pairs) if name in dict(pairs[:number]))
        raise SpecError(f"autotune: the space has {twice!r} twice: leave one out, or give names: {{name: config}}")
    if not configs:
        raise SpecError("autotune: the space has no candidates: pass a list of configs, or {name: config}")
    for name, config in configs.items():
        if not isinstance(name, str):
            raise SpecError(f"autotune: the space's names are strings, got {name!r}")
        if re.search(r" at 0x[0-9a-fA-F]+", repr(config)):
            raise SpecError(f"autotune: candidate {name!r}: its repr is {config!r}, another one in each process, so a winner could "
                            "not be found again: use a frozen dataclass, a tuple or a number")
    return configs


def refusal(error: Exception) -> str:
    """Return why a candidate cannot run."""
    return f"{type(error).__name__}: {error}"


def describe(factory: Factory, space: Mapping[str, Any], args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[
        list[Candidate], dict[str, str]]:
    """Return the candidates that take such a call, and why others do not."""
    candidates, refused = [], {}
    for name, config in space.items():
        try:
            kernel = factory(config)
            if not isinstance(kernel, Kernel):
                raise TypeError(f"autotune: {factory.__name__}({config!r}) returned a {type(kernel).__name__}: a factory returns a "
                                "kernel, as @numpipe.kernel makes it")
            params = kernel.options.compiler_params
            if params.debug or params.profile_space:
                raise SpecError(f"kernel {kernel.name}: built with debug=True or profile_space, it has another speed")
            candidates.append(Candidate(name, config, kernel, kernel.described(args, dict(named), whole=True)))
        except (SpecError, CompileError) as error:
            refused[name] = refusal(error)
    return candidates, refused


def compiled(factory: Factory, candidates: list[Candidate], workers: int | None, report: Callable[[str], object]
             ) -> dict[str, Image | str]:
    """Return the machine code of each candidate by name, or why it has none; `report` is called with each name that is done.

    workers  processes; None: as many as there are CPUs; 0: this process compiles
    """
    results: dict[str, Image | str] = {}
    if workers == 0:
        for one in candidates:
            results[one.name] = _image(one.asked.variant)
            report(one.name)
        return results
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
                results[waiting[future]] = future.result()
                report(waiting[future])
        except BrokenProcessPool as error:
            raise CompileError(
                f"autotune: a process that compiles candidates of {factory.__name__} died: can {factory.__module__} be imported by "
                "another process, and does a script start its work under 'if __name__ == \"__main__\":'? workers=0 compiles in "
                "this one") from error
        finally:
            pool.shutdown(cancel_futures=True)
    return results


def _compile(factory: Factory, config: Any, key: Key, obstacles: dict[int, str]) -> Image | str:
    """Compile one candidate, in a worker."""
    return _image(Variant(factory(config).definition, key, obstacles))


def _image(variant: Variant) -> Image | str:
    try:
        return variant.image
    except (SpecError, CompileError) as error:
        return refusal(error)
