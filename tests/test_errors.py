"""Bad kernels: a numpipe error in both executions, at the user's line, with what was expected, what was found and the mend."""
# ruff: noqa: F841 (kernels that are wrong on purpose)

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from launch_fakes import CudaArray
from refusals import A, B, C, Case, Cases

import numpipe
from numpipe import BlockSpec, SpecError, ds, launch

refused = Cases()
BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture(autouse=True)
def _each_execution_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


# ---- shapes and types of products and stores -----------------------------------------------------------------------
@refused("both be float16 or both bfloat16, got float32 and float32", kind=SpecError, args=(A.astype("f4"), B.astype("f4"), C))
def a_product(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))))
    for (k,), (x, y) in pipe(a, b):
        acc = numpipe.wgmma(acc, x, y.T)  # <-


refused.also(a_product, "got int8 and int8", kind=SpecError, args=(A.astype(np.int8), B.astype(np.int8), C))
refused.also(a_product, "got float16 and bfloat16", kind=SpecError, args=(A, B.astype(BF16), C))


@refused("a (64, 32) has K = 32, b (64, 32) has K = 64", "use b_tile.T", kind=SpecError)
def a_product_without_the_transpose(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 32), lambda k: (0, k)), BlockSpec((64, 32), lambda k: (0, k))))
    for (k,), (x, y) in pipe(a, b):
        acc = numpipe.wgmma(acc, x, y)  # <-


@refused("the accumulator is (64, 128), but a (64, 64) x b (64, 64) gives (64, 64)", kind=SpecError)
def an_accumulator_of_another_shape(a, b, c):
    acc = numpipe.zeros((64, 128), np.float32)
    pipe = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))))
    for (k,), (x, y) in pipe(a, b):
        acc = numpipe.wgmma(acc, x, y.T)  # <-


@refused("acc is a register tile, a and b are shared-memory tiles of a pipeline", kind=SpecError)
def a_product_of_numbers(a, b, c):
    acc = numpipe.wgmma(numpipe.zeros((64, 64), np.float32), 1, 2)  # <-


@refused("accumulators are float32, got float16: use .astype afterwards", kind=SpecError)
def zeros_of_float16(a, b, c):
    acc = numpipe.zeros((64, 64), np.float16)  # <-


@refused("(64 x j, 8 x i) with at most 256 columns", "got (65, 64)", kind=SpecError)
def zeros_of_65_rows(a, b, c):
    acc = numpipe.zeros((65, 64), np.float32)  # <-


@refused("zeros: shape must be a compile-time constant, not a run-time", "pass a literal, a constant of the module or a Static "
         "field", kind=SpecError)
def zeros_of_a_run_time_shape(a, b, c):
    acc = numpipe.zeros((a.shape[0], 64), np.float32)  # <-


@refused("the array is float32, the tile float16: store tile.astype(c.dtype)", kind=SpecError)
def a_store_of_another_type(a, b, c):
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32).astype(np.float16)  # <-


@refused("'c[…] = tile': the index selects (128, 64), the tile is (64, 64)", kind=SpecError)
def a_store_of_another_shape(a, b, c):
    c[ds(0, 128), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)  # <-


@refused("'c[…] = tile': the array has 3 dimensions, tiles are stored to 2-D arrays", kind=SpecError,
         args=(A, B, np.zeros((2, 64, 64), np.float32)))
def a_store_to_three_dimensions(a, b, c):
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)  # <-


@refused("'c[…] = value': the value must be a register tile, got float", kind=SpecError)
def a_store_of_a_number(a, b, c):
    c[ds(0, 64), ds(0, 64)] = 1.0  # <-


@refused("array 'c' is indexed by two of ds(start, size) and ':'", kind=SpecError)
def a_store_of_an_element(a, b, c):
    c[0, 0] = numpipe.zeros((64, 64), np.float32)  # <-


@refused("':' has no compile-time size here; use ds(start, size)", kind=SpecError)
def a_store_to_a_whole_dimension(a, b, c):
    c[ds(0, 64), :] = numpipe.zeros((64, 64), np.float32)  # <-


@refused("array 'c' is read through a pipeline (BlockSpec)", "only 'c[…] = tile'", kind=SpecError)
def an_array_read_in_place(a, b, c):
    c[ds(0, 64), ds(0, 64)] += numpipe.zeros((64, 64), np.float32)  # <-


