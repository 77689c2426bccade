"""Ctrl-C during each import that a simulation makes: numpipe works when it is imported again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.abuse.arguments import ROOT

IMPORTS = 344
"""at least as many modules as the program imports from numpipe"""
PROGRAM = """
import json, os, sys
import numpy as np

class Once:
    '''Raise KeyboardInterrupt in place of numpipe's import with this number.'''
    def __init__(self, number):
        self.number, self.names = number, []
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numpipe":
            self.names.append(name)
            if len(self.names) == self.number:
                raise KeyboardInterrupt

def use():
    import numpipe
    from numpipe import ops
    a = np.ones((64, 64), np.float16)
    assert (ops.copy(a, target="sim") == 1).all()
    assert (ops.matmul(a, a, target="sim") == 64).all()
    from double_kernel import double
    assert (double(a, target="sim") == 2).all() and numpipe.verify(double, a)
    assert "HBM" in str(numpipe.explain(double, a, compiled=False))

answers = {}
for number in json.loads(sys.argv[1]):
    reader, writer = os.pipe()
    if not os.fork():
        sys.meta_path.insert(0, once := Once(number))
        try:
            use()
            answer = len(once.names)
        except KeyboardInterrupt:
            try:
                use()
                answer = "used again"
            except BaseException as error:
                answer = f"{once.names[number - 1]}: {type(error).__name__}: {error}"
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    answers[number] = json.loads(os.read(reader, 1000))
    os.wait()
print(json.dumps(answers))
"""
KERNEL = """
import numpipe

block = numpipe.BlockSpec((64, 64), lambda i: (i, 0))

@numpipe.kernel(grid=1, in_specs=block, out_specs=block,
                out_type=lambda x: numpipe.ArrayType(x.shape, x.dtype))
def double(x, y):
    y[...] = x[...] + x[...]
"""
"""a module of its own, because its import is interrupted too"""


def answers(numbers: list[int], folder: Path) -> dict[str, object]:
    """Return what the program answers for each number."""
    (folder / "double_kernel.py").write_text(KERNEL, encoding="utf8")
    (script := folder / "program.py").write_text(PROGRAM, encoding="utf8")
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", script, json.dumps(numbers)],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NUMPIPE_COMPILE_CHECK": "0"},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)  # type: ignore[no-any-return]


@pytest.mark.variants(1, thorough=2)
@pytest.mark.parametrize("first", range(1, IMPORTS + 1, 5))
def test_numpipe_is_used_again_after_ctrl_c_in_an_import(first: int, tmp_path: Path) -> None:
    found = answers([*range(first, first + 5)], tmp_path)
    for number, answer in found.items():
        assert answer == "used again" or (isinstance(answer, int) and answer < int(number)), found


@pytest.mark.thorough
def test_no_import_is_left_out(tmp_path: Path) -> None:
    [count] = answers([10**6], tmp_path).values()
    assert isinstance(count, int) and 250 < count <= IMPORTS
