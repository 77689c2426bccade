"""Build the sdist and wheel of a clean tree, install them into empty environments, and use them:
``python tests/smoke.py [PYTHON …]``.

For each interpreter (default: this one), the wheel made from the sdist is installed with its
requirements and used in a folder outside of the source: a kernel is simulated, its race is found,
and on Linux it is compiled and inspected.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
USE = """
import sys
import numpy as np
import numpipe
from numpipe import ArrayType, BlockSpec, cdiv, ds

@numpipe.kernel(out_type=lambda x: ArrayType(x.shape, x.dtype))
def doubled(x, y, *, late: numpipe.Static = False):
    grid, spec = (cdiv(x.shape[1], 64),), BlockSpec((64, 64), lambda k: (0, k))
    pipe = numpipe.pipeline(grid=grid, max_concurrent_steps=2, in_specs=(spec,))
    for (k,), (tile,) in pipe(x):
        if k == 0:
            before = tile
        y[ds(0, 64), ds(k * 64, 64)] = (before if late else tile)[...] * 2.0
        before = tile

x = np.random.default_rng(0).standard_normal((64, 300)).astype(np.float32)
assert (doubled(x, target="sim") == 2 * x).all()
try:
    doubled(x, late=True, target="sim")
except numpipe.PipelineRace as race:
    assert race.report.hazard == "read-after-release"
else:
    raise AssertionError("the race was not found")
did = "simulated"
if sys.platform == "linux":
    assert "sm_90a" in doubled.inspect("ptx", x)
    did += f", compiled: {doubled.inspect('resources', x).registers} registers"
python = sys.version.split()[0]
print(f"numpipe {numpipe.__version__} on Python {python}, NumPy {np.__version__}: {did}")
"""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
    )
    if done.returncode:
        sys.exit(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout


def built(folder: Path) -> Path:
    """Return the wheel of the sdist of HEAD."""
    source = folder / "source"
    source.mkdir()
    (folder / "head.tar").write_bytes(
        subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    )
    run("tar", "-xf", folder / "head.tar", cwd=source)
    build = (
        "import sys; from setuptools import build_meta as b; getattr(b, 'build_' + "
        "sys.argv[1])(sys.argv[2])"
    )
    run(sys.executable, "-c", build, "sdist", folder, cwd=source)
    [sdist] = folder.glob("*.tar.gz")
    run("tar", "-xf", sdist, cwd=folder)
    run(
        sys.executable,
        "-c",
        build,
        "wheel",
        folder,
        cwd=folder / sdist.name.removesuffix(".tar.gz"),
    )
    return next(folder.glob("*.whl"))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = built(folder)
        for number, python in enumerate(sys.argv[1:] or [sys.executable]):
            venv = folder / f"venv{number}"
            run(python, "-m", "venv", venv)
            run(venv / "bin" / "python", "-m", "pip", "install", "--quiet", wheel)
            (folder / "use.py").write_text(USE, encoding="utf8")
            print(run(venv / "bin" / "python", folder / "use.py", cwd=folder).strip(), flush=True)


if __name__ == "__main__":
    main()
