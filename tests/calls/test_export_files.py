"""Files of exported kernels: loaded in a process without source and compiler, damaged or malicious,
and used from the command line."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import numpipe
from numpipe import ArrayType, ImageError, SpecError, Workspace
from numpipe.__main__ import main
from numpipe.diagnostics.errors import NumpipeError
from numpipe.kernels import archive as archives
from numpipe.kernels.archive import Archive
from numpipe.kernels.evaluation import ERRORS
from numpipe.kernels.exporting import signature
from tests.kernels.export_fakes import Noting, Torch, fakes
from tests.kernels.export_kernels import Config, scaled

CONFIG = Config()
ROOT = Path(__file__).parents[2]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Noting]:
    monkeypatch.chdir(tmp_path)
    with fakes(monkeypatch) as fake:
        yield fake


# ---- another process
ALONE = textwrap.dedent("""
    import sys

    class Blocked:
        def find_spec(self, name, path=None, target=None):
            blocked = ("numba", "llvmlite", "numba_cuda", "greenlet", "tests")
            if name.partition(".")[0] in blocked or "nvjitlink" in name:
                raise ImportError(name)

    sys.meta_path.insert(0, Blocked())
    import numpy as np, numpipe
    loaded = numpipe.load(sys.argv[1])
    x = np.zeros((128, 128), np.float32)
    print(loaded, loaded.inspect("resources", x).cubin_bytes)
    def said(call):
        try:
            call()
        except numpipe.NumpipeError as error:
            print(type(error).__name__, error)
    calls = (
        lambda: loaded(x),
        lambda: loaded(x.astype(np.int32)),
        lambda: loaded(x, target="sim"),
        lambda: loaded.simulate(x),
        lambda: loaded.compiled(x),
        lambda: loaded.inspect("ptx", x),
        lambda: loaded.bind(x),
    )
    for call in calls:
        said(call)
    packages = [(name.partition(".")[0], name) for name in sys.modules]
    print(*[name for package, name in packages if package in ("numba", "llvmlite", "tests")])
