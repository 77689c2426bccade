"""Modules made of text: kernels are rewritten from their source, so each is imported from a real file."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="source_modules")


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
