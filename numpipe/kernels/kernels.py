"""`@numpipe.kernel`: a kernel function, its options, and what one does with the kernel that they make.

A call binds its arguments, allocates outputs, finds (or makes) the plan for these shapes and types, and runs it (`calls`): on the
GPU through the launcher, in CPython on the simulated SM (`variants`). Calls on device arrays that were made before are launched
again (`repeats`): a few dictionary look-ups and one driver call.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ..compile.built import Built, check_inspect
from ..compile.lift.asked import Said
from ..diagnostics.errors import NumpipeError, SpecError
from ..diagnostics.frames import brief, shorten
from ..launch import attributes
from ..launch.faults import DriverError, naming, of_kernel
from ..plan.specs import CompilerParams
from .bound import Bound, bind
from .calls import Calls
from .options import Options, names
from .repeats import MISS, Repeats
from .shapes import Signature

__all__ = ["Kernel", "kernel"]


def kernel(function: Callable[..., Any] | None = None, /, *, grid: Any = (1,), grid_names: Sequence[str] = (),
           out_type: Any = None, signature: str | None = None, num_compute_wgs: int | None = None, wg_axis: str | None = None,
           memory_registers: int | None = None, warp_specialized: bool = True, in_specs: Any = None, out_specs: Any = None,
           compiler_params: CompilerParams | None = None, target: str | None = None, cluster: Any = None,
           cluster_names: Sequence[str] = (), cooperative: bool = False, programmatic: bool | None = None,
           schedule: str = "cooperative", without: Sequence[str] = (), workspace: Any = None) -> Any:
    """Make a kernel of a Python function over references.

    grid              CTAs: a tuple of 1 to 3 ints, a function of the kernel's arguments (by parameter name) that returns
                      one, or `persistent()`
    grid_names        names of the grid's axes, for `axis_index`
    out_type          function of the arguments (by parameter name) returning an ArrayType, or a tuple of them: the trailing
                      parameters without a default are outputs, which the call allocates and returns. Without it the caller
                      passes them.
    signature         shapes that belong together, in NumPy's gufunc notation: ``"(m,k),(n,k)->(m,n)"``; checked at the call
    num_compute_wgs   compute warpgroups of a CTA (one more is the memory role); default: 2, without a memory role 1
    wg_axis           name of the compute warpgroups' axis; default: "wg"
    memory_registers  registers a lane of the memory role keeps (a multiple of 8, 24…256; default: 40); compute warpgroups
                      share the rest. These three may instead be said by the kernel's emit_pipeline_warp_specialized.
    warp_specialized  False: no memory role. All warpgroups of the CTA (at most 8) run the kernel function in the compute role,
                      with the registers of the launch, and each loads for itself: pipelines are single-stream there
    in_specs, out_specs
                      BlockSpecs, with index maps over the kernel's whole grid: the function is given a tile for each instead of
                      arrays, inputs before outputs (see `pipeline`), and is called at each step of a pipeline. By
                      ``CompilerParams(dimension_semantics=("parallel", …, "sequential"))`` the first dimensions of the grid are
                      CTAs, the others the pipeline's; without, all are CTAs. `program_id` and `num_programs` are of the whole
                      grid.
    compiler_params   see CompilerParams
    schedule          "cooperative": the compute warpgroups share each tile of a loop over `tiles`. "pingpong": they take turns on
                      whole tiles, and one stores its tile while the next multiplies: the warpgroup axis has size 1 then, so
                      that ``rows = tm // axis_size("wg")`` are all rows of the tile. Every pipeline stands in a loop over
                      `tiles` or `nd_loop` of the kernel function (see `numpipe.language.pipeline.turns`).
    target            "gpu", "sim" or "auto" (default: the environment's NUMPIPE_TARGET, else "auto")
    cluster           CTAs of a cluster, an int or up to 3 along the grid's dimensions: they run at the same time on the SMs of one
                      GPC. The grid is a multiple of it in each dimension; at most 8 CTAs, 16 where they fit
    cluster_names     names of the cluster's axes, for `axis_index` and for the `collective_axes` of a BlockSpec: its CTAs may load
                      blocks for each other. Loops over `tiles` deal tiles to clusters then, not to CTAs.
    cooperative       True: all CTAs run at the same time, or the launch is refused
    programmatic      programmatic dependent launch: the kernel may be launched while the one before it in the stream ends, and
                      waits for that end before it touches global memory. False: not before that end. Default: True, for
                      cooperative kernels False
    without           names of parameters that this kernel has not: they are None in its source, where ``if bias is not None:`` is
                      decided when it is compiled. So one function may be several kernels, with and without an array or a scalar
    workspace         a `Workspace`, or a function of the arrays and Statics (by parameter name) that returns one: the last array
                      parameter is global memory for partial sums (`combine`), which numpipe allocates and calls do not pass

    Positional parameters are arrays or scalars, outputs behind inputs. Parameters with a default (a bool, int, float or
    NumPy scalar) and keyword-only ones are run-time scalars; those annotated `numpipe.Static` are compile-time constants,
    one compile a value. Any may be passed by name: for ``def k(a, b, c, alpha=1.0)`` with an out_type, call ``k(a, b)``,
    ``k(a, b, alpha=2.0)`` or ``k(a, b, out=c)``; without, ``k(a, b, c)`` or ``k(a, b, c, 2.0)``. A Python int is an int32
    (a float where the default is one), a float a float32, a NumPy scalar has its own type. Calls take besides ``out=``,
    ``target=`` and ``stream=``.

    Raises SpecError for arguments that do not fit, CompileError for source that cannot be compiled, TargetError where the
    target cannot run, LaunchError when the driver fails; on the simulated SM PipelineRace and PipelineDeadlock.
    """
    options = Options(grid, names(grid_names), out_type, None if signature is None else Signature.parse(signature),
                      Said(num_compute_wgs, wg_axis, memory_registers), warp_specialized,
                      CompilerParams() if compiler_params is None else compiler_params, target, in_specs, out_specs, schedule,
                      without=names(without), workspace=workspace)

    def make(function: Callable[..., Any]) -> Kernel:
        given = attributes.given(getattr(function, "__name__", repr(function)), cluster, cooperative, programmatic)
        named = attributes.axis_names(getattr(function, "__name__", repr(function)), cluster, cluster_names)
        return Kernel(function, dataclasses.replace(options, attributes=given, cluster_names=named))

    return make if function is None else make(function)


class Kernel(Calls):
    """A kernel function; call it on arrays."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, function)  # first: what a function has in its __dict__ hides nothing of the kernel's
        super().__init__(function, options)
        self._repeats = Repeats(self._arguments, self._call)

    # ---- calls
    def __getitem__(self, launch: Any) -> NoReturn:
        """Not how a kernel is launched here: SpecError."""
        raise SpecError(f"kernel {self.name}: {self.name}[…](…) is how numba.cuda launches; call {self.name}(…): the grid and the "
                        "warpgroups are said once, @numpipe.kernel(grid=…, num_compute_wgs=…), a stream is passed as stream=")

    __iter__ = None  # without it Python would iterate by __getitem__

    def __call__(self, /, *args: Any, out: Any = None, target: str | None = None, stream: Any = None, **named: Any) -> Any:
        """Run the kernel; returns the outputs it allocated (or `out`)."""
        try:
            try:
                if target is None:
                    result = self._repeats(args, named, out, stream)
                    if result is not MISS:
                        return result
                return self._call(args, named, out, target, stream)
            except DriverError as error:
                raise of_kernel(error, self.name) from error
        except NumpipeError as error:
            shorten(error)  # NUMPIPE_TRACEBACK=full shows the frames below
            raise

    @brief
    def bind(self, /, *args: Any, out: Any = None, target: str | None = None, **named: Any) -> Bound:
        """A call to be made often, with all that it needs prepared: ``bound()`` launches it, see `Bound`."""
        with naming(self.name):
            return bind(self, self.resolve(args, named, out, target, None), out)

    @brief
    def simulate(self, /, *args: Any, seed: int | None = None, trace: Any = None, out: Any = None, **named: Any) -> Any:
        """Run on the simulated SM: `seed` picks a random legal schedule (None: the virtual-time order).

        `trace` is a numpipe.Trace that collects events, or the name of a file for them, ``run.json`` (for ui.perfetto.dev) or
        ``run.txt``, which is written also when the run ends in a race or a deadlock.
        """
        from ..traces.trace import collecting

        with collecting(trace) as events:
            return self._call(args, named, out, "sim", None, seed, events, judged=True)

    def _call(self, given: tuple[Any, ...], named: dict[str, Any], out: Any, target: str | None, stream: Any,
              seed: int | None = None, trace: Any = None, judged: bool = False) -> Any:
        asked = self.resolve(given, named, out, target, stream)
        launched = self.run(asked, stream, seed, trace, judged)
        if launched is not None and len(asked.values) == self._own_scalars:
            plan, made = asked.plan, asked.infos[len(asked.infos) - asked.fresh:]
            if asked.values:  # they follow from the arrays' shapes
                launched = plan.prepared.alone(plan.grid, asked.infos, asked.values, launched.stream)
            self._repeats.learn(asked.call, named, asked.infos, made, launched)
        return asked.result(out)

    # ---- inspection
    @brief
    def compiled(self, /, *args: Any, out: Any = None, **named: Any) -> Built:
        """The compiled kernel for arguments of these types, with what the compiler made on the way; an ArrayType may stand for an
        array. Needs no GPU."""
        asked = self.described(args, named, out)
        return self.built(asked.unit_key, asked.obstacles)

    @brief
    def inspect(self, what: str, /, *args: Any, out: Any = None, **named: Any) -> Any:
        """The kernel compiled for these arguments, for people to read; an ArrayType may stand for an array. Needs no GPU.

        "ptx", "sass", "llvm"   its code, as text ("sass" needs nvdisasm)
        "source"                the rewritten kernel function, which both executions run
        "resources"             a `Resources`: registers, spills, shared memory and what it is for, barriers, tensor maps, bytes of
                                machine code, seconds of the compile; print it for a table
        "gate"                  what the build gate finds wrong with the machine code: empty when it passes

        Raises SpecError for another word, TargetError where a tool is missing, and what compiling raises. The Numba kernel
        underneath is ``kernel.compiled(*args).kernel``.

        >>> print(matmul.inspect("resources", a, b))
        """
        check_inspect(what, self.name)
        asked = self.described(args, named, out)
        return self.shown(what, asked.unit_key, asked.obstacles)
