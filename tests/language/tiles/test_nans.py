"""``check_nan=True``: each stored NaN is reported with its line and element, when simulated and
when compiled."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

import numpipe
from gemm import matmul
from numpipe import CompilerParams, SimulationError, SpecError, ds
from numpipe.launch.debug_reports import failure
from numpipe.plan.wait_records import NAN, Record
from tests.kernels.nan_kernels import PLACES, STORES, given


def unchecked(kernel: Any) -> Any:
    params = kernel.options.compiler_params.replace(check_nan=False)
    return numpipe.Kernel(
        kernel.function, dataclasses.replace(kernel.options, compiler_params=params)
    )


@pytest.mark.parametrize("name", STORES)
def test_simulated_a_nan_is_reported_with_its_element_and_its_line(name: str) -> None:
    kernel, (target, place) = STORES[name], PLACES[name]
    kernel.simulate(*given(name, nan=False))
    says = rf"nan_kernels\.py:\d+: kernel {name}: '{target} = …' stores a NaN{place}: look for"
    with pytest.raises(SimulationError, match=says) as caught:
        kernel.simulate(*given(name))
    assert caught.value.report is not None and caught.value.report.hazard == "nan-stored"
    unchecked(kernel).simulate(*given(name))


@pytest.mark.variants(1, thorough=4)
@pytest.mark.parametrize("name", STORES)
def test_compiled_each_store_has_its_record_and_without_the_option_none(name: str) -> None:
    kernel = STORES[name]
    records = r"mov\.u32 word, 6; st\.volatile\.global\.u32 \[at\], word;"
    built = kernel.compiled(*given(name))
    target = PLACES[name][0].replace("\\", "")
    assert len(re.findall(records, built.ptx)) == 1
    assert any(
        re.fullmatch(rf"{re.escape(target)} @ nan_kernels\.py:\d+", place)
        for place in built.image.places
    )
    assert not re.findall(records, unchecked(kernel).compiled(*given(name)).ptx)


def test_a_record_names_the_first_element_of_the_first_cta_and_counts_the_others() -> None:
    image = STORES["to_an_array"].compiled(*given("to_an_array")).image
    number = next(n for n, place in enumerate(image.places) if place.startswith("y[…] @"))
    found = [
        Record(0, (x, 0, 0), 1, number, row, 2 << 32 | column, NAN)
        for x, row, column in ((1, 0, 0), (0, 40, 9), (0, 40, 8), (0, 40, 8))
    ]
    error = failure(image, found, True)
    assert (
        isinstance(error, SimulationError)
        and error.report is not None
        and error.report.hazard == "nan-stored"
    )
    assert re.match(
        r"nan_kernels\.py:\d+: kernel to_an_array: 'y\[…\] = …' stores a NaN, element \(40, 8\) "
        r"of the tile, in warpgroup 0 of CTA \(0, 0, 0\), and 2 more: look for",
        str(error),
    )


def test_the_nan_check_does_not_change_a_product() -> None:
    params = CompilerParams(debug=True, check_nan=True)
    checked = numpipe.Kernel(
        matmul.function, dataclasses.replace(matmul.options, compiler_params=params)
    )
    a = np.random.default_rng(0).standard_normal((128, 128), np.float32).astype(np.float16)
    np.testing.assert_array_equal(checked(a, a, target="sim"), matmul(a, a, target="sim"))
    a[5, 7] = np.inf
    a[6] = 0
    with pytest.raises(
        SimulationError,
        match=r"gemm\.py:\d+: kernel matmul: 'c\[…\] = …' stores a NaN, element \(5, 6\) of the",
    ):
        checked(a, a, target="sim")


def test_the_check_is_a_part_of_debug() -> None:
    with pytest.raises(SpecError, match="check_nan=True needs debug=True.*fix:"):
        CompilerParams(check_nan=True)


def test_integers_and_masks_are_not_looked_at() -> None:
    @numpipe.kernel(compiler_params=CompilerParams(debug=True, check_nan=True))
    def counts(y):
        y[ds(0, 64), ds(0, 64)] = numpipe.iota((64, 64), 1)

    y = np.zeros((64, 64), np.int32)
    counts.simulate(y)
    assert (
        not [place for place in counts.compiled(y).image.places if place.startswith("y[")]
        and y[0, 3] == 3
    )
