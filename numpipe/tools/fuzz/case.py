"""A drawn kernel: its file, how its arguments are made, and what NumPy makes of them."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from . import meaning


@dataclass(frozen=True)
class Case:
    """A kernel that somebody may call.

    text       its file
    arguments  (name, expression) of each parameter in turn; expressions know `rng`, a NumPy generator, `np` and `ml_dtypes`
    ctas       that NumPy runs, each with `wgs` warpgroups: all, or those of the first cluster, which then has all tiles
    cluster    CTAs of a cluster whose axes have names
    features   what the kernel has, for counts
    excused    patterns of lines that the build gate may say of it
    """

    text: str
    arguments: tuple[tuple[str, str], ...]
    features: tuple[str, ...] = ()
    name: str = "kernel"
    ctas: int = 1
    wgs: int = 1
    cluster: int = 1
    excused: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Of the kernel's source: two cases of one digest differ by arguments at most."""
        return hashlib.sha1(self.text.encode()).hexdigest()[:12]

    @property
    def kernel(self) -> Any:
        return getattr(module_of(self.text, "fuzzed"), self.name)

    def given(self, seed: int = 0) -> dict[str, Any]:
        """The arguments of a call, new ones each time; outputs hold numbers that no kernel writes."""
        names: dict[str, Any] = {"np": np, "ml_dtypes": ml_dtypes, "rng": np.random.default_rng(seed)}
        return {name: eval(expression, names) for name, expression in self.arguments}

    def right(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """These arguments as NumPy leaves them."""
        after = {name: value.copy() if isinstance(value, np.ndarray) else int(value) if isinstance(value, np.integer) else value
                 for name, value in given.items()}
        meaning.run(self.text, self.name, after, self.ctas, self.wgs, self.cluster)
        return after

    def source(self, seed: int = 0) -> str:
        """A program: ``python file.py`` simulates and verifies the kernel, ``python file.py gpu`` runs it on the GPU."""
        rows = "".join(f"\n    ({name!r}, {expression!r})," for name, expression in self.arguments)
        return (f"{self.text}\n\nARGUMENTS = ({rows}\n)\n\nif __name__ == \"__main__\":\n    import sys\n\n"
                f"    from numpipe.tools.fuzz.checks import replay\n\n"
                f"    replay(__file__, {self.name!r}, ARGUMENTS, sys.argv[1:] or [\"sim\"], seed={seed}, ctas={self.ctas}, "
                f"wgs={self.wgs}, cluster={self.cluster})\n")


def wrong(right: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """What the first array that differs is, "" if none does."""
    for name, exact in right.items():
        if isinstance(exact, np.ndarray):
            other, same = found[name], exact.astype(np.float64)
            bad = np.argwhere(~((other == exact) | (np.isnan(same) & np.isnan(other.astype(np.float64)))))
            if len(bad):
                at = tuple(map(int, bad[0]))
                return f"{name}: {len(bad)} of {exact.size} elements are wrong, the first at {at}: {other[at]}, not {exact[at]}"
    return ""


def copied(given: Mapping[str, Any]) -> list[Any]:
    """The arguments of one call; a copy keeps an array's order."""
    return [value.copy(order="K") if isinstance(value, np.ndarray) else value for value in given.values()]


# ---- kernels are rewritten from their source: each is imported from a real file
@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="numpipe_fuzz")


def module_of(text: str, prefix: str) -> ModuleType:
    """The module of this text, the same one each time; its name begins with `prefix`."""
    name = f"{prefix}_{hashlib.sha1(text.encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        path = Path(_folder().name) / f"{name}.py"
        path.write_text(text, encoding="utf8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]
