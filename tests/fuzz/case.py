"""A drawn kernel: the text of its file, its arguments, and its result by NumPy."""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib.util
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from tests.fuzz import meaning

MARK = "\n\nCASE, SEED = "


@dataclasses.dataclass(frozen=True)
class Case:
    """A kernel and a way to call it.

    text       its file
    arguments  (name, expression) of each parameter; expressions may use `rng`, a NumPy generator,
               `np` and `ml_dtypes`
    features   language choices of the kernel, for coverage
    ctas       CTAs that NumPy runs, each with `wgs` warpgroups: all of them, or those of the first
               cluster, which then gets all tiles
    cluster    CTAs of a cluster whose axes have names
    excused    patterns of lines that the build gate may report
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
        """Return the digest of the kernel's text, which names the files of a failure."""
        return hashlib.sha1(self.text.encode()).hexdigest()[:12]

    @property
    def kernel(self) -> Any:
        return getattr(module_of(self.text, "fuzzed"), self.name)

    def given(self, seed: int = 0) -> dict[str, Any]:
        """Return new arguments for a call; outputs hold a value that no kernel writes."""
        names = {"np": np, "ml_dtypes": ml_dtypes, "rng": np.random.default_rng(seed)}
        return {name: eval(expression, names) for name, expression in self.arguments}

    def right(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return these arguments with NumPy's results."""
        after = dict(zip(given, copied(given), strict=True))
        meaning.run(self.text, self.name, after, self.ctas, self.wgs, self.cluster)
        return after

    def source(self, seed: int) -> str:
        """Return a file that `of_file` reads: the kernel's text, and the rest of the case."""
        rest = {**vars(self), "text": ""}
        return f"{self.text}{MARK}{rest!r}, {seed}\n"


def of_file(path: Path) -> tuple[Case, int]:
    """Return the case and the seed of its arguments from a file that `Case.source` wrote."""
    text, _, rest = path.read_text(encoding="utf8").partition(MARK)
    fields, seed = ast.literal_eval(rest)
    return Case(**{**fields, "text": text}), seed


def wrong(right: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Describe the first array that differs; "" if none does."""
    for name, exact in right.items():
        if isinstance(exact, np.ndarray):
            other = found[name]
            nan = np.isnan(exact.astype(np.float64)) & np.isnan(other.astype(np.float64))
            bad = np.argwhere(~((other == exact) | nan))
            if len(bad):
                at = tuple(map(int, bad[0]))
                return (
                    f"{name}: {len(bad)} of {exact.size} elements are wrong, "
                    f"the first at {at}: {other[at]}, not {exact[at]}"
                )
    return ""


def copied(given: Mapping[str, Any]) -> list[Any]:
    """Return the arguments for one call; a copy of an array keeps its memory order."""
    return [
        value.copy(order="K") if isinstance(value, np.ndarray) else value
        for value in given.values()
    ]


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="numpipe_fuzz")


@functools.cache
def module_of(text: str, prefix: str) -> ModuleType:
    """Import this text from a real file, once: numpipe reads a kernel's source from its file."""
    name = f"{prefix}_{hashlib.sha1(text.encode()).hexdigest()[:12]}"
    path = Path(_folder().name) / f"{name}.py"
    path.write_text(text, encoding="utf8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
