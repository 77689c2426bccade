"""Invalid outputs of pipelines: their arrays, specs and tiles, and where they are stored."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SpecError
from tests.kernels.refusals import A, B, C, Cases

emit = numpipe.emit_pipeline_warp_specialized
COLUMNS = np.zeros((128, 64), np.float32, order="F")
refused = Cases(emit=emit)

# arrays
refused(
    "a_column_major_output",
    """
    pipe = numpipe.pipeline(grid=(1,), out_specs=(rows,))
    for (_,), (x,) in pipe(c):
    #                 ^^^^^^^
        x[...] = numpipe.zeros((64, 64), np.float32)
""",
    ", pipeline at {file}:{line-1}: out_specs[0] for 'c': the array is column-major, but "
    "outputs are stored by rows; fix: pass a row-major array, or store from registers in the "
    "body, 'c[…] = tile'",
    kind=SpecError,
    args=(A, B, COLUMNS),
)

# specs
refused(
    "an_output_that_is_not_in_its_tuple",
    """
    def body(indices, x, y):
        y[0][...] = numpipe.zeros((64, 64), np.float32)

    emit(body, grid=(1,), in_specs=(spec,), out_specs=((BlockSpec((64, 64)),),))(a, c)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: called on arrays (*, *), but in_specs and out_specs have "
    "(*, (*,)): pass them in the same tuples",
    kind=SpecError,
)
refused(
    "a_delay_of_an_output",
    """
    spec = BlockSpec((64, 64), lambda k: (k, 0), delay_release=1)
    pipe = numpipe.pipeline(grid=(1,), out_specs=(spec,))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: out_specs[0]: delay_release=1 is only for inputs: a slot of an "
    "output is free as soon as its TMA store has read it; fix: leave out delay_release",
    kind=SpecError,
    fix={", delay_release=1": ""},
)
refused(
    "nan_outside_an_output",
    """
    specs = rows, BlockSpec((64, 64), lambda k: (k, 0), oob_fill="nan")
    pipe = numpipe.pipeline(grid=(1,), out_specs=specs)
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: out_specs[1]: oob_fill='nan' is only for inputs: elements "
    "outside the array are not stored; fix: leave out oob_fill",
    kind=SpecError,
    fix={', oob_fill="nan"': ""},
)
refused(
    "a_number_for_a_spec",
    """
    pipe = numpipe.pipeline(grid=(1,), out_specs=(7,))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=", pipeline at {file}:{line}: out_specs must be a tuple of BlockSpec, got (int)",
    compiled=", pipeline at {file}:{line}: out_specs must be a tuple of BlockSpec, got (int32)",
    kind=SpecError,
)
refused(
    "no_outputs_said",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(rows,), out_specs=None)
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: out_specs must be a tuple of BlockSpec, got NoneType: "
    "leave it out",
    kind=SpecError,
    fix={", out_specs=None": ""},
)
refused(
    "unequal_steps_with_outputs",
    """
    def half(wg):
        return 1 - wg

    pipe = numpipe.pipeline(grid=(2,), out_specs=(rows,), steps_of=half)
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: steps_of with out_specs: every compute warpgroup takes part in "
    "storing an output's blocks; fix: store from registers in the body, c[…] = tile, or leave out "
    "steps_of",
    kind=SpecError,
)
refused(
    "an_index_map_with_an_index_too_many",
    """
    pipe = numpipe.pipeline(grid=(2,), out_specs=(BlockSpec((64, 64), lambda k, j: (k, 0)),))
    #                                                                 ^^^^^^^^^^^^^^^^^^^
""",
    "out_specs[0]: index_map takes 2 indices, but the pipeline's grid has 1",
    fix={"lambda k, j:": "lambda k:"},
)
refused(
    "an_array_too_few",
    """
    pipe = numpipe.pipeline(grid=(2,), in_specs=(rows,), out_specs=(
        rows,))
    for (_,), tiles in pipe(c):
    #                  ^^^^^^^
        assert tiles
""",
    ", pipeline at {file}:{line-2}: called on 1 arrays, but in_specs and out_specs have 2",
    kind=SpecError,
)
refused(
    "a_body_without_the_output",
    """
    block = spec
    emit(body, grid=(1,), in_specs=(block,), out_specs=(block,))(a, c)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: body 'body' takes 2 arguments, but is called with 3: "
    "(indices, 2 tiles)",
    kind=SpecError,
    fix={
        "(indices, x):\n        pass": (
            "(indices, x, y):\n        y[...] = numpipe.zeros((64, 64), np.float32)"
        ),
    },
)

# tiles
refused(
    "a_value_of_another_type",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(rows,), out_specs=(
        rows,))
    for (_,), (x, y) in pipe(a, c):
        y[...] = x[...]
    #   ^^^^^^
""",
    "tile[…] = value: the tile is int32, but the value is float16; fix: store "
    "value.astype(tile.dtype)",
    kind=SpecError,
    args=(A, B, C.astype(np.int32)),
    fix={"x[...]": "x[...].astype(y.dtype)"},
)
refused(
    "a_value_of_another_shape",
    """
    pipe = numpipe.pipeline(grid=(1,), out_specs=(BlockSpec((128, 64), lambda k: (k, 0)),))
    for (_,), (y,) in pipe(c):
        y[...] = numpipe.zeros((64, 64), np.float32)
    #   ^^^^^^
""",
    "tile[…] = value: the tile is (128, 64), but the value is (64, 64); fix: store to a part of "
    "it, tile[ds(start, size), :] = value",
    kind=SpecError,
)
refused(
    "a_number_for_a_tile",
    """
    pipe = numpipe.pipeline(grid=(1,), out_specs=(rows,))
    for (_,), (y,) in pipe(c):
        y[...] = 0.0
    #   ^^^^^^
""",
    simulated="tile[…] = value: the value must be a register tile, got float",
    compiled="tile[…] = value: the value must be a register tile, got float64",
    kind=SpecError,
    fix={"= 0.0": "= numpipe.zeros((64, 64), np.float32)"},
)
refused(
    "a_store_to_the_input",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(rows,), out_specs=(
        rows,))
    for (_,), (x, y) in pipe(a, c):
        x[...] = x[...]
    #   ^^^^^^
