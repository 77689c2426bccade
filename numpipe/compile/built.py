"""A compiled kernel: its `Image`, and the compiler's objects, from which its PTX and SASS can be
shown."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.process_guards import COMPILES
from ..diagnostics.argument_checks import told, word
from ..diagnostics.errors import SpecError, TargetError
from ..plan.image import Image

if TYPE_CHECKING:
    from ..plan.unit import Unit

INSPECT = ("ptx", "sass", "llvm", "source", "resources", "gate")
"""The arguments of `Kernel.inspect`."""


@dataclass
class Built:
    """A kernel that this process has compiled. Launches need only the image; callers of `inspect`
    keep the other fields alive."""

    image: Image
    unit: Unit = field(repr=False)
    kernel: Any = field(repr=False)
    """Numba's kernel object."""
    source: str = field(repr=False)
    log: str = field(repr=False)
    """nvJitLink's messages."""

    @property
    def llvm(self) -> str:
        return str(self.kernel._codelibrary.get_llvm_str())

    @functools.cached_property
    def ptx(self) -> str:
        from ..core import numba as nb

        with COMPILES.one(f"kernel {self.image.name}"):
            return nb.to_ptx(self.kernel._codelibrary, self.unit.target)

    @functools.cached_property
    def sass(self) -> str:
        return sass(self.image)


def sass(image: Image) -> str:
    """Return the machine code of an image as text. Raises TargetError without nvdisasm."""
    from ..core import numba as nb

    try:
        return nb.disassemble(image.cubin)
    except RuntimeError as error:
        raise TargetError(
            f"kernel {image.name}: inspect('sass') and inspect('gate') need nvdisasm, which was "
            "not found; fix: pip install nvidia-cuda-nvdisasm, or install a CUDA toolkit ('ptx' "
            "needs neither)"
        ) from error


def check_inspect(what: str, kernel: str) -> None:
    """Raise SpecError for an argument that `inspect` does not support."""
    if not word(*INSPECT).holds(what):
        raise SpecError(
            f"kernel {kernel}: inspect({told(what)}): one of {', '.join(map(repr, INSPECT))}"
        )
