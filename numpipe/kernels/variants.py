"""The variants of a kernel: what is made of its function for each set of types and Statics, and the two executions of it.

A variant is named by its unit key, a tuple of the arrays as far as compilation depends on them, the types of the run-time scalars,
and the Statics. Each stage is made when it is first asked for, and kept: the rewritten function, which both executions share, the
machine code, and what the launcher prepares of that.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import launch
from ..compile.built import Built, sass
from ..compile.check import blame, gate
from ..compile.lift import asked as asked_of
from ..compile.lift.fold import StaticArray
from ..compile.lift.lift import Lifted, lift
from ..core.undisturbed import COMPILES
from ..launch.info import ArrayInfo
from ..plan.debug import SimulatedOnly
from ..plan.unit import Unit
from .definition import Definition
from .options import Options


class Variants(Definition):
    """A kernel, as it is compiled and simulated."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        super().__init__(function, options)
        self._lock = threading.RLock()
        _made.add(self)
        self._splits: dict[tuple[Any, ...], asked_of.Split] = {}
        self._lifted: dict[tuple[Any, ...], Lifted] = {}
        self._images: dict[tuple[Any, ...], launch.Image] = {}
        self._built: dict[tuple[Any, ...], Built] = {}
        self._prepared: dict[tuple[Any, ...], Any] = {}
        self._checked: set[tuple[Any, ...]] = set()

    def unit(self, unit_key: tuple[Any, ...], obstacles: dict[int, str] | None = None, simulated: bool = False) -> Unit:
        """A new Unit: one compile or one simulation."""
        options = self.options
        split = self._splits.get(unit_key)
        if split is None:
            default = asked_of.Split() if options.warp_specialized else asked_of.Split(num_compute_wgs=1, memory_registers=0)
            split = self._splits[unit_key] = asked_of.split(self.source, self._known(unit_key), options.split, default)
        return Unit(self.name, unit_key[0], options.grid_names, split.wg_axis, split.num_compute_wgs, split.memory_registers,
                    options.compiler_params, simulated=simulated, obstacles=obstacles or {},
                    memory_thread=split.memory_thread_idx, warp_specialized=options.warp_specialized, schedule=options.schedule,
                    **options.cluster)

    @staticmethod
    def _known(unit_key: tuple[Any, ...]) -> dict[str, Any]:
        """What is known before compilation of the arrays and Statics, by parameter name."""
        arrays, _, statics = unit_key
        return {a.name: StaticArray(a.dtype, a.ndim) for a in arrays} | dict(statics)

    def lifted(self, unit_key: tuple[Any, ...]) -> Lifted:
        """The rewritten kernel function for these types and Statics."""
        lifted = self._lifted.get(unit_key)
        if lifted is None:
            arrays = [array.name for array in unit_key[0]]
            order = [*arrays, *self._scalar_names(arrays)]  # as both executions pass them
            lifted = self._lifted[unit_key] = lift(self._read(), order, self._known(unit_key), self.unit(unit_key))
        return lifted

    # ---- on the GPU
    def _build(self, unit_key: tuple[Any, ...], obstacles: dict[int, str] | None) -> Built:
        with COMPILES.one(f"kernel {self.name}"):
            from ..compile.build import build

            lifted = self.lifted(unit_key)
            built = build(self.unit(unit_key, obstacles), lifted, self._scalars(unit_key))
        self._images.setdefault(unit_key, built.image)
        return built

    def image(self, unit_key: tuple[Any, ...], obstacles: dict[int, str] | None = None) -> launch.Image:
        """The machine code for these types and Statics; the compiler's objects are not kept."""
        image = self._images.get(unit_key)
        return self._build(unit_key, obstacles).image if image is None else image

    def built(self, unit_key: tuple[Any, ...], obstacles: dict[int, str] | None = None) -> Built:
        """The same with the compiler's objects: compiled again where only the image was kept."""
        with self._lock:
            if unit_key not in self._built:
                self._built[unit_key] = self._build(unit_key, obstacles)
            return self._built[unit_key]

    def shown(self, what: str, unit_key: tuple[Any, ...], obstacles: dict[int, str]) -> Any:
        """What `Kernel.inspect` shows: from the image alone where there is one that tells, else of a compile, which is kept."""
        image = self._images.get(unit_key)
        if what == "source":
            return self.lifted(unit_key).text
        if image is not None and what == "resources":
            return image.resources
        if image is not None and what == "sass" and unit_key not in self._built:
            return sass(image)
        built = self.built(unit_key, obstacles)
        return gate.findings(built) if what == "gate" else built.image.resources if what == "resources" else getattr(built, what)

    def _prepare(self, unit_key: tuple[Any, ...], infos: list[ArrayInfo], obstacles: dict[int, str]) -> Any:
        prepared = self._prepared.get(unit_key)
        if prepared is None:
            image = self.image(unit_key, obstacles)
            outputs = sum(array.output for array in unit_key[0] if not array.workspace)
            prepared = launch.Prepared(image, infos, unit_key[1], outputs, self.options.attributes, self.workspace_of(unit_key))
            self._prepared[unit_key] = prepared
        return prepared

    # ---- on the simulated SM
    def _simulate(self, unit_key: tuple[Any, ...], grid: tuple[int, int, int], infos: list[ArrayInfo], scalars: list[Any],
                  seed: int | None, trace: Any, fresh: int) -> None:
        from .simulate import simulate

        arrays = [info.array for info in infos]
        if (workspace := self.workspace_of(unit_key)) is not None:
            arrays.append(np.zeros(workspace(grid, infos), np.float32))
            fresh += 1
        values = [np.dtype(kind).type(value) for kind, value in zip(unit_key[1], scalars, strict=True)]
        unit, lifted = self.unit(unit_key, simulated=True), self.lifted(unit_key)
        try:
            simulate(unit, lifted.simulated, arrays, values, grid, seed=seed, trace=trace, fresh=fresh)  # type: ignore[arg-type]
        except Exception as error:
            told = blame.simulated(error, unit, lifted)
            if told is error:
                raise
            raise told from error
        self._check_compiles(unit_key)

    def _check_compiles(self, unit_key: tuple[Any, ...]) -> None:
        """What ran simulated must compile too, where the toolchain is installed (NUMPIPE_COMPILE_CHECK=0: do not ask)."""
        if unit_key in self._checked or os.environ.get("NUMPIPE_COMPILE_CHECK", "1") == "0":
            return
        self._checked.add(unit_key)
        with COMPILES.one(f"kernel {self.name}"):
            from ..compile.build import front_end, toolchain

            if toolchain() is None:
                with contextlib.suppress(SimulatedOnly):  # a breakpoint: this kernel is being looked at
                    front_end(self.unit(unit_key), self.lifted(unit_key), self._scalars(unit_key))


_made: weakref.WeakSet[Variants] = weakref.WeakSet()


def _after_fork() -> None:
    """In the child: a thread that was in a call is gone, and will not give its kernel's lock back."""
    for kernel in _made:
        kernel._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
