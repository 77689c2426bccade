"""A generator of whole kernels: `draw`, and `kernels`, the same as a Hypothesis strategy."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from tests.fuzz.case import Case
from tests.fuzz.pipeline_plans import any_plan
from tests.fuzz.pipeline_sources import case
from tests.fuzz.products import product
from tests.fuzz.programs import program


def pipeline(rng: random.Random) -> Case:
    """Draw a pipeline with any choices."""
    return case(*any_plan(rng))


AUTHORS = pipeline, product, program


def draw(rng: random.Random) -> Case:
    """Draw a kernel from any of the generators."""
    return rng.choice(AUTHORS)(rng)


def kernels() -> st.SearchStrategy[Case]:
    """Return a strategy for kernels, which Hypothesis can shrink."""
    return st.randoms(use_true_random=False).map(draw)
