"""The disk cache of compiled kernels' images, so that a process can use what another one compiled.

Each kernel has a file, named by its key (`fingerprint`), in `folder()`; NUMPIPE_CACHE=0 turns the
cache off. A file holds the SHA-256 of the rest, the key, and the image's bytes (`plan.image`). The
hash and the key are checked before anything in it is executed; a file that does not match is
deleted, and the kernel is compiled again. Files are written under another name and renamed, so a
reader sees a complete file or none.

If several processes need a kernel, one compiles it and holds a lock on a file; the others wait. The
lock is released when its holder ends, and after WAIT seconds a waiting process compiles for itself.
File errors (a full disk, another user's folder) cause one warning, and the kernel is compiled.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..core import records
from ..diagnostics import log
from ..diagnostics.errors import ImageError
from ..diagnostics.regular_files import content, put
from ..plan.image import Image

VARIABLE = "NUMPIPE_CACHE_DIR"
WAIT = 120.0
"""Seconds that a process waits for another one's compile."""
MOST_BYTES = 1 << 30
"""Bytes of images that are kept; the least recently used are removed first."""
MOST_IMAGE = 1 << 28
"""Maximum bytes of one image."""
SUFFIX = ".image"
_SUFFIXES = (SUFFIX, ".facts", ".passed")


def folder() -> Path:
    """Return the folder of numpipe's cache: NUMPIPE_CACHE_DIR, or numpipe in ~/.cache."""
    if path := os.environ.get(VARIABLE):
        return Path(path)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numpipe"


def enabled() -> bool:
    """Return whether images are kept: on POSIX systems, unless NUMPIPE_CACHE=0."""
    return os.name == "posix" and os.environ.get("NUMPIPE_CACHE", "1") != "0"


def image(
    key: str | None, make: Callable[[], Image], still: Callable[[], bool] = lambda: True
) -> Image:
    """Return the image of this key from the cache, or what `make` compiles.

    The compiled image is kept if `still` returns True after the compile: the key no longer matches
    if a module's names changed meanwhile. With key None nothing is kept.
    """
    place = _place(key)
    if place is None:
        return make()
    if (found := find(key)) is None:
        with _locked(place):
            # another process may have compiled it while this one waited for the lock
            found = find(key)
            if found is None:
                found = make()
                if still():
                    _write(place, found.to_bytes())
    return found


Facts = dict[str, list[str]]


def facts(key: str | None, make: Callable[[], Facts], suffix: str = ".facts") -> Facts:
    """Return what `make` determines about the source of this key, from the cache if it is there."""
    place = _place(key, suffix)
    if place is None:
        return make()
    found: Facts | None = _read(place, _facts)
    if found is None:
        found = make()
        _write(place, json.dumps(found).encode())
    return found


def _facts(data: bytes, what: str) -> Facts:
    """Return the facts in a file. Raises ValueError for any other content."""
    found = records.parsed(data)
    if not isinstance(found, dict):
        raise ValueError("it holds no facts")
    for names in found.values():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("it holds no lists of names")
    return found


def find(key: str | None) -> Image | None:
    """Return the image of this key from the cache, or None, without waiting for another process's
    compile."""
    place = _place(key)
    found: Image | None = None if place is None else _read(place)
    if found is not None and log.on("compile"):
        log.say("compile", f"{found.name}: from {place}")
    return found


def _place(key: str | None, suffix: str = SUFFIX) -> Path | None:
    """Return the file of a key; None, with a warning, if the cache cannot be used."""
    if key is None or not enabled():
        return None
    try:
        return created("images") / f"{key}{suffix}"
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        _warn(error)
        return None


def created(name: str) -> Path:
    """Return a folder of the cache, which is created for this user alone if it does not exist.

    Raises OSError, also if others can replace files in it or in the cache: a folder that belongs to
    another user, or that others may write to and that is not sticky, as /tmp is.
    """
    place = folder() / name
    for each in (place.parent, place):
        each.parent.mkdir(parents=True, exist_ok=True)
        each.mkdir(mode=0o700, exist_ok=True)  # `parents` would ignore the mode
        status = each.stat()
        shared = (
            status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
        )
        if status.st_uid not in (os.getuid(), 0) or shared:
            raise PermissionError(
                errno.EPERM, "it belongs to another user, or others may write to it", str(each)
            )
    return place


