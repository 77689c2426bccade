"""A mark for tests that compile kernels; they are skipped where the CUDA compiler is not
installed."""

from __future__ import annotations

import pytest

from numpipe.compile.build import toolchain

compiles = pytest.mark.skipif(toolchain() is not None, reason=f"no compiler: {toolchain()}")