""",
    "a tile of a pipeline is read-only: TMA refills its slot; fix: store to an array",
    kind=SpecError,
)
refused(
    "a_sum_in_float16",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(rows,), out_specs=(
        rows,))
    for (_,), (x, y) in pipe(a, c):
        y[...] = x[...]
        y[...] += x[...].astype(np.float32)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'+' of tiles of float16 and float32: operands must have one type; fix: convert one of them, "
    "such as x.astype(np.float32)",
    kind=SpecError,
    args=(A, B, A.copy()),
)
refused(
    "a_store_to_a_view",
    """
    pipe = numpipe.pipeline(grid=(1,), out_specs=(rows,))
    for (_,), (y,) in pipe(c):
        y.at[:, :] = numpipe.zeros((64, 64), np.float32)
    #   ^^^^^^^^^^
""",
    "tile.at[…] is a view and cannot be assigned to; fix: write tile[…] = value",
    kind=SpecError,
)
refused(
    "a_block_of_more_dimensions_than_the_output",
    """
    pipe = numpipe.pipeline(grid=(1,), out_specs=(BlockSpec((None, 64, 64), lambda k: (k, 0, 0)),))
    for (_,), (y,) in pipe(c):
    #                 ^^^^^^^
        y[...] = numpipe.zeros((64, 64), np.float32)
""",
    ", pipeline at {file}:{line-1}: out_specs[0] for 'c': block_shape (None, 64, 64) has 3 "
    "dimensions, the array has 2",
    kind=SpecError,
)
