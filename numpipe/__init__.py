"""numpipe: software-pipelined, warp-specialized GPU kernels for NVIDIA Hopper, written in Python on
Numba CUDA.

The same kernel source runs on the GPU and, in plain CPython, on a simulated SM that reports races
and deadlocks. Names are imported on first use, so ``import numpipe`` needs neither Numba nor a CUDA
package.

=====================  =============================================================================
kernels                `kernel`, `function`, `Static`, `ArrayType`, `persistent`, `CompilerParams`,
                       `LoweringSemantics`
loops                  `tiles`, `split_tiles`, `pipeline`, `BlockSpec`, `Element`; `emit_pipeline`,
                       `emit_pipeline_warp_specialized`; `static_range`
layouts                `TilingTransform`, `SwizzleTransform`, `TransposeTransform`
references             `ds`, `index`; ``ref.at[…]``, ``ref[…] = tile``; `atomic_add`,
                       `atomic_min`, `atomic_max`, `atomic_and`, `atomic_or`, `atomic_xor`
barriers               `barrier_wait`, `barrier_arrive`: wait for and release each operand
                       separately, on barriers that a pipeline provides
order                  `turn`: run a block in one compute warpgroup after another; `schedule_fence`:
                       keep the compiler from moving statements across it
shared memory          `scratch`, `run_scoped`: `SMEM`, `Barrier`, `ClusterBarrier`, `RefUnion`;
                       `barrier_test`
copies                 `copy_gmem_to_smem`, `copy_smem_to_gmem`, `commit_smem`,
                       `commit_smem_to_gmem_group`, `wait_smem_to_gmem`, `async_prefetch`
register tiles         `zeros`, `full`, `iota`, `mma`, `wgmma`, `wgmma_wait`, `combine`;
                       ``tile.astype(…)``, arithmetic, ``np.exp(tile)``, `fma`, `rsqrt`, `sigmoid`,
                       `mulhi`; `random`, `philox`: random numbers by seed and counter;
                       ``tile.sum(axis=1)``, `partial_sum`, `partial_max`, `partial_min`, `scan`,
                       `top_k`; `map_columns`, `load_tile`, `unpack`, `layout_cast`,
                       `to_register_order`, `from_register_order`, `show_layout`
indices                `axis_index`, `axis_size`, `program_id`, `num_programs`, `nd_loop`,
                       `planar_snake`, `cdiv`
registers              `set_max_registers`
many GPUs              `Mesh`; `peer`, `signal`, `wait`
arrays                 `to_device`, `pinned_empty`, `ascontiguous`
debugging              `debug_print`, `device_assert`, `last_failure`
verification           `verify`, `Verification`; `numpipe.testing.check`, `numpipe.hazards`,
                       `numpipe.reports`
compiling              `warmup`: compile before the first call; `jit`: choose whether calls may
                       compile; `load`: load a kernel from a file
performance            `explain`, `autotune`, `Trace`, `timeline`, `region`, `last_profile`
your own ops           `op`: declare an op with gradients, callable from PyTorch and JAX too
errors                 `NumpipeError` and its subclasses
packages               `numpipe.ops` (ready-made kernels); `numpipe.intrinsics` (PTX), `numpipe.sim`
                       (the simulated SM), `numpipe.orders` (tile orders), `numpipe.bench`
=====================  =============================================================================
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from .core import lazy as _lazy

__version__ = "0.1.0"

_HOMES = {
    "diagnostics.errors": (
        "CompileError ImageError JitRefused LaunchError NumpipeError PipelineDeadlock "
        "PipelineRace SerializedWgmma SimulationError SpecError TargetError"
    ),
    "kernels.decorator": "kernel",
    "kernels.kernel": "Kernel",
    "kernels.jit": "jit",
    "kernels.row_kernels": "Rows rows",
    "kernels.warmup": "warmup",
    "kernels.loading": "load",
    "plan.specs": "GMEM ArrayType BlockSpec Element Static Workspace persistent",
    "plan.params": "CompilerParams LoweringSemantics",
    "plan.transforms": "SwizzleTransform TilingTransform TransposeTransform",
    "plan.allocations": "SMEM Barrier ClusterBarrier RefUnion",
    "plan.context": "axis_index axis_size num_programs program_id",
    "plan.debug": "debug_print device_assert",
    "plan.profiling": "region",
    "plan.budget": "fit_slots",
    "core.functions": "function",
    "core.arith": "cdiv",
    "core.static_range": "static_range",
    "language.tiles.refs": "ds",
    "language.tiles.tile": "bitcast zeros",
    "language.tiles.elementwise": "full iota",
    "language.tiles.mathematics": "fma mulhi rsqrt sigmoid",
    "language.tiles.random_numbers": "philox random",
    "language.tiles.mma": "mma wgmma wgmma_wait",
    "language.tiles.reduce": "partial_max partial_min partial_sum",
    "language.tiles.scan": "scan",
    "language.tiles.strips": "map_columns",
    "language.tiles.top_k": "top_k",
    "language.tiles.conversions": "layout_cast",
    "language.tiles.register_order": "from_register_order to_register_order",
    "language.tiles.unpack": "unpack",
    "language.tiles.layout_pictures": "show_layout",
    "language.tiles.indices": "index",
    "language.tiles.load": "load_tile",
    "language.tiles.atomics": "atomic_add atomic_and atomic_max atomic_min atomic_or atomic_xor",
    "language.memory.scratch": "run_scoped scratch",
    "language.memory.copies": (
        "async_prefetch commit_smem commit_smem_to_gmem_group copy_gmem_to_smem copy_smem_to_gmem "
        "wait_smem_to_gmem"
    ),
    "language.memory.prefetched": "prefetched",
    "language.memory.registers": "set_max_registers",
    "language.memory.per_lane": "lane_index",
    "language.memory.cluster_refs": "cluster_ref",
    "language.memory.remote": "async_store_smem",
    "language.memory.peer_arrays": "peer",
    "language.memory.semaphores": "signal wait",
    "language.pipeline.pipelines": "pipeline",
    "language.pipeline.body_form": "emit_pipeline emit_pipeline_warp_specialized",
    "language.pipeline.chains": "ComputeContext PipelineState WarpSpecializedPipeline",
    "language.pipeline.operand_barriers": "barrier_arrive barrier_test barrier_wait",
    "language.pipeline.warpgroup_order": "turn",
    "language.pipeline.schedule_fences": "schedule_fence",
    "language.grid.tile_loop": "nd_loop planar_snake tiles",
    "language.grid.split_k": "split_tiles",
    "language.grid.partials": "combine",
    "launch.placement": "pinned_empty to_device",
    "launch.contiguous": "ascontiguous",
    "launch.mesh": "Mesh",
    "launch.debug_reports": "last_failure",
    "launch.profiles": "last_profile",
    "traces.trace": "Trace",
    "traces.timeline_pictures": "timeline",
    "ops.declaration": "op",
    "tools.verify.verification": "Verification verify",
    "tools.model.explaining": "explain",
    "tools.tune.tuning": "autotune",
}
"""Public names by the module that defines them, each listed in that module's ``__all__``. A name is
imported on first use.
"""


_PATHS = {
    "bench": "tools.bench",
    "errors": "diagnostics.errors",
    "hazards": "diagnostics.hazards",
    "model": "tools.model",
    "orders": "language.grid.orders",
    "reports": "diagnostics.reports",
    "testing": "tools.verify.testing",
    "tune": "tools.tune",
    "jax": "frameworks.jax",
    "torch": "frameworks.torch",
    **{room: room for room in ("intrinsics", "kernels", "launch", "ops", "sim", "traces")},
}
"""Public module names that differ from the path: ``numpipe.bench`` is ``numpipe.tools.bench``, also
for ``python -m``.

