"""The machine code of kernels with a store role: it passes the build gate, which reports stores in
the wrong warpgroup."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest

from numpipe import ArrayType
from numpipe.compile.check import gate
from numpipe.plan.roles import COMPUTE, MEMORY
from tests.kernels.compilers import compiles
from tests.kernels.output_kernels import Config, copy
from tests.kernels.store_role_kernels import by_store_role, gemm, sums

F16, F32 = np.float16, np.float32
OF_GEMM = ArrayType((384, 256), F16), ArrayType((256, 256), F16), ArrayType((384, 256), F32)
OF_SUMS = ArrayType((256, 256), F16), ArrayType((512, 64), F32)
OF_COPY = ArrayType((256, 256), F16), ArrayType((256, 256), F16)
GEMMS: dict[str, dict[str, Any]] = {
    "tiles": {},
    "tiles by 3 warpgroups": {"wgs": 3},
    "turns": {"schedule": "pingpong", "persistent": True},
    "a cluster": {"cluster": 2, "persistent": True},
    "a profile": {"profile_space": 100, "profile_dir": "profiles"},
}


@functools.cache
def built(name: str, stores: bool = True) -> Any:
    if name in GEMMS:
        return gemm(stores, **GEMMS[name]).compiled(*OF_GEMM)
    if name == "reductions":
        return sums(stores).compiled(*OF_SUMS)
    kernel = copy(2)
    return (by_store_role(kernel) if stores else kernel).compiled(*OF_COPY, cfg=Config())


@compiles
@pytest.mark.variants(3)
@pytest.mark.parametrize("name", [*GEMMS, "reductions", "outputs"])
def test_the_gate_finds_nothing(name: str) -> None:
    made = built(name)
    assert gate.findings(made) == ()
    sass = gate.Sass(made.sass, made.unit.target)
    stores = "UTMAREDG" if name == "reductions" else "UTMASTG"
    # the memory warpgroup loads and stores; compute warpgroups do neither, and do not wait for
    # stores
    for role, held in ((MEMORY, {"UTMALDG", stores}), (COMPUTE, set())):
        opcodes = {i.opcode.partition(".")[0] for i in gate.role_code(sass, role)}
        assert opcodes & {"UTMALDG", "UTMASTG", "UTMAREDG"} == held


@compiles
@pytest.mark.parametrize("name", ["tiles", "outputs"])
def test_stores_in_the_other_warpgroup_are_found(name: str) -> None:
    """Check the code of one variant against the options of the other."""
    by_role, alone = built(name), built(name, False)
    swapped = [
        (dataclasses.replace(built_, unit=other.unit), gate.Sass(built_.sass, built_.unit.target))
        for built_, other in ((alone, by_role), (by_role, alone))
    ]
    wrong, missing = (list(gate.roles(*each)) for each in swapped)
    assert any("not the compute role's business" in line for line in wrong)
    assert "no UTMASTG or UTMAREDG in the storing role" in wrong
    assert any("not the memory role's business" in line for line in missing)
    assert "no UTMASTG or UTMAREDG in the compute role" in missing