""")


def test_a_process_without_source_and_compiler_has_the_same_kernel(tmp_path: Path) -> None:
    x = np.zeros((128, 128), np.float32)
    file = tmp_path / "scaled.numpipe"
    scaled.export(file, (x,))
    run = subprocess.run(
        [sys.executable, "-c", ALONE, str(file)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.split("\n")
    used = scaled.inspect("resources", x)
    assert lines[0] == f"<numpipe kernel scaled(x, y) of {file}> {used.cubin_bytes}"
    assert lines[1].startswith("TargetError kernel scaled: target='gpu': the GPU cannot be used")
    absent = (
        f"ImageError kernel scaled: {file} holds no machine code for x int32 2d, y int32 2d, "
        "scale=2.0, cfg=Config("
    )
    assert lines[2].startswith(absent)
    source = (
        f"TargetError kernel scaled: it was loaded from {file}, which holds machine code and no "
        "source"
    )
    assert [line.startswith(source) for line in lines[5:9]] == [True] * 4, run.stdout
    assert lines[9].startswith("TargetError kernel scaled: target='gpu'") and lines[10:] == ["", ""]


def test_the_image_describes_the_kernel(tmp_path: Path) -> None:
    x = np.zeros((128, 128), np.float32)
    scaled.export(tmp_path / "k", (x,))
    archive = Archive(tmp_path / "k")
    [entry] = archive.manifest.entries
    assert archive.image(entry) == scaled.variant((x,), {}).image
    assert [parameter.name for parameter in archive.manifest.parameters] == [
        "x",
        "y",
        "scale",
        "cfg",
    ]
    assert {name for name, _ in archive.manifest.made_with} >= {"numpipe", "numba-cuda", "llvmlite"}


# ---- bad input
Parts = dict[str, bytes]
"""the manifest and the images of a file"""


def parts() -> Parts:
    manifest, _, images = Path("k.numpipe").read_bytes().partition(b"\n")
    return {"manifest": manifest, "images": images}


@pytest.fixture
def good(fake: Noting) -> Parts:
    """Return a file with everything that a file can contain, except a workspace."""

    @numpipe.kernel(
        out_type=lambda a, n: ArrayType((a.shape[0], n), a.dtype),
        grid=lambda a, n: (n,),
        cluster=(1, 1),
        cluster_names=("p", "q"),
        signature="(m,k)->(m,n)",
        without="bias",
        workspace=Workspace((64, 64)),
    )
    def k(
        a, bias, c, work, scale=2.0, *, more, n: numpipe.Static = 64, cfg: numpipe.Static = CONFIG
    ):
        c[...] = a[...]

    x = np.zeros((64, 64), np.float32)
    k.export(
        "k.numpipe",
        ((x,), {"more": True}),
        ((np.zeros((128, 64), np.float32),), {"more": True}),
        ((x.astype(np.float16),), {"more": True}),
        choose=lambda a: {"n": 32 if a.shape[0] < 99 else 8},
    )
    return parts()


@pytest.fixture
def tiled(fake: Noting) -> Parts:
    scaled.export("k.numpipe", (np.zeros((64, 64), np.float32),))
    return parts()


def packed(members: Parts) -> None:
    Path("k.numpipe").write_bytes(members["manifest"] + b"\n" + members["images"])


def tried(*calls: Any, errors: tuple[type[Exception], ...] = ()) -> None:
    """Load a file and call its kernels; only numpipe's errors may be raised, and kernels must
    work."""
    try:
        loaded = numpipe.load("k.numpipe")
        str(loaded.archive), repr(loaded)
    except ImageError as error:
        assert "k.numpipe" in str(error)
        return
    for call in calls:
        try:
            call(loaded)
        except (NumpipeError, *errors):
            pass


def test_a_good_file(good: Parts) -> None:
    packed(good)
    assert numpipe.load("k.numpipe")(np.zeros((128, 64), np.float32), more=False).shape == (128, 8)


def test_any_bytes_cut_off_or_changed(good: Parts) -> None:
    data = Path("k.numpipe").read_bytes()
    for length in [*range(0, 60), *range(60, len(data), 401)]:
        Path("k.numpipe").write_bytes(data[:length])
        with pytest.raises(
            ImageError, match="k.numpipe cannot be used: .*; export the kernel again"
        ):
            numpipe.load("k.numpipe")

    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(
            st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), min_size=1, max_size=6
        )
    )
    def changed(changes: list[tuple[int, int]]) -> None:
        damaged = bytearray(data)
        for place, value in changes:
            damaged[place] = value
        Path("k.numpipe").write_bytes(damaged)
        tried(lambda k: k(Torch(4096), more=False))

    changed()


def test_other_manifests_and_images(good: Parts) -> None:
    manifest, images = good["manifest"], good["images"]
    entries = json.loads(manifest)["entries"]
    first, size = entries[0]["size"], str(entries[0]["size"]).encode()
    longer = manifest.replace(b'"size": ' + size, b'"size": 1' + size, 1)
    for line, data in (
        (b"", b""),
        (manifest, b""),
        (b"", images),
        (manifest, images + b"\0"),
        (manifest, images[1:]),
        (manifest, images[first:] + images[:first]),
        (longer, images),
        (manifest.replace(b'"size": ' + size, b'"size": 1' + b"0" * 4000, 1), images),
        (manifest.replace(b'"size": ' + size, b'"size": -1', 1), images),
        (b"[" * 100_000, images),
        (b'{"a":' * 100_000, images),
        (b"\xff", images),
        (b"PK\3\4", images),
        (manifest.replace(b'"version": 4', b'"version": NaN'), images),
        (manifest.replace(b'"version": 4', b'"version": 4' + b"0" * 5000), images),
    ):
        packed({"manifest": line, "images": data})
        with pytest.raises(ImageError, match="k.numpipe cannot be used"):
            numpipe.load("k.numpipe")


def test_machine_code_that_is_none_or_of_another_kernel(good: Parts) -> None:
    def with_image(data: bytes) -> Parts:
        manifest = json.loads(good["manifest"])
        sizes = [entry["size"] for entry in manifest["entries"]]
        manifest["entries"][0] |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        return {
            "manifest": json.dumps(manifest).encode(),
            "images": data + good["images"][sizes[0] :],
        }

    packed(with_image(b"numpipe\0"))
    with pytest.raises(ImageError, match="k.numpipe: its machine code"):
        numpipe.load("k.numpipe")(np.zeros((64, 64), np.float32), more=True)
    scaled.export("other.numpipe", (np.zeros((64, 64), np.float32),))
    other = Path("other.numpipe").read_bytes().partition(b"\n")[2]
    packed(with_image(other))
    with pytest.raises(
        ImageError, match="its machine code belongs to another kernel: x, y for sm_90a"
    ):
        numpipe.load("k.numpipe")(np.zeros((64, 64), np.float32), more=True)


def test_another_version_and_another_target_are_reported(good: Parts) -> None:
    for old, new, message in (
        (
            b'"version": 4',
            b'"version": 3',
            "its format has version 3, and this numpipe reads version 4",
        ),
        (b'"sm_90a"', b'"sm_100a"', "its target 'sm_100a' is unknown to this numpipe"),
    ):
        packed(good | {"manifest": good["manifest"].replace(old, new)})
        with pytest.raises(ImageError, match=message):
            numpipe.load("k.numpipe")


def test_no_file(good: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo("fifo")
    Path("folder").mkdir()
    Path("link").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    Path("good").symlink_to("k.numpipe")
    for name, kind in (
        ("fifo", ImageError),
        ("folder", ImageError),
        ("/dev/zero", ImageError),
        ("link", FileNotFoundError),
        ("loop", OSError),
        ("a\0b", SpecError),
        (sys.executable, ImageError),
    ):
        with pytest.raises(kind):
            numpipe.load(name)
    assert numpipe.load("good").name == "k"  # a path as in a folder of models
    monkeypatch.setattr(archives, "MOST_BYTES", 100)
    with pytest.raises(ImageError, match="more than 100 bytes"):
        numpipe.load("k.numpipe")


VALUES = [
    None,
    True,
    False,
    0,
    1,
    2,
    7,
    128,
    -1,
    1 << 40,
    1 << 70,
    0.5,
    1e300,
    "",
    "a",
    "c",
    "work",
    "n",
    "64",
    "null",
    "true",
    "{}",
    "[]",
    "[[1]]",
    '{"dtype":"float16"}',
    '{"dtype":"object"}',
    '{"number":["np.float32","0x1p+0"]}',
    '{"number":["float","inf"]}',
    '{"number":["float","no"]}',
    '{"class":"A","fields":{}}',
    "float32",
    "float16",
    "bfloat16",
    "row",
    "col",
    "scalar",
    "static",
    "array",
    "left out",
    "out_type",
    "grid",
    "steps",
    "choose",
    "workspace",
    "(m)->(m)",
    "é",
    [],
    {},
    [1],
    [0, 0],
    [1, 1],
    [1, 1, 1],
    [4, 2, 1],
    ["a"],
    [["n", "1"]],
    [[]],
    "[" * 90 + "]" * 90,
]


def nodes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the places of all values in JSON, and in JSON inside of its strings."""
    found = [path]
    if isinstance(value, str) and value[:1] in "{[":
        found += nodes(json.loads(value), (*path, json))
    for key, part in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        found += nodes(part, (*path, key))
    return found


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new(value) if callable(new) else new
    if path[0] is json:
        return json.dumps(replaced(json.loads(value), path[1:], new))
    value = copy.copy(value)
    value[path[0]] = replaced(value[path[0]], path[1:], new)
    return value


