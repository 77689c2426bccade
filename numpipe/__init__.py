"""numpipe: software-pipelined, warp-specialized GPU kernels for NVIDIA Hopper, written in Python on Numba CUDA.

The same kernel source runs on the GPU and, in CPython, on a simulated SM that finds its races and deadlocks. Names are
imported when they are first used: ``import numpipe`` needs neither Numba nor a CUDA package.

=====================  ===========================================================================================
kernels                `kernel`, `function`, `Static`, `ArrayType`, `persistent`, `CompilerParams`, `LoweringSemantics`
loops                  `tiles`, `split_tiles`, `pipeline`, `BlockSpec`, `Element`; `emit_pipeline`, `emit_pipeline_warp_specialized`
layouts                `TilingTransform`, `SwizzleTransform`, `TransposeTransform`
references             `ds`; ``ref.at[…]``, ``ref[…] = tile``; `atomic_add`, `atomic_min`, `atomic_max`, `atomic_and`, `atomic_or`,
                       `atomic_xor`
barriers               `barrier_wait`, `barrier_arrive`: operands one by one, where a pipeline gives their barriers
order                  `turn`: compute warpgroups one after another; `schedule_fence`: no statement is moved across it
shared memory          `scratch`, `run_scoped`: `SMEM`, `Barrier`, `ClusterBarrier`, `RefUnion`; `barrier_test`
copies                 `copy_gmem_to_smem`, `copy_smem_to_gmem`, `commit_smem`, `commit_smem_to_gmem_group`, `wait_smem_to_gmem`,
                       `async_prefetch`
register tiles         `zeros`, `full`, `iota`, `wgmma`, `wgmma_wait`, `combine`; ``tile.astype(…)``, arithmetic,
                       ``np.exp(tile)``, `fma`, `rsqrt`, `sigmoid`; ``tile.sum(axis=1)``, `partial_sum`, `partial_max`,
                       `partial_min`; `map_columns`, `load_tile`, `layout_cast`,
                       `show_layout`
indices                `axis_index`, `axis_size`, `program_id`, `num_programs`, `nd_loop`, `planar_snake`, `cdiv`
registers              `set_max_registers`
arrays                 `to_device`, `pinned_empty`, `ascontiguous`
debugging              `debug_print`, `device_assert`, `last_failure`
verification           `verify`, `Verification`; `numpipe.testing.check`, `numpipe.hazards`, `numpipe.reports`
performance            `explain`, `autotune`, `Trace`, `timeline`, `region`, `last_profile`
errors                 `NumpipeError` and its kinds
packages               `numpipe.intrinsics` (PTX), `numpipe.sim` (the simulated SM), `numpipe.orders` (of tiles), `numpipe.bench`
=====================  ===========================================================================================
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "kernel": "kernels", "Kernel": "kernels",
    "Static": "specs", "ArrayType": "specs", "persistent": "specs", "BlockSpec": "specs",
    "Workspace": "specs",
    "CompilerParams": "params", "LoweringSemantics": "params", "lane_index": "per_lane",
    "TilingTransform": "transforms", "SwizzleTransform": "transforms", "TransposeTransform": "transforms",
    "Element": "specs", "GMEM": "specs",
    "PipelineState": "chains", "WarpSpecializedPipeline": "chains", "ComputeContext": "chains",
    "function": "functions", "emit_pipeline_warp_specialized": "emit", "emit_pipeline": "emit_single",
    "tiles": "tile_loop", "split_tiles": "splits", "pipeline": "pipelines", "ds": "refs", "combine": "partials",
    "full": "fragment.elementwise", "iota": "fragment.elementwise", "fma": "fragment.mathematics",
    "partial_sum": "fragment.reduce", "partial_max": "fragment.reduce", "partial_min": "fragment.reduce",
    "map_columns": "fragment.strips", "show_layout": "fragment.drawing", "layout_cast": "fragment.conversions",
    "load_tile": "load",
    "rsqrt": "fragment.mathematics", "sigmoid": "fragment.mathematics",
    "zeros": "fragment.tile", "wgmma": "fragment.mma", "wgmma_wait": "fragment.mma",
    "turn": "order_tokens", "schedule_fence": "schedule_fences",
    "barrier_wait": "barriers", "barrier_arrive": "barriers", "barrier_test": "barriers",
    "SMEM": "allocations", "Barrier": "allocations", "ClusterBarrier": "allocations", "RefUnion": "allocations",
    "scratch": "shared", "run_scoped": "shared",
    "copy_gmem_to_smem": "copies", "copy_smem_to_gmem": "copies", "commit_smem": "copies",
    "commit_smem_to_gmem_group": "copies", "wait_smem_to_gmem": "copies", "async_prefetch": "copies",
    **dict.fromkeys(("atomic_add", "atomic_min", "atomic_max", "atomic_and", "atomic_or", "atomic_xor"), "atomics"),
    "set_max_registers": "registers", "program_id": "programs", "num_programs": "programs", "nd_loop": "tile_loop",
    "planar_snake": "snake",
    "debug_print": "debug", "device_assert": "debug",
    "axis_index": "context", "axis_size": "context", "cdiv": "arith", "fit_slots": "_budget",
    "Trace": "traces", "timeline": "traces.drawing", "last_failure": "launch.watch", "last_profile": "launch.profiles",
    "to_device": "launch.placement", "pinned_empty": "launch.placement",
    "region": "profiling", "explain": "model", "autotune": "tune", "verify": "verification", "Verification": "verification",
    "ascontiguous": "launch.contiguous",
    "NumpipeError": "errors", "SpecError": "errors", "CompileError": "errors", "TargetError": "errors",
    "LaunchError": "errors", "SimulationError": "errors", "PipelineRace": "errors", "PipelineDeadlock": "errors",
    "SerializedWgmma": "errors",
}

__all__ = [
    "GMEM",
    "SMEM",
    "ArrayType",
    "Barrier",
    "BlockSpec",
    "ClusterBarrier",
    "CompileError",
    "CompilerParams",
    "ComputeContext",
    "Element",
    "Kernel",
    "LaunchError",
    "LoweringSemantics",
    "NumpipeError",
    "PipelineDeadlock",
    "PipelineRace",
    "PipelineState",
    "RefUnion",
    "SerializedWgmma",
    "SimulationError",
    "SpecError",
    "Static",
    "SwizzleTransform",
    "TargetError",
    "TilingTransform",
    "Trace",
    "TransposeTransform",
    "Verification",
    "WarpSpecializedPipeline",
    "Workspace",
    "ascontiguous",
    "async_prefetch",
    "atomic_add",
    "atomic_and",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_xor",
    "autotune",
    "axis_index",
    "axis_size",
    "barrier_arrive",
    "barrier_test",
    "barrier_wait",
    "cdiv",
    "combine",
    "commit_smem",
    "commit_smem_to_gmem_group",
    "copy_gmem_to_smem",
    "copy_smem_to_gmem",
    "debug_print",
    "device_assert",
    "ds",
    "emit_pipeline",
    "emit_pipeline_warp_specialized",
    "explain",
    "fit_slots",
    "fma",
    "full",
    "function",
    "iota",
    "kernel",
    "lane_index",
    "last_failure",
    "last_profile",
    "layout_cast",
    "load_tile",
    "map_columns",
    "nd_loop",
    "num_programs",
    "partial_max",
    "partial_min",
    "partial_sum",
    "persistent",
    "pinned_empty",
    "pipeline",
    "planar_snake",
    "program_id",
    "region",
    "rsqrt",
    "run_scoped",
    "schedule_fence",
    "scratch",
    "set_max_registers",
    "show_layout",
    "sigmoid",
    "split_tiles",
    "tiles",
    "timeline",
    "to_device",
    "turn",
    "verify",
    "wait_smem_to_gmem",
    "wgmma",
    "wgmma_wait",
    "zeros",
]

if TYPE_CHECKING:
    from ._budget import fit_slots
    from .allocations import SMEM, Barrier, ClusterBarrier, RefUnion
    from .arith import cdiv
    from .atomics import atomic_add, atomic_and, atomic_max, atomic_min, atomic_or, atomic_xor
    from .barriers import barrier_arrive, barrier_test, barrier_wait
    from .chains import ComputeContext, PipelineState, WarpSpecializedPipeline
    from .context import axis_index, axis_size
    from .copies import (
        async_prefetch,
        commit_smem,
        commit_smem_to_gmem_group,
        copy_gmem_to_smem,
        copy_smem_to_gmem,
        wait_smem_to_gmem,
    )
    from .debug import debug_print, device_assert
    from .emit import emit_pipeline_warp_specialized
    from .emit_single import emit_pipeline
    from .errors import (
        CompileError,
        LaunchError,
        NumpipeError,
        PipelineDeadlock,
        PipelineRace,
        SerializedWgmma,
        SimulationError,
        SpecError,
        TargetError,
    )
    from .fragment.conversions import layout_cast
    from .fragment.drawing import show_layout
    from .fragment.elementwise import full, iota
    from .fragment.mathematics import fma, rsqrt, sigmoid
    from .fragment.mma import wgmma, wgmma_wait
    from .fragment.reduce import partial_max, partial_min, partial_sum
    from .fragment.strips import map_columns
    from .fragment.tile import zeros
    from .functions import function
    from .kernels import Kernel, kernel
    from .launch.contiguous import ascontiguous
    from .launch.placement import pinned_empty, to_device
    from .launch.watch import last_failure
    from .load import load_tile
    from .model import explain
    from .order_tokens import turn
    from .params import CompilerParams, LoweringSemantics
    from .partials import combine
    from .per_lane import lane_index
    from .pipelines import pipeline
    from .programs import num_programs, program_id
    from .refs import ds
    from .registers import set_max_registers
    from .schedule_fences import schedule_fence
    from .shared import run_scoped, scratch
    from .snake import planar_snake
    from .specs import GMEM, ArrayType, BlockSpec, Element, Static, Workspace, persistent
    from .splits import split_tiles
    from .tile_loop import nd_loop, tiles
    from .traces import Trace
    from .traces.drawing import timeline
    from .transforms import SwizzleTransform, TilingTransform, TransposeTransform
    from .tune import autotune
    from .verification import Verification, verify


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        if name.endswith("_"):  # what Numba and Python ask of any value, for each name that a kernel reads: no submodule
            raise AttributeError(f"module 'numpipe' has no attribute {name!r}")
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
