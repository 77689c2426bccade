"""What is installed, and what an import costs."""

from __future__ import annotations

import ast
import configparser
import importlib.metadata
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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
    """What `code` prints in an interpreter of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


# ---- requirements
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("extra", ["", "test", "plot", "bench", "tune", "docs", "dev"])
def test_cuda_wheels_are_asked_for_only_where_they_exist(machine: str, extra: str) -> None:
    markers, cuda = MACHINES[machine]
    required = {r.name for r in map(Requirement, importlib.metadata.requires("numpipe") or [])
                if r.marker is None or r.marker.evaluate({**markers, "extra": extra})}
    assert {"numpy", "ml_dtypes", "greenlet"} <= {name.replace("-", "_") for name in required}
    assert required & CUDA == cuda
    assert cuda or not any(name.startswith("nvidia-cuda") for name in required)


def test_numba_cuda_is_pinned_to_the_series_its_internals_are_known_of() -> None:
    specifiers = {r.name: r.specifier for r in map(Requirement, importlib.metadata.requires("numpipe") or [])}
    assert specifiers["numba-cuda"].contains("0.30.2") and not specifiers["numba-cuda"].contains("0.31.0")
    assert [specifiers["numpy"].contains(version) for version in ("2.4.6", "2.5.2", "3.0")] == [True, True, False]


# ---- what the wheel holds
@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files in a wheel built from a clean copy of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    names = tree.stdout.split() if tree.returncode == 0 else [
        str(p.relative_to(ROOT)) for top in ("numpipe", "intrinsics") for p in (ROOT / top).rglob("*.py")
    ] + ["numpipe/py.typed", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"]
    for name in names:
        if (ROOT / name).is_file():
            (folder / "src" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "src" / name).write_bytes((ROOT / name).read_bytes())
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=folder / "src", check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        return set(archive.namelist())


def test_wheel_holds_every_module_and_its_types(wheel: set[str]) -> None:
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "numpipe").rglob("*.py")}
    modules |= {f"numpipe/intrinsics/{p.name}" for p in (ROOT / "intrinsics").glob("*.py")}
    assert modules | {"numpipe/py.typed"} <= wheel


def test_wheel_adds_nothing_but_numpipe(wheel: set[str]) -> None:
    version = options()["metadata"]["version"]
    assert {name.split("/")[0] for name in wheel} == {"numpipe", f"numpipe-{version}.dist-info"}
    assert any(name.endswith("LICENSE") for name in wheel)


def test_intrinsics_are_imported_from_numpipe() -> None:
    assert Path(python("import numpipe.intrinsics as i; print(i.__file__)")).parent == ROOT / "intrinsics"


# ---- imports
def test_import_is_lazy() -> None:
    heavy = {"numba", "llvmlite", "cuda.bindings", "cuda.core", "greenlet", "torch", "matplotlib"}
    assert python(f"import sys, numpipe; print({heavy} & sys.modules.keys())") == "set()"


def test_only_one_package_imports_numba_and_llvmlite() -> None:
    """A change of numpipe's backend is a change of one folder; siblings named _cuda reach Numba through it."""
    importers = set()
    for file in [*(ROOT / "numpipe").rglob("*.py"), *(ROOT / "intrinsics").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else \
                [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            if any(name.split(".")[0] in ("numba", "llvmlite") for name in names):
                importers.add(str(file.relative_to(ROOT).parent))
    assert importers == {"numpipe/_numba"}


# ---- layers
LAYERS = (
    {"hazards", "reports"}, {"deadlocks"}, {"errors", "_frames", "_source"}, {"_log"}, {"_undisturbed"},
    {"_machine", "_op", "_numba"}, {"intrinsics"},
    {"specs", "trees", "params", "transforms", "_layout", "_block", "_cluster", "_format"}, {"allocations", "_budget"},
    {"_plans", "_schedule", "_axes", "_watch", "_profile"}, {"_unit"}, {"inert"}, {"context", "division", "approximate"}, {"arith"},
    {"refs", "numbers", "lanes", "multicast", "debug", "profiling", "functions", "closure",
     "order_tokens"}, {"fragment"}, {"schedule_fences"},
    {"ring", "chains", "turns", "orders"}, {"store_ring", "steps", "outputs", "number_ring"}, {"tile_scheduler"},
    {"shared", "views", "boxes", "programs", "snake"}, {"phases", "registers"}, {"copies"},
    {"barriers", "single"}, {"store", "load", "atomics", "pipelines", "tile_loop", "per_lane"}, {"splits"},
    {"partials", "reduce_scatter"}, {"emit"}, {"emit_single"}, {"traces"},
    {"sim", "compile"}, {"simulate", "launch", "shapes", "arguments"}, {"options", "tiled"},
    {"results", "targets", "repeats", "bound"}, {"definition"}, {"variants"}, {"calls"}, {"kernels"},
    {"_fresh"}, {"verification"}, {"testing"}, {"model"}, {"bench"}, {"tune"}, {"__init__", "__main__"},
)


def layer(module: str) -> int:
    top = module.removesuffix("_cuda")
    found = [i for i, names in enumerate(LAYERS) if top in names]
    assert found, f"numpipe.{module} has no place in the layers: docs/architecture.md, LAYERS"
    return found[0]


def imports(file: Path) -> set[str]:
    """Top-level modules of numpipe that a file imports when it is imported itself."""
    relative = file.relative_to(ROOT)
    package = list(relative.parent.parts) if relative.parts[0] == "numpipe" else ["numpipe", *relative.parent.parts]
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf8")).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[:len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
            found |= {base[1]} if len(base) > 1 else {alias.name for alias in node.names}
    return found


def modules() -> dict[str, list[Path]]:
    """Top-level modules and packages of numpipe and their files; a module's CUDA meaning belongs to it."""
    found: dict[str, list[Path]] = {"intrinsics": list((ROOT / "intrinsics").glob("*.py"))}
    for file in (ROOT / "numpipe").rglob("*.py"):
        found.setdefault(file.relative_to(ROOT / "numpipe").parts[0].removesuffix(".py").removesuffix("_cuda"), []).append(file)
    return {name: files for name, files in found.items() if not name.startswith("__")}


def test_the_page_of_the_architecture_lists_every_module_and_imports_go_up_its_list() -> None:
    block = (ROOT / "docs" / "architecture.md").read_text(encoding="utf8").partition("## Layers")[2].partition("\n## ")[0]
    known, rows = modules(), {}
    for number, line in enumerate(block.splitlines()):
        if line.startswith("    ") and not line.startswith("     "):
            rows |= {name: number for name in re.split("/? {2,}|/$", line.strip()) if name in known}
    assert rows.keys() == known.keys()
    below = {(name, used) for name, files in known.items() for file in files for used in map(plain, imports(file))
             if rows.get(used, 0) > rows[name]}
    assert not below


def plain(module: str) -> str:
    return module.removesuffix("_cuda")


def test_imports_go_up_the_layers_only() -> None:
    wrong = []
    for file in [*(ROOT / "numpipe").rglob("*.py"), *(ROOT / "intrinsics").glob("*.py")]:
        parts = file.relative_to(ROOT).with_suffix("").parts
        own = parts[1] if parts[0] == "numpipe" else "intrinsics"
        wrong += [f"{'/'.join(parts)} imports {name}" for name in imports(file) - {own} if layer(name) > layer(own)]
    assert not wrong
