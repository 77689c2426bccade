"""numpipe: software-pipelined, warp-specialized GPU kernels for NVIDIA Hopper, written in Python on Numba CUDA.

The same kernel source runs on the GPU and, in CPython, on a simulated SM that finds its races and deadlocks. Names are
imported when they are first used: ``import numpipe`` needs neither Numba nor a CUDA package.

=====================  ===========================================================================================
kernels                `kernel`, `function`, `Static`, `ArrayType`, `persistent`, `CompilerParams`
loops                  `tiles`, `pipeline`, `BlockSpec`, `Element`; `emit_pipeline_warp_specialized`
references             `ds`; ``ref.at[…]``, ``ref[…] = tile``
barriers               `barrier_wait`, `barrier_arrive`: operands one by one, in a body that is given their barriers
register tiles         `zeros`, `wgmma`, `wgmma_wait`; ``tile.astype(…)``, arithmetic
indices                `axis_index`, `axis_size`, `cdiv`
debugging              `debug_print`, `device_assert`, `Trace`
errors                 `NumpipeError` and its kinds
packages               `numpipe.intrinsics` (PTX), `numpipe.sim` (the simulated SM), `numpipe.bench`
=====================  ===========================================================================================
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "kernel": "kernels", "Kernel": "kernels",
    "Static": "specs", "ArrayType": "specs", "persistent": "specs", "CompilerParams": "specs", "BlockSpec": "specs",
    "Element": "specs", "GMEM": "specs",
    "function": "functions", "emit_pipeline_warp_specialized": "emit",
    "tiles": "tile_loop", "pipeline": "pipelines", "ds": "refs",
    "zeros": "fragment.tile", "wgmma": "fragment.mma", "wgmma_wait": "fragment.mma",
    "barrier_wait": "barriers", "barrier_arrive": "barriers",
    "debug_print": "debug", "device_assert": "debug",
    "axis_index": "context", "axis_size": "context", "cdiv": "arith",
    "Trace": "sim",
    "NumpipeError": "errors", "SpecError": "errors", "CompileError": "errors", "TargetError": "errors",
    "LaunchError": "errors", "SimulationError": "errors", "PipelineRace": "errors", "PipelineDeadlock": "errors",
}

__all__ = [
    "GMEM",
    "ArrayType",
    "BlockSpec",
    "CompileError",
    "CompilerParams",
    "Element",
    "Kernel",
    "LaunchError",
    "NumpipeError",
    "PipelineDeadlock",
    "PipelineRace",
    "SimulationError",
    "SpecError",
    "Static",
    "TargetError",
    "Trace",
    "axis_index",
    "axis_size",
    "barrier_arrive",
    "barrier_wait",
    "cdiv",
    "debug_print",
    "device_assert",
    "ds",
    "emit_pipeline_warp_specialized",
    "function",
    "kernel",
    "persistent",
    "pipeline",
    "tiles",
    "wgmma",
    "wgmma_wait",
    "zeros",
]

if TYPE_CHECKING:
    from .arith import cdiv
    from .barriers import barrier_arrive, barrier_wait
    from .context import axis_index, axis_size
    from .debug import debug_print, device_assert
    from .emit import emit_pipeline_warp_specialized
    from .errors import (
        CompileError,
        LaunchError,
        NumpipeError,
        PipelineDeadlock,
        PipelineRace,
        SimulationError,
        SpecError,
        TargetError,
    )
    from .fragment.mma import wgmma, wgmma_wait
    from .fragment.tile import zeros
    from .functions import function
    from .kernels import Kernel, kernel
    from .pipelines import pipeline
    from .refs import ds
    from .sim import Trace
    from .specs import GMEM, ArrayType, BlockSpec, CompilerParams, Element, Static, persistent
    from .tile_loop import tiles


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
            raise AttributeError(f"module 'numpipe' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