@refused("a shared-memory tile is read by wgmma only", "tile.at[…]", kind=SpecError)
def an_element_of_a_tile(a, b, c):
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        y = x[0, 0]  # <-


@refused("a tile of a pipeline is read-only", kind=SpecError)
def a_store_to_a_tile(a, b, c):
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        x[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)  # <-


@refused("ds(start, 12) along axis 0 of a tile (64, 64)", "a multiple of 8 and at most 64", kind=SpecError)
def a_view_that_splits_the_swizzle(a, b, c):
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        y = x.at[ds(0, 12), :]  # <-


@refused("a tile is indexed by two of ds(start, size) and ':'", kind=SpecError)
def a_view_of_one_dimension(a, b, c):
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        y = x.at[ds(0, 64)]  # <-


# ---- blocks, rings, budgets ----------------------------------------------------------------------------------------
@refused("block_shape (64, 512) has a side outside 1…256 elements, the limit of a TMA box: split the block", kind=SpecError)
def a_block_wider_than_a_box(a, b, c):
    spec = BlockSpec((64, 512), lambda k: (0, k))  # <-


@refused("in_specs[0] for 'a': block (64, 4) of float16 is 8 B along its contiguous dimension 1", "multiples of 16 B",
         "a multiple of 8 elements", kind=SpecError)
def a_block_of_8_bytes(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 4), lambda k: (0, k)),))
    for (k,), (x,) in pipe(a):  # <-
        pass


@refused("in_specs[1] for 'b': block_shape (64, 64, 64) has 3 dimensions, the array has 2", kind=SpecError)
def a_block_of_another_rank(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(
        BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64, 64), lambda k: (0, k, 0))))
    for (k,), (x, y) in pipe(a, b):  # <-
        pass


@refused("block_shape must be a compile-time constant, not a run-time", "a Static field", kind=SpecError)
def a_block_of_run_time_size(a, b, c):
    spec = BlockSpec((a.shape[0], 64), lambda k: (0, k))  # <-


@refused("1024 barriers + 8 slots x 32768 = 262144 (a @ test_errors.py:", "= 263168 B, but a CTA has 232448 B", "use fewer slots",
         kind=SpecError)
def slots_beyond_shared_memory(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), max_concurrent_steps=8, in_specs=(BlockSpec((256, 64), lambda k: (0, k)),))
    for (k,), (x,) in pipe(a):  # <-
        pass


@refused("1 warpgroups x 8 store slots x 8192 = 65536", "but a CTA has 232448 B", "fewer store_slots", kind=SpecError,
         compiler_params=numpipe.CompilerParams(store_slots=8))
def staging_beyond_shared_memory(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), max_concurrent_steps=6, in_specs=(BlockSpec((256, 64), lambda k: (0, k)),))
    for (k,), (x,) in pipe(a):
        pass
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)  # <-


@refused("register budget: zeros (256, 256) takes 256 x 256 / 128 = 512 registers a lane",
         "2 compute warpgroups has 232: (504 - 40 ", "use a smaller tile", num_compute_wgs=2)
def an_accumulator_beyond_the_registers(a, b, c):
    acc = numpipe.zeros((256, 256), np.float32)  # <-


@refused("max_concurrent_steps must be at least 1, got 0", kind=SpecError)
def no_slots(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), max_concurrent_steps=0, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for (k,), (x,) in pipe(a):  # <-
        pass


@refused("max_concurrent_steps must be a compile-time constant, not a run-time int32", kind=SpecError)
def slots_known_at_run_time(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), max_concurrent_steps=a.shape[0], in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))  # <-


@refused("delay_release=2 needs more than 2 slots, got max_concurrent_steps=2", kind=SpecError)
def slots_held_too_long(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), max_concurrent_steps=2, delay_release=2, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for (k,), (x,) in pipe(a):  # <-
        pass


@refused("delay_release=3 needs more than 3 slots, got max_concurrent_steps=2", kind=SpecError,
         compiler_params=numpipe.CompilerParams(delay_release=3))
def slots_held_too_long_by_the_kernel(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), max_concurrent_steps=2, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for (k,), (x,) in pipe(a):  # <-
        pass


