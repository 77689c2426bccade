"""Declared ops in PyTorch: what `numpipe.torch` has of each op, made from its declaration.

`front` makes the function that users call, and defines two ops of the dispatcher,
``numpipe::NAME`` and ``numpipe::NAME_out``, with fake implementations, autograd, autocast and vmap.
A call goes past the dispatcher where nothing listens there (`dispatch.direct`).

A schema has no type for a mesh. An op of several GPUs takes the mesh's name, and lists of one
tensor for each GPU of this process.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import NoneType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from ...core.functions import Function
from ...diagnostics.errors import SpecError
from ...launch.mesh import mesh_of
from ...ops.declaration import DECLARED, Op, by_name
from ...ops.sharded_calls import Shards
from .dispatch import (
    check_tensors,
    define,
    differentiated,
    direct,
    element_type,
    torch_type,
    transformed,
    under_autocast,
    under_autograd,
    without_vmap,
)

__all__ = ["front", "own_fronts"]

_LIBRARY = torch.library.Library("numpipe", "FRAGMENT")
_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": functional.relu,
    "silu": functional.silu,
    "gelu": functools.partial(functional.gelu, approximate="tanh"),
}


def front(op: Op[Any]) -> Callable[..., Any]:
    """Return the function of tensors for a declared op; its ops of the dispatcher are defined."""
    return torch_op(op).front


@functools.cache
def torch_op(op: Op[Any]) -> TorchOp:
    return TorchOp(op)


class _Arrays:
    """PyTorch as the ``xp`` of a declaration's functions."""

    def __call__(self, op: Op[Any] | str, *arrays: Any, **options: Any) -> Any:
        return torch_op(DECLARED[op] if isinstance(op, str) else op).front(*arrays, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def transposed(self, x: Any) -> Any:
        return x.mT

    def cast(self, x: Any, dtype: Any) -> Any:
        return x.to(
            dtype if isinstance(dtype, torch.dtype) else torch_type("numpipe", np.dtype(dtype))
        )

    def summed(self, x: Any, shape: Sequence[Any]) -> Any:
        return x.sum_to_size(shape)

    def activation(self, name: str, x: Any) -> Any:
        return _ACTIVATIONS[name](x)

    def contiguous(self, x: Any) -> Any:
        """Return a tensor that begins at a multiple of 16 bytes, without gaps."""
        x = x.contiguous()
        return x.clone() if x.storage_offset() * x.element_size() % 16 else x


_XP = _Arrays()


class TorchOp:
    """A declared op in PyTorch.

    Arrays are the operands in their order: tensors, None for one that is left out; of an op of
    several GPUs lists of tensors. Options are all of the declaration's; those that a schema has no
    type for are not taken and have their defaults.
    """

    def __init__(self, declared: Op[Any]) -> None:
        self.declared, self.name = declared, declared.name
        kinds = {name: _kind(declared.signature.parameters[name]) for name in declared.options}
        self._kinds = {name: kind for name, kind in kinds.items() if kind}
        refused = [name for name, kind in kinds.items() if not kind]
        self._arguments = declared.arguments_of([*refused, "target", "stream"])
        self._defaults = {
            **dict.fromkeys(declared.operands),
            **{name: declared.options[name] for name in self._kinds},
        }
        self.front = self._front()
        self.op = define(_LIBRARY, self._schema(), self._run, self._fake)
        self._out = define(_LIBRARY, self._schema(out=True), self._run_out, lambda *args: None)
        under_autograd(_LIBRARY, self.op, self._under_autograd)
        under_autograd(_LIBRARY, self._out, self._refuse_out)
        wide = [bool(operand.types) for operand in declared.operands.values()]
        if declared.types and all(dtype.itemsize == 2 for dtype in declared.types):
            under_autocast(_LIBRARY, self.op, wide)
        if declared.batching:
            torch.library.register_vmap(self.op._schema.name, self._over_batch, lib=_LIBRARY)
        else:
            without_vmap(
                _LIBRARY,
                self.op,
                "reshape the dimension into another one, or call it for each of them",
            )
        without_vmap(_LIBRARY, self._out, "leave out= out")

    def _schema(self, out: bool = False) -> str:
        of_array = "Tensor[]" if self.declared.sharded else "Tensor"
        texts = [
            f"Tensor? {name}{'' if out else '=None'}"
            if name in self.declared.optional
            else f"{of_array} {name}"
            for name in self.declared.operands
        ]
        texts += ["str mesh"] * self.declared.sharded
        for name, kind in self._kinds.items():
            default = self.declared.options[name]
            spelled = f'"{default}"' if isinstance(default, str) else default
            texts.append(f"{kind} {name}" if out else f"{kind} {name}={spelled}")
        if out:
            return f"{self.name}_out({', '.join(texts)}, Tensor(a!)[] out) -> ()"
        results = ["Tensor"] * len(self.declared.results)
        returned = f"({', '.join(results)})" if len(results) > 1 else of_array
        return f"{self.name}({', '.join(texts)}) -> {returned}"

    # ---- the function that users call
    def _front(self) -> Callable[..., Any]:
        declared, arguments = self.declared, self._arguments

        def call(*args: Any, **named: Any) -> Any:
            arrays, options, out, where, _ = arguments(*args, **named)
            if declared.sharded:
                return self._call_on_mesh(arrays, options, out, where)
            if out is None and direct(*arrays):
                if differentiated(*arrays):
                    return self._present(self.recorded(arrays, options, None), options)
                try:
                    return declared.call(arrays, options)
                except Exception:
                    # what is wrong may be PyTorch's
                    made = self._fake_of(arrays, options, None)
                    if arrays[0].is_meta:
                        return self._present(made, options)
                    raise
            check_tensors(self.name, **dict(zip(declared.operands, arrays, strict=True)))
            spelled = self._spelled(options)
            if out is not None:
                outs = [out] if isinstance(out, torch.Tensor) else list(out)
                check_tensors(self.name, **{next(iter(declared.operands)): arrays[0]}, out=outs[0])
                self._out(*arrays, *self._of_schema(spelled), outs)
                return out
            graded = declared.gradients and spelled == options and torch.is_grad_enabled()
            if graded and transformed():
                return self._present(self.recorded(arrays, options, None, _Transformed), options)
            return self._present(self.op(*arrays, *self._of_schema(spelled)), options)

        functools.update_wrapper(call, declared)
        call.__doc__ = self._documentation()
        left = self._defaults.keys() | {"out", "mesh"}
        parameters = declared.signature.parameters.values()
        call.__signature__ = declared.signature.replace(  # type: ignore[attr-defined]
            parameters=[each for each in parameters if each.name in left]
        )
        return call

    def _documentation(self) -> str:
        declared = self.declared
        first, _, _ = (declared.__doc__ or "").partition("\n\n")
        gradients = ", ".join(name for names in declared.gradients for name in names)
        return f"""{first}

    `numpipe.ops.{self.name}` as the PyTorch op ``numpipe::{self.name}``: its parameters are
    described there. {f"There are gradients of {gradients}." if gradients else "It has no gradients."}

    Under autocast, an op of 16-bit types converts its operands. A call is one node of a graph of
    `torch.compile` and `torch.export`, runs on the current stream, and may be captured into CUDA
    graphs. With out= no gradients are recorded. Raises SpecError as `numpipe.ops.{self.name}`
    does, and for out= where a tensor requires a gradient.
    """

    def _call_on_mesh(self, arrays: Any, options: Any, out: Any, mesh: Any) -> Any:
        shards = Shards(self.declared, mesh)  # type: ignore[arg-type]
        names = list(self.declared.operands)
        lists = [list(shards.parts(name, value)) for name, value in zip(names, arrays, strict=True)]
        outs = None if out is None else list(shards.parts("out", out))
        for gpu, each in enumerate(zip(*lists, strict=True)):
            self._check_given(each)
            check_tensors(
                self.name, **dict(zip(names, each, strict=True)), out=outs[gpu] if outs else None
            )
        if outs is not None:
            self._out(*lists, mesh.name, outs)
            return out
        tensors = [tensor for each in lists for tensor in each]
        if differentiated(*tensors) and direct(*tensors):
            found = self.recorded(lists, options, mesh)
        else:
            found = self.unrecorded(lists, options, mesh)
        return found if mesh.rank is None else found[0]

    def _present(self, made: Any, options: Sequence[Any]) -> Any:
        """Return those of all results that these options ask for."""
        if len(self.declared.results) == 1:
            return made
        found = [each for each in made if each.shape != (0,)]
        return found[0] if len(found) == 1 else tuple(found)

    # ---- arguments, of the dispatcher and of the declaration
    def _of_schema(self, options: Sequence[Any]) -> Iterator[Any]:
        """Return those options that the schema has."""
        named = zip(self.declared.options, options, strict=True)
        return (value for name, value in named if name in self._kinds)

    def _split(self, args: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
        """Return arrays, options and mesh of an op's arguments, whose last ones may be missing."""
        count, mesh = len(self.declared.operands), None
        if self.declared.sharded:
            mesh = mesh_of(args[count], self.name)
            args = (*args[:count], *args[count + 1 :])
        values = {**self._defaults, **dict(zip(self._defaults, args, strict=False))}
        options = {**self.declared.options, **values}
        arrays = tuple(values[name] for name in self.declared.operands)
        return arrays, tuple(options[name] for name in self.declared.options), mesh

    def _spelled(self, options: Sequence[Any]) -> tuple[Any, ...]:
        """Return options with functions as the names by which a graph finds them again."""
        return tuple(
            self._spell(name, value) if callable(value) else value
            for name, value in zip(self.declared.options, options, strict=True)
        )

    def _spell(self, name: str, function: Any) -> str:
        if not isinstance(function, Function):
            raise SpecError(
                f"{self.name}: {name} must be a numpipe.function of a float32 tile, got "
                f"{function!r}"
            )
        module, inner = function.__module__, function.__qualname__  # type: ignore[attr-defined]
        if "<locals>" in inner:
            raise SpecError(
                f"{self.name}: the {name} {inner} is defined inside a function, where a graph does "
                f"not find it again: define it in the module {module}"
            )
        return f"{module}:{inner}"

    def _function(self, name: str, spelled: str) -> Any:
        """Return the function that `_spell` spelled. Raises SpecError where its module is not
        imported, which a graph does not do."""
        module, _, inner = spelled.partition(":")
        try:
            return functools.reduce(getattr, inner.split("."), sys.modules[module])
        except (KeyError, AttributeError):
            raise SpecError(
                f"{self.name}: the {name} {spelled!r} is no function of a module that is imported: "
                f"import {module} before the graph runs"
            ) from None

    # ---- the op
    def launch(self, arrays: Any, options: Sequence[Any], mesh: Any, outs: Any = None) -> Any:
        """Run the op. Returns what the dispatcher's op returns."""
        options = tuple(
            self._function(name, value) if isinstance(value, str) and ":" in value else value
            for name, value in zip(self.declared.options, options, strict=True)
        )
        if mesh is not None and mesh.rank is None:
            return self.declared.call(tuple(arrays), options, outs, mesh)
        if mesh is not None:
            arrays = tuple(each[0] for each in arrays)
        out = outs if outs is None or len(outs) > 1 else outs[0]
        made = self.declared.call(tuple(arrays), options, out, mesh)
        if mesh is not None:
            return [made]
        if len(self.declared.results) == 1:
            return made
        several = made if isinstance(made, tuple) else (made,)
        lacking = len(self.declared.results) - len(several)
        return (*several, *(arrays[0].new_empty(0) for _ in range(lacking)))

    def unrecorded(self, arrays: Any, options: Sequence[Any], mesh: Any) -> Any:
        """Run the op, past the dispatcher where that would do nothing."""
        tensors = _flat(arrays)
        first = next(iter(tensors))
        if direct(*tensors) and not first.is_meta and not differentiated(*tensors):
            return self.launch(arrays, options, mesh)
        place = () if mesh is None else (mesh.name,)
        return self.op(*arrays, *place, *self._of_schema(options))

    def _run(self, *args: Any) -> Any:
        arrays, options, mesh = self._split(args)
        if next(iter(_flat(arrays))).is_meta:
            return self._fake(*args)
        return self.launch(arrays, options, mesh)

    def _run_out(self, *args: Any) -> None:
        *args, outs = args  # type: ignore[assignment]
        self.launch(*self._split(args), outs)
        for tensor in outs:
            torch.autograd.graph.increment_version(tensor)

    def _fake(self, *args: Any) -> Any:
        return self._fake_of(*self._split(args))

    def _fake_of(self, arrays: Any, options: Sequence[Any], mesh: Any) -> Any:
        """Return the results without their contents. Raises SpecError as the op does, also for
        sizes that are symbols."""
        if mesh is not None:
            return [self._results(each, options, mesh.size) for each in zip(*arrays, strict=True)]
        return self._results(arrays, options, 1)

    def _results(self, arrays: Sequence[Any], options: Sequence[Any], gpus: int) -> Any:
        self._check_given(arrays)
        given = {
            name: tensor
            for name, tensor in zip(self.declared.operands, arrays, strict=True)
            if tensor is not None
        }
        check_tensors(self.name, **given)
        infos = {
            name: SimpleNamespace(shape=tensor.shape, dtype=element_type(self.name, name, tensor))
            for name, tensor in given.items()
        }
        fix = "convert it with {name}.to(torch.bfloat16), or run under torch.autocast"
        self.declared.check_types(infos, fix)
        values = self.declared.checked(self._resolved(options)) | {"gpus": gpus}
        wanted = self.declared.result_types(infos, values)
        first = next(iter(given.values()))
        made = [
            first.new_empty(wanted[name].shape, dtype=torch_type(self.name, wanted[name].dtype))
            if name in wanted
            else first.new_empty(0)
            for name in self.declared.results
        ]
        return made[0] if len(made) == 1 else tuple(made)

    def _resolved(self, options: Sequence[Any]) -> tuple[Any, ...]:
        """Return options for checks, any function in place of one that a graph has a name of."""
        return tuple(
            _Arrays if isinstance(value, str) and ":" in value else value for value in options
        )

    def _check_given(self, arrays: Sequence[Any]) -> None:
        for name, tensor in zip(self.declared.operands, arrays, strict=True):
            if tensor is None and name not in self.declared.optional:
                raise SpecError(f"{self.name}: '{name}' must be a torch.Tensor, got None")

    # ---- gradients
    def recorded(self, arrays: Any, options: Sequence[Any], mesh: Any, function: Any = None) -> Any:
        """Run the op, or what replaces it where it is differentiated, and have autograd record
        it."""
        values = self.values(arrays, options, mesh)
        if self.declared.composite is not None:
            made = by_name(self.declared.composite, {**values, "xp": _XP})
            if made is not NotImplemented:
                return made
        if not self.declared.gradients:
            raise SpecError(
                f"{self.name}: an argument requires a gradient, and this op has no backward pass "
                "yet: call it under torch.no_grad() or torch.inference_mode(), or the function of "
                "torch.nn.functional"
            )
        made = (function or _Recorded).apply(_Call(self, tuple(options), mesh), *_flat(arrays))
        return list(made) if mesh is not None else made

    def values(self, arrays: Any, options: Sequence[Any], mesh: Any) -> dict[str, Any]:
        """Return operands, the schema's options and the mesh by name."""
        named = zip(self.declared.options, options, strict=True)
        return {
            **dict(zip(self.declared.operands, arrays, strict=True)),
            **{name: value for name, value in named if name in self._kinds},
            "mesh": mesh,
        }

    def grouped(self, tensors: Sequence[Any]) -> list[Any]:
        """Return flat tensors as arrays."""
        if not self.declared.sharded:
            return list(tensors)
        gpus = len(tensors) // len(self.declared.operands)
        return [[*tensors[i : i + gpus]] for i in range(0, len(tensors), gpus)]

    def _under_autograd(self, *args: Any) -> Any:
        made = self.recorded(*self._split(args))
        if len(self.declared.results) > 1 and not isinstance(made, tuple):
            raise SpecError(f"{self.name}: composite= must return all results")
        return made

    def _refuse_out(self, *args: Any) -> None:
        raise SpecError(
            f"{self.name}: out= is given and an argument requires a gradient, which a result "
            "written in place has not: leave out= out, call it under torch.no_grad(), or pass "
            "tensors.detach()"
        )

    # ---- vmap
    def _over_batch(self, info: Any, in_dims: Any, *args: Any) -> Any:
        arrays, options, _ = self._split(args)
        dims = [*in_dims, *[None] * len(arrays)][: len(arrays)]
        moved = [
            tensor if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip(arrays, dims, strict=True)
        ]
        batched = {
            name: dim is not None for name, dim in zip(self.declared.operands, dims, strict=True)
        }
        values = self.values(moved, options, None)
        made = self.declared.batched(_XP, info.batch_size, values, batched)
        if len(self.declared.results) == 1:
            return made, 0
        several = made if isinstance(made, tuple) else (made,)
        lacking = [None] * (len(self.declared.results) - len(several))
        empty = [several[0].new_empty(0) for _ in lacking]
        return (*several, *empty), (*[0] * len(several), *lacking)


@dataclass(frozen=True, eq=False)
class _Call:
    """What a recorded call is, beside its tensors."""

    op: TorchOp
    options: tuple[Any, ...]
    mesh: Any


class _Transformed(torch.autograd.Function):  # type: ignore[misc]
    """A call and its gradients, in the form that `torch.func` transforms."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: _Call, *tensors: Any) -> Any:
        made = call.op.unrecorded(call.op.grouped(tensors), call.options, call.mesh)
        return tuple(made) if call.mesh is not None else made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.call, *tensors = inputs
        declared = ctx.call.op.declared
        results = output if isinstance(output, tuple) else (output,)
        values = dict(zip(declared.operands, ctx.call.op.grouped(tensors), strict=True))
        values |= zip(declared.results, [[*results]] if declared.sharded else results, strict=True)
        kept = {name: values[name] for name in declared.saved if values[name] is not None}
        ctx.kept = {name: len(x) if isinstance(x, list) else None for name, x in kept.items()}
        ctx.save_for_backward(*_flat(kept.values()))
        ctx.likes = [
            None if tensor is None else SimpleNamespace(shape=tensor.shape, dtype=tensor.dtype)
            for tensor in tensors
        ]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        op: TorchOp = ctx.call.op
        declared, left = op.declared, iter(ctx.saved_tensors)
        values = op.values([None] * len(declared.operands), ctx.call.options, ctx.call.mesh)
        for name, count in ctx.kept.items():
            values[name] = next(left) if count is None else [next(left) for _ in range(count)]
        each = [[*grads]] if declared.sharded else grads
        values |= {f"grad_{name}": grad for name, grad in zip(declared.results, each, strict=True)}
        wanted = op.grouped(ctx.needs_input_grad[1:])
        found = declared.gradients_of(
            _XP,
            values,
            {name: any(_flat([of])) for name, of in zip(declared.operands, wanted, strict=True)},
            dict(zip(declared.operands, op.grouped(ctx.likes), strict=True)),
        )
        nothing = [None] * len(grads) if declared.sharded else None
        return (None, *_flat(found.get(name, nothing) for name in declared.operands))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise SpecError(
            f"{ctx.call.op.name}: derivatives along the inputs (torch.func.jvp, jacfwd) are not "
            "defined; use torch.func.vjp, jacrev or grad"
        )


class _Recorded(_Transformed):
    """The same in the form that costs PyTorch a third of the time."""

    setup_context = staticmethod(torch.autograd.Function.setup_context)

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        result = _Transformed.forward(*inputs)
        _Transformed.setup_context(ctx, inputs, result)
        return result


def _flat(arrays: Iterable[Any]) -> list[Any]:
    """Return arrays, which may be lists, in one list."""
    return [x for each in arrays for x in (each if isinstance(each, list) else [each])]


def _kind(parameter: inspect.Parameter) -> str:
    """Return the type of an option as schemas have it; "" where they have none."""
    kinds = typing.get_args(parameter.annotation) or (parameter.annotation,)
    found = next((kind.__name__ for kind in (bool, int, float, str) if kind in kinds), "")
    return f"{found}?" if found and NoneType in kinds else found


def own_fronts(op: Op[Any]) -> Iterator[Callable[..., Any]]:
    """Yield the functions of a declaration that call the op in another way."""
    for function in op.fronts.get("torch", []):
        _, *parameters = inspect.signature(function).parameters.values()
        tensors = [each.name for each in parameters if each.default is each.empty]
        yield _own_front(function, tensors, front(op))


def _own_front(
    function: Callable[..., Any], tensors: list[str], of_op: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        given = dict(zip(tensors, args, strict=False)) | named
        check_tensors(function.__name__, **{name: given[name] for name in tensors if name in given})
        return function(of_op, *args, **named)

    signature = inspect.signature(function)
    _, *parameters = signature.parameters.values()
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call
