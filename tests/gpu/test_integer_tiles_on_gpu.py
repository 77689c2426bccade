"""Register tiles of integers on the GPU: the same bits as NumPy."""

from __future__ import annotations

from tests.language.tiles.test_integer_tiles import (  # noqa: F401
    test_a_bitcast_keeps_the_bits,
    test_conversions_of_integers_are_numpys,
    test_every_operation_of_integers_is_numpys,
    test_extremes_of_negations_are_numpys,
    test_int32_wraps_where_it_is_computed_in_uint32,
    test_reductions_and_atomics_of_uint32_are_numpys,
)
