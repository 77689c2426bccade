"""Invalid compiler parameters of kernels, and invalid transforms of their blocks."""

from __future__ import annotations

from numpipe import SpecError, SwizzleTransform, TransposeTransform
from tests.kernels.refusals import Cases

SWIZZLED = (SwizzleTransform(128), TransposeTransform())
refused = Cases(SWIZZLED=SWIZZLED)

# transforms
refused(
    "a_swizzle_that_is_none",
    """
    spec = BlockSpec((64, 64), lambda k: (0, k), transforms=(SwizzleTransform(256),))
    #                                                        ^^^^^^^^^^^^^^^^^^^^^
""",
    "SwizzleTransform: swizzle must be 32, 64 or 128 bytes, got 256",
    kind=SpecError,
    fix={"256": "128"},
)
refused(
    "a_swizzle_of_run_time",
    """
    spec = BlockSpec((64, 64), lambda k: (0, k), transforms=(SwizzleTransform(a.shape[0]),))
    #                                                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "SwizzleTransform: swizzle must be a compile-time constant, not a run-time int32: pass a "
    "literal, a constant of the module or a Static field",
    kind=SpecError,
    fix={"a.shape[0]": "128"},
)
refused(
    "a_tiling_of_64_lines",
    """
    spec = BlockSpec((64, 64), lambda k: (0, k), transforms=(TilingTransform((64, 8)),))
    #                                                        ^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "TilingTransform: tiling must be (8, n): 8 lines, the group that is swizzled, of n "
    "elements along the contiguous dimension, got (64, 8)",
    kind=SpecError,
    fix={"((64, 8))": "((8, 64))"},
)
refused(
    "a_transpose_of_three_dimensions",
    """
    spec = BlockSpec((64, 64), lambda k: (0, k), transforms=(TransposeTransform((1, 0, 2)),))
    #                                                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "TransposeTransform: permutation must be (1, 0), because a tile has two dimensions, got "
    "(1, 0, 2)",
    kind=SpecError,
    fix={"(1, 0, 2)": "(1, 0)"},
)
refused(
    "a_number_for_a_transform",
    """
    spec = BlockSpec((64, 64), lambda k: (0, k), transforms=(128,))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "BlockSpec: transforms must be a tuple of TilingTransform, SwizzleTransform and "
    "TransposeTransform, got (128,)",
    kind=SpecError,
    fix={"(128,)": "(SwizzleTransform(128),)"},
)
refused(
    "a_swizzle_wider_than_the_block",
    """
    spec = BlockSpec((64, 32), lambda k: (0, k), transforms=SWIZZLED)
    for _, (x,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
    #              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    ", pipeline at {file}:{line}: in_specs[0] for 'a': block (64, 32) of float16 is 64 B "
    "along its contiguous dimension, which SwizzleTransform(128) does not cut into rows of "
    "128 B: use a multiple of 64 elements; left out, the transforms are (TilingTransform((8, "
    "32)), SwizzleTransform(64))",
    kind=SpecError,
    fix={"(64, 32)": "(64, 64)"},
)
refused(
    "a_tiling_and_a_swizzle_that_disagree",
    """
    both = (TilingTransform((8, 64)), SwizzleTransform(64))
    spec = BlockSpec((64, 64), lambda k: (0, k), transforms=both)
    for _, (x,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
    #              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    ", pipeline at {file}:{line}: in_specs[0] for 'a': block (64, 64) of float16: "
    "TilingTransform((8, 64)) has rows of 128 B, but SwizzleTransform(64) ones of 64 B: "
    "write TilingTransform((8, 32)), or leave one of them out",
    kind=SpecError,
    fix={"(8, 64)": "(8, 32)"},
)
