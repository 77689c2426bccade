"""Files of the disk cache: no image is taken from another key's file, and problems give one warning
each."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import resource
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from numpipe.__main__ import main
from numpipe.compile import cache
from numpipe.plan.image import Image
from tests.kernels.launch_kernels import image as image_of
from tests.kernels.threads import in_threads

KEY = "a" * 64
IMAGE = image_of((), ("x", "y"), name="kernel")
OTHER = image_of((), ("x", "y"), name="another")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("NUMPIPE_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("NUMPIPE_CACHE", raising=False)
    monkeypatch.setattr(cache, "_warned", set())
    (tmp_path / "images").mkdir(mode=0o700)
    yield tmp_path / "images"


def file(key: str, data: bytes) -> bytes:
    """Return the content of a cache file, as it is written."""
    return hashlib.sha256(key.encode() + data).digest() + key.encode() + data


def ask(key: str = KEY) -> tuple[str, list[str]]:
    """Request the image of a key; return which one it is, and the warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        name = cache.image(key, lambda: OTHER).name
    return name, [str(one.message) for one in told]


DEEP = b"[" * 100_000 + b"]" * 100_000
FOREIGN: dict[str, Callable[[Path], Any]] = {
    "nothing": lambda path: path.write_bytes(b""),
    "a digest only": lambda path: path.write_bytes(b"\0" * 32),
    "a part": lambda path: path.write_bytes(file(KEY, IMAGE.to_bytes())[:-1]),
    "more": lambda path: path.write_bytes(file(KEY, IMAGE.to_bytes()) + b"\0"),
    "another kernel's": lambda path: path.write_bytes(file("b" * 64, IMAGE.to_bytes())),
    "no image": lambda path: path.write_bytes(file(KEY, b"\x7fELF" * 100)),
    "facts": lambda path: path.write_bytes(file(KEY, b'{"all": ["y"]}')),
    "deep": lambda path: path.write_bytes(file(KEY, DEEP)),
    "an image of another version": lambda path: path.write_bytes(
        file(KEY, IMAGE.to_bytes().replace(b'"threads"', b'"fibres_"'))
    ),
    "too large": lambda path: (path.write_bytes(b"x"), os.truncate(path, cache.MOST_IMAGE + 1)),
    "a link": lambda path: path.symlink_to("/etc/passwd"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to a whole image": lambda path: (
        path.with_name("whole").write_bytes(file(KEY, IMAGE.to_bytes())),
        path.symlink_to(path.with_name("whole")),
    ),
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_file_that_is_no_image_of_this_key_is_replaced(what: str, folder: Path) -> None:
    FOREIGN[what](folder / f"{KEY}.image")
    assert ask() == ("another", []) and cache.find(KEY) == OTHER
    assert not list(folder.glob("*.lock")) and not list(folder.glob(".*.tmp"))


def test_a_folder_in_the_place_of_an_image_is_reported(folder: Path) -> None:
    (folder / f"{KEY}.image" / "full").mkdir(parents=True)
    for expected in (1, 0):
        name, told = ask()
        assert name == "another" and len(told) == expected


@pytest.mark.parametrize(
    "content",
    [
        b"",
        DEEP,
        b"[]",
        b'{"all": "y"}',
        b'{"all": [1]}',
        b'{"all": NaN}',
        b"\xff",
        IMAGE.to_bytes(),
    ],
)
def test_facts_that_are_none_are_found_again(content: bytes, folder: Path) -> None:
    (folder / f"{KEY}.facts").write_bytes(file(KEY, content))
    facts = {"all": ["y"]}
    assert cache.facts(KEY, lambda: facts) == facts
    assert (
        json.loads((folder / f"{KEY}.facts").read_bytes()[96:])
        == facts
        == cache.facts(KEY, lambda: {})
    )


@pytest.mark.parametrize("what", ["a link", "a pipe", "a folder"])
def test_a_bad_note_does_not_count_as_a_passed_check(what: str, folder: Path) -> None:
    path, checks = folder / f"{KEY}.passed", []
    (path.mkdir if what == "a folder" else lambda: FOREIGN[what](path))()
    cache.passed(KEY, lambda: checks.append(1))
    assert checks == [1]


@pytest.mark.parametrize("what", ["a link", "a pipe", "a folder"])
def test_a_bad_lock_file_does_not_keep_a_kernel_from_being_compiled(
    what: str, folder: Path
) -> None:
    path = folder / f"{KEY}.lock"
    (path.mkdir if what == "a folder" else lambda: FOREIGN[what](path))()
    name, told = ask()
    assert name == "another" and len(told) <= 1 and cache.find(KEY) == OTHER


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO])
def test_a_file_system_without_locks_is_reported_once(
    number: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", none)
    told = [ask(letter * 64)[1] for letter in "abc"]
    assert [len(one) for one in told] == [1, 0, 0] and os.strerror(number) in told[0][0]
    assert len(list(folder.glob("*.image"))) == 3


@pytest.mark.parametrize(
    "number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.EMFILE]
)
def test_a_folder_that_cannot_be_written_is_reported_once(
    number: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kernel's error names a file of its own, but they have one cause."""
    opened = os.open

    def no(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_CREAT and str(path).startswith(str(folder)):
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", no)
    told = [ask(letter * 64) for letter in "abc"]
    assert [name for name, _ in told] == ["another"] * 3
    assert [len(warned) for _, warned in told] == [1, 0, 0] and os.strerror(number) in told[0][1][0]


def test_a_file_that_is_cut_short_by_a_limit_is_not_kept(folder: Path) -> None:
    """As on a full disk, the error comes after some of it is written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        name, told = ask()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert name == "another" and len(told) == 1
    assert not list(folder.iterdir())


def test_a_folder_that_vanishes_while_a_kernel_is_compiled_costs_a_warning_only(
    folder: Path,
) -> None:
    def make() -> Image:
        shutil.rmtree(folder)
        return OTHER

    with pytest.warns(RuntimeWarning, match="No such file"):
        assert cache.image(KEY, make) == OTHER
    assert ask() == ("another", []) and cache.find(KEY) == OTHER


def test_a_kernel_that_does_not_compile_leaves_nothing(folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            cache.image(KEY, lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    assert not list(folder.iterdir())


def test_what_processes_left_that_died_is_removed(folder: Path) -> None:
    for name, age in (
        (f"{KEY}.lock", 7200),
        (".x.tmp", 7200),
        (".y.tmp", -7200),
        (f"{'b' * 64}.lock", 60),
    ):
        (folder / name).touch()
        os.utime(folder / name, (time.time() - age,) * 2)
    cache.evict(folder)
    assert [path.name for path in folder.iterdir()] == [f"{'b' * 64}.lock"]


def test_the_origin_of_an_image_is_logged(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NUMPIPE_LOG", "compile")
    cache.image(KEY, lambda: IMAGE)
    assert cache.find(KEY) == IMAGE
    assert f"kernel: from {cache.folder() / 'images' / KEY}.image" in capfd.readouterr().err


def test_a_key_is_not_taken_for_another_versions(folder: Path) -> None:
    """Two versions of numpipe share a folder: their keys differ, and a file in an unknown format is
    replaced."""
    cache.image(KEY, lambda: IMAGE)
    cache.image("b" * 64, lambda: OTHER)
    os.replace(folder / f"{'b' * 64}.image", folder / f"{KEY}.image")
    assert cache.find(KEY) is None and not list(folder.iterdir())


def test_the_command_has_a_fix_for_a_user_without_a_home(
    monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def homeless() -> Path:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr(cache, "folder", homeless)
    for action in ("info", "clear"):
        assert main(["cache", action]) == 1
        assert capsys.readouterr().out == (
            "there is no cache: could not determine the home directory; set NUMPIPE_CACHE_DIR to "
            "a folder\n"
        )


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("mount"), reason="only root mounts")
def test_a_disk_that_is_full_costs_a_warning_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "disk"
    place.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=8k,mode=700", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        monkeypatch.setenv("NUMPIPE_CACHE_DIR", str(place))
        (place / "filled").write_bytes(b"x" * 4096)
        name, told = ask()
        assert name == "another" and len(told) <= 1
        assert ask("b" * 64)[1] == [] or not told
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_threads_that_need_a_key_at_the_same_time_all_get_an_image(folder: Path) -> None:
    found: list[Image] = []
    in_threads(8, lambda _: found.append(cache.image(KEY, lambda: IMAGE)))
    assert found == [IMAGE] * 8 and [path.suffix for path in folder.iterdir()] == [".image"]
