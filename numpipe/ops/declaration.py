"""Declarations of ops: operands, results, options, kernel, gradients and batching in one place.

From a declaration numpipe makes a function for arrays of any library, with checks and fast repeated
launches (this module), a PyTorch op (`frameworks.torch`) and a JAX op (`frameworks.jax`). A new op
is one file.

Gradients and batching rules are functions whose parameter names select their arguments: operands,
results, options, ``grad_y`` for the gradient of the result y, and ``xp`` for the library of the
arrays. ``xp`` has the array functions that PyTorch and JAX share (``xp.where``, ``xp.moveaxis``, …)
and these:

==========================  ========================================================================
``xp(op, *arrays, …)``      call an op; its result can be differentiated again
``xp.transposed(x)``        exchange the last two dimensions, without a copy if the consumer is an
                            op
``xp.cast(x, dtype)``       convert to a NumPy dtype
``xp.summed(x, shape)``     sum over the dimensions along which `shape` was broadcast
``xp.scattered(x, i, v)``   zeros like x, with values v at the indices i along the last dimension
``xp.contiguous(x)``        copy unless x is contiguous and starts at a multiple of 16 bytes
``xp.activation(name, x)``  the library's own "relu", "silu" or "gelu" (the tanh approximation)
==========================  ========================================================================
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec

from .. import launch
from ..arch.dtypes import ELEMENTS
from ..core.functions import Function
from ..diagnostics.argument_checks import Rule, as_tuple, require, told
from ..diagnostics.errors import SpecError
from ..kernels import run_target
from ..kernels.arguments import MISSING
from ..kernels.kernel import Kernel
from ..kernels.noted_calls import imagined, noted, noting, taken
from ..launch.array_info import ArrayInfo
from ..launch.repeats import OpRepeats, recorded
from ..plan.specs import ArrayType
from .op_outputs import Arrays, Place, allocated, delivered

__all__ = ["op"]

P = ParamSpec("P")
PLACE = ("out", "target", "stream")
"""parameters of a call that are neither operands nor options"""
ARRAYS = 3
"""arrays that an option that is a function may take"""


@dataclass(frozen=True)
class Operand:
    """An array that an op reads.

    dims   names of its dimensions, such as "... m k"; "" if the op's result functions check the
           shape
    types  names of the element types that it may have; by default the op's types, and the same type
           as the first operand
    """

    dims: str = ""
    types: tuple[str, ...] = ()


def of_function(name: str) -> list[str]:
    """Return the names of the operands for the arrays of a function that is an option."""
    return [f"{name}_{i}" for i in range(ARRAYS)]


def parts(name: str, value: Any) -> tuple:
    """Return a function and its arrays, padded with None, of an option that is a function or a
    tuple ``(function, *arrays)``. Raises SpecError for other values."""
    function, *arrays = value if isinstance(value, tuple) and value else (value,)
    if not (isinstance(function, Function) or (function is None and not arrays)):
        raise SpecError(
            f"{name} must be a numpipe.function, or a tuple of one and its arrays, got "
            f"{told(value)}; fix: write @numpipe.function above the function's def"
        )
    if len(arrays) > ARRAYS:
        raise SpecError(f"{name}: a function takes up to {ARRAYS} arrays, got {len(arrays)}")
    return function, *arrays, *[None] * (ARRAYS - len(arrays))


def op(
    *,
    operands: Mapping[str, str | Operand],
    results: Mapping[str, str | Callable[..., ArrayType | None]],
    types: Sequence[str],
    launch: Kernel | Callable[..., None],
    functions: Sequence[str] = (),
    checks: Mapping[str, Rule] | None = None,
    gradients: Mapping[str, Callable] | None = None,
    composite: Callable | str = "",
    batching: str | Callable = "",
    operations: Callable[..., float] | None = None,
) -> Callable[[Callable[P, Any]], Op[P]]:
    """Declare an op from a function without a body. The function's parameters are the op's operands
    and options, then ``out``, ``target`` and ``stream``, which are added if they are left out; its
    docstring becomes the op's.

    operands    the arrays, each with the names of its dimensions ("rows n"; a leading "..." is any
                number of dimensions) or an `Operand`; an operand whose default is None is optional
    functions   options that are a `numpipe.function`, or a tuple of one and up to three arrays of
                any type and shape, or None. The functions of the declaration get tuples
    results     the dimensions of each result, which has the first operand's type; or a function of
                operands (``.shape``, ``.dtype``) and options that returns an `ArrayType`, or None
                if the options omit the result, and raises SpecError if the operands do not match
    types       names of the operands' element types; empty allows every type that arrays may have
    launch      a kernel whose parameters are the operands and results, in any order, and whose
                scalars and Statics are options; or a function of operands, results, options,
                ``target`` and ``stream`` that calls kernels; ``arrays`` is a dict of all operands
                and results, ``place`` of the last two
    checks      rules for options (`diagnostics.argument_checks`)
    gradients   for an operand, or for several ("q k v"), a function that returns its gradient, or
                an op, which is called with the arguments and options that have the names of its
                own; the gradient of a broadcast operand is summed, and all are converted to the
                operand's type
    composite   a function of options that returns a replacement for the op where it is
                differentiated: a function that calls other ops, or None to differentiate the op
                itself. Or the name of an option with which the op also returns what its gradients
                need, after its first result: where it is differentiated, the option is True
    batching    rule for ``vmap``: "leading" if the first dimensions of all operands and results are
                "...", except for operands of one dimension; "merge" if their first dimension is a
                batch; "each" for one call per element of the new dimension; or a function of
                operands, options, ``size`` and ``batched`` (which operands have the new leading
                dimension)
    operations  a function that returns the number of multiplications and additions, for
                `numpipe.explain`

    ``numpipe.torch.register(op)`` and ``numpipe.jax.call(op)`` return the op for PyTorch and JAX.
    Raises SpecError if the declaration contradicts itself or the kernel, either at once or when the
    op or its gradient is first computed.

    >>> block = numpipe.BlockSpec((64, 64), lambda i: (i, 0))
    >>> @numpipe.kernel(grid=lambda x: (x.shape[0] // 64,), in_specs=block, out_specs=block)
    ... def double_kernel(x, y):
    ...     y[...] = x[...] + x[...]
    >>> @numpipe.op(
    ...     operands={"x": "rows n"},
    ...     results={"y": "rows n"},
    ...     types=["float32"],
    ...     launch=double_kernel,
    ...     gradients={"x": lambda grad_y: 2 * grad_y},
    ... )
    ... def double(x, *, out=None, target=None, stream=None):
    ...     "Return x + x."
    >>> double(np.ones((64, 64), np.float32), target="sim")[0, 0]
    np.float32(2.0)
    """

    declared = locals()
    return lambda stub: noted(Op(stub, **declared))


class Op(Generic[P]):
    """A declared op: a function of arrays of any library."""

    __qualname__: str
    sharded = False
    """whether operands are lists with one array for each GPU of a mesh"""
    place: tuple[str, ...] = PLACE
    mutates: Sequence[str] = ()
    """operands that the op writes in place"""
    contiguous = False
    """whether gradient functions receive contiguous gradients of the results"""

    def __init__(
        self,
        stub: Callable[P, Any],
        operands: Mapping[str, str | Operand],
        results: Mapping[str, Any],
        types: Sequence[str],
        launch: Kernel | Callable,
        checks: Mapping[str, Rule] | None = None,
        gradients: Mapping[str, Callable] | None = None,
        composite: Callable | str = "",
        batching: str | Callable = "",
        operations: Callable[..., float] | None = None,
        signature: inspect.Signature | None = None,
        functions: Sequence[str] = (),
    ) -> None:
        functools.update_wrapper(self, stub, updated=())
        self.name = stub.__name__
        self.signature = signature or with_place(inspect.signature(stub, eval_str=True), self.place)
        parameters = self.signature.parameters
        if not self.name.isidentifier():
            raise SpecError(f"numpipe.op decorates a def, got {stub!r}")
        if strange := [name for name in operands if name not in parameters]:
            raise SpecError(
                f"numpipe.op {self.name}: operand '{strange[0]}' is not a parameter of the "
                f"function, which has {', '.join(parameters)}"
            )
        self.operands = {
            name: given if isinstance(given, Operand) else Operand(given)
            for name, given in operands.items()
        }
        every = Operand("", tuple(ELEMENTS))
        self.functions = {name: of_function(name) for name in functions}
        self.operands |= {each: every for names in self.functions.values() for each in names}
        self.results = dict(results)
        self.types = tuple(ELEMENTS[name].dtype for name in types)
        self.optional = [
            name
            for name in self.operands
            if name not in parameters or parameters[name].default is None
        ]
        self.options = {
            name: parameter.default
            for name, parameter in parameters.items()
            if name not in operands and name not in self.place
        }
        self.launch, self.checks, self.composite = launch, checks or {}, composite
        self.gradients = {tuple(names.split()): f for names, f in (gradients or {}).items()}
        self.batching, self.operations = batching, operations
        self.torch_fronts: list[Callable] = []
        self.arguments = self.arguments_of(tuple(parameters))
        """takes a call's arguments; returns (operands, options, *`place`)"""
        self._repeats = OpRepeats(self.name, several=len(self.results) > 1)
        self._written = isinstance(launch, Kernel)
        self._check()

    def _check(self) -> None:
        """Raise SpecError if the declaration contradicts itself or its kernel."""
        of = f"numpipe.op {self.name}"
        dims = {dim for operand in self.operands.values() for dim in operand.dims.split()}
        for name, result in self.results.items():
            if isinstance(result, str) and (lacking := set(result.split()) - dims):
                raise SpecError(
                    f"{of}: result '{name}' has the dimensions '{result}', and no operand has "
                    f"{', '.join(sorted(lacking))}: they have "
                    f"{', '.join(f'{key} {each.dims!r}' for key, each in self.operands.items())}"
                )
        mesh = ["mesh"] * self.sharded
        grads = [f"grad_{name}" for name in self.results]
        known = [*self.operands, *self.options, *mesh, *self.results, *grads, "xp"]
        for names, function in self.gradients.items():
            if strange := [name for name in names if name not in self.operands]:
                raise SpecError(
                    f"{of}: there is a gradient for '{strange[0]}', which is not an operand: it "
                    f"has {', '.join(self.operands)}"
                )
            if wrong := [name for name in asked_by(function) if name not in known]:
                raise SpecError(
                    f"{of}: the gradient of {', '.join(names)} has the parameters "
                    f"{', '.join(wrong)}; possible ones are {', '.join(known)}"
                )
        if isinstance(self.launch, Kernel):
            self._check_kernel(self.launch, f"{of}: kernel {self.launch.name}")

    def _check_kernel(self, kernel: Kernel, of: str) -> None:
        """Raise SpecError if the kernel's parameters differ or it does not write every result."""
        constants = {**kernel.definition.scalars, **kernel.statics}
        arrays = [name for name in kernel.parameters if name not in self.options]
        if sorted(arrays) != sorted([*self.operands, *self.results]):
            raise SpecError(
                f"{of} has the arrays {', '.join(arrays)}, the op the operands and results "
                f"{', '.join([*self.operands, *self.results])}; fix: give them the same names"
            )
        strange = [name for name in self.options if not kernel.takes(name)]
        lacking = [
            name
            for name, default in constants.items()
            if default is MISSING and name not in self.options
        ]
        if strange or lacking:
            raise SpecError(
                f"{of} has the scalars and Statics {', '.join(constants) or 'none'}, the op the "
                f"options {', '.join(self.options) or 'none'}: "
                + (
                    f"the kernel does not take {', '.join(strange)}"
                    if strange
                    else f"{', '.join(lacking)} has no default"
                )
            )
        stored = kernel.definition.stores["all"]
        if unwritten := [name for name in self.results if name not in stored]:
            raise SpecError(
                f"{of} does not write the result '{unwritten[0]}': it stores to "
                f"{', '.join(stored) or 'nothing'}"
            )

    # ---- calls
    def __call__(self, *args: P.args, **named: P.kwargs) -> Any:
        return self.call(*self.arguments(*args, **named))

    def arguments_of(self, names: Sequence[str], by_position: bool = False) -> Callable[..., tuple]:
        """Return a function with these parameters that sorts a call's arguments into (operands,
        options, *`place`), each in the order of the declaration. Parameters have the op's kinds, or
        are all positional if `by_position`."""
        parameters = self.signature.parameters
        defaults: dict[str, Any] = dict.fromkeys([*self.place, *self.operands])
        defaults |= {name: each.default for name, each in parameters.items()}
        texts, starred = [], by_position
        split = {} if by_position else {f: of for f, of in self.functions.items() if f in names}
        for name in names:
            if not starred and parameters[name].kind is inspect.Parameter.KEYWORD_ONLY:
                texts.append("*")
                starred = True
            required = defaults[name] is inspect.Parameter.empty
            texts.append(name if required else f"{name}=defaults[{name!r}]")
        known = {*names, *[each for of in split.values() for each in of]}
        groups = [
            "".join(f"{name}, " if name in known else f"defaults[{name!r}], " for name in group)
            for group in (self.operands, self.options, self.place)
        ]
        lines = [f"{name}, {', '.join(of)} = parts({name!r}, {name})" for name, of in split.items()]
        lines.append(f"return ({groups[0]}), ({groups[1]}), {groups[2]}")
        text = f"def {self.name}({', '.join(texts)}): {'; '.join(lines)}"
        values: dict[str, Any] = {"defaults": defaults, "parts": parts}
        exec(text, values)  # as in collections.namedtuple: `inspect` takes 5 us to bind a call
        return values[self.name]  # type: ignore[no-any-return]

    def call(
        self,
        arrays: tuple,
        options: tuple,
        out: Any = None,
        target: str | None = None,
        stream: Any = None,
    ) -> Any:
        """Call the op with operands and options in the order of the declaration."""
        if target is None:
            done, out = self._repeats.again(arrays, options, out, stream)
            if done:
                return out
        values = self.checked(options)
        infos = self.described(self.given(arrays))
        wanted = self.result_types(infos, values)
        first = next(iter(infos.values()))
        self.check_place(infos, wanted, target)
        place = {"target": target, "stream": stream}
        if out is None:
            results = {
                name: allocated(first, kind.shape, place, kind.dtype)
                for name, kind in wanted.items()
            }
        else:
            results = self.outputs(out, wanted, infos)
        if any(math.prod(info.shape) for info in results.values()):
            if not self._written and taken() is None:
                self._check_written(infos, wanted, values)
            run = functools.partial(self._run, {**infos, **results, **values}, place)
            if target is None:
                described = [*infos.values(), *results.values()]
                self._repeats.call(run, arrays, options, out, described, len(results), stream)
            else:
                run()
        if out is not None:
            return out
        made = tuple(
            delivered(first._replace(dtype=info.dtype), info, stream) for info in results.values()
        )
        return made[0] if len(made) == 1 else made

    def work(self, *args: P.args, **named: P.kwargs) -> tuple[int, float]:
        """Return the bytes of a call's operands and results, each counted once, and its number of
        multiplications and additions. For several GPUs, both are per GPU."""
        arrays, options, *place = self.arguments(*args, **named)
        # the argument before the stream is a target or a mesh
        values = self.checked(options) | {"gpus": getattr(place[-2], "size", 1)}
        infos = self.described(self.given(arrays))
        wanted = self.result_types(infos, values)
        every: dict[str, Any] = {**infos, **wanted}
        nbytes = sum(math.prod(each.shape) * each.dtype.itemsize for each in every.values())
        absent = dict.fromkeys([*self.operands, *self.results])
        operations = by_name(self.operations, absent | every | values) if self.operations else 0.0
        return nbytes, operations

    def checked(self, options: Iterable) -> dict[str, Any]:
        """Return options by name. Raises SpecError if one breaks its rule."""
        values = dict(zip(self.options, options, strict=True))
        require(self.name, values, **self.checks)
        return values

    def given(self, arrays: Iterable) -> dict[str, Any]:
        """Return operands by name, without optional ones that are None."""
        return {
            name: array
            for name, array in zip(self.operands, arrays, strict=True)
            if array is not None or name not in self.optional
        }

    def described(self, given: Mapping[str, Any]) -> Arrays:
        """Describe the operands that are `given`.

        Raises SpecError for an argument that is not an array, for other element types, if types
        differ, and for tensors that require a gradient.
        """
        infos = {name: launch.describe(array, name, self.name) for name, array in given.items()}
        self.check_types(infos)
        other = f"call numpipe.torch.{self.name}, or " if self.gradients else ""
        for name, info in infos.items():
            self._check_recorded(name, info.owner, other)
        return infos

    def _check_recorded(self, name: str, array: Any, other: str = "") -> None:
        """Raise SpecError for a tensor that requires a gradient; `other` is another fix."""
        if recorded(array):
            raise SpecError(
                f"{self.name}: '{name}' requires a gradient, which numpipe.ops.{self.name} does "
                f"not record; fix: {other}pass {name}.detach(), or call it under torch.no_grad()"
            )

    def check_place(
        self,
        operands: Arrays,
        results: Mapping[str, ArrayType],
        target: str | None,
    ) -> None:
        """Raise SpecError for sizes that kernels cannot index and for operands on several devices,
        and TargetError for operands that the target cannot run on, before anything is allocated or
        copied."""
        if taken() is not None:
            return
        fresh = {
            name: launch.info_of_zeros(kind.shape, kind.dtype) for name, kind in results.items()
        }
        launch.check_sizes({**operands, **fresh}, self.name)
        place = launch.same_place([*operands.values()], [*operands], self.name)
        run_target.choose(self.name, target, [*operands.values(), *fresh.values()], place)

    def check_types(
        self, infos: Mapping[str, Any], fix: str = "convert it, as {name}.astype(…) does"
    ) -> None:
        """Raise SpecError for operands of other element types, or of different ones."""
        first, of_first = next(iter(infos.items()))
        for name, info in infos.items():
            operand = self.operands[name]
            legal = [ELEMENTS[each].dtype for each in operand.types] or self.types
            if legal and info.dtype not in legal:
                known = " or ".join(dtype.name for dtype in legal)
                raise SpecError(
                    f"{self.name}: '{name}' is {info.dtype.name}, expected {known}; fix: "
                    + fix.format(name=name, dtype=legal[-1].name)
                )
            if info.dtype != of_first.dtype and not operand.types:
                raise SpecError(
                    f"{self.name}: '{name}' is {info.dtype.name} and '{first}' is "
                    f"{of_first.dtype.name}; fix: give both one type"
                )

    def result_types(
        self, operands: Mapping[str, Any], options: Mapping[str, Any]
    ) -> dict[str, ArrayType]:
        """Return the shape and type of each result, for operands with a shape and a NumPy dtype.
        Raises SpecError if the operands do not match."""
        sizes = self._sizes(operands)
        first = next(iter(operands.values()))
        values = {**dict.fromkeys(self.operands), **operands, **options}
        found: dict[str, ArrayType] = {}
        for name, result in self.results.items():
            if isinstance(result, str):
                shape = [size for dim in result.split() for size in sizes[dim][0]]
                found[name] = ArrayType(tuple(shape), first.dtype)
            elif (known := by_name(result, values)) is not None:
                found[name] = known
        return found

    def _sizes(self, operands: Mapping[str, Any]) -> dict[str, tuple[tuple, str]]:
        """Return the sizes of each named dimension (several for "...") and the first operand that
        has it."""
        sizes: dict[str, tuple[tuple, str]] = {}
        for name, operand in self.operands.items():
            if not operand.dims or name not in operands:
                continue
            shape, dims = tuple(operands[name].shape), operand.dims.split()
            parts: list[tuple] = [(size,) for size in shape]
            if dims[0] == "...":
                leading = max(0, len(shape) - len(dims) + 1)
                parts[:leading] = [shape[:leading]]
            if len(parts) != len(dims):
                raise SpecError(
                    f"{self.name}: '{name}' must have the dimensions {operand.dims}, got shape "
                    f"{shape}; fix: pass {name}.reshape(…)"
                )
            for dim, part in zip(dims, parts, strict=True):
                known, where = sizes.setdefault(dim, (part, name))
                if known != part:
                    raise SpecError(
                        f"{self.name}: {dim} = {', '.join(map(str, known))} in '{where}' "
                        f"{tuple(operands[where].shape)}, {', '.join(map(str, part))} in '{name}' "
                        f"{shape}"
                    )
        return sizes

    def outputs(
        self, out: Any, wanted: Mapping[str, ArrayType], infos: Arrays
    ) -> dict[str, ArrayInfo]:
        """Describe the arrays passed as out=. Raises SpecError if they do not match the results."""
        outs = (out,) if len(wanted) == 1 else as_tuple(out)
        if len(outs) != len(wanted):
            raise SpecError(
                f"{self.name}: out must be a tuple of {len(wanted)} arrays, {', '.join(wanted)}"
            )
        labels = ["out"] if len(wanted) == 1 else [f"out: {name}" for name in wanted]
        found = {}
        for label, (name, kind), array in zip(labels, wanted.items(), outs, strict=True):
            info = found[name] = launch.describe(array, label, self.name)
            if (info.shape, info.dtype) != (kind.shape, kind.dtype):
                raise SpecError(
                    f"{self.name}: '{label}' must be {kind.dtype.name} {kind.shape}, got "
                    f"{info.dtype.name} {info.shape}"
                )
            self._check_recorded(label, array)
            launch.check_writable(info, label, self.name)
        every = [*infos.values(), *found.values()]
        launch.same_place(every, [*infos, *labels], self.name)
        launch.check_overlap(list(found.values()), labels, len(found), self.name, distinct=True)
        return found

    def _run(self, values: Mapping[str, Any], place: Place) -> None:
        """Launch the computation of the results."""
        if isinstance(self.launch, Kernel):
            given = self.launch.parameters
            named = {name: values[name] for name in self.options if name not in given}
            self.launch(*[values[name] for name in given], **named, **place)
        else:
            arrays = {name: values.get(name) for name in (*self.operands, *self.results)}
            by_name(self.launch, {**arrays, **values, **place, "place": place, "arrays": arrays})

    def _check_written(
        self,
        infos: Arrays,
        wanted: Mapping[str, ArrayType],
        values: Mapping[str, Any],
    ) -> None:
        """Raise SpecError if no kernel stores to a result, by recording the first call in a process
        without running it."""
        every: dict[str, Any] = {**infos, **wanted}
        arrays = {name: imagined(kind.shape, kind.dtype) for name, kind in every.items()}
        with noting() as notes:
            self._run({**arrays, **values}, {"target": "sim", "stream": None})
        stored = set()
        for call in notes.calls:
            passed = call.kernel.described(call.args, call.named, call.out).arrays
            written = call.kernel.definition.stores["all"]
            stored |= {passed[name].ptr >> 40 for name in written if name in passed}
        for name in wanted:
            if math.prod(arrays[name].shape) and arrays[name].ptr >> 40 not in stored:
                raise SpecError(
                    f"{self.name}: no kernel stores to the result '{name}'; kernels called: "
                    f"{', '.join(call.kernel.name for call in notes.calls) or 'none'}"
                )
        self._written = True

    # ---- gradients
    def replacement(self, options: Iterable) -> Callable | tuple | None:
        """Return what replaces the op where it is differentiated with these options: a function of
        operands, options and xp, other options with which the op's first result is the same, or
        None to differentiate the op itself."""
        if not self.composite:
            return None
        values = dict(zip(self.options, options, strict=True))
        if callable(self.composite):
            return by_name(self.composite, values)  # type: ignore[no-any-return]
        return None if values[self.composite] else tuple((values | {self.composite: True}).values())

    @functools.cached_property
    def saved(self) -> list[str]:
        """Operands and results that the gradient functions take."""
        names = {name for function in self.gradients.values() for name in asked_by(function)}
        names |= {each for name, of in self.functions.items() if name in names for each in of}
        return [name for name in (*self.operands, *self.results) if name in names]

    @functools.cached_property
    def underived(self) -> set[str]:
        """Operands without a gradient, of an op whose others have gradients."""
        names = {name for names in self.gradients for name in names}
        return {*self.operands} - names if names and not callable(self.composite) else set()

    def gradients_of(
        self,
        xp: Any,
        values: Mapping[str, Any],
        wanted: Collection[str],
        likes: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the gradients of the wanted operands.

        `values` holds the arrays named by `saved`, the options, and the gradients of results as
        grad_…; `likes` holds the shape and type of each operand, in lists for an op of several
        GPUs. Raises SpecError if the number or the shapes of gradients do not match the operands.
        """
        found: dict[str, Any] = {}
        for names, function in self.gradients.items():
            if set(names).isdisjoint(wanted):
                continue
            absent = dict.fromkeys([*self.results, *[f"grad_{name}" for name in self.results]])
            made = by_name(function, {**absent, **values, "xp": xp})
            # of several GPUs, a single gradient is a list
            grads = (made,) if len(names) == 1 and isinstance(made, list) else as_tuple(made)
            if len(grads) != len(names):
                raise SpecError(
                    f"{self.name}: the function for the gradients of {', '.join(names)} must "
                    f"return one gradient or None for each of them, got {len(grads)}"
                )
            for name, grad in zip(names, grads, strict=True):
                if self.sharded:
                    each = zip(grad, likes[name], strict=True)
                    found[name] = [self._fitted(xp, name, *pair) for pair in each]
                elif grad is not None:
                    found[name] = self._fitted(xp, name, grad, likes[name])
        return found

    def _fitted(self, xp: Any, name: str, grad: Any, like: Any) -> Any:
        """Return a gradient summed to its operand's shape and converted to its type."""
        if grad.shape != like.shape:
            shape, wanted = tuple(grad.shape), tuple(like.shape)
            extra = len(shape) - len(wanted)
            if extra < 0 or any(
                mine not in (1, size) for mine, size in zip(wanted, shape[extra:], strict=True)
            ):
                raise SpecError(
                    f"{self.name}: the gradient of '{name}' has shape {shape}, and '{name}' has "
                    f"{wanted}"
                )
            grad = xp.summed(grad, like.shape)
        return grad if grad.dtype == like.dtype else xp.cast(grad, like.dtype)

    # ---- batches
    def batched(
        self, xp: Any, size: Any, values: Mapping[str, Any], batched: Mapping[str, bool]
    ) -> Any:
        """Return the result, or a tuple of results, with an additional leading dimension, which the
        operands marked in `batched` have too. Raises SpecError if the op has no batching rule."""
        if callable(self.batching):
            return by_name(self.batching, {**values, "xp": xp, "size": size, "batched": batched})
        if not self.batching:
            raise SpecError(
                f"{self.name}: vmap has no rule for this op; fix: call it in a loop, or declare "
                "the op with batching="
            )
        vectors = [name for name, each in self.operands.items() if each.dims.isidentifier()]
        leading = self.batching == "leading" and not any(batched[name] for name in vectors)
        arrays = {
            name: array
            if batched[name] or (leading and name in vectors)
            else xp.broadcast_to(array, (size, *array.shape))
            for name, array in values.items()
            if name in self.operands and array is not None
        }

        def results(arrays: dict[str, Any]) -> tuple:
            return as_tuple(by_name(self, {**values, **arrays, "xp": xp}))

        shared = [name for name in arrays if not self.operands[name].dims]
        if leading:
            made = results(arrays)
        elif self.batching != "merge" or shared or any(values[name] for name in self.functions):
            calls = [
                results({name: x[number] for name, x in arrays.items()}) for number in range(size)
            ]
            made = tuple(map(xp.stack, zip(*calls, strict=True)))
        else:
            count = next(iter(arrays.values())).shape[1]
            merged = {name: x.reshape(size * count, *x.shape[2:]) for name, x in arrays.items()}
            made = tuple(each.reshape(size, count, *each.shape[1:]) for each in results(merged))
        return made if len(made) > 1 else made[0]

    def documentation(self, about: str) -> str:
        """Return the op's docstring in a framework: its own first paragraph, then `about` and the
        gradients."""
        first, _, _ = (self.__doc__ or "").partition("\n\n")
        names = ", ".join(name for names in self.gradients for name in names)
        gradients = f"There are gradients of {names}." if names else "It has no gradients."
        return f"{first}\n\n    {about}\n    {gradients}\n    "

    def torch_front(self, function: Callable) -> Callable:
        """Add a function with its own signature to ``numpipe.torch``. It is called with the PyTorch
        op, followed by the caller's arguments."""
        self.torch_fronts.append(function)
        return function


def with_place(signature: inspect.Signature, place: Sequence[str]) -> inspect.Signature:
    """Return a signature that has the parameters of `place`."""
    own = signature.parameters
    lacking = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        for name in place
        if name not in own
    ]
    return signature.replace(parameters=[*own.values(), *lacking])


@functools.cache
def asked_by(function: Callable) -> tuple[str, ...]:
    """Return the names of a function's parameters, or of an op's operands and options."""
    signature = getattr(function, "signature", None) or inspect.signature(function)
    place = getattr(function, "place", ())
    return tuple([name for name in signature.parameters if name not in place])


def by_name(function: Callable, values: Mapping[str, Any]) -> Any:
    """Call a function, or an op by ``xp``, with the values named by its parameters; other
    parameters keep defaults. A function that is an option is passed in a tuple with its arrays."""
    given = {
        name: bundled(values, name) if type(values[name]) is Function else values[name]
        for name in asked_by(function)
        if name in values
    }
    return values["xp"](function, **given) if isinstance(function, Op) else function(**given)


def bundled(values: Mapping[str, Any], name: str) -> Any:
    """Return a value by name; a function that is an option with its arrays, in a tuple."""
    value = values[name]
    if f"{name}_0" not in values or value is None:
        return value
    arrays = map(values.get, of_function(name))
    return (value, *[array for array in arrays if array is not None])
