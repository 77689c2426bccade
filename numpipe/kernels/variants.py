"""A variant of a kernel: its function for one set of types and Statics, rewritten and compiled, and
its two executions.

Its key is a tuple of the arrays as far as compilation depends on them, the types of the run-time
scalars, the Statics, and the number of GPUs (0: one, without a mesh). Each stage is made when it is
first needed, and kept: the rewritten function, which both executions share, the machine code, and
what the launcher prepares of that.
"""

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
    """A kernel for arrays and scalars of these types and these Statics."""

    def __init__(self, definition: Definition, key: Key, obstacles: dict[int, str]) -> None:
        """`obstacles` says by argument why TMA cannot address an array."""
        self.definition, self.key, self.obstacles = definition, key, obstacles
        self.arrays, self.scalars, self.statics, self.gpus = key
        self.outputs = sum(array.output and not array.own for array in self.arrays)
        """how many of the arrays of a call, the last ones, are outputs"""
        names = [array.name for array in self.arrays if not array.own]
        self.workspace: Callable[..., Any] | None = (
            functools.partial(definition.results.workspace, names, dict(self.statics))
            if any(array.workspace for array in self.arrays)
            else None
        )
        """returns the shape of its workspace for a grid and the arrays of a call; None: it has
        none"""
        self._image: launch.Image | None = None
        self._built: Built | None = None
        self._prepared: launch.Prepared | None = None
        self._checked = False
        self._lock = threading.RLock()
        """held while it is compiled: of several threads that need it first, one compiles and the
        others wait"""
        _variants.add(self)

    @functools.cached_property
    def _known(self) -> dict[str, Any]:
        """The arrays' types and the Statics' values, which are known before compilation, by
        parameter name."""
        from ..compile.lift.constants import StaticArray

        return {a.name: StaticArray(a.dtype, a.ndim) for a in self.arrays} | dict(self.statics)

    @functools.cached_property
    def _source(self) -> tuple[str | None, Source]:
        """The key of what the kernel's source and the names in it are, and the source, which is
        read once."""
        return self._digest(), self.definition.read()

    @functools.cached_property
    def _split(self) -> Split:
        from ..compile.lift import role_split

        options = self.definition.options
        wgs = 2 if options.schedule == "pingpong" else 1
        default = Split(wgs) if options.warp_specialized else Split(memory_registers=0)
        return role_split.split(self._source[1], self._known, options.split, default)

    def unit(self, simulated: bool = False) -> Unit:
        """Return a new Unit, for one compile or one simulation."""
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
        order = [*arrays, *self.definition.scalar_names(arrays)]  # as both executions pass them
        order = order[: len(order) - len(self.definition.size_names)]
        return lift(self._source[1], order, self._known, self.unit())

    @property
    def _typed(self) -> list[tuple[str, np.dtype]]:
        """Names and types of the run-time scalars."""
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
        """What its machine code depends on, alike in all processes that would compile the same;
        None where nobody can tell.

        Of the names in its source it has the values of the time when the source was read, if it
        was, else those of now.
        """
        return self._source[0] if "_source" in vars(self) else self._digest()

    @property
    def _key(self) -> str | None:
        """The key of its image in the disk cache."""
        return self.digest if cache.enabled() else None

    def find(self) -> launch.Image | None:
        """Return the machine code from memory or from the disk cache; None where it must be
        compiled."""
        with self._lock:
            self._image = self._image or cache.find(self._key)
            return self._image

    @property
    def image(self) -> launch.Image:
        """The machine code, without the compiler's objects; launches have it from here only."""
        with self._lock:
            if self._image is None:
                key = self._key
                self._image = cache.image(
                    key, lambda: self._build().image, lambda: key == self.digest == self._digest()
                )
            return self._image

    def adopt(self, image: launch.Image) -> launch.Image:
        """Take an image of this variant that was compiled elsewhere, unless it has one; returns the
        one that it has."""
        with self._lock:
            self._image = self._image or image
            return self._image

    @property
    def built(self) -> Built:
        """The machine code with the compiler's objects: compiled again where only the image was
        kept."""
        with self._lock:
            if self._built is None:
                self._built = self._build()
                self.adopt(self._built.image)
            return self._built

    def shown(self, what: str) -> Any:
        """Return what `Kernel.inspect` shows: from the image alone where that suffices, else from a
        compile, which is kept."""
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
        """Return the launcher of the variant's image for arrays like `infos`, made once; `table`
        keeps the launches."""
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
    def typed(self, values: Sequence[Any]) -> list[Any]:
        """Return the run-time scalars of a call as the kernel function gets them."""
        return [kind.type(value) for kind, value in zip(self.scalars, values, strict=True)]

    def check_compiles(self) -> None:
        """Raise the error of a compile where the toolchain is installed, unless
        NUMPIPE_COMPILE_CHECK=0: what ran must compile."""
        if self._checked or os.environ.get("NUMPIPE_COMPILE_CHECK", "1") == "0":
            return
        from ..compile.build import front_end, toolchain
        from ..plan.debug import SimulatedOnly

        def check() -> None:
            with COMPILES.one(f"kernel {self.definition.name}"), contextlib.suppress(SimulatedOnly):
                # SimulatedOnly, a breakpoint: this kernel is being looked at
                front_end(self.unit(), self.lifted, self._typed)

        if toolchain() is None:
            cache.passed(self._key, check)
        self._checked = True


_variants: weakref.WeakSet[Variant] = weakref.WeakSet()


@in_child
def _after_fork() -> None:
    """Replace the locks, which threads may hold that are gone now."""
    for variant in _variants:
        variant._lock = threading.RLock()
