"""One generator of whole kernels: `draw`, and `kernels`, the same as a Hypothesis strategy."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ...diagnostics.errors import SpecError
from .case import Case
from .pipeline_plans import any_grid, any_plan
from .pipeline_sources import case
from .products import product
from .programs import program

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def pipeline(rng: random.Random) -> Case:
    """Draw a pipeline of any choices."""
    plan = any_plan(rng)
    return case(plan, any_grid(rng, plan))


def draw(rng: random.Random) -> Case:
    """Draw a kernel: a pipeline of any choices, a product of any schedule, or a program over tiles."""
    return rng.choice([pipeline, product, program])(rng)


def kernels() -> SearchStrategy[Case]:
    """Kernels, which Hypothesis makes smaller; SpecError where it is not installed.

    >>> from numpipe.tools.fuzz.drawing import kernels
    >>> strategy = kernels()
    """
    try:
        from hypothesis import strategies
    except ImportError:
        raise SpecError("numpipe fuzz draws kernels by Hypothesis, which is not installed: pip install 'numpipe[test]'") from None
    return strategies.randoms(use_true_random=False).map(draw)
