"""The options of `@numpipe.kernel`, checked when the kernel is made."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..arch.dimensions import Ints, Names
from ..diagnostics.argument_checks import (
    FLAG,
    FUNCTION,
    NONE,
    Rule,
    a,
    as_tuple,
    is_int,
    require,
    told,
    whole,
    word,
)
from ..diagnostics.errors import SpecError
from ..launch.attributes import MAX_GRID, PLAIN, Attributes
from ..launch.current_gpu import TARGET_NAMES
from ..plan.folded_grids import MOST, along_x, launched
from ..plan.kernel_shape import SCHEDULES, KernelShape
from ..plan.specs import CompilerParams, Persistent, Workspace
from ..plan.split import Split, SplitOptions

_ARRAY = r"\((?:\w+(?:,\w+)*)?\)"
"""regular expression of one array in a signature"""
MOST_SEMAPHORES = 1 << 20
"""per kernel and GPU"""
_LEAST = Split(1, "", 24)
"""the smallest split, to check the other options against"""


@dataclass(frozen=True)
class Signature:
    """Shape relation in NumPy's gufunc notation: the names of each array's dimensions. A number is
    a fixed size.

    >>> Signature.parse("(m,k),(n,k)->(m,n)").outputs
    (('m', 'n'),)
    """

    text: str
    inputs: tuple[Names, ...]
    outputs: tuple[Names, ...]

    @classmethod
    def parse(cls, text: str) -> Signature:
        plain = text.replace(" ", "") if isinstance(text, str) else ""
        if not re.fullmatch(rf"{_ARRAY}(,{_ARRAY})*->{_ARRAY}(,{_ARRAY})*", plain):
            raise SpecError(
                "signature must be a string in NumPy's gufunc notation, e.g. '(m,k),(n,k)->(m,n)', "
                f"got {told(text)}"
            )

        def dims(side: str) -> tuple[Names, ...]:
            return tuple(
                tuple(d for d in group[1:-1].split(",") if d) for group in re.findall(_ARRAY, side)
            )

        left, right = plain.split("->")
        return cls(text, dims(left), dims(right))

    def check(self, kernel: str, names: Sequence[str], shapes: Sequence[Ints]) -> None:
        """Raise SpecError if shapes do not agree. `names` are all arrays of a call, `shapes` the
        shapes of the leading ones."""
        groups = self.inputs + self.outputs
        if len(names) != len(groups):
            raise SpecError(
                f"kernel {kernel}: signature {self.text!r} describes {len(groups)} arrays, the "
                f"call has {len(names)} ({', '.join(names)})"
            )
        sizes: dict[str, tuple[int, str]] = {}
        for name, dims, shape in zip(names, groups, shapes, strict=False):
            if len(shape) != len(dims):
                raise SpecError(
                    f"kernel {kernel}: argument '{name}' must have {len(dims)} dimensions "
                    f"({', '.join(dims)}), got shape {tuple(shape)}"
                )
            for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
                first = (
                    (int(dim), "the signature")
                    if dim.isdigit()
                    else (size, f"'{name}'.shape[{axis}]")
                )
                expected, source = sizes.setdefault(dim, first)
                if size != expected:
                    raise SpecError(
                        f"kernel {kernel}: argument '{name}' has shape {tuple(shape)}, but {dim} "
                        f"= {expected} (from {source}) was expected in dimension {axis}: "
                        f"signature {self.text}"
                    )


@dataclass(frozen=True)
class Options:
    """The options passed to `kernel`."""

    grid: Any
    grid_names: Names
    out_type: Any
    signature: Signature | None
    split: SplitOptions
    """num_compute_wgs, wg_axis and memory_registers; a None is set by the kernel's pipelines"""
    warp_specialized: bool
    compiler_params: CompilerParams
    target: str | None
    in_specs: Any = None
    out_specs: Any = None
    schedule: str = "cooperative"
    attributes: Attributes = PLAIN
    """attributes of each launch"""
    cluster_names: Names = ()
    without: Names = ()
    """parameters of the function that this kernel leaves out"""
    workspace: Any = None
    semaphores: Any = None
    """number per GPU, or a function of the arguments; None: a kernel of one GPU"""
    static_dims: Ints | Mapping[str, Sequence[int]] = ()
    """dimensions whose sizes are compile-time constants, counted from the last one, -1: of all
    arrays, or by array"""

    def without_workspace(self, function: Callable) -> Options:
        """Leave out the workspace parameter if the `Workspace` is empty (``split=None``, or a
        cluster's axis)."""
        if not isinstance(self.workspace, Workspace) or self.workspace.exists(self.cluster_names):
            return self
        empty = inspect.Parameter.empty
        arrays = [
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind is not parameter.KEYWORD_ONLY and parameter.default is empty
        ]
        return dataclasses.replace(self, workspace=None, without=(*self.without, *arrays[-1:]))

    @property
    def takes(self) -> set[str]:
        """Names of the arguments that the functions `grid`, `out_type` and `semaphores` take."""
        functions = self.grid, self.out_type, self.semaphores
        return {
            name
            for function in functions
            if callable(function)
            for name in parameter_names(function)
        }

    def check(self, kernel: str, parameters: Sequence[str]) -> None:
        """Raise SpecError for options that are invalid for every call of a kernel with these array
        parameters."""
        self.split.check(kernel)
        typing = "a function of the arguments that returns an ArrayType (lambda …: ArrayType(…))"
        require(
            f"kernel {kernel}",
            vars(self),
            compiler_params=a(CompilerParams, text="numpipe.CompilerParams(…)"),
            out_type=Rule((typing,), callable) | NONE,
            target=NONE | word(*TARGET_NAMES),
            schedule=word(*SCHEDULES),
            warp_specialized=FLAG,
            workspace=a(Workspace, text="a numpipe.Workspace") | FUNCTION | NONE,
        )
        if (signature := self.signature) is not None:
            described = len(signature.inputs + signature.outputs)
            if described > len(parameters):
                raise SpecError(
                    f"kernel {kernel}: signature {signature.text!r} describes {described} arrays, "
                    f"the kernel has {len(parameters)} parameters"
                )
        if not self.warp_specialized and self.split.memory_registers is not None:
            raise SpecError(
                f"kernel {kernel}: memory_registers={self.split.memory_registers} is an option of "
                "the memory role, which warp_specialized=False leaves out: leave "
                "memory_registers out too"
            )
        if self.warp_specialized and self.compiler_params.ctas_per_sm > 1:
            ctas = self.compiler_params.ctas_per_sm
            raise SpecError(
                f"kernel {kernel}: ctas_per_sm={ctas}, but the roles of a CTA divide all registers "
                "of an SM; fix: pass warp_specialized=False, or leave ctas_per_sm out"
            )
        self._check_static_dims(kernel, parameters)
        self._check_semaphores(kernel)
        self._check_schedule(kernel)
        least = _LEAST.given(self.split)
        KernelShape(
            kernel,
            (),
            self.grid_names,
            least.wg_axis,
            least.num_compute_wgs,
            least.memory_registers,
            warp_specialized=self.warp_specialized,
            **self.cluster,
        )
        if not callable(self.grid):
            dims = (
                (1,)
                if isinstance(self.grid, Persistent)
                else grid_dims(self.grid, kernel, self.grid_names)
            )
            self.check_names(dims, kernel)
            if not isinstance(self.grid, Persistent):
                self.attributes.check_grid(dims, kernel)

    @property
    def cluster(self) -> dict[str, Any]:
        """The cluster arguments of a `KernelShape`; empty if the cluster's axes have no names,
        because its CTAs then share nothing."""
        return (
            {"cluster": self.attributes.cluster, "cluster_axes": self.cluster_names}
            if self.cluster_names
            else {}
        )

    def _check_static_dims(self, kernel: str, parameters: Sequence[str]) -> None:
        """Raise SpecError for dimensions that are not counted from the last one, and for arrays
        that the kernel does not have."""
        dims = self.static_dims
        for name in dims if isinstance(dims, Mapping) else ():
            if name not in (*parameters, *self.without):
                raise SpecError(
                    f"kernel {kernel}: static_dims: there is no array {name!r}; fix: name some of "
                    f"{', '.join(parameters)}"
                )
        for each in dims.values() if isinstance(dims, Mapping) else (dims,):
            if not all(is_int(dim) and dim < 0 for dim in each):
                raise SpecError(
                    f"kernel {kernel}: static_dims must be negative ints, which count dimensions "
                    f"from the last one, got {told(each)}; fix: static_dims=(-1,)"
                )

    def _check_semaphores(self, kernel: str) -> None:
        """Raise SpecError for an invalid number of semaphores, or options that exclude
        semaphores."""
        if self.semaphores is None:
            return
        require(f"kernel {kernel}", vars(self), semaphores=whole(1, MOST_SEMAPHORES) | FUNCTION)
        if self.workspace is not None:
            raise SpecError(
                f"kernel {kernel}: semaphores= and workspace= both use the last array parameter, "
                "so a kernel can have only one of them: leave one out"
            )
        if not isinstance(self.grid, Persistent):
            raise SpecError(
                f"kernel {kernel}: semaphores= needs grid=numpipe.persistent(), got "
                f"{told(self.grid)}: CTAs wait for each other, so all of them must be on the GPU "
                "at the same time; loop over numpipe.tiles in the kernel"
            )

    def _check_schedule(self, kernel: str) -> None:
        """Raise SpecError for an unknown schedule, or for a schedule on a kernel without warpgroups
        to schedule."""
        if self.schedule == "cooperative":
            return
        what = f"kernel {kernel}: schedule={self.schedule!r}"
        if not self.warp_specialized:
            raise SpecError(
                f"{what} with warp_specialized=False: it alternates compute warpgroups on what the "
                "memory role loads; leave warp_specialized out"
            )
        if self.in_specs is not None or self.out_specs is not None:
            raise SpecError(
                f"{what} with in_specs or out_specs of the kernel: their blocks are steps of one "
                "pipeline, not tiles to alternate on; use a loop over numpipe.tiles with a "
                "pipeline in it"
            )
        if self.split.num_compute_wgs == 1:
            raise SpecError(
                f"{what} alternates compute warpgroups and needs 2 or more, got "
                "num_compute_wgs=1: give num_compute_wgs=2"
            )

    def check_names(self, dims: Ints, kernel: str) -> None:
        """Raise SpecError if the number of grid names differs from the number of dimensions."""
        if self.grid_names and len(self.grid_names) != len(dims):
            raise SpecError(
                f"kernel {kernel}: grid_names {self.grid_names} name {len(self.grid_names)} "
                f"dimensions, but the grid {dims} has {len(dims)}: give one name for each"
            )


