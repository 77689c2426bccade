"""Operations, and how each gets its two implementations.

An operation is a plain Python function, whose body is what it does on the simulated SM. Its CUDA
implementation is attached to the same object, and registered with Numba when a compile first uses
it:

* ``@ptx(...)``: one PTX statement, written next to the function (the intrinsics);
* ``@op``: a typer in the sibling module ``<module>_cuda``, attached there with
  ``@cuda_meaning(operation)``;
* ``@formula``: int32 arithmetic, which a compile runs on LLVM values instead of numbers;
* ``@helper``: the function's own source is compiled (the ring, the tile orders).

An operation also declares what the AST pass (`compile.lift`) needs to know to write a call of it,
so that the pass has no tables of operations: ``@context_op(numpy=np.cumsum, method="cumsum")``.

=========  =========================================================================================
context    its first parameter is the kernel's `Context`, which the pass inserts; called without it,
           it raises RuntimeError (`context_op`; a `helper` or `formula` with a parameter ``np_``)
site       its second parameter is the position of the call in the user's source, which the pass
           also inserts
numpy      the NumPy function that denotes this operation in a kernel, or a tuple of them
method     the method of register tiles that denotes it
products   "issues": a call is a group of products, which are still running when it returns;
           "waits": it waits for the products of its first argument, or for all but the newest
           groups, whose number is its second argument
=========  =========================================================================================

Users, and `inspect.signature`, see the parameters without the inserted ones.

>>> @helper
... def twice(x):
...     return x + x
>>> twice(21)
42
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

import numpy as np

from ..diagnostics.argument_checks import Rule, as_tuple, require
from ..diagnostics.errors import SpecError
from .inert import Inert
from .instrumentation import INSTRUMENTATION, Instrumentation

P = ParamSpec("P")
R = TypeVar("R")
AnyOp = TypeVar("AnyOp", bound="Op")
Products = Literal["", "issues", "waits"]

BY_NUMPY: dict[Any, Op] = {}
"""operations by the NumPy functions that denote them"""
BY_METHOD: dict[str, Op] = {}
"""operations by the methods of register tiles that denote them"""


def outside(name: str, how: str = ": call it from a @numpipe.kernel function") -> RuntimeError:
    """Return the error for a call outside of a kernel of a name that only works inside one."""
    return RuntimeError(f"numpipe.{name} only works inside a kernel{how}")


class Hidden:
    """The argument that a kernel passes to a `context_op`; the base class of
    `plan.context.Context`."""


class Op(Generic[P, R]):
    """A function with an implementation in CPython (its body) and one on the GPU (a typer, which is
    registered lazily)."""

    of_one_kernel = False
    """whether only one kernel can call it, so that Numba's data about it is deleted with that
    kernel"""
    bounded: Op | None = None
    """the operation that kernels with ``CompilerParams(debug=True)`` call instead"""

    def __init__(
        self,
        function: Callable[..., R],
        typer: Callable | None = None,
        *,
        context: bool = False,
        site: bool = False,
        numpy: Any = (),
        method: str = "",
        products: Products = "",
    ) -> None:
        functools.update_wrapper(self, function)
        self.function, self.typer = function, typer
        self._types: dict[Instrumentation, Any] = {}
        self.context, self.site, self.method, self.products = context, site, method, products
        BY_NUMPY.update(dict.fromkeys(as_tuple(numpy), self))
        if method:
            BY_METHOD[method] = self
        if context:
            signature = inspect.signature(function)
            parameters = list(signature.parameters.values())
            self.__signature__ = signature.replace(parameters=parameters[1 + site :])
            last = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
            if last:
                self.function = functools.wraps(function)(
                    lambda *args: function(
                        *args[: -len(last)], **dict(zip(last, args[-len(last) :], strict=True))
                    )
                )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.context and not (args and isinstance(args[0], Hidden)):
            raise outside(self.__name__)  # type: ignore[attr-defined]
        return self.function(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> Op[P, R]:
        """Return the operation itself, as for a function, because nodes of the AST pass contain
        operations and are copied."""
        return self

    def __repr__(self) -> str:
        return f"<numpipe operation {self.__module__}.{self.__qualname__}>"  # type: ignore[attr-defined]

    @property
    def _numba_type_(self) -> Any:
        """The Numba type of the operation. Numba reads this attribute of a value; the first access
        registers the CUDA implementation."""
        added = INSTRUMENTATION.get()
        if added.debug and self.bounded is not None:
            return self.bounded._numba_type_
        if added not in self._types:
            self._types[added] = self._meaning()
        return self._types[added]

    def _meaning(self) -> Any:
        """Create a Numba type for this operation."""
        from . import numba as nb

        if self.typer is None:
            importlib.import_module(self.function.__module__ + "_cuda")
        if self.typer is None:
            raise NotImplementedError(f"{self!r} has no CUDA implementation")
        return nb.operation_type(self, self.function.__name__, self.typer)


class Helper(Op[P, R]):
    """A function compiled from its own source, which kernels and other helpers can call on the GPU
    and simulated."""

    def _meaning(self) -> Any:
        from . import numba as nb

        return nb.helper_type(self, self.function)


class Formula(Op[P, R]):
    """An operation with one source for the GPU and the simulation, which runs on numbers or on LLVM
    values (`formula_cuda.Value`).

    Parameters annotated ``Any`` are int32; those annotated ``int`` or ``str`` are compile-time
    constants; for any other, the compiled source gets what the method ``compiled`` of its Numba
    type returns. The result is an int32 (``Any``), a bool or None.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        found: Any = super().__call__(*args, **kwargs)
        return self.result(found)  # type: ignore[no-any-return]

    @functools.cached_property
    def result(self) -> Callable[[Any], Any]:
        kind = self.function.__annotations__["return"]
        return bool if kind == "bool" else np.int32 if kind == "Any" else lambda _: None

    @functools.cached_property
    def _numba_type_(self) -> Any:
        from . import numba as nb
        from .formula_cuda import typer_of

        typer = with_parameters(
            typer_of(self.function), inspect.signature(self.function).parameters
        )
        return nb.operation_type(self, self.function.__name__, typer)


