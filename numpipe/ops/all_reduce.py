"""``all_reduce``: sum the arrays of all GPUs and return the sum on each of them.

With two GPUs, and for small arrays, each GPU sends its whole array to all others and adds up what
arrives: the kernel of `reduce_scatter`, with the same share for all GPUs. With more GPUs this takes
more bytes than necessary, so for large arrays there are two launches: `reduce_scatter` adds a share
on each GPU, and `all_gather` sends the shares to all GPUs.
"""

from __future__ import annotations

import math
from typing import Any

from ..plan.specs import ArrayType
from .all_gather import launch as launch_gather
from .reduce_scatter import Config, kernel
from .sharded_calls import OnGpus, Shards, added_up, config_check, sharded_op
from .tiled import TYPES

LAUNCH = 6_700_000
"""bytes that a link transfers while a launch begins and ends: 18 us at 370 GB/s"""


def in_one_launch(nbytes: int, gpus: int) -> bool:
    """Return whether each GPU sends its whole array of `nbytes` to all others: if that takes less
    time than sending two shares to each of them in two launches, or if the shares would not be
    multiples of 16 bytes.

    >>> in_one_launch(2**30, 2), in_one_launch(2**20, 8), in_one_launch(2**23, 8)
    (True, True, False)
    """
    two_launches = 2 * (gpus - 1) * nbytes // gpus + LAUNCH
    return (gpus - 1) * nbytes <= two_launches or nbytes % (16 * gpus) > 0


def launch(
    shards: Shards,
    x: OnGpus,
    out: OnGpus,
    config: Config | None,
) -> None:
    """Launch the kernels; the sums are rounded to the type of `out`."""
    config, gpus = config or Config(), shards.size
    whole = in_one_launch(math.prod(x[0].shape) * x[0].dtype.itemsize, gpus)
    source = shards.as_rows("x", x, 1 if whole else gpus)
    _, rows, columns = source[0].shape
    room = shards.workspace("room", source, (gpus, rows, columns))
    if whole:
        sums = shards.as_rows("out", out)
    else:
        sums = shards.workspace("share", source, (rows, columns), out[0].dtype)
    shards.run(kernel(columns, config, whole), source, room, sums)
    if not whole:
        launch_gather(shards, sums, out, None)


@sharded_op(
    operands={"x": ""},
    results={"out": lambda x: ArrayType(tuple(x.shape), x.dtype)},
    types=TYPES,
    launch=launch,
    checks=config_check(Config),
    gradients={"x": lambda xp, grad_out, mesh: added_up(xp, mesh, grad_out)},
)
def all_reduce(
    x: Any, *, mesh: Any, out: Any = None, config: Config | None = None, stream: Any = None
) -> Any:
    """Return the sum of the arrays of all GPUs, on each GPU.

    x       an array of the same shape on all GPUs, of float16, bfloat16 or float32; contiguous,
            with a multiple of 16 bytes
    mesh    the `numpipe.Mesh`; under `simulated` and `local`, x and the result are lists with one
            array per GPU
    out     an array of x's shape and type on each GPU, to write to, which must not overlap x;
            allocated by default
    config  how the sum is tiled: a Config of `reduce_scatter`
    stream  as for any kernel

    Sums are float32, added in the order of the GPUs and rounded once: results are deterministic,
    bit by bit, and the same on all GPUs. Arrays of several MB on more than two GPUs are summed
    fastest if they have a multiple of 16 bytes per GPU. All ranks must make the same call. The
    gradient is that of the sum of the results on all GPUs. Raises SpecError if arrays differ in
    shape, for other element types, and for arrays that TMA cannot copy.

    >>> all_reduce(
    ...     [np.full((2, 8), 1 + gpu, np.float32) for gpu in range(2)], mesh=Mesh.simulated(2)
    ... )[1][0, 0]
    np.float32(3.0)
    """
