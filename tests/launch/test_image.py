"""`Image`: the result of a compile, written as bytes, read back and launched without a compiler;
errors for damaged bytes."""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
import os
import re
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, ImageError
from numpipe.core.records import record
from numpipe.kernels.kernel import Kernel
from numpipe.kernels.variants import Variant
from numpipe.launch import Image, MapRequest
from numpipe.plan.image import Mbarrier, Recording
from tests.kernels import image_kernels
from tests.kernels.compilers import compiles
from tests.kernels.image_kernels import KINDS, arguments
from tests.kernels.launch_kernels import image

each_kind = pytest.mark.parametrize("kind", KINDS)


def kernel(kind: str) -> Kernel:
    """Return a new kernel, for which no other test has compiled anything."""
    of = image_kernels.kernel(kind)[0]
    return numpipe.Kernel(of.function, of.options)


@functools.cache
def compiled(kind: str) -> Image:
    arrays, statics = arguments(kind)
    made = kernel(kind)
    return made.variant(tuple(arrays), statics).image


# ---- round trip
@pytest.mark.variants(1, thorough=2)
@compiles
@each_kind
def test_an_image_is_the_same_in_every_field_when_it_was_written_and_read(kind: str) -> None:
    written = compiled(kind)
    read = Image.from_bytes(written.to_bytes())
    for field in dataclasses.fields(Image):
        assert repr(getattr(read, field.name)) == repr(getattr(written, field.name)), field.name
    assert read == written and read.resources.seconds == written.resources.seconds
    assert read.to_bytes() == written.to_bytes()


@pytest.mark.thorough
@compiles
def test_images_hold_what_their_kinds_of_kernels_need() -> None:
    found = {kind: compiled(kind) for kind in KINDS}
    assert {
        kind: (one.dynamic, one.debug, one.recording is not None) for kind, one in found.items()
    } == {
        "plain": (False, False, False),
        "cluster": (False, False, False),
        "dynamic": (True, False, False),
        "split": (False, False, False),
        "debug": (False, True, False),
        "profile": (False, False, True),
    }
    assert found["split"].arrays == ("a", "b", "c", "work")
    assert all(
        one.cubin.startswith(b"\x7fELF") and one.maps and one.barriers for one in found.values()
    )
    recording = found["profile"].recording
    assert (
        recording is not None
        and (recording.space, recording.directory) == (64, "x")
        and len(recording.rings) == 1
    )