CHANGES = [
    lambda v: v[:-1] if isinstance(v, (str, list)) else -1,
    lambda v: v + v[:1] if isinstance(v, (str, list)) else {"a": v},
    lambda v: v[::-1] if isinstance(v, (str, list)) else [v],
    lambda v: v + 1 if isinstance(v, int) else str(v),
]


@pytest.mark.variants(1)
@pytest.mark.parametrize("file", ["good", "tiled"])
def test_any_value_of_a_manifest_changed(
    file: str, request: pytest.FixtureRequest, fake: Noting
) -> None:
    """Either the file is rejected, or its kernel works or raises numpipe's errors.

    Functions of shapes may also raise their own exceptions.
    """
    members = request.getfixturevalue(file)
    manifest = json.loads(members["manifest"])
    x = np.zeros((64, 64), np.float32)
    calls = [
        lambda k: k(x, more=True),
        lambda k: k(x),
        lambda k: k(Torch(4096)),
        lambda k: k(Torch(4096), scale=1, more=True),
        lambda k: k(Torch(4096), Torch(1 << 20)),
        lambda k: k.bind(x)(),
        lambda k: k(x.astype(np.float16), more=np.bool_(1)),
        lambda k: k(x, x.copy(), more=True, n=1, bias=None),
        lambda k: k.inspect("resources", x),
        lambda k: k(x[0]),
        lambda k: k(x, cfg=Config(), scale=2.0),
    ]

    def changed(path: tuple[Any, ...], new: Any) -> None:
        packed(members | {"manifest": json.dumps(replaced(manifest, path, new)).encode()})
        in_function = json in path and "functions" in path
        tried(*calls, errors=tuple(ERRORS.values()) if in_function else ())

    places = [path for path in nodes(manifest) if "entries" not in path or path[1:2] != (1,)]

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(places), st.sampled_from([*VALUES, *CHANGES]))
    def one(path: tuple[Any, ...], new: Any) -> None:
        changed(path, new)

    one()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("file", ["good", "tiled"])
