"""The `@numpipe.kernel` decorator.

The modules that build kernels are imported when the first kernel is defined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..plan.params import CompilerParams
    from .kernel import Kernel

__all__ = ["kernel"]


def kernel(
    function: Callable | None = None,
    /,
    *,
    grid: Any = (1,),
    grid_names: Sequence[str] = (),
    out_type: Any = None,
    signature: str | None = None,
    num_compute_wgs: int | None = None,
    wg_axis: str | None = None,
    memory_registers: int | None = None,
    warp_specialized: bool = True,
    in_specs: Any = None,
    out_specs: Any = None,
    compiler_params: CompilerParams | None = None,
    target: str | None = None,
    cluster: Any = None,
    cluster_names: Sequence[str] = (),
    cooperative: bool = False,
    programmatic: bool | None = None,
    schedule: str = "cooperative",
    without: Sequence[str] = (),
    workspace: Any = None,
    semaphores: Any = None,
    static_dims: Sequence[int] | Mapping[str, Sequence[int]] = (),
) -> Any:
    """Turn a Python function over arrays into a kernel.

        @numpipe.kernel(
            grid=lambda x: (cdiv(x.shape[0], 64),),
            out_type=lambda x: ArrayType(x.shape, x.dtype),
        )
        def scaled(x, y, *, by=2.0):  # y = by * x, for rows of at most 128 elements
            rows, columns = ds(program_id(0) * 64, 64), ds(0, 128)
            y[rows, columns] = x[rows, columns] * by

        y = scaled(x, by=3.0)

    These five parameters are enough for most kernels:

    grid              number of CTAs: a tuple of ints (default: one CTA), a function of the kernel's
                      arguments (by parameter name) that returns one, or `persistent()`. Dimensions
                      beyond the third are folded into the GPU's x dimension, which is also how
                      reports number the CTAs
    out_type          function of the arguments (by parameter name) that returns an ArrayType or a
                      tuple of them. The trailing parameters without a default are then outputs,
                      which the call allocates and returns. Without it the caller passes them.
    grid_names        names of the grid's axes, for `axis_index`; required when a grid function
                      returns more than three dimensions
    num_compute_wgs   compute warpgroups per CTA, not counting the one that takes the memory role;
                      default: 1, or 2 for "pingpong"
    compiler_params   options of the compiler and the pipelines, a `CompilerParams`

    The others:

    signature         relation between the arrays' shapes in NumPy's gufunc notation, such as
                      ``"(m,k),(n,k)->(m,n)"``; checked by each call
    wg_axis           name of the axis of compute warpgroups; default: "wg"
    memory_registers  registers per lane that the memory role keeps (a multiple of 8, 24…256;
                      default: 40); the compute warpgroups share the rest. With 32, each of three
                      or four has eight more. The kernel's `emit_pipeline_warp_specialized` may set
                      this, `num_compute_wgs` and `wg_axis` instead.
    warp_specialized  False: no memory role. All warpgroups of the CTA (at most 8) run the kernel
                      function in the compute role with the registers of the launch, and each
                      issues its own loads; pipelines are then single-stream
    in_specs, out_specs
                      BlockSpecs whose index maps cover the kernel's whole grid. The function then
                      takes one tile per BlockSpec instead of arrays, inputs before outputs, and is
                      called at each step of a pipeline (see `pipeline`). With
                      ``CompilerParams(dimension_semantics=("parallel", …, "sequential"))`` the
                      leading dimensions of the grid are CTAs and the others are steps of the
                      pipeline; by default all are CTAs. `program_id` and `num_programs` refer to
                      the whole grid.
    schedule          "cooperative": the compute warpgroups share each tile of a loop over `tiles`.
                      "pingpong": they alternate on whole tiles, so that one stores its tile while
                      the next multiplies. The warpgroup axis then has size 1, and ``rows = tm //
                      axis_size("wg")`` is all rows of the tile. Every pipeline must be in a loop
                      over `tiles` or `nd_loop` of the kernel function (see
                      `numpipe.language.pipeline.pingpong`).
    target            "gpu", "sim" or "auto" (default: the environment variable NUMPIPE_TARGET, or
                      "auto" if it is not set)
    cluster           CTAs per cluster, an int or up to 3 of them along the grid's dimensions. The
                      CTAs of a cluster run at the same time on the SMs of one GPC. Each dimension
                      of the grid must be a multiple of the cluster's; at most 8 CTAs, or 16 where
                      they fit
    cluster_names     names of the cluster's axes, for `axis_index` and for the `collective_axes` of
                      a BlockSpec, whose blocks the CTAs load for each other. Loops over `tiles`
                      then assign tiles to clusters instead of CTAs.
    cooperative       True: all CTAs run at the same time, or the launch is refused
    programmatic      programmatic dependent launch. True: the kernel may be launched while the
                      previous kernel in the stream is finishing, and waits for it to finish before
                      accessing global memory. False: it is launched after the previous kernel has
                      finished. Default: True, or False for cooperative kernels
    without           parameters to leave out of this kernel. They are None in its source, and
                      ``if bias is not None:`` is decided at compile time, so one function can be
                      made into several kernels, with and without an array or a scalar
    workspace         a `Workspace`, or a function of the arrays and Statics (by parameter name)
                      that returns one. The last array parameter is then global memory for partial
                      sums (`combine`), which numpipe allocates and calls do not pass
    semaphores        for a kernel that runs on several GPUs at once: the number of semaphores per
                      GPU, or a function of the arguments (by parameter name) that returns it. The
                      last array parameter is then an int32 array of semaphores, which numpipe
                      allocates and calls do not pass. Calls take ``mesh=``, a `Mesh`, and the grid
                      must be `persistent`

    static_dims       dimensions of all arrays whose sizes are compile-time constants, counted from
                      the last one, -1: each size is a separate compile. With ``static_dims=(-1,)``
                      a block may be as wide as the array, ``x[ds(i, 8), ds(0, x.shape[1])]``, and
                      needs no bounds checks along its columns. ``{"x": (-1,)}``: of x alone,
                      and a constant, too, whether its rows follow each other without gaps

    Positional parameters are arrays or scalars, with inputs before outputs. Scalars may be at any
    position; a call that leaves out the outputs passes the scalars after them by name. Parameters
    with a default (a bool, int, float or NumPy scalar) and keyword-only ones are run-time scalars.
    Those annotated `numpipe.Static` are compile-time constants, and each value is a separate
    compile. Any argument may be passed by name. For ``def k(a, b, c, alpha=1.0)`` with an out_type,
    call ``k(a, b)``, ``k(a, b, alpha=2.0)`` or ``k(a, b, out=c)``; without an out_type, call
    ``k(a, b, c)`` or ``k(a, b, c, 2.0)``. A Python int is passed as int32 (as a float where the
    default is a float), a Python float as float32, and a NumPy scalar with its own type. Calls also
    take ``out=``, ``target=`` and ``stream=``, and for kernels with semaphores ``mesh=``.

    Raises SpecError for arguments that do not fit, CompileError for source that cannot be compiled,
    TargetError if the target cannot run, and LaunchError if the driver fails; on the simulated SM
    also PipelineRace and PipelineDeadlock.
    """
    from ..diagnostics.argument_checks import as_tuple
    from ..launch.attributes import axis_names, names_of, of_options
    from ..plan.params import CompilerParams
    from ..plan.split import SplitOptions
    from .kernel import Kernel
    from .options import Options, Signature

    parsed = None if signature is None else Signature.parse(signature)

    def make(function: Callable) -> Kernel:
        name = getattr(function, "__name__", repr(function))
        return Kernel(
            function,
            Options(
                grid,
                names_of(name, "grid_names", grid_names),
                out_type,
                parsed,
                SplitOptions(num_compute_wgs, wg_axis, memory_registers),
                warp_specialized,
                CompilerParams() if compiler_params is None else compiler_params,
                target,
                in_specs,
                out_specs,
                schedule,
                of_options(name, cluster, cooperative, programmatic),
                axis_names(name, cluster, cluster_names),
                names_of(name, "without", without),
                workspace,
                semaphores,
                {array: as_tuple(dims) for array, dims in static_dims.items()}
                if isinstance(static_dims, Mapping)
                else as_tuple(static_dims),
            ),
        )

    return make if function is None else make(function)
