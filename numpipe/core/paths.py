"""Public module paths that lead elsewhere in the tree: ``numpipe.bench`` is ``numpipe.tools.bench``, also for ``python -m``.

>>> import numpipe.bench, numpipe.tools.bench
>>> numpipe.bench is numpipe.tools.bench
True
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any


class PublicPaths(MetaPathFinder):
    """Finds the modules of a package, and theirs, that stand at another path in it: `paths`, from public to real ones."""

    def __init__(self, package: str, paths: Mapping[str, str]) -> None:
        self.package = package
        self.paths = paths

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        public, dot, inner = rest.partition(".")
        if package != self.package or public not in self.paths:
            return None
        real = f"{package}.{self.paths[public]}{dot}{inner}"
        found = importlib.util.find_spec(real)
        if found is None:
            return None
        run = inner.rpartition(".")[2] == "__main__"  # by ``python -m``: its relative imports start where the module really stands
        spec = ModuleSpec(real if run else name, _SameModule(found), origin=found.origin)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec


class _SameModule(InspectLoader):
    """Gives a path the module that stands at another one: nothing is executed twice."""

    def __init__(self, real: ModuleSpec) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module(self.real.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.real  # the import system has put that of the public path there

    def is_package(self, fullname: str) -> bool:
        return self.real.submodule_search_locations is not None

    def get_source(self, fullname: str) -> str | None:
        loader: Any = self.real.loader
        return loader.get_source(self.real.name)  # type: ignore[no-any-return]

    def get_code(self, fullname: str) -> CodeType | None:
        """What ``python -m`` runs."""
        loader: Any = self.real.loader
        return loader.get_code(self.real.name)  # type: ignore[no-any-return]
