"""setmaxnreg: move registers between the warpgroups of a running CTA.

A kernel starts with equal shares. The memory warpgroup gives registers back, and compute warpgroups
take them. Counts are per thread, and their sum over the warpgroups must not exceed what the CTA has
at launch: 3 x 168 = 504 for three warpgroups, not the SM's 512 (65536 registers / 128 threads).
With 240 + 240 + 32 an inc never returns on an H200. ptxas ignores setmaxnreg in kernels without
launch bounds (note C7508). PTX ISA, "Miscellaneous Instructions".
"""

from __future__ import annotations

from numpipe.core.machine import current
from numpipe.core.op import ptx
from numpipe.diagnostics.errors import SpecError


def _check(n: int) -> None:
    if not (24 <= n <= 256 and n % 8 == 0):
        raise SpecError(
            f"setmaxnreg: expected a multiple of 8 registers in 24 … 256, got {n}: "
            f"use {min(256, max(24, n // 8 * 8))}"
        )


@ptx("setmaxnreg.inc.sync.aligned.u32 $n;", check=_check, n="n")
def inc(n: int) -> None:
    """Raise this warp's limit to `n` registers per thread, blocking until they are available.
    Scope: all warps of a warpgroup.

    `n` is an immediate, a multiple of 8 in 24 … 256, at least the current count. Example:
    ``setmaxnreg.inc(232)`` at the beginning of a compute warpgroup, with ``setmaxnreg.dec(40)`` in
    the memory warpgroup. PTX ISA: setmaxnreg.
    """
    current().setmaxnreg("inc", n)


@ptx("setmaxnreg.dec.sync.aligned.u32 $n;", check=_check, n="n")
def dec(n: int) -> None:
    """Lower this warp's limit to `n` registers per thread, and return the rest. Scope: all warps of
    a warpgroup.

    `n` is an immediate, a multiple of 8 in 24 … 256, at most the current count. A warpgroup with
    only one warp has no registers to give back. PTX ISA: setmaxnreg.
    """
    current().setmaxnreg("dec", n)
