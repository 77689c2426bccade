"""`numpipe.torch.register`: a kernel of one's own as an op of PyTorch.

The op is made of what the kernel says of itself. Its parameters without a default are the tensors
of the op's schema, `out_type` is the op's fake implementation, and a parameter that the kernel
stores to is an output, or a tensor that the op writes in place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...diagnostics.errors import SpecError
from ...kernels.arguments import MISSING
from ...kernels.kernel import Kernel
from ...kernels.options import parameter_names
from ...plan.specs import SYMBOLIC, ArrayType
from .dispatch import Op, define, element_type, torch_type, under_autograd, without_vmap

__all__ = ["register"]

NAMESPACE = "numpipe_kernels"
"""of ops whose name says none"""
_KINDS = {"b": "bool", "i": "SymInt", "u": "SymInt", "f": "float"}
"""types of a schema, by the kind of a NumPy type"""
_SCALARS: dict[Any, type] = {
    spelled: kind for kind in (bool, int, float) for spelled in (kind, kind.__name__)
}
"""Python's types that a parameter's annotation may name"""
_registered: dict[str, tuple[Kernel, torch.library.Library]] = {}

SYMBOLIC.append(torch.SymInt)


def register(
    kernel: Kernel,
    name: str | None = None,
    *,
    backward: Kernel | Callable[..., Any] | None = None,
    mutates: Sequence[str] = (),
    statics: Mapping[str, Any] | None = None,
) -> Op:
    """Make an op of PyTorch of a kernel; returns the op, which is called on tensors.

    kernel    a ``@numpipe.kernel``, or one of `numpipe.load`
    name      "namespace::name", as ``torch.ops.namespace.name`` has it; by default the namespace is
              "numpipe_kernels" and the name the kernel's
    backward  a kernel or a function that computes gradients. It is given by the names of its
              parameters what it needs: inputs, scalars and outputs of the kernel, and ``grad_y``,
              the gradient of the output y, contiguous. A kernel returns the gradient of the input x
              as its output ``grad_x``; a function returns one for each input tensor, None where
              there is none, and may call registered ops
    mutates   of a kernel with an out_type: parameters that it writes in place and that calls pass
    statics   values of the kernel's Statics; the others have their defaults

    With an out_type the op returns its outputs. Without, it writes them in place: calls pass them,
    and the op returns nothing. The kernel's run-time scalars are keyword arguments of the op, of
    the type of their default, or of their annotation (``alpha: float``). Under
    ``torch.compile(dynamic=True)`` out_type is asked with sizes that are symbols.

    Raises SpecError for a kernel that is no such op, and for a name that another kernel has; a
    kernel defined anew, as in a notebook, replaces the older one. A gradient without `backward` is
    a SpecError when it is asked for, and so is a call that writes in place where gradients are
    recorded. Source: PyTorch, `torch.library`.

    >>> block = numpipe.BlockSpec((64, 64), lambda i: (i, 0))
    >>> @numpipe.kernel(
    ...     grid=lambda x: (x.shape[0] // 64,),
    ...     in_specs=block,
    ...     out_specs=block,
    ...     out_type=lambda x: numpipe.ArrayType(x.shape, x.dtype),
    ... )
    ... def double(x, y):
    ...     y[...] = x[...] + x[...]
    >>> op = numpipe.torch.register(double, "mine::double", backward=lambda grad_y: 2 * grad_y)
    >>> x = torch.ones(64, 64, requires_grad=True)
    >>> op(x).sum().backward()
    >>> float(x.grad[0, 0])
    2.0
    """
    if not isinstance(kernel, Kernel):
        raise SpecError(f"numpipe.torch.register: takes a @numpipe.kernel, got {kernel!r}")
    names = _names(kernel.name if name is None else name)
    form = _Form.of(kernel, tuple(mutates), dict(statics or {}))
    full = "::".join(names)
    return _define(
        names,
        form,
        _Gradients.none(full, form) if backward is None else _Gradients.of(full, form, backward),
    )


# ---- the kernel as an op
@dataclass(frozen=True)
class _Form:
    """A kernel seen as an op: its parameters by what they are there."""

    kernel: Kernel
    inputs: dict[str, type | None]
    """positional parameters that calls pass: None for a tensor, else the type of a scalar"""
    mutated: tuple[str, ...]
    """those of them that are written in place"""
    outputs: tuple[str, ...]
    """parameters that the op allocates and returns"""
    scalars: dict[str, Any]
    """run-time scalars that calls may name, with their defaults, or a type where there is none"""
    statics: dict[str, Any]

    @property
    def tensors(self) -> list[str]:
        return [name for name, kind in self.inputs.items() if kind is None]

    @classmethod
    def of(cls, kernel: Kernel, mutates: tuple[str, ...], statics: dict[str, Any]) -> _Form:
        definition, of = kernel.definition, f"numpipe.torch.register: kernel {kernel.name}"
        names, stored = kernel.parameters, definition.stores["all"]
        allocates = definition.options.out_type is not None
        if unknown := [name for name in mutates if name not in stored]:
            raise SpecError(
                f"{of}: mutates names {', '.join(unknown)}, but the kernel stores to "
                f"{', '.join(stored)}"
            )
        mutated = mutates if allocates else tuple(stored)
        first = next(
            (i for i, name in enumerate(names) if name in stored and name not in mutated),
            len(names),
        )
        kinds = {name: _kind(kernel, name) for name in names[:first]}
        if None not in kinds.values():
            raise SpecError(
                f"{of}: has no input array, so nothing says where the op runs; give it one"
            )
        scalars = {
            name: value
            for name, value in definition.arguments.scalars.items()
            if name not in definition.own_names
        }
        for name, default in scalars.items():
            if default is MISSING:
                kind = scalars[name] = _kind(kernel, name)
                if kind is None:
                    raise SpecError(
                        f"{of}: the scalar '{name}' has neither a default nor a type, which the "
                        f"op's schema must say: annotate it, e.g. {name}: float"
                    )
        wrong = [name for name in statics if name not in kernel.statics]
        lacking = [
            name
            for name, value in kernel.statics.items()
            if value is MISSING and name not in statics
        ]
        if wrong or lacking:
            raise SpecError(
                f"{of}: its Statics are {', '.join(kernel.statics) or 'none'}; "
                + (
                    f"statics= names {', '.join(wrong)}"
                    if wrong
                    else (
                        f"{', '.join(lacking)} has no default, and an op's Statics are fixed: "
                        f"pass statics={{{lacking[0]!r}: …}}"
                    )
                )
            )
        return cls(kernel, kinds, mutated, tuple(names[first:]), scalars, statics)

    def schema(self, name: str) -> str:
        marks = iter("abcdefghijklmnopqrstuvwxyz")
        inputs = [
            f"{_spelled(kind)} {each}"
            if kind is not None
            else f"Tensor({next(marks)}!) {each}"
            if each in self.mutated
            else f"Tensor {each}"
            for each, kind in self.inputs.items()
        ]
        named = [
            f"{_spelled(value)} {each}"
            if isinstance(value, type)
            else (
                f"{_spelled(type(value))} "
                f"{each}={value.item() if isinstance(value, np.generic) else value}"
            )
            for each, value in self.scalars.items()
        ]
        results = ["Tensor"] * len(self.outputs)
        return f"{name}({', '.join([*inputs, *['*'] * bool(named), *named])}) -> " + (
            results[0] if len(results) == 1 else f"({', '.join(results)})"
        )

    def run(self, *args: Any, **scalars: Any) -> Any:
        """The op on tensors of a device."""
        for name, value in scalars.items():
            if isinstance(self.scalars[name], np.generic):
                scalars[name] = type(self.scalars[name])(value)
        results = self.kernel(*args, **scalars, **self.statics)
        if self.mutated:
            torch.autograd.graph.increment_version(
                [args[list(self.inputs).index(name)] for name in self.mutated]
            )
        return results if self.outputs else None

    def fake(self, *args: Any, **scalars: Any) -> Any:
        """The op's outputs, without their contents: what out_type says of the inputs' shapes and
        types."""
        of, definition = f"kernel {self.kernel.name}", self.kernel.definition
        named = zip(self.inputs, args, strict=True)
        known = [
            ArrayType(tuple(value.shape), element_type(of, name, value))
            if isinstance(value, torch.Tensor)
            else _known(value)
            for name, value in named
        ]
        call = definition.bind(
            tuple(known),
            {name: _known(value) for name, value in scalars.items()} | self.statics,
            own=False,
        )
        if not self.outputs:
            return None
        types = definition.results.types(call)
        device = next(value.device for value in args if isinstance(value, torch.Tensor))
        results = [
            torch.empty(each.shape, dtype=torch_type(of, each.dtype), device=device)
            for each in types
        ]
        return results[0] if len(results) == 1 else tuple(results)


def _kind(kernel: Kernel, name: str) -> type | None:
    """Return the type of a scalar that a parameter's annotation says; None for other parameters."""
    try:
        annotation = inspect.signature(kernel).parameters[name].annotation
    except (KeyError, ValueError, TypeError):  # a loaded kernel has none
        return None
    if isinstance(annotation, type) and issubclass(annotation, np.generic):
        return annotation
    return _SCALARS.get(annotation)


def _spelled(kind: type) -> str:
    """Return a scalar's type as schemas have it."""
    return _KINDS[np.dtype(kind).kind]


def _known(value: Any) -> Any:
    """Return a scalar as a number: a symbol of `torch.compile` becomes the constant that it stands
    for."""
    return (
        int(value)
        if isinstance(value, torch.SymInt)
        else float(value)
        if isinstance(value, torch.SymFloat)
        else value
    )


def _names(name: str) -> tuple[str, str]:
    namespace, colons, op = name.rpartition("::")
    namespace = namespace if colons else NAMESPACE
    if not (namespace.isidentifier() and op.isidentifier()):
        raise SpecError(
            'numpipe.torch.register: name must be "name" or "namespace::name", of letters, '
            "digits and _, got "
            f"{name!r}"
        )
    return namespace, op


def _define(names: tuple[str, str], form: _Form, gradients: _Gradients) -> Op:
    """Define the op, in a library of its own, so that a kernel defined anew can replace it."""
    full, kernel = "::".join(names), form.kernel
    older, library = _registered.get(full, (None, None))
    if older is not None:
        if _place(older) != _place(kernel):
            raise SpecError(
                f"numpipe.torch.register: kernel {kernel.name}: the op {full} is that of another "
                "kernel, of "
                f'{_place(older)[0]}: pass another name="{names[0]}::…"'
            )
        assert library is not None
        library._destroy()
    library = torch.library.Library(names[0], "FRAGMENT")
    _registered[full] = kernel, library
    op = define(library, form.schema(names[1]), form.run, form.fake)
    if form.mutated:
        under_autograd(library, op, _refusing(full, form))
    else:
        torch.library.register_autograd(
            full, gradients.backward, setup_context=gradients.save, lib=library
        )
    without_vmap(
        library,
        op,
        "write a kernel over the batch, or call the op in a loop and torch.stack the results",
    )
    return op


def _place(kernel: Kernel) -> tuple[Any, ...]:
    """Return where a kernel is defined: its module or file, and its name there."""
    return getattr(kernel, "_place", None) or kernel.__module__, getattr(
        kernel, "__qualname__", kernel.name
    )


# ---- what it refuses
def _refusing(name: str, form: _Form) -> Callable[..., Any]:
    def refuse(*args: Any, **named: Any) -> Any:
        raise SpecError(
            f"{name}: writes {', '.join(form.mutated)} in place, and an argument requires a "
            "gradient, which such an op has not: call it under torch.no_grad(), pass "
            "tensors.detach(), or give the kernel an out_type"
        )

    return refuse


# ---- gradients
@dataclass(frozen=True)
class _Gradients:
    """What computes the gradients of an op's input tensors."""

    form: _Form
    needed: tuple[str, ...]
    """names of the values that it takes"""
    compute: Callable[..., Any]

    @classmethod
    def none(cls, name: str, form: _Form) -> _Gradients:
        def lack() -> Any:
            kernel = form.kernel.name
            raise SpecError(
                f"{name}: its gradient is asked for, but kernel {kernel} was registered without "
                f"one: pass numpipe.torch.register({kernel}, backward=…), or call the op under "
                "torch.no_grad()"
            )

        return cls(form, (), lack)

    @classmethod
    def of(cls, name: str, form: _Form, backward: Kernel | Callable[..., Any]) -> _Gradients:
        """Take a kernel or a function; SpecError for one that asks for or returns something
        else."""
        if form.mutated:
            raise SpecError(
                f"{name}: backward= is for kernels with an out_type: what is written in place has "
                "no gradient"
            )
        compute, what = backward, getattr(backward, "__name__", repr(backward))
        if isinstance(backward, Kernel):
            given = {key: value for key, value in form.statics.items() if key in backward.statics}
            own = _Form.of(backward, (), given)
            targets = [f"grad_{each}" for each in form.tensors]
            if own.mutated or not set(own.outputs) <= set(targets):
                raise SpecError(
                    f"{name}: the kernel {what} computes its gradients and must have an out_type "
                    f"for outputs called {', '.join(targets)}, or some of these; it returns "
                    f"{', '.join(own.outputs) or 'nothing'}"
                )
            op = register(backward, f"{name}_backward", statics=given)
            needed = (*own.inputs, *own.scalars)

            def compute(**values: Any) -> Any:
                results = op(*[values.pop(each) for each in own.inputs], **values)
                named = dict(
                    zip(
                        own.outputs,
                        results if isinstance(results, (tuple, list)) else (results,),
                        strict=True,
                    )
                )
                return tuple(named.get(target) for target in targets)
        else:
            needed = tuple(parameter_names(backward, "backward"))
        known = [
            *form.inputs,
            *form.scalars,
            *form.outputs,
            *(f"grad_{each}" for each in form.outputs),
        ]
        if unknown := [each for each in needed if each not in known]:
            raise SpecError(
                f"{name}: backward {what} takes {', '.join(unknown)}; it is given by name what it "
                f"needs of {', '.join(known)}"
            )
        return cls(form, needed, compute)

    def save(
        self,
        ctx: Any,
        inputs: tuple[Any, ...],
        output: Any,
        keyword_only_inputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep of a call what the gradients need."""
        outputs = output if isinstance(output, (tuple, list)) else (output,)
        values = dict(
            zip((*self.form.inputs, *self.form.outputs), (*inputs, *outputs), strict=True)
        )
        values.update(keyword_only_inputs or {})
        kept = {name: value for name, value in values.items() if name in self.needed}
        ctx.tensors = [name for name, value in kept.items() if isinstance(value, torch.Tensor)]
        ctx.others = {name: value for name, value in kept.items() if name not in ctx.tensors}
        ctx.save_for_backward(*[kept[name] for name in ctx.tensors])

    def backward(self, ctx: Any, *grads: Any) -> Any:
        """Return a gradient for each positional parameter, None for scalars."""
        values = dict(zip(ctx.tensors, ctx.saved_tensors, strict=True)) | ctx.others
        values |= {
            f"grad_{name}": grad.contiguous()
            for name, grad in zip(self.form.outputs, grads, strict=True)
        }
        results = self.compute(**{name: values[name] for name in self.needed})
        results = tuple(results) if isinstance(results, (tuple, list)) else (results,)
        tensors = self.form.tensors
        if len(results) != len(tensors):
            raise SpecError(
                f"kernel {self.form.kernel.name}: its backward must return a gradient for each of "
                f"{', '.join(tensors)}, None where there is none, got {len(results)}"
            )
        named = dict(zip(tensors, results, strict=True))
        return tuple(named.get(name) for name in self.form.inputs)
