"""The architectures that kernels are compiled for."""

from .products import MMA_SYNC, MMA_SYNC_F64, WGMMA
from .target import Target

HOPPER = Target(
    "sm_90a",
    "Hopper (sm_90: H100, H200, GH200)",
    (9, 0, "a"),
    sms=132,
    smem_bytes=232448,
    registers=65536,
    lane_registers=255,
    advisories=r"C75\d\d",
    products=(WGMMA, MMA_SYNC, MMA_SYNC_F64),
)


DEFAULT = HOPPER
"""The target of plans, simulations and compiles that are not for a specific GPU."""
TARGETS = {target.capability[:2]: target for target in (HOPPER,)}
"""The targets, by the compute capability of the GPUs that run their code."""
