"""How tests/conftest.py runs the files of tests/gpu: in turns, in child processes, and with a
summary."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.conftest import CHILD, GPU_TESTS, TIME_LIMIT, said, turn

pytest.importorskip("fcntl", reason="files take turns by flock")


# ---- turns
def entered(alone: bool, folder: Path, within: float) -> bool:
    """Return whether another process that requests the GPU now gets it in time."""
    got, leave = threading.Event(), threading.Event()

    def ask() -> None:
        with turn(alone, str(folder)):
            got.set()
            leave.wait()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    answer = got.wait(within)
    leave.set()
    return answer


@pytest.mark.parametrize(
    "first, second", [(False, False), (True, False), (False, True), (True, True)]
)
def test_files_share_the_gpu_unless_one_of_them_needs_it_alone(
    first: bool, second: bool, tmp_path: Path
) -> None:
    with turn(first, str(tmp_path)):
        shared = not first and not second
        assert entered(second, tmp_path, 30 if shared else 0.2) == shared
    assert entered(second, tmp_path, 30)


def test_a_constant_is_read_from_a_file_that_is_not_imported(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text(
        "import no_such_module\n\nALONE = True  # why\n\ndef test_y():\n    PROCESSES = 9\n"
    )
    assert said(file, "ALONE", False) is True
    assert said(file, "PROCESSES", 1) == 1


def test_files_whose_shards_take_all_cores_run_alone() -> None:
    sharded = [
        file
        for file in GPU_TESTS.glob("test_*.py")
        if "gpu_shards" in file.read_text(encoding="utf8")
    ]
    assert sharded and all(said(file, "ALONE", False) for file in sharded)


@pytest.mark.thorough
def test_every_file_is_imported_and_has_tests() -> None:
    """Without a GPU no other test imports them. A file whose library is missing is skipped."""
    command = [sys.executable, "-m", "pytest", "-n0", "--collect-only", "-q", "-rs", "-m", ""]
    command.append(str(GPU_TESTS))
    environment = os.environ | {CHILD: "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    told = set(re.findall(r"tests/gpu/(test_\w+\.py):", done.stdout))
    assert told == {file.name for file in GPU_TESTS.glob("test_*.py")}, done.stdout


# ---- processes
FILES = {
    "good": ("2 passed", "def test_one(): pass\n\ndef test_two(): pass\n"),
    "bad": ("FAILED", "def test_one(): assert 1 == 2\n"),
    "lost": ("FAILED", "import os\n\ndef test_one(): os._exit(3)\n"),
    "empty": ("FAILED", ""),
    # each of two tests waits for the other
    "split": (
        "2 passed",
        "import pathlib, time, pytest\nPROCESSES = 2\n\n"
        "@pytest.mark.parametrize('mine, other', ['ab', 'ba'])\n"
        "def test_one(mine, other):\n"
        "    pathlib.Path(mine).touch()\n"
        "    while not pathlib.Path(other).exists(): time.sleep(0.01)\n",
    ),
}
"""name: outcome, content"""


def ran(root: Path, files: dict[str, str], limit: float) -> str:
    """Return pytest's output for files of tests/gpu, on a machine that appears to have a GPU and
    two cores."""
    (root / "tests" / "gpu").mkdir(parents=True)
    (root / "setup.cfg").write_text("[tool:pytest]\nmarkers =\n    gpu: x\n")
    (root / "tests" / "kernels").mkdir()
    for name in ("__init__.py", "conftest.py", "kernels/__init__.py", "kernels/variants.py"):
        shutil.copy(Path(__file__).parent / name, root / "tests" / name)
    with (root / "tests" / "conftest.py").open("a") as conftest:
        conftest.write("\n\ndef why_no_gpu():\n    return ''\n\n\nos.cpu_count = lambda: 2\n")
    for name, text in files.items():
        (root / "tests" / "gpu" / f"test_{name}.py").write_text(text)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "tests"],
        cwd=root,
        capture_output=True,
        text=True,
        env={
            # twice as fast
            **environment,
            "TMPDIR": str(root),
            TIME_LIMIT: str(limit),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "xdist.plugin,pytest_timeout",
        },
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return ran(
        tmp_path_factory.mktemp("project"), {name: text for name, (_, text) in FILES.items()}, 100
    )


@pytest.mark.parametrize("name", FILES)
def test_the_last_lines_have_the_outcome_of_each_file(name: str, printed: str) -> None:
    end, _ = FILES[name]
    assert re.search(rf"^GPU test_{name}\.py: .*{end}", printed, re.MULTILINE), printed


def test_a_failure_shows_what_the_file_s_own_process_printed(printed: str) -> None:
    assert "assert 1 == 2" in printed
    assert "test_empty.py holds no test" in printed


@pytest.mark.thorough
def test_a_file_that_hangs_is_killed(tmp_path: Path) -> None:
    printed = ran(tmp_path, {"hung": "import time\n\ndef test_one(): time.sleep(600)\n"}, 1)
    assert "test_hung.py still ran after 1 s (NUMPIPE_GPU_TEST_TIMEOUT)" in printed
