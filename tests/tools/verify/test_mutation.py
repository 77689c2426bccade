"""`numpipe.testing.mutate`: which synchronizations of a kernel no schedule misses."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, ds
from numpipe.__main__ import main
from numpipe.errors import PipelineRace, SpecError
from numpipe.sim.warpgroup import Warpgroup
from numpipe.testing import Mutation, Place, mutate
from numpipe.tools.verify import mutation
from numpipe.tools.verify.mutation import CHANGES, LEFT_OUT, LOOP, SYNCHRONISES
from tests.kernels import gpu_kernels
from tests.kernels.kernels_for_tests import Config, gemm, operands

CFG = Config(64, 64, 64, 2)


@numpipe.kernel(grid=1)
def differences(x, y, *, late: numpipe.Static = 1):
    """Compute y[t] = x[t] - x[t - 1], with a block that is kept for a step."""
    pipe = numpipe.pipeline(
        grid=(x.shape[0],),
        max_concurrent_steps=3,
        delay_release=late,
        in_specs=(BlockSpec((None, 64, 64), lambda t: (t, 0, 0)),),
    )
    for (t,), (tile,) in pipe(x):
        if t == 0:
            before = tile
        y[t, ds(0, 64), ds(0, 64)] = tile[...] - before[...]
        before = tile


def frames(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).standard_normal((count, 64, 64)).astype(np.float32), np.zeros(
        (count, 64, 64), np.float32
    )


@functools.cache
def mutants_of_differences() -> Mutation:
    """Return the mutants of `differences`, for several tests."""
    return mutate(differences, *frames(5), schedules=2)


def of(found: Mutation, operation: str, change: str = LEFT_OUT) -> list[str]:
    return [
        mutant.by
        for mutant in found.mutants
        if (mutant.place.operation, mutant.change) == (operation, change)
    ]


def test_inputs_that_come_to_everything_leave_no_mutant() -> None:
    a, b = operands(192, 64, 320)
    found = mutate(gemm(1, ctas=1), a, b, cfg=CFG, schedules=4)
    assert found, str(found)
    found.raise_if_survived()
    assert {mutant.place.name for mutant in found.redundant} == {
        "setmaxnreg.inc < kernels.simulate.run_role",
        f"wgmma_wait < tiles.mma.wgmma_wait < {LOOP}",
    }
    assert set(of(found, "mbar_init_at_entry", "one arrival more")) == {"deadlock"}
    assert set(of(found, "mbar_init_at_entry", "one arrival fewer")) == {"too-many-arrivals"}
    assert set(of(found, "mbar_wait", "for the phase before")) <= {
        "wrong-phase",
        "read-before-ready",
        "refill-before-release",
    }
    assert set(of(found, "mbar_arrive_expect_tx", "16 bytes too few")) == {"wrong-expect-tx"}
    assert f"kernel matmul: {len(found.mutants)} mutants" in str(found) and "0 survived" in str(
        found
    )


def test_with_one_tile_the_order_with_the_next_one_survives_mutation() -> None:
    a, b = operands(64, 64, 64)
    found = mutate(gemm(1, ctas=1), a, b, cfg=CFG, schedules=2)
    names = [mutant.place.name for mutant in found.survivors]
    assert any("store_ring.await_staging" in name for name in names) and any(
        "release" in name for name in names
    )
    with pytest.raises(
        AssertionError,
        match=r"kernels_for_tests\.py:\d+: bulk_wait, left out: survived: the operation is not "
        "needed, or the",
    ):
        found.raise_if_survived()


def test_each_mutant_names_the_line_that_led_to_it() -> None:
    found = mutants_of_differences()
    source = Path(__file__).read_text(encoding="utf8").splitlines()
    loop, store = (
        next(
            f"{Path(__file__).name}:{n}"
            for n, line in enumerate(source, 1)
            if line.strip().startswith(text)
        )
        for text in ("for (t,), (tile,)", "y[t, ds(")
    )
    by_line = {(mutant.place.operation, mutant.line) for mutant in found.mutants}
    assert {
        ("mbar_wait", loop),
        ("mbar_arrive", loop),
        ("bulk_commit", store),
        ("fence_proxy_async", store),
    } <= by_line
    here = CHANGES.keys() - {"semaphore_wait"}  # of kernels of several GPUs
    assert {mutant.change for mutant in found.mutants} == {
        LEFT_OUT,
        *(change for name in here for change in CHANGES[name]),
    }


def test_signals_and_waits_of_several_gpus_have_mutants_too() -> None:
    found = mutate(
        gpu_kernels.exchanged,
        gpu_kernels.blocks(2, 64, 64),
        mesh=numpipe.Mesh.simulated(2),
        schedules=2,
    )
    missed = {(mutant.place.operation, mutant.change) for mutant in found.mutants if mutant.by}
    assert {
        ("semaphore_signal", LEFT_OUT),
        ("semaphore_wait", LEFT_OUT),
        ("semaphore_wait", "for one less"),
        ("gpu_begin", LEFT_OUT),
        ("gpu_await_begin", LEFT_OUT),
        ("fence_proxy_async_global", LEFT_OUT),
    } <= missed


def test_a_kernel_without_products_has_none_to_wait_for() -> None:
    found = mutants_of_differences()
    [rule] = {mutant.rule for mutant in found.redundant if mutant.place.operation == "wgmma_wait"}
    assert "the kernel has none" in rule


def test_a_wrong_kernel_is_not_mutated() -> None:
    with pytest.raises(PipelineRace, match="may still be writing|released"):
        mutate(differences, *frames(6), late=0, schedules=6)
    with pytest.raises(
        SpecError, match=r"kernel differences: mutate: schedules must be an int of 1…1000000, got 0"
    ):
        mutate(differences, *frames(2), schedules=0)


def test_arrays_and_the_machine_are_left_as_they_were() -> None:
    methods = {name: getattr(Warpgroup, name) for name in SYNCHRONISES}
    x, y = frames(4)
    kept = x.copy(), y.copy()
    mutate(differences, x, y, schedules=1)
    assert np.array_equal(x, kept[0]) and np.array_equal(y, kept[1])
    assert all(getattr(Warpgroup, name) is method for name, method in methods.items())


def test_a_changed_result_is_detected_and_an_edit_without_effect_is_not_a_mutant() -> None:
    class Given:
        def run(self, call: object, schedule_seed: int | None) -> dict[str, np.ndarray]:
            return {"y": np.full(3, 7)}

    kernel, place = SimpleNamespace(simulate=None), Place("mbar_wait", ())
    for wanted, told in ((0, "other result"), (7, None)):
        assert (
            mutation._told(
                kernel, Given(), place, lambda args: None, {None: {"y": np.full(3, wanted)}}
            )
            == told
        )  # type: ignore[arg-type]


def test_the_command_line_prints_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    found = mutants_of_differences()
    status = main(
        [
            "mutate",
            f"{__name__}:differences",
            "float32[5, 64, 64], y=float32[5, 64, 64]",
            "--schedules",
            "2",
        ]
    )
    told = capsys.readouterr().out
    assert status == int(not found) and told.startswith(
        f"kernel differences: {len(found.mutants)} mutants: "
    )
    assert main(["mutate", f"{__name__}:differences", "float32[5, 64, 64]"]) == 1
    assert "differences" in capsys.readouterr().err