_warned: set[str] = set()


def _warn(error: Exception) -> None:
    """Warn about a cache that cannot be used, once for each cause, whichever files it affects."""
    cause = (isinstance(error, OSError) and error.strerror) or str(error)
    if cause not in _warned:
        _warned.add(cause)
        warnings.warn(
            f"numpipe's cache of compiled kernels is not used: {error}; set {VARIABLE} to "
            "another folder, or NUMPIPE_CACHE=0",
            RuntimeWarning,
            stacklevel=2,
        )


def passed(key: str | None, check: Callable[[], None]) -> None:
    """Run `check`, which compiles a kernel far enough to find errors, unless it has passed for this
    key."""

    def checked() -> Facts:
        check()
        return {}

    facts(key, checked, ".passed")


# ---- files
def _read(place: Path, parse: Callable[[bytes, str], Any] = Image.from_bytes) -> Any:
    """Return the result of `parse` for a file, or None. A file that does not match its key is
    removed."""
    try:
        data = content(place, MOST_IMAGE, own=True)
        digest, rest = data[:32], data[32:]
        if hashlib.sha256(rest).digest() != digest or rest[:64] != place.stem.encode():
            raise ValueError("it is damaged, or another kernel's")
        found = parse(rest[64:], str(place))
    except FileNotFoundError:
        return None
    except (ValueError, ImageError) as error:
        if log.on("compile"):
            log.say("compile", f"{place}: {error}: removed")
        with contextlib.suppress(OSError):
            place.unlink()
        return None
    except OSError as error:
        _warn(error)
        return None
    with contextlib.suppress(OSError):
        os.utime(place)  # mark it as just used
    return found


def _write(place: Path, data: bytes) -> None:
    rest = place.stem.encode() + data
    try:
        put(place, hashlib.sha256(rest).digest() + rest, 0o600)
        if place.suffix == SUFFIX:  # scanning the folder takes longer than writing facts
            evict(place.parent)
    except OSError as error:
        _warn(error)


def files() -> list[tuple[Path, os.stat_result]]:
    """Return the files in the cache, most recently used first."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder() / "images"):
            with contextlib.suppress(OSError):  # another process may remove it
                if entry.name.endswith(_SUFFIXES):
                    found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
    return sorted(found, key=lambda one: one[1].st_mtime, reverse=True)


def evict(images: Path, most: int | None = None) -> int:
    """Remove the least recently used files until `most` bytes are left; return how many were
    removed.

    Also removes files left by processes that died.
    """
    total, removed = 0, 0
    limit = MOST_BYTES if most is None else most
    for path, status in files():
        total += status.st_size + 4096  # plus a page for the file system's own data
        if total > limit:
            with contextlib.suppress(OSError):
                path.unlink()
                removed += 1
    for path in (*images.glob(".*.tmp"), *images.glob("*.lock")):
        with contextlib.suppress(OSError):
            if abs(time.time() - path.lstat().st_mtime) > 3600:
                path.unlink()
    return removed


def clear() -> int:
    """Remove all images; return how many there were."""
    return evict(folder() / "images", most=0)


# ---- one compile a key
@contextlib.contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Hold the lock of a key, or continue without it if it cannot be acquired.

    The holder removes the lock's file after it wrote the image, so a process that waits for the
    removed file then finds the image.
    """
    import fcntl

    path = place.with_suffix(".lock")
    descriptor, held, until = -1, False, time.monotonic() + WAIT
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        while not held and time.monotonic() < until:
            try:  # unlike flock's, this lock is not inherited by a forked child
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except (BlockingIOError, PermissionError):
                time.sleep(0.02)
    except OSError as error:  # also a file system without locks
        _warn(error)
    try:
        yield
    finally:
        if held:
            with contextlib.suppress(OSError):
                path.unlink()
        if descriptor >= 0:
            os.close(descriptor)
