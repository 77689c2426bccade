"""Answers on disk: a JSON file for each question, so that processes that ask different ones never write the same file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

VARIABLE = "NUMPIPE_CACHE_DIR"
SCHEMA = "numpipe-tune/1"


def directory() -> Path:
    """Where winners are kept: NUMPIPE_CACHE_DIR, else the user's cache as platformdirs knows it, without that ~/.cache/numpipe."""
    if said := os.environ.get(VARIABLE):
        return Path(said) / "tuning"
    try:
        import platformdirs
    except ImportError:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numpipe" / "tuning"
    return Path(platformdirs.user_cache_path("numpipe", appauthor=False)) / "tuning"


def path(folder: Path, identity: dict[str, Any]) -> Path:
    """The file of a question: the factory's name, for people, and a digest of all it depends on."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return folder / f"{re.sub(r'[^A-Za-z0-9_.]', '.', identity['factory'])}-{digest[:20]}.json"


def load(file: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """What was found before; None where nothing was. A file that says nothing legal is warned of, and will be written again."""
    try:
        return _read(file, identity)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warnings.warn(f"numpipe.autotune: {file} is corrupt: {error}; it is measured and written again", RuntimeWarning,
                      stacklevel=4)
        return None


def _read(file: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """A file's answer; ValueError where it has none to this question."""
    found = json.loads(file.read_text(encoding="utf8"))
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or found.get("identity") != identity:
        raise ValueError(f"it is not of schema {SCHEMA!r}, or answers another question than its name says")
    seconds, skipped, winner = found.get("seconds"), found.get("skipped"), found.get("winner")
    if not isinstance(seconds, dict) or not isinstance(skipped, dict) or not isinstance(winner, str) or winner not in seconds \
            or not set(seconds) <= set(identity["space"]) or not all(type(t) in (int, float) for t in seconds.values()):
        raise ValueError(f"its winner is {winner!r}, which it has no time of")
    return found


def save(file: Path, identity: dict[str, Any], winner: str, seconds: dict[str, float], skipped: dict[str, str]) -> bool:
    """Write an answer in one step: a reader finds the whole old file or the whole new one, whoever else writes it. False, with a
    warning, where the folder cannot be written."""
    text = json.dumps({"schema": SCHEMA, "identity": identity, "winner": winner, "seconds": seconds, "skipped": skipped}, indent=1)
    part = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=file.stem, suffix=".part", dir=file.parent)
        with open(handle, "w", encoding="utf8") as stream:
            stream.write(text + "\n")
        os.replace(part, file)
    except OSError as error:
        if part is not None:
            with contextlib.suppress(OSError):
                os.unlink(part)
        warnings.warn(f"numpipe.autotune: the winner cannot be kept in {file}: {error}; it will be measured again, unless "
                      f"{VARIABLE} names a folder that can be written", RuntimeWarning, stacklevel=4)
        return False
    return True