def formula(function: Callable[P, R]) -> Formula[P, R]:
    """Create an operation of int32 arithmetic that is written only once. A first parameter ``np_``
    is the context, as for an `op`."""
    return Formula(function, context=_takes_context(function))


def helper(function: Callable[P, R]) -> Helper[P, R]:
    """Create an operation from a function that the GPU runs as it is written. A first parameter
    ``np_`` is the context, as for an `op`."""
    return Helper(function, context=_takes_context(function))


def _takes_context(function: Callable) -> bool:
    return next(iter(inspect.signature(function).parameters), "") == "np_"


@overload
def op(function: Callable[P, R], /) -> Op[P, R]: ...


@overload
def op(
    *, numpy: Any = (), method: str = "", products: Products = ""
) -> Callable[[Callable[P, R]], Op[P, R]]: ...


def op(function: Any = None, /, **metadata: Any) -> Any:
    """Create an operation whose CUDA implementation is in the module ``<module>_cuda``; `metadata`
    as in the table above."""
    if function is None:
        return lambda function: Op(function, **metadata)
    return Op(function, **metadata)


@overload
def context_op(function: Callable[Concatenate[Any, P], R], /) -> Op[P, R]: ...


@overload
def context_op(
    *, site: Literal[True]
) -> Callable[[Callable[Concatenate[Any, str, P], R]], Op[P, R]]: ...


@overload
def context_op(
    *, numpy: Any = (), method: str = "", products: Products = ""
) -> Callable[[Callable[Concatenate[Any, P], R]], Op[P, R]]: ...


