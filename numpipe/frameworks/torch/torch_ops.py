"""PyTorch ops made from declared ops, as `numpipe.torch` offers them.

A `TorchOp` has the function that users call, `TorchOp.front`, and two dispatcher ops,
``namespace::NAME`` and ``namespace::NAME_out``, with fake implementations, autograd, autocast and
vmap. Calls bypass the dispatcher if nothing there would intercept them (`dispatch.direct`).

Schemas have no type for a mesh, so an op on several GPUs takes the mesh's name, and lists with one
tensor for each GPU of this process.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import NoneType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from ... import ops
from ...core.functions import Function
from ...diagnostics.argument_checks import as_tuple
from ...diagnostics.errors import SpecError
from ...launch.mesh import mesh_of
from ...ops.declaration import Op, by_name
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
)

NAMESPACE = "numpipe_kernels"
"""namespace of users' ops whose name has no namespace"""
ABSENT = (0,) * 32
"""shape of the empty tensors that stand for absent results; results have fewer dimensions"""
_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "str"}
"""schema types by the kind of a NumPy type"""
_made: dict[Op, TorchOp] = {}
_registered: dict[str, TorchOp] = {}
"""registered ops by "namespace::name\""""


def torch_op(op: Op, name: str = "") -> TorchOp:
    """Return an op in PyTorch, defining it on first use.

    `name` is "namespace::name"; by default it is the op's own name, in the namespace "numpipe" for
    numpipe's ops and `NAMESPACE` for others. Raises SpecError if another op has that name;
    redefining an op, as in a notebook, replaces the older one.
    """
    known = _made.get(op)
    if known is not None and name in ("", known.full):
        return known
    own = op.__module__.partition(".")[0] == "numpipe"
    name = name or f"{'numpipe' if own else NAMESPACE}::{op.name}"
    older = _registered.get(name)
    if older is not None:
        place = older.declared.__module__, older.declared.__qualname__
        if place != (op.__module__, op.__qualname__):
            raise SpecError(
                f"numpipe.torch.register: {op.name}: {place[0]} has defined another op {name}; "
                f'fix: pass another name="{name.partition("::")[0]}::…"'
            )
        older.library._destroy()
    made = _made[op] = _registered[name] = TorchOp(op, name)
    return made


