"""Single-stream pipelines on the GPU: the number of slots."""

from __future__ import annotations

from . import single as source
from .ring_cuda import constant_of_plan

constant_of_plan(source.slots_of, lambda plan: plan.slots)