# ---- pipelines misused ---------------------------------------------------------------------------------------------
@refused("grid must be a tuple of step counts, got 1", kind=SpecError)
def a_grid_that_is_no_tuple(a, b, c):
    pipe = numpipe.pipeline(grid=1, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))  # <-


@refused("grid must hold integers", kind=SpecError)
def a_grid_of_floats(a, b, c):
    pipe = numpipe.pipeline(grid=(1.5,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))  # <-


@refused("in_specs must be a tuple of BlockSpec, got BlockSpec", kind=SpecError)
def one_spec_without_its_tuple(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=BlockSpec((64, 64), lambda k: (0, k)))  # <-


@refused("called on 2 arrays, but in_specs has 1", kind=SpecError)
def more_arrays_than_specs(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for (k,), (x, y) in pipe(a, b):  # <-
        pass


@refused("a pipeline is called on the kernel's array parameters", kind=SpecError)
def a_pipeline_over_a_number(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for (k,), (x,) in pipe(3):  # <-
        pass


@refused("called on 1 arrays, but the loop unpacks 2 tiles: (x, y)")
def more_tiles_than_arrays(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for (k,), (x, y) in pipe(a):  # <-
        pass


@refused("a pipeline loop is written `for (indices), (tiles) in pipe(arrays):`, got `for (k, x, y)`")
def a_loop_over_three(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))))
    for k, x, y in pipe(a, b):  # <-
        pass


@refused("a pipeline is called on its arrays by position")
def arrays_by_name(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for (k,), (x,) in pipe(a, more=b):  # <-
        pass


@refused("in_specs[0] for 'a': index_map must return a tuple of 2 integer block indices, got", kind=SpecError)
def an_index_map_to_one_number(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: k),))
    for (k,), (x,) in pipe(a):  # <-
        pass


@refused("in_specs[1] for 'b': index_map must return a tuple of 2 integer block indices, got", kind=SpecError)
def an_index_map_to_three_numbers(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (k, k, k))))
    for (k,), (x, y) in pipe(a, b):  # <-
        pass


@refused("in_specs[0] for 'a': index_map must return a tuple of 2 integer block indices, got", kind=SpecError)
def an_index_map_to_floats(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (k, 0.5)),))
    for (k,), (x,) in pipe(a):  # <-
        pass


@refused("in_specs[0]: index_map takes 2 indices, but the pipeline's grid has 1")
def an_index_map_of_another_grid(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda i, k: (i, k)),))  # <-


@refused("index_map must be a function of the grid indices", kind=SpecError)
def an_index_map_that_is_a_tuple(a, b, c):
    spec = BlockSpec((64, 64), (0, 0))  # <-


@refused("a pipeline is called in a `for` only: for (indices), (tiles) in pipe(arrays):")
def a_pipeline_called_outside_a_loop(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    x = pipe(a)  # <-


@refused("a pipeline is called in a `for` of the function that makes it")
def a_pipeline_passed_on(a, b, c):
    def run(pipe):
        for (k,), (x,) in pipe(a):  # <-
            pass

    run(numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)))


@refused("numpipe.tiles(…) stands in a `for` only")
def tiles_outside_a_loop(a, b, c):
    t = numpipe.tiles(3)  # <-


@refused("order='spiral' with 2 counts: 'row' takes 1 to 3, 'grouped' takes 2")
def tiles_in_an_unknown_order(a, b, c):
    for m, n in numpipe.tiles(2, 2, order="spiral"):  # <-
        pass


@refused("'grouped' takes 2")
def one_dimension_of_tiles_in_groups(a, b, c):
    for m, in numpipe.tiles(2, order="grouped"):  # <-
        pass


@refused("tiles takes the tile counts, order= and group=")
def tiles_with_another_option(a, b, c):
    for m, in numpipe.tiles(2, shuffle=True):  # <-
        pass


@refused("gives a tuple of indices, for one count too: write `for (m,) in numpipe.tiles(…):`")
def one_count_unpacked_as_an_int(a, b, c):
    for m in numpipe.tiles(2):  # <-
        pass


@refused("numpipe.tiles of 2 counts gives 2 indices, the loop unpacks 3: (m, n, o)")
def more_indices_than_counts(a, b, c):
    for m, n, o in numpipe.tiles(2, 2):  # <-
        pass