class _Arrays:
    """PyTorch as the ``xp`` of a declaration's functions."""

    def __call__(self, op: Op | str, *arrays: Any, **options: Any) -> Any:
        called = torch_op(getattr(ops, op) if isinstance(op, str) else op)
        if called.declared.sharded:  # gradients are lists, even under Mesh.torch
            lists, constants, _, mesh, _ = called.arguments(*arrays, **options)
            return called.on_mesh(lists, constants, mesh)
        return called.front(*arrays, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def transposed(self, x: Any) -> Any:
        return x.mT

    def cast(self, x: Any, dtype: Any) -> Any:
        return x.to(dtype if isinstance(dtype, torch.dtype) else torch_type(dtype))

    def summed(self, x: Any, shape: Sequence) -> Any:
        return x.sum_to_size(shape)

    def scattered(self, like: Any, indices: Any, values: Any) -> Any:
        return torch.zeros_like(like).scatter(-1, indices.long(), values)

    def activation(self, name: str, x: Any) -> Any:
        more = {"approximate": "tanh"} if name == "gelu" else {}
        return getattr(functional, name)(x, **more)

    def contiguous(self, x: Any) -> Any:
        """Return a contiguous tensor that starts at a multiple of 16 bytes."""
        x = x.contiguous()
        return x.clone() if x.storage_offset() * x.element_size() % 16 else x


_XP = _Arrays()


class TorchOp:
    """A declared op in PyTorch.

    ``arrays`` are the operands in declaration order: tensors, None for an omitted operand, or lists
    of tensors for an op on several GPUs. ``options`` are all options of the declaration; those
    without a schema type are not accepted and keep their defaults. In a graph, an option that is a
    function is the string "module:name".
    """

    def __init__(self, declared: Op, full: str) -> None:
        self.declared, self.name, self.full = declared, declared.name, full
        parameters = declared.signature.parameters
        kinds = {name: _kind(parameters[name]) for name in declared.options}
        kinds |= dict.fromkeys(declared.functions, "str?")
        self._kinds = {name: kind for name, kind in kinds.items() if kind}
        place = ["mesh"] * declared.sharded
        taken = {*declared.operands, *self._kinds, *place, "out"}
        self._parameters = [each for each in parameters if each in taken]
        self.arguments = declared.arguments_of(self._parameters)
        self._bind = declared.arguments_of([*declared.operands, *place, *self._kinds], True)
        arrays = [*declared.operands, *declared.results]
        self.saved = [name in declared.saved for name in arrays]
        self.known = arrays + [f"grad_{name}" for name in declared.results]
        self.front = self._front()
        namespace, _, name = full.partition("::")
        self.library = library = torch.library.Library(namespace, "FRAGMENT")
        recorded = self._refuse if declared.mutates else self._under_autograd
        schema = self._schema(name)
        self.op = define(library, schema, self._run, self._fake, recorded, self._over_batch)
        self.narrow = bool(declared.types) and all(each.itemsize == 2 for each in declared.types)
        if self.narrow:
            wide = [bool(operand.types) for operand in declared.operands.values()]
            under_autocast(library, self.op, wide)
        if "out" in parameters:
            schema, refuse = self._schema(f"{name}_out", "Tensor(a!)[] out"), self._refuse
            self._out = define(library, schema, self._run_out, lambda *args: None, refuse, refuse)

    def _schema(self, name: str, *out: str) -> str:
        """Return the schema of the op, or of its `out` variant, which has no defaults."""
        declared, of_array = self.declared, "Tensor[]" if self.declared.sharded else "Tensor"
        marks = {each: f"Tensor({chr(97 + i)}!)" for i, each in enumerate(declared.mutates)}
        kinds = {each: marks.get(each, of_array) for each in declared.operands}
        kinds |= dict.fromkeys(declared.optional, "Tensor?")
        kinds |= {"mesh": "str"} if declared.sharded else {}
        texts = []
        for each, kind in (kinds | self._kinds).items():
            default = getattr(declared.signature.parameters.get(each), "default", None)
            spelled = repr(default) if isinstance(default, str) else default
            required = out or default is inspect.Parameter.empty
            texts.append(f"{kind} {each}" if required else f"{kind} {each}={spelled}")
        results = [] if out else [of_array] * len(declared.results)
        return f"{name}({', '.join([*texts, *out])}) -> ({', '.join(results)})"

    # ---- the function that users call
    def _front(self) -> Callable:
        declared, arguments = self.declared, self.arguments

        def call(*args: Any, **named: Any) -> Any:
            arrays, options, out, where, _ = arguments(*args, **named)
            if declared.sharded:
                return self._call_on_mesh(arrays, options, out, where)
            if out is None and direct(*arrays):
                if differentiated(*arrays):
                    return self.recorded(arrays, options, None)
                try:
                    return declared.call(arrays, options)
                except Exception:
                    # report user errors in PyTorch's terms first
                    made = self._fake_of(arrays, options, None)
                    if arrays[0].is_meta:
                        return self._present(made)
                    raise
            outs = [] if out is None else [*as_tuple(out)]
            self._check(arrays, *outs[:1])
            if outs:
                self._out(*arrays, *self._of_schema(options), outs)
                return out
            graded = transformed() and torch.is_grad_enabled()
            if graded and not any(map(callable, options)):
                return self.recorded(arrays, options, None, _Transformed)
            return self._present(self.op(*arrays, *self._of_schema(options)))

        functools.update_wrapper(call, declared)
        call.__doc__ = declared.documentation(
            f"""`{self.name}` as the PyTorch op ``{self.full}``: the declared op's own docstring
    describes the parameters.

    Under autocast, an op of 16-bit types converts its operands. A call is a single node in graphs
    of `torch.compile` and `torch.export`, runs on the current stream, and can be captured in CUDA
    graphs. With out=, no gradients are recorded. Raises SpecError as the declared op does, and for
    out= if a tensor requires a gradient."""
        )
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [declared.signature.parameters[name] for name in self._parameters]
        )
        return call

    def _call_on_mesh(self, arrays: Any, options: Any, out: Any, mesh: Any) -> Any:
        shards = Shards(self.declared, mesh)  # type: ignore[arg-type]
        named = zip(self.declared.operands, arrays, strict=True)
        lists = [list(shards.parts(name, value)) for name, value in named]
        outs = [] if out is None else [[*shards.parts("out", out)]]
        for each in zip(*lists, *outs, strict=True):
            self._check(each[: len(lists)], *each[len(lists) :])
        if outs:
            self._out(*lists, mesh.name, *self._of_schema(options), *outs)
            return out
        found = self.on_mesh(lists, options, mesh)
        return found if mesh.rank is None else found[0]

    def on_mesh(self, lists: Any, options: Any, mesh: Any) -> list:
        """Call the op on lists with one tensor for each GPU of this process; return such a list."""
        tensors = _flat(lists)
        if direct(*tensors) and differentiated(*tensors):
            return self.recorded(lists, options, mesh)  # type: ignore[no-any-return]
        return self.unrecorded(tensors, options, mesh)  # type: ignore[no-any-return]

    # ---- results that options omit: the dispatcher's op returns empty tensors in their place
    def _whole(self, made: Any, like: Any) -> Any:
        """Return one result for each declared one, with empty tensors for the omitted ones."""
        several = as_tuple(made)
        lacking = len(self.declared.results) - len(several)
        return (
            (*several, *(like.new_empty(ABSENT) for _ in range(lacking))) if lacking > 0 else made
        )

    def _present(self, made: Any) -> Any:
        """Return the results, without the empty tensors that stand for absent ones."""
        if len(self.declared.results) == 1:
            return made
        found = [each for each in made if each.ndim < len(ABSENT)]
        return found[0] if len(found) == 1 else tuple(found)

    # ---- arguments, of the dispatcher and of the declaration
    def _check(self, arrays: Sequence, *out: Any) -> dict[str, Any]:
        """Return the given tensors by name. Raises SpecError for other arguments, and for tensors
        (including `out`) on several devices."""
        given = self.declared.given(arrays)
        check_tensors(self.name, **given, **dict(zip(["out"], out, strict=False)))
        return given

    def _of_schema(self, options: Sequence) -> Iterator:
        """Yield the options that are in the schema, with functions replaced by their names."""
        for name, value in zip(self.declared.options, options, strict=True):
            if name in self._kinds:
                yield self._spelled(name, value) if callable(value) else value

    def _split(self, args: Sequence) -> tuple[tuple, tuple, Any]:
        """Return the arrays, options and mesh of a dispatcher call, in which trailing defaults are
        omitted."""
        arrays, options, _, mesh, _ = self._bind(*args)
        if options:
            named = zip(self.declared.options, options, strict=True)
            options = tuple([self._function(name, value) for name, value in named])
        return arrays, options, mesh and mesh_of(mesh, self.name)

    def _spelled(self, name: str, function: Any) -> str:
        """Return the name by which a graph can find a function again."""
        if not isinstance(function, Function):
            raise SpecError(
                f"{self.name}: {name} must be a numpipe.function of a float32 tile, got "
                f"{function!r}"
            )
        module, inner = function.__module__, function.__qualname__  # type: ignore[attr-defined]
        if "<locals>" in inner:
            raise SpecError(
                f"{self.name}: the {name} {inner} is defined inside a function, where a graph "
                f"cannot find it again; fix: define it at the top level of {module}"
            )
        return f"{module}:{inner}"

    def _function(self, name: str, value: Any) -> Any:
        """Return the function that a name from `_spelled` refers to, and other values unchanged.
        Raises SpecError if the function's module is not imported: running a graph imports nothing.
        """
        if not isinstance(value, str) or ":" not in value:
            return value
        module, _, inner = value.partition(":")
        try:
            return functools.reduce(getattr, inner.split("."), sys.modules[module])
        except (KeyError, AttributeError):
            raise SpecError(
                f"{self.name}: the {name} {value!r} is not a function of an imported module; "
                f"fix: import {module} before the graph runs"
            ) from None

    # ---- the op
    def launch(self, arrays: Any, options: tuple, mesh: Any, outs: Any = None) -> Any:
        """Run the op and return what the dispatcher's op returns."""
        if mesh is not None and mesh.rank is None:
            return self.declared.call(tuple(arrays), options, outs, mesh)
        if mesh is not None:
            arrays = [each[0] for each in arrays]
        out = outs[0] if outs is not None and len(outs) == 1 else outs
        made = self.declared.call(tuple(arrays), options, out, mesh)
        return self._whole(made, arrays[0]) if mesh is None else [made]

    def unrecorded(self, tensors: Sequence, options: tuple, mesh: Any) -> Any:
        """Run the op on flat tensors, bypassing the dispatcher if it would do nothing."""
        arrays = tensors
        if mesh is not None:
            arrays = [*self.named(tensors, self.declared.operands).values()]
        if direct(*tensors) and not tensors[0].is_meta:
            return self.launch(arrays, options, mesh)
        place = () if mesh is None else (mesh.name,)
        return self.op(*arrays, *place, *self._of_schema(options))

    def _run(self, *args: Any) -> Any:
        arrays, options, mesh = self._split(args)
        made = self.launch(arrays, options, mesh)
        if self.declared.mutates:
            given = dict(zip(self.declared.operands, arrays, strict=True))
            torch.autograd.graph.increment_version([given[x] for x in self.declared.mutates])
        return made

    def _run_out(self, *args: Any) -> None:
        self.launch(*self._split(args[:-1]), args[-1])
        torch.autograd.graph.increment_version(args[-1])

    def _fake(self, *args: Any) -> Any:
        return self._fake_of(*self._split(args))

    def _fake_of(self, arrays: Any, options: Sequence, mesh: Any) -> Any:
        """Return the results without contents. Raises SpecError as the op does, for symbolic sizes
        too."""
        if mesh is None:
            return self._results(arrays, options, 1)
        return [self._results(each, options, mesh.size) for each in zip(*arrays, strict=True)]

    def _results(self, arrays: Sequence, options: Sequence, gpus: int) -> Any:
        given = self._check(arrays)
        infos = {
            name: SimpleNamespace(shape=tensor.shape, dtype=element_type(self.name, name, tensor))
            for name, tensor in given.items()
        }
        autocast = ", or run under torch.autocast" if self.narrow else ""
        self.declared.check_types(infos, "convert it with {name}.to(torch.{dtype})" + autocast)
        values = self.declared.checked(options) | {"gpus": gpus}
        first = next(iter(given.values()))
        made = []
        for kind in self.declared.result_types(infos, values).values():
            along = 1 if kind.order == "C" else -1
            empty = first.new_empty(kind.shape[::along], dtype=torch_type(kind.dtype))
            made.append(empty.permute(tuple(range(empty.ndim)[::along])))
        return self._whole(tuple(made) if len(made) > 1 else next(iter(made), None), first)

    # ---- gradients
    def recorded(self, arrays: Any, options: tuple, mesh: Any, function: Any = None) -> Any:
        """Run the op, or its replacement for differentiation, and record it for autograd."""
        replacement: Any = self.declared.replacement(options)
        extended = isinstance(replacement, tuple)
        if extended:
            options = replacement
        elif replacement is not None:
            values = self.named(_flat(arrays), self.declared.operands)
            values |= self.constants(options, mesh) | {"xp": _XP}
            return by_name(replacement, values)
        if function is None:  # a transform may record a call whose gradient is never needed
            self.require_gradients(arrays)
        made = (function or _Recorded).apply(_Call(self, options, mesh), *_flat(arrays))
        made = list(made) if mesh is not None else self._present(made)
        return made[0] if extended else made

    def require_gradients(self, arrays: Sequence = ()) -> None:
        """Raise SpecError if the op has no gradients, or not that of an array that needs one."""
        if not self.declared.gradients:
            raise SpecError(
                f"{self.name}: an argument requires a gradient, but this op has no backward pass; "
                "fix: call it under torch.no_grad() or torch.inference_mode(), or use the function "
                "of torch.nn.functional"
            )
        for name, array in zip(self.declared.operands, arrays, strict=False):
            if name in self.declared.underived and differentiated(array):
                raise SpecError(
                    f"{self.name}: '{name}' requires a gradient, which this op does "
                    "not compute; fix: pass the array's .detach()"
                )

    def constants(self, options: Sequence, mesh: Any) -> dict[str, Any]:
        """Return the schema's options and the mesh by name."""
        named = zip(self.declared.options, options, strict=True)
        return {"mesh": mesh, **{name: x for name, x in named if name in self._kinds}}

    def named(self, tensors: Sequence, names: Collection[str]) -> dict[str, Any]:
        """Return flat tensors by name, as lists if the op runs on several GPUs."""
        if not self.declared.sharded:
            return dict(zip(names, tensors, strict=True))
        gpus = len(tensors) // len(names)
        return {name: [*tensors[i * gpus : (i + 1) * gpus]] for i, name in enumerate(names)}

    def _under_autograd(self, *args: Any) -> Any:
        arrays, options, mesh = self._split(args)
        made = self.recorded(arrays, options, mesh)
        return made if mesh is not None else self._whole(made, arrays[0])

    def _refuse(self, *args: Any) -> None:
        raise SpecError(
            f"{self.name}: writes {', '.join(self.declared.mutates) or 'out'} in place, and an "
            "argument requires a gradient or is a batch of torch.vmap, which such a call does not "
            "support; fix: leave out= out, give the kernel an out_type, call it under "
            "torch.no_grad(), or pass tensors.detach()"
        )

    # ---- vmap
    def _over_batch(self, info: Any, in_dims: Any, *args: Any) -> Any:
        arrays, options, mesh = self._split(args)
        operands = self.declared.operands
        dims = [*in_dims, *[None] * len(arrays)][: len(arrays)]
        moved = [
            tensor if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip(_flat(arrays), _flat(dims), strict=True)
        ]
        values = self.named(moved, operands) | self.constants(options, mesh)
        batched = {name: dim is not None for name, dim in zip(operands, dims, strict=True)}
        made = self.declared.batched(_XP, info.batch_size, values, batched)
        whole = self._whole(made, moved[0])
        if not isinstance(whole, tuple):
            return whole, 0
        return whole, tuple(0 if each.ndim < len(ABSENT) else None for each in whole)


