"""``matmul_all_reduce``: multiply each GPU's part of K and return the sum of the products over the
GPUs on each of them.

The kernel of `matmul_reduce_scatter` adds the tiles of a GPU's own rows and stores each of them on
all GPUs, while other tiles are multiplied. That kernel reads b once for each GPU's rows. If a GPU's
share of the rows does not fill a tile, for example when tokens are generated one by one, reading b
takes most of the time, so two kernels are launched: a product on each GPU, and `all_reduce`.
"""

from __future__ import annotations

import math
from typing import Any

from ..arch.dimensions import round_up
from ..diagnostics.errors import SpecError
from ..plan.specs import ArrayType
from .all_reduce import launch as launch_sum
from .matmul import TYPES, launch_product
from .matmul_reduce_scatter import PARTS, Config, parts_type
from .matmul_reduce_scatter import launch as launch_scattered
from .operands import move
from .sharded_calls import (
    OnGpus,
    Shards,
    added_up,
    check_matrices,
    config_check,
    right_gradient,
    sharded_op,
)


def _result(a: Any, b: Any, gpus: int) -> ArrayType:
    rows, columns = check_matrices("matmul_all_reduce", a.shape, b.shape)
    if rows % gpus and rows * columns * a.dtype.itemsize % 16:
        raise SpecError(
            f"matmul_all_reduce: 'a' has {rows} rows, which {gpus} GPUs cannot share evenly, and "
            f"the result {(rows, columns)} does not have a multiple of 16 bytes; fix: pad 'a' to "
            f"{round_up(rows, gpus)} rows"
        )
    return ArrayType((rows, columns), a.dtype)


def _launch(
    shards: Shards,
    a: OnGpus,
    b: OnGpus,
    out: OnGpus,
    parts: str,
    config: Config | None,
) -> None:
    rows, columns = out[0].shape
    full = config is not None or rows // shards.size >= Config.tm
    if rows % shards.size == 0 and (full or rows * columns * out[0].dtype.itemsize % 16):
        gathered = out
        if not shards.reaches(out):
            gathered = shards.workspace("gathered", a, (rows, columns))
        launch_scattered(shards, a, b, gathered, parts, config, gather=True)
        if gathered is not out:
            shards.apart(move, gathered, out)
    else:
        product = shards.workspace("product", a, (rows, columns), parts_type(parts, a[0].dtype))
        shards.apart(launch_product, a, b, product)
        launch_sum(shards, product, out, None)


def _gradients(xp: Any, a: list, b: list, grad_out: list, mesh: Any) -> tuple[list, list]:
    grads = added_up(xp, mesh, grad_out)
    return (
        [xp("matmul", grad, xp.transposed(y)) for grad, y in zip(grads, b, strict=True)],
        right_gradient(xp, a, grads),
    )


@sharded_op(
    operands={"a": "", "b": ""},
    results={"out": _result},
    types=TYPES,
    launch=_launch,
    checks={"parts": PARTS} | config_check(Config),
    gradients={"a b": _gradients},
    operations=lambda a, b: 2.0 * math.prod(a.shape) * b.shape[1],
)
def matmul_all_reduce(
    a: Any,
    b: Any,
    *,
    mesh: Any,
    parts: str = "float32",
    out: Any = None,
    config: Config | None = None,
    stream: Any = None,
) -> Any:
    """Return the sum, over all GPUs, of ``a @ b``, on each GPU.

    a       (M, K) on each GPU, of float16 or bfloat16
    b       (K, N) on each GPU, of the same type
    mesh    the `numpipe.Mesh`; under `simulated` and `local`, a, b and the result are lists with
            one array per GPU
    parts   the type in which GPUs send partial sums to each other, "float32" or "input", as for
            `matmul_reduce_scatter`
    out     (M, N) on each GPU, to write to; allocated by default. Under `Mesh.torch`, sums of many
            rows are stored directly in an `out` from `Mesh.empty`, which is faster, and otherwise
            in a workspace from which they are copied
    config  how the product is tiled: a Config of `matmul_reduce_scatter`, by default the result of
            its `choose`; for fewer than 128 rows per GPU, the default is the config of `matmul`
    stream  as for any kernel

    Partial sums are added in float32 in a fixed order: results are deterministic, bit by bit, and
    the same on all GPUs. M should be a multiple of the number of GPUs; otherwise nothing is
    transferred during the product. All ranks must make the same call. The gradients are those of
    the sum of the results on all GPUs. Raises SpecError if shapes do not match, for other element
    types, if shards differ in shape, and for other `parts`.

    >>> a = [np.full((4, 8), 1 + gpu, np.float16) for gpu in range(2)]
    >>> b = [np.ones((8, 16), np.float16) for _ in range(2)]
    >>> matmul_all_reduce(a, b, mesh=Mesh.simulated(2))[1][:, 0]
    array([24., 24., 24., 24.], dtype=float16)
    """
