"""`numpipe.turn` on the GPU: a tile whose value shows the order, and products in attention's order,
in many runs."""

from __future__ import annotations

from tests.language.pipeline.test_order_tokens import (  # noqa: F401
    test_one_after_another_in_any_schedule,
)

REPEATS = 50