@dataclass(eq=False, slots=True)
class _Call:
    """The op, options and mesh of a recorded call; PyTorch treats it as one opaque value."""

    op: TorchOp
    options: tuple
    mesh: Any


class _Transformed(torch.autograd.Function):  # type: ignore[misc]
    """A call and its gradients, in the form that `torch.func` can transform."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: _Call, *tensors: Any) -> Any:
        made = call.op.unrecorded(tensors, call.options, call.mesh)
        return tuple(made) if call.mesh is not None else made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.call, *tensors = inputs
        results = as_tuple(output)
        saved = ctx.call.op.saved
        gpus = (len(tensors) + len(results)) // len(saved)
        if gpus > 1:
            saved = [each for each in saved for _ in range(gpus)]
        pairs = zip(saved, (*tensors, *results), strict=True)
        ctx.save_for_backward(*[tensor if each else None for each, tensor in pairs])
        ctx.likes = [
            x if x is None else SimpleNamespace(shape=x.shape, dtype=x.dtype) for x in tensors
        ]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        op = ctx.call.op
        op.require_gradients()
        operands = op.declared.operands
        if op.declared.contiguous:
            grads = tuple(map(_XP.contiguous, grads))
        values = op.named((*ctx.saved_tensors, *grads), op.known)
        wanted = op.named(ctx.needs_input_grad[1:], operands)
        found = op.declared.gradients_of(
            _XP,
            values | op.constants(ctx.call.options, ctx.call.mesh),
            [name for name, each in wanted.items() if each is True or (each and True in each)],
            op.named(ctx.likes, operands),
        )
        nothing = op.named([None] * len(ctx.likes), operands)
        return (None, *_flat((nothing | found).values()))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise SpecError(
            f"{ctx.call.op.name}: derivatives along the inputs (torch.func.jvp, jacfwd) are not "
            "defined; fix: use torch.func.vjp, jacrev or grad"
        )


class _Recorded(_Transformed):
    """The same without `torch.func` support, in a third of PyTorch's time."""

    setup_context = staticmethod(torch.autograd.Function.setup_context)

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        result = _Transformed.forward(*inputs)
        _Transformed.setup_context(ctx, inputs, result)
        return result


def _flat(arrays: Iterable) -> list:
    """Return arrays, some of which may be lists, as one flat list."""
    flat = [*arrays]
    if list not in map(type, flat):
        return flat
    return [x for each in flat for x in (each if isinstance(each, list) else [each])]


def _kind(parameter: inspect.Parameter) -> str:
    """Return an option's type as a schema spells it, or "" if schemas have no such type."""
    kinds = typing.get_args(parameter.annotation) or (parameter.annotation,)
    codes = [np.dtype(kind).kind for kind in kinds if isinstance(kind, type)]
    found = next((_KINDS[code] for code in codes if code in _KINDS), "")
    return f"{found}?" if found and NoneType in kinds else found


def own_front(op: Op, function: Callable) -> Callable:
    """Return an extra entry point of a declared op, with a different signature."""
    bound = functools.partial(function, torch_op(op).front)
    signature = inspect.signature(bound)
    tensors = [name for name, each in signature.parameters.items() if each.default is each.empty]

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return bound(*args, **named)
        except Exception:
            # report user errors in PyTorch's terms first
            given = dict(zip(tensors, args, strict=False)) | named
            check_tensors(function.__name__, **{name: given.get(name) for name in tensors})
            raise

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
