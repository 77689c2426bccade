"""Every broken kernel of the catalogue is reported in every schedule, by its hazard's name; its mended twin is silent and right."""

from __future__ import annotations

from tests.hazards import (
    accumulators,
    arrays,
    barriers,
    clusters,
    gpus,
    loops,
    outputs,
    phases,
    proxies,
    shared,
    slots,
    stores,
    whole,
)
from tests.kernels.covering import examples

TOPICS = accumulators, arrays, barriers, clusters, gpus, loops, outputs, phases, proxies, shared, slots, stores, whole
SCHEDULES = (None, *range(examples(20)))  # None: the order of the virtual-time model
