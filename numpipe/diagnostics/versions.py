"""Versions of installed packages."""

from __future__ import annotations

import contextlib


def installed(*packages: str) -> dict[str, str]:
    """Return the versions of these distributions; those that are not installed are omitted."""
    import importlib.metadata

    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
