"""Per-lane code outside of bodies, and code of the warpgroup in per-lane bodies."""

from __future__ import annotations

from typing import Any

from numba import cuda

import numpipe
from numpipe import CompilerParams, LoweringSemantics, SpecError
from tests.kernels.refusals import Cases

emit = numpipe.emit_pipeline_warp_specialized
LANE: dict[str, Any] = {
    "kind": SpecError,
    "compiler_params": CompilerParams(lowering_semantics=LoweringSemantics.Lane),
}
OPTION = "CompilerParams(lowering_semantics=LoweringSemantics.Lane)"
NOT_HERE = (
    " is per-lane code, which is supported only in the body of a body-form pipeline, in a "
    f"kernel with {OPTION}; here the code is the warpgroup's"
)
ELEMENTS = (
    f"with {OPTION} a body may access single elements of a tile, tile[i, j] with integers, and "
    "views, tile.at[…] and tile.T"
)
# operations of the warpgroup; messages do not use the machine's names
OF_ALL = (
    " is an operation of the whole warpgroup, but this body runs in each lane ("
    "lowering_semantics=LoweringSemantics.Lane): it may use elements of tiles and arrays, shuffles "
    "and syncwarp"
)
refused = Cases(cuda=cuda, emit=emit)

# per-lane code where the warpgroup runs
refused(
    "an_index_of_a_lane_in_a_body_of_the_warpgroup",
    """
    def body(indices, x):
        lane = numpipe.lane_index()
    #          ^^^^^^^^^^^^^^^^^^^^

    emit(body, grid=(1,), in_specs=(spec,))(a)
""",
    f"lane_index(){NOT_HERE}",
    kind=SpecError,
    fixed_options={"compiler_params": LANE["compiler_params"]},
)
refused(
    "a_thread_in_a_body_of_the_warpgroup",
    """
    def body(indices, x):
        lane = cuda.threadIdx.x % 128
    #          ^^^^^^^^^^^^^^^^

    emit(body, grid=(1,), in_specs=(spec,))(a)
""",
    f"cuda.threadIdx.x{NOT_HERE}",
    kind=SpecError,
    fixed_options={"compiler_params": LANE["compiler_params"]},
)
refused(
    "a_shuffle_outside_of_a_body",
    """
    x = cuda.shfl_xor_sync(0xFFFFFFFF, 1, 1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    f"cuda.shfl_xor_sync{NOT_HERE}",
    **LANE,
)
refused(
    "a_second_dimension_of_threads",
    """
    def body(indices, x):
        y = cuda.threadIdx.y
    #       ^^^^^^^^^^^^^^^^

    emit(body, grid=(1,), in_specs=(spec,))(a)
""",
    "cuda.threadIdx.y is not supported in a kernel: of numba.cuda there are threadIdx.x, "
    "laneid, shfl_sync, shfl_up_sync, shfl_down_sync, shfl_xor_sync, syncwarp",
    **LANE,
    fix={"threadIdx.y": "threadIdx.x"},
)
refused(
    "a_barrier_of_the_cta",
    """
    def body(indices, x):
        cuda.syncthreads()
    #   ^^^^^^^^^^^^^^^^^^

    emit(body, grid=(1,), in_specs=(spec,))(a)
""",
    "cuda.syncthreads is not supported in a kernel: of numba.cuda there are threadIdx.x, "
    "laneid, shfl_sync, shfl_up_sync, shfl_down_sync, shfl_xor_sync, syncwarp",
    **LANE,
    fix={"syncthreads": "syncwarp"},
)
refused(
    "a_shared_array_of_a_lane",
    """
    def body(indices, x):
        s = cuda.shared.array(32, np.float32)
    #       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

    emit(body, grid=(1,), in_specs=(spec,))(a)
""",
    "cuda.shared.array is not supported in a kernel: of numba.cuda there are threadIdx.x, "
    "laneid, shfl_sync, shfl_up_sync, shfl_down_sync, shfl_xor_sync, syncwarp; here "
    "numpipe.scratch(numpipe.SMEM(shape, dtype)) around the body is shared memory",
    **LANE,
)
refused(
    "an_index_of_a_cta_as_numba_has_it",
    """
    def body(indices, x):
        i = cuda.blockIdx.x
    #       ^^^^^^^^^^^^^^^

    emit(body, grid=(1,), in_specs=(spec,))(a)
""",
    "cuda.blockIdx.x is not supported in a kernel: of numba.cuda there are threadIdx.x, "
    "laneid, shfl_sync, shfl_up_sync, shfl_down_sync, shfl_xor_sync, syncwarp; here "
    "numpipe.program_id(axis) is the index of the CTA",
    **LANE,
    fix={"cuda.blockIdx.x": "numpipe.program_id(0)"},
)

# code of the warpgroup where a lane runs
refused(
    "a_whole_tile_for_a_lane",
    """
    def body(indices, x):
        y = x[...]
    #       ^^^^^^

    emit(body, grid=(1,), in_specs=(spec,))(a)  # called
""",
    f"{ELEMENTS}, got ...",
    **LANE,
    fix={"x[...]": "x[0, 0]"},
)
refused(
    "a_product_of_a_lane",
    """
    def body(indices, x, acc):
        return numpipe.wgmma(acc, x, x)

    def compute(pipeline):
        pipeline(numpipe.zeros((64, 64), np.float32))

    emit(body, grid=(1,), compute_context=compute, in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: body 'body' issues wgmmas, but with "
    + OPTION
    + " it is per-lane code; fix: use LoweringSemantics.Warpgroup",
    **LANE,
    fix={"x, x)": "x, x.T)"},
    fixed_options={"compiler_params": CompilerParams()},
)
refused(
    "barriers_for_a_lane",
    """
    def body(indices, x, ready):
        pass

    emit(body, grid=(1,), manual_produced_barriers=True, in_specs=(spec,))(a)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: body 'body' is given barriers, which warpgroups wait for and "
    "arrive on, but with " + OPTION + " it is per-lane code; fix: use LoweringSemantics.Warpgroup",
    **LANE,
    fixed_options={"compiler_params": CompilerParams()},
)
refused(
    "a_tile_carried_by_lanes",
    """
    def body(indices, x, acc):
        return acc

    def compute(pipeline):
        pipeline(numpipe.zeros((64, 64), np.float32))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

    emit(body, grid=(1,), compute_context=compute, in_specs=(spec,))(a)  # called
""",
    ", pipeline at {file}:{line+3}: the carry is tile (64, 64) float32, but with "
    + OPTION
    + " each lane has its own carry: numbers, and tuples of numbers",
    **LANE,
    fix={"numpipe.zeros((64, 64), np.float32)": "0.0"},
)
refused(
    "an_element_of_an_input_stored",
    """
    def body(indices, x):
        x[0, 0] = 1.0
    #   ^^^^^^^

    emit(body, grid=(1,), in_specs=(spec,))(a)  # called
""",
    "a tile of a pipeline is read-only: TMA refills its slot; fix: store to an array",
    **LANE,
)
refused(
    "a_float_stored_to_an_integer",
    """
    tile = numpipe.scratch(SMEM((64, 64), np.int32))

    def body(indices, x):
        tile[0, 0] = numpipe.lane_index() * 0.5
    #   ^^^^^^^^^^

    emit(body, grid=(1,), in_specs=(spec,))(a)  # called
""",
    "tile[i, j] = value: the tile is int32, the value float32: int(x) truncates a float",
    **LANE,
)
refused(
    "a_fraction_of_a_lane",
    """
    def body(indices, x):
        y = cuda.shfl_up_sync(0xFFFFFFFF, numpipe.lane_index(), 1.0)
    #       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

    emit(body, grid=(1,), in_specs=(spec,))(a)  # called
""",
    simulated="cuda.shfl_up_sync: delta must be an integer, got float",
    compiled="cuda.shfl_up_sync: delta must be an integer, got float64",
    **LANE,
    fix={"1.0": "1"},
)
refused(
    "a_truth_shuffled",
    """
    def body(indices, x):
        y = cuda.shfl_sync(0xFFFFFFFF, numpipe.lane_index() > 3, 0)
    #       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

    emit(body, grid=(1,), in_specs=(spec,))(a)  # called
""",
    "cuda.shfl_sync: the value must be a number of 16, 32 or 64 bits, got a bool",
    **LANE,
    fix={"numpipe.lane_index() > 3": "int(numpipe.lane_index() > 3)"},
)
refused(
    "an_array_in_a_body_of_lanes",
    """
    def body(indices, x):
        y = b[ds(0, 64), ds(0, 64)]
    #       ^^^^^^^^^^^^^^^^^^^^^^^

    emit(body, grid=(1,), in_specs=(spec,))(a)  # called
""",
    simulated=f"`b[ds(0, 64), ds(0, 64)]`{OF_ALL}",
    **LANE,
)
refused(
    "a_barrier_in_a_body_of_lanes",
    """
    def body(indices, x):
        landed = numpipe.scratch(Barrier())
    #            ^^^^^^^^^^^^^^^^^^^^^^^^^^

    emit(body, grid=(1,), in_specs=(spec,))(a)  # called
""",
    simulated=f"`numpipe.scratch(Barrier())`{OF_ALL}",
    **LANE,
)
