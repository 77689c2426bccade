"""Configs of matrix products, of the kinds that the matmul op selects from."""

from __future__ import annotations

from numpipe.ops.choice.ways import FUSED
from numpipe.ops.configs import Config

KINDS = (
    Config(64, 8, 128, None, panels=1, wgs=1),
    Config(64, 24, 256, None, panels=1, wgs=1, turned=True, split=3),
    Config(64, 48, 64, None, "pingpong", 1, cluster=2),
    Config(128, 72, 64, None, panels=2, across=2, turned=True),
    Config(128, 64, 64, None, panels=1, cluster=2, across=2),
    Config(192, 104, 64, None, panels=2, wgs=3, across=4),
    Config(256, 88, 64, None, panels=2),
    Config(128, 64, 64, None, panels=1, cluster=2, split="stream"),
    Config(64, 40, 64, None, panels=1, wgs=1, across=2, turned=True, split="stream"),
    Config(128, 32, 64, None, panels=1, cluster=2, across=2, split="cluster"),
    Config(64, 96, 64, None, panels=2, wgs=1, cluster=2, split=2),
    Config(64, 16, 64, None, panels=1, wgs=1, split=12),
    Config(64, 24, 128, None, panels=1, wgs=1, cluster=3, turned=True, split="cluster", once=True),
    Config(128, 120, 64, None, panels=1, cluster=5, split="cluster"),
    Config(64, 32, 64, None, panels=1, wgs=1, cluster=2, across=2, split=3, once=True),
)
"""one of each kind in `numpipe.ops.choice.ways.configs`"""


def fuses(config: Config) -> bool:
    """Return whether accumulators leave registers for an epilogue's arrays and functions."""
    return config.tm // (config.wgs if config.schedule == "cooperative" else 1) * config.tn <= FUSED