@pytest.mark.variants(1, thorough=2)
@compiles
@each_kind
def test_an_image_is_launched_and_inspected_where_no_compiler_is_imported(
    kind: str, tmp_path: Path
) -> None:
    written = compiled(kind)
    file = tmp_path / "kernel"
    file.write_bytes(written.to_bytes())
    script = Path(image_kernels.__file__)
    path = os.pathsep.join([str(script.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(
        [sys.executable, str(script), kind, str(file)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert not run.returncode, run.stderr
    said = json.loads(run.stdout)
    assert said["imported"] == [], "a launch of what is compiled needs no compiler"
    assert (
        said["cubin"]
        and said["entry"] == written.entry
        and said["config"][:2] == [written.threads, written.smem_bytes]
    )
    assert said["launches"] == 1 and said["counters"] == int(written.dynamic)
    assert said["symbols"] == ["np_watch"] * written.debug + ["np_profile"] * (
        written.recording is not None
    )
    assert said["resources"] == str(written.resources)
    arrays, statics = arguments(kind)
    assert said["source"] == kernel(kind).inspect("source", *arrays, **statics)


@pytest.mark.thorough
@compiles
def test_inspect_of_a_kernel_from_a_file_equals_that_of_the_compiled_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrays, statics = arguments("plain")
    ours, other = kernel("plain"), kernel("plain")
    asked = other.variant(tuple(arrays), statics)
    shown = {
        what: ours.inspect(what, *arrays, **statics)
        for what in ("ptx", "llvm", "sass", "source", "gate", "resources")
    }
    own = ours.compiled(*arrays, **statics).image
    asked.adopt(Image.from_bytes(own.to_bytes()))
    with monkeypatch.context() as patch:
        patch.setattr(Variant, "_build", lambda *_: pytest.fail("compiled again"))
        for what in ("resources", "sass", "source"):
            assert other.inspect(what, *arrays, **statics) == shown[what]
    # these differ when compiled again: names have serial numbers, and Numba links modules in any
    # order
    for what in ("ptx", "llvm", "gate"):
        found, wanted = (
            sorted(re.sub(r"_ZN[\w$]+|[#$]\d+", "F", str(text)).splitlines())
            for text in (other.inspect(what, *arrays, **statics), shown[what])
        )
        assert found == wanted, what
    assert asked.image == own, "what is launched stays the one that was read"


@pytest.mark.thorough
@compiles
def test_a_launched_kernel_keeps_its_image_and_not_the_compilers_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NUMPIPE_CACHE", "0")
    builds: list[Any] = []
    build = Variant._build
    monkeypatch.setattr(
        Variant, "_build", lambda *args: builds.append(weakref.ref(made := build(*args))) or made
    )
    made, x = kernel("plain"), ArrayType((512, 512), np.float16)
    asked = made.variant((x, x), {})
    launched = asked.image
    gc.collect()
    assert builds[0]() is None and asked.image is launched and len(builds) == 1
    built = made.compiled(x, x)
    assert made.compiled(x, x) is built is builds[1]() and len(builds) == 2, (
        "who asks for them keeps them"
    )
    assert asked.image is launched


# ---- bytes that are not an image
SOUND = image(
    maps=(MapRequest(0, (8, 64), 128),),
    cubin=b"\x7fELF" + bytes(60),
    barriers=(Mbarrier(0, 1, "ready[0] of a @ k.py:1", "ready", "a @ k.py:1", 0, 4),),
    recording=Recording(8, "x", ("r",), (), ()),
)


def packed(header: bytes) -> bytes:
    """Return the bytes of an image with this header."""
    return header + b"\n" + SOUND.cubin


def header() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SOUND.to_bytes().partition(b"\n")[0])
    return found


def changed(value: Any, *path: Any) -> bytes:
    """Return the image with another value in one place of its header; ... deletes the field."""
    root = at = header()
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return packed(json.dumps(root).encode())


def test_the_image_that_the_damaged_ones_are_made_of_is_sound() -> None:
    assert (
        Image.from_bytes(SOUND.to_bytes())
        == SOUND
        == Image.from_bytes(packed(json.dumps(header()).encode()))
    )


def refused(data: bytes, why: str) -> None:
    with pytest.raises(
        ImageError,
        match=rf"^cache/k\.image cannot be used: .*(?:{why}).*; fix: compile the kernel again$",
    ):
        Image.from_bytes(data, "cache/k.image")


@pytest.mark.parametrize(
    "data, why",
    [
        (b"", "Expecting value"),
        (b"\x7fELF" + bytes(100), "Expecting value"),
        (b"{}" * 40, "Extra data"),
        (packed(b""), "Expecting value"),
        (packed(b"{"), "Expecting"),
        (packed(b"\xff"), "utf-8"),
        (packed(b"7"), "it is 7, not Image"),
        (packed(b"[]"), "it is an array, not Image"),
        (packed(b"{}"), "the field 'arrays' is missing"),
        (packed(b"[" * 100_000), "nested too deeply"),
        (packed(b'{"name":' * 100_000), "nested too deeply"),
        (packed(b"NaN"), "NaN is not a JSON number"),
        (packed(b"-Infinity"), "-Infinity is not a JSON number"),
        (packed(b"1" * 5000), "digits"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_bytes_of_something_else_are_refused(data: bytes, why: str) -> None:
    refused(data, why)


@pytest.mark.parametrize(
    "path, value, why",
    [
        (("name",), ..., "the field 'name' is missing"),
        (("more",), 1, "the field 'more' is unknown"),
        (("cubin",), "00", "the field 'cubin' is unknown"),
        (("name",), 7, "name is 7, not str"),
        (("name",), None, "name is None, not str"),
        (("threads",), "384", "threads is '384', not int"),
        (("threads",), 384.0, "threads is 384.0, not int"),
        (("threads",), True, "threads is True, not int"),
        (("threads",), -128, "threads is -128, not int"),
        (("threads",), 100, "threads is 100"),
        (("threads",), 0, "threads is 0"),
        (("threads",), 1152, "threads is 1152"),
        (
            ("target",),
            "sm_80",
            "it is compiled for sm_80, but this version of numpipe supports sm_90a",
        ),
        (("smem_bytes",), 1 << 20, "smem_bytes is 1048576"),
        (("debug",), 1, "debug is 1, not bool"),
        (("arrays",), "ac", "arrays is 'ac', not tuple"),
        (("arrays", 0), 1, r"arrays\[0\] is 1, not str"),
        (("arrays",), ["a"], "it has 1 arrays and 2 majors"),
        (("majors", 1), "diagonal", r"majors\[1\] is 'diagonal', not .*Literal"),
        (("maps", 0, "arg"), 2, "a tensor map belongs to no array"),
        (("maps", 0, "box"), [8, -1], r"maps\[0\].box\[1\] is -1, not int"),
        (("maps", 0, "fill"), "ones", r"maps\[0\].fill is 'ones'"),
        (("maps", 0, "written"), ..., r"maps\[0\]: the field 'written' is missing"),
        (("maps", 0), [], r"maps\[0\] is an array, not MapRequest"),
        (("maps",), {}, "maps is an object, not tuple"),
        (("barriers", 0, "slot"), "x", r"barriers\[0\].slot is 'x', not int"),
        (("barriers", 0, "x"), 1, r"barriers\[0\]: the field 'x' is unknown"),
        (("recording",), [], "recording is an array, not Recording"),
        (("recording", "space"), 0, "recording.space is 0"),
        (
            ("resources", "seconds"),
            [["link", -1.0]],
            r"resources.seconds\[0\]\[1\] is -1.0, not float",
        ),
        (("resources", "seconds"), [["link", 1e999]], "Infinity is not a JSON number"),
        (("resources", "registers"), [[[[[]]]]], "resources.registers is an array, not int"),
    ],
    ids=lambda each: ".".join(map(str, each)) if isinstance(each, tuple) else None,
)
def test_fields_that_no_image_has_are_refused_by_name(
    path: tuple[Any, ...], value: Any, why: str
) -> None:
    refused(changed(value, *path), why)


def test_a_number_that_only_overflows_when_it_is_read_is_refused() -> None:
    text = json.dumps(
        {**header(), "resources": {**header()["resources"], "seconds": [["link", 5.0]]}}
    ).replace("5.0", "1e999")
    refused(packed(text.encode()), r"seconds\[0\]\[1\] is inf, not float")


def test_a_record_takes_nothing_but_the_types_of_its_fields() -> None:
    assert record(
        MapRequest, {"arg": 0, "box": [8, 64], "swizzle": 128, "fill": "nan", "written": True}
    ) == MapRequest(0, (8, 64), 128, "nan", True)
    with pytest.raises(ValueError, match="fill is 0, no"):
        record(MapRequest, {"arg": 0, "box": [], "swizzle": 0, "fill": 0, "written": True})
