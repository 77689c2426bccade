"""Tiles of any shape, in no layout by name, on the GPU: the tests of the simulator."""

from __future__ import annotations

from tests.language.tiles.test_every_shape import (  # noqa: F401
    test_elements_of_16_bits_are_numbers,
    test_full_and_zeros_are_carried_over_a_loop,
    test_layer_norm_without_layouts,
    test_reductions_and_arithmetic,
    test_running_maxima_of_rows_without_layouts,
    test_shared_memory_gathers_and_scatters,
    test_sums_and_scans,
    test_tiles_and_vectors_meet_in_any_layouts,
    test_top_k_and_softmax_of_rows_without_layouts,
    test_top_k_partial_sums_and_strips,
)

PROCESSES = 4
