"""Fixtures of launch tests: fake drivers whose memory is the host's."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.kernels.host_fakes import QueuedDriver, install
from tests.kernels.launch_fakes import FakeDriver, opened
from tests.kernels.launch_kernels import SIZES


@pytest.fixture
def fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Yield the open driver. A test file whose kernels have other parameters sets their sizes in
    ``SIZES``."""
    driver = FakeDriver()
    driver.sizes = getattr(request.module, "SIZES", SIZES)
    with opened(monkeypatch, driver):
        yield driver


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueuedDriver]:
    """Yield the open driver; at the end of a test, what it left must be freed or still queued."""
    cuda = install(monkeypatch, QueuedDriver())
    yield cuda
    if cuda.live and not any(cuda.queues.values()):
        gc.collect()
        assert not cuda.live or any(cuda.queues.values())
