"""Names of a package that are imported on first use, so that a call of a compiled kernel imports
little."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package (PEP 562). `homes` maps modules to the names in them,
    separated by spaces.

    >>> names("numpipe.core", {"symbols": "symbol axis_of"})("symbol")("ring 1")
    'ring_201'
    """
    home = {name: module for module, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
