"""Transforms of blocks: panels of other widths and transposed tiles, in the simulator's results and
in the TMA and wgmma descriptors."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from numpipe import BlockSpec, SpecError, SwizzleTransform, TilingTransform, TransposeTransform
from numpipe.plan.block import cut
from numpipe.plan.layout import block_layout
from tests.kernels.transform_kernels import (
    COMBINATIONS,
    WIDTHS,
    Layouts,
    check_copied,
    check_turned,
    expected,
    half_of_a_panel,
    layouts,
    operands,
    product,
)

HALF = np.dtype(np.float16)


@pytest.mark.parametrize("width, majors", COMBINATIONS)
def test_a_product_is_right_for_panels_of_every_width_and_both_major_orders(
    width: int, majors: str, target: str, again: range
) -> None:
    a, b = operands(majors)
    for _ in again:
        np.testing.assert_array_equal(
            product(a, b, to=layouts(width), target=target), expected(a, b)
        )


@pytest.mark.parametrize("width", [16, 32, 64])
def test_outputs_are_stored_from_panels_of_every_width(
    width: int, target: str, again: range
) -> None:
    for _ in again:
        check_copied(width, target=target)


@pytest.mark.parametrize("width", WIDTHS)
def test_an_output_tile_that_is_transposed_is_stored_as_its_array_lies(
    width: int, target: str, again: range
) -> None:
    for _ in again:
        check_turned(width, target=target)


@pytest.mark.variants(1, thorough=3)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("majors", ["CC", "FF"])
def test_the_tensor_maps_have_the_width_asked_for(width: int, majors: str) -> None:
    maps = product.compiled(*operands(majors), to=layouts(width)).image.maps[:2]
    rows = 128 if majors == "CC" else 64
    assert [(m.box, m.swizzle) for m in maps] == [
        ((rows, width // 2), width if width > 16 else 0)
    ] * 2


def descriptors(to: Layouts) -> set[str]:
    """Return the swizzle modes (bits 62 and 63) in the upper halves of a kernel's wgmma
    descriptors."""
    upper = re.findall(
        r"mov\.b64\s+d[ab], \{\s*low, (\d+)\s*\};", product.inspect("ptx", *operands("CC"), to=to)
    )
    return {f"{int(n) >> 30}" for n in upper}


@pytest.mark.thorough
def test_the_descriptors_have_the_width_asked_for() -> None:
    assert [descriptors(layouts(width)) for width in (128, 64, 32)] == [{"1"}, {"2"}, {"3"}]


@pytest.mark.thorough
def test_the_widest_panel_is_inferred_and_stating_it_changes_nothing() -> None:
    said = Layouts(
        (TilingTransform((8, 64)), SwizzleTransform(128)),
        (SwizzleTransform(128), TransposeTransform()),
    )
    ptx = {
        re.sub(r"_ZN\w+", "f", product.inspect("ptx", *operands("CC"), to=to))
        for to in (Layouts(), said)
    }
    assert len(ptx) == 1


def test_a_narrower_panel_may_be_cut_where_a_wide_one_cannot(target: str) -> None:
    a, b = operands("CC", 64, 64)
    np.testing.assert_array_equal(
        half_of_a_panel(a, b, target=target), expected(a[:, 32:], b[:, 32:])
    )
    layout = block_layout((64, 64), 1, HALF, "block")
    with pytest.raises(SpecError, match="in steps of 64"):
        layout.sliced(1, 32)


@pytest.mark.parametrize(
    "shape, order",
    [((64, 48), "row"), ((128, 64), "col"), ((None, 64, 32), "row"), ((64, None, 24), "col")],
)
def test_a_transposed_block_is_the_view_T_of_the_block_and_is_copied_as_that_is(
    shape: Any, order: str
) -> None:
    plain = cut(shape, HALF, len(shape), order, "zeros", "block")
    turned = cut(shape, HALF, len(shape), order, "zeros", "block", (TransposeTransform(),))
    assert turned.layout == plain.layout.T
    assert (turned.copies(0, 0, False).request, turned.contiguous, turned.axes) == (
        plain.copies(0, 0, False).request,
        plain.contiguous,
        plain.axes[::-1],
    )


@pytest.mark.parametrize(
    "dtype, tiling", [(np.float16, 16), (ml_dtypes.bfloat16, 16), (np.float32, 8), (np.int8, 32)]
)
def test_a_tiling_is_counted_in_elements(dtype: Any, tiling: int) -> None:
    layout = block_layout((64, 64), 1, np.dtype(dtype), "block", (TilingTransform((8, tiling)),))
    assert (layout.width, layout.per_panel) == (32, tiling)


F16 = "block (64, 48) of float16"
LEFT_OUT = "left out, the transforms are (TilingTransform((8, 16)), SwizzleTransform(32))"


@pytest.mark.parametrize(
    "transforms, message",
    [
        (
            (SwizzleTransform(64),),
            f"{F16} is 96 B along its contiguous dimension, which SwizzleTransform(64) does not "
            f"cut into rows of 64 B: use a multiple of 32 elements; {LEFT_OUT}",
        ),
        (
            (TilingTransform((8, 64)),),
            f"{F16} is 96 B along its contiguous dimension, which TilingTransform((8, 64)) does "
            f"not cut into rows of 128 B: use a multiple of 64 elements; {LEFT_OUT}",
        ),
        (
            (TilingTransform((8, 48)),),
            f"{F16}: TilingTransform((8, 48)) has rows of 96 B, but rows have 16 B, not swizzled, "
            f"or 32, 64 or 128 B, a swizzle's span; {LEFT_OUT}",
        ),
        (
            (TilingTransform((8, 16)), SwizzleTransform(64)),
            f"{F16}: TilingTransform((8, 16)) has rows of 32 B, but SwizzleTransform(64) ones of "
            "64 B: write TilingTransform((8, 32)), or leave one of them out",
        ),
    ],
)
def test_transforms_that_do_not_fit_the_block_are_refused_with_those_that_would(
    transforms: Any, message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        block_layout((64, 48), 1, HALF, "block (64, 48)", transforms)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: TilingTransform((16, 64)),
            "tiling must be (8, n): 8 lines, the group that is swizzled, of n elements along the "
            "contiguous dimension, got (16, 64)",
        ),
        (lambda: TilingTransform((8,)), "got (8,)"),
        (lambda: TilingTransform((8, 0)), "got (8, 0)"),
        (
            lambda: SwizzleTransform(16),
            "SwizzleTransform: swizzle must be 32, 64 or 128 bytes, got 16",
        ),
        (lambda: SwizzleTransform(True), "got True"),
        (
            lambda: TransposeTransform((0, 1)),
            "permutation must be (1, 0), because a tile has two dimensions, got (0, 1)",
        ),
        (
            lambda: BlockSpec((64, 64), tuple, transforms=SwizzleTransform(64)),
            "transforms must be a tuple of TilingTransform, SwizzleTransform and "
            "TransposeTransform, got SwizzleTransform(swizzle=64): write "
            "(SwizzleTransform(swizzle=64),)",
        ),
        (lambda: BlockSpec((64, 64), tuple, transforms=(64,)), "got (64,)"),
        (
            lambda: BlockSpec(
                (64, 64), tuple, transforms=(SwizzleTransform(64), SwizzleTransform(32))
            ),
            "transforms has 2 SwizzleTransforms, at most one is meant",
        ),
    ],
)
def test_transforms_that_cannot_be_are_refused_where_they_are_made(make: Any, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    assert message in str(caught.value)
