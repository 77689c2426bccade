"""Multi-GPU kernels as PTX and SASS: ordering of accesses, sources of peers' addresses, and
findings of the build gate."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import CompilerParams, ds
from numpipe.compile.check import gate
from tests.kernels import gpu_kernels
from tests.kernels.gpu_kernels import CASES

MESH = numpipe.Mesh.simulated


def built(name: str, gpus: int = 2) -> Any:
    case = CASES[name]
    return case.kernel.compiled(*case.inputs(gpus), mesh=MESH(gpus), **case.options(gpus))


def parts(text: str, *patterns: str) -> list[int]:
    """Return where each pattern occurs after the previous one; fails if one does not."""
    at = [0]
    for pattern in patterns:
        found = re.compile(pattern).search(text, at[-1])
        assert found, f"no {pattern} behind {patterns[: len(at) - 1]}"
        at.append(found.end())
    return at[1:]


@pytest.mark.variants(0, thorough=4)
@pytest.mark.parametrize("name", CASES)
def test_the_gate_passes_kernels_of_several_gpus(name: str) -> None:
    assert gate.findings(built(name)) == ()


def test_a_signal_comes_behind_the_warpgroups_stores_and_a_wait_ahead_of_its_loads() -> None:
    ptx = built("exchanged").ptx
    parts(
        ptx,
        r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta",
        r"cp\.async\.bulk\.wait_group 0;",
        r"bar\.sync %r",
        r"elect\.sync",
        r"red\.release\.sys\.global\.add\.s32 \[",
        r"ld\.acquire\.sys\.global\.b32 seen",
        r"fence\.proxy\.async\.global;",
        r"bar\.sync %r",
    )
    memory = ptx[ptx.index("setmaxnreg.dec") :]
    parts(
        memory,
        r"ld\.acquire\.sys\.global\.b32 seen",
        r"fence\.proxy\.async\.global;",
        r"cp\.async\.bulk\.tensor\.\dd\.shared::cluster\.global",
    )
    assert ptx.count("red.release.sys.global.add.s32 [%") == 2, (
        "two signals by the compute role, and none by the memory role"
    )


def test_a_lane_that_does_nothing_else_tells_the_peers_that_the_launch_has_begun() -> None:
    for name, role in (("shift", "setmaxnreg.dec"), ("copied_by_hand", "griddepcontrol.wait")):
        ptx = built(name).ptx
        assert ptx.count("SAY: ") == 1, "one place"
        parts(
            ptx[ptx.index(role) :],
            r"red\.release\.sys\.global\.add\.s32 \[at\+-512\], 1;",
            r"ld\.acquire\.sys\.global\.b32 seen, \[begun\]",
            r"st\.release\.gpu\.global\.b32 \[own\+256\]",
        )


def test_each_wait_ends_also_without_its_value() -> None:
    for wait in re.findall(r"AGAIN: .*", built("reduce_scatter").ptx):
        bounded = "%globaltimer" in wait or ("seen, [" in wait and "setp.eq.u32" in wait)
        assert bounded, "by the clock, or by the word of one that did"


def test_the_packed_parameter_has_a_section_for_each_gpu() -> None:
    for gpus in (2, 3):
        of = built("gather_matmul", gpus)
        maps, arrays = len(of.unit.maps), len(of.unit.arrays)
        size = 128 * maps + 128 + gpus * (128 * maps + -(-8 * arrays // 128) * 128)
        assert of.unit.table_bytes == size and f".b8 {of.image.entry}_param_0[{size}]" in of.ptx
        assert (of.image.gpus, of.image.peered) == (gpus, (0,))


def test_a_mesh_too_large_for_a_launchs_parameters_is_refused() -> None:
    with pytest.raises(
        numpipe.SpecError, match=r"\d tensor maps of each of 62 GPUs take \d+ B, .* at most 32764 B"
    ):
        built("exchanged", 62)


def test_a_kernel_of_one_gpu_has_nothing_of_it() -> None:
    @numpipe.kernel(grid=1)
    def stored(y):
        y[ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), 1.0, np.float16)

    of = stored.compiled(np.zeros((64, 64), np.float16))
    assert not re.search(r"\.sys\b|np_gpus|proxy\.async\.global", of.ptx) and of.image.gpus == 0
    assert of.unit.table_bytes == 128 * len(of.unit.maps)


def test_with_debug_a_signal_also_counts_for_its_gpu() -> None:
    @numpipe.kernel(
        grid=numpipe.persistent(), semaphores=2, compiler_params=CompilerParams(debug=True)
    )
    def told(y, ready):
        numpipe.peer(y, numpipe.axis_index("gpu") + 1)[ds(0, 64), ds(0, 64)] = numpipe.full(
            (64, 64), 1.0, np.float16
        )
        numpipe.signal(ready.at[0], 0)
        numpipe.wait(ready.at[1], 1)

    of = told.compiled([np.zeros((64, 64), np.float16)] * 2, mesh=MESH(2))
    parts(of.ptx, r"red\.relaxed\.sys\.global\.add\.s32", r"red\.release\.sys\.global\.add\.s32")
    places = " ".join(of.image.places)
    assert (
        "numpipe.peer(y, rank): rank" in places
        and "the wait for ready @ test_gpus_compiled.py:" in places
    )


@pytest.mark.thorough
def test_the_gate_finds_a_signal_in_a_loop_of_products() -> None:
    @numpipe.kernel(grid=numpipe.persistent(), semaphores=1)
    def each_step(a, b, c, ready):
        pipe = numpipe.pipeline(
            grid=(a.shape[1] // 64,),
            in_specs=(
                numpipe.BlockSpec((64, 64), lambda k: (0, k)),
                numpipe.BlockSpec((64, 64), lambda k: (k, 0)),
            ),
        )
        acc = numpipe.zeros((64, 64), np.float32)
        for _, (a_tile, b_tile) in pipe(a, b):
            acc = numpipe.wgmma_wait(numpipe.wgmma(acc, a_tile, b_tile), 0)
            numpipe.signal(ready.at[0], 0)
        c[ds(0, 64), ds(0, 64)] = acc
        numpipe.wait(ready.at[0], a.shape[1] // 64)

    inputs = [
        gpu_kernels.blocks(2, 64, 256),
        gpu_kernels.blocks(2, 256, 64),
        [np.zeros((64, 64), np.float32)] * 2,
    ]
    found = gate.findings(each_step.compiled(*inputs, mesh=MESH(2)))
    assert any("a memory barrier beyond the CTA in a loop of products" in line for line in found)
