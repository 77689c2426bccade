"""`CompilerParams`, the options of a kernel's compilation that are not options of its pipelines."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from ..arch.targets import TARGETS
from ..core.machine import EVICTION_POLICIES
from ..diagnostics.argument_checks import (
    FLAG,
    NONE,
    POSITIVE,
    STRING,
    Rule,
    a,
    require,
    whole,
    word,
)
from ..diagnostics.errors import SpecError

__all__ = ["CompilerParams", "LoweringSemantics"]

PRODUCTS = tuple(
    dict.fromkeys(product.name for target in TARGETS.values() for product in target.products)
)
SEMANTICS = ("parallel", "sequential")


class LoweringSemantics(enum.Enum):
    """Whether the body of a body-form pipeline is code for a warpgroup or for a lane.

    Warpgroup  its values belong to the warpgroup: tiles, and numbers that are the same in all 128
               lanes
    Lane       its values belong to each lane: code as for `numba.cuda`, see `CompilerParams`
    """

    Warpgroup = "Warpgroup"
    Lane = "Lane"

    def __repr__(self) -> str:
        return f"LoweringSemantics.{self.name}"


@dataclass(frozen=True)
class CompilerParams:
    """Options of a kernel's compilation:
    ``@numpipe.kernel(compiler_params=CompilerParams(approx_math=True))``.

    approx_math           divide float32 tiles and numbers with ``div.approx.f32`` (PTX ISA): within
                          2 ulp for divisors of magnitude 2^-126 to 2^126, 0 for larger ones. By
                          default ``/`` is rounded correctly. ``np.exp`` and similar functions use
                          approximate instructions too (`tiles.mathematics`). ``//``, ``%`` and the
                          simulator stay exact.
    dimension_semantics   for each dimension of a grid of your own kernel "parallel", a dimension of
                          CTAs, or "sequential", a dimension of steps of the kernel's pipeline;
                          None: all parallel.
    max_concurrent_steps  slots of pipelines that do not specify it; None: the pipeline's default.
    delay_release         steps a slot is kept after use (0: a wgmma is waited for before its slots
                          are released); None: 0, and with ``schedule="pingpong"`` 1 if the ring has
                          two slots or more.
    unsafe_no_auto_barriers
                          leave out the barriers between writes of a warpgroup's warps to shared
                          memory and reads by its other warps or by TMA. Correct only for a kernel
                          that has its own barriers, or in which every warp reads only what it
                          wrote. For other kernels the simulator reports a race.
    profile_space         how many events each warpgroup of the first CTAs records on the GPU;
                          further events are only counted
    profile_dir           folder for a trace of the newest launch of each process, ``kernel_n.json``
                          (see `numpipe.last_profile`). Give both `profile_space` and `profile_dir`,
                          or neither; without them the kernel contains no profiling code.
    lowering_semantics    `LoweringSemantics.Warpgroup`, or `Lane`: bodies of body-form pipelines
                          are code for each lane.
    store_slots           staging panels (64 rows x 128 bytes) of the store ring, per compute
                          warpgroup, 1…8; 0: as many as a tile has panels, or as fit next to the
                          load rings.
    store_eviction_policy what the L2 cache does with lines that ``c[…] = tile`` writes by TMA:
                          "evict_first", so that they make room for inputs first, "evict_last" or
                          None. A hint; `BlockSpec.eviction_policy` is the same for blocks.
    product               the instruction that `numpipe.mma` uses: "wgmma" or "mma.sync"; "": the
                          target's first one that supports the operands' type.
    store_role            warps next to the loading one, one for each compute warpgroup (at most 3),
                          issue the TMA stores and reductions of tiles and of outputs, so that
                          compute warpgroups never wait for a store (`tiles.store_ring`). Like the
                          memory role, they follow the kernel's control flow without tiles: the
                          positions of tiles must be computed from integers.
    ctas_per_sm           with warp_specialized=False: CTAs that an SM must have registers for, at
                          least. More of them hide latencies; each lane then has at most 65,536 /
                          (ctas_per_sm x threads) registers.
    drain                 the memory role ends a pipeline by waiting until all its slots are
                          released. Use it to measure the cost of a pipeline that begins with an
                          empty ring. Single-stream pipelines always do so.
    asserts               compile ``assert`` on run-time values, so that a false condition fails the
                          launch, as `device_assert` does. By default they cost nothing on the GPU;
                          the simulator always checks them.
    allow_serialized_wgmma
                          compile a kernel whose products need more registers than there are, or
                          that ptxas serializes for another reason (notes C75xx): the results are
                          right, at about half the speed. By default that is an error.
    debug                 a wait for an mbarrier, or for a flag of another CTA, gives up after
                          NUMPIPE_DEBUG_TIMEOUT seconds (2). All such waits of the kernel give up
                          then, so it ends, and the next call or `numpipe.last_failure` raises
                          PipelineDeadlock and says who waited for what. Indices outside arrays, and
                          outside tiles, slots and barriers in shared memory, are reported too:
                          SimulationError, `out-of-bounds`. The kernel is slower; the simulator
                          finds the same mistakes sooner.
    check_nan             with `debug`: report a NaN that ``x[…] = value`` stores, with its element
                          and the line, in the simulator at once: SimulationError, `nan-stored`.
    lineinfo              add a table of the source line that each instruction belongs to, in the
                          kernel or in a function that it calls. The machine code stays the same.
                          Nsight Compute and ``inspect("sass", …)`` show the lines.
    jitter                an int, a seed: insert random nanosleeps around barriers and copies, to
                          expose on the GPU what depends on timing; None: none.

    A BlockSpec's options take precedence over its pipeline's, and these over the options here.
    Raises SpecError for a value that an option cannot have.

    >>> CompilerParams(delay_release=1).replace(approx_math=True).approx_math
    True
    """

    BACKEND: ClassVar[str] = "numpipe"
    """The compiler that the options are for. Pallas' options are for "mosaic_gpu", which reads
    other fields."""

    _: KW_ONLY
    approx_math: bool = False
    dimension_semantics: tuple[str, ...] | None = None
    max_concurrent_steps: int | None = None
    delay_release: int | None = None
    unsafe_no_auto_barriers: bool = False
    profile_space: int = 0
    profile_dir: str = ""
    lowering_semantics: LoweringSemantics = LoweringSemantics.Warpgroup
    store_slots: int = 0
    store_eviction_policy: str | None = None
    product: str = ""
    store_role: bool = False
    ctas_per_sm: int = 1
    drain: bool = False
    asserts: bool = False
    allow_serialized_wgmma: bool = False
    debug: bool = False
    check_nan: bool = False
    lineinfo: bool = False
    jitter: int | None = None

    def __post_init__(self) -> None:
        require(
            "CompilerParams",
            vars(self),
            **{
                **{
                    field.name: FLAG
                    for field in dataclasses.fields(self)
                    if isinstance(field.default, bool)
                },
                "dimension_semantics": NONE
                | Rule(
                    ("a tuple of 'parallel' and 'sequential'",),
                    lambda value: (
                        isinstance(value, tuple) and all(map(word(*SEMANTICS).holds, value))
                    ),
                ),
                "max_concurrent_steps": NONE | POSITIVE,
                "delay_release": NONE | whole(0),
                "ctas_per_sm": whole(1, 32),
                "profile_space": whole(0),
                "jitter": NONE | Rule(("an int, a seed",), whole().holds),
                "profile_dir": STRING,
                "product": word("", *PRODUCTS),
                "lowering_semantics": a(
                    LoweringSemantics, text="numpipe.LoweringSemantics.Warpgroup or .Lane"
                ),
                "store_slots": Rule(("1…8 (0: chosen)",), whole(0, 8).holds),
                "store_eviction_policy": NONE | EVICTION_POLICIES,
            },
        )
        if self.check_nan and not self.debug:
            raise SpecError(
                "CompilerParams: check_nan=True needs debug=True, which reports the NaN; fix: "
                "CompilerParams(debug=True, check_nan=True)"
            )
        if bool(self.profile_space) != bool(self.profile_dir):
            missing, have = (
                ("profile_dir", "profile_space")
                if self.profile_space
                else ("profile_space", "profile_dir")
            )
            raise SpecError(
                f"CompilerParams: {have}={getattr(self, have)!r} needs {missing}: the profiler "
                "must know how many events to keep and where to write them; fix: give both, or "
                "neither"
            )

    def replace(self, **changes: Any) -> CompilerParams:
        """Return a copy with some options changed. Raises SpecError for an unknown option name."""
        names = [field.name for field in dataclasses.fields(self)]
        unknown = next((name for name in changes if name not in names), None)
        if unknown is not None:
            raise SpecError(
                f"CompilerParams.replace: unknown option {unknown!r}; the options are "
                f"{', '.join(names)}"
            )
        return dataclasses.replace(self, **changes)