@refused("tiles(order='b'): a host table is a 2-D int32 array, got 2-D float16", kind=SpecError)
def a_table_of_floats(a, b, c):
    for m, n in numpipe.tiles(2, order=b):  # <-
        pass


# ---- calls -----------------------------------------------------------------------------------------------------------
@refused("ds(start, size): size must be a compile-time constant, not a run-time int32", kind=SpecError)
def a_slice_of_run_time_size(a, b, c):
    x = ds(0, a.shape[0])  # <-


@refused("a slice of a tile or array has compile-time bounds and no step; for a run-time start write ds(start, size)")
def a_slice_with_run_time_bounds(a, b, c):
    n = a.shape[0]
    c[0:n, 0:64] = numpipe.zeros((64, 64), np.float32)  # <-


@refused("ds(start, size): it has no argument 'sizes'")
def a_wrong_keyword(a, b, c):
    x = ds(0, sizes=64)  # <-


@refused("ds(start, size): argument 'size' missing")
def a_missing_argument(a, b, c):
    x = ds(0)  # <-


@refused("ds(start, size): 3 positional arguments given, it takes 2")
def too_many_arguments(a, b, c):
    x = ds(0, 64, 1)  # <-


@refused("pipeline(*, grid, in_specs, max_concurrent_steps=2, delay_release=None): it has no argument 'slots'")
def a_wrong_option_of_a_pipeline(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), slots=2, in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))  # <-


@refused("no * or ** in a kernel's calls: write the arguments out")
def arguments_with_a_star(a, b, c):
    x = ds(*(0, 64))  # <-


@refused("unknown axis 'z': the grid's axes are named 'x', and the warpgroup axis is 'wg'", grid_names=("x",))
def an_unknown_axis(a, b, c):
    x = numpipe.axis_index("z")  # <-


@refused("unknown axis 'z': the grid's axes are not named (grid_names=), and the warpgroup axis is 'wg'")
def an_unknown_axis_in_an_index_map(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(
        BlockSpec((64, 64), lambda k: (numpipe.axis_size("z"), k)),))  # <-


def plain(x: Any) -> Any:
    return x


@refused("'plain' is a plain Python function", "functions nested in the kernel")
def a_plain_function(a, b, c):
    x = plain(3)  # <-


@refused("'a_plain_function' is a kernel: a kernel is called from the host")
def a_kernel_in_a_kernel(a, b, c):
    a_plain_function(a, b, c)  # <-


@refused.tests
def test_it_is_refused_at_its_line(case: Case, execution: str) -> None:
    case.check(execution)


# ---- arrays that TMA cannot address ----------------------------------------------------------------------------------
@numpipe.kernel(num_compute_wgs=1)
def loads_a(a, c):
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        pass


@pytest.mark.parametrize("ptr, strides, reason", [
    (4096 + 8, None, "its data starts at an address that is 8 bytes past a multiple of 16"),
    (4096, (130, 2), "its rows are 130 bytes apart and TMA needs a positive multiple of 16"),
    (4096, (512, 4), "the inner stride is 4 bytes and an element has 2"),
])
def test_an_input_that_tma_cannot_address_is_refused_with_the_padded_copy(
        monkeypatch: pytest.MonkeyPatch, ptr: int, strides: tuple[int, ...] | None, reason: str) -> None:
    monkeypatch.setattr(launch, "choose_target", lambda asked=None: launch.Choice("gpu", "a fake", launch.Device(
        0, "NVIDIA H200", (9, 0), 132, 13000, 232448)))
    a, c = CudaArray(ptr, (64, 64), "<f2", strides), CudaArray(8192, (64, 64), "<f4")
    for execution in (loads_a, loads_a.compiled):
        with pytest.raises(SpecError) as caught:
            execution(a, c)
        told = str(caught.value)
        assert "in_specs[0] for 'a'" in told and "argument 'a' of kernel 'loads_a'" in told
        assert reason in told and "numpipe pads" in told and f"strides {strides or (128, 2)}" in told


def test_strided_arrays_on_the_host_are_no_error() -> None:
    loads_a.simulate(np.zeros((128, 65), np.float16)[::2], np.zeros((64, 64), np.float32))
