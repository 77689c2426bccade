"""Copies of a call's arguments, for calls that must not change the caller's arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import launch
from ...diagnostics.argument_checks import as_tuple
from ...diagnostics.errors import SpecError
from ...kernels.call_results import is_array
from ...kernels.kernel import Kernel, check_kernel
from ...kernels.simulation_checks import of_gpu
from ...launch.mesh import Mesh, check_mesh
from ...sim.regions import bounds, joined

_ALIGN = 1024
Array = np.ndarray
Arrays = dict[str, Array]


class Arguments:
    """The arguments of one call of `kernel`. `run` makes the call on copies of the host arrays
    among them.

    A copy has the strides and the alignment of its array, and copies overlap if their arrays do: an
    array that is passed as input and output stays one array. Only elements are copied, not the
    bytes between them. All other arguments, including arrays on a GPU, are passed unchanged. For a
    kernel on several GPUs, an argument is a list of arrays, each with its own name, "x of GPU 1".
    Raises SpecError if a parameter has the same name as one of the caller's `options`.
    """

    def __init__(
        self,
        what: str,
        kernel: Kernel,
        args: Sequence,
        named: dict[str, Any],
        out: Any,
        options: Sequence[str],
        mesh: Mesh | None = None,
    ) -> None:
        check_kernel(what, kernel)
        if mesh is not None:
            check_mesh(mesh, f"kernel {kernel.name}")
            if mesh.gpus is not None:
                raise SpecError(
                    f"kernel {kernel.name}: {what} runs on simulated GPUs, got {mesh!r}; fix: "
                    f"mesh=numpipe.Mesh.simulated({mesh.size})"
                )
        for name in options:
            if kernel.takes(name):
                raise SpecError(
                    f"kernel {kernel.name}: its parameter '{name}' has the name of an option of "
                    "this function; fix: rename it"
                )
        self.kernel, self.mesh = kernel, mesh
        self._args, self._named = list(args), dict(named)
        self._outs: list[tuple[str, Any]] | None = None
        # out= is for the parameters that the call omits; surplus arrays get no name
        if out is not None:
            outs = list(as_tuple(out))
            if mesh is not None and not any(isinstance(each, (tuple, list)) for each in outs):
                outs = [out]
            left = [name for name in kernel.parameters[len(args) :] if name not in named]
            self._outs = list(zip([*left, *[""] * len(outs)], outs, strict=False))
        values = (
            dict(zip(kernel.parameters, args, strict=False))
            | dict(self._outs or ())
            | {name: value for name, value in named.items() if name not in kernel.statics}
        )
        infos = {
            name: launch.describe(value, name, kernel.name)
            for parameter, given in values.items()
            for name, value in self._named_parts(parameter, given).items()
            if is_array(value)
        }
        self.arrays: Arrays = {
            name: info.array for name, info in infos.items() if info.array is not None
        }
        """the host arrays by parameter name, as passed"""

    def _named_parts(self, name: str, value: Any) -> Arrays:
        """Return an argument by name, or the array of each GPU by its name."""
        if self.mesh is None or type(value) not in (list, tuple):
            return {name: value}
        return {of_gpu(name, gpu, self.mesh.size): each for gpu, each in enumerate(value)}

    def run(self, call: Callable, **options: Any) -> Arrays:
        """Call ``call(*args, **named, **options)`` on fresh copies. Return all array arguments by
        name, including those that the call allocated."""
        copies = dict(zip(self.arrays, duplicates(list(self.arrays.values())), strict=True))

        def fresh(name: str, value: Any) -> Any:
            parts = self._named_parts(name, value)
            if len(parts) == 1 and name in parts:
                return copies.get(name, value)
            return [copies.get(part, each) for part, each in parts.items()]

        args = [
            fresh(name, arg) for name, arg in zip(self.kernel.parameters, self._args, strict=False)
        ]
        args += self._args[len(args) :]
        named = {name: fresh(name, value) for name, value in self._named.items()}
        if self._outs is not None:
            options["out"] = tuple(fresh(name, value) for name, value in self._outs)
        if self.mesh is not None:
            options["mesh"] = self.mesh
        results = call(*args, **named, **options)
        if self._outs is None and results is not None:
            results = results if isinstance(results, tuple) else (results,)
            for name, result in zip(self.kernel.parameters[-len(results) :], results, strict=True):
                copies |= self._named_parts(name, result)
        return copies


def first_seed(
    what: str, kernel: Kernel, named: dict[str, Any], seed: int | None, schedule_seed: int
) -> int:
    """Return the seed of the first random schedule: `seed`, unless that is an argument of the
    kernel, to whose `named` arguments it is then added."""
    check_kernel(what, kernel)
    if seed is None:
        return schedule_seed
    if not kernel.takes("seed"):
        return seed
    named["seed"] = seed
    return schedule_seed


def duplicates(arrays: Sequence[Array]) -> list[Array]:
    """Return copies of arrays that have the same layout in memory, including overlaps.

    >>> a = np.arange(4)
    >>> b = a[1:]
    >>> c, d = duplicates([a, b])
    >>> c[1] = 7
    >>> int(d[0]), int(b[0])
    (7, 1)
    """
    # memory that is never touched takes no pages
    rooms = [(lo, hi, np.empty(hi - lo + _ALIGN, np.uint8)) for lo, hi, _ in joined(arrays)]
    copies = []
    for array in arrays:
        low, high = bounds(array)
        lo, memory = next((lo, memory) for lo, hi, memory in rooms if lo <= low and high <= hi)
        start = (lo - memory.ctypes.data) % _ALIGN
        copy = np.ndarray(
            array.shape, array.dtype, memory, start + array.ctypes.data - lo, array.strides
        )
        # copy an element that is repeated by a stride of 0 only once
        one = tuple(slice(None) if stride else slice(1) for stride in array.strides)
        copy[one] = array[one]
        copy.flags.writeable = array.flags.writeable
        copies.append(copy)
    return copies
