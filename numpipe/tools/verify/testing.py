"""Test helpers: `check` compares a kernel with a reference, under many schedules and on the GPU;
`mutate` leaves out each synchronization and checks that this is noticed.

    import numpipe.testing

    def test_matmul():
        numpipe.testing.check(matmul, a, b, reference=lambda a, b: a @ b.T)
        numpipe.testing.mutate(matmul, a, b).raise_if_survived()
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import launch
from ...diagnostics.argument_checks import FLAG, NONE, as_tuple, element_type, finite, require
from ...diagnostics.errors import SimulationError, SpecError
from ...kernels.simulation_checks import of_gpu
from ...launch.array_info import ArrayInfo
from .argument_copies import Arguments, Array, Arrays, first_seed
from .mutation import Mutant, Mutation, Place, mutate
from .verification import Verification, verified

if TYPE_CHECKING:
    from ...kernels.kernel import Kernel
    from ...launch.mesh import Mesh

__all__ = ["Checked", "Mutant", "Mutation", "Place", "check", "mutate", "tolerance"]


@dataclass(frozen=True)
class Checked:
    """The result of `check`: the largest error of each output, by where it ran ("sim", "gpu"), and
    the verification."""

    errors: dict[str, dict[str, float]]
    verification: Verification

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(self.errors)


def check(
    kernel: Kernel,
    /,
    *args: Any,
    reference: Any,
    schedules: int = 10,
    seed: int | None = None,
    schedule_seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    gpu: bool | None = None,
    out: Any = None,
    mesh: Mesh | None = None,
    **named: Any,
) -> Checked:
    """Assert that `kernel` computes what `reference` does, that no schedule shows a hazard, and
    that the GPU gives the same result.

    args, out, named   arguments of a call of the kernel: host arrays, which are not changed
    reference          a function of the arguments that its parameters name
                       (``lambda a, b: a @ b.T``), with float arrays as float64, that returns the
                       expected output or a tuple of outputs; or the expected array or arrays
    schedules, seed, schedule_seed  as for `numpipe.verify`
    rtol, atol         every element must satisfy ``|got - expected| <= atol + rtol * |expected|``.
                       By default, rtol is two units in the last place of the output's type, at
                       least 2e-5 (float64: 1e-12), and atol is rtol times the root mean square of
                       the expected values; integers and booleans must be equal. Infinities and NaNs
                       must be where they are expected
    gpu                None: run on the GPU if there is one (and NUMPIPE_TARGET is not sim); True:
                       always; False: never
    mesh               a `numpipe.Mesh.simulated` for a kernel with semaphores, which is not run on
                       GPUs. Arguments are then lists with one array per GPU, for the reference too,
                       which returns a list for each output

    Returns the errors and the Verification. Raises AssertionError with the report of the first
    hazard, or with the largest error and its index. A kernel that fails in simulation is not
    launched. Raises SpecError if arguments do not match, and on the GPU whatever the launch raises.

    >>> import numpipe
    >>> @numpipe.kernel
    ... def halves(x):
    ...     x[numpipe.ds(0, 64), numpipe.ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 0.5
    >>> check(
    ...     halves,
    ...     np.zeros((64, 64), np.float32),
    ...     reference=lambda: np.full((64, 64), 0.5),
    ...     schedules=2,
    ...     gpu=False,
    ... ).errors
    {'sim': {'x': 0.0}}
    """
    __tracebackhide__ = True  # so that pytest shows the test's line
    seed = first_seed("check", kernel, named, seed, schedule_seed)
    arguments = Arguments(
        "check", kernel, args, named, out, ("reference", "schedules", "rtol", "atol", "gpu"), mesh
    )
    require(
        f"kernel {kernel.name}: check",
        locals(),
        rtol=finite(0) | NONE,
        atol=finite(0) | NONE,
        gpu=FLAG | NONE,
    )
    names = kernel.outputs(*args, **named)
    if mesh is not None and gpu:
        raise SpecError(
            f"kernel {kernel.name}: check runs a kernel of several GPUs on simulated ones; fix: "
            "leave gpu= out, and call it with numpipe.Mesh.local() or numpipe.Mesh.torch() to run "
            "it on GPUs"
        )
    values = (
        kernel.ask(reference, "reference", _view, *args, **named)
        if callable(reference)
        else reference
    )
    if mesh is not None:  # each output is a list
        values = values if isinstance(values, tuple) else (values,)
        values = [array for each in values for array in each]
        names = [of_gpu(name, r, mesh.size) for name in names for r in range(mesh.size)]
    values = as_tuple(values)
    if len(values) != len(names):
        raise SpecError(
            f"kernel {kernel.name}: the reference gives {len(values)} arrays, the kernel has "
            f"{len(names)} outputs ({', '.join(names)})"
        )
    verification, arrays = verified(kernel, arguments, schedules, seed)
    errors: dict[str, dict[str, float]] = {}
    wrong = []

    def compare(where: str, got: Arrays) -> None:
        errors[where] = {}
        for name, want in zip(names, map(np.asarray, values), strict=True):
            errors[where][name], text = _compare(got[name], want, rtol, atol)
            if text:
                wrong.append(
                    f"kernel {kernel.name}, {'simulated' if where == 'sim' else 'on the GPU'}: "
                    f"{name} {text}"
                )

    if arrays:
        compare("sim", arrays)
    try:
        verification.raise_if_failed()
    except SimulationError as error:
        raise AssertionError("\n".join([str(error), *wrong])) from None
    if (
        mesh is None
        and not wrong
        and (launch.choose_target().target == "gpu" if gpu is None else gpu)
    ):
        compare("gpu", arguments.run(kernel, target="gpu"))
    if wrong:
        raise AssertionError("\n".join(wrong))
    return Checked(errors, verification)


def _view(info: ArrayInfo) -> Array:
    """Return an argument as a reference receives it: a copy, with floats of any size as float64."""
    if info.array is None:
        raise SpecError(
            "a reference needs host arrays; fix: pass NumPy arrays, which check copies to the GPU"
        )
    return info.array.copy() if info.dtype.kind in "iub" else info.array.astype(np.float64)


def _compare(got: Array, want: Array, rtol: float | None, atol: float | None) -> tuple[float, str]:
    """Return the largest error and, if it is too large, a text about it."""
    if got.shape != want.shape:
        return float("inf"), f"has the shape {got.shape}, the reference {want.shape}"
    if not got.size:
        return 0.0, ""
    exact = got.dtype.kind in "iub"
    left, right = (
        x if exact and x.dtype.kind in "iub" else x.astype(np.float64) for x in (got, want)
    )
    with np.errstate(all="ignore"):
        by = np.abs(left.astype(np.float64) - right.astype(np.float64))
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        by = np.where(same, 0.0, np.where(np.isnan(by), np.inf, by))
        if rtol is None:
            rtol = 0.0 if exact else tolerance(got.dtype)
        finite = right[np.isfinite(right)].astype(np.float64)
        if atol is None:
            atol = 0.0 if not finite.size else rtol * float(np.sqrt(np.mean(finite * finite)))
        bad = ~np.isclose(left, right, rtol, atol, equal_nan=True)
    worst = float(by.max())
    if not bad.any():
        return worst, ""
    index = tuple(map(int, np.unravel_index(int(np.where(bad, by, -1.0).argmax()), by.shape)))
    return worst, (
        f"differs from the reference in {int(bad.sum())} of {got.size} elements, most at {index}: "
        f"got {got[index]}, expected {want[index]}, error {by[index]:.3g}; allowed "
        f"rtol={rtol:.3g}, atol={atol:.3g}"
    )


def tolerance(dtype: Any) -> float:
    """Return the relative error that `check` allows by default for outputs of a type.

    >>> [round(tolerance(t), 6) for t in (np.float16, np.float32)]
    [0.001953, 2e-05]
    """
    import ml_dtypes

    dtype = element_type("tolerance", dtype)
    if dtype.kind in "iub":
        return 0.0
    try:
        # float64 outputs, else outputs of float32 sums
        return 1e-12 if dtype == np.float64 else max(2e-5, 2 * float(ml_dtypes.finfo(dtype).eps))
    except ValueError:
        raise SpecError(f"tolerance: dtype must be a type of numbers, got {dtype}") from None
