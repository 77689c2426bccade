"""`@numpipe.kernel`. Importing this file costs nothing: the first kernel imports what makes
kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..plan.params import CompilerParams
    from .kernel import Kernel

__all__ = ["kernel"]


def kernel(
    function: Callable[..., Any] | None = None,
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
) -> Any:
    """Make a kernel of a Python function over references.

    grid              CTAs: a tuple of ints (none: one CTA), a function of the kernel's arguments
                      (by parameter name) that returns one, or `persistent()`. Of more than three
                      dimensions those behind the third follow the first along the GPU's x, where
                      reports count CTAs
    grid_names        names of the grid's axes, for `axis_index`; a function that returns more than
                      three dimensions needs them
    out_type          function of the arguments (by parameter name) returning an ArrayType, or a
                      tuple of them: the trailing parameters without a default are outputs, which
                      the call allocates and returns. Without it the caller passes them.
    signature         shapes that belong together, in NumPy's gufunc notation:
                      ``"(m,k),(n,k)->(m,n)"``; checked at the call
    num_compute_wgs   compute warpgroups of a CTA (one more is the memory role); default: 1, for
                      "pingpong" 2
    wg_axis           name of the compute warpgroups' axis; default: "wg"
    memory_registers  registers a lane of the memory role keeps (a multiple of 8, 24…256; default:
                      40); compute warpgroups share the rest. The kernel's
                      emit_pipeline_warp_specialized may say these three instead.
    warp_specialized  False: no memory role. All warpgroups of the CTA (at most 8) run the kernel
                      function in the compute role, with the registers of the launch, and each loads
                      for itself: pipelines are single-stream there
    in_specs, out_specs
                      BlockSpecs, with index maps over the kernel's whole grid: the function takes a
                      tile for each instead of arrays, inputs before outputs (see `pipeline`), and
                      is called at each step of a pipeline. By
                      ``CompilerParams(dimension_semantics=("parallel", …, "sequential"))`` the
                      first dimensions of the grid are CTAs, the others the pipeline's; without, all
                      are CTAs. `program_id` and `num_programs` are of the whole grid.
    compiler_params   see CompilerParams
    schedule          "cooperative": the compute warpgroups share each tile of a loop over `tiles`.
                      "pingpong": they take turns on whole tiles, and one stores its tile while the
                      next multiplies: the warpgroup axis has size 1 then, so that ``rows = tm //
                      axis_size("wg")`` are all rows of the tile. Every pipeline stands in a loop
                      over `tiles` or `nd_loop` of the kernel function (see
                      `numpipe.language.pipeline.pingpong`).
    target            "gpu", "sim" or "auto" (default: the environment's NUMPIPE_TARGET, else
                      "auto")
    cluster           CTAs of a cluster, an int or up to 3 along the grid's dimensions: they run at
                      the same time on the SMs of one GPC. The grid is a multiple of it in each
                      dimension; at most 8 CTAs, 16 where they fit
    cluster_names     names of the cluster's axes, for `axis_index` and for the `collective_axes` of
                      a BlockSpec: its CTAs may load blocks for each other. Loops over `tiles` deal
                      tiles to clusters then, not to CTAs.
    cooperative       True: all CTAs run at the same time, or the launch is refused
    programmatic      programmatic dependent launch: the kernel may be launched while the one before
                      it in the stream ends, and waits for that end before it touches global memory.
                      False: not before that end. Default: True, for cooperative kernels False
    without           parameters that this kernel leaves out: they are None in its source, where
                      ``if bias is not None:`` is decided when it is compiled. So one function may
                      be several kernels, with and without an array or a scalar
    workspace         a `Workspace`, or a function of the arrays and Statics (by parameter name)
                      that returns one: the last array parameter is global memory for partial sums
                      (`combine`), which numpipe allocates and calls do not pass
    semaphores        of a kernel that runs on several GPUs at once: how many there are on each, or
                      a function of the arguments (by parameter name) that says it. The last array
                      parameter is an int32 array of them, which numpipe allocates and calls do not
                      pass; calls take ``mesh=``, a `Mesh`. Such a kernel has a `persistent` grid

    Positional parameters are arrays or scalars, outputs behind inputs; scalars may stand anywhere,
    and a call that leaves out the outputs passes those behind them by name. Parameters with a
    default (a bool, int, float or NumPy scalar) and keyword-only ones are run-time scalars; those
    annotated `numpipe.Static` are compile-time constants, one compile a value. Any may be passed by
    name: for ``def k(a, b, c, alpha=1.0)`` with an out_type, call ``k(a, b)``, ``k(a, b,
    alpha=2.0)`` or ``k(a, b, out=c)``; without, ``k(a, b, c)`` or ``k(a, b, c, 2.0)``. A Python int
    is an int32 (a float where the default is one), a float a float32, a NumPy scalar has its own
    type. Calls take besides ``out=``, ``target=`` and ``stream=``, those of a kernel with
    semaphores ``mesh=``.

    Raises SpecError for arguments that do not fit, CompileError for source that cannot be compiled,
    TargetError where the target cannot run, LaunchError when the driver fails; on the simulated SM
    PipelineRace and PipelineDeadlock.
    """
    from ..launch.attributes import axis_names, names_of, of_options
    from ..plan.params import CompilerParams
    from ..plan.split import SplitOptions
    from .kernel import Kernel
    from .options import Options, Signature

    parsed = None if signature is None else Signature.parse(signature)

    def make(function: Callable[..., Any]) -> Kernel:
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
            ),
        )

    return make if function is None else make(function)
