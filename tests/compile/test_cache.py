"""The disk cache of compiled kernels: found again by other processes, never stale, and robust
against damaged files."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
import struct
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType
from numpipe.__main__ import main
from numpipe.compile import cache, compilers, fingerprint
from numpipe.compile.build import toolchain
from numpipe.kernels.variants import Variant
from numpipe.plan.image import Image

pytestmark = pytest.mark.skipif(toolchain() is not None, reason=f"no compiler: {toolchain()}")
X = ArrayType((128, 128), np.float32)
SOURCE = """
import numpy as np
import numpipe
from numpipe import ArrayType, BlockSpec, ds
import helpers

SCALE = {scale}

def make(captured, default):
    @numpipe.function
    def shifted(v, by={default}):
        return v + by * captured

    @numpipe.kernel(out_type=lambda x: ArrayType(x.shape, x.dtype))
    def kernel(x, y, *, slots: numpipe.Static = {slots}):
        spec = BlockSpec((64, 64), lambda k: (0, k))
        pipe = numpipe.pipeline(grid=(2,), max_concurrent_steps=slots, in_specs=(spec,))
        for (k,), (tile,) in pipe(x):
            y[ds(0, 64), ds(k * 64, 64)] = helpers.inner(shifted(tile[...] * SCALE))
    return kernel

kernel = make({captured}, {default})
"""
HELPERS = """
import numpipe
OFFSET = {offset}

@numpipe.function
def deepest(v):
    return v - OFFSET

@numpipe.function
def inner(v):
    return deepest(v) * {factor}
"""
VALUES = {"scale": 2.0, "captured": 3, "default": 0.5, "slots": 2, "offset": 1.0, "factor": 4.0}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMPIPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("NUMPIPE_CACHE", raising=False)
    monkeypatch.setattr(cache, "_warned", set())
    return tmp_path / "cache"


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the names of compiled kernels."""
    seen: list[str] = []
    build = Variant._build

    def counted(self: Variant) -> Any:
        seen.append(self.definition.name)
        return build(self)

    monkeypatch.setattr(Variant, "_build", counted)
    return seen


_number = iter(range(10**9))


def kernel(folder: Path, **values: Any) -> numpipe.Kernel:
    """Return the kernel of SOURCE with these values, from files of its own."""
    values = VALUES | values
    place = folder / f"version{next(_number)}"
    place.mkdir(parents=True)
    modules: dict[str, Any] = {}
    for name, text in (("helpers", HELPERS), ("kernels", SOURCE)):
        file = folder / f"{name}.py"  # one name: it is part of the key
        file.write_text(text.format(**values), encoding="utf8")
        import importlib.util
        import linecache

        linecache.checkcache(str(file))
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        (place / f"{name}.py").write_text(file.read_text(encoding="utf8"), encoding="utf8")
        exec(compile(file.read_text(encoding="utf8"), str(file), "exec"), module.__dict__)
        modules[name] = module
    found: numpipe.Kernel = modules["kernels"].kernel
    found.variant((X,), {}).lifted  # noqa: B018  # while its source is in the file
    return found


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Return the kernel's image, compiled once for all tests that only store it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMPIPE_CACHE", "0")
        return variant(kernel(tmp_path_factory.mktemp("image"))).image


def variant(of: numpipe.Kernel, *args: Any, **named: Any) -> Variant:
    return of.variant(args or (X,), named)


def code(image: Image) -> tuple[Any, ...]:
    """Return what two compiles of one kernel share: its instructions, and the image without details
    of the compile."""
    cubin = image.cubin
    start, (size, count, names) = (
        struct.unpack_from("<Q", cubin, 40)[0],
        struct.unpack_from("<HHH", cubin, 58),
    )
    sections = [
        struct.unpack_from("<IIQQQQ", cubin, start + number * size) for number in range(count)
    ]
    text = [
        cubin[offset : offset + length]
        for name, kind, _, _, offset, length in sections
        if cubin[sections[names][4] + name :].startswith(b".text.")
    ]
    assert text
    resources = dataclasses.replace(image.resources, seconds=(), cubin_bytes=0)
    return text, dataclasses.replace(image, cubin=b"", resources=resources)


def files(folder: Path) -> list[Path]:
    return sorted((folder / "images").glob("*.image"))


