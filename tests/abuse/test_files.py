"""Malformed files of every kind that numpipe reads, each corrupted in several ways.

``tests/compile/test_cache_files.py`` tests the files of the disk cache, and
``tests/launch/test_image.py`` and ``tests/calls/test_export_files.py`` test every bit and field of
images and exported kernels.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import bench
from numpipe.__main__ import main
from numpipe.bench.__main__ import main as bench_main
from numpipe.errors import NumpipeError
from numpipe.plan.image import Image
from numpipe.tools.tune import winners
from tests.abuse.arguments import ROOT, doubled, trace
from tests.abuse.rule import answered

IDENTITY = {"factory": "m:f", "space": {"a": "1"}}
WINNER = {
    "schema": "numpipe-tune/1",
    "identity": IDENTITY,
    "winner": "a",
    "seconds": {"a": 1e-3},
    "skipped": {},
}


def winner(path: Path) -> None:
    """Read a file of winners; an invalid one gives a warning, raised here as an error, and is
    measured again."""
    with pytest.warns(RuntimeWarning, match="is corrupt") as told:
        if winners.load(path, IDENTITY) is not None:
            return
    raise numpipe.SpecError(str(told[0].message))


@dataclass(frozen=True)
class Reader:
    """A kind of file: how a good one is written, and what reads it."""

    file: str
    write: Callable[[Path], Any]
    read: Callable[[Path], Any]


def result(path: Path) -> None:
    good = next((ROOT / "docs" / "results").glob("gemm_h200*.json"))
    data = json.loads(good.read_text(encoding="utf8"))
    text = json.dumps(data | {"runs": data["runs"][:2], "rows": []}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def exported(path: Path) -> None:
    path.write_bytes(b'{"version": 1}\n')


READERS = {
    "trace": Reader("run.json", lambda path: trace().save(path), numpipe.Trace.load),
    "timeline": Reader("run.json", lambda path: trace().save(path), numpipe.timeline),
    "result": Reader("result.json", result, lambda path: bench.table(bench.read(path).rows)),
    "compressed result": Reader(
        "result.json.gz", result, lambda path: bench.table(bench.read(path).rows)
    ),
    "kernel": Reader("k.numpipe", exported, numpipe.load),
    "winner": Reader(
        "w.json", lambda path: path.write_text(json.dumps(WINNER), encoding="utf8"), winner
    ),
}


def packed(name: str, text: bytes) -> bytes:
    """Return a text as the content of a kind of file."""
    if name == "compressed result":
        return gzip.compress(text)
    return text


CONTENTS: dict[str, bytes] = {
    "nothing": b"",
    "a blank": b" ",
    "null": b"null",
    "a list": b"[]",
    "a number": b"3",
    "a string": b'"x"',
    "an object": b"{}",
    "NaN": b"NaN",
    "infinity": b'{"schema": Infinity}',
    "huge": b'{"schema": 1e999, "numpipe": ' + b"9" * 5000 + b"}",
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "no UTF-8": b'{"schema": "\xff\xfe"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a BOM": b"\xef\xbb\xbf{}",
    "a lone surrogate": b'{"schema": "\\ud800"}',
    "two objects": b"{}{}",
    "zeros": b"\0" * 100,
    "an old schema": b'{"schema": "numpipe-bench/0", "numpipe": {"format": 0}, "version": 0}',
    "keys twice": b'{"runs": 1, "runs": 2}',
    "an image": b"\x7fELF" * 50,
    "a pickle": b"\x80\x04\x95\x10\x00",
    "wrong kinds": (
        b'{"schema": "numpipe-bench/1", "benchmark": 3, "method": [], "runs": {"case": 1}, '
        b'"numpipe": {"format": 1, "events": 3}}'
    ),
    "wrong nesting": (
        b'{"schema": "numpipe-bench/1", "benchmark": "b", "method": {}, "runs": [[[]]], '
        b'"numpipe": [{"format": 1}]}'
    ),
}
PLACES: dict[str, Callable[[Path], Any]] = {
    "a folder": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path),
    "a pipe": os.mkfifo,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a name that is too long": lambda path: None,
}
CUTS = (1, 10, 0.5, -3)
"""bytes, or the fraction, kept of a good file"""


def wrong() -> Iterator[Any]:
    for name in READERS:
        for what in (*CONTENTS, *(f"cut to {cut}" for cut in CUTS), *PLACES):
            yield pytest.param(name, what, id=f"{name}: {what}")


@pytest.mark.variants(90)
@pytest.mark.parametrize("name, what", list(wrong()))
def test_a_malformed_file_is_refused_by_its_name(
    name: str, what: str, tmp_path: Path, recwarn: Any
) -> None:
    reader = READERS[name]
    path = tmp_path / reader.file
    if what in CONTENTS:
        path.write_bytes(packed(name, CONTENTS[what]))
    elif what in PLACES:
        PLACES[what](path)
        path = path.with_name("n" * 300 + path.name) if "too long" in what else path
    else:
        reader.write(path)
        whole, cut = path.read_bytes(), float(what.removeprefix("cut to "))
        path.write_bytes(whole[: int(cut if cut >= 1 or cut < 0 else cut * len(whole))])
    if name == "winner" and what in ("a link to nothing",):
        assert answered(lambda: reader.read(path), "link")
        return
    answered(lambda: reader.read(path), path.name[-20:], also=(OSError,))


@pytest.mark.parametrize(
    "what", ["nothing", "deep", "no UTF-8", "wrong kinds", "wrong nesting", "a folder", "a pipe"]
)
def test_the_command_lines_end_with_a_line_and_no_traceback(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.json"
    PLACES.get(what, lambda path: path.write_bytes(CONTENTS[what]))(path)
    for call, status in (
        (lambda: main(["timeline", str(path)]), 1),
        (lambda: main(["inspect", str(path)]), 1),
        (lambda: bench_main(["show", str(path)]), 2),
    ):
        assert call() == status
        assert "file.json" in capsys.readouterr().err


def test_an_image_that_is_none_is_refused() -> None:
    for data in CONTENTS.values():
        answered(lambda data=data: Image.from_bytes(data, "the image"), "the image")  # type: ignore[misc]


# ---- changes of every field of a file
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1e308,
    10**40,
    "x",
    "",
    [],
    [[]],
    {},
    {"a": None},
    [None, 1],
)


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the places of a JSON value, with the first two elements of each list."""
    yield path
    parts = (
        value.items()
        if isinstance(value, dict)
        else list(enumerate(value))[:2]
        if isinstance(value, list)
        else ()
    )
    for key, part in parts:
        yield from nodes(part, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = replaced(copied[path[0]], path[1:], new)
    return copied


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "winner" else pytest.mark.thorough)
        for name in ("trace", "result", "winner")
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_field_of_another_value_is_read_or_refused(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    path = tmp_path / reader.file
    reader.write(path)
    good = json.loads(path.read_text(encoding="utf8"))
    if name == "trace":
        good = {"numpipe": good["numpipe"] | {"events": good["numpipe"]["events"][:40]}}
    read = {
        "trace": lambda path: (
            read := numpipe.Trace.load(path),
            read.timeline(),
            str(read.summary()),
        ),
        "winner": lambda path: winners.load(path, IDENTITY),
    }.get(name, reader.read)
    refused = 0
    for place in nodes(good):
        for new in VALUES:
            path.write_text(json.dumps(replaced(good, place, new)), encoding="utf8")
            try:
                read(path)
            except NumpipeError:
                refused += 1
    assert refused > 10 or name == "winner"


def test_what_a_kernel_would_read_of_a_good_file_is_read(tmp_path: Path) -> None:
    """The files that the malformed ones are made from are valid."""
    for name in ("trace", "timeline", "result", "compressed result"):
        READERS[name].write(tmp_path / READERS[name].file)
        READERS[name].read(tmp_path / READERS[name].file)
    (tmp_path / "w.json").write_text(json.dumps(WINNER), encoding="utf8")
    kept = winners.load(tmp_path / "w.json", IDENTITY)
    assert kept is not None and asdict(kept) == WINNER
    doubled.export(tmp_path / "k.numpipe", (np.ones((64, 64), np.float32),) * 2)
    assert "doubled" in str(numpipe.load(tmp_path / "k.numpipe"))
