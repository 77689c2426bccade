"""`numpipe.turn` on the hardware: a tile whose value tells the order, and products in attention's order, many times over."""

from __future__ import annotations

import pytest

from tests.kernels.order_token_kernels import kernels

REPEATS = 50


@pytest.mark.parametrize("name", kernels())
def test_one_after_another(name: str) -> None:
    case = kernels()[name]
    for _ in range(REPEATS):
        case.check(lambda *args, **options: case.kernel(*args, target="gpu", **options))
