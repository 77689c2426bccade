"""The definition of a kernel: a Python function, its parameters, its options, and the parameters
that its source stores to."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import launch
from ..arch.dimensions import Ints, Names
from ..compile import cache
from ..compile.fingerprint import Fingerprint
from ..diagnostics.argument_checks import as_tuple
from ..diagnostics.errors import SpecError
from ..diagnostics.source import remember
from ..launch.array_info import ArrayInfo
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

    def __init__(self, function: Callable, options: Options) -> None:
        options = options.without_workspace(function)
        arguments = Parameters.of(function, options.without)
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
        """Initialize the definition from parameters, options and, for a kernel over tiles, its
        BlockSpecs."""
        self.arguments, self.options, self.tiled = arguments, options, tiled
        self.name = arguments.kernel
        self.parameters = arguments.names
        self.statics = arguments.statics
        self.grid = options.grid
        """the grid as given; for a kernel over tiles including the sequential dimensions"""
        self.own_names: Names = ()
        """trailing scalars that numpipe passes: for a kernel over tiles, the sizes of its
        sequential dimensions"""
        self.steps: Callable[..., Ints] | None = None
        """function of the arguments that returns these sizes"""
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
        """number of grid dimensions, at least 3"""
        self.size_names = folded_grids.names(self.grid_rank)
        """the last of `own_names`: the sizes of the dimensions that the launch folds into x"""
        if self.size_names:
            self._pass_sizes()
        self.workspace = (
            None if options.workspace is None else self.arguments.reserve_last("workspace", "work")
        )
        """name of the workspace parameter"""
        self._semaphores = (
            None
            if options.semaphores is None
            else self.arguments.reserve_last("semaphores", "ready")
        )
        """name of the parameter that is the array of semaphores"""
        self.most = len(self.parameters) + len(self.arguments.scalars)
        """maximum number of arguments of a call, not counting Statics"""
        self.arguments.several = options.semaphores is not None
        options.check(self.name, self.parameters)
        self.results = Results(self.arguments, options, lambda: {*self.stores["all"]})

    # ---- its grid
    def _rank(self) -> int:
        """Return the number of grid dimensions, at least 3; for a grid function it is the number of
        grid names."""
        grid, tiled = self.options.grid, self.tiled
        if isinstance(grid, (tuple, list)):
            return max(3, len(grid))
        return (
            max(3, tiled.grid.parallel if tiled is not None else len(self.options.grid_names))
            if callable(grid)
            else 3
        )

    def _pass_sizes(self) -> None:
        """Add the sizes of the dimensions that the launch folds into x to the scalars that numpipe
        passes."""
        steps, options, name = self.steps, self.options, self.name

        def sizes(**arguments: Any) -> Ints:
            grid = options.grid(**arguments) if callable(options.grid) else options.grid
            # `run_target.ctas` checks the values
            dims = as_tuple(grid)
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

    def check_rank(self, dims: Ints) -> None:
        """Raise SpecError if the grid's number of dimensions differs from what the kernel was
        defined with."""
        if max(3, len(dims)) != self.grid_rank:
            names = tuple(f"d{d}" for d in range(len(dims)))
            raise SpecError(
                f"kernel {self.name}: the grid {dims} has {len(dims)} dimensions, and a function "
                "that returns more than 3 needs a name for each: give the kernel "
                f"grid_names={names}"
            )

    def check_mesh(self, mesh: Mesh | None) -> None:
        """Raise SpecError for a mesh passed to a kernel of one GPU, or no mesh for a kernel of
        several."""
        if (mesh is None) == (self.options.semaphores is None):
            return
        raise SpecError(
            f"kernel {self.name}: mesh= is for kernels that run on several GPUs, and this one has "
            "no semaphores: leave mesh= out, or define the kernel with "
            "@numpipe.kernel(semaphores=…)"
            if mesh is not None
            else (
                f"kernel {self.name}: it has semaphores, so it runs on the GPUs of a mesh: pass "
                "mesh=numpipe.Mesh.simulated(2), numpipe.Mesh.local() or numpipe.Mesh.torch()"
            )
        )

    # ---- its source
    def read(self) -> Source:
        """Read the function's source, with the current values of its module's globals."""
        from ..compile.lift.lift import read

        source = read(self.function)
        return source if self.tiled is None else self.tiled.source(source, self.parameters)

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of everything that its machine code depends on, apart from a
        call's types and Statics."""
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
        """The parameters that the kernel stores to: "all" that it may store to, and those "seen" to
        be stored to."""

        def search() -> dict[str, list[str]]:
            from ..compile.lift.stored_parameters import stored

            source = self.read()
            known = {
                name: value
                for name, value in self.statics.items()
                if getattr(type(value), "_same_stores", False)
            }
            return {
                which: sorted(stored(source, known, surely=which == "seen"))
                for which in ("all", "seen")
            }

        if self.tiled is not None:
            return dict.fromkeys(("all", "seen"), self.parameters[len(self.tiled.ins) :])
        return cache.facts(self.fingerprint().key("stores") if cache.enabled() else None, search)

    @functools.cached_property
    def first_output(self) -> int:
        """The index of the first parameter that the kernel may store to. It and all later ones are
        outputs."""
        return next(
            (i for i, name in enumerate(self.parameters) if name in self.stores["all"]),
            len(self.parameters),
        )

    @property
    def scalars(self) -> dict[str, Any]:
        """The run-time scalars that calls may name, mapped to their defaults or `MISSING`."""
        scalars = self.arguments.scalars
        return {name: scalars[name] for name in scalars if name not in self.own_names}

    def scalar_names(self, arrays: Collection[str]) -> list[str]:
        """Return the names of the run-time scalars in the order in which kernels take them;
        `arrays` are the names of the array parameters."""
        return [*(p for p in self.parameters if p not in arrays), *self.arguments.scalars]

    # ---- a call
    def bind(self, args: tuple, named: dict[str, Any]) -> Bound:
        """Bind a call's arguments."""
        return self.arguments.bind(args, named)

    def known(self, bound: Bound, view: Callable[[Any], Any] = HostView) -> dict[str, Any]:
        """Return the arguments that can be passed to a user's function (`grid`, `out_type`) before
        the call is described.

        Arrays are converted by `view`. An ArrayType, whose sizes may be symbols, can be passed in
        place of an array.
        """

        def shown(name: str, value: Any) -> Any:
            if type(value) in (list, tuple):  # one array per GPU
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
        """Describe the arrays of a call, and add the scalars computed from their shapes.

        types  whether an ArrayType may be passed in place of an array
        sizes  whether to compute these scalars; if False, each is 1
        """
        self.check_mesh(mesh)
        describe = described if types else launch.describe
        arrays, numbers = {}, {}
        for name, value in bound.arguments.items():
            # isinstance takes 0.07 µs for an array, the look-up 0.02 µs
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
        """Raise SpecError for a scalar passed where an output belongs."""
        scalars = {name for name in self.parameters if name in numbers}
        for name in scalars and scalars.intersection(self.stores["seen"]):
            behind = self.parameters[self.parameters.index(name) + 1 :]
            value, defaults = numbers[name], self.arguments.scalars
            scalar = next(
                (other for other in (*behind, *defaults) if other not in self.stores["all"]), None
            )
            raise SpecError(
                f"kernel {self.name}: argument '{name}' is an output and must be an array, got "
                f"{value!r}"
                + (
                    ""
                    if self.options.out_type is None
                    else ": leave it out, its type is known from out_type"
                )
                + (
                    ""
                    if scalar is None
                    else f"; pass scalars after the outputs by name, e.g. {scalar}={value!r}"
                )
            )

    def _static_dims(self, name: str, info: ArrayInfo) -> dict[str, Any]:
        """Return the fields of an array's `ArrayArg` that the option `static_dims` decides."""
        dims, shape, itemsize = self.options.static_dims, info.shape, info.dtype.itemsize
        constant = dims.get(name, ()) if isinstance(dims, Mapping) else dims
        sizes = [size if axis - len(shape) in constant else None for axis, size in enumerate(shape)]
        adjacent = bool(-1 in constant and shape) and (
            info.strides[-1] == itemsize or shape[-1] == 1
        )
        dense = adjacent and len(shape) > 1 and info.strides[-2] == shape[-1] * itemsize
        return {
            "sizes": tuple(sizes) if constant else (),
            "adjacent": adjacent,
            "dense": dense and isinstance(dims, Mapping),
        }

    def key(self, call: Described) -> tuple[tuple, dict[int, str]]:
        """Return the key of the variant that a call needs, and a dictionary from argument indices
        to reasons why TMA cannot address the array.

        A reason becomes an error where the array is copied by TMA. Host arrays are copied to padded
        rows, except where other GPUs access them."""
        arrays: list[ArrayArg] = []
        obstacles: dict[int, str] = {}
        outputs = self.parameters[self.first_output :]
        for name, info in call.arrays.items():
            host = info.kind == "host"
            output = name in outputs
            padded = host and not call.gpus
            after_copies = launch.tma_addressable(info)
            reason = launch.obstacle_in_place(info) if call.gpus else after_copies
            if reason:
                obstacles[len(arrays)] = str(launch.not_addressable(info, reason, name, self.name))
            arrays.append(
                ArrayArg(
                    name,
                    info.dtype,
                    len(info.shape),
                    launch.major_order(info),
                    after_copies is None,
                    padded or not output or ends_whole(info),
                    output,
                    **self._static_dims(name, info),
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
    """Return whether the rows of an array (or its columns, if it is column-major) end at a multiple
    of 16 bytes.

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
    """Describe an array, or the array that an ArrayType describes."""
    return (
        launch.info_of_zeros(value.shape, value.dtype, value.order)
        if isinstance(value, ArrayType)
        else launch.describe(value, name, kernel)
    )
