"""A kernel as it is written: a Python function, its parameters, its options, and the parameters
that its source stores to."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import launch
from ..compile import cache
from ..compile.fingerprint import Fingerprint
from ..diagnostics.errors import SpecError
from ..diagnostics.source import remember
from ..launch.arrays import READERS
from ..launch.mesh import Mesh
from ..plan import folded_grids
from ..plan.plans import ArrayArg
from ..plan.specs import ArrayType
from .arguments import SCALAR, Parameters, scalar_dtype
from .call_records import Bound, Described
from .call_results import HostView, Results
from .options import Options
from .tiled import Tiled, tiled

if TYPE_CHECKING:
    from ..compile.lift.positions import Source


class Definition:
    """A kernel before it is called: its function, parameters, options and source."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        options = options.without_workspace(function)
        arguments = Parameters(function, options.without)
        self.function = function
        remember(function)
        self._begin(
            arguments,
            options,
            tiled(
                arguments.kernel,
                arguments.names,
                options.in_specs,
                options.out_specs,
                options.grid,
                options.compiler_params,
                options.warp_specialized,
            ),
        )

    def _begin(self, arguments: Parameters, options: Options, tiled: Tiled | None) -> None:
        """Take what a kernel is written with."""
        self.arguments, self.options, self.tiled = arguments, options, tiled
        self.name = arguments.kernel
        self.parameters = arguments.names
        self.statics = arguments.statics
        self.grid = options.grid
        """as it was given; of a kernel over tiles with its sequential dimensions"""
        self.own_names: tuple[str, ...] = ()
        """the scalars that it passes itself, the last ones: the sizes of a kernel over tiles'
        sequential dimensions"""
        self.steps: Callable[..., tuple[int, ...]] | None = None
        """the function of the arguments that returns these sizes"""
        if self.tiled is not None:
            self.own_names = self.tiled.grid.hidden
            if self.own_names:
                self.steps = self.tiled.steps(options.grid)
            options = self.options = dataclasses.replace(
                options,
                grid=self.tiled.ctas(options.grid),
                compiler_params=options.compiler_params.replace(
                    dimension_semantics=self.tiled.grid.semantics
                ),
            )
            self.arguments.hide(self.own_names)
        self.grid_rank = self._rank()
        """the grid's dimensions, where it has more than three"""
        self.size_names = folded_grids.names(self.grid_rank)
        """the last of its own scalars: the sizes of dimensions that the launch flattens"""
        if self.size_names:
            self._pass_sizes()
        self.workspace = (
            None if options.workspace is None else self.arguments.reserve_last("workspace", "work")
        )
        """the name of the parameter that is the workspace"""
        self._semaphores = (
            None
            if options.semaphores is None
            else self.arguments.reserve_last("semaphores", "ready")
        )
        """the name of the parameter that is the array of semaphores"""
        self.most = len(self.parameters) + len(self.arguments.scalars)
        """how many arguments a call has at most, without Statics"""
        self.arguments.several = options.semaphores is not None
        options.check(self.name, len(self.parameters))
        self.results = Results(self.arguments, options)

    # ---- its grid
    def _rank(self) -> int:
        """Return how many dimensions the grid has, if they are more than three: of a function, as
        many as it has names."""
        grid, tiled = self.options.grid, self.tiled
        if isinstance(grid, (tuple, list)):
            return max(3, len(grid))
        return (
            max(3, tiled.grid.parallel if tiled is not None else len(self.options.grid_names))
            if callable(grid)
            else 3
        )

    def _pass_sizes(self) -> None:
        """Have the kernel pass the sizes of the dimensions that the launch flattens, behind what it
        passes already."""
        steps, options, name = self.steps, self.options, self.name

        def sizes(**arguments: Any) -> tuple[int, ...]:
            grid = options.grid(**arguments) if callable(options.grid) else options.grid
            # what it holds `targets.ctas` checks
            dims = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
            options.check_names(dims, name)
            self.check_rank(dims)
            before = () if steps is None else steps(**arguments)
            return *before, *map(int, folded_grids.sizes(dims))

        if callable(options.grid):
            functools.update_wrapper(sizes, options.grid)
        else:
            sizes.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
        self.steps, self.own_names = sizes, (*self.own_names, *self.size_names)
        self.arguments.hide(self.size_names)

    def check_rank(self, dims: tuple[int, ...]) -> None:
        """Raise SpecError for a grid of other dimensions than those that the kernel was made
        for."""
        if max(3, len(dims)) != self.grid_rank:
            names = tuple(f"d{d}" for d in range(len(dims)))
            raise SpecError(
                f"kernel {self.name}: the grid {dims} has {len(dims)} dimensions, and a function "
                "that returns more than 3 needs a name for each: give the kernel "
                f"grid_names={names}"
            )

    def check_mesh(self, mesh: Mesh | None) -> None:
        """Raise SpecError for a call with a mesh of a kernel that has none, or the reverse."""
        if (mesh is None) == (self.options.semaphores is None):
            return
        raise SpecError(
            f"kernel {self.name}: mesh= is for kernels of several GPUs, and this one has no "
            "semaphores: leave mesh= out, or make it with @numpipe.kernel(semaphores=…)"
            if mesh is not None
            else (
                f"kernel {self.name}: it has semaphores, so it runs on the GPUs of a mesh: pass "
                "mesh=, numpipe.Mesh.simulated(2), numpipe.Mesh.local() or numpipe.Mesh.torch()"
            )
        )

    # ---- its source
    def read(self) -> Source:
        """Read the function's source, with the values that its module's names have now."""
        from ..compile.lift.lift import read

        source = read(self.function)
        return source if self.tiled is None else self.tiled.source(source, self.parameters)

    def fingerprint(self) -> Fingerprint:
        """Return what its machine code depends on now, beside a call's types and Statics."""
        options = self.options
        return Fingerprint(
            self.function,
            self.tiled,
            options.grid_names,
            options.split,
            options.warp_specialized,
            options.compiler_params,
            options.schedule,
            options.cluster,
            options.without,
        )

    @functools.cached_property
    def stores(self) -> dict[str, list[str]]:
        """The parameters that the kernel stores to: all that it may store to, and those whose
        stores were seen."""

        def search() -> dict[str, list[str]]:
            from ..compile.lift.stored_parameters import stored

            source = self.read()
            return {
                which: sorted(stored(source, surely=which == "seen")) for which in ("all", "seen")
            }

        if self.tiled is not None:
            return dict.fromkeys(("all", "seen"), self.parameters[len(self.tiled.ins) :])
        return cache.facts(self.fingerprint().key("stores") if cache.enabled() else None, search)

    @functools.cached_property
    def first_output(self) -> int:
        """The index of the first parameter that the kernel stores to; from there on parameters are
        outputs."""
        return next(
            (i for i, name in enumerate(self.parameters) if name in self.stores["all"]),
            len(self.parameters),
        )

    @property
    def scalars(self) -> dict[str, Any]:
        """The run-time scalars that calls may name, with their defaults, or `MISSING`."""
        scalars = self.arguments.scalars
        return {name: scalars[name] for name in scalars if name not in self.own_names}

    def scalar_names(self, arrays: Collection[str]) -> list[str]:
        """Return the run-time scalars' names in the order in which kernels take them; `arrays`: the
        parameters that are arrays."""
        return [*(p for p in self.parameters if p not in arrays), *self.arguments.scalars]

    # ---- a call
    def bind(self, args: tuple[Any, ...], named: dict[str, Any]) -> Bound:
        """Bind a call's arguments."""
        return self.arguments.bind(args, named)

    def known(self, bound: Bound, view: Callable[[Any], Any] = HostView) -> dict[str, Any]:
        """Return what a user's function of the arguments may take of a call that is not described,
        arrays as `view` shows them; an ArrayType may stand for an array, its sizes may be
        symbols."""

        def shown(name: str, value: Any) -> Any:
            if type(value) in (list, tuple):  # of a kernel of several GPUs
                return [shown(name, each) for each in value]
            if isinstance(value, SCALAR):
                return value
            return view(
                value if isinstance(value, ArrayType) else launch.describe(value, name, self.name)
            )

        return bound.known({name: shown(name, value) for name, value in bound.arguments.items()})

    def describe(
        self,
        bound: Bound,
        out: Any = None,
        target: str | None = None,
        mesh: Mesh | None = None,
        own: int = 0,
        *,
        types: bool = False,
        sizes: bool = True,
    ) -> Described:
        """Describe the arrays of a call, and pass the scalars that follow from their shapes.

        types  whether an ArrayType may stand for an array
        sizes  whether these scalars are computed; else each is 1
        """
        self.check_mesh(mesh)
        describe = described if types else launch.describe
        arrays, numbers = {}, {}
        for name, value in bound.arguments.items():
            # isinstance takes 0.07 µs for an array, the look-up 0.02
            if type(value) not in READERS and isinstance(value, SCALAR):
                numbers[name] = value
            else:
                arrays[name] = describe(value, name, self.name)
        if sizes and self.steps is not None:
            dims = self.results.ask(self.steps, "grid", bound.known(arrays))
            numbers.update(zip(self.own_names, dims, strict=True))
        missing: Sequence[str] = ()
        if len(bound.arguments) < self.most:
            missing = [name for name in self.parameters if name not in bound.arguments]
        results = None
        if out is not None:
            results = self.results.elsewhere(out, missing)
            for name, array in zip(missing, results, strict=True):
                arrays[name] = describe(array, name, self.name)
        return Described(bound, arrays, numbers, missing, results, target, mesh, own)

    def check_outputs(self, numbers: Mapping[str, Any]) -> None:
        """Raise SpecError for a scalar that stands where an output belongs."""
        scalars = {name for name in self.parameters if name in numbers}
        for name in scalars and scalars.intersection(self.stores["seen"]):
            behind = self.parameters[self.parameters.index(name) + 1 :]
            value, defaults = numbers[name], self.arguments.scalars
            scalar = next(
                (other for other in (*behind, *defaults) if other not in self.stores["all"]), None
            )
            raise SpecError(
                f"kernel {self.name}: argument '{name}' is an output, which needs an array, got "
                f"{value!r}"
                + (
                    ""
                    if self.options.out_type is None
                    else ": leave it out, out_type says what it is"
                )
                + (
                    ""
                    if scalar is None
                    else f"; pass scalars behind the outputs by name, e.g. {scalar}={value!r}"
                )
            )

    def key(self, call: Described) -> tuple[tuple[Any, ...], dict[int, str]]:
        """Return the key of the variant that a call needs, and by argument why TMA cannot address
        an array, which its use in a pipeline raises. Host arrays are copied to padded rows, but not
        for other GPUs to reach them."""
        arrays: list[ArrayArg] = []
        obstacles: dict[int, str] = {}
        outputs = self.parameters[self.first_output :]
        for name, info in call.arrays.items():
            host = info.kind == "host"
            output = name in outputs
            reason = launch.obstacle_in_place(info)
            padded = host and not call.gpus
            if reason and not padded:
                obstacles[len(arrays)] = str(launch.not_addressable(info, reason, name, self.name))
            arrays.append(
                ArrayArg(
                    name,
                    info.dtype,
                    len(info.shape),
                    launch.major_order(info),
                    host or reason is None,
                    padded or not output or ends_whole(info),
                    output,
                )
            )
        if self.workspace is not None:
            arrays.append(ArrayArg(self.workspace, np.dtype(np.float32), 2, workspace=True))
        if self._semaphores is not None:
            arrays.append(
                ArrayArg(
                    self._semaphores,
                    np.dtype(np.int32),
                    1,
                    tma=False,
                    tma_store=False,
                    semaphores=True,
                )
            )
        kinds = tuple(scalar_dtype(value, name, self.name) for name, value in call.numbers.items())
        return (tuple(arrays), kinds, call.bound.statics, call.gpus), obstacles


def ends_whole(info: launch.ArrayInfo) -> bool:
    """Return whether an array's rows, its columns if it is column-major, end at a multiple of 16
    bytes.

    >>> narrow = np.zeros((8, 3), np.float16)
    >>> (
    ...     ends_whole(launch.describe(narrow, "c")),
    ...     ends_whole(launch.describe(np.asfortranarray(narrow), "c")),
    ... )
    (False, True)
    """
    inner = -1 if launch.major_order(info) == "row" else 0
    return not info.shape or info.shape[inner] * info.dtype.itemsize % 16 == 0


def described(value: Any, name: str, kernel: str) -> launch.ArrayInfo:
    """Describe an array, or the one that an ArrayType stands for."""
    return (
        launch.info_of_zeros(value.shape, value.dtype)
        if isinstance(value, ArrayType)
        else launch.describe(value, name, kernel)
    )