A folder here must not have the name of a public function: importing a folder ``pipeline`` would
replace ``numpipe.pipeline``.
"""

if TYPE_CHECKING:
    from .core.arith import *
    from .core.functions import *
    from .core.static_range import *
    from .diagnostics.errors import *
    from .kernels.decorator import *
    from .kernels.jit import *
    from .kernels.kernel import *
    from .kernels.loading import *
    from .kernels.row_kernels import *
    from .kernels.warmup import *
    from .language.grid.partials import *
    from .language.grid.split_k import *
    from .language.grid.tile_loop import *
    from .language.memory.cluster_refs import *
    from .language.memory.copies import *
    from .language.memory.peer_arrays import *
    from .language.memory.per_lane import *
    from .language.memory.prefetched import *
    from .language.memory.registers import *
    from .language.memory.remote import *
    from .language.memory.scratch import *
    from .language.memory.semaphores import *
    from .language.pipeline.body_form import *
    from .language.pipeline.chains import *
    from .language.pipeline.operand_barriers import *
    from .language.pipeline.pipelines import *
    from .language.pipeline.schedule_fences import *
    from .language.pipeline.warpgroup_order import *
    from .language.tiles.atomics import *
    from .language.tiles.conversions import *
    from .language.tiles.elementwise import *
    from .language.tiles.indices import *
    from .language.tiles.layout_pictures import *
    from .language.tiles.load import *
    from .language.tiles.mathematics import *
    from .language.tiles.mma import *
    from .language.tiles.random_numbers import *
    from .language.tiles.reduce import *
    from .language.tiles.refs import *
    from .language.tiles.register_order import *
    from .language.tiles.scan import *
    from .language.tiles.strips import *
    from .language.tiles.tile import *
    from .language.tiles.top_k import *
    from .language.tiles.unpack import *
    from .launch.contiguous import *
    from .launch.debug_reports import *
    from .launch.mesh import *
    from .launch.placement import *
    from .launch.profiles import *
    from .ops.declaration import *
    from .plan.allocations import *
    from .plan.budget import *
    from .plan.context import *
    from .plan.debug import *
    from .plan.params import *
    from .plan.profiling import *
    from .plan.specs import *
    from .plan.transforms import *
    from .tools.model.explaining import *
    from .tools.tune.tuning import *
    from .tools.verify.verification import *
    from .traces.timeline_pictures import *
    from .traces.trace import *


class _PublicPaths(MetaPathFinder, Loader):
    """Import hook that maps public module paths to the real ones, so that each module is executed
    once whichever path is imported.
    """

    def _real(self, name: str) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        public, dot, inner = rest.partition(".")
        place = _PATHS.get(public, public)
        return (
            importlib.util.find_spec(f"{package}.{place}{dot}{inner}")
            if package == __name__ and place != public
            else None
        )

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        real = self._real(name)
        if real is None:
            return None
        # under ``python -m``, relative imports must resolve from the module's real location
        run = name.endswith(".__main__")
        spec = ModuleSpec(real.name if run else name, self, origin=real.origin, loader_state=real)
        spec.submodule_search_locations = real.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module(spec.loader_state.name)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        # the import system has set it to the spec of the public path
        module.__spec__ = module.__spec__.loader_state

    def get_code(self, name: str) -> CodeType | None:
        real: Any = self._real(name)
        return real.loader.get_code(real.name)  # type: ignore[no-any-return]


sys.meta_path.insert(0, _PublicPaths())


_public = _lazy.names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name in _PATHS:
        return importlib.import_module(f"{__name__}.{name}")
    return sorted(" ".join(_HOMES.values()).split()) if name == "__all__" else _public(name)


def __dir__() -> list[str]:
    # tools such as dir() completion import every name listed here
    lacking = {name for name in ("jax", "torch") if importlib.util.find_spec(name) is None}
    return sorted({*globals(), *_PATHS, *__getattr__("__all__")} - lacking)