# ---- hits
def test_a_kernel_is_compiled_once_and_found_by_another_of_the_same_source(
    tmp_path: Path, folder: Path, compiles: list[str]
) -> None:
    first, again = (variant(kernel(tmp_path)).image for _ in range(2))
    assert compiles == ["kernel"] and len(files(folder)) == 1
    assert first == again


def test_a_call_whose_image_is_on_disk_imports_no_compiler(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text(HELPERS.format(**VALUES), encoding="utf8")
    (tmp_path / "kernels.py").write_text(SOURCE.format(**VALUES), encoding="utf8")
    source = textwrap.dedent("""
        import sys, numpy as np, numpipe, kernels
        x = numpipe.ArrayType((128, 128), np.float32)
        image = kernels.kernel.variant((x,), {}).image
        print(kernels.kernel.inspect("resources", x).registers, len(image.cubin), sorted(
            {"numba", "llvmlite", "cuda.bindings.nvjitlink", "numba_cuda"} & sys.modules.keys()))
    """)

    def run() -> list[str]:
        return subprocess.run(
            [sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.split(" ", 2)

    said = [run() for _ in range(2)]
    assert said[0][:2] == said[1][:2]
    assert "numba" in said[0][2] and said[1][2].strip() == "[]"


def test_it_can_be_turned_off(
    tmp_path: Path, folder: Path, compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPIPE_CACHE", "0")
    for _ in range(2):
        variant(kernel(tmp_path)).image  # noqa: B018
    assert len(compiles) == 2 and not folder.exists()


def test_what_was_checked_by_a_simulation_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numpipe.compile import build

    front_ends: list[str] = []
    front_end = build.front_end
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "1")
    monkeypatch.setattr(
        build,
        "front_end",
        lambda unit, *rest: front_ends.append(unit.kernel) or front_end(unit, *rest),
    )
    x = np.ones((128, 128), np.float32)
    for _ in range(2):
        kernel(tmp_path).simulate(x)
    assert front_ends == ["kernel"]
    kernel(tmp_path, scale=3.0).simulate(x)
    assert len(front_ends) == 2


# ---- no stale hits
@pytest.mark.parametrize(
    "changed",
    [
        {"scale": 2.5},
        {"captured": 4},
        {"default": 0.75},
        {"slots": 3},
        {"offset": 1.5},
        {"factor": 8.0},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_change_of_one_thing_is_another_key(tmp_path: Path, changed: dict[str, Any]) -> None:
    """The change is in a global, a captured value, a default, a Static, or a global or constant of
    a function in another module."""
    assert variant(kernel(tmp_path)).digest != variant(kernel(tmp_path, **changed)).digest


def test_types_options_and_statics_are_part_of_the_key(tmp_path: Path) -> None:
    of = kernel(tmp_path)
    keys = {
        variant(of).digest,
        variant(of, ArrayType((128, 128), np.float16)).digest,
        variant(of, ArrayType((256, 128), np.float32)).digest,
        variant(of, slots=4).digest,
    }
    assert len(keys) == 3, "shapes are run-time values"
    options = [
        {},
        {"compiler_params": numpipe.CompilerParams(approx_math=True)},
        {"num_compute_wgs": 1},
        {"wg_axis": "group"},
        {"memory_registers": 48},
        {"warp_specialized": False},
    ]
    variants = {variant(numpipe.kernel(**option)(of.function), X, X).digest for option in options}
    assert len(variants) == len(options) and None not in variants


@pytest.mark.parametrize(
    "package", ["numba", "numba_cuda", "llvmlite", "nvidia_nvvm", "nvidia_nvjitlink"]
)
def test_another_version_of_a_compiler_is_another_key(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    before = compilers._found.__wrapped__()
    (tmp_path / f"{package}-99.0.dist-info").mkdir()
    assert compilers._found.__wrapped__() != before


@pytest.mark.parametrize("variable", ["NUMBA_OPT", "CUDA_HOME", "LD_LIBRARY_PATH"])
def test_what_chooses_a_compiler_is_part_of_the_key(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compilers.compiler() == compilers.compiler() != None  # noqa: E711
    before = compilers._found.__wrapped__()
    monkeypatch.setenv(variable, "/another")
    assert compilers.compiler() is None, "nobody knows which of the two Numba has read"
    monkeypatch.setattr(compilers, "_first_environment", compilers._environment)
    assert compilers._found.__wrapped__() != before


def test_another_file_of_numpipe_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before, read = compilers._found.__wrapped__(), compilers._bytes
    monkeypatch.setattr(
        compilers, "_bytes", lambda path: read(path) + b"#" * path.endswith("ring.py")
    )
    assert compilers._found.__wrapped__() != before


def test_a_kernel_that_reads_values_without_a_digest_has_no_key(folder: Path, image: Image) -> None:
    with open(os.devnull) as file:
        assert fingerprint.Fingerprint(file).key() is None
    assert fingerprint.Fingerprint(threading.Lock()).key() is None
    assert cache.image(None, lambda: image) is image
    assert not folder.exists()


# ---- damaged files
def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "cut off":
        path.write_bytes(data[:-7])
    elif how == "a changed byte":
        path.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "something else":
        path.write_bytes(b"\x80\x04" * 5000)
    elif how == "another kernel's":
        path.rename(path.with_name("0" * 64 + ".image"))
        path.write_bytes(path.with_name("0" * 64 + ".image").read_bytes())
        path.write_bytes(path.read_bytes().replace(path.stem.encode(), b"1" * 64))
    else:
        path.unlink()
        {
            "a link": lambda: path.symlink_to("/etc/passwd"),
            "a pipe": lambda: os.mkfifo(path),
            "a folder": path.mkdir,
        }[how]()


@pytest.mark.variants(1, thorough=3)
@pytest.mark.parametrize(
    "how",
    [
        "a pipe",
        "cut off",
        "a changed byte",
        "empty",
        "something else",
        "another kernel's",
        "a link",
        "a folder",
    ],
)
def test_a_file_that_is_not_what_was_written_is_compiled_again(
    how: str, tmp_path: Path, folder: Path, compiles: list[str]
) -> None:
    image = variant(kernel(tmp_path)).image
    [path] = files(folder)
    damage(path, how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a folder in its place stays, with a warning
        assert code(variant(kernel(tmp_path)).image) == code(image)
    assert len(compiles) == 2


def test_a_folder_that_others_may_write_to_is_not_used_and_that_is_said_once(
    tmp_path: Path, folder: Path, compiles: list[str]
) -> None:
    (folder / "images").mkdir(parents=True)
    (folder / "images").chmod(0o777)
    with pytest.warns(
        RuntimeWarning, match="is not used: .*others may write to it.*; set NUMPIPE_CACHE_DIR to"
    ) as told:
        for _ in range(2):
            variant(kernel(tmp_path)).image  # noqa: B018
    assert len(told) == 1 and len(compiles) == 2 and not files(folder)


def test_a_folder_is_the_owners_alone(folder: Path, image: Image) -> None:
    cache.image("d" * 64, lambda: image)
    assert stat.S_IMODE((folder / "images").stat().st_mode) == 0o700
    assert stat.S_IMODE(files(folder)[0].stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), PermissionError(13, "Permission denied")]
)
def test_a_disk_that_takes_nothing_costs_a_warning_only(
    image: Image, error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise error

    monkeypatch.setattr(cache.os, "replace", full)
    with pytest.warns(RuntimeWarning, match=error.strerror):
        assert cache.image("e" * 64, lambda: image) is image


def test_a_user_without_a_home_is_warned_and_compiles(
    image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(cache, "folder", homeless)
    with pytest.warns(RuntimeWarning, match="Could not determine home directory"):
        assert cache.image("0" * 64, lambda: image) is image


def test_a_folder_that_vanishes_is_made_again(folder: Path, image: Image) -> None:
    for _ in range(2):
        cache.image("f" * 64, lambda: image)
        assert len(files(folder)) == 1
        shutil.rmtree(folder)


def test_the_least_recently_used_is_dropped_first(
    folder: Path, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [folder / "images" / (letter * 64 + ".image") for letter in "abc"]
    for number, path in enumerate(paths):
        cache.image(path.stem, lambda: image)
        os.utime(path, (time.time() - 1000 + number, time.time() - 1000 + number))
    assert cache.image("a" * 64, lambda: 1 / 0) == image  # type: ignore[arg-type,return-value]  # found, and so used just now
    monkeypatch.setattr(cache, "MOST_BYTES", 2 * (len(image.to_bytes()) + 8192))
    assert cache.evict(folder / "images") == 1 and files(folder) == [paths[0], paths[2]]


def test_the_command_lists_and_clears(
    folder: Path, image: Image, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.image("a" * 64, lambda: image)
    assert main(["cache", "info"]) == 0 and capsys.readouterr().out.startswith("1 images, ")
    assert main(["cache", "clear"]) == 0 and not files(folder)


# ---- concurrent processes
MAKES = """
import os, sys, time
from numpipe.compile import cache
from numpipe.plan.image import Image

def make():
    open(f"{sys.argv[1]}/made{os.getpid()}", "w").close()
    time.sleep(0.3)
    return Image.from_bytes(open(f"{sys.argv[1]}/bytes", "rb").read())

print(len(cache.image("a" * 64, make).cubin))
"""
HOLDS = """
import sys, time
from pathlib import Path
from numpipe.compile import cache

with cache._locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def start(code: str, argument: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(argument)], stdout=subprocess.PIPE, text=True
    )


def holder(folder: Path, key: str) -> subprocess.Popen[str]:
    """A process that holds the lock of a key."""
    (folder / "images").mkdir(mode=0o700, parents=True, exist_ok=True)
    process = start(HOLDS, folder / "images" / f"{key}.image")
    assert process.stdout is not None and process.stdout.readline().strip() == "held"
    return process


@pytest.mark.thorough
def test_of_several_that_need_a_key_one_compiles_and_the_others_wait(
    folder: Path, tmp_path: Path, image: Image
) -> None:
    (tmp_path / "bytes").write_bytes(image.to_bytes())
    processes = [start(MAKES, tmp_path) for _ in range(6)]
    assert {process.communicate()[0].strip() for process in processes} == {str(len(image.cubin))}
    assert len(list(tmp_path.glob("made*"))) == 1 and not list((folder / "images").glob("*.lock"))


def test_who_waits_for_one_that_dies_compiles(folder: Path, image: Image) -> None:
    process, found = holder(folder, "b" * 64), []
    waiting = threading.Thread(target=lambda: found.append(cache.image("b" * 64, lambda: image)))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive() and not found
    process.kill()
    waiting.join(20)
    process.wait()
    assert found == [image]


def test_a_wait_for_a_lock_ends(
    folder: Path, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "WAIT", 0.2)
    process = holder(folder, "c" * 64)
    try:
        assert cache.image("c" * 64, lambda: image) == image
        assert (folder / "images" / ("c" * 64 + ".lock")).exists(), (
            "who gave up leaves the lock to its holder"
        )
    finally:
        process.kill()
        process.wait()


USES = """
import hashlib, sys
import numpy as np, numpipe, kernels
image = kernels.kernel.variant((numpipe.ArrayType((128, 128), np.float32),), {}).image
how = "compiled" if "numba" in sys.modules else "found"
print(how, hashlib.sha256(image.cubin).hexdigest(), flush=True)
"""


def users(count: int, tmp_path: Path, **values: Any) -> list[subprocess.Popen[str]]:
    """Start processes that need one kernel at the same time."""
    (tmp_path / "helpers.py").write_text(HELPERS.format(**VALUES | values), encoding="utf8")
    (tmp_path / "kernels.py").write_text(SOURCE.format(**VALUES | values), encoding="utf8")
    return [
        subprocess.Popen(
            [sys.executable, "-c", USES], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        for _ in range(count)
    ]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_of_a_hundred_processes_on_an_empty_cache_one_compiles(tmp_path: Path) -> None:
    answers = [process.communicate()[0].split() for process in users(100, tmp_path)]
    assert sorted(answer[0] for answer in answers) == ["compiled", *["found"] * 99]
    assert len({answer[1] for answer in answers}) == 1


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_process_that_is_killed_at_any_moment_costs_nobody_a_result(tmp_path: Path) -> None:
    moments = np.random.default_rng(0).uniform(0.1, 3.0, 50)
    for number, moment in enumerate(moments):
        processes = users(8, tmp_path, scale=float(number))
        time.sleep(moment)
        processes[0].kill()
        answers = [process.communicate()[0].split() for process in processes][1:]
        assert (
            all(len(answer) == 2 for answer in answers)
            and len({answer[1] for answer in answers}) == 1
        ), (number, moment)