def parameter_names(function: Callable, what: str = "grid or out_type") -> list[str]:
    """Return the parameter names of a function. Raises SpecError if they cannot be inspected (a C
    function)."""
    try:
        return list(inspect.signature(function).parameters)
    except (ValueError, TypeError):
        raise SpecError(
            f"the parameter names of {function!r}, passed as {what}, cannot be inspected: write a "
            "lambda or a def"
        ) from None


def bound_defaults(function: Callable, known: Container[str]) -> dict[str, Any]:
    """Return the defaults of parameters that a call does not know: n of ``lambda x, n=n: …``."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in known and parameter.default is not inspect.Parameter.empty
    }


def grid_dims(grid: Any, kernel: str, names: Sequence[str]) -> Ints:
    """Return the number of CTAs along each dimension of a grid; `names` are used in errors. Raises
    SpecError for a grid that no GPU can launch."""
    dims = as_tuple(grid)

    def named(*axes: int) -> str:
        spelled = [
            f"{axis} ({names[axis]!r})" if len(names) == len(dims) else str(axis) for axis in axes
        ]
        return f"dimension{'s' * (len(axes) > 1)} {', '.join(spelled)}"

    for axis, n in enumerate(dims):
        if not is_int(n) or n < 0:
            where = f": {named(axis)} is {n!r}" if len(dims) > 1 else ""
            raise SpecError(
                f"kernel {kernel}: grid must be a tuple of non-negative ints, got {grid!r}{where}"
            )
    if len(dims) > MOST:
        raise SpecError(
            f"kernel {kernel}: grid must have at most {MOST} dimensions, got {len(dims)}: merge "
            "several of them into one, and divide its index in the kernel"
        )
    folded = along_x(len(dims)) or (0,)
    for axes, n, limit in zip((folded, (1,), (2,)), launched(dims), MAX_GRID, strict=True):
        if n > limit:
            along, fix = (
                (", which are launched along x together", "")
                if len(axes) > 1
                else ("", "put the largest dimension first, or ")
            )
            raise SpecError(
                f"kernel {kernel}: grid {dims} has {n} CTAs along {named(*axes)}{along}, at most "
                f"{limit} are possible: {fix}loop over numpipe.tiles in a persistent kernel"
            )
    return tuple(int(n) for n in dims)
