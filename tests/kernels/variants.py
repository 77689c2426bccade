"""Tests of compiled code that run with ``-m soak``: each has a sibling, of other parameters, that runs each time.

Compiling is what the default run spends its minutes on. The simulated tests of all variants run always, and so do those on a GPU.
"""

import pytest

COLLECTED = pytest.StashKey[set[str]]()
"""those of them that this run has met, in the stash of its `pytest.Config`"""
VARIANTS = frozenset({
    "test_auto_barriers.py::test_the_machine_code_loses_just_these_barriers_and_fences[in_place-2-0]",
    "test_auto_barriers.py::test_the_machine_code_loses_just_these_barriers_and_fences[sent-2-1]",
    "test_auto_barriers.py::test_the_machine_code_loses_just_these_barriers_and_fences[turned-2-0]",
    "test_clusters.py::test_the_code_of_a_cluster_of_one_has_nothing_of_clusters",
    "test_clusters.py::test_the_code_passes_the_gate_and_releases_without_a_fence[Config(along_m=1, along_n=2, tm=128, tn=192, "
    "tk=64, slots=4, schedule='pingpong')]",
    "test_clusters.py::test_the_code_passes_the_gate_and_releases_without_a_fence[Config(along_m=4, along_n=1, tm=64, tn=256, "
    "tk=64, slots=5, schedule='pingpong')]",
    "test_compiler_params.py::test_what_a_block_says_comes_before_its_pipeline_and_that_before_the_kernel[body-2]",
    "test_compiler_params.py::test_what_a_block_says_comes_before_its_pipeline_and_that_before_the_kernel[single-1]",
    "test_drain.py::test_the_code_has_more_waits_and_passes_the_gate[unequal]",
    "test_example_batched_gemm.py::test_it_passes_the_build_gate[bfloat16-Config(tm=128, tn=128, tk=64, slots=4)]",
    "test_example_batched_gemm.py::test_it_passes_the_build_gate[float16-Config(tm=128, tn=256, tk=64, slots=3)]",
    "test_example_copy.py::test_it_passes_the_build_gate[float16]",
    "test_example_attention_ladder.py::test_the_build_gate_passes[overlapped]",
    "test_example_attention_ladder.py::test_the_build_gate_passes[serial]",
    "test_example_attention_ladder.py::test_the_build_gate_passes[persistent]",
    "test_example_attention_ladder.py::test_the_build_gate_passes[two warpgroups]",
    "test_example_gemm_ladder.py::test_the_build_gate_passes[eviction policy]",
    "test_example_gemm_ladder.py::test_the_build_gate_passes[grouped tiles]",
    "test_example_gemm_ladder.py::test_the_build_gate_passes[larger tile]",
    "test_example_gemm_ladder.py::test_the_build_gate_passes[persistent]",
    "test_example_gemm_ladder.py::test_the_build_gate_passes[ping-pong]",
    "test_example_gemm_ladder.py::test_the_build_gate_passes[slots]",
    "test_example_gemm_ladder.py::test_the_build_gate_passes[store panels]",
    "test_functions.py::test_a_ring_in_a_helper_continues[1]",
    "test_lane_bodies.py::test_tiles_that_lanes_write_are_stored_by_the_pipeline[int32]",
    "test_memory_thread.py::test_the_code_asks_for_that_warpgroup_and_passes_the_gate[1]",
    "test_output_code.py::test_it_passes_the_build_gate[alone, 3 slots]",
    "test_output_code.py::test_it_passes_the_build_gate[copy float32]",
    "test_profiling.py::test_a_profile_is_in_the_code_where_it_is_asked_for_and_nowhere_else[gemm_single]",
    "test_random_pipelines.py::test_chosen_plans_pass_the_build_gate[nested, steered, delayed]",
    "test_shared_helpers.py::test_each_kernel_has_its_own_options_in_the_helpers[m n first-nested functions]",
    "test_single.py::test_nested_pipelines_compile_clean[in_a_single_loop]",
    "test_single.py::test_the_machine_code_is_clean_and_products_stay_in_flight[body-False-0]",
    "test_steps.py::test_passes_the_build_gate[one behind]",
    "test_watch.py::test_debug_bounds_every_wait_and_jitter_precedes_every_transition[gemm_single]",
    "test_output_code.py::test_a_step_has_one_barrier_where_there_are_slots[2-1]",
    "test_output_code.py::test_it_passes_the_build_gate[nested]",
    "test_random_pipelines.py::test_chosen_plans_pass_the_build_gate[three warpgroups, one operand, output by columns]",
    "test_register_tiles.py::test_a_picture_as_png_has_the_cells_of_the_lanes",
    "test_single.py::test_nested_pipelines_compile_clean[unequal]",
    "test_single.py::test_the_machine_code_is_clean_and_products_stay_in_flight[loop-False-1]",
    "test_steps.py::test_passes_the_build_gate[no two alike]",
    "test_half_tiles.py::test_two_elements_are_one_instruction_and_nothing_is_widened[float16]",
    "test_register_access.py::test_tiles_are_reduced_by_tma_and_the_rest_by_the_lanes",
    "test_wgmma_forms.py::test_a_number_of_columns_compiled[56]",
    "test_element_types.py::test_the_gate_finds_nothing_in_conversions[uint8]",
    "test_element_types.py::test_the_machine_code_of_a_product_is_that_of_its_types_and_the_gate_finds_nothing["
    "float8_e5m2 x float8_e4m3fn]",
    "test_element_types.py::test_the_machine_code_of_a_product_is_that_of_its_types_and_the_gate_finds_nothing[uint8 x int8]",
    "test_emit.py::test_passes_the_build_gate[gemm_coroutine]",
    "test_emit.py::test_passes_the_build_gate[gemm_functions]",
    "test_example_batched_gemm.py::test_it_passes_the_build_gate[bfloat16-Config(tm=128, tn=256, tk=64, slots=3)]",
    "test_example_copy.py::test_it_passes_the_build_gate[float32]",
    "test_transforms.py::test_the_tensor_maps_have_the_width_asked_for[CC-16]",
    "test_transforms.py::test_the_tensor_maps_have_the_width_asked_for[CC-64]",
    "test_transforms.py::test_the_tensor_maps_have_the_width_asked_for[FF-32]",
    "test_transforms.py::test_the_tensor_maps_have_the_width_asked_for[FF-128]",
})
