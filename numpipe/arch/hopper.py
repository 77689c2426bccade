"""Hopper: H100, H200, GH200 (CUDA C++ Programming Guide, "Compute Capabilities")."""

from __future__ import annotations

from .target import Target

HOPPER = Target("sm_90a", "Hopper (sm_90: H100, H200, GH200)", (9, 0, "a"), smem_bytes=232448, registers=65536, lane_registers=255,
                multiply_adds=2048, smem_rate=128, advisories=r"C75\d\d")
