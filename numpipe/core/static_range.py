"""`numpipe.static_range`: a range whose loop is unrolled when a kernel is compiled."""

from __future__ import annotations

__all__ = ["static_range"]


def static_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Return ``range(start)`` or ``range(start, stop, step)``; in a kernel, ``for i in
    numpipe.static_range(…)`` is unrolled at compile time.

    Each round is compiled on its own, with `i` as a constant, so `i` may be a bound of a slice, a
    shape, or an index of a tuple of constants. The arguments are known at compile time. Outside of
    kernels, and on the simulated SM, it is a plain ``range``.

    >>> list(static_range(0, 1024, 512))
    [0, 512]
    """
    return range(start) if stop is None else range(start, stop, step)
