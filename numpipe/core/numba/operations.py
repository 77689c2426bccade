"""Numba implementations of functions, operators, attributes and methods (a typer and a code
generator for each), and LLVM representations of values.

A typer is a generator function that generates code after its `yield`, or a function that returns a
signature and a code generator. It returns None for types that it does not handle::

    def typer(ring, k):                                 # types
        # yields the call's signature, and gets what it generates LLVM code with; or only the type
        # of the result, or nothing if there is none, if the arguments are used as they are given
        builder, args = yield I32(ring, I32)
        return builder.add(args[1], …)                  # None: no value

    def typer(ring, k):
        return I32(ring, I32), lambda builder, args: builder.add(args[1], …)

The builder also has Numba's context of the function that is compiled (`llvm_ir.Builder`).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from numba.cuda import extending, types
from numba.cuda.core.errors import TypingError
from numba.cuda.core.imputils import RefType, iternext_impl
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.datamodel import models
from numba.cuda.descriptor import cuda_target
from numba.cuda.extending import register_model
from numba.cuda.types import (
    BaseTuple,
    Boolean,
    Float,
    Integer,
    IntegerLiteral,
    NoneType,
    Tuple,
    Type,
    UniTuple,
    none,
)
from numba.cuda.typing import signature, templates

from .kernel_entries import Entries, Lowering
from .llvm_ir import Builder, const, i64, nothing, signature_of

__all__ = [
    "BaseTuple",
    "Boolean",
    "FieldsType",
    "Float",
    "Integer",
    "IntegerLiteral",
    "NoneType",
    "Tuple",
    "Type",
    "TypingError",
    "UniTuple",
    "attribute",
    "constant_attributes",
    "helper_type",
    "immediate",
    "literal",
    "lower_cast",
    "lower_next",
    "lowered",
    "machine_model",
    "method",
    "models",
    "no_code",
    "none",
    "operation_type",
    "overload",
    "python_function",
    "register_model",
    "returns",
    "signature",
    "struct_model",
    "tuple_of",
    "types",
    "unliteral",
]

Typer = Callable


def _in_two(typer: Typer) -> Typer:
    """Turn a typer that may be a generator function into one that returns (signature, codegen) or
    None."""
    parameters = inspect.signature(typer)

    @functools.wraps(typer)
    def typed(*given: Any, **named: Any) -> Any:
        answer: Any = typer(*given, **named)
        if not inspect.isgenerator(answer):
            return answer
        waiting: list = [answer]
        try:
            sig = next(answer)
        except StopIteration as end:
            return end.value
        if sig is None or isinstance(sig, Type):
            sig = (sig or types.void)(*parameters.bind(*given, **named).args)

        def codegen(builder: Any, args: Any) -> Any:
            if waiting:
                rest = waiting.pop()
            else:  # the code of another call with these types
                rest = typer(*given, **named)
                next(rest)
            try:
                rest.send((builder, args))
            except StopIteration as end:
                return end.value
            raise RuntimeError(f"{typer!r} yields twice")

        return sig, codegen

    vars(typed)["__signature__"] = parameters
    return typed


def _with_context(codegen: Callable) -> Callable:
    """Return a code generator as Numba calls it, with its context in front of the builder, which
    gets the methods of `Builder`."""

    def generate(context: Any, builder: Any, *rest: Any) -> Any:
        builder.__class__, builder.context = Builder, context
        return codegen(builder, *rest)

    return generate


def _of_operation(codegen: Callable) -> Callable:
    """Return the code generator of an operation as Numba calls it."""

    def generate(builder: Any, _signature: Any, args: Any) -> Any:
        value = codegen(builder, args)
        return nothing if value is None else value

    return _with_context(generate)


def operation_type(key: Any, name: str, typer: Typer) -> Any:
    """Return the Numba type of a callable implemented by `typer`, a function of the argument
    types."""
    typer = _in_two(typer)
    parameters = list(inspect.signature(typer).parameters.values())

    def typed(_typing_context: Any, *given: Any, **named: Any) -> Any:
        answer = typer(*given, **named)
        return answer and (answer[0], _of_operation(answer[1]))

    # Numba reads it at each call, without its first parameter
    first = inspect.Parameter("typing_context", inspect.Parameter.POSITIONAL_ONLY)
    vars(typed)["__signature__"] = inspect.Signature([first, *parameters])
    template = templates.make_intrinsic_template(key, typed, name, prefer_literal=True)
    template._impl_cache, template._overload_cache = Entries(key), Entries(key)
    lowering = Lowering(key)
    template._get_target_registry = lambda *_: lowering
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        fixed = template.generic

        def generic(self: Any, args: Any, kws: Any) -> Any:
            # with a Python signature, lowering would pack *args into a tuple
            sig = fixed(self, args, kws)
            return None if sig is None else sig.replace(pysig=None)

        template.generic = generic
    return _function(template)


def helper_type(key: Any, implementation: Callable) -> Any:
    """Return the Numba type of a Python function compiled from its own source; constant arguments
    stay literal."""
    template = templates.make_overload_template(
        key, lambda *args: implementation, {}, False, "never", prefer_literal=True
    )
    template._impl_cache, template._compiled_overloads = Entries(key), Entries(key)
    return _function(template)


def _function(template: Any) -> Any:
    function = types.Function(template)
    function._impl_keys = Entries(template.key)
    return function


def tuple_of(like: Any, parts: Sequence) -> Any:
    """Return the type of a tuple of these parts; a named tuple of the same class as `like`, if it
    is one."""
    if isinstance(like, types.BaseNamedTuple):
        return BaseTuple.from_types(tuple(parts), like.instance_class)
    return Tuple(tuple(parts))


def immediate(value: int) -> tuple[Any, Any]:
    """Return (type, value) of a compile-time int, for use as an argument of `call`."""
    return types.literal(value), const(value, i64)


def returns(function: Any, argtypes: Sequence) -> Any:
    """Return the type of the result of `function` for arguments of these types."""
    fnty = function if isinstance(function, Type) else function._numba_type_
    return signature_of(fnty, argtypes).return_type


def python_function(function: Any) -> Any:
    """Return the Numba type of a Python operator or builtin."""
    return cuda_target.typing_context.resolve_value_type(function)


def _resolved(type_class: type, name: str, typer: Callable[[Any], Any]) -> None:
    """Type the attribute `name` of values of `type_class` as ``typer(type)``."""

    @typing_registry.register_attr
    class Attribute(templates.AttributeTemplate):  # type: ignore[misc]
        key = type_class

    setattr(Attribute, f"resolve_{name}", lambda self, ty: typer(ty))


def attribute(
    type_class: type,
    name: str,
    typer: Callable[[Any], Any],
    codegen: Callable[[Any, Any, Any], Any],
) -> None:
    """Define an attribute of values of `type_class`: `typer(type) -> type`, `codegen(builder, type,
    value)`."""
    _resolved(type_class, name, typer)
    lowering_registry.lower_getattr(type_class, name)(_with_context(codegen))


def lowered(key: Any, *argtypes: Any) -> Callable[[Callable], Any]:
    """Decorate the code generator ``(builder, signature, args)`` of calls of `key` whose first
    arguments have these types."""
    return lambda codegen: lowering_registry.lower(key, *argtypes, types.VarArg(types.Any))(
        _with_context(codegen)
    )


def lower_cast(fromty: Any, toty: Any) -> Callable[[Callable], Any]:
    """Decorate the code generator ``(builder, fromty, toty, value)`` of casts between types."""

    def attach(codegen: Callable) -> Callable:
        extending.lower_cast(fromty, toty)(_with_context(codegen))
        return codegen

    return attach


def lower_next(iterator: Any) -> Callable[[Callable], Any]:
    """Decorate the code generator ``(builder, signature, args, result)`` of an iterator's next
    item."""
    return lambda codegen: extending.lower_builtin("iternext", iterator)(
        iternext_impl(RefType.UNTRACKED)(_with_context(codegen))
    )


def constant_attributes(type_class: type, result: Any, /, **values: Callable[[Any], Any]) -> None:
    """Define attributes whose values ``value(type)`` are constants, of type `result`; None: of
    literal types and tuples of them."""

    def define(name: str, value: Callable[[Any], Any]) -> None:
        def typer(ty: Any) -> Any:
            constant = value(ty)
            return result or (
                Tuple(list(map(types.literal, constant)))
                if isinstance(constant, tuple)
                else types.literal(constant)
            )

        attribute(
            type_class,
            name,
            typer,
            lambda builder, ty, _: (
                builder.context.get_constant_generic(builder, typer(ty), value(ty))
                if result or isinstance(value(ty), tuple)
                else builder.context.get_constant_undef(typer(ty))
            ),
        )

    for name, value in values.items():
        define(name, value)


def no_code(*given: Any) -> Any:
    """Type an operation that does nothing on the GPU."""
    yield types.void(*given)


def method(type_class: type, name: str, function: Any) -> None:
    """Define method `name` of values of `type_class`: ``function(value, *args)`` for an operation
    `function`."""

    class Method(templates.AbstractTemplate):  # type: ignore[misc]
        key = f"{type_class.__name__}.{name}"
        prefer_literal = True

        def generic(self, args: Any, kws: Any) -> Any:
            sig = function._numba_type_.get_call_type(self.context, (self.this, *args), kws)
            return (
                None if sig is None else signature(sig.return_type, *sig.args[1:], recvr=self.this)
            )

    _resolved(type_class, name, lambda ty: types.BoundFunction(Method, ty))

    @lowered(Method.key, type_class)
    def _(builder: Any, sig: Any, args: Any) -> Any:
        return builder.apply(
            function, (sig.recvr or sig.args[0], *sig.args[len(sig.args) - len(args) + 1 :]), args
        )


def overload(function: Any, typer: Typer, literals: bool = False) -> None:
    """Implement a Python operator or function by ``typer(*types)``, which takes precedence over
    Numba's own implementation.

    `literals`: pass int literals as literals first, then as int64.
    """
    lowered, lowering = Entries(function), Lowering(function)
    typer = _in_two(typer)

    @typing_registry.register_global(function)
    class Template(templates.AbstractTemplate):  # type: ignore[misc]
        key = function
        prefer_literal = literals

        def generic(self, args: Any, kws: Any) -> Any:
            answer = typer(*args)
            if answer is None:
                return None
            sig, codegen = answer
            if sig.args not in lowered:
                lowered[sig.args] = True
                lowering.lower(function, *sig.args)(_of_operation(codegen))
            return sig


def literal(ty: Any) -> Any:
    """Return the value of a literal type, of a tuple of them, or of a default. Raises TypingError
    for a run-time value."""
    if isinstance(ty, BaseTuple):
        return tuple(literal(t) for t in ty)
    if isinstance(ty, (NoneType, types.Omitted)):
        return getattr(ty, "value", None)
    if not hasattr(ty, "literal_value"):
        raise TypingError(f"a compile-time constant is expected here, got a run-time {ty}")
    return ty.literal_value


def unliteral(ty: Any) -> Any:
    """Return the type of a literal as a run-time value; an int becomes an int32."""
    if isinstance(ty, BaseTuple):
        return tuple_of(ty, [unliteral(t) for t in ty])
    if isinstance(ty, IntegerLiteral) and -(1 << 31) <= ty.literal_value < 1 << 31:
        return types.int32
    return types.unliteral(ty)


class FieldsType(Type):  # type: ignore[misc]
    """A type that is given by its fields, which a subclass annotates as a dataclass does. Types of
    one class with equal fields are equal."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        given = (str(getattr(self, each.name)) for each in dataclasses.fields(self))
        kind = type(self).__name__.removesuffix("Type").lower()
        Type.__init__(self, f"{kind}({', '.join(given)})")


# ---- LLVM representation of the values of a type -------------------------------------------------
def struct_model(
    type_class: type, fields: Callable[[Any], Sequence[tuple[str, Any]]], *read: str
) -> None:
    """Represent values of `type_class` as structures with the fields ``fields(type)``, each a
    (name, Numba type). Compiled code can read those named in `read` as attributes."""
    register_model(type_class)(lambda manager, ty: models.StructModel(manager, ty, fields(ty)))

    def define(name: str) -> None:
        attribute(
            type_class,
            name,
            lambda ty: dict(fields(ty))[name],
            lambda builder, ty, value: getattr(builder.fields(ty, value), name),
        )

    for name in read:
        define(name)


def machine_model(type_class: type, machine: Callable[[Any], Any]) -> None:
    """Represent each value of `type_class` as a value of the LLVM type ``machine(type)``."""
    register_model(type_class)(lambda manager, ty: models.PrimitiveModel(manager, ty, machine(ty)))
