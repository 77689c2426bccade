"""The architectures that kernels are compiled for."""

from __future__ import annotations

from .hopper import HOPPER

DEFAULT = HOPPER
"""what a kernel is planned, simulated and compiled for where no GPU says otherwise"""
TARGETS = {target.capability[:2]: target for target in (HOPPER,)}
"""by the compute capability of the GPUs that run its code"""
