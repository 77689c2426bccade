"""Calls on a Hopper GPU: scalars with defaults and by name, outputs stored in helpers, and kernels
that share helpers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, JitRefused, ds, launch
from numpipe.kernels.planned_calls import Plan
from tests.calls import test_shared_helpers as shared
from tests.calls.test_calls import STORING, WRITTEN, A, new
from tests.kernels import jit_kernels
from tests.plan.test_asked import Config, kernel


def on_gpu(made: Any, *args: Any, **named: Any) -> Any:
    return made(*args, target="gpu", **named)


@pytest.mark.parametrize("written", WRITTEN)
def test_a_call_computes_with_its_arguments(written: str) -> None:
    write, expected = WRITTEN[written]
    c = new()
    returned = write(on_gpu, c)
    assert ((c if returned is None else returned) == expected).all()


@pytest.mark.parametrize("name", STORING)
def test_an_output_is_copied_back_wherever_it_is_stored_to(name: str) -> None:
    c = new()
    on_gpu(numpipe.kernel(STORING[name]), A, c)
    assert (c == 1).all()


SCALARS = [
    (3, 3.0),
    (True, 1.0),
    (np.bool_(False), 0.0),
    (2.5, 2.5),
    (np.int64(-7), -7.0),
    (np.uint8(200), 200.0),
    (np.float64(0.25), 0.25),
    (np.int16(-300), -300.0),
    (-(1 << 31), -2147483648.0),
]


@numpipe.kernel(out_type=lambda a: ArrayType((64, 64), np.float32))
def reports(a, c, x=0, *, y=0):
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + (x + 0.0) - (y + 0.0)


@pytest.mark.parametrize("value, expected", SCALARS, ids=lambda v: f"{type(v).__name__} {v}")
def test_a_scalar_arrives_with_its_value_and_type(value: Any, expected: float) -> None:
    assert (on_gpu(reports, A, x=value) == expected).all()
    assert (on_gpu(reports, A, y=value) == -expected).all()


def test_other_scalars_of_the_same_types_do_not_compile_again() -> None:
    made = numpipe.kernel(reports.function)
    a, c = launch.DeviceArray.from_host(A), launch.DeviceArray.from_host(new())
    for x in range(5):
        made(a, c, x, y=2 * x)
        assert (c.copy_to_host() == -x).all()
    assert (
        len(made._calls.variants)
        == sum(isinstance(known, Plan) for known in made._table.values())
        == 1
    )


@shared.every_factory
@shared.every_order
def test_each_kernel_computes_with_its_own_axes(factory: Any, order: list[tuple[str, str]]) -> None:
    expected = shared.A.astype(np.float32) @ shared.B.astype(np.float32).T
    for names in order:
        assert np.array_equal(on_gpu(factory(names), shared.A, shared.B), expected), names


@pytest.mark.parametrize("cfg", [Config(1), Config(2, "group", 56)])
def test_a_pipeline_may_set_the_number_of_warpgroups(cfg: Config) -> None:
    assert (on_gpu(kernel(), np.ones((128, 64), np.float16), cfg=cfg) == 64).all()


def test_a_kernel_that_was_warmed_up_is_called_where_calls_may_not_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPIPE_CACHE_DIR", str(tmp_path))
    x, wide = (numpipe.to_device(np.full((64, n), 3, np.float32), target="gpu") for n in (64, 65))
    with numpipe.jit("error"):
        # rows of 65 are not a multiple of 16 bytes, which an ArrayType cannot express: warmup needs
        # an array
        for args in ((x,), (wide,)):
            with pytest.raises(JitRefused):
                jit_kernels.times(*args)
        numpipe.warmup(
            [(jit_kernels.times, (ArrayType((64, 64), np.float32),)), (jit_kernels.times, (wide,))],
            workers=2,
        )
        for array in (x, wide):
            assert (jit_kernels.times(array).copy_to_host()[:, :64] == 6).all()
