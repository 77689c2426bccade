"""The kernel calls of an op, with their host arrays, to pass to verify, mutate and chosen
schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from numpipe.kernels.kernel import Kernel
from numpipe.kernels.noted_calls import taken


@dataclass(frozen=True)
class Recorded:
    """A call of a kernel.

    For a multi-GPU kernel, `named` has the mesh, and arguments are lists.
    """

    kernel: Kernel
    args: tuple[Any, ...]
    named: dict[str, Any]
    out: Any

    def passed_to(self, function: Callable[..., Any], **options: Any) -> Any:
        """Return the output of `numpipe.verify` or a similar function for this call."""
        return function(self.kernel, *self.args, out=self.out, **self.named, **options)

    def simulated(self, **options: Any) -> Any:
        return self.kernel.simulate(*self.args, out=self.out, **self.named, **options)


def recorded(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """Return the kernel calls that `call` makes, in order."""
    found: list[Recorded] = []
    run, together = Kernel.__call__, Kernel.together

    def noted(
        self: Kernel,
        /,
        *args: Any,
        out: Any = None,
        target: Any = None,
        stream: Any = None,
        mesh: Any = None,
        **named: Any,
    ) -> Any:
        told = named if mesh is None else {**named, "mesh": mesh}
        if taken() is None:  # an op's first call is also made without arrays, to check it
            found.append(Recorded(self, tuple(map(_host, args)), told, _host(out)))
        return run(self, *args, out=out, target=target, stream=stream, mesh=mesh, **named)

    def noted_together(self: Kernel, mesh: Any, args: Any, stream: Any = None) -> Any:
        found.append(Recorded(self, tuple(map(_host, args)), {"mesh": mesh}, None))
        return together(self, mesh, args, stream)

    with monkeypatch.context() as patch:
        patch.setattr(Kernel, "__call__", noted)
        patch.setattr(Kernel, "together", noted_together)
        call()
    assert found
    return found


def _host(arg: Any) -> Any:
    return [_host(each) for each in arg] if type(arg) is list else getattr(arg, "array", arg)
