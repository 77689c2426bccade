"""A competitor's launches as one CUDA graph, so that kernels of a few microseconds follow each other without the host.

The GPU takes some microseconds to take up a launch, the host more to queue one: of a kernel that is over sooner, a loop of launches
measures these. The nodes of a graph are known to the GPU before the first one runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .timer import Competitor, launch

Replay = Callable[[], object]
Capture = Callable[[Callable[[], object], Callable[[], object]], Replay]
"""Runs a first function, captures what a second one launches, and returns what replays that on the current stream."""


class Captured:
    """A competitor as a graph of its launches 0, 1, …: `many` replays it. Making one raises what launches raise in a capture."""

    def __init__(self, competitor: Competitor, launches: int, capture: Capture) -> None:
        self.launches = launches
        self._replay = capture(lambda: competitor(0), lambda: launch(competitor, 0, launches))

    def __call__(self, i: int) -> object:
        return self._replay()

    def many(self, first: int, calls: int) -> None:
        """Replay the graph as often as it holds so many calls; `calls` is a multiple of `launches`."""
        for _ in range(calls // self.launches):
            self._replay()


class TorchCapture:
    """Captures on a stream of PyTorch's, which all launches of PyTorch and numpipe inside follow.

    `torch.cuda.graph` would collect Python's garbage and empty the allocator's cache before each capture, which takes longer than a
    row of a sweep. What is kept for a stream (cuBLAS' workspace, numpipe's) is made by the first call, not in a graph's own memory.
    """

    def __init__(self) -> None:
        import torch

        self._torch, self._stream = torch, torch.cuda.Stream()

    def __call__(self, first: Callable[[], object], work: Callable[[], object]) -> Replay:
        torch, stream = self._torch, self._stream
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            first()
            stream.synchronize()
            graph: Any = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        torch.cuda.synchronize()
        return graph.replay  # type: ignore[no-any-return]
