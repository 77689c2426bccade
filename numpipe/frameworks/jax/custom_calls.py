"""Functions of arrays as XLA custom calls, traced once for each list of shapes and then run on
addresses.

=============  =====================================================================================
traced         `custom_call` makes a `Target` for a function and the types of its inputs and
               outputs, and registers its handlers. If JAX's default device is a GPU, a dry run of
               the function compiles its kernels, so that compile errors are raised at the user's
               line rather than by the running program, and measures the workspace they need. XLA
               allocates the workspace as an additional result: kernels of a program may run
               concurrently, and XLA knows when each buffer is in use
run on CUDA    the first call with a given stream and addresses runs the function and records its
               launches (`launch.collected_launches`); later calls repeat these launches, without
               allocating, waiting, or doing anything that a graph cannot capture
run on a CPU   the function gets NumPy views of the buffers
=============  =====================================================================================
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np

from ... import launch
from ...arch.dimensions import Ints
from ...core.process_guards import in_child
from ...diagnostics.errors import SpecError
from ...launch import driver
from ...launch.array_info import dense_strides
from ...launch.table import Table
from ...launch.windows import memory
from ...plan.specs import ArrayType
from .ffi import Handler

Run = Callable
"""run(inputs, outputs, **where): a function of two lists of arrays that writes the outputs. `where`
is ``stream=`` on a GPU and empty for host arrays"""

_targets: dict[Hashable, Target] = {}
_numbers = itertools.count()
_lock = threading.RLock()
"""held while a target is made, and by simulations, because XLA may run several calls at once in its
threads"""
_QUIET = 5
"""number of checks, 5 ms apart, that must find no running call before the process ends"""

_running: set[int] = set()
"""threads of XLA that are running a call on a CPU"""


class Memory:
    """Owner of the arrays in XLA's buffers. It reports their stream but keeps nothing alive: XLA
    does that."""

    def __init__(self, stream: int) -> None:
        self.__cuda_array_interface__ = {"stream": stream}


class Target:
    """A function for inputs and outputs of these types, registered with XLA under `name`."""

    def __init__(
        self, what: str, run: Run, ins: tuple[ArrayType, ...], outs: tuple[ArrayType, ...]
    ) -> None:
        """`what` is the name of the kernel or op. Raises compile errors if it is compiled now."""
        self.name = f"numpipe.{what}.{next(_numbers)}"
        self._run, self._ins, self._outs = run, ins, outs
        self._described = [
            (t.shape, dense_strides(t.shape, t.dtype.itemsize), t.dtype, writable)
            for types, writable in ((ins, False), (outs, True))
            for t in types
        ]
        self._known = Table()
        """(stream, addresses) -> the launches recorded for them"""
        ordinal = default_gpu()
        self._work = 0 if ordinal is None else self._dry(ordinal)
        results = len(outs) + (self._work > 0)
        self._handlers = {
            platform: Handler(function, len(ins), results, streams=platform == "CUDA")
            for platform, function in (("CUDA", self._on_gpu), ("cpu", self._on_cpu))
        }
        for platform, handler in self._handlers.items():
            jax.ffi.register_ffi_target(
                self.name, jax.ffi.pycapsule(handler.address), platform=platform
            )

    def __call__(self, *arrays: Any) -> tuple:
        """Add the call to the program that JAX traces, and return its outputs."""
        types = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in self._outs]
        if self._work:
            types.append(jax.ShapeDtypeStruct((self._work,), np.uint8))
        return tuple(jax.ffi.ffi_call(self.name, types)(*arrays)[: len(self._outs)])

    # ---- on a GPU
    def _dry(self, ordinal: int) -> int:
        """Compile for a GPU, and return the bytes of workspace needed."""
        with launch.collecting(launch.Collected(dry=True)) as collected:
            self._launch(0, itertools.count(1 << 40, 1 << 40), ordinal)
        return collected.nbytes

    def _on_gpu(self, stream: int, pointers: Ints) -> None:
        known = self._known.get((stream, pointers))
        if known is None:
            with launch.collecting(
                launch.Collected(memory=pointers[-1] if self._work else 0, nbytes=self._work)
            ) as collected:
                self._launch(stream, pointers, _ordinal(pointers))
            self._known.keep((stream, pointers), collected)
        else:
            for repeat in known.launches:
                repeat()

    def _launch(self, stream: int, pointers: Any, ordinal: int) -> None:
        owner, count = Memory(stream), len(self._ins)
        infos = [
            launch.ArrayInfo("cuda", pointer, shape, strides, dtype, ordinal, writable, owner)
            for pointer, (shape, strides, dtype, writable) in zip(
                pointers, self._described, strict=False
            )
        ]
        self._run(infos[:count], infos[count:], stream=stream)

    # ---- on the CPU
    def _on_cpu(self, stream: int, pointers: Ints) -> None:
        arrays = [
            _view(pointer, *what) for pointer, what in zip(pointers, self._described, strict=False)
        ]
        ins, outs = arrays[: len(self._ins)], arrays[len(self._ins) :]
        _running.add(threading.get_ident())
        try:
            with _lock:
                self._run(ins, outs)
        finally:
            _running.discard(threading.get_ident())


def custom_call(
    what: str, run: Run, key: Hashable, outs: Sequence[ArrayType], arrays: Sequence
) -> tuple:
    """Add a call of `run` on these arrays, concrete or traced, to the program being traced, and
    return the outputs.

    `key` identifies the function: calls with equal keys and types share a target.
    """
    ins = tuple(map(array_type, arrays))
    with _lock:
        whole = key, ins, tuple(outs), default_gpu()
        if whole not in _targets:
            _targets[whole] = Target(what, run, ins, tuple(outs))
    return _targets[whole](*arrays)


def array_type(array: Any) -> ArrayType:
    """Return the shape and dtype of an array or tracer. Raises SpecError for symbolic sizes."""
    if not all(isinstance(size, (int, np.integer)) for size in array.shape):
        raise SpecError(
            f"numpipe.jax: an array has shape {array.shape}, but a launch needs sizes that are "
            "known when a program is traced; fix: pass numbers in place of the symbols of "
            "jax.export.symbolic_shape"
        )
    return ArrayType(tuple(array.shape), np.dtype(array.dtype))


def default_gpu() -> int | None:
    """Return the CUDA ordinal of JAX's default device, or None if that is not a GPU."""
    chosen = jax.config.jax_default_device
    device = (
        jax.local_devices(backend=chosen)[0]
        if chosen is None or isinstance(chosen, str)
        else chosen
    )
    return int(device.local_hardware_id) if device.platform in ("gpu", "cuda") else None


def _ordinal(pointers: Sequence[int]) -> int:
    cuda = driver.get()
    return cuda.pointer_device(next(filter(None, pointers), 0)) if cuda.count > 1 else 0


def _view(pointer: int, shape: Ints, strides: Ints, dtype: np.dtype, writable: bool) -> np.ndarray:
    """Return the buffer at a host address as an array."""
    kind = np.dtype(f"V{dtype.itemsize}")  # NumPy's interface has no types such as bfloat16
    return memory(pointer, shape, strides, kind, writable, None).view(dtype)


@atexit.register
def _finish() -> None:
    """Wait at exit for CPU programs that are still running. Otherwise XLA would wait for their
    calls after the interpreter has gone."""
    for array in jax.live_arrays() if _targets else ():
        with contextlib.suppress(Exception):  # an array was deleted, or its program failed
            array.block_until_ready()
    quiet = 0 if _targets else _QUIET
    while quiet < _QUIET:  # between two calls of a program there is a moment when none runs
        time.sleep(0.005)
        quiet = 0 if _running else quiet + 1


@in_child
def _after_fork() -> None:
    """Replace the lock in a forked child, where the thread that held it no longer exists."""
    global _lock
    _lock = threading.RLock()
