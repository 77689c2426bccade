"""`numpipe.jit`: allow or refuse compilation during calls.

A call that finds its compiled kernel in memory or on disk is never refused.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
from contextvars import ContextVar, Token
from typing import Any

import numpy as np

from .. import launch
from ..diagnostics.errors import JitRefused, SpecError
from ..diagnostics.frames import warn
from ..plan.specs import ArrayType
from .arguments import SCALAR
from .call_records import Described
from .definition import Definition
from .variants import Variant

__all__ = ["jit"]

VARIABLE = "NUMPIPE_JIT"
POLICIES = ("error", "warn", "allow")
EXPECTED = f"expected one of {', '.join(map(repr, POLICIES))}"
_POLICY: ContextVar[str | None] = ContextVar("numpipe.jit", default=None)


class jit(contextlib.ContextDecorator):
    """Set what a call does if its kernel is not compiled yet.

    Use it as ``with numpipe.jit("error"):``, or as a decorator, ``@numpipe.jit("error")``.

    "error"  raise JitRefused, with the lines that compile the kernel ahead of the call
             (`warmup`, `Kernel.export`)
    "warn"   compile, with a RuntimeWarning at the line of the call
    "allow"  compile

    The innermost one applies, in the context that entered it (like `numpy.errstate`, it does not
    affect other threads). Without one, the environment variable ``NUMPIPE_JIT`` applies to all
    threads; if that is not set, calls compile. It applies to calls on a GPU, by ``kernel(…)`` and
    `Kernel.bind`. Functions that compile explicitly are not affected: `warmup`, `Kernel.compiled`,
    `Kernel.inspect`, `autotune`, `explain`, and the check that a simulated kernel compiles. Raises
    SpecError for any other word.

    >>> with numpipe.jit("error"):
    ...     y = double(x)  # compiled before, or refused
    """

    def __init__(self, policy: str) -> None:
        if not isinstance(policy, str) or policy not in POLICIES:
            kernel = "; to define a kernel, use @numpipe.kernel" if callable(policy) else ""
            raise SpecError(f"numpipe.jit: {EXPECTED}, got {policy!r}{kernel}")
        self.policy = policy
        self._before: list[Token[str | None]] = []

    def __repr__(self) -> str:
        return f"numpipe.jit({self.policy!r})"

    def __enter__(self) -> None:
        self._before.append(_POLICY.set(self.policy))

    def __exit__(self, *_: object) -> None:
        _POLICY.reset(self._before.pop())

    def _recreate_cm(self) -> jit:
        return jit(self.policy)  # one instance per call of a decorated function


def check(definition: Definition, call: Described, variant: Variant) -> None:
    """Raise JitRefused or warn, as the policy says, if the variant of a call is not compiled."""
    policy = _POLICY.get()
    if (chosen := policy or os.environ.get(VARIABLE) or "allow") == "allow":
        return
    if chosen not in POLICIES:
        raise SpecError(f"the environment's {VARIABLE} is {chosen!r}: {EXPECTED}")
    if variant.find() is not None:
        return
    name = definition.name
    by = f"{VARIABLE}={chosen}" if policy is None else f"numpipe.jit({chosen!r})"
    own = definition.own_names
    known = [f"{array} {info.dtype.name} {len(info.shape)}d" for array, info in call.arrays.items()]
    known += [
        f"{scalar} {kind}"
        for scalar, kind in zip(call.numbers, variant.key[1], strict=True)
        if scalar not in own
    ]
    known += [f"{static}={spelled(value)}" for static, value in call.bound.statics]
    args, named, same = suggested(definition, call, variant)
    warmup = f"numpipe.warmup([({name}, {args}{named and ', '}{named})])"
    if chosen == "warn":
        warn(
            f"kernel {name}: this call compiles it for {', '.join(known)} ({by}); {warmup} "
            "compiles it ahead",
            RuntimeWarning,
        )
        return
    arrays = (
        ""
        if same
        else (
            "with the arrays of this call: an ArrayType describes an array whose last dimension is "
            "contiguous and whose rows TMA can address\n"
        )
    )
    keep = (
        ""
        if call.gpus
        else (
            f"or keep it in a file:\n"
            f'    {name}.export("{name}.numpipe", {f"({args}, {named})" if named else args})\n'
        )
    )
    raise JitRefused(
        f"kernel {name}: this call would compile it for {', '.join(known)}, which {by} refuses. "
        "Compile it ahead:\n"
        f"    {warmup}\n{keep}{arrays}"
        'numpipe.jit("allow") around the call compiles it too'
    )


def suggested(definition: Definition, call: Described, variant: Variant) -> tuple[str, str, bool]:
    """Return source for a call's positional arguments (a tuple) and its named ones (a dictionary,
    or "" if there are none), and whether ArrayTypes replace the arrays.

    They do if they lead to the same variant; otherwise the source has the arrays' own names."""
    zeros = {
        name: launch.info_of_zeros(info.shape, info.dtype) for name, info in call.arrays.items()
    }
    same = definition.key(call._replace(arrays=zeros))[0] == variant.key
    passed = definition.parameters
    if call.missing and definition.options.out_type is not None and (same or call.results is None):
        passed = passed[: passed.index(call.missing[0])]
    source = {
        name: spelled(ArrayType(info.shape, info.dtype)) if same else name
        for name, info in call.arrays.items()
    }
    source |= {name: spelled(value) for name, value in call.numbers.items()}
    args = [source[name] for name in passed]
    defaults = definition.arguments.scalars | definition.arguments.statics
    named = [
        (name, value)
        for name, value in (*call.numbers.items(), *call.bound.statics)
        if name not in (*passed, *definition.own_names)
        and not (
            name in defaults
            and type(defaults[name]) is type(value)
            and bool(defaults[name] == value)
        )
    ]
    pairs = ", ".join(
        [
            *(f'"{name}": {spelled(value)}' for name, value in named),
            *['"mesh": mesh'] * bool(call.gpus),
        ]
    )
    return f"({', '.join(args)}{',' * (len(args) == 1)})", f"{{{pairs}}}" if pairs else "", same


def spelled(value: Any) -> str:
    """Return a value as source, with types spelled as programs usually import them.

    >>> spelled(ArrayType((64, 64), np.float16)), spelled(np.float32), spelled(3)
    ('numpipe.ArrayType((64, 64), "float16")', 'np.float32', '3')
    """
    if isinstance(value, ArrayType):
        return f'numpipe.ArrayType({value.shape}, "{value.dtype.name}")'
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, np.generic):
        return f"np.{type(value).__name__}({value.item()!r})"
    if isinstance(value, np.dtype):
        return f'np.dtype("{value.name}")'
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    name = getattr(value, "__qualname__", None)
    if name is None or isinstance(value, SCALAR):
        return repr(value)
    return f"np.{name}" if getattr(value, "__module__", "") == "numpy" else str(name)
