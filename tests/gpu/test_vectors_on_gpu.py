"""Blocks and shared arrays of one dimension on the GPU."""

from __future__ import annotations

from tests.language.tiles.test_vectors import (  # noqa: F401
    test_a_lane_reads_elements_of_a_vector,
    test_a_pipeline_of_vectors_reads_zeros_after_the_array_and_clips_its_stores,
    test_a_shared_vector_is_copied_read_and_written_by_hand,
    test_parts_of_a_vector_start_anywhere,
)
