"""Variants of a kernel: its function, rewritten and compiled for one set of types and Statics.

The key of a variant is a tuple of the arrays (as far as compilation depends on them), the types of
the run-time scalars, the Statics, and the number of GPUs (0: one GPU, without a mesh). Each stage
is built when first needed and then cached: the rewritten function, which the GPU and the simulation
share, the machine code, and what the launcher prepares from it."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import launch
from ..compile import cache
from ..compile.built import Built, sass
from ..core.process_guards import COMPILES, in_child, uncollected
from ..diagnostics.errors import SpecError
from ..launch.table import Table
from ..plan.plans import ArrayArg
from ..plan.split import Split
from .call_records import Statics
from .definition import Definition

if TYPE_CHECKING:
    from ..compile.lift.lift import Lifted
    from ..compile.lift.positions import Source
    from ..plan.unit import Unit

Key = tuple[tuple[ArrayArg, ...], tuple[np.dtype, ...], Statics, int]


class Variant:
    """A kernel for particular types of arrays and scalars, and values of Statics."""

    def __init__(self, definition: Definition, key: Key, obstacles: dict[int, str]) -> None:
        """`obstacles` maps argument indices to the reasons why TMA cannot address the array."""
        self.definition, self.key, self.obstacles = definition, key, obstacles
        self.arrays, self.scalars, self.statics, self.gpus = key
        self.outputs = sum(array.output and not array.own for array in self.arrays)
        """number of trailing arrays of a call that are outputs"""
        names = [array.name for array in self.arrays if not array.own]
        self.workspace: Callable | None = (
            functools.partial(definition.results.workspace, names, dict(self.statics))
            if any(array.workspace for array in self.arrays)
            else None
        )
        """function of a grid and a call's arrays that returns the workspace's shape; None: no
        workspace"""
        self._image: launch.Image | None = None
        self._built: Built | None = None
        self._prepared: launch.Prepared | None = None
        self._checked = False
        self._lock = threading.RLock()
        """held while compiling, so that only one of several threads compiles and the others wait"""
        _variants.add(self)

    @functools.cached_property
    def _known(self) -> dict[str, Any]:
        """Types of the arrays and values of the Statics, which are known before compilation, by
        parameter name."""
        from ..compile.lift.constants import StaticArray

        return {a.name: StaticArray(a.dtype, a.ndim, a.sizes) for a in self.arrays} | dict(
            self.statics
        )

    @functools.cached_property
    def _source(self) -> tuple[str | None, Source]:
        """The digest of the kernel's source and the values of its globals, and the source, which is
        read only once."""
        return self._digest(), self.definition.read()

    @functools.cached_property
    def _split(self) -> Split:
        from ..compile.lift import role_split

        options = self.definition.options
        wgs = 2 if options.schedule == "pingpong" else 1
        default = Split(wgs) if options.warp_specialized else Split(memory_registers=0)
        return role_split.split(self._source[1], self._known, options.split, default)

    def unit(self, simulated: bool = False) -> Unit:
        """Create a Unit, for one compile or one simulation."""
        from ..plan.unit import Unit

        options, split = self.definition.options, self._split
        try:
            return Unit(
                self.definition.name,
                self.arrays,
                options.grid_names,
                split.wg_axis,
                split.num_compute_wgs,
                split.memory_registers,
                options.compiler_params,
                simulated=simulated,
                obstacles=self.obstacles,
                memory_thread=split.memory_thread_idx,
                warp_specialized=options.warp_specialized,
                schedule=options.schedule,
                grid_rank=self.definition.grid_rank,
                gpus=self.gpus,
                **options.cluster,
            )
        except SpecError as error:
            raise SpecError(self._source[1].definition.stamp(str(error))) from None

    @functools.cached_property
    def lifted(self) -> Lifted:
        """The rewritten kernel function."""
        from ..compile.lift.lift import lift

        arrays = [array.name for array in self.arrays]
        # in the order in which the entry and `simulate` pass them
        order = [*arrays, *self.definition.scalar_names(arrays)]
        order = order[: len(order) - len(self.definition.size_names)]
        return lift(self._source[1], order, self._known, self.unit())

    @property
    def _typed(self) -> list[tuple[str, np.dtype]]:
        """The names and types of the run-time scalars."""
        return list(
            zip(
                self.definition.scalar_names([a.name for a in self.arrays]),
                self.scalars,
                strict=True,
            )
        )

    # ---- on the GPU
    @uncollected()
    def _build(self) -> Built:
        with COMPILES.one(f"kernel {self.definition.name}"):
            from ..compile.build import build

            return build(self.unit(), self.lifted, self._typed)

    def _digest(self) -> str | None:
        return self.definition.fingerprint().key(self.arrays, self._typed, self.statics, self.gpus)

    @property
    def digest(self) -> str | None:
        """Digest of everything that the machine code depends on, the same in all processes that
        would compile the same code; None if it cannot be determined.

        Globals are captured when the source is first read; before that, their current values are
        used."""
        return self._source[0] if "_source" in vars(self) else self._digest()

    @property
    def _key(self) -> str | None:
        """Key of its image in the disk cache, or None if the cache is off."""
        return self.digest if cache.enabled() else None

    def find(self) -> launch.Image | None:
        """Return the machine code from memory or from the disk cache, or None if it must be
        compiled."""
        with self._lock:
            self._image = self._image or cache.find(self._key)
            return self._image

    @property
    def image(self) -> launch.Image:
        """The machine code, without the compiler's objects. Launches use no other source of it."""
        with self._lock:
            if self._image is None:
                key = self._key
                self._image = cache.image(
                    key, lambda: self._build().image, lambda: key == self.digest == self._digest()
                )
            return self._image

    def adopt(self, image: launch.Image) -> launch.Image:
        """Store an image of this variant that was compiled elsewhere, unless it already has one.
        Return the stored one."""
        with self._lock:
            self._image = self._image or image
            return self._image

    @property
    def built(self) -> Built:
        """The machine code with the compiler's objects; recompiled if only the image was kept."""
        with self._lock:
            if self._built is None:
                self._built = self._build()
                self.adopt(self._built.image)
            return self._built

    def shown(self, what: str) -> Any:
        """Return what `Kernel.inspect` shows, from the image alone if it suffices, otherwise from a
        compile, which is cached."""
        if what == "source":
            return self.lifted.text
        if what == "resources":
            return self.image.resources
        if what == "sass" and self._image is not None and self._built is None:
            return sass(self._image)
        if what == "gate":
            from ..compile.check import gate

            return gate.findings(self.built)
        return getattr(self.built, what)

    def prepared(self, infos: Sequence[launch.ArrayInfo], table: Table) -> launch.Prepared:
        """Return the launcher of the variant's image for arrays like `infos`, which is created
        once; launches are cached in `table`."""
        with self._lock:
            if self._prepared is None:
                self._prepared = launch.Prepared(
                    self.image,
                    infos,
                    self.scalars,
                    self.outputs,
                    self.definition.options.attributes,
                    self.workspace,
                    table,
                )
            return self._prepared

    # ---- on the simulated SM
    def typed(self, values: Sequence) -> list:
        """Convert the run-time scalars of a call to the types that the kernel function takes."""
        return [kind.type(value) for kind, value in zip(self.scalars, values, strict=True)]

    def check_compiles(self) -> None:
        """Raise the errors of a compile, so that a simulated kernel is known to compile.

        Does nothing if the toolchain is not installed, if NUMPIPE_COMPILE_CHECK=0, and in a process
        that cannot compile because it was forked during a compile."""
        off = COMPILES.cut or os.environ.get("NUMPIPE_COMPILE_CHECK", "1") == "0"
        if self._checked or off:
            return
        with COMPILES.one(f"kernel {self.definition.name}"):
            from ..compile.build import front_end, toolchain
            from ..plan.debug import SimulatedOnly

            def check() -> None:
                # SimulatedOnly is raised for a breakpoint, which means that the kernel is being
                # debugged
                with contextlib.suppress(SimulatedOnly):
                    front_end(self.unit(), self.lifted, self._typed)

            if toolchain() is None:
                cache.passed(self._key, check)
        self._checked = True


_variants: weakref.WeakSet[Variant] = weakref.WeakSet()


@in_child
def _after_fork() -> None:
    """Replace the locks: threads that held them do not exist in the child."""
    for variant in _variants:
        variant._lock = threading.RLock()