def context_op(function: Any = None, /, **metadata: Any) -> Any:
    """Create an `op` whose first parameter is the kernel's context."""
    return op(function, context=True, **metadata)  # type: ignore[call-overload]


def does(function: object, products: Products) -> bool:
    """Return whether a function is an operation that issues, or waits for, products."""
    return isinstance(function, Op) and function.products == products


def cuda_meaning(operation: Op) -> Callable[[Callable], Callable]:
    """Attach ``typer(*types) -> (signature, codegen) | None`` to an operation."""

    def attach(typer: Callable) -> Callable:
        operation.typer = typer
        return typer

    return attach


def entry_operation(typer: Callable) -> Op:
    """Create an operation that only a kernel's entry calls, and that CPython never runs."""

    def entry_only(*args: Any) -> Any:
        raise NotImplementedError("entry code only")

    return of_one_kernel(Op(entry_only, typer))


def of_one_kernel(operation: AnyOp) -> AnyOp:
    """Mark an operation as one that no other kernel can call, and return it."""
    operation.of_one_kernel = True
    return operation


# ---- one PTX statement ---------------------------------------------------------------------------
_NUMBA = {"r": "int32", "l": "int64", "h": "int16", "f": "float32"}


def ptx(
    text: str,
    *,
    returns: str | None = None,
    memory: bool = True,
    check: Callable[..., None] | None = None,
    **operands: str,
) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Implement a function by a PTX statement.

    `text` refers to operands as ``$name`` and to the result as ``$ret``. `operands` maps each
    parameter to its register class: r, l and h have 32, 64 and 16 bits, and f is a float32; n is an
    immediate, which is a compile-time constant, and - is an argument for the simulator only.
    `returns` is a register class, or ``"bool"`` for a predicate in a 32-bit register. `memory`
    keeps memory accesses from moving across the statement. ``check(**immediates)`` raises SpecError
    for values that the statement cannot have, on the GPU and simulated. "$gate " marks an
    instruction that a kernel with ``CompilerParams(debug=True)`` omits after a wait timed out.
    """

    def attach(function: Callable[P, R]) -> Op[P, R]:
        names = list(inspect.signature(function).parameters)
        if names != list(operands):
            raise TypeError(
                f"{function.__name__}: parameters {names} and PTX operands {list(operands)} differ"
            )

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if check is not None:
                values = dict(zip(names, args, strict=False)) | kwargs
                check(**{p: value for p, value in values.items() if operands.get(p) == "n"})
            return function(*args, **kwargs)

        operation: Op[P, R] = Op(
            checked if check else function,
            _ptx_typer(function, text, returns, memory, operands, check),
        )
        operation.ptx, operation.operands = text, operands  # type: ignore[attr-defined]
        return operation

    return attach


def predicated(operation: Op) -> Callable:
    """Return the typer of a PTX operation without a result, executed only where an additional int32
    argument is 0.

    The predicate is in the statement. A branch around the statement would put the code after it on
    a divergent path, where ptxas serializes wgmma (note C7519).
    """
    statement = f"{{ .reg .pred chosen; setp.eq.u32 chosen, $lane, 0; @chosen {operation.ptx} }}"  # type: ignore[attr-defined]
    operands = {**operation.operands, "lane": "r"}  # type: ignore[attr-defined]
    return _ptx_typer(operation.function, statement, None, True, operands, None)


def _run_time(operation: str, parameter: str, kind: object) -> SpecError:
    return SpecError(
        f"{operation}: {parameter} must be a compile-time constant, not a run-time {kind}: pass a "
        "literal, a constant of the module or a Static field"
    )


def immediate(operation: str, parameter: str, ty: Any) -> Any:
    """Return the value of an operand that is part of the statement's text, given its Numba type.
    Raises SpecError for a run-time value."""
    from . import numba as nb

    try:
        return nb.literal(ty)
    except nb.TypingError:
        raise _run_time(operation, parameter, ty) from None


def constant(operation: str, parameter: str, value: Any, rule: Rule | None = None) -> Any:
    """Return a compile-time constant, given as a value or as its Numba type. Raises SpecError for a
    run-time value, and for one that breaks the rule."""
    found = known(value, operation, parameter)
    if rule is not None and not rule.holds(found):
        # raises: not called for valid values, because simulations check some at every step
        require(operation, {parameter: found}, **{parameter: rule})
    return found


@functools.singledispatch
def known(value: Any, operation: str, parameter: str) -> Any:
    """Return a constant of the simulated SM, where run-time values are NumPy scalars; for Numba
    types this is `immediate`."""
    for part in as_tuple(value):
        if isinstance(part, np.generic):
            raise _run_time(operation, parameter, part.dtype)
    return value


@functools.singledispatch
def called(argument: Any) -> str:
    """Return how a message names an argument: by its class or Numba type, or for an inert value by
    what it is."""
    return argument.what if isinstance(argument, Inert) else type(argument).__name__


def is_none(given: Any) -> bool:
    """Return whether an argument, or one of this Numba type, is None."""
    return called(given) in ("NoneType", "none")


def _ptx_typer(
    function: Callable,
    text: str,
    result: str | None,
    memory: bool,
    operands: dict[str, str],
    check: Callable[..., None] | None,
) -> Callable:
    label = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"

    def typer(*args: Any) -> Any:
        from . import numba as nb

        scalar = {code: getattr(nb.types, ty) for code, ty in _NUMBA.items()} | {
            "bool": nb.types.boolean
        }
        machine = {
            "r": nb.i32,
            "l": nb.i64,
            "h": nb.i16,
            "f": nb.f32,
            "bool": nb.i32,
            None: nb.void,
        }
        immediates = {
            p: immediate(label, p, t)
            for (p, c), t in zip(operands.items(), args, strict=True)
            if c == "n"
        }
        if check is not None:
            check(**immediates)
        registers = [p for p, c in operands.items() if c not in "n-"]
        places = {p: f"${i + (result is not None)}" for i, p in enumerate(registers)} | {
            "ret": "$0",
            "gate": "$gate",
        }
        places |= {p: str(int(v)) for p, v in immediates.items()}
        statement = re.sub(r"\$(\w+)", lambda m: places[m[1]], text)
        sig = (nb.VOID if result is None else scalar[result])(
            *[
                t if operands[p] in "n-" else scalar[operands[p]]
                for p, t in zip(operands, args, strict=True)
            ]
        )

        def codegen(builder: Any, values: Any) -> Any:
            inputs = [v for v, c in zip(values, operands.values(), strict=True) if c not in "n-"]
            emit = builder.emit_gated if "$gate " in statement else builder.emit_asm
            value = emit(machine[result], inputs, statement, memory=memory)
            if result is None:
                return None
            return builder.icmp_unsigned("!=", value, nb.const(0)) if result == "bool" else value

        return sig, codegen

    return with_parameters(typer, operands)


def check(function: Callable[P, None]) -> Op[P, None]:
    """Create an operation without code: `function` only checks the arguments, or their Numba
    types."""

    def typer(*types: Any) -> Any:
        from . import numba as nb

        function(*types)  # type: ignore[call-arg]
        yield nb.VOID(*types)

    return Op(function, with_parameters(typer, inspect.signature(function).parameters))


def plain_signature(names: Iterable[str]) -> inspect.Signature:
    """Return a signature of parameters without defaults, each by position or by name."""
    return inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    )


def with_parameters(typer: Callable, names: Iterable[str]) -> Callable:
    """Give a typer these parameters, because Numba reads them from its signature and may pass them
    by name."""
    signature = plain_signature(names)

    def typed(*args: Any, **named: Any) -> Any:
        return typer(*signature.bind(*args, **named).args)

    typed.__signature__ = signature  # type: ignore[attr-defined]
    return typed
