"""Configs of `numpipe.ops.matmul`, and which one a product's sizes ask for.

`choose` returns the config that is predicted to be the fastest; `space` returns the first ones of
that order, for `numpipe.autotune` to measure. `numpipe.ops.choice` is how they are found.
"""

from .choice.ranking import choose, space
from .choice.ways import Config

__all__ = ["Config", "choose", "space"]