def test_all_values_of_a_manifest_changed(
    file: str, request: pytest.FixtureRequest, fake: Noting
) -> None:
    members = request.getfixturevalue(file)
    manifest = json.loads(members["manifest"])
    x = np.zeros((64, 64), np.float32)
    for path in nodes(manifest):
        for new in (*VALUES, *CHANGES):
            packed(members | {"manifest": json.dumps(replaced(manifest, path, new)).encode()})
            tried(
                lambda k: k(x, more=True),
                lambda k: k(Torch(4096)),
                lambda k: k(x),
                errors=tuple(ERRORS.values()) if json in path and "functions" in path else (),
            )


# ---- the command line
def test_export_and_inspect(fake: Noting, capsys: pytest.CaptureFixture[str]) -> None:
    name = "tests.kernels.export_kernels"
    assert (
        main(
            [
                "export",
                f"{name}:scaled",
                "k.numpipe",
                "float16[64, 64]",
                "float32[1, 64], scale=0.5",
                "x=bfloat16[2, 2], cfg=Config(mode=Mode.EXACT)",
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert main(["inspect", "k.numpipe"]) == 0 and capsys.readouterr().out == said
    config = "Config(tm=64, mode=Mode.FAST, pair=Pair(rows=1, columns=2), dtype=float32)"
    assert said.startswith(f"scaled(x, y, scale=2.0, cfg={config}), for sm_90a, made with numpipe ")
    assert (
        f"\n    x float16 2d, y float16 2d, scale=2.0, cfg={config}: 0 B of machine code, 200000 "
        "B of shared memory" in said
    )
    assert (
        "scale=0.5" in said
        and "x bfloat16 2d" in said
        and "Mode.EXACT" in said
        and len(said.splitlines()) == 4
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["export", "nowhere:k", "k", "float16[1]"],
            "nowhere:k: No module named 'nowhere'; fix: write MODULE:KERNEL",
        ),
        (
            ["export", "tests.kernels.export_kernels:no", "k", "float16[1]"],
            "the kernels of tests.kernels.export_kernels are scaled",
        ),
        (
            ["export", "tests.kernels.export_kernels", "k", "float16[1]"],
            "kernels of tests.kernels.export_kernels are scaled",
        ),
        (["export", ":k", "k", "float16[1]"], "write MODULE:KERNEL"),
        (["export", "tests.kernels:k", "k", "1"], "are none"),
        (
            ["export", "tests.kernels.export_kernels:scaled", "k", "floaty[1]"],
            "floaty[1] is neither a constant, an array, nor a name",
        ),
        (
            ["export", "tests.kernels.export_kernels:scaled", "k", "float16[2, 2], cfg=1 +"],
            "SyntaxError",
        ),
        (
            ["export", "tests.kernels.export_kernels:scaled", "no/k", "float16[2, 2]"],
            "no such folder",
        ),
        (["inspect", "nowhere"], "No such file"),
        (["inspect", "."], "it is a folder"),
        (["inspect", sys.executable], "cannot be used"),
    ],
)
def test_the_command_line_reports_errors(
    arguments: list[str], message: str, fake: Noting, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "a)(float16[1]",
        "a)+(b",
        "*3",
        "1/0",
        "float16[-1]",
        "float16['a']",
        ")",
        "float16[n]",
        "\0",
    ],
)
def test_bad_lists_of_arguments(text: str) -> None:
    with pytest.raises(SpecError, match=r"signature|ArrayType"):
        signature(text, {})


def test_a_signature_of_the_command_line() -> None:
    names = {"n": 3, "Config": Config}
    assert signature("float16[2, n], float32[4], n=-3, cfg=Config(tm=6), flag=True", names) == (
        (ArrayType((2, 3), "float16"), ArrayType((4,), "float32")),
        {"n": -3, "cfg": Config(6), "flag": True},
    )
    assert signature("", {}) == ((), {})
