"""Contents of the installed package, and the cost of an import."""

from __future__ import annotations

import ast
import configparser
import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import numpipe

ROOT = Path(__file__).parent.parent
CUDA = {"numba-cuda", "cuda-core", "cuda-bindings"}
MACHINES = {
    "linux x86_64": ({"sys_platform": "linux", "platform_machine": "x86_64"}, CUDA),
    "linux aarch64": ({"sys_platform": "linux", "platform_machine": "aarch64"}, CUDA),
    "macOS arm64": ({"sys_platform": "darwin", "platform_machine": "arm64"}, set()),
    "macOS x86_64": ({"sys_platform": "darwin", "platform_machine": "x86_64"}, set()),
    "Windows": ({"sys_platform": "win32", "platform_machine": "AMD64"}, set()),
}


def options() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf8")
    return config


def python(code: str) -> str:
    """Return what `code` prints in a separate interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


# ---- requirements
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("extra", ["", "test", "plot", "bench", "tune", "docs", "dev"])
def test_cuda_wheels_are_asked_for_only_where_they_exist(machine: str, extra: str) -> None:
    markers, cuda = MACHINES[machine]
    required = {
        r.name
        for r in map(Requirement, importlib.metadata.requires("numpipe") or [])
        if r.marker is None or r.marker.evaluate({**markers, "extra": extra})
    }
    assert {"numpy", "ml_dtypes", "greenlet"} <= {name.replace("-", "_") for name in required}
    assert required & CUDA == cuda
    assert cuda or not any(name.startswith("nvidia-cuda") for name in required)


def test_numba_cuda_is_pinned_to_the_series_its_internals_are_known_of() -> None:
    specifiers = {
        r.name: r.specifier for r in map(Requirement, importlib.metadata.requires("numpipe") or [])
    }
    assert specifiers["numba-cuda"].contains("0.30.2") and not specifiers["numba-cuda"].contains(
        "0.31.0"
    )
    assert [specifiers["numpy"].contains(version) for version in ("2.4.6", "2.5.2", "3.0")] == [
        True,
        True,
        False,
    ]


def test_the_version_is_in_one_place() -> None:
    assert options()["metadata"]["version"] == "attr: numpipe.__version__"
    assert importlib.metadata.version("numpipe") == numpipe.__version__
    assert f"## {numpipe.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf8")


# ---- contents of the wheel
@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the names of the files in a wheel built from a clean copy of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    names = (
        tree.stdout.split()
        if tree.returncode == 0
        else [
            str(p.relative_to(ROOT))
            for top in ("numpipe", "intrinsics")
            for p in (*(ROOT / top).rglob("*.py"), *(ROOT / top).rglob("*.npz"))
        ]
        + ["numpipe/py.typed", "numpipe/traces/timeline_page.html"]
        + ["setup.cfg", "pyproject.toml", "README.md", "LICENSE"]
    )
    for name in names:
        if (ROOT / name).is_file():
            (folder / "src" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "src" / name).write_bytes((ROOT / name).read_bytes())
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    subprocess.run(
        [sys.executable, "-c", build], cwd=folder / "src", check=True, capture_output=True
    )
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        return set(archive.namelist())


def test_wheel_holds_every_module_its_types_and_the_files_of_gpus(wheel: set[str]) -> None:
    modules = {
        str(p.relative_to(ROOT))
        for ending in ("py", "npz")
        for p in (ROOT / "numpipe").rglob(f"*.{ending}")
    }
    modules |= {f"numpipe/intrinsics/{p.name}" for p in (ROOT / "intrinsics").glob("*.py")}
    assert modules | {"numpipe/py.typed", "numpipe/traces/timeline_page.html"} <= wheel


def test_wheel_adds_nothing_but_numpipe(wheel: set[str]) -> None:
    version = numpipe.__version__
    assert {name.split("/")[0] for name in wheel} == {"numpipe", f"numpipe-{version}.dist-info"}
    assert any(name.endswith("LICENSE") for name in wheel)


def test_intrinsics_are_imported_from_numpipe() -> None:
    assert (
        Path(python("import numpipe.intrinsics as i; print(i.__file__)")).parent
        == ROOT / "intrinsics"
    )


# ---- imports
def test_import_is_lazy() -> None:
    heavy = {"numba", "llvmlite", "cuda.bindings", "cuda.core", "greenlet", "torch", "matplotlib"}
    assert python(f"import sys, numpipe; print({heavy} & sys.modules.keys())") == "set()"


def test_naming_the_decorator_imports_next_to_nothing() -> None:
    """It takes 0.02 s, with or without NumPy loaded; the rest is imported with the first kernel."""
    loaded = python(
        "import sys, numpipe; numpipe.kernel; print(*(m for m in sys.modules if "
        "m.startswith('numpipe')))"
    ).split()
    assert len(loaded) < 10, loaded


# ---- public names and paths
PATHS = (
    "bench",
    "errors",
    "hazards",
    "intrinsics",
    "kernels",
    "launch",
    "model",
    "orders",
    "reports",
    "sim",
    "testing",
    "traces",
    "tune",
)


def test_every_public_name_is_found_and_listed_once() -> None:
    assert len(numpipe.__all__) == len(set(numpipe.__all__)) > 90
    assert all(hasattr(numpipe, name) for name in numpipe.__all__)
    assert {*numpipe.__all__, *PATHS} <= set(dir(numpipe))
    assert (
        python("from numpipe import *; print(kernel.__name__, BlockSpec.__name__, zeros.__name__)")
        == "kernel BlockSpec zeros"
    )


def test_the_modules_of_public_names_are_the_same_for_type_checkers() -> None:
    tree = ast.parse((ROOT / "numpipe" / "__init__.py").read_text(encoding="utf8"))
    typed = {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
    }
    assert typed == set(numpipe._HOMES)


@pytest.mark.variants(3)
@pytest.mark.parametrize("path", PATHS)
def test_a_public_path_is_an_attribute_and_can_be_imported(path: str) -> None:
    told = python(
        f"import numpipe; a = numpipe.{path}; import numpipe.{path} as b; from numpipe import "
        f"{path} as c; print(a is b is c, a.__spec__.name == a.__name__)"
    )
    assert told == "True True"
    assert python(f"from numpipe.{path} import *; print('imported')") == "imported"


@pytest.mark.variants(1)
@pytest.mark.parametrize(("name", "library"), [("torch", "PyTorch"), ("jax", "JAX")])
def test_a_framework_that_is_missing_is_named_and_not_listed(name: str, library: str) -> None:
    told = python(
        f"import sys; sys.modules['{name}'] = None; import inspect, numpipe; "
        f"inspect.getmembers(numpipe)\ntry: numpipe.{name}\nexcept numpipe.TargetError as error: "
        f"print('{name}' in dir(numpipe), error)"
    )
    assert (
        told.startswith(f"False numpipe.{name} needs {library}, which cannot be imported (")
        and "pip install" in told
    )


def test_a_module_with_a_public_path_is_the_same_under_both_names() -> None:
    told = python(
        "import numpipe.bench.report as a, numpipe.tools.bench.report as b; from numpipe.bench "
        "import report as c; print(a is b is c, a.__name__)"
    )
    assert told == "True numpipe.tools.bench.report"


def test_a_public_path_runs_as_a_program() -> None:
    for path in ("numpipe.bench", "numpipe"):
        told = subprocess.run(
            [sys.executable, "-m", path, "--help"], capture_output=True, text=True
        )
        assert told.returncode == 0 and f"python -m {path}" in told.stdout, told.stderr


@pytest.mark.variants(2)
@pytest.mark.parametrize("name", ["boxes", "_op", "ring", "specs", "nothing", "kernel_"])
def test_private_names_are_not_attributes(name: str) -> None:
    told = python(
        f"import numpipe\ntry: numpipe.{name}\nexcept AttributeError as error: print(error)"
    )
    assert told == f"module 'numpipe' has no attribute '{name}'"
