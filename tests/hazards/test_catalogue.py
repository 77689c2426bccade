"""Every broken kernel of the catalogue is reported in every schedule, by its hazard's name; its mended twin is silent and right."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

from numpipe.errors import SimulationError
from numpipe.hazards import HAZARDS
from numpipe.sim import rounds
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
from tests.hazards.catalogue import ENTRIES, Entry
from tests.kernels.covering import examples

TOPICS = accumulators, arrays, barriers, clusters, gpus, loops, outputs, phases, proxies, shared, slots, stores, whole
SCHEDULES = (None, *range(examples(20)))  # None: the order of the virtual-time model