"""The architectures that kernels are compiled for."""

from __future__ import annotations

from .hopper import HOPPER

DEFAULT = HOPPER
"""the target of plans, simulations and compiles where no GPU says otherwise"""
TARGETS = {target.capability[:2]: target for target in (HOPPER,)}
"""targets, by the compute capability of the GPUs that run their code"""
