"""Define ops in PyTorch's dispatcher, and decide which calls may bypass it.

An op has an implementation for CPU and CUDA tensors, a fake implementation that gives
`torch.compile` and `torch.export` the shapes and types of the results, and rules for autograd,
autocast and vmap. They are registered directly with `torch.library.Library`, because the wrappers
of `torch.library.custom_op` would make a call take half as long again on the host.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad, profiler

from ...diagnostics.errors import SpecError
from ...launch.array_info import DTYPES, unsupported

Op = Any
"""a `torch._ops.OpOverload`"""
AUTOCAST = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}
"""dispatch keys of autocast by device type"""


def define(
    library: torch.library.Library,
    schema: str,
    run: Callable,
    fake: Callable,
    recorded: Callable,
    over_batch: Callable,
) -> Op:
    """Define an op in a library by its schema, and return it as found in ``torch.ops``.

    `recorded` is for calls that need gradients; other calls proceed below autograd. `over_batch` is
    the rule for vmap.
    """
    name = schema.partition("(")[0]
    full = f"{library.ns}::{name}"
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        library.impl(name, run, key)
    torch.library.register_fake(full, fake, lib=library)
    torch.library.register_vmap(full, over_batch, lib=library)
    op = getattr(getattr(torch.ops, library.ns), name).default

    def choose(keys: Any, *args: Any, **named: Any) -> Any:
        if differentiated(*args):
            return recorded(*args, **named)
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keys & torch._C._after_autograd_keyset, *args, **named)

    library.impl(name, choose, "Autograd", with_keyset=True)
    return op


def differentiated(*args: Any) -> bool:
    """Return whether a gradient is needed for any argument. Arguments may be lists."""
    return torch.is_grad_enabled() and any(
        each.requires_grad
        if isinstance(each, torch.Tensor)
        else isinstance(each, list) and differentiated(*each)
        for each in args
    )


def under_autocast(library: torch.library.Library, op: Op, wide: Sequence[bool]) -> None:
    """Make autocast convert the op's floating-point tensors to its type, except float64, as it does
    for torch.mm.

    `wide` says, for each leading argument, whether a float32 tensor stays float32.
    """
    for device, key in AUTOCAST.items():
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        library.impl(op._opname, _casting(op, device, keys, wide), key)


def _casting(op: Op, device: str, keys: Any, wide: Sequence[bool]) -> Callable:
    def cast(*args: Any) -> Any:
        to = torch.get_autocast_dtype(device)
        kept = itertools.zip_longest(args, wide, fillvalue=False)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return op(*[_cast(each, to, keep) for each, keep in kept][: len(args)])

    return cast


def _cast(each: Any, to: torch.dtype, wide: bool) -> Any:
    """Convert a tensor, or each tensor of a list, unless it is not floating-point or its type is
    kept."""
    if isinstance(each, list):
        return [_cast(part, to, wide) for part in each]
    kept = (torch.float64, torch.float32) if wide else (torch.float64,)
    cast = isinstance(each, torch.Tensor) and each.is_floating_point() and each.dtype not in kept
    return each.to(to) if cast else each


# ---- types
def element_type(of: str, name: str, tensor: torch.Tensor) -> np.dtype:
    """Return the NumPy type of a tensor. Raises SpecError for a type that no kernel takes; `of` is
    the op or the kernel, for the message."""
    spelled = str(tensor.dtype).rpartition(".")[2]
    if spelled not in DTYPES:
        raise SpecError(f"{of}: '{name}': {unsupported(str(tensor.dtype))}")
    return DTYPES[spelled]


def torch_type(dtype: Any) -> torch.dtype:
    """Return the PyTorch type for a NumPy type; PyTorch has all types that kernels take."""
    return getattr(torch, np.dtype(dtype).name)


def check_tensors(of: str, **tensors: Any) -> None:
    """Raise SpecError for arguments that are not tensors, are sparse, or are on several devices.
    `of` is the op, for the message."""
    first = next(iter(tensors))
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise SpecError(
                f"{of}: '{name}' must be a torch.Tensor, got a {type(tensor).__name__}; fix: "
                f"torch.as_tensor({name}), or call numpipe.ops, which takes arrays of other "
                "libraries"
            )
        if tensor.layout != torch.strided:
            raise SpecError(f"{of}: '{name}' is sparse ({tensor.layout}); fix: {name}.to_dense()")
        if tensor.device != tensors[first].device:
            raise SpecError(
                f"{of}: '{first}' is on {tensors[first].device}, '{name}' on {tensor.device}; "
                f"fix: {name}.to({first}.device)"
            )


# ---- calls that bypass the dispatcher
PLAIN = {torch.Tensor, torch.nn.Parameter, type(None)}
"""types that a call may have to bypass the dispatcher, with NoneType for an omitted tensor;
subclasses of Tensor may override operations"""


def direct(*tensors: Any) -> bool:
    """Return whether a call on these tensors (or None) may bypass the dispatcher and go directly to
    an op's implementation, or to its gradients if these are needed.

    It may if nothing else could intercept the call: the tensors are plain, nothing is traced,
    compiled or profiled, and no mode, `torch.func` transform or autocast is active. This check
    takes half a microsecond; the dispatcher takes two to reach a Python function, and ten if
    gradients are needed. If this version of PyTorch lacks any of the functions used here, the
    answer is always False.
    """
    for tensor in tensors:
        if type(tensor) not in PLAIN:
            return False
    return not (
        _compiling()
        or _dispatch_modes()
        or _function_modes()
        or _transform() is not None
        or _traced()
        or forward_ad._current_level >= 0
        or profiler._is_profiler_enabled
        or _autocast()
    )


def transformed() -> bool:
    """Return whether a `torch.func` transform is active and nothing is being compiled."""
    return not _compiling() and _transform() is not None


try:
    _compiling: Callable[[], bool] = torch.compiler.is_dynamo_compiling
    _dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
    _function_modes: Callable[[], int] = torch._C._len_torch_function_stack
    _autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
    _transform: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack
    _traced: Callable[[], Any] = torch._C._get_tracing_state
    _ = forward_ad._current_level, profiler._is_profiler_enabled
except AttributeError:  # these are private to PyTorch and may have other names in another version

    def direct(*tensors: Any) -> bool:
        return False

    def transformed() -> bool:
        return False
